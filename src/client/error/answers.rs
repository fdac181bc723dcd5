//! The accessors of client errors. They look into nested errors, at any depth.

use crate::client::session::SessionError;
use crate::endpoint::wire::reply::DUPLICATE_KEY;
use std::error::Error as StdError;
use std::sync::Arc;

use bson::oid::ObjectId;

use super::{ClientError, FailedOperation, Failure, WriteConcernError};
use crate::client::deployment::ServerSelectionError;
use crate::client::{ClientBulkWriteFailure, WriteFailure};
use crate::endpoint::{CommandError, OperationError, ServerError};
use crate::pool::error::Labels;

/// The part of an error that the accessors read.
#[derive(Clone, Copy)]
pub(super) enum Told<'e> {
    Selection(&'e ServerSelectionError),
    Operation(&'e FailedOperation),
    Session(&'e SessionError),
    Write(&'e WriteFailure),
    BulkWrite(&'e ClientBulkWriteFailure),
    /// A transaction that ran out of time, with its last error.
    Repeated(&'e ClientError),
    /// An error that arose in the client.
    Alone(&'e ClientError),
}

impl<'e> Told<'e> {
    fn of(error: &'e ClientError) -> Self {
        match error {
            ClientError::Selection(error) => Self::Selection(error),
            ClientError::Operation(failed) => Self::Operation(failed),
            ClientError::Session(error) => Self::Session(error),
            ClientError::Write(failure) => Self::Write(failure),
            ClientError::BulkWrite(failure) => Self::BulkWrite(failure),
            ClientError::TransactionTimeout { last } => Self::Repeated(last),
            ClientError::Other(other) => Self::find_in(&**other).unwrap_or(Self::Alone(error)),
            ClientError::InvalidOption(_)
            | ClientError::Argument { .. }
            | ClientError::GridFs { .. }
            | ClientError::Reply { .. }
            | ClientError::OnRuntime
            | ClientError::EventLoop { .. }
            | ClientError::InUse { .. } => Self::Alone(error),
        }
    }

    /// Finds the client's error in an application's error: the error itself, or the first client error among its
    /// sources.
    ///
    /// An error with `#[error(transparent)]` displays another error unchanged, and also returns the source of that
    /// error as its own. The chain of sources may therefore contain the parts of the client's error, but not that error
    /// itself.
    fn find_in(error: &'e (dyn StdError + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            // A boxed source has the type of the box, not the type of the error in the box.
            let client = error
                .downcast_ref::<ClientError>()
                .or_else(|| error.downcast_ref::<Box<ClientError>>().map(|boxed| &**boxed))
                .or_else(|| error.downcast_ref::<Arc<ClientError>>().map(|shared| &**shared));
            let found = (client.map(Self::of))
                .or_else(|| error.downcast_ref().map(Self::Selection))
                .or_else(|| error.downcast_ref::<Box<FailedOperation>>().map(|failed| Self::Operation(failed)))
                .or_else(|| error.downcast_ref().map(Self::Session))
                .or_else(|| error.downcast_ref::<Box<WriteFailure>>().map(|failure| Self::Write(failure)))
                .or_else(|| {
                    error.downcast_ref::<Box<ClientBulkWriteFailure>>().map(|failure| Self::BulkWrite(failure))
                });
            if found.is_some() {
                return found;
            }
            next = error.source();
        }
        None
    }

    /// Returns the underlying error, if this error only adds context to it.
    fn reported(self) -> Option<&'e ClientError> {
        match self {
            Self::Repeated(last) => Some(last),
            Self::Write(failure) => failure.cause.as_deref(),
            Self::BulkWrite(failure) => failure.cause.as_deref(),
            Self::Selection(_) | Self::Operation(_) | Self::Session(_) | Self::Alone(_) => None,
        }
    }

    pub(super) fn generated_ids(self) -> &'e [(usize, ObjectId)] {
        match self {
            Self::Operation(failed) => &failed.generated_ids,
            Self::Write(failure) => &failure.written.generated_ids,
            Self::BulkWrite(failure) => &failure.generated_ids,
            Self::Repeated(last) => last.generated_ids(),
            Self::Selection(_) | Self::Session(_) | Self::Alone(_) => &[],
        }
    }

    fn to_error(self) -> ClientError {
        match self {
            Self::Selection(error) => error.clone().into(),
            Self::Operation(failed) => ClientError::Operation(Box::new(failed.clone())),
            Self::Session(error) => error.clone().into(),
            Self::Write(failure) => ClientError::Write(Box::new(failure.clone())),
            Self::BulkWrite(failure) => ClientError::BulkWrite(Box::new(failure.clone())),
            Self::Repeated(last) => ClientError::TransactionTimeout { last: Box::new(last.clone()) },
            Self::Alone(error) => error.clone(),
        }
    }
}

/// Returns the client's error in an application's error: the error itself, or the first client error among its sources.
pub(super) fn client_error_in(error: &(dyn StdError + 'static)) -> Option<ClientError> {
    Told::find_in(error).map(Told::to_error)
}

impl ClientError {
    pub(super) fn told(&self) -> Told<'_> {
        Told::of(self)
    }

    /// Returns the underlying error, if this error only adds context to it.
    fn reported(&self) -> Option<&Self> {
        self.told().reported()
    }

    /// Returns the server's error code: from [`server_error`](Self::server_error) if there is one, otherwise from
    /// [`write_concern_error`](Self::write_concern_error).
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        let of_concern = || self.write_concern_error().map(|error| error.code);
        self.server_error().map(|error| error.code).or_else(of_concern).filter(|code| *code != 0)
    }

    /// Returns the server's error name, from the same source as [`code`](Self::code).
    #[must_use]
    pub fn code_name(&self) -> Option<&str> {
        let of_concern = || self.write_concern_error().map(|error| &*error.code_name);
        self.server_error().map(|error| &*error.code_name).or_else(of_concern).filter(|name| !name.is_empty())
    }

    /// Returns the labels that the server, the check-out or the client added to the error.
    #[must_use]
    pub fn labels(&self) -> Labels {
        let own = match self.told() {
            Told::Operation(failed) => failed.labels(),
            Told::Write(failure) => failure.labels,
            Told::BulkWrite(failure) => failure.labels,
            Told::Session(error) => error.labels(),
            _ => Labels::NONE,
        };
        own.with(self.reported().map_or(Labels::NONE, Self::labels))
    }

    /// Returns whether the error has this label. The label need not be defined by the specifications.
    #[must_use]
    #[doc(alias = "contains_label")]
    pub fn has_label(&self, label: &str) -> bool {
        let is_own = match self.told() {
            Told::Operation(failed) => failed.has_label(label),
            Told::Write(failure) => failure.other_labels.iter().any(|given| given == label),
            Told::BulkWrite(failure) => failure.other_labels.iter().any(|given| given == label),
            Told::Selection(_) | Told::Session(_) | Told::Repeated(_) | Told::Alone(_) => false,
        };
        is_own || self.labels().has(label) || self.reported().is_some_and(|error| error.has_label(label))
    }

    /// Returns whether a time limit expired.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self.told() {
            Told::Operation(failed) => failed.is_timeout(),
            Told::Selection(error) => matches!(error, ServerSelectionError::Timeout { .. }),
            Told::Write(failure) if failure.is_timeout => true,
            Told::BulkWrite(failure) if failure.is_timeout => true,
            Told::Repeated(_) | Told::Alone(Self::InUse { .. }) => true,
            Told::Session(error) => *error == SessionError::CursorClosing,
            _ => self.reported().is_some_and(Self::is_timeout),
        }
    }

    /// Returns whether the network failed or the server closed the connection, for any reason other than a time limit
    /// on the operation. The failure may have closed the pool's connections.
    #[must_use]
    pub fn is_network(&self) -> bool {
        match self.told() {
            Told::Operation(failed) => {
                !failed.is_timeout() && failed.operation_error().is_some_and(OperationError::is_network_error)
            }
            _ => self.reported().is_some_and(Self::is_network),
        }
    }

    /// Returns whether the server refused a write because a unique index already contains the key. If several
    /// statements were refused, only the first error is considered.
    ///
    /// `keyPattern` and `keyValue` in the `reply` of [`server_error`](Self::server_error) identify the key.
    #[must_use]
    pub fn is_duplicate_key(&self) -> bool {
        // The second and the third code come from old servers.
        matches!(self.code(), Some(DUPLICATE_KEY | 11_001 | 12_582))
    }

    /// Returns whether the operation may be run again, whatever its kind: either nothing was executed and another
    /// attempt may succeed, or the server says so with the `RetryableError` label.
    ///
    /// The client has already retried the operation where this was safe. For an operation in a transaction, run the
    /// whole transaction again if the error has the `TransientTransactionError` label.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self.told() {
            Told::Operation(failed) => match &failed.failure {
                Failure::Selection(error) => error.is_retryable(),
                Failure::Operation(error) | Failure::NoRetryableWrites(error) => error.is_retryable(),
                // The command was executed.
                Failure::Concern { .. } => false,
            },
            Told::Selection(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// Returns the address of the last attempt's server, if a server was selected.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        let own = match self.told() {
            Told::Operation(failed) => failed.address(),
            Told::Write(failure) => failure.address.as_deref(),
            Told::BulkWrite(failure) => failure.address.as_deref(),
            _ => None,
        };
        own.or_else(|| self.reported()?.address())
    }

    /// Returns the failure of the last attempt, if a server was selected for it.
    #[must_use]
    pub fn operation_error(&self) -> Option<&OperationError> {
        match self.told() {
            Told::Operation(failed) => failed.operation_error(),
            _ => self.reported()?.operation_error(),
        }
    }

    /// Returns the failure of the command, if there was a connection to run it on.
    #[must_use]
    pub fn command_error(&self) -> Option<&CommandError> {
        self.operation_error()?.command_error()
    }

    /// Returns the server's error, if the server reported one: the error for the command, for a refused connection or
    /// authentication, or the first of [`WriteFailure::errors`](crate::client::WriteFailure::errors).
    ///
    /// For a write that was executed without meeting its write concern, see
    /// [`write_concern_error`](Self::write_concern_error) instead.
    #[must_use]
    pub fn server_error(&self) -> Option<&ServerError> {
        match self.told() {
            Told::Operation(failed) => failed.operation_error()?.server_error(),
            Told::Write(failure) if !failure.errors.is_empty() => failure.errors.first().map(|refused| &refused.error),
            Told::BulkWrite(failure) if !failure.write_errors.is_empty() => {
                failure.write_errors.values().next().map(|refused| &refused.error)
            }
            _ => self.reported()?.server_error(),
        }
    }

    /// Returns the server's error about an unmet write concern, whether the command was executed or refused. For a
    /// series of writes, this is the first of
    /// [`WriteFailure::write_concern_errors`](crate::client::WriteFailure::write_concern_errors).
    #[must_use]
    pub fn write_concern_error(&self) -> Option<&WriteConcernError> {
        let own = match self.told() {
            Told::Operation(failed) => failed.write_concern_error(),
            Told::Write(failure) => failure.write_concern_errors.first(),
            Told::BulkWrite(failure) => failure.write_concern_errors.first(),
            _ => None,
        };
        own.or_else(|| self.reported()?.write_concern_error())
    }

    /// Returns whether the write was executed completely, and only its write concern was not met.
    #[cfg(feature = "gridfs")]
    pub(in crate::client) fn is_unmet_concern(&self) -> bool {
        match self {
            Self::Operation(failed) => matches!(failed.failure, Failure::Concern { .. }),
            Self::Write(failure) => failure.errors.is_empty() && failure.cause.is_none(),
            _ => false,
        }
    }

    /// Returns whether the server's own time limit expired, for the operation or for its write concern.
    pub(in crate::client) fn is_max_time_expired(&self) -> bool {
        match self {
            Self::Operation(failed) => failed.is_max_time_expired(),
            _ => false,
        }
    }
}
