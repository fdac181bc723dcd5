//! The facade for shared memory: std's primitives, loom's with `--cfg loom`, or shuttle's with `--cfg shuttle`. With
//! `--cfg simulated`, they are std's primitives, observed by the simulated machine of `scale/`.
//!
//! All concurrent code in [`pool`](crate::pool::core) and in `delivery` uses this facade, so that the models in
//! `loom-tests/` check the code that ships. There are four deliberate exceptions:
//!
//! - `Arc`: reference counts only guard memory; none of the pool's orderings rely on them.
//! - A connection's number and the record of its events: they change hands with the ownership of the connection's slot,
//!   or change under the registry's lock. They are atomics for the sake of a forked child process, which only reads
//!   them.
//! - The numbers of pinned connections: statistics that appear only in an error message.
//! - The counters and histograms of `metrics`: these are also statistics. A slot's count of hits uses the facade,
//!   because it relies on the ownership of the slot.
//!
//! # Mutants
//!
//! A model is useful only if it fails when the code is wrong. A *mutant* is a named fault that is injected into the
//! code:
//!
//! - [`unless_mutant`] weakens one ordering. Because only the ordering changes, the mutant is written at the access
//!   itself.
//! - All other mutants are in `loom-tests/src/mutants/`: each names a fragment of this code and its replacement. The
//!   negative controls build a copy of the crate in which [`mutant`] chooses between the two.
//!
//! In the models' builds, [`mutant`] is `false` unless the environment variable `WHARF_MUTANT` names the mutant. In
//! every other build, it is the constant `false`, so the compiler removes it. The models therefore check the code that
//! ships.

#[cfg(all(loom, feature = "event-listener-queue"))]
mod events;
#[cfg(loom)]
mod explored;
#[cfg(loom)]
mod once;
#[cfg(loom)]
mod patience;
#[cfg(loom)]
pub(crate) mod atomic {
    pub use super::explored::*;
    pub(crate) use loom::sync::atomic::{Ordering, fence};
}
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic;
#[cfg(simulated)]
pub mod simulated;
#[cfg(simulated)]
pub(crate) use simulated::atomic;
#[cfg(not(any(loom, shuttle, simulated)))]
pub(crate) use std::sync::atomic;

/// The atomics for statistics come from std: no model checks them. The simulated machine observes them, because their
/// cache lines move between cores like any other.
pub(crate) mod statistics {
    #[cfg(simulated)]
    pub(crate) use super::simulated::atomic::{AtomicU64, Ordering, fence};
    #[cfg(not(simulated))]
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

#[cfg(loom)]
use loom::{cell, sync};
#[cfg(shuttle)]
use shuttle::sync;
#[cfg(simulated)]
use simulated::{cell, sync};
#[cfg(not(any(loom, simulated)))]
use std::cell;
#[cfg(not(any(loom, shuttle, simulated)))]
use std::sync;

use std::sync::PoisonError;

#[cfg(loom)]
pub(crate) use once::OnceLock;
#[cfg(not(loom))]
pub(crate) use std::sync::OnceLock;

#[cfg(all(not(loom), feature = "event-listener-queue"))]
pub(crate) use event_listener::{Event, EventListener};
#[cfg(all(loom, feature = "event-listener-queue"))]
pub(crate) use events::{Event, EventListener};
#[cfg(loom)]
pub(crate) use patience::{Patience, made_progress};
/// Waits for a step by another thread. That thread calls [`made_progress`] after the step.
#[cfg(not(loom))]
pub(crate) type Patience = Backoff;

/// Tells a model that a thread waiting with [`Patience`] may be able to continue.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn made_progress() {}

#[cfg(loom)]
pub(crate) use loom::thread_local;
#[cfg(loom)]
use loom::{hint::spin_loop, thread::yield_now};
#[cfg(shuttle)]
use shuttle::thread::yield_now;
#[cfg(shuttle)]
pub(crate) use shuttle::thread_local;
#[cfg(simulated)]
use simulated::{sleep, spin_loop, yield_now};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::thread_local;
#[cfg(not(any(loom, shuttle, simulated)))]
use std::{
    hint::spin_loop,
    thread::{sleep, yield_now},
};
pub(crate) use sync::MutexGuard;

use atomic::Ordering;

/// Returns whether the mutant `name` is active. Mutants are active only in the negative controls of the models.
///
/// Here, only [`unless_mutant`] calls it. The instrumented copy of this crate calls it at each mutant in the catalogue.
#[cfg(not(any(loom, shuttle)))]
#[inline(always)]
pub(crate) const fn mutant(_name: &str) -> bool {
    false
}

#[cfg(any(loom, shuttle))]
pub(crate) fn mutant(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("WHARF_MUTANT").ok()).as_deref() == Some(name)
}

/// Returns `ordering`, or `Relaxed` if the mutant `name` is active.
#[inline(always)]
pub(crate) fn unless_mutant(name: &str, ordering: Ordering) -> Ordering {
    if mutant(name) { Ordering::Relaxed } else { ordering }
}

mod backoff;
#[cfg(not(shuttle))]
mod brief;
mod foreign;
pub(crate) use backoff::Backoff;
#[cfg(any(not(loom), feature = "event-listener-queue"))]
pub(crate) use foreign::Contained;
pub(crate) use foreign::{contain, discard, wake};

/// The brief lock, for its own model.
#[cfg(loom)]
pub use brief::BriefLock as ModelledBriefLock;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use brief::{BriefGuard, BriefLock};
#[cfg(loom)]
pub use explored::unexplored;
/// In models of other code, the lock is the model checker's mutex.
#[cfg(any(loom, shuttle))]
pub(crate) type BriefLock<T> = Mutex<T>;
#[cfg(any(loom, shuttle))]
pub(crate) type BriefGuard<'l, T> = MutexGuard<'l, T>;

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod census;

/// Counts a step of a section under a short lock, in the library's unit tests.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(all(test, not(any(loom, shuttle))))]
    census::step();
}

/// Tells the simulated machine that the last access loaded the address of the next access.
#[inline(always)]
pub(crate) fn follow() {
    #[cfg(simulated)]
    simulated::follow();
}

/// Starts fetching a cache line that the calling thread is about to read and write. Does nothing on processors other
/// than x86-64.
#[inline(always)]
#[cfg_attr(simulated, track_caller)]
#[cfg_attr(not(simulated), allow(unused_variables, reason = "not all targets have the instruction"))]
#[allow(unsafe_code)]
pub(crate) fn fetch_to_write<T>(at: *const T) {
    #[cfg(simulated)]
    simulated::fetch_to_write(at);
    // The intrinsic is not used, because the compiler turns it into a read prefetch unless it knows that the processor
    // has this instruction. All x86-64 processors accept the instruction, although it has no effect on some of them.
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, simulated, miri))))]
    // SAFETY: a prefetch is only a hint, which does not change anything and accepts any address.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}

/// Loads a value that another atomic publishes. The caller's acquire access to that atomic already determines which
/// value is read, so a model need not try this load in all orders.
macro_rules! published {
    ($atomic:expr) => {{
        #[cfg(loom)]
        let value = $atomic.load_past_turnstile($crate::pool::sync::atomic::Ordering::Relaxed);
        #[cfg(not(loom))]
        let value = $atomic.load($crate::pool::sync::atomic::Ordering::Relaxed);
        value
    }};
}
pub(crate) use published;

mod front;
mod slots;
mod watch;
#[cfg_attr(any(loom, shuttle), allow(unused_imports, reason = "the sessions are not part of these builds"))]
pub use front::{Front, Placed};
#[cfg_attr(any(loom, shuttle), allow(unused_imports, reason = "the sessions are not part of these builds"))]
pub use slots::{SlotStack, Slots};
pub use watch::Watch;

/// A mutex that ignores poisoning. User code never runs under one of the pool's locks, and the pool's own code panics
/// only if a count is already wrong.
#[derive(Debug)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    #[cfg_attr(simulated, track_caller)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In models, the brief lock is a mutex.
#[cfg(any(loom, shuttle))]
impl<T> Mutex<T> {
    pub(crate) fn run<R: Send, F: FnOnce(&mut T) -> R + Send>(
        &self,
        now: impl FnOnce(&mut T) -> R,
        _: impl FnOnce() -> F,
    ) -> R {
        now(&mut self.lock())
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// A condition variable: a thread that holds a [`Mutex`] releases it and sleeps until it is woken.
#[derive(Debug)]
pub(crate) struct Condvar(sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Unlocks, sleeps and locks again. May wake up spuriously.
    pub(crate) fn wait<'m, T>(&self, guard: MutexGuard<'m, T>) -> MutexGuard<'m, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }
}

/// A cell that is accessed only through closures over a raw pointer, so that loom detects races.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(cell::UnsafeCell::new(value))
    }

    #[inline]
    #[cfg_attr(simulated, track_caller)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        #[cfg(any(loom, simulated))]
        return self.0.with(f);
        #[cfg(not(any(loom, simulated)))]
        f(self.0.get())
    }

    #[inline]
    #[cfg_attr(simulated, track_caller)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        #[cfg(any(loom, simulated))]
        return self.0.with_mut(f);
        #[cfg(not(any(loom, simulated)))]
        f(self.0.get())
    }

    /// Like [`with_mut`](Self::with_mut), but for a cell that holds a pointer. `f` changes only the value behind the
    /// pointer, and the cell itself is only read.
    #[inline]
    #[cfg_attr(simulated, track_caller)]
    pub(crate) fn with_mut_behind<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        #[cfg(simulated)]
        return self.0.with(|value| f(value.cast_mut()));
        #[cfg(not(simulated))]
        self.with_mut(f)
    }
}
