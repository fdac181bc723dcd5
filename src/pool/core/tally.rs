//! The count of a slot's uses, and the choice of which to time.

use crate::pool::sync::atomic::{AtomicU64, Ordering};
use crate::pool::sync::statistics::{AtomicU64 as StatisticU64, Ordering as StatisticOrdering};

/// Counts the hits of a slot, and chooses the uses whose time is measured.
///
/// Only the slot's owner writes it (INV-1), so a load and a store suffice to count exactly: each owner has acquired the
/// previous owner's writes. Slots are never deallocated, so the number never decreases, and any thread may read it.
///
/// | an owner | the next owner |
/// | --- | --- |
/// | 1. takes the slot: acquires | a. takes the slot: acquires what 4 has released |
/// | 2. counts its hit: loads n, stores n + 1 | b. counts its hit: loads n + 1 |
/// | 3. uses the connection; ends the use if it is timed | |
/// | 4. gives the slot away: releases | |
///
/// The word holds two numbers, so the hit path does one load, one addition and one store, and the check-in compares one
/// loaded value with a constant:
///
/// | bits | number |
/// | --- | --- |
/// | 0 to 7 | the number of uses left until the next timed use |
/// | 8 to 63 | the number of hits so far |
///
/// A use is timed if its check-out decrements the lower number to 0. The word changes only at check-outs and at the end
/// of a timed use, so the check-out and the check-in agree on whether a use is timed. A timed use ends before its owner
/// gives the slot away, so the lower number is at least 1 when the next use begins.
#[derive(Debug)]
pub(super) struct Tally {
    word: AtomicU64,
    /// The total time that check-outs have waited for this slot's connection, in nanoseconds. Kept here rather than in
    /// the histogram, so that the owner can add to it without a locked instruction.
    waited: StatisticU64,
}

/// A slot's hits minus the number of uses of its current connection. This equals the number of hits before the
/// connection was created, minus the connection's uses that were not hits. Like the hits, the difference is taken
/// modulo 2^56, so it fits into seven bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FirstUse([u8; 7]);

impl FirstUse {
    pub(super) fn after(hits: u64) -> Self {
        let [bytes @ .., _] = hits.to_le_bytes();
        Self(bytes)
    }

    /// Counts a use that is not a hit.
    pub(super) fn count_other(&mut self) {
        *self = Self::after(self.hits().wrapping_sub(1));
    }

    /// Returns the number of uses, given the slot's hits.
    pub(super) fn uses(self, hits: u64) -> u64 {
        hits.wrapping_sub(self.hits()) & (u64::MAX >> Tally::HITS_SHIFT)
    }

    fn hits(self) -> u64 {
        let [a, b, c, d, e, f, g] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, 0])
    }
}

impl Tally {
    /// The smallest and the largest number of uses from one timed use to the next. The mean is 128.
    const GAPS: (u64, u64) = (65, 191);

    const HITS_SHIFT: u32 = 8;
    const ONE_HIT: u64 = 1 << Self::HITS_SHIFT;
    const LEFT: u64 = Self::ONE_HIT - 1;

    /// Creates a tally whose first use is timed.
    pub(super) fn new() -> Self {
        Self { word: AtomicU64::new(1), waited: StatisticU64::new(0) }
    }

    /// Counts a hit. Returns whether its use must be timed. Called by the owner.
    #[inline]
    pub(super) fn count_hit(&self) -> bool {
        self.note_use(Self::ONE_HIT)
    }

    /// Notes a use that is not a hit. Returns whether it must be timed. Called by the owner.
    pub(super) fn count_other(&self) -> bool {
        self.note_use(0)
    }

    /// Adds to the time that check-outs have waited, in nanoseconds. Called by the owner.
    #[inline]
    pub(super) fn add_waited(&self, nanos: u64) {
        // Relaxed: as in `note_use`.
        let before = self.waited.load(StatisticOrdering::Relaxed);
        self.waited.store(before.saturating_add(nanos), StatisticOrdering::Relaxed);
    }

    /// Returns the time that check-outs have waited, in nanoseconds. Any thread may call this.
    pub(super) fn waited(&self) -> u64 {
        self.waited.load(StatisticOrdering::Relaxed)
    }

    #[inline]
    fn note_use(&self, hits: u64) -> bool {
        // Relaxed, here and below: the owner reads its own value or the previous owner's, which is ordered by the step
        // that passed the slot on. Other threads read the number only as a statistic.
        let before = self.word.load(Ordering::Relaxed);
        debug_assert_ne!(before & Self::LEFT, 0, "BUG: a timed use has not ended");
        // This compiles to the addition of a single constant, because callers pass a constant for `hits`.
        let word = before.wrapping_add(hits.wrapping_sub(1));
        self.word.store(word, Ordering::Relaxed);
        word & Self::LEFT == 0
    }

    /// Returns whether the current use is timed. Called by the owner, which is using the connection.
    #[inline]
    pub(super) fn is_timed(&self) -> bool {
        self.word.load(Ordering::Relaxed) & Self::LEFT == 0
    }

    /// Ends a timed use, and chooses the next use to time. Called by the owner.
    ///
    /// `salt` differs from call to call, and determines how many uses lie between this timed use and the next. With a
    /// constant gap, an application that alternates between two kinds of use might have only one kind timed.
    pub(super) fn end_timed(&self, salt: u64) {
        let (least, most) = Self::GAPS;
        let gap = least + scattered(salt) % (most - least + 1);
        self.word.store(self.hits() << Self::HITS_SHIFT | gap, Ordering::Relaxed);
    }

    /// Returns the number of hits so far. Any thread may call this.
    pub(super) fn hits(&self) -> u64 {
        self.word.load(Ordering::Relaxed) >> Self::HITS_SHIFT
    }
}

/// Returns a hash of `number` that looks random (the finalizer of SplitMix64).
pub(super) fn scattered(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Simulates `uses` uses, and returns the numbers of the timed uses. `is_hit` says which uses are hits.
    fn timed(salt: u64, uses: u32, is_hit: impl Fn(u32) -> bool) -> Vec<u32> {
        let tally = Tally::new();
        let mut timed = Vec::new();
        for number in 0..uses {
            let is_timed = if is_hit(number) { tally.count_hit() } else { tally.count_other() };
            assert_eq!(is_timed, tally.is_timed(), "the check-in disagrees with the check-out");
            if is_timed {
                timed.push(number);
                tally.end_timed(salt ^ u64::from(number));
                assert!(!tally.is_timed());
            }
        }
        assert_eq!(tally.hits(), u64::from((0..uses).map(|number| u32::from(is_hit(number))).sum::<u32>()));
        timed
    }

    #[test]
    fn first_use_and_about_one_in_128_is_timed_whatever_its_kind() {
        for is_hit in [(|_| true) as fn(u32) -> bool, |_| false, |number| number % 3 == 0] {
            let timed = timed(7, 640_000, is_hit);
            assert_eq!(timed[0], 0);
            let gaps: Vec<_> = timed.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(gaps.iter().all(|gap| (65..=191).contains(gap)));
            assert!((4_900..5_100).contains(&timed.len()), "{}", timed.len());
        }
    }

    #[test]
    fn uses_of_a_connection_are_its_hits_and_its_other_uses() {
        for before in [0, 1, 300, u64::MAX >> 8] {
            let mut first = FirstUse::after(before);
            assert_eq!(first.uses(before), 0);
            for _ in 0..3 {
                first.count_other();
            }
            let hits = before.wrapping_add(400) & (u64::MAX >> 8);
            assert_eq!(first.uses(hits), 403, "{before}");
        }
    }

    #[test]
    fn sample_has_no_period_of_the_applications() {
        let timed = timed(0, 640_000, |_| true);
        for period in [2, 3, 5, 10, 64, 100, 128] {
            let mut of_phase = vec![0; period as usize];
            timed.iter().for_each(|number| of_phase[(number % period) as usize] += 1);
            let expected = timed.len() as f64 / f64::from(period);
            let worst = of_phase.iter().map(|count| (f64::from(*count) - expected).abs()).fold(0.0, f64::max);
            // Five standard deviations of a random sample.
            assert!(worst < 5.0 * expected.sqrt(), "period {period}: {of_phase:?}");
        }
    }
}
