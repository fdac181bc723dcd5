//! Scanning checks the servers inline with operations, where there are no monitors (Server Monitoring, "Single-threaded
//! monitoring"; Server Selection, "Single-threaded server selection").
//!
//! A deployment that scans has one connection to each server, in a pool of size one that does not spawn anything.
//! Commands and checks share it. Opening it counts as a check, and so does a hello on it. One future checks all servers
//! concurrently.
//!
//! # When a scan is due
//!
//! | situation | scan |
//! | --- | --- |
//! | first operation | before the selection |
//! | `heartbeatFrequencyMS` have passed since the end of the last scan | before the selection |
//! | a server has replied that it is not primary or shuts down | before the next selection |
//! | no server is suitable | then, and with `serverSelectionTryOnce=false` again and again |
//!
//! Scans are at least 500 ms apart. A scan skips a server whose last check failed less than 5 s earlier (`cooldownMS`). The
//! failure of a command does not count as a failed check, so that a retry can reach a server that lost only its connection.
//!
//! A failed authentication does not count either: the server answered the hello before it, and that reply is the result of
//! the check. If the operation selects the server, its check-out fails with the authentication error. As when a pool opens
//! a connection, the error makes the server unknown and the operation is retried. Otherwise, scans leave the server's
//! description alone for 5 s, so that the server does not refuse the same password twice a second. If the operation's time
//! ends during an authentication, the check is cut off.
//!
//! A server whose connection has not been used for 5 s (`socketCheckIntervalMS`) is checked before its use: when it is
//! selected, and before the next command of a cursor. A selection terminates, because each check counts as a use.
//!
//! # How long a scan takes
//!
//! A check takes at most `connectTimeoutMS`, or twice that if it fails on an existing connection and opens a new one.
//!
//! One unresponsive server must not block operations whose `timeoutMS` is shorter. A scan ends once half of the operation's
//! time is used up and a server that has answered is suitable. A check that is cut off, at that point or when the time is
//! up, counts as failed: the server becomes unknown. For 5 s, scans ask this server again only if no other one is suitable.
//! The server may merely need more time than the operation had.

use std::future::poll_fn;
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf};
use thiserror::Error;
use tokio::time::{Instant, sleep_until};

use super::background::Kept;
use super::check::{CheckTimeoutError, Failure, hello};
use super::heartbeat::CheckConnection;
use super::selecting::{Demand, SelectionLimit, ServerSelectionError};
use super::selection_log::SelectionLog;
use super::server::{Selected, Server};
use super::state::{Deployment, Monitored};
use crate::client::topology::{ServerDescription, ServerType, TopologyType};
use crate::endpoint::options::{PoolOptions, SHORTEST_HEARTBEAT};
use crate::endpoint::{Command, CommandError, Endpoint, HelloReply, Limit, OperationError, SHORTEST_RESCAN, Terms};
use crate::pool::error::{Cause, CheckOutError, EstablishError, Stage};
use crate::pool::runtime::{Connection, within};
use crate::text::milliseconds::Milliseconds;

/// How long scans skip a server after a failed check (`cooldownMS`).
const COOLDOWN: Duration = Duration::from_secs(5);

/// How long a connection may be unused before its next use begins with a check (`socketCheckIntervalMS`).
const IDLE_LIMIT: Duration = Duration::from_secs(5);

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

/// When a server was checked and used, where there are no monitors.
#[derive(Default)]
pub(super) struct Uses(Mutex<UseTimes>);

#[derive(Default)]
struct UseTimes {
    /// When the last check failed, unless one has succeeded since.
    failed: Option<Instant>,
    /// When the last check was cut off or its authentication took too long, unless a check has been completed since.
    cut_off: Option<Instant>,
    /// When the authentication of the last check failed.
    unauthenticated: Option<Instant>,
    /// When the connection was last used, for a check or for a selected operation.
    used: Option<Instant>,
    /// Set while a check opens a connection.
    opening: Option<Opening>,
    refusal: Option<Refusal>,
}

/// The connection that a check opens.
#[derive(Default)]
struct Opening {
    /// The reply to its hello, and how long it took.
    greeting: Option<(HelloReply, Duration)>,
}

/// An authentication that failed in a check. The check itself succeeded with the reply to the hello. If the next
/// check-out from this server comes soon, it fails with the error instead of opening a connection.
struct Refusal {
    error: EstablishError,
    /// When it failed, or when the scan ended.
    at: Instant,
}

impl Uses {
    fn lock(&self) -> MutexGuard<'_, UseTimes> {
        // Every combination of the times is valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a check is opening a connection.
    pub(super) fn is_opening(&self) -> bool {
        self.lock().opening.is_some()
    }

    /// Receives the reply to the hello of a new connection. Returns whether a check is opening it.
    pub(super) fn greeted(&self, hello: &HelloReply, took: Duration) -> bool {
        let mut times = self.lock();
        let Some(opening) = &mut times.opening else { return false };
        let mut hello = hello.clone();
        hello.forget_speculation();
        opening.greeting = Some((hello, took));
        true
    }

    /// Records that a scan that began at this time has ended. Its operation will now check out its connection.
    fn scan_ended(&self, begun: Instant) {
        if let Some(refusal) = self.lock().refusal.as_mut().filter(|refusal| refusal.at >= begun) {
            refusal.at = Instant::now();
        }
    }
}

/// A server, and a future that checks it.
type Check = (Arc<Server>, Pin<Box<dyn Future<Output = ()> + Send>>);

/// A scan. It also ends when it is dropped because the operation has run out of time. The next operation begins with
/// what is known by then.
struct InProgress<'s>(&'s Scanning);

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.last = Some(Instant::now());
        state.is_stale = false;
    }
}

/// A check of one server. Dropping it before [`completed`](Self::completed) means that the check was cut off.
struct Checking {
    /// `None` when it is completed.
    monitored: Option<Monitored>,
    begun: Instant,
}

/// The operation ran out of time during the check of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the server did not answer a check for {}, and the operation had no more time for it", Milliseconds(self.after))]
struct CutOffError {
    after: Duration,
}

impl Checking {
    fn completed(mut self) {
        if let Some(monitored) = self.monitored.take() {
            monitored.forget();
        }
    }
}

impl Drop for Checking {
    fn drop(&mut self) {
        let Some(monitored) = self.monitored.take() else { return };
        {
            let mut times = monitored.server.uses.lock();
            times.used = Some(Instant::now());
            times.cut_off = times.used;
            times.opening = None;
        }
        let cause = Arc::new(CutOffError { after: self.begun.elapsed() });
        monitored.deployment.check_failed(&monitored, cause, true);
        monitored.forget();
    }
}

impl Deployment {
    /// Returns the options of a pool that holds a server's only connection. Behind a load balancer, cursors and
    /// transactions keep separate connections.
    pub(super) fn options_of_one_connection(options: &PoolOptions) -> PoolOptions {
        let options = options.clone().min_pool_size(0);
        if options.load_balanced { options } else { options.max_pool_size(1) }
    }

    /// Returns the terms on which a server's pool opens its next connection. If the authentication of a check has just
    /// failed, returns that error. The error is not repeated before the server might be checked again.
    pub(super) fn terms(&self, server: &Server) -> Result<Terms, EstablishError> {
        if !self.scans() {
            return Ok(Terms::default());
        }
        let mut times = server.uses.lock();
        match times.refusal.take() {
            Some(Refusal { error, at }) if at.elapsed() < SHORTEST_HEARTBEAT => Err(error),
            _ => {
                // Commands go to an arbiter only if it is the only server in the topology.
                let is_single = || self.snapshot().topology.topology_type() == TopologyType::Single;
                Ok(Terms { is_check: true, keeps_arbiter: times.opening.is_some() && !is_single() })
            }
        }
    }

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
        self.inhabit_here()?;
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
                        // A check may change the server, and thus the choice.
                        self.clone().check(selected.server().clone()).await;
                        continue;
                    }
                    selected.uses.lock().used = Some(Instant::now());
                    return Ok(selected);
                }
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

    fn is_scan_due(&self, scanning: &Scanning) -> bool {
        if self.snapshot().topology.topology_type() == TopologyType::LoadBalanced {
            return false;
        }
        let state = scanning.lock();
        let due = state.last.map(|last| last.checked_add(self.options().heartbeat_interval()));
        // A time beyond the clock's range never comes.
        state.is_stale || due.is_none_or(|due| due.is_some_and(|due| due <= Instant::now()))
    }

    /// Returns whether the server has a connection that has been unused for a while.
    fn was_long_idle(&self, server: &Server) -> bool {
        let is_checked = self.snapshot().topology.topology_type() != TopologyType::LoadBalanced;
        let used = server.uses.lock().used;
        is_checked && used.is_some_and(|used| used.elapsed() >= IDLE_LIMIT) && server.pool.status().available > 0
    }

    /// Returns whether operations, rather than monitors, check the servers.
    pub(crate) fn scans(&self) -> bool {
        self.scanning().is_some()
    }

    /// Returns a future that checks a server before a cursor uses its connection, if the connection has been unused for a
    /// while. The call counts as a use.
    pub(crate) fn check_if_idle(self: &Arc<Self>, server: &Arc<Server>) -> Option<impl Future<Output = ()> + use<>> {
        // A forked child must not lock a server that belongs to its parent.
        if self.scanning().is_none() || !self.snapshot().has(server) {
            return None;
        }
        let was_long_idle = self.was_long_idle(server);
        server.uses.lock().used = Some(Instant::now());
        was_long_idle.then(|| Box::pin(self.clone().check(server.clone())))
    }

    /// Checks all servers at once, including servers that the checks discover. Ends when all have answered or failed, or
    /// after half of the time until `deadline` if a server that has answered is suitable.
    async fn scan(self: &Arc<Self>, scanning: &Scanning, demand: Demand<'_>, deadline: Option<Instant>) {
        let _in_progress = InProgress(scanning);
        self.look_up(scanning).await;
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
                // A check that has ended may have discovered servers.
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

    /// Returns whether a suitable server exists that none of these checks is waiting for.
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
        scanning.lock().look_up_at = Instant::now().checked_add(valid_for.max(SHORTEST_RESCAN));
    }

    /// Checks one server, on its connection or by opening it.
    ///
    /// A server whose connection has failed is checked once more, on a new connection ("Network or command error during
    /// server check").
    ///
    /// # Cancel safety
    ///
    /// Dropping the future means that the operation's time is up: the server is then unknown.
    async fn check(self: Arc<Self>, server: Arc<Server>) {
        let checking = Checking { monitored: Some(self.monitored_of(&server)), begun: Instant::now() };
        let Some(monitored) = &checking.monitored else { return };
        let had_connection = server.pool.status().available > 0;
        let mut checked = self.try_check(monitored).await;
        if let Err(Failure::Check { cause, is_network_error: true, is_timeout }) = &checked
            && had_connection
        {
            self.check_failed(monitored, cause.clone(), *is_timeout);
            checked = self.try_check(monitored).await;
        }
        let authentication = checked.as_ref().map_or(Authentication::NotFailed, |checked| checked.authentication);
        {
            let mut times = server.uses.lock();
            times.used = Some(Instant::now());
            times.cut_off = times.used.filter(|_| authentication == Authentication::TooSlow);
            times.unauthenticated = times.used.filter(|_| authentication != Authentication::NotFailed);
            times.failed = match &checked {
                Err(Failure::Check { is_network_error: true, .. }) => times.used,
                _ => None,
            };
        }
        match checked {
            Ok(Checked { description, took, .. }) => self.checked(monitored, description, took),
            // The server has answered, so the connection stays ("Handling of backpressure labels").
            Err(Failure::Check { cause, .. }) if is_overload(&cause) => self.check_refused(monitored, cause),
            Err(Failure::Check { cause, is_timeout, .. }) => self.check_failed(monitored, cause, is_timeout),
            Err(Failure::Cancelled) => self.check_cancelled(monitored),
        }
        checking.completed();
    }

    /// Makes one attempt to check a server.
    async fn try_check(&self, monitored: &Monitored) -> Result<Checked, Failure> {
        let server = &*monitored.server;
        let (pool, endpoint) = (&server.pool, server.pool.establisher());
        // Without monitors, only the connection itself shows whether the server is there.
        pool.ready();
        let site = Location::caller();
        if pool.status().available > 0 {
            let mut connection = match pool.check_out_for(Limit::Infinite, None, site).await {
                Ok(connection) => connection,
                Err(error) => {
                    // The connection was lost, and so was the one that replaced it.
                    let heartbeat = monitored.heartbeat(&CheckConnection::New(&server.address.text), false);
                    return Err(failure_of(error).reported(heartbeat));
                }
            };
            let number = connection.hello().server_connection_id;
            let heartbeat = monitored.heartbeat(&CheckConnection::Latest(&server.address.text, number), false);
            let begun = Instant::now();
            let limit = endpoint.options().connect_timeout;
            let checked = match run_hello(&mut connection, limit).await {
                Ok(reply) if has_to_authenticate(&connection, &reply) => {
                    Err(Failure::Check { cause: Arc::new(ArbiterNoMore), is_network_error: true, is_timeout: false })
                }
                Ok(reply) => {
                    let took = Some(begun.elapsed());
                    let description = monitored.understood(heartbeat, &reply, number, took)?;
                    return Ok(Checked { description, took, authentication: Authentication::NotFailed });
                }
                Err(failure) => Err(failure),
            };
            return checked.map_err(|failure: Failure| failure.reported(heartbeat));
        }
        let heartbeat = monitored.heartbeat(&CheckConnection::New(&server.address.text), false);
        {
            let mut times = server.uses.lock();
            (times.refusal, times.opening) = (None, Some(Opening::default()));
        }
        let opened = pool.check_out_for(Limit::Infinite, None, site).await;
        let greeting = server.uses.lock().opening.take().and_then(|opening| opening.greeting);
        let took = greeting.as_ref().map(|(_, took)| *took);
        let (hello, authentication) = match (&opened, &greeting) {
            (Ok(connection), _) => (connection.hello(), Authentication::NotFailed),
            (Err(OperationError::CheckOut(CheckOutError::Establish(error))), Some((hello, _)))
                if error.stage() == Stage::Authenticate =>
            {
                server.uses.lock().refusal = Some(Refusal { error: error.clone(), at: Instant::now() });
                (hello, if error.is_timeout() { Authentication::TooSlow } else { Authentication::Failed })
            }
            (Err(error), _) => return Err(failure_of(error.clone()).reported(heartbeat)),
        };
        let description = monitored.understood(heartbeat, &hello.document, hello.server_connection_id, took)?;
        Ok(Checked { description, took, authentication })
    }
}

/// Returns whether `time` is less than 5 s before `now`.
fn is_recent(time: Option<Instant>, now: Instant) -> bool {
    time.is_some_and(|time| now < time + COOLDOWN)
}

/// The result of a check.
struct Checked {
    description: ServerDescription,
    /// The round-trip time, unless another check has opened the connection.
    took: Option<Duration>,
    authentication: Authentication,
}

/// The outcome of authenticating a check's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Authentication {
    NotFailed,
    Failed,
    TooSlow,
}

/// Sends a hello on a connection that commands also use.
async fn run_hello(connection: &mut Connection<Endpoint>, limit: Duration) -> Result<RawDocumentBuf, Failure> {
    let understands_hello = connection.options().server_api.is_some()
        || matches!(connection.hello().document.get_bool("helloOk"), Ok(true));
    let hello = hello(understands_hello);
    let command = Command::new("admin", &hello).timeout(limit).without_max_time();
    connection.run(command).await.map_err(|error| match error {
        OperationError::Command(error) => CheckTimeoutError::instead_of(error, limit),
        error => failure_of(error),
    })
}

/// Returns the failure of a check that got no connection.
fn failure_of(error: OperationError) -> Failure {
    match error {
        OperationError::CheckOut(CheckOutError::Establish(error)) => error.into(),
        OperationError::Command(error) => error.into(),
        // The server has left the deployment, or the deployment was closed.
        OperationError::CheckOut(_) | OperationError::CheckOutTimeout { .. } | OperationError::Interrupted(_) => {
            Failure::Cancelled
        }
    }
}

/// Returns whether the server refused a check because it is overloaded.
fn is_overload(cause: &Cause) -> bool {
    cause.downcast_ref::<CommandError>().is_some_and(|error| error.has_label("SystemOverloadedError"))
}

/// An arbiter has no users, so its connection is not authenticated. If the server is no longer an arbiter, the connection
/// must not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the connection is not authenticated, because the server was an arbiter when it was opened")]
struct ArbiterNoMore;

fn has_to_authenticate(connection: &Connection<Endpoint>, reply: &RawDocument) -> bool {
    connection.options().credential.is_some()
        && !connection.is_authenticated()
        && ServerType::of_reply(reply) != ServerType::RsArbiter
}
