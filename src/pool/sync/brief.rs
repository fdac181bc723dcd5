//! A lock for sections of a few steps.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::thread::Result as Outcome;

use super::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
#[cfg(all(test, not(loom)))]
use super::census;
use super::{Backoff, UnsafeCell, made_progress, spin_loop, unless_mutant};

/// A lock for short sections that many cores enter constantly. Such a section has a bounded number of steps, and does
/// not make system calls, run user code or wait. The wait list's sections do not allocate, but a section of the event
/// queue may grow the queue.
///
/// # Requests
///
/// A thread that finds the lock held watches it for about as long as one or two sections take. Then, or immediately if
/// other threads have left requests, it leaves its own request and watches only that request. The holder serves all
/// requests before it releases the lock, first come, first served:
///
/// - A section that was passed to [`run`](Self::run) is run by the holder. So the guarded value stays in the holder's
///   cache, and a section costs only the transfer of its request, no matter how many threads wait. A thread that is
///   preempted while it waits for its section does not delay any other thread.
/// - A thread that wants the lock itself ([`lock`](Self::lock)) is given the lock. It then serves the later requests.
/// - After [`MOST_SERVED`](Self::MOST_SERVED) sections, the holder gives the lock to the next thread, which continues.
///
/// A request that arrives after the holder's last check is not served by that holder. The holder then releases the
/// lock, so the thread that made the first such request takes the lock and serves all of them. That thread is certain
/// to be still waiting: a holder takes the whole list at once, so no request is served before its list has been taken.
///
/// A holder therefore runs other threads' sections. Those sections take no locks, and their panics are raised on the
/// threads that requested them. So the holder may hold other locks, and may even be unwinding.
///
/// This pays off where many cores contend. With a plain spin lock, 16, 32 and 64 simulated cores completed 0.48, 0.31
/// and 0.27 times as many operations in the `edge` case, in which the queue is often empty. With up to four cores there
/// was no difference.
///
/// # How long it takes
///
/// A section takes as long as its few cache lines take to arrive: about ten nanoseconds each. A thread with a request
/// waits for the sections that were requested before its own, and for sections of threads that take the lock without a
/// request. The second kind is rare, because a holder serves the requests before it releases the lock.
///
/// If the holder is preempted inside its section, the others also wait until the system runs the holder again. On a
/// busy machine that takes a time slice of a few milliseconds. A waiting thread yields, and after about a millisecond
/// sleeps for 50 µs between checks ([`Backoff`]). Short sections make preemption inside them rare. A thread that is
/// given the lock while it is preempted or asleep delays the others in the same way.
///
/// # Layout
///
/// The value follows the lock's byte, so that its first fields arrive with the lock's cache line. The list of requests
/// comes after the value, so that leaving a request does not take that line away from the holder.
#[derive(Debug)]
#[repr(C)]
pub struct BriefLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
    /// The most recent request, which links to the earlier ones; null if the list is empty.
    requests: AtomicPtr<Request<T>>,
}

// SAFETY: the lock lets only one thread at a time access the value, so `T` must be `Send`. Everything that moves
// between threads with a request is `Send`: see `run`.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for BriefLock<T> {}
// SAFETY: as above. While a lock is being moved, no thread uses it, so there are no requests.
#[allow(unsafe_code)]
unsafe impl<T: Send> Send for BriefLock<T> {}

/// A held lock. The guard must stay on its thread.
pub struct BriefGuard<'l, T> {
    lock: &'l BriefLock<T>,
    /// The requests that this guard took over together with the lock, in order.
    left: *const Request<T>,
    on_this_thread: PhantomData<*mut T>,
}

/// A waiting thread's request. It stays on that thread's stack until its state says that it has been served.
///
/// INV-13 (requests stay): while a request is in the lock's list and its state is `WAITS`, it stays in place. During
/// that time, only the holder of the lock touches `next` and the contents of the `Errand` whose section `run` runs.
#[derive(Debug)]
#[repr(C)]
struct Request<T> {
    /// `WAITS`, `SERVED` or `HOLDS`.
    state: AtomicU32,
    /// The previous request, or the following one once a holder has taken the list.
    next: UnsafeCell<*const Self>,
    /// Runs the request's section, in which case the request is the first field of an `Errand`. `None` if the thread
    /// wants the lock for itself.
    run: Option<Run<T>>,
}

/// SAFETY, for the caller: the request is the first field of an `Errand` with this section. It has not been served yet,
/// and its thread waits until it is. The caller holds the lock that guards the `T`.
type Run<T> = unsafe fn(*const Request<T>, &mut T);

impl<T> Request<T> {
    const WAITS: u32 = 0;
    /// The section was run.
    const SERVED: u32 = 1;
    /// The thread has the lock.
    const HOLDS: u32 = 2;

    fn new(run: Option<Run<T>>) -> Self {
        Self { state: AtomicU32::new(Self::WAITS), next: UnsafeCell::new(ptr::null()), run }
    }
}

/// Lets a model detect accesses to a request that is gone: any access by the holder that is not ordered before this
/// drop is a race.
#[cfg(loom)]
impl<T> Drop for Request<T> {
    fn drop(&mut self) {
        self.next.with_mut(|_| ());
    }
}

/// A section that is waiting to be run, and its outcome. Each errand has its own cache lines.
#[repr(C, align(64))]
struct Errand<T, F, R> {
    request: Request<T>,
    section: UnsafeCell<Option<F>>,
    outcome: UnsafeCell<Option<Outcome<R>>>,
}

#[allow(unsafe_code)]
impl<T, F: FnOnce(&mut T) -> R, R> Errand<T, F, R> {
    /// Runs the section. Stores a panic, which is later raised on the section's own thread.
    ///
    /// # Safety
    ///
    /// `request` belongs to an `Errand` of this type, and the caller holds the lock whose list contains the request
    /// (INV-13).
    unsafe fn run(request: *const Request<T>, value: &mut T) {
        // SAFETY: the caller guarantees this. The request is the first field.
        let this = unsafe { &*request.cast::<Self>() };
        // SAFETY: INV-13: only the holder touches the cells.
        if let Some(section) = this.section.with_mut(|section| unsafe { (*section).take() }) {
            let outcome = catch_unwind(AssertUnwindSafe(|| section(value)));
            // SAFETY: as above.
            this.outcome.with_mut(|present| unsafe { *present = Some(outcome) });
        }
    }
}

impl<T> BriefLock<T> {
    /// How many sections a holder runs for other threads before it passes the lock on.
    #[cfg(not(loom))]
    const MOST_SERVED: u32 = 32;
    /// Small, so that models reach it.
    #[cfg(loom)]
    const MOST_SERVED: u32 = 1;
    /// How many times a thread looks at the lock before it leaves a request. Looking first moves fewer cache lines
    /// between two threads that rarely contend.
    #[cfg(not(loom))]
    const LOOKS: u32 = 16;
    #[cfg(loom)]
    const LOOKS: u32 = 0;

    /// Creates an unlocked lock.
    pub fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value), requests: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Waits until the lock is free, and takes it. The guard's drop may run other threads' sections.
    #[inline]
    pub fn lock(&self) -> BriefGuard<'_, T> {
        if self.try_acquire() || self.acquire_soon() { self.guard(ptr::null()) } else { self.lock_later() }
    }

    /// Takes the lock if it is free and no thread is waiting for it. The guard's drop may run sections of other
    /// threads.
    #[inline]
    pub fn try_lock(&self) -> Option<BriefGuard<'_, T>> {
        // Relaxed: these loads are only checks. Unlike an attempt to lock, they do not take cache lines away from the
        // holder.
        let seems_free = self.requests.load(Ordering::Relaxed).is_null() && !self.held.load(Ordering::Relaxed);
        (seems_free && self.try_acquire()).then(|| self.guard(ptr::null()))
    }

    /// Runs a section under the lock, on this thread or on the holder's thread, and returns its result.
    ///
    /// `now` and the result of `later` are the same section, and one of them runs. `now` runs immediately, on this
    /// thread, so the compiler can inline it. `later` may do in advance what `now` does under the lock. The section
    /// must not depend on the thread that runs it.
    ///
    /// # Panics
    ///
    /// Panics if the section panics, even if another thread runs it.
    #[inline(always)]
    pub fn run<R: Send, F: FnOnce(&mut T) -> R + Send>(
        &self,
        now: impl FnOnce(&mut T) -> R,
        later: impl FnOnce() -> F,
    ) -> R {
        if self.try_acquire() || self.acquire_soon() {
            now(&mut *self.guard(ptr::null()))
        } else {
            self.run_later(later())
        }
    }

    /// Waits for the lock for about as long as one or two sections take, unless other threads have left requests.
    #[cold]
    #[inline(never)]
    fn acquire_soon(&self) -> bool {
        for _ in 0..Self::LOOKS {
            // Relaxed here and below: these loads are only checks. Unlike an attempt to lock, they do not take the
            // cache line away from the holder.
            if !self.requests.load(Ordering::Relaxed).is_null() {
                return false;
            }
            spin_loop();
            if !self.held.load(Ordering::Relaxed) && self.try_acquire() {
                return true;
            }
        }
        false
    }

    #[inline]
    fn guard(&self, left: *const Request<T>) -> BriefGuard<'_, T> {
        #[cfg(all(test, not(loom)))]
        census::enter();
        BriefGuard { lock: self, left, on_this_thread: PhantomData }
    }

    #[inline]
    fn try_acquire(&self) -> bool {
        // ORD: Acquire; pairs with the Release in `release`; makes the last holder's changes visible.
        let order = unless_mutant("brief_lock_acquires_nothing", Ordering::Acquire);
        self.held.compare_exchange(false, true, order, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn release(&self) {
        // ORD: Release; pairs with the Acquire in `try_acquire`; publishes the changes made under the lock. This is a
        // plain store, because an exchange would wait until the section's writes have reached their cache lines. That
        // wait costs 2 to 3 % of a saturated pool's throughput.
        self.held.store(false, unless_mutant("brief_lock_releases_nothing", Ordering::Release));
        made_progress();
    }

    #[cold]
    #[inline(never)]
    #[allow(unsafe_code)]
    fn lock_later(&self) -> BriefGuard<'_, T> {
        let request = Request::new(None);
        // SAFETY: INV-13: the request stays until this returns.
        unsafe { self.wait(&raw const request) };
        self.take_over(&request)
    }

    #[cold]
    #[inline(never)]
    #[allow(unsafe_code)]
    fn run_later<R: Send, F: FnOnce(&mut T) -> R + Send>(&self, section: F) -> R {
        let errand = Errand {
            request: Request::new(Some(Errand::<T, F, R>::run)),
            section: UnsafeCell::new(Some(section)),
            outcome: UnsafeCell::new(None),
        };
        // SAFETY: INV-13: the `Errand` stays until this returns.
        if unsafe { self.wait((&raw const errand).cast()) } {
            let mut guard = self.take_over(&errand.request);
            // SAFETY: INV-13: this thread holds the lock, and the section was not run.
            let section = errand.section.with_mut(|section| unsafe { (*section).take() });
            return section.expect("BUG: a section was run, and its thread has the lock")(&mut *guard);
        }
        // SAFETY: INV-13: the section was run, so the `Errand` belongs to this thread again.
        let outcome = errand.outcome.with_mut(|outcome| unsafe { (*outcome).take() });
        outcome.expect("BUG: a section was served but not run").unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Leaves a request, and waits until it is served. Returns whether this thread has the lock now.
    ///
    /// # Safety
    ///
    /// `new` points to a new request of this thread, and to its `Errand` if it has one. It stays in place until this
    /// call returns.
    #[allow(unsafe_code)]
    unsafe fn wait(&self, new: *const Request<T>) -> bool {
        // SAFETY: the caller guarantees this.
        let request = unsafe { &*new };
        // Relaxed: the new request only points to the earlier requests. The holder acquires them.
        let mut before = self.requests.load(Ordering::Relaxed);
        loop {
            // SAFETY: INV-13: the request is not in the list yet.
            request.next.with_mut(|next| unsafe { *next = before });
            // ORD: Release; pairs with the Acquire in `take_requests`; publishes the request. Later requests continue
            // the release sequence.
            let order = unless_mutant("brief_lock_request_publishes_nothing", Ordering::Release);
            match self.requests.compare_exchange_weak(before, new.cast_mut(), order, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        let mut backoff = Backoff::new();
        loop {
            // ORD: Acquire; pairs with the Release in `serve`; makes the outcome, or everything that the lock guards,
            // visible.
            match request.state.load(unless_mutant("brief_lock_served_acquires_nothing", Ordering::Acquire)) {
                Request::<T>::SERVED => return false,
                Request::<T>::HOLDS => return true,
                _ => {}
            }
            // Normally, only the thread that made the first request watches the lock: if the last holder missed that
            // request, it also missed all later requests. Other threads watch the lock only if that thread seems to
            // have been preempted. Relaxed: only a check. Unlike an attempt to lock, it does not take the cache line
            // away from the holder.
            //
            // A holder releases the lock only after it has served every request that it took. So if this attempt
            // succeeds, the request is in the list and is served here, or it has been run since the check above. This
            // thread cannot have been given the lock, because the lock would then be held.
            if (before.is_null() || backoff.is_long()) && !self.held.load(Ordering::Relaxed) && self.try_acquire() {
                self.serve(ptr::null());
            } else {
                backoff.pause();
            }
        }
    }

    /// Returns the guard for a lock that was given to the thread that made this request.
    #[allow(unsafe_code)]
    fn take_over(&self, request: &Request<T>) -> BriefGuard<'_, T> {
        // SAFETY: INV-13: this thread holds the lock.
        self.guard(request.next.with(|next| unsafe { *next }))
    }

    /// Serves the requests in `left`, then any requests that have arrived since, and then releases the lock or gives it
    /// to another thread. Called by the holder, whose borrow of the lock outlives the call; a thread that was served
    /// may have dropped its own borrow.
    #[allow(unsafe_code)]
    fn serve(&self, mut left: *const Request<T>) {
        let mut served = 0;
        loop {
            if left.is_null() {
                left = self.take_requests();
            }
            // SAFETY: INV-13: the request waits, and this thread holds the lock.
            let Some(request) = (unsafe { left.as_ref() }) else { return self.release() };
            let this = left;
            let run = request.run.filter(|_| served < Self::MOST_SERVED);
            let state = match run {
                Some(run) => {
                    // Read first, because the request may be gone once it is served. SAFETY: INV-13: as above.
                    left = request.next.with(|next| unsafe { *next });
                    // SAFETY: `run` belongs to the request. The value belongs to this thread, which holds the lock.
                    self.value.with_mut(|value| unsafe { run(this, &mut *value) });
                    Request::<T>::SERVED
                }
                None => Request::<T>::HOLDS,
            };
            // ORD: Release; pairs with the Acquire in `wait`; publishes the outcome, and the changes made under the
            // lock. The request may be gone from here on.
            request.state.store(state, unless_mutant("brief_lock_serves_unseen", Ordering::Release));
            if run.is_none() {
                return;
            }
            served += 1;
        }
    }

    /// Takes all requests, and returns the first. Called by the holder.
    #[allow(unsafe_code)]
    fn take_requests(&self) -> *const Request<T> {
        let mut first = ptr::null();
        // Relaxed: only a check, which does not take the cache line from other cores while there is nothing to take.
        if self.requests.load(Ordering::Relaxed).is_null() {
            return first;
        }
        // ORD: Acquire; pairs with the Release in `wait`; makes all requests visible.
        let order = unless_mutant("brief_lock_takes_unseen_requests", Ordering::Acquire);
        let mut last: *const Request<T> = self.requests.swap(ptr::null_mut(), order);
        // SAFETY: INV-13: the requests wait, and this thread holds the lock.
        while let Some(request) = unsafe { last.as_ref() } {
            // SAFETY: as above.
            let before = request.next.with_mut(|next| unsafe { ptr::replace(next, first) });
            (first, last) = (last, before);
        }
        first
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
        // Relaxed: only a check. If it misses a new request, that request's thread takes the lock.
        if self.left.is_null() && self.lock.requests.load(Ordering::Relaxed).is_null() {
            self.lock.release();
        } else {
            self.release_to_others();
        }
    }
}

impl<T> BriefGuard<'_, T> {
    #[cold]
    #[inline(never)]
    fn release_to_others(&mut self) {
        self.lock.serve(self.left);
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
        let section = |both: &mut [u64; 2]| {
            both[0] += 1;
            assert_eq!(both[0], both[1] + 1, "two threads hold the lock");
            both[1] += 1;
        };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for n in 0..EACH {
                        match n % 4 {
                            0 => section(&mut lock.lock()),
                            _ => lock.run(section, || section),
                        }
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), [THREADS * EACH; 2]);
    }

    /// Starts a thread that runs `section`, and returns once that thread's request is the last in the list. The caller
    /// holds the lock.
    fn leave_request<'s, T: Send + 's, R: Send + 's>(
        scope: &'s std::thread::Scope<'s, '_>,
        lock: &'s BriefLock<T>,
        section: impl FnOnce(&mut T) -> R + Send + 's,
    ) -> std::thread::ScopedJoinHandle<'s, R> {
        let last = lock.requests.load(Ordering::Relaxed);
        let thread = scope.spawn(|| lock.run(|_| unreachable!("the lock is held"), || section));
        while lock.requests.load(Ordering::Relaxed) == last {
            std::thread::yield_now();
        }
        thread
    }

    #[test]
    fn requests_are_served_in_order_beyond_the_turn_of_one_holder() {
        let number = 2 * BriefLock::<Vec<u32>>::MOST_SERVED + 3;
        let lock = BriefLock::new(Vec::new());
        std::thread::scope(|scope| {
            let held = lock.lock();
            for n in 0..number {
                leave_request(scope, &lock, move |served: &mut Vec<_>| served.push((n, std::thread::current().id())));
            }
            drop(held);
        });
        let served = lock.lock();
        assert!(served.iter().map(|(n, _)| *n).eq(0..number));
        let by_the_first = served.iter().filter(|(_, by)| *by == std::thread::current().id()).count();
        assert_eq!(by_the_first, BriefLock::<Vec<u32>>::MOST_SERVED as usize);
    }

    #[test]
    fn section_that_panics_on_the_holders_thread_panics_on_its_own() {
        let lock = BriefLock::new(0);
        std::thread::scope(|scope| {
            let held = lock.lock();
            let panics = leave_request(scope, &lock, |_| panic!("expected"));
            let runs = leave_request(scope, &lock, |value: &mut i32| std::mem::replace(value, 7));
            drop(held);
            let panic = panics.join().map(|()| "no panic").unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"expected"));
            assert_eq!(runs.join().unwrap(), 0);
        });
        assert_eq!(*lock.lock(), 7);
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
