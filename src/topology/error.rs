//! The errors that applications meet, as far as they tell of a server's state (SDAM, "Application errors").

use bson::RawDocument;

use super::TopologyVersion;
use crate::error::Cause;
use crate::options::ServerAddress;
use crate::wire::reply::{StateChange, state_change};

/// How far a connection had come when an error occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Progress {
    /// The connection was being opened, or its hello was under way.
    Connecting,
    /// The hello was answered, and the authentication was under way.
    Authenticating,
    /// The handshake was complete, and an operation was under way.
    Established,
}

/// What went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The server's reply says that it is not the server that the client takes it for.
    StateChange(StateChange),
    /// The server answered with any other error.
    Command,
    /// The connection failed.
    Network,
    /// The server did not answer in time.
    Timeout,
}

impl ErrorKind {
    /// The kind of an error that came in a reply.
    #[must_use]
    pub fn of_reply(reply: &RawDocument) -> Self {
        state_change(reply).map_or(Self::Command, Self::StateChange)
    }
}

/// An error that an application met, and the circumstances that decide what it means for the topology.
#[derive(Debug, Clone)]
pub struct ApplicationError {
    /// The server.
    pub address: ServerAddress,
    /// How far the connection had come.
    pub progress: Progress,
    /// What went wrong.
    pub kind: ErrorKind,
    /// Whether the error is older than the pool: the connection's generation is lower than the pool's (or, behind a load
    /// balancer, than its service's).
    pub is_of_older_generation: bool,
    /// Whether the error has the label `SystemOverloadedError`.
    pub is_overload: bool,
    /// `topologyVersion` of the reply, if the error came in one that had it.
    pub topology_version: Option<TopologyVersion>,
    /// The error itself.
    pub cause: Cause,
}

impl ApplicationError {
    /// Whether the error concerns the connection and not only one command: the connection failed, or its handshake was not
    /// complete.
    pub(super) fn concerns_the_connection(&self) -> bool {
        match (self.progress, self.kind) {
            // What happens before the end of hello may be the network's fault, and changes nothing.
            (Progress::Connecting, ErrorKind::Network | ErrorKind::Timeout) => false,
            // A slow operation does not make its server unavailable.
            (Progress::Established, ErrorKind::Timeout | ErrorKind::Command | ErrorKind::StateChange(_)) => false,
            (Progress::Connecting | Progress::Authenticating, _) | (_, ErrorKind::Network) => true,
        }
    }
}
