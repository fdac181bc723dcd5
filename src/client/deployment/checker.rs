//! Checks the servers of a deployment without monitors. A check uses the connection that operations use, or opens that
//! connection. `scanning.rs` describes when a server is checked.

use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf};
use thiserror::Error;
use tokio::time::Instant;

use super::check::{CheckTimeoutError, Failure, hello};
use super::heartbeat::CheckConnection;
use super::server::Server;
use super::state::{Deployment, Monitored};
use crate::client::topology::{ServerDescription, ServerType, TopologyType};
use crate::endpoint::options::{PoolOptions, SHORTEST_HEARTBEAT};
use crate::endpoint::{Command, CommandError, Endpoint, HelloReply, Limit, OperationError, Terms};
use crate::pool::error::{Cause, CheckOutError, EstablishError, Stage};
use crate::pool::runtime::Connection;
use crate::text::milliseconds::Milliseconds;

/// How long a connection may be unused before its next use begins with a check (`socketCheckIntervalMS`).
const IDLE_LIMIT: Duration = Duration::from_secs(5);

/// The times at which a server was checked and used, for a deployment without monitors.
#[derive(Default)]
pub(super) struct Uses(Mutex<UseTimes>);

#[derive(Default)]
pub(super) struct UseTimes {
    /// When a check last failed, unless a later check has succeeded.
    pub(super) failed: Option<Instant>,
    /// When a check was last cut off, or last took too long to authenticate, unless a later check has been completed.
    pub(super) cut_off: Option<Instant>,
    /// When the last check's authentication failed.
    pub(super) unauthenticated: Option<Instant>,
    /// When the connection was last used, for a check or for a selected operation.
    pub(super) used: Option<Instant>,
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
/// check-out from this server follows soon, it fails with this error instead of opening a connection.
struct Refusal {
    error: EstablishError,
    /// When the authentication failed, or when the scan finished.
    at: Instant,
}

impl Uses {
    pub(super) fn lock(&self) -> MutexGuard<'_, UseTimes> {
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

    /// Records the end of a scan that began at `begun`. The operation that ran the scan then checks out a connection.
    pub(super) fn scan_ended(&self, begun: Instant) {
        if let Some(refusal) = self.lock().refusal.as_mut().filter(|refusal| refusal.at >= begun) {
            refusal.at = Instant::now();
        }
    }
}

/// A check of one server. Dropping it before [`completed`](Self::completed) means that the check was cut off.
struct Checking {
    monitored: Monitored,
    begun: Instant,
    is_completed: bool,
}

/// The operation ran out of time during the check of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the server did not answer a check for {}, and the operation had no more time for it", Milliseconds(self.after))]
struct CutOffError {
    after: Duration,
}

impl Checking {
    fn completed(mut self) {
        self.is_completed = true;
    }
}

impl Drop for Checking {
    fn drop(&mut self) {
        let Self { monitored, begun, is_completed: false } = self else { return };
        {
            let mut times = monitored.server.uses.lock();
            times.used = Some(Instant::now());
            times.cut_off = times.used;
            times.opening = None;
        }
        let cause = Arc::new(CutOffError { after: begun.elapsed() });
        monitored.deployment.check_failed(monitored, cause, true);
    }
}

impl Deployment {
    /// Returns the options of a pool that holds a server's only connection. Behind a load balancer, cursors and
    /// transactions keep separate connections.
    pub(super) fn options_of_one_connection(options: &PoolOptions) -> PoolOptions {
        let options = options.clone().min_pool_size(0);
        if options.load_balanced { options } else { options.max_pool_size(1) }
    }

    /// Returns the terms on which a server's pool opens its next connection. If a check's authentication has just
    /// failed, returns that error instead, until the server may be checked again.
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

    /// Returns whether the server has a connection that has not been used for a while.
    pub(super) fn was_long_idle(&self, server: &Server) -> bool {
        let is_checked = self.snapshot().topology.topology_type() != TopologyType::LoadBalanced;
        let used = server.uses.lock().used;
        is_checked && used.is_some_and(|used| used.elapsed() >= IDLE_LIMIT) && server.pool.status().available > 0
    }

    /// Returns a future that checks a server before a cursor uses its connection, if the server has not been used for a
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

    /// Checks one server on its open connection, or by opening a connection.
    ///
    /// A server whose connection has failed is checked once more, on a new connection ("Network or command error during
    /// server check").
    ///
    /// # Cancel safety
    ///
    /// Dropping the future is taken to mean that the operation's time has run out, and the server becomes unknown.
    pub(super) async fn check(self: Arc<Self>, server: Arc<Server>) {
        let checking = Checking { monitored: self.monitored_of(&server), begun: Instant::now(), is_completed: false };
        let monitored = &checking.monitored;
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
            // The server has answered, so the connection stays open ("Handling of backpressure labels").
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
        // Without monitors, only a connection shows whether the server can be reached.
        pool.ready();
        let site = Location::caller();
        if pool.status().available > 0 {
            let mut connection = match pool.check_out_for(Limit::Infinite, None, site).await {
                Ok(connection) => connection,
                Err(error) => {
                    // The connection was lost, and its replacement could not be opened.
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

/// The result of a check.
struct Checked {
    description: ServerDescription,
    /// The round-trip time, if it was measured.
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

/// An arbiter has no users, so its connection is not authenticated. If the server is no longer an arbiter, this
/// connection must not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the connection is not authenticated, because the server was an arbiter when it was opened")]
struct ArbiterNoMore;

fn has_to_authenticate(connection: &Connection<Endpoint>, reply: &RawDocument) -> bool {
    connection.options().credential.is_some()
        && !connection.is_authenticated()
        && ServerType::of_reply(reply) != ServerType::RsArbiter
}
