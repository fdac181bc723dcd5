//! A lane's word, which records the lane's waiting tickets.

use super::segments;
use crate::pool::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::pool::sync::{fetch_to_write, made_progress, published, unless_mutant};

/// The number of bits in a ticket. The directory has room for all tickets with that many bits.
const TICKET_BITS: u32 = segments::TICKET_BITS;
const TICKET_MASK: u32 = Ticket::COUNT - 1;
const NEXT_SHIFT: u32 = TICKET_BITS;
const BY_LOCK_SHIFT: u32 = u64::BITS - 1;

/// A waiter's number in its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ticket(u32);

impl Ticket {
    /// The largest number of tickets that may wait or be in gaps at the same time. If more than half of all ticket
    /// numbers were in use, an old ticket would look like a new one.
    const MOST: u32 = Self::COUNT / 2;
    /// The very first ticket, at the beginning of a segment.
    #[cfg(not(any(test, loom, shuttle)))]
    pub(super) const FIRST: Self = Self(0);
    /// This is near the last number, so that tests and model checkers explore the wrap-around.
    #[cfg(any(test, loom, shuttle))]
    pub(super) const FIRST: Self = Self(Self::COUNT - segments::SIZE);
    pub(super) const COUNT: u32 = 1 << TICKET_BITS;

    #[inline]
    pub(super) fn after(self) -> Self {
        self.plus(1)
    }

    pub(super) fn before(self) -> Self {
        Self(self.0.wrapping_sub(1) & TICKET_MASK)
    }

    #[inline]
    pub(super) fn plus(self, tickets: u32) -> Self {
        Self(self.0.wrapping_add(tickets) & TICKET_MASK)
    }

    /// Returns whether this ticket was given out before the other one. Fewer than [`MOST`](Self::MOST) tickets must lie
    /// between them.
    pub(super) fn is_before(self, other: Self) -> bool {
        self != other && other.since(self) < Self::MOST
    }

    /// Returns the distance from `earlier` to this ticket.
    #[inline]
    pub(super) fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & TICKET_MASK
    }

    #[inline]
    pub(super) fn number(self) -> u32 {
        self.0
    }

    #[inline]
    pub(super) fn of(number: u32) -> Self {
        Self(number & TICKET_MASK)
    }
}

/// The contents of a lane's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) first: Ticket,
    /// The ticket of the next newcomer. If it equals `first`, no ticket waits.
    pub(super) next: Ticket,
    /// Whether only the holder of the list's lock may claim, for example because a waiter in the middle has left or
    /// because another lane is served first.
    pub(super) by_lock: bool,
}

impl Word {
    #[inline]
    fn pack(self) -> u64 {
        u64::from(self.first.0) | u64::from(self.next.0) << NEXT_SHIFT | u64::from(self.by_lock) << BY_LOCK_SHIFT
    }

    #[inline]
    fn unpack(word: u64) -> Self {
        Self {
            first: Ticket::of(word as u32),
            next: Ticket::of((word >> NEXT_SHIFT) as u32),
            by_lock: word >> BY_LOCK_SHIFT == 1,
        }
    }

    /// Returns the number of tickets from the first to the last, some of which may have left.
    #[inline]
    pub(super) fn span(self) -> u32 {
        self.next.since(self.first)
    }

    /// Returns whether a ticket of this lane has neither been claimed nor turned away. The ticket may have left.
    pub(super) fn holds(self, ticket: Ticket) -> bool {
        ticket.since(self.first) < self.span()
    }

    /// Returns the word that results from giving out the next ticket.
    #[inline]
    pub(super) fn joined(self) -> Self {
        assert!(self.span() < Ticket::MOST - 1, "more than {} check-outs wait", Ticket::MOST);
        Self { next: self.next.after(), ..self }
    }

    /// Returns the word that results from taking out all its tickets.
    pub(super) fn emptied(self) -> Self {
        Self { first: self.next, ..self }
    }

    /// Returns the word that results from claiming the first ticket.
    #[inline]
    pub(super) fn claimed(self) -> Self {
        Self { first: self.first.after(), ..self }
    }
}

#[derive(Debug)]
pub(super) struct Tickets(AtomicU64);

impl Tickets {
    pub(super) fn new() -> Self {
        let first = Ticket::FIRST;
        Self(AtomicU64::new(Word { first, next: first, by_lock: false }.pack()))
    }

    #[inline]
    pub(super) fn load(&self) -> Word {
        // ORD: Acquire; pairs with the Release in `swap`. Later reads by the caller (the pool word, the directory) are
        // at least as new as the word.
        Word::unpack(self.0.load(unless_mutant("tickets_acquire_nothing", Ordering::Acquire)))
    }

    /// Loads the word before a change. Fetches its cache line for writing, so that one fetch is enough for the load and
    /// the swap. If each thread fetched the line twice, the threads would take it from each other between the load and
    /// the swap.
    #[inline]
    pub(super) fn load_to_change(&self) -> Word {
        fetch_to_write(&self.0);
        self.load()
    }

    /// Loads the word without ordering. The result is only a hint, unless the caller holds the lock and no other thread
    /// changes the word.
    pub(super) fn peek(&self) -> Word {
        Word::unpack(published!(self.0))
    }

    #[inline]
    pub(super) fn swap(&self, seen: Word, new: Word) -> bool {
        // ORD: Release; pairs with the Acquire in `load` and here; publishes the change to the pool word that precedes
        // turning waiters away. Acquire: since the caller's load, the word may have changed and then changed back to
        // `seen`, while a ticket was withheld so that its waiter could change its waker. Relaxed on failure: the caller
        // loads again.
        let order = unless_mutant("tickets_publish_nothing", Ordering::AcqRel);
        let swapped = self.0.compare_exchange(seen.pack(), new.pack(), order, Ordering::Relaxed).is_ok();
        if swapped {
            made_progress();
        }
        swapped
    }

    /// Marks the word so that only the holder of the lock may claim. Called by the holder of the lock. Returns the
    /// previous word.
    pub(super) fn go_by_lock(&self) -> Word {
        // ORD: as in `swap`.
        let before = Word::unpack(self.0.fetch_or(1 << BY_LOCK_SHIFT, Ordering::AcqRel));
        made_progress();
        before
    }

    /// Changes the word. Returns the word before and after the change.
    pub(super) fn change(&self, new: impl Fn(Word) -> Word) -> (Word, Word) {
        loop {
            let seen = self.load();
            let new = new(seen);
            if self.swap(seen, new) {
                return (seen, new);
            }
        }
    }
}

/// A lane's limit: the first ticket that has no cell yet, and the number of segments.
#[derive(Debug)]
pub(super) struct Limit {
    next: AtomicU32,
    segments: AtomicU32,
}

impl Limit {
    pub(super) fn new() -> Self {
        Self { next: AtomicU32::new(Ticket::FIRST.number()), segments: AtomicU32::new(0) }
    }

    #[inline]
    pub(super) fn load(&self) -> Ticket {
        // ORD: Acquire; pairs with the Release in `raise`: a newcomer with a ticket below the limit finds its cell, and
        // a reused cell is empty.
        Ticket::of(self.next.load(unless_mutant("limit_acquires_nothing", Ordering::Acquire)))
    }

    /// Raises the limit. Called by the holder of the list's lock once the cells are installed.
    pub(super) fn raise(&self, to: Ticket) {
        // ORD: Release; pairs with the Acquire in `load`.
        self.next.store(to.number(), unless_mutant("limit_publishes_nothing", Ordering::Release));
        made_progress();
    }

    /// Returns the number of segments, as a hint.
    pub(super) fn segments(&self) -> u32 {
        // Relaxed: nothing depends on it.
        published!(self.segments)
    }

    /// Sets the number of segments. Called by the holder of the list's lock.
    pub(super) fn set_segments(&self, segments: u32) {
        // Relaxed: as above.
        self.segments.store(segments, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn word_keeps_its_fields(first in 0..=TICKET_MASK, next in 0..=TICKET_MASK, by_lock: bool) {
            let word = Word { first: Ticket(first), next: Ticket(next), by_lock };
            prop_assert_eq!(Word::unpack(word.pack()), word);
        }

        #[test]
        fn tickets_wrap_without_touching_their_neighbours(by_lock: bool) {
            let last = Ticket(TICKET_MASK);
            let word = Word { first: last, next: last, by_lock };
            let joined = word.joined();
            prop_assert_eq!(joined, Word { first: last, next: Ticket(0), by_lock });
            prop_assert_eq!((joined.span(), joined.holds(last), joined.holds(Ticket(0))), (1, true, false));
            prop_assert_eq!(joined.claimed(), Word { first: Ticket(0), next: Ticket(0), by_lock });
        }
    }
}
