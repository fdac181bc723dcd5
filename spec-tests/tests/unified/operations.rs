//! The runner's own operations, and the dispatch of all other operations to the modules that run them.

use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document};
use serde_json::Value;
use wharf::client::ClientStatus;

use crate::arguments::{Arguments, options};
use crate::calls::{Call, call, shared};
use crate::case::{Case, Held, Returned, SharedChanges, SharedCursor, text};
use crate::clients::{CommonOptions, Of, Session, apart};
use crate::format::{Entity, ExpectedEvent, Filled, Operation};
use crate::matching::document;
use crate::observed::{PATIENCE, until};
use crate::stop::Stop;
use crate::{collections, databases, files, sessions};

pub async fn run(case: &Arc<Case>, operation: &Operation) -> Result<Returned, Stop> {
    if operation.object == "testRunner" {
        return special(case, operation).await.map(|()| Returned::Nothing);
    }
    let held = match operation.arguments.get("session") {
        Some(_) => Some(case.session(text(operation, "session")?)?),
        None => None,
    };
    let mut locked = match &held {
        Some(held) => Some(held.session.lock().await),
        None => None,
    };
    let session = match &mut locked {
        Some(locked) => match &mut **locked {
            Some(session) => Some(session),
            None => return Err(Stop::Refused("the session has ended".to_owned())),
        },
        None => None,
    };
    let mut arguments = Arguments::of(operation);
    arguments.take::<String>("session")?;
    // Servers before 8.2 do not support the option, so it must not be sent to them.
    let raw_data = arguments.take::<bool>("rawData")? == Some(true) && case.environment.has_raw_data();
    let name = operation.name.as_str();
    let call = Call { arguments, session, raw_data };
    match case.get(&operation.object)? {
        Held::Client(client) => databases::on_client(&client.client, name, call).await,
        Held::Database(database) => databases::on_database(&database, name, call).await,
        Held::Collection(collection) => collections::on_collection(&collection, name, call).await,
        Held::Cursor(cursor) => on_cursor(&cursor, name, call.arguments).await,
        Held::Changes(changes) => on_changes(&changes, name, call.arguments).await,
        Held::Session(held) => sessions::on_session(case, &held, operation).await,
        Held::Bucket(bucket) => files::on_bucket(&bucket, name, call.arguments).await,
        Held::Bson(_) | Held::Topology(_) | Held::Thread(_) => {
            Err(Stop::Broken(format!("{} has no operations", operation.object)))
        }
    }
}

async fn on_cursor(cursor: &SharedCursor, name: &str, mut arguments: Arguments) -> Result<Returned, Stop> {
    let mut held = cursor.lock().await;
    let limit = arguments.take::<Duration>("timeoutMS")?;
    arguments.end()?;
    if name == "close" {
        if let Some(open) = held.take() {
            open.close(limit).await;
        }
        return Ok(Returned::Nothing);
    }
    let Some(open) = &mut *held else { return Err(Stop::Broken("the cursor is closed".to_owned())) };
    Ok(returned(match name {
        // A single call fetches as many batches as it needs, so its time limit covers one iteration.
        "iterateUntilDocumentOrError" => open.next().await?,
        "iterateOnce" => open.next_if_any().await?,
        other => return Err(Stop::Broken(format!("{other} is not an operation of a cursor"))),
    }))
}

async fn on_changes(changes: &SharedChanges, name: &str, arguments: Arguments) -> Result<Returned, Stop> {
    arguments.end()?;
    let mut held = changes.lock().await;
    if name == "close" {
        held.take();
        return Ok(Returned::Nothing);
    }
    let Some(open) = &mut *held else { return Err(Stop::Broken("the change stream is closed".to_owned())) };
    Ok(returned(match name {
        "iterateUntilDocumentOrError" => open.next().await?,
        "iterateOnce" => open.next_if_any().await?,
        other => return Err(Stop::Broken(format!("{other} is not an operation of a change stream"))),
    }))
}

fn returned(found: Option<Document>) -> Returned {
    found.map_or(Returned::Nothing, |found| Returned::Value(found.into()))
}

fn number(operation: &Operation, name: &str) -> Result<u64, Stop> {
    let value = operation.arguments.get(name).and_then(Value::as_u64);
    value.ok_or_else(|| Stop::Broken(format!("{} needs the number {name}", operation.name)))
}

fn event(operation: &Operation) -> Result<ExpectedEvent, Stop> {
    let value = operation.arguments.get("event").cloned().unwrap_or_default();
    serde_json::from_value(value).map_err(|error| Stop::Broken(format!("{}: {error}", operation.name)))
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Stop> {
    if holds { Ok(()) } else { Err(Stop::Broken(what())) }
}

/// Runs one of the runner's own operations ("Special Test Operations").
async fn special(case: &Arc<Case>, operation: &Operation) -> Result<(), Stop> {
    match operation.name.as_str() {
        "failPoint" => {
            let client = case.client(text(operation, "client")?)?;
            let Some(Value::Object(fail_point)) = operation.arguments.get("failPoint") else {
                return Err(Stop::Broken("failPoint needs a command".to_owned()));
            };
            let fail_point = document(fail_point);
            let name = fail_point.get_str("configureFailPoint").map_err(|error| error.to_string())?;
            case.fail_points.lock().unwrap().push(name.to_owned());
            let admin = client.client.database("admin", &CommonOptions::default());
            let arguments = Arguments::new("failPoint", &Default::default());
            let mut call = Call { arguments, session: None, raw_data: false };
            let set: Result<Document, _> = call!(&admin, call, |of| of.run_command(&fail_point));
            set.map(drop).map_err(|error| Stop::Broken(format!("failPoint: {}", error.describe())))
        }
        "createEntities" => {
            let entities = operation.arguments.get("entities").cloned().unwrap_or_default();
            let entities: Filled<Entity> = serde_json::from_value(entities).map_err(|error| error.to_string())?;
            for entity in &entities.0 {
                case.create(entity).await?;
            }
            Ok(())
        }
        "waitForEvent" => {
            let client = case.client(text(operation, "client")?)?;
            let (event, least) = (event(operation)?, number(operation, "count")? as usize);
            client.connect_late().await;
            let seen = until(case.patience(), || client.count(&event, &**case) >= least).await;
            seen.map_err(|()| Stop::Broken(format!("waited in vain for {least} times {event:?}")))
        }
        "assertEventCount" => {
            let client = case.client(text(operation, "client")?)?;
            let (event, count) = (event(operation)?, number(operation, "count")? as usize);
            let actual = client.count(&event, &**case);
            ensure(actual == count, || format!("expected {count} times {event:?}, got {actual}"))
        }
        "assertNumberConnectionsCheckedOut" => {
            let client = case.client(text(operation, "client")?)?;
            let connections = number(operation, "connections")?;
            // A failed cursor is closed in the background, so its connection may still be in use for a moment.
            _ = until(Duration::from_secs(2), || client.in_use() == connections).await;
            let actual = client.in_use();
            ensure(actual == connections, || format!("{actual} connections are in use, not {connections}"))
        }
        "assertSameLsidOnLastTwoCommands" => {
            let [last, other] = case.client(text(operation, "client")?)?.last_two_sessions()?;
            ensure(last == other, || format!("the last two sessions are {last} and {other}"))
        }
        "assertDifferentLsidOnLastTwoCommands" => {
            let [last, other] = case.client(text(operation, "client")?)?.last_two_sessions()?;
            ensure(last != other, || format!("the last two sessions are both {last}"))
        }
        "assertCollectionExists" => ensure(collection_exists(case, operation).await?, || "no collection".to_owned()),
        "assertCollectionNotExists" => {
            ensure(!collection_exists(case, operation).await?, || "the collection is there".to_owned())
        }
        "assertIndexExists" => ensure(index_exists(case, operation).await?, || "no index".to_owned()),
        "assertIndexNotExists" => ensure(!index_exists(case, operation).await?, || "the index is there".to_owned()),
        "recordTopologyDescription" => {
            let client = case.client(text(operation, "client")?)?;
            client.connect_late().await;
            case.add(text(operation, "id")?, Held::Topology(client.client.status()))
        }
        "assertTopologyType" => {
            let topology = case.topology(text(operation, "topologyDescription")?)?;
            let expected = text(operation, "topologyType")?;
            ensure(topology.topology_type == expected, || format!("the topology is {}", topology.topology_type))
        }
        "waitForPrimaryChange" => {
            let client = case.client(text(operation, "client")?)?;
            let prior = primary(&case.topology(text(operation, "priorTopologyDescription")?)?);
            let limit = number(operation, "timeoutMS").map_or(PATIENCE, Duration::from_millis);
            let is_other = || primary(&client.client.status()).is_some_and(|now| Some(&now) != prior.as_ref());
            until(limit, is_other).await.map_err(|()| Stop::Broken("the primary has not changed".to_owned()))
        }
        "runOnThread" => {
            let thread = case.thread(text(operation, "thread")?)?;
            let scheduled = operation.arguments.get("operation").cloned().unwrap_or_default();
            let scheduled = serde_json::from_value(scheduled).map_err(|error| error.to_string())?;
            let queue = thread.queue.lock().unwrap();
            let sent = queue.as_ref().is_some_and(|queue| queue.send(scheduled).is_ok());
            ensure(sent, || "the thread has ended".to_owned())
        }
        "waitForThread" => {
            let thread = case.thread(text(operation, "thread")?)?;
            drop(thread.queue.lock().unwrap().take());
            let task = thread.task.lock().unwrap().take();
            let Some(task) = task else { return Err(Stop::Broken("the thread was waited for".to_owned())) };
            match tokio::time::timeout(PATIENCE, task).await {
                Ok(Ok(ended)) => ended,
                Ok(Err(error)) => Err(Stop::Broken(format!("the thread: {error}"))),
                Err(_) => Err(Stop::Broken("the thread has not ended in time".to_owned())),
            }
        }
        "wait" => {
            tokio::time::sleep(Duration::from_millis(number(operation, "ms")?)).await;
            Ok(())
        }
        "assertSessionTransactionState" => {
            let held = case.session(text(operation, "session")?)?;
            let (state, locked) = (text(operation, "state")?, held.session.lock().await);
            let actual = locked.as_ref().map(|session| sessions::state_name(session.transaction_state()));
            ensure(actual == Some(state), || format!("the transaction is {actual:?}, not {state}"))
        }
        "targetedFailPoint" => {
            case.session(text(operation, "session")?)?;
            let fail_point = Arguments::of(operation).need::<Document>("failPoint")?;
            let name = fail_point.get_str("configureFailPoint").map_err(|error| error.to_string())?;
            case.fail_points.lock().unwrap().push(name.to_owned());
            Ok(case.environment.set_fail_point(&fail_point).await?)
        }
        assertion @ ("assertSessionPinned"
        | "assertSessionUnpinned"
        | "assertSessionDirty"
        | "assertSessionNotDirty") => {
            let held = case.session(text(operation, "session")?)?;
            let state = held.session.lock().await.as_ref().map(Session::is_pinned_and_dirty);
            let holds = state.is_some_and(|(is_pinned, is_dirty)| match assertion {
                "assertSessionPinned" => is_pinned,
                "assertSessionUnpinned" => !is_pinned,
                "assertSessionDirty" => is_dirty,
                _ => !is_dirty,
            });
            ensure(holds, || format!("{assertion}: the session is pinned and dirty: {state:?}"))
        }
        "loop" => Err(Stop::Lacks("loops, which only tests of Atlas have")),
        other => Err(Stop::Broken(format!("{other} is not an operation of the runner"))),
    }
}

fn primary(status: &ClientStatus) -> Option<Arc<str>> {
    status.servers.iter().find(|server| server.server_type == "RSPrimary").map(|server| server.address.clone())
}

async fn collection_exists(case: &Case, operation: &Operation) -> Result<bool, Stop> {
    let name = text(operation, "collectionName")?;
    let list = bson::doc! { "listCollections": 1, "filter": { "name": name } };
    let reply = case.environment.run(text(operation, "databaseName")?, list).await?;
    Ok(!first_batch(&reply)?.is_empty())
}

async fn index_exists(case: &Case, operation: &Operation) -> Result<bool, Stop> {
    let list = bson::doc! { "listIndexes": text(operation, "collectionName")? };
    let reply = match case.environment.run(text(operation, "databaseName")?, list).await {
        // Without a collection there is no index.
        Err(error) if error.contains("error 26") || error.contains("ns does not exist") => return Ok(false),
        reply => reply?,
    };
    let wanted = text(operation, "indexName")?;
    let is_wanted = |index: &Bson| {
        index.as_document().is_some_and(|index| index.get("name").and_then(Bson::as_str) == Some(wanted))
    };
    Ok(first_batch(&reply)?.iter().any(is_wanted))
}

fn first_batch(reply: &bson::Document) -> Result<Vec<Bson>, Stop> {
    let batch = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    batch.cloned().map_err(|error| Stop::Broken(error.to_string()))
}
