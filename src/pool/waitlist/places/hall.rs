//! Halls: the places of a run of tickets.

use std::ptr::NonNull;

use crossbeam::utils::CachePadded;

use super::super::Lane;
use super::super::word::{Ticket, Word};
use super::place::Place;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{UnsafeCell, made_progress, published, step};

/// The places of a lane's tickets from one on, until later tickets have another hall.
///
/// A ticket's place follows from its number in the hall. The numbers go on when the hall is used again for another run of
/// tickets, so the turns at a place do, too.
///
/// # Gaps
///
/// A waiter that leaves marks its place as left. Neighbours that have left form a gap. The place of a gap's first ticket
/// knows the last one, and the other way round. So a gap grows by a ticket, is joined with another one and is skipped in
/// constant time and without memory of its own.
pub(super) struct Hall<G> {
    /// The ticket with the number 0, modulo the number of tickets. The word of the lane publishes it.
    start: AtomicU32,
    /// Their number is a power of two.
    places: Box<[Place<G>]>,
    /// The number after the last one whose place is known to be free for it.
    limit: CachePadded<AtomicU32>,
    run: CachePadded<UnsafeCell<Run<G>>>,
}

/// What only the holder of the list's lock knows of a hall.
pub(super) struct Run<G> {
    pub(super) stage: Stage,
    pub(super) lane: Lane,
    /// The first ticket that waits. Of a run in the word, the word knows better.
    pub(super) first: Ticket,
    /// The ticket after the last one. Of a run in the word, the word knows better.
    pub(super) end: Ticket,
    /// The number of tickets from `first` to `end` that have left.
    pub(super) gaps: u32,
    /// The number of turnings-away before this run was taken out of the word.
    pub(super) era: u64,
    /// The neighbours in the chain of the books.
    pub(super) previous: Option<NonNull<Hall<G>>>,
    pub(super) next: Option<NonNull<Hall<G>>>,
}

/// Where the run of a hall is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Nowhere: the hall has no run.
    Spare,
    /// In the word of its lane.
    Present,
    /// In a chain of the books: its tickets come before those in the word, or were turned away.
    Closed,
}

impl<G> Run<G> {
    /// Returns the number of waiters. Not of a run in the word.
    pub(super) fn len(&self) -> u32 {
        self.end.since(self.first) - self.gaps
    }

    /// Returns whether a ticket of this hall was neither claimed nor skipped. Not of a run in the word.
    pub(super) fn holds(&self, ticket: Ticket) -> bool {
        ticket.since(self.first) < self.end.since(self.first)
    }
}

/// Returns whether a number comes before another one. There are fewer than half of all numbers between the two.
#[inline]
fn is_before(number: u32, other: u32) -> bool {
    number != other && Ticket::of(other).since(Ticket::of(number)) < Ticket::MOST
}

/// The place of a ticket.
pub(super) struct Spot<G> {
    place: NonNull<Place<G>>,
    pub(super) turn: u32,
    /// The turn of the next ticket at this place.
    pub(super) next: u32,
}

#[allow(unsafe_code)]
impl<G> Spot<G> {
    /// Returns the place. The caller has a ticket of the hall that was not granted, or a claim of one. So the list exists.
    #[inline]
    pub(super) fn place(&self) -> &Place<G> {
        // SAFETY: a hall exists as long as its list, and the list as long as the core. The waiter of the ticket borrows
        // the core until it has its grant.
        unsafe { self.place.as_ref() }
    }
}

impl<G> Hall<G> {
    /// The most places of a hall. With more, the turns at a place would be too few to tell them apart.
    pub(super) const MOST_PLACES: u32 = Ticket::COUNT / 4;

    /// Returns a hall with this number of places, which is a power of two.
    pub(super) fn new(places: u32) -> Box<Self> {
        let run = Run {
            stage: Stage::Spare,
            lane: Lane::Waiters,
            first: Ticket::of(0),
            end: Ticket::of(0),
            gaps: 0,
            era: 0,
            previous: None,
            next: None,
        };
        let places: Box<[_]> = (0..places).map(|_| Place::new()).collect();
        Box::new(Self {
            start: AtomicU32::new(0),
            limit: CachePadded::new(AtomicU32::new(places.len() as u32)),
            places,
            run: CachePadded::new(UnsafeCell::new(run)),
        })
    }

    /// Returns the number of places.
    #[inline]
    pub(super) fn places(&self) -> u32 {
        self.places.len() as u32
    }

    /// Returns the most tickets that may be in the word at a time. There are more places, so that a newcomer's place has
    /// usually been free for a while.
    #[inline]
    pub(super) fn most(&self) -> u32 {
        let places = self.places();
        places - places / 4 * 2
    }

    /// Returns the number of a ticket.
    #[inline]
    pub(super) fn number(&self, ticket: Ticket) -> u32 {
        // Relaxed: the word that names this hall publishes it.
        ticket.since(Ticket::of(published!(self.start)))
    }

    /// Returns the ticket of a number, as long as its run lasts. Called by the holder of the list's lock.
    pub(super) fn ticket(&self, number: u32) -> Ticket {
        // Relaxed: the lock orders it.
        Ticket::of(published!(self.start).wrapping_add(number))
    }

    #[inline]
    fn place(&self, number: u32) -> &Place<G> {
        &self.places[(number & (self.places() - 1)) as usize]
    }

    /// Returns the place of a number.
    #[inline]
    pub(super) fn spot(&self, number: u32) -> Spot<G> {
        // A division would take longer than all else here.
        let size = self.places().trailing_zeros();
        let turn = number >> size;
        Spot { place: NonNull::from(self.place(number)), turn, next: (turn + 1) & ((Ticket::COUNT >> size) - 1) }
    }

    /// Returns whether the next ticket of the word, which has this number here, may be given out.
    #[inline]
    pub(super) fn admits(&self, word: Word, number: u32) -> bool {
        // ORD: Acquire; pairs with the Release in `extend`: the place was free for this number before its waiter comes there.
        // No model can have it: loom's read-modify-writes read the newest value in any case.
        let limit = self.limit.load(Ordering::Acquire);
        word.span() < self.most() && is_before(number, limit)
    }

    /// Returns how many numbers have their places looked at together.
    #[inline]
    fn stretch(&self) -> u32 {
        (self.places() / 8).clamp(1, 64)
    }

    /// Extends the limit for later newcomers, if a ticket's number is the first one of a stretch. Called after the
    /// ticket was given out.
    #[inline]
    pub(super) fn look_ahead(&self, number: u32) {
        if number & (self.stretch() - 1) == 0 {
            self.extend(number);
        }
    }

    /// Extends the limit to two or three stretches beyond a number, as far as the places are free. They are not if earlier
    /// tickets there wait, or if one of their threads is in the midst of its few steps. Returns whether the number may be
    /// given out.
    #[cold]
    pub(super) fn extend(&self, number: u32) -> bool {
        let stretch = self.stretch();
        let mask = Ticket::COUNT - 1;
        loop {
            // Relaxed: the swap fails if it has changed.
            let limit = self.limit.load(Ordering::Relaxed);
            if is_before(number.wrapping_add(2 * stretch) & mask, limit) {
                return true;
            }
            let numbers = (0..stretch).map(|ahead| limit.wrapping_add(ahead) & mask);
            let are_free = numbers.map(|number| self.spot(number)).all(|spot| spot.place().is_free(spot.turn));
            let next = limit.wrapping_add(stretch) & mask;
            // ORD: Release; pairs with the Acquire in `admits`.
            if !are_free || self.limit.compare_exchange(limit, next, Ordering::Release, Ordering::Relaxed).is_err() {
                return is_before(number, limit);
            }
            made_progress();
        }
    }

    /// Begins a run with the ticket `first`, whose predecessors here ended at `end`. Called by the holder of the list's
    /// lock, before the word names this hall.
    pub(super) fn open(&self, first: Ticket) {
        let before = self.with_run(|run| std::mem::replace(&mut run.end, first));
        let given = self.number(before);
        // Relaxed: the next change of the word publishes it.
        self.start.store(first.number().wrapping_sub(given), Ordering::Relaxed);
    }

    /// Calls `f` with what the holder of the list's lock knows. The caller is that holder.
    #[allow(unsafe_code)]
    pub(super) fn with_run<R>(&self, f: impl FnOnce(&mut Run<G>) -> R) -> R {
        step();
        // SAFETY: the caller has the lock, and no `f` comes back to this hall.
        self.run.with_mut(|run| f(unsafe { &mut *run }))
    }

    /// Marks a ticket as left. `first` and `end` are those of its run. Called by the holder of the list's lock.
    pub(super) fn leave(&self, number: u32, first: Ticket, end: Ticket) {
        let ticket = self.ticket(number);
        let spot = self.spot(number);
        spot.place().leave(spot.next);
        step();
        // Those before `first` and from `end` on are no longer, or not yet, in this run.
        let last = match ticket.after() != end && self.is_left(number.wrapping_add(1)) {
            true => self.place(number.wrapping_add(1)).with_other_end(|end| *end),
            false => number,
        };
        let start = match ticket != first && self.is_left(number.wrapping_sub(1)) {
            true => self.place(number.wrapping_sub(1)).with_other_end(|end| *end),
            false => number,
        };
        self.place(start).with_other_end(|end| *end = last);
        self.place(last).with_other_end(|end| *end = start);
    }

    fn is_left(&self, number: u32) -> bool {
        let spot = self.spot(number & (Ticket::COUNT - 1));
        step();
        spot.place().is_left(spot.next)
    }

    /// Returns the first ticket from `ticket` on, before `end`, that has not left. Called by the holder of the list's lock,
    /// for a run's first ticket.
    pub(super) fn beyond(&self, ticket: Ticket, end: Ticket) -> Ticket {
        let number = self.number(ticket);
        if ticket == end || !self.is_left(number) {
            return ticket;
        }
        let last = self.spot(number).place().with_other_end(|end| *end);
        self.ticket(last).after()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
impl<G> Hall<G> {
    /// Makes a hall without waiters look as if it had served so many tickets.
    pub(super) fn begin_after(&self, tickets: u32) {
        let next = self.with_run(|run| run.end);
        self.start.store(next.number().wrapping_sub(tickets), Ordering::Relaxed);
        self.limit.store(tickets, Ordering::Relaxed);
        for (place, index) in self.places.iter().zip(0..) {
            place.begin_at(tickets.saturating_sub(index).div_ceil(self.places()));
        }
    }
}
