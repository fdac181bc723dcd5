//! Calls to foreign code: wakers, subscribers, establishers, and drops of foreign values.
//!
//! A waker belongs to the runtime of the task that it wakes, and that runtime's code may panic. Such a panic usually
//! occurs on a thread that has nothing to do with that task, for example during a check-in, or during a clear that
//! wakes many tasks. The pool therefore catches it. The other tasks are still woken, the caller's operation succeeds,
//! and the panic hook still reports the panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(any(not(loom), feature = "event-listener-queue"))]
use std::sync::Arc;
#[cfg(any(not(loom), feature = "event-listener-queue"))]
use std::task::Wake;
use std::task::Waker;

/// Wakes a task. Catches a panic in the waker.
#[inline]
pub(crate) fn wake(waker: Waker) {
    call(|| waker.wake());
}

/// Drops a waker, if there is one. Catches a panic in its drop.
#[inline]
pub(crate) fn discard(waker: impl Into<Option<Waker>>) {
    if let Some(waker) = waker.into() {
        call(|| drop(waker));
    }
}

/// A waker that does not panic, to be handed to another library.
#[cfg(any(not(loom), feature = "event-listener-queue"))]
pub(crate) struct Contained(Waker);

#[cfg(any(not(loom), feature = "event-listener-queue"))]
impl Contained {
    pub(crate) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self(waker))
    }

    /// Returns whether this waker wakes the same task as `waker`.
    #[cfg(feature = "event-listener-queue")]
    pub(crate) fn wakes_as(&self, waker: &Waker) -> bool {
        self.0.will_wake(waker)
    }
}

#[cfg(any(not(loom), feature = "event-listener-queue"))]
impl Wake for Contained {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        call(|| self.0.wake_by_ref());
    }
}

#[cfg(any(not(loom), feature = "event-listener-queue"))]
impl Drop for Contained {
    fn drop(&mut self) {
        discard(std::mem::replace(&mut self.0, Waker::noop().clone()));
    }
}

/// Calls a waker's code, and catches any panic in it.
#[cfg(not(any(loom, shuttle)))]
fn call(foreign: impl FnOnce()) {
    contain(foreign);
}

/// Calls a waker's code. Panics from the model checker are model failures, so they are not caught.
#[cfg(any(loom, shuttle))]
fn call(foreign: impl FnOnce()) {
    foreign();
}

/// Runs foreign code, and catches any panic in it. Returns `None` if it panicked.
#[inline]
pub(crate) fn contain<T>(foreign: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(foreign)) {
        Ok(done) => Some(done),
        Err(panic) => {
            // The payload is forgotten, because dropping it would also run foreign code.
            std::mem::forget(panic);
            None
        }
    }
}
