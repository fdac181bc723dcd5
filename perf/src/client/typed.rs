//! Operations on one document of an application's own type: what handles add to raw operations and serde, compared with
//! the official driver.

use super::commands::{print, rounds};
use super::{Client, apart};
use crate::Failure;
use crate::alternation::{Alternation, Asked, Competitor, Turns};
use crate::child::AllocationsResult;
use crate::claims::{Claim, Limit};
use crate::report::{CPU, P99, THROUGHPUT, compared, print_row};
use crate::server::Server;
use crate::statistics::median;
use crate::subjects::Kind;

/// Each operation: through a handle, as a raw operation with serde, and through the official driver.
const OPERATIONS: [(&str, [Kind; 3]); 3] = [
    ("find-one", [Kind::HandleFindOne, Kind::RawFindOne, Kind::OfficialFindOne]),
    ("insert-one", [Kind::HandleInsertOne, Kind::RawInsertOne, Kind::OfficialInsertOne]),
    ("update-one", [Kind::HandleUpdateOne, Kind::RawUpdateOne, Kind::OfficialUpdateOne]),
];

/// Measures, prints a table for each server, operation and number of tasks, and returns the claims.
pub fn measure(arguments: &Client) -> Result<Vec<Claim>, Failure> {
    let mut claims = apart(|| on(arguments, &Server::provide(&arguments.machine)?, ""))?;
    claims.extend(apart(|| on(arguments, &Server::frugal(&arguments.machine)?, "-frugal"))?);
    Ok(claims)
}

/// Measures on one server.
fn on(arguments: &Client, server: &Server, suffix: &str) -> Result<Vec<Claim>, Failure> {
    println!("Operations on one document: {}", server.describe());
    let mut claims = Vec::new();
    for (operation, subjects) in OPERATIONS {
        println!("\n{operation}");
        let [handle, raw, official] = subjects;
        let turns = rounds(arguments, server, &format!("client-{operation}{suffix}"), &subjects)?;
        print(arguments, &turns, &subjects, &[CPU, THROUGHPUT, P99], official);
        if suffix.is_empty() {
            print_allocations(arguments, server, operation, &subjects)?;
        }
        for &tasks in &arguments.tasks {
            // With one task, server and client wait for each other, and the kernel takes most of the CPU time. Even a
            // `ping` without a client takes more than 0.6 times the official driver's CPU time.
            let limits = [(raw, Limit::AtMost(1.05)), (official, Limit::AtMost(0.6))];
            for (other, limit) in limits.into_iter().take(if tasks == 1 { 1 } else { 2 }) {
                let text = format!(
                    "{operation}{suffix}, CPU with {tasks} tasks: the handle's is {limit} times that of {other}"
                );
                claims.push(limit.judge(text, median(&turns.ratios(tasks, CPU.value, handle, other))));
            }
        }
    }
    Ok(claims)
}

fn print_allocations(arguments: &Client, server: &Server, operation: &str, subjects: &[Kind]) -> Result<(), Failure> {
    let alternation = Alternation { subjects: subjects.to_vec(), json: arguments.json.as_deref() };
    let mut counted = Turns::<AllocationsResult>::default();
    counted.extend(alternation.take_turns(&format!("client-{operation}-allocations"), 0, 1, |subject| {
        let asked = Asked { round: 0, tasks: 1, subject, connections: 1, workers: 1 };
        Competitor::start(asked, asked.command("allocations", &server.address)?)
    })?);
    println!();
    print_row("", subjects.iter());
    let cell = |&subject| compared(&counted, 1, |result| result.allocations, subject, subject);
    print_row("allocations per operation", subjects.iter().map(cell));
    Ok(())
}
