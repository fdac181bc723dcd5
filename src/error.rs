//! What can go wrong with a check-out, a check-in or a connection, and what the caller can do about it.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::event::CheckOutFailedReason;
use crate::milliseconds::Milliseconds;
use crate::printable::PrintableError;

/// The error that made somebody clear a pool, or that a connection could not be established with.
pub type Cause = Arc<dyn StdError + Send + Sync + 'static>;

pub(crate) use crate::sentence::debug_as_sentence;

debug_as_sentence!(
    CheckOutError,
    PoolClosed,
    PoolCleared,
    WaitQueueTimeout,
    ConnectionError,
    EstablishError,
    ClearError,
    NoRuntime,
    ConnectTimeout,
);

/// A check-out did not yield a connection.
///
/// The messages of the first three begin as the CMAP specification has them ("Connection Pool Errors").
///
/// What is in it is boxed, so that a check-out's result has two words: moving a larger one was three percent of a check-out
/// that succeeds.
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum CheckOutError {
    /// `PoolClosedError`: the pool was closed. Not retryable on this pool.
    #[error(transparent)]
    PoolClosed(Box<PoolClosed>),
    /// `PoolClearedError`: the pool is paused, or was cleared during the check-out. Retryable, and no statement about
    /// the server's state by itself.
    #[error(transparent)]
    PoolCleared(Box<PoolCleared>),
    /// `WaitQueueTimeoutError`: no connection came free in time. Not a statement about the server's state.
    #[error(transparent)]
    WaitQueueTimeout(Box<WaitQueueTimeout>),
    /// The connection that this check-out opened could not be established. Or it waited, and the establishment that it
    /// waited behind ran out of time.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// There is no tokio runtime for what the check-out has to wait for.
    #[error(transparent)]
    NoRuntime(Box<NoRuntime>),
}

impl CheckOutError {
    /// The reason in the `ConnectionCheckOutFailed` event.
    #[must_use]
    pub fn reason(&self) -> CheckOutFailedReason {
        match self {
            Self::PoolClosed(_) => CheckOutFailedReason::PoolClosed,
            Self::WaitQueueTimeout(_) => CheckOutFailedReason::Timeout,
            Self::PoolCleared(_) | Self::Connection(_) | Self::NoRuntime(_) => CheckOutFailedReason::ConnectionError,
        }
    }

    /// Whether the operation that wanted the connection may be tried again. It was not sent in any case. Pause before:
    /// a pool that is paused refuses at once.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::PoolClosed(_) | Self::WaitQueueTimeout(_) | Self::NoRuntime(_) => false,
            Self::PoolCleared(error) => !error.sent,
            Self::Connection(error) => error.is_retryable(),
        }
    }

    /// The pool's address.
    #[must_use]
    pub fn address(&self) -> &str {
        match self {
            Self::PoolClosed(error) => &error.address,
            Self::PoolCleared(error) => &error.address,
            Self::WaitQueueTimeout(error) => &error.address,
            Self::Connection(error) => error.address(),
            Self::NoRuntime(error) => &error.address,
        }
    }
}

impl From<PoolClosed> for CheckOutError {
    fn from(error: PoolClosed) -> Self {
        Self::PoolClosed(Box::new(error))
    }
}

impl From<PoolCleared> for CheckOutError {
    fn from(error: PoolCleared) -> Self {
        Self::PoolCleared(Box::new(error))
    }
}

impl From<WaitQueueTimeout> for CheckOutError {
    fn from(error: WaitQueueTimeout) -> Self {
        Self::WaitQueueTimeout(Box::new(error))
    }
}

impl From<NoRuntime> for CheckOutError {
    fn from(error: NoRuntime) -> Self {
        Self::NoRuntime(Box::new(error))
    }
}

/// `PoolClosedError`: a check-out failed because the pool was closed.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("Attempted to check out a connection from closed connection pool")]
pub struct PoolClosed {
    /// The pool's address.
    pub address: Arc<str>,
}

/// `PoolClearedError`: an operation failed because the pool is paused or was cleared.
///
/// It is a retryable error in the sense of the specifications of retryable reads and retryable writes. They retry reads,
/// and writes that the server recognises by `lsid` and `txnNumber`. Any other operation may be run again only if it was
/// not [`sent`](Self::sent).
#[derive(Clone)]
pub struct PoolCleared {
    /// The pool's address.
    pub address: Arc<str>,
    /// The error that cleared the pool, where the call that cleared it named one. Always `None` if `interrupted`.
    pub cause: Option<Cause>,
    /// Whether a connection in use or in establishment was interrupted, rather than a check-out refused.
    pub interrupted: bool,
    /// Whether a part of the operation may have been sent before the interruption, so that the server may have executed
    /// it. Always `false` for a check-out.
    pub sent: bool,
    /// Whether the pool is paused because it was never marked ready, rather than cleared: `Pool::ready` was not called
    /// yet.
    pub never_ready: bool,
}

impl fmt::Display for PoolCleared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = &self.address;
        match &self.cause {
            _ if self.interrupted => write!(f, "Connection to {address} interrupted due to server monitor timeout"),
            Some(cause) => {
                write!(f, "Connection pool for {address} was cleared because another operation failed with: {cause}")
            }
            None if self.never_ready => write!(
                f,
                "Connection pool for {address} is paused: it has not been marked ready yet, which Pool::ready does once \
                 the server is known to be reachable"
            ),
            None => write!(
                f,
                "Connection pool for {address} was cleared and is paused until Pool::ready marks it ready again"
            ),
        }
    }
}

impl StdError for PoolCleared {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn StdError + 'static))
    }
}

/// `WaitQueueTimeoutError`: a check-out got no connection in time.
#[derive(Clone, PartialEq, Eq)]
pub struct WaitQueueTimeout {
    pub(crate) address: Arc<str>,
    pub(crate) max_pool_size: u32,
    pub(crate) total: u32,
    pub(crate) in_use: u32,
    pub(crate) pending: u32,
    pub(crate) waiting: u32,
    pub(crate) waited: Duration,
    pub(crate) limit: TimeLimit,
    pub(crate) holders: Option<Holders>,
}

/// The limit that ended a check-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimeLimit {
    /// `waitQueueTimeoutMS`: how long a check-out waits in the queue.
    WaitQueueTimeout,
    /// `timeoutMS`: how long an operation takes, or a check-out by itself.
    Timeout,
    /// The deadline that was given to `Pool::check_out_until`.
    Deadline,
}

impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WaitQueueTimeout => "waitQueueTimeoutMS",
            Self::Timeout => "timeoutMS",
            Self::Deadline => "the caller's deadline",
        })
    }
}

impl WaitQueueTimeout {
    /// The pool's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The pool's `maxPoolSize` (0: no limit).
    #[must_use]
    pub fn max_pool_size(&self) -> u32 {
        self.max_pool_size
    }

    /// How many connections the pool had when the time was up.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.total
    }

    /// How many of them were in use.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.in_use
    }

    /// How many of them were in establishment.
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.pending
    }

    /// How many other check-outs waited in the queue.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// How long the check-out had waited, in the queue and for a connection of its own.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Which limit ended the check-out.
    #[must_use]
    pub fn limit(&self) -> TimeLimit {
        self.limit
    }

    /// In load-balanced mode, what the connections in use were held by.
    #[must_use]
    pub fn holders(&self) -> Option<Holders> {
        self.holders
    }
}

/// What connections in use are held by (load balancer specification, "Connection Tracking").
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holders {
    /// Connections pinned to a cursor.
    pub cursors: u32,
    /// Connections pinned to a transaction.
    pub transactions: u32,
    /// Connections checked out for anything else.
    pub other_operations: u32,
}

impl fmt::Display for WaitQueueTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, max_pool_size, in_use, pending, waiting, waited, limit, holders, .. } = self;
        if let Some(Holders { cursors, transactions, other_operations }) = holders {
            // Word for word the load balancer specification's ("Connection Tracking").
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

impl StdError for WaitQueueTimeout {}

/// A check-out has to open a connection or to keep a time limit, and there is no tokio runtime for that: the pool's has
/// ended, and the check-out is not polled on another, or that is about to end as well. Nothing was sent.
#[derive(Clone, PartialEq, Eq, Error)]
#[error(
    "no tokio runtime for the connection pool for {address}: the pool's has ended, and the check-out is not polled on one \
     that lives"
)]
pub struct NoRuntime {
    /// The pool's address.
    pub address: Arc<str>,
}

impl NoRuntime {
    pub(crate) fn of(address: &Arc<str>) -> Self {
        Self { address: address.clone() }
    }
}

/// A connection could not be established: what [`Establish`](crate::Establish) reports, with the pool's view added.
///
/// Cloning is cheap; the clones share one allocation.
#[derive(Clone)]
pub struct ConnectionError(Arc<ConnectionErrorParts>);

struct ConnectionErrorParts {
    address: Arc<str>,
    connection_id: u64,
    generation: u64,
    failure: EstablishError,
}

impl ConnectionError {
    pub(crate) fn new(address: Arc<str>, connection_id: u64, generation: u64, failure: EstablishError) -> Self {
        Self(Arc::new(ConnectionErrorParts { address, connection_id, generation, failure }))
    }

    /// The pool's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// The number of the connection that failed; 0 if the pool's runtime ended before one was created.
    #[must_use]
    pub fn connection_id(&self) -> u64 {
        self.0.connection_id
    }

    /// The generation that the connection was created in. An error of an older generation than the pool's says nothing
    /// new about the server.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.0.generation
    }

    /// The labels that tell whether the server was overloaded and whether to try again.
    #[must_use]
    pub fn labels(&self) -> Labels {
        self.0.failure.labels
    }

    /// Whether the operation that wanted the connection may be tried again: see [`EstablishError::retryable`].
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.failure.retryable || self.labels().contains(Labels::RETRYABLE)
    }

    /// Whether the specifications want the pool cleared because of this error: see [`EstablishError::clears_pool`]. Not if
    /// it has the label `SystemOverloadedError`.
    #[must_use]
    pub fn clears_pool(&self) -> bool {
        self.0.failure.clears_pool && !self.labels().contains(Labels::SYSTEM_OVERLOADED)
    }

    /// Whether the establishment ran out of time.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.0.failure.is_timeout()
    }

    /// Where in its establishment the connection failed.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.0.failure.stage
    }

    /// The underlying error.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.0.failure.source
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConnectionErrorParts { address, connection_id, failure, .. } = &*self.0;
        write!(f, "Connection {connection_id} to {address} could not be established: {failure}")
    }
}

impl StdError for ConnectionError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0.failure.source)
    }
}

/// Why an attempt at establishing a connection failed.
///
/// Made by [`overloaded`](Self::overloaded), [`network`](Self::network) or [`unlabelled`](Self::unlabelled), with
/// [`retryable`](Self::retryable) and [`clears_pool`](Self::clears_pool) changed where the server's own error says more.
#[derive(Clone)]
#[non_exhaustive]
pub struct EstablishError {
    /// How far the attempt had come.
    pub stage: Stage,
    /// What the error means for the server's state and for a retry.
    pub labels: Labels,
    /// Whether an operation that wanted the connection may be tried again although no label says so. Nothing of it was
    /// sent, so this asks only whether a new attempt may succeed: yes after a network error or a timeout, and after a
    /// server's error that the retryable reads and writes specifications name; no after a wrong password.
    pub retryable: bool,
    /// Whether the pool is to be cleared, if no label says that the server may be overloaded. Not after an error that says
    /// that the server is not the primary or is recovering, unless it is shutting down (SDAM, "Error handling
    /// pseudocode").
    pub clears_pool: bool,
    /// The underlying error.
    pub source: Cause,
}

impl EstablishError {
    /// A network error or timeout before the end of `hello`: the server may be overloaded, so the error carries
    /// `SystemOverloadedError` and `RetryableError` and does not clear the pool.
    pub fn overloaded(stage: Stage, source: impl StdError + Send + Sync + 'static) -> Self {
        let labels = Labels::SYSTEM_OVERLOADED.with(Labels::RETRYABLE);
        Self { labels, retryable: true, ..Self::unlabelled(stage, source) }
    }

    /// A network error or timeout that overload cannot cause, such as a name that does not resolve, or one after `hello`,
    /// such as during authentication. It is retryable, carries no label and clears the pool.
    pub fn network(stage: Stage, source: impl StdError + Send + Sync + 'static) -> Self {
        Self { retryable: true, ..Self::unlabelled(stage, source) }
    }

    /// Any other error, such as a certificate that does not verify, or a reply that refuses the connection. It is not
    /// retryable, carries no label and clears the pool.
    pub fn unlabelled(stage: Stage, source: impl StdError + Send + Sync + 'static) -> Self {
        Self { stage, labels: Labels::NONE, retryable: false, clears_pool: true, source: Arc::new(source) }
    }
}

impl EstablishError {
    /// Whether the attempt ran out of time: the error, or a source of it, is a [`ConnectTimeout`] or an
    /// [`io::Error`] of the kind [`TimedOut`](io::ErrorKind::TimedOut).
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        let mut next: Option<&(dyn StdError + 'static)> = Some(&*self.source);
        while let Some(error) = next {
            if error.is::<ConnectTimeout>()
                || error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
            {
                return true;
            }
            next = error.source();
        }
        false
    }
}

/// A step of a connection's establishment, or of its repeated authentication, took longer than a limit allows.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("it did not end within {option} ({})", Milliseconds(*limit))]
pub struct ConnectTimeout {
    /// How long the limit is.
    pub limit: Duration,
    /// The limit's name: `connectTimeoutMS` for all steps together, `timeoutMS` or `socketTimeoutMS` for one command.
    pub option: &'static str,
}

impl fmt::Display for EstablishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.stage, PrintableError(&self.source))
    }
}

impl StdError for EstablishError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.source)
    }
}

/// The stages of a connection's establishment, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Resolving the server's name.
    Resolve,
    /// Reaching the server through a proxy.
    Proxy,
    /// Connecting the transport: TCP or a Unix domain socket.
    Connect,
    /// The TLS handshake.
    Tls,
    /// The MongoDB handshake (`hello`).
    Hello,
    /// Authentication.
    Authenticate,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "resolving the server's name",
            Self::Proxy => "connecting through the proxy",
            Self::Connect => "connecting",
            Self::Tls => "TLS handshake",
            Self::Hello => "MongoDB handshake",
            Self::Authenticate => "authentication",
        })
    }
}

/// A set of error labels.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Labels(u8);

impl Labels {
    /// No label.
    pub const NONE: Self = Self(0);
    /// `SystemOverloadedError`: the server may be overloaded; the pool must not be cleared because of this error.
    pub const SYSTEM_OVERLOADED: Self = Self(1);
    /// `RetryableError`: the operation may be tried again.
    pub const RETRYABLE: Self = Self(2);

    const NAMES: [(Self, &'static str); 2] =
        [(Self::SYSTEM_OVERLOADED, "SystemOverloadedError"), (Self::RETRYABLE, "RetryableError")];

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every label of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The labels' names.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(label, _)| self.contains(*label)).map(|(_, name)| name)
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// A connection was checked into a pool that did not create it. Nothing happened to it: it is in `connection`.
pub struct ForeignConnection<C> {
    /// The connection, still checked out of its own pool.
    pub connection: C,
    /// The address of the pool that refused it.
    pub address: Arc<str>,
}

impl<C> fmt::Debug for ForeignConnection<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<C> fmt::Display for ForeignConnection<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "A connection was checked into the pool for {}, which did not create it", self.address)
    }
}

impl<C> StdError for ForeignConnection<C> {}

/// A pool in load-balanced mode was cleared as a whole, or any other pool by service.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
pub enum ClearError {
    /// The pool is in load-balanced mode: name the service whose connections are to become stale.
    #[error("a pool in load-balanced mode is cleared by serviceId")]
    ServiceIdRequired,
    /// The pool is not in load-balanced mode: it has no services.
    #[error("only a pool in load-balanced mode is cleared by serviceId")]
    NotLoadBalanced,
}
