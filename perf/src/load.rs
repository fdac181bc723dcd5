//! Tasks that run operations one after the other, and what that costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::Failure;
use crate::observer::Observer;
use crate::subjects::Subject;

/// The phases of a load. They follow one another.
const WARMING_UP: u8 = 0;
const MEASURING: u8 = 1;
const STOPPING: u8 = 2;

/// What a load came to.
#[derive(Debug)]
pub struct Outcome {
    /// How long each operation took that ended during the measurement, in nanoseconds, in no order.
    pub latencies: Vec<u64>,
    /// How long the measurement took.
    pub elapsed: Duration,
    /// The CPU time of this process meanwhile, in user space and in the kernel.
    pub cpu: Duration,
    /// How many connections the server accepted meanwhile.
    pub opened: i64,
}

/// The same runtime for all subjects.
pub fn runtime(workers: usize) -> Result<Runtime, Failure> {
    Ok(Builder::new_multi_thread().worker_threads(workers).enable_all().build()?)
}

/// How often the load warms up again at most because connections were still being opened.
const WARM_UPS: u32 = 20;

/// Has `tasks` tasks run operations, and measures for as long as `interval` once the load has warmed up: once no
/// connection was opened for as long as `warm_up`. The calling thread must not be one of the runtime's.
///
/// The tasks go on all the while, so that the measurement begins and ends amid full load. An operation counts if it ends
/// within.
pub fn measure<S: Subject>(
    runtime: &Runtime,
    subject: &Arc<S>,
    server: &str,
    tasks: u32,
    (warm_up, interval): (Duration, Duration),
) -> Result<Outcome, Failure> {
    let mut observer = runtime.block_on(Observer::connect(server))?;
    let phase = Arc::new(AtomicU8::new(WARMING_UP));
    let running: Vec<_> =
        (0..tasks).map(|_| runtime.spawn(ping_until_stopped(subject.clone(), phase.clone()))).collect();
    let mut before = runtime.block_on(observer.connections())?;
    for _ in 0..WARM_UPS {
        std::thread::sleep(warm_up);
        let now = runtime.block_on(observer.connections())?;
        if std::mem::replace(&mut before, now).created == now.created {
            break;
        }
    }
    let (began, cpu_before) = (Instant::now(), cpu_time()?);
    // Relaxed, here and below: an operation more or less does not matter.
    phase.store(MEASURING, Ordering::Relaxed);
    std::thread::sleep(interval);
    phase.store(STOPPING, Ordering::Relaxed);
    let (elapsed, cpu) = (began.elapsed(), cpu_time()?.saturating_sub(cpu_before));

    let latencies = runtime.block_on(join(running))?.concat();
    let opened = runtime.block_on(observer.connections())?.created - before.created;
    Ok(Outcome { latencies, elapsed, cpu, opened })
}

/// Has `tasks` tasks run `each` operations, without warming up.
pub fn run<S: Subject>(runtime: &Runtime, subject: &Arc<S>, tasks: u32, each: u64) -> Result<(), Failure> {
    let ping = |subject: Arc<S>| async move {
        for _ in 0..each {
            subject.ping().await?;
        }
        Ok(())
    };
    let running = (0..tasks).map(|_| runtime.spawn(ping(subject.clone()))).collect();
    runtime.block_on(join(running)).map(drop)
}

async fn ping_until_stopped<S: Subject>(subject: Arc<S>, phase: Arc<AtomicU8>) -> Result<Vec<u64>, Failure> {
    let mut latencies = Vec::new();
    let mut began = Instant::now();
    loop {
        subject.ping().await?;
        let ended = Instant::now();
        match phase.load(Ordering::Relaxed) {
            WARMING_UP => {}
            MEASURING => latencies.push(u64::try_from((ended - began).as_nanos()).unwrap_or(u64::MAX)),
            _ => return Ok(latencies),
        }
        began = ended;
    }
}

/// What all tasks return, in their order, or the first failure.
pub async fn join<T>(tasks: Vec<JoinHandle<Result<T, Failure>>>) -> Result<Vec<T>, Failure> {
    let mut returned = Vec::with_capacity(tasks.len());
    for task in tasks {
        returned.push(task.await??);
    }
    Ok(returned)
}

/// The CPU time of this process so far, to the nanosecond.
pub fn cpu_time() -> Result<Duration, Failure> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// The share of this process's CPU time so far that was spent in user space. The kernel estimates it.
pub fn user_share() -> Result<f64, Failure> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e6 + time.tv_usec() as f64;
    let (user, system) = (micros(usage.user_time()), micros(usage.system_time()));
    Ok(user / (user + system).max(1.0))
}
