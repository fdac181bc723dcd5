//! The `cores` series: how pools scale from one core to all of them.
//!
//! Each case runs with N tokio workers on N cores, for N = 1, 2, 4 … up to all of the machine's cores. Each worker is
//! pinned to a separate core, and siblings on the same physical core come last. Each turn uses a fresh pool on a fresh
//! runtime. In each round, the subjects take one turn in each case.
//!
//! | case | what runs on N cores |
//! | --- | --- |
//! | `cores/hit/N` | N tasks, one on each worker, check out and in on a pool of 100 |
//! | `cores/yield/N` | 64·N tasks on a pool of 100·N hold their connection across a yield |
//! | `cores/saturated/1000-on-10/N` | 1,000 tasks on 10 connections, held across a yield |
//! | `cores/saturated/10000-on-100/N` | 10,000 tasks on 100 connections, held across a yield |
//! | `cores/elsewhere/N` | N tasks on a pool of 100·N; each connection is returned by the next worker's task |
//!
//! The time per operation is the wall-clock time divided by the operations of all tasks. If a case scales perfectly,
//! its time on N cores is 1/N of its time on one core. The speed-up is the throughput divided by the throughput on one
//! core in the same round.
//!
//! qp loses waiters, so it is left out of the saturated cases. In these cases, the floor consists of turns that tasks
//! pass on to each other; see `floor::Turns`.

mod machine;
mod tasks;

use std::time::Duration;

use crate::load::{LOADS, Length};
use crate::rounds::{Plan, Sheet, TIME};
use crate::subjects::{self, Queue, Subject};
use crate::{Arguments, report};
use machine::Machine;

/// Runs a case on this many cores. Returns nanoseconds per operation.
type Run = fn(&Machine, usize, Length) -> f64;

/// A type-erased subject: the cases that it supports, each with a function compiled for the subject.
struct Entry {
    name: &'static str,
    runs: Vec<(&'static str, Run)>,
}

impl Entry {
    fn of<S: Subject>() -> Self {
        let runs: Vec<(_, Run)> =
            vec![("hit", tasks::hit::<S>), ("yield", tasks::yields::<S>), ("elsewhere", tasks::elsewhere::<S>)];
        Self { name: S::NAME, runs }
    }

    fn floor() -> Self {
        let mut entry = Self::of::<subjects::floor::Floor>();
        entry.runs.push((LOADS[0].name, tasks::saturated_floor::<0>));
        entry.runs.push((LOADS[1].name, tasks::saturated_floor::<1>));
        entry
    }

    fn queues<S: Queue>() -> Self {
        let mut entry = Self::of::<S>();
        entry.runs.push((LOADS[0].name, tasks::saturated::<S, 0>));
        entry.runs.push((LOADS[1].name, tasks::saturated::<S, 1>));
        entry
    }

    fn run(&self, case: &str) -> Option<Run> {
        self.runs.iter().find(|(of, _)| *of == case).map(|(_, run)| *run)
    }
}

fn entries() -> Vec<Entry> {
    vec![
        Entry::queues::<subjects::wharf::Wharf>(),
        Entry::floor(),
        Entry::queues::<subjects::deadpool::Deadpool>(),
        Entry::queues::<subjects::bb8::Bb8>(),
        Entry::of::<subjects::qp::Qp>(),
        Entry::queues::<subjects::sqlx::Sqlx>(),
        Entry::queues::<subjects::kanal::Kanal>(),
    ]
}

const CASES: [&str; 5] = ["hit", "yield", LOADS[0].name, LOADS[1].name, "elsewhere"];

/// Measures and prints the cases that the filter selects.
pub fn measure(arguments: &Arguments, plan: &Plan) {
    let machine = Machine::this();
    let sheet = rounds(&machine, plan, |case, subject| arguments.selects(&format!("cores/{case}/{subject}")));
    if !sheet.is_empty() {
        println!("\n{machine}");
    }
    report(&sheet, "Cores", "bench-cores.json");
}

fn rounds(machine: &Machine, plan: &Plan, wanted: impl Fn(&str, &str) -> bool) -> Sheet {
    let entries = entries();
    let mut sheet = Sheet::of(entries.iter().map(|entry| entry.name).collect()).about("machine", machine.as_json());
    let steps = machine.steps();
    for round in 1..=plan.rounds {
        for case in CASES {
            for &step in &steps {
                let name = on(case, step);
                for (column, entry) in entries.iter().enumerate().filter(|(_, entry)| wanted(&name, entry.name)) {
                    if let Some(run) = entry.run(case) {
                        let nanos = run(machine, step, plan.load);
                        sheet.note(&name, TIME, column, nanos);
                        sheet.note(&name, "million per second", column, 1e3 / nanos);
                    }
                }
            }
        }
        if !sheet.is_empty() {
            eprintln!("cores: round {round} of {} is done", plan.rounds);
        }
    }
    for case in CASES {
        for &step in &steps[1..] {
            sheet.note_speed_up(&on(case, 1), &on(case, step));
        }
    }
    sheet
}

/// Runs everything once and briefly, on one core and on two.
pub fn test() {
    let machine = Machine::this();
    let length = Length {
        warm_up: Duration::from_millis(1),
        measured: Duration::from_millis(5),
        wind_down: Duration::from_millis(100),
    };
    for entry in entries() {
        for case in CASES {
            let Some(run) = entry.run(case) else { continue };
            for step in machine.steps().into_iter().filter(|&step| step <= 2) {
                // On a busy machine, the shortest time may pass before any operation completes.
                let longer = (0..8).map(|doublings| Length { measured: length.measured * (1 << doublings), ..length });
                let ended = longer.map(|length| run(&machine, step, length)).any(f64::is_finite);
                assert!(ended, "cores/{case}/{step}/{}: no operation ended", entry.name);
                println!("Testing cores/{}/{}\nSuccess", on(case, step), entry.name);
            }
        }
    }
}

/// Returns the name of a case on this many cores.
fn on(case: &str, cores: usize) -> String {
    format!("{case}/{cores}")
}
