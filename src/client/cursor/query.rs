//! The further commands of a cursor: `getMore` and `killCursors`.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use bson::raw::cstr;
use bson::{RawDocument, RawDocumentBuf, rawdoc};

use super::super::Client;
use super::super::appending::elements;
use super::super::attempts::Attempts;
use super::super::command_events::OperationId;
use super::super::error::{ClientError, FailedOperation};
use super::super::in_flight::InFlight;
use super::super::in_session::{InSession, Pinned};
use super::super::line::{Place, Ticket};
use super::TimeoutMode;
use super::batch::{Batch, collection_of};
use crate::client::deployment::{Background, Demand, Purpose, Selected, Server, WaitLogged};
use crate::client::selection::Access;
use crate::client::session::{ErrorToReport, Fault, FaultKind, Moment, Retryability, SessionError};
use crate::endpoint::options::{ReadPreference, ReadPreferenceMode};
use crate::endpoint::{Command, CommandError, Endpoint, Limit, OperationError};
use crate::pool::error::Labels;
use crate::pool::runtime::boxed;
use crate::pool::runtime::{Connection, within};

/// The errors by which a server says that it has no such cursor any more: CursorNotFound, QueryPlanKilled, CursorKilled.
const ENDED: [i32; 3] = [43, 175, 237];

/// For the selection of a server that is given.
static ANY: ReadPreference = ReadPreference::new(ReadPreferenceMode::Nearest);

/// What a cursor needs for its further commands.
pub(super) struct Query {
    pub(super) client: Client,
    pub(super) server: Arc<Server>,
    pub(super) database: String,
    pub(super) collection: String,
    pub(super) batch_size: Option<i32>,
    /// How long the server waits for new documents. Only for cursors that await data.
    pub(super) max_await_time: Option<Duration>,
    pub(super) comment: Option<RawDocumentBuf>,
    pub(super) is_tailable: bool,
    pub(super) awaits_data: bool,
    pub(super) time: CursorTime,
    pub(super) site: &'static Location<'static>,
    /// Behind a load balancer, the connection that leads to the cursor, unless the transaction has it.
    pub(super) pinned: Option<Connection<Endpoint>>,
    pub(super) session: InSession,
    /// The number of the transaction that the cursor was opened in. The session may have begun another one since.
    pub(super) opened_in: Option<i64>,
    /// Only for a cursor of a transaction behind a load balancer.
    pub(super) ticket: Option<Ticket>,
}

/// The time limits of a cursor (Client Side Operations Timeout, "Cursors").
#[derive(Clone, Copy)]
pub(super) struct CursorTime {
    /// `timeoutMS` of the query.
    pub(super) timeout: Limit,
    pub(super) mode: TimeoutMode,
    /// The limit that has started: of the cursor's whole life, or of the iteration in progress.
    pub(super) running: Option<Limit>,
}

impl CursorTime {
    /// Returns the limit of the iteration in progress. Without one, an iteration begins.
    fn of_iteration(&mut self) -> Limit {
        *self.running.get_or_insert_with(|| self.timeout.start())
    }

    /// Ends an iteration.
    pub(super) fn end_iteration(&mut self) {
        if self.mode == TimeoutMode::Iteration {
            self.running = None;
        }
    }
}

/// A command of a cursor.
struct OfCursor<'a> {
    body: &'a RawDocument,
    limit: Limit,
    retryability: Retryability,
    /// The elements that the cursor appends, without those of the session.
    appended: Vec<u8>,
    /// How long the server waits for documents.
    max_await_time: Option<Duration>,
    /// Whether the command closes the cursor.
    closes: bool,
}

impl Query {
    /// Fetches the next batch, after a pause. The kind is that of the last failure.
    pub(super) async fn fetch(mut self, id: i64, pause: Duration) -> (Self, Result<Batch, (ClientError, FaultKind)>) {
        if !pause.is_zero() {
            let limit = self.time.of_iteration();
            // There has to be time for the command.
            self.client.pause(limit.left().map_or(pause, |left| pause.min(left / 4))).await;
        }
        let fetched = self.get_more(id).await;
        (self, fetched)
    }

    async fn get_more(&mut self, id: i64) -> Result<Batch, (ClientError, FaultKind)> {
        let mut body = RawDocumentBuf::new();
        body.append(cstr!("getMore"), id);
        body.append(cstr!("collection"), self.collection.as_str());
        if let Some(size) = self.batch_size.filter(|&size| size != 0) {
            body.append(cstr!("batchSize"), size);
        }
        let get_more = OfCursor {
            body: &body,
            limit: self.time.of_iteration(),
            retryability: Retryability::OtherRead,
            appended: self.comment.as_deref().map_or(Vec::new(), |comment| elements(comment).to_vec()),
            max_await_time: self.max_await_time,
            closes: false,
        };
        let reply = self.run(get_more).await?;
        if let Some(collection) = collection_of(&reply)
            && collection != self.collection
        {
            self.collection = collection.to_owned();
        }
        Batch::read(reply, "nextBatch").map_err(|error| (error, FaultKind::Malformed))
    }

    /// Returns what can close the cursor beside the `getMore` in flight, where the server would wait for documents.
    ///
    /// `None` if the connection of that command is the only one that leads to the cursor, or if its session is in a
    /// transaction, which has one command at a time.
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
            ticket: self.ticket.clone(),
            ..*self
        })
    }

    /// Closes the cursor on the server (`killCursors`), and gives back what the cursor has. `timeout` replaces `timeoutMS`
    /// of the query, which is refreshed otherwise. `place`: that of the cursor, if it has one.
    pub(super) async fn close(mut self, id: i64, timeout: Option<Limit>, place: Option<Place>) {
        let limit = timeout.map_or_else(|| self.time.timeout.refreshed(), Limit::start);
        if self.has_ended_with_transaction() {
            return self.end();
        }
        let place = place.or_else(|| self.ticket.as_ref().map(Ticket::line_up));
        if let (InSession::Explicit(explicit), Some(place)) = (&self.session, &place) {
            if let Err(error) = boxed(|| explicit.in_time(limit, place.first())).await {
                tracing::debug!(target: "wharf::command", %error, "A cursor could not be closed");
                return self.end();
            }
            if self.has_ended_with_transaction() {
                return self.end();
            }
        }
        let body = rawdoc! { "killCursors": self.collection.as_str(), "cursors": [id] };
        let kill = || OfCursor {
            body: &body,
            limit,
            retryability: Retryability::Command,
            appended: Vec::new(),
            max_await_time: None,
            closes: true,
        };
        let mut killed = self.run(kill()).await;
        if let Err((_, FaultKind::PoolCleared)) = &killed
            && self.is_known_again(limit).await
        {
            killed = self.run(kill()).await;
        }
        if let Err((error, _)) = killed {
            // The server closes an idle cursor after ten minutes.
            tracing::debug!(target: "wharf::command", %error, "A cursor could not be closed");
        }
        self.end();
    }

    /// Returns whether nothing leads to the cursor any more: behind a load balancer, that was the connection to which its
    /// transaction was pinned.
    fn has_ended_with_transaction(&self) -> bool {
        let (InSession::Explicit(explicit), Some(_)) = (&self.session, &self.ticket) else { return false };
        let state = explicit.lock();
        state.open_transaction() != self.opened_in || !state.is_pinned()
    }

    /// Closes the cursor after a command that fetched a batch, unless it has ended by itself.
    pub(super) async fn close_after(
        mut self,
        id: i64,
        fetched: Result<Batch, ClientError>,
        timeout: Option<Limit>,
        place: Option<Place>,
    ) {
        let is_open = match fetched {
            Ok(batch) => batch.id != 0,
            Err(error) => self.may_be_open_after(&error),
        };
        if is_open { self.close(id, timeout, place).await } else { self.end() }
    }

    /// Returns whether the server may have the cursor after this error, and can be told to close it.
    pub(super) fn may_be_open_after(&self, error: &ClientError) -> bool {
        match error.server_error() {
            Some(error) => !ENDED.contains(&error.code),
            // If the cursor's own connection is lost, it took the cursor along.
            None => self.pinned.as_ref().is_none_or(|connection| connection.condition().is_reusable()),
        }
    }

    /// Waits until the server is known again, after its pool was cleared because of a network error. The wait ends with
    /// `serverSelectionTimeoutMS`, or earlier with the limit. A client on a single thread does not wait: a call would.
    async fn is_known_again(&self, limit: Limit) -> bool {
        if matches!(self.client.deployment().background(), Some(Background::Kept(_))) {
            return false;
        }
        let purpose = Purpose::Named("killCursors", None);
        let only = Some(&self.server.address);
        let wait_logged = &WaitLogged::new();
        let demand = Demand { access: Access::Read(&ANY), deprioritized: &[], only, purpose, wait_logged };
        match self.client.deployment().select(demand, limit.deadline()).await {
            Ok(selected) => Arc::ptr_eq(selected.server(), &self.server),
            Err(_) => false,
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

    /// Runs a command of the cursor on its server, in its session. Repeats it while the server is overloaded. The kind is
    /// that of the last failure.
    async fn run(&mut self, of_cursor: OfCursor<'_>) -> Result<RawDocumentBuf, (ClientError, FaultKind)> {
        let client = self.client.clone();
        let mut attempts = Attempts::new(&client, of_cursor.retryability, of_cursor.limit);
        let id = client.command_events().operation();
        let mut to_report = None;
        loop {
            let (error, fault) = match self.attempt(&of_cursor, id).await {
                Ok(reply) => return Ok(reply),
                Err(failed) => *failed,
            };
            let report = ErrorToReport::after(to_report.take(), error, fault.reached_a_server());
            // A cursor stays on its server, so no server is avoided.
            if !attempts.goes_on(&fault, fault.labels, None).await {
                return Err((attempts.report(report.into_error()), fault.kind));
            }
            to_report = Some(report);
        }
    }

    async fn attempt(
        &mut self,
        of_cursor: &OfCursor<'_>,
        id: OperationId,
    ) -> Result<RawDocumentBuf, Box<(ClientError, Fault)>> {
        let OfCursor { body, limit, closes, .. } = *of_cursor;
        let round_trip = self.server.least_round_trip();
        let mut appended = of_cursor.appended.clone();
        self.append_session(&mut appended);
        let events = self.client.command_events();
        // The last connection that had been created when the first one was found lost.
        let mut last_old = None;
        let pool = &self.server.pool;
        let without_max_time = appended.len();
        loop {
            // The cursor's own connection first: the transaction may be a later one, on another connection.
            let own = self.pinned.take();
            let of_transaction = match own.is_none() {
                true => boxed(|| self.pinned_to_transaction(closes, limit)).await.map_err(refused)?,
                false => None,
            };
            let is_pinned = own.is_some() || of_transaction.is_some();
            let (mut connection, transaction_server) = match (own, of_transaction) {
                (Some(connection), _) => (connection, None),
                (None, Some((server, connection))) => (connection, Some(server)),
                (None, None) => {
                    let selection_end = self.client.selection_end(limit);
                    if let Some(check) = self.client.deployment().check_if_idle(&self.server) {
                        // If the time is up, there is no connection in time either.
                        match limit.deadline() {
                            Some((at, _)) => drop(within(at, || None, check).await),
                            None => check.await,
                        }
                    }
                    match pool.check_out_for(limit, selection_end, self.site).await {
                        Ok(connection) => (connection, None),
                        Err(error) => return Err(self.failed(error)),
                    }
                }
            };
            appended.truncate(without_max_time);
            if let Some(longest) = of_cursor.max_await_time {
                append_max_await_time(&mut appended, longest, limit, round_trip);
            }
            let command = Command::new(&self.database, body).within(limit).appended(&appended);
            let command = command.round_trip_time(round_trip);
            let command = if closes { command } else { command.without_max_time() };
            connection.close_if_cut_short(transaction_server.is_some());
            let in_flight = InFlight::new(&self.client, &mut connection, &mut self.session);
            let outcome = events.run(in_flight.connection, command, id).await;
            in_flight.ended();
            if connection.condition().is_reusable() {
                connection.close_if_cut_short(false);
            }
            if let Err(OperationError::Command(CommandError::Lost { .. })) = &outcome
                && !is_pinned
                && connection.id() <= *last_old.get_or_insert_with(|| pool.last_created())
            {
                pool.count_retry();
                continue;
            }
            self.client.learn_from(&self.server, &connection, &outcome, false);
            if is_pinned {
                self.pin_again(connection, transaction_server);
            }
            return match outcome {
                Ok(reply) => {
                    let times = self.session.replied(&self.client, &reply);
                    if let InSession::Explicit(explicit) = &self.session {
                        explicit.lock().cursor_succeeded(&times, self.opened_in);
                    }
                    Ok(reply)
                }
                Err(error) => {
                    let reply = error.command_error().and_then(CommandError::server_error).map(|error| &error.reply);
                    if let Some(reply) = reply {
                        self.session.replied(&self.client, reply);
                    }
                    Err(self.failed(error))
                }
            };
        }
    }

    fn append_session(&mut self, appended: &mut Vec<u8>) {
        let time = self.client.cluster_time().load();
        let now = Moment::now();
        match &mut self.session {
            InSession::Implicit(Some(session)) => {
                session.append_to(appended, now);
                if let Some(time) = time.as_deref() {
                    time.append_to(appended);
                }
            }
            InSession::Explicit(explicit) => {
                explicit.lock().append_to_cursor(appended, now, time.as_deref(), self.opened_in)
            }
            InSession::Implicit(None) | InSession::Never => {}
        }
    }

    /// Takes the connection that the cursor's transaction is pinned to, if that is still open. `closes`: for the command
    /// that closes the cursor.
    async fn pinned_to_transaction(
        &self,
        closes: bool,
        limit: Limit,
    ) -> Result<Option<(Selected, Connection<Endpoint>)>, SessionError> {
        let (InSession::Explicit(explicit), Some(_)) = (&self.session, self.opened_in) else { return Ok(None) };
        if let Some(ticket) = &self.ticket
            && !closes
            && !explicit.in_time(limit, ticket.is_alone()).await?
        {
            // The cursor was dropped. Its batch is not needed any more.
            return Err(SessionError::CursorClosing);
        }
        let pin = explicit.take_pin(self.opened_in)?;
        Ok(match pin {
            Some(Pinned::Connection(server, connection)) => Some((server, *connection)),
            Some(Pinned::Server(_)) | None => None,
        })
    }

    /// Pins the connection to the cursor, or to the transaction that it was taken from, on this server.
    fn pin_again(&mut self, connection: Connection<Endpoint>, transaction_server: Option<Selected>) {
        match (&self.session, self.opened_in, transaction_server) {
            (InSession::Explicit(explicit), Some(number), Some(server)) => {
                explicit.pin_again(number, &server, connection)
            }
            _ => self.pinned = Some(connection),
        }
    }

    /// Notes a failed attempt in the session, and returns its error with the labels that the client adds.
    fn failed(&mut self, error: OperationError) -> Box<(ClientError, Fault)> {
        let fault = Fault::of_error(&error, true);
        let mut labels = Labels::NONE;
        match &mut self.session {
            InSession::Implicit(Some(session)) if matches!(fault.kind, FaultKind::Network | FaultKind::Malformed) => {
                session.mark_dirty()
            }
            InSession::Explicit(explicit) => {
                let consequence = explicit.lock().cursor_failed(&fault, self.opened_in);
                labels = consequence.labels;
                drop(consequence.unpinned);
            }
            _ => {}
        }
        Box::new((FailedOperation::operation(error, labels).into(), fault))
    }
}

/// A cursor that is dropped without having been closed gives back what it has.
impl Drop for Query {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the failure of a command that the session refused.
fn refused(error: SessionError) -> Box<(ClientError, Fault)> {
    let fault = Fault::new(FaultKind::Client, error.labels());
    Box::new((error.into(), fault))
}

/// Appends how long the server waits for documents: the time that was asked for, or less if less is left
/// ("Tailable awaitData Cursors").
fn append_max_await_time(appended: &mut Vec<u8>, longest: Duration, limit: Limit, round_trip: Duration) {
    let left = limit.left().map_or(longest, |left| left.saturating_sub(round_trip).min(longest));
    // Rounded up, because 0 means no limit.
    let milliseconds = i64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX);
    appended.extend_from_slice(elements(&rawdoc! { "maxTimeMS": milliseconds }));
}
