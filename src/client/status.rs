//! A snapshot of a client's deployment.

use std::sync::Arc;
use std::time::Duration;

#[cfg(any(feature = "metrics-facade", feature = "opentelemetry"))]
use super::Client;
use crate::client::deployment::{Member, Snapshot};
use crate::client::topology::ServerDescription;
use crate::pool::core::PoolStatus;
use crate::pool::holder::Holder;
use crate::pool::metrics::PoolMetrics;
#[cfg(any(feature = "metrics-facade", feature = "opentelemetry"))]
use crate::telemetry::{PoolSnapshot, Source, sealed};

/// A client's view of its deployment at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStatus {
    /// The specification's name for the topology's type, such as `ReplicaSetWithPrimary`.
    pub topology_type: &'static str,
    /// The name of the replica set, if it is known.
    pub set_name: Option<String>,
    /// The servers, in the order in which the client discovered them.
    pub servers: Vec<ServerStatus>,
}

/// A client's view of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStatus {
    /// The address, `host:port`.
    pub address: Arc<str>,
    /// The specification's name for the server's type, such as `RSPrimary`.
    pub server_type: &'static str,
    /// The average time of a hello; `None` if it is unknown.
    pub average_round_trip_time: Option<Duration>,
    /// The error from the last check, if it failed.
    pub error: Option<String>,
    /// The number of this client's operations that are in progress on this server.
    pub operations: u64,
    /// The state of the server's pool; `None` before the client is first used.
    pub pool: Option<PoolStatus>,
    /// The connections in use, starting with the one that has been in use the longest. Empty unless the client
    /// [accounts for holders](super::Client::account_for_holders).
    pub holders: Vec<Holder>,
}

impl ClientStatus {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let servers = snapshot.servers().map(|(server, member)| ServerStatus {
            address: server.address.text.clone(),
            server_type: server.server_type.name(),
            average_round_trip_time: server.average_round_trip_time,
            error: server.error.as_ref().map(ToString::to_string),
            operations: member.map_or(0, |member| member.operation_count()),
            pool: member.map(|member| member.server.pool.status()),
            holders: member.map_or_else(Vec::new, |member| member.server.pool.holders()),
        });
        Self {
            topology_type: snapshot.topology.topology_type().name(),
            set_name: snapshot.topology.set_name().map(str::to_owned),
            servers: servers.collect(),
        }
    }
}

/// Returns the metrics of a server's pool.
pub(super) fn metrics(server: &ServerDescription, member: &Member) -> PoolMetrics {
    let mut metrics = member.server.pool.metrics();
    metrics.accepts_writes &= server.server_type.accepts_writes();
    metrics
}

#[cfg(any(feature = "metrics-facade", feature = "opentelemetry"))]
impl sealed::Metered for Client {
    fn source(&self) -> Source {
        let inner = Arc::downgrade(&self.inner);
        Source::of_servers(move || Some(Self { inner: inner.upgrade()? }.pool_snapshots()))
    }
}

#[cfg(any(feature = "metrics-facade", feature = "opentelemetry"))]
impl Client {
    /// Returns the metrics of the pools of all current servers, for exporters.
    pub(crate) fn pool_snapshots(&self) -> Vec<PoolSnapshot> {
        let snapshot = self.deployment().snapshot();
        let present = snapshot.servers().filter_map(|(description, member)| {
            let metrics = metrics(description, member?);
            let server: Arc<dyn std::any::Any + Send + Sync> = member?.server.clone();
            Some(PoolSnapshot { pool: Arc::downgrade(&server), metrics })
        });
        present.collect()
    }
}
