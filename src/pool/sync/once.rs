//! std's `OnceLock` rebuilt on loom's primitives, for values that are set under a lock or by a slot's owner.

use super::UnsafeCell;
use super::atomic::{AtomicBool, Ordering};

/// A cell that is set once, with std's orderings. A reader sees all of the value or none of it.
#[derive(Debug)]
pub(crate) struct OnceLock<T> {
    is_set: AtomicBool,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: `set` is called under a lock or by the sole owner of a slot, and the value does not change after `get` has
// returned a reference to it.
#[allow(unsafe_code)]
unsafe impl<T: Send + Sync> Sync for OnceLock<T> {}

#[allow(unsafe_code)]
impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        Self { is_set: AtomicBool::new(false), value: UnsafeCell::new(None) }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        // Once set, a value stays set, so its readers need not be ordered among themselves. If this load does not see a
        // value, the next load makes loom try the read both before and after `set`. ORD: Acquire; pairs with the
        // Release in `set`.
        let is_set = self.is_set.load_past_turnstile(Ordering::Acquire) || self.is_set.load(Ordering::Acquire);
        // SAFETY: the value is set, so it is never written again.
        is_set.then(|| self.value.with(|value| unsafe { (*value).as_ref() })).flatten()
    }

    /// Sets the value, if there is none. The caller must hold the lock, or own the slot.
    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        // Relaxed: the caller's lock orders all changes.
        if self.is_set.load(Ordering::Relaxed) {
            return Err(value);
        }
        // SAFETY: the value is not set, so there is no reference to it. The caller's lock excludes other writers.
        self.value.with_mut(|present| unsafe { *present = Some(value) });
        // ORD: Release; pairs with the Acquire in `get`; publishes the value.
        self.is_set.store(true, Ordering::Release);
        Ok(())
    }
}
