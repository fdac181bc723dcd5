//! Many documents at once: a query in batches, and inserts in bulk.

mod subjects;
mod typed;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{RawDocumentBuf, rawdoc};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use wharf_testbed::counting;

use self::subjects::{ClientFind, ClientInsert, OfficialBatches, OfficialFind, OfficialInsert, Transfer};
use self::typed::{
    HandleFind, HandleFindBorrowed, HandleInsert, OfficialFindBorrowed, OfficialFindTyped, OfficialInsertTyped,
};
use super::Client;
use crate::Failure;
use crate::alternation::{Alternation, Asked, Competitor, Turns};
use crate::arguments::CONNECTIONS;
use crate::child::take_turns;
use crate::claims::{Claim, Limit};
use crate::item;
use crate::load::{self, cpu_time};
use crate::report::{compared, print_row};
use crate::server::Server;
use crate::statistics::median;
use crate::subjects::Kind;

/// The database, and the collection that queries read.
pub const DATABASE: &str = "perf";
pub const READ: &str = "documents";
/// The collection that the inserts write to. It is dropped before each turn.
pub const WRITTEN: &str = "written";
/// Number of turns for each subject in a round, and number of queries in a turn. An insert takes the server longer than
/// a query, so a turn has only one insert.
const TURNS: u32 = 20;
const QUERIES: u32 = 4;

/// The operations on many documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Work {
    Find,
    FindTyped,
    FindBorrowed,
    Insert,
    InsertTyped,
}

impl Work {
    fn is_find(self) -> bool {
        matches!(self, Self::Find | Self::FindTyped | Self::FindBorrowed)
    }

    /// Returns the subjects, wharf's client first.
    fn subjects(self) -> &'static [Kind] {
        match self {
            Self::Find => &[Kind::Client, Kind::Official, Kind::OfficialRaw],
            Self::Insert => &[Kind::Client, Kind::OfficialRaw],
            Self::FindTyped | Self::FindBorrowed | Self::InsertTyped => &[Kind::Client, Kind::Official],
        }
    }

    /// Returns the claimed limit on the ratio of the client's CPU time to that of each other subject.
    fn limit(self) -> Limit {
        Limit::AtMost(match self {
            Self::Find | Self::Insert => 0.8,
            Self::FindTyped | Self::InsertTyped => 0.6,
            Self::FindBorrowed => 0.45,
        })
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}

/// The arguments to a child.
#[derive(Debug, Args)]
pub struct Documents {
    #[command(flatten)]
    pub child: crate::arguments::Child,
    #[arg(long, value_enum)]
    work: Work,
    /// Number of documents per operation.
    #[arg(long)]
    pub documents: u32,
    /// Number of documents per batch of a query.
    #[arg(long)]
    pub batch: u32,
    /// Number of operations in a turn.
    #[arg(long)]
    operations: u32,
}

/// The result of a turn, as a child process reports it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DocumentsResult {
    pub documents: u64,
    pub seconds: f64,
    /// CPU time in user space and in the kernel.
    pub cpu_seconds: f64,
    /// The number of allocations that all operations made, on the only thread that does any work.
    pub allocations: u64,
}

const CPU: fn(&DocumentsResult) -> f64 = |turn| turn.cpu_seconds * 1e9 / turn.documents as f64;
const RATE: fn(&DocumentsResult) -> f64 = |turn| turn.documents as f64 / turn.seconds;
const ALLOCATIONS: fn(&DocumentsResult) -> f64 = |turn| turn.allocations as f64 / turn.documents as f64;

/// Measures, prints a table, and returns the claims.
pub fn measure(arguments: &Client, work: Work) -> Result<Vec<Claim>, Failure> {
    let server = Server::provide(&arguments.machine)?;
    let (batches, what) = match work.is_find() {
        true => (arguments.batches.clone(), "A query of"),
        false => (vec![arguments.documents], "An insert of"),
    };
    let length = match work {
        Work::Find | Work::Insert => document(0).as_bytes().len(),
        _ => item::written(&item::item(0))?.as_bytes().len(),
    };
    println!("{what} {} documents of {length} bytes: {}", arguments.documents, server.describe());
    if work.is_find() {
        let (runtime, address) = (load::runtime(1)?, &server.address);
        match work {
            Work::Find => runtime.block_on(fill(address, arguments.documents))?,
            _ => runtime.block_on(item::fill(address, arguments.documents))?,
        }
    }
    let subjects = work.subjects();
    let alternation = Alternation { subjects: subjects.to_vec(), json: arguments.json.as_deref() };
    let (turns, operations) = match (work.is_find(), arguments.short) {
        (_, true) => (2, 1),
        (true, false) => (TURNS, QUERIES),
        (false, false) => (TURNS, 1),
    };
    let mut claims = Vec::new();
    for batch in batches {
        let mut measurements = Turns::default();
        let measured = format!("client-{work}-{batch}");
        for round in 0..arguments.rounds {
            eprintln!("{measured}: round {} of {}", round + 1, arguments.rounds);
            measurements.extend(alternation.take_turns(&measured, round, turns, |subject| {
                // There is one worker, so that one thread does all the work: each thread counts only its own
                // allocations.
                let asked = Asked { round, tasks: 1, subject, connections: CONNECTIONS, workers: 1 };
                let mut command = asked.command("documents", &server.address)?;
                command.args(["--work", &work.to_string(), "--documents", &arguments.documents.to_string()]);
                command.args(["--batch", &batch.to_string(), "--operations", &operations.to_string()]);
                Competitor::start(asked, command)
            })?);
        }
        claims.extend(report(work, batch, subjects, &measurements));
    }
    Ok(claims)
}

fn report(work: Work, batch: u32, subjects: &[Kind], turns: &Turns<DocumentsResult>) -> Vec<Claim> {
    let name = |kind| match (work, kind) {
        (_, Kind::Client) => "client",
        (Work::Find, Kind::OfficialRaw) => "official, raw batches",
        (Work::Find, _) => "official, raw documents",
        _ => "official",
    };
    println!();
    let title = if work.is_find() { format!("batches of {batch}") } else { "one call".to_owned() };
    print_row(&title, subjects.iter().map(|&kind| name(kind)));
    for (metric, value) in [
        ("client CPU per document, ns", CPU),
        ("documents per second", RATE),
        ("allocations per document", ALLOCATIONS),
    ] {
        print_row(metric, subjects.iter().map(|&kind| compared(turns, 1, value, kind, Kind::Client)));
    }
    let others = subjects.iter().filter(|&&kind| kind != Kind::Client);
    let claim = |&other: &Kind| {
        let limit = work.limit();
        let text = format!("{work}, {title}: the client's CPU per document is {limit} times that of {}", name(other));
        limit.judge(text, median(&turns.ratios(1, CPU, Kind::Client, other)))
    };
    others.map(claim).collect()
}

/// Fills the collection that queries read.
async fn fill(server: &str, documents: u32) -> Result<(), Failure> {
    let client = wharf::Client::from_uri(&crate::subjects::uri(server, 1))?;
    client.run_command(DATABASE, &rawdoc! { "dropDatabase": 1 }).await?;
    let documents: Vec<_> = (0..documents).map(document).collect();
    client.insert(DATABASE, READ, &documents).await?;
    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

/// Returns a document of typical size. It does not have an `_id`, so the driver that inserts it adds one.
pub fn document(number: u32) -> RawDocumentBuf {
    rawdoc! {
        "number": i64::from(number),
        "name": format!("document number {number:09}"),
        "text": "It is neither long nor short, and compresses badly enough.",
        "price": f64::from(number) / 100.0,
        "available": number.is_multiple_of(2),
        "size": { "width": 120, "height": 80, "unit": "mm" },
    }
}

/// Prepares a subject, then takes a turn for each line of standard input and prints its [`DocumentsResult`].
pub fn child(arguments: &Documents) -> Result<(), Failure> {
    match (arguments.work, arguments.child.subject) {
        (Work::Find, Kind::Client) => transfer::<ClientFind>(arguments),
        (Work::Find, Kind::Official) => transfer::<OfficialFind>(arguments),
        (Work::Find, Kind::OfficialRaw) => transfer::<OfficialBatches>(arguments),
        (Work::Insert, Kind::Client) => transfer::<ClientInsert>(arguments),
        (Work::Insert, Kind::OfficialRaw) => transfer::<OfficialInsert>(arguments),
        (Work::FindTyped, Kind::Client) => transfer::<HandleFind>(arguments),
        (Work::FindTyped, Kind::Official) => transfer::<OfficialFindTyped>(arguments),
        (Work::FindBorrowed, Kind::Client) => transfer::<HandleFindBorrowed>(arguments),
        (Work::FindBorrowed, Kind::Official) => transfer::<OfficialFindBorrowed>(arguments),
        (Work::InsertTyped, Kind::Client) => transfer::<HandleInsert>(arguments),
        (Work::InsertTyped, Kind::Official) => transfer::<OfficialInsertTyped>(arguments),
        (work, subject) => Err(format!("{subject} has no way to {work}").into()),
    }
}

fn transfer<T: Transfer>(arguments: &Documents) -> Result<(), Failure> {
    let runtime = load::runtime(arguments.child.workers)?;
    let (documents, operations) = (u64::from(arguments.documents), u64::from(arguments.operations));
    let subject = Arc::new(runtime.block_on(T::open(arguments))?);
    let turn = || {
        // Each part runs on a worker, so that no other thread is involved.
        let of_part = subject.clone();
        runtime.block_on(runtime.spawn(async move { of_part.prepare().await }))??;
        let of_part = subject.clone();
        let (began, cpu_before) = (Instant::now(), cpu_time()?);
        let allocations = runtime.block_on(runtime.spawn(async move {
            let before = counting::so_far();
            for _ in 0..operations {
                let transferred = of_part.transfer().await?;
                if transferred != documents {
                    return Err(Failure::from(format!("{transferred} documents instead of {documents}")));
                }
            }
            Ok(counting::so_far().saturating_sub(before))
        }))??;
        let (elapsed, cpu) = (began.elapsed(), cpu_time()?.saturating_sub(cpu_before));
        Ok(DocumentsResult {
            documents: documents * operations,
            seconds: elapsed.as_secs_f64(),
            cpu_seconds: cpu.as_secs_f64(),
            allocations: allocations as u64,
        })
    };
    // The first turn opens the connection, and is discarded.
    turn()?;
    take_turns(turn)
}
