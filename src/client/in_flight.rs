//! Commands in flight, and the sessions of commands that are cancelled.
//!
//! The server may execute a command although its operation was cancelled. Until that has ended, no other operation may use the
//! session. It comes back when the connection has been drained, and at once if nothing was sent. If neither can be, the server
//! is told that the session has ended, because it keeps a session for half an hour.

use std::mem;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use super::in_session::{Explicit, InSession};
use super::{Client, Inner};
use crate::endpoint::{AwaitsDrain, Endpoint};
use crate::runtime::{Connection, forks};
use crate::session::{ServerSession, SessionId};

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

    /// Notes that the command was not cancelled.
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

/// The session of a command that was cut off. Dropping the value means that nothing tells when the command ends.
#[derive(Debug)]
struct CutOff {
    session: Lent,
    is_drained: bool,
}

#[derive(Debug)]
enum Lent {
    /// The connection belongs to the client, and does not keep it alive.
    Implicit(Weak<Inner>, Option<ServerSession>),
    /// The session of the application ends when the application and the connection have dropped it.
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
    /// Tells a server, in the background, that this session has ended. Sessions that wait for it are ended together.
    #[cold]
    pub(super) fn end_later(&self, session: SessionId) {
        let is_first = {
            let mut ending = self.ending();
            ending.sessions.push(session);
            ending.sessions.len() == 1
        };
        if !is_first {
            return;
        }
        let mut task = EndingTask { client: self.clone(), has_taken_them: false };
        if let Some(background) = self.deployment().background() {
            background.take(async move {
                let connection = task.client.last_connection(false).await;
                let sessions = mem::take(&mut task.client.ending().sessions);
                task.has_taken_them = true;
                if let Some((_server, mut connection)) = connection {
                    task.client.end_sessions(&sessions, &mut connection).await;
                }
            });
        }
    }

    fn ending(&self) -> MutexGuard<'_, Ending> {
        // Each change is one call of a method.
        let mut ending = self.inner.ending.lock().unwrap_or_else(PoisonError::into_inner);
        if ending.forks != forks() {
            // They are those of a parent of this process, and so is the task.
            *ending = Ending::default();
        }
        ending
    }
}

/// The sessions that wait to be ended. If there are any, a task ends them.
#[derive(Debug)]
pub(super) struct Ending {
    sessions: Vec<SessionId>,
    /// The number of forks before this value was made.
    forks: u32,
}

impl Default for Ending {
    fn default() -> Self {
        Self { sessions: Vec::new(), forks: forks() }
    }
}

/// The task that ends sessions. If it is dropped before it has taken them, the servers end them after half an hour.
struct EndingTask {
    client: Client,
    has_taken_them: bool,
}

impl Drop for EndingTask {
    fn drop(&mut self) {
        if !self.has_taken_them {
            self.client.ending().sessions.clear();
        }
    }
}
