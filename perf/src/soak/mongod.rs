//! The half of the soak with a mongod, which is killed and stopped while tasks use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bson::{RawDocument, rawdoc};
use tokio::runtime::Runtime;
use tokio::time::timeout;
use wharf::{CheckOutError, Client, ClientError, OperationError, ReadPreference};
use wharf_testbed::dice::Dice;
use wharf_testbed::mongod::{Mongod, MongodOptions};

use super::{Half, PATIENCE, Span, WARM_UP, descriptors};
use crate::Failure;
use crate::client::resident;
use crate::load;

const TASKS: u64 = 64;
/// `maxPoolSize`: fewer connections than tasks.
const MOST: u32 = 10;
/// The time limit for a command. The server may be stopped for longer than this.
const LIMIT: Duration = Duration::from_secs(2);
/// The server's error code for `MaxTimeMSExpired`: the server was stopped for too long while it ran a command.
const MAX_TIME_EXPIRED: i32 = 50;
/// The longest pause between two disturbances.
const PAUSE: Duration = Duration::from_secs(2);

/// All counts are Relaxed: they publish nothing, and the tasks are joined before the counts are read.
#[derive(Default)]
struct Counts {
    is_over: AtomicBool,
    served: AtomicU64,
    failed: AtomicU64,
    /// The failures that the server's absence does not explain.
    unexpected: AtomicU64,
    cancelled: AtomicU64,
    /// Replies that belonged to another command.
    confused: AtomicU64,
}

pub fn soak(length: Duration) -> Result<Half, Failure> {
    let mut mongod = Mongod::start(MongodOptions::default())?;
    let runtime = load::runtime(2)?;
    let (before, began) = (descriptors(usize::MAX)?, Instant::now());
    let uri = format!(
        "mongodb://{}/?directConnection=true&maxPoolSize={MOST}&minPoolSize=2&heartbeatFrequencyMS=500&timeoutMS={}",
        mongod.address(),
        LIMIT.as_millis()
    );
    let client = runtime.block_on(async { Client::from_uri(&uri) })?;
    let counts = Arc::new(Counts::default());
    let tasks: Vec<_> =
        (0..TASKS).map(|task| runtime.spawn(use_client(client.clone(), task, counts.clone()))).collect();
    let (mut dice, mut disturbances, mut warm) = (Dice(1), 0, None);
    // Each disturbance happens at least once.
    while began.elapsed() < length || disturbances < 3 {
        thread::sleep(PAUSE.min(length).mul_f64(dice.roll(100) as f64 / 100.0));
        match disturbances % 3 {
            0 => {
                mongod.kill()?;
                mongod.restart()?;
            }
            number => {
                mongod.pause()?;
                // The second of the two stops is longer than a command may take.
                thread::sleep(if number == 1 { Duration::from_millis(dice.roll(400)) } else { LIMIT * 3 / 2 });
                mongod.resume()?;
            }
        }
        disturbances += 1;
        if began.elapsed() >= length.mul_f64(WARM_UP) && warm.is_none() {
            warm = Some(resident()?);
        }
    }
    counts.is_over.store(true, Ordering::Relaxed);
    let first_error = runtime.block_on(async {
        let mut first = None;
        for task in tasks {
            first = first.or(task.await.expect("a task panicked"));
        }
        first
    });
    if let Some(error) = first_error {
        println!("The first error while the server is away: {error}\n");
    }
    let lost = lost(&runtime, &client)?;
    let metrics = client.metrics();
    let memory = Span { before: warm.unwrap_or(resident()?), after: resident()? };
    let is_closed = runtime.block_on(client.shutdown(PATIENCE));
    let left = if is_closed { 0 } else { client.metrics().iter().map(|of| u64::from(of.status.total)).sum() };
    drop(client);
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    Ok(Half {
        name: "mongod",
        took: began.elapsed(),
        served: count(&counts.served),
        disturbances,
        errors: count(&counts.failed),
        unexpected_errors: count(&counts.unexpected),
        cancelled: count(&counts.cancelled),
        given_twice: count(&counts.confused),
        lost,
        metrics,
        left,
        memory,
        // Both counts include the runtime's descriptors, so a difference comes from the client.
        descriptors: Span { before, after: descriptors(before)? },
    })
}

/// Runs commands with numbered replies until the end, and cancels some of them. Returns the first error.
async fn use_client(client: Client, task: u64, counts: Arc<Counts>) -> Option<String> {
    let (mut dice, mut first_error) = (Dice(task << 32), None);
    for turn in 0.. {
        if counts.is_over.load(Ordering::Relaxed) {
            break;
        }
        let number = (task << 32 | turn) as i64;
        let command = rawdoc! { "aggregate": 1, "pipeline": [{ "$documents": [{ "n": number }] }], "cursor": {} };
        let call = client.run_command("admin", &command);
        let outcome = match dice.roll(4) {
            0 => timeout(Duration::from_micros(dice.roll(3_000)), call).await.ok(),
            _ => Some(call.await),
        };
        let counted = match outcome {
            None => &counts.cancelled,
            Some(Ok(reply)) if number_in(&reply) == Some(number) => &counts.served,
            Some(Ok(_)) => &counts.confused,
            Some(Err(error)) => {
                if !comes_from_absence(&error) {
                    eprintln!("soak: {error}");
                    counts.unexpected.fetch_add(1, Ordering::Relaxed);
                }
                first_error.get_or_insert(error.to_string());
                &counts.failed
            }
        };
        counted.fetch_add(1, Ordering::Relaxed);
    }
    first_error
}

/// Returns whether a server that was killed or stopped explains the error: the network failed, a time limit expired
/// before there was a server, a connection or a reply, or the pool was cleared.
fn comes_from_absence(error: &ClientError) -> bool {
    let cleared = matches!(error.operation_error(), Some(OperationError::CheckOut(CheckOutError::PoolCleared(_))));
    cleared || error.is_network() || error.is_timeout() || error.code() == Some(MAX_TIME_EXPIRED)
}

/// Returns the number in the reply to a command of [`use_client`].
fn number_in(reply: &RawDocument) -> Option<i64> {
    let batch = reply.get_document("cursor").ok()?.get_array("firstBatch").ok()?;
    batch.get_document(0).ok()?.get_i64("n").ok()
}

/// Checks out all connections that the pool allows, and checks them in. Returns how many are missing.
fn lost(runtime: &Runtime, client: &Client) -> Result<u64, Failure> {
    let preference = ReadPreference::default();
    runtime.block_on(async {
        let mut held = Vec::new();
        let until = Instant::now() + PATIENCE;
        while held.len() < MOST as usize && Instant::now() < until {
            match client.check_out(&preference).await {
                Ok(connection) => held.push(connection),
                Err(error) => eprintln!("soak: {error}"),
            }
        }
        Ok(u64::from(MOST) - held.len() as u64)
    })
}
