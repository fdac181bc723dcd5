//! The beginning and the end of a client: connections that are opened in advance, and an orderly end.

use std::future::{pending, poll_fn};
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::Client;
use super::error::ClientError;
use crate::deployment::ServerSelectionError;
use crate::endpoint::OperationError;
use crate::options::{ReadPreference, ReadPreferenceMode};
use crate::pool::Phase;
use crate::runtime::within;
use crate::selection::Access;
use crate::session::{Moment, ServerSessionPool};

/// How long a call may take at most for the work that is kept for its end.
const LONGEST_FINISH: Duration = Duration::from_secs(10);

/// Where sessions are ended: on any server, the primary if possible.
static PRIMARY_PREFERRED: ReadPreference = ReadPreference::new(ReadPreferenceMode::PrimaryPreferred);

impl Client {
    /// Opens connections before they are needed: waits for a server as [`connect`](Self::connect) does, and makes the pool
    /// of each known server hold this many connections, or `maxPoolSize` if that is less.
    ///
    /// `progress` is called with the number of connections that are open and the number that is wanted, at first and after
    /// each connection.
    ///
    /// # Errors
    ///
    /// [`ClientError`]: no server was found, or a connection could not be opened. The other connections stay open.
    ///
    /// # Cancel safety
    ///
    /// The connections that are open or being opened stay in the pools.
    pub async fn warm_up(&self, connections: u32, mut progress: impl FnMut(u32, u32)) -> Result<(), ClientError> {
        self.connect().await?;
        let Some(runtime) = self.deployment().residence() else { return Err(ServerSelectionError::NoRuntime.into()) };
        let mut opening = JoinSet::new();
        // For each server, how many connections are wanted, and those that are open.
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
            // A server's connections are held until its last one is there. Otherwise one connection would serve several
            // check-outs. A slow server does not keep those of the others from operations.
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

    /// Ends the sessions that no operation uses, closes all pools, and waits until their connections in use have come back
    /// and are closed, all for at most `limit`. Returns whether all are closed.
    ///
    /// Idle connections are closed at once. Operations that begin later fail with [`ServerSelectionError::Closed`].
    /// Dropping the last clone of a client closes its pools, too, but ends no sessions: the servers end them when they have
    /// not been used for half an hour.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost. The pools may remain open: call it again.
    pub async fn shutdown(&self, limit: Duration) -> bool {
        let servers = self.deployment().servers();
        let closing = async {
            self.end_sessions().await;
            self.deployment().close();
            for server in &servers {
                server.pool.closed().await;
            }
        };
        match Instant::now().checked_add(limit) {
            Some(at) => {
                let all_closed = within(at, || self.deployment().residence(), closing).await.is_ok();
                // In case the time was up before.
                self.deployment().close();
                all_closed
            }
            None => {
                closing.await;
                true
            }
        }
    }

    /// Does the work that is kept for the end of a call, on a client that spawns none. All of it together may take
    /// `connectTimeoutMS`, but at most 10 s. The rest is given up.
    pub(crate) async fn finish_kept(&self) {
        let mut at = None;
        loop {
            let mut kept = self.deployment().kept();
            if kept.is_empty() {
                return;
            }
            let limit = match self.options().connect_timeout {
                Duration::ZERO => LONGEST_FINISH,
                limit => limit.min(LONGEST_FINISH),
            };
            let at = *at.get_or_insert_with(|| Instant::now() + limit);
            // At the same time, so that a server that does not answer holds up no work for the others.
            let all = poll_fn(|context| {
                kept.retain_mut(|work| work.as_mut().poll(context).is_pending());
                if kept.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            });
            if timeout_at(at, all).await.is_err() {
                // The servers end by themselves what is not used.
                return;
            }
        }
    }

    /// Drops the work that is kept for the end of a call.
    pub(crate) fn forget_kept(&self) {
        drop(self.deployment().kept());
    }

    /// Waits before something is repeated. Works on every executor: the runtime of the monitors has the timer. Without a
    /// runtime there is no timer, and no pause: what is repeated fails for the same reason.
    pub(super) async fn pause(&self, pause: Duration) {
        let _ = within(Instant::now() + pause, || self.deployment().residence(), pending::<()>()).await;
    }

    /// Tells a server that the sessions in the pool are not needed any more (`endSessions`).
    async fn end_sessions(&self) {
        let ids = self.sessions().drain(Moment::now(), self.session_timeout());
        let Ok(Some(server)) = self.deployment().try_select_now(Access::Read(&PRIMARY_PREFERRED)) else { return };
        for command in ServerSessionPool::end_sessions(&ids) {
            if let Err(error) = server.pool.run_command("admin", &command).await {
                tracing::debug!(target: "wharf::command", %error, "Sessions could not be ended");
                return;
            }
        }
    }
}
