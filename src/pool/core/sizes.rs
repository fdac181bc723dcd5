//! The pool's sizes: `maxPoolSize`, `minPoolSize` and `maxConnecting`, which may change while the pool is in use.

use std::sync::Arc;

use super::attention::Reason;
use super::capacity::CapacityLimits;
use super::core::Core;
use super::environment::Environment;
use super::held::Held;
use super::shard::Popped;
use crate::pool::options::PoolOptions;
use crate::pool::sync::atomic::{AtomicU64, Ordering};

/// A reading of the sizes word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// As in the options: 0 means no limit.
    max: u32,
    min: u32,
    connecting: u32,
}

impl Sizes {
    /// [`MAX_CONNECTIONS`](crate::MAX_CONNECTIONS) fits.
    const BITS: u32 = 20;
    const MASK: u64 = (1 << Self::BITS) - 1;

    fn of(options: &PoolOptions) -> Self {
        Self { max: options.max_pool_size, min: options.min_pool_size, connecting: options.max_connecting }
    }

    fn pack(self) -> u64 {
        u64::from(self.max) | u64::from(self.min) << Self::BITS | u64::from(self.connecting) << (2 * Self::BITS)
    }

    fn unpack(word: u64) -> Self {
        let field = |shift| (word >> shift & Self::MASK) as u32;
        Self { max: field(0), min: field(Self::BITS), connecting: field(2 * Self::BITS) }
    }
}

/// The sizes word. It changes under the registry's lock and the wait list's, and together with the capacity word, so
/// that a check-out never exceeds a limit that it has read too early:
///
/// | an admission by [`Capacity::try_admit`](super::capacity::Capacity::try_admit) | a resize |
/// | --- | --- |
/// | 1. reads the capacity word | a. changes the sizes |
/// | 2. reads the sizes | b. changes the capacity word's version |
/// | 3. swaps the capacity word | |
///
/// If b comes before 1, the Acquire of 1 makes a visible to 2. If b comes between 1 and 3, the swap fails. If b comes
/// after 3, the new connection counts before the resize returns. All other admissions are made under one of the two
/// locks.
#[derive(Debug)]
pub(super) struct SizesWord(AtomicU64);

impl SizesWord {
    pub(super) fn new(options: &PoolOptions) -> Self {
        Self(AtomicU64::new(Sizes::of(options).pack()))
    }

    fn load(&self) -> Sizes {
        // Relaxed: see the type's documentation.
        Sizes::unpack(self.0.load(Ordering::Relaxed))
    }

    fn store(&self, sizes: Sizes) {
        // Relaxed: the change of the capacity word publishes it, and the locks do.
        self.0.store(sizes.pack(), Ordering::Relaxed);
    }
}

impl<E: Environment> Core<E> {
    /// Returns the limits of the capacity word.
    pub(super) fn limits(&self) -> CapacityLimits {
        let sizes = self.sizes.load();
        CapacityLimits { total: PoolOptions::capacity_of(sizes.max), pending: sizes.connecting }
    }

    pub(super) fn max_pool_size(&self) -> u32 {
        self.sizes.load().max
    }

    pub(super) fn min_pool_size(&self) -> u32 {
        self.sizes.load().min
    }

    /// Returns whether the mere passing of time can create work for maintenance.
    pub fn needs_intervals(&self) -> bool {
        self.options.needs_intervals() || self.min_pool_size() > 0 || self.attention.includes(Reason::Surplus)
    }

    /// Returns the pool's options, with its present sizes.
    pub fn present_options(&self) -> PoolOptions {
        let Sizes { max, min, connecting } = self.sizes.load();
        let mut options = self.options.clone();
        (options.max_pool_size, options.min_pool_size, options.max_connecting) = (max, min, connecting);
        options
    }

    /// Changes the pool's sizes to those of `wanted`, if they are still those of `seen`. Returns whether they were.
    ///
    /// If the pool grows, waiters are granted permits. If it shrinks, available connections that are too many are closed
    /// at once, and others when they come back.
    pub fn try_resize(self: &Arc<Self>, seen: &PoolOptions, wanted: &PoolOptions) -> bool {
        {
            let _registry = self.registry.lock();
            let _queue = self.wait_list.lock();
            if self.sizes.load() != Sizes::of(seen) {
                return false;
            }
            self.sizes.store(Sizes::of(wanted));
            self.capacity.outdate_readings();
            if self.capacity.load().total > self.limits().total {
                self.attention.add(Reason::Surplus);
            }
        }
        self.serve_permits();
        self.trim();
        self.environment.schedule_maintenance();
        true
    }

    /// Returns whether more connections exist than `maxPoolSize` allows, as after a resize.
    pub(super) fn has_surplus(&self) -> bool {
        self.attention.includes(Reason::Surplus) && self.has_surplus_still()
    }

    #[cold]
    fn has_surplus_still(&self) -> bool {
        // The sizes change under this lock. While they stay, a number that is within the limit remains so.
        let _registry = self.registry.lock();
        let is_surplus = self.capacity.load().total > self.limits().total;
        if !is_surplus {
            self.attention.remove(Reason::Surplus);
        }
        is_surplus
    }

    /// Closes available connections while there are more connections than `maxPoolSize` allows.
    ///
    /// A check-in that has not noticed the resize yet may make another available. The next maintenance closes it.
    pub(super) fn trim(&self) {
        while self.has_surplus() {
            let Popped::Slot(slot) = self.take_any() else { return };
            let held = Held::new(self, slot);
            held.retire(held.stale_reason());
        }
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
