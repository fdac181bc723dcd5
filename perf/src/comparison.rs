//! The comparison: every subject runs in a separate process, and they take turns.

use crate::Failure;
use crate::alternation::{Alternation, Asked, Competitor, Measurement, Turns};
use crate::arguments::{CONNECTIONS, Comparison};
use crate::child::CellResult;
use crate::claims;
use crate::cold_start::{ColdResult, PLAIN_CONNECTIONS};
use crate::report;
use crate::server::Server;
use crate::subjects::Kind;

/// All measurements.
#[derive(Debug, Default)]
pub struct Measurements {
    pub cells: Turns<CellResult>,
    /// The cold starts with the server and the clients on shared cores.
    pub cold_starts: Turns<ColdResult>,
    /// The cold starts with the server and the clients on separate cores. Empty if there are too few cores.
    pub cold_starts_apart: Turns<ColdResult>,
}

/// Measures, prints the report, and returns whether all claims hold.
pub fn run(arguments: &Comparison) -> Result<bool, Failure> {
    let server = Server::provide(&arguments.machine)?;
    println!("{}", server.describe());
    println!(
        "{} rounds of {:?} each in turns of {:?}, {CONNECTIONS} connections\n",
        arguments.rounds, arguments.seconds, arguments.turn
    );
    let alternation = Alternation { subjects: arguments.subjects.clone(), json: arguments.json.as_deref() };
    let measurements = Rounds { arguments, server: &server, alternation }.measure()?;
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
    alternation: Alternation<'a>,
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
                let sharing = self.server.sharing(|workers| self.cold_starts("cold-start", round, workers))?;
                measurements.cold_starts.extend(sharing);
                if self.server.placement.is_some() {
                    let apart = self.cold_starts("cold-start-apart", round, self.server.workers())?;
                    measurements.cold_starts_apart.extend(apart);
                }
            }
        }
        Ok(measurements)
    }

    /// Measures all subjects under load, in turn.
    fn cells(&self, round: u32, tasks: u32) -> Result<Vec<Measurement<CellResult>>, Failure> {
        let workers = self.server.workers();
        let turns = self.arguments.seconds.div_duration_f64(self.arguments.turn).ceil() as u32;
        self.alternation.take_turns("cell", round, turns, |subject| {
            let asked = Asked { round, tasks, subject, connections: CONNECTIONS, workers };
            Competitor::load(asked, &self.server.address, self.arguments.turn, self.arguments.warm_up)
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
        self.alternation.take_turns(measured, round, self.arguments.cold_starts, |subject| {
            let connections = match subject {
                Kind::Floor => PLAIN_CONNECTIONS,
                _ => CONNECTIONS,
            };
            let asked = Asked { round, tasks, subject, connections, workers };
            Competitor::start(asked, asked.command("cold-start", &self.server.address)?)
        })
    }
}
