//! A check of a server: one exchange of hello, by a monitor or by a scan.

use std::sync::Arc;
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use thiserror::Error;

use super::heartbeat::Heartbeat;
use super::state::{Monitored, now};
use crate::client::topology::ServerDescription;
use crate::endpoint::wire::WireError;
use crate::endpoint::{CommandError, ServerError};
use crate::pool::error::{Cause, EstablishError};
use crate::text::milliseconds::Milliseconds;

/// Returns the command for a check: `hello`, or the legacy hello if the server may not understand `hello`.
pub(super) fn hello(is_understood: bool) -> RawDocumentBuf {
    match is_understood {
        true => rawdoc! { "hello": 1, "helloOk": true },
        false => rawdoc! { "isMaster": 1, "helloOk": true },
    }
}

impl Monitored {
    /// Reads the reply to a check, and emits the event that ends the heartbeat. `number` is the server's number for the
    /// connection. `round_trip` is the time that the reply took, or `None` if the server delayed the reply.
    pub(super) fn understood(
        &self,
        heartbeat: Heartbeat<'_>,
        reply: &RawDocument,
        number: Option<i64>,
        round_trip: Option<Duration>,
    ) -> Result<ServerDescription, Failure> {
        let description = ServerDescription::of_reply(self.server.address.clone(), reply, now());
        if let Some(cause) = description.error {
            return Err(Failure::Check { cause, is_network_error: false, is_timeout: false }.reported(heartbeat));
        }
        heartbeat.succeed(reply, number, round_trip);
        Ok(description)
    }
}

/// Why a check has no result.
pub(super) enum Failure {
    /// The check was cancelled, because an operation found that the server cannot be reached.
    Cancelled,
    /// The check failed.
    Check {
        cause: Cause,
        /// Whether the network failed or the check timed out.
        is_network_error: bool,
        is_timeout: bool,
    },
}

impl Failure {
    /// Emits the event that ends the heartbeat, and returns the failure.
    pub(super) fn reported(self, heartbeat: Heartbeat<'_>) -> Self {
        match &self {
            // Dropping the heartbeat reports the cancellation.
            Self::Cancelled => drop(heartbeat),
            Self::Check { cause, .. } => heartbeat.fail(cause.clone()),
        }
        self
    }
}

/// The server did not answer a check in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the server did not answer a check within {}", Milliseconds(self.limit))]
pub(super) struct CheckTimeoutError {
    limit: Duration,
}

impl CheckTimeoutError {
    /// Returns the failure of a check that took longer than `limit`.
    pub(super) fn after(limit: Duration) -> Failure {
        Failure::Check { cause: Arc::new(Self { limit }), is_network_error: true, is_timeout: true }
    }

    /// Returns the failure of a check whose command failed. `limit` is the time that the command was allowed.
    pub(super) fn instead_of(error: CommandError, limit: Duration) -> Failure {
        match error {
            // The original error names an option that does not limit checks.
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
