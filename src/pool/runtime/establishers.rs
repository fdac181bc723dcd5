//! The establisher of a pool, which can be replaced.

use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The current establisher of a pool, and all earlier establishers. Dereferences to the current establisher.
///
/// A replaced establisher is kept for as long as the pool exists, because its users borrow it from the pool.
pub(super) struct Establishers<E> {
    first: Arc<E>,
    /// INV-18 (establishers stay): the pointer comes from an `Arc` in `all`, and `all` only grows.
    present: AtomicPtr<E>,
    all: Mutex<Vec<Arc<E>>>,
}

#[allow(unsafe_code)]
impl<E> Establishers<E> {
    pub(super) fn new(first: Arc<E>) -> Self {
        let present = AtomicPtr::new(Arc::as_ptr(&first).cast_mut());
        Self { present, all: Mutex::new(vec![first.clone()]), first }
    }

    /// Returns the first establisher, which judges the condition of connections at check-in.
    ///
    /// Few establishers read their own fields to judge a connection. For the others, the compiler omits the load of
    /// this pointer, but it could not omit the load of an atomic pointer at each check-in.
    #[inline]
    pub(super) fn first(&self) -> &E {
        &self.first
    }

    /// Returns the current establisher. Does not take a lock, because a forked child calls this.
    pub(super) fn present(&self) -> Arc<E> {
        // ORD: as in `deref`.
        let present = self.present.load(Ordering::Acquire);
        // SAFETY: INV-18: the pointer comes from an `Arc` in `all`, which still holds a reference.
        unsafe {
            Arc::increment_strong_count(present);
            Arc::from_raw(present)
        }
    }

    pub(super) fn replace(&self, next: Arc<E>) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let present = Arc::as_ptr(&next).cast_mut();
        all.push(next);
        // ORD: Release; pairs with the Acquire in `deref`; publishes the establisher.
        self.present.store(present, Ordering::Release);
    }
}

#[allow(unsafe_code)]
impl<E> Deref for Establishers<E> {
    type Target = E;

    #[inline]
    fn deref(&self) -> &E {
        // ORD: Acquire; pairs with the Release in `replace`.
        // SAFETY: INV-18: the establisher lives as long as `self`, which the result borrows.
        unsafe { &*self.present.load(Ordering::Acquire) }
    }
}
