//! Detection of a fork.
//!
//! A connection is not fork-safe, because the parent and the child would both write to the same socket. So a pool
//! checks whether it is used in a forked child. A child increments a fork counter, which nothing else writes, so the
//! check is one load from a cache line that never changes. A hit and its check-in do not need the check, because the
//! child also forgets the shard that its thread used last (INV-16).
//!
//! A child also inherits the futures that were polled before the fork and, on a current-thread runtime, the pool's
//! tasks. Their state refers to the parent's sockets and to the parent's pool, whose locks may be held by threads that
//! do not exist in the child. So the child neither polls nor drops such a future, but leaks it ([`OfThisProcess`]).

use std::future::Future;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::boxed::Boxed;

/// The number of forks between the process that first used the crate and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process that a value belongs to: the process that first used the crate, or one of its descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    /// Returns this process. A fork is counted only if a pool, a session pool or an [`OfThisProcess`] was created
    /// before it.
    #[inline]
    pub(crate) fn this() -> Self {
        // Relaxed: written only in a child, while it has a single thread.
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether the calling process was forked from `self`. If so, the calling process must not touch the
    /// sockets, locks and futures of `self`.
    #[inline]
    pub(crate) fn is_ancestor(self) -> bool {
        self != Self::this()
    }

    /// Returns the number of forks that led to the process.
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    /// Returns the process that this many forks led to.
    pub(crate) fn numbered(number: u32) -> Self {
        Self(number)
    }
}

/// Starts counting forks.
#[cfg(unix)]
#[allow(unsafe_code)]
pub(crate) fn watch() {
    extern "C" fn count_in_child() {
        // Relaxed: the child has a single thread here.
        FORKS.fetch_add(1, Ordering::Relaxed);
        super::environment::forget_nearby();
        super::coarse::stop_in_child();
    }
    static ONCE: Once = Once::new();
    // SAFETY: the handler only changes atomics and a thread-local, which is allowed in a forked child. It is a
    // function in this crate, so it lives as long as the crate's code.
    ONCE.call_once(|| unsafe {
        // If this fails (out of memory), forks go unnoticed.
        libc::pthread_atfork(None, None, Some(count_in_child));
    });
}

/// Does nothing, because this system does not have `fork`.
#[cfg(not(unix))]
pub(crate) fn watch() {}

/// The error for a value that is used in a forked child of the process that created it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this process was forked from the one that the pool's connections belong to")]
pub(crate) struct Forked;

/// A value that is dropped only in the process that created it. A forked child leaks it.
#[derive(Debug)]
pub(crate) struct OfThisProcess<T> {
    process: Process,
    value: ManuallyDrop<T>,
}

impl<T> OfThisProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        watch();
        Self { process: Process::this(), value: ManuallyDrop::new(value) }
    }

    /// Returns whether the value belongs to a process that this one was forked from.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        self.process.is_ancestor()
    }
}

impl<T: Default> Default for OfThisProcess<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Deref for OfThisProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for OfThisProcess<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[allow(unsafe_code)]
impl<T> Drop for OfThisProcess<T> {
    fn drop(&mut self) {
        if !self.is_inherited() {
            // SAFETY: the value is dropped only here, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A value that a forked child does not share with its parent. The child starts with a fresh value.
///
/// The parent's value may be locked by a thread that does not exist in the child, or may be waiting for such a thread.
/// So the child neither reads nor drops the value, but leaks it. Secrets in the value stay in the child's memory,
/// because wiping them would take the lock.
#[derive(Debug, Default)]
pub(crate) struct PerProcess<T: Default> {
    current: ArcSwap<OfThisProcess<T>>,
}

impl<T: Default> PerProcess<T> {
    /// Returns the value of this process. Does not take a lock.
    pub(crate) fn get(&self) -> Arc<OfThisProcess<T>> {
        let present = self.current.load_full();
        if !present.is_inherited() { present } else { self.renew(&present) }
    }

    /// Replaces the parent's value with a fresh one. If several threads of the child call this, only one replaces it.
    #[cold]
    fn renew(&self, inherited: &Arc<OfThisProcess<T>>) -> Arc<OfThisProcess<T>> {
        // Other leaked values may point to this value, so its memory must not be freed.
        std::mem::forget(Arc::clone(inherited));
        self.current.compare_and_swap(inherited, Arc::default());
        self.current.load_full()
    }
}

/// Wraps a future so that a forked child neither polls nor drops it. In the child, the wrapper returns [`Forked`] at
/// its next poll.
///
/// The future is boxed, so that its memory remains valid when it is leaked: an inherited runtime may still have the
/// future's timers in its lists.
pub(crate) fn own<F: Future>(future: F) -> OfThisProcess<Pin<Box<F>>> {
    OfThisProcess::new(Box::pin(future))
}

/// Spawns a task that a forked child neither polls nor drops.
///
/// The type of the future is erased, so that tokio's code for tasks is compiled once for each output, instead of once for
/// each task.
#[track_caller]
pub(crate) fn spawn<T: Send + 'static>(
    runtime: &Handle,
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<Result<T, Forked>> {
    let future: Boxed<'static, T> = Box::pin(future);
    runtime.spawn(OfThisProcess::new(future))
}

impl<F: Future + ?Sized> Future for OfThisProcess<Pin<Box<F>>> {
    type Output = Result<F::Output, Forked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_inherited() {
            return Poll::Ready(Err(Forked));
        }
        self.value.as_mut().poll(context).map(Ok)
    }
}

#[cfg(all(test, unix))]
pub(super) mod tests;
