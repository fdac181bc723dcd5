//! Sessions that an application starts.

use std::sync::Arc;
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf, Timestamp};

use super::cluster_time::ClusterTime;
use super::elements;
use super::error::SessionError;
use super::fault::{Fault, FaultKind};
use super::moment::Moment;
use super::options::{SessionOptions, TransactionOptions};
use super::reply::ReplyTimes;
use super::server_session::{ServerSession, SessionId};
use super::transaction::{Pin, Transaction, TransactionState};
use crate::endpoint::options::{InvalidOption, Options, ReadPreference, ReadPreferenceMode};
use crate::pool::error::Labels;

/// The first wire version with snapshot reads: 5.0.
const SNAPSHOT_WIRE_VERSION: i32 = 13;

/// The properties of an operation that matter to its session.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionUse<'a> {
    /// Whether the operation reads. If so, its read preference applies in a transaction. A generic command is treated
    /// as a read.
    pub is_read: bool,
    /// The level of the operation's own or inherited read concern. Not sent in a transaction.
    pub read_concern: Option<&'a str>,
    /// Whether the application gave this operation its own read concern.
    pub has_own_read_concern: bool,
    /// The operation's own read concern, if it was taken out of the command so that the session can add to it.
    pub own_read_concern: Option<&'a RawDocument>,
    /// Whether the application gave this operation its own write concern.
    pub has_own_write_concern: bool,
    /// Whether the operation's own or inherited write concern is `w: 0`.
    pub is_unacknowledged: bool,
    /// The read preference that the application gave this operation.
    pub read_preference: Option<&'a ReadPreference>,
    /// Whether the command may carry `afterClusterTime`: see
    /// [`takes_after_cluster_time`](super::takes_after_cluster_time). False for a generic command.
    pub takes_after_cluster_time: bool,
    /// The number for a write that may be retried, from [`Session::next_transaction_number`]. Unused in a transaction.
    pub transaction_number: Option<i64>,
    /// Whether the operation stays outside the session's transaction, regardless of the transaction's state. A change
    /// stream resumes this way.
    pub is_beside_transaction: bool,
}

/// The server that a command is sent to.
#[derive(Clone, Copy, Debug)]
pub struct SessionServer {
    /// The connection's `maxWireVersion`.
    pub max_wire_version: i32,
    /// Whether the server has cluster times: all servers except standalone servers do.
    pub has_cluster_time: bool,
    /// Whether the server is a mongos, or behind a load balancer.
    pub is_mongos: bool,
    /// Whether the server is behind a load balancer, so that a transaction stays on its connection.
    pub is_load_balanced: bool,
}

/// The consequences of a failed attempt.
#[derive(Debug)]
#[must_use]
pub struct Consequence<P> {
    /// All labels of the error, from the server and from the client.
    pub labels: Labels,
    /// The server or connection that the session was pinned to until now. Retries select a new server.
    pub unpinned: Option<P>,
}

/// An explicit session: a series of operations in one task of an application. The operations are causally consistent by
/// default, or belong to transactions.
///
/// The session does no I/O itself. For each operation, the client calls
///
/// 1. [`begin`](Self::begin), before it selects a server;
/// 2. [`append_to`](Self::append_to), right before each attempt is sent, once its connection is known;
/// 3. [`replied`](Self::replied) with each reply, and [`failed`](Self::failed) with each failed attempt or
///    [`succeeded`](Self::succeeded).
///
/// The session can be dropped at any point, because it always records the worst case in advance.
///
/// A session runs one operation at a time, so its methods take `&mut self`. `P` is the type of the server or connection
/// that a transaction is pinned to.
#[derive(Debug)]
pub struct Session<P> {
    server: ServerSession,
    /// Whether `server` is in use. Otherwise it is a placeholder that is never sent.
    has_server: bool,
    is_causally_consistent: bool,
    is_snapshot: bool,
    snapshot_time: Option<Timestamp>,
    default_timeout: Option<Duration>,
    /// The options that transactions inherit from the session and the client.
    transaction_defaults: TransactionOptions,
    cluster_time: Option<Arc<ClusterTime>>,
    operation_time: Option<Timestamp>,
    transaction: Transaction<P>,
    /// Whether the abort of an abandoned transaction is in progress.
    is_aborting: bool,
}

impl<P> Session<P> {
    /// Starts a client's session with these options.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if options conflict.
    pub fn new(server: ServerSession, options: &SessionOptions, client: &Options) -> Result<Self, InvalidOption> {
        options.check()?;
        Ok(Self {
            server,
            has_server: true,
            is_causally_consistent: options.is_causally_consistent(),
            is_snapshot: options.snapshot,
            snapshot_time: options.snapshot_time,
            default_timeout: options.default_timeout.or(client.timeout),
            transaction_defaults: options
                .default_transaction_options
                .clone()
                .or(&TransactionOptions::of_client(client)),
            cluster_time: None,
            operation_time: None,
            transaction: Transaction::default(),
            is_aborting: false,
        })
    }

    /// Starts a session for an operation that consists of several commands. The session has no server session until it
    /// is [given one](Self::give_server).
    ///
    /// # Errors
    ///
    /// The same as for [`new`](Self::new).
    pub fn of_operation(now: Moment, options: &SessionOptions, client: &Options) -> Result<Self, InvalidOption> {
        Ok(Self { has_server: false, ..Self::new(ServerSession::new(now), options, client)? })
    }

    /// Gives the session a server session, if it has none. The client does so once an operation has its connection
    /// (Driver Sessions, "Sessions and Connections").
    pub fn give_server(&mut self, acquire: impl FnOnce() -> ServerSession) {
        if !self.has_server {
            self.server = acquire();
            self.has_server = true;
        }
    }

    /// Ends the session, which is about to be dropped. Returns the server session, if there is one. The caller aborts
    /// the transaction if [`abandon`](Self::abandon) says so, and then gives the server session back.
    pub fn end(&mut self, now: Moment) -> Option<ServerSession> {
        let server = std::mem::replace(&mut self.server, ServerSession::new(now));
        std::mem::take(&mut self.has_server).then_some(server)
    }

    /// Returns the identifier of the server session. Sessions that do not overlap in time may share an identifier.
    pub fn id(&self) -> SessionId {
        self.server.id()
    }

    /// Returns the newest cluster time that the session has seen.
    pub fn cluster_time(&self) -> Option<&RawDocument> {
        self.cluster_time.as_deref().map(ClusterTime::document)
    }

    /// Returns the time of the session's latest operation.
    pub fn operation_time(&self) -> Option<Timestamp> {
        self.operation_time
    }

    /// Returns the time at which a session with `snapshot` reads, once it is known.
    pub fn snapshot_time(&self) -> Option<Timestamp> {
        self.snapshot_time
    }

    /// Returns whether operations see the effects of earlier operations in the session. With `snapshot` they do not.
    pub fn is_causally_consistent(&self) -> bool {
        self.is_causally_consistent && !self.is_snapshot
    }

    /// Returns the `timeoutMS` of a transaction with these options: its own limit, the session's `defaultTimeoutMS` or
    /// the client's `timeoutMS`, in this order.
    pub fn timeout_of(&self, options: &TransactionOptions) -> Option<Duration> {
        options.timeout.or(self.transaction_defaults.timeout).or(self.default_timeout)
    }

    /// Returns the `timeoutMS` of a commit or an abort.
    pub fn timeout_of_end(&self) -> Option<Duration> {
        self.timeout_of(&self.transaction.options)
    }

    /// Advances this session's cluster time to that of another session, if that is newer. Other sessions are not
    /// affected.
    ///
    /// # Errors
    ///
    /// [`SessionError::InvalidClusterTime`] if the document is not a cluster time.
    pub fn advance_cluster_time(&mut self, cluster_time: &RawDocument) -> Result<(), SessionError> {
        let time = ClusterTime::read(cluster_time).ok_or(SessionError::InvalidClusterTime)?;
        self.keep_cluster_time(|| Arc::new(time.clone()), time.time());
        Ok(())
    }

    /// Advances the operation time to that of another session, if that is newer.
    pub fn advance_operation_time(&mut self, time: Timestamp) {
        self.operation_time = self.operation_time.max(Some(time));
    }

    fn keep_cluster_time(&mut self, cluster_time: impl FnOnce() -> Arc<ClusterTime>, time: Timestamp) {
        if self.cluster_time.as_ref().is_none_or(|present| present.time() < time) {
            self.cluster_time = Some(cluster_time());
        }
    }

    /// Returns a new number for a write that may be retried. All attempts of the write use the same number.
    pub fn next_transaction_number(&mut self) -> i64 {
        self.server.next_transaction_number()
    }

    /// Returns the state of the transaction.
    pub fn transaction_state(&self) -> TransactionState {
        self.transaction.state
    }

    /// Returns whether the session's operations are currently in a transaction. If so, they are not retried.
    pub fn is_in_transaction(&self) -> bool {
        self.transaction.is_active()
    }

    /// Returns the number of the transaction that may be open on the server: no abort was requested, and no commit was
    /// sent.
    pub fn open_transaction(&self) -> Option<i64> {
        self.transaction.is_open().then(|| self.server.transaction_number())
    }

    #[cfg(test)]
    pub fn pinned(&self) -> Option<&P> {
        match &self.transaction.pin {
            Pin::To(pinned) => Some(pinned),
            Pin::Free | Pin::Taken => None,
        }
    }

    /// Pins the transaction to the mongos or the connection of its first command. The commit can be repeated, so the
    /// session stays pinned for the commit. Outside a transaction, returns `pinned`.
    pub fn pin(&mut self, pinned: P) -> Option<P> {
        match self.transaction.state {
            TransactionState::None | TransactionState::Aborted => Some(pinned),
            TransactionState::Starting | TransactionState::InProgress | TransactionState::Committed => {
                std::mem::replace(&mut self.transaction.pin, Pin::To(pinned)).held()
            }
        }
    }

    /// Restores the pin of the transaction with this number, after a cursor took it. Returns the pin if that
    /// transaction has ended, or if an error unpinned it.
    pub fn pin_again(&mut self, number: i64, pinned: P) -> Option<P> {
        let has_lent_it = self.is_pin_taken() && self.server.transaction_number() == number;
        if has_lent_it { self.pin(pinned) } else { Some(pinned) }
    }

    /// Unpins the session. This happens when the session ends, after an abort, and after an error that requires it.
    pub fn unpin(&mut self) -> Option<P> {
        std::mem::take(&mut self.transaction.pin).held()
    }

    /// Returns whether the session is pinned, even if a command has taken the pin.
    pub fn is_pinned(&self) -> bool {
        !matches!(self.transaction.pin, Pin::Free)
    }

    /// Returns whether the server session will be discarded, because its last operation may still be running.
    #[cfg(feature = "unstable")]
    pub fn is_dirty(&self) -> bool {
        self.server.is_dirty
    }

    /// Returns whether a command has taken the session's pin.
    pub fn is_pin_taken(&self) -> bool {
        matches!(self.transaction.pin, Pin::Taken)
    }

    /// Takes the session's pin, for a command that uses it: an operation in the transaction, or the first attempt to
    /// commit or abort it. The caller [pins](Self::pin) the session again afterwards, unless the command unpinned it. A
    /// cancelled command does not return the pin.
    ///
    /// # Errors
    ///
    /// [`SessionError::TransactionCutOff`] if another command took the pin.
    pub fn take_pin(&mut self) -> Result<Option<P>, SessionError> {
        self.transaction.take_pin()
    }

    /// Ends a transaction that was left open, and returns whether to send an abort: see
    /// [`abort_command`](Self::abort_command). Until the abort [has finished](Self::abort_ended), the session refuses
    /// everything else.
    pub fn abandon(&mut self) -> bool {
        let must_abort = self.transaction.abandon();
        self.is_aborting |= must_abort;
        must_abort
    }

    /// Records that the abort of an abandoned transaction has finished. Returns the transaction's pin.
    pub fn abort_ended(&mut self) -> Option<P> {
        self.is_aborting = false;
        self.unpin()
    }

    /// Returns whether the abort of an abandoned transaction is in progress.
    pub fn is_aborting(&self) -> bool {
        self.is_aborting
    }

    fn refuse_while_aborting(&self) -> Result<(), SessionError> {
        if self.is_aborting { Err(SessionError::AbortInProgress) } else { Ok(()) }
    }

    /// Starts a transaction. The server learns of the transaction from its first command. Returns the previous
    /// transaction's pin.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if the session has `snapshot`, if a transaction is in progress, or if the write concern is
    /// unacknowledged.
    pub fn start_transaction(&mut self, options: TransactionOptions) -> Result<Option<P>, SessionError> {
        if self.is_snapshot {
            return Err(SessionError::SnapshotTransaction);
        }
        self.refuse_while_aborting()?;
        let unpinned = self.transaction.start(options.or(&self.transaction_defaults))?;
        self.server.next_transaction_number();
        Ok(unpinned)
    }

    /// Begins an operation: checks it, and leaves the previous transaction if that transaction has ended. Returns the
    /// pin of the transaction that the session left.
    ///
    /// # Errors
    ///
    /// [`SessionError`] for an operation that the session does not support. In that case, the state does not change.
    pub fn begin(&mut self, operation: &SessionUse<'_>) -> Result<Option<P>, SessionError> {
        if operation.is_beside_transaction {
            return Ok(None);
        }
        self.refuse_while_aborting()?;
        if !self.is_in_transaction() {
            if operation.is_unacknowledged {
                return Err(SessionError::UnacknowledgedWrite);
            }
            if self.is_snapshot && operation.has_own_read_concern {
                return Err(SessionError::ReadConcernInSnapshot);
            }
            return Ok(self.transaction.leave());
        }
        // If the last operation was cancelled, its outcome will never be reported.
        self.transaction.command_ended(true);
        if operation.has_own_read_concern {
            return Err(SessionError::ReadConcernInTransaction);
        }
        if operation.has_own_write_concern {
            return Err(SessionError::WriteConcernInTransaction);
        }
        let preference = operation.read_preference.or(self.transaction.options.read_preference.as_ref());
        let is_primary = preference.is_none_or(|preference| preference.mode == ReadPreferenceMode::Primary);
        if operation.is_read && !is_primary {
            return Err(SessionError::ReadPreferenceInTransaction);
        }
        Ok(None)
    }

    /// Appends the session's fields to a command that is about to be sent: `lsid` and, as needed, `txnNumber`,
    /// `startTransaction`, `autocommit`, `readConcern` and `$clusterTime`. `client_time` is the newest cluster time of
    /// the client.
    ///
    /// # Errors
    ///
    /// [`SessionError::SnapshotUnsupported`] for a server older than 5.0. In that case, nothing is appended.
    pub fn append_to(
        &mut self,
        elements: &mut Vec<u8>,
        now: Moment,
        operation: &SessionUse<'_>,
        server: SessionServer,
        client_time: Option<&ClusterTime>,
    ) -> Result<(), SessionError> {
        if self.is_snapshot && server.max_wire_version < SNAPSHOT_WIRE_VERSION {
            return Err(SessionError::SnapshotUnsupported);
        }
        self.server.append_to(elements, now);
        let after = self.operation_time.filter(|_| self.is_causally_consistent && server.has_cluster_time);
        if self.is_in_transaction() && !operation.is_beside_transaction {
            let begins = self.transaction.command_sent(server.is_load_balanced);
            elements::transaction(elements, self.server.transaction_number(), begins);
            if begins {
                elements::read_concern(elements, self.transaction.options.read_concern.as_deref(), after, None);
            }
        } else {
            if let Some(number) = operation.transaction_number {
                elements::transaction_number(elements, number);
            }
            if self.is_snapshot {
                elements::read_concern(elements, Some("snapshot"), None, self.snapshot_time);
            } else {
                let after = after.filter(|_| operation.takes_after_cluster_time);
                match operation.own_read_concern {
                    Some(own) => elements::own_read_concern(elements, own, after),
                    None => elements::read_concern(elements, operation.read_concern, after, None),
                }
            }
        }
        self.append_cluster_time(elements, client_time);
        Ok(())
    }

    /// Appends the session's fields to a `getMore` or a `killCursors` that is about to be sent. `opened_in` is the
    /// number of the transaction that the cursor was opened in. While this transaction is open, the number is sent.
    pub fn append_to_cursor(
        &mut self,
        elements: &mut Vec<u8>,
        now: Moment,
        client_time: Option<&ClusterTime>,
        opened_in: Option<i64>,
    ) {
        self.server.append_to(elements, now);
        if let Some(number) = self.open_transaction().filter(|&open| opened_in == Some(open)) {
            elements::transaction(elements, number, false);
        }
        self.append_cluster_time(elements, client_time);
    }

    /// Appends the cluster time of the session or of the client, whichever is newer.
    fn append_cluster_time(&self, elements: &mut Vec<u8>, client_time: Option<&ClusterTime>) {
        let newer = self.cluster_time.as_deref().into_iter().chain(client_time).max_by_key(|time| time.time());
        if let Some(time) = newer {
            time.append_to(elements);
        }
    }

    /// Records the times in a reply, whether or not it reports success. `advanced` is the result of
    /// [`SharedClusterTime::advance`](super::SharedClusterTime::advance) for the same reply.
    pub fn replied(&mut self, times: &ReplyTimes<'_>, advanced: Option<&Arc<ClusterTime>>) {
        match (advanced, times.cluster_time) {
            (Some(advanced), _) => self.keep_cluster_time(|| Arc::clone(advanced), advanced.time()),
            // The client knows a newer time, but this session may not.
            (None, Some(document)) => {
                if let Some(time) = ClusterTime::read(document) {
                    self.keep_cluster_time(|| Arc::new(time.clone()), time.time());
                }
            }
            (None, None) => {}
        }
        if let Some(time) = times.operation_time {
            self.advance_operation_time(time);
        }
        if self.is_snapshot && self.snapshot_time.is_none() {
            self.snapshot_time = times.at_cluster_time;
        }
    }

    /// Records that an operation succeeded.
    pub fn succeeded(&mut self, times: &ReplyTimes<'_>) {
        if self.transaction.state != TransactionState::None {
            self.transaction.command_ended(true);
            self.keep_token(times);
        }
    }

    /// Records that a cursor's command succeeded. `opened_in` is the number of the transaction that the cursor was
    /// opened in, if any.
    pub fn cursor_succeeded(&mut self, times: &ReplyTimes<'_>, opened_in: Option<i64>) {
        if opened_in.is_some() && self.open_transaction() == opened_in {
            self.keep_token(times);
        }
    }

    /// Keeps the `recoveryToken` from a successful reply to a command in the transaction or to its commit.
    pub fn keep_token(&mut self, times: &ReplyTimes<'_>) {
        if let Some(token) = times.recovery_token {
            self.transaction.keep_token(token);
        }
    }

    /// Records that an attempt at an operation failed. For commit and abort attempts, see
    /// [`commit_failed`](Self::commit_failed) and [`abort_failed`](Self::abort_failed).
    ///
    /// `retries_writes` says whether the operation is a write that may be retried with its transaction number.
    pub fn failed(&mut self, fault: &Fault, server: Option<SessionServer>, retries_writes: bool) -> Consequence<P> {
        self.mark_dirty(fault);
        if !self.is_in_transaction() {
            return Consequence { labels: write_labels(fault, server, retries_writes), unpinned: None };
        }
        self.transaction.command_ended(took_effect(fault));
        let labels = fault.transaction_labels();
        // A retry after an overload needs the server that has the transaction. If there is no retry, the caller unpins
        // the session.
        let may_stay = fault.is_retryable_overload() && self.transaction.state == TransactionState::InProgress;
        let unpins = labels.contains(Labels::TRANSIENT_TRANSACTION) && !may_stay;
        Consequence { labels, unpinned: if unpins { self.unpin() } else { None } }
    }

    /// Records that a cursor's command failed. If the cursor was not opened in the current transaction, the transaction
    /// continues.
    pub fn cursor_failed(&mut self, fault: &Fault, opened_in: Option<i64>) -> Consequence<P> {
        match self.open_transaction() == opened_in {
            true => self.failed(fault, None, false),
            false => self.failed_beside(fault),
        }
    }

    /// Records the failure of a command that does not affect the transaction.
    pub fn failed_beside(&mut self, fault: &Fault) -> Consequence<P> {
        self.mark_dirty(fault);
        Consequence { labels: write_labels(fault, None, false), unpinned: None }
    }

    /// Records that an operation was cancelled when its command may already have been sent. The client will not learn
    /// when the command finishes, so no other session may use the identifier afterwards.
    pub fn cut_off(&mut self) {
        self.server.cut_off();
    }

    fn mark_dirty(&mut self, fault: &Fault) {
        if matches!(fault.kind, FaultKind::Network | FaultKind::Malformed) {
            self.server.mark_dirty();
        }
    }

    /// Begins a commit, and returns whether a command must be sent: see [`commit_command`](Self::commit_command). If
    /// the transaction has no operations, there is nothing to send.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if there is no transaction, or it was aborted.
    pub fn begin_commit(&mut self) -> Result<bool, SessionError> {
        self.refuse_while_aborting()?;
        self.transaction.begin_commit()
    }

    /// Returns the command for the next attempt to commit, which runs against the `admin` database. With
    /// `has_time_limit`, the endpoint sends a time limit, and `maxCommitTimeMS` and `wTimeoutMS` are left out.
    pub fn commit_command(&mut self, has_time_limit: bool) -> RawDocumentBuf {
        self.transaction.commit_command(has_time_limit)
    }

    /// Records that an attempt to commit failed. If the attempt had no connection, `server` is `None`.
    pub fn commit_failed(&mut self, fault: &Fault, server: Option<SessionServer>) -> Consequence<P> {
        self.mark_dirty(fault);
        self.transaction.commit_failed(fault.is_retryable_overload(), took_effect(fault));
        let labels = fault
            .commit_labels(server.map(|server| server.max_wire_version), server.is_some_and(|server| server.is_mongos));
        let unpins = labels.contains(Labels::UNKNOWN_COMMIT_RESULT) || labels.contains(Labels::TRANSIENT_TRANSACTION);
        Consequence { labels, unpinned: if unpins { self.unpin() } else { None } }
    }

    /// Records that [`take_pin`](Self::take_pin) refused the commit before it was sent. The transaction can then be
    /// aborted, or committed later.
    pub fn commit_refused(&mut self) {
        self.transaction.commit_refused();
    }

    /// Begins an abort, and returns whether a command must be sent: see [`abort_command`](Self::abort_command). If no
    /// command must be sent, the caller [unpins](Self::unpin) the session immediately.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if there is no transaction, or it was committed or aborted.
    pub fn begin_abort(&mut self) -> Result<bool, SessionError> {
        self.refuse_while_aborting()?;
        self.transaction.begin_abort()
    }

    /// Returns the command for an attempt to abort, which runs against the `admin` database. With `has_time_limit`, the
    /// endpoint sends a time limit, and `wTimeoutMS` is left out.
    pub fn abort_command(&self, has_time_limit: bool) -> RawDocumentBuf {
        self.transaction.abort_command(has_time_limit)
    }

    /// Records that an attempt to abort failed. The labels decide only whether to retry: errors from aborts are not
    /// reported. After a success, the caller also [unpins](Self::unpin) the session.
    pub fn abort_failed(&mut self, fault: &Fault, server: Option<SessionServer>) -> Consequence<P> {
        self.mark_dirty(fault);
        Consequence { labels: write_labels(fault, server, true), unpinned: self.unpin() }
    }

    /// Appends the session's fields to a commit or an abort that is about to be sent.
    pub fn append_ending(&mut self, elements: &mut Vec<u8>, now: Moment, client_time: Option<&ClusterTime>) {
        self.server.append_to(elements, now);
        elements::transaction(elements, self.server.transaction_number(), false);
        self.append_cluster_time(elements, client_time);
    }
}

/// Returns whether the server may have received or executed the command.
fn took_effect(fault: &Fault) -> bool {
    match fault.kind {
        FaultKind::Network | FaultKind::Malformed | FaultKind::WriteConcern => true,
        FaultKind::Server => !fault.is_retryable_overload(),
        FaultKind::Client
        | FaultKind::Selection
        | FaultKind::CheckOut
        | FaultKind::PoolCleared
        | FaultKind::NoConnection { .. } => false,
    }
}

/// Returns the labels of a write's error outside a transaction: see [`Fault::write_labels`]. `server` is `None` if
/// there was no connection.
pub fn write_labels(fault: &Fault, server: Option<SessionServer>, retries_writes: bool) -> Labels {
    let (version, is_mongos) = server.map_or((None, false), |server| (Some(server.max_wire_version), server.is_mongos));
    fault.write_labels(retries_writes, version, is_mongos)
}

#[cfg(test)]
mod tests;
