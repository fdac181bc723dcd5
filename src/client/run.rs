//! Operations in progress: the state that their attempts share, and the handling of their replies. The engine makes the
//! attempts.

mod appended;
mod attempted;

use std::panic::Location;
use std::pin::pin;
use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf};

use super::Client;
use super::appending::{SplitReadConcern, has_field, session_use, without};
use super::command_events::Observation;
use super::engine::{self, Failed, Reached, UnmetConcern};
use super::error::{ClientError, FailedOperation};
use super::in_session::{Explicit, InSession};
use super::operation::{Kind, Operation};
use super::spans::{Described, RUN_COMMAND};
use super::write::WriteFailure;
use crate::client::deployment::{Selected, Server, WaitLogged};
use crate::client::session::{
    Retryability, SessionError, has_no_reply, is_retryable_write, is_unacknowledged, writes_its_result,
};
use crate::endpoint::options::InvalidOption;
use crate::endpoint::wire::reply::{self, whole_number};
use crate::endpoint::{Command, Endpoint, Limit};
use crate::pool::runtime::{Boxed, Connection, boxed};

impl Client {
    /// Runs `command` on `database`, on the primary, and returns the server's successful reply. Shorthand for
    /// [`run`](Self::run) with [`Operation::new`].
    ///
    /// # Errors
    ///
    /// The same as for [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`run`](Self::run).
    #[track_caller]
    pub fn run_command<'c>(
        &'c self,
        database: &'c str,
        command: &'c RawDocument,
    ) -> impl Future<Output = Result<RawDocumentBuf, ClientError>> + Send + 'c {
        self.run_at(Operation::new(database, command), Location::caller())
    }

    /// Selects a server, runs an operation on it, and returns the server's successful reply.
    ///
    /// A write that was executed without meeting its write concern is an error: see
    /// [`ClientError::write_concern_error`]. This applies to [`Operation::write`], and to an [`Operation::read`] whose
    /// aggregation writes its result (Read and Write Concern, "Errors"). If the server refused statements in an
    /// [`Operation::write`] (`writeErrors`), the error is [`ClientError::Write`]. For [`Operation::new`], the client
    /// returns the reply without inspecting it, so the caller must check both fields.
    ///
    /// With the write concern `w: 0`, the server sends no reply to `insert`, `update`, `delete` and `bulkWrite`, and
    /// this method returns `{ ok: 1 }`. The server replies to all other commands.
    ///
    /// The client adds `lsid` and the session's other fields, `$clusterTime`, `$readPreference`, and the read concern
    /// and write concern from the options. The command's document must not contain `lsid`, `txnNumber` or
    /// `$clusterTime`.
    ///
    /// # Errors
    ///
    /// [`ClientError`] says how far the operation got.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`Pool::run`](crate::Pool::run): nothing is lost, but it is unknown whether the server executes
    /// the command. The operation's server session can be used again once the connection has been drained. If the
    /// connection is closed instead, the session is ended on the server (`endSessions`), in the background. For an
    /// operation in a transaction behind a load balancer, see [`Session`](super::Session#cancel-safety).
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
    ) -> Boxed<'c, Result<RawDocumentBuf, ClientError>> {
        // Created here rather than inside the future, which would otherwise hold the arguments as well.
        let mut running = Running::new(self, operation, site);
        Box::pin(async move {
            running.observe();
            if running.observation.is_observed() {
                return boxed(|| running.observed()).await;
            }
            running.begin()?;
            let failed = match engine::attempt(&mut running, &[]).await {
                Ok(reached) => return running.reply(reached),
                Err(failed) => failed,
            };
            boxed(|| running.reply_after(failed)).await
        })
    }

    /// Runs an operation, and returns its reply with the connection that it arrived on and the session that it used.
    pub(super) async fn answer(
        &self,
        operation: Operation<'_>,
        site: &'static Location<'static>,
    ) -> Result<Answer, ClientError> {
        let mut running = Running::new(self, operation, site);
        running.observe();
        // The span of a larger operation has already been entered.
        let own =
            if running.operation.part_of.is_some() { Observation::default() } else { running.observation.clone() };
        let answered = pin!(async {
            running.begin()?;
            let (reached, unmet) = engine::run(&mut running).await.map_err(|given_up| given_up.error)?;
            let session = std::mem::replace(&mut running.session, InSession::Never);
            Ok(Answer { reached, session, unmet, is_acknowledged: !running.has_no_reply })
        });
        own.within(answered).await
    }

    /// Returns the time limit of an operation without starting it: the operation's own limit, the session's limit, or
    /// the limit from the options.
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
}

/// The outcome of an operation, with its session.
pub(super) struct Answer {
    pub(super) reached: Reached<Selected>,
    pub(super) session: InSession,
    pub(super) unmet: Option<UnmetConcern>,
    /// Whether the server sent a reply. If not, nothing is known about the write.
    pub(super) is_acknowledged: bool,
}

/// An operation in progress.
struct Running<'a> {
    client: &'a Client,
    operation: Operation<'a>,
    observation: Observation,
    site: &'static Location<'static>,
    session: InSession,
    /// Whether the write concern is `w: 0`.
    is_unacknowledged: bool,
    /// Whether the server sends no reply because of `w: 0`.
    has_no_reply: bool,
    is_in_transaction: bool,
    retryability: Retryability,
    /// The transaction number that all attempts of a retryable write share.
    transaction_number: Option<i64>,
    /// The command without its read concern, if the session adds to the read concern.
    split: Option<Box<SplitReadConcern>>,
    /// The command without its `maxTimeMS`, if `timeoutMS` replaces it.
    without_max_time: Option<Box<RawDocumentBuf>>,
    wait_logged: WaitLogged,
}

impl<'a> Running<'a> {
    /// Creates an operation that has not [begun](Self::begin). This is inlined so that the value is constructed in
    /// place.
    #[inline(always)]
    fn new(client: &'a Client, operation: Operation<'a>, site: &'static Location<'static>) -> Self {
        Self {
            client,
            operation,
            observation: Observation::default(),
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

    /// Begins observing the operation.
    #[inline]
    fn observe(&mut self) {
        let Self { client, operation, site, .. } = self;
        self.observation = match operation.part_of {
            Some(whole) => whole.observation.clone(),
            None => client.command_events().operation(|| {
                let (database, command) = (operation.command.database(), operation.command.body());
                // The specification lists `mapReduce` among the named operations, although the client has no method for
                // it.
                let is_named = operation.is_named_by_command || operation.command.name() == "mapReduce";
                let described =
                    if is_named { Described::of(database, command) } else { Described::named(RUN_COMMAND, database) };
                let transaction = operation.limiting_session().and_then(Explicit::span_in_transaction);
                Described { transaction, site: Some(site), ..described }
            }),
        };
    }

    /// Runs the operation inside its span, if it has one.
    async fn observed(mut self) -> Result<RawDocumentBuf, ClientError> {
        let observation = self.observation.clone();
        let replied = pin!(async {
            self.begin()?;
            match engine::attempt(&mut self, &[]).await {
                Ok(reached) => self.reply(reached),
                Err(failed) => self.reply_after(failed).await,
            }
        });
        observation.within(replied).await
    }

    /// Starts the clock for the time limit, and determines the state that all attempts share.
    #[inline]
    fn begin(&mut self) -> Result<(), ClientError> {
        let (client, operation) = (self.client, &mut self.operation);
        let limit = client.timeout_of(operation.limiting_session(), &operation.command)?;
        if limit.is_set() {
            operation.command.set_limit(limit.start());
            // `timeoutMS` replaces the `maxTimeMS` option (Client Side Operations Timeout, "Validation and Overrides").
            // An application's own command is sent as it is.
            let is_own = operation.kind == Kind::Command && !operation.is_named_by_command;
            if !is_own && has_field(operation, "maxTimeMS") {
                self.without_max_time = without(operation.command.body(), "maxTimeMS").map(Box::new);
            }
        }
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
            Err(_) if is_unacknowledged(&client.options().write_concern) => {
                // A transaction has its own write concern, which its commit uses.
                operation.session.as_deref().is_none_or(|explicit| !explicit.lock().is_in_transaction())
            }
            Err(_) => false,
        })
    }

    /// Begins the operation in one of the application's sessions.
    fn begin_in(&mut self, explicit: Arc<Explicit>) -> Result<(), ClientError> {
        let session_use = session_use(self.client, &self.operation, self.is_unacknowledged, None, None);
        let (begun, is_in_transaction, is_causally_consistent) = {
            let mut state = explicit.lock();
            let is_in_transaction = state.is_in_transaction() && !self.operation.is_beside_transaction;
            (state.begin(&session_use), is_in_transaction, state.is_causally_consistent())
        };
        self.session = InSession::Explicit(explicit);
        // Drops the previous transaction's pin outside the lock.
        drop(begun?);
        self.is_in_transaction = is_in_transaction;
        if is_causally_consistent && !is_in_transaction {
            self.split = SplitReadConcern::of(&self.operation, self.body()).map(Box::new);
        }
        Ok(())
    }

    /// Gives the session back, if the operation had its own session.
    #[inline]
    fn give_back(&mut self, connection: Option<&Connection<Endpoint>>) {
        if let InSession::Implicit(session) = &mut self.session
            && let Some(session) = session.take()
        {
            self.client.give_back_of(session, connection);
        }
    }

    /// Returns the reply to the first attempt.
    #[inline]
    fn reply(&mut self, reached: Reached<Selected>) -> Result<RawDocumentBuf, ClientError> {
        let Reached { reply, connection, server } = reached;
        self.give_back(connection.as_ref());
        self.checked(reply, &server)
    }

    /// Returns the reply. If it reports failed statements in a write, returns their errors instead.
    #[inline]
    fn checked(&self, reply: RawDocumentBuf, server: &Server) -> Result<RawDocumentBuf, ClientError> {
        let is_write = matches!(self.operation.kind, Kind::Write { .. });
        match is_write && reply::has_field(&reply, "writeErrors") {
            false => Ok(reply),
            true => self.refused_statements(reply, server, None),
        }
    }

    /// Returns the error for a write if the server refused some of its statements.
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

    /// Makes more attempts, and returns the final reply.
    async fn reply_after(mut self, failed: Box<Failed<Selected>>) -> Result<RawDocumentBuf, ClientError> {
        let (reached, unmet) = engine::go_on_after(&mut self, failed).await.map_err(|given_up| given_up.error)?;
        let Reached { reply, connection, server } = reached;
        self.give_back(connection.as_ref());
        match unmet {
            None => self.checked(reply, &server),
            Some(_) if matches!(self.operation.kind, Kind::Write { .. }) && reply::has_field(&reply, "writeErrors") => {
                self.refused_statements(reply, &server, unmet)
            }
            Some(unmet) => Err(FailedOperation::unmet_concern(&server.address, reply, unmet).into()),
        }
    }

    /// Returns the time limit, which has already started.
    #[inline]
    fn limit(&self) -> Limit {
        self.operation.command.own_limit()
    }

    /// Returns the command's document, without a `maxTimeMS` that does not apply.
    #[inline]
    fn body(&self) -> &RawDocument {
        self.without_max_time.as_deref().map_or(self.operation.command.body(), |body| body)
    }
}

/// An operation that is cancelled between two commands gives its session back.
impl Drop for Running<'_> {
    #[inline]
    fn drop(&mut self) {
        self.give_back(None);
    }
}
