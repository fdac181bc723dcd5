//! The results of writes, and their failures.

use std::fmt;
use std::sync::Arc;

use bson::oid::ObjectId;
use bson::{RawArray, RawBson, RawDocument};
use thiserror::Error;

use super::super::engine::UnmetConcern;
use super::super::error::ClientError;
use super::Kind;
use crate::endpoint::options::ServerAddress;
use crate::endpoint::wire::reply::{self, DUPLICATE_KEY, whole_number};
use crate::endpoint::{Limit, ServerError, WriteConcernError};
use crate::pool::error::Labels;
use crate::text::printable::Printable;

/// The result of writes.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Written {
    /// Whether the server acknowledged the writes. With the write concern `w: 0` it does not, and the numbers are
    /// always 0.
    pub acknowledged: bool,
    /// The number of documents that were inserted. Upserts are not counted.
    pub inserted: u64,
    /// The number of documents that updates matched.
    pub matched: u64,
    /// The number of documents that updates changed.
    pub modified: u64,
    /// The number of documents that were deleted.
    pub deleted: u64,
    /// The `_id`s of upserted documents, with the positions of their statements.
    pub upserted: Vec<(usize, RawBson)>,
    /// The `_id`s that were added to inserted documents, with the positions of the inserts.
    pub generated_ids: Vec<(usize, ObjectId)>,
}

/// The result of zero writes.
impl Default for Written {
    fn default() -> Self {
        Self {
            acknowledged: true,
            inserted: 0,
            matched: 0,
            modified: 0,
            deleted: 0,
            upserted: Vec::new(),
            generated_ids: Vec::new(),
        }
    }
}

impl Written {
    pub(super) fn is_nothing(&self) -> bool {
        self.inserted + self.matched + self.modified + self.deleted == 0
            && self.upserted.is_empty()
            && self.acknowledged
    }
}

/// Some writes failed, or it is unknown whether they were executed.
#[derive(Clone, Error)]
#[error("{}", self.sentence())]
#[non_exhaustive]
pub struct WriteFailure {
    /// The results of the writes.
    pub written: Written,
    /// The statements that the server refused.
    pub errors: Vec<WriteError>,
    /// The commands that were executed without meeting their write concern.
    pub write_concern_errors: Vec<WriteConcernError>,
    /// The error labels of the replies that report these errors, and the labels that the client adds.
    pub labels: Labels,
    /// The error that stopped the rest, if a command failed as a whole.
    #[source]
    pub cause: Option<Box<ClientError>>,
    /// The labels in these replies that no specification defines.
    pub(in crate::client) other_labels: Vec<String>,
    /// The server on which the first error occurred.
    pub(in crate::client) address: Option<Arc<str>>,
    /// Whether a reply that reports success also reports an exceeded time limit.
    pub(in crate::client) is_timeout: bool,
}

crate::pool::error::debug_as_sentence!(WriteFailure);

impl WriteFailure {
    /// Reads the reply to an `insert`, `update` or `delete` command that the application wrote itself. Returns `None`
    /// if the reply belongs to another command, or if no statement failed.
    ///
    /// # Errors
    ///
    /// [`ClientError::Reply`] if the reply cannot be read.
    pub(in crate::client) fn of_reply(
        command: &str,
        reply: &RawDocument,
        address: &ServerAddress,
        unmet: Option<UnmetConcern>,
        limit: Limit,
    ) -> Result<Option<Self>, ClientError> {
        let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.command() == command) else { return Ok(None) };
        let (mut written, mut failure) = (Written::default(), Failure::default());
        read(kind, reply, Some, &mut written, &mut failure)?;
        failure.note(address, unmet, limit);
        Ok(if failure.errors.is_empty() { None } else { Some(failure.of(written)) })
    }

    /// Returns the failure of an insert whose reply cannot be read.
    pub(in crate::client) fn unread(generated_ids: Vec<(usize, ObjectId)>, cause: ClientError) -> Self {
        let failure = Failure { cause: Some(Box::new(cause)), ..Failure::default() };
        failure.of(Written { generated_ids, ..Written::default() })
    }

    fn sentence(&self) -> String {
        match (&self.errors[..], self.write_concern_errors.first(), &self.cause) {
            ([only], ..) => only.to_string(),
            ([first, ..], ..) => format!("{first}; {} statements failed", self.errors.len()),
            ([], Some(concern), _) => format!("the write concern was not met: {concern}"),
            ([], None, Some(cause)) if self.written.is_nothing() => cause.to_string(),
            ([], None, Some(cause)) => format!("a part of the writes was executed before: {cause}"),
            ([], None, None) => "no statement failed".to_owned(),
        }
    }
}

/// A statement that the server refused.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct WriteError {
    /// The statement's position, counted from 0.
    pub index: usize,
    /// The server's error. The error's `reply` is the statement's element in `writeErrors`, with `errInfo`. The labels
    /// come from the whole reply.
    pub error: ServerError,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, error } = self;
        write!(f, "{} (error {}, statement number {index})", Printable(&error.message), error.code)
    }
}

/// The failures of several commands.
#[derive(Default)]
pub(super) struct Failure {
    pub errors: Vec<WriteError>,
    pub concerns: Vec<WriteConcernError>,
    labels: Labels,
    other_labels: Vec<String>,
    pub cause: Option<Box<ClientError>>,
    /// Whether the server's time limit expired, for a statement or for a write concern.
    is_max_time_expired: bool,
    is_timeout: bool,
    address: Option<Arc<str>>,
}

impl Failure {
    pub fn is_none(&self) -> bool {
        self.errors.is_empty() && self.concerns.is_empty() && self.cause.is_none()
    }

    /// Records details that the reply does not contain: the server, whether a time limit is the reason, and the labels
    /// that the client adds. For servers before 4.4, the client adds the `RetryableWriteError` label.
    pub fn note(&mut self, address: &ServerAddress, unmet: Option<UnmetConcern>, limit: Limit) {
        if !self.is_none() {
            self.address.get_or_insert_with(|| address.text.clone());
        }
        self.is_timeout |= limit.is_set() && self.is_max_time_expired;
        let Some(UnmetConcern { labels, is_timeout, is_late }) = unmet else { return };
        self.is_timeout |= is_timeout || is_late;
        self.labels = self.labels.with(labels);
    }

    pub fn of(self, written: Written) -> WriteFailure {
        let Self { mut errors, concerns, labels, other_labels, cause, is_timeout, address, .. } = self;
        for refused in &mut errors {
            refused.error.labels = labels;
        }
        let write_concern_errors = concerns;
        WriteFailure { written, errors, write_concern_errors, labels, cause, other_labels, address, is_timeout }
    }
}

/// Adds the results and the failures in a command's reply.
pub(super) fn read(
    kind: Kind,
    reply: &RawDocument,
    place_of: impl Fn(usize) -> Option<usize>,
    written: &mut Written,
    failure: &mut Failure,
) -> Result<(), ClientError> {
    let unreadable = |reason: String| ClientError::unreadable(kind.command(), reason);
    let number = |field| -> Result<u64, ClientError> {
        let number = whole_number(reply, field).map_err(|error| unreadable(error.to_string()))?;
        Ok(number.and_then(|number| u64::try_from(number).ok()).unwrap_or(0))
    };
    let place = |document: &RawDocument| -> Result<usize, ClientError> {
        let index = whole_number(document, "index").map_err(|error| unreadable(error.to_string()))?;
        let index = index.and_then(|index| usize::try_from(index).ok()).and_then(&place_of);
        index.ok_or_else(|| unreadable("an index is not that of a statement".to_owned()))
    };
    let upserted = documents(reply.get_array("upserted").ok());
    let count = number("n")?;
    match kind {
        Kind::Insert => written.inserted += count,
        Kind::Delete => written.deleted += count,
        Kind::Update => {
            written.matched += count.saturating_sub(upserted.len() as u64);
            written.modified += number("nModified")?;
            for document in upserted {
                let id = document.get("_id").ok().flatten().map_or(RawBson::Null, Into::into);
                written.upserted.push((place(document)?, id));
            }
        }
    }
    for document in documents(reply.get_array("writeErrors").ok()) {
        let mut error = ServerError::read(document);
        // Servers report the name of an error only if the whole command fails.
        if error.code == DUPLICATE_KEY && error.code_name.is_empty() {
            error.code_name.push_str("DuplicateKey");
        }
        failure.errors.push(WriteError { index: place(document)?, error });
    }
    if reply.get_document("writeConcernError").is_ok() {
        failure.concerns.push(WriteConcernError::of(reply.to_owned()));
    }
    failure.labels = failure.labels.with(reply::labels(reply));
    failure.other_labels.extend(reply::other_labels(reply));
    failure.is_max_time_expired |= reply::has_max_time_expired(reply);
    Ok(())
}

fn documents(array: Option<&RawArray>) -> Vec<&RawDocument> {
    array.into_iter().flatten().filter_map(|element| element.ok()?.as_document()).collect()
}

#[cfg(test)]
mod tests {
    use bson::{RawDocumentBuf, rawdoc};

    use super::*;

    fn server() -> ServerAddress {
        ServerAddress::parse("localhost").unwrap()
    }

    #[test]
    fn message_of_a_statement_that_the_server_cut_inside_a_character_is_kept() {
        let reply =
            rawdoc! { "ok": 1, "n": 1, "writeErrors": [{ "index": 1, "code": 11_000, "errmsg": "dup key: { a: ~" }] };
        let bytes = reply.as_bytes().iter().map(|&byte| if byte == b'~' { 0xe2 } else { byte }).collect();
        let reply = RawDocumentBuf::from_bytes(bytes).unwrap();
        let failure = WriteFailure::of_reply("insert", &reply, &server(), None, Limit::Unset).unwrap().unwrap();
        assert_eq!(failure.written.inserted, 1);
        assert_eq!(failure.errors[0].error.message, "dup key: { a: \u{fffd}");
        assert_eq!(failure.to_string(), "dup key: { a: \u{fffd} (error 11000, statement number 1)");
        assert_eq!(failure.errors[0].error.code, 11_000);
    }

    #[test]
    fn several_failures_are_counted_after_the_first_message() {
        let reply = rawdoc! { "ok": 1, "n": 0, "writeErrors": [
            { "index": 0, "code": 11_000, "errmsg": "there already" }, { "index": 1, "code": 50, "errmsg": "too slow" },
        ] };
        for (limit, is_timeout) in [(Limit::Unset, false), (Limit::Infinite, true)] {
            let failure = WriteFailure::of_reply("insert", &reply, &server(), None, limit).unwrap().unwrap();
            assert_eq!(failure.to_string(), "there already (error 11000, statement number 0); 2 statements failed");
            assert_eq!(failure.is_timeout, is_timeout);
        }
        assert!(WriteFailure::of_reply("createIndexes", &reply, &server(), None, Limit::Unset).unwrap().is_none());
    }
}
