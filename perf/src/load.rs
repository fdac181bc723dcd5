//! Tasks that run one operation after another, and their cost.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::Failure;
use crate::observer::Observer;
use crate::subjects::Subject;

/// The result of a turn.
#[derive(Debug)]
pub struct Outcome {
    /// The durations of all operations that completed during the measurement, in nanoseconds, in no particular order.
    pub latencies: Vec<u64>,
    /// The duration of the measurement.
    pub elapsed: Duration,
    /// The CPU time of this process during the measurement, in user space and in the kernel.
    pub cpu: Duration,
    /// The number of connections that the server accepted during the turn.
    pub opened: i64,
    /// The server's CPU time per command in seconds, if the server reports it.
    pub server_cpu: Option<f64>,
}

/// Builds the runtime, which is the same for all subjects.
pub fn runtime(workers: usize) -> Result<Runtime, Failure> {
    Ok(Builder::new_multi_thread().worker_threads(workers).enable_all().build()?)
}

/// The maximum number of warm-up intervals if connections are still being opened.
const WARM_UPS: u32 = 20;

/// Tasks that run one operation after another while it is their turn, and rest between turns.
pub struct Load<'r> {
    runtime: &'r Runtime,
    observer: Observer,
    gate: Arc<Gate>,
    running: Vec<JoinHandle<Result<(), Failure>>>,
}

impl<'r> Load<'r> {
    /// Starts `tasks` tasks, which rest until their first turn. A thread that calls this or the methods below must not
    /// belong to the runtime.
    pub fn prepare<S: Subject>(
        runtime: &'r Runtime,
        subject: &Arc<S>,
        server: &str,
        tasks: u32,
    ) -> Result<Self, Failure> {
        let observer = runtime.block_on(Observer::connect(server))?;
        let gate = Arc::new(Gate::new(tasks));
        let running = (0..tasks).map(|_| runtime.spawn(take_part(subject.clone(), gate.clone()))).collect();
        Ok(Self { runtime, observer, gate, running })
    }

    /// Runs the load for at least `interval`, and until no connection has been opened for that long.
    pub fn warm_up(&mut self, interval: Duration) -> Result<(), Failure> {
        self.resume()?;
        let mut before = self.runtime.block_on(self.observer.connections())?;
        for _ in 0..WARM_UPS {
            std::thread::sleep(interval);
            let now = self.runtime.block_on(self.observer.connections())?;
            if mem::replace(&mut before, now).created == now.created {
                break;
            }
        }
        // The tasks finish their current operations.
        self.gate.set(Phase::Resting);
        self.until_all(|gate| &gate.resting)
    }

    /// Measures for `interval` under full load: the measurement starts once each task has completed an operation, and
    /// only operations that complete within it count.
    pub fn turn(&mut self, interval: Duration) -> Result<Outcome, Failure> {
        let before = self.runtime.block_on(self.observer.counts())?;
        self.resume()?;
        let (began, cpu_before) = (Instant::now(), cpu_time()?);
        self.gate.set(Phase::Measuring);
        std::thread::sleep(interval);
        self.gate.set(Phase::Resting);
        let (elapsed, cpu) = (began.elapsed(), cpu_time()?.saturating_sub(cpu_before));
        self.until_all(|gate| &gate.resting)?;
        let after = self.runtime.block_on(self.observer.counts())?;
        let (opened, server_cpu) = (after.connections.created - before.connections.created, after.cpu_since(before));
        let latencies = mem::take(&mut *self.gate.latencies.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(Outcome { latencies, elapsed, cpu, opened, server_cpu })
    }

    /// Stops the tasks.
    pub fn end(self) -> Result<(), Failure> {
        self.gate.set(Phase::Over);
        self.runtime.block_on(join(self.running)).map(drop)
    }

    /// Lets the tasks run, and returns once each has completed an operation.
    fn resume(&mut self) -> Result<(), Failure> {
        self.gate.moving.store(0, Ordering::Relaxed);
        self.gate.resting.store(0, Ordering::Relaxed);
        self.gate.set(Phase::Running);
        self.until_all(|gate| &gate.moving)
    }

    fn until_all(&mut self, counted: fn(&Gate) -> &AtomicU32) -> Result<(), Failure> {
        if self.runtime.block_on(self.gate.until_all(counted(&self.gate))) {
            return Ok(());
        }
        self.gate.set(Phase::Over);
        let ended = self.runtime.block_on(join(mem::take(&mut self.running)));
        Err(ended.err().unwrap_or_else(|| "a task failed without an error".into()))
    }
}

/// What the tasks should be doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    /// Do nothing: another subject has the next turn.
    Resting,
    /// Run operations that do not count.
    Running,
    /// Run operations and record how long they take.
    Measuring,
    /// Return.
    Over,
}

/// Tells a load's tasks which phase it is in, and collects their reports.
struct Gate {
    tasks: u32,
    /// The phase, read by each task after each operation.
    phase: AtomicU8,
    /// The phase, for tasks that are waiting for the next phase.
    announced: watch::Sender<Phase>,
    /// How many tasks have completed an operation since the load was resumed (`moving`), and how many have stopped
    /// since (`resting`).
    moving: AtomicU32,
    resting: AtomicU32,
    has_failed: AtomicBool,
    all_counted: Notify,
    /// The durations of the operations measured by tasks that have stopped.
    latencies: Mutex<Vec<u64>>,
}

impl Gate {
    fn new(tasks: u32) -> Self {
        Self {
            tasks,
            phase: AtomicU8::new(Phase::Resting as u8),
            announced: watch::Sender::new(Phase::Resting),
            moving: AtomicU32::new(0),
            resting: AtomicU32::new(0),
            has_failed: AtomicBool::new(false),
            all_counted: Notify::new(),
            latencies: Mutex::new(Vec::new()),
        }
    }

    // Relaxed, here and below: one operation more or less does not matter, and waiting tasks are notified separately.
    fn set(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.announced.send_replace(phase);
    }

    fn is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Relaxed) == phase as u8
    }

    fn count(&self, counted: &AtomicU32) {
        if counted.fetch_add(1, Ordering::Relaxed) + 1 == self.tasks {
            self.all_counted.notify_one();
        }
    }

    /// Waits until all tasks are counted and returns true, or returns false once a task has failed.
    async fn until_all(&self, counted: &AtomicU32) -> bool {
        while counted.load(Ordering::Relaxed) < self.tasks {
            if self.has_failed.load(Ordering::Relaxed) {
                return false;
            }
            self.all_counted.notified().await;
        }
        true
    }
}

async fn take_part<S: Subject>(subject: Arc<S>, gate: Arc<Gate>) -> Result<(), Failure> {
    let outcome = run_in_turns(&*subject, &gate).await;
    if outcome.is_err() {
        gate.has_failed.store(true, Ordering::Relaxed);
        gate.all_counted.notify_one();
    }
    outcome
}

async fn run_in_turns<S: Subject>(subject: &S, gate: &Gate) -> Result<(), Failure> {
    let mut announced = gate.announced.subscribe();
    let mut latencies = Vec::new();
    while *announced.wait_for(|phase| *phase != Phase::Resting).await? != Phase::Over {
        let mut began = Instant::now();
        let mut is_first = true;
        loop {
            subject.run().await?;
            let ended = Instant::now();
            if gate.is(Phase::Measuring) {
                latencies.push(u64::try_from((ended - began).as_nanos()).unwrap_or(u64::MAX));
            } else if !gate.is(Phase::Running) {
                break;
            }
            if mem::take(&mut is_first) {
                gate.count(&gate.moving);
            }
            began = ended;
        }
        gate.latencies.lock().unwrap_or_else(PoisonError::into_inner).append(&mut latencies);
        gate.count(&gate.resting);
    }
    Ok(())
}

/// Runs `each` operations in each of `tasks` tasks, without a warm-up.
pub fn run<S: Subject>(runtime: &Runtime, subject: &Arc<S>, tasks: u32, each: u64) -> Result<(), Failure> {
    let ping = |subject: Arc<S>| async move {
        for _ in 0..each {
            subject.run().await?;
        }
        Ok(())
    };
    let running = (0..tasks).map(|_| runtime.spawn(ping(subject.clone()))).collect();
    runtime.block_on(join(running)).map(drop)
}

/// Returns the results of all tasks in order, or the first failure.
pub async fn join<T>(tasks: Vec<JoinHandle<Result<T, Failure>>>) -> Result<Vec<T>, Failure> {
    let mut returned = Vec::with_capacity(tasks.len());
    for task in tasks {
        returned.push(task.await??);
    }
    Ok(returned)
}

/// Returns the CPU time of this process so far, with nanosecond resolution.
pub fn cpu_time() -> Result<Duration, Failure> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// Returns the share of this process's CPU time so far that was spent in user space. The kernel estimates it.
pub fn user_share() -> Result<f64, Failure> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 * 1e6 + time.tv_usec() as f64;
    let (user, system) = (micros(usage.user_time()), micros(usage.system_time()));
    Ok(user / (user + system).max(1.0))
}
