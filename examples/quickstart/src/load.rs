//! The tasks that use the client, and what they measure.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bson::rawdoc;
use histogram::Histogram;
use tokio::task::JoinSet;
use wharf::{CheckOutError, Client, ClientError, CommandError, Operation, OperationError};
use wharf_servers::embedded::{COLLECTION, DATABASE};

use crate::server::DOCUMENTS;

/// One in this many operations is a `find`.
const FIND_EVERY: u32 = 10;
/// How long a task waits after an error, so that an unreachable server is not flooded.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest time that is recorded, in nanoseconds: an hour and a quarter.
const LONGEST: u64 = (1 << MAX_POWER) - 1;
const MAX_POWER: u8 = 42;
/// The histograms overstate a time by at most 1/256.
const GROUPING_POWER: u8 = 8;

/// The running tasks.
pub struct Load {
    started: Instant,
    tasks: JoinSet<()>,
    stop: Arc<AtomicBool>,
    /// There are several recorders, so that threads rarely contend. There are fewer recorders than tasks, because
    /// histograms are large.
    recorders: Vec<Arc<Mutex<Results>>>,
}

impl Load {
    /// Starts the tasks.
    pub fn start(client: &Client, tasks: u32) -> Self {
        let count = 4 * thread::available_parallelism().map_or(1, usize::from);
        let recorders: Vec<_> = (0..count).map(|_| Arc::new(Mutex::new(Results::new()))).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let mut load = Self { started: Instant::now(), tasks: JoinSet::new(), stop, recorders };
        for (number, recorder) in (0..tasks).zip(load.recorders.iter().cycle()) {
            load.tasks.spawn(work(client.clone(), number, load.started, load.stop.clone(), recorder.clone()));
        }
        load
    }

    /// Returns when the load started.
    pub fn begun(&self) -> Instant {
        self.started
    }

    /// Tells the tasks to stop after their current operation.
    pub fn stop(&self) {
        // Relaxed: the store publishes nothing.
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until all tasks have finished.
    pub async fn finished(&mut self) {
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("a task of the load panicked");
        }
    }

    /// Cancels the remaining tasks.
    pub async fn cancel(&mut self) {
        self.tasks.shutdown().await;
    }

    /// Returns the measurements from all tasks.
    pub fn results(&self) -> Results {
        let mut all = Results::new();
        for recorder in &self.recorders {
            all.add(&recorder.lock().unwrap());
        }
        all
    }
}

/// The measurements from tasks.
pub struct Results {
    /// The number of successful operations.
    pub operations: u64,
    /// Their durations, in nanoseconds, including the wait for a connection.
    pub times: Histogram,
    /// When operations succeeded.
    pub successes: Successes,
    /// The number of errors of each kind, and the text of the first error.
    pub errors: BTreeMap<&'static str, (u64, String)>,
}

impl Results {
    pub fn new() -> Self {
        let times = Histogram::new(GROUPING_POWER, MAX_POWER).expect("the bounds are valid");
        Self { operations: 0, times, successes: Successes::default(), errors: BTreeMap::new() }
    }

    /// Records an operation that took this many nanoseconds.
    pub fn record(&mut self, nanos: u64) {
        self.operations += 1;
        self.times.increment(nanos.min(LONGEST)).expect("the bounds cover it");
    }

    /// Returns the number of errors.
    pub fn failures(&self) -> u64 {
        self.errors.values().map(|(count, _)| count).sum()
    }

    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.times.checked_add_assign(&other.times).expect("all histograms have the same bounds");
        self.successes.add(&other.successes);
        for (kind, (count, example)) in &other.errors {
            self.errors.entry(kind).or_insert_with(|| (0, example.clone())).0 += count;
        }
    }
}

/// Returns the time within which this fraction of a histogram's operations completed, in nanoseconds.
pub fn quantile(times: &Histogram, fraction: f64) -> Option<u64> {
    times.quantile_bucket(fraction).expect("the fraction is valid").map(|bucket| bucket.end())
}

/// The times of successful operations, with one bit for each [`SLOT`] from the start of the load. Each recorder has its
/// own bits, which are combined when the results are read.
#[derive(Default)]
pub struct Successes(Vec<u64>);

/// The precision of the longest gap.
const SLOT: Duration = Duration::from_millis(10);

impl Successes {
    fn note(&mut self, elapsed: Duration) {
        // A run takes at most a day, which is 9 million bits.
        let slot = (elapsed.as_millis() / SLOT.as_millis()) as usize;
        if self.0.len() <= slot / 64 {
            self.0.resize(slot / 64 + 1, 0);
        }
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(all, more)| *all |= more);
    }

    /// Returns the longest time without a successful operation, from the start of the load to the last success, and the
    /// time of the last success.
    pub fn longest_gap(&self) -> (Duration, Duration) {
        let (mut longest, mut gap, mut last) = (0, 0, 0);
        for slot in 0..self.0.len() * 64 {
            if self.0[slot / 64] & 1 << (slot % 64) == 0 {
                gap += 1;
            } else {
                (longest, gap, last) = (longest.max(gap), 0, slot as u32);
            }
        }
        (SLOT * longest, SLOT * last)
    }
}

/// Runs one operation after another until `stop` is set. Each of the load's tasks runs this function.
async fn work(client: Client, number: u32, begun: Instant, stop: Arc<AtomicBool>, recorder: Arc<Mutex<Results>>) {
    let ping = rawdoc! { "ping": 1 };
    let find = rawdoc! { "find": COLLECTION, "filter": { "_id": i64::from(number % DOCUMENTS) } };
    for turn in 1_u32.. {
        // Relaxed: the flag publishes nothing.
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let started = Instant::now();
        let outcome = match turn % FIND_EVERY {
            0 => client.run(Operation::read(DATABASE, &find)).await,
            _ => client.run(Operation::read("admin", &ping)).await,
        };
        match outcome {
            Ok(_reply) => {
                let took = u64::try_from(started.elapsed().as_nanos()).unwrap_or(LONGEST);
                let mut results = recorder.lock().unwrap();
                results.record(took);
                results.successes.note(begun.elapsed());
            }
            Err(error) => {
                let (kind, example) = (kind_of(&error), error.to_string());
                recorder.lock().unwrap().errors.entry(kind).or_insert((0, example)).0 += 1;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn kind_of(error: &ClientError) -> &'static str {
    match error.operation_error() {
        Some(OperationError::CheckOut(error)) => match error {
            CheckOutError::PoolClosed(_) => "check-out: the pool is closed",
            CheckOutError::PoolCleared(_) => "check-out: the pool was cleared",
            CheckOutError::WaitQueueTimeout(_) => "check-out: no connection in time",
            CheckOutError::Establish(_) => "check-out: no connection established",
            _ => "check-out: other",
        },
        Some(OperationError::Interrupted(_)) => "command: interrupted",
        Some(OperationError::Command(CommandError::Server { .. })) => "command: refused by the server",
        Some(OperationError::Command(CommandError::Network { .. })) => "command: network",
        Some(OperationError::Command(CommandError::Wire { .. })) => "command: wire protocol",
        Some(_) => "command: other",
        None if matches!(error, ClientError::Selection(_)) => "selection: no server",
        None => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_gap_is_that_of_all_tasks_together() {
        let mut all = Successes::default();
        for millis in [[5, 700], [300, 2_000]] {
            let mut of_task = Successes::default();
            millis.into_iter().for_each(|millis| of_task.note(Duration::from_millis(millis)));
            all.add(&of_task);
        }
        // From 710 to 2,000 ms.
        assert_eq!(all.longest_gap(), (Duration::from_millis(1_290), Duration::from_millis(2_000)));
        assert_eq!(Successes::default().longest_gap(), (Duration::ZERO, Duration::ZERO));
    }
}
