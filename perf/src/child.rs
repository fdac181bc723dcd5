//! The work of the comparison's child processes, and of a profiled process.

use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wharf_testbed::counting;

use crate::arguments::{Allocations, Cell, ColdStart, Profile};
use crate::cold_start;
use crate::load::{self, Load, Outcome};
use crate::server::Server;
use crate::statistics::percentile;
use crate::subjects::{Subject, Visitor};
use crate::{Failure, arguments};

/// The result of one turn, as a child process reports it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CellResult {
    pub operations: u64,
    pub seconds: f64,
    /// CPU time in user space and in the kernel.
    pub cpu_seconds: f64,
    pub p50_nanos: u64,
    pub p99_nanos: u64,
    /// Connections opened during the turn. If there were any, the pool had not settled.
    pub opened: i64,
    /// The server's CPU time per command in seconds, if the server reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cpu_seconds: Option<f64>,
}

impl TryFrom<Outcome> for CellResult {
    type Error = Failure;

    fn try_from(mut outcome: Outcome) -> Result<Self, Failure> {
        let too_short = || Failure::from("no operation ended during the measurement: increase --turn");
        Ok(Self {
            operations: outcome.latencies.len() as u64,
            seconds: outcome.elapsed.as_secs_f64(),
            cpu_seconds: outcome.cpu.as_secs_f64(),
            p50_nanos: percentile(&mut outcome.latencies, 0.5).ok_or_else(too_short)?,
            p99_nanos: percentile(&mut outcome.latencies, 0.99).ok_or_else(too_short)?,
            opened: outcome.opened,
            server_cpu_seconds: outcome.server_cpu,
        })
    }
}

/// The line that a child prints when it is ready.
pub const READY: &str = "ready";

/// Prepares the load, then takes a turn for each line of standard input and prints its [`CellResult`].
pub fn cell(arguments: &Cell) -> Result<(), Failure> {
    arguments.child.subject.accept(arguments)
}

impl Visitor for &Cell {
    type Output = Result<(), Failure>;

    fn visit<S: Subject>(self) -> Self::Output {
        measure::<S>(self)
    }
}

fn measure<S: Subject>(Cell { child, turn, warm_up }: &Cell) -> Result<(), Failure> {
    let runtime = load::runtime(child.workers)?;
    let subject = Arc::new(runtime.block_on(filled::<S>(&child.server, child.connections))?);
    let mut load = Load::prepare(&runtime, &subject, &child.server, child.tasks)?;
    load.warm_up(*warm_up)?;
    take_turns(|| CellResult::try_from(load.turn(*turn)?))?;
    load.end()?;
    runtime.block_on(subject.close());
    Ok(())
}

/// A subject's allocations, as a child process reports them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AllocationsResult {
    /// The mean number of allocations per operation.
    pub allocations: f64,
}

/// The number of operations in a turn that counts allocations.
const COUNTED: u32 = 1_000;

/// Prepares a subject, then counts the allocations of its operations for each line of standard input, and prints an
/// [`AllocationsResult`].
pub fn allocations(arguments: &Allocations) -> Result<(), Failure> {
    arguments.child.subject.accept(arguments)
}

impl Visitor for &Allocations {
    type Output = Result<(), Failure>;

    fn visit<S: Subject>(self) -> Self::Output {
        count_allocations::<S>(self)
    }
}

fn count_allocations<S: Subject>(Allocations { child }: &Allocations) -> Result<(), Failure> {
    // All work is done by one thread, whose allocations are counted.
    let runtime = load::runtime(1)?;
    let subject = Arc::new(runtime.block_on(filled::<S>(&child.server, child.connections))?);
    let count = || {
        let subject = subject.clone();
        runtime.block_on(runtime.spawn(async move {
            let before = counting::so_far();
            for _ in 0..COUNTED {
                subject.run().await?;
            }
            Ok(AllocationsResult { allocations: (counting::so_far() - before) as f64 / f64::from(COUNTED) })
        }))?
    };
    // The first operations open connections, and are not counted.
    count()?;
    take_turns(count)?;
    runtime.block_on(subject.close());
    Ok(())
}

async fn filled<S: Subject>(server: &str, connections: u32) -> Result<S, Failure> {
    let subject = S::open(server, connections).await?;
    subject.fill().await?;
    Ok(subject)
}

/// Prepares the runtime, then runs a cold start for each line of standard input and prints its [`ColdResult`].
///
/// [`ColdResult`]: cold_start::ColdResult
pub fn cold_start(arguments: &ColdStart) -> Result<(), Failure> {
    arguments.child.subject.accept(arguments)
}

impl Visitor for &ColdStart {
    type Output = Result<(), Failure>;

    fn visit<S: Subject>(self) -> Self::Output {
        start_from_cold::<S>(self)
    }
}

fn start_from_cold<S: Subject>(ColdStart { child }: &ColdStart) -> Result<(), Failure> {
    let runtime = load::runtime(child.workers)?;
    let start = || {
        let (server, tasks, connections) = (child.server.clone(), child.tasks, child.connections);
        // Runs on a worker, so that no other thread is involved.
        runtime.block_on(runtime.spawn(cold_start::start::<S>(server, tasks, connections)))?
    };
    // The first start is discarded, because it includes the costs of starting the process, such as reading its code.
    start()?;
    take_turns(start)
}

/// Reports readiness, then prints the result of a turn for each line of standard input.
pub fn take_turns<R: Serialize>(mut turn: impl FnMut() -> Result<R, Failure>) -> Result<(), Failure> {
    println!("{READY}");
    for asked in io::stdin().lock().lines() {
        asked?;
        println!("{}", serde_json::to_string(&turn()?)?);
    }
    Ok(())
}

/// Runs one subject for a profiler.
pub fn profile(arguments: &Profile) -> Result<(), Failure> {
    arguments.subject.accept(arguments)
}

impl Visitor for &Profile {
    type Output = Result<(), Failure>;

    fn visit<S: Subject>(self) -> Self::Output {
        profile_one::<S>(self)
    }
}

fn profile_one<S: Subject>(arguments: &Profile) -> Result<(), Failure> {
    let &arguments::Profile { subject: kind, tasks, connections, seconds, operations, ref machine } = arguments;
    let server = Server::provide(machine)?;
    eprintln!("{kind}, {tasks} tasks, {connections} connections; {}", server.describe());
    let runtime = load::runtime(server.workers())?;
    let subject = Arc::new(runtime.block_on(filled::<S>(&server.address, connections))?);
    match operations {
        Some(operations) => {
            let each = operations.div_ceil(tasks.into());
            load::run(&runtime, &subject, tasks, each)?;
            println!("{} operations", each * u64::from(tasks));
        }
        None => {
            let mut load = Load::prepare(&runtime, &subject, &server.address, tasks)?;
            load.warm_up(Duration::from_secs(1))?;
            let result: CellResult = load.turn(seconds)?.try_into()?;
            load.end()?;
            println!("{}", serde_json::to_string(&result)?);
            println!("{:.1} % of the process's CPU time in user space", 100.0 * load::user_share()?);
        }
    }
    runtime.block_on(subject.close());
    Ok(())
}
