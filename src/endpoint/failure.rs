//! What can go wrong with a command on a connection, and what it means for the server and its pool.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bson::RawDocument;
use bson::oid::ObjectId;
use thiserror::Error;

use super::authentication::{AuthenticationCause, AuthenticationError};
use crate::error::Labels;
use crate::milliseconds::Milliseconds;
use crate::wire::reply::StateChange;
use crate::wire::{ServerError, WireError};

/// A command has no successful reply.
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The server executed the command, or refused to, and says that it failed. The connection is as good as before.
    /// [`is_retryable`](CommandError::is_retryable) and the error's labels tell whether to try again.
    #[error("Command on {origin} failed: {source}")]
    Server {
        /// Where it happened.
        origin: Box<Origin>,
        /// What the server says.
        source: Box<ServerError>,
    },
    /// The network failed, or the server closed the connection, or a read or a write took longer than
    /// `socketTimeoutMS`. The command may or may not have been executed.
    #[error("Connection to {origin} failed during a command: {source}")]
    Network {
        /// Where it happened.
        origin: Box<Origin>,
        /// The operating system's error, [`UnexpectedEof`](io::ErrorKind::UnexpectedEof), or
        /// [`TimedOut`](io::ErrorKind::TimedOut).
        source: Arc<io::Error>,
    },
    /// The time of `timeoutMS` was up. Unless it says [`Unsent`](CommandTimeoutError::Unsent), the command may or may not have been
    /// executed.
    #[error("Command on {origin} did not end {}: {source}", InTime(*limit))]
    Timeout {
        /// Where it happened.
        origin: Box<Origin>,
        /// How long the command might have taken; zero if only the server had a limit.
        limit: Duration,
        /// When it was noticed, or the underlying error.
        source: CommandTimeoutError,
    },
    /// The command is too large to be sent, in which case the connection is as good as before; or the reply breaks the
    /// protocol, and then trying again does not help.
    #[error("Wire protocol error on a connection to {origin}: {source}")]
    Wire {
        /// Where it happened.
        origin: Box<Origin>,
        /// The field that is not as it must be.
        source: WireError,
    },
    /// While the connection was idle, the server closed it or sent bytes that it was not asked for, or the network failed.
    /// The command was not sent. It may be run on another connection.
    #[error("Connection to {origin} was lost before the command was sent: {source}")]
    Lost {
        /// Where it happened.
        origin: Box<Origin>,
        /// The operating system's error, [`UnexpectedEof`](io::ErrorKind::UnexpectedEof), or
        /// [`InvalidData`](io::ErrorKind::InvalidData) around a [`WireError`] for bytes that were not asked for.
        source: Arc<io::Error>,
    },
    /// The connection was errored or in the middle of another command, so the command was not sent. It may be run on
    /// another connection.
    #[error("Connection to {origin} cannot be used again after an earlier failure or cancellation")]
    Closed {
        /// Where it happened.
        origin: Box<Origin>,
    },
    /// The server wanted the connection to authenticate again (error 391), and that failed. The command was refused
    /// with that error, and not run once more. The connection is closed.
    #[error("Connection to {origin} could not be authenticated again: {source}")]
    Reauthentication {
        /// Where it happened.
        origin: Box<Origin>,
        /// Why it failed.
        source: Arc<AuthenticationError>,
    },
}

crate::error::debug_as_sentence!(CommandError);

/// What a time limit ended.
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum CommandTimeoutError {
    /// The command was not sent: no time was left, or not as much as a round trip takes.
    #[error("the time was up before the command was sent")]
    Unsent,
    /// The command was sent in part.
    #[error("the time was up while the command was being sent")]
    Sending,
    /// The server has not answered, or not completely.
    #[error("the time was up while waiting for the reply")]
    Receiving,
    /// The server's own time limit, which the client had told it (`MaxTimeMSExpired`, code 50).
    #[error(transparent)]
    Server(Box<ServerError>),
}

crate::error::debug_as_sentence!(CommandTimeoutError);

/// The limit that a command has exceeded; zero is that of the server alone.
struct InTime(Duration);

impl fmt::Display for InTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Duration::ZERO => f.write_str("in time"),
            limit => write!(f, "within timeoutMS ({})", Milliseconds(limit)),
        }
    }
}

/// Where something went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The endpoint's address.
    pub address: Arc<str>,
    /// The connection's number in its pool; `None` if it belongs to none.
    pub connection_id: Option<u64>,
    /// The server's number for the connection, as its log has it, if it told.
    pub server_connection_id: Option<i64>,
    /// The generation of the connection: in load-balanced mode that of its service, else that of its pool. `None` if it
    /// belongs to none. An error of an older generation than today's says nothing about the server as it is now.
    pub generation: Option<u64>,
    /// The service behind the load balancer.
    pub service_id: Option<ObjectId>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)?;
        match (self.connection_id, self.server_connection_id) {
            (Some(ours), Some(theirs)) => write!(f, " (connection {ours}, the server's {theirs})"),
            (Some(ours), None) => write!(f, " (connection {ours})"),
            (None, Some(theirs)) => write!(f, " (the server's connection {theirs})"),
            (None, None) => Ok(()),
        }
    }
}

impl CommandError {
    /// Where it happened: address, connection, generation, service.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        match self {
            Self::Server { origin, .. }
            | Self::Network { origin, .. }
            | Self::Timeout { origin, .. }
            | Self::Wire { origin, .. }
            | Self::Lost { origin, .. }
            | Self::Closed { origin }
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
            | Self::Closed { origin }
            | Self::Reauthentication { origin, .. } => origin,
        }
    }

    /// The endpoint's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.origin().address
    }

    /// The server's error, if it is the server that says the command failed, also because its time was up.
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
            | Self::Closed { .. } => None,
        }
    }

    /// The server's error, whether it is about the command or about the authentication before it is run once more.
    fn any_server_error(&self) -> Option<&ServerError> {
        match self {
            Self::Reauthentication { source, .. } => source.server_error(),
            _ => self.server_error(),
        }
    }

    /// The error of the network, whether it ended the command or the authentication before it is run once more.
    fn network_error(&self) -> Option<&io::Error> {
        match self {
            // Bytes that were not asked for are a fault of the peer and not of the network.
            Self::Lost { source, .. } if source.get_ref().is_some_and(|source| source.is::<WireError>()) => None,
            Self::Network { source, .. } | Self::Lost { source, .. } => Some(source),
            Self::Reauthentication { source, .. } => match &source.cause {
                AuthenticationCause::Network(error) => Some(error),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the server gave the error this label. wharf adds none of its own: the specifications label errors of
    /// commands on established connections by what the operation was, which only who made the command knows.
    #[must_use]
    pub fn has_label(&self, label: &str) -> bool {
        self.any_server_error().is_some_and(|error| error.has_label(label))
    }

    /// Whether the command may be tried again, whatever it is: the server says so with the label `RetryableError`, or
    /// the command was not sent.
    ///
    /// After a network failure or a timeout the server may have executed the command, so only who knows the command can
    /// tell. A command that was not sent for want of time is not retryable, because its time is still up.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Lost { .. } | Self::Closed { .. } => true,
            Self::Server { .. } | Self::Reauthentication { .. } => {
                Labels::RETRYABLE.names().all(|label| self.has_label(label))
            }
            Self::Network { .. } | Self::Timeout { .. } | Self::Wire { .. } => false,
        }
    }

    /// Whether it was a time limit of the client that ended the command, or the server's that the client had told it.
    /// Says nothing about the server: the command may just be slow (SDAM, "Network error when reading or writing").
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            Self::Reauthentication { source, .. } => source.cause.is_timeout(),
            Self::Lost { .. } => false,
            _ => self.network_error().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut),
        }
    }

    /// Whether the network failed, or the server closed the connection, other than by a timeout.
    #[must_use]
    pub fn is_network_error(&self) -> bool {
        self.network_error().is_some() && !self.is_timeout()
    }

    /// What the error says of the server's state: that it is no primary, or not one to be used (SDAM, "not writable
    /// primary and node is recovering").
    ///
    /// A *successful* reply may say so as well, in its `writeConcernError`: ask
    /// [`reply::state_change`](crate::wire::reply::state_change).
    #[must_use]
    pub fn state_change(&self) -> Option<StateChange> {
        self.any_server_error().and_then(ServerError::state_change)
    }

    /// Whether the specifications want the server marked as Unknown: after a network error that is no timeout, and
    /// after a state change.
    ///
    /// This and [`clears_pool`](Self::clears_pool) are for errors of the generation that the pool has today; older ones
    /// must be ignored. In load-balanced mode no server is ever marked.
    #[must_use]
    pub fn marks_server_unknown(&self) -> bool {
        self.is_network_error() || self.state_change().is_some()
    }

    /// Whether the specifications want the server's pool cleared: after a network error that is no timeout, and when
    /// the server is shutting down (SDAM, "Error handling pseudocode").
    #[must_use]
    pub fn clears_pool(&self) -> bool {
        self.is_network_error() || self.state_change() == Some(StateChange::ShuttingDown)
    }

    /// The `topologyVersion` in the server's error, to tell old news from new.
    #[must_use]
    pub fn topology_version(&self) -> Option<&RawDocument> {
        self.any_server_error()?.reply.get_document("topologyVersion").ok()
    }
}
