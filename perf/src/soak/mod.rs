//! A soak test: it uses everything that a pool offers, all at once and for a long time. Afterwards, nothing may be
//! lost, left over or still in use.
//!
//! The first half uses connections that cost nothing, and the second half uses a mongod that is killed and stopped.

mod dummies;
mod mongod;

use std::fs;
use std::time::{Duration, Instant};

use clap::Args;
use wharf::metrics::PoolMetrics;

use crate::Failure;
use crate::arguments::seconds;
use crate::claims::{Claim, Limit};
use crate::client::resident;
use crate::report::{plainly, print_row};

/// The time after which an operation is considered hung.
const PATIENCE: Duration = Duration::from_secs(60);
/// The fraction of each half after which the memory should no longer grow.
const WARM_UP: f64 = 0.2;
/// How much more memory a half may use at the end than after the warm-up, in mebibytes. In a short run, the memory
/// grows by a third of this. In a full run, a leak of one byte per hundred uses amounts to ten times as much.
const GROWTH: f64 = 1.0;
const MEBIBYTE: f64 = 1024.0 * 1024.0;

#[derive(Debug, Args)]
pub struct Soak {
    /// How long the soak runs, in seconds: one half without a server, and one half with a mongod.
    #[arg(long, default_value = "3600", value_parser = seconds)]
    seconds: Duration,
    /// The same length in minutes.
    #[arg(long, conflicts_with = "seconds", value_parser = clap::value_parser!(u32).range(1..=24 * 60))]
    minutes: Option<u32>,
    /// The number of check-outs after which the half without a server ends early.
    #[arg(long, default_value_t = 1_000_000_000)]
    check_outs: u64,
}

/// The counts from one half of the soak.
struct Half {
    name: &'static str,
    took: Duration,
    /// Successful check-outs, or commands.
    served: u64,
    /// Clears, resizes, restarts and other disturbances.
    disturbances: u64,
    errors: u64,
    /// The errors without a known cause. In the half with a mongod, an absent server is a known cause.
    unexpected_errors: u64,
    cancelled: u64,
    /// Uses of a connection that already had a user, or replies that belonged to another command.
    given_twice: u64,
    /// Connections that the pools allow, but that could not be checked out at the end.
    lost: u64,
    /// The metrics of the open pools at the end, when all connections had been returned.
    metrics: Vec<PoolMetrics>,
    /// Connections that existed after the pools were closed.
    left: u64,
    memory: Span<f64>,
    descriptors: Span<usize>,
}

/// A value at the beginning and at the end.
struct Span<T> {
    before: T,
    after: T,
}

/// Runs both halves, and prints their counts and the claims. Returns whether all claims hold.
pub fn run(arguments: &Soak) -> Result<bool, Failure> {
    let length = arguments.minutes.map_or(arguments.seconds, |minutes| Duration::from_secs(60) * minutes) / 2;
    let halves = [dummies::soak(length, arguments.check_outs)?, mongod::soak(length)?];
    print(&halves);
    println!("\nClaims");
    let claims: Vec<Claim> = halves.iter().flat_map(Half::claims).collect();
    claims.iter().for_each(|claim| println!("  {claim}"));
    Ok(claims.iter().all(|claim| claim.holds == Some(true)))
}

fn print(halves: &[Half]) {
    print_row("", halves.iter().map(|half| half.name));
    let row = |name, value: fn(&Half) -> f64| print_row(name, halves.iter().map(|half| plainly(Some(value(half)))));
    row("seconds", |half| half.took.as_secs_f64());
    row("uses", |half| half.served as f64);
    row("uses that waited", |half| half.sum(|of| of.check_outs.waited.count()));
    row("uses that opened a connection", |half| half.sum(|of| of.check_outs.opened.count()));
    row("cancelled", |half| half.cancelled as f64);
    row("errors", |half| half.errors as f64);
    row("disturbances", |half| half.disturbances as f64);
    row("connections created", |half| half.sum(|of| of.connections.created));
    row("connections closed", |half| half.sum(|of| of.connections.closed.total()));
    row("connections open", |half| half.sum(|of| of.status.total.into()));
    row("memory after the warm-up, MiB", |half| half.memory.before / MEBIBYTE);
    row("memory at the end, MiB", |half| half.memory.after / MEBIBYTE);
    row("descriptors before", |half| half.descriptors.before as f64);
    row("descriptors after", |half| half.descriptors.after as f64);
}

impl Half {
    fn sum(&self, value: fn(&PoolMetrics) -> u64) -> f64 {
        self.metrics.iter().map(value).sum::<u64>() as f64
    }

    fn claims(&self) -> Vec<Claim> {
        let closed = |of: &PoolMetrics| of.connections.closed.total() + u64::from(of.status.total);
        let uncounted = self.metrics.iter().map(|of| of.connections.created.abs_diff(closed(of))).sum::<u64>();
        let mut claims: Vec<Claim> = [
            ("connections created, less those closed and open", uncounted as f64),
            ("connections given to two users", self.given_twice as f64),
            ("connections lost", self.lost as f64),
            ("connections in use at the end", self.sum(|of| of.status.in_use.into())),
            ("connections left after the close", self.left as f64),
            ("errors without a known cause", self.unexpected_errors as f64),
            ("descriptors more", self.descriptors.after as f64 - self.descriptors.before as f64),
        ]
        .map(|(text, found)| self.claim(text, Limit::AtMost(0.0), found))
        .into();
        claims.push(self.claim("uses", Limit::AtLeast(1.0), self.served as f64));
        let growth = (self.memory.after - self.memory.before) / MEBIBYTE;
        claims.push(self.claim("memory more at the end than after the warm-up, MiB", Limit::AtMost(GROWTH), growth));
        claims
    }

    fn claim(&self, text: &str, limit: Limit, found: f64) -> Claim {
        limit.judge(format!("{}: {text}: {limit}", self.name), Some(found))
    }
}

/// Returns the number of this process's descriptors, once it is at most `most`, or [`PATIENCE`] has passed.
fn descriptors(most: usize) -> Result<usize, Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        // Each reading includes the directory's own descriptor.
        let open = fs::read_dir("/proc/self/fd")?.count();
        if open <= most || Instant::now() >= until {
            return Ok(open);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until the warm-up for a half of this length ends, or until `is_over` returns true. Then returns the process's
/// memory.
fn memory_after_warm_up(length: Duration, is_over: impl Fn() -> bool) -> Result<f64, Failure> {
    let until = Instant::now() + length.mul_f64(WARM_UP);
    while Instant::now() < until && !is_over() {
        std::thread::sleep(Duration::from_millis(20));
    }
    resident()
}
