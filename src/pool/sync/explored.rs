//! Wrappers around loom's atomics that make loom explore all orders of their accesses.
//!
//! loom decides which orders to try based on the *last* access to each object, and a load overwrites the record of an
//! earlier load. If thread A loads, and thread B then loads and stores, loom compares B's store with B's own load, and
//! never tries B's store before A's load. Every compare-and-swap loop begins with a load. Models that use plain loom
//! atomics therefore pass after a handful of executions, and the interesting executions are not among them (observed
//! with loom 0.7.2).
//!
//! Here each access first passes a *turnstile*: a relaxed read-modify-write on a companion to the atomic. These
//! operations depend on each other, whatever kind of access follows, so loom tries all their orders. Because they are
//! relaxed, they do not synchronise anything, and loom still chooses which store a load reads.
//!
//! # Steps
//!
//! loom may switch threads at the turnstile and at the access after it. A switch between the two cannot reveal anything
//! that a switch before or after both does not. So loom does not explore that switch ([`Turnstile::step`]). The
//! exceptions are accesses for which loom also has to choose the value that is read: loads, and read-modify-writes of
//! an atomic that was also written by plain stores. loom has only one setting, which covers both choices.

use std::cell::Cell;
use std::sync::atomic::AtomicBool as Flag;

use loom::sync::atomic::{self, AtomicU8, Ordering};

/// The order of the accesses to one object.
#[derive(Debug)]
pub(crate) struct Turnstile(AtomicU8);

impl Turnstile {
    pub(crate) fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    pub(crate) fn pass(&self) {
        self.0.fetch_add(0, Ordering::Relaxed);
    }

    /// Passes the turnstile, and then calls `f` without exploring switches to other threads during the call. `f` must
    /// not wait or pass another turnstile.
    pub(crate) fn step<R>(&self, f: impl FnOnce() -> R) -> R {
        self.pass();
        unexplored(f)
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
        #[derive(Debug)]
        pub(crate) struct $atomic $(<$of>)? {
            turnstile: Turnstile,
            /// Set by plain stores, and not part of the model.
            stored: Flag,
            value: atomic::$atomic $(<$of>)?,
        }

        #[allow(dead_code, reason = "not every type needs every access")]
        impl $(<$of>)? $atomic $(<$of>)? {
            pub(crate) fn new(value: $value) -> Self {
                Self { turnstile: Turnstile::new(), stored: Flag::new(false), value: atomic::$atomic::new(value) }
            }

            /// Calls `change`, which reads the newest value. After two unordered plain stores, either value may be the
            /// newest.
            fn change<R>(&self, change: impl FnOnce(&atomic::$atomic $(<$of>)?) -> R) -> R {
                self.turnstile.pass();
                // Checked after the turnstile, because another thread may have stored while this thread was waiting.
                if self.stored.load(Ordering::Relaxed) {
                    return change(&self.value);
                }
                unexplored(|| change(&self.value))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.turnstile.pass();
                self.value.load(order)
            }

            /// Like `load`, without the turnstile.
            pub(crate) fn load_past_turnstile(&self, order: Ordering) -> $value {
                self.value.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.stored.store(true, Ordering::Relaxed);
                self.turnstile.step(|| self.value.store(value, order));
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                self.change(|present| present.swap(value, order))
            }

            pub(crate) fn compare_exchange(
                &self,
                seen: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.change(|present| present.compare_exchange(seen, new, success, failure))
            }

            /// Never fails spuriously. Otherwise, loom would never finish exploring a loop around it.
            pub(crate) fn compare_exchange_weak(
                &self,
                seen: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(seen, new, success, failure)
            }

            /// Works like std's: a load, followed by compare-and-swaps until one succeeds.
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
                self.change(|present| present.fetch_add(value, order))
            }

            pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.change(|present| present.fetch_sub(value, order))
            }

            pub(crate) fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.change(|present| present.fetch_or(value, order))
            }

            pub(crate) fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.change(|present| present.fetch_and(value, order))
            }
        }
    )*};
}

explored! { AtomicBool(bool) AtomicU32(u32) AtomicU64(u64) AtomicPtr<T>(*mut T) }
counting! { AtomicU32(u32) AtomicU64(u64) }
