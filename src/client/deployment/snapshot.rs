//! The client's knowledge of a deployment at one moment.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::server::{Member, Selected, Server};
use crate::client::selection::{self, Access};
use crate::client::topology::{ServerDescription, ServerType, TopologyDescription, TopologyType};
use crate::endpoint::options::{InvalidOption, ServerAddress};
use crate::endpoint::wire::DEFAULT_MAX_MESSAGE_SIZE;
use crate::pool::runtime::random_number;

/// A topology description with the servers that belong to it.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) topology: TopologyDescription,
    /// One member for each server in the description, in the same order. `None` until the deployment has started, or if
    /// the options cannot be used with the server's address.
    members: Vec<Option<Arc<Member>>>,
    /// The index of the only server that writes can go to, if there is one and all servers are compatible.
    writable: Option<usize>,
}

impl Snapshot {
    pub(super) fn new(topology: TopologyDescription, members: Vec<Option<Arc<Member>>>) -> Self {
        debug_assert_eq!(topology.servers().count(), members.len(), "one member for each server");
        let topology_type = topology.topology_type();
        let mut usable = topology.servers().enumerate().filter(|(_, server)| match topology_type {
            TopologyType::ReplicaSetWithPrimary => server.server_type == ServerType::RsPrimary,
            TopologyType::Single | TopologyType::Sharded | TopologyType::LoadBalanced => {
                !server.server_type.is_unknown()
            }
            TopologyType::ReplicaSetNoPrimary | TopologyType::Unknown => false,
        });
        let writable = match (usable.next(), usable.next()) {
            (Some((only, _)), None) if topology.incompatibility().is_none() => Some(only),
            _ => None,
        };
        drop(usable);
        Self { topology, members, writable }
    }

    /// Returns the members, in the order of the description's servers.
    pub(super) fn members(&self) -> &[Option<Arc<Member>>] {
        &self.members
    }

    /// Returns the descriptions of the servers, with their members.
    pub(crate) fn servers(&self) -> impl Iterator<Item = (&ServerDescription, Option<&Member>)> {
        self.topology.servers().zip(self.members.iter().map(Option::as_deref))
    }

    /// Returns the maximum numbers of statements and bytes in a write command (`maxWriteBatchSize`,
    /// `maxMessageSizeBytes`). These are the limits of the server that writes go to. Unless there is exactly one such
    /// server, the limits are low enough for all known servers.
    pub(crate) fn write_limits(&self) -> (usize, usize) {
        self.may_be_written().fold((100_000, DEFAULT_MAX_MESSAGE_SIZE as usize), |(statements, bytes), server| {
            (statements.min(server.max_write_batch_size as usize), bytes.min(server.max_message_size as usize))
        })
    }

    /// Returns the maximum wire version of the server that writes go to. Unless there is exactly one such server,
    /// returns the newest version that all known servers support. Returns `None` if no server's version is known, for
    /// instance behind a load balancer.
    pub(crate) fn write_wire_version(&self) -> Option<i32> {
        let known = self.may_be_written().filter(|server| server.server_type != ServerType::LoadBalancer);
        known.map(|server| server.max_wire_version).min()
    }

    /// Returns the server that writes go to, or all known servers unless there is exactly one such server.
    fn may_be_written(&self) -> impl Iterator<Item = &ServerDescription> {
        let known = self.topology.servers().enumerate().filter(|(place, server)| match self.writable {
            Some(writable) => *place == writable,
            None => server.server_type.is_data_bearing(),
        });
        known.map(|(_, server)| server)
    }

    /// Returns the members by their addresses.
    pub(super) fn by_address(&self) -> HashMap<&ServerAddress, Arc<Member>> {
        self.members.iter().flatten().map(|member| (&member.server.address, member.clone())).collect()
    }

    pub(super) fn member(&self, address: &ServerAddress) -> Option<&Arc<Member>> {
        let place = self.topology.servers().position(|server| server.address == *address)?;
        self.members[place].as_ref()
    }

    /// Returns whether the snapshot holds exactly this server, and not another server at the same address.
    pub(super) fn has(&self, server: &Server) -> bool {
        self.member(&server.address).is_some_and(|member| std::ptr::eq(&*member.server, server))
    }

    /// Selects the server at an address, if it is known.
    pub(super) fn select_at(&self, address: &ServerAddress) -> Option<Selected> {
        let is_known = self.topology.server(address).is_some_and(|server| !server.server_type.is_unknown());
        self.member(address).filter(|_| is_known).map(|member| member.select())
    }

    /// Selects the only server that writes can go to, if that is the server the request needs. This is the usual case,
    /// and needs neither an allocation nor a random number.
    #[inline]
    pub(super) fn select_writable(&self, access: Access<'_>) -> Option<Selected> {
        let by_primary = match access {
            Access::Write => true,
            Access::Read(preference) | Access::Output(preference) => preference.is_default(),
        };
        let place = self.writable.filter(|_| by_primary)?;
        self.members[place].as_deref().map(Member::select)
    }

    /// Selects a server, if one is suitable. `local_threshold` and `heartbeat_frequency` come from the options.
    ///
    /// # Errors
    ///
    /// The same as for [`selection::suitable`].
    pub(super) fn select(
        &self,
        access: Access<'_>,
        deprioritized: &[ServerAddress],
        local_threshold: Duration,
        heartbeat_frequency: Duration,
    ) -> Result<Option<Selected>, InvalidOption> {
        if let Some(selected) = self.select_writable(access) {
            return Ok(Some(selected));
        }
        let suitable = selection::suitable(&self.topology, access, deprioritized, heartbeat_frequency)?;
        let candidates = selection::in_window(&suitable, local_threshold);
        let member_of = |server: &ServerDescription| self.member(&server.address);
        let chosen = selection::choose(&candidates, random_number(), |server| {
            member_of(server).map_or(0, |member| member.operation_count())
        });
        Ok(chosen.and_then(member_of).map(|member| member.select()))
    }
}
