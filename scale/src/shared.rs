//! Shared memory of the simulated machine, for the runtime and for the reference designs.

use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::machine::{self, Access, Site};

/// A word on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Word(AtomicU64);

impl Word {
    /// Creates a word.
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    #[track_caller]
    fn accessed(&self, access: Access) -> &AtomicU64 {
        touch(&self.0, access);
        &self.0
    }

    /// Reads the word.
    #[track_caller]
    pub fn load(&self) -> u64 {
        self.accessed(Access::Load).load(Ordering::Relaxed)
    }

    /// Writes the word.
    #[track_caller]
    pub fn store(&self, value: u64) {
        self.accessed(Access::Store).store(value, Ordering::Relaxed);
    }

    /// Adds to the word, and returns its previous value. Wraps around.
    #[track_caller]
    pub fn add(&self, value: i64) -> u64 {
        self.accessed(Access::Update).fetch_add(value as u64, Ordering::Relaxed)
    }

    /// Replaces the word, and returns its previous value.
    #[track_caller]
    pub fn swap(&self, value: u64) -> u64 {
        self.accessed(Access::Update).swap(value, Ordering::Relaxed)
    }

    /// Replaces the word if its value is `seen`.
    ///
    /// # Errors
    ///
    /// Returns the current value if it differs from `seen`.
    #[track_caller]
    pub fn replace(&self, seen: u64, new: u64) -> Result<(), u64> {
        let word = self.accessed(Access::Update);
        word.compare_exchange(seen, new, Ordering::Relaxed, Ordering::Relaxed).map(drop)
    }
}

/// Accesses all lines of a value.
#[track_caller]
pub fn touch<T: ?Sized>(value: &T, access: Access) {
    machine::access((&raw const *value).addr(), size_of_val(value), access, Location::caller());
}

/// A mutex on cache lines of its own, with its value beside it. It behaves like std's mutex.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Lock<T>(Mutex<T>);

/// A [`Lock`] that is held.
pub struct Held<'l, T> {
    value: Option<MutexGuard<'l, T>>,
    address: usize,
    site: Site,
}

impl<T> Lock<T> {
    /// Creates an unlocked lock.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits until the lock is free, takes it, and accesses its value.
    #[track_caller]
    pub fn lock(&self) -> Held<'_, T> {
        let (address, site) = ((&raw const self.0).addr(), Location::caller());
        machine::lock(address, site);
        machine::access(address, size_of::<Self>(), Access::Store, site);
        Held { value: Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)), address, site }
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("BUG: a guard without its value")
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("BUG: a guard without its value")
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        machine::unlock(self.address, self.site);
    }
}
