//! The comparison: every subject in a process of its own, and all of them in turn.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Failure;
use crate::arguments::{CONNECTIONS, Comparison};
use crate::child::{CellResult, READY};
use crate::claims;
use crate::cold_start::{ColdResult, PLAIN_CONNECTIONS};
use crate::report;
use crate::server::Server;
use crate::subjects::Kind;

/// All measurements.
#[derive(Debug, Default)]
pub struct Measurements {
    pub cells: Turns<CellResult>,
    /// With server and clients on shared cores.
    pub cold_starts: Turns<ColdResult>,
    /// With server and clients on cores of their own. Empty if they have none.
    pub cold_starts_apart: Turns<ColdResult>,
}

/// All turns of all subjects in one kind of measurement.
#[derive(Debug)]
pub struct Turns<R>(Vec<Measurement<R>>);

/// One measurement.
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

/// Measures, prints the report, and returns whether all claims hold.
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
                measurements.cells.0.extend(self.cells(round, tasks)?);
            }
            if self.arguments.cold_tasks > 0 {
                let sharing = self.server.sharing(|workers| self.cold_starts("cold-start", round, workers))?;
                measurements.cold_starts.0.extend(sharing);
                if self.server.placement.is_some() {
                    let apart = self.cold_starts("cold-start-apart", round, self.server.workers())?;
                    measurements.cold_starts_apart.0.extend(apart);
                }
            }
        }
        Ok(measurements)
    }

    /// Measures all subjects under load, in turn.
    fn cells(&self, round: u32, tasks: u32) -> Result<Vec<Measurement<CellResult>>, Failure> {
        let workers = self.server.workers();
        let turns = self.arguments.seconds.div_duration_f64(self.arguments.turn).ceil() as u32;
        self.take_turns("cell", round, turns, |subject| {
            let asked = Asked { round, tasks, subject, connections: CONNECTIONS, workers };
            let mut command = self.command("cell", &asked)?;
            for (option, time) in [("--turn", self.arguments.turn), ("--warm-up", self.arguments.warm_up)] {
                command.args([option, &time.as_secs_f64().to_string()]);
            }
            Competitor::start(asked, command)
        })
    }

    /// Measures the cold starts of all subjects, in turn.
    fn cold_starts(
        &self,
        measured: &'static str,
        round: u32,
        workers: usize,
    ) -> Result<Vec<Measurement<ColdResult>>, Failure> {
        let tasks = self.arguments.cold_tasks;
        self.take_turns(measured, round, self.arguments.cold_starts, |subject| {
            let connections = match subject {
                Kind::Floor => PLAIN_CONNECTIONS,
                Kind::Wharf | Kind::Official => CONNECTIONS,
            };
            let asked = Asked { round, tasks, subject, connections, workers };
            Competitor::start(asked, self.command("cold-start", &asked)?)
        })
    }

    /// Starts all subjects, then lets them take turns. The order rotates with each round and each turn, so that no
    /// subject always follows the same other one.
    fn take_turns<R: Serialize + DeserializeOwned>(
        &self,
        measured: &'static str,
        round: u32,
        turns: u32,
        start: impl Fn(Kind) -> Result<Competitor, Failure>,
    ) -> Result<Vec<Measurement<R>>, Failure> {
        let mut subjects = self.arguments.subjects.clone();
        let first = round as usize % subjects.len().max(1);
        subjects.rotate_left(first);
        let mut competitors = subjects.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let mut measurements = Vec::new();
        for turn in 0..turns {
            for competitor in &mut competitors {
                let measurement = competitor.take_turn(turn)?;
                self.record(measured, &measurement)?;
                measurements.push(measurement);
            }
            competitors.rotate_left(1);
        }
        competitors.into_iter().try_for_each(Competitor::end)?;
        Ok(measurements)
    }

    /// Returns the command for this program's part of a measurement, without the arguments of its mode.
    fn command(&self, mode: &'static str, asked: &Asked) -> Result<Command, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(mode)
            .args(["--subject", &asked.subject.to_string(), "--server", &self.server.address])
            .args(["--workers", &asked.workers.to_string()])
            .args(["--tasks", &asked.tasks.to_string(), "--connections", &asked.connections.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        Ok(command)
    }

    fn record<R: Serialize>(&self, measured: &'static str, measurement: &Measurement<R>) -> Result<(), Failure> {
        #[derive(Serialize)]
        struct Line<'a, R> {
            measured: &'static str,
            #[serde(flatten)]
            measurement: &'a Measurement<R>,
        }
        if let Some(path) = &self.arguments.json {
            let line = serde_json::to_string(&Line { measured, measurement })?;
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
    workers: usize,
}

impl Asked {
    fn came_to<R>(self, turn: u32, result: R) -> Measurement<R> {
        let Self { round, tasks, subject, connections, workers: _ } = self;
        Measurement { round, turn, tasks, subject, connections, result }
    }

    fn failed(&self, status: ExitStatus) -> Failure {
        format!("measuring {} with {} tasks: {status}", self.subject, self.tasks).into()
    }
}

/// A child process that measures one subject when it is its turn. It ends with its standard input, so that no child is
/// left behind in any case.
struct Competitor {
    asked: Asked,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Competitor {
    /// Starts a child and waits until it is ready for its first turn. `command` must pipe its input and output.
    fn start(asked: Asked, mut command: Command) -> Result<Self, Failure> {
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

    fn take_turn<R: DeserializeOwned>(&mut self, turn: u32) -> Result<Measurement<R>, Failure> {
        // If the child has ended, its exit status says why.
        if writeln!(self.input).is_err() {
            return Err(self.failed());
        }
        match self.line()? {
            line if line.is_empty() => Err(self.failed()),
            line => Ok(self.asked.came_to(turn, serde_json::from_str(&line)?)),
        }
    }

    /// Returns the next line that the child prints, or an empty one if it has ended.
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

    /// Returns the reason why a child that should be running is not.
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

    /// Returns the turns of a subject, each with its round, its number in the round, and its result.
    pub fn of(&self, tasks: u32, subject: Kind) -> impl Iterator<Item = ((u32, u32), &R)> {
        let wanted = move |turn: &&Measurement<R>| turn.tasks == tasks && turn.subject == subject;
        self.0.iter().filter(wanted).map(|turn| ((turn.round, turn.turn), &turn.result))
    }

    /// Returns a value of all turns of a subject.
    pub fn values(&self, tasks: u32, value: fn(&R) -> f64, subject: Kind) -> Vec<f64> {
        self.of(tasks, subject).map(|(_, result)| value(result)).collect()
    }
}
