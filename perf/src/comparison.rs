//! The comparison: every measurement in a process of its own, the subjects in turn.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Failure;
use crate::arguments::{CONNECTIONS, Comparison};
use crate::child::CellResult;
use crate::claims;
use crate::cold_start::{ColdResult, PLAIN_CONNECTIONS};
use crate::report;
use crate::server::Server;
use crate::subjects::Kind;

/// All that was measured.
#[derive(Debug, Default)]
pub struct Measurements {
    pub cells: Vec<Measurement<CellResult>>,
    pub cold_starts: Vec<Measurement<ColdResult>>,
}

/// One measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Measurement<R> {
    pub round: u32,
    pub tasks: u32,
    pub subject: Kind,
    pub connections: u32,
    #[serde(flatten)]
    pub result: R,
}

/// Measures, prints, and returns whether all claims hold.
pub fn run(arguments: &Comparison) -> Result<bool, Failure> {
    let server = Server::provide(&arguments.machine)?;
    println!("{}", server.describe());
    println!(
        "{} rounds of {:?} each after {:?} of warming up, {CONNECTIONS} connections\n",
        arguments.rounds, arguments.seconds, arguments.warm_up
    );
    let measurements = Rounds { arguments, server: &server }.measure()?;
    drop(server);
    report::print(arguments, &measurements);
    let claims = claims::judge(arguments, &measurements);
    println!("Claims");
    claims.iter().for_each(|claim| println!("  {claim}"));
    Ok(claims.iter().all(|claim| claim.holds == Some(true)))
}

struct Rounds<'a> {
    arguments: &'a Comparison,
    server: &'a Server,
}

impl Rounds<'_> {
    fn measure(&self) -> Result<Measurements, Failure> {
        let mut measurements = Measurements::default();
        for round in 0..self.arguments.rounds {
            eprintln!("round {} of {}", round + 1, self.arguments.rounds);
            for (index, &tasks) in (0..).zip(&self.arguments.tasks) {
                for subject in self.in_turn(round + index) {
                    measurements.cells.push(self.cell(round, tasks, subject)?);
                }
            }
            if self.arguments.cold_tasks > 0 {
                for subject in self.in_turn(round) {
                    measurements.cold_starts.push(self.cold_start(round, subject)?);
                }
            }
        }
        Ok(measurements)
    }

    /// The subjects, beginning with another one each time, so that none always comes after the same other.
    fn in_turn(&self, turn: u32) -> impl Iterator<Item = Kind> {
        let subjects = &self.arguments.subjects;
        let first = turn as usize % subjects.len().max(1);
        subjects[first..].iter().chain(&subjects[..first]).copied()
    }

    fn cell(&self, round: u32, tasks: u32, subject: Kind) -> Result<Measurement<CellResult>, Failure> {
        let seconds = |time: Duration| time.as_secs_f64().to_string();
        let further = [("--seconds", seconds(self.arguments.seconds)), ("--warm-up", seconds(self.arguments.warm_up))];
        self.child("cell", Measurement { round, tasks, subject, connections: CONNECTIONS, result: () }, &further)
    }

    fn cold_start(&self, round: u32, subject: Kind) -> Result<Measurement<ColdResult>, Failure> {
        let connections = match subject {
            Kind::Floor => PLAIN_CONNECTIONS,
            Kind::Wharf | Kind::Official => CONNECTIONS,
        };
        let tasks = self.arguments.cold_tasks;
        self.child("cold-start", Measurement { round, tasks, subject, connections, result: () }, &[])
    }

    /// Has a child process measure, and takes down what it prints.
    fn child<R: Serialize + DeserializeOwned>(
        &self,
        mode: &'static str,
        Measurement { round, tasks, subject, connections, result: () }: Measurement<()>,
        further: &[(&str, String)],
    ) -> Result<Measurement<R>, Failure> {
        let output = Command::new(std::env::current_exe()?)
            .arg(mode)
            .args(["--subject", &subject.to_string(), "--server", &self.server.address])
            .args(["--workers", &self.server.workers().to_string()])
            .args(["--tasks", &tasks.to_string(), "--connections", &connections.to_string()])
            .args(further.iter().flat_map(|(option, value)| [*option, value.as_str()]))
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(format!("measuring {subject} with {tasks} tasks ({mode}): {}", output.status).into());
        }
        let result = serde_json::from_slice(&output.stdout)?;
        let measurement = Measurement { round, tasks, subject, connections, result };
        self.record(mode, &measurement)?;
        Ok(measurement)
    }

    fn record<R: Serialize>(&self, mode: &'static str, measurement: &Measurement<R>) -> Result<(), Failure> {
        #[derive(Serialize)]
        struct Line<'a, R> {
            measured: &'static str,
            #[serde(flatten)]
            measurement: &'a Measurement<R>,
        }
        if let Some(path) = &self.arguments.json {
            let line = serde_json::to_string(&Line { measured: mode, measurement })?;
            let mut file = OpenOptions::new().create(true).append(true).open(path)?;
            writeln!(file, "{line}")?;
        }
        Ok(())
    }
}

impl Measurements {
    /// The ratios of a subject's values to another's, round by round: what both have met alike, such as a busy
    /// neighbour, falls out of each.
    pub fn ratios(&self, tasks: u32, value: fn(&CellResult) -> f64, subject: Kind, to: Kind) -> Vec<f64> {
        self.of(tasks, subject)
            .filter_map(|(round, result)| {
                let (_, other) = self.of(tasks, to).find(|(other, _)| *other == round)?;
                Some(value(result) / value(other))
            })
            .collect()
    }

    /// The rounds of a subject, and what they came to.
    pub fn of(&self, tasks: u32, subject: Kind) -> impl Iterator<Item = (u32, &CellResult)> {
        let wanted = move |cell: &&Measurement<CellResult>| cell.tasks == tasks && cell.subject == subject;
        self.cells.iter().filter(wanted).map(|cell| (cell.round, &cell.result))
    }

    /// A subject's cold starts.
    pub fn cold(&self, subject: Kind, value: fn(&ColdResult) -> f64) -> Vec<f64> {
        let wanted = self.cold_starts.iter().filter(|start| start.subject == subject);
        wanted.map(|start| value(&start.result)).collect()
    }
}
