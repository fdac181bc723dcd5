//! Errors from commands on connections, and what they mean for the server and its pool.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bson::RawDocument;
use thiserror::Error;

use super::authentication::{AuthenticationCause, AuthenticationError};
use crate::endpoint::wire::reply::StateChange;
use crate::endpoint::wire::{ServerError, WireError};
use crate::pool::error::{Cause, Labels};
use crate::pool::service_id::ServiceId;
use crate::text::milliseconds::Milliseconds;

/// Why a command did not receive a successful reply.
///
/// ```
/// use wharf::CommandError;
///
/// fn advice(error: &CommandError) -> &'static str {
///     match error {
///         CommandError::Server { .. } if error.is_retryable() => "try again after a pause",
///         CommandError::Server { .. } => "look at the code: the server refused",
///         CommandError::Lost { .. } | CommandError::NotReusable { .. } => "try again on another connection",
///         CommandError::Network { .. } | CommandError::Timeout { .. } => "try again if it may be executed twice",
///         _ => "do not try again",
///     }
/// }
/// ```
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The server executed or refused the command, and reported a failure. The connection remains usable.
    /// [`is_retryable`](CommandError::is_retryable) and the error's labels say whether to retry.
    #[error("command on {origin} failed: {source}")]
    #[non_exhaustive]
    Server {
        /// The command's connection and server.
        origin: Box<Origin>,
        /// The server's error.
        source: Box<ServerError>,
    },
    /// The network failed, the server closed the connection, or a read or write took longer than `socketTimeoutMS`. The
    /// server may have executed the command.
    #[error("connection to {origin} failed during a command: {source}")]
    #[non_exhaustive]
    Network {
        /// The command's connection and server.
        origin: Box<Origin>,
        /// The operating system's error, [`UnexpectedEof`](io::ErrorKind::UnexpectedEof), or
        /// [`TimedOut`](io::ErrorKind::TimedOut).
        source: Arc<io::Error>,
    },
    /// `timeoutMS` expired. The server may have executed the command, except after
    /// [`Unsent`](CommandTimeoutError::Unsent).
    #[error("command on {origin} did not finish {}: {source}", InTime(*limit))]
    #[non_exhaustive]
    Timeout {
        /// The command's connection and server.
        origin: Box<Origin>,
        /// The time that the command was allowed; zero if only the server had a limit.
        limit: Duration,
        /// How far the command got, or the server's error.
        source: CommandTimeoutError,
    },
    /// The command is too large to be sent, or the reply violates the protocol. In the first case, the connection
    /// remains usable. In the second case, a retry does not help.
    #[error("wire protocol error on a connection to {origin}: {source}")]
    #[non_exhaustive]
    Wire {
        /// The command's connection and server.
        origin: Box<Origin>,
        /// What is wrong with the command or the reply.
        source: Cause,
    },
    /// While the connection was idle, the server closed it or sent bytes that no request asked for, or the network
    /// failed. The command was not sent, and may be run on another connection.
    #[error("connection to {origin} was lost before the command was sent: {source}")]
    #[non_exhaustive]
    Lost {
        /// The command's connection and server.
        origin: Box<Origin>,
        /// The operating system's error, [`UnexpectedEof`](io::ErrorKind::UnexpectedEof), or
        /// [`InvalidData`](io::ErrorKind::InvalidData) for unexpected bytes.
        source: Arc<io::Error>,
    },
    /// The connection was broken or in the middle of another command. The command was not sent, and may be run on
    /// another connection.
    #[error("connection to {origin} cannot be reused after an earlier failure or cancellation")]
    #[non_exhaustive]
    NotReusable {
        /// The command's connection and server.
        origin: Box<Origin>,
    },
    /// The server asked the connection to authenticate again (error 391), and the authentication failed. The server
    /// refused the command with that error, and the command was not run again. The connection is closed.
    #[error("connection to {origin} could not authenticate again: {source}")]
    #[non_exhaustive]
    Reauthentication {
        /// The command's connection and server.
        origin: Box<Origin>,
        /// The authentication error.
        source: Arc<AuthenticationError>,
    },
}

crate::pool::error::debug_as_sentence!(enum CommandError {
    ; Server, Network, Timeout, Wire, Lost, NotReusable, Reauthentication
});

/// How far a command got before its time ran out.
///
/// ```
/// use wharf::CommandError;
/// use wharf::endpoint::CommandTimeoutError;
///
/// fn may_have_been_executed(error: &CommandError) -> bool {
///     match error {
///         CommandError::Timeout { source, .. } => !matches!(source, CommandTimeoutError::Unsent),
///         CommandError::Lost { .. } | CommandError::NotReusable { .. } => false,
///         _ => true,
///     }
/// }
/// ```
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum CommandTimeoutError {
    /// The command was not sent: the time left was zero, or less than a round trip takes.
    #[error("the time was up before the command was sent")]
    Unsent,
    /// Only part of the command was sent.
    #[error("the time was up while the command was being sent")]
    Sending,
    /// The reply had not arrived, or had arrived only in part.
    #[error("the time was up while waiting for the reply")]
    Receiving,
    /// The time limit that the client sent with the command expired on the server (`MaxTimeMSExpired`, code 50).
    #[error(transparent)]
    Server(Box<ServerError>),
}

crate::pool::error::debug_as_sentence!(enum CommandTimeoutError { Server(_); Unsent, Sending, Receiving });

/// Displays the limit that a command exceeded. Zero means that only the server had a limit.
struct InTime(Duration);

impl fmt::Display for InTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Duration::ZERO => f.write_str("in time"),
            limit => write!(f, "within timeoutMS ({})", Milliseconds(limit)),
        }
    }
}

/// The connection and server on which an error occurred.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Origin {
    /// The endpoint's address.
    pub address: Arc<str>,
    /// The connection's number in its pool, or `None` without a pool.
    pub connection_id: Option<u64>,
    /// The server's number for the connection, as in the server's log, if the server reported it.
    pub server_connection_id: Option<i64>,
    /// The connection's generation: that of its service in load-balanced mode, otherwise that of its pool. `None`
    /// without a pool. An error from an older generation says nothing about the server's current state.
    pub generation: Option<u64>,
    /// The service behind the load balancer.
    pub service_id: Option<ServiceId>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)?;
        match (self.connection_id, self.server_connection_id) {
            (Some(ours), Some(theirs)) => write!(f, " (connection {ours}, server connection {theirs})"),
            (Some(ours), None) => write!(f, " (connection {ours})"),
            (None, Some(theirs)) => write!(f, " (server connection {theirs})"),
            (None, None) => Ok(()),
        }
    }
}

impl CommandError {
    /// Returns where the error occurred: address, connection, generation and service.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        match self {
            Self::Server { origin, .. }
            | Self::Network { origin, .. }
            | Self::Timeout { origin, .. }
            | Self::Wire { origin, .. }
            | Self::Lost { origin, .. }
            | Self::NotReusable { origin }
            | Self::Reauthentication { origin, .. } => origin,
        }
    }

    pub(super) fn origin_mut(&mut self) -> &mut Origin {
        match self {
            Self::Server { origin, .. }
            | Self::Network { origin, .. }
            | Self::Timeout { origin, .. }
            | Self::Wire { origin, .. }
            | Self::Lost { origin, .. }
            | Self::NotReusable { origin }
            | Self::Reauthentication { origin, .. } => origin,
        }
    }

    /// Returns the endpoint's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.origin().address
    }

    /// Returns the server's error, if the server reported that the command failed or that its time ran out.
    #[must_use]
    pub fn server_error(&self) -> Option<&ServerError> {
        match self {
            Self::Server { source, .. } | Self::Timeout { source: CommandTimeoutError::Server(source), .. } => {
                Some(source)
            }
            Self::Reauthentication { .. }
            | Self::Network { .. }
            | Self::Timeout { .. }
            | Self::Wire { .. }
            | Self::Lost { .. }
            | Self::NotReusable { .. } => None,
        }
    }

    /// Returns the server's error, from the command itself or from the reauthentication that it required.
    pub(super) fn any_server_error(&self) -> Option<&ServerError> {
        match self {
            Self::Reauthentication { source, .. } => source.server_error(),
            _ => self.server_error(),
        }
    }

    /// Returns the network error, from the command itself or from the reauthentication that it required.
    fn network_error(&self) -> Option<&io::Error> {
        match self {
            // Unexpected bytes are the peer's fault, not the network's.
            Self::Lost { source, .. } if source.get_ref().is_some_and(|source| source.is::<WireError>()) => None,
            Self::Network { source, .. } | Self::Lost { source, .. } => Some(source),
            Self::Reauthentication { source, .. } => match &source.cause {
                AuthenticationCause::Network(error) => Some(error),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns whether the server gave the error this label.
    ///
    /// wharf adds no labels of its own. The labels that the specifications add to errors from commands on established
    /// connections depend on the kind of operation, which only the caller knows.
    #[must_use]
    pub fn has_label(&self, label: &str) -> bool {
        self.any_server_error().is_some_and(|error| error.has_label(label))
    }

    /// Returns whether the command may be retried, whatever kind of command it is: the server says so with the label
    /// `RetryableError`, or the command was not sent.
    ///
    /// After a network failure or a timeout the server may have executed the command, so only a caller that knows the
    /// command can decide. A command that was not sent for lack of time is not retryable, because its time has already
    /// run out.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Lost { .. } | Self::NotReusable { .. } => true,
            Self::Server { .. } | Self::Reauthentication { .. } => {
                self.any_server_error().is_some_and(|error| error.labels.contains(Labels::RETRYABLE))
            }
            Self::Network { .. } | Self::Timeout { .. } | Self::Wire { .. } => false,
        }
    }

    /// Returns whether a time limit ended the command: the client's own limit, or the limit that the client sent to the
    /// server.
    ///
    /// A timeout says nothing about the server, because the command may just be slow (SDAM, "Network error when reading
    /// or writing").
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            Self::Reauthentication { source, .. } => source.cause.is_timeout(),
            Self::Lost { .. } => false,
            _ => self.network_error().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut),
        }
    }

    /// Returns whether the network failed, other than by a timeout, or the server closed the connection.
    #[must_use]
    pub fn is_network_error(&self) -> bool {
        self.network_error().is_some() && !self.is_timeout()
    }

    /// Returns the change in the server's state that the error reports: the server is not primary, or cannot be used
    /// (SDAM, "not writable primary and node is recovering").
    ///
    /// A *successful* reply may report a change in its `writeConcernError`: see [`StateChange::of_reply`].
    #[must_use]
    pub fn state_change(&self) -> Option<StateChange> {
        self.any_server_error().and_then(ServerError::state_change)
    }

    /// Returns whether the specifications require that the server be marked as Unknown: after a network error that is
    /// not a timeout, and after a state change.
    ///
    /// This method and [`clears_pool`](Self::clears_pool) are meant for errors from the pool's current generation.
    /// Errors from older generations must be ignored. In load-balanced mode no server is marked.
    #[must_use]
    pub fn marks_server_unknown(&self) -> bool {
        self.is_network_error() || self.state_change().is_some()
    }

    /// Returns whether the specifications require that the server's pool be cleared: after a network error that is not
    /// a timeout, and when the server is shutting down (SDAM, "Error handling pseudocode").
    #[must_use]
    pub fn clears_pool(&self) -> bool {
        self.is_network_error() || self.state_change() == Some(StateChange::ShuttingDown)
    }

    /// Returns the `topologyVersion` in the server's error, which distinguishes stale errors from current ones.
    #[must_use]
    pub fn topology_version(&self) -> Option<&RawDocument> {
        self.any_server_error()?.reply.get_document("topologyVersion").ok()
    }
}
