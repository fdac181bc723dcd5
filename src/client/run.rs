//! Running an operation: selection, check-out, command, session, retries.

mod appended;
mod failing;
mod selecting;

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf};

use super::Client;
use super::appending::{SplitReadConcern, has_field, session_use, without};
use super::attempts::Attempts;
use super::command_events::OperationId;
use super::error::{ClientError, FailedOperation};
use super::in_flight::InFlight;
use super::in_session::{Explicit, InSession};
use super::operation::{Kind, Operation};
use super::session_handle::known_of;
use super::write::{WriteFailure, is_unacknowledged};
use crate::client::deployment::{Selected, Server, WaitLogged};
use crate::client::session::{
    ErrorToReport, Fault, ReplyTimes, Retryability, SessionError, SessionServer, has_no_reply, is_retryable_write,
    writes_its_result,
};
use crate::endpoint::options::{InvalidOption, ServerAddress};
use crate::endpoint::wire::reply::{self, whole_number};
use crate::endpoint::{Command, CommandError, Endpoint, Limit, OperationError, StateChange};
use crate::pool::error::{CheckOutError, Labels};
use crate::pool::runtime::Connection;
use crate::pool::runtime::boxed;

impl Client {
    /// Runs `command` on `database`, on the primary, and returns the server's successful reply. Short for
    /// [`run`](Self::run) with [`Operation::new`].
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// That of [`run`](Self::run).
    #[track_caller]
    pub fn run_command<'c>(
        &'c self,
        database: &'c str,
        command: &'c RawDocument,
    ) -> impl Future<Output = Result<RawDocumentBuf, ClientError>> + Send + 'c {
        self.run_at(Operation::new(database, command), Location::caller())
    }

    /// Runs an operation on a server that it selects, and returns the server's successful reply.
    ///
    /// A write that was executed, but not with the write concern that it asked for, is an error:
    /// [`ClientError::write_concern_error`] has the reply. This is so for [`Operation::write`], and for an aggregation of
    /// [`Operation::read`] that writes its result (Read and Write Concern, "Errors"). If the server refused statements of an
    /// [`Operation::write`] (`writeErrors`), the error is [`ClientError::Write`]. Of [`Operation::new`], the reply is
    /// returned as it is, and the caller looks for both fields: the client does not look into it.
    ///
    /// With the write concern `w: 0`, the server does not answer `insert`, `update`, `delete` and `bulkWrite`, and the
    /// reply is `{ ok: 1 }`. It answers all other commands.
    ///
    /// The client adds `lsid` and what else the session calls for, `$clusterTime`, `$readPreference`, and the read
    /// concern and write concern of the options. The command's document must not have `lsid`, `txnNumber` and
    /// `$clusterTime`.
    ///
    /// # Errors
    ///
    /// [`ClientError`] tells how far the operation came.
    ///
    /// # Cancel safety
    ///
    /// That of [`Pool::run`](crate::Pool::run): nothing is lost, and whether the server executes the command is unknown.
    /// The operation's server session is used again when the connection has been drained. If it is closed instead, the session is
    /// ended on the server (`endSessions`), in the background.
    /// For an operation of a transaction behind a load balancer, see [`Session`](super::Session#cancel-safety).
    #[track_caller]
    pub fn run<'c>(
        &'c self,
        operation: impl Into<Operation<'c>>,
    ) -> impl Future<Output = Result<RawDocumentBuf, ClientError>> + Send + 'c {
        self.run_at(operation.into(), Location::caller())
    }

    /// Runs an operation for the caller at `site`.
    pub(crate) fn run_at<'c>(
        &'c self,
        operation: Operation<'c>,
        site: &'static Location<'static>,
    ) -> impl Future<Output = Result<RawDocumentBuf, ClientError>> + Send + 'c {
        // Made here, and not in the future, which would keep the arguments as well.
        let mut running = Running::new(self, operation, site);
        async move {
            running.begin()?;
            match running.attempt(&[]).await {
                Ok(Reached { reply, connection, server }) => {
                    running.give_back(connection.as_ref());
                    running.checked(reply, &server)
                }
                Err(failed) => boxed(|| running.reply_after(failed)).await,
            }
        }
    }

    /// Runs an operation, and returns its reply with the connection that it came on and the session that it used.
    pub(super) async fn answer(
        &self,
        operation: Operation<'_>,
        site: &'static Location<'static>,
    ) -> Result<Answer, ClientError> {
        let mut running = Running::new(self, operation, site);
        running.begin()?;
        match running.attempt(&[]).await {
            Ok(reached) => Ok(running.answer(reached)),
            Err(failed) => boxed(|| running.go_on_after(failed)).await,
        }
    }

    /// Returns the time limit of an operation, as it is: its own, that of its session, or that of the options.
    ///
    /// # Errors
    ///
    /// [`SessionError::TimeoutInTransaction`].
    #[inline]
    pub(super) fn timeout_of(&self, session: Option<&Explicit>, command: &Command<'_>) -> Result<Limit, SessionError> {
        let of_session = match session {
            Some(explicit) => explicit.limit_of(command.own_limit())?,
            None => None,
        };
        Ok(of_session.unwrap_or_else(|| command.unstarted_limit(self.options())))
    }

    /// Applies what the outcome of a command says about the server.
    pub(super) fn learn_from(
        &self,
        server: &Server,
        connection: &Connection<Endpoint>,
        outcome: &Result<RawDocumentBuf, OperationError>,
        may_write: bool,
    ) {
        match outcome {
            // Only the reply to a write can have a state change.
            Ok(reply) if may_write && has_write_concern_error(reply) => {
                self.learn_from_unmet_concern(server, connection, reply);
            }
            Ok(_) => {}
            Err(error) => self.deployment().operation_failed(server, error),
        }
    }

    /// Applies what a successful reply says about the server in its `writeConcernError`.
    #[cold]
    fn learn_from_unmet_concern(&self, server: &Server, connection: &Connection<Endpoint>, reply: &RawDocument) {
        if let Some(change) = StateChange::of_reply(reply) {
            let (generation, service_id) = (connection.generation(), connection.service_id());
            self.deployment().state_changed(server, change, reply, generation, service_id);
        }
    }
}

/// The outcome of an operation.
pub(super) struct Answer {
    pub(super) reply: RawDocumentBuf,
    /// `None` if the connection is pinned to the session's transaction.
    pub(super) connection: Option<Connection<Endpoint>>,
    pub(super) server: Selected,
    pub(super) session: InSession,
    /// Set if the reply is that of a write whose write concern was not met.
    pub(super) unmet: Option<UnmetConcern>,
    /// Whether the server has answered. If not, nothing is known of the write.
    pub(super) is_acknowledged: bool,
}

/// What is known about a write whose write concern was not met, besides its reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnmetConcern {
    pub(super) labels: Labels,
    /// Whether a time limit is the reason: `timeoutMS`, or what the server was told of it.
    pub(super) is_timeout: bool,
}

/// What a successful attempt has brought.
struct Reached {
    reply: RawDocumentBuf,
    /// `None` if the connection is pinned to the session's transaction.
    connection: Option<Connection<Endpoint>>,
    server: Selected,
}

/// An operation in progress.
struct Running<'a> {
    client: &'a Client,
    operation: Operation<'a>,
    id: OperationId,
    site: &'static Location<'static>,
    session: InSession,
    /// Whether the write concern is `w: 0`.
    is_unacknowledged: bool,
    /// Whether the server does not answer, because of that.
    has_no_reply: bool,
    is_in_transaction: bool,
    retryability: Retryability,
    /// The same for all attempts of a write that may be retried.
    transaction_number: Option<i64>,
    /// The command, if the session adds something to its read concern.
    split: Option<Box<SplitReadConcern>>,
    /// The command, if its own `maxTimeMS` is left out because of `timeoutMS`.
    without_max_time: Option<Box<RawDocumentBuf>>,
    wait_logged: WaitLogged,
}

/// An attempt that failed.
struct FailedAttempt {
    error: ClientError,
    fault: Fault,
    /// Those of the error, with what the client added.
    labels: Labels,
    server: Option<ServerAddress>,
    /// A successful reply with a `writeConcernError`: the outcome, if the operation is not retried.
    answer: Option<Answer>,
}

impl<'a> Running<'a> {
    /// Creates an operation that has not [begun](Self::begin). Inlined, so that it is made where it stays.
    #[inline(always)]
    fn new(client: &'a Client, operation: Operation<'a>, site: &'static Location<'static>) -> Self {
        Self {
            client,
            operation,
            id: OperationId::default(),
            site,
            session: InSession::Implicit(None),
            is_unacknowledged: false,
            has_no_reply: false,
            is_in_transaction: false,
            retryability: Retryability::Command,
            transaction_number: None,
            split: None,
            without_max_time: None,
            wait_logged: WaitLogged::new(),
        }
    }

    /// Starts the time limit, and finds out what holds for all attempts.
    #[inline]
    fn begin(&mut self) -> Result<(), ClientError> {
        let (client, operation) = (self.client, &mut self.operation);
        let limit = client.timeout_of(operation.limiting_session(), &operation.command)?;
        if limit.is_set() {
            operation.command.set_limit(limit.start());
            // It is an option that `timeoutMS` replaces (Client Side Operations Timeout, "Validation and Overrides").
            if operation.kind != Kind::Command && has_field(operation, "maxTimeMS") {
                self.without_max_time = without(operation.command.body(), "maxTimeMS").map(Box::new);
            }
        }
        self.id = operation.part_of.map_or_else(|| client.command_events().operation(), |whole| whole.id);
        if matches!(operation.kind, Kind::Write { .. }) {
            self.is_unacknowledged = self.asks_for_no_acknowledgement()?;
            self.has_no_reply = self.is_unacknowledged && has_no_reply(self.operation.command.name());
        }
        match self.operation.session.take() {
            Some(explicit) if !explicit.belongs_to(client) => return Err(SessionError::OtherClient.into()),
            Some(explicit) => self.begin_in(explicit)?,
            None if self.is_unacknowledged => self.session = InSession::Never,
            None => {}
        }
        self.retryability = self.find_retryability();
        Ok(())
    }

    /// Returns whether the operation is a write that the server does not acknowledge.
    fn asks_for_no_acknowledgement(&self) -> Result<bool, InvalidOption> {
        let (client, operation) = (self.client, &self.operation);
        Ok(match operation.command.body().get_document("writeConcern") {
            Ok(concern) if !matches!(whole_number(concern, "w"), Ok(Some(0))) => false,
            Ok(concern) if matches!(concern.get_bool("j"), Ok(true)) => {
                return Err(InvalidOption::because("j of writeConcern", "cannot be true with w: 0"));
            }
            Ok(_) => true,
            Err(_) if is_unacknowledged(client.options().write_concern.w.as_ref()) => {
                // A transaction has a write concern of its own, which is that of its commit.
                operation.session.as_deref().is_none_or(|explicit| !explicit.lock().is_in_transaction())
            }
            Err(_) => false,
        })
    }

    /// Begins in a session of the application.
    fn begin_in(&mut self, explicit: Arc<Explicit>) -> Result<(), ClientError> {
        let session_use = session_use(self.client, &self.operation, self.is_unacknowledged, None, None);
        let (begun, is_in_transaction, is_causally_consistent) = {
            let mut state = explicit.lock();
            let is_in_transaction = state.is_in_transaction() && !self.operation.is_beside_transaction;
            (state.begin(&session_use), is_in_transaction, state.is_causally_consistent())
        };
        self.session = InSession::Explicit(explicit);
        // What the last transaction was pinned to is dropped outside of the lock.
        drop(begun?);
        self.is_in_transaction = is_in_transaction;
        if is_causally_consistent && !is_in_transaction {
            self.split = SplitReadConcern::of(&self.operation, self.body()).map(Box::new);
        }
        Ok(())
    }

    /// Gives the session back, if the operation had one for itself.
    #[inline]
    fn give_back(&mut self, connection: Option<&Connection<Endpoint>>) {
        if let InSession::Implicit(session) = &mut self.session
            && let Some(session) = session.take()
        {
            self.client.give_back_of(session, connection);
        }
    }

    /// Returns the outcome with the session.
    fn answer(&mut self, Reached { reply, connection, server }: Reached) -> Answer {
        let is_acknowledged = !self.has_no_reply;
        let session = std::mem::replace(&mut self.session, InSession::Never);
        Answer { reply, connection, server, session, unmet: None, is_acknowledged }
    }

    /// Returns the reply, or what it says about statements of a write that failed.
    #[inline]
    fn checked(&self, reply: RawDocumentBuf, server: &Server) -> Result<RawDocumentBuf, ClientError> {
        let is_write = matches!(self.operation.kind, Kind::Write { .. });
        match is_write && reply::has_field(&reply, "writeErrors") {
            false => Ok(reply),
            true => self.refused_statements(reply, server, None),
        }
    }

    /// Returns the error of a write some of whose statements the server refused.
    #[cold]
    fn refused_statements(
        &self,
        reply: RawDocumentBuf,
        server: &Server,
        unmet: Option<UnmetConcern>,
    ) -> Result<RawDocumentBuf, ClientError> {
        let name = self.operation.command.name();
        match WriteFailure::of_reply(name, &reply, &server.address, unmet, self.limit())? {
            Some(failure) => Err(ClientError::Write(Box::new(failure))),
            None => Ok(reply),
        }
    }

    #[inline]
    fn find_retryability(&self) -> Retryability {
        match (self.operation.kind, self.is_in_transaction) {
            (Kind::Command, _) => Retryability::Command,
            (Kind::Read, false) if !writes_its_result(self.operation.command.body()) => Retryability::Read,
            // An aggregate with `$out` or `$merge` (Retryable Reads, "Unsupported Read Operations").
            (Kind::Read, false) => Retryability::OtherWrite,
            (Kind::Read, true) => Retryability::OtherRead,
            (Kind::Write { is_single }, false) if !self.is_unacknowledged && self.client.options().retry_writes => {
                let (command, sequences) = (self.operation.command.body(), self.operation.command.all_in_sequences());
                let is_single = is_single.unwrap_or_else(|| is_retryable_write(command, sequences, false));
                if is_single { Retryability::Write } else { Retryability::OtherWrite }
            }
            (Kind::Write { .. }, _) => Retryability::OtherWrite,
        }
    }

    /// Makes further attempts, and returns the reply in the end.
    async fn reply_after(mut self, failed: Box<FailedAttempt>) -> Result<RawDocumentBuf, ClientError> {
        let Answer { reply, session, unmet, connection, server, .. } = self.attempts_after(failed).await?;
        self.client.give_back(session, connection.as_ref());
        match unmet {
            None => self.checked(reply, &server),
            Some(_) if matches!(self.operation.kind, Kind::Write { .. }) && reply::has_field(&reply, "writeErrors") => {
                self.refused_statements(reply, &server, unmet)
            }
            Some(unmet) => Err(FailedOperation::unmet_concern(&server.address, reply, unmet).into()),
        }
    }

    /// Makes further attempts as long as the specifications allow them.
    async fn go_on_after(mut self, failed: Box<FailedAttempt>) -> Result<Answer, ClientError> {
        self.attempts_after(failed).await
    }

    async fn attempts_after(&mut self, mut failed: Box<FailedAttempt>) -> Result<Answer, ClientError> {
        let mut attempts = Attempts::new(self.client, self.retryability, self.limit());
        let mut to_report: Option<ErrorToReport<ClientError>> = None;
        // The reply of the attempt that is to be reported, if it is one.
        let mut reply_to_report = None;
        loop {
            // A generic command counts as a write (Client Backpressure, "Overload retry policy").
            let tells_of_attempt = match self.may_write() {
                true => failed.fault.may_have_written(),
                false => failed.fault.reached_a_server(),
            };
            if to_report.is_none() || tells_of_attempt {
                reply_to_report = failed.answer;
            }
            to_report = Some(ErrorToReport::after(to_report.take(), failed.error, tells_of_attempt));
            if !attempts.goes_on(&failed.fault, failed.labels, failed.server).await {
                break;
            }
            failed = match self.attempt(attempts.avoided()).await {
                Ok(reached) => return Ok(self.answer(reached)),
                Err(failed) => failed,
            };
        }
        let session = std::mem::replace(&mut self.session, InSession::Never);
        if let Some(answer) = reply_to_report {
            let is_late = attempts.are_late();
            let unmet = answer.unmet.map(|unmet| UnmetConcern { is_timeout: unmet.is_timeout || is_late, ..unmet });
            return Ok(Answer { session, unmet, ..answer });
        }
        self.client.give_back(session, None);
        match to_report {
            Some(report) => Err(attempts.report(report.into_error())),
            // The first failure was added before the loop could end.
            None => unreachable!("an operation failed without an error"),
        }
    }

    /// Runs the operation once.
    async fn attempt(&mut self, avoid: &[ServerAddress]) -> Result<Reached, Box<FailedAttempt>> {
        let mut selection_end = self.client.selection_end(self.limit());
        let (mut server, mut pinned) = match self.select_at_once(avoid) {
            Some(server) => (server, None),
            None => boxed(|| self.select(avoid)).await?,
        };
        let is_pinned = pinned.is_some();
        // The last connection that had been created when the first one was found lost.
        let mut last_old = None;
        loop {
            let mut connection = match pinned.take() {
                Some(connection) => connection,
                None => match server.pool.check_out_for(self.limit(), selection_end, self.site).await {
                    Ok(connection) => connection,
                    // The server was selected, and has left the deployment since.
                    Err(OperationError::CheckOut(CheckOutError::PoolClosed(_)))
                        if !self.is_in_transaction && self.client.deployment().has_lost(&server) =>
                    {
                        selection_end = self.client.selection_end(self.limit());
                        (server, pinned) = boxed(|| self.select(avoid)).await?;
                        continue;
                    }
                    Err(error) => return Err(self.failed(error, Some(&server), None, true)),
                },
            };
            let known = known_of(&connection);
            let mut appended = connection.take_room();
            self.append(&mut appended, &connection, known)?;
            if self.is_in_transaction && known.is_load_balanced {
                connection.close_if_cut_short(true);
            }
            let mut session = std::mem::replace(&mut self.session, InSession::Never);
            let in_flight = InFlight::new(self.client, &mut connection, &mut session);
            let outcome = match self.has_no_reply || self.id.is_observed() {
                true => boxed(|| self.run_unusually(in_flight.connection, &server, &appended)).await,
                false => in_flight.connection.run(self.command(&server, &appended)).await,
            };
            in_flight.ended();
            self.session = session;
            if self.is_in_transaction && connection.condition().is_reusable() {
                connection.close_if_cut_short(false);
            }
            connection.give_room_back(appended);
            let pool = &server.pool;
            match &outcome {
                Err(OperationError::Command(CommandError::Lost { .. }))
                    if !is_pinned
                        && !self.is_in_transaction
                        && connection.id() <= *last_old.get_or_insert_with(|| pool.last_created()) =>
                {
                    pool.count_retry();
                    continue;
                }
                _ => {}
            }
            return match outcome {
                Ok(reply) => self.succeeded(reply, server, connection, known),
                Err(error) => {
                    self.client.deployment().operation_failed(&server, &error);
                    let reply = error.command_error().and_then(CommandError::server_error).map(|error| &error.reply);
                    if let Some(reply) = reply {
                        self.session.replied(self.client, reply);
                    }
                    let is_reusable = connection.condition().is_reusable();
                    let failed = self.failed(error, Some(&server), Some(known), is_reusable);
                    if !failed.labels.contains(Labels::TRANSIENT_TRANSACTION) {
                        self.keep_pinned(&server, connection);
                    }
                    Err(failed)
                }
            };
        }
    }

    /// Returns the command as it is run on this server.
    #[inline]
    fn command<'c>(&'c self, server: &Server, appended: &'c [u8]) -> Command<'c> {
        let whole = self.operation.command;
        let command = match &self.split {
            Some(split) => whole.with_body(&split.body),
            None => whole.with_body(self.body()),
        };
        command.round_trip_time(server.least_round_trip()).appended(appended)
    }

    /// Returns the command's document, without a time limit that does not count.
    #[inline]
    fn body(&self) -> &RawDocument {
        self.without_max_time.as_deref().map_or(self.operation.command.body(), |body| body)
    }

    /// Runs the command if something observes it, or if it has no reply.
    async fn run_unusually(
        &self,
        connection: &mut Connection<Endpoint>,
        server: &Server,
        appended: &[u8],
    ) -> Result<RawDocumentBuf, OperationError> {
        let (events, command) = (self.client.command_events(), self.command(server, appended));
        match self.has_no_reply {
            true => events.send(connection, command, self.id).await,
            false => events.run(connection, command, self.id).await,
        }
    }

    /// Returns whether the command may write: any but a read, or an aggregation that writes its result, which is a read that
    /// may not be executed twice.
    #[inline]
    fn may_write(&self) -> bool {
        self.operation.kind != Kind::Read || self.retryability == Retryability::OtherWrite
    }

    /// Returns the time limit, which has started.
    fn limit(&self) -> Limit {
        self.operation.command.own_limit()
    }

    /// Pins the connection to the transaction again, behind a load balancer. Returns it otherwise.
    #[inline]
    fn keep_pinned(&self, server: &Selected, connection: Connection<Endpoint>) -> Option<Connection<Endpoint>> {
        let InSession::Explicit(explicit) = &self.session else { return Some(connection) };
        if connection.service_id().is_none() || !self.is_in_transaction {
            return Some(connection);
        }
        explicit.pin_connection(server, connection)
    }

    /// Takes note of a reply. Inlined, because each operation comes through here once.
    #[inline]
    fn succeeded(
        &mut self,
        reply: RawDocumentBuf,
        server: Selected,
        connection: Connection<Endpoint>,
        known: SessionServer,
    ) -> Result<Reached, Box<FailedAttempt>> {
        // Servers outside of a cluster send no times.
        let times = match known.has_cluster_time {
            true => self.session.replied(self.client, &reply),
            false => ReplyTimes { has_write_concern_error: has_write_concern_error(&reply), ..ReplyTimes::default() },
        };
        if let InSession::Explicit(explicit) = &self.session
            && !self.operation.is_beside_transaction
        {
            explicit.lock().succeeded(&times);
        }
        let is_concern_unmet = times.has_write_concern_error;
        // Only the reply to a write can have a state change.
        if is_concern_unmet && self.may_write() {
            self.client.learn_from_unmet_concern(&server, &connection, &reply);
        }
        // The caller of a generic command looks for it.
        let is_looked_into = self.operation.kind != Kind::Command && self.may_write();
        let fault = if is_looked_into && is_concern_unmet { Fault::of_reply(&reply) } else { None };
        let connection = self.keep_pinned(&server, connection);
        match fault {
            None => Ok(Reached { reply, connection, server }),
            Some(fault) => Err(self.concern_unmet(reply, server, known, fault)),
        }
    }
}

/// An operation that is cancelled between two commands gives its session back.
impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        self.give_back(None);
    }
}

/// Returns whether the server has sessions. Servers behind a load balancer do.
pub(super) fn has_sessions(connection: &Connection<Endpoint>) -> bool {
    connection.hello().logical_session_timeout_minutes.is_some() || connection.service_id().is_some()
}

/// Returns how long the server keeps an idle session. `None` behind a load balancer, where sessions do not expire.
pub(super) fn timeout_of(connection: &Connection<Endpoint>) -> Option<Duration> {
    if connection.service_id().is_some() {
        return None;
    }
    let minutes = connection.hello().logical_session_timeout_minutes?;
    Some(Duration::from_secs(u64::try_from(minutes).ok()?.saturating_mul(60)))
}

/// Returns whether a successful reply reports that the write concern was not met.
fn has_write_concern_error(reply: &RawDocument) -> bool {
    reply::has_field(reply, "writeConcernError")
}
