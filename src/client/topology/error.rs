//! Application errors that indicate a server's state (SDAM, "Application errors").

use bson::RawDocument;

use super::TopologyVersion;
use crate::endpoint::options::ServerAddress;
use crate::endpoint::wire::reply::StateChange;
use crate::pool::error::Cause;

/// How far a connection had progressed when an error occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Progress {
    /// The connection was being opened, or its hello was in progress.
    Connecting,
    /// The hello was answered, and authentication was in progress.
    Authenticating,
    /// The handshake was complete, and an operation was in progress.
    Established,
}

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The server's reply says that its state changed, for example that it is not the primary.
    StateChange(StateChange),
    /// The server answered with any other error.
    Command,
    /// The connection failed.
    Network,
    /// The server did not answer in time.
    Timeout,
}

impl ErrorKind {
    /// Returns the kind of an error in a reply.
    #[must_use]
    pub fn of_reply(reply: &RawDocument) -> Self {
        StateChange::of_reply(reply).map_or(Self::Command, Self::StateChange)
    }
}

/// An application's error, with the circumstances that determine its effect on the topology.
#[derive(Debug, Clone)]
pub struct ApplicationError {
    /// The server.
    pub address: ServerAddress,
    /// How far the connection had progressed.
    pub progress: Progress,
    /// The kind of the error.
    pub kind: ErrorKind,
    /// Whether the error is stale: the connection's generation is lower than that of the pool, or of the service behind
    /// a load balancer.
    pub is_of_older_generation: bool,
    /// Whether the error has the `SystemOverloadedError` label.
    pub is_overload: bool,
    /// The `topologyVersion` from the error's reply, if there is a reply that contains it.
    pub topology_version: Option<TopologyVersion>,
    /// The error itself.
    pub cause: Cause,
}

impl ApplicationError {
    /// Returns whether the error concerns the connection rather than one command: the connection failed, or its handshake
    /// was not complete.
    pub(super) fn concerns_the_connection(&self) -> bool {
        match (self.progress, self.kind) {
            // A failure before the end of the hello may be the network's fault, so it neither changes the server's
            // description nor clears its pool.
            (Progress::Connecting, ErrorKind::Network | ErrorKind::Timeout) => false,
            // A slow operation does not make its server unavailable.
            (Progress::Established, ErrorKind::Timeout | ErrorKind::Command | ErrorKind::StateChange(_)) => false,
            (Progress::Connecting | Progress::Authenticating, _) | (_, ErrorKind::Network) => true,
        }
    }
}
