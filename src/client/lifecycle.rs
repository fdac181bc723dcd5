//! The beginning and the end of a client: opening connections in advance, and an orderly shutdown.

use std::future::{pending, poll_fn};
use std::panic::Location;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::Client;
use super::error::ClientError;
use super::spans::Described;
use crate::client::deployment::{Server, ServerSelectionError};
use crate::client::selection::Access;
use crate::client::session::{Moment, ServerSessionPool, SessionId};
use crate::endpoint::options::{ReadPreference, ReadPreferenceMode};
use crate::endpoint::{Command, Endpoint, Limit, OperationError};
use crate::pool::core::Phase;
use crate::pool::runtime::{Connection, within};

/// The maximum time that a call spends on the work kept for its end.
const LONGEST_FINISH: Duration = Duration::from_secs(10);

/// The maximum time that a shutdown waits for a connection on which to end sessions.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The maximum time that the pools stay open for the server to end sessions.
const LONGEST_REPLY: Duration = Duration::from_millis(250);

/// Where sessions are ended: on any server, preferably the primary.
static PRIMARY_PREFERRED: ReadPreference = ReadPreference::new(ReadPreferenceMode::PrimaryPreferred);

impl Client {
    /// Opens connections before they are needed. Waits for a server as [`connect`](Self::connect) does, then fills the
    /// pool of each known server to this many connections, or to `maxPoolSize` if that is less.
    ///
    /// # Errors
    ///
    /// [`ClientError`]: no server was found, or a connection could not be opened. The other connections stay open.
    ///
    /// # Cancel safety
    ///
    /// The connections that are open or are being opened stay in the pools.
    #[doc(alias = "warm_connection_pool")]
    pub async fn warm_up(&self, connections: u32) -> Result<(), ClientError> {
        self.warm_up_with(connections, |_, _| {}).await
    }

    /// Like [`warm_up`](Self::warm_up), but also calls `progress` with the number of open connections and the number
    /// wanted, once at the start and after each connection.
    ///
    /// # Errors
    ///
    /// As for [`warm_up`](Self::warm_up).
    ///
    /// # Cancel safety
    ///
    /// As for [`warm_up`](Self::warm_up).
    pub async fn warm_up_with(&self, connections: u32, mut progress: impl FnMut(u32, u32)) -> Result<(), ClientError> {
        self.connect().await?;
        let Some(runtime) = self.deployment().home() else { return Err(ServerSelectionError::NoRuntime.into()) };
        let mut opening = JoinSet::new();
        // The number of wanted connections for each server, and the open ones.
        let mut servers = Vec::new();
        for server in self.deployment().servers() {
            if server.pool.state().phase != Phase::Ready {
                continue;
            }
            let most = server.pool.options().max_pool_size;
            let wanted = if most == 0 { connections } else { connections.min(most) };
            for _ in 0..wanted {
                let (place, server) = (servers.len(), server.clone());
                opening.spawn_on(async move { (place, server.pool.check_out().await) }, &runtime);
            }
            servers.push((wanted as usize, Vec::new()));
        }
        let wanted = u32::try_from(opening.len()).unwrap_or(u32::MAX);
        progress(0, wanted);
        let mut opened = 0;
        while let Some(ended) = opening.join_next().await {
            // A task ends early only with its runtime.
            let Ok((place, connection)) = ended else { return Err(ServerSelectionError::NoRuntime.into()) };
            // A server's connections are held until its last one is open. Otherwise one connection would serve several
            // check-outs. A slow server does not hold up operations on the other servers.
            let (all, held) = &mut servers[place];
            held.push(connection.map_err(OperationError::from)?);
            if held.len() == *all {
                held.clear();
            }
            opened += 1;
            progress(opened, wanted);
        }
        Ok(())
    }

    /// Ends the sessions that no operation is using, closes all pools, and waits until their connections in use have
    /// come back and are closed, all within `limit`. Returns whether all are closed.
    ///
    /// The sessions are ended first. Then idle connections are closed. If operations are still running, one of them
    /// stays open, to end their sessions after the last operation. If no connection is idle, the client first waits for
    /// one for at most a second. It waits for the server's reply for at most a quarter of a second. Operations that
    /// begin after the pools have closed fail with [`ServerSelectionError::Closed`]. Dropping the last clone of a
    /// client also closes its pools, but does not end sessions: the servers end them after half an hour without use.
    ///
    /// # Cancel safety
    ///
    /// The pools may remain open: call it again. Sessions that were about to be ended are left to the servers.
    pub async fn shutdown(&self, limit: Duration) -> bool {
        let closing = self.end_and_close();
        let Some(at) = Instant::now().checked_add(limit) else {
            closing.await;
            return true;
        };
        let all_closed = within(at, || self.deployment().home(), closing).await.is_ok();
        // In case the time was already up.
        self.deployment().close();
        all_closed
    }

    /// Ends the sessions that no operation is using, closes all pools, and waits until their connections are closed.
    async fn end_and_close(&self) {
        // A closed deployment has forgotten its servers, and with them how long they keep sessions.
        let timeout = self.session_timeout();
        let idle_sessions = || self.sessions().drain(Moment::now(), timeout);
        let ids = idle_sessions();
        if let Some((server, connection)) = self.last_connection(ids.is_empty()).await {
            self.end_sessions_of_all(ids, idle_sessions, &server, connection).await;
        }
        self.deployment().close();
        let servers = self.deployment().servers();
        for server in &servers {
            server.pool.closed().await;
        }
    }

    /// Ends these sessions on a connection to `server`, and the ones that come back later. If operations go on, closes
    /// all pools and waits for them.
    async fn end_sessions_of_all(
        &self,
        mut ids: Vec<SessionId>,
        idle_sessions: impl Fn() -> Vec<SessionId>,
        server: &Arc<Server>,
        mut connection: Connection<Endpoint>,
    ) {
        ids.extend(idle_sessions());
        let mut ending = pin!(async move {
            self.end_sessions(&ids, &mut connection).await;
            connection
        });
        let moment = Instant::now() + LONGEST_REPLY;
        let ended = within(moment, || self.deployment().home(), ending.as_mut()).await;
        let ended = match ended {
            // The connection comes back before its pool is closed.
            Ok(mut connection) if self.is_idle() => {
                // The operations that just ended have given theirs back.
                let rest = async { self.end_sessions(&idle_sessions(), &mut connection).await };
                let _ = within(moment, || self.deployment().home(), rest).await;
                return;
            }
            ended => ended,
        };
        self.deployment().close();
        let others_closed = async {
            // No server joins a closed deployment.
            for other in &self.deployment().servers() {
                let kept = u32::from(Arc::ptr_eq(other, server));
                other.pool.closed_but_for(kept).await;
            }
        };
        let ending = async {
            match ended {
                Ok(connection) => connection,
                Err(_) => ending.await,
            }
        };
        let (mut connection, ()) = tokio::join!(ending, others_closed);
        // The operations that have ended by now have given theirs back.
        self.end_sessions(&idle_sessions(), &mut connection).await;
    }

    /// Does the work that is kept for the end of a call, on a client that does not spawn it. Altogether this work may
    /// take `connectTimeoutMS`, but at most 10 s and no longer than the call itself. The rest is abandoned, except for
    /// work that has not begun when the call runs out of time: the next call does that.
    pub(crate) async fn finish_kept(&self, call: Limit) {
        let mut at = None;
        loop {
            // A later call cannot continue work that has begun: until that call, the work would hold the only
            // connection of its server.
            if call.left().is_some_and(|left| left.is_zero()) {
                return;
            }
            let mut kept = self.deployment().kept();
            if kept.is_empty() {
                return;
            }
            let limit = match self.options().connect_timeout {
                Duration::ZERO => LONGEST_FINISH,
                limit => limit.min(LONGEST_FINISH),
            };
            let at = *at.get_or_insert_with(|| {
                let own = Instant::now() + limit;
                call.deadline().map_or(own, |(end, _)| end.min(own))
            });
            // All of it runs concurrently, so that a server that does not answer does not hold up the work for other
            // servers.
            let all = poll_fn(|context| {
                kept.retain_mut(|work| work.as_mut().poll(context).is_pending());
                if kept.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            });
            if timeout_at(at, all).await.is_err() {
                // The servers will clean up whatever is left unused.
                return;
            }
        }
    }

    /// Returns whether work is kept for the end of a call.
    pub(crate) fn has_kept(&self) -> bool {
        self.deployment().has_kept()
    }

    /// Drops the work that is kept for the end of a call.
    pub(crate) fn forget_kept(&self) {
        drop(self.deployment().kept());
    }

    /// Waits before a repetition. Works on every executor, because the runtime of the monitors has the timer. Without a
    /// runtime, there is no timer and no pause, and the repetition fails for the same reason.
    pub(super) async fn pause(&self, pause: Duration) {
        let _ = within(Instant::now() + pause, || self.deployment().home(), pending::<()>()).await;
    }

    /// Returns whether no operation is under way.
    fn is_idle(&self) -> bool {
        let snapshot = self.deployment().snapshot();
        snapshot.servers().all(|(_, member)| member.is_none_or(|member| member.operation_count() == 0))
    }

    /// Checks out the connection for ending sessions, from a known server. Returns `None` if the pool holds no session
    /// and no operation can bring one, or if no connection is available in time.
    pub(super) async fn last_connection(&self, is_pool_empty: bool) -> Option<(Arc<Server>, Connection<Endpoint>)> {
        if is_pool_empty && self.is_idle() {
            return None;
        }
        let server = self.deployment().try_select_now(Access::Read(&PRIMARY_PREFERRED)).ok()??;
        let limit = Limit::of(LONGEST_WAIT).start();
        loop {
            match server.pool.check_out_for(limit, None, Location::caller()).await {
                Ok(mut connection) => {
                    if connection.check_idle().is_ok() {
                        return Some((server.server().clone(), connection));
                    }
                    // It was lost while idle, and is closed.
                }
                Err(error) => {
                    tracing::debug!(target: "wharf::command", %error, "Sessions could not be ended");
                    return None;
                }
            }
        }
    }

    /// Tells a server that these sessions are no longer needed (`endSessions`).
    pub(super) async fn end_sessions(&self, ids: &[SessionId], connection: &mut Connection<Endpoint>) {
        if ids.is_empty() {
            return;
        }
        let observation = self.command_events().operation(|| Described::named("endSessions", "admin"));
        let ended = pin!(async {
            for body in ServerSessionPool::end_sessions(ids) {
                let appended = self.elements_of_cluster_time(connection);
                let command = Command::new("admin", &body).appended(&appended);
                self.command_events().run(connection, command, &observation).await?;
            }
            Ok::<_, ClientError>(())
        });
        if let Err(error) = observation.within(ended).await {
            tracing::debug!(target: "wharf::command", %error, "Sessions could not be ended");
        }
    }
}
