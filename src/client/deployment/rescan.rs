//! Looks up the servers of a `mongodb+srv` name, once at the start and then periodically (Polling SRV Records for
//! mongos Discovery).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::state::{Deployment, SrvPolling};
use crate::client::topology::TopologyDescription;
use crate::endpoint::options::{SHORTEST_HEARTBEAT, ServerAddress};
use crate::endpoint::{ResolveError, SHORTEST_RESCAN, choose, resolve_again, resolve_first};
use crate::pool::runtime::alarm;
use crate::text::printable::PrintableError;

/// Keeps looking up the servers until the deployment is closed, or its type needs no more lookups.
///
/// # Cancel safety
///
/// Dropping the future cancels the lookup. It also drops the [`SrvPolling`], so the next operation restarts the
/// deployment's tasks.
pub(super) async fn run(polling: SrvPolling) {
    let deployment = &polling.deployment;
    tokio::select! {
        biased;
        () = deployment.srv_control.ended() => {}
        () = keep_scanning(deployment) => {}
    }
    polling.forget();
}

async fn keep_scanning(deployment: &Arc<Deployment>) {
    let mut interval = match deployment.is_resolved() {
        // The application resolved the name, or an earlier task did so on a different runtime.
        true => SHORTEST_RESCAN,
        false => resolve(deployment).await,
    };
    loop {
        alarm(interval).await;
        if !deployment.snapshot().topology.is_rescanned() {
            return;
        }
        interval = deployment.resolve_again().await;
    }
}

impl Deployment {
    /// Looks the servers up for the first time. Returns the time until the next lookup.
    ///
    /// # Errors
    ///
    /// [`ResolveError`] if the lookup fails, or if its result contradicts the options.
    pub(super) async fn resolve(self: &Arc<Self>) -> Result<Duration, ResolveError> {
        let (options, valid_for) = resolve_first(self.options().as_ref().clone(), self.resolver.as_ref()).await?;
        self.settle(options)?;
        Ok(valid_for.max(SHORTEST_RESCAN))
    }

    /// Looks the servers up again, and applies the result. Returns the time until the next lookup.
    pub(super) async fn resolve_again(self: &Arc<Self>) -> Duration {
        let options = self.options();
        match resolve_again(options, self.resolver.as_ref()).await {
            Ok((found, valid_for)) => {
                let most = options.srv.as_ref().map_or(0, |name| name.max_hosts);
                self.rescanned(&found, most);
                valid_for.max(SHORTEST_RESCAN)
            }
            Err(error) => {
                let error = PrintableError(&error);
                tracing::warn!(target: "wharf::topology", %error, "SRV records could not be read again");
                options.heartbeat_interval()
            }
        }
    }
}

/// Looks the servers up for the first time, and returns the time until the next lookup.
async fn resolve(deployment: &Arc<Deployment>) -> Duration {
    let pause = deployment.options().heartbeat_interval();
    let control = &deployment.srv_control;
    loop {
        control.set_checking(true);
        match deployment.resolve().await {
            Ok(interval) => return interval,
            Err(error) => {
                control.set_checking(false);
                deployment.unresolved(error);
            }
        }
        // Waiting operations request another lookup in the same way as they request server checks.
        let floor = Instant::now() + SHORTEST_HEARTBEAT;
        tokio::select! {
            () = alarm(pause) => {}
            () = control.check.notified() => sleep_until(floor).await,
        }
    }
}

/// Returns the servers for the topology: current servers that were found again, and as many new servers as
/// `srvMaxHosts` allows (`most`; 0 means all).
pub(super) fn servers_after(topology: &TopologyDescription, found: &[ServerAddress], most: u32) -> Vec<ServerAddress> {
    let present: HashSet<_> = topology.servers().map(|server| &server.address).collect();
    let (mut servers, mut new): (Vec<_>, Vec<_>) = found.iter().cloned().partition(|address| present.contains(address));
    if most > 0 {
        let room = most.saturating_sub(u32::try_from(servers.len()).unwrap_or(u32::MAX));
        match room {
            0 => new.clear(),
            room => choose(&mut new, room),
        }
    }
    servers.append(&mut new);
    servers
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::topology::TopologyType;

    fn addresses(ports: &[u16]) -> Vec<ServerAddress> {
        ports.iter().map(|port| ServerAddress::parse(&format!("a:{port}")).unwrap()).collect()
    }

    /// The specification's prose tests 1 to 5 and 10 to 12: the first records, later records, `srvMaxHosts`, and the
    /// number of servers afterwards.
    #[test]
    fn servers_follow_the_records() {
        for (before, found, most, expected) in [
            (&[17, 18][..], &[17, 18, 19][..], 0, 3),
            (&[17, 18], &[17], 0, 1),
            (&[17, 18], &[17, 19], 0, 2),
            (&[17, 18], &[19], 0, 1),
            (&[17, 18], &[19, 20], 0, 2),
            (&[17, 18], &[17, 19, 20], 0, 3),
            (&[17, 18], &[19, 20], 2, 2),
            (&[17, 18], &[17, 19, 20], 2, 2),
        ] {
            let topology = TopologyDescription::new(TopologyType::Unknown, None, addresses(before)).unwrap();
            let (before, found) = (addresses(before), addresses(found));
            let servers = servers_after(&topology, &found, most);
            assert_eq!(servers.len(), expected, "{found:?} after {before:?}");
            assert!(servers.iter().all(|server| found.contains(server)), "{servers:?}");
            let stay = found.iter().filter(|server| before.contains(server));
            assert!(stay.into_iter().all(|server| servers.contains(server)), "{servers:?}");
        }
    }
}
