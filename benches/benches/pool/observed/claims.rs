//! wharf's claims about the cost of observing it, next to the measurements.

use crate::Case;
use crate::load::LOADS;
use crate::rounds::{SPEED_UP, Sheet, TIME};
use crate::subjects::Subject;
use crate::subjects::observed::{Closure, Counts, Metered, Observed, Unmetered};

/// Prints every claim whose cases were measured.
pub fn print(sheet: &Sheet) {
    println!("\nClaims");
    let metrics = |case| sheet.ratio_of(case, Observed::<Metered>::NAME, Observed::<Unmetered>::NAME);
    // A wait is timed with two clock readings, which take 10 ns each. In return, the count and the times of waits are
    // exact.
    for case in [Case::Hit1Task.name(), Case::Hit2Tasks.name()].into_iter().chain(LOADS.map(|load| load.name)) {
        at_most(case, "metrics to no metrics", metrics(case), 1.10, "");
    }
    for subscriber in [Observed::<Closure>::NAME, Observed::<Counts>::NAME] {
        let (one, two) = (Case::Hit1Task.name(), Case::Hit2Tasks.name());
        at_most(one, subscriber, sheet.median(one, TIME, subscriber), 120.0, " ns");
        at_least(
            two,
            &format!("{subscriber}, throughput to that of 1 task"),
            sheet.median(two, SPEED_UP, subscriber),
            1.3,
        );
    }
}

fn at_most(case: &str, what: &str, measured: Option<f64>, limit: f64, unit: &str) {
    if let Some(measured) = measured {
        line(case, what, &format!("{measured:.2}{unit}"), &format!("at most {limit}{unit}"), measured <= limit);
    }
}

fn at_least(case: &str, what: &str, measured: Option<f64>, limit: f64) {
    if let Some(measured) = measured {
        line(case, what, &format!("{measured:.2}"), &format!("at least {limit}"), measured >= limit);
    }
}

/// Prints one claim.
pub fn line(case: &str, what: &str, measured: &str, claimed: &str, holds: bool) {
    let verdict = if holds { "held" } else { "NOT HELD" };
    println!("{case:<24}{what:<42}{measured:>12}   {claimed:<20}{verdict}");
}
