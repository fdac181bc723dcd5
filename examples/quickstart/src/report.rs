//! The output for the user: progress and results.

use std::fmt;
use std::io::{self, IsTerminal};
use std::time::Duration;

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use wharf::PoolStatus;
use wharf::telemetry::Counts;

use crate::load::Results;

/// A live line on a terminal, and otherwise a line per second. Both go to standard error.
pub struct Progress {
    bar: Option<ProgressBar>,
    last: (Duration, u64),
}

impl Progress {
    pub fn new(time: Duration) -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:8} {wide_msg}").expect("the template is valid");
            ProgressBar::new(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).with_style(style)
        });
        Self { bar, last: (Duration::ZERO, 0) }
    }

    /// Returns how often to show the progress.
    pub fn pace(&self) -> Duration {
        Duration::from_millis(if self.bar.is_some() { 250 } else { 1_000 })
    }

    pub fn show(&mut self, elapsed: Duration, operations: u64, status: &PoolStatus) {
        let (then, before) = std::mem::replace(&mut self.last, (elapsed, operations));
        let rate = (operations - before) as f64 / (elapsed - then).as_secs_f64().max(1e-3);
        let PoolStatus { in_use, available, pending, waiting, .. } = status;
        // Beside the bar, the line fits a terminal of 80 columns.
        let line = format!(
            "{:.1} s {:>9}/s; {in_use} in use, {available} available, {pending} pending, {waiting} waiting",
            elapsed.as_secs_f64(),
            grouped(rate as u64),
        );
        match &self.bar {
            None => eprintln!("{line}"),
            Some(bar) => {
                bar.set_position(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
                bar.set_message(line);
            }
        }
    }

    pub fn end(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The results, as they are printed.
pub struct Table<'r> {
    pub results: &'r Results,
    pub counts: Counts,
    pub took: Duration,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { results, counts, took } = self;
        let (operations, seconds) = (results.check_outs.len(), took.as_secs_f64());
        writeln!(f)?;
        let rate = grouped((operations as f64 / seconds) as u64);
        row(f, "operations", operations, &format!("{rate} a second for {seconds:.2} s"))?;
        row(f, "errors", results.errors.values().map(|(count, _)| count).sum(), "")?;
        for (kind, (count, example)) in &results.errors {
            row(f, &format!("  {kind}"), *count, "")?;
            writeln!(f, "    for example: {example}")?;
        }
        row(f, "connections created", counts.connection_created, "")?;

        writeln!(f, "\n{:<20}{:>10}{:>10}{:>10}{:>10}{:>10}", "latency", "p50", "p90", "p99", "p99.9", "max")?;
        latencies(f, "check-out", &results.check_outs)?;
        latencies(f, "command", &results.commands)?;

        writeln!(f, "\nevents")?;
        for (name, count) in counts.iter() {
            row(f, &format!("  {name}"), count, "")?;
        }
        writeln!(f)
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, count: u64, remark: &str) -> fmt::Result {
    let count = grouped(count);
    writeln!(f, "{}", format!("{name:<40}{count:>14}  {remark}").trim_end())
}

fn latencies(f: &mut fmt::Formatter<'_>, name: &str, nanos: &Histogram<u64>) -> fmt::Result {
    write!(f, "{name:<20}")?;
    for quantile in [0.5, 0.9, 0.99, 0.999, 1.0] {
        let text = if nanos.is_empty() { "-".to_owned() } else { time(nanos.value_at_quantile(quantile)) };
        write!(f, "{text:>10}")?;
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
