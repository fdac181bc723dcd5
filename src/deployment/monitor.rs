//! The monitor of one server.

use std::sync::Arc;
use std::time::Duration;

use bson::rawdoc;
use tokio::time::{Instant, sleep, timeout};

use super::state::{Resident, now};
use crate::endpoint::{Command, ConnectTimeoutError, DirectConnection, Endpoint};
use crate::error::{Cause, EstablishError};
use crate::topology::ServerDescription;

/// The shortest pause between two checks (`minHeartbeatFrequencyMS`).
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);

/// Checks the server until it leaves the deployment.
pub(super) async fn run(resident: Resident) {
    let (deployment, server) = (&resident.deployment, &resident.server);
    let Some(endpoint) = &server.probe else { return };
    let heartbeat = deployment.options().heartbeat_frequency;
    let mut connection = None;
    while !server.control.has_ended() {
        let was_connected = connection.is_some();
        let start = Instant::now();
        let checked = tokio::select! {
            checked = check(endpoint, &mut connection) => checked,
            () = server.control.cancel.notified() => Err(Failure::cancelled()),
        };
        match checked {
            Ok(description) => {
                let average = server.add_round_trip(start.elapsed());
                let (_, minimum) = server.round_trips();
                deployment.checked(ServerDescription {
                    average_round_trip_time: average,
                    minimum_round_trip_time: minimum,
                    ..description
                });
            }
            Err(failure) => {
                connection = None;
                if !failure.is_cancellation {
                    deployment.check_failed(server, failure.cause, failure.is_timeout);
                    // The server answered before: a restart may have cost only the connection.
                    if was_connected {
                        continue;
                    }
                }
            }
        }
        sleep(SHORTEST_PAUSE).await;
        let _ = timeout(heartbeat.saturating_sub(SHORTEST_PAUSE), server.control.check.notified()).await;
    }
}

/// Checks the server once. The handshake of a new connection counts as an answer.
async fn check(endpoint: &Endpoint, connection: &mut Option<DirectConnection>) -> Result<ServerDescription, Failure> {
    let address = endpoint.server_address().clone();
    let Some(connection) = connection else {
        let opened = connection.insert(endpoint.connect().await?);
        return Ok(ServerDescription::of_reply(address, &opened.hello().document, now()));
    };
    let hello = if connection.hello().hello_ok {
        rawdoc! { "hello": 1 }
    } else {
        rawdoc! { "isMaster": 1 }
    };
    let limit = endpoint.options().connect_timeout;
    let command = Command::new("admin", &hello).timeout(limit).without_max_time();
    match connection.run(command).await {
        Ok(reply) => Ok(ServerDescription::of_reply(address, &reply, now())),
        Err(failure) => {
            Err(Failure { is_timeout: failure.is_timeout(), cause: Arc::new(failure), is_cancellation: false })
        }
    }
}

/// A check that failed.
struct Failure {
    is_timeout: bool,
    is_cancellation: bool,
    cause: Cause,
}

impl Failure {
    fn cancelled() -> Self {
        Self { is_timeout: false, is_cancellation: true, cause: Arc::new(Cancelled) }
    }
}

/// The check was cancelled, because an operation found that the server cannot be reached.
#[derive(Debug, thiserror::Error)]
#[error("the check of the server was cancelled")]
struct Cancelled;

impl From<EstablishError> for Failure {
    fn from(error: EstablishError) -> Self {
        let source = error.cause().downcast_ref::<std::io::Error>();
        let of_network = source.is_some_and(|source| source.kind() == std::io::ErrorKind::TimedOut);
        let is_timeout = of_network || error.cause().is::<ConnectTimeoutError>();
        Self { is_timeout, cause: Arc::new(error), is_cancellation: false }
    }
}
