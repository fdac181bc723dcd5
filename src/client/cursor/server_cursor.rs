//! The commands that follow a cursor's query: `getMore` and `killCursors`.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use bson::raw::cstr;
use bson::{RawDocumentBuf, rawdoc};

use super::super::Client;
use super::super::closing_queue::{QueueGuard, QueueNumber};
use super::super::engine::GivenUp;
use super::super::error::ClientError;
use super::super::in_session::InSession;
use super::super::spans::Span;
use super::Fetching;
use super::batch::{Batch, collection_of};
use super::command::OfCursor;
use super::time::CursorTime;
use crate::client::deployment::{Background, Demand, LoggedOperation, Server, WaitLogged};
use crate::client::selection::Access;
use crate::client::session::FaultKind;
use crate::endpoint::options::{ReadPreference, ReadPreferenceMode};
use crate::endpoint::{Endpoint, Limit};
use crate::pool::core::Purpose;
use crate::pool::error::Labels;
use crate::pool::runtime::{Connection, boxed};

/// The codes of the errors that mean that the cursor no longer exists: CursorNotFound, QueryPlanKilled, CursorKilled.
const ENDED: [i32; 3] = [43, 175, 237];

/// The read preference for a selection whose server is already determined.
static ANY: ReadPreference = ReadPreference::new(ReadPreferenceMode::Nearest);

/// A cursor on its server, with everything that its later commands need.
pub(super) struct ServerCursor {
    pub(super) client: Client,
    pub(super) server: Arc<Server>,
    pub(super) database: String,
    pub(super) collection: String,
    pub(super) batch_size: Option<i32>,
    /// How long the server waits for new documents. Applies only to cursors that await data.
    pub(super) max_await_time: Option<Duration>,
    pub(super) comment: Option<RawDocumentBuf>,
    pub(super) is_tailable: bool,
    pub(super) awaits_data: bool,
    pub(super) time: CursorTime,
    pub(super) site: &'static Location<'static>,
    /// Behind a load balancer, the connection through which the cursor is reached, unless the transaction holds it.
    pub(super) pinned: Option<Connection<Endpoint>>,
    pub(super) session: InSession,
    /// The number of the transaction that the cursor was opened in. The session may have begun a new transaction since.
    pub(super) opened_in: Option<i64>,
    /// Set for a cursor in a transaction behind a load balancer.
    pub(super) queue_number: Option<QueueNumber>,
}

impl ServerCursor {
    /// Keeps the query's connection, if the cursor can be reached only through this connection. A cursor that was
    /// exhausted by its first batch gives back its session.
    pub(super) fn opened_on(mut self, connection: Option<Connection<Endpoint>>, id: i64) -> Self {
        if id == 0 {
            self.end_on(connection.as_ref());
        } else if let Some(mut connection) = connection
            && connection.service_id().is_some()
        {
            // Behind a load balancer (Load Balancers, "Connection Pinning").
            connection.pin_to(Purpose::Cursor);
            self.pinned = Some(connection);
        }
        self
    }

    /// Fetches the next batch, after a pause.
    pub(super) fn fetch(mut self, id: i64, pause: Duration) -> Fetching {
        Box::pin(async move {
            if !pause.is_zero() {
                let limit = self.time.of_iteration();
                // The pause must leave enough time for the command.
                self.client.pause(limit.left().map_or(pause, |left| pause.min(left / 4))).await;
            }
            let fetched = self.get_more(id).await;
            (self, fetched)
        })
    }

    async fn get_more(&mut self, id: i64) -> Result<Batch, GivenUp> {
        let mut body = RawDocumentBuf::new();
        body.append(cstr!("getMore"), id);
        body.append(cstr!("collection"), self.collection.as_str());
        if let Some(size) = self.batch_size.filter(|&size| size != 0) {
            body.append(cstr!("batchSize"), size);
        }
        let limit = self.time.of_iteration();
        let reply = OfCursor::new(self, &body, limit, false).run().await?;
        if let Some(collection) = collection_of(&reply)
            && collection != self.collection
        {
            self.collection = collection.to_owned();
        }
        let unreadable = |error| GivenUp { error, kind: FaultKind::Malformed, labels: Labels::NONE };
        Batch::read(reply, "nextBatch").map_err(unreadable)
    }

    /// Returns a copy that can close the cursor while a `getMore` is in flight, if the server would wait for documents.
    ///
    /// Returns `None` if the cursor can be reached only through that `getMore`'s connection. Also returns `None` if the
    /// session is in a transaction, because a transaction runs one command at a time.
    pub(super) fn closer(&self) -> Option<Self> {
        if !self.awaits_data || self.pinned.is_some() {
            return None;
        }
        let session = match &self.session {
            InSession::Explicit(explicit) if explicit.lock().is_in_transaction() => return None,
            InSession::Explicit(explicit) => InSession::Explicit(explicit.clone()),
            InSession::Implicit(session) => InSession::Implicit(session.as_ref().map(|session| session.copy())),
            InSession::Never => InSession::Never,
        };
        Some(Self {
            client: self.client.clone(),
            server: self.server.clone(),
            database: self.database.clone(),
            collection: self.collection.clone(),
            comment: None,
            pinned: None,
            session,
            queue_number: self.queue_number.clone(),
            ..*self
        })
    }

    /// Closes the cursor on the server (`killCursors`), and gives back the cursor's connection and session. `timeout`
    /// replaces the query's `timeoutMS`, which otherwise starts again. `guard` is the cursor's place in its
    /// transaction's queue, if the cursor has already joined the queue.
    pub(super) async fn close(mut self, id: i64, timeout: Option<Limit>, guard: Option<QueueGuard>) {
        let limit = timeout.map_or_else(|| self.time.timeout.refreshed(), Limit::start);
        if self.has_ended_with_transaction() {
            return self.end();
        }
        let guard = guard.or_else(|| self.queue_number.as_ref().map(QueueNumber::queue_up));
        if let (InSession::Explicit(explicit), Some(guard)) = (&self.session, &guard) {
            if let Err(error) = boxed(|| explicit.in_time(limit, guard.first())).await {
                tracing::debug!(target: "wharf::command", %error, "A cursor could not be closed");
                return self.end();
            }
            if self.has_ended_with_transaction() {
                return self.end();
            }
        }
        let body = rawdoc! { "killCursors": self.collection.as_str(), "cursors": [id] };
        let mut killed = OfCursor::new(&mut self, &body, limit, true).run().await;
        if let Err(GivenUp { kind: FaultKind::PoolCleared, .. }) = &killed
            && self.is_known_again(limit).await
        {
            killed = OfCursor::new(&mut self, &body, limit, true).run().await;
        }
        if let Err(GivenUp { error, .. }) = killed {
            // The server closes an idle cursor after ten minutes.
            tracing::debug!(target: "wharf::command", %error, "A cursor could not be closed");
        }
        self.end();
    }

    /// Returns whether the cursor can no longer be reached. Behind a load balancer, a transaction's cursor can be
    /// reached only through the connection that the transaction is pinned to.
    fn has_ended_with_transaction(&self) -> bool {
        let (InSession::Explicit(explicit), Some(_)) = (&self.session, &self.queue_number) else { return false };
        let state = explicit.lock();
        state.open_transaction() != self.opened_in || !state.is_pinned()
    }

    /// Closes the cursor after a command that fetched a batch, unless the server has already closed it.
    pub(super) async fn close_after(
        mut self,
        id: i64,
        fetched: Result<Batch, ClientError>,
        timeout: Option<Limit>,
        guard: Option<QueueGuard>,
    ) {
        let is_open = match fetched {
            Ok(batch) => batch.id != 0,
            Err(error) => self.may_be_open_after(&error),
        };
        if is_open { self.close(id, timeout, guard).await } else { self.end() }
    }

    /// Returns whether the server may still have the cursor after this error, and can be told to close it.
    pub(super) fn may_be_open_after(&self, error: &ClientError) -> bool {
        match error.server_error() {
            Some(error) => !ENDED.contains(&error.code),
            // If the cursor's own connection is lost, the cursor is gone too.
            None => self.pinned.as_ref().is_none_or(|connection| connection.condition().is_reusable()),
        }
    }

    /// Waits until the server is known again after a network error cleared its pool, and returns whether it is. The
    /// wait ends after `serverSelectionTimeoutMS`, or earlier if `limit` expires. A client on a single thread does not
    /// wait, because this would block the application's call.
    async fn is_known_again(&self, limit: Limit) -> bool {
        if matches!(self.client.deployment().background(), Some(Background::Kept(_))) {
            return false;
        }
        let operation = LoggedOperation::Named("killCursors", None);
        let only = Some(&self.server.address);
        let wait_logged = &WaitLogged::new();
        let demand = Demand { access: Access::Read(&ANY), deprioritized: &[], only, operation, wait_logged };
        match self.client.deployment().select(demand, limit.deadline()).await {
            Ok(selected) => Arc::ptr_eq(selected.server(), &self.server),
            Err(_) => false,
        }
    }

    /// Returns the span of the transaction that the cursor was opened in, while that transaction is open.
    pub(super) fn transaction_span(&self) -> Option<Arc<Span>> {
        match &self.session {
            InSession::Explicit(explicit) if self.opened_in.is_some() => explicit.span_in_transaction(),
            _ => None,
        }
    }

    /// Gives back the connection and the session.
    pub(super) fn end(&mut self) {
        let pinned = self.pinned.take();
        self.end_on(pinned.as_ref());
    }

    /// Gives back the session, after a command on this connection.
    pub(super) fn end_on(&mut self, connection: Option<&Connection<Endpoint>>) {
        let session = std::mem::replace(&mut self.session, InSession::Never);
        self.client.give_back(session, connection);
    }
}

/// A cursor that is dropped without being closed gives back its connection and session.
impl Drop for ServerCursor {
    fn drop(&mut self) {
        self.end();
    }
}
