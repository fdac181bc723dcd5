//! Logs monitoring events (SDAM Logging and Monitoring, "Log Messages").

use tracing::{Level, debug};

use crate::client::topology::{HeartbeatConnection, TopologyEvent};
use crate::telemetry::{host_and_port, milliseconds};
use crate::text::logged::is_logged;
use crate::text::printable::PrintableError;
use crate::text::shortened::MostLogged;

/// The target of the messages.
const TARGET: &str = "wharf::topology";

/// Returns whether anything reads the messages.
pub(super) fn is_enabled() -> bool {
    is_logged!(TARGET, Level::DEBUG)
}

/// Logs an event at level `DEBUG`, with the specification's message and keys. There is no message for a changed server,
/// because the message for the changed topology says the same.
#[allow(non_snake_case)] // The specification's keys.
pub(super) fn log(event: &TopologyEvent, most_logged: MostLogged) {
    if !is_enabled() {
        return;
    }
    let topologyId = event.topology_id().to_hex();
    let (serverHost, serverPort) = event.address().map(host_and_port).unwrap_or_default();
    let connection = |connection: &HeartbeatConnection| (connection.connection_id, connection.server_connection_id);
    match event {
        TopologyEvent::TopologyOpening { .. } => debug!(target: TARGET, topologyId, "Starting topology monitoring"),
        TopologyEvent::TopologyClosed { .. } => debug!(target: TARGET, topologyId, "Stopped topology monitoring"),
        TopologyEvent::ServerOpening { .. } => {
            debug!(target: TARGET, topologyId, serverHost, serverPort, "Starting server monitoring");
        }
        TopologyEvent::ServerClosed { .. } => {
            debug!(target: TARGET, topologyId, serverHost, serverPort, "Stopped server monitoring");
        }
        TopologyEvent::TopologyDescriptionChanged { previous, new, .. } => debug!(
            target: TARGET,
            topologyId,
            previousDescription = %previous,
            newDescription = %new,
            "Topology description changed"
        ),
        TopologyEvent::ServerDescriptionChanged { .. } => {}
        TopologyEvent::ServerHeartbeatStarted { connection: of, awaited, .. } => {
            let (driverConnectionId, serverConnectionId) = connection(of);
            debug!(
                target: TARGET,
                topologyId,
                serverHost,
                serverPort,
                driverConnectionId,
                serverConnectionId,
                awaited,
                "Server heartbeat started"
            );
        }
        TopologyEvent::ServerHeartbeatSucceeded { connection: of, awaited, duration, reply, .. } => {
            let (driverConnectionId, serverConnectionId) = connection(of);
            debug!(
                target: TARGET,
                topologyId,
                serverHost,
                serverPort,
                driverConnectionId,
                serverConnectionId,
                awaited,
                durationMS = milliseconds(*duration),
                reply = most_logged.json(reply),
                "Server heartbeat succeeded"
            );
        }
        TopologyEvent::ServerHeartbeatFailed { connection: of, awaited, duration, failure, .. } => {
            let (driverConnectionId, serverConnectionId) = connection(of);
            debug!(
                target: TARGET,
                topologyId,
                serverHost,
                serverPort,
                driverConnectionId,
                serverConnectionId,
                awaited,
                durationMS = milliseconds(*duration),
                failure = %PrintableError(failure),
                "Server heartbeat failed"
            );
        }
    }
}
