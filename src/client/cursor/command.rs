//! The commands of an open cursor, which the engine runs on the cursor's server and in the cursor's session.

use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf, rawdoc};

use super::super::Client;
use super::super::appending::append_elements;
use super::super::command_events::Observation;
use super::super::engine::{self, Attempted, Common, GivenUp, Target, Tried, refused};
use super::super::in_session::{InSession, Pinned};
use super::super::spans::Described;
use super::server_cursor::ServerCursor;
use crate::client::deployment::{Selected, Server};
use crate::client::session::SessionError;
use crate::client::session::{Fault, Moment, ReplyTimes, Retryability, SessionServer};
use crate::endpoint::options::ServerAddress;
use crate::endpoint::{Command, Endpoint, Limit};
use crate::pool::error::Labels;
use crate::pool::runtime::{Connection, within};
use crate::text::milliseconds::limit_for_server;

/// A cursor's command that is in progress.
pub(super) struct OfCursor<'a> {
    cursor: &'a mut ServerCursor,
    observation: Observation,
    body: &'a RawDocument,
    limit: Limit,
    /// Whether the command closes the cursor.
    closes: bool,
    from: TakenFrom,
}

/// Where an attempt's connection comes from.
enum TakenFrom {
    Pool,
    /// From the cursor itself.
    Cursor,
    /// From the cursor's transaction, which is pinned to this server.
    Transaction(Selected),
}

impl<'a> OfCursor<'a> {
    pub(super) fn new(cursor: &'a mut ServerCursor, body: &'a RawDocument, limit: Limit, closes: bool) -> Self {
        let observation = cursor.client.command_events().operation(|| Described {
            transaction: cursor.transaction_span(),
            site: Some(cursor.site),
            ..Described::of(&cursor.database, body)
        });
        Self { cursor, observation, body, limit, closes, from: TakenFrom::Pool }
    }

    /// Runs the command, and returns the server's successful reply.
    pub(super) async fn run(mut self) -> Result<RawDocumentBuf, GivenUp> {
        let observation = self.observation.clone();
        let replied = pin!(async { Ok(engine::run(&mut self).await?.0.reply) });
        observation.within(replied).await
    }
}

impl Attempted for OfCursor<'_> {
    /// A cursor's command does not count as an operation in progress on the server.
    type Server = Arc<Server>;

    fn common(&self) -> Common<'_> {
        let Self { cursor, observation, limit, .. } = self;
        Common { client: &cursor.client, observation, limit: *limit, site: cursor.site }
    }

    fn session(&mut self) -> (&mut InSession, &Client) {
        (&mut self.cursor.session, &self.cursor.client)
    }

    fn select_at_once(&self, _avoid: &[ServerAddress]) -> Option<Arc<Server>> {
        let is_free = self.cursor.pinned.is_none() && self.cursor.opened_in.is_none();
        (is_free && !self.cursor.client.deployment().scans()).then(|| self.cursor.server.clone())
    }

    async fn select(&mut self, _avoid: &[ServerAddress]) -> Tried<Target<Arc<Server>>, Self> {
        let server = self.cursor.server.clone();
        // The cursor's own connection comes first, because the session may be in a later transaction, on a different
        // connection.
        if let Some(own) = self.cursor.pinned.take() {
            self.from = TakenFrom::Cursor;
            return Ok((server, Some(own)));
        }
        if let InSession::Explicit(explicit) = &self.cursor.session
            && self.cursor.opened_in.is_some()
        {
            if let Some(queue_number) = self.cursor.queue_number.as_ref().filter(|_| !self.closes)
                && !explicit.in_time(self.limit, queue_number.is_alone()).await.map_err(refused)?
            {
                // The cursor was dropped. Its batch is no longer needed.
                return Err(refused(SessionError::CursorClosing));
            }
            // The connection is taken only while the transaction is open.
            if let Some(Pinned::Connection(selected, connection)) =
                explicit.take_pin(self.cursor.opened_in).map_err(refused)?
            {
                self.from = TakenFrom::Transaction(selected);
                return Ok((server, Some(*connection)));
            }
        }
        if let Some(check) = self.cursor.client.deployment().check_if_idle(&server) {
            // If the time runs out here, the attempt continues, and fails with an error about the missing connection.
            match self.limit.deadline() {
                Some((at, _)) => drop(within(at, || None, check).await),
                None => check.await,
            }
        }
        Ok((server, None))
    }

    fn may_reconnect(&self) -> bool {
        true
    }

    fn append(
        &mut self,
        to: &mut Vec<u8>,
        _connection: &Connection<Endpoint>,
        _known: SessionServer,
    ) -> Tried<(), Self> {
        let ServerCursor { client, server, session, comment, max_await_time, opened_in, .. } = &mut *self.cursor;
        if let Some(comment) = comment.as_deref().filter(|_| !self.closes) {
            append_elements(to, comment);
        }
        let time = client.cluster_time().load();
        let now = Moment::now();
        match session {
            InSession::Implicit(Some(session)) => {
                session.append_to(to, now);
                if let Some(time) = time.as_deref() {
                    time.append_to(to);
                }
            }
            InSession::Explicit(explicit) => explicit.lock().append_to_cursor(to, now, time.as_deref(), *opened_in),
            InSession::Implicit(None) | InSession::Never => {}
        }
        if let Some(longest) = max_await_time.filter(|_| !self.closes) {
            append_max_await_time(to, longest, self.limit, server.least_round_trip());
        }
        Ok(())
    }

    fn closes_if_cut_short(&self, _known: SessionServer) -> bool {
        !matches!(self.from, TakenFrom::Pool)
    }

    fn command(&self) -> Command<'_> {
        let command = Command::new(&self.cursor.database, self.body).within(self.limit);
        if self.closes { command } else { command.without_max_time() }
    }

    fn replied(&self, times: &ReplyTimes<'_>) {
        if let InSession::Explicit(explicit) = &self.cursor.session {
            explicit.lock().cursor_succeeded(times, self.cursor.opened_in);
        }
    }

    fn may_write(&self) -> bool {
        false
    }

    /// Pins the connection again to the cursor or to the transaction that it was taken from.
    fn keep(&mut self, _server: &Arc<Server>, connection: Connection<Endpoint>) -> Option<Connection<Endpoint>> {
        match (mem::replace(&mut self.from, TakenFrom::Pool), &self.cursor.session, self.cursor.opened_in) {
            (TakenFrom::Pool, ..) => return Some(connection),
            (TakenFrom::Transaction(server), InSession::Explicit(explicit), Some(number)) => {
                explicit.pin_again(number, &server, connection)
            }
            (TakenFrom::Transaction(_) | TakenFrom::Cursor, ..) => self.cursor.pinned = Some(connection),
        }
        None
    }

    fn note(&mut self, fault: &Fault, _known: Option<SessionServer>) -> Labels {
        let opened_in = self.cursor.opened_in;
        match &mut self.cursor.session {
            // The failure is not reported to the application, and its transaction can continue.
            InSession::Explicit(explicit) if self.closes => explicit.note(|state| state.failed_beside(fault)),
            InSession::Explicit(explicit) => explicit.note(|state| state.cursor_failed(fault, opened_in)),
            session => {
                session.mark_dirty_after(fault);
                fault.labels
            }
        }
    }

    fn retryability(&self) -> Retryability {
        if self.closes { Retryability::Command } else { Retryability::OtherRead }
    }
}

/// Appends the time for which the server waits for documents: the requested time, but at most the time left ("Tailable
/// awaitData Cursors").
fn append_max_await_time(appended: &mut Vec<u8>, longest: Duration, limit: Limit, round_trip: Duration) {
    let left = limit.left().map_or(longest, |left| left.saturating_sub(round_trip).min(longest));
    append_elements(appended, &rawdoc! { "maxTimeMS": limit_for_server(left) });
}
