//! Commands in flight, and the sessions of cancelled commands.
//!
//! The server may execute a command even though its operation was cancelled. Until the server is done, no other
//! operation may use the session. The session can be used again once the connection has been drained, or immediately if
//! nothing was sent. If the connection is not drained, the client tells the server that the session has ended, because
//! the server would otherwise keep it for half an hour.

use std::mem;
use std::sync::{Arc, Weak};

use super::in_session::{Explicit, InSession};
use super::{Client, Inner};
use crate::client::session::ServerSession;
use crate::endpoint::{AwaitsDrain, Endpoint};
use crate::pool::runtime::Connection;

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

/// The session of a command that was cut off. If this value is dropped before the connection has been drained, the
/// client will not learn when the command finishes.
#[derive(Debug)]
struct CutOff {
    session: Lent,
    is_drained: bool,
}

#[derive(Debug)]
enum Lent {
    /// The connection belongs to the client, and must not keep the client alive.
    Implicit(Weak<Inner>, Option<ServerSession>),
    /// The application's session ends when both the application and the connection have dropped it.
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
