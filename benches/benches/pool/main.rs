//! What a connection pool costs, wharf beside other pools, on connections that cost nothing.
//!
//! `cargo bench` runs everything: first criterion's groups for the cases that time an operation, then all cases in
//! interleaved rounds, from which it prints a table of medians and a table of ratios, and writes both to
//! `target/bench-ratios.json`. The groups are for following one subject over time, the rounds for comparing subjects.
//!
//! | case | what it tells | described in |
//! | --- | --- | --- |
//! | `hit/1-task` | a check-out and check-in with nobody else there | `micro::hit_one_task` |
//! | `hit/2-tasks` | whether two threads get in each other's way | `micro::hit_two_tasks` |
//! | `yield/64-tasks` | connections held across a suspension | `micro::yield_64_tasks` |
//! | `saturated/…` | throughput, waits and fairness with 100 tasks for each connection | `load` |
//! | `create-and-close` | what opening and closing cost besides the connection itself | `micro::create_and_close` |
//! | `clear/1000-idle` | how long the caller of a clear is kept | `micro::clear_1000_idle` |
//!
//! A subject that cannot do what a case asks takes no part in it; its module says why.
//!
//! # How long it takes
//!
//! About six minutes on two cores. `WHARF_BENCH_SECONDS` asks for another length, in seconds; criterion's `--quick`
//! is the same as 60, and makes criterion itself stop early. A filter, as in `cargo bench --bench pool -- hit`, applies
//! to criterion's groups as a regular expression and to the rounds as a part of "case/subject". `cargo test --benches`
//! runs every case once, to see that it works.

mod load;
mod micro;
mod rounds;
mod subjects;

use std::env;
use std::marker::PhantomData;
use std::time::Duration;

use criterion::{Criterion, SamplingMode};

use load::{LOADS, Length, Load, Throughput, Waits};
use micro::Run;
use rounds::Plan;
use subjects::{Clear, Create, Queue, Subject};

/// Who takes part, and in what besides the hits. The order is that of the columns.
fn entries() -> Vec<Entry> {
    vec![
        Entry::of::<subjects::wharf::Wharf>().queues().creates().clears().done(),
        Entry::of::<subjects::floor::Floor>().clears().done(),
        Entry::of::<subjects::deadpool::Deadpool>().queues().creates().clears().done(),
        Entry::of::<subjects::bb8::Bb8>().queues().creates().done(),
        Entry::of::<subjects::qp::Qp>().queues().creates().done(),
        Entry::of::<subjects::sqlx::Sqlx>().queues().creates().done(),
        Entry::of::<subjects::kanal::Kanal>().queues().clears().done(),
    ]
}

fn main() {
    let arguments = Arguments::parse();
    let entries = entries();
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(arguments.scaled(Duration::from_millis(300)))
        .measurement_time(arguments.scaled(Duration::from_millis(1_500)))
        .configure_from_args();
    groups(&mut criterion, &entries, &arguments);
    criterion.final_summary();

    match arguments.task {
        Task::CriterionOnly => {}
        Task::Test => test_loads(&entries),
        Task::Measure => {
            let sheet = rounds::run(&entries, &arguments.plan(), arguments.filter.as_deref());
            sheet.print();
            match sheet.write() {
                Ok(path) => println!("\nWritten to {}", path.display()),
                Err(error) => eprintln!("\nThe table could not be written: {error}"),
            }
        }
    }
}

/// criterion's groups: one for each case that times an operation.
fn groups(criterion: &mut Criterion, entries: &[Entry], arguments: &Arguments) {
    for case in Case::ALL {
        let mut group = criterion.benchmark_group(case.name());
        group.sampling_mode(SamplingMode::Flat);
        if case == Case::Clear1000Idle {
            // Filling a pool takes many times as long as clearing it, and criterion sees only the latter.
            group.measurement_time(arguments.scaled(Duration::from_millis(40)));
        }
        for entry in entries {
            if let Some(prepare) = entry.run(case) {
                group.bench_function(entry.name, |bencher| bencher.iter_custom(prepare()));
            }
        }
        group.finish();
    }
}

/// Runs each saturated case once, shortly. criterion has run the others.
fn test_loads(entries: &[Entry]) {
    let length = Length {
        warm_up: Duration::from_millis(1),
        measured: Duration::from_millis(5),
        wind_down: Duration::from_millis(100),
    };
    for load in LOADS {
        for entry in entries {
            if let (Some(throughput), Some(waits)) = (entry.throughput, entry.waits) {
                throughput(load, length);
                waits(load, length);
                println!("Testing {}/{}\nSuccess", load.name, entry.name);
            }
        }
    }
}

/// The cases that time an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Hit1Task,
    Hit2Tasks,
    Yield64Tasks,
    CreateAndClose,
    Clear1000Idle,
}

impl Case {
    const ALL: [Self; 5] =
        [Self::Hit1Task, Self::Hit2Tasks, Self::Yield64Tasks, Self::CreateAndClose, Self::Clear1000Idle];

    fn name(self) -> &'static str {
        match self {
            Self::Hit1Task => "hit/1-task",
            Self::Hit2Tasks => "hit/2-tasks",
            Self::Yield64Tasks => "yield/64-tasks",
            Self::CreateAndClose => "create-and-close",
            Self::Clear1000Idle => "clear/1000-idle",
        }
    }
}

/// A subject with its type forgotten: functions that were compiled for it.
struct Entry {
    name: &'static str,
    runs: Vec<(Case, fn() -> Run)>,
    throughput: Option<fn(Load, Length) -> Throughput>,
    waits: Option<fn(Load, Length) -> Waits>,
}

impl Entry {
    fn of<S: Subject>() -> EntryOf<S> {
        let runs: Vec<(Case, fn() -> Run)> = vec![
            (Case::Hit1Task, micro::hit_one_task::<S>),
            (Case::Hit2Tasks, micro::hit_two_tasks::<S>),
            (Case::Yield64Tasks, micro::yield_64_tasks::<S>),
        ];
        EntryOf { entry: Self { name: S::NAME, runs, throughput: None, waits: None }, subject: PhantomData }
    }

    /// How to prepare the case, if the subject takes part in it.
    fn run(&self, case: Case) -> Option<fn() -> Run> {
        self.runs.iter().find(|&&(of, _)| of == case).map(|&(_, run)| run)
    }
}

/// An entry that still knows its subject's type.
struct EntryOf<S> {
    entry: Entry,
    subject: PhantomData<S>,
}

impl<S: Subject> EntryOf<S> {
    fn queues(mut self) -> Self
    where
        S: Queue,
    {
        self.entry.throughput = Some(load::throughput::<S>);
        self.entry.waits = Some(load::waits::<S>);
        self
    }

    fn creates(mut self) -> Self
    where
        S: Create,
    {
        self.entry.runs.push((Case::CreateAndClose, micro::create_and_close::<S>));
        self
    }

    fn clears(mut self) -> Self
    where
        S: Clear,
    {
        self.entry.runs.push((Case::Clear1000Idle, micro::clear_1000_idle::<S>));
        self
    }

    fn done(self) -> Entry {
        self.entry
    }
}

/// What to do after criterion.
enum Task {
    /// Nothing: criterion was asked to list, to profile, or to compare with what it saved.
    CriterionOnly,
    Test,
    Measure,
}

/// What the command line says to the rounds. criterion reads it too, and complains about what it does not know.
struct Arguments {
    task: Task,
    seconds: f64,
    filter: Option<String>,
}

impl Arguments {
    /// The length that the numbers in [`Arguments::plan`] add up to.
    const USUAL_SECONDS: f64 = 240.0;
    const QUICK_SECONDS: f64 = 60.0;

    fn parse() -> Self {
        /// criterion's options that take no value.
        const FLAGS: [&str; 13] = [
            "--bench",
            "--test",
            "--quick",
            "--list",
            "--verbose",
            "--quiet",
            "--noplot",
            "--discard-baseline",
            "--exact",
            "--ignored",
            "--include-ignored",
            "--nocapture",
            "--show-output",
        ];
        const CRITERION_ONLY: [&str; 3] = ["--list", "--profile-time", "--load-baseline"];

        let (mut bench, mut test, mut quick, mut criterion_only, mut filter) = (false, false, false, false, None);
        let mut arguments = env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let name = argument.split('=').next().unwrap_or_default();
            bench |= name == "--bench";
            test |= name == "--test";
            quick |= name == "--quick";
            criterion_only |= CRITERION_ONLY.contains(&name);
            if !argument.starts_with('-') {
                filter = Some(argument);
            } else if !FLAGS.contains(&name) && !argument.contains('=') {
                // The value of an option is no filter.
                arguments.next();
            }
        }
        // As criterion decides it: `cargo test` does not say `--bench`.
        let task = match (criterion_only, bench && !test) {
            (true, _) => Task::CriterionOnly,
            (false, true) => Task::Measure,
            (false, false) => Task::Test,
        };
        let asked = env::var("WHARF_BENCH_SECONDS").ok().map(|seconds| match seconds.parse::<f64>() {
            Ok(seconds) if seconds >= 1.0 => seconds,
            _ => panic!("WHARF_BENCH_SECONDS is {seconds:?}, but must be a number of seconds, 1 or more"),
        });
        let seconds = asked.unwrap_or(if quick { Self::QUICK_SECONDS } else { Self::USUAL_SECONDS });
        Self { task, seconds, filter }
    }

    fn plan(&self) -> Plan {
        Plan {
            rounds: 9,
            turns: 3,
            slice: self.scaled(Duration::from_millis(60)),
            load: Length {
                warm_up: self.scaled(Duration::from_millis(40)),
                measured: self.scaled(Duration::from_millis(120)),
                wind_down: Duration::from_millis(200),
            },
        }
    }

    fn scaled(&self, usual: Duration) -> Duration {
        usual.mul_f64(self.seconds / Self::USUAL_SECONDS)
    }
}
