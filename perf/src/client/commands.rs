//! Commands: what the client adds to the cost of its pool, and how many commands it runs compared with the official
//! driver.

use super::{Client, apart};
use crate::Failure;
use crate::alternation::{Alternation, Asked, Competitor, Turns};
use crate::arguments::CONNECTIONS;
use crate::child::CellResult;
use crate::claims::{Claim, Limit};
use crate::report::{CPU, Metric, P50, P99, THROUGHPUT, compared, print_row};
use crate::server::Server;
use crate::statistics::median;
use crate::subjects::Kind;

/// The server's CPU time per command, in microseconds.
const SERVER_CPU: Metric = Metric {
    name: "server CPU per operation, us",
    value: |cell| cell.server_cpu_seconds.map_or(f64::NAN, |seconds| seconds * 1e6),
};

/// Measures, prints two tables, and returns the claims.
pub fn measure(arguments: &Client) -> Result<Vec<Claim>, Failure> {
    let mut claims = apart(|| on_mongod(arguments))?;
    claims.extend(apart(|| on_frugal(arguments))?);
    Ok(claims)
}

/// Measures what the client adds to the cost of its pool.
fn on_mongod(arguments: &Client) -> Result<Vec<Claim>, Failure> {
    let server = Server::provide(&arguments.machine)?;
    println!("Commands: {}", server.describe());
    let (subjects, rows) =
        ([Kind::Pool, Kind::PoolInSession, Kind::Client, Kind::OfficialRaw], [CPU, THROUGHPUT, P50, P99]);
    let turns = rounds(arguments, &server, "client-command", &subjects)?;
    print(arguments, &turns, &subjects, &rows, Kind::Pool);
    Ok(arguments
        .tasks
        .iter()
        .map(|&tasks| {
            let ratio = median(&turns.ratios(tasks, CPU.value, Kind::Client, Kind::Pool));
            let limit = Limit::AtMost(1.05);
            limit.judge(format!("client CPU with {tasks} tasks: the client's is {limit} times the pool's"), ratio)
        })
        .collect())
}

/// Compares the client with the official driver on a server so cheap that the client is the bottleneck.
fn on_frugal(arguments: &Client) -> Result<Vec<Claim>, Failure> {
    let server = Server::frugal(&arguments.machine)?;
    println!("\nCommands, where the client is the limit: {}", server.describe());
    let subjects = [Kind::Client, Kind::ClientBusyPolling, Kind::Pool, Kind::OfficialRaw];
    let turns = rounds(arguments, &server, "client-command-frugal", &subjects)?;
    print(arguments, &turns, &subjects, &[CPU, SERVER_CPU, THROUGHPUT, P50, P99], Kind::OfficialRaw);
    let mut claims = Vec::new();
    for &tasks in &arguments.tasks {
        // With one task, server and client wait for each other. Without busy polling, both sleep after each message,
        // and the client's share of the round trip is too small for a difference of the claimed size. The table shows the difference,
        // but there is no claim about it.
        let judged = match tasks {
            1 => &[Kind::ClientBusyPolling][..],
            _ => &[Kind::Client, Kind::ClientBusyPolling],
        };
        for &subject in judged {
            let ratio = median(&turns.ratios(tasks, THROUGHPUT.value, subject, Kind::OfficialRaw));
            let limit = Limit::AtLeast(1.6);
            let text =
                format!("operations a second with {tasks} tasks: {subject} has {limit} times the official driver's");
            claims.push(limit.judge(text, ratio));
        }
    }
    Ok(claims)
}

/// Measures with each number of tasks in each round.
pub(super) fn rounds(
    arguments: &Client,
    server: &Server,
    measured: &str,
    subjects: &[Kind],
) -> Result<Turns<CellResult>, Failure> {
    let alternation = Alternation { subjects: subjects.to_vec(), json: arguments.json.as_deref() };
    let turns = arguments.seconds.div_duration_f64(arguments.turn).ceil() as u32;
    let mut measurements = Turns::default();
    for round in 0..arguments.rounds {
        eprintln!("{measured}: round {} of {}", round + 1, arguments.rounds);
        for &tasks in &arguments.tasks {
            measurements.extend(alternation.take_turns(measured, round, turns, |subject| {
                let asked = Asked { round, tasks, subject, connections: CONNECTIONS, workers: server.workers() };
                Competitor::load(asked, &server.address, arguments.turn, arguments.warm_up)
            })?);
        }
    }
    Ok(measurements)
}

/// Prints a table for each number of tasks.
pub(super) fn print(arguments: &Client, turns: &Turns<CellResult>, subjects: &[Kind], metrics: &[Metric], to: Kind) {
    println!("Medians. In brackets: the ratio to {to} in the same turn, its median and its quartiles.");
    for &tasks in &arguments.tasks {
        println!();
        print_row(&format!("{tasks} task{}", if tasks == 1 { "" } else { "s" }), subjects.iter());
        for Metric { name, value } in metrics {
            print_row(name, subjects.iter().map(|&subject| compared(turns, tasks, *value, subject, to)));
        }
        for &subject in subjects {
            let opened: i64 = turns.of(tasks, subject).map(|(_, cell)| cell.opened).sum();
            if opened > 0 {
                println!("  {subject} opened {opened} connections while it was measured: it had not settled.");
            }
        }
    }
}
