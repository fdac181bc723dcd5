//! Session entities and their operations.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::Bson;
use serde_json::Value;
use wharf::client::{AnyClient, ClientError, StartSession, TransactionOptions, TransactionState};
use wharf::{Acknowledgement, WriteConcern};

use crate::case::{Case, HeldSession, Returned};
use crate::clients::Session;
use crate::commands::{allow, read_preference};
use crate::format::{Object, Operation};
use crate::matching::Entities;
use crate::stop::Stop;

pub fn session_options<'c, C: AnyClient>(
    mut session: StartSession<'c, C>,
    options: &Object,
    entities: &dyn Entities,
) -> Result<StartSession<'c, C>, Stop> {
    for (name, value) in options {
        session = match (name.as_str(), value) {
            ("causalConsistency", Value::Bool(value)) => session.causal_consistency(*value),
            ("snapshot", Value::Bool(value)) => session.snapshot(*value),
            ("snapshotTime", Value::String(name)) => match entities.bson(name) {
                Some(Bson::Timestamp(time)) => session.snapshot_time(time),
                other => return Err(Stop::Broken(format!("snapshotTime is {other:?}"))),
            },
            ("defaultTimeoutMS", value) if value.is_u64() => {
                session.default_timeout(Duration::from_millis(value.as_u64().unwrap_or_default()))
            }
            ("defaultTransactionOptions", Value::Object(options)) => {
                session.default_transaction_options(transaction_options(options)?)
            }
            _ => return Err(Stop::Broken(format!("{name} is not an option of a session"))),
        };
    }
    Ok(session)
}

fn transaction_options(options: &Object) -> Result<TransactionOptions, Stop> {
    let mut transaction = TransactionOptions::default();
    for (name, value) in options {
        transaction = match (name.as_str(), value) {
            ("readConcern", Value::Object(concern)) => match concern.get("level").and_then(Value::as_str) {
                Some(level) => transaction.read_concern(level),
                None => transaction,
            },
            ("writeConcern", Value::Object(concern)) => transaction.write_concern(write_concern(concern)?),
            ("readPreference", Value::Object(preference)) => transaction.read_preference(read_preference(preference)?),
            ("maxCommitTimeMS", value) => {
                transaction.max_commit_time(Duration::from_millis(value.as_u64().unwrap_or_default()))
            }
            ("callback", _) => transaction,
            ("timeoutMS", _) => return Err(Stop::Lacks("timeoutMS of a transaction's operations")),
            _ => return Err(Stop::Broken(format!("{name} is not an option of a transaction"))),
        };
    }
    Ok(transaction)
}

fn write_concern(concern: &Object) -> Result<WriteConcern, Stop> {
    let mut read = WriteConcern::default();
    for (name, value) in concern {
        read = match (name.as_str(), value) {
            ("w", Value::String(mode)) => read.w(Acknowledgement::Mode(mode.clone())),
            ("w", Value::Number(servers)) => {
                let servers = servers.as_u64().and_then(|servers| u32::try_from(servers).ok()).unwrap_or_default();
                read.w(Acknowledgement::Servers(servers))
            }
            ("journal" | "j", Value::Bool(value)) => read.journal(*value),
            ("wtimeout" | "wtimeoutMS", value) => {
                read.w_timeout(Duration::from_millis(value.as_u64().unwrap_or_default()))
            }
            _ => return Err(Stop::Broken(format!("{name} is not a field of a write concern"))),
        };
    }
    Ok(read)
}

/// Returns the format's name of a state.
pub fn state_name(state: TransactionState) -> &'static str {
    match state {
        TransactionState::None => "none",
        TransactionState::Starting => "starting",
        TransactionState::InProgress => "in_progress",
        TransactionState::Committed => "committed",
        _ => "aborted",
    }
}

pub async fn on_session(case: &Arc<Case>, held: &HeldSession, operation: &Operation) -> Result<Returned, Stop> {
    let mut locked = held.session.lock().await;
    if operation.name == "endSession" {
        allow(operation, &[])?;
        locked.take();
        return Ok(Returned::Nothing);
    }
    let Some(session) = &mut *locked else { return Err(Stop::Refused("the session has ended".to_owned())) };
    if operation.arguments.contains_key("timeoutMS") {
        return Err(Stop::Lacks("timeoutMS of a transaction's operations"));
    }
    match operation.name.as_str() {
        "startTransaction" => session.start_transaction(transaction_options(&operation.arguments)?)?,
        "commitTransaction" => session.commit_transaction().await?,
        "abortTransaction" => session.abort_transaction().await?,
        "getSnapshotTime" => {
            let time = session.snapshot_time().ok_or_else(|| Stop::Broken("there is no snapshot time".to_owned()))?;
            return Ok(Returned::Value(time.into()));
        }
        "withTransaction" => {
            let options = transaction_options(&operation.arguments)?;
            let callback = operation.arguments.get("callback").cloned().unwrap_or_default();
            let mut callback: Vec<Operation> = serde_json::from_value(callback).map_err(|error| error.to_string())?;
            callback.iter_mut().for_each(|operation| operation.is_in_callback = true);
            let Some(mut session) = locked.take() else { return Ok(Returned::Nothing) };
            drop(locked);
            let failure = Mutex::new(None);
            let outcome = session.with_transaction(options, |inner| body(case, held, &callback, &failure, inner)).await;
            *held.session.lock().await = Some(session);
            if let Some(stop) = failure.into_inner().unwrap() {
                return Err(stop);
            }
            outcome?;
        }
        other => return Err(Stop::Broken(format!("{other} is not an operation of a session"))),
    }
    Ok(Returned::Nothing)
}

/// Runs the operations of a callback once, and gives the session back. Its errors are checked here, and end the
/// attempt.
async fn body(
    case: &Arc<Case>,
    held: &HeldSession,
    callback: &[Operation],
    failure: &Mutex<Option<Stop>>,
    session: Session,
) -> (Result<(), ClientError>, Option<Session>) {
    *held.session.lock().await = Some(session);
    let mut ended = Ok(());
    for operation in callback {
        match case.execute_and_return_error(operation).await {
            Ok(None) => {}
            Ok(Some(error)) => {
                ended = Err(error);
                break;
            }
            Err(stop) => {
                ended = Err(ClientError::other(stop.describe()));
                *failure.lock().unwrap() = Some(stop);
                break;
            }
        }
    }
    (ended, held.session.lock().await.take())
}
