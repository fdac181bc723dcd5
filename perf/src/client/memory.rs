//! The memory that idle clients keep.

use std::fs;
use std::thread;
use std::time::Duration;

use bson::rawdoc;
use clap::Args;
use serde::{Deserialize, Serialize};
use wharf_testbed::mongod::{Mongod, MongodOptions};
use wharf_testbed::replica_set::{ReplicaSet, ReplicaSetOptions};

use super::Client;
use crate::Failure;
use crate::alternation::{Alternation, Asked, Competitor, Turns};
use crate::child::take_turns;
use crate::claims::Claim;
use crate::load;
use crate::report::{plainly, print_row};
use crate::statistics::median;
use crate::subjects::Kind;

/// The pause between two readings of the memory; the clients are idle once two readings agree.
const PAUSE: Duration = Duration::from_millis(500);
/// The maximum number of readings.
const LOOKS: u32 = 20;
/// The number of members in the replica set.
const MEMBERS: usize = 3;

/// The arguments to a child.
#[derive(Debug, Args)]
pub struct Memory {
    #[command(flatten)]
    child: crate::arguments::Child,
}

/// A client's memory, as a child process reports it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MemoryResult {
    /// The process's resident memory per client, not counting mapped files.
    pub bytes: f64,
}

const KIBIBYTES: fn(&MemoryResult) -> f64 = |result| result.bytes / 1024.0;

/// Measures and prints a table. There is no claim.
pub fn measure(arguments: &Client) -> Result<Vec<Claim>, Failure> {
    println!(
        "Memory of an idle client, of {} in a process, each after one command: mongod on any core",
        arguments.clients
    );
    let set = ReplicaSet::start(ReplicaSetOptions { members: MEMBERS, ..ReplicaSetOptions::default() })?;
    let of_set = rounds(arguments, "client-memory-replica-set", &set.uri())?;
    drop(set);
    let alone = Mongod::start(MongodOptions::default())?;
    let of_one = rounds(arguments, "client-memory-standalone", &format!("mongodb://{}/", alone.address()))?;
    println!();
    let subjects = [Kind::Client, Kind::OfficialRaw];
    print_row("KiB", subjects.iter());
    let medians = |turns: &Turns<MemoryResult>| subjects.map(|kind| median(&turns.values(1, KIBIBYTES, kind)));
    let (one, three) = (medians(&of_one), medians(&of_set));
    print_row("a client of one server", one.map(plainly).iter());
    print_row("a client of three servers", three.map(plainly).iter());
    let further = [0, 1].map(|subject| Some((three[subject]? - one[subject]?) / (MEMBERS - 1) as f64));
    print_row("each further server", further.map(plainly).iter());
    Ok(Vec::new())
}

fn rounds(arguments: &Client, measured: &str, uri: &str) -> Result<Turns<MemoryResult>, Failure> {
    let alternation = Alternation { subjects: vec![Kind::Client, Kind::OfficialRaw], json: arguments.json.as_deref() };
    let mut measurements = Turns::default();
    for round in 0..arguments.rounds {
        eprintln!("{measured}: round {} of {}", round + 1, arguments.rounds);
        // A process takes only one turn, because its memory would not be fresh in a second turn.
        measurements.extend(alternation.take_turns(measured, round, 1, |subject| {
            let asked = Asked { round, tasks: 1, subject, connections: arguments.clients, workers: 2 };
            Competitor::start(asked, asked.command("memory", uri)?)
        })?);
    }
    Ok(measurements)
}

/// Creates as many clients as the `connections` argument says, and prints how much memory each client takes.
pub fn child(arguments: &Memory) -> Result<(), Failure> {
    let child = &arguments.child;
    let runtime = load::runtime(child.workers)?;
    let uri = &*child.server;
    match child.subject {
        Kind::Client => take_turns(|| {
            let make = || {
                let client = wharf::Client::from_uri(uri)?;
                runtime.block_on(client.run_command("admin", &rawdoc! { "ping": 1 }))?;
                Ok(client)
            };
            result(child.connections, make, drop)
        }),
        Kind::OfficialRaw => take_turns(|| {
            let make = || {
                runtime.block_on(async {
                    let client = mongodb::Client::with_uri_str(uri).await?;
                    client.database("admin").run_raw_command(rawdoc! { "ping": 1 }).await?;
                    Ok(client)
                })
            };
            // An official client that is dropped without a shutdown may panic in the background.
            result(child.connections, make, |client| runtime.block_on(client.shutdown().immediate(true).into_future()))
        }),
        other => Err(format!("{other} is no client").into()),
    }
}

/// Creates one client, which is not counted, and then the others. Returns the memory per client.
fn result<C>(clients: u32, make: impl Fn() -> Result<C, Failure>, end: impl Fn(C)) -> Result<MemoryResult, Failure> {
    let first = make()?;
    let before = settled()?;
    let others = (0..clients).map(|_| make()).collect::<Result<Vec<_>, _>>()?;
    let after = settled()?;
    others.into_iter().chain([first]).for_each(end);
    Ok(MemoryResult { bytes: (after - before) / f64::from(clients) })
}

/// Returns the resident memory of this process in bytes, not counting mapped files, once it no longer changes.
fn settled() -> Result<f64, Failure> {
    let mut last = resident()?;
    for _ in 0..LOOKS {
        thread::sleep(PAUSE);
        let now = resident()?;
        if now == last {
            break;
        }
        last = now;
    }
    Ok(last)
}

/// Returns the resident memory of this process in bytes, not counting mapped files.
pub fn resident() -> Result<f64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("the system tells no RssAnon")?;
    let kibibytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes * 1024.0)
}
