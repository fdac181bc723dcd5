//! The types of cursors, and the scopes of their time limits.

use bson::{RawBsonRef, RawDocument};

use crate::client::session::name;

/// The behaviour of a cursor at the end of its results (`cursorType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CursorType {
    /// The cursor closes.
    NonTailable,
    /// The cursor stays open, and yields documents that are added later to its capped collection.
    Tailable,
    /// Like `Tailable`, but the server waits a while for new documents before it replies that there are none. Change
    /// streams use this type.
    TailableAwait,
}

impl CursorType {
    /// Returns the type of the cursor that a command opens.
    pub(super) fn of(command: &RawDocument) -> Self {
        let is = |field| matches!(command.get_bool(field), Ok(true));
        match (is("tailable"), is("awaitData")) {
            (true, true) => Self::TailableAwait,
            (true, false) => Self::Tailable,
            (false, _) if is_change_stream(command) => Self::TailableAwait,
            (false, _) => Self::NonTailable,
        }
    }
}

/// The scope of `timeoutMS`, for operations that open cursors (`timeoutMode` in Client Side Operations Timeout).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeoutMode {
    /// The limit covers the query and all later batches together. This is the default for non-tailable cursors, and is
    /// not allowed for tailable cursors.
    CursorLifetime,
    /// The limit covers the query, and then starts again for each call that fetches documents. This is the default for
    /// tailable cursors.
    Iteration,
}

/// Returns whether a command opens a change stream.
fn is_change_stream(command: &RawDocument) -> bool {
    let Ok(pipeline) = command.get_array("pipeline") else { return false };
    let first = pipeline.into_iter().next().and_then(Result::ok).and_then(RawBsonRef::as_document);
    first.and_then(name) == Some("$changeStream")
}
