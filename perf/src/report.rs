//! The tables.

use crate::alternation::Turns;
use crate::arguments::Comparison;
use crate::child::CellResult;
use crate::cold_start::{self, ColdResult};
use crate::comparison::Measurements;
use crate::statistics::{median, quartiles};
use crate::subjects::Kind;

/// A number that is derived from a measurement under load.
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

/// Numbers that are derived from a cold start.
pub const COLD_TIME: fn(&ColdResult) -> f64 = |start| start.seconds * 1e3;
pub const COLD_OPENED: fn(&ColdResult) -> f64 = |start| start.opened as f64;

/// Prints everything except the claims.
pub fn print(arguments: &Comparison, measurements: &Measurements) {
    println!(
        "Medians of all turns of {} rounds. In brackets: the ratio to the floor in the same turn (to the official driver",
        arguments.rounds
    );
    println!("in the cold start), its median and its quartiles.");
    for &tasks in &arguments.tasks {
        print_load(arguments, measurements, tasks);
    }
    if arguments.cold_tasks > 0 {
        print_cold_start(arguments, "on shared cores", &measurements.cold_starts);
        if !measurements.cold_starts_apart.is_empty() {
            print_cold_start(arguments, "on cores of their own", &measurements.cold_starts_apart);
        }
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
            print!("{:<36}", compared(&measurements.cells, tasks, value, subject, Kind::Floor));
        }
        println!();
    }
    for &subject in &arguments.subjects {
        let opened: i64 = measurements.cells.of(tasks, subject).map(|(_, cell)| cell.opened).sum();
        if opened > 0 {
            println!("  {subject} opened {opened} connections while it was measured: it had not settled.");
        }
    }
}

fn print_cold_start(arguments: &Comparison, cores: &str, turns: &Turns<ColdResult>) {
    println!("\ncold start of {} tasks, server and clients {cores}", arguments.cold_tasks);
    print!("{:<32}", "");
    arguments.subjects.iter().for_each(|&subject| print!("{:<36}", cold_start::name(subject)));
    println!();
    for (name, value) in [("until all are done, ms", COLD_TIME), ("connections opened", COLD_OPENED)] {
        print!("{name:<32}");
        for &subject in &arguments.subjects {
            print!("{:<36}", compared(turns, arguments.cold_tasks, value, subject, Kind::Official));
        }
        println!();
    }
}

/// Prints a line of a table.
pub fn print_row<C: ToString>(name: &str, cells: impl Iterator<Item = C>) {
    let cells: String = cells.map(|cell| format!("{:<36}", cell.to_string())).collect();
    println!("{}", format!("{name:<32}{cells}").trim_end());
}

/// Formats the median of a subject's turns, with the ratio to another subject.
pub fn compared<R>(turns: &Turns<R>, tasks: u32, value: fn(&R) -> f64, subject: Kind, to: Kind) -> String {
    let shown = plainly(median(&turns.values(tasks, value, subject)));
    let ratios = turns.ratios(tasks, value, subject, to);
    match (median(&ratios), quartiles(&ratios)) {
        (Some(ratio), Some((lower, upper))) if subject != to => {
            format!("{shown} [{ratio:.3}, {lower:.3} to {upper:.3}]")
        }
        _ => shown,
    }
}

/// Formats a value with three to five digits.
pub fn plainly(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.is_nan() => "-".to_owned(),
        Some(value) if value == value.trunc() || value >= 1_000.0 => format!("{value:.0}"),
        Some(value) if value >= 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
    }
}
