//! Tells servers that sessions have ended (`endSessions`): when the client shuts down, and for sessions that cannot be
//! reused.

use std::mem;
use std::panic::Location;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Client;
use super::error::ClientError;
use super::spans::Described;
use crate::client::deployment::{Selected, Server};
use crate::client::selection::Access;
use crate::client::session::{ServerSessionPool, SessionId};
use crate::endpoint::options::{ReadPreference, ReadPreferenceMode};
use crate::endpoint::{Command, Endpoint, Limit};
use crate::pool::runtime::{Connection, PerProcess, within};

/// The maximum time to wait for a connection on which sessions are ended.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The maximum time that a connection is held for the reply to `endSessions`.
const LONGEST_REPLY: Duration = Duration::from_secs(5);

/// Sessions are ended on any server, preferably the primary.
static PRIMARY_PREFERRED: ReadPreference = ReadPreference::new(ReadPreferenceMode::PrimaryPreferred);

impl Client {
    /// Returns a known server that sessions can be ended on.
    pub(super) fn known_server(&self) -> Option<Selected> {
        self.deployment().try_select_now(Access::Read(&PRIMARY_PREFERRED)).ok().flatten()
    }

    /// Checks out a connection to a known server for ending sessions. Returns `None` if none is available in time.
    pub(super) async fn last_connection(&self) -> Option<(Arc<Server>, Connection<Endpoint>)> {
        let server = self.known_server()?;
        let limit = Limit::of(LONGEST_WAIT).start();
        loop {
            match server.pool.check_out_for(limit, None, Location::caller()).await {
                Ok(mut connection) => {
                    if connection.check_idle().is_ok() {
                        return Some((server.server().clone(), connection));
                    }
                    // The connection was lost while idle, and is closed.
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

    /// Tells a server, in the background, that this session has ended. All sessions that are waiting to be ended are
    /// ended together.
    #[cold]
    pub(super) fn end_later(&self, session: SessionId) {
        let is_first = self.with_ending(|ending| {
            ending.push(session);
            ending.len() == 1
        });
        if !is_first {
            return;
        }
        let mut task = EndingTask { client: self.clone(), has_taken_them: false };
        if let Some(background) = self.deployment().background() {
            background.take(Box::pin(async move {
                let connection = task.client.last_connection().await;
                let sessions = task.client.with_ending(mem::take);
                task.has_taken_them = true;
                if let Some((_server, mut connection)) = connection {
                    // An unresponsive server must not keep the connection occupied.
                    let ended = task.client.end_sessions(&sessions, &mut connection);
                    let _ = within(Instant::now() + LONGEST_REPLY, || task.client.deployment().home(), ended).await;
                }
            }));
        }
    }

    fn with_ending<R>(&self, change: impl FnOnce(&mut Vec<SessionId>) -> R) -> R {
        let ending = self.inner.ending.get();
        // Each change is a single method call, so the state is always valid.
        change(&mut ending.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The sessions that are waiting to be ended. While the list is not empty, a task is about to end these sessions.
pub(super) type Ending = PerProcess<Mutex<Vec<SessionId>>>;

/// The task that ends sessions. If the task is dropped before it takes the sessions, the servers end them after half an
/// hour.
struct EndingTask {
    client: Client,
    has_taken_them: bool,
}

impl Drop for EndingTask {
    fn drop(&mut self) {
        if !self.has_taken_them {
            self.client.with_ending(Vec::clear);
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::client::session::{Moment, ServerSession};
    use crate::pool::runtime::in_child;

    #[test]
    fn child_takes_no_lock_on_ending_sessions_that_was_held_at_the_fork() {
        let client = Client::from_uri("mongodb://a").unwrap();
        let session = ServerSession::new(Moment::now()).id();
        let code = client.with_ending(|_| {
            in_child(|| {
                client.end_later(session);
                Ok(())
            })
        });
        assert_eq!(code, 0);
    }
}
