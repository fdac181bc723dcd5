//! The state of a session's transaction.

use std::time::Duration;

use bson::raw::cstr;
use bson::{RawDocument, RawDocumentBuf, rawdoc};

use super::error::SessionError;
use super::options::TransactionOptions;
use crate::endpoint::options::{Acknowledgement, WriteConcern};
use crate::text::milliseconds::limit_for_server;

/// How long a repeated commit may wait for the majority, if its write concern sets no limit.
const REPEATED_COMMIT_W_TIMEOUT: Duration = Duration::from_secs(10);

/// The states of a session (Transactions, "ClientSession changes").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransactionState {
    /// No transaction.
    #[default]
    None,
    /// A transaction that has no commands yet. The server does not know about it.
    Starting,
    /// At least one command in the transaction was sent.
    InProgress,
    /// A commit was requested, and the session did not refuse it. The state does not depend on the outcome of the
    /// commit.
    Committed,
    /// An abort was requested.
    Aborted,
}

/// The transaction of a session. `P` is the type of its pin: a mongos, or a connection to a load balancer.
#[derive(Debug)]
pub(super) struct Transaction<P> {
    pub(super) state: TransactionState,
    /// The options of the transaction, including inherited options.
    pub(super) options: TransactionOptions,
    pub(super) pin: Pin<P>,
    /// The newest `recoveryToken`, which a mongos sends.
    recovery_token: Option<RawDocumentBuf>,
    /// Whether the current command began the transaction. The command may not have reached the server.
    is_beginning: bool,
    /// Whether any command in the transaction was sent, in which case a commit or an abort must also be sent.
    is_known_to_server: bool,
    commit: CommitAttempts,
}

/// The destination of a transaction's commands.
#[derive(Debug, Default)]
pub(super) enum Pin<P> {
    /// Any server: the transaction has no server yet, or an error unpinned it.
    #[default]
    Free,
    /// Only this server or connection.
    To(P),
    /// A connection that a command is using. When the command finishes, it pins the transaction to the connection
    /// again, unless the command was cancelled.
    Taken,
}

impl<P> Pin<P> {
    /// Returns the transaction's pin, if no command has taken it.
    pub(super) fn held(self) -> Option<P> {
        match self {
            Self::To(pinned) => Some(pinned),
            Self::Free | Self::Taken => None,
        }
    }
}

/// How far the attempts to commit a transaction have got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Commits {
    /// There was no attempt, or every attempt was refused by an overloaded server.
    #[default]
    None,
    /// At least one attempt failed, and no attempt was sent. From this point on, the write concern is `majority`.
    Failed,
    /// An attempt was sent, and may have been executed.
    Sent,
}

/// The commits of one transaction so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CommitAttempts {
    made: Commits,
    /// The value of `made` before the current attempt, whose outcome is not known yet.
    before: Commits,
}

impl<P> Default for Transaction<P> {
    fn default() -> Self {
        Self {
            state: TransactionState::None,
            options: TransactionOptions::default(),
            pin: Pin::Free,
            recovery_token: None,
            is_beginning: false,
            is_known_to_server: false,
            commit: CommitAttempts::default(),
        }
    }
}

impl<P> Transaction<P> {
    pub(super) fn is_active(&self) -> bool {
        matches!(self.state, TransactionState::Starting | TransactionState::InProgress)
    }

    /// Returns whether the transaction may be open on the server: no abort was requested, and no commit was sent.
    pub(super) fn is_open(&self) -> bool {
        match self.state {
            TransactionState::Starting | TransactionState::InProgress => true,
            // The commit was cancelled before it was sent, or it kept failing until its time ran out.
            TransactionState::Committed => self.is_known_to_server && self.commit.made != Commits::Sent,
            TransactionState::None | TransactionState::Aborted => false,
        }
    }

    /// Starts a transaction, and returns the previous transaction's pin.
    pub(super) fn start(&mut self, options: TransactionOptions) -> Result<Option<P>, SessionError> {
        if self.is_active() {
            return Err(SessionError::TransactionInProgress);
        }
        if options.write_concern.as_ref().is_some_and(is_unacknowledged) {
            return Err(SessionError::UnacknowledgedTransaction);
        }
        let started = Self { state: TransactionState::Starting, options, ..Self::default() };
        Ok(std::mem::replace(self, started).pin.held())
    }

    /// Leaves a transaction that has ended, because an operation begins outside a transaction. Returns the pin.
    pub(super) fn leave(&mut self) -> Option<P> {
        match self.state {
            TransactionState::None | TransactionState::Committed | TransactionState::Aborted => {
                std::mem::take(self).pin.held()
            }
            TransactionState::Starting | TransactionState::InProgress => None,
        }
    }

    /// Takes the transaction's pin, for a command.
    ///
    /// # Errors
    ///
    /// [`SessionError::TransactionCutOff`] if another command still holds the pin. That command was cancelled, or
    /// belongs to a cursor and is still running. An abort or a repeated commit does not fail with this error, because
    /// it may go to any server (Transactions, "When to unpin").
    pub(super) fn take_pin(&mut self) -> Result<Option<P>, SessionError> {
        let needs_pin = match self.state {
            TransactionState::Starting | TransactionState::InProgress => true,
            TransactionState::Committed => self.commit.made != Commits::Sent,
            TransactionState::None | TransactionState::Aborted => false,
        };
        match &self.pin {
            Pin::Taken if needs_pin => Err(SessionError::TransactionCutOff),
            Pin::Taken | Pin::Free => Ok(None),
            Pin::To(_) => Ok(std::mem::replace(&mut self.pin, Pin::Taken).held()),
        }
    }

    /// Records that a command in the transaction is about to be sent, and returns whether it begins the transaction.
    /// `pins` says whether the transaction is pinned to its connection.
    ///
    /// From this point on, the server may know about the transaction, even if the caller is cancelled and never reports
    /// an outcome.
    pub(super) fn command_sent(&mut self, pins: bool) -> bool {
        if pins {
            self.pin = Pin::Taken;
        }
        self.is_beginning = self.state == TransactionState::Starting;
        self.state = TransactionState::InProgress;
        self.is_known_to_server = true;
        self.is_beginning
    }

    /// Records the outcome of a command in the transaction: whether it reached the server and had an effect there.
    pub(super) fn command_ended(&mut self, took_effect: bool) {
        if std::mem::take(&mut self.is_beginning) && !took_effect && self.state == TransactionState::InProgress {
            // Another command, or the same command again, must begin the transaction.
            self.state = TransactionState::Starting;
            self.is_known_to_server = false;
        }
    }

    /// Keeps the token from a successful reply.
    pub(super) fn keep_token(&mut self, token: &RawDocument) {
        // The server usually sends the same token.
        if self.recovery_token.as_deref() != Some(token) {
            self.recovery_token = Some(token.to_owned());
        }
    }

    /// Moves to the committed state, and returns whether a commit must be sent.
    pub(super) fn begin_commit(&mut self) -> Result<bool, SessionError> {
        match self.state {
            TransactionState::None => return Err(SessionError::NoTransaction),
            TransactionState::Aborted => return Err(SessionError::CommitAfterAbort),
            TransactionState::Starting | TransactionState::InProgress | TransactionState::Committed => {}
        }
        self.state = TransactionState::Committed;
        // If the last attempt was cancelled, its outcome will never be reported.
        self.commit.before = self.commit.made;
        Ok(self.is_known_to_server)
    }

    /// Moves back to the state before the commit, because the commit was refused. If an earlier commit was sent, the
    /// transaction stays committed.
    pub(super) fn commit_refused(&mut self) {
        if self.state == TransactionState::Committed && self.commit.made != Commits::Sent {
            self.state = TransactionState::InProgress;
        }
    }

    /// Moves to the aborted state, and returns whether an abort must be sent.
    pub(super) fn begin_abort(&mut self) -> Result<bool, SessionError> {
        match self.state {
            TransactionState::None => return Err(SessionError::NoTransaction),
            TransactionState::Committed => return Err(SessionError::AbortAfterCommit),
            TransactionState::Aborted => return Err(SessionError::AbortedTwice),
            TransactionState::Starting | TransactionState::InProgress => {}
        }
        self.state = TransactionState::Aborted;
        Ok(self.is_known_to_server)
    }

    /// Moves to the aborted state if the transaction is open, which means that no commit was sent. Returns whether the
    /// server knows about the transaction.
    pub(super) fn abandon(&mut self) -> bool {
        if !self.is_open() {
            return false;
        }
        self.state = TransactionState::Aborted;
        self.is_known_to_server
    }

    /// Returns the command for the next attempt to commit. With a time limit for the whole operation, the server's
    /// limit and `wTimeoutMS` are left out.
    pub(super) fn commit_command(&mut self, has_time_limit: bool) -> RawDocumentBuf {
        let before = self.commit.made;
        // If no outcome is ever reported, the commit may have taken effect.
        self.commit = CommitAttempts { made: Commits::Sent, before };
        let needs_majority = before != Commits::None;
        let mut command = rawdoc! { "commitTransaction": 1 };
        let concern = self.concern(has_time_limit);
        self.append_ending(&mut command, if needs_majority { majority(concern) } else { concern });
        if let Some(limit) = self.options.max_commit_time.filter(|_| !has_time_limit) {
            command.append(cstr!("maxTimeMS"), limit_for_server(limit));
        }
        command
    }

    /// Records that an attempt to commit failed. `is_overload` says that the server refused the attempt because of an
    /// overload, in which case it does not count as an attempt ("Interaction with Client Backpressure"). `took_effect`
    /// says that the attempt was sent, and was not refused because of an overload.
    pub(super) fn commit_failed(&mut self, is_overload: bool, took_effect: bool) {
        let CommitAttempts { made, before } = self.commit;
        let made = match (is_overload, took_effect) {
            (true, _) => before,
            (false, true) => made,
            (false, false) => before.max(Commits::Failed),
        };
        self.commit = CommitAttempts { made, before: made };
    }

    /// Returns the command for the next attempt to abort. With a time limit for the whole operation, `wTimeoutMS` is
    /// left out.
    pub(super) fn abort_command(&self, has_time_limit: bool) -> RawDocumentBuf {
        let mut command = rawdoc! { "abortTransaction": 1 };
        self.append_ending(&mut command, self.concern(has_time_limit));
        command
    }

    /// Returns the write concern of the first attempt.
    fn concern(&self, has_time_limit: bool) -> WriteConcern {
        let concern = self.options.write_concern.clone().unwrap_or_default();
        if has_time_limit { concern.without_w_timeout() } else { concern }
    }

    fn append_ending(&self, command: &mut RawDocumentBuf, concern: WriteConcern) {
        if let Some(concern) = concern.document() {
            command.append(cstr!("writeConcern"), concern);
        }
        if let Some(token) = &self.recovery_token {
            command.append(cstr!("recoveryToken"), token.clone());
        }
    }
}

/// Returns whether writes with this concern are unacknowledged.
pub fn is_unacknowledged(concern: &WriteConcern) -> bool {
    concern.w == Some(Acknowledgement::Servers(0))
}

/// Returns the write concern of a repeated commit ("writeConcern for commitTransaction attempts").
fn majority(concern: WriteConcern) -> WriteConcern {
    let w_timeout = concern.w_timeout.unwrap_or(REPEATED_COMMIT_W_TIMEOUT);
    concern.w(Acknowledgement::Mode("majority".to_owned())).w_timeout(w_timeout)
}
