//! The cost of observing a pool: metrics, events, holder accounting.
//!
//! The first part measures some cases of the comparison again, in separate interleaved rounds: hits, tasks that yield,
//! and saturated pools. The subjects are:
//!
//! | subject | what observes it |
//! | --- | --- |
//! | `unmetered` | nothing: wharf compiled without metrics, for this comparison only |
//! | `wharf` | its metrics, which are always on |
//! | `+closure` | also one trivial subscriber: a closure that hides the event from the compiler |
//! | `+counts` | also one subscriber that counts the events by kind (`EventCounts`) |
//! | `+holders` | also the accounting for holders, without a subscriber |
//! | `deadpool` | its metrics, and its caller, which reads the clock before and after `get` |
//! | `bb8` | its statistics, which are always on |
//! | `model` | a model of the official driver's pool, without I/O, with a trivial event handler |
//!
//! wharf's claims are about figures in this table, and are printed below it with the measured values.
//!
//! The second part consists of two scenarios with a slow subscriber: how long events from other calls hold up a call
//! (`held`), and how far a check-out exceeds its time limit (`late`).

mod claims;
mod held;
mod late;

use std::time::Duration;

use crate::load::LOADS;
use crate::rounds::{self, Plan};
use crate::subjects::Subject;
use crate::subjects::bb8::Bb8;
use crate::subjects::deadpool::Timed;
use crate::subjects::model::Model;
use crate::subjects::observed::{Closure, Counts, Holders, Metered, Observed, Slow, Unmetered};
use crate::{Arguments, Case, Entry, report, test_loads};

/// The duration of a scenario in a run of the usual length.
const SCENARIO: Duration = Duration::from_secs(4);

fn entries() -> Vec<Entry> {
    vec![
        Entry::of::<Observed<Unmetered>>().counts().done(),
        Entry::of::<Observed<Metered>>().counts().done(),
        Entry::of::<Observed<Closure>>().counts().done(),
        Entry::of::<Observed<Counts>>().counts().done(),
        Entry::of::<Observed<Holders>>().counts().done(),
        Entry::of::<Timed>().counts().done(),
        Entry::of::<Bb8>().counts().done(),
        Entry::of::<Model>().counts().done(),
    ]
}

/// Measures and prints the cases that the filter selects.
pub fn measure(arguments: &Arguments, plan: &Plan) {
    let plan = &Plan { loads: LOADS.to_vec(), ..plan.clone() };
    let sheet = rounds::run(&entries(), plan, |case, subject| arguments.selects(&format!("observed/{case}/{subject}")));
    report(&sheet, "Observed", "bench-observed.json");
    if !sheet.is_empty() {
        claims::print(&sheet);
    }
    scenarios(arguments.scaled(SCENARIO), |case| arguments.selects(&format!("observed/{case}")));
}

/// Runs everything once, briefly.
pub fn test() {
    let entries = entries();
    for entry in &entries {
        for case in Case::ALL {
            if let Some(prepare) = entry.run(case) {
                prepare()(1);
                println!("Testing observed/{}/{}\nSuccess", case.name(), entry.name);
            }
        }
    }
    test_loads(&entries);
    scenarios(Duration::from_millis(5), |_| true);
}

/// Runs the scenarios, and prints a line for each subject.
fn scenarios(length: Duration, selects: impl Fn(&str) -> bool) {
    /// wharf with the scenario's subscriber.
    type Wharf = Observed<Slow>;

    if selects("held") {
        held::print_heading(length);
        held::run::<Wharf>(length).print(Wharf::NAME);
        held::run::<Model>(length).print(Model::NAME);
    }
    if selects("late") {
        late::print_heading(length);
        let wharf = late::run::<Wharf>(length);
        wharf.print(Wharf::NAME);
        late::run::<Model>(length).print(Model::NAME);
        wharf.print_claim(Wharf::NAME);
    }
}
