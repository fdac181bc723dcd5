//! Subjects that take turns, each in a separate process.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Failure;
use crate::child::READY;
use crate::subjects::Kind;

/// The subjects that take turns, and the file in which their measurements are recorded.
pub struct Alternation<'a> {
    pub subjects: Vec<Kind>,
    pub json: Option<&'a Path>,
}

impl Alternation<'_> {
    /// Starts all subjects, and then lets them take turns. The order rotates with each round and each turn, so that no
    /// subject always follows the same other subject.
    pub fn take_turns<R: Serialize + DeserializeOwned>(
        &self,
        measured: &str,
        round: u32,
        turns: u32,
        start: impl Fn(Kind) -> Result<Competitor, Failure>,
    ) -> Result<Vec<Measurement<R>>, Failure> {
        let mut subjects = self.subjects.clone();
        let first = round as usize % subjects.len().max(1);
        subjects.rotate_left(first);
        let mut competitors = subjects.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let mut measurements = Vec::new();
        for turn in 0..turns {
            for competitor in &mut competitors {
                let measurement = competitor.take_turn(turn)?;
                record(self.json, measured, &measurement)?;
                measurements.push(measurement);
            }
            competitors.rotate_left(1);
        }
        competitors.into_iter().try_for_each(Competitor::end)?;
        Ok(measurements)
    }
}

/// Appends a measurement to the file, as a line of JSON.
pub fn record<M: Serialize>(json: Option<&Path>, measured: &str, measurement: &M) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Line<'a, M> {
        measured: &'a str,
        #[serde(flatten)]
        measurement: &'a M,
    }
    if let Some(path) = json {
        let line = serde_json::to_string(&Line { measured, measurement })?;
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        writeln!(file, "{line}")?;
    }
    Ok(())
}

/// All subjects' turns in one kind of measurement.
#[derive(Debug)]
pub struct Turns<R>(Vec<Measurement<R>>);

/// One of a subject's turns, and its result.
#[derive(Debug, Clone, Serialize)]
pub struct Measurement<R> {
    pub round: u32,
    /// The number of the turn within its round.
    pub turn: u32,
    pub tasks: u32,
    pub subject: Kind,
    pub connections: u32,
    #[serde(flatten)]
    pub result: R,
}

/// What a child process is asked to measure.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub round: u32,
    pub tasks: u32,
    pub subject: Kind,
    pub connections: u32,
    pub workers: usize,
}

impl Asked {
    /// Returns the command that starts this program as a child in a mode, without the arguments that are specific to
    /// that mode.
    pub fn command(&self, mode: &str, server: &str) -> Result<Command, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(mode)
            .args(["--subject", &self.subject.to_string(), "--server", server])
            .args(["--workers", &self.workers.to_string()])
            .args(["--tasks", &self.tasks.to_string(), "--connections", &self.connections.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        Ok(command)
    }

    fn came_to<R>(self, turn: u32, result: R) -> Measurement<R> {
        let Self { round, tasks, subject, connections, workers: _ } = self;
        Measurement { round, turn, tasks, subject, connections, result }
    }

    fn failed(&self, status: ExitStatus) -> Failure {
        format!("measuring {} with {} tasks: {status}", self.subject, self.tasks).into()
    }
}

/// A child process that measures one subject whenever it is that subject's turn. It exits when its standard input is
/// closed, so children are never left behind.
pub struct Competitor {
    asked: Asked,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Competitor {
    /// Starts a child that puts its subject under load for a fixed time in each turn.
    pub fn load(asked: Asked, server: &str, turn: Duration, warm_up: Duration) -> Result<Self, Failure> {
        let mut command = asked.command("cell", server)?;
        for (option, time) in [("--turn", turn), ("--warm-up", warm_up)] {
            command.args([option, &time.as_secs_f64().to_string()]);
        }
        Self::start(asked, command)
    }

    /// Starts a child and waits until it is ready for its first turn. `command` must pipe its input and output.
    pub fn start(asked: Asked, mut command: Command) -> Result<Self, Failure> {
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("BUG: the child has no pipes".into());
        };
        let mut competitor = Self { asked, child, input, output: BufReader::new(output) };
        match competitor.line()?.trim_end() {
            READY => Ok(competitor),
            _ => Err(competitor.failed()),
        }
    }

    pub fn take_turn<R: DeserializeOwned>(&mut self, turn: u32) -> Result<Measurement<R>, Failure> {
        self.answer("", turn)
    }

    /// Sends the child a line, and waits for its result.
    pub fn answer<R: DeserializeOwned>(&mut self, line: &str, turn: u32) -> Result<Measurement<R>, Failure> {
        // If the child has exited, its exit status says why.
        if writeln!(self.input, "{line}").is_err() {
            return Err(self.failed());
        }
        match self.line()? {
            line if line.is_empty() => Err(self.failed()),
            line => Ok(self.asked.came_to(turn, serde_json::from_str(&line)?)),
        }
    }

    /// Returns the next line that the child prints, or an empty line if it has exited.
    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line)
    }

    pub fn end(self) -> Result<(), Failure> {
        let Self { asked, mut child, input, .. } = self;
        drop(input);
        let status = child.wait()?;
        if status.success() { Ok(()) } else { Err(asked.failed(status)) }
    }

    /// Returns the error for a child that has exited too early, with its exit status.
    fn failed(&mut self) -> Failure {
        self.child.wait().map_or_else(Failure::from, |status| self.asked.failed(status))
    }
}

impl<R> Default for Turns<R> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<R> Turns<R> {
    pub fn extend(&mut self, measurements: Vec<Measurement<R>>) {
        self.0.extend(measurements);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the ratios of a subject's values to another's, turn by turn. A disturbance that affects both, such as a
    /// busy neighbour, cancels out.
    pub fn ratios(&self, tasks: u32, value: fn(&R) -> f64, subject: Kind, to: Kind) -> Vec<f64> {
        self.of(tasks, subject)
            .filter_map(|(turn, result)| {
                let (_, other) = self.of(tasks, to).find(|(other, _)| *other == turn)?;
                Some(value(result) / value(other))
            })
            .collect()
    }

    /// Returns a subject's turns, each with its round, its number in the round, and its result.
    pub fn of(&self, tasks: u32, subject: Kind) -> impl Iterator<Item = ((u32, u32), &R)> {
        let wanted = move |turn: &&Measurement<R>| turn.tasks == tasks && turn.subject == subject;
        self.0.iter().filter(wanted).map(|turn| ((turn.round, turn.turn), &turn.result))
    }

    /// Returns one value from each of a subject's turns.
    pub fn values(&self, tasks: u32, value: fn(&R) -> f64, subject: Kind) -> Vec<f64> {
        self.of(tasks, subject).map(|(_, result)| value(result)).collect()
    }
}
