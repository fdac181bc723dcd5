//! Measures round trips on a separate connection (Server Monitoring, "Measuring RTT").

use std::time::Duration;

use arc_swap::ArcSwap;
use bson::rawdoc;
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::check::Failure;
use super::super::state::Monitored;
use super::run_hello;
use crate::endpoint::{DirectConnection, Endpoint};
use crate::pool::runtime::alarm;

/// Measures a round trip every `heartbeatFrequencyMS` while the monitor streams, and immediately if the server becomes
/// known without a round-trip time. Failures are ignored, because the monitor also notices them.
pub(super) async fn keep_measuring(
    monitored: &Monitored,
    probe: &ArcSwap<Endpoint>,
    mut streaming: watch::Receiver<bool>,
) {
    // The sender belongs to the monitor, which stops together with this future.
    while streaming.wait_for(|on| *on).await.is_ok() {
        tokio::select! {
            // This is polled first, because a failed check stops the streaming.
            biased;
            _ = streaming.wait_for(|on| !*on) => {}
            () = measure(monitored, probe) => {}
        }
    }
}

async fn measure(monitored: &Monitored, probe: &ArcSwap<Endpoint>) {
    let mut connection = None;
    loop {
        let probe = probe.load_full();
        match ping(&probe, &mut connection).await {
            Ok(round_trip) => monitored.deployment.measured(monitored, round_trip),
            Err(_) => connection = None,
        }
        tokio::select! {
            () = alarm(probe.options().heartbeat_interval()) => {}
            () = monitored.server.control.measure.notified() => {}
        }
    }
}

/// Measures one round trip. The hello in the handshake of a new connection counts as a measurement.
async fn ping(probe: &Endpoint, connection: &mut Option<DirectConnection>) -> Result<Duration, Failure> {
    let Some(connection) = connection else {
        let (opened, took) = probe.probe().await?;
        *connection = Some(opened);
        return Ok(took);
    };
    let hello = match connection.hello().hello_ok || probe.options().server_api.is_some() {
        true => rawdoc! { "hello": 1, "helloOk": true },
        false => rawdoc! { "isMaster": 1, "helloOk": true },
    };
    let start = Instant::now();
    run_hello(connection, &hello, probe.options().connect_timeout).await?;
    Ok(start.elapsed())
}
