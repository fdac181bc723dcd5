//! The one door to shared memory: std's primitives, or loom's when the crate is built with `--cfg loom`.
//!
//! Everything concurrent in [`pool`](crate::pool) goes through here, so that the models in `loom-tests/` check the
//! code that ships. Two things deliberately do not:
//!
//! - `Arc`: reference counts guard memory, and no ordering of the pool relies on them.
//! - `OnceLock` in the slab: segments are made under the ledger's lock, and an index is only known to those whom a
//!   word has told about it.

#[cfg(loom)]
pub(crate) use loom::sync::atomic;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic;

#[cfg(loom)]
use loom::{cell, sync};
#[cfg(not(loom))]
use std::{cell, sync};

use std::sync::PoisonError;

#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;
pub(crate) use sync::MutexGuard;

/// A mutex that shrugs at poison: no code of a user runs under any lock of the pool, and the pool's own code panics
/// only where a count has already gone wrong.
#[derive(Debug)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A cell whose every access is a closure over a raw pointer, as loom wants it in order to see races.
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        #[cfg(loom)]
        return self.0.with(f);
        #[cfg(not(loom))]
        f(self.0.get())
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        #[cfg(loom)]
        return self.0.with_mut(f);
        #[cfg(not(loom))]
        f(self.0.get())
    }
}
