//! Scanning: where there are no monitors, operations check the servers themselves (Server Monitoring, "Single-threaded
//! monitoring"; Server Selection, "Single-threaded server selection").
//!
//! A deployment that scans has one connection to each server, in a pool of size one that spawns nothing. Commands and
//! checks share this connection. Opening the connection counts as a check, and so does a hello on it. One future checks
//! all servers concurrently.
//!
//! # When a scan is due
//!
//! | situation | scan |
//! | --- | --- |
//! | first operation | before the selection |
//! | `heartbeatFrequencyMS` have passed since the end of the last scan | before the selection |
//! | a server has replied that it is not primary or is shutting down | before the next selection |
//! | no server is suitable | during the selection: once, or repeatedly with `serverSelectionTryOnce=false` |
//!
//! Scans are at least 500 ms apart. A scan skips a server whose last check failed less than 5 s earlier (`cooldownMS`).
//! The failure of a command does not count as a failed check, so a retry can reach a server that has only lost its
//! connection.
//!
//! A failed authentication does not count either: the server has already replied to the hello, and that reply is the
//! result of the check. If the operation selects the server, its check-out fails with the authentication error. This
//! failure has the same effect as if the pool had failed to open a connection: the server becomes unknown, and the
//! operation is retried. If the operation does not select the server, scans skip the server for 5 s and keep its
//! description, so that the server is not sent the same wrong password twice a second. If the operation's time runs out
//! during an authentication, the check is cut off.
//!
//! A server whose connection has not been used for 5 s (`socketCheckIntervalMS`) is checked before it is used again:
//! when it is selected, and before a cursor's next command. Selection always terminates, because each check counts as a
//! use.
//!
//! # How long a scan takes
//!
//! A check takes at most `connectTimeoutMS`, or twice as long if it fails on an existing connection and then opens a
//! new one.
//!
//! One unresponsive server must not block operations whose `timeoutMS` is shorter than a check can take. A scan
//! therefore ends early once half its time has passed and a suitable server has answered. A check that is cut off, at
//! that point or when the time runs out, counts as failed: the server becomes unknown. For the next 5 s, scans check
//! this server only if no other server is suitable. It is not skipped altogether, because it may merely need more time
//! than the operation had.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::background::Kept;
use super::checker::UseTimes;
use super::selecting::{Demand, SelectionLimit, ServerSelectionError};
use super::selection_log::SelectionLog;
use super::server::{Selected, Server};
use super::state::Deployment;
use crate::client::topology::TopologyType;
use crate::endpoint::options::SHORTEST_HEARTBEAT;
use crate::pool::runtime::{Boxed, within};

/// How long scans skip a server after a failed check (`cooldownMS`).
const COOLDOWN: Duration = Duration::from_secs(5);

/// The state of a deployment's scans.
#[derive(Default)]
pub(super) struct Scanning {
    state: Mutex<State>,
    pub(super) kept: Arc<Kept>,
}

#[derive(Default)]
struct State {
    /// When the last scan ended.
    last: Option<Instant>,
    /// Whether the next selection begins with a scan.
    is_stale: bool,
    /// When to look up the SRV name again.
    look_up_at: Option<Instant>,
}

impl Scanning {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is valid between any two statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next selection begin with a scan.
    pub(super) fn mark_stale(&self) {
        self.lock().is_stale = true;
    }
}

/// A server, and a future that checks it.
type Check = (Arc<Server>, Boxed<'static, ()>);

/// A scan in progress. Dropping it records the end of the scan, even if the operation has run out of time, so that the
/// next operation does not repeat the scan.
struct InProgress<'s>(&'s Scanning);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.last = Some(Instant::now());
        state.is_stale = false;
    }
}

impl Deployment {
    /// Selects a server, scanning before and during selection as necessary.
    ///
    /// # Errors
    ///
    /// [`ServerSelectionError`].
    pub(super) async fn select_by_scan(
        self: &Arc<Self>,
        scanning: &Scanning,
        demand: Demand<'_>,
        deadline: Option<(Instant, Duration)>,
    ) -> Result<Selected, ServerSelectionError> {
        self.start_anew()?;
        let selecting = self.select_in_time(scanning, demand, deadline);
        let Some((at, limit)) = deadline else { return selecting.await };
        // A scan does not outlast the operation's own time limit.
        match within(at, || None, selecting).await {
            Ok(selected) => selected,
            Err(_lapse) => Err(self.not_found_in_time(demand, SelectionLimit { at, limit, name: "timeoutMS" })),
        }
    }

    async fn select_in_time(
        self: &Arc<Self>,
        scanning: &Scanning,
        demand: Demand<'_>,
        deadline: Option<(Instant, Duration)>,
    ) -> Result<Selected, ServerSelectionError> {
        let tries_once = self.options().server_selection_try_once;
        let time = self.selection_limit(deadline);
        let mut has_scanned = false;
        loop {
            if self.is_closed() {
                return Err(ServerSelectionError::Closed);
            }
            if self.is_scan_due(scanning) {
                let ready = scanning.lock().last.map(|last| last + SHORTEST_HEARTBEAT);
                if let (false, Some(ready), Some(time)) = (tries_once, ready, time)
                    && ready > time.at
                {
                    return Err(self.not_found_in_time(demand, time));
                }
                if let Some(ready) = ready {
                    sleep_until(ready).await;
                }
                self.scan(scanning, demand, deadline.map(|(at, _)| at)).await;
                has_scanned = true;
            }
            match self.try_select(&self.snapshot(), demand) {
                Ok(Some(selected)) => {
                    if self.was_long_idle(&selected) {
                        // The check may change the server's description, so select again.
                        self.clone().check(selected.server().clone()).await;
                        continue;
                    }
                    selected.uses.lock().used = Some(Instant::now());
                    return Ok(selected);
                }
                // A scan would not find another server.
                Ok(None) if self.is_balanced() => return Err(self.not_found_at_once(demand)),
                Ok(None) => scanning.mark_stale(),
                Err(error) => {
                    if let ServerSelectionError::Incompatible(_) = error {
                        scanning.mark_stale();
                    }
                    return Err(error);
                }
            }
            let goes_on = !(tries_once && has_scanned);
            if goes_on && demand.wait_logged.is_due() {
                SelectionLog::new(demand).waiting(&self.snapshot().topology, time.map(|time| time.at));
            }
            match time {
                _ if tries_once && has_scanned => return Err(self.not_found_at_once(demand)),
                Some(time) if !tries_once && Instant::now() >= time.at => {
                    return Err(self.not_found_in_time(demand, time));
                }
                _ => {}
            }
        }
    }

    /// Returns whether operations, rather than monitors, check the servers.
    pub(crate) fn scans(&self) -> bool {
        self.scanning().is_some()
    }

    fn is_balanced(&self) -> bool {
        self.snapshot().topology.topology_type() == TopologyType::LoadBalanced
    }

    fn is_scan_due(&self, scanning: &Scanning) -> bool {
        if self.is_balanced() {
            return false;
        }
        let state = scanning.lock();
        let due = state.last.map(|last| last.checked_add(self.options().heartbeat_interval()));
        // A time beyond the clock's range is never reached.
        state.is_stale || due.is_none_or(|due| due.is_some_and(|due| due <= Instant::now()))
    }

    /// Checks all servers concurrently, including any that the checks discover. The scan ends when every server has
    /// answered or failed. Once half the time until `deadline` has passed, the scan ends as soon as a suitable server
    /// has answered.
    async fn scan(self: &Arc<Self>, scanning: &Scanning, demand: Demand<'_>, deadline: Option<Instant>) {
        let _in_progress = InProgress(scanning);
        self.look_up(scanning).await;
        // The lookup may have found a load balancer, which is never checked.
        if self.is_balanced() {
            return;
        }
        let begun = Instant::now();
        let mut half = deadline.map(|at| Box::pin(sleep_until(begun + at.saturating_duration_since(begun) / 2)));
        let mut seen: Vec<Arc<Server>> = Vec::new();
        let mut postponed: Vec<Arc<Server>> = Vec::new();
        let mut checks: Vec<Check> = Vec::new();
        let start = |server: Arc<Server>| -> Check { (server.clone(), Box::pin(self.clone().check(server))) };
        poll_fn(|context| {
            let is_half_over = half.as_mut().is_some_and(|half| half.as_mut().poll(context).is_ready());
            loop {
                let servers: Vec<_> = {
                    let snapshot = self.snapshot();
                    snapshot.members().iter().flatten().map(|member| member.server.clone()).collect()
                };
                for server in servers {
                    if seen.iter().any(|other| Arc::ptr_eq(other, &server)) {
                        continue;
                    }
                    seen.push(server.clone());
                    let UseTimes { failed, cut_off, unauthenticated, .. } = *server.uses.lock();
                    let is_unknown = self.is_unknown(&server);
                    match () {
                        () if !is_unknown && is_recent(unauthenticated, begun) => {}
                        () if is_unknown && is_recent(failed, begun) => {}
                        () if is_unknown && is_recent(cut_off, begun) => postponed.push(server),
                        () => checks.push(start(server)),
                    }
                }
                let before = checks.len();
                checks.retain_mut(|(_, check)| check.as_mut().poll(context).is_pending());
                if checks.is_empty() && before == 0 {
                    if postponed.is_empty() || self.has_suitable(demand, &checks) {
                        return Poll::Ready(());
                    }
                    checks.extend(postponed.drain(..).map(start));
                    continue;
                }
                // Completed checks may have discovered more servers.
                if checks.len() == before {
                    return match is_half_over && self.has_suitable(demand, &checks) {
                        true => Poll::Ready(()),
                        false => Poll::Pending,
                    };
                }
            }
        })
        .await;
        seen.iter().for_each(|server| server.uses.scan_ended(begun));
    }

    /// Returns whether there is a suitable server that is not being checked.
    fn has_suitable(&self, demand: Demand<'_>, checks: &[Check]) -> bool {
        let deprioritized: Vec<_> = checks.iter().map(|(server, _)| server.address.clone()).collect();
        let selected = self.try_select(&self.snapshot(), Demand { deprioritized: &deprioritized, ..demand });
        let is_waited_for = |server: &Arc<Server>| checks.iter().any(|(other, _)| Arc::ptr_eq(other, server));
        matches!(selected, Ok(Some(selected)) if !is_waited_for(selected.server()))
    }

    fn is_unknown(&self, server: &Server) -> bool {
        let snapshot = self.snapshot();
        snapshot.topology.server(&server.address).is_none_or(|server| server.server_type.is_unknown())
    }

    /// Looks up the SRV name for the first time, or again when its records have expired.
    async fn look_up(self: &Arc<Self>, scanning: &Scanning) {
        if self.options().srv.is_none() {
            return;
        }
        let is_due = || scanning.lock().look_up_at.is_none_or(|at| at <= Instant::now());
        let valid_for = if !self.is_resolved() {
            match self.resolve().await {
                Ok(valid_for) => valid_for,
                Err(error) => return self.unresolved(error),
            }
        } else if is_due() && self.snapshot().topology.is_rescanned() {
            self.resolve_again().await
        } else {
            return;
        };
        scanning.lock().look_up_at = Instant::now().checked_add(valid_for);
    }
}

/// Returns whether `time` is less than 5 s before `now`.
fn is_recent(time: Option<Instant>, now: Instant) -> bool {
    time.is_some_and(|time| now < time + COOLDOWN)
}
