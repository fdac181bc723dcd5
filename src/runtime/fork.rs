//! Noticing a fork.
//!
//! A connection is not fork-safe: parent and child would both write to one socket. The child counts its forks in a
//! word that nothing else writes, so that looking at it costs a check-out one load of a shared, unchanging cache line.
//!
//! A child also inherits futures: those that it has polled before the fork, and on a runtime of one thread the pool's
//! tasks. Their state leads to the parent's pool, whose locks may be held by threads that the child does not have, and to
//! the parent's sockets. So such a future is neither polled nor dropped in the child: it is leaked ([`OfThisProcess`]).

use std::future::Future;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once};
use std::task::{Context, Poll};

use arc_swap::ArcSwap;
use thiserror::Error;

/// How many forks lie between this process and the one that first used the crate.
static FORKS: AtomicU32 = AtomicU32::new(0);

#[inline]
pub(super) fn forks() -> u32 {
    // Relaxed: written only in a child while it has a single thread.
    FORKS.load(Ordering::Relaxed)
}

/// Starts to count. Each pool and each [`PerProcess`] calls this when it is made.
#[cfg(unix)]
#[allow(unsafe_code)]
pub(super) fn watch() {
    extern "C" fn count_in_child() {
        // Relaxed: the child has a single thread here.
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static ONCE: Once = Once::new();
    // SAFETY: the handler only changes an atomic, which is allowed in a forked child. It is a function of this crate,
    // so it exists as long as the crate's code does.
    ONCE.call_once(|| unsafe {
        // A failure (out of memory) leaves forks unnoticed, as on systems without them.
        libc::pthread_atfork(None, None, Some(count_in_child));
    });
}

/// There are no forks here.
#[cfg(not(unix))]
pub(super) fn watch() {}

/// A fork lies between the process that uses something and the one that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this process was forked from the one that the pool's connections belong to")]
pub(crate) struct Forked;

/// A value that is dropped only in the process that made it. A forked child leaks it.
#[derive(Debug)]
pub(crate) struct OfThisProcess<T> {
    forks: u32,
    value: ManuallyDrop<T>,
}

impl<T> OfThisProcess<T> {
    pub(super) fn new(value: T) -> Self {
        Self { forks: forks(), value: ManuallyDrop::new(value) }
    }

    fn is_inherited(&self) -> bool {
        self.forks != forks()
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
            // SAFETY: the only place that drops it, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// State that a forked child does not share with its parent: the child begins with a fresh value.
///
/// The parent's value may be locked by a thread that the child lacks, or wait for one. So the child neither reads nor
/// drops it. It leaks the value as it is: secrets in it are not wiped in the child's memory, because that takes the lock.
#[derive(Debug)]
pub(crate) struct PerProcess<T> {
    current: ArcSwap<OfThisProcess<T>>,
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        // Connections can be opened without a pool, too.
        watch();
        Self { current: ArcSwap::default() }
    }
}

impl<T: Default> PerProcess<T> {
    /// Returns the value of this process. Takes no lock.
    pub(crate) fn get(&self) -> Arc<OfThisProcess<T>> {
        let present = self.current.load_full();
        if !present.is_inherited() { present } else { self.renew(&present) }
    }

    /// Puts a fresh value in the place of the parent's. Of several threads of the child, one does.
    #[cold]
    fn renew(&self, inherited: &Arc<OfThisProcess<T>>) -> Arc<OfThisProcess<T>> {
        // What else the child leaks may point to the value, so its memory stays.
        std::mem::forget(Arc::clone(inherited));
        self.current.compare_and_swap(inherited, Arc::default());
        self.current.load_full()
    }
}

/// A future that in a forked child ends at its next poll, without being polled or dropped.
///
/// It is boxed, so that what is leaked keeps its memory: a runtime that the child inherits too still has timers of it in
/// its lists.
pub(super) fn own<F: Future>(future: F) -> OfThisProcess<Pin<Box<F>>> {
    OfThisProcess::new(Box::pin(future))
}

impl<F: Future> Future for OfThisProcess<Pin<Box<F>>> {
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
