//! The output for the user: progress and results.

use std::fmt;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use wharf::client::{ClientStatus, ServerStatus};
use wharf::metrics::{Histogram as Times, PoolMetrics};
use wharf::telemetry::Counts;

use crate::events::{self, Written};
use crate::load::Results;

/// The terminal width that the report fits into.
const COLUMNS: usize = 80;

/// Live lines on a terminal, or else lines every second: one for the load, and one for each server. They go to standard
/// error.
pub struct Progress {
    bar: Option<ProgressBar>,
    last: (Duration, u64),
}

impl Progress {
    pub fn new(time: Duration) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:8} {msg}").expect("the template is valid");
            ProgressBar::new(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).with_style(style)
        });
        Self { bar, last: (Duration::ZERO, 0) }
    }

    /// Returns how often to show the progress.
    pub fn pace(&self) -> Duration {
        Duration::from_millis(if self.bar.is_some() { 250 } else { 1_000 })
    }

    pub fn show(&mut self, elapsed: Duration, operations: u64, status: &ClientStatus) {
        let (then, before) = std::mem::replace(&mut self.last, (elapsed, operations));
        let rate = (operations - before) as f64 / (elapsed - then).as_secs_f64().max(1e-3);
        let mut lines = format!("{:.1} s {:>9}/s", elapsed.as_secs_f64(), grouped(rate as u64));
        for server in &status.servers {
            lines.push('\n');
            lines.push_str(&server_line(server));
        }
        match &self.bar {
            None => eprintln!("{lines}"),
            Some(bar) => {
                bar.set_position(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
                bar.set_message(lines);
            }
        }
    }

    pub fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Describes a server and its pool on a line that fits the terminal.
fn server_line(server: &ServerStatus) -> String {
    let line = format!("  {:<21} {:<11}", server.address, server.server_type);
    let Some(pool) = &server.pool else { return line.trim_end().to_owned() };
    format!(
        "{line} {} in use, {} idle, {} pending, {} waiting",
        pool.in_use, pool.available, pool.pending, pool.waiting
    )
}

/// The results as printed.
pub struct Table<'r> {
    pub results: &'r Results,
    /// The servers at the end of the run.
    pub status: &'r ClientStatus,
    /// The pools at the end of the run.
    pub pools: &'r [PoolMetrics],
    pub counts: Counts,
    pub took: Duration,
    /// The number of tasks that used the client.
    pub tasks: u32,
    /// `maxPoolSize`: the maximum number of connections to one server that the tasks shared. 0 means no limit.
    pub most: u32,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { results, counts, took, .. } = self;
        let (operations, seconds) = (results.operations.len(), took.as_secs_f64());
        writeln!(f)?;
        let rate = grouped((operations as f64 / seconds) as u64);
        row(f, "operations", operations, &format!("{rate}/s for {seconds:.1} s"))?;
        row(f, "errors", results.errors.values().map(|(count, _)| count).sum(), "")?;
        for (kind, (count, example)) in &results.errors {
            row(f, &format!("  {kind}"), *count, "")?;
            wrapped(f, "    ", &format!("for example: {example}"))?;
        }
        row(f, "repeated", self.repeated(), "after a failed attempt")?;
        let gap = u64::try_from(results.successes.longest_gap().as_nanos()).unwrap_or(u64::MAX);
        let gap = if gap == 0 { "below 10 ms".to_owned() } else { time(gap) };
        writeln!(f, "{:<38}{gap:>14}", "longest time without a success")?;
        row(f, "connections created", counts.connection_created, "")?;

        writeln!(f, "\n{:<20}{:>10}{:>10}{:>10}{:>10}{:>10}", "latency", "p50", "p90", "p99", "p99.9", "max")?;
        latencies(f, "operation", |quantile| self.operation_time(quantile).map(time))?;
        let name = if results.errors.is_empty() { "  its check-out" } else { "all check-outs" };
        latencies(f, name, |quantile| self.check_out_time(quantile))?;
        self.explain(f)?;

        writeln!(f, "\n{:<33}{:>12}{:>10}{:>12}{:>10}", "server", "type", "created", "check-outs", "at once")?;
        for pool in self.pools {
            let server = self.status.servers.iter().find(|server| server.address == pool.address);
            let (address, kind) = (&*pool.address, server.map_or("-", |server| server.server_type));
            let (created, all) = (grouped(pool.connections.created), pool.check_outs.succeeded());
            let at_once = match all {
                0 => "-".to_owned(),
                _ => format!("{:.1} %", pool.check_outs.hits as f64 / all as f64 * 100.0),
            };
            writeln!(f, "{:<33}{kind:>12}{created:>10}{:>12}{at_once:>10}", format!("  {address}"), grouped(all))?;
        }

        writeln!(f, "\nevents")?;
        for (name, count) in counts.iter() {
            row(f, &format!("  {name}"), count, "")?;
        }
        writeln!(f)
    }
}

impl Table<'_> {
    /// Returns how many attempts were retries: the attempts that got a connection, minus one for each operation.
    fn repeated(&self) -> u64 {
        let attempts: u64 = self.pools.iter().map(|pool| pool.check_outs.succeeded()).sum();
        let sent = |kind: &str| kind.starts_with("command: ");
        let errors = self.results.errors.iter().filter(|(kind, _)| sent(kind)).map(|(_, (count, _))| count);
        attempts.saturating_sub(self.results.operations.len() + errors.sum::<u64>())
    }

    /// Returns the time within which this fraction of all operations completed.
    fn operation_time(&self, quantile: f64) -> Option<u64> {
        let operations = &self.results.operations;
        (!operations.is_empty()).then(|| operations.value_at_quantile(quantile))
    }

    /// Returns the time within which this fraction of all check-outs completed, including check-outs that found a
    /// connection at once.
    ///
    /// It exceeds the true time by at most 3.2 %. Without errors, each check-out is part of an operation, whose time is
    /// more exact: the result is then at most that time.
    fn check_out_time(&self, quantile: f64) -> Option<String> {
        let most = self.operation_time(quantile).filter(|_| self.results.errors.is_empty()).unwrap_or(u64::MAX);
        let (mut at_once, mut others) = (0, Times::default());
        for pool in self.pools {
            at_once += pool.check_outs.hits;
            others.merge(&pool.check_outs.wait_time());
        }
        let rank = ((at_once + others.count()) as f64 * quantile).ceil() as u64;
        match rank.checked_sub(at_once) {
            _ if at_once + others.count() == 0 => None,
            None | Some(0) => Some("at once".to_owned()),
            Some(rank) => {
                let waited = others.quantile(rank as f64 / others.count() as f64)?;
                Some(time(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX).min(most)))
            }
        }
    }

    /// Explains why operations take long if tasks share connections.
    fn explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tasks, most) = (self.tasks, self.most);
        if most == 0 || tasks < most.saturating_mul(2) || self.results.operations.is_empty() {
            return Ok(());
        }
        let text = format!(
            "{} tasks share {} connections, so a check-out waits while about {} other tasks have their turn. \
             --tasks {most} shows operations that do not wait.",
            grouped(tasks.into()),
            grouped(most.into()),
            grouped((tasks / most - 1).into()),
        );
        wrapped(f, "  ", &text)
    }
}

/// The outcome of the event file, as printed.
pub struct Events<'e> {
    pub written: &'e Written,
    pub path: &'e Path,
}

impl fmt::Display for Events<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Written { events, bytes, dropped } = self.written;
        writeln!(f, "Wrote {} events ({} bytes) to {}.", grouped(*events), grouped(*bytes), self.path.display())?;
        if *dropped > 0 {
            let (dropped, room) = (grouped(*dropped), grouped(events::ROOM as u64));
            let text = format!("Dropped {dropped} events, because the file was {room} events behind the pool.");
            wrapped(f, "", &text)?;
        }
        Ok(())
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, count: u64, remark: &str) -> fmt::Result {
    let count = grouped(count);
    writeln!(f, "{}", format!("{name:<38}{count:>14}  {remark}").trim_end())
}

/// Writes a text on lines that are indented and fit the terminal. A word that is longer than a line is cut into pieces.
fn wrapped(f: &mut fmt::Formatter<'_>, indent: &str, text: &str) -> fmt::Result {
    let most = COLUMNS - indent.len();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for piece in letters.chunks(most) {
            if !line.is_empty() && line.chars().count() + 1 + piece.len() > most {
                writeln!(f, "{indent}{line}")?;
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.extend(piece);
        }
    }
    writeln!(f, "{indent}{line}")
}

fn latencies(f: &mut fmt::Formatter<'_>, name: &str, of: impl Fn(f64) -> Option<String>) -> fmt::Result {
    write!(f, "{name:<20}")?;
    for quantile in [0.5, 0.9, 0.99, 0.999, 1.0] {
        write!(f, "{:>10}", of(quantile).unwrap_or_else(|| "-".to_owned()))?;
    }
    writeln!(f)
}

/// Formats a duration in the unit that keeps the number short.
fn time(nanos: u64) -> String {
    let nanos = nanos as f64;
    match nanos {
        ..1e3 => format!("{nanos} ns"),
        ..1e6 => format!("{:.1} µs", nanos / 1e3),
        ..1e9 => format!("{:.1} ms", nanos / 1e6),
        _ => format!("{:.1} s", nanos / 1e9),
    }
}

/// Formats a number with thousands separators.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf::Client;
    use wharf::telemetry::EventCounts;

    fn results(operations: u64, nanos: u64) -> Results {
        let mut results = Results::new();
        results.operations.record_n(nanos, operations).unwrap();
        results
    }

    fn printed(results: &Results, tasks: u32, most: u32, took: Duration) -> String {
        let status = Client::from_uri("mongodb://localhost").unwrap().status();
        let counts = EventCounts::new().snapshot();
        Table { results, status: &status, pools: &[], counts, took, tasks, most }.to_string()
    }

    #[test]
    fn table_fits_80_columns() {
        let mut results = results(86_400 * 9_999_999, 3_599_999_999_999);
        let long = format!("connection 1 to {}:27017 could not be established: refused", "ä".repeat(200));
        results.errors.insert("check-out: no connection established", (u64::from(u32::MAX), long.clone()));
        let printed = printed(&results, 1_000_000, 1_000, Duration::from_secs(86_400));
        for line in printed.lines() {
            assert!(line.chars().count() <= COLUMNS, "{line:?}");
        }
        assert!(printed.contains("9,999,999/s for 86400.0 s"), "{printed}");
        let joined: String = printed.split_whitespace().collect();
        assert!(joined.contains(&long.replace(' ', "")), "{printed}");
    }

    #[test]
    fn shared_connections_are_explained_below_the_check_outs() {
        let printed = |tasks, most| printed(&results(1, 20_000_000), tasks, most, Duration::from_secs(5));
        let flat = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let told =
            "4,000 tasks share 100 connections, so a check-out waits while about 39 other tasks have their turn.";
        assert!(flat(printed(4_000, 100)).contains(told), "{}", printed(4_000, 100));
        for (tasks, most) in [(4_000, 0), (199, 100), (50, 100)] {
            assert!(!printed(tasks, most).contains("share"), "{tasks} of {most}");
        }
    }

    #[test]
    fn dropped_events_are_reported() {
        let path = Path::new("events.jsonl");
        let print = |dropped| Events { written: &Written { events: 1_234, bytes: 56_789, dropped }, path }.to_string();
        assert_eq!(print(0), "Wrote 1,234 events (56,789 bytes) to events.jsonl.\n");
        assert!(print(1_000).contains("Dropped 1,000 events, because"), "{}", print(1_000));
    }
}
