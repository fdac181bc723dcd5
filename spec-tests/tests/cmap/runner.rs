//! Runs a case's operations on a pool, and compares the outcome.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::oid::ObjectId;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use wharf::{CheckOutError, Clear, Connection, Establish, Phase, Pool};

use super::case::{Case, millis, number};
use super::recorder::{Recorder, Recording, matches};

/// How long `waitForEvent` waits by default.
const PATIENCE: Duration = Duration::from_secs(10);

/// An error in the format's notation.
type Failed = Value;

/// Runs a case and panics with a report if it fails.
pub async fn run<E: Establish>(case: &Case, address: &str, establish: E, spoil: fn(&mut E::Connection)) {
    let recorder = Arc::new(Recorder::default());
    let pool = Pool::builder(address, establish)
        .options(case.options.clone())
        .tokio_clock(true)
        .subscriber(Recording(recorder.clone()))
        // Does what the server's monitor would do ("Application Errors" in the SDAM specification).
        .on_failure(|failure| {
            if failure.clears_pool() {
                failure.clear_pool();
            }
        })
        .build()
        .expect("a pool");
    let stage = Arc::new(Stage { pool, recorder, labelled: Mutex::default(), unlabelled: Mutex::default(), spoil });
    let mut threads = HashMap::new();
    let mut outcome = Ok(());
    for operation in &case.operations {
        outcome = main_thread(&stage, &mut threads, operation).await;
        if outcome.is_err() {
            break;
        }
    }
    // The events are taken now, because the clean-up emits more events.
    let events = stage.recorder.events();
    for thread in threads.into_values() {
        if thread.task.is_finished() {
            // Propagates a panic in the thread. An error that no operation waited for is ignored.
            let _ = thread.ended().await;
        } else {
            thread.task.abort();
        }
    }
    if let Err(difference) = compare(case, &outcome, &events) {
        let events: Vec<String> = events.iter().map(|event| format!("\n    {event}")).collect();
        panic!("{}\n  {difference}\n  outcome: {outcome:?}\n  events:{}", case.description, events.concat());
    }
}

fn compare(case: &Case, outcome: &Result<(), Failed>, events: &[Value]) -> Result<(), String> {
    match (&case.error, outcome) {
        (None, Ok(())) => {}
        (None, Err(error)) => return Err(format!("an unexpected error: {error}")),
        (Some(expected), Ok(())) => return Err(format!("no error, but expected {expected}")),
        (Some(expected), Err(error)) => matches(expected, Some(error), "error")?,
    }
    let ignored = |event: &&Value| case.ignore.iter().any(|name| event["type"] == name.as_str());
    let actual: Vec<&Value> = events.iter().filter(|event| !ignored(event)).collect();
    for (index, expected) in case.events.iter().enumerate() {
        matches(expected, actual.get(index).copied(), &format!("events[{index}]"))?;
    }
    match actual.get(case.events.len()) {
        Some(further) if case.exact => Err(format!("an unexpected event: {further}")),
        _ => Ok(()),
    }
}

/// The state that all threads of a case share.
struct Stage<E: Establish> {
    pool: Pool<E>,
    recorder: Arc<Recorder>,
    labelled: Mutex<HashMap<String, Connection<E>>>,
    /// Connections without a label. The test cannot check them in, so they stay in use.
    unlabelled: Mutex<Vec<Connection<E>>>,
    spoil: fn(&mut E::Connection),
}

/// One of the format's threads, which is a task here.
struct Thread {
    operations: mpsc::UnboundedSender<Value>,
    /// Cancels the current operation, and reports when it has stopped.
    cancel: mpsc::UnboundedSender<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), Failed>>,
}

impl Thread {
    fn start<E: Establish>(stage: Arc<Stage<E>>) -> Self {
        let (operations, mut to_do) = mpsc::unbounded_channel::<Value>();
        let (cancel, mut cancelled) = mpsc::unbounded_channel::<oneshot::Sender<()>>();
        let task = tokio::spawn(async move {
            while let Some(operation) = to_do.recv().await {
                tokio::select! {
                    outcome = stage.perform(&operation) => outcome?,
                    // When this runs, the operation's future has already been dropped.
                    Some(done) = cancelled.recv() => drop(done.send(())),
                }
            }
            Ok(())
        });
        Self { operations, cancel, task }
    }

    async fn ended(self) -> Result<(), Failed> {
        drop(self.operations);
        match self.task.await {
            Ok(outcome) => outcome,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

async fn main_thread<E: Establish>(
    stage: &Arc<Stage<E>>,
    threads: &mut HashMap<String, Thread>,
    operation: &Value,
) -> Result<(), Failed> {
    let target = || operation["target"].as_str().expect("a target");
    match operation["name"].as_str().expect("an operation's name") {
        "start" => {
            threads.insert(target().into(), Thread::start(stage.clone()));
            Ok(())
        }
        "waitForThread" => threads.remove(target()).expect("a thread of that name").ended().await,
        "cancel" => {
            let (done, stopped) = oneshot::channel();
            threads[target()].cancel.send(done).expect("the thread is alive");
            stopped.await.expect("the thread is alive");
            Ok(())
        }
        _ => match operation["thread"].as_str() {
            None => stage.perform(operation).await,
            Some(thread) => {
                // A failed thread accepts no more operations, and `waitForThread` returns its error.
                let _ = threads[thread].operations.send(operation.clone());
                Ok(())
            }
        },
    }
}

impl<E: Establish> Stage<E> {
    async fn perform(&self, operation: &Value) -> Result<(), Failed> {
        match operation["name"].as_str().expect("an operation's name") {
            "wait" => tokio::time::sleep(millis(&operation["ms"])).await,
            "waitForEvent" => {
                let event_type = operation["event"].as_str().expect("an event's name");
                let timeout = operation.get("timeout").map_or(PATIENCE, millis);
                let count = number(&operation["count"]) as usize;
                self.recorder.wait_for(event_type, count, timeout).await.map_err(|seen| {
                    let message = format!("{seen} instead of {count} {event_type} events within {timeout:?}");
                    json!({ "type": "WaitForEventTimeout", "message": message })
                })?;
            }
            "checkOut" => {
                for _ in 0..operation.get("times").map_or(1, number) {
                    self.check_out(operation).await?;
                }
            }
            "checkIn" => {
                let connection = self.take(operation);
                self.pool.check_in(connection).map_err(|error| json!({ "message": error.to_string() }))?;
            }
            "ready" => drop(self.pool.ready()),
            "clear" => self.clear(operation)?,
            "close" => self.pool.close(),
            "spoil" => {
                let mut labelled = self.labelled.lock().unwrap();
                let connection = labelled.get_mut(label(operation)).expect("a connection of that label");
                (self.spoil)(connection);
            }
            "operate" => {
                let mut connection = self.take(operation);
                let interrupted = connection.interruptible(async |_| std::future::pending::<()>().await).await;
                self.labelled.lock().unwrap().insert(label(operation).into(), connection);
                let mut cleared = interrupted.expect_err("an endless operation returned");
                // Only the caller can know that its operation sent nothing.
                cleared.sent = false;
                let error = CheckOutError::from(cleared);
                return Err(to_json(&error));
            }
            "assertStatus" => self.assert_status(operation),
            "assertService" => {
                let status = self.pool.service(service_id(&operation["serviceId"]));
                let (generation, count) = status.map_or((0, 0), |status| (status.generation, status.connections));
                let service = json!({ "generation": generation, "connections": count });
                matches(&operation["service"], Some(&service), "service").unwrap_or_else(|error| panic!("{error}"));
            }
            unknown => panic!("unknown operation {unknown}"),
        }
        Ok(())
    }

    async fn check_out(&self, operation: &Value) -> Result<(), Failed> {
        let checked_out = match operation.get("deadlineMS") {
            None => self.pool.check_out().await,
            Some(deadline) => self.pool.check_out_until(Instant::now() + millis(deadline)).await,
        };
        let connection = checked_out.map_err(|error| to_json(&error))?;
        match operation["label"].as_str() {
            Some(label) => drop(self.labelled.lock().unwrap().insert(label.into(), connection)),
            None => self.unlabelled.lock().unwrap().push(connection),
        }
        Ok(())
    }

    fn take(&self, operation: &Value) -> Connection<E> {
        self.labelled.lock().unwrap().remove(label(operation)).expect("a connection of that label")
    }

    fn clear(&self, operation: &Value) -> Result<(), Failed> {
        let interrupt = operation["interruptInUseConnections"].as_bool().unwrap_or(false);
        let clear = Clear::new().interrupt_in_use_connections(interrupt);
        let cleared = match operation.get("serviceId") {
            None => self.pool.clear(clear),
            Some(id) => self.pool.clear_service(service_id(id), clear),
        };
        cleared.map(|_| ()).map_err(|error| json!({ "type": "InvalidOption", "message": error.to_string() }))
    }

    fn assert_status(&self, operation: &Value) {
        let status = self.pool.status();
        assert!(status.consistent);
        assert_eq!(status.total, status.pending + status.available + status.in_use + status.stale, "{status:?}");
        let actual = json!({
            "phase": match status.phase {
                Phase::Paused => "paused",
                Phase::Ready => "ready",
                Phase::Closed => "closed",
            },
            "generation": status.generation,
            "total": status.total,
            "pending": status.pending,
            "available": status.available,
            "inUse": status.in_use,
            "stale": status.stale,
            "waiting": status.waiting,
        });
        // Here `42` is an ordinary number: a status needs no wildcard.
        for (key, expected) in operation["status"].as_object().expect("a status") {
            assert_eq!(Some(expected), actual.get(key), "{key} of {actual}");
        }
    }
}

fn label(operation: &Value) -> &str {
    operation["connection"].as_str().expect("a connection's label")
}

/// Returns the identifier of the service with this number. In events, service 1 appears as `000000000000000000000001`.
pub fn service_id(number: &Value) -> ObjectId {
    ObjectId::from_str(&format!("{:024x}", self::number(number))).expect("24 digits")
}

fn to_json(error: &CheckOutError) -> Failed {
    let kind = match error {
        CheckOutError::PoolClosed(_) => "PoolClosedError",
        CheckOutError::PoolCleared(_) => "PoolClearedError",
        CheckOutError::WaitQueueTimeout(_) => "WaitQueueTimeoutError",
        _ => "ConnectionError",
    };
    json!({
        "type": kind,
        "message": error.to_string(),
        "address": error.address(),
        "retryable": error.is_retryable(),
    })
}
