//! The comparison: every subject in a process of its own, and all of them in turn.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::Serialize;

use crate::Failure;
use crate::arguments::{CONNECTIONS, Comparison};
use crate::child::{CellResult, READY};
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
    /// Which turn of the round, for those that have several.
    pub turn: u32,
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
        "{} rounds of {:?} each in turns of {:?}, {CONNECTIONS} connections\n",
        arguments.rounds, arguments.seconds, arguments.turn
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
            for &tasks in &self.arguments.tasks {
                measurements.cells.extend(self.cells(round, tasks)?);
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

    /// Has all subjects take turns.
    fn cells(&self, round: u32, tasks: u32) -> Result<Vec<Measurement<CellResult>>, Failure> {
        let mut competitors = Vec::new();
        for subject in self.in_turn(round) {
            competitors.push(self.competitor(Asked { round, tasks, subject, connections: CONNECTIONS })?);
        }
        let turns = self.arguments.seconds.div_duration_f64(self.arguments.turn).ceil() as u32;
        let mut measured = Vec::new();
        for turn in 0..turns {
            // Beginning with another one each time, so that none always comes after the same other.
            let first = turn as usize % competitors.len();
            let (later, sooner) = competitors.split_at_mut(first);
            for competitor in sooner.iter_mut().chain(later) {
                let measurement = competitor.take_turn(turn)?;
                self.record("cell", &measurement)?;
                measured.push(measurement);
            }
        }
        competitors.into_iter().try_for_each(Competitor::end)?;
        Ok(measured)
    }

    /// A child process with a subject that is ready for its first turn.
    fn competitor(&self, asked: Asked) -> Result<Competitor, Failure> {
        let seconds = |time: Duration| time.as_secs_f64().to_string();
        let mut command = self.command("cell", &asked)?;
        command.args(["--turn", &seconds(self.arguments.turn), "--warm-up", &seconds(self.arguments.warm_up)]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("BUG: the child's pipes were asked for".into());
        };
        let mut competitor = Competitor { asked, child, input, output: BufReader::new(output) };
        match competitor.line()?.trim_end() {
            READY => Ok(competitor),
            _ => Err(competitor.failed()),
        }
    }

    fn cold_start(&self, round: u32, subject: Kind) -> Result<Measurement<ColdResult>, Failure> {
        let connections = match subject {
            Kind::Floor => PLAIN_CONNECTIONS,
            Kind::Wharf | Kind::Official => CONNECTIONS,
        };
        let tasks = self.arguments.cold_tasks;
        let asked = Asked { round, tasks, subject, connections };
        let output = self.command("cold-start", &asked)?.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            return Err(asked.failed(output.status));
        }
        let measurement = asked.came_to(0, serde_json::from_slice(&output.stdout)?);
        self.record("cold-start", &measurement)?;
        Ok(measurement)
    }

    /// What runs this program's part of a measurement, without that part's own arguments.
    fn command(&self, mode: &'static str, asked: &Asked) -> Result<Command, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(mode)
            .args(["--subject", &asked.subject.to_string(), "--server", &self.server.address])
            .args(["--workers", &self.server.workers().to_string()])
            .args(["--tasks", &asked.tasks.to_string(), "--connections", &asked.connections.to_string()])
            .stderr(Stdio::inherit());
        Ok(command)
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

/// What a child process is asked to measure.
#[derive(Debug, Clone, Copy)]
struct Asked {
    round: u32,
    tasks: u32,
    subject: Kind,
    connections: u32,
}

impl Asked {
    fn came_to<R>(self, turn: u32, result: R) -> Measurement<R> {
        let Self { round, tasks, subject, connections } = self;
        Measurement { round, turn, tasks, subject, connections, result }
    }

    fn failed(&self, status: ExitStatus) -> Failure {
        format!("measuring {} with {} tasks: {status}", self.subject, self.tasks).into()
    }
}

/// A child process with a subject that works when it is its turn. It ends with its standard input, so that none is left
/// behind whatever happens here.
struct Competitor {
    asked: Asked,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Competitor {
    fn take_turn(&mut self, turn: u32) -> Result<Measurement<CellResult>, Failure> {
        // A child that has ended says why by how it ended.
        if writeln!(self.input).is_err() {
            return Err(self.failed());
        }
        match self.line()? {
            line if line.is_empty() => Err(self.failed()),
            line => Ok(self.asked.came_to(turn, serde_json::from_str(&line)?)),
        }
    }

    /// The next line that the child prints; empty if it has ended.
    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    fn end(self) -> Result<(), Failure> {
        let Self { asked, mut child, input, .. } = self;
        drop(input);
        let status = child.wait()?;
        if status.success() { Ok(()) } else { Err(asked.failed(status)) }
    }

    /// Why a child that should be running is not.
    fn failed(&mut self) -> Failure {
        self.child.wait().map_or_else(Failure::from, |status| self.asked.failed(status))
    }
}

impl Measurements {
    /// The ratios of a subject's values to another's, turn by turn: what both have met alike, such as a busy
    /// neighbour, falls out of each.
    pub fn ratios(&self, tasks: u32, value: fn(&CellResult) -> f64, subject: Kind, to: Kind) -> Vec<f64> {
        self.of(tasks, subject)
            .filter_map(|(turn, result)| {
                let (_, other) = self.of(tasks, to).find(|(other, _)| *other == turn)?;
                Some(value(result) / value(other))
            })
            .collect()
    }

    /// The turns of a subject, each by its round and its number there, and what they came to.
    pub fn of(&self, tasks: u32, subject: Kind) -> impl Iterator<Item = ((u32, u32), &CellResult)> {
        let wanted = move |cell: &&Measurement<CellResult>| cell.tasks == tasks && cell.subject == subject;
        self.cells.iter().filter(wanted).map(|cell| ((cell.round, cell.turn), &cell.result))
    }

    /// A subject's cold starts.
    pub fn cold(&self, subject: Kind, value: fn(&ColdResult) -> f64) -> Vec<f64> {
        let wanted = self.cold_starts.iter().filter(|start| start.subject == subject);
        wanted.map(|start| value(&start.result)).collect()
    }
}
