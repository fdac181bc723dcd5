//! The cases that time an operation: hits, opening and closing, clearing.
//!
//! Each case hands out a [`Run`]: a fresh pool on a fresh runtime, and a closure that times a number of operations on it.
//! criterion and the interleaved rounds drive the same closures.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Barrier;
use tokio::task::{JoinHandle, yield_now};

use crate::subjects::{Clear, Create, Subject};

/// Does an operation so many times and returns the time that took, without preparations.
pub type Run = Box<dyn FnMut(u64) -> Duration>;

/// The size of the pools that are hit.
const SIZE: usize = 100;
const WORKERS: usize = 2;

/// One task checks out and in, again and again, on a current-thread runtime.
///
/// The pool holds 100 idle connections, so a check-out never waits and never opens anything: this is what a
/// pool costs a single-threaded program, with its lines in the cache and nobody to contend with.
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

/// Two tasks check out and in, each on a thread of its own, on one pool of 100 warm connections.
///
/// Counted are the pairs of both tasks by the wall clock, from the first start to the last end. A pool that
/// scales takes half the time per pair that it takes one task; one whose threads write a common line takes more.
/// The tasks take the pairs from a common heap, a thousand at a time, so that both end together: with a fixed share for
/// each, a core that somebody else uses for a moment would count twice.
///
/// That each task has a worker to itself is made sure of, not hoped for: the first task spins on its worker before
/// the second is spawned, so that the second can only run on the other.
pub fn hit_two_tasks<S: Subject>() -> Run {
    const HANDFUL: u64 = 1_000;
    let bed = Bed::<S>::warm(two_workers(), SIZE);
    Box::new(move |pairs| {
        let taken = Arc::new(AtomicU64::new(0));
        let spinning = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::with_capacity(WORKERS);
        for spawned in 1..=WORKERS {
            let (subject, gate, taken) = (Arc::clone(&bed.subject), Arc::clone(&spinning), Arc::clone(&taken));
            tasks.push(bed.runtime.spawn(async move {
                // ORD: Relaxed here and below; the gate only counts, nothing is published by it.
                gate.fetch_add(1, Ordering::Relaxed);
                while gate.load(Ordering::Relaxed) < WORKERS {
                    spin_loop();
                }
                let start = Instant::now();
                loop {
                    let first = taken.fetch_add(HANDFUL, Ordering::Relaxed);
                    if first >= pairs {
                        return (start, Instant::now());
                    }
                    for _ in first..pairs.min(first + HANDFUL) {
                        drop(black_box(subject.check_out().await));
                    }
                }
            }));
            // Asleep, since the cores may be no more than the workers, and both are needed there.
            while spinning.load(Ordering::Relaxed) < spawned {
                thread::sleep(Duration::from_micros(20));
            }
        }
        bed.span_of(tasks)
    })
}

/// 64 tasks on two workers check out, yield to the other tasks with the connection in hand, and check in.
///
/// There are 100 connections, so nobody waits; but connections come back in another order than they went, and often on
/// another thread. A `yield_now` of tokio's is part of the time, the same for every subject.
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

/// One task makes an empty pool open a connection, and has it closed instead of checked in.
///
/// This is the price of the pool's accounting: opening and closing the dummy itself costs next to nothing. How a
/// connection is got rid of differs from pool to pool, and is told where each implements [`Create`].
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

/// One call throws away 1,000 idle connections.
///
/// Measured is how long the caller is kept, as in MongoDB the caller is the monitor, which holds the topology's lock.
/// A pool that closes what it threw away later, in the background, is not charged for it here. Filling the pool again is
/// not measured.
pub fn clear_1000_idle<S: Clear>() -> Run {
    const IDLE: usize = 1_000;
    let bed = Bed::<S>::empty(current_thread(), IDLE);
    // Some subjects are born full.
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

/// A subject and the runtime it runs in. The subject goes first.
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

    /// The time from the first start to the last end.
    fn span_of(&self, tasks: Vec<JoinHandle<(Instant, Instant)>>) -> Duration {
        self.runtime.block_on(async {
            let mut spans = Vec::with_capacity(tasks.len());
            for task in tasks {
                spans.push(task.await.expect("the task does not panic"));
            }
            let start = spans.iter().map(|&(start, _)| start).min().expect("there are tasks");
            let end = spans.iter().map(|&(_, end)| end).max().expect("there are tasks");
            end - start
        })
    }
}

/// The time for `asked` operations, if `done` took `taken`: tasks share them evenly, which rounds them up.
fn scaled(taken: Duration, asked: u64, done: u64) -> Duration {
    taken.mul_f64(asked as f64 / done as f64)
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// The runtime of every case with more than one thread.
pub fn two_workers() -> Runtime {
    Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build().expect("a runtime")
}
