//! The kinds of cursors, and of their time limits.

use bson::{RawBsonRef, RawDocument};

use crate::client::session::name;

/// The behaviour of a cursor at the end of its results (`cursorType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CursorType {
    /// It ends.
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

/// The scope of `timeoutMS`, for operations that open cursors (`timeoutMode` of Client Side Operations Timeout).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeoutMode {
    /// The query and all further batches together. The default for non-tailable cursors. Not allowed for tailable
    /// cursors.
    CursorLifetime,
    /// The query, and then each call that fetches documents. The default for tailable cursors.
    Iteration,
}

/// Returns whether a command opens a change stream.
fn is_change_stream(command: &RawDocument) -> bool {
    let Ok(pipeline) = command.get_array("pipeline") else { return false };
    let first = pipeline.into_iter().next().and_then(Result::ok).and_then(RawBsonRef::as_document);
    first.and_then(name) == Some("$changeStream")
}
