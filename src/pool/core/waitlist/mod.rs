//! The wait list: check-outs that wait for a connection, served in order of arrival.
//!
//! The list has three [lanes](Lane). A check-out that opens a connection was first in the queue when it received its
//! permit. Until its own connection is open, it stays in front of all later check-outs, and takes another connection if
//! one is returned sooner. If a granted connection goes stale before its check-out takes it, the check-out queues up
//! again, in front of all check-outs that were behind it.
//!
//! A lane's word holds the first waiter's ticket and the next newcomer's ticket ([`word`]). A newcomer takes its ticket
//! with one compare-and-swap, and parks in the ticket's cell ([`cell`]). A granter claims the first ticket with one
//! compare-and-swap, and leaves the grant in its cell. Whichever of the two reaches the cell later completes the
//! hand-over. So neither waits for the other, and while another waiter is in the queue, neither takes a lock. The cells
//! are in segments of a fixed number of tickets. A segment is installed before its tickets are needed, and removed
//! after they are over ([`segments`]). Up to this point, the design follows CQS (Koval, Khalanskiy, Alistarh, PLDI
//! 2023). It differs from CQS in two ways. One word holds both ends of the queue, so a granter never claims a ticket
//! without a waiter. A directory leads to the segments, so their memory can be freed as soon as their tickets are over.
//!
//! A waiter parks in one of two ways. With `own`, it leaves the task's waker in the cell. With `event`, which the
//! `event-listener-queue` feature selects, it listens to an event-listener `Event` in its cell. Everything else is the
//! same.
//!
//! # The lock
//!
//! All other operations take the list's lock ([`LockedWaitList`]). The lock does not protect the words: newcomers and
//! granters change them with or without it, so the holder must also use compare-and-swap. The lock is needed when
//!
//! - the first waiter joins or the last waiter is claimed: the pool's flags change in the same section;
//! - an unclaimed waiter leaves: its ticket becomes part of a gap, and the `by_lock` mark in the word makes all
//!   granters, but not newcomers, take the lock until no gap is left;
//! - a waiter changes its waker: the mark keeps granters away in the meantime;
//! - check-outs wait in one of the other lanes, which have their own words with the same mark;
//! - all waiters are turned away;
//! - a segment is installed or removed.
//!
//! INV-11 (what a word says): a lane gets its first waiter and loses its last waiter only under the lock. The first
//! ticket of a word is never in a gap, except in a section that is about to skip the gap. So a word that is not empty
//! has a waiter, and a lane with an empty word has no waiter.
//!
//! The work in a section does not depend on how many check-outs wait or have left, and no section allocates or frees
//! memory. A search for a waiter that was turned away takes one step for each clear whose waiters have not all been
//! refused yet.
//!
//! # Which thread waits for which
//!
//! Newcomers begin to look ahead for the next segment when three quarters of the current segment are still unused. A
//! newcomer that looks ahead tries the lock, but does not wait for it. If all these newcomers find the lock taken, a
//! later newcomer may find no cell for the next ticket. It then waits for the next segment before it takes a ticket.
//! The newcomer may therefore have to wait for a thread that was preempted in one of the short sections. While it
//! waits, it yields, and after about a millisecond it sleeps for 50 µs at a time. A claimed waiter that leaves or
//! changes its waker waits for the few steps between the claim and its grant. No other newcomer, granter or waiter
//! waits for another thread.
//!
//! Nothing between a claim and its grant may panic, wait, or call foreign code.
//!
//! # Memory
//!
//! A cell takes 64 bytes. Segments of 64 cells are allocated during polls. Rarely, a poll also allocates the branches
//! that lead to a segment (2 KiB each, one per 16,384 tickets). A ticket is finished once its grant has been taken or
//! the ticket has been skipped. A segment is freed once all its tickets are over. A few segments are kept for reuse. A
//! newcomer that looks ahead also checks one segment that the queue has passed, and removes it if it is over. While
//! more waiters leave than arrive, two kinds of waiters also check a segment: a waiter with the first or the last
//! ticket of a segment, when it takes its grant, and a waiter that leaves from the front of the queue. Maintenance
//! checks all segments. A segment whose waiters have all left is removed at once if the neighbouring waiters have left
//! as well. So in the worst case, one waiter in 64 stays and keeps its segment alive, or two segments if its ticket
//! lies on the boundary between them.
//!
//! # A waiter that leaves
//!
//! - Not claimed, or turned away and not claimed since: no granter has claimed the ticket. The waiter is taken out of
//!   the queue under the lock, and does not wait for another thread.
//! - Claimed: a granter has claimed the ticket, and has given the grant or is about to give it. The waiter receives the
//!   grant. The caller then drops the grant, which passes it on.

mod cell;
mod locked;
#[cfg(loom)]
mod modelled;
#[cfg_attr(feature = "event-listener-queue", path = "event.rs")]
#[cfg_attr(not(feature = "event-listener-queue"), path = "own.rs")]
mod parking;
mod segments;
#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
mod word;

use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crossbeam_utils::CachePadded;

use crate::pool::sync::{BriefGuard, BriefLock, Patience, discard};
use cell::Cell;
use locked::Departure;
pub(super) use locked::LockedWaitList;
#[cfg(loom)]
pub use modelled::{ModelledList, ModelledWaiter};
use parking::WaiterSide;
use segments::{Directory, Parts, SIZE, start_of};
use word::{Limit, Ticket, Tickets};

/// The lanes of the wait list. A returned connection goes to the first opener or, if there is none, to the first waiter
/// in lane order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Check-outs that are opening a connection or are about to.
    Openers,
    /// Check-outs whose granted connection went stale before they took it. They are served before the other waiters, so
    /// that they do not lose their turn.
    Requeued,
    /// Check-outs for which no connection is being opened. They take a connection or a permit to open one.
    Waiters,
}

impl Lane {
    /// The order of lanes for a returned connection: the earliest check-out first.
    pub(super) const OF_RETURNED: [Self; 3] = [Self::Openers, Self::Requeued, Self::Waiters];
    /// The order of lanes for a new connection that no check-out claims. A check-out that would otherwise open another
    /// connection comes first.
    pub(super) const OF_NEW: [Self; 3] = [Self::Requeued, Self::Waiters, Self::Openers];
    /// The lanes that take a permit, in order.
    const OF_PERMITS: [Self; 2] = [Self::Requeued, Self::Waiters];
}

/// A check-out in the wait list, or about to enter it.
pub(super) struct Waiter<G> {
    seat: Option<Seat<G>>,
    parked: WaiterSide,
}

impl<G> Waiter<G> {
    pub(super) fn new() -> Self {
        Self { seat: None, parked: WaiterSide::new() }
    }

    /// Returns whether the check-out has entered the queue and has not taken its grant yet.
    #[inline]
    pub(super) fn is_queued(&self) -> bool {
        self.seat.is_some()
    }

    #[inline]
    #[allow(unsafe_code)]
    fn take(&mut self) -> Option<G> {
        let Self { seat, parked } = self;
        // SAFETY: INV-12: the ticket is not over while its waiter has the seat.
        let grant = seat.as_ref().and_then(|seat| unsafe { Cell::take(seat.cell, seat.ticket, parked) })?;
        self.seat = None;
        Some(grant)
    }

    /// Returns whether a grant would wake the check-out through this waker.
    #[inline]
    fn wakes(&mut self, waker: &Waker) -> bool {
        let Self { seat, parked } = self;
        seat.as_ref().is_some_and(|seat| seat.cell().wakes(parked, waker))
    }

    /// Waits for a claimed ticket's grant. Its granter has a bounded number of steps left.
    #[cold]
    fn await_grant(&mut self) -> G {
        let mut patience = Patience::new();
        loop {
            if let Some(grant) = self.take() {
                return grant;
            }
            patience.pause();
        }
    }
}

/// A ticket, with its lane and its cell.
#[must_use = "a granter may have claimed it already"]
pub(super) struct Seat<G> {
    lane: Lane,
    ticket: Ticket,
    cell: NonNull<Cell<G>>,
}

// SAFETY: a cell is `Sync`, and a grant may move to another thread.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Seat<G> {}
// SAFETY: as above, and a cell is `Sync`.
#[allow(unsafe_code)]
unsafe impl<G: Send> Sync for Seat<G> {}

impl<G> Seat<G> {
    #[inline]
    fn of(lane: Lane, ticket: Ticket, queue: &LaneQueue<G>) -> Self {
        Self { lane, ticket, cell: queue.directory.cell(ticket) }
    }

    #[inline]
    #[allow(unsafe_code)]
    fn cell(&self) -> &Cell<G> {
        // SAFETY: INV-12: the ticket is not over while its waiter has the seat.
        unsafe { self.cell.as_ref() }
    }
}

/// A granter's promise to grant something to the waiter with this ticket.
#[must_use = "a waiter waits for the grant"]
pub(super) struct Claimed<G> {
    ticket: Ticket,
    cell: NonNull<Cell<G>>,
}

// SAFETY: a cell is `Sync`, and a grant may move to another thread.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Claimed<G> {}

impl<G> Claimed<G> {
    #[inline]
    fn of(queue: &LaneQueue<G>, ticket: Ticket) -> Self {
        Self { ticket, cell: queue.directory.cell(ticket) }
    }

    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn grant(self, grant: G) -> Waker {
        // SAFETY: INV-12: the ticket is claimed, and its waiter has not taken the grant.
        let waker = unsafe { Cell::grant(self.cell, self.ticket, grant) };
        // If there is no waker, the waiter has not parked yet, and will find the grant when it does.
        waker.unwrap_or_else(|| Waker::noop().clone())
    }
}

/// The promise by [`LockedWaitList::turn_away`] to refuse all waiters that were turned away up to this era.
#[must_use = "waiters wait for a refusal"]
pub(super) struct TurnedAway {
    era: u64,
}

struct LaneQueue<G> {
    tickets: CachePadded<Tickets>,
    limit: CachePadded<Limit>,
    directory: Directory<G>,
}

impl<G> LaneQueue<G> {
    /// The largest number of segments that are not full of waiting tickets: two partly used segments, the next segment,
    /// and two that are about to be removed.
    const FEW: u32 = 5;

    fn new() -> Self {
        let (tickets, limit) = (CachePadded::new(Tickets::new()), CachePadded::new(Limit::new()));
        Self { tickets, limit, directory: Directory::new() }
    }

    /// Returns whether there seem to be more segments than newcomers can remove, as happens when more waiters leave
    /// than arrive.
    #[cold]
    fn has_too_many(&self) -> bool {
        self.limit.segments() > self.tickets.peek().span() / SIZE + Self::FEW
    }

    /// Returns whether the next ticket has a cell.
    #[inline]
    fn has_room(&self, next: Ticket) -> bool {
        self.limit.load() != next
    }
}

struct Lanes<G>([LaneQueue<G>; 3]);

impl<G> Lanes<G> {
    #[inline]
    fn queue(&self, lane: Lane) -> &LaneQueue<G> {
        &self.0[lane as usize]
    }
}

pub(super) struct WaitList<G> {
    lanes: Arc<Lanes<G>>,
    /// The largest number of waiters in the `Waiters` lane. A newcomer beyond this number is refused.
    most: u32,
    /// This is on its own cache lines, because threads read `lanes` without the lock.
    locked: CachePadded<BriefLock<LockedWaitList<G>>>,
}

impl<G> WaitList<G> {
    /// The largest number of waiters that [`claim_turned_away`](Self::claim_turned_away) claims at a time. The number
    /// is small, so the section under the lock is short and delays other waiters only briefly when they leave.
    pub(super) const BATCH: usize = 16;
    /// A newcomer may look ahead if its ticket's number is a multiple of this number.
    const STRETCH: u32 = if SIZE < 4 { 1 } else { SIZE / 4 };
    /// The number of checks after which a newcomer that is waiting for a cell tries the lock.
    #[cfg(not(loom))]
    const LOOKS: u32 = 8;
    #[cfg(loom)]
    const LOOKS: u32 = 1;

    pub(super) fn new(most: u32) -> Self {
        let lanes = Arc::new(Lanes([(); 3].map(|()| LaneQueue::new())));
        Self { locked: CachePadded::new(BriefLock::new(LockedWaitList::new(lanes.clone(), most))), lanes, most }
    }

    #[inline]
    pub(super) fn lock(&self) -> BriefGuard<'_, LockedWaitList<G>> {
        self.locked.lock()
    }

    /// Returns the number of waiters, not counting openers. It may include waiters that have already left.
    pub(super) fn span(&self) -> u32 {
        Lane::OF_PERMITS.into_iter().map(|lane| self.lanes.queue(lane).tickets.peek().span()).sum()
    }

    /// Takes the lock, and makes sure that `lane` has room for one more waiter.
    #[inline]
    pub(super) fn lock_with_room(&self, lane: Lane) -> BriefGuard<'_, LockedWaitList<G>> {
        let locked = self.lock();
        if locked.has_room(lane) {
            return locked;
        }
        drop(locked);
        self.extend(lane, |list| Some(list.lock()), LockedWaitList::has_room).expect("BUG: a lock was not waited for")
    }

    /// Extends a lane before its last cell is taken, if the lock is free. First removes one segment that is over, so
    /// that its memory can be reused for the next segment.
    #[cold]
    fn look_ahead(&self, lane: Lane) {
        let Some(mut locked) = self.locked.try_lock() else { return };
        if locked.has_plenty(lane) {
            return;
        }
        let removed = locked.sweep(lane);
        let extended = locked.extend(lane);
        drop(locked);
        drop(removed);
        if extended.is_err() {
            drop(self.extend(lane, |list| list.locked.try_lock(), LockedWaitList::has_plenty));
        }
    }

    /// Waits until a lane's next ticket has a cell.
    ///
    /// Does not wait in the lock's queue: on 64 simulated cores, newcomers stayed in that queue forever, because other
    /// newcomers kept taking the new cells before those in the queue got the lock.
    #[cold]
    fn await_room(&self, lane: Lane) {
        let queue = self.lanes.queue(lane);
        let mut patience = Patience::new();
        for look in 0_u32.. {
            if look.is_multiple_of(Self::LOOKS) {
                self.look_ahead(lane);
            }
            if queue.has_room(queue.tickets.load().next) {
                return;
            }
            patience.pause();
        }
    }

    /// Extends a lane until it has enough cells, or returns `None` if `lock` cannot take the lock. Memory is allocated
    /// and freed outside the lock.
    #[cold]
    fn extend<'l>(
        &'l self,
        lane: Lane,
        lock: impl Fn(&'l Self) -> Option<BriefGuard<'l, LockedWaitList<G>>>,
        has_enough: impl Fn(&LockedWaitList<G>, Lane) -> bool,
    ) -> Option<BriefGuard<'l, LockedWaitList<G>>> {
        let mut built = Parts::NONE;
        loop {
            let mut locked = lock(self)?;
            let rest = locked.keep(built);
            let extended = if has_enough(&locked, lane) { Ok(()) } else { locked.extend(lane) };
            if extended.is_ok() && rest.is_none() {
                return Some(locked);
            }
            drop(locked);
            // If any parts are left over, other threads have built the same parts in the meantime.
            drop(rest);
            built = extended.err().map_or(Parts::NONE, Parts::build);
        }
    }

    /// Removes one segment that is over, if the lock is free.
    #[cold]
    fn sweep(&self, lane: Lane) {
        if let Some(mut locked) = self.locked.try_lock() {
            let removed = locked.sweep(lane);
            drop(locked);
            drop(removed);
        }
    }

    /// Removes all segments that are over.
    pub(super) fn maintain(&self) {
        for lane in Lane::OF_RETURNED {
            let segments = self.lock().segments(lane);
            for _ in 0..segments {
                // Each segment is checked in its own short section. If it is removed, its memory is freed afterwards.
                let removed = self.lock().sweep(lane);
                drop(removed);
            }
        }
    }

    /// Takes the lock, and makes sure that [`LockedWaitList::turn_away`] has the memory that it needs.
    pub(super) fn lock_to_turn_away(&self) -> BriefGuard<'_, LockedWaitList<G>> {
        let mut locked = self.lock();
        while !locked.can_turn_away() {
            let wanted = 2 * locked.turnings_away() + 1;
            drop(locked);
            let room = Vec::with_capacity(wanted);
            locked = self.lock();
            let old = locked.make_room_to_turn_away(room);
            drop(locked);
            drop(old);
            locked = self.lock();
        }
        locked
    }

    /// Runs a section under the lock, on this thread or on the thread that holds the lock.
    #[inline(always)]
    pub(super) fn run<R: Send, F: FnOnce(&mut LockedWaitList<G>) -> R + Send>(
        &self,
        now: impl FnOnce(&mut LockedWaitList<G>) -> R,
        later: impl FnOnce() -> F,
    ) -> R {
        self.locked.run(now, later)
    }

    /// Joins the waiters without the lock, and returns the result of [`sit_down`](Self::sit_down). Returns `None` if
    /// there are no waiters, or so many that only the holder of the lock can tell whether there is room for another
    /// waiter.
    #[inline]
    pub(super) fn try_join(&self, waiter: &mut Waiter<G>, waker: &Waker) -> Option<Poll<G>> {
        let queue = self.lanes.queue(Lane::Waiters);
        // Cloned before there is a ticket, because cloning a waker runs foreign code.
        let waker = waker.clone();
        loop {
            let seen = queue.tickets.load_to_change();
            if seen.span() == 0 || seen.span() >= self.most {
                discard(waker);
                return None;
            }
            if !queue.has_room(seen.next) {
                self.await_room(Lane::Waiters);
            } else if queue.tickets.swap(seen, seen.joined()) {
                return Some(self.sit_down(waiter, Seat::of(Lane::Waiters, seen.next, queue), waker));
            }
        }
    }

    /// Parks a waiter that has just taken a ticket. Called without the lock. Returns the grant if the granter came
    /// first.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn sit_down(&self, waiter: &mut Waiter<G>, seat: Seat<G>, waker: Waker) -> Poll<G> {
        // SAFETY: INV-12: the ticket is not over.
        let grant = unsafe { Cell::park(seat.cell, seat.ticket, &mut waiter.parked, waker) };
        let Seat { lane, ticket, .. } = seat;
        if grant.is_none() {
            waiter.seat = Some(seat);
        }
        if ticket.number().is_multiple_of(Self::STRETCH)
            && self.lanes.queue(lane).limit.load().since(ticket) <= SIZE - Self::STRETCH
        {
            self.look_ahead(lane);
        }
        grant.map_or(Poll::Pending, Poll::Ready)
    }

    /// Claims the first waiter without the lock, if another waits behind it, and if `is_current` returns `true` between
    /// loading the word and swapping it. Returns `None` if the caller has to take the lock.
    ///
    /// A clear changes the pool word first and then, if check-outs are waiting, the list's word. So the claim notices
    /// at least one of the two changes, as a push does (`Shard::push`).
    #[inline]
    pub(super) fn try_claim(&self, is_current: impl Fn() -> bool) -> Option<Claimed<G>> {
        let queue = self.lanes.queue(Lane::Waiters);
        loop {
            let seen = queue.tickets.load_to_change();
            if seen.by_lock || seen.span() < 2 || !is_current() {
                return None;
            }
            if queue.tickets.swap(seen, seen.claimed()) {
                return Some(Claimed::of(queue, seen.first));
            }
        }
    }

    /// Claims up to [`BATCH`](Self::BATCH) waiters that were turned away and have not left. If it claims fewer, no such
    /// waiter is left.
    ///
    /// `claimed` must be empty and have room for a batch.
    pub(super) fn claim_turned_away(&self, away: &TurnedAway, claimed: &mut Vec<Claimed<G>>) {
        debug_assert!(claimed.is_empty() && claimed.capacity() >= Self::BATCH, "BUG: no room for a batch");
        let mut locked = self.lock();
        while claimed.len() < Self::BATCH
            && let Some(first) = locked.claim_turned_away(away.era)
        {
            claimed.push(first);
        }
    }

    /// Takes the grant if there is one. Otherwise replaces the waker if it has changed. The waiter must be in the
    /// queue.
    #[inline]
    pub(super) fn poll(&self, waiter: &mut Waiter<G>, context: &mut Context<'_>) -> Poll<G> {
        let seat = waiter.seat.as_ref().expect("BUG: a check-out waits without a seat");
        let Seat { lane, ticket, .. } = *seat;
        let grant = match waiter.take() {
            None if waiter.wakes(context.waker()) => None,
            None => self.renew(waiter, context.waker()),
            granted => granted,
        };
        let is_border = [ticket, ticket.after()].iter().any(|ticket| start_of(*ticket) == *ticket);
        if is_border && grant.is_some() && self.lanes.queue(lane).has_too_many() {
            self.sweep(lane);
        }
        grant.map_or(Poll::Pending, Poll::Ready)
    }

    /// Replaces the waker. Returns the grant instead if the waiter has already been claimed.
    #[cold]
    fn renew(&self, waiter: &mut Waiter<G>, waker: &Waker) -> Option<G> {
        // The new waker is cloned before the lock is taken, and the old waker is dropped after the lock is released,
        // because both run foreign code.
        let new = waker.clone();
        let Waiter { seat, parked } = waiter;
        let renewed = self.lock().renew(seat.as_ref()?, parked, new);
        match renewed {
            Ok(old) => {
                drop(old);
                None
            }
            Err(new) => {
                discard(new);
                Some(waiter.await_grant())
            }
        }
    }

    /// Leaves the queue, and calls `settle` while the lock is held. If the waiter has already been claimed, returns its
    /// grant instead. The waiter must be in the queue.
    pub(super) fn leave(&self, waiter: &mut Waiter<G>, settle: impl FnOnce(&LockedWaitList<G>)) -> Option<G> {
        if let Some(grant) = waiter.take() {
            return Some(grant);
        }
        let Waiter { seat, parked } = waiter;
        let mut locked = self.lock();
        let Some(departure) = locked.remove(seat.as_ref()?, parked) else {
            drop(locked);
            return Some(waiter.await_grant());
        };
        settle(&locked);
        drop(locked);
        let lane = seat.take()?.lane;
        let Departure { withdrawn, removed, at_front } = departure;
        drop((withdrawn, removed));
        if at_front {
            self.sweep(lane);
        }
        None
    }
}

impl<G> Drop for WaitList<G> {
    fn drop(&mut self) {
        let mut locked = self.locked.lock();
        Lane::OF_RETURNED.into_iter().for_each(|lane| locked.clear(lane));
    }
}
