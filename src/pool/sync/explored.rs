//! Wrappers around loom's atomics that make loom explore all orders of their accesses.
//!
//! loom decides which orders to try based on the *last* access to each object, and a load overwrites the record of an
//! earlier load. If thread A loads, and thread B then loads and stores, loom compares B's store with B's own load, and
//! never tries B's store before A's load. Every compare-and-swap loop begins with a load. Models that use plain loom
//! atomics therefore pass after a handful of executions, and the interesting executions are not among them (observed
//! with loom 0.7.2).
//!
//! Here each access also passes a *turnstile*: an operation on a companion to the atomic. All these operations depend on
//! each other, whatever the access is, so loom tries all their orders. They synchronise nothing, and loom still chooses
//! which store a load reads.
//!
//! # Steps
//!
//! loom may switch threads before the access, but not between the access and the turnstile: a switch there cannot
//! reveal anything that a switch before or after both does not.

use std::cell::Cell;

use loom::sync::Condvar;
use loom::sync::atomic::{self, Ordering};

/// The order of the accesses to one object. A notification of a condition variable that no thread waits for does nothing,
/// but loom orders it.
#[derive(Debug)]
pub(crate) struct Turnstile(Condvar);

impl Turnstile {
    pub(crate) fn new() -> Self {
        Self(Condvar::new())
    }

    pub(crate) fn pass(&self) {
        self.0.notify_one();
    }
}

std::thread_local! {
    // loom runs all threads of a model on one thread.
    static UNEXPLORED: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f` without exploring switches to other threads during the call.
pub fn unexplored<R>(f: impl FnOnce() -> R) -> R {
    struct Explore;
    impl Drop for Explore {
        fn drop(&mut self) {
            UNEXPLORED.set(false);
            loom::explore();
        }
    }
    if UNEXPLORED.get() {
        return f();
    }
    loom::stop_exploring();
    UNEXPLORED.set(true);
    let _explore = Explore;
    f()
}

macro_rules! explored {
    ($($atomic:ident $(<$of:ident>)? ($value:ty))*) => {$(
        /// An atomic whose accesses loom tries in all orders.
        #[derive(Debug)]
        pub struct $atomic $(<$of>)? {
            turnstile: Turnstile,
            value: atomic::$atomic $(<$of>)?,
        }

        #[allow(dead_code, missing_docs, reason = "not every type needs every access; each is like std's")]
        impl $(<$of>)? $atomic $(<$of>)? {
            pub fn new(value: $value) -> Self {
                Self { turnstile: Turnstile::new(), value: atomic::$atomic::new(value) }
            }

            /// Calls `f`, which makes one access.
            fn access<R>(&self, f: impl FnOnce(&atomic::$atomic $(<$of>)?) -> R) -> R {
                let outcome = f(&self.value);
                unexplored(|| self.turnstile.pass());
                outcome
            }

            pub fn load(&self, order: Ordering) -> $value {
                self.access(|value| value.load(order))
            }

            /// Like `load`, without the turnstile.
            pub fn load_past_turnstile(&self, order: Ordering) -> $value {
                self.value.load(order)
            }

            pub fn store(&self, value: $value, order: Ordering) {
                self.access(|present| present.store(value, order));
            }

            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.access(|present| present.swap(value, order))
            }

            pub fn compare_exchange(
                &self,
                seen: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.access(|present| present.compare_exchange(seen, new, success, failure))
            }

            /// Never fails spuriously. Otherwise, loom would never finish exploring a loop around it.
            pub fn compare_exchange_weak(
                &self,
                seen: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(seen, new, success, failure)
            }

            /// Works like std's: a load, followed by compare-and-swaps until one succeeds.
            pub fn fetch_update(
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
        #[allow(dead_code, missing_docs, reason = "not every type needs every access; each is like std's")]
        impl $atomic {
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.access(|present| present.fetch_add(value, order))
            }

            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.access(|present| present.fetch_sub(value, order))
            }

            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.access(|present| present.fetch_or(value, order))
            }

            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.access(|present| present.fetch_and(value, order))
            }
        }
    )*};
}

explored! { AtomicBool(bool) AtomicU32(u32) AtomicU64(u64) AtomicPtr<T>(*mut T) }
counting! { AtomicU32(u32) AtomicU64(u64) }
