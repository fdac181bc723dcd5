//! Commands in flight, and the sessions of commands that are cancelled.
//!
//! The server may execute a command although its operation was cancelled. Until it is done, no other operation may use
//! the session. The session comes back once the connection has been drained, or at once if nothing was sent. Otherwise
//! the server, which keeps a session for half an hour, is told that the session has ended.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;

use super::in_session::{Explicit, InSession};
use super::{Client, Inner};
use crate::client::session::{ServerSession, SessionId};
use crate::endpoint::{AwaitsDrain, Endpoint};
use crate::pool::runtime::{Connection, PerProcess, within};

/// The maximum time that a connection is held for the reply to `endSessions`.
const LONGEST_REPLY: Duration = Duration::from_secs(5);

/// A command in flight. Dropping the value means that its operation was cancelled.
pub(super) struct InFlight<'f> {
    client: &'f Client,
    pub(super) connection: &'f mut Connection<Endpoint>,
    session: &'f mut InSession,
    has_ended: bool,
}

impl<'f> InFlight<'f> {
    pub(super) fn new(
        client: &'f Client,
        connection: &'f mut Connection<Endpoint>,
        session: &'f mut InSession,
    ) -> Self {
        Self { client, connection, session, has_ended: false }
    }

    /// Records that the command was not cancelled.
    pub(super) fn ended(mut self) {
        self.has_ended = true;
    }

    #[cold]
    fn cancelled(&mut self) {
        let session = mem::replace(self.session, InSession::Never);
        if self.connection.has_sent_nothing() {
            return self.client.give_back(session, None);
        }
        let cut_off = match session {
            InSession::Implicit(Some(session)) => {
                CutOff { session: Lent::Implicit(Arc::downgrade(&self.client.inner), Some(session)), is_drained: false }
            }
            InSession::Explicit(explicit) => CutOff { session: Lent::Explicit(explicit), is_drained: false },
            InSession::Implicit(None) | InSession::Never => return,
        };
        self.connection.await_drain(Box::new(cut_off));
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.cancelled();
        }
    }
}

/// The session of a command that was cut off. Dropping the value means that nothing will report the end of the command.
#[derive(Debug)]
struct CutOff {
    session: Lent,
    is_drained: bool,
}

#[derive(Debug)]
enum Lent {
    /// The connection belongs to the client, and does not keep it alive.
    Implicit(Weak<Inner>, Option<ServerSession>),
    /// The session of the application ends when both the application and the connection have dropped it.
    Explicit(Arc<Explicit>),
}

impl AwaitsDrain for CutOff {
    fn drained(mut self: Box<Self>) {
        self.is_drained = true;
    }
}

impl Drop for CutOff {
    fn drop(&mut self) {
        match &mut self.session {
            Lent::Implicit(client, session) => {
                if let (Some(inner), Some(mut session)) = (client.upgrade(), session.take()) {
                    if !self.is_drained {
                        session.cut_off();
                    }
                    Client { inner }.give_back_of(session, None);
                }
            }
            Lent::Explicit(explicit) if !self.is_drained => explicit.lock().cut_off(),
            Lent::Explicit(_) => {}
        }
    }
}

impl Client {
    /// Tells a server, in the background, that this session has ended. Sessions waiting to be ended are ended together.
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
            background.take(async move {
                let connection = task.client.last_connection(false).await;
                let sessions = task.client.with_ending(mem::take);
                task.has_taken_them = true;
                if let Some((_server, mut connection)) = connection {
                    // An unresponsive server must not keep the connection occupied.
                    let ended = task.client.end_sessions(&sessions, &mut connection);
                    let _ = within(Instant::now() + LONGEST_REPLY, || task.client.deployment().home(), ended).await;
                }
            });
        }
    }

    fn with_ending<R>(&self, change: impl FnOnce(&mut Vec<SessionId>) -> R) -> R {
        let ending = self.inner.ending.get();
        // Each change is a single method call, so the state is always valid.
        change(&mut ending.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The sessions waiting to be ended. If there are any, a task is ending them.
pub(super) type Ending = PerProcess<Mutex<Vec<SessionId>>>;

/// The task that ends sessions. If it is dropped before it takes them, the servers end them after half an hour.
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
