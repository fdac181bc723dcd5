//! The session of an operation: its own session, or the application's session.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bson::RawDocument;

use super::Client;
use super::closing_queue::ClosingQueue;
use super::spans::Span;
use crate::client::deployment::Selected;
use crate::client::session::{Consequence, FaultKind, SessionServer};
use crate::client::session::{
    Fault, Moment, ReplyTimes, ServerSession, Session as State, SessionError, TransactionOptions,
};
use crate::endpoint::options::ServerAddress;
use crate::endpoint::wire::Role;
use crate::endpoint::{Endpoint, Limit};
use crate::pool::error::Labels;
use crate::pool::runtime::{Connection, within};

/// The server or connection that a transaction is pinned to.
#[derive(Debug)]
pub(super) enum Pinned {
    /// A mongos.
    Server(ServerAddress),
    /// A connection behind a load balancer.
    Connection(Selected, Box<Connection<Endpoint>>),
}

/// An application's session, which its operations and cursors share.
pub(super) struct Explicit {
    client: Client,
    state: Mutex<State<Pinned>>,
    /// Whether the client itself started the session, for a change stream.
    is_implicit: bool,
    /// The time limit of the call to `with_transaction` in progress, if any.
    repeating_until: Mutex<Option<Limit>>,
    /// The cursors of the current transaction that are still closing.
    closing: Mutex<Arc<ClosingQueue>>,
    /// The span of the current transaction, if it is observed.
    span: Mutex<Option<Arc<Span>>>,
}

impl Explicit {
    pub(super) fn new(client: Client, state: State<Pinned>, is_implicit: bool) -> Arc<Self> {
        let (state, repeating_until) = (Mutex::new(state), Mutex::new(None));
        let (closing, span) = (Mutex::default(), Mutex::default());
        Arc::new(Self { client, state, is_implicit, repeating_until, closing, span })
    }

    /// Returns whether the client itself started the session. Such a session is omitted if the server does not support
    /// sessions. For an application's session, missing support is an error.
    pub(super) fn is_implicit(&self) -> bool {
        self.is_implicit
    }

    /// Sets the time limit of a call to `with_transaction`. The limit applies until the returned value is dropped. If
    /// an outer call already has a limit, that limit remains in force, because it covers everything the call does.
    pub(super) fn limit_to(self: &Arc<Self>, limit: Option<Limit>) -> LimitedCall {
        let mut present = self.locked_limit();
        let before = *present;
        *present = before.or(limit);
        LimitedCall { explicit: self.clone(), before }
    }

    /// Returns the time limit of the call to `with_transaction` in progress, if any.
    pub(super) fn limit(&self) -> Option<Limit> {
        *self.locked_limit()
    }

    /// Returns the time limit that the session sets for an operation whose own limit is `own`. While `with_transaction`
    /// runs, this is the limit of that call (Client Side Operations Timeout, "Validation and Overrides"). Returns
    /// `None` if the session sets no limit.
    ///
    /// # Errors
    ///
    /// [`SessionError::TimeoutInTransaction`] if both the operation and the session set a limit.
    pub(super) fn limit_of(&self, own: Limit) -> Result<Option<Limit>, SessionError> {
        match self.limit() {
            // A command of a larger operation already has the session's limit.
            Some(limit) if own.is_set() && own != limit => Err(SessionError::TimeoutInTransaction),
            limit => Ok(limit),
        }
    }

    fn locked_limit(&self) -> MutexGuard<'_, Option<Limit>> {
        self.repeating_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the client that started the session.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns whether the client started the session.
    pub(super) fn belongs_to(&self, client: &Client) -> bool {
        Arc::ptr_eq(&self.client.inner, &client.inner)
    }

    /// Locks the state. Hold the lock for a few instructions only, and never across an await.
    pub(super) fn lock(&self) -> MutexGuard<'_, State<Pinned>> {
        // The state is valid between any two method calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a failure, and returns the error's labels.
    pub(super) fn note(&self, note: impl FnOnce(&mut State<Pinned>) -> Consequence<Pinned>) -> Labels {
        let Consequence { labels, unpinned } = note(&mut self.lock());
        // The pin is dropped outside the lock.
        drop(unpinned);
        labels
    }

    /// Unpins a transaction that stayed pinned after an overload, if its operation ultimately fails with a transient
    /// error (Transactions, "When to unpin").
    pub(super) fn overload_ended(&self, labels: Labels) {
        if labels.contains(Labels::TRANSIENT_TRANSACTION) {
            let unpinned = self.lock().unpin();
            drop(unpinned);
        }
    }

    /// Starts a transaction. Returns the previous transaction's pin.
    pub(super) fn start_transaction(&self, options: TransactionOptions) -> Result<Option<Pinned>, SessionError> {
        let last = self.lock().start_transaction(options)?;
        // The previous transaction's cursors do not delay this transaction.
        *self.locked_closing() = Arc::default();
        let events = self.client.command_events();
        if events.may_be_observed() {
            self.replace_span(events.spans().transaction());
        }
        Ok(last)
    }

    /// Returns the span of the last transaction, unless its end has been recorded.
    pub(super) fn span(&self) -> Option<Arc<Span>> {
        self.span.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn is_in_transaction(&self) -> bool {
        self.lock().is_in_transaction()
    }

    /// Returns the span of the transaction, if the session is in a transaction.
    pub(super) fn span_in_transaction(&self) -> Option<Arc<Span>> {
        self.is_in_transaction().then(|| self.span())?
    }

    /// Ends the span of the transaction, and replaces it.
    pub(super) fn replace_span(&self, span: Option<Arc<Span>>) {
        let last = std::mem::replace(&mut *self.span.lock().unwrap_or_else(PoisonError::into_inner), span);
        // The span ends here, outside the lock.
        drop(last);
    }

    /// Returns the cursors of the current transaction that are still closing.
    pub(super) fn closing(&self) -> Arc<ClosingQueue> {
        self.locked_closing().clone()
    }

    fn locked_closing(&self) -> MutexGuard<'_, Arc<ClosingQueue>> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the transaction's dropped cursors have been closed. Behind a load balancer, they use the
    /// transaction's connection.
    ///
    /// # Errors
    ///
    /// [`SessionError::CursorClosing`] if the running limit expires first.
    pub(super) async fn cursors_closed(&self, limit: Limit) -> Result<(), SessionError> {
        let closing = self.closing();
        // The usual case, without a timer.
        if closing.is_empty() {
            return Ok(());
        }
        self.in_time(limit, closing.empty()).await
    }

    /// Waits for a cursor that is closing.
    ///
    /// # Errors
    ///
    /// [`SessionError::CursorClosing`] if the running limit expires first.
    pub(super) async fn in_time<F: Future>(&self, limit: Limit, closed: F) -> Result<F::Output, SessionError> {
        match limit.deadline() {
            Some((at, _)) => {
                within(at, || self.client.deployment().home(), closed).await.map_err(|_| SessionError::CursorClosing)
            }
            None => Ok(closed.await),
        }
    }

    /// Takes the connection that the transaction is pinned to. If the transaction is pinned to a mongos, returns the
    /// mongos, and the transaction stays pinned. For a cursor, `opened_in` is the transaction that it was opened in: if
    /// a different transaction is open now, nothing is taken.
    ///
    /// # Errors
    ///
    /// [`SessionError::TransactionCutOff`] if another command holds the connection, or has lost it.
    pub(super) fn take_pin(&self, opened_in: Option<i64>) -> Result<Option<Pinned>, SessionError> {
        let mut state = self.lock();
        if opened_in.is_some() && state.open_transaction() != opened_in {
            return Ok(None);
        }
        let taken = state.take_pin()?;
        if let Some(Pinned::Server(address)) = &taken {
            state.pin(Pinned::Server(address.clone()));
        }
        Ok(taken)
    }

    /// Pins the transaction to a connection that leads to a service behind a load balancer. Returns the connection if
    /// it does not lead to such a service, or if the transaction has ended.
    pub(super) fn keep_connection(
        &self,
        server: &Selected,
        mut connection: Connection<Endpoint>,
    ) -> Option<Connection<Endpoint>> {
        if connection.service_id().is_none() {
            return Some(connection);
        }
        connection.pin_to(crate::pool::core::Purpose::Transaction);
        connection_of(self.lock().pin(Pinned::Connection(server.clone(), Box::new(connection))))
    }

    /// Re-pins a cursor's transaction to the connection that the cursor took from it. If the transaction has ended, or
    /// an error unpinned it, the connection is closed, so the server aborts the transaction.
    pub(super) fn pin_again(&self, opened_in: i64, server: &Selected, connection: Connection<Endpoint>) {
        let back = self.lock().pin_again(opened_in, Pinned::Connection(server.clone(), Box::new(connection)));
        if let Some(mut connection) = connection_of(back) {
            connection.close_after_use();
        }
    }
}

fn connection_of(pinned: Option<Pinned>) -> Option<Connection<Endpoint>> {
    match pinned {
        Some(Pinned::Connection(_, connection)) => Some(*connection),
        Some(Pinned::Server(_)) | None => None,
    }
}

/// A call to `with_transaction` in progress, whose time limit applies to all operations in the session.
pub(super) struct LimitedCall {
    explicit: Arc<Explicit>,
    /// The limit of the enclosing call.
    before: Option<Limit>,
}

impl Drop for LimitedCall {
    fn drop(&mut self) {
        *self.explicit.locked_limit() = self.before;
    }
}

/// The session ends when its last user drops it: the application or a cursor.
impl Drop for Explicit {
    fn drop(&mut self) {
        let now = Moment::now();
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = state.end(now) {
            match server.is_to_be_ended() {
                true => self.client.end_later(server.id()),
                false => self.client.sessions().release(server, now, self.client.session_timeout()),
            }
        }
    }
}

impl fmt::Debug for Explicit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Explicit").field(&self.lock().id()).finish()
    }
}

/// The session of an operation.
#[derive(Debug)]
pub(super) enum InSession {
    /// A session for this operation only, taken once its connection is known to support sessions.
    Implicit(Option<ServerSession>),
    /// The application's session.
    Explicit(Arc<Explicit>),
    /// No session, for instance because the server would not report when the session is free again.
    Never,
}

impl InSession {
    /// Returns a transaction number for a write that may be retried, or `None` without a session.
    pub(super) fn next_transaction_number(&mut self) -> Option<i64> {
        match self {
            Self::Implicit(session) => session.as_mut().map(ServerSession::next_transaction_number),
            Self::Explicit(explicit) => Some(explicit.lock().next_transaction_number()),
            Self::Never => None,
        }
    }

    /// Records a failed attempt in the operation's own session.
    pub(super) fn mark_dirty_after(&mut self, fault: &Fault) {
        if let Self::Implicit(Some(session)) = self
            && matches!(fault.kind, FaultKind::Network | FaultKind::Malformed)
        {
            session.mark_dirty();
        }
    }

    /// Records the cluster time and the operation time from a reply.
    pub(super) fn replied<'r>(&self, client: &Client, reply: &'r RawDocument) -> ReplyTimes<'r> {
        let times = ReplyTimes::read(reply);
        let advanced = times.cluster_time.and_then(|time| client.cluster_time().advance(time));
        if let Self::Explicit(explicit) = self {
            explicit.lock().replied(&times, advanced.as_ref());
        }
        times
    }
}

impl Client {
    /// Gives an operation's session back to the pool, if the operation had its own session. `connection` is the
    /// connection of its last command, if available.
    pub(super) fn give_back(&self, session: InSession, connection: Option<&Connection<Endpoint>>) {
        if let InSession::Implicit(Some(session)) = session {
            self.give_back_of(session, connection);
        }
    }

    /// Gives a server session back to the pool. To avoid reading the clock, this uses the time at which the session was
    /// last sent as the current time. If the session has expired since then, the next operation that takes it discards
    /// it.
    #[inline]
    pub(super) fn give_back_of(&self, session: ServerSession, connection: Option<&Connection<Endpoint>>) {
        if session.is_to_be_ended() {
            return self.end_later(session.id());
        }
        let timeout = connection.map_or_else(|| self.session_timeout(), timeout_of);
        let sent = session.last_use();
        self.sessions().release(session, sent, timeout);
    }
}

/// Returns what a session must know about a connection's server.
#[inline]
pub(super) fn known_of(connection: &Connection<Endpoint>) -> SessionServer {
    let hello = connection.hello();
    // The servers behind a load balancer are mongos.
    let is_mongos = hello.role == Role::Mongos || connection.service_id().is_some();
    SessionServer {
        max_wire_version: hello.max_wire_version,
        has_cluster_time: is_mongos || hello.role == Role::Member,
        is_mongos,
        is_load_balanced: connection.service_id().is_some(),
    }
}

/// Returns whether the server supports sessions. Servers behind a load balancer do.
pub(super) fn has_sessions(connection: &Connection<Endpoint>) -> bool {
    connection.hello().logical_session_timeout_minutes.is_some() || connection.service_id().is_some()
}

/// Returns how long the server keeps an idle session. Returns `None` behind a load balancer, where sessions do not
/// expire.
pub(super) fn timeout_of(connection: &Connection<Endpoint>) -> Option<Duration> {
    if connection.service_id().is_some() {
        return None;
    }
    let minutes = connection.hello().logical_session_timeout_minutes?;
    Some(Duration::from_secs(u64::try_from(minutes).ok()?.saturating_mul(60)))
}
