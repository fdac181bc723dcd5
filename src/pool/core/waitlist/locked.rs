//! The operations under the list's lock.

use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;

use super::parking::{WaiterSide, Withdrawn};
use super::segments::{Chain, Lack, Parts, SIZE, Segment, Spares, start_of};
use super::word::{Ticket, Word};
use super::{Claimed, Lane, LaneQueue, Lanes, Seat, TurnedAway};

/// The state that only the holder of the list's lock uses.
pub(in crate::pool::core) struct LockedWaitList<G> {
    lanes: Arc<Lanes<G>>,
    books: [Book<G>; 3],
    /// The groups of turned-away waiters in which some have not been refused yet, earliest group first.
    away: Vec<Away>,
    era: u64,
    spares: Spares<G>,
    most: u32,
}

struct Book<G> {
    chain: Chain<G>,
    /// The number of tickets in the word that have left.
    gaps: u32,
}

/// A group of waiters that were turned away together.
pub(super) struct Away {
    lane: Lane,
    era: u64,
    range: TicketRange,
}

/// Where an unclaimed ticket is.
enum Unclaimed {
    Word,
    /// In the group of turned-away waiters with this index.
    Away(usize),
}

/// A run of consecutive tickets that have left, from the first to the last.
#[derive(Clone, Copy)]
struct Gap {
    first: Ticket,
    last: Ticket,
}

/// What remains of a waiter that has left. The caller drops it outside the lock.
pub(super) struct Departure<G> {
    pub(super) withdrawn: Withdrawn,
    pub(super) removed: [Parts<G>; 2],
    /// Whether the waiter was at the front.
    pub(super) at_front: bool,
}

/// Consecutive tickets. The first ticket is waiting.
#[derive(Debug, Clone, Copy)]
struct TicketRange {
    first: Ticket,
    end: Ticket,
}

impl TicketRange {
    fn of(word: Word) -> Self {
        Self { first: word.first, end: word.next }
    }

    fn holds(self, ticket: Ticket) -> bool {
        ticket.since(self.first) < self.end.since(self.first)
    }
}

impl<G> LockedWaitList<G> {
    pub(super) fn new(lanes: Arc<Lanes<G>>, most: u32) -> Self {
        let books = [(); 3].map(|()| Book { chain: Chain::new(), gaps: 0 });
        Self { lanes, books, away: Vec::with_capacity(Lane::OF_PERMITS.len()), era: 0, spares: Spares::new(), most }
    }

    /// Returns a lane's word. All words except the one for `Waiters` change only under the lock.
    pub(super) fn word(&self, lane: Lane) -> Word {
        match lane {
            Lane::Waiters => self.lanes.queue(lane).tickets.load(),
            Lane::Openers | Lane::Requeued => self.lanes.queue(lane).tickets.peek(),
        }
    }

    pub(super) fn len(&self, lane: Lane) -> u32 {
        self.word(lane).span() - self.books[lane as usize].gaps
    }

    /// Returns the number of unclaimed waiters, not counting openers.
    pub(in crate::pool::core) fn waiting(&self) -> u32 {
        Lane::OF_PERMITS.into_iter().map(|lane| self.len(lane)).sum()
    }

    pub(in crate::pool::core) fn is_empty(&self, lane: Lane) -> bool {
        self.word(lane).span() == 0
    }

    /// Returns the lane of the waiter that is served next, not counting openers.
    pub(in crate::pool::core) fn first_waiting_lane(&self) -> Option<Lane> {
        Lane::OF_PERMITS.into_iter().find(|lane| !self.is_empty(*lane))
    }

    /// Returns whether a claim in a lane needs the lock when `gaps` tickets in the lane's word have left.
    fn is_by_lock(&self, lane: Lane, gaps: u32) -> bool {
        gaps > 0 || lane == Lane::Waiters && !(self.is_empty(Lane::Openers) && self.is_empty(Lane::Requeued))
    }

    /// Returns whether a lane's next ticket has a cell.
    pub(super) fn has_room(&self, lane: Lane) -> bool {
        self.lanes.queue(lane).has_room(self.word(lane).next)
    }

    /// Installs a lane's next segment, or reports which parts are missing.
    pub(super) fn extend(&mut self, lane: Lane) -> Result<(), Lack> {
        let LaneQueue { directory, limit, .. } = self.lanes.queue(lane);
        let start = limit.load();
        directory.install(start, &mut self.books[lane as usize].chain, &mut self.spares)?;
        limit.set_segments(self.books[lane as usize].chain.len());
        limit.raise(start.plus(SIZE));
        Ok(())
    }

    /// Returns whether a lane has so many unused cells that newcomers need not look ahead.
    pub(super) fn has_plenty(&self, lane: Lane) -> bool {
        self.lanes.queue(lane).limit.load().since(self.word(lane).next) >= SIZE
    }

    /// Keeps parts for the next segments. Returns the parts that it has no room for.
    pub(super) fn keep(&mut self, parts: Parts<G>) -> Parts<G> {
        self.spares.keep(parts)
    }

    /// Returns whether a lane has the maximum number of waiters. Only `Waiters` is limited, because the check-outs in
    /// the other lanes were in `Waiters` before.
    pub(in crate::pool::core) fn is_full(&self, lane: Lane) -> bool {
        self.is_full_with(lane, self.word(lane))
    }

    fn is_full_with(&self, lane: Lane, word: Word) -> bool {
        lane == Lane::Waiters && word.span() - self.books[lane as usize].gaps >= self.most
    }

    /// Gives out a lane's next ticket. The caller must take its seat
    /// ([`WaitList::sit_down`](super::WaitList::sit_down)) as soon as it has released the lock. Returns `None` if the
    /// lane is full, or if other newcomers have taken the remaining cells in the meantime. The latter happens only in a
    /// lane that has waiters.
    pub(in crate::pool::core) fn enqueue(&mut self, lane: Lane) -> Option<Seat<G>> {
        let queue = self.lanes.queue(lane);
        let seen = loop {
            let seen = self.word(lane);
            if self.is_full_with(lane, seen) || !queue.has_room(seen.next) {
                return None;
            }
            if queue.tickets.swap(seen, seen.joined()) {
                break seen;
            }
        };
        let seat = Seat::of(lane, seen.next, queue);
        self.tidy_behind(lane);
        Some(seat)
    }

    /// Claims the first waiter of a lane, if there is one.
    pub(in crate::pool::core) fn claim_first(&mut self, lane: Lane) -> Option<Claimed<G>> {
        let queue = self.lanes.queue(lane);
        let gaps = self.books[lane as usize].gaps;
        let claimed = loop {
            let seen = self.word(lane);
            if seen.span() == 0 {
                return None;
            }
            let first = queue.beyond(seen.first.after(), seen.next);
            let remaining = gaps - (first.since(seen.first) - 1);
            if queue.tickets.swap(seen, Word { first, by_lock: self.is_by_lock(lane, remaining), ..seen }) {
                self.books[lane as usize].gaps = remaining;
                break Claimed::of(queue, seen.first);
            }
        };
        self.tidy_behind(lane);
        Some(claimed)
    }

    /// Returns whether [`turn_away`](Self::turn_away) can run without more memory.
    pub(super) fn can_turn_away(&self) -> bool {
        self.first_waiting_lane().is_none() || self.away.capacity() - self.away.len() >= Lane::OF_PERMITS.len()
    }

    /// Returns the number of groups of turned-away waiters that have not all been refused.
    pub(super) fn turnings_away(&self) -> usize {
        self.away.len()
    }

    /// Replaces the memory for groups of turned-away waiters with `room` if `room` is larger. Returns the memory that
    /// the list does not use.
    pub(super) fn make_room_to_turn_away(&mut self, mut room: Vec<Away>) -> Vec<Away> {
        if room.capacity() > self.away.capacity() {
            room.append(&mut self.away);
            std::mem::swap(&mut self.away, &mut room);
        }
        room
    }

    /// Takes all waiters except openers out of the queue at once. They are then claimed one by one and refused. The
    /// caller must have taken the lock with [`WaitList::lock_to_turn_away`](super::WaitList::lock_to_turn_away).
    pub(in crate::pool::core) fn turn_away(&mut self) -> Option<TurnedAway> {
        self.first_waiting_lane()?;
        for lane in Lane::OF_PERMITS {
            if self.is_empty(lane) {
                continue;
            }
            let by_lock = self.is_by_lock(lane, 0);
            let (seen, _) = self.lanes.queue(lane).tickets.change(|seen| Word { by_lock, ..seen.emptied() });
            self.books[lane as usize].gaps = 0;
            self.away.push(Away { lane, era: self.era, range: TicketRange::of(seen) });
            self.tidy_behind(lane);
        }
        self.era += 1;
        Some(TurnedAway { era: self.era - 1 })
    }

    /// Claims the first waiter that was turned away in this era or an earlier one.
    pub(super) fn claim_turned_away(&mut self, era: u64) -> Option<Claimed<G>> {
        let Away { lane, range, .. } = *self.away.first().filter(|away| away.era <= era)?;
        self.skip_away(0, 1);
        Some(Claimed::of(self.lanes.queue(lane), range.first))
    }

    /// Prevents granters that do not hold the lock from claiming a waiter until [`tidy`](Self::tidy) is called. Returns
    /// where the waiter's ticket is, or `None` if the ticket has already been claimed.
    fn withhold(&mut self, seat: &Seat<G>) -> Option<Unclaimed> {
        if self.lanes.queue(seat.lane).tickets.go_by_lock().holds(seat.ticket) {
            return Some(Unclaimed::Word);
        }
        self.tidy(seat.lane);
        let holds = |away: &Away| seat.lane == away.lane && away.range.holds(seat.ticket);
        self.away.iter().position(holds).map(Unclaimed::Away)
    }

    /// Replaces a waiter's waker. Returns the old waker, or the new one if the waiter has been claimed. The caller
    /// drops the returned waker outside the lock.
    pub(super) fn renew(&mut self, seat: &Seat<G>, parked: &mut WaiterSide, waker: Waker) -> Result<Withdrawn, Waker> {
        if self.withhold(seat).is_none() {
            return Err(waker);
        }
        let old = seat.cell().renew(parked, waker);
        self.tidy(seat.lane);
        Ok(old)
    }

    /// Takes a waiter out of the queue. Returns `None` if it has been claimed.
    pub(super) fn remove(&mut self, seat: &Seat<G>, parked: &mut WaiterSide) -> Option<Departure<G>> {
        let unclaimed = self.withhold(seat)?;
        let withdrawn = seat.cell().leave(seat.ticket, parked);
        let Seat { lane, ticket, .. } = *seat;
        let range = match unclaimed {
            Unclaimed::Word => TicketRange::of(self.word(lane)),
            Unclaimed::Away(index) => self.away[index].range,
        };
        let gap = self.lanes.queue(lane).widen_gap(ticket, range);
        let removed = self.remove_inside(lane, ticket, gap);
        match unclaimed {
            Unclaimed::Word => {
                self.books[lane as usize].gaps += 1;
                self.tidy(lane);
            }
            Unclaimed::Away(index) => self.skip_away(index, 0),
        }
        Some(Departure { withdrawn, removed, at_front: gap.first == range.first })
    }

    /// Removes the segments that lie inside a gap now that `ticket` has been added to it. There are at most two,
    /// because only the segments of the ticket and its neighbours can be affected.
    fn remove_inside(&mut self, lane: Lane, ticket: Ticket, gap: Gap) -> [Parts<G>; 2] {
        let is_inside = |start: Ticket| start_of(gap.first).is_before(start) && start.is_before(start_of(gap.last));
        let [before, after] = [ticket.before(), ticket.after()].map(start_of);
        let inside = [Some(before), (after != before).then_some(after)];
        inside.map(|start| match start.filter(|start| is_inside(*start)) {
            Some(start) => self.dismantle(lane, self.lanes.queue(lane).directory.segment(start)),
            None => Parts::NONE,
        })
    }

    /// Removes a segment whose tickets are no longer needed. Returns the memory that the list does not keep.
    fn dismantle(&mut self, lane: Lane, segment: NonNull<Segment<G>>) -> Parts<G> {
        let (queue, chain) = (self.lanes.queue(lane), &mut self.books[lane as usize].chain);
        let parts = queue.directory.remove(segment, chain);
        queue.limit.set_segments(chain.len());
        self.spares.keep(parts)
    }

    /// Frees all of a lane's segments. Called when the list is dropped.
    pub(super) fn clear(&mut self, lane: Lane) {
        while let Some(segment) = self.books[lane as usize].chain.first() {
            drop(self.dismantle(lane, segment));
        }
    }

    pub(super) fn segments(&self, lane: Lane) -> u32 {
        self.books[lane as usize].chain.len()
    }

    /// Checks the next segment that the queue has passed in a lane, and removes the segment if it is over. Returns the
    /// memory that the list does not keep.
    pub(super) fn sweep(&mut self, lane: Lane) -> Parts<G> {
        let first = self.word(lane).first;
        let away = self.away.iter().find(|away| away.lane == lane).map_or(first, |away| away.range.first);
        // Segments that the queue has not passed are not checked, because reading the cells of waiting tickets would
        // take their cache lines away from the granters.
        let has_passed = |start: Ticket| [first, away].iter().all(|first| !first.is_before(start.plus(SIZE)));
        match self.books[lane as usize].chain.next_passed(has_passed) {
            Some(segment) if Self::is_over(segment) => self.dismantle(lane, segment),
            _ => Parts::NONE,
        }
    }

    #[allow(unsafe_code)]
    fn is_over(segment: NonNull<Segment<G>>) -> bool {
        // SAFETY: the segment is in a chain, so it exists.
        unsafe { segment.as_ref() }.is_over()
    }

    /// Skips the gap at the front of a word, if there is one, and corrects the `by_lock` mark.
    fn tidy(&mut self, lane: Lane) {
        let queue = self.lanes.queue(lane);
        let gaps = self.books[lane as usize].gaps;
        loop {
            let seen = self.word(lane);
            let first = queue.beyond(seen.first, seen.next);
            let remaining = gaps - first.since(seen.first);
            let new = Word { first, by_lock: self.is_by_lock(lane, remaining), ..seen };
            if new == seen || queue.tickets.swap(seen, new) {
                self.books[lane as usize].gaps = remaining;
                break;
            }
        }
        self.tidy_behind(lane);
    }

    /// Corrects the `by_lock` mark of the `Waiters` lane, after a change to a lane that is served before it.
    fn tidy_behind(&mut self, lane: Lane) {
        if lane != Lane::Waiters {
            self.tidy(Lane::Waiters);
        }
    }

    /// Removes `claimed` tickets, and then any gap, from the front of a group of turned-away waiters.
    fn skip_away(&mut self, index: usize, claimed: u32) {
        let away = &mut self.away[index];
        let queue = self.lanes.queue(away.lane);
        away.range.first = queue.beyond(away.range.first.plus(claimed), away.range.end);
        if away.range.first == away.range.end {
            self.away.remove(index);
        }
    }
}

impl<G> LaneQueue<G> {
    /// Returns whether the waiter with an unclaimed ticket has left. Called under the list's lock.
    fn is_left(&self, ticket: Ticket) -> bool {
        self.directory.with_cell(ticket, |cell| cell.is_left(ticket))
    }

    fn with_other_end<R>(&self, ticket: Ticket, f: impl FnOnce(&mut Ticket) -> R) -> R {
        self.directory.with_cell(ticket, |cell| cell.with_other_end(f))
    }

    /// Turns a ticket that has left into a gap, and joins it with the gaps beside it in its range. The cell of a gap's
    /// first ticket stores the gap's last ticket, and vice versa. So extending, joining and skipping gaps takes
    /// constant time.
    fn widen_gap(&self, ticket: Ticket, range: TicketRange) -> Gap {
        let last = match ticket.after() != range.end && self.is_left(ticket.after()) {
            true => self.with_other_end(ticket.after(), |end| *end),
            false => ticket,
        };
        let first = match ticket != range.first && self.is_left(ticket.before()) {
            true => self.with_other_end(ticket.before(), |end| *end),
            false => ticket,
        };
        self.with_other_end(first, |end| *end = last);
        self.with_other_end(last, |end| *end = first);
        Gap { first, last }
    }

    /// Returns the first ticket in `ticket..end` that has not left, or `end` if there is none. If `ticket` has left, it
    /// must be the first ticket of its gap.
    fn beyond(&self, ticket: Ticket, end: Ticket) -> Ticket {
        if ticket == end || !self.is_left(ticket) {
            return ticket;
        }
        self.with_other_end(ticket, |last| *last).after()
    }
}
