//! The tables.

use crate::arguments::Comparison;
use crate::child::CellResult;
use crate::cold_start::{self, ColdResult};
use crate::comparison::Measurements;
use crate::statistics::{median, quartiles, range};
use crate::subjects::Kind;

/// What is asked of a measurement under load.
pub struct Metric {
    pub name: &'static str,
    pub value: fn(&CellResult) -> f64,
}

pub const CPU: Metric =
    Metric { name: "client CPU per operation, us", value: |cell| cell.cpu_seconds * 1e6 / cell.operations as f64 };
pub const THROUGHPUT: Metric =
    Metric { name: "operations per second", value: |cell| cell.operations as f64 / cell.seconds };
pub const P50: Metric = Metric { name: "latency p50, us", value: |cell| cell.p50_nanos as f64 / 1e3 };
pub const P99: Metric = Metric { name: "latency p99, us", value: |cell| cell.p99_nanos as f64 / 1e3 };

/// What is asked of a cold start.
pub const COLD_TIME: fn(&ColdResult) -> f64 = |start| start.seconds * 1e3;
pub const COLD_OPENED: fn(&ColdResult) -> f64 = |start| start.opened as f64;

/// Prints everything but the claims.
pub fn print(arguments: &Comparison, measurements: &Measurements) {
    println!(
        "Medians of all turns of {} rounds. In brackets: the ratio to the floor in the same turn,",
        arguments.rounds
    );
    println!("its median and its quartiles.");
    for &tasks in &arguments.tasks {
        print_load(arguments, measurements, tasks);
    }
    if arguments.cold_tasks > 0 {
        print_cold_start(arguments, measurements);
    }
    println!();
}

fn print_load(arguments: &Comparison, measurements: &Measurements, tasks: u32) {
    print!("\n{:<32}", format!("{tasks} task{}", if tasks == 1 { "" } else { "s" }));
    arguments.subjects.iter().for_each(|subject| print!("{subject:<36}"));
    println!();
    for Metric { name, value } in [CPU, THROUGHPUT, P50, P99] {
        print!("{name:<32}");
        for &subject in &arguments.subjects {
            let values: Vec<_> = measurements.of(tasks, subject).map(|(_, cell)| value(cell)).collect();
            let ratios = measurements.ratios(tasks, value, subject, Kind::Floor);
            let compared = match (median(&ratios), quartiles(&ratios)) {
                (Some(ratio), Some((lower, upper))) if subject != Kind::Floor => {
                    format!("{} [{ratio:.3}, {lower:.3} to {upper:.3}]", plainly(median(&values)))
                }
                _ => plainly(median(&values)),
            };
            print!("{compared:<36}");
        }
        println!();
    }
    for &subject in &arguments.subjects {
        let opened: i64 = measurements.of(tasks, subject).map(|(_, cell)| cell.opened).sum();
        if opened > 0 {
            println!("  {subject} opened {opened} connections while it was measured: it had not settled.");
        }
    }
}

fn print_cold_start(arguments: &Comparison, measurements: &Measurements) {
    print!("\n{:<32}", format!("cold start of {} tasks", arguments.cold_tasks));
    arguments.subjects.iter().for_each(|&subject| print!("{:<36}", cold_start::name(subject)));
    println!();
    for (name, value) in [("until all are done, ms", COLD_TIME), ("connections opened", COLD_OPENED)] {
        print!("{name:<32}");
        for &subject in &arguments.subjects {
            let values = measurements.cold(subject, value);
            let (least, greatest) = range(&values).unwrap_or_default();
            let shown =
                format!("{} ({} to {})", plainly(median(&values)), plainly(Some(least)), plainly(Some(greatest)));
            print!("{shown:<36}");
        }
        println!();
    }
}

/// Three to five digits.
fn plainly(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value == value.trunc() || value >= 1_000.0 => format!("{value:.0}"),
        Some(value) if value >= 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}
