//! Commands on a connection that is checked out of a pool, and on the pool itself.

use std::error::Error as StdError;
use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf};
use thiserror::Error;
use tokio::time::Instant;

use super::authentication::AuthenticationError;
use super::command::{Command, Limit, MaxTime};
use super::connection::EndpointConnection;
use super::error::CommandError;
use super::{Endpoint, ServerError};
use crate::endpoint::wire::reply::StateChange;
use crate::pool::core::Clear;
use crate::pool::error::{CheckOutError, Labels, PoolClearedError, TimeLimit};
use crate::pool::runtime::boxed;
use crate::pool::runtime::{Connection, Pool};
use crate::text::milliseconds::Milliseconds;

impl Pool<Endpoint> {
    /// Checks out a connection, runs `command` on `database`, and checks the connection in. Shorthand for
    /// [`run`](Self::run) with [`Command::new`].
    ///
    /// ```no_run
    /// # async fn example(pool: wharf::Pool<wharf::Endpoint>) -> Result<(), Box<dyn std::error::Error>> {
    /// use bson::rawdoc;
    ///
    /// let reply = pool.run_command("admin", &rawdoc! { "ping": 1 }).await?;
    /// assert_eq!(reply.get_f64("ok")?, 1.0);
    /// # Ok(())
    /// # }
    /// ```
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
    ) -> impl Future<Output = Result<RawDocumentBuf, OperationError>> + Send {
        self.run_at(Command::new(database, command), Location::caller())
    }

    /// Checks out a connection, runs `command` on it like [`Connection::run`], and checks the connection in.
    ///
    /// A time limit ([`Command::timeout`], [`Options::timeout`](crate::Options::timeout)) covers all of this, and
    /// `waitQueueTimeoutMS` is ignored (CSOT, "Validation and Overrides").
    ///
    /// If the connection was lost while it was idle, nothing has been sent, and the call checks out another connection.
    /// After a server restart, this may happen once for each connection in the pool. If a newly opened connection is
    /// also lost, the server must be closing connections on its own, and the call fails with that error.
    ///
    /// This method does not clear the pool. It sends a command twice only if the server refused it and required
    /// reauthentication (error 391). See [`clear_after`](Self::clear_after) and [`OperationError::is_retryable`]. The
    /// `writeConcernError` of a successful reply to a write may say that the server is shutting down: see
    /// [`StateChange::of_reply`].
    ///
    /// # Errors
    ///
    /// [`OperationError`] says how far the operation got.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`Pool::check_out`] until a connection is checked out, and the same as for [`Connection::run`]
    /// after that. Nothing is lost, and the connection is drained in the background.
    #[track_caller]
    pub fn run(&self, command: Command<'_>) -> impl Future<Output = Result<RawDocumentBuf, OperationError>> + Send {
        self.run_at(command, Location::caller())
    }

    /// Runs a command for the caller at `site`.
    async fn run_at(
        &self,
        command: Command<'_>,
        site: &'static Location<'static>,
    ) -> Result<RawDocumentBuf, OperationError> {
        let limit = command.limit(self.establisher().options());
        let command = command.within(limit);
        // The identifier of the newest connection at the time when the first lost connection was found.
        let mut last_old = None;
        loop {
            let mut connection = self.check_out_for(limit, None, site).await?;
            match connection.run(command).await {
                Err(OperationError::Command(CommandError::Lost { .. }))
                    if connection.id() <= *last_old.get_or_insert_with(|| self.last_created()) =>
                {
                    self.count_retry();
                }
                outcome => return outcome,
            }
        }
    }

    /// Checks out a connection for an operation whose time limit has already started. `selection_end` is the time at
    /// which the operation's `serverSelectionTimeoutMS` expires, if that also limits the check-out.
    #[inline]
    pub(crate) async fn check_out_for(
        &self,
        limit: Limit,
        selection_end: Option<Instant>,
        site: &'static Location<'static>,
    ) -> Result<Connection<Endpoint>, OperationError> {
        match (limit, selection_end) {
            (Limit::Unset, _) => Ok(self.check_out_without_deadline::<true>(site).await?),
            (Limit::Infinite | Limit::For(_), None) => Ok(self.check_out_without_deadline::<false>(site).await?),
            (limit, end) => boxed(|| self.check_out_within(limit, end, site)).await,
        }
    }

    /// Checks out a connection before the earlier of the two limits expires. At least one of them is set.
    async fn check_out_within(
        &self,
        limit: Limit,
        selection_end: Option<Instant>,
        site: &'static Location<'static>,
    ) -> Result<Connection<Endpoint>, OperationError> {
        let of_selection = self.establisher().options().server_selection_timeout;
        let selection = selection_end.map(|at| (at, of_selection, TimeLimit::Operation("serverSelectionTimeoutMS")));
        let whole = limit.deadline().map(|(at, limit)| (at, limit, TimeLimit::Timeout));
        // If both limits expire at the same time, `timeoutMS` ends the operation.
        let earlier = [whole, selection].into_iter().flatten().min_by_key(|(at, ..)| *at);
        let Some((at, limit, limited_by)) = earlier else {
            return Ok(self.check_out_without_deadline::<false>(site).await?);
        };
        self.check_out_within_operation(at, limited_by, site).await.map_err(|source| match Instant::now() < at {
            true => source.into(),
            false => OperationError::CheckOutTimeout { limited_by, limit, source },
        })
    }

    /// Clears the pool if the specifications require that after `error`. Returns whether the pool was cleared.
    ///
    /// The pool is cleared if the error [clears pools](OperationError::clears_pool) and belongs to the current
    /// generation. In load-balanced mode, only the connection's service is cleared.
    ///
    /// A cleared pool stays paused until [`Pool::ready`] is called. Use this only if the application monitors the
    /// server and notices when it is available again. Errors from establishing a connection have no effect here: the
    /// failure sink ([`PoolBuilder::on_failure`](crate::PoolBuilder::on_failure)) receives each of these errors before
    /// any check-out reports it.
    pub fn clear_after(&self, error: &OperationError) -> bool {
        let OperationError::Command(failure) = error else { return false };
        let Some(generation) = failure.origin().generation.filter(|_| failure.clears_pool()) else { return false };
        let clear = Clear::new().because(Arc::new(failure.clone())).only_at_generation(generation);
        match failure.origin().service_id {
            Some(service_id) if self.options().load_balanced => self.clear_service(service_id, clear),
            _ => self.clear(clear),
        }
        .unwrap_or(false)
    }
}

impl Connection<Endpoint> {
    /// Runs `command` on `database`, and returns the server's successful reply. Shorthand for [`run`](Self::run) with
    /// [`Command::new`].
    ///
    /// # Errors
    ///
    /// The same as for [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`run`](Self::run).
    pub async fn run_command(
        &mut self,
        database: &str,
        command: &RawDocument,
    ) -> Result<RawDocumentBuf, OperationError> {
        // In the usual case, a command without a limit needs only its two arguments, which keeps the future small.
        // `run` handles the rest.
        if self.options().timeout.is_some() || self.is_timed(Limit::Unset) {
            return boxed(|| self.run(Command::new(database, command))).await;
        }
        // This is a separate statement, so that the command is dropped before the future starts to wait.
        let mut completed = self.begin(&Command::new(database, command), MaxTime::NONE);
        if completed.is_ok() {
            let finished =
                self.until_interrupted(EndpointConnection::is_sending, EndpointConnection::poll_finish).await;
            completed = finished.ok_or_else(|| self.cut_short())?;
        }
        match completed.and_then(|()| self.outcome(Limit::Unset)) {
            Ok(reply) => Ok(reply),
            Err(failure) => boxed(|| self.run_after(failure, Command::new(database, command))).await,
        }
    }

    /// Runs `command`, and returns the server's successful reply.
    ///
    /// Like [`DirectConnection::run`](super::DirectConnection::run), but fails if the pool is cleared with
    /// `interruptInUseConnections`.
    ///
    /// # Errors
    ///
    /// [`OperationError::Command`] if the command received no successful reply, and [`OperationError::Interrupted`] if
    /// the pool was cleared. [`OperationError::is_retryable`] says whether to retry on another connection.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future after its first poll leaves the connection in the middle of the command. Whether the server
    /// executes the command is unknown. The same applies when the command times out.
    ///
    /// Check-in does not close such a connection. The pool drains it in the background, within
    /// [`Options::drain_timeout`](crate::Options::drain_timeout) and
    /// [`Options::drain_limit`](crate::Options::drain_limit). During the drain, the connection still counts as in use,
    /// and is closed as soon as a check-out needs its capacity. An interrupted connection is closed.
    pub fn run(&mut self, command: Command<'_>) -> impl Future<Output = Result<RawDocumentBuf, OperationError>> + Send {
        // This is not an `async fn`, because the future of an `async fn` would hold the arguments twice.
        async move {
            let limit = command.limit(self.options());
            let completed = self.complete_unless_interrupted(&command, limit).await?;
            let failure = match completed.and_then(|()| self.outcome(limit)) {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            boxed(|| self.run_after(failure, command.within(limit))).await
        }
    }

    /// Like [`DirectConnection::reply_to`](super::DirectConnection::reply_to), but fails if the pool is cleared with
    /// `interruptInUseConnections`.
    ///
    /// # Errors
    ///
    /// The same as for [`run`](Self::run), except that a refused command and the server's own time limit are not errors
    /// here.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`run`](Self::run).
    pub async fn reply_to(&mut self, database: &str, command: &RawDocument) -> Result<&RawDocument, OperationError> {
        let command = Command::new(database, command);
        let completed = self.complete_unless_interrupted(&command, command.limit(self.options())).await?;
        let reply = completed.and_then(|()| {
            let connection = &mut **self;
            connection.channel.take_reply().map_err(|error| connection.identity.failed(error))
        });
        match reply {
            Ok(reply) => Ok(self.channel.body(&reply)),
            Err(failure) => Err(self.placed(*failure)),
        }
    }

    /// Sends the command and reads its reply into the channel, unless the connection is interrupted. The time limit has
    /// already started.
    #[inline]
    fn complete_unless_interrupted(
        &mut self,
        command: &Command<'_>,
        limit: Limit,
    ) -> impl Future<Output = Result<Result<(), Box<CommandError>>, OperationError>> + Send {
        async move {
            if self.is_timed(limit) {
                // This is boxed so that the future of a command without a limit contains no timer.
                let complete =
                    async |connection: &mut EndpointConnection| connection.complete_in_time(command, limit).await;
                return boxed(|| self.interruptible(complete)).await.map_err(|cleared| self.cut_off(&cleared));
            }
            if let Err(failure) = self.begin(command, MaxTime::NONE) {
                return Ok(Err(failure));
            }
            let finished = self.until_interrupted(EndpointConnection::is_sending, EndpointConnection::poll_finish);
            finished.await.ok_or_else(|| self.cut_short())
        }
    }

    /// Returns the error for a command whose [`interruptible`](Self::interruptible) operation was interrupted. If the
    /// operation had not begun, the state of the channel belongs to an earlier command.
    #[cold]
    fn cut_off(&self, cleared: &PoolClearedError) -> OperationError {
        self.interrupted(cleared.sent && self.channel.has_sent()).into()
    }

    /// Returns the error for a command that was interrupted after it had begun.
    #[cold]
    pub(super) fn cut_short(&self) -> OperationError {
        self.interrupted(self.channel.has_sent()).into()
    }

    /// Like [`run`](Self::run), but returns the server's request to authenticate again as an error, so that a caller
    /// can observe each attempt.
    pub(crate) async fn run_once(&mut self, command: Command<'_>) -> Result<RawDocumentBuf, OperationError> {
        let limit = command.limit(self.options());
        let completed = self.complete_unless_interrupted(&command, limit).await?;
        completed.and_then(|()| self.outcome(limit)).map_err(|failure| self.placed(*failure))
    }

    /// Authenticates again if the outcome of a command asks for it. Returns whether the command can run once more.
    pub(crate) async fn authenticate_after(
        &mut self,
        outcome: &Result<RawDocumentBuf, OperationError>,
        command: &Command<'_>,
    ) -> Result<bool, OperationError> {
        match outcome {
            Err(OperationError::Command(failure)) if self.must_authenticate(failure) => {}
            _ => return Ok(false),
        }
        let limit = command.limit(self.options());
        let again = self.interruptible(async |connection| connection.authenticate_again(limit).await).await;
        again.map_err(|cleared| self.cut_off(&cleared))?.map_err(|failure| self.placed(*failure))?;
        Ok(true)
    }

    /// Runs the command once more if the server asked the connection to authenticate again. Otherwise returns the
    /// failure.
    async fn run_after(
        &mut self,
        failure: Box<CommandError>,
        command: Command<'_>,
    ) -> Result<RawDocumentBuf, OperationError> {
        if !self.must_authenticate(&failure) {
            return Err(self.placed(*failure));
        }
        let again = self.interruptible(async |connection| connection.run_again(command).await).await;
        again.map_err(|cleared| self.cut_off(&cleared))?.map_err(|failure| self.placed(*failure))
    }

    /// Like [`DirectConnection::send`](super::DirectConnection::send), but fails if the pool is cleared with
    /// `interruptInUseConnections`.
    ///
    /// # Errors
    ///
    /// The same as for [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`run`](Self::run).
    pub async fn send(&mut self, command: Command<'_>) -> Result<(), OperationError> {
        let outcome = self.interruptible(async |connection| connection.send_unanswered(command).await).await;
        outcome.map_err(|cleared| self.cut_off(&cleared))?.map_err(|failure| self.placed(*failure))
    }

    /// Returns the failure with the connection's identifier, generation and service. In load-balanced mode, the
    /// generation is the service's.
    #[cold]
    pub(super) fn placed(&self, mut failure: CommandError) -> OperationError {
        let origin = failure.origin_mut();
        origin.connection_id = Some(self.id());
        origin.generation = Some(self.generation());
        origin.service_id = self.service_id().or(origin.service_id);
        failure.into()
    }
}

/// Returns the server's error among the causes of another error.
fn server_error_in<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e ServerError> {
    let mut next = Some(error);
    while let Some(error) = next {
        let of_command = || error.downcast_ref().and_then(CommandError::any_server_error);
        let of_authentication = || error.downcast_ref().and_then(AuthenticationError::server_error);
        if let Some(found) = error.downcast_ref().or_else(of_command).or_else(of_authentication) {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Why an operation on a pool's connection failed.
///
/// ```
/// use wharf::OperationError;
///
/// fn advice(error: &OperationError) -> &'static str {
///     match error {
///         error if error.is_retryable() => "try again after a pause",
///         error if error.is_timeout() => "shed load",
///         OperationError::Interrupted(cleared) if cleared.sent => "try again if it may be executed twice",
///         OperationError::Command(error) if error.is_network_error() => "try again if it may be executed twice",
///         _ => "do not try again",
///     }
/// }
/// ```
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The command did not receive a successful reply.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The pool was cleared with `interruptInUseConnections` before the command was sent or while it ran. The server
    /// may have executed the command if [`sent`](PoolClearedError::sent) is true.
    #[error(transparent)]
    Interrupted(#[from] PoolClearedError),
    /// There was no connection to run the command on.
    #[error(transparent)]
    CheckOut(#[from] CheckOutError),
    /// There was no connection to run the command on within `timeoutMS` or, for an operation on a
    /// [`Client`](crate::Client) with `timeoutMS`, within `serverSelectionTimeoutMS`.
    #[error("no connection within {limited_by} ({}): {source}", Milliseconds(*limit))]
    #[non_exhaustive]
    CheckOutTimeout {
        /// The limit that was reached: `timeoutMS` or `serverSelectionTimeoutMS`.
        limited_by: TimeLimit,
        /// The time allowed.
        limit: Duration,
        /// The error from the check-out.
        source: CheckOutError,
    },
}

crate::pool::error::debug_as_sentence!(enum OperationError { Command(_), Interrupted(_), CheckOut(_); CheckOutTimeout });

impl OperationError {
    /// Returns whether the operation may be retried, for any kind of command.
    ///
    /// True if nothing was sent and a new attempt may succeed, or if the server gave the error the label
    /// `RetryableError`. False if the check-out timed out or found the pool closed.
    ///
    /// After a network failure, a timeout, or an [interruption](Self::Interrupted) of a command that was sent, the
    /// server may have executed the command. The specifications then retry reads, and writes that the server recognises
    /// by `lsid` and `txnNumber` (retryable reads and writes, "Terms" and "Determining Retryable Errors"). Only the
    /// caller knows what kind of command it sent.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Interrupted(cleared) => !cleared.sent,
            Self::Command(failure) => failure.is_retryable(),
            Self::CheckOut(error) => error.is_retryable(),
            Self::CheckOutTimeout { .. } => false,
        }
    }

    /// Returns whether a time limit expired: `timeoutMS`, or the limit for server selection, the wait queue, the
    /// socket, or opening a connection.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Command(failure) => failure.is_timeout(),
            Self::CheckOutTimeout { .. } | Self::CheckOut(CheckOutError::WaitQueueTimeout(_)) => true,
            Self::CheckOut(CheckOutError::Establish(error)) => error.is_timeout(),
            Self::CheckOut(_) | Self::Interrupted(_) => false,
        }
    }

    /// Returns whether the specifications require the pool to be cleared because of this error. See
    /// [`CommandError::clears_pool`] and [`Pool::clear_after`].
    #[must_use]
    pub fn clears_pool(&self) -> bool {
        self.command_error().is_some_and(CommandError::clears_pool)
    }

    /// Returns whether the specifications require the server to be marked as Unknown because of this error. See
    /// [`CommandError::marks_server_unknown`].
    #[must_use]
    pub fn marks_server_unknown(&self) -> bool {
        self.command_error().is_some_and(CommandError::marks_server_unknown)
    }

    /// Returns the change in the server's state that the error reports. See [`CommandError::state_change`].
    #[must_use]
    pub fn state_change(&self) -> Option<StateChange> {
        self.command_error()?.state_change()
    }

    /// Returns the failure of the command, with the address, the connection and the generation, if there was a
    /// connection to run it on.
    #[must_use]
    pub fn command_error(&self) -> Option<&CommandError> {
        match self {
            Self::Command(failure) => Some(failure),
            Self::Interrupted(_) | Self::CheckOut(_) | Self::CheckOutTimeout { .. } => None,
        }
    }

    /// Returns the server's error, if the server refused the command, its connection or the authentication.
    #[must_use]
    pub fn server_error(&self) -> Option<&ServerError> {
        match self {
            Self::Command(failure) => failure.any_server_error(),
            Self::CheckOut(CheckOutError::Establish(error))
            | Self::CheckOutTimeout { source: CheckOutError::Establish(error), .. } => server_error_in(error),
            Self::Interrupted(_) | Self::CheckOut(_) | Self::CheckOutTimeout { .. } => None,
        }
    }

    /// Returns whether the network failed, other than by a timeout, or the server closed the connection. This may have
    /// happened during the command, while its connection was being opened, or earlier, in which case it caused the pool
    /// to be cleared.
    #[must_use]
    pub fn is_network_error(&self) -> bool {
        match self {
            Self::Command(failure) => failure.is_network_error(),
            Self::Interrupted(_) => true,
            Self::CheckOut(CheckOutError::Establish(error)) => {
                error.is_retryable() && !error.is_timeout() && server_error_in(error).is_none()
            }
            Self::CheckOut(CheckOutError::PoolCleared(cleared)) => {
                cleared.cause.as_deref().is_some_and(|cause| server_error_in(cause).is_none())
            }
            Self::CheckOut(_) | Self::CheckOutTimeout { .. } => false,
        }
    }

    /// Returns whether the server or the check-out gave the error this label.
    #[must_use]
    pub fn has_label(&self, label: &str) -> bool {
        self.labels().has(label) || self.command_error().is_some_and(|failure| failure.has_label(label))
    }

    /// Returns the labels that the server or the check-out attached to the error.
    #[must_use]
    pub fn labels(&self) -> Labels {
        match self {
            Self::Command(failure) => failure.any_server_error().map_or(Labels::NONE, |error| error.labels),
            Self::CheckOut(CheckOutError::Establish(error))
            | Self::CheckOutTimeout { source: CheckOutError::Establish(error), .. } => error.labels(),
            Self::Interrupted(_) | Self::CheckOut(_) | Self::CheckOutTimeout { .. } => Labels::NONE,
        }
    }

    /// Returns the address of the server.
    #[must_use]
    pub fn address(&self) -> &str {
        match self {
            Self::Command(failure) => failure.address(),
            Self::Interrupted(cleared) => &cleared.address,
            Self::CheckOut(error) | Self::CheckOutTimeout { source: error, .. } => error.address(),
        }
    }
}
