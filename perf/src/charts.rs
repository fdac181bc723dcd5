//! The pictures in BENCHMARKS.md, drawn from `docs/pictures/data`.

#[cfg(test)]
mod rendered;
mod series;
mod svg;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Number;

use crate::Failure;
use crate::arguments::Report;

const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pictures");

/// A picture: its figures, and a description of the measurement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Chart {
    title: String,
    /// The page that lists the figures. It is not shown if they were measured elsewhere.
    #[serde(default = "benchmarks")]
    page: String,
    /// The heading on the page. The first table below it holds the figures.
    section: Option<String>,
    /// wharf's own subjects.
    own: BTreeSet<String>,
    panels: Vec<Panel>,
    notes: String,
    samples: String,
    machine: String,
    date: String,
    command: String,
}

/// A panel in a picture. It shows bars, or lines if the rows' labels are numbers along an axis.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Panel {
    heading: Option<String>,
    /// The name of the figures in a benchmark's result.
    what: Option<String>,
    /// The meaning of the figures, with their unit.
    axis: String,
    /// The meaning of the rows' labels.
    across: Option<String>,
    #[serde(default)]
    logarithmic: bool,
    subjects: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// The label in the picture, instead of the label in the table.
    label: Option<String>,
    /// The label in the table. If the table's label is only a number, the text of an earlier row precedes the number
    /// here.
    table: String,
    /// The name of the case in a benchmark's result.
    case: Option<String>,
    median: BTreeMap<String, Number>,
}

/// The file that `cargo bench --bench pool` writes.
#[derive(Debug, Deserialize)]
struct Measured {
    rows: Vec<MeasuredRow>,
}

#[derive(Debug, Deserialize)]
struct MeasuredRow {
    case: String,
    what: String,
    median: BTreeMap<String, f64>,
}

/// Draws each picture whose figures are known, and fails if no figures are known.
pub fn run(arguments: &Report) -> Result<(), Failure> {
    let pictures = Path::new(PICTURES);
    let folder = arguments.output.as_deref().unwrap_or(pictures);
    fs::create_dir_all(folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    let measured: Option<Measured> = arguments.measured.as_deref().map(read).transpose()?;
    let mut drawn = 0;
    for (name, mut chart) in charts()? {
        if let (Some(measured), Some(file)) = (&measured, &arguments.measured) {
            chart.take(measured, file);
            if chart.panels.is_empty() {
                continue;
            }
        }
        let file = folder.join(name).with_extension("svg");
        fs::write(&file, svg::draw(&chart)).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        println!("{}", file.display());
        drawn += 1;
    }
    if arguments.measured.is_none() {
        for (name, recording) in recordings()? {
            let file = folder.join(name).with_extension("svg");
            let text = series::draw(&recording);
            fs::write(&file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
            println!("{}", file.display());
        }
    }
    if drawn == 0 {
        return Err("no picture shows any of these figures".into());
    }
    Ok(())
}

/// Returns the committed figures with the names of their pictures, sorted by name.
fn charts() -> Result<Vec<(String, Chart)>, Failure> {
    all_of("data")
}

/// Returns the recorded runs with the names of their pictures, sorted by name.
fn recordings() -> Result<Vec<(String, series::Recording)>, Failure> {
    all_of("recorded")
}

fn all_of<T: for<'de> Deserialize<'de>>(folder: &str) -> Result<Vec<(String, T)>, Failure> {
    let files = fs::read_dir(Path::new(PICTURES).join(folder))?;
    let mut paths = files.map(|file| Ok(file?.path())).collect::<Result<Vec<PathBuf>, Failure>>()?;
    paths.sort();
    let named = |path: PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, read(&path)?))
    };
    paths.into_iter().map(named).collect()
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, Failure> {
    let text = fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Ok(serde_json::from_str(&text).map_err(|error| format!("cannot read {}: {error}", path.display()))?)
}

impl Chart {
    /// Replaces the figures with measured figures, and drops all figures that were not measured.
    fn take(&mut self, measured: &Measured, file: &Path) {
        for panel in &mut self.panels {
            for row in &mut panel.rows {
                let same =
                    |of: &&MeasuredRow| Some(&of.case) == row.case.as_ref() && Some(&of.what) == panel.what.as_ref();
                let found = measured.rows.iter().find(same);
                row.median = found.map(|found| found.rounded()).unwrap_or_default();
            }
            panel.rows.retain(|row| !row.median.is_empty());
            panel.subjects.retain(|subject| panel.rows.iter().any(|row| row.median.contains_key(subject)));
        }
        self.panels.retain(|panel| !panel.rows.is_empty());
        self.samples = format!("Medians from {}", file.display());
        self.machine = "this machine".to_owned();
        self.section = None;
    }

    /// Returns a subject's place among all subjects in the picture. It is the same in each panel.
    fn place(&self, subject: &str) -> usize {
        let mut all: Vec<&String> = Vec::new();
        for of in self.panels.iter().flat_map(|panel| &panel.subjects) {
            if !all.contains(&of) {
                all.push(of);
            }
        }
        all.iter().position(|of| *of == subject).unwrap_or(all.len())
    }

    /// Returns the caption: the meaning of the figures, how they were measured, and where they are listed, in one
    /// paragraph each.
    fn caption(&self) -> Vec<String> {
        let mut lines = vec![format!("{} {}; {}.", self.notes, self.samples, self.machine), self.command.clone()];
        if let Some(heading) = &self.section {
            let heading = heading.trim_start_matches(['#', ' ']);
            lines.push(format!("{}, table of \"{heading}\" in {}", self.date, self.page));
        }
        lines
    }
}

fn benchmarks() -> String {
    "BENCHMARKS.md".to_owned()
}

impl Row {
    fn label(&self) -> &str {
        self.label.as_ref().unwrap_or(&self.table)
    }
}

impl MeasuredRow {
    /// Rounds to three digits, as the tables do.
    fn rounded(&self) -> BTreeMap<String, Number> {
        let three = |figure: f64| match figure.abs() {
            100.0.. => Some(Number::from(figure.round() as i64)),
            10.0.. => Number::from_f64((figure * 10.0).round() / 10.0),
            _ => Number::from_f64((figure * 100.0).round() / 100.0),
        };
        self.median.iter().filter_map(|(subject, &figure)| Some((subject.clone(), three(figure)?))).collect()
    }
}
