//! Transitions from one topology description to the next.

use std::collections::HashSet;
use std::sync::Arc;

use super::description::{TopologyDescription, TopologyType};
use super::error::{ApplicationError, ErrorKind};
use super::server::{ServerDescription, ServerType};
use super::version::TopologyVersion;
use crate::endpoint::options::ServerAddress;
use crate::endpoint::wire::reply::StateChange;
use crate::pool::error::Cause;

/// A task that the caller performs before it replaces the description. The tasks are performed in list order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preparation {
    /// The server has joined the topology: create its pool, and start monitoring it.
    Added(ServerAddress),
    /// The server has left the topology: stop monitoring it, and close its pool.
    Removed(ServerAddress),
    /// Mark the server's pool as ready.
    MarkReady(ServerAddress),
}

/// A task that the caller performs after it has replaced the description. The tasks are performed in list order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Consequence {
    /// Clear the server's pool; behind a load balancer, clear the service of the failed connection.
    Clear(ServerAddress),
    /// Check the server immediately.
    Check(ServerAddress),
    /// Cancel the check in progress.
    CancelCheck(ServerAddress),
}

/// A change to a new topology description, with the caller's tasks before and after the change. All of this takes
/// effect under one lock.
#[derive(Debug, Clone)]
pub struct Transition {
    /// The new description.
    pub topology: TopologyDescription,
    /// The tasks to perform before the description is replaced.
    pub preparations: Vec<Preparation>,
    /// The tasks to perform after the description is replaced.
    pub consequences: Vec<Consequence>,
}

impl TopologyDescription {
    /// Returns the topology after a check of one server. Returns `None` if the outcome is ignored: the server has left
    /// the topology, or the reply is stale (its `topologyVersion` is older than the known version).
    ///
    /// A failed check does not clear the pool here. Whether to clear it depends on the error, so the monitor decides
    /// this (Server Monitoring, "Network or command error during server check").
    #[must_use]
    pub fn after_check(&self, server: ServerDescription) -> Option<Transition> {
        let present = self.server(&server.address)?;
        if TopologyVersion::is_older(server.topology_version, present.topology_version) {
            return None;
        }
        let (address, server_type) = (server.address.clone(), server.server_type);
        let mut transition = self.replace(server);
        // Looks at the new topology rather than at the check, because the topology treats a stale primary, or a server
        // of another set, as unknown.
        let accepted = transition.topology.server(&address).is_some_and(|now| now.server_type == server_type);
        let is_usable = server_type.is_data_bearing()
            || (transition.topology.topology_type() == TopologyType::Single && !server_type.is_unknown());
        if accepted && is_usable {
            transition.preparations.push(Preparation::MarkReady(address));
        }
        Some(transition)
    }

    /// Returns the topology after an application's error ("Error handling pseudocode"). Returns `None` if the error
    /// says nothing new about the topology.
    #[must_use]
    pub fn after_error(&self, error: &ApplicationError) -> Option<Transition> {
        let present = self.server(&error.address)?;
        // The server may have reported a newer state since it sent the error.
        let is_news = TopologyVersion::is_newer(error.topology_version, present.topology_version);
        if error.is_of_older_generation || !is_news {
            return None;
        }
        let address = || error.address.clone();
        let is_load_balanced = self.topology_type() == TopologyType::LoadBalanced;
        let mark_unknown = || {
            if is_load_balanced {
                return Transition::begin(self);
            }
            let unknown = ServerDescription::failed(address(), error.cause.clone());
            self.replace(ServerDescription { topology_version: error.topology_version, ..unknown })
        };
        if let ErrorKind::StateChange(change) = error.kind {
            let mut transition = mark_unknown();
            if change == StateChange::ShuttingDown {
                transition.consequences.push(Consequence::Clear(address()));
            }
            if !is_load_balanced {
                transition.consequences.push(Consequence::Check(address()));
            }
            return Some(transition);
        }
        if !error.concerns_the_connection() || error.is_overload {
            return None;
        }
        let mut transition = mark_unknown();
        transition.consequences.push(Consequence::Clear(address()));
        if !is_load_balanced {
            transition.consequences.push(Consequence::CancelCheck(address()));
        }
        Some(transition)
    }

    /// Returns whether the servers of a `mongodb+srv` name are looked up again while the topology is of this type (Polling
    /// SRV Records).
    #[must_use]
    pub fn is_rescanned(&self) -> bool {
        matches!(self.topology_type(), TopologyType::Unknown | TopologyType::Sharded)
    }

    /// Returns the topology with exactly these servers: all other servers leave, and new servers are unknown. Returns
    /// `None` if nothing changes, or the topology is not [rescanned](Self::is_rescanned).
    #[must_use]
    pub fn after_rescan(&self, servers: &[ServerAddress]) -> Option<Transition> {
        if !self.is_rescanned() || servers.is_empty() {
            return None;
        }
        let mut step = Transition::begin(self);
        step.keep_only(servers.iter());
        step.add(servers.iter());
        if step.preparations.is_empty() {
            return None;
        }
        step.topology.conclude();
        Some(step)
    }

    /// Replaces one server's description and updates the topology accordingly ("TopologyType table").
    fn replace(&self, server: ServerDescription) -> Transition {
        let mut step = Transition::begin(self);
        step.put(server.clone());
        match step.topology.topology_type() {
            TopologyType::Single => step.verify_set_name(&server),
            TopologyType::LoadBalanced => {}
            TopologyType::Unknown => step.in_unknown(&server),
            TopologyType::Sharded => step.in_sharded(&server),
            TopologyType::ReplicaSetNoPrimary => step.without_primary(&server),
            TopologyType::ReplicaSetWithPrimary => step.with_primary(&server),
        }
        step.topology.conclude();
        step
    }
}

impl Transition {
    fn begin(from: &TopologyDescription) -> Self {
        Self { topology: from.clone(), preparations: Vec::new(), consequences: Vec::new() }
    }

    fn in_unknown(&mut self, server: &ServerDescription) {
        match server.server_type {
            // A rescan may have added servers to the single seed.
            ServerType::Standalone if self.topology.has_one_seed() && self.topology.servers().count() == 1 => {
                self.topology.set_type(TopologyType::Single)
            }
            ServerType::Standalone => {
                self.leave_out(&server.address, "it is a standalone server, and there are several hosts")
            }
            ServerType::Mongos => self.topology.set_type(TopologyType::Sharded),
            ServerType::RsPrimary => self.update_from_primary(server),
            ServerType::RsSecondary | ServerType::RsArbiter | ServerType::RsOther => {
                self.topology.set_type(TopologyType::ReplicaSetNoPrimary);
                self.update_without_primary(server);
            }
            // A load balancer is never checked.
            ServerType::RsGhost | ServerType::Unknown | ServerType::LoadBalancer => {}
        }
    }

    fn in_sharded(&mut self, server: &ServerDescription) {
        if server.server_type != ServerType::Mongos && !server.server_type.is_unknown() {
            self.leave_out(&server.address, "it is not a mongos, unlike the first server");
        }
    }

    /// Marks a server as unknown if it does not belong to the requested replica set ("Verifying setName with
    /// TopologyType Single").
    fn verify_set_name(&mut self, server: &ServerDescription) {
        let Some(asked) = self.topology.set_name() else { return };
        if server.server_type.is_unknown() || server.set_name.as_deref() == Some(asked) {
            return;
        }
        let error = format!("the server {}", of_other_set(server, asked));
        self.mark_unknown(&server.address, error);
    }

    pub(super) fn put(&mut self, server: ServerDescription) {
        self.topology.put(Arc::new(server));
    }

    /// Replaces a server's description with a default description that holds an error.
    pub(super) fn mark_unknown(&mut self, address: &ServerAddress, error: String) {
        let error: Box<dyn std::error::Error + Send + Sync> = error.into();
        self.put(ServerDescription::failed(address.clone(), Cause::from(error)));
    }

    /// Returns the addresses that are not in the topology yet, without duplicates.
    pub(super) fn new_ones<'a>(&self, addresses: impl Iterator<Item = &'a ServerAddress>) -> Vec<ServerAddress> {
        let mut present: HashSet<&ServerAddress> = self.topology.servers().map(|server| &server.address).collect();
        addresses.filter(|address| present.insert(address)).cloned().collect()
    }

    /// Adds the servers that are not in the topology yet.
    pub(super) fn add<'a>(&mut self, addresses: impl Iterator<Item = &'a ServerAddress>) {
        for address in self.new_ones(addresses) {
            self.topology.push(Arc::new(ServerDescription::unknown(address.clone())));
            self.preparations.push(Preparation::Added(address));
        }
    }

    /// Removes all servers except those at these addresses.
    pub(super) fn keep_only<'a>(&mut self, addresses: impl Iterator<Item = &'a ServerAddress>) {
        let kept: HashSet<&ServerAddress> = addresses.collect();
        let gone = self.topology.take_out(|address| kept.contains(address));
        self.preparations.extend(gone.into_iter().map(Preparation::Removed));
    }

    /// Removes a server that does not belong to the deployment. Records the reason, which errors from server selection
    /// then report.
    pub(super) fn leave_out(&mut self, address: &ServerAddress, reason: &str) {
        self.topology.set_left_out(Some(format!("{address} is left out: {reason}").into()));
        self.remove(address);
    }

    pub(super) fn remove(&mut self, address: &ServerAddress) {
        let gone = self.topology.take_out(|other| other != address);
        self.preparations.extend(gone.into_iter().map(Preparation::Removed));
    }
}

/// Describes the replica set that a server belongs to, if it is not the requested set.
pub(super) fn of_other_set(server: &ServerDescription, asked: &str) -> String {
    match &server.set_name {
        Some(found) => format!("belongs to the replica set {found:?}, but replicaSet is {asked:?}"),
        None => format!("belongs to no replica set, but replicaSet is {asked:?}"),
    }
}
