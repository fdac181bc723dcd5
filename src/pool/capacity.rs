//! The capacity word: how many connections exist and how many of them are pending, in one `AtomicU64`.
//!
//! Every creation of a connection, by a check-out or in the background, is one compare-and-swap of this word, so the
//! two limits hold together at every instant. A version makes the word tell whether anything happened in between:
//! whoever wants to open a connection reads the word, searches the stacks, and swaps the word it has read
//! (see [`Capacity::try_admit`]).

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::unless_mutant;

/// A reading of the capacity word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    /// Connections that exist: pending, available and in use.
    pub(super) total: u32,
    /// Connections in establishment.
    pub(super) pending: u32,
    /// Somebody waits who has no connection on the way, so that capacity that comes free belongs to the first of them.
    /// Changes only under the wait list's lock.
    pub(super) waiting: bool,
    /// Some of the connections are drained, and can be closed for their capacity. Changes only under the registry's lock.
    pub(super) draining: bool,
    /// Counts the changes, modulo 2^22.
    version: u32,
}

/// What `total` and `pending` must stay at or below.
#[derive(Debug, Clone, Copy)]
pub(super) struct CapacityLimits {
    pub(super) total: u32,
    pub(super) pending: u32,
}

impl Counts {
    const COUNT_BITS: u32 = 20;
    const COUNT_MASK: u64 = (1 << Self::COUNT_BITS) - 1;
    const WAITING_SHIFT: u32 = 2 * Self::COUNT_BITS;
    const DRAINING_SHIFT: u32 = Self::WAITING_SHIFT + 1;
    const VERSION_SHIFT: u32 = Self::DRAINING_SHIFT + 1;
    const VERSION_MASK: u32 = (1 << (u64::BITS - Self::VERSION_SHIFT)) - 1;

    fn pack(self) -> u64 {
        u64::from(self.total)
            | u64::from(self.pending) << Self::COUNT_BITS
            | u64::from(self.waiting) << Self::WAITING_SHIFT
            | u64::from(self.draining) << Self::DRAINING_SHIFT
            | u64::from(self.version) << Self::VERSION_SHIFT
    }

    fn unpack(word: u64) -> Self {
        Self {
            total: (word & Self::COUNT_MASK) as u32,
            pending: (word >> Self::COUNT_BITS & Self::COUNT_MASK) as u32,
            waiting: word >> Self::WAITING_SHIFT & 1 == 1,
            draining: word >> Self::DRAINING_SHIFT & 1 == 1,
            version: (word >> Self::VERSION_SHIFT) as u32,
        }
    }

    pub(super) fn admits(self, limits: CapacityLimits) -> bool {
        self.total < limits.total && self.pending < limits.pending
    }

    /// Whether a check-out waits for nothing but capacity, and a drain that ends would give it one.
    pub(super) fn wants_a_drain_closed(self, limits: CapacityLimits) -> bool {
        self.waiting && self.draining && self.total >= limits.total && self.pending < limits.pending
    }

    fn next(self) -> Self {
        Self { version: self.version.wrapping_add(1) & Self::VERSION_MASK, ..self }
    }

    fn with_one_more(self) -> Self {
        Self { total: self.total + 1, pending: self.pending + 1, ..self.next() }
    }
}

#[derive(Debug)]
pub(super) struct Capacity(AtomicU64);

impl Capacity {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    pub(super) fn load(&self) -> Counts {
        // ORD: Acquire; pairs with the Release in `update`. Whoever sees that a connection is no longer pending also
        // finds it in the stacks, if it was put there (ordering 2 in the module documentation of `pool`).
        Counts::unpack(self.0.load(unless_mutant("capacity_acquires_nothing", Ordering::Acquire)))
    }

    /// Counts one more pending connection, if nothing has changed since `seen` was read.
    pub(super) fn try_admit(&self, seen: Counts) -> Result<(), ()> {
        let one_more = seen.with_one_more();
        self.0
            // Relaxed: the version says that this replaces the very word that `load` has acquired; an admission publishes
            // nothing, and as an exchange it continues the release sequence of the changes before. On failure the caller
            // starts again with `load`.
            .compare_exchange(seen.pack(), one_more.pack(), Ordering::Relaxed, Ordering::Relaxed)
            .map(|_| ())
            .map_err(|_| ())
    }

    /// Counts one more pending connection within the limits, also where somebody waits. Else returns what admits none.
    ///
    /// The caller holds the wait list's lock, and acts for the first in the queue.
    pub(super) fn admit_first(&self, limits: CapacityLimits) -> Result<(), Counts> {
        self.update(|counts| counts.admits(limits).then(|| counts.with_one_more())).map(drop)
    }

    /// Counts one more pending connection within the limits; or else notes, in the same step, that somebody waits, and
    /// returns what it has made of the word.
    ///
    /// The caller holds the wait list's lock, and nobody waits but openers.
    pub(super) fn admit_or_wait(&self, limits: CapacityLimits) -> Result<(), Counts> {
        let waits = |counts: Counts| Counts { waiting: true, ..counts.next() };
        let before = self
            .update(|counts| Some(if counts.admits(limits) { counts.with_one_more() } else { waits(counts) }))
            .unwrap_or_else(|refused| refused);
        if before.admits(limits) { Ok(()) } else { Err(waits(before)) }
    }

    /// Notes whether connections are drained. Returns whether a check-out waits that one of them keeps waiting from now
    /// on. The caller holds the registry's lock.
    ///
    /// "Somebody waits" and "some are drained" are bits of one word, so of a check-out that queues up and a drain that
    /// begins, the second finds the first, and closes the drain:
    ///
    /// | a check-out queues up | a drain begins |
    /// | --- | --- |
    /// | 1. `admit_or_wait` sets `waiting`, finds `draining` | a. enters the registry |
    /// | 2. closes the oldest drain of the registry | b. sets `draining`, finds `waiting` |
    /// | | c. closes the oldest drain of the registry |
    #[must_use]
    pub(super) fn set_draining(&self, draining: bool, limits: CapacityLimits) -> bool {
        let after = |counts: Counts| Counts { draining, ..counts.next() };
        self.update(|counts| Some(after(counts))).is_ok_and(|before| after(before).wants_a_drain_closed(limits))
    }

    /// Nobody waits any more, or openers only. The caller holds the wait list's lock.
    pub(super) fn nobody_waits(&self) {
        // Where nobody waits already, there is nothing to change.
        let _ = self.update(|counts| counts.waiting.then(|| Counts { waiting: false, ..counts.next() }));
    }

    /// Gives back capacity under one limit or both. Returns whether somebody waits for it.
    #[must_use]
    pub(super) fn release(&self, total: u32, pending: u32) -> bool {
        let before = self.update(|counts| {
            assert!(
                counts.total >= total && counts.pending >= pending,
                "BUG: {total} connections and {pending} pending ones given back of {counts:?}"
            );
            Some(Counts { total: counts.total - total, pending: counts.pending - pending, ..counts.next() })
        });
        before.is_ok_and(|counts| counts.waiting)
    }

    /// Writes the word without changing what it counts, for [`Core::close`](super::Core::close).
    ///
    /// Capacity that is given back meets this write in the order of the word's changes:
    ///
    /// | the pool is closed | capacity is given back |
    /// | --- | --- |
    /// | 1. the phase becomes `Closed` | a. `release` |
    /// | 2. this write | b. look at the phase |
    /// | 3. look at the counts | |
    ///
    /// If a comes after 2, it acquires what 2 has released, so b sees 1; else 3 sees a. Without 2, both could look at
    /// what was: nothing orders a store before a load of another word.
    pub(super) fn order_releases(&self) {
        // ORD: AcqRel; pairs with itself in `update`, on whose side `release` is, whichever of the two comes second.
        self.0.fetch_add(0, Ordering::AcqRel);
    }

    /// Applies `change` until it sticks or declines. Returns the counts that were changed, or those that were left.
    fn update(&self, change: impl Fn(Counts) -> Option<Counts>) -> Result<Counts, Counts> {
        // ORD: AcqRel on the change; the Release pairs with the Acquire in `load` and publishes what the caller has
        // pushed, the Acquire is for `order_releases`. Relaxed where `change` declines: it decides by the word alone, and
        // what is done about it then is done under a lock.
        self.0
            .fetch_update(unless_mutant("capacity_publishes_nothing", Ordering::AcqRel), Ordering::Relaxed, |word| {
                change(Counts::unpack(word)).map(Counts::pack)
            })
            .map(Counts::unpack)
            .map_err(Counts::unpack)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_word_keeps_its_fields(
            total in 0..1_u32 << 20,
            pending in 0..1_u32 << 20,
            waiting: bool,
            draining: bool,
            version in 0..1_u32 << 22,
        ) {
            let counts = Counts { total, pending, waiting, draining, version };
            prop_assert_eq!(Counts::unpack(counts.pack()), counts);
        }

        #[test]
        fn the_version_wraps_without_touching_its_neighbours(total in 0..1_u32 << 20, waiting: bool, draining: bool) {
            let last = Counts { total, pending: 0, waiting, draining, version: Counts::VERSION_MASK };
            prop_assert_eq!(Counts::unpack(last.next().pack()), Counts { version: 0, ..last });
        }
    }

    const LIMITS: CapacityLimits = CapacityLimits { total: 3, pending: 2 };

    #[test]
    fn both_limits_hold() {
        let capacity = Capacity::new();
        assert!(capacity.admit_first(LIMITS).is_ok());
        assert!(capacity.admit_first(LIMITS).is_ok());
        assert!(capacity.admit_first(LIMITS).is_err(), "two are pending");
        assert!(!capacity.release(0, 1));
        assert!(capacity.admit_first(LIMITS).is_ok());
        assert!(!capacity.release(0, 1));
        assert!(capacity.admit_first(LIMITS).is_err(), "three exist");
        assert!(!capacity.release(1, 0));
        assert!(capacity.admit_first(LIMITS).is_ok());
    }

    #[test]
    fn an_admission_fails_when_anything_happened_since_the_reading() {
        let capacity = Capacity::new();
        let seen = capacity.load();
        assert!(capacity.admit_first(LIMITS).is_ok());
        assert!(!capacity.release(1, 1));
        assert_eq!((capacity.load().total, capacity.load().pending), (seen.total, seen.pending));
        assert_eq!(capacity.try_admit(seen), Err(()), "the same counts, but not the same instant");
        assert_eq!(capacity.try_admit(capacity.load()), Ok(()));
    }

    #[test]
    fn a_release_tells_whether_somebody_waits() {
        let capacity = Capacity::new();
        assert!(capacity.admit_or_wait(LIMITS).is_ok());
        assert!(capacity.admit_or_wait(LIMITS).is_ok());
        assert!(capacity.admit_or_wait(LIMITS).is_err());
        assert!(capacity.release(0, 1));
        capacity.nobody_waits();
        assert!(!capacity.release(0, 1));
    }

    #[test]
    fn drain_is_to_be_closed_only_where_its_place_would_be_used() {
        let limits = CapacityLimits { total: 2, pending: 1 };
        let capacity = Capacity::new();
        assert!(capacity.admit_first(limits).is_ok());
        assert!(!capacity.release(0, 1));
        assert!(capacity.admit_first(limits).is_ok());
        assert!(!capacity.set_draining(true, limits), "nobody waits");
        let full = capacity.admit_or_wait(limits).unwrap_err();
        assert!(!full.wants_a_drain_closed(limits), "one is pending, so no other may be opened");
        assert!(capacity.release(0, 1));
        assert!(capacity.load().wants_a_drain_closed(limits));
        assert!(!capacity.set_draining(false, limits));
        assert!(capacity.set_draining(true, limits), "now somebody waits");
        assert!(capacity.release(1, 0));
        assert!(!capacity.load().wants_a_drain_closed(limits), "there is capacity");
    }

    #[test]
    #[should_panic(expected = "BUG: 1 connections and 0 pending ones given back")]
    fn a_count_that_goes_wrong_is_never_papered_over() {
        let _ = Capacity::new().release(1, 0);
    }
}
