//! The tasks that use the pool, and what they measure.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bson::rawdoc;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use wharf::{CheckOutError, CommandError, Endpoint, OperationError, Pool};
use wharf_servers::embedded::{COLLECTION, DATABASE};

use crate::server::DOCUMENTS;

/// One in this many operations is a `find`.
const FIND_EVERY: u32 = 10;
/// How long a task waits after an error, so that an unreachable server is not flooded.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest time that is recorded exactly, in nanoseconds: an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// Running tasks.
pub struct Load {
    tasks: JoinSet<()>,
    stop: Arc<AtomicBool>,
    /// Several, so that threads seldom contend, but fewer than tasks, because histograms are large.
    recorders: Vec<Arc<Mutex<Results>>>,
}

impl Load {
    /// Starts the tasks.
    pub fn start(pool: &Pool<Endpoint>, tasks: u32) -> Self {
        let count = 4 * thread::available_parallelism().map_or(1, usize::from);
        let recorders: Vec<_> = (0..count).map(|_| Arc::new(Mutex::new(Results::new()))).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let mut load = Self { tasks: JoinSet::new(), stop, recorders };
        for (number, recorder) in (0..tasks).zip(load.recorders.iter().cycle()) {
            load.tasks.spawn(work(pool.clone(), number, load.stop.clone(), recorder.clone()));
        }
        load
    }

    /// Returns how many connections have been checked out so far.
    pub fn operations(&self) -> u64 {
        self.recorders.iter().map(|recorder| recorder.lock().unwrap().check_outs.len()).sum()
    }

    /// Tells the tasks to end after their current operation.
    pub fn stop(&self) {
        // Relaxed: the store publishes nothing.
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until all tasks have ended.
    pub async fn finished(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("a task of the load panicked");
        }
    }

    /// Cancels the tasks that are left.
    pub async fn cancel(&mut self) {
        self.tasks.shutdown().await;
    }

    /// Returns the measurements of all tasks.
    pub fn results(&self) -> Results {
        let mut all = Results::new();
        for recorder in &self.recorders {
            all.add(&recorder.lock().unwrap());
        }
        all
    }
}

/// The measurements of tasks.
pub struct Results {
    /// The durations of successful check-outs, in nanoseconds. Each is an operation.
    pub check_outs: Histogram<u64>,
    /// The durations of successful commands, in nanoseconds.
    pub commands: Histogram<u64>,
    /// The number of errors of each kind, and the text of the first.
    pub errors: BTreeMap<&'static str, (u64, String)>,
}

impl Results {
    pub fn new() -> Self {
        let histogram = || Histogram::new_with_max(LONGEST, 3).expect("the bounds are valid");
        Self { check_outs: histogram(), commands: histogram(), errors: BTreeMap::new() }
    }

    fn add(&mut self, other: &Self) {
        self.check_outs.add(&other.check_outs).expect("all histograms have the same bounds");
        self.commands.add(&other.commands).expect("all histograms have the same bounds");
        for (kind, (count, example)) in &other.errors {
            self.errors.entry(kind).or_insert_with(|| (0, example.clone())).0 += count;
        }
    }
}

/// One task: checks out, runs a command and checks in, until it is told to stop.
async fn work(pool: Pool<Endpoint>, number: u32, stop: Arc<AtomicBool>, recorder: Arc<Mutex<Results>>) {
    let ping = rawdoc! { "ping": 1 };
    let find = rawdoc! { "find": COLLECTION, "filter": { "_id": i64::from(number % DOCUMENTS) } };
    let nanos = |since: Instant| u64::try_from(since.elapsed().as_nanos()).unwrap_or(LONGEST);
    for turn in 1_u32.. {
        // Relaxed: the load reads nothing else.
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let started = Instant::now();
        let error = match pool.check_out().await {
            Ok(mut connection) => {
                // Nothing is awaited in between, so the count equals that of the `ConnectionCheckedOut` events.
                recorder.lock().unwrap().check_outs.saturating_record(nanos(started));
                let started = Instant::now();
                let outcome = match turn % FIND_EVERY {
                    0 => connection.run_command(DATABASE, &find).await,
                    _ => connection.run_command("admin", &ping).await,
                };
                let took = nanos(started);
                // Other tasks may wait for the connection.
                drop(connection);
                match outcome {
                    Ok(_reply) => {
                        recorder.lock().unwrap().commands.saturating_record(took);
                        None
                    }
                    Err(error) => Some((operation_error(&error), error.to_string())),
                }
            }
            Err(error) => Some((check_out_error(&error), error.to_string())),
        };
        if let Some((kind, example)) = error {
            recorder.lock().unwrap().errors.entry(kind).or_insert((0, example)).0 += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn check_out_error(error: &CheckOutError) -> &'static str {
    match error {
        CheckOutError::PoolClosed(_) => "check-out: the pool is closed",
        CheckOutError::PoolCleared(_) => "check-out: the pool was cleared",
        CheckOutError::WaitQueueTimeout(_) => "check-out: no connection in time",
        CheckOutError::Establish(_) => "check-out: no connection established",
        _ => "check-out: other",
    }
}

fn operation_error(error: &OperationError) -> &'static str {
    match error {
        OperationError::Interrupted(_) => "command: interrupted",
        OperationError::Command(CommandError::Server { .. }) => "command: refused by the server",
        OperationError::Command(CommandError::Network { .. }) => "command: network",
        OperationError::Command(CommandError::Wire { .. }) => "command: wire protocol",
        _ => "command: other",
    }
}
