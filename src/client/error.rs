//! Errors of a client's operations.

use std::sync::Arc;

use thiserror::Error;

use super::write::WriteFailure;
use crate::deployment::ServerSelectionError;
use crate::endpoint::{CommandError, OperationError, ServerError};

/// An operation of a client failed.
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There was no server for the operation. Nothing was sent.
    #[error(transparent)]
    Selection(#[from] ServerSelectionError),
    /// The operation failed on the selected server, in its last attempt.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// Some writes failed, or it is unknown whether they were executed.
    #[error(transparent)]
    Write(Box<WriteFailure>),
    /// The server's reply, or a document in it, is not what the operation calls for.
    #[error("the reply to {command} cannot be read: {reason}")]
    #[non_exhaustive]
    Reply {
        /// The command's name.
        command: &'static str,
        /// What is wrong with the reply.
        reason: Arc<str>,
    },
}

crate::error::debug_as_sentence!(ClientError);

impl ClientError {
    /// Returns the failure of the command, if there was a connection to run it on.
    #[must_use]
    pub fn command_error(&self) -> Option<&CommandError> {
        match self {
            Self::Operation(error) => error.command_error(),
            Self::Write(failure) => failure.cause.as_ref()?.command_error(),
            Self::Selection(_) | Self::Reply { .. } => None,
        }
    }

    /// Returns the server's error, if the server reported one.
    #[must_use]
    pub fn server_error(&self) -> Option<&ServerError> {
        self.command_error()?.server_error()
    }

    /// Returns whether the server or the check-out gave the error this label.
    #[must_use]
    pub fn has_label(&self, label: &str) -> bool {
        match self {
            Self::Operation(error) => error.has_label(label),
            Self::Write(failure) => failure.cause.as_ref().is_some_and(|cause| cause.has_label(label)),
            Self::Selection(_) | Self::Reply { .. } => false,
        }
    }

    /// Returns whether a time limit expired.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Operation(error) => error.is_timeout(),
            Self::Selection(error) => matches!(error, ServerSelectionError::Timeout { .. }),
            Self::Write(failure) => failure.cause.as_ref().is_some_and(|cause| cause.is_timeout()),
            Self::Reply { .. } => false,
        }
    }
}
