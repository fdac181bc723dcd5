//! Errors from a client's operations.

mod answers;
#[cfg(test)]
mod answers_tests;
mod body;
mod file_problem;

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bson::RawDocumentBuf;
use bson::oid::ObjectId;
use thiserror::Error;

use super::collection::ClientBulkWriteFailure;
use super::engine::UnmetConcern;
use super::spans::Exception;
use super::write::WriteFailure;
use crate::client::deployment::ServerSelectionError;
use crate::client::session::{Fault, FaultKind, SessionError};
use crate::endpoint::options::{InvalidOption, ServerAddress};
use crate::endpoint::wire::reply;
use crate::endpoint::{CommandError, OperationError, ResolveError, ServerError, WriteConcernError};
use crate::pool::error::Labels;
use crate::text::milliseconds::Milliseconds;
use crate::text::printable::Printable;
use crate::text::sentence::write_sentence;

/// The server's error code for `IllegalOperation`.
const ILLEGAL_OPERATION: i32 = 20;

/// An error from an operation of a client.
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No server could be selected for the operation. Nothing was sent.
    #[error("{0}")]
    Selection(#[from] ServerSelectionError),
    /// The operation failed on the selected server, in its last attempt.
    #[error("{0}")]
    Operation(#[source] Box<FailedOperation>),
    /// Options of the operation are invalid, or conflict. Nothing was sent.
    #[error(transparent)]
    InvalidOption(#[from] InvalidOption),
    /// The session refused the operation. Nothing was sent.
    #[error("{0}")]
    Session(#[from] SessionError),
    /// The time limit for repeating a transaction expired: 120 seconds, `defaultTimeoutMS` or `timeoutMS`.
    #[error("the transaction was not committed in time: {last}")]
    #[non_exhaustive]
    TransactionTimeout {
        /// The error from the last run or the last commit.
        #[source]
        last: Box<ClientError>,
    },
    /// An error that no operation returned: the application's own error ([`ClientError::other`]), or an error from
    /// bson, I/O or DNS that `?` converted.
    #[error("{0}")]
    Other(Arc<dyn StdError + Send + Sync>),
    /// Some writes failed, or it is unknown whether they were executed.
    #[error("{0}")]
    Write(#[source] Box<WriteFailure>),
    /// Some writes in a [`Client::bulk_write`](crate::Client::bulk_write) failed, or it is unknown whether they were
    /// executed.
    #[error("{0}")]
    BulkWrite(#[source] Box<ClientBulkWriteFailure>),
    /// serde could not serialize the application's value in the form that the command requires. Nothing was sent.
    #[error("the argument {name} cannot be sent: {reason}", reason = Printable(reason))]
    #[non_exhaustive]
    Argument {
        /// The argument's name, such as `filter`.
        name: &'static str,
        /// The reason that serde refused the value.
        reason: Arc<str>,
    },
    /// A blocking client was called inside a tokio runtime: from a task, from
    /// `spawn_blocking`, or on a thread that has entered a runtime. Nothing was sent.
    #[error(
        "a blocking client was called inside a tokio runtime, whose thread it would block: use wharf::Client there"
    )]
    OnRuntime,
    /// A blocking client could not create its event loop, or it was called from the
    /// destructor of a thread-local value, after the thread's event loop was gone. Nothing was sent.
    #[error("the event loop of a blocking client could not be made: {source}")]
    #[non_exhaustive]
    EventLoop {
        /// The error from the operating system or from tokio.
        source: Arc<io::Error>,
    },
    /// Other threads were using the [`single::Client`](crate::single::Client) until the `timeoutMS` of this call ran
    /// out. Nothing was sent.
    #[error("other threads used the client on a single thread for all the time of this call ({})", Milliseconds(*limit))]
    #[non_exhaustive]
    InUse {
        /// The time limit of the whole call.
        limit: Duration,
    },
    /// A file in a GridFS bucket does not exist, or its chunks do not match its document. Needs the `gridfs` feature.
    #[error("the file with {file} {problem}", file = Printable(file))]
    #[non_exhaustive]
    GridFs {
        /// The `_id` or the name of the file, and the name of its bucket.
        file: Arc<str>,
        /// The problem with the file.
        problem: GridFsProblem,
    },
    /// The server's reply, or a document in it, does not have the form that the operation requires.
    #[error("the reply to {command} cannot be read: {reason}", reason = Printable(reason))]
    #[non_exhaustive]
    Reply {
        /// The name of the command.
        command: &'static str,
        /// The problem with the reply.
        reason: Arc<str>,
    },
}

crate::pool::error::debug_as_sentence!(enum ClientError {
    Selection(_), Operation(_), InvalidOption(_), Session(_), Write(_), BulkWrite(_); TransactionTimeout, Other, Argument,
    OnRuntime, EventLoop, InUse, GridFs, Reply
});

/// The result of an operation of a client.
///
/// ```
/// use wharf::{Collection, Result};
///
/// async fn count(orders: &Collection) -> Result<u64> {
///     orders.estimated_document_count().await
/// }
/// ```
pub type Result<T, E = ClientError> = std::result::Result<T, E>;

pub use body::BodyError;
pub use file_problem::GridFsProblem;

impl ClientError {
    /// Wraps the application's own error, so that the body of a transaction can return it.
    ///
    /// If one of the error's sources is a `ClientError`, the methods of this type report that error's properties. Its
    /// labels are therefore kept, and the transaction can be repeated.
    /// [`with_transaction_as`](crate::client::Session::with_transaction_as) returns errors of other types unchanged.
    #[doc(alias = "custom")]
    pub fn other(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Other(Arc::from(error.into()))
    }

    /// Returns the `_id`s that the client added to documents whose insert failed or has an unknown outcome, each with
    /// the document's position. An insert of the same documents can be repeated with these `_id`s: a document that
    /// already exists then causes a duplicate key error.
    #[must_use]
    pub fn generated_ids(&self) -> &[(usize, ObjectId)] {
        self.told().generated_ids()
    }

    /// Records in the error the `_id`s that the client added to documents, if any of the documents may have been
    /// inserted.
    pub(super) fn with_generated_ids(mut self, ids: impl IntoIterator<Item = (usize, ObjectId)>) -> Self {
        match &mut self {
            Self::Operation(failed) => failed.generated_ids.extend(ids),
            Self::Write(failure) => failure.written.generated_ids.extend(ids),
            // The server has answered, and may have inserted the documents.
            Self::Reply { .. } => {
                let generated_ids: Vec<_> = ids.into_iter().collect();
                if !generated_ids.is_empty() {
                    return Self::Write(Box::new(WriteFailure::unread(generated_ids, self)));
                }
            }
            _ => {}
        }
        self
    }

    /// Returns the error for a reply that cannot be read.
    pub(super) fn unreadable(command: &'static str, reason: impl Into<Arc<str>>) -> Self {
        Self::Reply { command, reason: reason.into() }
    }

    /// Returns the name of the type, for spans.
    fn type_name(&self) -> &'static str {
        match self {
            Self::Selection(_) => "wharf::ClientError::Selection",
            Self::Operation(_) => "wharf::ClientError::Operation",
            Self::InvalidOption(_) => "wharf::ClientError::InvalidOption",
            Self::Session(_) => "wharf::ClientError::Session",
            Self::TransactionTimeout { .. } => "wharf::ClientError::TransactionTimeout",
            Self::Other(_) => "wharf::ClientError::Other",
            Self::Write(_) => "wharf::ClientError::Write",
            Self::BulkWrite(_) => "wharf::ClientError::BulkWrite",
            Self::Argument { .. } => "wharf::ClientError::Argument",
            Self::OnRuntime => "wharf::ClientError::OnRuntime",
            Self::EventLoop { .. } => "wharf::ClientError::EventLoop",
            Self::InUse { .. } => "wharf::ClientError::InUse",
            Self::GridFs { .. } => "wharf::ClientError::GridFs",
            Self::Reply { .. } => "wharf::ClientError::Reply",
        }
    }

    /// Also marks the error as a timeout: another attempt might have succeeded, but the operation's time ran out
    /// (Client Side Operations Timeout, "Retryability").
    pub(super) fn late(mut self) -> Self {
        if let Self::Operation(failed) = &mut self {
            failed.is_late = !failed.is_timeout();
        }
        self
    }

    /// Returns whether the error is [late](Self::late).
    pub(super) fn is_late(&self) -> bool {
        matches!(self, Self::Operation(failed) if failed.is_late)
    }

    /// Adds the label of a commit whose result is not known.
    pub(super) fn with_unknown_commit_result(mut self) -> Self {
        if let Self::Operation(failed) = &mut self {
            failed.labels = failed.labels.with(Labels::UNKNOWN_COMMIT_RESULT);
        }
        self
    }
}

impl Exception for ClientError {
    fn exception(&self) -> (&dyn fmt::Display, &'static str) {
        (self, self.type_name())
    }
}

/// The failure of an operation's last attempt, with the labels that the specifications require a client to add.
#[derive(Clone)]
pub struct FailedOperation {
    failure: Failure,
    /// The labels that sessions and retries use, from the server and from the client.
    labels: Labels,
    /// Whether its attempts stopped only because of the operation's time limit.
    is_late: bool,
    /// The `_id`s that the client added to documents.
    generated_ids: Vec<(usize, ObjectId)>,
}

impl fmt::Debug for FailedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failure {
            Failure::Selection(error) if f.alternate() => write!(f, "{error:#?}{}", self.late_note()),
            Failure::Operation(error) | Failure::NoRetryableWrites(error) if f.alternate() => {
                write!(f, "{error:#?}{}", self.late_note())
            }
            _ => write_sentence(self, f),
        }
    }
}

impl fmt::Display for FailedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.failure, self.late_note())
    }
}

impl StdError for FailedOperation {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.failure.source()
    }
}

#[derive(Clone, Error)]
enum Failure {
    #[error(transparent)]
    Selection(ServerSelectionError),
    #[error(transparent)]
    Operation(OperationError),
    // The specification prescribes the text.
    #[error(
        "This MongoDB deployment does not support retryable writes. Please add retryWrites=false to your connection string."
    )]
    NoRetryableWrites(#[source] OperationError),
    #[error("{reason}: {error}")]
    Concern {
        reason: &'static str,
        address: Arc<str>,
        error: Box<WriteConcernError>,
        is_max_time_expired: bool,
        is_timeout: bool,
    },
}

crate::pool::error::debug_as_sentence!(Failure);

impl FailedOperation {
    fn late_note(&self) -> &'static str {
        if self.is_late { "; there was no time for another attempt (timeoutMS)" } else { "" }
    }

    pub(super) fn selection(error: ServerSelectionError, labels: Labels) -> Self {
        Self { failure: Failure::Selection(error), labels, is_late: false, generated_ids: Vec::new() }
    }

    pub(super) fn operation(error: OperationError, labels: Labels) -> Self {
        Self { failure: Failure::Operation(error), labels, is_late: false, generated_ids: Vec::new() }
    }

    /// Returns the failure of a write that was sent with a transaction number. If the storage engine does not support
    /// transaction numbers, the error tells the application what to do (Retryable Writes, "Executing Retryable Write
    /// Commands").
    pub(super) fn numbered_write(error: OperationError, labels: Labels) -> Self {
        let is_refused =
            |error: &ServerError| error.code == ILLEGAL_OPERATION && error.message.starts_with("Transaction numbers");
        let failure = match error.command_error().and_then(CommandError::server_error).is_some_and(is_refused) {
            true => Failure::NoRetryableWrites(error),
            false => Failure::Operation(error),
        };
        Self { failure, labels, is_late: false, generated_ids: Vec::new() }
    }

    /// Returns the failure of a command that succeeded without meeting its write concern.
    pub(super) fn concern(
        reason: &'static str,
        address: &ServerAddress,
        reply: RawDocumentBuf,
        unmet: UnmetConcern,
    ) -> Self {
        let is_max_time_expired = Fault::of_reply(&reply).is_some_and(|fault| fault.is_max_time_expired());
        let UnmetConcern { labels, is_timeout, is_late } = unmet;
        let (address, error) = (address.text.clone(), Box::new(WriteConcernError::of(reply)));
        let failure = Failure::Concern { reason, address, error, is_max_time_expired, is_timeout };
        Self { failure, labels, is_late: is_late && !is_timeout, generated_ids: Vec::new() }
    }

    /// Returns the failure of a write that was executed without meeting its write concern.
    pub(super) fn unmet_concern(address: &ServerAddress, reply: RawDocumentBuf, unmet: UnmetConcern) -> Self {
        Self::concern("the write was executed, but its write concern was not met", address, reply, unmet)
    }

    /// Returns the server's error about an unmet write concern, whether the command was executed or refused.
    #[must_use]
    pub fn write_concern_error(&self) -> Option<&WriteConcernError> {
        match &self.failure {
            Failure::Concern { error, .. } => Some(error),
            Failure::Operation(error) | Failure::NoRetryableWrites(error) => {
                error.server_error()?.write_concern_error.as_deref()
            }
            Failure::Selection(_) => None,
        }
    }

    /// Returns the error from the attempt, if it failed on a selected server.
    #[must_use]
    pub fn operation_error(&self) -> Option<&OperationError> {
        match &self.failure {
            Failure::Operation(error) | Failure::NoRetryableWrites(error) => Some(error),
            Failure::Selection(_) | Failure::Concern { .. } => None,
        }
    }

    /// Returns whether the error has this label. A label comes from the server or the check-out, or the client adds it
    /// (`RetryableWriteError`, `TransientTransactionError`, `UnknownTransactionCommitResult`).
    #[must_use]
    pub fn has_label(&self, label: &str) -> bool {
        let is_other = match &self.failure {
            Failure::Operation(error) | Failure::NoRetryableWrites(error) => error.has_label(label),
            Failure::Concern { error, .. } => reply::other_labels(&error.reply).any(|given| given == label),
            Failure::Selection(_) => false,
        };
        is_other || self.labels.has(label)
    }

    fn labels(&self) -> Labels {
        self.labels.with(self.operation_error().map_or(Labels::NONE, OperationError::labels))
    }

    fn address(&self) -> Option<&str> {
        match &self.failure {
            Failure::Concern { address, .. } => Some(address),
            Failure::Operation(error) | Failure::NoRetryableWrites(error) => Some(error.address()),
            Failure::Selection(_) => None,
        }
    }

    fn is_timeout(&self) -> bool {
        if self.is_late {
            return true;
        }
        match &self.failure {
            Failure::Operation(error) | Failure::NoRetryableWrites(error) => error.is_timeout(),
            Failure::Selection(error) => matches!(error, ServerSelectionError::Timeout { .. }),
            Failure::Concern { is_timeout, .. } => *is_timeout,
        }
    }

    fn is_max_time_expired(&self) -> bool {
        match &self.failure {
            Failure::Concern { is_max_time_expired, .. } => *is_max_time_expired,
            Failure::Operation(error) | Failure::NoRetryableWrites(error) => {
                Fault::of_error(error, true).is_max_time_expired()
            }
            Failure::Selection(_) => false,
        }
    }
}

/// Returns what a failed selection means for retries and transactions.
///
/// A retry can succeed only if the selection failed because no server was found. After any other failure, a repeated
/// transaction would fail for the same reason until its time ran out.
pub(super) fn fault_of_selection(error: &ServerSelectionError) -> Fault {
    let kind = match error {
        ServerSelectionError::Timeout { .. } | ServerSelectionError::TriedOnce { .. } => FaultKind::Selection,
        ServerSelectionError::Incompatible(_)
        | ServerSelectionError::Closed
        | ServerSelectionError::NoRuntime
        | ServerSelectionError::ReadPreference(_) => FaultKind::Client,
    };
    Fault::new(kind, Labels::NONE)
}

impl From<FailedOperation> for ClientError {
    fn from(failed: FailedOperation) -> Self {
        match failed.failure {
            // There is nothing to add to the selection's own error.
            Failure::Selection(error) if failed.labels == Labels::NONE && !failed.is_late => Self::Selection(error),
            failure => Self::Operation(Box::new(FailedOperation { failure, ..failed })),
        }
    }
}

impl From<OperationError> for ClientError {
    fn from(error: OperationError) -> Self {
        FailedOperation::operation(error, Labels::NONE).into()
    }
}

/// Converts bson's error about a missing field, or about a value that bson cannot convert, into [`ClientError::Other`].
impl From<bson::error::Error> for ClientError {
    fn from(error: bson::error::Error) -> Self {
        Self::other(error)
    }
}

/// Unwraps the client's error in an error from a GridFS stream. Any other error becomes [`ClientError::Other`].
impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        error.downcast().unwrap_or_else(Self::other)
    }
}

/// An invalid option becomes [`ClientError::InvalidOption`]. Any other error becomes [`ClientError::Other`].
impl From<ResolveError> for ClientError {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::InvalidOption(error) => error.into(),
            error => Self::other(error),
        }
    }
}
