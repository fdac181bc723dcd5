//! Interleaved rounds, and the tables of medians and ratios that result from them.
//!
//! A single measurement of two threads means little on a small machine. It falls into one of two regimes, depending on
//! how the threads' cache lines bounce, and stays in it. So every case is measured in rounds, each with fresh pools on
//! fresh threads, and in each round the subjects take short turns (A B C, B C A, …). The order rotates with each round
//! and each turn, so that no subject always follows the same other subject. Each turn is compared with the baseline's
//! adjacent turn, and the result is the median of these ratios. As a result, anything that slows the machine down for a
//! while affects all subjects alike.
//!
//! Virtual machines also run at different speeds, depending on where the host places their processors. A neighbour on
//! the same physical core slows a processor down, and two processors that are far apart make every shared cache line
//! expensive. The row of speed-ups shows how much the second core adds. The floor's threads do not share anything, so
//! the floor's speed-up is the machine's speed-up.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::load::{Length, Load};
use crate::micro::Run;
use crate::{Case, Entry};

/// How much to measure.
#[derive(Clone)]
pub struct Plan {
    pub rounds: usize,
    /// How many turns each subject takes in each case of a round.
    pub turns: usize,
    /// The wall-clock time of a turn in a case that times an operation, including preparations.
    pub slice: Duration,
    /// The duration of a turn in a saturated case.
    pub load: Length,
    /// The saturated cases.
    pub loads: Vec<Load>,
}

/// Runs the rounds, with only the cases and subjects that are `wanted`.
pub fn run(entries: &[Entry], plan: &Plan, wanted: impl Fn(&str, &str) -> bool) -> Sheet {
    let mut sheet = Sheet::of(entries.iter().map(|entry| entry.name).collect());
    let wanted = |case: &str, entry: &Entry| wanted(case, entry.name);
    let mut cases = Case::ALL.iter().map(|case| case.name()).chain(plan.loads.iter().map(|load| load.name));
    if !cases.any(|case| entries.iter().any(|entry| wanted(case, entry))) {
        return sheet;
    }
    for round in 1..=plan.rounds {
        eprintln!("round {round} of {}", plan.rounds);
        for case in Case::ALL {
            let taking_part = entries.iter().enumerate().filter(|(_, entry)| wanted(case.name(), entry));
            let timed = taking_part
                .filter_map(|(column, entry)| Some((column, Timed::prepare(entry.run(case)?(), plan.slice))));
            let mut timed = rotated(timed.collect(), round);
            for _ in 0..plan.turns {
                for (column, timed) in &mut timed {
                    sheet.note(case.name(), TIME, *column, timed.turn(plan.slice));
                }
                timed = rotated(timed, 1);
            }
        }
        for (load, turn) in plan.loads.iter().flat_map(|&load| (0..plan.turns).map(move |turn| (load, turn))) {
            let taking_part = entries.iter().enumerate().filter(|(_, entry)| wanted(load.name, entry));
            let taking_part = rotated(taking_part.collect(), round + turn);
            for &(column, entry) in &taking_part {
                if let Some(throughput) = entry.throughput {
                    let outcome = throughput(load, plan.load);
                    sheet.note(load.name, TIME, column, outcome.nanos_per_op);
                    sheet.note(load.name, "Jain index", column, outcome.jain);
                    sheet.note(load.name, LOST, column, outcome.lost as f64);
                }
            }
            for &(column, entry) in &taking_part {
                if let Some(waits) = entry.waits {
                    let outcome = waits(load, plan.load);
                    sheet.note(load.name, "wait p50, us", column, outcome.p50);
                    sheet.note(load.name, "wait p99, us", column, outcome.p99);
                    sheet.note(load.name, "wait p999, us", column, outcome.p999);
                    sheet.note(load.name, "wait p99 / p50", column, outcome.p99 / outcome.p50);
                    sheet.note(load.name, "overtakes per 1,000", column, outcome.overtakes_per_thousand);
                }
            }
        }
    }
    sheet.note_speed_up(Case::Hit1Task.name(), Case::Hit2Tasks.name());
    sheet
}

/// Returns the subjects in a rotated order.
fn rotated<S>(mut subjects: Vec<S>, by: usize) -> Vec<S> {
    let by = by % subjects.len().max(1);
    subjects.rotate_left(by);
    subjects
}

/// A case that times an operation, ready for its turns.
struct Timed {
    run: Run,
    /// The number of operations that are timed together.
    batch: u64,
}

impl Timed {
    /// Doubles the batch until its operations take a tenth of the slice. This also warms the subject up. The second
    /// bound, on the time including preparations, is for operations with expensive preparations. It would not be enough
    /// on its own: for operations in several tasks, the time to start the tasks would determine the batch.
    fn prepare(mut run: Run, slice: Duration) -> Self {
        let mut batch = 1;
        loop {
            let start = Instant::now();
            if run(batch) * 10 >= slice || start.elapsed() >= slice {
                return Self { run, batch };
            }
            batch *= 2;
        }
    }

    /// Returns nanoseconds per operation, from as many operations as fit into the slice.
    fn turn(&mut self, slice: Duration) -> f64 {
        let (start, mut taken, mut done) = (Instant::now(), Duration::ZERO, 0);
        while done == 0 || start.elapsed() < slice {
            taken += (self.run)(self.batch);
            done += self.batch;
        }
        taken.as_nanos() as f64 / done as f64
    }
}

/// The measurements from the rounds.
pub struct Sheet {
    subjects: Vec<&'static str>,
    rows: Vec<Row>,
    /// Additional entries for the file.
    about: Map<String, Value>,
}

struct Row {
    case: String,
    what: &'static str,
    /// For each subject, one value per turn; empty if the subject does not support the case.
    values: Vec<Vec<f64>>,
}

/// The names of the row of times, and of the row that shows how much faster two tasks are than one.
pub const TIME: &str = "ns per operation";
pub const SPEED_UP: &str = "speed-up";
const LOST: &str = "lost tasks";

/// The candidates for the baseline, by which the other subjects' times are divided. The first candidate that supports
/// the case is the baseline.
const BASELINES: [&str; 4] = ["unmetered", "wharf", "floor", "deadpool"];

impl Sheet {
    /// Creates an empty sheet with a column for each subject.
    pub fn of(subjects: Vec<&'static str>) -> Self {
        Self { subjects, rows: Vec::new(), about: Map::new() }
    }

    /// Adds an entry to the file.
    pub fn about(mut self, name: &str, value: Value) -> Self {
        self.about.insert(name.to_owned(), value);
        self
    }

    /// Records a turn's value in the subject's column.
    pub fn note(&mut self, case: &str, what: &'static str, column: usize, value: f64) {
        let at = self.rows.iter().position(|row| row.case == case && row.what == what).unwrap_or_else(|| {
            self.rows.push(Row { case: case.to_owned(), what, values: vec![Vec::new(); self.subjects.len()] });
            self.rows.len() - 1
        });
        self.rows[at].values[column].push(value);
    }

    /// Records how much faster each subject is in the case `more` than in the case `one`, which shows the gain from
    /// more cores.
    pub fn note_speed_up(&mut self, one: &str, more: &str) {
        let times = |case: &str| self.rows.iter().find(|row| row.case == case && row.what == TIME);
        let (Some(slow), Some(fast)) = (times(one), times(more)) else { return };
        let (slow, fast) = (slow.values.clone(), fast.values.clone());
        for (column, (slow, fast)) in slow.into_iter().zip(fast).enumerate() {
            for (slow, fast) in slow.into_iter().zip(fast) {
                self.note(more, SPEED_UP, column, slow / fast);
            }
        }
    }

    /// Returns whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the median of a subject's turns.
    pub fn median(&self, case: &str, what: &str, subject: &str) -> Option<f64> {
        let (row, column) = self.find(case, what, subject)?;
        row.median(column)
    }

    /// Returns the median of the ratios of one subject's turns to another's adjacent turns.
    pub fn ratio_of(&self, case: &str, subject: &str, other: &str) -> Option<f64> {
        let (row, column) = self.find(case, TIME, subject)?;
        let (_, other) = self.find(case, TIME, other)?;
        row.ratio(column, other)
    }

    fn find(&self, case: &str, what: &str, subject: &str) -> Option<(&Row, usize)> {
        let row = self.rows.iter().find(|row| row.case == case && row.what == what)?;
        Some((row, self.subjects.iter().position(|&name| name == subject)?))
    }

    /// Prints the medians, and the ratios of the rows that are times.
    pub fn print(&self, title: &str) {
        println!("\n{title}: medians of the turns");
        self.print_table(|row, column| row.median(column).map(plainly));
        println!(
            "\n{title}: ratio to the baseline's time; more than 1 is slower (medians of the turns' ratios; * is the baseline)"
        );
        self.print_table(|row, column| {
            let ratio = self.ratio(row, column)?;
            Some(if self.baseline(row) == Some(column) { "*".to_owned() } else { plainly(ratio) })
        });
        for row in self.rows.iter().filter(|row| row.what == LOST) {
            for (column, subject) in self.subjects.iter().enumerate() {
                if row.median(column).is_some_and(|lost| lost > 0.0) {
                    println!(
                        "{subject} lost tasks in {}: its times are those of the tasks that it kept serving.",
                        row.case
                    );
                }
            }
        }
    }

    /// Writes medians, extremes and ratios as JSON to a file in the target directory.
    pub fn write(&self, file: &str) -> std::io::Result<PathBuf> {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
        fs::create_dir_all(&target)?;
        let path = target.join(file);
        let rows: Vec<Value> = self.rows.iter().map(|row| self.row_as_json(row)).collect();
        let mut all = self.about.clone();
        all.insert("subjects".to_owned(), json!(self.subjects));
        all.insert("rows".to_owned(), json!(rows));
        fs::write(&path, format!("{:#}\n", Value::Object(all)))?;
        Ok(path)
    }

    fn row_as_json(&self, row: &Row) -> Value {
        let by_subject = |value: &dyn Fn(usize) -> Option<f64>| {
            let columns = self.subjects.iter().enumerate();
            let values = columns.filter_map(|(column, &name)| Some((name.to_owned(), json!(value(column)?))));
            Value::Object(values.collect::<Map<_, _>>())
        };
        json!({
            "case": row.case,
            "what": row.what,
            "baseline": row.is_time().then(|| self.baseline(row).map(|column| self.subjects[column])),
            "median": by_subject(&|column| row.median(column)),
            "lowest": by_subject(&|column| row.values[column].iter().copied().reduce(f64::min)),
            "highest": by_subject(&|column| row.values[column].iter().copied().reduce(f64::max)),
            "ratio": by_subject(&|column| self.ratio(row, column)),
        })
    }

    fn baseline(&self, row: &Row) -> Option<usize> {
        let column = |name| self.subjects.iter().position(|&subject| subject == name);
        BASELINES.into_iter().filter_map(column).find(|&column| !row.values[column].is_empty())
    }

    /// Returns the median of the ratios of the subject's turns to the baseline's adjacent turns, if the row is a time.
    fn ratio(&self, row: &Row, column: usize) -> Option<f64> {
        row.ratio(column, self.baseline(row)?).filter(|_| row.is_time())
    }

    fn print_table(&self, cell: impl Fn(&Row, usize) -> Option<String>) {
        print!("{:<26}{:<21}", "case", "");
        self.subjects.iter().for_each(|subject| print!("{subject:>10}"));
        println!();
        for row in &self.rows {
            let cells: Vec<_> = (0..self.subjects.len()).map(|column| cell(row, column)).collect();
            if cells.iter().all(Option::is_none) {
                continue;
            }
            print!("{:<26}{:<21}", row.case, row.what);
            cells.iter().for_each(|cell| print!("{:>10}", cell.as_deref().unwrap_or("-")));
            println!();
        }
    }
}

impl Row {
    fn median(&self, column: usize) -> Option<f64> {
        median(self.values[column].clone())
    }

    fn ratio(&self, column: usize, baseline: usize) -> Option<f64> {
        let turns = self.values[column].iter().zip(&self.values[baseline]);
        median(turns.map(|(value, baseline)| value / baseline).collect()).filter(|ratio| ratio.is_finite())
    }

    fn is_time(&self) -> bool {
        self.what.starts_with("ns") || self.what.ends_with("us")
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Formats a value with two to four digits, and a tiny value only by its order of magnitude.
fn plainly(value: f64) -> String {
    match value {
        value if value == value.trunc() && value < 1e6 => format!("{value:.0}"),
        value if value < 0.1 => format!("{value:.0e}"),
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 1_000.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}
