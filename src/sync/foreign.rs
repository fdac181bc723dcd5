//! Foreign code that the pool calls: wakers, subscribers, establishers, drops of values that others own.
//!
//! A waker belongs to the runtime of the task that it wakes, and that runtime's code may panic. The panic is not the
//! pool's, and the thread it meets is as a rule not its task's: it belongs to a check-in, or to a clear that wakes many.
//! So it is caught there. It costs neither the others their wake-ups nor the caller its operation, and the panic hook
//! has reported it.

use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(not(loom))]
use std::sync::Arc;
#[cfg(not(loom))]
use std::task::Wake;
use std::task::Waker;

/// Wakes a task. A panic of the waker is caught.
#[inline]
pub(crate) fn wake(waker: Waker) {
    call(|| waker.wake());
}

/// Drops a waker, if there is one. A panic of it is caught.
#[inline]
pub(crate) fn discard(waker: impl Into<Option<Waker>>) {
    if let Some(waker) = waker.into() {
        call(|| drop(waker));
    }
}

/// A waker that wakes the same task and does not panic, for a list of another library's.
#[cfg(not(loom))]
pub(crate) fn contained(waker: Waker) -> Waker {
    struct Contained(Waker);

    impl Wake for Contained {
        fn wake(self: Arc<Self>) {
            self.wake_by_ref();
        }

        fn wake_by_ref(self: &Arc<Self>) {
            call(|| self.0.wake_by_ref());
        }
    }

    impl Drop for Contained {
        fn drop(&mut self) {
            discard(std::mem::replace(&mut self.0, Waker::noop().clone()));
        }
    }

    Arc::new(Contained(waker)).into()
}

/// Calls a waker's code. A panic of it is caught.
#[cfg(not(any(loom, shuttle)))]
fn call(foreign: impl FnOnce()) {
    contain(foreign);
}

/// A model checker's own panics are failures of the model, which must not be caught.
#[cfg(any(loom, shuttle))]
fn call(foreign: impl FnOnce()) {
    foreign();
}

/// Runs foreign code. `None`: it panicked, and the panic was caught.
#[inline]
pub(crate) fn contain<T>(foreign: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(foreign)) {
        Ok(done) => Some(done),
        Err(panic) => {
            // Its drop is foreign code, too.
            std::mem::forget(panic);
            None
        }
    }
}
