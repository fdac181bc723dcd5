//! 64 tasks that read and write through one client, and the outcomes of their operations.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bson::{RawDocumentBuf, rawdoc};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use wharf::client::ClientStatus;
use wharf::{Client, ClientError, Operation};

/// The number of tasks, which exceeds the number of connections that the tests' pools may open.
const TASKS: usize = 64;
/// The load's database. Its collection `inserted` holds a document for each insert, and `counters` holds one for each
/// task.
const DATABASE: &str = "faults";
/// The database for the new client's load.
const DATABASE_BESIDE: &str = "beside";
/// How long the last operations may take after the load is told to stop. This is less than the time limit for server
/// selection.
const LAST_OPERATION: Duration = Duration::from_secs(15);
/// How long the pools may take to return to the counts that they had before the fault.
const SETTLING: Duration = Duration::from_secs(10);
/// The pause between two polls.
const POLL: Duration = Duration::from_millis(10);
/// How long the usual rate is measured for.
const USUAL: Duration = Duration::from_secs(2);
/// How often the load checks whether the rate has recovered.
const RATE_STEP: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);
/// The error code for a second insert with the same `_id`.
const DUPLICATE_KEY: i32 = 11000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Inserts a document with an `_id` that no other operation uses.
    Insert,
    /// Adds one to the task's counter.
    Increment,
    /// Reads the document that the task last inserted.
    Read,
}

/// A finished operation of the load.
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

/// The counts that the pools must return to.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    /// The `maxPoolSize` of each server's pool.
    max: BTreeMap<Arc<str>, u32>,
    /// The connections to the server that the tasks use, not counting stale connections. `None` if that server does not
    /// exist.
    total: Option<u32>,
}

impl Counts {
    fn of(status: &ClientStatus) -> Self {
        let pools = || status.servers.iter().filter_map(|server| Some((server, server.pool?)));
        let used = pools().find(|(server, _)| ["RSPrimary", "Standalone"].contains(&server.server_type));
        Self {
            max: pools().map(|(server, pool)| (server.address.clone(), pool.max_pool_size)).collect(),
            total: used.map(|(_, pool)| pool.available + pool.in_use),
        }
    }

    /// Returns whether the tasks hold all the connections that they may have.
    fn is_full(&self) -> bool {
        self.total.is_some_and(|total| self.max.values().all(|max| *max == total))
    }
}

/// When and how the throughput recovered.
#[derive(Clone, Copy)]
pub enum Regained {
    /// There was a second with at least 90 % of the usual rate.
    Usual(Duration),
    /// The servers or the machine had become slower. Even so, within one second the load reached at least 90 % of the
    /// rate of a new client that ran at the same time.
    LikeNew(Duration),
}

/// A load in progress.
pub struct Load {
    client: Client,
    database: &'static str,
    /// The counts before the fault.
    counts: Counts,
    begun: Instant,
    goes_on: Arc<AtomicBool>,
    successes: watch::Receiver<u64>,
    tasks: Vec<JoinHandle<Record>>,
}

impl Load {
    /// Starts the tasks, on empty collections, and waits until they hold as many connections as the pools allow.
    pub async fn start(client: &Client) -> Self {
        Self::start_in(client, DATABASE).await
    }

    async fn start_in(client: &Client, database: &'static str) -> Self {
        for name in ["inserted", "counters"] {
            client.run(Operation::write(database, &rawdoc! { "create": name })).await.unwrap();
        }
        let counters: Vec<_> = (0..TASKS).map(|task| rawdoc! { "_id": id(task), "n": 0_i64 }).collect();
        client.insert(database, "counters", &counters).await.unwrap();
        let goes_on = Arc::new(AtomicBool::new(true));
        let (sender, successes) = watch::channel(0);
        let sender = Arc::new(sender);
        let start = |task| tokio::spawn(run(client.clone(), database, id(task), goes_on.clone(), sender.clone()));
        let tasks = (0..TASKS).map(start).collect();
        let counts = counts(client, Counts::is_full).await;
        Self { client: client.clone(), database, counts, begun: Instant::now(), goes_on, successes, tasks }
    }

    /// Waits until this many more operations have succeeded.
    pub async fn progress(&self, operations: u64) {
        let mut successes = self.successes.clone();
        let from = *successes.borrow_and_update();
        successes.wait_for(|&now| now >= from + operations).await.unwrap();
    }

    /// Measures for two seconds how many operations succeed per second.
    pub async fn rate(&self) -> f64 {
        let (begun, before) = (Instant::now(), self.successes());
        tokio::time::sleep(USUAL).await;
        (self.successes() - before) / begun.elapsed().as_secs_f64()
    }

    /// Waits until the throughput has recovered. Returns `None` if it does not recover within `limit`.
    ///
    /// A replica set may be slower for every client after an election: another member is the primary, and the
    /// secondaries may read from different members than before. So in the second half of `limit`, a new client runs the
    /// same load alongside the old client. The throughput then also counts as recovered if, in the same second, the old
    /// client reaches at least 90 % of the new client's rate, and the two together reach at least half the usual rate.
    /// The old client must therefore reach about a quarter of the usual rate. The comparison takes at least two
    /// seconds, however long the new client takes to start.
    pub async fn regains(&self, usual: f64, limit: Duration) -> Option<Regained> {
        let from = Instant::now();
        if self.has_second(|| 0.0, |own, _, seconds| own >= 0.9 * usual * seconds, from + limit / 2).await {
            return Some(Regained::Usual(from.elapsed()));
        }
        let new = Client::new(self.client.options().clone()).unwrap();
        let beside = Self::start_in(&new, DATABASE_BESIDE).await;
        // A new client's first thousand operations do not count.
        beside.progress(1000).await;
        let until = (from + limit).max(Instant::now() + 2 * SECOND);
        let is_enough = |own: f64, new: f64, seconds: f64| own >= 0.9 * new && own + new >= 0.5 * usual * seconds;
        let has_second = self.has_second(|| beside.successes(), is_enough, until).await;
        let regained = has_second.then(|| Regained::LikeNew(from.elapsed()));
        beside.stop().await;
        new.run(Operation::write(DATABASE_BESIDE, &rawdoc! { "dropDatabase": 1 })).await.unwrap();
        assert!(new.shutdown(SETTLING).await);
        regained
    }

    /// Waits until `is_enough` accepts the figures of a one-second window: the load's successes, those of `others`, and
    /// the elapsed seconds. Returns whether it did so in time.
    async fn has_second(
        &self,
        others: impl Fn() -> f64,
        is_enough: impl Fn(f64, f64, f64) -> bool,
        until: Instant,
    ) -> bool {
        let mut steps = tokio::time::interval(RATE_STEP);
        let mut seen: Vec<(Instant, f64, f64)> = Vec::new();
        while Instant::now() < until {
            steps.tick().await;
            let now = (Instant::now(), self.successes(), others());
            let second_ago = seen.iter().rev().find(|(at, ..)| now.0 - *at >= SECOND);
            if second_ago
                .is_some_and(|(at, own, other)| is_enough(now.1 - own, now.2 - other, (now.0 - *at).as_secs_f64()))
            {
                return true;
            }
            seen.push(now);
        }
        false
    }

    /// Returns how many operations have succeeded.
    fn successes(&self) -> f64 {
        f64::from(u32::try_from(*self.successes.borrow()).unwrap())
    }

    /// Stops the load once the counts have returned to their values before the fault. Fails if a task hangs.
    pub async fn stop(self) -> Outcome {
        counts(&self.client, |counts| *counts == self.counts).await;
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
        Outcome { client: self.client, database: self.database, records, begun: self.begun, ended }
    }
}

/// Waits until the counts of the client's pools match, and returns them.
async fn counts(client: &Client, is_reached: impl Fn(&Counts) -> bool) -> Counts {
    let deadline = Instant::now() + SETTLING;
    loop {
        let status = client.status();
        let counts = Counts::of(&status);
        if is_reached(&counts) {
            return counts;
        }
        assert!(Instant::now() < deadline, "the counts do not return: {status:#?}");
        tokio::time::sleep(POLL).await;
    }
}

fn id(task: usize) -> i64 {
    i64::try_from(task).unwrap()
}

/// Inserts, increments and reads in turn.
async fn run(
    client: Client,
    database: &'static str,
    task: i64,
    goes_on: Arc<AtomicBool>,
    successes: Arc<watch::Sender<u64>>,
) -> Record {
    let mut record = Record { task, ..Record::default() };
    let statement = rawdoc! { "q": { "_id": task }, "u": { "$inc": { "n": 1_i64 } } };
    let increment = rawdoc! { "update": "counters", "updates": [statement] };
    for turn in 0_i64.. {
        let id = task * 1_000_000 + turn;
        for kind in [Kind::Insert, Kind::Increment, Kind::Read] {
            // ORD: Relaxed; a task that sees the change late does one more operation.
            if !goes_on.load(Ordering::Relaxed) {
                return record;
            }
            let begun = Instant::now();
            let outcome = match kind {
                Kind::Insert => {
                    let document = [rawdoc! { "_id": id, "text": "thirty bytes of text, or so" }];
                    let written = client.insert(database, "inserted", &document).await;
                    written.map(|written| assert_eq!(written.inserted, 1))
                }
                Kind::Increment => {
                    let reply = client.run(Operation::write(database, &increment)).await;
                    reply.map(|reply| assert_eq!(reply.get_i32("n").unwrap(), 1, "{reply:?}"))
                }
                Kind::Read => {
                    let acknowledged = record.acknowledged.last().copied();
                    let find = rawdoc! { "find": "inserted", "filter": { "_id": acknowledged.unwrap_or(-1) } };
                    let reply = client.run(Operation::read(database, &find)).await;
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

/// A finished load.
pub struct Outcome {
    client: Client,
    database: &'static str,
    records: Vec<Record>,
    begun: Instant,
    ended: Instant,
}

impl Outcome {
    fn operations(&self) -> impl Iterator<Item = &Done> {
        self.records.iter().flat_map(|record| &record.operations)
    }

    pub fn failed(&self) -> Vec<&Done> {
        self.operations().filter(|done| done.error.is_some()).collect()
    }

    /// Returns when operations succeeded, in order.
    fn successes(&self) -> Vec<Instant> {
        let mut ends: Vec<_> = self.operations().filter(|done| done.error.is_none()).map(|done| done.ended).collect();
        ends.sort_unstable();
        ends
    }

    /// Returns the longest time without a successful operation.
    pub fn longest_stall(&self) -> Duration {
        let ends = self.successes().into_iter().take_while(|&end| end <= self.ended).chain([self.ended]);
        let (stall, _) = ends.fold((Duration::ZERO, self.begun), |(stall, last), end| (stall.max(end - last), end));
        stall
    }

    /// Returns how long the longest operation took.
    pub fn longest_operation(&self) -> Duration {
        self.operations().map(|done| done.ended - done.begun).max().unwrap()
    }

    /// Checks in the database that each acknowledged write exists, and that no write was executed twice.
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
        let mut cursor = self.client.cursor(Operation::read(self.database, &find)).await.unwrap();
        let mut documents = Vec::new();
        while let Some(document) = cursor.next_document().await.unwrap() {
            documents.push(document.to_owned());
        }
        documents
    }

    /// Waits until no pool has waiters, or connections in use or being established.
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

    /// Prints the scenario's results on one line.
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
