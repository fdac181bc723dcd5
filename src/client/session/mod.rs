//! Sessions of a client: the fields that they add to commands, and the values that they take from replies. This module
//! implements the specifications Driver Sessions, Causal Consistency, Snapshot Reads, Transactions, Retryable Reads,
//! Retryable Writes and Client Backpressure.
//!
//! This layer does no I/O, runs no tasks and reads no clock: the caller passes the time and random numbers as
//! arguments.
//!
//! # Terms
//!
//! | term | meaning |
//! | --- | --- |
//! | server session | an identifier that the server keeps state for, and what the client knows about it |
//! | session pool | the server sessions that no operation is using, kept for reuse |
//! | explicit session | a session that the application starts; every other operation uses an implicit session, for that operation only |
//! | elements | the fields that a session adds to a command, as encoded BSON elements |
//! | fault | what a failed attempt of an operation means for retries and transactions |
//! | cluster time | the newest `$clusterTime` that a server sent, passed on with each command ("gossip") |
//!
//! # Why it is built this way
//!
//! Each command of a client uses a server session, so every command takes a session and gives it back. The pool has a
//! stack for each core and no lock. The cluster time is read for each command, so it is an immutable value behind
//! arc-swap: reading it writes no memory that another core uses.
//!
//! An explicit session records the worst case before a command is sent, and the outcome afterwards. So a cancelled
//! operation leaves the session in a correct state, whether the server executed the command or not.
//!
//! # Forks
//!
//! A session belongs to one process. A forked child discards the sessions that it inherits, including sessions that
//! were in use during the fork.

mod cluster_time;
mod commands;
mod elements;
mod error;
mod explicit;
mod fault;
mod moment;
mod options;
mod pool;
#[cfg(test)]
mod real_tests;
mod repetition;
mod reply;
mod retry;
mod server_session;
mod transaction;

pub use cluster_time::SharedClusterTime;
pub use commands::{
    has_no_reply, is_retryable_write, is_single, name, takes_after_cluster_time, takes_read_concern, writes_its_result,
};
pub use error::SessionError;
pub use explicit::{Consequence, Session, SessionServer, SessionUse, write_labels};
pub use fault::{Fault, FaultKind};
pub use moment::Moment;
pub use options::{SessionOptions, TransactionOptions};
pub use pool::ServerSessionPool;
pub use repetition::{NextStep, Repetitions};
pub use reply::ReplyTimes;
pub use retry::{Decision, ErrorToReport, Retries, RetryOptions, Retryability};
pub use server_session::{ServerSession, SessionId};
pub use transaction::{TransactionState, is_unacknowledged};
