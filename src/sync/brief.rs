//! A lock for sections of a few steps.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use super::atomic::{AtomicBool, Ordering};
#[cfg(all(test, not(loom)))]
use super::census;
use super::{Backoff, UnsafeCell, unless_mutant};

/// A lock for short sections that many cores enter constantly. Such a section has a bounded number of steps, and makes
/// no system call, runs no user code and does not wait. The wait list allocates nothing in its sections; the queue of
/// events may grow in its own.
///
/// A standard mutex is released by an exchange, which waits until the section's writes have reached their cache line.
/// This lock is released by a store, which does not wait. That improves a saturated pool's throughput by two to three
/// percent.
///
/// # How long it takes
///
/// A section takes as long as its few cache lines take to arrive: some ten nanoseconds each. A thread that does not get
/// the lock checks again after a pause ([`Backoff`]). It waits for the sections of the threads that get the lock
/// before it, in no particular order.
///
/// If the holder is preempted inside its section, the thread also waits until the system runs the holder again. On a
/// busy machine that takes a time slice, which is milliseconds. The waiting thread first yields, and then sleeps for 50
/// µs between checks. No lock without a queue in the system does better: short sections make such a preemption rare,
/// and nothing else does.
///
/// The value begins right after the lock's byte, so that its first fields arrive with the lock's cache line.
#[derive(Debug)]
#[repr(C)]
pub struct BriefLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives access to the value to one thread at a time, hence `T: Send`.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for BriefLock<T> {}

/// A held lock. It must stay on its thread.
pub struct BriefGuard<'l, T> {
    lock: &'l BriefLock<T>,
    on_this_thread: PhantomData<*mut T>,
}

impl<T> BriefLock<T> {
    /// Creates a lock that is free.
    pub fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits until the lock is free, and takes it.
    #[inline]
    pub fn lock(&self) -> BriefGuard<'_, T> {
        if !self.try_acquire() {
            self.acquire_later();
        }
        #[cfg(all(test, not(loom)))]
        census::enter();
        BriefGuard { lock: self, on_this_thread: PhantomData }
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        // ORD: Acquire; pairs with the Release in `BriefGuard::drop`; makes the last holder's changes visible.
        let order = unless_mutant("brief_lock_acquires_nothing", Ordering::Acquire);
        self.held.compare_exchange(false, true, order, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn acquire_later(&self) {
        let mut backoff = Backoff::new();
        loop {
            backoff.pause();
            // Relaxed: only a check. Unlike an attempt, it does not take the cache line away from the holder.
            if !self.held.load(Ordering::Relaxed) && self.try_acquire() {
                return;
            }
        }
    }
}

#[allow(unsafe_code)]
impl<T> Deref for BriefGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

#[allow(unsafe_code)]
impl<T> DerefMut for BriefGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, and is borrowed exclusively.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for BriefGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        #[cfg(all(test, not(loom)))]
        census::leave();
        // ORD: Release; pairs with the Acquire in `try_acquire`; publishes the changes made under the lock.
        self.lock.held.store(false, unless_mutant("brief_lock_releases_nothing", Ordering::Release));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn lock_excludes_other_threads_with_more_threads_than_cores() {
        const THREADS: u64 = 8;
        const EACH: u64 = 20_000;
        let lock = BriefLock::new([0_u64; 2]);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let mut both = lock.lock();
                        both[0] += 1;
                        assert_eq!(both[0], both[1] + 1, "two threads hold the lock");
                        both[1] += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), [THREADS * EACH; 2]);
    }

    #[test]
    fn waiter_gets_the_lock_after_a_slow_holder() {
        let lock = BriefLock::new(0);
        std::thread::scope(|scope| {
            let mut held = lock.lock();
            let waiter = scope.spawn(|| *lock.lock());
            // Long enough for the waiter to go to sleep.
            for _ in 0..1_000 {
                std::thread::yield_now();
            }
            *held = 7;
            drop(held);
            assert_eq!(waiter.join().unwrap(), 7);
        });
    }
}
