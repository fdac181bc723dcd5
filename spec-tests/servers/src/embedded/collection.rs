//! The server's only collection, and the cursors over it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use bson::{RawArrayBuf, RawBsonRef, RawDocumentBuf, rawdoc};

use super::commands::{Command, Refusal, whole_number};

/// The database of the server's only collection.
pub const DATABASE: &str = "test";

/// The name of the server's only collection.
pub const COLLECTION: &str = "documents";

/// The number of documents in the first batch if the command does not set `batchSize`.
const DEFAULT_BATCH: u64 = 101;

/// The elements that a `find` may have. The server applies some of them, and the others do not affect the result here.
const FIND_ELEMENTS: [&str; 14] = [
    "find",
    "filter",
    "limit",
    "batchSize",
    "singleBatch",
    "$db",
    "lsid",
    "comment",
    "maxTimeMS",
    "readConcern",
    "$readPreference",
    "$clusterTime",
    "apiVersion",
    "noCursorTimeout",
];

/// The collection: documents that never change, ordered by `_id`.
#[derive(Debug)]
pub(super) struct Collection {
    documents: Vec<RawDocumentBuf>,
    cursors: Mutex<Cursors>,
}

#[derive(Debug, Default)]
struct Cursors {
    last_id: i64,
    /// The documents that each open cursor has not returned yet. They are contiguous whatever the filter.
    open: HashMap<i64, Range<usize>>,
}

impl Collection {
    pub fn new(documents: u32) -> Self {
        let document = |n| rawdoc! { "_id": i64::from(n), "name": format!("document {n}") };
        Self { documents: (0..documents).map(document).collect(), cursors: Mutex::default() }
    }

    /// Executes `find`.
    pub fn find(&self, command: &Command<'_>) -> Result<RawDocumentBuf, Refusal> {
        let name = command.argument.as_str().ok_or_else(|| Refusal::type_mismatch("find", "a string"))?;
        for element in command.body {
            let (field, _) = element.map_err(|error| Refusal::bad_value(error.to_string()))?;
            if !FIND_ELEMENTS.contains(&field.as_str()) {
                let message = format!("the embedded server does not execute find with '{}'", field.as_str());
                return Err(Refusal::bad_value(message));
            }
        }
        let mut found = if (command.database, name) == (DATABASE, COLLECTION) { self.matching(command)? } else { 0..0 };
        // A limit of 0 means no limit.
        if let Some(limit) = command.count("limit")?.filter(|limit| *limit != 0) {
            found.end = found.end.min(found.start.saturating_add(size(limit)));
        }
        let batch = size(command.count("batchSize")?.unwrap_or(DEFAULT_BATCH));
        let single = matches!(command.field("singleBatch")?, Some(RawBsonRef::Boolean(true)));

        let (documents, rest) = self.batch(found, batch);
        let id = if rest.is_empty() || single { 0 } else { self.lock().open(rest) };
        let namespace = format!("{}.{name}", command.database);
        Ok(rawdoc! { "cursor": { "firstBatch": documents, "id": id, "ns": namespace }, "ok": 1.0 })
    }

    /// Executes `getMore`.
    pub fn get_more(&self, command: &Command<'_>) -> Result<RawDocumentBuf, Refusal> {
        let id = match command.argument {
            RawBsonRef::Int64(id) => id,
            _ => return Err(Refusal::type_mismatch("getMore", "a 64-bit integer")),
        };
        let name = command.field("collection")?.and_then(RawBsonRef::as_str);
        let name = name.ok_or_else(|| Refusal::type_mismatch("collection", "a string"))?;
        if (command.database, name) != (DATABASE, COLLECTION) {
            let message = format!("cursor id {id} does not belong to '{}.{name}'", command.database);
            return Err(Refusal { code: 13, code_name: "Unauthorized", message });
        }
        let batch = match command.count("batchSize")? {
            None => usize::MAX,
            Some(0) => return Err(Refusal::bad_value("field 'batchSize' must be positive, got 0")),
            Some(batch) => size(batch),
        };

        let mut cursors = self.lock();
        let Some(found) = cursors.open.remove(&id) else {
            let message = format!("cursor id {id} not found");
            return Err(Refusal { code: 43, code_name: "CursorNotFound", message });
        };
        let (documents, rest) = self.batch(found, batch);
        let next = if rest.is_empty() { 0 } else { id };
        if next != 0 {
            cursors.open.insert(id, rest);
        }
        let namespace = format!("{DATABASE}.{COLLECTION}");
        Ok(rawdoc! { "cursor": { "nextBatch": documents, "id": next, "ns": namespace }, "ok": 1.0 })
    }

    /// Executes `killCursors`.
    pub fn kill_cursors(&self, command: &Command<'_>) -> Result<RawDocumentBuf, Refusal> {
        let refuse = || Refusal::type_mismatch("cursors", "an array of 64-bit integers");
        let ids = command.field("cursors")?.and_then(RawBsonRef::as_array).ok_or_else(refuse)?;
        let ids: Vec<i64> = ids
            .into_iter()
            .map(|id| id.ok().and_then(RawBsonRef::as_i64).ok_or_else(refuse))
            .collect::<Result<_, _>>()?;
        let mut cursors = self.lock();
        let (killed, not_found): (Vec<i64>, Vec<i64>) =
            ids.into_iter().partition(|id| cursors.open.remove(id).is_some());
        let array = |ids: Vec<i64>| ids.into_iter().collect::<RawArrayBuf>();
        Ok(rawdoc! {
            "cursorsKilled": array(killed),
            "cursorsNotFound": array(not_found),
            "cursorsAlive": [],
            "cursorsUnknown": [],
            "ok": 1.0,
        })
    }

    /// Returns the positions of the documents that match the command's filter.
    fn matching(&self, command: &Command<'_>) -> Result<Range<usize>, Refusal> {
        let refuse = || Refusal::bad_value("the embedded server's filters are {} and { _id: n }");
        let filter = match command.field("filter")? {
            None => return Ok(0..self.documents.len()),
            Some(value) => value.as_document().ok_or_else(|| Refusal::type_mismatch("filter", "a document"))?,
        };
        let mut elements = filter.into_iter();
        let Some(first) = elements.next() else { return Ok(0..self.documents.len()) };
        let (field, value) = first.map_err(|_| refuse())?;
        let id = whole_number(value).ok_or_else(refuse)?;
        if field.as_str() != "_id" || elements.next().is_some() {
            return Err(refuse());
        }
        Ok(match usize::try_from(id) {
            Ok(place) if place < self.documents.len() => place..place + 1,
            _ => 0..0,
        })
    }

    /// Returns the next documents of a result, at most `most`, and the positions of the remaining documents.
    fn batch(&self, found: Range<usize>, most: usize) -> (RawArrayBuf, Range<usize>) {
        let end = found.end.min(found.start.saturating_add(most));
        let documents = self.documents[found.start..end].iter().map(|document| &**document).collect();
        (documents, end..found.end)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Cursors> {
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cursors {
    /// Opens a cursor and returns its number.
    fn open(&mut self, rest: Range<usize>) -> i64 {
        self.last_id += 1;
        self.open.insert(self.last_id, rest);
        self.last_id
    }
}

/// Converts a number of documents to `usize`. A number that does not fit becomes `usize::MAX`, which has the same
/// effect.
fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
