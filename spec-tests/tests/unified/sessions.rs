//! Session entities and their operations.

use std::sync::{Arc, Mutex};

use bson::Bson;
use wharf::client::{AnyClient, ClientError, StartSession, TransactionOptions, TransactionState};

use crate::arguments::{Arguments, options};
use crate::case::{Case, HeldSession, Returned};
use crate::clients::Session;
use crate::format::{Object, Operation};
use crate::matching::Entities;
use crate::stop::Stop;

/// Sets the options of a session.
pub fn session_options<'c, C: AnyClient>(
    start: StartSession<'c, C>,
    options: &Object,
    entities: &dyn Entities,
) -> Result<StartSession<'c, C>, Stop> {
    let mut options = Arguments::new("a session", options);
    let mut start = options!(options, start; causal_consistency, default_timeout, snapshot);
    if let Some(name) = options.take::<String>("snapshotTime")? {
        let Some(Bson::Timestamp(time)) = entities.bson(&name) else {
            return Err(Stop::Broken(format!("snapshotTime {name} is no timestamp")));
        };
        start = start.snapshot_time(time);
    }
    if let Some(fields) = options.take::<Object>("defaultTransactionOptions")? {
        let mut fields = Arguments::new("a transaction", &fields);
        start = start.default_transaction_options(transaction_options(&mut fields)?);
    }
    options.end().map(|()| start)
}

fn transaction_options(options: &mut Arguments) -> Result<TransactionOptions, Stop> {
    let mut transaction =
        options!(options, TransactionOptions::default(); max_commit_time, read_preference, timeout, write_concern);
    if let Some(concern) = options.take::<Object>("readConcern")? {
        let mut concern = Arguments::new("readConcern", &concern);
        if let Some(level) = concern.take::<String>("level")? {
            transaction = transaction.read_concern(level);
        }
        concern.end()?;
    }
    options.end().map(|()| transaction)
}

/// Returns the format's name for a state.
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
    let mut arguments = Arguments::of(operation);
    if operation.name == "endSession" {
        locked.take();
        return Ok(Returned::Nothing);
    }
    let Some(session) = &mut *locked else { return Err(Stop::Refused("the session has ended".to_owned())) };
    match operation.name.as_str() {
        "startTransaction" => session.start_transaction(transaction_options(&mut arguments)?)?,
        "commitTransaction" => session.commit_transaction(arguments.take("timeoutMS")?).await?,
        "abortTransaction" => session.abort_transaction(arguments.take("timeoutMS")?).await?,
        "getSnapshotTime" => {
            let time = session.snapshot_time().ok_or_else(|| Stop::Broken("there is no snapshot time".to_owned()))?;
            return Ok(Returned::Value(time.into()));
        }
        "withTransaction" => {
            arguments.take::<Bson>("callback")?;
            let options = transaction_options(&mut arguments)?;
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

/// Runs a callback's operations once, and returns the session. The first error is checked here and ends the attempt.
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
