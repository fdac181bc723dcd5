//! 64 tasks that read and write through one client, and what became of their operations.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bson::{RawDocumentBuf, rawdoc};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use wharf::{Client, ClientError, Operation};

/// The number of tasks.
const TASKS: usize = 64;
/// The database of the load. Its collection `inserted` has a document for each insert, `counters` one for each task.
const DATABASE: &str = "faults";
/// How long an operation may still take when the load is to stop: less than the time limit of the server selection.
const LAST_OPERATION: Duration = Duration::from_secs(15);
/// How long the pools may take until their counts are back.
const SETTLING: Duration = Duration::from_secs(10);
/// The pause between two looks at what can only be asked for.
const POLL: Duration = Duration::from_millis(10);
/// The code of the error of a second insert with the same `_id`.
const DUPLICATE_KEY: i32 = 11000;

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Inserts a document with an `_id` that no other operation uses.
    Insert,
    /// Adds one to the counter of the task.
    Increment,
    /// Reads the document that the task has inserted last.
    Read,
}

/// An operation of the load that is over.
#[derive(Debug)]
pub struct Done {
    pub kind: Kind,
    pub begun: Instant,
    pub ended: Instant,
    pub error: Option<ClientError>,
}

/// The operations of one task.
#[derive(Default)]
struct Record {
    task: i64,
    operations: Vec<Done>,
    acknowledged: Vec<i64>,
    uncertain: HashSet<i64>,
    increments: i64,
    uncertain_increments: i64,
}

/// A load in progress.
pub struct Load {
    client: Client,
    begun: Instant,
    goes_on: Arc<AtomicBool>,
    successes: watch::Receiver<u64>,
    tasks: Vec<JoinHandle<Record>>,
}

impl Load {
    /// Starts the tasks, on collections that are empty.
    pub async fn start(client: &Client) -> Self {
        for name in ["inserted", "counters"] {
            client.run(Operation::write(DATABASE, &rawdoc! { "create": name })).await.unwrap();
        }
        let counters: Vec<_> = (0..TASKS).map(|task| rawdoc! { "_id": id(task), "n": 0_i64 }).collect();
        client.insert(DATABASE, "counters", &counters).await.unwrap();
        let goes_on = Arc::new(AtomicBool::new(true));
        let (sender, successes) = watch::channel(0);
        let sender = Arc::new(sender);
        let start = |task| tokio::spawn(run(client.clone(), id(task), goes_on.clone(), sender.clone()));
        let tasks = (0..TASKS).map(start).collect();
        Self { client: client.clone(), begun: Instant::now(), goes_on, successes, tasks }
    }

    /// Waits until this many more operations have succeeded.
    pub async fn progress(&self, operations: u64) {
        let mut successes = self.successes.clone();
        let from = *successes.borrow_and_update();
        successes.wait_for(|&now| now >= from + operations).await.unwrap();
    }

    /// Lets the load go on for a time.
    pub async fn go_on_for(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Stops the load. Fails if a task hangs.
    pub async fn stop(self) -> Outcome {
        self.goes_on.store(false, Ordering::Relaxed); // ORD: Relaxed; it publishes nothing.
        let ended = Instant::now();
        let records = async {
            let mut records = Vec::new();
            for task in self.tasks {
                records.push(task.await.unwrap());
            }
            records
        };
        let Ok(records) = tokio::time::timeout(LAST_OPERATION, records).await else {
            panic!("a task hangs: {:#?}", self.client.status());
        };
        Outcome { client: self.client, records, begun: self.begun, ended }
    }
}

fn id(task: usize) -> i64 {
    i64::try_from(task).unwrap()
}

/// Inserts, increments and reads in turn.
async fn run(client: Client, task: i64, goes_on: Arc<AtomicBool>, successes: Arc<watch::Sender<u64>>) -> Record {
    let mut record = Record { task, ..Record::default() };
    let statement = rawdoc! { "q": { "_id": task }, "u": { "$inc": { "n": 1_i64 } } };
    let increment = rawdoc! { "update": "counters", "updates": [statement] };
    for turn in 0_i64.. {
        let id = task * 1_000_000 + turn;
        for kind in [Kind::Insert, Kind::Increment, Kind::Read] {
            // ORD: Relaxed; a task that sees it late does one operation more.
            if !goes_on.load(Ordering::Relaxed) {
                return record;
            }
            let begun = Instant::now();
            let outcome = match kind {
                Kind::Insert => {
                    let document = [rawdoc! { "_id": id, "text": "thirty bytes of text, or so" }];
                    let written = client.insert(DATABASE, "inserted", &document).await;
                    written.map(|written| assert_eq!(written.inserted, 1))
                }
                Kind::Increment => {
                    let reply = client.run(Operation::write(DATABASE, &increment)).await;
                    reply.map(|reply| assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply:?}"))
                }
                Kind::Read => {
                    let acknowledged = record.acknowledged.last().copied();
                    let find = rawdoc! { "find": "inserted", "filter": { "_id": acknowledged.unwrap_or(-1) } };
                    let reply = client.run(Operation::read(DATABASE, &find)).await;
                    reply
                        .map(|reply| assert_eq!(found(&reply), usize::from(acknowledged.is_some()), "{acknowledged:?}"))
                }
            };
            match (kind, &outcome) {
                (Kind::Insert, Ok(())) => record.acknowledged.push(id),
                (Kind::Insert, Err(error)) => {
                    let code = error.server_error().map(|error| error.code);
                    assert_ne!(code, Some(DUPLICATE_KEY), "{id} was inserted twice: {error}");
                    assert!(!error.to_string().contains("E11000"), "{id} was inserted twice: {error}");
                    record.uncertain.insert(id);
                }
                (Kind::Increment, Ok(())) => record.increments += 1,
                (Kind::Increment, Err(_)) => record.uncertain_increments += 1,
                (Kind::Read, _) => {}
            }
            if outcome.is_ok() {
                successes.send_modify(|successes| *successes += 1);
            }
            record.operations.push(Done { kind, begun, ended: Instant::now(), error: outcome.err() });
        }
    }
    record
}

/// Returns the number of documents in the reply to a find.
fn found(reply: &RawDocumentBuf) -> usize {
    reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().into_iter().count()
}

/// A load that is over.
pub struct Outcome {
    client: Client,
    records: Vec<Record>,
    begun: Instant,
    ended: Instant,
}

impl Outcome {
    fn operations(&self) -> impl Iterator<Item = &Done> {
        self.records.iter().flat_map(|record| &record.operations)
    }

    /// Returns the operations that failed.
    pub fn failed(&self) -> Vec<&Done> {
        self.operations().filter(|done| done.error.is_some()).collect()
    }

    /// Returns when operations succeeded, in order.
    fn successes(&self) -> Vec<Instant> {
        let mut ends: Vec<_> = self.operations().filter(|done| done.error.is_none()).map(|done| done.ended).collect();
        ends.sort_unstable();
        ends
    }

    /// Returns the longest time in which no operation succeeded.
    pub fn longest_stall(&self) -> Duration {
        let ends = self.successes().into_iter().take_while(|&end| end <= self.ended).chain([self.ended]);
        let (stall, _) = ends.fold((Duration::ZERO, self.begun), |(stall, last), end| (stall.max(end - last), end));
        stall
    }

    /// Returns how long the longest operation took.
    pub fn longest_operation(&self) -> Duration {
        self.operations().map(|done| done.ended - done.begun).max().unwrap()
    }

    /// Returns how many operations succeeded in a second, on average between two instants.
    pub fn rate(&self, from: Instant, to: Instant) -> f64 {
        let count = self.operations().filter(|done| done.error.is_none() && (from..to).contains(&done.ended)).count();
        f64::from(u32::try_from(count).unwrap()) / (to - from).as_secs_f64()
    }

    /// Returns the end of the first second after `from` with at least this rate.
    pub fn first_second_with(&self, rate: f64, from: Instant) -> Option<Instant> {
        let step = Duration::from_millis(100);
        let seconds = (0..).map(|count| from + step * count).take_while(|&at| at + SECOND <= self.ended);
        seconds.map(|at| (at, at + SECOND)).find(|&(at, end)| self.rate(at, end) >= rate).map(|(_, end)| end)
    }

    /// Checks on the server that each acknowledged write is there, and that none was executed twice.
    pub async fn check_writes(&self) {
        let mut inserted = HashSet::new();
        for document in self.documents("inserted").await {
            assert!(inserted.insert(document.get_i64("_id").unwrap()), "found twice: {document:?}");
        }
        let counters = self.documents("counters").await;
        assert_eq!(counters.len(), TASKS);
        for record in &self.records {
            for id in &record.acknowledged {
                assert!(inserted.remove(id), "the acknowledged insert of {id} is lost");
            }
            inserted.retain(|id| !record.uncertain.contains(id));
            let counter = counters.iter().find(|counter| counter.get_i64("_id").unwrap() == record.task).unwrap();
            let count = counter.get_i64("n").unwrap();
            let allowed = record.increments..=record.increments + record.uncertain_increments;
            assert!(allowed.contains(&count), "counted {count} increments of task {}: {allowed:?}", record.task);
        }
        assert!(inserted.is_empty(), "inserts that no task has sent: {inserted:?}");
    }

    async fn documents(&self, collection: &str) -> Vec<RawDocumentBuf> {
        let find = rawdoc! { "find": collection };
        let mut cursor = self.client.cursor(Operation::read(DATABASE, &find)).await.unwrap();
        let mut documents = Vec::new();
        while let Some(document) = cursor.next().await.unwrap() {
            documents.push(document.to_owned());
        }
        documents
    }

    /// Waits until no pool has a connection in use or in establishment, or a waiter.
    pub async fn check_pools(&self) {
        let deadline = Instant::now() + SETTLING;
        loop {
            let status = self.client.status();
            let is_settled = status.servers.iter().all(|server| {
                server.operations == 0
                    && server.pool.is_some_and(|pool| {
                        (pool.in_use, pool.pending, pool.waiting, pool.stale, pool.draining) == (0, 0, 0, 0, 0)
                            && pool.total == pool.available
                            && (pool.max_pool_size == 0 || pool.total <= pool.max_pool_size)
                    })
            });
            if is_settled {
                return;
            }
            assert!(Instant::now() < deadline, "the counts do not return: {status:#?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Prints the scenario's line.
    pub fn print(&self, scenario: &str, further: &str) {
        println!("{scenario}: {self}{further}");
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |kind| self.failed().iter().filter(|done| done.kind == kind).count();
        write!(
            f,
            "{} operations, {} failed ({} inserts, {} increments, {} reads), longest stall {:.2} s, longest operation {:.2} s",
            self.operations().count(),
            self.failed().len(),
            of(Kind::Insert),
            of(Kind::Increment),
            of(Kind::Read),
            self.longest_stall().as_secs_f64(),
            self.longest_operation().as_secs_f64(),
        )
    }
}

const SECOND: Duration = Duration::from_secs(1);
