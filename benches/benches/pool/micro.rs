//! The cases that time an operation: hits, opening and closing, clearing.
//!
//! Each case provides a [`Run`]: a fresh pool on a fresh runtime, and a closure that times a number of operations on
//! it. criterion and the interleaved rounds use the same closures.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Barrier;
use tokio::task::{JoinHandle, yield_now};

use crate::subjects::{Clear, Create, Subject};

/// Performs an operation this many times, and returns the time, not counting preparations.
pub type Run = Box<dyn FnMut(u64) -> Duration>;

/// The size of the pools in the hit cases.
const SIZE: usize = 100;
const WORKERS: usize = 2;

/// One task repeatedly checks out and in, on a current-thread runtime.
///
/// The pool holds 100 available connections, so a check-out never waits or opens a connection. This is the cost of a
/// pool in a single-threaded program, with the pool's memory in the cache and without contention.
pub fn hit_one_task<S: Subject>() -> Run {
    let bed = Bed::<S>::warm(current_thread(), SIZE);
    Box::new(move |pairs| {
        bed.runtime.block_on(async {
            let start = Instant::now();
            for _ in 0..pairs {
                drop(black_box(bed.subject.check_out().await));
            }
            start.elapsed()
        })
    })
}

/// Two tasks check out and in, each on its own thread, on one pool of 100 open connections.
///
/// The check-out and check-in pairs of both tasks are timed by the wall clock, from the first start to the last finish.
/// A pool that scales takes half as long per pair as with one task. A pool whose threads write to a shared cache line
/// takes longer. The tasks take pairs from a common counter, a thousand at a time, so that both finish together. With
/// fixed shares, a disturbance on one core would leave its task running alone at the end.
///
/// Each task is guaranteed a separate worker; see [`Gate`].
pub fn hit_two_tasks<S: Subject>() -> Run {
    const HANDFUL: u64 = 1_000;
    let bed = Bed::<S>::warm(two_workers(), SIZE);
    Box::new(move |pairs| {
        let taken = Arc::new(AtomicU64::new(0));
        let gate = Arc::new(Gate::new(WORKERS));
        let mut tasks = Vec::with_capacity(WORKERS);
        for spawned in 1..=WORKERS {
            let (subject, passed, taken) = (Arc::clone(&bed.subject), Arc::clone(&gate), Arc::clone(&taken));
            tasks.push(bed.runtime.spawn(async move {
                passed.pass();
                let start = Instant::now();
                loop {
                    // ORD: Relaxed; the counter publishes nothing.
                    let first = taken.fetch_add(HANDFUL, Ordering::Relaxed);
                    if first >= pairs {
                        return (start, Instant::now());
                    }
                    for _ in first..pairs.min(first + HANDFUL) {
                        drop(black_box(subject.check_out().await));
                    }
                }
            }));
            gate.wait_for(spawned);
        }
        bed.span_of(tasks)
    })
}

/// 64 tasks on two workers check out, yield to the other tasks while holding the connection, and check in.
///
/// There are 100 connections, so no task waits. But connections are returned in a different order, and often by another
/// thread. The time includes tokio's `yield_now`, which is the same for every subject.
pub fn yield_64_tasks<S: Subject>() -> Run {
    const TASKS: usize = 64;
    let bed = Bed::<S>::warm(two_workers(), SIZE);
    Box::new(move |pairs| {
        let each = pairs.div_ceil(TASKS as u64);
        let gate = Arc::new(Barrier::new(TASKS));
        let tasks = (0..TASKS)
            .map(|_| {
                let (subject, gate) = (Arc::clone(&bed.subject), Arc::clone(&gate));
                bed.runtime.spawn(async move {
                    gate.wait().await;
                    let start = Instant::now();
                    for _ in 0..each {
                        let connection = subject.check_out().await;
                        yield_now().await;
                        drop(connection);
                    }
                    (start, Instant::now())
                })
            })
            .collect();
        scaled(bed.span_of(tasks), pairs, each * TASKS as u64)
    })
}

/// One task makes an empty pool open a connection, which is then closed instead of checked in.
///
/// This is the cost of the pool's accounting: opening and closing the dummy itself costs next to nothing. Pools differ
/// in how a connection is removed; each implementation of [`Create`] documents how.
pub fn create_and_close<S: Create>() -> Run {
    let bed = Bed::<S>::empty(current_thread(), SIZE);
    Box::new(move |times| {
        bed.runtime.block_on(async {
            let start = Instant::now();
            for _ in 0..times {
                bed.subject.create_and_close().await;
            }
            start.elapsed()
        })
    })
}

/// One call drops 1,000 available connections.
///
/// The measured time is how long the call blocks its caller: in a MongoDB client the caller is the monitor, which holds
/// the topology's lock. A pool that closes the connections later, in the background, is not charged for that here. The
/// time to refill the pool is not measured.
pub fn clear_1000_idle<S: Clear>() -> Run {
    const IDLE: usize = 1_000;
    let bed = Bed::<S>::empty(current_thread(), IDLE);
    // Some subjects start full.
    bed.runtime.block_on(async { bed.subject.clear() });
    Box::new(move |times| {
        bed.runtime.block_on(async {
            let mut taken = Duration::ZERO;
            for _ in 0..times {
                bed.subject.refill(IDLE).await;
                let start = Instant::now();
                bed.subject.clear();
                taken += start.elapsed();
            }
            taken
        })
    })
}

/// Gives each of several tasks a separate worker: each task is already spinning on its worker when the next task is
/// spawned, so the next task can only run on another worker.
pub struct Gate {
    spinning: AtomicUsize,
    expected: usize,
}

impl Gate {
    /// Creates a gate for this many tasks.
    pub fn new(expected: usize) -> Self {
        Self { spinning: AtomicUsize::new(0), expected }
    }

    /// Keeps the calling task's worker busy until all tasks have arrived.
    pub fn pass(&self) {
        // ORD: Relaxed here and below; the gate only counts and publishes nothing.
        self.spinning.fetch_add(1, Ordering::Relaxed);
        while self.spinning.load(Ordering::Relaxed) < self.expected {
            spin_loop();
        }
    }

    /// Waits until this many tasks have arrived. Sleeps while waiting, because the workers may need all cores.
    pub fn wait_for(&self, number: usize) {
        while self.spinning.load(Ordering::Relaxed) < number {
            thread::sleep(Duration::from_micros(20));
        }
    }
}

/// A subject and the runtime that it runs on. The subject is dropped first.
struct Bed<S> {
    subject: Arc<S>,
    runtime: Runtime,
}

impl<S: Subject> Bed<S> {
    fn empty(runtime: Runtime, size: usize) -> Self {
        let subject = Arc::new(runtime.block_on(S::open(size)));
        Self { subject, runtime }
    }

    fn warm(runtime: Runtime, size: usize) -> Self {
        let bed = Self::empty(runtime, size);
        bed.runtime.block_on(bed.subject.warm(size));
        bed
    }

    /// Returns the time from the first start to the last finish.
    fn span_of(&self, tasks: Vec<JoinHandle<(Instant, Instant)>>) -> Duration {
        self.runtime.block_on(async {
            let mut spans = Vec::with_capacity(tasks.len());
            for task in tasks {
                spans.push(task.await.expect("a task panicked"));
            }
            let start = spans.iter().map(|&(start, _)| start).min().expect("there is no task");
            let end = spans.iter().map(|&(_, end)| end).max().expect("there is no task");
            end - start
        })
    }
}

/// Scales the time of `done` operations to `asked` operations. More operations may be done than were asked for, because
/// all tasks perform the same number.
fn scaled(taken: Duration, asked: u64, done: u64) -> Duration {
    taken.mul_f64(asked as f64 / done as f64)
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("the runtime cannot be built")
}

/// Returns the runtime that most cases with more than one thread use.
pub fn two_workers() -> Runtime {
    workers(WORKERS)
}

/// Returns a runtime with this many workers.
pub fn workers(count: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(count).enable_all().build().expect("the runtime cannot be built")
}
