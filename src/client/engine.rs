//! The engine, which runs each command of a client, and repeats the command where the specifications allow it.
//!
//! One attempt selects a server, checks out a connection, appends the session's fields, runs the command, and records
//! the outcome. Operations (`run.rs`), cursor commands (`cursor/server_cursor.rs`), and commits and aborts
//! (`session_handle/ending.rs`) implement [`Attempted`] to supply the steps that differ. A blocking client runs the
//! same futures.
//!
//! # What is repeated
//!
//! [`Retries`](crate::client::session::Retries) decides from the error and the [`Retryability`] whether to repeat a
//! command. With `timeoutMS`, "once" means as often as the time allows (Client Side Operations Timeout,
//! "Retryability"). The engine reports the last error that shows that an attempt was actually made.
//!
//! | operation | [`Retryability`] | repeated | why |
//! | --- | --- | --- | --- |
//! | read | `Read` | once after a network error, a cleared pool or a listed error code, with `retryReads` | it changes nothing (Retryable Reads, "Retryable Error") |
//! | write with `txnNumber` | `Write` | once after an error with `RetryableWriteError`, with `retryWrites` | the server knows its number (Retryable Writes, "Executing Retryable Write Commands") |
//! | write without `txnNumber`: many documents, `w: 0`, a standalone; `aggregate` with `$out` or `$merge` | `OtherWrite` | no | it may have been executed (Retryable Writes, "Unsupported Write Operations"; Retryable Reads, "Unsupported Read Operations") |
//! | read or write in a transaction | `OtherRead`, `OtherWrite` | no | the application repeats the whole transaction (Transactions, "Interaction with Retryable Writes") |
//! | `getMore` | `OtherRead` | no | documents would be skipped (Retryable Reads, "Unsupported Read Operations") |
//! | `killCursors` | `Command` | only after a cleared pool: `cursor/server_cursor.rs` repeats it once the server is known again | the server closes an idle cursor after ten minutes |
//! | commit | `Commit` | once after an error with `RetryableWriteError` | the server knows the transaction (Transactions, "commitTransaction") |
//! | abort | `Abort` | the same, but at most twice with `timeoutMS` | the server aborts a transaction itself when its time is up (Transactions, "abortTransaction") |
//! | any command (`runCommand`) | `Command` | no | the client does not know what it does (Run Command, "Retryability") |
//!
//! All of these commands are repeated after an overload, because the server has not executed anything. They are
//! repeated up to `maxAdaptiveRetries` times, each time after a pause (Client Backpressure, "Overload retry policy").
//! These repetitions require `retryReads` for a read or a `getMore`, `retryWrites` for a write, and both for a generic
//! command or `killCursors`. A commit or an abort requires neither.
//!
//! Two cases do not count as retries, because nothing was sent. If a connection was lost while idle, the attempt
//! continues with other connections to the same server, until it gets one that was opened after the loss was noticed.
//! If the server has left the deployment, the attempt selects another server. Neither applies to an operation in a
//! transaction, a commit or an abort. A cursor's command stays on its server.

mod attempts;

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::panic::Location;

use bson::{RawDocument, RawDocumentBuf};

use self::attempts::Attempts;
use super::Client;
use super::command_events::Observation;
use super::error::{ClientError, FailedOperation, fault_of_selection};
use super::in_flight::InFlight;
use super::in_session::{InSession, known_of};
use super::spans::Exception;
use crate::client::deployment::{Server, ServerSelectionError};
use crate::client::session::{ErrorToReport, Fault, FaultKind, ReplyTimes, Retryability, SessionServer};
use crate::endpoint::options::ServerAddress;
use crate::endpoint::wire::reply;
use crate::endpoint::{Command, CommandError, Endpoint, Limit, OperationError, StateChange};
use crate::pool::error::{CheckOutError, Labels};
use crate::pool::runtime::Connection;
use crate::pool::runtime::boxed;

/// A command for the engine to run. The engine calls the methods in the order in which they are declared.
pub(super) trait Attempted: Send + Sync {
    /// The type that holds the server of an attempt.
    type Server: Deref<Target = Server> + Send + Sync;

    /// Returns the values that all attempts share.
    fn common(&self) -> Common<'_>;

    fn session(&mut self) -> (&mut InSession, &Client);

    /// Selects the server if this is possible without waiting, as it usually is.
    fn select_at_once(&self, _avoid: &[ServerAddress]) -> Option<Self::Server> {
        None
    }

    /// Selects the server, or takes the connection that the command must use.
    fn select(&mut self, avoid: &[ServerAddress]) -> impl Future<Output = Tried<Target<Self::Server>, Self>> + Send;

    /// Returns whether an attempt may select another server if its server has left the deployment.
    fn may_move(&self) -> bool {
        false
    }

    /// Returns whether an attempt may use another connection if its connection was lost while idle.
    fn may_reconnect(&self) -> bool {
        false
    }

    /// Encodes the elements that the client appends to the command. `known` describes the connection's server.
    fn append(&mut self, to: &mut Vec<u8>, connection: &Connection<Endpoint>, known: SessionServer) -> Tried<(), Self>;

    /// Returns whether to close the connection if the command is cancelled, as is necessary when a transaction depends
    /// on the connection.
    fn closes_if_cut_short(&self, _known: SessionServer) -> bool {
        false
    }

    /// Returns whether the server sends no reply.
    fn has_no_reply(&self) -> bool {
        false
    }

    fn command(&self) -> Command<'_>;

    /// Records a successful reply in the session.
    fn replied(&self, times: &ReplyTimes<'_>);

    /// Returns whether the command might write. A generic command counts as a write (Client Backpressure, "Overload
    /// retry policy").
    fn may_write(&self) -> bool;

    /// Returns whether an unmet write concern counts as a failure. If not, the caller inspects the reply.
    fn fails_without_concern(&self) -> bool {
        true
    }

    /// Pins the connection again if it must stay pinned, and returns it otherwise.
    fn keep(&mut self, server: &Self::Server, connection: Connection<Endpoint>) -> Option<Connection<Endpoint>>;

    /// Records a failed attempt in the session, and returns the error's labels.
    fn note(&mut self, fault: &Fault, known: Option<SessionServer>) -> Labels;

    /// Returns whether the command was sent with its own transaction number.
    fn is_numbered(&self) -> bool {
        false
    }

    /// Returns which retries the operation allows after a failure.
    fn retryability(&self) -> Retryability;
}

/// The values that all attempts share.
pub(super) struct Common<'a> {
    pub(super) client: &'a Client,
    /// The observation of the operation.
    pub(super) observation: &'a Observation,
    /// The time limit, which has already started.
    pub(super) limit: Limit,
    /// The call site, which is recorded for each connection in use.
    pub(super) site: &'static Location<'static>,
}

/// The result of a step of an attempt.
pub(super) type Tried<T, A> = Result<T, Box<Failed<<A as Attempted>::Server>>>;

/// The server of an attempt and, if it is predetermined, the connection to the server.
pub(super) type Target<S> = (S, Option<Connection<Endpoint>>);

/// The outcome of a command that was executed.
pub(super) struct Reached<S> {
    pub(super) reply: RawDocumentBuf,
    /// `None` if the connection stays pinned, or was given back.
    pub(super) connection: Option<Connection<Endpoint>>,
    pub(super) server: S,
}

/// The outcome of all attempts: the command's result, and whether its write concern was met.
pub(super) type Ended<S> = Result<(Reached<S>, Option<UnmetConcern>), GivenUp>;

/// Details about a write whose write concern was not met, in addition to the reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnmetConcern {
    pub(super) labels: Labels,
    /// Whether a time limit was the reason: `timeoutMS`, or the remaining part of it that was sent to the server.
    pub(super) is_timeout: bool,
    /// Whether the attempts stopped only because of the time limit.
    pub(super) is_late: bool,
}

/// The outcome of all attempts, if no attempt executed the command.
pub(super) struct GivenUp {
    /// The error to report.
    pub(super) error: ClientError,
    /// How far the last attempt got.
    pub(super) kind: FaultKind,
    /// The labels of the last attempt's error.
    pub(super) labels: Labels,
}

impl Exception for GivenUp {
    fn exception(&self) -> (&dyn fmt::Display, &'static str) {
        self.error.exception()
    }
}

/// An attempt that failed.
pub(super) struct Failed<S> {
    failure: Failure<S>,
    fault: Fault,
    /// The error's labels, including the labels that the client adds.
    labels: Labels,
    server: Option<ServerAddress>,
}

enum Failure<S> {
    Error(ClientError),
    /// The command was executed, but its write concern was not met. This becomes the outcome if the command is not
    /// repeated.
    Unmet(Reached<S>, UnmetConcern),
}

impl<S> Failure<S> {
    fn without_connection(self) -> Self {
        match self {
            Self::Unmet(reached, unmet) => Self::Unmet(Reached { connection: None, ..reached }, unmet),
            error => error,
        }
    }
}

/// Makes the first attempt, and then more while the specifications allow it.
pub(super) async fn run<A: Attempted>(of: &mut A) -> Ended<A::Server> {
    match attempt(of, &[]).await {
        Ok(reached) => Ok((reached, None)),
        Err(failed) => boxed(|| go_on_after(of, failed)).await,
    }
}

/// Makes more attempts after the first has failed, while the specifications allow it.
pub(super) async fn go_on_after<A: Attempted>(of: &mut A, mut failed: Box<Failed<A::Server>>) -> Ended<A::Server> {
    let mut attempts = Attempts::new(of.common().client.options(), of.retryability(), of.common().limit);
    let mut to_report = None;
    loop {
        let Failed { failure, fault, labels, server } = *failed;
        let tells_of_attempt = if of.may_write() { fault.may_have_written() } else { fault.reached_a_server() };
        let report = ErrorToReport::after(to_report.take(), failure, tells_of_attempt);
        if !attempts.goes_on(of.common().client, &fault, labels, server).await {
            if fault.is_retryable_overload()
                && let InSession::Explicit(explicit) = of.session().0
            {
                explicit.overload_ended(labels);
            }
            let is_late = attempts.are_late();
            return match report.into_error() {
                Failure::Unmet(reached, unmet) => Ok((reached, Some(UnmetConcern { is_late, ..unmet }))),
                Failure::Error(error) => {
                    let error = if is_late { error.late() } else { error };
                    Err(GivenUp { error, kind: fault.kind, labels })
                }
            };
        }
        // The next attempt may need the capacity of this connection.
        to_report = Some(report.map(Failure::without_connection));
        failed = match attempt(of, attempts.avoided()).await {
            Ok(reached) => return Ok((reached, None)),
            Err(failed) => failed,
        };
    }
}

/// Runs the command once. A server in `avoid` is used only if no other server is suitable.
pub(super) fn attempt<A: Attempted>(
    of: &mut A,
    avoid: &[ServerAddress],
) -> impl Future<Output = Tried<Reached<A::Server>, A>> + Send {
    // Not an `async fn`, whose future would reserve space for the arguments twice.
    async move {
        let mut selection_end = of.common().client.selection_end(of.common().limit);
        let (mut server, mut pinned) = match of.select_at_once(avoid) {
            Some(server) => (server, None),
            None => boxed(|| of.select(avoid)).await?,
        };
        let is_pinned = pinned.is_some();
        // The newest connection that existed when the first lost connection was noticed.
        let mut last_old = None;
        loop {
            let mut connection = match pinned.take() {
                Some(connection) => connection,
                None => match server.pool.check_out_for(of.common().limit, selection_end, of.common().site).await {
                    Ok(connection) => connection,
                    // The server left the deployment after it was selected.
                    Err(OperationError::CheckOut(CheckOutError::PoolClosed(_)))
                        if of.may_move() && of.common().client.deployment().has_lost(&server) =>
                    {
                        selection_end = of.common().client.selection_end(of.common().limit);
                        (server, pinned) = boxed(|| of.select(avoid)).await?;
                        continue;
                    }
                    Err(error) => return Err(failed(of, error, &server, None)),
                },
            };
            let known = known_of(&connection);
            let mut appended = connection.take_room();
            of.append(&mut appended, &connection, known)?;
            if of.closes_if_cut_short(known) {
                connection.close_if_cut_short(true);
            }
            let mut session = mem::replace(of.session().0, InSession::Never);
            let in_flight = InFlight::new(of.common().client, &mut connection, &mut session);
            let outcome = match of.has_no_reply() || of.common().observation.is_observed() {
                true => boxed(|| run_unusually(of, in_flight.connection, &server, &appended)).await,
                false => in_flight.connection.run(command(of, &server, &appended)).await,
            };
            in_flight.ended();
            *of.session().0 = session;
            if of.closes_if_cut_short(known) && connection.condition().is_reusable() {
                connection.close_if_cut_short(false);
            }
            connection.give_room_back(appended);
            let error = match outcome {
                Ok(reply) => return succeeded(of, reply, server, connection, known),
                Err(error) => error,
            };
            let pool = &server.pool;
            if let OperationError::Command(CommandError::Lost { .. }) = &error
                && !is_pinned
                && of.may_reconnect()
                && connection.id() <= *last_old.get_or_insert_with(|| pool.last_created())
            {
                pool.count_retry();
                continue;
            }
            return Err(failed(of, error, &server, Some((connection, known))));
        }
    }
}

/// Returns the command as it is sent to this server.
#[inline]
fn command<'c, A: Attempted>(of: &'c A, server: &Server, appended: &'c [u8]) -> Command<'c> {
    of.command().round_trip_time(server.least_round_trip()).appended(appended)
}

/// Runs a command that is observed or that the server does not reply to.
async fn run_unusually<A: Attempted>(
    of: &A,
    connection: &mut Connection<Endpoint>,
    server: &Server,
    appended: &[u8],
) -> Result<RawDocumentBuf, OperationError> {
    let (events, command) = (of.common().client.command_events(), command(of, server, appended));
    match of.has_no_reply() {
        true => events.send(connection, command, of.common().observation).await,
        false => events.run(connection, command, of.common().observation).await,
    }
}

/// Records a reply. Inlined, because every command passes through here once.
#[inline]
fn succeeded<A: Attempted>(
    of: &mut A,
    reply: RawDocumentBuf,
    server: A::Server,
    connection: Connection<Endpoint>,
    known: SessionServer,
) -> Tried<Reached<A::Server>, A> {
    // Servers outside a cluster do not send times.
    let times = match known.has_cluster_time {
        true => replied(of, &reply),
        false => ReplyTimes { has_write_concern_error: has_write_concern_error(&reply), ..ReplyTimes::default() },
    };
    of.replied(&times);
    let is_concern_unmet = times.has_write_concern_error;
    // Only the reply to a write can report a state change.
    let is_unmet_write = is_concern_unmet && of.may_write();
    if is_unmet_write {
        of.common().client.learn_from_unmet_concern(&server, &connection, &reply);
    }
    let fault = if is_unmet_write && of.fails_without_concern() { Fault::of_reply(&reply) } else { None };
    let connection = of.keep(&server, connection);
    match fault {
        None => Ok(Reached { reply, connection, server }),
        Some(fault) => Err(concern_unmet(of, Reached { reply, connection, server }, known, fault)),
    }
}

/// Records the cluster time and the operation time from a reply.
#[inline]
fn replied<'r>(of: &mut impl Attempted, reply: &'r RawDocument) -> ReplyTimes<'r> {
    let (session, client) = of.session();
    session.replied(client, reply)
}

/// Returns the failure of a command that was executed without meeting its write concern.
#[cold]
fn concern_unmet<A: Attempted>(
    of: &mut A,
    reached: Reached<A::Server>,
    known: SessionServer,
    fault: Fault,
) -> Box<Failed<A::Server>> {
    let labels = of.note(&fault, Some(known));
    let is_timeout = of.common().limit.is_set() && fault.is_max_time_expired();
    let address = reached.server.address.clone();
    let unmet = UnmetConcern { labels, is_timeout, is_late: false };
    let failure = Failure::Unmet(reached, unmet);
    Box::new(Failed { failure, fault, labels, server: Some(address) })
}

/// Returns the failure of an attempt on this server. `connection` is `None` if no connection was available.
#[cold]
fn failed<A: Attempted>(
    of: &mut A,
    error: OperationError,
    server: &A::Server,
    connection: Option<(Connection<Endpoint>, SessionServer)>,
) -> Box<Failed<A::Server>> {
    of.common().client.deployment().operation_failed(server, &error);
    if let Some(refusal) = error.command_error().and_then(CommandError::server_error) {
        replied(of, &refusal.reply);
    }
    let is_reusable = connection.as_ref().is_none_or(|(connection, _)| connection.condition().is_reusable());
    let mut fault = Fault::of_error(&error, is_reusable);
    if let OperationError::CheckOut(CheckOutError::PoolClosed(_)) = &error
        && of.common().client.deployment().has_lost(server)
    {
        // The server left the deployment after it was selected. A transaction can be repeated on another server.
        fault.kind = FaultKind::Selection;
    }
    let (connection, known) = connection.unzip();
    // Pinned before the failure is recorded, because recording it may unpin the connection.
    let connection = connection.and_then(|connection| of.keep(server, connection));
    let labels = of.note(&fault, known);
    drop(connection);
    let error = match of.is_numbered() {
        true => FailedOperation::numbered_write(error, labels),
        false => FailedOperation::operation(error, labels),
    };
    Box::new(Failed { failure: Failure::Error(error.into()), fault, labels, server: Some(server.address.clone()) })
}

/// Returns the failure of an attempt that the client refused before anything was sent.
pub(super) fn refused<S>(error: impl Into<ClientError>) -> Box<Failed<S>> {
    let error = error.into();
    let labels = error.labels();
    let fault = Fault::new(FaultKind::Client, labels);
    Box::new(Failed { failure: Failure::Error(error), fault, labels, server: None })
}

/// Returns the failure of an attempt that found no server.
#[cold]
pub(super) fn found_no_server<A: Attempted>(of: &mut A, error: ServerSelectionError) -> Box<Failed<A::Server>> {
    let fault = fault_of_selection(&error);
    let labels = of.note(&fault, None);
    let failure = Failure::Error(FailedOperation::selection(error, labels).into());
    Box::new(Failed { failure, fault, labels, server: None })
}

/// Returns whether a successful reply reports that the write concern was not met.
fn has_write_concern_error(reply: &RawDocument) -> bool {
    reply::has_field(reply, "writeConcernError")
}

impl Client {
    /// Applies the state change that a successful reply reports in its `writeConcernError`.
    #[cold]
    pub(super) fn learn_from_unmet_concern(
        &self,
        server: &Server,
        connection: &Connection<Endpoint>,
        reply: &RawDocument,
    ) {
        if let Some(change) = StateChange::of_reply(reply) {
            let (generation, service_id) = (connection.generation(), connection.service_id());
            self.deployment().state_changed(server, change, reply, generation, service_id);
        }
    }
}
