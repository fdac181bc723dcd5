//! Errors from check-outs.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::pool::holder::Holder;

use super::{Cause, EstablishError, debug_as_sentence};
use crate::pool::event::CheckOutFailedReason;

debug_as_sentence!(enum CheckOutError {
    PoolClosed(_), PoolCleared(_), WaitQueueTimeout(_), WaitQueueFull(_), Establish(_), NoRuntime(_);
});
debug_as_sentence!(PoolClosedError, PoolClearedError, WaitQueueTimeoutError, NoRuntimeError);

/// A check-out did not yield a connection.
///
/// The messages of the first three variants begin with the words that the CMAP specification prescribes ("Connection
/// Pool Errors").
///
/// The variants are boxed, so that a check-out's result fits in two words. Moving a larger result took 3 % of a
/// successful check-out's time.
///
/// ```
/// use wharf::CheckOutError;
///
/// fn advice(error: &CheckOutError) -> &'static str {
///     match error {
///         CheckOutError::WaitQueueTimeout(_) => "shed load: all connections are in use",
///         CheckOutError::WaitQueueFull(_) => "shed load: too many check-outs are waiting",
///         CheckOutError::PoolCleared(_) => "try again when the pool is ready",
///         CheckOutError::Establish(error) if error.is_retryable() => "try again after a pause",
///         CheckOutError::Establish(_) => "look at the address, the options and the credential",
///         _ => "do not try again on this pool",
///     }
/// }
/// ```
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum CheckOutError {
    /// `PoolClosedError`: the pool was closed. Not retryable on this pool.
    #[error(transparent)]
    PoolClosed(Box<PoolClosedError>),
    /// `PoolClearedError`: the pool is paused, or was cleared during the check-out. Retryable. The error itself says
    /// nothing about the server's state.
    #[error(transparent)]
    PoolCleared(Box<PoolClearedError>),
    /// `WaitQueueTimeoutError`: no connection became available in time. This says nothing about the server's state.
    #[error(transparent)]
    WaitQueueTimeout(Box<WaitQueueTimeoutError>),
    /// The maximum number of check-outs was already waiting
    /// ([`PoolBuilder::max_waiting`](crate::PoolBuilder::max_waiting)), or so many were waiting that this check-out
    /// would have been served too late ([`PoolOptions::refuse_late`](crate::PoolOptions::refuse_late)). This says
    /// nothing about the server's state.
    #[error("{0}")]
    WaitQueueFull(Box<WaitQueueFull>),
    /// The connection that this check-out opened could not be established.
    #[error(transparent)]
    Establish(#[from] EstablishError),
    /// The check-out needs a tokio runtime, but there is none.
    #[error(transparent)]
    NoRuntime(Box<NoRuntimeError>),
}

impl CheckOutError {
    /// Returns the reason that the `ConnectionCheckOutFailed` event gives.
    #[must_use]
    pub fn reason(&self) -> CheckOutFailedReason {
        match self {
            Self::PoolClosed(_) => CheckOutFailedReason::PoolClosed,
            Self::WaitQueueTimeout(_) | Self::WaitQueueFull(_) => CheckOutFailedReason::Timeout,
            Self::PoolCleared(_) | Self::Establish(_) | Self::NoRuntime(_) => CheckOutFailedReason::ConnectionError,
        }
    }

    /// Returns whether the operation that needed the connection may be retried. The operation was never sent.
    ///
    /// Wait before a retry, because a paused pool refuses check-outs immediately.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::PoolClosed(_) | Self::WaitQueueTimeout(_) | Self::WaitQueueFull(_) | Self::NoRuntime(_) => false,
            Self::PoolCleared(error) => !error.sent,
            Self::Establish(error) => error.is_retryable(),
        }
    }

    /// Returns the pool's address.
    #[must_use]
    pub fn address(&self) -> &str {
        match self {
            Self::PoolClosed(error) => &error.address,
            Self::PoolCleared(error) => &error.address,
            Self::WaitQueueTimeout(error) => &error.address,
            Self::WaitQueueFull(error) => &error.address,
            Self::Establish(error) => error.address().unwrap_or_default(),
            Self::NoRuntime(error) => &error.address,
        }
    }
}

impl From<PoolClosedError> for CheckOutError {
    fn from(error: PoolClosedError) -> Self {
        Self::PoolClosed(Box::new(error))
    }
}

impl From<PoolClearedError> for CheckOutError {
    fn from(error: PoolClearedError) -> Self {
        Self::PoolCleared(Box::new(error))
    }
}

impl From<WaitQueueTimeoutError> for CheckOutError {
    fn from(error: WaitQueueTimeoutError) -> Self {
        Self::WaitQueueTimeout(Box::new(error))
    }
}

impl From<WaitQueueFull> for CheckOutError {
    fn from(error: WaitQueueFull) -> Self {
        Self::WaitQueueFull(Box::new(error))
    }
}

impl From<NoRuntimeError> for CheckOutError {
    fn from(error: NoRuntimeError) -> Self {
        Self::NoRuntime(Box::new(error))
    }
}

/// `PoolClosedError`: a check-out failed because the pool was closed.
///
/// ```
/// use wharf::{CheckOutError, PoolClosedError};
///
/// fn of_closed_pool(error: &CheckOutError) -> Option<&PoolClosedError> {
///     // Its pool no longer serves check-outs: use the pool that replaces it.
///     if let CheckOutError::PoolClosed(error) = error { Some(error) } else { None }
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Error)]
#[error("Attempted to check out a connection from closed connection pool")]
#[non_exhaustive]
pub struct PoolClosedError {
    /// The pool's address.
    pub address: Arc<str>,
}

/// `PoolClearedError`: a check-out or an operation failed because the pool is paused or was cleared.
///
/// The specifications for retryable reads and writes treat this as a retryable error. They allow retries of reads, and
/// of writes that the server recognises by `lsid` and `txnNumber`. Any other operation may be run again only if it was
/// not [`sent`](Self::sent).
///
/// ```
/// use wharf::PoolClearedError;
///
/// fn advice(error: &PoolClearedError) -> &'static str {
///     match error {
///         error if error.sent => "run it again only if it may be executed twice",
///         error if error.never_ready => "call Pool::ready",
///         _ => "try again when the pool is ready",
///     }
/// }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct PoolClearedError {
    /// The pool's address.
    pub address: Arc<str>,
    /// The error that cleared the pool, if one was given. Always `None` if `interrupted`.
    pub cause: Option<Cause>,
    /// Whether a connection that was in use or pending was interrupted, as opposed to a check-out being refused.
    pub interrupted: bool,
    /// Whether part of the operation may have been sent before the interruption, in which case the server may have
    /// executed the operation. Always `false` for a check-out.
    pub sent: bool,
    /// Whether the pool is paused because it has never been marked ready, rather than because it has been cleared.
    pub never_ready: bool,
}

impl fmt::Display for PoolClearedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = &self.address;
        match &self.cause {
            _ if self.interrupted => write!(f, "Connection to {address} interrupted due to server monitor timeout"),
            Some(cause) => {
                write!(f, "Connection pool for {address} was cleared because another operation failed with: {cause}")
            }
            None if self.never_ready => write!(
                f,
                "Connection pool for {address} is paused: it has not been marked ready yet; call Pool::ready once \
                 the server is known to be reachable"
            ),
            None => write!(f, "Connection pool for {address} was cleared and is paused until Pool::ready is called"),
        }
    }
}

impl StdError for PoolClearedError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn StdError + 'static))
    }
}

/// `WaitQueueTimeoutError`: a check-out timed out.
///
/// ```
/// use wharf::WaitQueueTimeoutError;
///
/// fn advice(error: &WaitQueueTimeoutError) -> &'static str {
///     match error.pending {
///         _ if error.suspended => "the pool is suspended: call Pool::resume",
///         0 => "all connections are in use: shed load, or raise maxPoolSize",
///         _ => "connections are being opened: raise maxConnecting, or minPoolSize",
///     }
/// }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitQueueTimeoutError {
    /// The pool's address.
    pub address: Arc<str>,
    /// The pool's `maxPoolSize` (0 means no limit).
    pub max_pool_size: u32,
    /// How many connections existed in the pool when the check-out timed out.
    pub total: u32,
    /// How many of the connections were in use. This includes connections that were being drained.
    pub in_use: u32,
    /// How many of the connections in use had been checked in and were being drained.
    pub draining: u32,
    /// How many of the connections were available: they became available too late for the check-out, or the pool was
    /// suspended.
    pub available: u32,
    /// How many of the connections were pending.
    pub pending: u32,
    /// How many other check-outs were waiting.
    pub waiting: u32,
    /// Whether the pool was suspended (`Pool::suspend`), in which case check-outs wait outside the queue.
    pub suspended: bool,
    /// How long the check-out had waited, both in the queue and for the connection that it was opening.
    pub waited: Duration,
    /// The limit that ended the check-out.
    pub limit: TimeLimit,
    /// The number of connections in use for each purpose, in load-balanced mode.
    pub holders: Option<Holders>,
    /// The connections that had been in use longest: at most five, the longest use first. `None` unless the pool
    /// accounts for holders (`Pool::account_for_holders`).
    pub longest_held: Option<Vec<Holder>>,
    /// The status of the pool's [`Budget`](crate::Budget), if the pool is under a budget.
    pub budget: Option<BudgetStatus>,
}

/// A snapshot of a [`Budget`](crate::Budget).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct BudgetStatus {
    /// How many connections all pools together may hold.
    pub size: u32,
    /// How many connections the pools hold, including connections that are being opened or closed.
    pub connections: u32,
    /// How many pools are waiting for another pool to give up a connection.
    pub waiting_pools: usize,
}

/// The limit that ended a check-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimeLimit {
    /// `waitQueueTimeoutMS`: how long a check-out may wait in the queue.
    WaitQueueTimeout,
    /// `timeoutMS`: how long an operation, or a check-out outside an operation, may take.
    Timeout,
    /// A limit on the operation that checks out the connection, with the limit's name. For example, in a client with
    /// `timeoutMS`, `serverSelectionTimeoutMS` limits how long an operation may take to get a server and a connection.
    Operation(&'static str),
    /// The deadline that the caller gave to `Pool::check_out_until`.
    Deadline,
}

impl TimeLimit {
    /// Returns whether, as far as the pool knows, the use of the connection must also end within the limit.
    pub(crate) fn includes_use(self) -> bool {
        match self {
            Self::Timeout | Self::Deadline => true,
            Self::WaitQueueTimeout | Self::Operation(_) => false,
        }
    }
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WaitQueueTimeout => "waitQueueTimeoutMS",
            Self::Timeout => "timeoutMS",
            Self::Operation(name) => name,
            Self::Deadline => "the caller's deadline",
        })
    }
}

/// The number of connections in use for each purpose (load balancer specification, "Connection Tracking").
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holders {
    /// Connections pinned to a cursor.
    pub cursors: u32,
    /// Connections pinned to a transaction.
    pub transactions: u32,
    /// Connections checked out for anything else.
    pub other_operations: u32,
}

impl fmt::Display for WaitQueueTimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_beginning(f)?;
        let Self { available, draining, in_use, longest_held, budget, suspended, .. } = self;
        write!(f, ", available: {available}, being drained: {draining}")?;
        if *suspended {
            f.write_str(", and the pool is suspended")?;
        }
        if let Some(BudgetStatus { size, connections, waiting_pools }) = budget {
            write!(
                f,
                ", connections of all pools under the budget: {connections} of {size}, pools waiting for it: {waiting_pools}"
            )?;
        }
        match longest_held.as_deref() {
            Some([]) => Ok(()),
            Some(holders) => {
                f.write_str("; longest in use: ")?;
                for (index, holder) in holders.iter().enumerate() {
                    write!(f, "{}{holder}", if index > 0 { "; " } else { "" })?;
                }
                Ok(())
            }
            None if *in_use > *draining => {
                f.write_str("; to see where connections were checked out, call account_for_holders(true)")
            }
            None => Ok(()),
        }
    }
}

impl WaitQueueTimeoutError {
    /// Writes the first part of the message. The specifications prescribe its first words.
    fn fmt_beginning(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, max_pool_size, in_use, pending, waiting, waited, limit, holders, .. } = self;
        if let Some(Holders { cursors, transactions, other_operations }) = holders {
            // The wording of the load balancer specification ("Connection Tracking").
            return write!(
                f,
                "Timeout waiting for connection from the connection pool. maxPoolSize: {max_pool_size}, connections in \
                 use by cursors: {cursors}, connections in use by transactions: {transactions}, connections in use by \
                 other operations: {other_operations}, connections being opened: {pending}, other check-outs waiting: \
                 {waiting}, waited for {address}: {waited:.1?} ({limit})"
            );
        }
        let unlimited = if *max_pool_size == 0 { " (no limit)" } else { "" };
        write!(
            f,
            "Timed out while checking out a connection from connection pool for {address} after {waited:.1?} ({limit}): \
             connections in use: {in_use}, being opened: {pending}, maxPoolSize: {max_pool_size}{unlimited}, other \
             check-outs waiting: {waiting}"
        )
    }
}

impl StdError for WaitQueueTimeoutError {}

/// A check-out failed immediately because too many other check-outs were waiting. Either the maximum number was
/// waiting, or so many were waiting that this check-out would have been served too late.
///
/// ```
/// use wharf::WaitQueueFull;
///
/// fn advice(error: &WaitQueueFull) -> String {
///     format!("{} of {} connections are in use: try again later", error.in_use, error.max_pool_size)
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitQueueFull {
    /// The pool's address.
    pub address: Arc<str>,
    /// How many check-outs may wait (`u32::MAX` means no limit).
    pub max_waiting: u32,
    /// The pool's `maxPoolSize` (0 means no limit).
    pub max_pool_size: u32,
    /// How many connections existed in the pool.
    pub total: u32,
    /// How many of the connections were in use.
    pub in_use: u32,
    /// How many of the connections had just become available.
    pub available: u32,
    /// How many of the connections were pending.
    pub pending: u32,
    /// How many check-outs were waiting when the error was created, just after the refusal.
    pub waiting: u32,
    /// Why the check-out would have been served too late. `None` if the maximum number of check-outs was already
    /// waiting.
    pub too_late: Option<TooLate>,
}

/// Why a check-out would have been served too late.
///
/// ```
/// use wharf::{TooLate, WaitQueueFull};
///
/// fn advice(error: &WaitQueueFull) -> String {
///     match &error.too_late {
///         Some(TooLate { estimated, .. }) => format!("try again with a time limit of {estimated:?}, or later"),
///         None => "try again later".to_owned(),
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TooLate {
    /// The limit that the check-out would have exceeded.
    pub limit: TimeLimit,
    /// How much time was left before the limit.
    pub time_left: Duration,
    /// The estimated time until the check-out would have received a connection. If the limit is `timeoutMS` or the
    /// caller's deadline, the estimate also covers the use of the connection. It includes a margin of 25 %, because the
    /// estimate may be wrong.
    pub estimated: Duration,
    /// The measured mean time from one served check-out to the next, while check-outs were waiting.
    pub pace: Duration,
}

impl fmt::Display for WaitQueueFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, max_waiting, max_pool_size, in_use, pending, waiting, .. } = self;
        write!(f, "the queue of the connection pool for {address} is ")?;
        match &self.too_late {
            Some(TooLate { limit, time_left, estimated, pace }) => write!(
                f,
                "too long: estimated time: {estimated:.1?}, time left: {time_left:.1?} ({limit}), check-outs waiting: \
                 {waiting}, served per second: {:.1}",
                pace.as_secs_f64().recip(),
            )?,
            None => write!(f, "full: check-outs waiting: {waiting}, allowed: {max_waiting}")?,
        }
        write!(f, ", connections in use: {in_use}, being opened: {pending}, maxPoolSize: {max_pool_size}")
    }
}

/// A check-out needs a tokio runtime to open a connection or to enforce a time limit, but there is no runtime.
///
/// The pool's runtime has shut down, and the check-out is being polled outside any runtime, or on a runtime that is
/// about to shut down. Nothing was sent.
///
/// ```
/// use wharf::CheckOutError;
///
/// fn needs_a_runtime(error: &CheckOutError) -> bool {
///     // Poll the next check-out on a runtime: the pool moves there.
///     matches!(error, CheckOutError::NoRuntime(_))
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Error)]
#[error(
    "no tokio runtime for the connection pool for {address}: the pool's runtime has ended, and the check-out is not \
     polled on a running one"
)]
#[non_exhaustive]
pub struct NoRuntimeError {
    /// The pool's address.
    pub address: Arc<str>,
}

impl NoRuntimeError {
    pub(crate) fn of(address: &Arc<str>) -> Self {
        Self { address: address.clone() }
    }
}
