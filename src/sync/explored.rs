//! Wrappers of loom's atomics that make loom explore all orders of their accesses.
//!
//! loom decides which orders to try by the *last* access to each object, and a load overwrites the record of an earlier
//! load. When A loads, then B loads and then B stores, loom compares B's store with B's own load, and never tries B's
//! store before A's load. Every compare-and-swap loop begins with a load. Models on plain loom atomics therefore pass
//! after a handful of executions that miss the interesting ones (seen with loom 0.7.2).
//!
//! Here each access first takes a turn: a relaxed read-modify-write on a companion of the atomic. Turns depend on each
//! other, independent of the kind of the access that follows, so loom tries all their orders. Because they are relaxed,
//! they synchronise nothing, and loom still chooses which of the stores a load reads.

use loom::sync::atomic::{self, AtomicU8, Ordering};

macro_rules! explored {
    ($($atomic:ident($value:ty))*) => {$(
        #[derive(Debug)]
        pub(crate) struct $atomic {
            turn: AtomicU8,
            value: atomic::$atomic,
        }

        #[allow(dead_code, reason = "not every type needs every access")]
        impl $atomic {
            pub(crate) fn new(value: $value) -> Self {
                Self { turn: AtomicU8::new(0), value: atomic::$atomic::new(value) }
            }

            fn in_turn(&self) -> &atomic::$atomic {
                self.turn.fetch_add(0, Ordering::Relaxed);
                &self.value
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.in_turn().load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.in_turn().store(value, order);
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.in_turn().swap(value, order)
            }

            pub(crate) fn compare_exchange(
                &self,
                seen: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.in_turn().compare_exchange(seen, new, success, failure)
            }

            /// Never fails spuriously: loom could not see the end of a loop around it.
            pub(crate) fn compare_exchange_weak(
                &self,
                seen: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(seen, new, success, failure)
            }

            /// Like std's: a load, and compare-and-swaps until one succeeds.
            pub(crate) fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut seen = self.load(failure);
                while let Some(new) = change(seen) {
                    match self.compare_exchange_weak(seen, new, success, failure) {
                        Ok(seen) => return Ok(seen),
                        Err(now) => seen = now,
                    }
                }
                Err(seen)
            }
        }
    )*};
}

macro_rules! counting {
    ($($atomic:ident($value:ty))*) => {$(
        #[allow(dead_code, reason = "not every type needs every access")]
        impl $atomic {
            pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.in_turn().fetch_add(value, order)
            }

            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.in_turn().fetch_sub(value, order)
            }

            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.in_turn().fetch_or(value, order)
            }

            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.in_turn().fetch_and(value, order)
            }
        }
    )*};
}

explored! { AtomicBool(bool) AtomicU32(u32) AtomicU64(u64) }
counting! { AtomicU32(u32) AtomicU64(u64) }
