//! The client, compared with the pool that it uses and with the official driver.
//!
//! Each section is a separate measurement. All subjects are given the same connection string. Either all of them use
//! their cheapest calls (raw commands, raw documents and batches of the same size), or all of them use the same serde
//! type.

mod commands;
mod documents;
mod failover;
mod memory;
mod typed;

pub use documents::{Documents, child as documents};
pub use failover::{Failover, child as failover};
pub use memory::{Memory, child as memory, resident};

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::Failure;
use crate::arguments::{Machine, seconds};
use crate::claims::Claim;

/// The sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// `Client::run_command`, compared with the pool on a mongod and with the official driver on a server that costs less
    /// than a client.
    Commands,
    /// `find_one`, `insert_one` and `update_one` with a serde type, compared with raw operations and with the official
    /// driver.
    Typed,
    /// A query for many documents in batches.
    Cursor,
    /// The same query, read as owned values of a serde type.
    TypedCursor,
    /// The same query, read as values that borrow their strings.
    BorrowedCursor,
    /// Inserts in bulk.
    Bulk,
    /// `insert_many` with values of a serde type.
    TypedBulk,
    /// A replica set that loses its primary.
    Failover,
    /// The memory that idle clients use.
    Memory,
}

#[derive(Debug, Args)]
pub struct Client {
    /// The sections to measure. By default, all sections.
    #[arg(value_enum)]
    pub sections: Vec<Section>,
    /// Number of rounds. Every round measures everything with new processes, and medians are shown.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// How long each subject is measured in a round, over all of its turns, in seconds. Only for commands.
    #[arg(long, default_value = "2.5", value_parser = seconds)]
    pub seconds: Duration,
    /// How long a turn is measured, in seconds. Only for commands.
    #[arg(long, default_value = "0.1", value_parser = seconds)]
    pub turn: Duration,
    /// How long the load must run without opening a connection before the first turn, in seconds.
    #[arg(long, default_value = "0.5", value_parser = seconds)]
    pub warm_up: Duration,
    /// Numbers of tasks that share the connections. Only for commands.
    #[arg(long, value_delimiter = ',', default_value = "1,64,512,4096",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub tasks: Vec<u32>,
    /// Number of documents that a query returns, and that one call inserts.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub documents: u32,
    /// Batch sizes of the queries, in documents.
    #[arg(long, value_delimiter = ',', default_value = "100,1000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub batches: Vec<u32>,
    /// Number of idle clients whose memory is measured.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub clients: u32,
    /// Measures as little as possible, to check that each measurement works. The figures mean nothing.
    #[arg(long, conflicts_with_all = ["rounds", "seconds", "turn", "warm_up", "tasks", "documents", "batches", "clients"])]
    pub short: bool,
    /// Appends each measurement to this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Exits with 1 unless every claim holds.
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub machine: Machine,
}

impl Client {
    /// Returns the arguments with all sections named, and with short lengths if the run is short.
    fn resolved(&self) -> Self {
        let sections = match &self.sections[..] {
            [] => Section::value_variants().to_vec(),
            named => named.to_vec(),
        };
        let Self { json, check, machine, .. } = self;
        let (json, machine) = (json.clone(), machine.clone());
        if self.short {
            let milliseconds = Duration::from_millis;
            return Self {
                sections,
                rounds: 1,
                seconds: milliseconds(100),
                turn: milliseconds(50),
                warm_up: milliseconds(50),
                tasks: vec![1, 8],
                documents: 200,
                batches: vec![50],
                clients: 4,
                short: true,
                json,
                check: *check,
                machine,
            };
        }
        let (tasks, batches) = (self.tasks.clone(), self.batches.clone());
        Self { sections, tasks, batches, json, machine, ..*self }
    }
}

/// Measures the sections, printing a table for each, and then prints the claims. Returns whether all claims hold.
pub fn run(arguments: &Client) -> Result<bool, Failure> {
    let arguments = arguments.resolved();
    let mut claims: Vec<Claim> = Vec::new();
    for section in &arguments.sections {
        let measure = || match section {
            Section::Commands => commands::measure(&arguments),
            Section::Typed => typed::measure(&arguments),
            Section::Cursor => documents::measure(&arguments, documents::Work::Find),
            Section::TypedCursor => documents::measure(&arguments, documents::Work::FindTyped),
            Section::BorrowedCursor => documents::measure(&arguments, documents::Work::FindBorrowed),
            Section::Bulk => documents::measure(&arguments, documents::Work::Insert),
            Section::TypedBulk => documents::measure(&arguments, documents::Work::InsertTyped),
            Section::Failover => failover::measure(&arguments),
            Section::Memory => memory::measure(&arguments),
        };
        claims.extend(apart(measure)?);
        println!();
    }
    println!("Claims");
    claims.iter().for_each(|claim| println!("  {claim}"));
    Ok(claims.iter().all(|claim| claim.holds == Some(true)))
}

/// Measures on a separate thread, because a thread that has moved to the clients' cores stays there.
fn apart<R: Send>(measure: impl FnOnce() -> Result<R, Failure> + Send) -> Result<R, Failure> {
    std::thread::scope(|scope| match scope.spawn(measure).join() {
        Ok(measured) => measured,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
