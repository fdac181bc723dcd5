//! The cost of a connection pool: wharf compared with other pools, with connections that cost nothing.
//!
//! `cargo bench` runs everything: first criterion's groups for the cases that time an operation, then all cases in
//! interleaved rounds. From the rounds it prints a table of medians and a table of ratios, and writes both to
//! `target/bench-ratios.json`. The groups follow one subject over time, and the rounds compare subjects.
//!
//! | case | what it shows | described in |
//! | --- | --- | --- |
//! | `hit/1-task` | a check-out and check-in without contention | `micro::hit_one_task` |
//! | `hit/2-tasks` | whether two threads disturb each other | `micro::hit_two_tasks` |
//! | `yield/64-tasks` | connections held across a suspension | `micro::yield_64_tasks` |
//! | `saturated/…` | throughput, waits and fairness with 100 tasks for each connection | `load` |
//! | `create-and-close` | the cost of opening and closing, without the connection itself | `micro::create_and_close` |
//! | `clear/1000-idle` | how long a clear blocks its caller | `micro::clear_1000_idle` |
//!
//! A subject is left out of the cases that it does not support; its module says why.
//!
//! A second series of rounds, `observed`, measures the same cases with metrics and subscribers; see the module
//! `observed`. A third series, `cores`, measures how they scale from one core to all cores; see the `cores` module.
//!
//! # Duration
//!
//! All of this takes about ten minutes on two cores; more cores make the `cores` series longer. `WHARF_BENCH_SECONDS`
//! sets a different length, in seconds; the default is 240. criterion's `--quick` has the same effect as 60, and also
//! makes criterion itself stop early. A filter, such as `hit` in `cargo bench --bench pool -- hit`, applies to
//! criterion's groups as a regular expression. In the rounds, it selects every "case/subject" that contains the
//! filter's text. The names of the second series' cases begin with "observed/", and the names of the third series'
//! cases with "cores/". So the filter `observed` or `cores` selects only the series with that name.
//! `cargo test --benches` runs every case once, as a check.

mod cores;
mod load;
mod micro;
mod observed;
mod rounds;
mod subjects;

use std::env;
use std::marker::PhantomData;
use std::time::Duration;

use criterion::{Criterion, SamplingMode};

use load::{LOADS, LOADS_ON_FOUR_WORKERS, Length, Load, Throughput, Waits};
use micro::Run;
use rounds::{Plan, Sheet};
use subjects::{Clear, Create, Queue, Subject};

/// Returns the subjects in the order of the columns, each with the cases that it supports besides the hits.
fn entries() -> Vec<Entry> {
    vec![
        Entry::of::<subjects::wharf::Wharf>().queues().creates().clears().done(),
        Entry::of::<subjects::floor::Floor>().clears().runs_alone().done(),
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
        Task::Test => {
            test_loads(&entries);
            observed::test();
            cores::test();
        }
        Task::Measure => {
            let plan = arguments.plan();
            let sheet = rounds::run(&entries, &plan, |case, subject| arguments.selects(&format!("{case}/{subject}")));
            report(&sheet, "The pools", "bench-ratios.json");
            observed::measure(&arguments, &plan);
            cores::measure(&arguments, &plan);
        }
    }
}

/// Prints the measurements, if any, and writes them to a file in the target directory.
fn report(sheet: &Sheet, title: &str, file: &str) {
    if sheet.is_empty() {
        return;
    }
    sheet.print(title);
    match sheet.write(file) {
        Ok(path) => println!("\nWritten to {}", path.display()),
        Err(error) => eprintln!("\nThe table could not be written: {error}"),
    }
}

/// Runs criterion's groups: one for each case that times an operation.
fn groups(criterion: &mut Criterion, entries: &[Entry], arguments: &Arguments) {
    for case in Case::ALL {
        let mut group = criterion.benchmark_group(case.name());
        group.sampling_mode(SamplingMode::Flat);
        if case == Case::Clear1000Idle {
            // Filling a pool takes many times as long as clearing it, but criterion measures only the clearing.
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

/// Runs each saturated case once, briefly. criterion has run the other cases.
fn test_loads(entries: &[Entry]) {
    let length = Length {
        warm_up: Duration::from_millis(1),
        measured: Duration::from_millis(5),
        wind_down: Duration::from_millis(100),
    };
    for load in LOADS.into_iter().chain(LOADS_ON_FOUR_WORKERS) {
        for entry in entries {
            if let Some(throughput) = entry.throughput {
                throughput(load, length);
                if let Some(waits) = entry.waits {
                    waits(load, length);
                }
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

/// A type-erased subject: the functions that were compiled for it.
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

    /// Returns the function that prepares the case, if the subject supports it.
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
    fn queues(self) -> Self
    where
        S: Queue,
    {
        let mut this = self.counts();
        this.entry.waits = Some(load::waits::<S>);
        this
    }

    /// Adds the saturated cases to the subject, but only for the rounds that count.
    fn counts(mut self) -> Self
    where
        S: Queue,
    {
        self.entry.throughput = Some(load::throughput::<S>);
        self
    }

    /// Makes the subject show the cost of the runtime alone in the saturated cases.
    fn runs_alone(mut self) -> Self {
        self.entry.throughput = Some(load::floor);
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

/// What runs after criterion's groups.
enum Task {
    /// Nothing: criterion was asked to list, to profile, or to compare with saved results.
    CriterionOnly,
    Test,
    Measure,
}

/// The part of the command line that concerns the rounds. criterion also reads the command line, and reports unknown
/// arguments.
struct Arguments {
    task: Task,
    seconds: f64,
    filter: Option<String>,
}

impl Arguments {
    /// The duration that the numbers in [`Arguments::plan`] add up to.
    const USUAL_SECONDS: f64 = 240.0;
    const QUICK_SECONDS: f64 = 60.0;

    fn parse() -> Self {
        /// The criterion options that take no value.
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
                // An option's value is not a filter.
                arguments.next();
            }
        }
        // criterion decides this the same way: `cargo test` does not pass `--bench`.
        let task = match (criterion_only, bench && !test) {
            (true, _) => Task::CriterionOnly,
            (false, true) => Task::Measure,
            (false, false) => Task::Test,
        };
        let asked = env::var("WHARF_BENCH_SECONDS").ok().map(|seconds| match seconds.parse::<f64>() {
            Ok(seconds) if seconds >= 1.0 => seconds,
            _ => panic!("WHARF_BENCH_SECONDS must be at least 1 second, got {seconds:?}"),
        });
        let seconds = asked.unwrap_or(if quick { Self::QUICK_SECONDS } else { Self::USUAL_SECONDS });
        Self { task, seconds, filter }
    }

    /// Returns whether the filter selects the case.
    fn selects(&self, case: &str) -> bool {
        self.filter.as_deref().is_none_or(|filter| case.contains(filter))
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
            loads: LOADS.into_iter().chain(LOADS_ON_FOUR_WORKERS).collect(),
        }
    }

    fn scaled(&self, usual: Duration) -> Duration {
        usual.mul_f64(self.seconds / Self::USUAL_SECONDS)
    }
}
