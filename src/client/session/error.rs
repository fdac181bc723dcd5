//! Session and transaction errors that arise in the client.

use thiserror::Error;

use crate::pool::error::Labels;

/// A session refused an operation. Nothing was sent, and the state of the transaction is unchanged.
///
/// The Transactions and Snapshot Reads specifications prescribe most of the messages.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The session already has a transaction in progress.
    #[error("Transaction already in progress")]
    TransactionInProgress,
    /// The session was started by another client.
    #[error("a session can only be used with the client that started it")]
    OtherClient,
    /// There is no transaction to commit or abort.
    #[error("No transaction started")]
    NoTransaction,
    /// The transaction has already been aborted.
    #[error("Cannot call commitTransaction after calling abortTransaction")]
    CommitAfterAbort,
    /// The transaction has already been committed.
    #[error("Cannot call abortTransaction after calling commitTransaction")]
    AbortAfterCommit,
    /// The transaction has already been aborted.
    #[error("Cannot call abortTransaction twice")]
    AbortedTwice,
    /// The transaction's own or inherited write concern is `w: 0`.
    #[error("transactions do not support unacknowledged write concerns")]
    UnacknowledgedTransaction,
    /// A write in a session has the write concern `w: 0`. The server would not report when the session is free again.
    #[error("a session does not support writes with an unacknowledged write concern (w: 0)")]
    UnacknowledgedWrite,
    /// An operation in a transaction has its own read concern.
    #[error("Cannot set read concern after starting a transaction.")]
    ReadConcernInTransaction,
    /// An operation in a transaction has its own write concern.
    #[error("Cannot set write concern after starting a transaction.")]
    WriteConcernInTransaction,
    /// A read in a transaction does not go to the primary.
    #[error("read preference in a transaction must be primary")]
    ReadPreferenceInTransaction,
    /// Behind a load balancer, the transaction's connection is lost, because an operation on it was cancelled. The
    /// error also occurs after a cancelled call to a cursor in the transaction, until the cursor continues or is
    /// dropped. The error has the `TransientTransactionError` label: abort the transaction, and start it again.
    #[error(
        "an operation of the transaction was cancelled, and its connection is lost or in use: abort the transaction"
    )]
    TransactionCutOff,
    /// Behind a load balancer, a cursor in the transaction was still closing on its connection when the operation's
    /// time limit (`timeoutMS`) expired.
    #[error("a cursor of the transaction was still closing on its connection when the time was up (timeoutMS)")]
    CursorClosing,
    /// A call to `with_transaction` was dropped before it completed, and the abort of its transaction is still in
    /// progress.
    #[error(
        "a call of with_transaction was dropped, and its transaction is still being aborted: use the session later, or \
         another one"
    )]
    AbortInProgress,
    /// An operation inside `with_transaction` has its own time limit while the transaction's limit applies.
    #[error("timeoutMS cannot be set for an operation inside withTransaction, whose own timeoutMS holds")]
    TimeoutInTransaction,
    /// A session with `snapshot` starts a transaction.
    #[error("Transactions are not supported in snapshot sessions")]
    SnapshotTransaction,
    /// An operation in a session with `snapshot` has its own read concern. The session sets the level and the point in
    /// time for each command.
    #[error("a session with snapshot sets the read concern: remove the operation's")]
    ReadConcernInSnapshot,
    /// A session with `snapshot` is used on a server older than 5.0.
    #[error("Snapshot reads require MongoDB 5.0 or later")]
    SnapshotUnsupported,
    /// An explicit session is used on a server without sessions: a standalone server before 3.6, or an arbiter.
    #[error("sessions are not supported by the server")]
    Unsupported,
    /// The document for advancing a session's cluster time has no timestamp in `clusterTime`, or is longer than 1,024
    /// bytes.
    #[error("a cluster time must have a timestamp in clusterTime, and at most 1024 bytes")]
    InvalidClusterTime,
}

crate::pool::error::debug_as_sentence!(enum SessionError {
    ; TransactionInProgress, OtherClient, NoTransaction, CommitAfterAbort, AbortAfterCommit, AbortedTwice,
    UnacknowledgedTransaction, UnacknowledgedWrite, ReadConcernInTransaction, WriteConcernInTransaction,
    ReadPreferenceInTransaction, TransactionCutOff, CursorClosing, AbortInProgress, TimeoutInTransaction,
    SnapshotTransaction, ReadConcernInSnapshot, SnapshotUnsupported, Unsupported, InvalidClusterTime
});

impl SessionError {
    /// Returns the labels that the client adds to the error.
    pub(crate) fn labels(&self) -> Labels {
        match self {
            Self::TransactionCutOff => Labels::TRANSIENT_TRANSACTION,
            _ => Labels::NONE,
        }
    }
}
