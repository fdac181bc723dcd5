//! The capacity word: the counts of existing and pending connections, packed into one `AtomicU64`.
//!
//! Every connection, whether a check-out or the background task opens it, is admitted by one compare-and-swap of this
//! word. So both limits, `maxPoolSize` and `maxConnecting`, hold at every instant. A caller that needs a connection
//! reads the word, searches the shards, and then swaps the word that it read (see [`Capacity::try_admit`]). A version
//! number in the word shows whether the word has changed since it was read.

use crate::pool::sync::atomic::{AtomicU64, Ordering};
use crate::pool::sync::unless_mutant;

/// A reading of the capacity word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    /// Connections that exist: pending, available, in use, being drained, or stale and not closed yet.
    pub(super) total: u32,
    /// Pending connections. A permit counts as a pending connection.
    pub(super) pending: u32,
    /// The waiting flag: the queue contains a waiter, that is, a check-out for which no connection is being opened.
    /// Capacity that becomes free goes to the first waiter. Changes only under the wait list's lock.
    pub(super) waiting: bool,
    /// The draining flag: some connections are being drained, and their drains can be displaced. Changes only under the
    /// registry's lock.
    pub(super) draining: bool,
    /// The displacing flag: a drain was ended for a waiter. The waiter gets the connection's capacity once the
    /// connection is closed.
    displacing: bool,
    /// Counts the changes, modulo 2^21.
    version: u32,
}

/// The upper limits on `total` and `pending`.
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
    const DISPLACING_SHIFT: u32 = Self::DRAINING_SHIFT + 1;
    const VERSION_SHIFT: u32 = Self::DISPLACING_SHIFT + 1;
    const VERSION_MASK: u32 = (1 << (u64::BITS - Self::VERSION_SHIFT)) - 1;

    fn pack(self) -> u64 {
        u64::from(self.total)
            | u64::from(self.pending) << Self::COUNT_BITS
            | u64::from(self.waiting) << Self::WAITING_SHIFT
            | u64::from(self.draining) << Self::DRAINING_SHIFT
            | u64::from(self.displacing) << Self::DISPLACING_SHIFT
            | u64::from(self.version) << Self::VERSION_SHIFT
    }

    fn unpack(word: u64) -> Self {
        Self {
            total: (word & Self::COUNT_MASK) as u32,
            pending: (word >> Self::COUNT_BITS & Self::COUNT_MASK) as u32,
            waiting: word >> Self::WAITING_SHIFT & 1 == 1,
            draining: word >> Self::DRAINING_SHIFT & 1 == 1,
            displacing: word >> Self::DISPLACING_SHIFT & 1 == 1,
            version: (word >> Self::VERSION_SHIFT) as u32,
        }
    }

    pub(super) fn admits(self, limits: CapacityLimits) -> bool {
        self.total < limits.total && self.pending < limits.pending
    }

    /// Returns whether a waiter lacks only capacity under `maxPoolSize`, which displacing a drain would provide. One
    /// drain is displaced at a time: after its capacity is released, this function is called again.
    pub(super) fn wants_a_drain_displaced(self, limits: CapacityLimits) -> bool {
        let is_full = self.total >= limits.total && self.pending < limits.pending;
        is_full && self.waiting && self.draining && !self.displacing
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
        // ORD: Acquire; pairs with the Release in `update`. A thread that sees that a connection is no longer pending
        // also finds the connection in the shards, if it was pushed there (ordering 2 in the documentation of the
        // `core` module).
        Counts::unpack(self.0.load(unless_mutant("capacity_acquires_nothing", Ordering::Acquire)))
    }

    /// Counts one more pending connection, if the word has not changed since `seen` was read.
    pub(super) fn try_admit(&self, seen: Counts) -> Result<(), ()> {
        let one_more = seen.with_one_more();
        self.0
            // Relaxed: the version guarantees that this replaces exactly the word that `load` acquired, unless the word
            // has changed an exact multiple of 2^21 times since then. In that case an admission may open a connection,
            // within the limits, although another connection is available. An admission publishes nothing, and as a
            // read-modify-write it continues the release sequence of the earlier changes. On failure the caller starts
            // again with `load`.
            .compare_exchange(seen.pack(), one_more.pack(), Ordering::Relaxed, Ordering::Relaxed)
            .map(|_| ())
            .map_err(|_| ())
    }

    /// Counts one more pending connection if the limits admit it, even if check-outs are waiting. Otherwise returns the
    /// counts.
    ///
    /// The caller holds the wait list's lock, and acts for the first waiter.
    pub(super) fn admit_first(&self, limits: CapacityLimits) -> Result<(), Counts> {
        self.update(|counts| counts.admits(limits).then(|| counts.with_one_more())).map(drop)
    }

    /// Counts one more pending connection if the limits admit it. Otherwise raises the waiting flag in the same step,
    /// and returns the resulting counts.
    ///
    /// The caller holds the wait list's lock, and no check-outs other than openers are waiting.
    pub(super) fn admit_or_wait(&self, limits: CapacityLimits) -> Result<(), Counts> {
        let waits = |counts: Counts| Counts { waiting: true, ..counts.next() };
        let before = self
            .update(|counts| Some(if counts.admits(limits) { counts.with_one_more() } else { waits(counts) }))
            .unwrap_or_else(|refused| refused);
        if before.admits(limits) { Ok(()) } else { Err(waits(before)) }
    }

    /// Raises or lowers the draining flag. Returns whether a waiter now needs the capacity of a draining connection.
    /// The caller holds the registry's lock.
    ///
    /// The waiting flag and the draining flag are bits of one word. So if a check-out queues up while a drain begins,
    /// whichever comes second notices the other, and displaces the oldest drain:
    ///
    /// | a check-out queues up | a drain begins |
    /// | --- | --- |
    /// | 1. `admit_or_wait` sets `waiting`, finds `draining` | a. enters the registry |
    /// | 2. displaces the oldest drain of the registry | b. sets `draining`, finds `waiting` |
    /// | | c. displaces the oldest drain of the registry |
    #[must_use]
    pub(super) fn set_draining(&self, draining: bool, limits: CapacityLimits) -> bool {
        let after = |counts: Counts| Counts { draining, ..counts.next() };
        self.update(|counts| Some(after(counts))).is_ok_and(|before| after(before).wants_a_drain_displaced(limits))
    }

    /// Raises the displacing flag if a drain must be displaced for a waiter. Returns whether it raised the flag. If so,
    /// the caller, which holds the registry's lock, must end the oldest drain.
    #[must_use]
    pub(super) fn begin_displacing(&self, limits: CapacityLimits) -> bool {
        let begun = |counts: Counts| Counts { displacing: true, ..counts.next() };
        self.update(|counts| counts.wants_a_drain_displaced(limits).then(|| begun(counts))).is_ok()
    }

    /// Gives back the capacity of a displaced connection, which is now closed. Returns whether a waiter is waiting for
    /// it.
    ///
    /// This also lowers the displacing flag, in the same step. With two separate steps, a thread that reads the word
    /// between them could displace another drain for a waiter that already has this capacity, or could fail to displace
    /// a drain for the next waiter.
    #[must_use]
    pub(super) fn end_displacing(&self) -> bool {
        let before = self.update(|counts| {
            assert!(counts.displacing && counts.total > 0, "BUG: released a displaced connection of {counts:?}");
            Some(Counts { total: counts.total - 1, displacing: false, ..counts.next() })
        });
        before.is_ok_and(|counts| counts.waiting)
    }

    /// Lowers the waiting flag. Called when no check-outs other than openers are still waiting. The caller holds the
    /// wait list's lock.
    pub(super) fn lower_waiting_flag(&self) {
        let _ = self.update(|counts| counts.waiting.then(|| Counts { waiting: false, ..counts.next() }));
    }

    /// Releases capacity under one or both limits. Returns whether a waiter is waiting for it.
    #[must_use]
    pub(super) fn release(&self, total: u32, pending: u32) -> bool {
        let before = self.update(|counts| {
            assert!(
                counts.total >= total && counts.pending >= pending,
                "BUG: released {total} total and {pending} pending of {counts:?}"
            );
            Some(Counts { total: counts.total - total, pending: counts.pending - pending, ..counts.next() })
        });
        before.is_ok_and(|counts| counts.waiting)
    }

    /// Changes the word's version but not its counts, so that every admission that has already read the word fails.
    /// Called when the limits have changed.
    pub(super) fn outdate_readings(&self) {
        let _ = self.update(|counts| Some(counts.next()));
    }

    /// Writes the word back without changing it, for [`Core::close`](super::Core::close) and for a warm-up.
    ///
    /// All changes to this word have a total order, so either this write or a release of capacity comes first:
    ///
    /// | the pool is closed | capacity is given back |
    /// | --- | --- |
    /// | 1. sets the phase to `Closed` | a. `release` |
    /// | 2. this write | b. reads the phase |
    /// | 3. reads the counts | |
    ///
    /// If step a comes after step 2, it acquires what step 2 released, so step b sees step 1. Otherwise step 3 sees
    /// step a. Without step 2, both threads could read old values: nothing orders a store before a load of another
    /// word.
    pub(super) fn order_releases(&self) {
        // ORD: AcqRel; pairs with the AcqRel in `update`, which `release` uses: the later access acquires from the
        // earlier one.
        self.0.fetch_add(0, Ordering::AcqRel);
    }

    /// Applies `change` until the swap succeeds or `change` returns `None`. Returns the counts before the change, or
    /// the counts for which `change` returned `None`.
    fn update(&self, change: impl Fn(Counts) -> Option<Counts>) -> Result<Counts, Counts> {
        // ORD: AcqRel on the change. The Release pairs with the Acquire in `load` and publishes the caller's pushes.
        // The Acquire serves `order_releases`. Relaxed where `change` returns `None`: the decision depends only on the
        // word, and the caller acts on it under a lock.
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
        fn word_keeps_its_fields(
            total in 0..1_u32 << 20,
            pending in 0..1_u32 << 20,
            waiting: bool,
            draining: bool,
            displacing: bool,
            version in 0..1_u32 << 21,
        ) {
            let counts = Counts { total, pending, waiting, draining, displacing, version };
            prop_assert_eq!(Counts::unpack(counts.pack()), counts);
        }

        #[test]
        fn version_wraps_without_touching_its_neighbours(total in 0..1_u32 << 20, draining: bool, displacing: bool) {
            let version = Counts::VERSION_MASK;
            let last = Counts { total, pending: 0, waiting: true, draining, displacing, version };
            prop_assert_eq!(Counts::unpack(last.next().pack()), Counts { version: 0, ..last });
        }
    }

    const LIMITS: CapacityLimits = CapacityLimits { total: 3, pending: 2 };

    #[test]
    fn both_limits_hold() {
        let capacity = Capacity::new();
        assert!(capacity.admit_first(LIMITS).is_ok());
        assert!(capacity.admit_first(LIMITS).is_ok());
        assert!(capacity.admit_first(LIMITS).is_err(), "two connections are pending");
        assert!(!capacity.release(0, 1));
        assert!(capacity.admit_first(LIMITS).is_ok());
        assert!(!capacity.release(0, 1));
        assert!(capacity.admit_first(LIMITS).is_err(), "three connections exist");
        assert!(!capacity.release(1, 0));
        assert!(capacity.admit_first(LIMITS).is_ok());
    }

    #[test]
    fn admission_fails_if_the_word_changed_since_it_was_read() {
        let capacity = Capacity::new();
        let seen = capacity.load();
        assert!(capacity.admit_first(LIMITS).is_ok());
        assert!(!capacity.release(1, 1));
        assert_eq!((capacity.load().total, capacity.load().pending), (seen.total, seen.pending));
        assert_eq!(capacity.try_admit(seen), Err(()), "the same counts, but not the same instant");
        assert_eq!(capacity.try_admit(capacity.load()), Ok(()));
    }

    #[test]
    fn release_reports_whether_a_waiter_waits() {
        let capacity = Capacity::new();
        assert!(capacity.admit_or_wait(LIMITS).is_ok());
        assert!(capacity.admit_or_wait(LIMITS).is_ok());
        assert!(capacity.admit_or_wait(LIMITS).is_err());
        assert!(capacity.release(0, 1));
        capacity.lower_waiting_flag();
        assert!(!capacity.release(0, 1));
    }

    #[test]
    fn drain_is_displaced_only_if_its_capacity_would_be_used() {
        let limits = CapacityLimits { total: 2, pending: 1 };
        let capacity = Capacity::new();
        assert!(capacity.admit_first(limits).is_ok());
        assert!(!capacity.release(0, 1));
        assert!(capacity.admit_first(limits).is_ok());
        assert!(!capacity.set_draining(true, limits), "no check-out waits");
        let full = capacity.admit_or_wait(limits).unwrap_err();
        assert!(!full.wants_a_drain_displaced(limits), "one connection is pending, so no other may be opened");
        assert!(capacity.release(0, 1));
        assert!(capacity.load().wants_a_drain_displaced(limits));
        assert!(!capacity.set_draining(false, limits));
        assert!(capacity.set_draining(true, limits), "now a check-out waits");
        assert!(capacity.begin_displacing(limits));
        assert!(!capacity.load().wants_a_drain_displaced(limits), "the capacity of one is on its way");
        assert!(!capacity.begin_displacing(limits));
        assert!(capacity.end_displacing());
        assert!(!capacity.load().wants_a_drain_displaced(limits), "there is capacity");
        assert!(capacity.admit_first(limits).is_ok());
        assert!(capacity.release(0, 1));
        assert!(capacity.load().wants_a_drain_displaced(limits), "for the next waiter");
    }

    #[test]
    #[should_panic(expected = "BUG: released 1 total and 0 pending")]
    fn wrong_count_panics() {
        let _ = Capacity::new().release(1, 0);
    }
}
