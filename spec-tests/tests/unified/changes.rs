//! Change streams.

use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document};
use serde_json::Value;
use wharf::client::WatchTarget;

use crate::case::Returned;
use crate::clients::{Changes, Client, Session};
use crate::commands::{allow, copy, read_preference, timeout};
use crate::format::{CommonOptions, Operation};
use crate::matching::document;
use crate::operations::argument;
use crate::stop::Stop;

/// A change stream; `None` after it was closed.
pub type SharedChanges = Arc<tokio::sync::Mutex<Option<Changes>>>;

/// The arguments that are fields of `$changeStream`.
const STAGE: [&str; 6] = [
    "fullDocument",
    "fullDocumentBeforeChange",
    "resumeAfter",
    "startAfter",
    "startAtOperationTime",
    "showExpandedEvents",
];

/// Opens a change stream.
pub async fn create(
    client: &Client,
    target: WatchTarget<'_>,
    options: &CommonOptions,
    operation: &Operation,
    session: Option<&mut Session>,
) -> Result<Returned, Stop> {
    let known =
        [&STAGE[..], &["pipeline", "batchSize", "collation", "comment", "maxAwaitTimeMS", "timeoutMS"]].concat();
    allow(operation, &known)?;
    let (mut stage, mut fields) = (Document::new(), Document::new());
    copy(operation, &mut stage, &STAGE);
    copy(operation, &mut fields, &["collation", "comment"]);
    if let Some(concern) = options.read_concern.as_ref().filter(|concern| !concern.is_empty()) {
        fields.insert("readConcern", document(concern));
    }
    let preference = options.read_preference.as_ref().map(read_preference).transpose()?;
    let pipeline = argument(operation, "pipeline").unwrap_or(Bson::Null);
    let number = |name: &str| operation.arguments.get(name).and_then(Value::as_u64);
    let size = number("batchSize").map(i32::try_from).transpose().map_err(|error| error.to_string())?;
    Ok(Returned::Changes(Box::new(
        client
            .watch(target, pipeline, session, |mut watch| {
                watch = watch.stage(stage).options(fields);
                if let Some(size) = size {
                    watch = watch.batch_size(size);
                }
                if let Some(limit) = number("maxAwaitTimeMS") {
                    watch = watch.max_await_time(Duration::from_millis(limit));
                }
                if let Some(limit) = timeout(operation, options) {
                    watch = watch.timeout(limit);
                }
                match &preference {
                    Some(preference) => watch.read_preference(preference),
                    None => watch,
                }
            })
            .await?,
    )))
}

fn returned(event: Option<Document>) -> Returned {
    event.map_or(Returned::Nothing, |event| Returned::Value(event.into()))
}

/// Runs an operation on a change stream.
pub async fn on_changes(changes: &SharedChanges, operation: &Operation) -> Result<Returned, Stop> {
    allow(operation, &[])?;
    let mut held = changes.lock().await;
    if operation.name == "close" {
        held.take();
        return Ok(Returned::Nothing);
    }
    let Some(open) = &mut *held else { return Err(Stop::Broken("the change stream is closed".to_owned())) };
    match operation.name.as_str() {
        "iterateUntilDocumentOrError" => Ok(returned(open.next().await?)),
        "iterateOnce" => Ok(returned(open.next_if_any().await?)),
        other => Err(Stop::Broken(format!("{other} is not an operation of a change stream"))),
    }
}
