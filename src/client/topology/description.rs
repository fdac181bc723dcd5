//! The description of a deployment with all its servers.

use std::collections::HashSet;
use std::sync::Arc;

use bson::oid::ObjectId;
use thiserror::Error;

use super::server::{ServerDescription, ServerType};
use crate::endpoint::options::{Options, ServerAddress};
use crate::endpoint::wire::hello::IncompatibleServerError;

/// The kind of a deployment (SDAM, "TopologyType").
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum TopologyType {
    /// A single server of any kind, with a direct connection.
    Single,
    /// A replica set whose primary is not known.
    ReplicaSetNoPrimary,
    /// A replica set whose primary is known.
    ReplicaSetWithPrimary,
    /// A sharded cluster.
    Sharded,
    /// Services behind a load balancer.
    LoadBalanced,
    /// Nothing is known yet.
    #[default]
    Unknown,
}

impl TopologyType {
    /// Returns the specification's name for the type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "Single",
            Self::ReplicaSetNoPrimary => "ReplicaSetNoPrimary",
            Self::ReplicaSetWithPrimary => "ReplicaSetWithPrimary",
            Self::Sharded => "Sharded",
            Self::LoadBalanced => "LoadBalanced",
            Self::Unknown => "Unknown",
        }
    }
}

/// A deployment as of the last checks of its servers (SDAM, "TopologyDescription"). A description is never changed,
/// only replaced: see [`after_check`](Self::after_check) and [`after_error`](Self::after_error).
#[derive(Debug, Clone)]
pub struct TopologyDescription {
    topology_type: TopologyType,
    set_name: Option<String>,
    max_election_id: Option<ObjectId>,
    max_set_version: Option<i64>,
    /// The servers, in the order in which the client discovered them: the seeds first.
    servers: Vec<Arc<ServerDescription>>,
    incompatibility: Option<IncompatibleServerError>,
    logical_session_timeout_minutes: Option<i64>,
    has_one_seed: bool,
    /// The last server that was left out because it does not belong to the deployment, and the reason. Errors report
    /// both.
    left_out: Option<Arc<str>>,
}

/// Seeds and options that conflict (SDAM, "Allowed configuration combinations").
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidTopology {
    /// There is no seed.
    #[error("a topology needs at least one seed")]
    NoSeeds,
    /// The topology allows only one server, but there are several seeds.
    #[error("a topology of type {} must have exactly one seed, got {seeds}", topology_type.name())]
    TooManySeeds {
        /// The type of the topology.
        topology_type: TopologyType,
        /// The number of seeds.
        seeds: usize,
    },
    /// A replica set name is only valid for a replica set, or for a direct connection to one of its members.
    #[error("a topology of type {} cannot have a replica set name, got {set_name:?}", topology_type.name())]
    SetName {
        /// The type of the topology.
        topology_type: TopologyType,
        /// The name.
        set_name: String,
    },
}

impl TopologyDescription {
    /// Describes a deployment before its first check. Duplicate seeds count once.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidTopology`] if the type, the name and the number of seeds conflict.
    pub fn new(
        topology_type: TopologyType,
        set_name: Option<String>,
        seeds: impl IntoIterator<Item = ServerAddress>,
    ) -> Result<Self, InvalidTopology> {
        let (mut servers, mut seen) = (Vec::new(), HashSet::new());
        for address in seeds {
            if seen.insert(address.clone()) {
                servers.push(Arc::new(match topology_type {
                    TopologyType::LoadBalanced => ServerDescription::load_balancer(address),
                    _ => ServerDescription::unknown(address),
                }));
            }
        }
        let is_for_one = matches!(topology_type, TopologyType::Single | TopologyType::LoadBalanced);
        match servers.len() {
            0 => return Err(InvalidTopology::NoSeeds),
            seeds if seeds > 1 && is_for_one => return Err(InvalidTopology::TooManySeeds { topology_type, seeds }),
            _ => {}
        }
        let may_have_a_name = matches!(
            topology_type,
            TopologyType::Single | TopologyType::ReplicaSetNoPrimary | TopologyType::ReplicaSetWithPrimary
        );
        match set_name {
            Some(set_name) if !may_have_a_name => Err(InvalidTopology::SetName { topology_type, set_name }),
            set_name => Ok(Self::before_any_primary(topology_type, set_name, servers)),
        }
    }

    /// Describes the deployment for a connection string before its first check (SDAM, "Initial TopologyType").
    ///
    /// # Errors
    ///
    /// Returns [`InvalidTopology`] if the options conflict, or if their SRV name is not [resolved](Options::resolve).
    pub fn of_options(options: &Options) -> Result<Self, InvalidTopology> {
        let topology_type = if options.is_load_balanced() {
            TopologyType::LoadBalanced
        } else if options.direct_connection == Some(true) {
            TopologyType::Single
        } else if options.replica_set.is_some() {
            TopologyType::ReplicaSetNoPrimary
        } else {
            TopologyType::Unknown
        };
        Self::new(topology_type, options.replica_set.clone(), options.hosts.iter().cloned())
    }

    /// Describes a deployment without servers: the deployment is closed, or its servers have not been looked up yet.
    #[must_use]
    pub fn without_servers() -> Self {
        Self::before_any_primary(TopologyType::Unknown, None, Vec::new())
    }

    /// Describes a deployment whose servers are already known, for tests of server selection.
    #[must_use]
    pub fn of_servers(topology_type: TopologyType, servers: impl IntoIterator<Item = ServerDescription>) -> Self {
        let servers: Vec<_> = servers.into_iter().map(Arc::new).collect();
        let set_name = servers.iter().find_map(|server| server.set_name.clone());
        let mut topology = Self::before_any_primary(topology_type, set_name, servers);
        topology.conclude();
        topology
    }

    /// Returns the kind of deployment.
    #[must_use]
    pub fn topology_type(&self) -> TopologyType {
        self.topology_type
    }

    /// Returns the name of the replica set, if known.
    #[must_use]
    pub fn set_name(&self) -> Option<&str> {
        self.set_name.as_deref()
    }

    /// Returns the largest `electionId` that a primary has reported. Elections are compared by `electionId` and
    /// `setVersion` together.
    #[must_use]
    pub fn max_election_id(&self) -> Option<ObjectId> {
        self.max_election_id
    }

    /// Returns the largest `setVersion` that a primary has reported. A later election may lower it.
    #[must_use]
    pub fn max_set_version(&self) -> Option<i64> {
        self.max_set_version
    }

    /// Returns `logicalSessionTimeoutMinutes`: the minimum over all data-bearing servers, or `None` if any of them does
    /// not report a value.
    #[must_use]
    pub fn logical_session_timeout_minutes(&self) -> Option<i64> {
        self.logical_session_timeout_minutes
    }

    /// Returns an error if wharf cannot work with the deployment because wharf supports none of one server's wire
    /// versions.
    #[must_use]
    pub fn incompatibility(&self) -> Option<&IncompatibleServerError> {
        self.incompatibility.as_ref()
    }

    /// Returns the servers, in the order in which the client discovered them.
    pub fn servers(&self) -> impl Iterator<Item = &ServerDescription> {
        self.servers.iter().map(Arc::as_ref)
    }

    /// Like [`servers`](Self::servers), but returns the shared descriptions, for events that keep them.
    pub(super) fn shared_servers(&self) -> &[Arc<ServerDescription>] {
        &self.servers
    }

    /// Returns whether the two descriptions look equal to an application: events report the same values for both, apart
    /// from round-trip times.
    pub(super) fn is_equivalent(&self, other: &Self) -> bool {
        // Destructured so that adding a field causes a compile error until the field is handled here.
        let Self {
            topology_type,
            set_name,
            max_election_id,
            max_set_version,
            servers,
            // Derived from the servers.
            incompatibility: _,
            logical_session_timeout_minutes: _,
            has_one_seed: _,
            // Leaving a server out also changes the list of servers.
            left_out: _,
        } = self;
        *topology_type == other.topology_type
            && *set_name == other.set_name
            && *max_election_id == other.max_election_id
            && *max_set_version == other.max_set_version
            && servers.len() == other.servers.len()
            && servers.iter().zip(&other.servers).all(|(ours, theirs)| is_equivalent(ours, theirs))
    }

    /// Returns the same topology with all servers unknown.
    pub(super) fn with_unknown_servers(&self) -> Self {
        let unknown = |server: &Arc<ServerDescription>| Arc::new(ServerDescription::unknown(server.address.clone()));
        Self { servers: self.servers.iter().map(unknown).collect(), ..self.clone() }
    }

    /// Returns the server at an address, if it belongs to the topology.
    #[must_use]
    pub fn server(&self, address: &ServerAddress) -> Option<&ServerDescription> {
        self.servers().find(|server| server.address == *address)
    }

    /// Returns the primary of a replica set, if known.
    #[must_use]
    pub fn primary(&self) -> Option<&ServerDescription> {
        self.servers().find(|server| server.server_type == ServerType::RsPrimary)
    }

    fn before_any_primary(
        topology_type: TopologyType,
        set_name: Option<String>,
        servers: Vec<Arc<ServerDescription>>,
    ) -> Self {
        Self {
            topology_type,
            set_name,
            max_election_id: None,
            max_set_version: None,
            has_one_seed: servers.len() == 1,
            servers,
            incompatibility: None,
            logical_session_timeout_minutes: None,
            left_out: None,
        }
    }

    /// Returns the server that was left out because it does not belong to the deployment, and the reason. `None` once
    /// there is a primary.
    pub(crate) fn left_out(&self) -> Option<&Arc<str>> {
        self.left_out.as_ref()
    }

    pub(super) fn set_left_out(&mut self, left_out: Option<Arc<str>>) {
        self.left_out = left_out;
    }

    pub(super) fn has_one_seed(&self) -> bool {
        self.has_one_seed
    }

    pub(super) fn set_type(&mut self, topology_type: TopologyType) {
        self.topology_type = topology_type;
    }

    pub(super) fn set_set_name(&mut self, set_name: Option<String>) {
        self.set_name = set_name;
    }

    /// Replaces a server's description, or adds the server.
    pub(super) fn put(&mut self, server: Arc<ServerDescription>) {
        match self.servers.iter_mut().find(|present| present.address == server.address) {
            Some(present) => *present = server,
            None => self.servers.push(server),
        }
    }

    /// Adds a server that is not in the topology.
    pub(super) fn push(&mut self, server: Arc<ServerDescription>) {
        self.servers.push(server);
    }

    /// Removes the servers for which `stays` returns false, and returns their addresses.
    pub(super) fn take_out(&mut self, stays: impl Fn(&ServerAddress) -> bool) -> Vec<ServerAddress> {
        let (stay, gone) = std::mem::take(&mut self.servers).into_iter().partition(|server| stays(&server.address));
        self.servers = stay;
        let gone: Vec<Arc<ServerDescription>> = gone;
        gone.iter().map(|server| server.address.clone()).collect()
    }

    /// Records a primary's election, unless a newer primary is known.
    ///
    /// # Errors
    ///
    /// Returns the error text for the description of a stale primary.
    pub(super) fn note_election(&mut self, primary: &ServerDescription, election_first: bool) -> Result<(), String> {
        let (election, version) = (primary.election_id, primary.set_version);
        let (max_election, max_version) = (self.max_election_id, self.max_set_version);
        // `None` is less than every value, as in the specification.
        let is_stale = if election_first {
            (election, version) < (max_election, max_version)
        } else {
            let all_known = election.is_some() && version.is_some() && max_election.is_some() && max_version.is_some();
            all_known && (version, election) < (max_version, max_election)
        };
        if is_stale {
            let tuple = |election: Option<ObjectId>, version: Option<i64>| {
                let election = election.map_or_else(|| "null".to_owned(), |id| id.to_hex());
                let version = version.map_or_else(|| "null".to_owned(), |version| version.to_string());
                format!("(electionId {election}, setVersion {version})")
            };
            return Err(format!(
                "primary marked stale due to electionId/setVersion mismatch, {} is stale compared to {}",
                tuple(election, version),
                tuple(max_election, max_version)
            ));
        }
        if election_first {
            (self.max_election_id, self.max_set_version) = (election, version);
        } else {
            if election.is_some() && version.is_some() {
                self.max_election_id = election;
            }
            self.max_set_version = max_version.max(version);
        }
        Ok(())
    }

    /// Derives the values that depend on all servers.
    pub(super) fn conclude(&mut self) {
        let incompatibility = self.servers().find_map(|server| server.check_compatible().err());
        let timeouts = || {
            let data_bearing = self.servers().filter(|server| server.server_type.is_data_bearing());
            data_bearing.map(|server| server.logical_session_timeout_minutes)
        };
        // `None` is less than every timeout, so a single server without sessions determines the result.
        let timeout = timeouts().min().flatten();
        (self.incompatibility, self.logical_session_timeout_minutes) = (incompatibility, timeout);
    }
}

/// Returns whether two descriptions look equal to an application. Compares the pointers first, because most transitions
/// leave most servers unchanged.
pub(super) fn is_equivalent(ours: &Arc<ServerDescription>, theirs: &Arc<ServerDescription>) -> bool {
    Arc::ptr_eq(ours, theirs) || ours.is_equivalent(theirs)
}
