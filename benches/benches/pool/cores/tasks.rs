//! The cases' tasks.

use std::future::Future;
use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crossbeam::queue::ArrayQueue;
use tokio::runtime::Runtime;
use tokio::task::yield_now;

use super::machine::Machine;
use crate::load::{self, LOADS, Length, Load, MEASURE, STOP, WARM_UP};
use crate::micro::Gate;
use crate::subjects::{Queue, Subject};

/// How many operations a task performs between checks of the phase.
const HANDFUL: usize = 16;

/// One task on each worker checks connections out of a pool of 100 and back in.
pub fn hit<S: Subject>(machine: &Machine, cores: usize, length: Length) -> f64 {
    const SIZE: usize = 100;
    let runtime = machine.runtime(cores);
    let subject = Arc::new(runtime.block_on(S::open(SIZE)));
    runtime.block_on(subject.warm(SIZE));
    let phase = Arc::new(AtomicU8::new(WARM_UP));
    one_on_each_worker(&runtime, cores, &phase, length, |_| {
        let (subject, phase) = (Arc::clone(&subject), Arc::clone(&phase));
        async move {
            let mut counted = 0;
            loop {
                // ORD: Relaxed; a phase publishes nothing, and a few more or fewer operations do not matter.
                let now = phase.load(Ordering::Relaxed);
                if now == STOP {
                    return counted;
                }
                for _ in 0..HANDFUL {
                    drop(black_box(subject.check_out().await));
                }
                counted += if now == MEASURE { HANDFUL as u64 } else { 0 };
            }
        }
    })
}

/// One task on each worker takes connections and hands them to the next worker's task, which returns them to the pool.
///
/// Connections are handed on in batches to keep the cost of handing them on low. A batch is a vector that circulates
/// among the tasks. There are as many vectors as tasks, so no mailbox overflows, and each task uses at most 16 of the
/// 100 connections.
pub fn elsewhere<S: Subject>(machine: &Machine, cores: usize, length: Length) -> f64 {
    type Mailbox<S> = ArrayQueue<Vec<<S as Subject>::Guard<'static>>>;

    let runtime = machine.runtime(cores);
    // A guard that moves to another task cannot borrow from the task that created it, so the pool is leaked. The pool
    // is small.
    let subject: &'static S = Box::leak(Box::new(runtime.block_on(S::open(100 * cores))));
    runtime.block_on(subject.warm(100 * cores));
    let mailboxes: Arc<[Mailbox<S>]> = (0..cores).map(|_| ArrayQueue::new(cores)).collect();
    let phase = Arc::new(AtomicU8::new(WARM_UP));
    let nanos = one_on_each_worker(&runtime, cores, &phase, length, |number| {
        let (mailboxes, phase) = (Arc::clone(&mailboxes), Arc::clone(&phase));
        async move {
            let (own, next) = (&mailboxes[number], &mailboxes[(number + 1) % cores]);
            let (mut counted, mut handful) = (0, Vec::with_capacity(HANDFUL));
            loop {
                // ORD: Relaxed, as in `hit`.
                let now = phase.load(Ordering::Relaxed);
                if now == STOP {
                    return counted;
                }
                for _ in 0..HANDFUL {
                    handful.push(subject.check_out().await);
                }
                assert!(next.push(handful).is_ok(), "BUG: there are more handfuls than tasks");
                let Some(others) = received(own, &phase).await else { return counted };
                handful = others;
                handful.clear();
                counted += if now == MEASURE { HANDFUL as u64 } else { 0 };
            }
        }
    });
    // Some pools need a runtime when the connections left in the mailboxes are returned.
    let _context = runtime.enter();
    drop(mailboxes);
    nanos
}

/// Waits for a message, at most until the last phase begins. It spins for a while, because most messages arrive soon,
/// and then yields to the worker's other tasks.
async fn received<M>(mailbox: &ArrayQueue<M>, phase: &AtomicU8) -> Option<M> {
    const SPINS: usize = 100;
    loop {
        for _ in 0..SPINS {
            if let Some(message) = mailbox.pop() {
                return Some(message);
            }
            spin_loop();
        }
        // ORD: Relaxed, as in `hit`.
        if phase.load(Ordering::Relaxed) == STOP {
            return None;
        }
        yield_now().await;
    }
}

/// Runs 64 tasks for each worker, each of which holds a connection across a yield. No task waits.
pub fn yields<S: Subject>(machine: &Machine, cores: usize, length: Length) -> f64 {
    let load = Load { name: "yield", tasks: 64 * cores, size: 100 * cores, workers: cores };
    load::throughput_on::<S>(machine.runtime(cores), load, length).nanos_per_op
}

/// Runs a saturated case on this many cores.
pub fn saturated<S: Queue, const LOAD: usize>(machine: &Machine, cores: usize, length: Length) -> f64 {
    load::throughput_on::<S>(machine.runtime(cores), LOADS[LOAD], length).nanos_per_op
}

/// Measures the runtime's share of the time in a saturated case.
pub fn saturated_floor<const LOAD: usize>(machine: &Machine, cores: usize, length: Length) -> f64 {
    load::floor_on(machine.runtime(cores), LOADS[LOAD], length).nanos_per_op
}

/// Runs a task on each worker through the phases. Returns the nanoseconds per counted operation.
fn one_on_each_worker<T>(
    runtime: &Runtime,
    workers: usize,
    phase: &AtomicU8,
    length: Length,
    task: impl Fn(usize) -> T,
) -> f64
where
    T: Future<Output = u64> + Send + 'static,
{
    let gate = Arc::new(Gate::new(workers));
    let tasks: Vec<_> = (0..workers)
        .map(|number| {
            let (task, passed) = (task(number), Arc::clone(&gate));
            let handle = runtime.spawn(async move {
                passed.pass();
                task.await
            });
            gate.wait_for(number + 1);
            handle
        })
        .collect();
    let measured = load::measure(phase, length);
    let operations: u64 = runtime.block_on(async {
        let mut sum = 0;
        for task in tasks {
            sum += task.await.expect("a task panicked");
        }
        sum
    });
    measured.as_nanos() as f64 / operations as f64
}
