//! The beginning and end of a client's life: opening connections in advance, and an orderly shutdown.

use std::future::pending;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Client;
use super::error::ClientError;
use crate::client::deployment::{Server, ServerSelectionError};
use crate::client::session::{Moment, SessionId};
use crate::endpoint::{Endpoint, OperationError};
use crate::pool::core::Phase;
use crate::pool::error::CheckOutError;
use crate::pool::runtime::{Boxed, Connection, within};

/// The maximum time that the pools stay open for background work, which may be waiting for a lost server.
const LONGEST_FINISH: Duration = Duration::from_secs(1);

/// The maximum time that the pools stay open for the server to end sessions.
const LONGEST_REPLY: Duration = Duration::from_millis(250);

impl Client {
    /// Opens connections before they are needed. Waits for a server as [`connect`](Self::connect) does, then
    /// [warms up](crate::Pool::warm_up) the pool of each known server: to this number of connections, to `maxPoolSize`
    /// if that is less, or until a [`Budget`](crate::Budget) is used up.
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
    /// The same as for [`warm_up`](Self::warm_up).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`warm_up`](Self::warm_up).
    pub async fn warm_up_with(&self, connections: u32, mut progress: impl FnMut(u32, u32)) -> Result<(), ClientError> {
        let mut warm_up = self.begin_warm_up(connections).await?;
        let wanted = warm_up.wanted();
        progress(0, wanted);
        while let Some(newly_opened) = warm_up.next().await? {
            newly_opened.for_each(|opened| progress(opened, wanted));
        }
        Ok(())
    }

    fn begin_warm_up(&self, connections: u32) -> Boxed<'_, Result<WarmUp, ClientError>> {
        Box::pin(async move {
            self.connect().await?;
            let Some(runtime) = self.deployment().home() else { return Err(ServerSelectionError::NoRuntime.into()) };
            let (tell, told) = unbounded_channel();
            let mut warm_up = WarmUp { opening: JoinSet::new(), told, servers: Vec::new(), opened: 0 };
            for server in self.deployment().servers() {
                if server.pool.state().phase != Phase::Ready {
                    continue;
                }
                let (place, tell) = (warm_up.servers.len(), tell.clone());
                warm_up.servers.push((0, connections.min(server.pool.options().capacity())));
                // The receiver may be gone.
                let tell = move |open| _ = tell.send((place, open));
                warm_up.opening.spawn_on(async move { server.pool.warm_up(connections, tell).await }, &runtime);
            }
            Ok(warm_up)
        })
    }

    /// Ends the sessions that no operation is using, closes all pools, and waits until their connections in use have
    /// been returned and closed, all within `limit`. Returns whether all connections are closed.
    ///
    /// First, if a server is known, the client spends at most a second on aborting the transactions of dropped sessions
    /// and on closing dropped cursors. Then it ends the sessions, and after that it closes the idle connections. If
    /// operations are still running, one connection stays open, so that their sessions can be ended after the last
    /// operation. If no connection is idle at first, the client waits up to a second for a connection. It waits at most
    /// a quarter of a second for the server's reply. Operations that begin after the pools have closed fail with
    /// [`ServerSelectionError::Closed`]. Dropping the last clone of a client also closes its pools, but does not end
    /// sessions: the servers end them after half an hour of inactivity.
    ///
    /// # Cancel safety
    ///
    /// The pools may remain open: call `shutdown` again. Sessions that were about to be ended stay on the servers until
    /// they expire.
    pub async fn shutdown(&self, limit: Duration) -> bool {
        self.shutting_down(limit).await
    }

    fn shutting_down(&self, limit: Duration) -> Boxed<'_, bool> {
        Box::pin(async move {
            let closing = self.end_and_close();
            let Some(at) = Instant::now().checked_add(limit) else {
                closing.await;
                return true;
            };
            let all_closed = within(at, || self.deployment().home(), closing).await.is_ok();
            // If the time ran out, the deployment may still be open.
            self.deployment().close();
            all_closed
        })
    }

    /// Finishes the background work, ends the sessions that no operation is using, closes all pools, and waits until
    /// their connections are closed.
    async fn end_and_close(&self) {
        self.finish_background().await;
        // Read first, because a closed deployment no longer knows how long its servers keep sessions.
        let timeout = self.session_timeout();
        let idle_sessions = || self.sessions().drain(Moment::now(), timeout);
        let ids = idle_sessions();
        // Operations in progress may still give sessions back.
        if (!ids.is_empty() || !self.is_idle())
            && let Some((server, connection)) = self.last_connection().await
        {
            self.end_sessions_of_all(ids, idle_sessions, &server, connection).await;
        }
        self.deployment().close();
        let servers = self.deployment().servers();
        for server in &servers {
            server.pool.closed().await;
        }
    }

    /// Waits up to a second for the background work.
    pub(crate) async fn finish_background(&self) {
        // If no server is known, this work would wait for a server.
        if self.known_server().is_some() {
            let finished = self.deployment().finish_background();
            let _ = within(Instant::now() + LONGEST_FINISH, || self.deployment().home(), finished).await;
        }
    }

    /// Ends these sessions on a connection to `server`, and then the sessions that are given back later. If operations
    /// are still in progress, closes all pools and waits for the operations.
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
            // The connection is returned before its pool is closed.
            Ok(mut connection) if self.is_idle() => {
                // Operations that have just finished have given their sessions back.
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
        // By now the operations have finished, and have given their sessions back.
        self.end_sessions(&idle_sessions(), &mut connection).await;
    }

    /// Waits before the next attempt. Works on every executor, because it uses the timer of the monitors' runtime.
    /// Without that runtime, it does not wait, and the next attempt fails because the runtime is missing.
    pub(super) async fn pause(&self, pause: Duration) {
        let _ = within(Instant::now() + pause, || self.deployment().home(), pending::<()>()).await;
    }

    /// Returns whether no operation is in progress.
    fn is_idle(&self) -> bool {
        let snapshot = self.deployment().snapshot();
        snapshot.servers().all(|(_, member)| member.is_none_or(|member| member.operation_count() == 0))
    }
}

/// An ongoing warm-up of all servers' pools.
struct WarmUp {
    opening: JoinSet<Result<(), CheckOutError>>,
    /// A server's place in `servers`, and how many of its connections are open.
    told: UnboundedReceiver<(usize, u32)>,
    /// For each server, the largest number of open connections reported so far, and the number wanted.
    servers: Vec<(u32, u32)>,
    /// The sum of the open connections reported so far.
    opened: u32,
}

impl WarmUp {
    fn wanted(&self) -> u32 {
        self.servers.iter().fold(0, |sum: u32, (_, wanted)| sum.saturating_add(*wanted))
    }

    /// Waits until more connections are open, and returns the new sums. Returns `None` once all connections are open.
    fn next(&mut self) -> Boxed<'_, Result<Option<RangeInclusive<u32>>, ClientError>> {
        Box::pin(async move {
            loop {
                tokio::select! {
                    biased;
                    Some((place, open)) = self.told.recv() => {
                        let (reached, most) = &mut self.servers[place];
                        let open = open.min(*most);
                        if open > *reached {
                            let before = self.opened;
                            self.opened += open - *reached;
                            *reached = open;
                            return Ok(Some(before + 1..=self.opened));
                        }
                    }
                    ended = self.opening.join_next() => match ended {
                        None => return Ok(None),
                        // A task stops early only if its runtime shuts down.
                        Some(Err(_)) => return Err(ServerSelectionError::NoRuntime.into()),
                        Some(Ok(outcome)) => outcome.map_err(OperationError::from)?,
                    },
                }
            }
        })
    }
}
