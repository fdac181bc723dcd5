//! A replica set that loses its primary while both clients use it.
//!
//! Both run at the same time on the same set, so each loss is the same for both. Their tasks keep a steady pace, so
//! neither client takes time from the other, and the usual rate is known.

use std::io::{self, BufRead};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bson::{RawDocumentBuf, doc, rawdoc};
use clap::Args;
use mongodb::Collection;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use wharf::Operation;
use wharf_testbed::replica_set::{ReplicaSet, ReplicaSetOptions};

use super::Client;
use crate::Failure;
use crate::alternation::{Asked, Competitor, Turns};
use crate::child::READY;
use crate::claims::{Claim, Limit};
use crate::load::{self, join};
use crate::report::{plainly, print_row};
use crate::statistics::median;
use crate::subjects::Kind;

const DATABASE: &str = "failover";
/// The number of tasks for each client, and the time between the starts of two successive operations in a task.
const TASKS: u32 = 16;
const PACE: Duration = Duration::from_millis(40);
/// The minimum time that the load runs before the loss and after the next election.
const BEFORE: Duration = Duration::from_secs(3);
const AFTER: Duration = Duration::from_secs(8);
/// How long a set may take to elect a new primary.
const ELECTION: Duration = Duration::from_secs(60);
/// The length of the interval in which the usual throughput must be reached again, and the fraction of the usual
/// throughput that suffices.
const WINDOW: Duration = Duration::from_millis(500);
const USUAL: f64 = 0.9;
/// The time after the loss within which the stall must begin.
const UNTIL_STALL: Duration = Duration::from_secs(1);

const SUBJECTS: [Kind; 2] = [Kind::Client, Kind::OfficialRaw];

/// How the primary is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// The primary steps down in favour of another member.
    StepDown,
    /// The primary's process is killed.
    Kill,
}

impl Loss {
    fn name(self) -> &'static str {
        match self {
            Self::StepDown => "step-down",
            Self::Kill => "kill",
        }
    }
}

/// The arguments to a child.
#[derive(Debug, Args)]
pub struct Failover {
    #[command(flatten)]
    child: crate::arguments::Child,
}

/// The result of a loss, as a child process reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailoverResult {
    pub operations: u64,
    pub failed: u64,
    /// The first error, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// The longest time without a successful operation.
    pub stall_seconds: f64,
    /// The duration of the longest operation.
    pub longest_seconds: f64,
    /// The time from the loss to the first interval with the usual throughput. `None` if no interval reaches it.
    pub usual_after_seconds: Option<f64>,
    pub usual_per_second: f64,
}

/// A value for each loss: its name, and how to read it.
type Value = (&'static str, fn(&FailoverResult) -> f64);

/// How much longer a time may be before it counts as worse: a little more than the time between two operations in a
/// task.
const GRAIN: f64 = 0.05;

const COMPARED: [Value; 3] = [
    ("failed operations", |result| result.failed as f64),
    ("longest stall, s", |result| result.stall_seconds),
    ("until 90 % throughput, s", |result| result.usual_after_seconds.unwrap_or(f64::INFINITY)),
];
const SHOWN: [Value; 3] = [
    ("operations", |result| result.operations as f64),
    ("usual operations per second", |result| result.usual_per_second),
    ("longest operation, s", |result| result.longest_seconds),
];

/// Measures, prints a table for each kind of loss, and returns the claims.
pub fn measure(arguments: &Client) -> Result<Vec<Claim>, Failure> {
    println!(
        "Failover: a replica set of three, its members and the clients on any core; {TASKS} tasks of each client, an \
         operation every {PACE:?} each, half of them insert and half read; each loss is the same for both"
    );
    let mut claims = Vec::new();
    for loss in [Loss::StepDown, Loss::Kill] {
        let measured = format!("client-failover-{}", loss.name());
        let mut turns = Turns::default();
        for round in 0..arguments.rounds {
            eprintln!("{measured}: round {} of {}", round + 1, arguments.rounds);
            let set = ReplicaSet::start(ReplicaSetOptions::default())?;
            turns.extend(lose(&set, loss, arguments, &measured, round)?);
        }
        claims.extend(report(loss, &turns));
    }
    Ok(claims)
}

/// Lets both clients run while the set loses its primary.
fn lose(
    set: &ReplicaSet,
    loss: Loss,
    arguments: &Client,
    measured: &str,
    round: u32,
) -> Result<Vec<crate::alternation::Measurement<FailoverResult>>, Failure> {
    let mut both = Vec::new();
    for subject in SUBJECTS {
        let asked = Asked { round, tasks: TASKS, subject, connections: TASKS, workers: 2 };
        both.push(Competitor::start(asked, asked.command("failover", &set.uri())?)?);
    }
    let (before, after) = if arguments.short { (BEFORE / 3, AFTER / 4) } else { (BEFORE, AFTER) };
    std::thread::sleep(before);
    let lost = monotonic()?;
    match loss {
        Loss::StepDown => drop(set.step_down()?),
        Loss::Kill => {
            set.kill(set.primary()?.ok_or("the set has no primary")?)?;
            set.wait_for_primary(Instant::now() + ELECTION)?;
        }
    }
    std::thread::sleep(after);
    let results = both.iter_mut().map(|child| child.answer(&lost.as_nanos().to_string(), 0));
    let results = results.collect::<Result<Vec<_>, _>>()?;
    both.into_iter().try_for_each(Competitor::end)?;
    for result in &results {
        crate::alternation::record(arguments.json.as_deref(), measured, result)?;
    }
    Ok(results)
}

fn report(loss: Loss, turns: &Turns<FailoverResult>) -> Vec<Claim> {
    println!();
    print_row(&format!("{} (median, worst)", loss.name()), SUBJECTS.iter());
    for (name, value) in SHOWN.into_iter().chain(COMPARED) {
        print_row(
            name,
            SUBJECTS.iter().map(|&subject| {
                let values = turns.values(TASKS, value, subject);
                let worst = values.iter().copied().reduce(f64::max);
                format!("{}, {}", plainly(median(&values)), plainly(worst))
            }),
        );
    }
    for subject in SUBJECTS {
        let error = turns.of(TASKS, subject).find_map(|(_, result)| result.first_error.as_deref());
        if let Some(error) = error {
            println!("  the first error of {subject}: {error}");
        }
    }
    let claim = |(name, value): Value| {
        // These are differences rather than ratios, because the number of failures may be zero.
        let worse: Vec<f64> = turns
            .values(TASKS, value, Kind::Client)
            .into_iter()
            .zip(turns.values(TASKS, value, Kind::OfficialRaw))
            .map(|(client, official)| difference(client, official))
            .collect();
        let limit = Limit::AtMost(if name.ends_with(", s") { GRAIN } else { 0.0 });
        let text = format!("{}: {name}: the client's less the official driver's is {limit}", loss.name());
        limit.judge(text, median(&worse))
    };
    COMPARED.into_iter().map(claim).collect()
}

/// Returns how much larger the client's value is. If neither client regains its throughput, both values are infinite
/// and count as equal.
fn difference(client: f64, official: f64) -> f64 {
    if client == official { 0.0 } else { client - official }
}

/// Returns the time on a clock that all processes share.
fn monotonic() -> Result<Duration, Failure> {
    Ok(clock_gettime(ClockId::CLOCK_MONOTONIC)?.into())
}

/// Runs the load until a line of standard input says when the primary was lost, and prints a [`FailoverResult`].
pub fn child(arguments: &Failover) -> Result<(), Failure> {
    let child = &arguments.child;
    let runtime = load::runtime(child.workers)?;
    match child.subject {
        Kind::Client => runtime.block_on(under_load(OfWharf::open(&child.server), child.tasks)),
        Kind::OfficialRaw => runtime.block_on(under_load(OfOfficial::open(&child.server), child.tasks)),
        other => Err(format!("{other} is no client").into()),
    }
}

/// A client that inserts and reads single documents.
trait Store: Send + Sync + Sized + 'static {
    async fn open(uri: &str) -> Result<Self, Failure>;

    fn insert(&self, id: i64) -> impl Future<Output = Result<(), Failure>> + Send;

    fn read(&self, id: i64) -> impl Future<Output = Result<(), Failure>> + Send;
}

struct OfWharf(wharf::Client);

impl Store for OfWharf {
    async fn open(uri: &str) -> Result<Self, Failure> {
        Ok(Self(wharf::Client::from_uri(uri)?))
    }

    async fn insert(&self, id: i64) -> Result<(), Failure> {
        self.0.insert(DATABASE, "wharf", &[rawdoc! { "_id": id, "text": "some" }]).await?;
        Ok(())
    }

    async fn read(&self, id: i64) -> Result<(), Failure> {
        let find = rawdoc! { "find": "wharf", "filter": { "_id": id }, "limit": 1, "singleBatch": true };
        self.0.run(Operation::read(DATABASE, &find)).await?;
        Ok(())
    }
}

struct OfOfficial(Collection<RawDocumentBuf>);

impl Store for OfOfficial {
    async fn open(uri: &str) -> Result<Self, Failure> {
        Ok(Self(mongodb::Client::with_uri_str(uri).await?.database(DATABASE).collection("official")))
    }

    async fn insert(&self, id: i64) -> Result<(), Failure> {
        self.0.insert_one(rawdoc! { "_id": id, "text": "some" }).await?;
        Ok(())
    }

    async fn read(&self, id: i64) -> Result<(), Failure> {
        self.0.find_one(doc! { "_id": id }).await?;
        Ok(())
    }
}

/// A completed operation.
struct Done {
    began: Duration,
    ended: Duration,
    error: Option<Failure>,
}

async fn under_load<S: Store>(opening: impl Future<Output = Result<S, Failure>>, tasks: u32) -> Result<(), Failure> {
    let store = Arc::new(opening.await?);
    store.insert(-1).await?;
    store.read(-1).await?;
    let goes_on = Arc::new(AtomicBool::new(true));
    let running: Vec<JoinHandle<Result<Vec<Done>, Failure>>> =
        (0..tasks).map(|task| tokio::spawn(keep_pace(store.clone(), i64::from(task), goes_on.clone()))).collect();
    println!("{READY}");
    let lost = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    let lost = Duration::from_nanos(lost.await??.trim().parse()?);
    let ended = monotonic()?;
    // Relaxed: the flag publishes nothing.
    goes_on.store(false, Ordering::Relaxed);
    let done: Vec<Done> = join(running).await?.into_iter().flatten().collect();
    println!("{}", serde_json::to_string(&result(&done, lost, ended))?);
    Ok(())
}

/// Runs one operation every [`PACE`]. Every other task inserts documents, and the others read them. No task does both:
/// a new primary answers reads about a second before it knows that a majority has a write, so the length of a stall
/// would depend on what the tasks were doing at the time of the loss.
async fn keep_pace<S: Store>(store: Arc<S>, task: i64, goes_on: Arc<AtomicBool>) -> Result<Vec<Done>, Failure> {
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut done = Vec::new();
    for turn in 0_i64.. {
        pace.tick().await;
        // Relaxed: the flag publishes nothing.
        if !goes_on.load(Ordering::Relaxed) {
            break;
        }
        let id = (task / 2) * 1_000_000 + turn;
        let began = monotonic()?;
        let outcome = if task % 2 == 0 { store.insert(id).await } else { store.read(id).await };
        done.push(Done { began, ended: monotonic()?, error: outcome.err() });
    }
    Ok(done)
}

fn result(done: &[Done], lost: Duration, over: Duration) -> FailoverResult {
    let mut successes: Vec<Duration> =
        done.iter().filter(|done| done.error.is_none() && done.ended <= over).map(|done| done.ended).collect();
    successes.sort_unstable();
    let began = done.iter().map(|done| done.began).min().unwrap_or(lost);
    let count = |from: Duration, to: Duration| {
        let before = |at| successes.partition_point(|&success| success < at);
        (before(to) - before(from)) as f64
    };
    let usual = count(began, lost) / lost.saturating_sub(began).as_secs_f64();
    let enough = USUAL * usual * WINDOW.as_secs_f64();
    let gaps = || successes.windows(2);
    let longest = gaps().map(|two| two[1] - two[0]).max().unwrap_or_default();
    // A window before the stall would have the usual throughput, so the search begins after the stall: at the end of
    // the longest gap that belongs to the loss. A later gap has a different cause.
    let of_loss = gaps().filter(|two| two[1] > lost && two[0] < lost + UNTIL_STALL);
    let resumed = of_loss.max_by_key(|two| two[1] - two[0]).map_or(lost, |two| two[1]);
    let steps = (0_u32..).map(|step| resumed + step * Duration::from_millis(10)).take_while(|&at| at + WINDOW <= over);
    let usual_from = steps.into_iter().find(|&at| count(at, at + WINDOW) >= enough);
    let mut failed = done.iter().filter_map(|done| done.error.as_ref());
    FailoverResult {
        operations: done.len() as u64,
        failed: failed.clone().count() as u64,
        first_error: failed.next().map(ToString::to_string),
        stall_seconds: longest.as_secs_f64(),
        longest_seconds: done.iter().map(|done| (done.ended - done.began).as_secs_f64()).fold(0.0, f64::max),
        usual_after_seconds: usual_from.map(|at| (at - lost).as_secs_f64()),
        usual_per_second: usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_both_stay_slow_are_equal() {
        assert_eq!(difference(f64::INFINITY, f64::INFINITY), 0.0);
        assert_eq!(difference(f64::INFINITY, 1.0), f64::INFINITY);
        assert_eq!(difference(1.0, 1.5), -0.5);
    }
}
