//! Pools under more load than they can serve, with callers that have deadlines.
//!
//! The load is open: requests arrive at random instants, whether or not earlier ones were served. Each request needs a
//! connection for one service time, and is useful if it completes by its deadline. A request keeps its connection until
//! its work is done. Work that completes after the deadline is wasted. A subject's capacity is its request rate in a
//! closed loop with one task for each connection.

mod subjects;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::Failure;
use crate::alternation::record;
use crate::arguments::seconds;
use crate::claims::{Claim, Limit};
use crate::load::runtime;
use crate::statistics::{median, percentile};
use subjects::Subject;

#[derive(Debug, Args)]
pub struct Overload {
    /// Number of rounds. Medians are shown.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// How long each subject is overloaded in a round, in seconds.
    #[arg(long, default_value = "4", value_parser = seconds)]
    pub seconds: Duration,
    /// Number of connections.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub connections: u32,
    /// How long a request uses its connection, in seconds.
    #[arg(long, default_value = "0.005", value_parser = seconds)]
    pub service: Duration,
    /// The load, as a multiple of the capacity.
    #[arg(long, default_value_t = 1.5)]
    pub load: f64,
    /// The time from a request to its deadline, in service times.
    #[arg(long, default_value_t = 10.0)]
    pub deadline: f64,
    /// The subjects to measure.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Subject::ALL)]
    pub subjects: Vec<Subject>,
    /// Appends each measurement to this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Exits with 1 unless every claim holds.
    #[arg(long)]
    pub check: bool,
}

/// Does a request's work, unless the deadline passes first. Returns whether the work was completed.
type Work = Arc<dyn Fn(Instant) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// The share of the capacity that is in use before and after a burst.
const ORDINARY: f64 = 0.75;
/// The number of requests in a burst, as a multiple of the number that the pool can serve within one deadline.
const BURST: f64 = 5.0;
/// The number of bursts in a round.
const BURSTS: usize = 5;

/// The result of a subject's round.
#[derive(Debug, Serialize)]
struct Measured {
    subject: String,
    /// Requests a second.
    capacity: f64,
    /// The useful work, as a multiple of the capacity.
    useful: f64,
    /// The wasted work, as a multiple of the capacity.
    in_vain: f64,
    /// The 99th percentile of the response times of served requests, as a multiple of the deadline.
    p99: f64,
    /// The median time after which a request failed without being served, as a multiple of the deadline.
    failed_after: f64,
    /// The time from a burst to the arrival of the last ordinary request that failed or was late, in milliseconds.
    recovery: f64,
}

/// The outcome of a request.
struct Ended {
    /// The time from the beginning to the arrival of the request.
    at: Duration,
    took: Duration,
    is_done: bool,
    is_of_burst: bool,
}

/// Measures all subjects, then prints a table and the claims. Returns whether all claims hold.
pub fn run(arguments: &Overload) -> Result<bool, Failure> {
    let mut all = Vec::new();
    for round in 0..arguments.rounds {
        for &subject in &arguments.subjects {
            // Each subject has its own runtime, so that its tasks do not outlive its measurement.
            let measured = runtime(2)?.block_on(measure(arguments, subject, round.into()))?;
            record(arguments.json.as_deref(), "overload", &measured)?;
            all.push(measured);
        }
    }
    let of = |subject: Subject, value: fn(&Measured) -> f64| {
        let name = subject.to_string();
        median(&all.iter().filter(|measured| measured.subject == name).map(value).collect::<Vec<_>>())
    };
    println!(
        "{} connections, {:.1} ms of service, {} capacities of load, deadlines of {} service times; then bursts of {} \
         requests. Medians of {} rounds.",
        arguments.connections,
        arguments.service.as_secs_f64() * 1e3,
        arguments.load,
        arguments.deadline,
        (BURST * arguments.deadline * f64::from(arguments.connections)) as u64,
        arguments.rounds
    );
    let columns = ["capacity, 1/s", "useful", "in vain", "p99/deadline", "failed after", "recovery, ms"];
    println!("{:<20}{}", "", columns.map(|column| format!("{column:>15}")).concat());
    for &subject in &arguments.subjects {
        let values: [fn(&Measured) -> f64; 6] = [
            |measured| measured.capacity,
            |measured| measured.useful,
            |measured| measured.in_vain,
            |measured| measured.p99,
            |measured| measured.failed_after,
            |measured| measured.recovery,
        ];
        let cells = values.map(|value| format!("{:>15.2}", of(subject, value).unwrap_or(f64::NAN)));
        println!("{:<20}{}", subject.to_string(), cells.concat());
    }
    println!();
    let refusing = arguments.subjects.iter().filter(|subject| subject.refuses_late());
    let claims: Vec<Claim> = refusing
        .flat_map(|&subject| {
            let useful = Limit::AtLeast(0.95).judge(
                format!("{subject}: the useful work is at least 0.95 of the capacity"),
                of(subject, |measured| measured.useful),
            );
            let p99 = Limit::AtMost(1.0).judge(
                format!("{subject}: the p99 of the requests that are served is within the deadline"),
                of(subject, |measured| measured.p99),
            );
            [useful, p99]
        })
        .collect();
    claims.iter().for_each(|claim| println!("{claim}"));
    Ok(claims.iter().all(|claim| claim.holds == Some(true)))
}

async fn measure(arguments: &Overload, subject: Subject, seed: u64) -> Result<Measured, Failure> {
    let (connections, service) = (arguments.connections, arguments.service);
    let estimated = service.mul_f64(arguments.deadline);
    let capacity = {
        let opened = subjects::open(subject, connections, service, estimated).await?;
        warm_up(&opened.work, connections).await;
        capacity(&opened.work, connections, arguments.seconds / 4).await
    };
    // The service time is derived from the capacity, because a 5 ms timer may take up to a millisecond longer.
    let service = Duration::from_secs_f64(f64::from(connections) / capacity);
    let deadline = service.mul_f64(arguments.deadline);
    let opened = subjects::open(subject, connections, arguments.service, deadline).await?;
    warm_up(&opened.work, connections).await;
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);

    let arrivals = random.arrivals(capacity * arguments.load, arguments.seconds);
    let ended = requests(&opened.work, &arrivals, deadline).await;
    // Requests that arrive within the first two deadlines are left out, because the overload is still building up.
    let begun = (2 * deadline).min(arguments.seconds / 4);
    let measured: Vec<&Ended> = ended.iter().filter(|ended| ended.at >= begun).collect();
    let share = |of: &dyn Fn(&Ended) -> bool| {
        let count = measured.iter().filter(|ended| of(ended)).count() as f64;
        count / (capacity * (arguments.seconds - begun).as_secs_f64())
    };
    let of_deadline = |nanos: Option<u64>| nanos.map_or(f64::NAN, |nanos| nanos as f64 / deadline.as_nanos() as f64);
    let times = |is_done: bool| -> Vec<u64> {
        measured.iter().filter(|ended| ended.is_done == is_done).map(|ended| ended.took.as_nanos() as u64).collect()
    };
    let useful = share(&|ended| ended.is_done && ended.took <= deadline);
    let in_vain = share(&|ended| ended.is_done && ended.took > deadline);
    let p99 = of_deadline(percentile(&mut times(true), 0.99));
    let failed_after = of_deadline(percentile(&mut times(false), 0.5));

    let mut recoveries = Vec::new();
    for _ in 0..BURSTS {
        let (before, after) = (4 * deadline, 10 * deadline);
        let mut arrivals = random.arrivals(capacity * ORDINARY, before + after);
        let burst = (BURST * arguments.deadline * f64::from(connections)) as usize;
        let place = arrivals.partition_point(|(at, _)| *at < before);
        arrivals.splice(place..place, std::iter::repeat_n((before, true), burst));
        let ended = requests(&opened.work, &arrivals, deadline).await;
        let failed = ended
            .iter()
            .filter(|ended| !ended.is_of_burst && ended.at >= before && !(ended.is_done && ended.took <= deadline));
        recoveries.push(failed.map(|ended| (ended.at - before).as_secs_f64() * 1e3).fold(0.0, f64::max));
    }
    let recovery = median(&recoveries).unwrap_or(f64::NAN);
    Ok(Measured { subject: subject.to_string(), capacity, useful, in_vain, p99, failed_after, recovery })
}

/// Opens all connections.
async fn warm_up(work: &Work, connections: u32) {
    capacity(work, connections, Duration::from_millis(200)).await;
}

/// Returns how many requests a second are served if each connection has one task, which makes one request after
/// another.
async fn capacity(work: &Work, connections: u32, time: Duration) -> f64 {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let work = work.clone();
        tasks.spawn(async move {
            let mut count = 0_u32;
            // No request begins after this time.
            while begun.elapsed() < time {
                // No request comes close to this deadline.
                work(Instant::now() + Duration::from_secs(60)).await;
                count += 1;
            }
            f64::from(count) / begun.elapsed().as_secs_f64()
        });
    }
    tasks.join_all().await.into_iter().sum()
}

/// Makes requests at these instants, which are in order, and waits until all of them are done. The response time of a
/// request is measured from its instant, even if the generator is late.
async fn requests(work: &Work, arrivals: &[(Duration, bool)], deadline: Duration) -> Vec<Ended> {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for &(at, is_of_burst) in arrivals {
        if begun + at > Instant::now() {
            sleep_until(begun + at).await;
        }
        let work = work.clone();
        tasks.spawn(async move {
            let arrived = begun + at;
            let is_done = work(arrived + deadline).await;
            Ended { at, took: arrived.elapsed(), is_done, is_of_burst }
        });
    }
    tasks.join_all().await
}

/// Pseudo-random numbers (xorshift64*), so that all subjects in a round see the same arrivals, scaled to their
/// capacities.
struct Random(u64);

impl Random {
    /// Returns a number above 0 and at most 1.
    fn share(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Returns the instants at which requests arrive during `time`. The intervals between them are random, and the mean
    /// rate is `rate` requests a second.
    fn arrivals(&mut self, rate: f64, time: Duration) -> Vec<(Duration, bool)> {
        let mut at = 0.0;
        let next = || {
            at -= self.share().ln() / rate;
            (at < time.as_secs_f64()).then(|| (Duration::from_secs_f64(at), false))
        };
        std::iter::from_fn(next).collect()
    }
}
