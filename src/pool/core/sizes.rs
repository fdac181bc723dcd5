//! The pool's sizes: `maxPoolSize`, `minPoolSize` and `maxConnecting`, which may change while the pool is in use.

use super::capacity::CapacityLimits;
use crate::pool::options::PoolOptions;
use crate::pool::sync::atomic::{AtomicU64, Ordering};

/// A reading of the sizes word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// As in the options: 0 means no limit.
    pub(super) max: u32,
    pub(super) min: u32,
    pub(super) connecting: u32,
}

impl Sizes {
    /// Large enough for [`MAX_CONNECTIONS`](crate::MAX_CONNECTIONS).
    const BITS: u32 = 20;
    const MASK: u64 = (1 << Self::BITS) - 1;

    pub(super) fn of(options: &PoolOptions) -> Self {
        Self { max: options.max_pool_size, min: options.min_pool_size, connecting: options.max_connecting }
    }

    pub(super) fn limits(self) -> CapacityLimits {
        CapacityLimits { total: PoolOptions::capacity_of(self.max), pending: self.connecting }
    }

    fn pack(self) -> u64 {
        u64::from(self.max) | u64::from(self.min) << Self::BITS | u64::from(self.connecting) << (2 * Self::BITS)
    }

    fn unpack(word: u64) -> Self {
        let field = |shift| (word >> shift & Self::MASK) as u32;
        Self { max: field(0), min: field(Self::BITS), connecting: field(2 * Self::BITS) }
    }
}

/// The sizes word. It changes under the registry's lock and the wait list's lock, and together with the capacity word,
/// so that a check-out with an outdated reading never exceeds a limit:
///
/// | an admission by [`Capacity::try_admit`](super::capacity::Capacity::try_admit) | a resize |
/// | --- | --- |
/// | 1. reads the capacity word | a. changes the sizes |
/// | 2. reads the sizes | b. changes the capacity word's version |
/// | 3. swaps the capacity word | |
///
/// If step b comes before step 1, the Acquire in step 1 makes step a visible to step 2. If step b comes between steps 1
/// and 3, the swap fails. If step b comes after step 3, the new connection counts before the resize returns. All other
/// admissions are made under one of the two locks.
#[derive(Debug)]
pub(super) struct SizesWord(AtomicU64);

impl SizesWord {
    pub(super) fn new(options: &PoolOptions) -> Self {
        Self(AtomicU64::new(Sizes::of(options).pack()))
    }

    pub(super) fn load(&self) -> Sizes {
        // Relaxed: see the type's documentation.
        Sizes::unpack(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn store(&self, sizes: Sizes) {
        // Relaxed: the change to the capacity word publishes it, and so do the locks.
        self.0.store(sizes.pack(), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn word_keeps_its_fields(max in 0..1_u32 << 20, min in 0..1_u32 << 20, connecting in 0..1_u32 << 20) {
            let sizes = Sizes { max, min, connecting };
            prop_assert_eq!(Sizes::unpack(sizes.pack()), sizes);
        }
    }
}
