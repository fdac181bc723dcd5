//! The cost of a burst of check-outs: no poll does the work of other polls, each waiter takes little memory, and the
//! pool frees that memory.

#![cfg(not(loom))]

use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};

use wharf::{CheckOutError, Clear, Connection, Establish, EstablishError, Establishing, Pool, PoolOptions};
use wharf_testbed::counting::{CountingAllocator, allocated, held, peak};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The maximum number of bytes that one step allocates: a segment of the wait list.
const AT_ONCE: usize = 16 * 1024;
/// The maximum number of bytes per waiter, not counting its future. With event-listener, a waiter also has a listener
/// and an event's list, each allocated by that library.
const FOR_EACH: usize = if cfg!(feature = "event-listener-queue") { 256 } else { 128 };
/// The maximum number of bytes that a pool keeps after a burst: a few segments, and with event-listener also the list
/// of each cell's event.
const KEPT: usize = if cfg!(feature = "event-listener-queue") { 128 } else { 64 } * 1024;

struct Numbers;

impl Establish for Numbers {
    type Connection = u64;

    async fn establish(&self, connecting: Establishing) -> Result<u64, EstablishError> {
        Ok(connecting.connection_id())
    }
}

/// How the check-outs of a burst end.
#[derive(Debug, Clone, Copy)]
enum End {
    Served,
    CancelledInOrder,
    CancelledInReverse,
    /// Every second check-out is cancelled, and the others are served.
    EverySecondCancelled,
    Cleared,
}

const ENDS: [End; 5] =
    [End::Served, End::CancelledInOrder, End::CancelledInReverse, End::EverySecondCancelled, End::Cleared];

/// The cost of a burst, in bytes.
#[derive(Debug)]
struct Burst {
    waiters: usize,
    #[expect(dead_code, reason = "a failure shows it")]
    end: End,
    /// The maximum that one step allocated. A step is a poll, a cancellation, or a check-in together with the next
    /// waiter's poll.
    at_once: usize,
    /// The peak memory, not counting the futures.
    peak: usize,
    /// The memory that the pool kept.
    kept: isize,
}

/// The check-outs of a burst. The memory of their futures is freed only when all of them have finished.
struct Waiters<F> {
    futures: Vec<Pin<Box<Option<F>>>>,
    at_once: usize,
}

impl<F: Future<Output = Result<Connection<Numbers>, CheckOutError>>> Waiters<F> {
    fn new(count: usize, check_out: impl Fn() -> F) -> Self {
        Self { futures: (0..count).map(|_| Box::pin(Some(check_out()))).collect(), at_once: 0 }
    }

    fn step<T>(&mut self, step: impl FnOnce(&mut Self) -> T) -> T {
        let (bytes, result) = allocated(|| step(self));
        self.at_once = self.at_once.max(bytes);
        result
    }

    /// Polls a check-out. Drops the check-out if it is ready.
    fn poll(&mut self, number: usize) -> Poll<F::Output> {
        let future = self.futures[number].as_mut().as_pin_mut().unwrap();
        let outcome = future.poll(&mut Context::from_waker(Waker::noop()));
        if outcome.is_ready() {
            self.cancel(number);
        }
        outcome
    }

    fn cancel(&mut self, number: usize) {
        self.futures[number].as_mut().set(None);
    }

    fn end(&mut self, end: End, pool: &Pool<Numbers>, connection: Connection<Numbers>) {
        let count = self.futures.len();
        match end {
            End::Served => self.serve(0..count, connection),
            End::CancelledInOrder => (0..count).for_each(|number| self.step(|waiters| waiters.cancel(number))),
            End::CancelledInReverse => (0..count).rev().for_each(|number| self.step(|waiters| waiters.cancel(number))),
            End::EverySecondCancelled => {
                (0..count).step_by(2).for_each(|number| self.step(|waiters| waiters.cancel(number)));
                self.serve((1..count).step_by(2), connection);
            }
            End::Cleared => {
                pool.clear(Clear::new()).unwrap();
                for number in 0..count {
                    assert!(matches!(self.step(|waiters| waiters.poll(number)), Poll::Ready(Err(_))));
                }
            }
        }
    }

    fn serve(&mut self, numbers: impl Iterator<Item = usize>, mut connection: Connection<Numbers>) {
        for number in numbers {
            let next = self.step(|waiters| {
                drop(connection);
                waiters.poll(number)
            });
            let Poll::Ready(Ok(next)) = next else { panic!("the first waiter in the queue was not served") };
            connection = next;
        }
    }
}

/// Makes two bursts wait for a pool's connection, one after the other.
fn two_bursts(waiters: usize, end: End) -> Burst {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = PoolOptions::default().max_pool_size(1);
        let pool = Pool::builder("mock:27017", Numbers).options(options).build().unwrap();
        pool.ready();
        drop(pool.check_out().await.unwrap());
        let before = held();
        let mut burst = Burst { waiters, end, at_once: 0, peak: 0, kept: 0 };
        for _ in 0..2 {
            let connection = pool.check_out().await.unwrap();
            let mut all = Waiters::new(waiters, || pool.check_out());
            let peak = peak(|| {
                (0..waiters).for_each(|number| assert!(all.step(|all| all.poll(number)).is_pending()));
                all.end(end, &pool, connection);
            });
            burst.at_once = burst.at_once.max(all.at_once);
            burst.peak = burst.peak.max(peak);
            drop(all);
            // If the pool was cleared, its connection was closed. This opens another connection.
            pool.ready();
            drop(pool.check_out().await.unwrap());
        }
        burst.kept = held() - before;
        burst
    })
}

fn bursts() -> &'static [Burst] {
    static BURSTS: LazyLock<Vec<Burst>> = LazyLock::new(|| {
        let sizes = [1_000, 100_000].into_iter();
        sizes
            .flat_map(|waiters| ENDS.map(|end| two_bursts(waiters, end)))
            .inspect(|burst| println!("{burst:?}"))
            .collect()
    });
    &BURSTS
}

#[test]
fn no_step_of_a_burst_allocates_more_than_a_segment() {
    for burst in bursts() {
        assert!(burst.at_once <= AT_ONCE, "{burst:?}");
    }
}

#[test]
fn waiters_of_a_burst_take_bounded_memory() {
    for burst in bursts() {
        assert!(burst.peak <= FOR_EACH * burst.waiters + AT_ONCE, "{burst:?}");
    }
}

#[test]
fn pool_gives_back_the_memory_of_a_burst() {
    for burst in bursts() {
        assert!(burst.kept <= KEPT as isize, "{burst:?}");
    }
}
