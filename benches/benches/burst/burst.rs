//! One burst: check-outs that all wait for the same connection, and how they end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use tokio::runtime::{Builder, Handle};
use wharf_testbed::counting::{peak_of_all, total};

use super::subjects::Subject;
use super::timing::Longest;

/// How the check-outs end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The connection passes from one check-out to the next.
    Served,
    /// All check-outs are dropped, from first to last.
    CancelledInOrder,
    /// All check-outs are dropped, from last to first.
    CancelledInReverse,
    /// Every second check-out is dropped, and then the others are served.
    EverySecondCancelled,
    /// All check-outs are refused in a single step.
    Refused,
}

impl End {
    pub const ALL: [Self; 5] =
        [Self::Served, Self::CancelledInOrder, Self::CancelledInReverse, Self::EverySecondCancelled, Self::Refused];
}

/// The cost of a burst.
pub struct Burst {
    /// The longest first poll of a check-out. A first poll puts the check-out in the queue.
    pub poll: Longest,
    /// The longest step while the burst ends: a check-in with the next waiter's poll, or a cancellation. Refusing the
    /// check-outs is a single step for all of them, and is not timed.
    pub step: Longest,
    /// The peak memory, in bytes above the level at the start. The futures and their wakers are not counted.
    pub peak: usize,
    /// The memory that the pool keeps after the burst, in bytes above the level at the start.
    pub left: usize,
    /// The size of a future.
    pub future: usize,
}

/// Records which waiter was woken last.
struct Bell {
    number: usize,
    last: Arc<AtomicUsize>,
}

/// The value of `Bell::last` when there is no waiter.
const NONE: usize = usize::MAX;

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // Relaxed: the burst's threads are joined before any waiter is woken.
        self.last.store(self.number, Ordering::Relaxed);
    }
}

/// The check-outs in a burst. A finished future keeps its memory until all futures have finished, so that freeing the
/// memory does not affect the measurement.
struct Waiters<F> {
    futures: Vec<Pin<Box<Option<F>>>>,
    wakers: Vec<Waker>,
    woken: Arc<AtomicUsize>,
}

/// Runs a burst: makes check-outs wait, polls them on this number of threads, and then ends them as `end` says.
pub fn run<S: Subject>(waiters: usize, threads: usize, end: End) -> Burst {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("no runtime");
    let _inside = runtime.enter();
    let pool = S::open();
    let Ok(mut held) = runtime.block_on(pool.check_out()) else { panic!("the pool is closed") };
    // Memory that is allocated once, for the very first waiter, is not part of the burst.
    let mut few = Waiters::new(16, || pool.check_out());
    few.begin(1);
    held = few.serve(0, held, &mut Longest::default());
    drop(few);

    let mut burst = Waiters::new(waiters, || pool.check_out());
    let (before, mut step) = (total(), Longest::default());
    let (peak, poll) = peak_of_all(|| {
        let poll = burst.begin(threads);
        match end {
            End::Served => drop(burst.serve(0, held, &mut step)),
            End::CancelledInOrder => {
                (0..waiters).for_each(|number| burst.cancel(number, &mut step));
                drop(held);
            }
            End::CancelledInReverse => {
                (0..waiters).rev().for_each(|number| burst.cancel(number, &mut step));
                drop(held);
            }
            End::EverySecondCancelled => {
                (0..waiters).step_by(2).for_each(|number| burst.cancel(number, &mut step));
                drop(burst.serve(waiters.div_ceil(2), held, &mut step));
            }
            End::Refused => {
                pool.refuse_all();
                (0..waiters).for_each(|number| {
                    let outcome = step.time(|| burst.poll(number));
                    assert!(matches!(outcome, Poll::Ready(Err(_))), "a check-out was not refused");
                });
                drop(held);
            }
        }
        poll
    });
    Burst { poll, step, peak, left: total().saturating_sub(before), future: burst.size() }
}

impl<G: Send, R: Send, F: Future<Output = Result<G, R>> + Send> Waiters<F> {
    fn new(number: usize, check_out: impl Fn() -> F) -> Self {
        let woken = Arc::new(AtomicUsize::new(NONE));
        let waker = |number| Waker::from(Arc::new(Bell { number, last: Arc::clone(&woken) }));
        Self {
            futures: (0..number).map(|_| Box::pin(Some(check_out()))).collect(),
            wakers: (0..number).map(waker).collect(),
            woken,
        }
    }

    fn size(&self) -> usize {
        size_of::<F>()
    }

    /// Polls each check-out once, divided among threads that poll at the same time. Returns the longest poll.
    fn begin(&mut self, threads: usize) -> Longest {
        fn all<F: Future>(futures: &mut [Pin<Box<Option<F>>>], wakers: &[Waker]) -> Longest {
            let mut longest = Longest::default();
            for (future, waker) in futures.iter_mut().zip(wakers) {
                let future = future.as_mut().as_pin_mut().expect("it has just been made");
                let mut context = Context::from_waker(waker);
                assert!(longest.time(|| future.poll(&mut context)).is_pending(), "a connection is available");
            }
            longest
        }

        let part = self.futures.len().div_ceil(threads);
        let parts = self.futures.chunks_mut(part).zip(self.wakers.chunks(part));
        let runtime = &Handle::current();
        thread::scope(|scope| {
            let inside = move |futures, wakers| {
                let _inside = runtime.enter();
                all(futures, wakers)
            };
            let threads: Vec<_> = parts.map(|(futures, wakers)| scope.spawn(move || inside(futures, wakers))).collect();
            let mut longest = Longest::default();
            threads.into_iter().for_each(|thread| longest.include(thread.join().expect("a poll panicked")));
            longest
        })
    }

    /// Passes the connection from one check-out to the next, until all check-outs except the `cancelled` ones have had
    /// it.
    fn serve(&mut self, cancelled: usize, guard: G, longest: &mut Longest) -> G {
        (cancelled..self.futures.len()).fold(guard, |guard, _| {
            let outcome = longest.time(|| {
                drop(guard);
                let next = self.woken.swap(NONE, Ordering::Relaxed);
                assert_ne!(next, NONE, "a check-in woke no waiter");
                self.poll(next)
            });
            let Poll::Ready(Ok(guard)) = outcome else { panic!("the waiter that was woken got no connection") };
            guard
        })
    }

    /// Polls a check-out, and drops it if it is ready.
    fn poll(&mut self, number: usize) -> Poll<F::Output> {
        let future = self.futures[number].as_mut().as_pin_mut().expect("it has not ended");
        let outcome = future.poll(&mut Context::from_waker(&self.wakers[number]));
        if outcome.is_ready() {
            self.futures[number].as_mut().set(None);
        }
        outcome
    }

    fn cancel(&mut self, number: usize, longest: &mut Longest) {
        longest.time(|| self.futures[number].as_mut().set(None));
    }
}
