//! Transitions caused by members of a replica set (SDAM, "Actions").

use super::description::TopologyType;
use super::server::{MOST_MEMBERS, ServerDescription, ServerType};
use super::transition::{Consequence, Transition, of_other_set};
use crate::endpoint::options::ServerAddress;

/// Starting with this wire version (MongoDB 6.0), the comparison of primaries considers `electionId` before
/// `setVersion`.
const ELECTION_FIRST: i32 = 17;

impl Transition {
    /// Applies a server's new description to a topology of type `ReplicaSetNoPrimary`.
    pub(super) fn without_primary(&mut self, server: &ServerDescription) {
        match server.server_type {
            ServerType::Standalone | ServerType::Mongos | ServerType::LoadBalancer => self.leave_out_of_set(server),
            ServerType::RsPrimary => self.update_from_primary(server),
            ServerType::RsSecondary | ServerType::RsArbiter | ServerType::RsOther => {
                self.update_without_primary(server)
            }
            ServerType::RsGhost | ServerType::Unknown => {}
        }
    }

    /// Applies a server's new description to a topology of type `ReplicaSetWithPrimary`.
    pub(super) fn with_primary(&mut self, server: &ServerDescription) {
        match server.server_type {
            ServerType::Standalone | ServerType::Mongos | ServerType::LoadBalancer => {
                self.leave_out_of_set(server);
                self.check_if_has_primary();
            }
            ServerType::RsPrimary => self.update_from_primary(server),
            ServerType::RsSecondary | ServerType::RsArbiter | ServerType::RsOther => self.update_with_primary(server),
            ServerType::RsGhost | ServerType::Unknown => self.check_if_has_primary(),
        }
    }

    /// Implements `updateRSWithoutPrimary`.
    pub(super) fn update_without_primary(&mut self, server: &ServerDescription) {
        if !self.joins_the_set(server) {
            return self.leave_out_of_set(server);
        }
        // A primary's reply replaces the list of members. Without a primary, members' replies could make the list grow
        // forever.
        let new = self.new_ones(server.members()).len();
        if new > 0 && self.topology.servers().count() + new > MOST_MEMBERS {
            let error = format!("the servers report more than {MOST_MEMBERS} members of the replica set together");
            return self.mark_unknown(&server.address, error);
        }
        self.add(server.members());
        if goes_by_another_name(server) {
            self.remove(&server.address);
        }
    }

    /// Implements `updateRSWithPrimaryFromMember`.
    fn update_with_primary(&mut self, server: &ServerDescription) {
        if !self.joins_the_set(server) {
            self.leave_out_of_set(server);
            return self.check_if_has_primary();
        }
        if goes_by_another_name(server) {
            self.remove(&server.address);
            return self.check_if_has_primary();
        }
        self.check_if_has_primary();
    }

    /// Implements `updateRSFromPrimary`.
    pub(super) fn update_from_primary(&mut self, server: &ServerDescription) {
        if !self.joins_the_set(server) {
            self.leave_out_of_set(server);
            return self.check_if_has_primary();
        }
        if let Err(error) = self.topology.note_election(server, server.max_wire_version >= ELECTION_FIRST) {
            self.mark_unknown(&server.address, error);
            return self.check_if_has_primary();
        }
        let is_other_primary =
            |other: &ServerDescription| other.address != server.address && other.server_type == ServerType::RsPrimary;
        let deposed: Vec<ServerAddress> = self
            .topology
            .servers()
            .filter(|other| is_other_primary(other))
            .map(|other| other.address.clone())
            .collect();
        for address in deposed {
            self.mark_unknown(&address, "primary marked stale due to discovery of newer primary".to_owned());
            self.consequences.push(Consequence::Check(address));
        }
        self.add(server.members());
        self.keep_only(server.members());
        self.topology.set_left_out(None);
        self.check_if_has_primary();
    }

    /// Leaves out a server that does not belong to the replica set.
    fn leave_out_of_set(&mut self, server: &ServerDescription) {
        let reason = format!("it {}", of_other_set(server, self.topology.set_name().unwrap_or("not known")));
        self.leave_out(&server.address, &reason);
    }

    /// Implements `checkIfHasPrimary`.
    fn check_if_has_primary(&mut self) {
        self.topology.set_type(match self.topology.primary() {
            Some(_) => TopologyType::ReplicaSetWithPrimary,
            None => TopologyType::ReplicaSetNoPrimary,
        });
    }

    /// Returns whether the server belongs to the replica set. If the name of the set is not known yet, it is taken from
    /// the server.
    fn joins_the_set(&mut self, server: &ServerDescription) -> bool {
        if self.topology.set_name().is_none() {
            self.topology.set_set_name(server.set_name.clone());
        }
        self.topology.set_name() == server.set_name.as_deref()
    }
}

/// Returns whether the replica set's address for the server differs from the client's address for it.
fn goes_by_another_name(server: &ServerDescription) -> bool {
    server.me.as_ref().is_some_and(|me| *me != server.address)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use bson::{RawArrayBuf, rawdoc};

    use super::*;
    use crate::client::topology::TopologyDescription;

    #[test]
    fn members_without_a_primary_do_not_add_to_the_topology_forever() {
        let seed = ServerAddress::parse("a").unwrap();
        let mut topology = TopologyDescription::new(TopologyType::ReplicaSetNoPrimary, None, [seed.clone()]).unwrap();
        for round in 0..20 {
            let hosts: RawArrayBuf = (0..30).map(|host| format!("h{round}-{host}")).collect();
            let reply = rawdoc! { "ok": 1, "setName": "rs", "secondary": true, "hosts": hosts, "maxWireVersion": 21 };
            let described = ServerDescription::of_reply(seed.clone(), &reply, Instant::now());
            topology = topology.after_check(described).unwrap().topology;
        }
        assert_eq!(topology.servers().count(), 1 + 3 * 30);
        let error = topology.server(&seed).unwrap().error.as_ref().unwrap().to_string();
        assert_eq!(error, "the servers report more than 100 members of the replica set together");
    }
}
