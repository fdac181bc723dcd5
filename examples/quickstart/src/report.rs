//! The report that the user sees.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use wharf::client::ClientStatus;
use wharf::metrics::{Histogram as Times, PoolMetrics};
use wharf::telemetry::Counts;

use crate::events::{self, Written};
use crate::load::{Results, quantile};

/// The terminal width that the report fits into.
const COLUMNS: usize = 80;

/// The results as printed.
pub struct Table<'r> {
    pub results: &'r Results,
    /// The servers at the end of the run.
    pub status: &'r ClientStatus,
    /// The pools at the end of the run.
    pub pools: &'r [PoolMetrics],
    pub counts: Counts,
    /// The servers' events.
    pub happened: &'r [String],
    pub took: Duration,
    /// The number of tasks that used the client.
    pub tasks: u32,
    /// `maxPoolSize`: the maximum number of connections to one server that the tasks shared. 0 means no limit.
    pub most: u32,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { results, counts, took, .. } = self;
        let (operations, seconds) = (results.operations, took.as_secs_f64());
        writeln!(f)?;
        let rate = grouped((operations as f64 / seconds) as u64);
        row(f, "operations", operations, &format!("{rate}/s for {seconds:.1} s"))?;
        row(f, "errors", results.failures(), "")?;
        for (kind, (count, example)) in &results.errors {
            row(f, &format!("  {kind}"), *count, "")?;
            wrapped(f, "    ", &format!("for example: {example}"))?;
        }
        row(f, "repeated", self.repeated(), "after a failed attempt")?;
        writeln!(f, "{:<38}{:>14}", "longest time without a success", gap(results.successes.longest_gap().0))?;
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

        writeln!(f, "\nservers")?;
        for happened in self.happened {
            wrapped(f, "  ", happened)?;
        }
        writeln!(f, "\nevents")?;
        for (name, count) in counts.iter() {
            row(f, &format!("  {name}"), count, "")?;
        }
        writeln!(f)
    }
}

impl Table<'_> {
    /// Returns the results as JSON. Times are in microseconds.
    pub fn json(&self) -> Value {
        let micros = |fraction| self.operation_time(fraction).map(|nanos| nanos as f64 / 1e3);
        let errors = self.results.errors.iter();
        json!({
            "seconds": self.took.as_secs_f64(),
            "operations": self.results.operations,
            "p50": micros(0.5), "p99": micros(0.99), "longest": micros(1.0),
            "errors": errors.map(|(kind, (count, _))| ((*kind).to_owned(), Value::from(*count))).collect::<serde_json::Map<_, _>>(),
            "repeated": self.repeated(),
            "longest_gap": self.results.successes.longest_gap().0.as_micros() as u64,
            "connections_created": self.counts.connection_created,
            "events": self.happened,
        })
    }

    /// Returns how many attempts were retries: the attempts that got a connection, minus one for each operation.
    fn repeated(&self) -> u64 {
        let attempts: u64 = self.pools.iter().map(|pool| pool.check_outs.succeeded()).sum();
        let sent = |kind: &str| kind.starts_with("command: ");
        let errors = self.results.errors.iter().filter(|(kind, _)| sent(kind)).map(|(_, (count, _))| count);
        attempts.saturating_sub(self.results.operations + errors.sum::<u64>())
    }

    /// Returns the time within which this fraction of all operations completed.
    fn operation_time(&self, fraction: f64) -> Option<u64> {
        quantile(&self.results.times, fraction)
    }

    /// Returns the time within which this fraction of all check-outs completed, including check-outs that found a
    /// connection at once.
    ///
    /// The result exceeds the true time by at most 3.2 %. Without errors, each check-out is part of an operation, whose
    /// time is known more exactly. So the result is limited to the operation's time.
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

    /// Explains why operations take a long time if tasks share connections.
    fn explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tasks, most) = (self.tasks, self.most);
        if most == 0 || tasks < most.saturating_mul(2) || self.results.operations == 0 {
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

/// The report on the event file.
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

/// Writes text on indented lines that fit the terminal. A word that is longer than a line is cut into pieces.
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

/// Formats a gap, which is measured to a precision of 10 ms.
pub fn gap(gap: Duration) -> String {
    if gap.is_zero() { "below 10 ms".to_owned() } else { time(u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX)) }
}

/// Formats a duration in the unit that keeps the number short.
pub fn time(nanos: u64) -> String {
    let nanos = nanos as f64;
    match nanos {
        ..1e3 => format!("{nanos} ns"),
        ..1e6 => format!("{:.1} µs", nanos / 1e3),
        ..1e9 => format!("{:.1} ms", nanos / 1e6),
        _ => format!("{:.1} s", nanos / 1e9),
    }
}

/// Formats a number with thousands separators.
pub fn grouped(number: u64) -> String {
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
        results.record(nanos);
        results.operations = operations;
        results
    }

    fn printed(results: &Results, tasks: u32, most: u32, took: Duration) -> String {
        let status = Client::from_uri("mongodb://localhost").unwrap().status();
        let counts = EventCounts::new().snapshot();
        Table { results, status: &status, pools: &[], counts, happened: &[], took, tasks, most }.to_string()
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
