//! From one topology description to the next.

use std::sync::Arc;

use super::description::{TopologyDescription, TopologyType};
use super::error::{ApplicationError, ErrorKind};
use super::server::{ServerDescription, ServerType};
use super::version::TopologyVersion;
use crate::error::Cause;
use crate::options::ServerAddress;
use crate::wire::reply::StateChange;

/// What a transition asks of its caller, in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// The server belongs to the topology from now on: start to monitor it.
    Added(ServerAddress),
    /// The server does not belong to the topology any more: stop monitoring it, and close its pool.
    Removed(ServerAddress),
    /// Mark the server's pool ready, and create it first if there is none.
    MarkReady(ServerAddress),
    /// Clear the server's pool; behind a load balancer, clear the service of the connection that failed.
    Clear(ServerAddress),
    /// Check the server at once.
    Check(ServerAddress),
    /// Cancel the check that is under way.
    CancelCheck(ServerAddress),
}

/// A topology description that replaces another one.
#[derive(Debug, Clone)]
pub struct Transition {
    /// The new description.
    pub topology: TopologyDescription,
    /// What the caller has to do, under the lock under which it replaces the description.
    pub effects: Vec<Effect>,
}

impl TopologyDescription {
    /// The topology after a check of one server. `None` if the outcome counts for nothing: the server does not belong to
    /// the topology any more, or something newer than the reply is known (its `topologyVersion` is older).
    ///
    /// A failed check does not clear the pool here: the monitor decides that, because it depends on the error (Server
    /// Monitoring, "Network or command error during server check").
    #[must_use]
    pub fn after_check(&self, server: ServerDescription) -> Option<Transition> {
        let present = self.server(&server.address)?;
        if TopologyVersion::is_older(server.topology_version, present.topology_version) {
            return None;
        }
        let (address, server_type) = (server.address.clone(), server.server_type);
        let mut transition = self.replace(server);
        // Not what the check showed, but what became of it: a stale primary, or a server of another set, is unknown.
        let accepted = transition.topology.server(&address).is_some_and(|now| now.server_type == server_type);
        let is_usable = server_type.is_data_bearing()
            || (transition.topology.topology_type() == TopologyType::Single && !server_type.is_unknown());
        if accepted && is_usable {
            transition.effects.push(Effect::MarkReady(address));
        }
        Some(transition)
    }

    /// The topology after an error that an application met ("Error handling pseudocode"). `None` if the error says nothing
    /// about the topology, or only what is known.
    #[must_use]
    pub fn after_error(&self, error: &ApplicationError) -> Option<Transition> {
        let present = self.server(&error.address)?;
        // The server may have told its present state after it made the error.
        let is_news = TopologyVersion::is_newer(error.topology_version, present.topology_version);
        if error.is_of_older_generation || !is_news {
            return None;
        }
        let address = || error.address.clone();
        let is_load_balanced = self.topology_type() == TopologyType::LoadBalanced;
        let mark_unknown = || {
            if is_load_balanced {
                return Transition { topology: self.clone(), effects: Vec::new() };
            }
            let unknown = ServerDescription::failed(address(), error.cause.clone());
            self.replace(ServerDescription { topology_version: error.topology_version, ..unknown })
        };
        if let ErrorKind::StateChange(change) = error.kind {
            let mut transition = mark_unknown();
            if change == StateChange::ShuttingDown {
                transition.effects.push(Effect::Clear(address()));
            }
            if !is_load_balanced {
                transition.effects.push(Effect::Check(address()));
            }
            return Some(transition);
        }
        if !error.concerns_the_connection() || error.is_overload {
            return None;
        }
        let mut transition = mark_unknown();
        transition.effects.push(Effect::Clear(address()));
        if !is_load_balanced {
            transition.effects.push(Effect::CancelCheck(address()));
        }
        Some(transition)
    }

    /// Replaces one server's description, and draws the conclusions ("TopologyType table").
    fn replace(&self, server: ServerDescription) -> Transition {
        let mut step = Step { topology: self.clone(), effects: Vec::new() };
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
        Transition { topology: step.topology, effects: step.effects }
    }
}

/// A transition in the making.
pub(super) struct Step {
    pub(super) topology: TopologyDescription,
    pub(super) effects: Vec<Effect>,
}

impl Step {
    fn in_unknown(&mut self, server: &ServerDescription) {
        match server.server_type {
            ServerType::Standalone if self.topology.has_one_seed() => self.topology.set_type(TopologyType::Single),
            ServerType::Standalone => self.remove(&server.address),
            ServerType::Mongos => self.topology.set_type(TopologyType::Sharded),
            ServerType::RsPrimary => self.update_from_primary(server),
            ServerType::RsSecondary | ServerType::RsArbiter | ServerType::RsOther => {
                self.topology.set_type(TopologyType::ReplicaSetNoPrimary);
                self.update_without_primary(server);
            }
            // A load balancer is never checked.
            ServerType::RsGhost | ServerType::Unknown | ServerType::PossiblePrimary | ServerType::LoadBalancer => {}
        }
    }

    fn in_sharded(&mut self, server: &ServerDescription) {
        if server.server_type != ServerType::Mongos && !server.server_type.is_unknown() {
            self.remove(&server.address);
        }
    }

    /// Replaces the description of a server of another replica set than the one asked for ("Verifying setName with
    /// TopologyType Single").
    fn verify_set_name(&mut self, server: &ServerDescription) {
        let Some(asked) = self.topology.set_name() else { return };
        if server.server_type.is_unknown() || server.set_name.as_deref() == Some(asked) {
            return;
        }
        let error = match &server.set_name {
            Some(found) => format!("the server belongs to the replica set {found:?}, and replicaSet is {asked:?}"),
            None => format!("the server belongs to no replica set, and replicaSet is {asked:?}"),
        };
        self.mark_unknown(&server.address, error);
    }

    pub(super) fn put(&mut self, server: ServerDescription) {
        self.topology.put(Arc::new(server));
    }

    /// Replaces a server's description by a default one with an error.
    pub(super) fn mark_unknown(&mut self, address: &ServerAddress, error: String) {
        let error: Box<dyn std::error::Error + Send + Sync> = error.into();
        self.put(ServerDescription::failed(address.clone(), Cause::from(error)));
    }

    pub(super) fn add(&mut self, address: &ServerAddress) {
        if self.topology.server(address).is_none() {
            self.put(ServerDescription::unknown(address.clone()));
            self.effects.push(Effect::Added(address.clone()));
        }
    }

    pub(super) fn remove(&mut self, address: &ServerAddress) {
        self.topology.take_out(address);
        self.effects.push(Effect::Removed(address.clone()));
    }
}
