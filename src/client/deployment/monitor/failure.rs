//! Why a check has no result.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::super::heartbeat::Heartbeat;
use crate::endpoint::wire::WireError;
use crate::endpoint::{CommandError, ServerError};
use crate::pool::error::{Cause, EstablishError};
use crate::text::milliseconds::Milliseconds;

/// Why a check has no result.
pub(in crate::client::deployment) enum Failure {
    /// It was cancelled, because an operation found that the server cannot be reached.
    Cancelled,
    /// It failed.
    Check {
        cause: Cause,
        /// Whether the network failed or the check timed out.
        is_network_error: bool,
        is_timeout: bool,
    },
}

impl Failure {
    /// Emits the event that ends the heartbeat, and returns the failure.
    pub(in crate::client::deployment) fn reported(self, heartbeat: Heartbeat<'_>) -> Self {
        match &self {
            // A heartbeat that is dropped was cancelled.
            Self::Cancelled => drop(heartbeat),
            Self::Check { cause, .. } => heartbeat.fail(cause.clone()),
        }
        self
    }
}

/// The server did not answer a check in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the server did not answer a check within {}", Milliseconds(self.limit))]
pub(in crate::client::deployment) struct CheckTimeoutError {
    limit: Duration,
}

impl CheckTimeoutError {
    /// Returns the failure of a check that took longer than `limit`.
    pub(in crate::client::deployment) fn after(limit: Duration) -> Failure {
        Failure::Check { cause: Arc::new(Self { limit }), is_network_error: true, is_timeout: true }
    }

    /// Returns the failure of a check whose command failed. `limit` is the time that the command was allowed.
    pub(in crate::client::deployment) fn instead_of(error: CommandError, limit: Duration) -> Failure {
        match error {
            // The command's own text names an option that does not limit a check.
            CommandError::Timeout { .. } => Self::after(limit),
            error => error.into(),
        }
    }
}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Self {
        let (is_network_error, is_timeout) = (error.is_network_error(), error.is_timeout());
        Self::Check { cause: Arc::new(error), is_network_error: is_network_error || is_timeout, is_timeout }
    }
}

impl From<EstablishError> for Failure {
    fn from(error: EstablishError) -> Self {
        let is_refusal = error.cause().is::<ServerError>() || error.cause().is::<WireError>();
        let is_timeout = error.is_timeout();
        Self::Check { cause: Arc::new(error), is_network_error: !is_refusal, is_timeout }
    }
}
