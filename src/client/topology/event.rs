//! Monitoring events (SDAM Logging and Monitoring), and the events that follow from a transition.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bson::RawDocumentBuf;
use bson::oid::ObjectId;

use super::description::{TopologyDescription, is_equivalent};
use super::server::ServerDescription;
use super::view::{ServerView, TopologyView};
use crate::endpoint::options::ServerAddress;
use crate::pool::error::Cause;

/// An event from a client's monitoring (SDAM Logging and Monitoring, "Events API").
///
/// The names come from the specification. `topology_id` distinguishes the clients of a process. The events of one
/// client arrive one after another: [`TopologyOpening`](Self::TopologyOpening) is the first, and
/// [`TopologyClosed`](Self::TopologyClosed) the last. Each [`ServerHeartbeatStarted`](Self::ServerHeartbeatStarted) is
/// followed by a success or a failure for the same server.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[doc(alias = "SdamEvent")]
pub enum TopologyEvent {
    /// `TopologyOpeningEvent`: the client is used for the first time.
    #[non_exhaustive]
    TopologyOpening {
        /// The client's topology.
        topology_id: ObjectId,
    },
    /// `TopologyClosedEvent`: the client is shut down.
    #[non_exhaustive]
    TopologyClosed {
        /// The client's topology.
        topology_id: ObjectId,
    },
    /// `TopologyDescriptionChangedEvent`: the client's description of the deployment changed.
    #[non_exhaustive]
    TopologyDescriptionChanged {
        /// The client's topology.
        topology_id: ObjectId,
        /// The description before the change.
        previous: TopologyView,
        /// The description after the change.
        new: TopologyView,
    },
    /// `ServerOpeningEvent`: a server joined the topology. The server is not monitored yet.
    #[non_exhaustive]
    ServerOpening {
        /// The client's topology.
        topology_id: ObjectId,
        /// The server, `host:port`.
        address: Arc<str>,
    },
    /// `ServerClosedEvent`: a server left the topology.
    #[non_exhaustive]
    ServerClosed {
        /// The client's topology.
        topology_id: ObjectId,
        /// The server, `host:port`.
        address: Arc<str>,
    },
    /// `ServerDescriptionChangedEvent`: the client's description of a server changed, apart from round-trip times.
    #[non_exhaustive]
    ServerDescriptionChanged {
        /// The client's topology.
        topology_id: ObjectId,
        /// The server, `host:port`.
        address: Arc<str>,
        /// The description before the change.
        previous: ServerView,
        /// The description after the change.
        new: ServerView,
    },
    /// `ServerHeartbeatStartedEvent`: a server's monitor begins a check. If the check opens a connection, the event
    /// precedes the creation of its socket.
    #[non_exhaustive]
    ServerHeartbeatStarted {
        /// The client's topology.
        topology_id: ObjectId,
        /// The connection of the check.
        connection: HeartbeatConnection,
        /// Whether the server is allowed to delay its reply until its state changes.
        awaited: bool,
    },
    /// `ServerHeartbeatSucceededEvent`: a server answered a check.
    #[non_exhaustive]
    ServerHeartbeatSucceeded {
        /// The client's topology.
        topology_id: ObjectId,
        /// The connection of the check.
        connection: HeartbeatConnection,
        /// Whether the server may have delayed its reply. Otherwise `duration` is the round-trip time.
        awaited: bool,
        /// How long the hello took. For a check that opened a connection, this does not include the time to open it.
        duration: Duration,
        /// The server's reply.
        reply: Arc<RawDocumentBuf>,
    },
    /// `ServerHeartbeatFailedEvent`: a check failed, or was cancelled.
    #[non_exhaustive]
    ServerHeartbeatFailed {
        /// The client's topology.
        topology_id: ObjectId,
        /// The connection of the check.
        connection: HeartbeatConnection,
        /// Whether the server could have delayed its reply.
        awaited: bool,
        /// The time since the start of the check.
        duration: Duration,
        /// Why the check failed.
        failure: Cause,
    },
}

/// The connection of a monitor, in an event about a check.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeartbeatConnection {
    /// The server, `host:port`.
    pub address: Arc<str>,
    /// The connection's number among the connections of the server's monitor: 1, 2, 3 and so on.
    pub connection_id: u64,
    /// The server's number for the connection, if the server has reported it.
    pub server_connection_id: Option<i64>,
}

impl TopologyEvent {
    /// Returns the event's name in the specification, without the trailing "Event".
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::TopologyOpening { .. } => "TopologyOpening",
            Self::TopologyClosed { .. } => "TopologyClosed",
            Self::TopologyDescriptionChanged { .. } => "TopologyDescriptionChanged",
            Self::ServerOpening { .. } => "ServerOpening",
            Self::ServerClosed { .. } => "ServerClosed",
            Self::ServerDescriptionChanged { .. } => "ServerDescriptionChanged",
            Self::ServerHeartbeatStarted { .. } => "ServerHeartbeatStarted",
            Self::ServerHeartbeatSucceeded { .. } => "ServerHeartbeatSucceeded",
            Self::ServerHeartbeatFailed { .. } => "ServerHeartbeatFailed",
        }
    }

    /// Returns the client's topology.
    #[must_use]
    pub fn topology_id(&self) -> ObjectId {
        match self {
            Self::TopologyOpening { topology_id }
            | Self::TopologyClosed { topology_id }
            | Self::TopologyDescriptionChanged { topology_id, .. }
            | Self::ServerOpening { topology_id, .. }
            | Self::ServerClosed { topology_id, .. }
            | Self::ServerDescriptionChanged { topology_id, .. }
            | Self::ServerHeartbeatStarted { topology_id, .. }
            | Self::ServerHeartbeatSucceeded { topology_id, .. }
            | Self::ServerHeartbeatFailed { topology_id, .. } => *topology_id,
        }
    }

    /// Returns the server, `host:port`, if the event is about a server.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        match self {
            Self::TopologyOpening { .. } | Self::TopologyClosed { .. } | Self::TopologyDescriptionChanged { .. } => {
                None
            }
            Self::ServerOpening { address, .. }
            | Self::ServerClosed { address, .. }
            | Self::ServerDescriptionChanged { address, .. } => Some(address),
            Self::ServerHeartbeatStarted { connection, .. }
            | Self::ServerHeartbeatSucceeded { connection, .. }
            | Self::ServerHeartbeatFailed { connection, .. } => Some(&connection.address),
        }
    }
}

/// Returns the events for opening a topology with this description, in the order of the specification's tests.
///
/// Every server starts out unknown. A load balancer, which is never checked, becomes known immediately afterwards (Load
/// Balancers, "Monitoring").
#[must_use]
pub fn events_of_opening(topology_id: ObjectId, topology: &TopologyDescription) -> Vec<TopologyEvent> {
    let initial = topology.with_unknown_servers();
    let mut events = vec![TopologyEvent::TopologyOpening { topology_id }];
    events.extend(topology_changed(topology_id, &TopologyDescription::without_servers(), &initial));
    let opening =
        |server: &ServerDescription| TopologyEvent::ServerOpening { topology_id, address: server.address.text.clone() };
    events.extend(initial.servers().map(opening));
    events.extend(events_of_change(topology_id, &initial, topology));
    events
}

/// Returns the events for a change from one topology to the next, in the order of the specification's tests.
#[must_use]
pub fn events_of_change(
    topology_id: ObjectId,
    before: &TopologyDescription,
    after: &TopologyDescription,
) -> Vec<TopologyEvent> {
    fn by_address(topology: &TopologyDescription) -> HashMap<&ServerAddress, &Arc<ServerDescription>> {
        topology.shared_servers().iter().map(|server| (&server.address, server)).collect()
    }
    let (earlier, now) = (by_address(before), by_address(after));
    let mut events = Vec::new();
    for server in before.shared_servers() {
        match now.get(&server.address) {
            Some(now) if is_equivalent(server, now) => {}
            Some(now) => events.push(description_changed(topology_id, server, now)),
            None => {}
        }
    }
    for server in before.servers().filter(|server| !now.contains_key(&server.address)) {
        events.push(TopologyEvent::ServerClosed { topology_id, address: server.address.text.clone() });
    }
    for server in after.servers().filter(|server| !earlier.contains_key(&server.address)) {
        events.push(TopologyEvent::ServerOpening { topology_id, address: server.address.text.clone() });
    }
    events.extend(topology_changed(topology_id, before, after));
    events
}

fn topology_changed(
    topology_id: ObjectId,
    before: &TopologyDescription,
    after: &TopologyDescription,
) -> Option<TopologyEvent> {
    if before.is_equivalent(after) {
        return None;
    }
    let view = |topology: &TopologyDescription| TopologyView(Arc::new(topology.clone()));
    Some(TopologyEvent::TopologyDescriptionChanged { topology_id, previous: view(before), new: view(after) })
}

fn description_changed(
    topology_id: ObjectId,
    previous: &Arc<ServerDescription>,
    new: &Arc<ServerDescription>,
) -> TopologyEvent {
    TopologyEvent::ServerDescriptionChanged {
        topology_id,
        address: new.address.text.clone(),
        previous: ServerView(previous.clone()),
        new: ServerView(new.clone()),
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;
    use crate::client::topology::TopologyType;
    use crate::endpoint::options::ServerAddress;

    #[test]
    fn repeated_outcomes_of_checks_are_no_news_while_a_member_names_a_primary_that_is_down() {
        let [secondary, primary] = ["a:1", "b:1"].map(|address| ServerAddress::parse(address).unwrap());
        let reply = rawdoc! {
            "ok": 1, "setName": "rs", "secondary": true, "hosts": ["a:1", "b:1"], "primary": "b:1",
            "minWireVersion": 0, "maxWireVersion": 21,
        };
        let answered = || ServerDescription::of_reply(secondary.clone(), &reply, std::time::Instant::now());
        let refused = || ServerDescription::failed(primary.clone(), Arc::new(std::io::Error::other("refused")));
        let seeds = [secondary.clone(), primary.clone()];
        let mut topology = TopologyDescription::new(TopologyType::ReplicaSetNoPrimary, None, seeds).unwrap();
        let mut news: Vec<Vec<_>> = Vec::new();
        for outcome in [answered(), refused(), answered(), refused()] {
            let after = topology.after_check(outcome).unwrap().topology;
            news.push(events_of_change(ObjectId::new(), &topology, &after).iter().map(TopologyEvent::name).collect());
            topology = after;
        }
        let changed = vec!["ServerDescriptionChanged", "TopologyDescriptionChanged"];
        assert_eq!(news, [changed.clone(), changed, Vec::new(), Vec::new()]);
    }
}
