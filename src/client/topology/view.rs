//! An application's view of a topology.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bson::oid::ObjectId;

use super::description::{TopologyDescription, TopologyType};
use super::server::{ServerDescription, ServerType};
use crate::pool::error::Cause;
use crate::text::printable::PrintableError;

/// A client's view of one server at one moment (SDAM, "ServerDescription"). Clones share the data.
///
/// Two views are equal if an application cannot tell them apart: round-trip times and the time of the check are ignored
/// (SDAM, "Server Description Equality").
#[derive(Clone)]
pub struct ServerView(pub(crate) Arc<ServerDescription>);

impl ServerView {
    /// Returns the address, `host:port`.
    #[must_use]
    pub fn address(&self) -> &str {
        self.0.address.as_str()
    }

    /// Returns the kind of server.
    #[must_use]
    pub fn server_type(&self) -> ServerType {
        self.0.server_type
    }

    /// Returns the error that made the server unknown, if any.
    #[must_use]
    pub fn error(&self) -> Option<&Cause> {
        self.0.error.as_ref()
    }

    /// Returns the average time of a hello; `None` while the server is unknown.
    #[must_use]
    pub fn average_round_trip_time(&self) -> Option<Duration> {
        self.0.average_round_trip_time
    }

    /// Returns `minWireVersion` and `maxWireVersion`, which are 0 while the server is unknown.
    #[must_use]
    pub fn wire_versions(&self) -> RangeInclusive<i32> {
        self.0.min_wire_version..=self.0.max_wire_version
    }

    /// Returns `setName`: the name of the replica set.
    #[must_use]
    pub fn set_name(&self) -> Option<&str> {
        self.0.set_name.as_deref()
    }

    /// Returns `setVersion`: the version of the replica set's configuration.
    #[must_use]
    pub fn set_version(&self) -> Option<i64> {
        self.0.set_version
    }

    /// Returns `electionId`: the election that made the server primary.
    #[must_use]
    pub fn election_id(&self) -> Option<ObjectId> {
        self.0.election_id
    }

    /// Returns `primary`: the member that the server reports as the primary.
    #[must_use]
    pub fn primary(&self) -> Option<&str> {
        self.0.primary.as_ref().map(|primary| primary.as_str())
    }

    /// Returns the members of the replica set that the server reports: `hosts`, `passives` and `arbiters`.
    pub fn members(&self) -> impl Iterator<Item = &str> {
        self.0.members().map(|member| member.as_str())
    }

    /// Returns the server's tags.
    #[must_use]
    pub fn tags(&self) -> &BTreeMap<String, String> {
        &self.0.tags
    }

    /// Returns `logicalSessionTimeoutMinutes`; `None` if the server does not support sessions.
    #[must_use]
    pub fn logical_session_timeout_minutes(&self) -> Option<i64> {
        self.0.logical_session_timeout_minutes
    }
}

impl PartialEq for ServerView {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_equivalent(&other.0)
    }
}

impl fmt::Display for ServerView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.address(), self.server_type().name())?;
        if let Some(time) = self.average_round_trip_time() {
            write!(f, ", round trip {time:?}")?;
        }
        if let Some(error) = self.error() {
            write!(f, ", {}", PrintableError(error))?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for ServerView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A client's view of its deployment at one moment (SDAM, "TopologyDescription"). Clones share the data.
#[derive(Clone)]
pub struct TopologyView(pub(crate) Arc<TopologyDescription>);

impl TopologyView {
    /// Returns the kind of deployment.
    #[must_use]
    pub fn topology_type(&self) -> TopologyType {
        self.0.topology_type()
    }

    /// Returns the name of the replica set, if known.
    #[must_use]
    pub fn set_name(&self) -> Option<&str> {
        self.0.set_name()
    }

    /// Returns the servers, in the order in which the client discovered them.
    pub fn servers(&self) -> impl Iterator<Item = ServerView> {
        self.0.shared_servers().iter().cloned().map(ServerView)
    }

    /// Returns `logicalSessionTimeoutMinutes`: the minimum over all data-bearing servers, or `None` if any of them does
    /// not report a value.
    #[must_use]
    pub fn logical_session_timeout_minutes(&self) -> Option<i64> {
        self.0.logical_session_timeout_minutes()
    }

    /// Returns whether wharf supports at least one wire version of each known server.
    #[must_use]
    pub fn is_compatible(&self) -> bool {
        self.0.incompatibility().is_none()
    }
}

impl PartialEq for TopologyView {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_equivalent(&other.0)
    }
}

impl fmt::Display for TopologyView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.topology_type().name())?;
        if let Some(name) = self.set_name() {
            write!(f, " {name:?}")?;
        }
        for (index, server) in self.servers().enumerate() {
            f.write_str(if index == 0 { " with " } else { "; " })?;
            write!(f, "{server}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for TopologyView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
