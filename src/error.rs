//! What can go wrong with a check-out, a check-in or a connection, and what the caller can do about it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::event::CheckOutFailedReason;
use crate::printable::PrintableError;

/// The error that made somebody clear a pool, or that a connection could not be established with.
pub type Cause = Arc<dyn StdError + Send + Sync + 'static>;

/// A check-out did not yield a connection.
///
/// The messages of the first three are the CMAP specification's ("Connection Pool Errors").
///
/// What is in it is boxed, so that a check-out's result has two words: moving a larger one was three percent of a check-out
/// that succeeds.
#[derive(Debug, Clone, Error)]
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
    /// The connection that this check-out opened could not be established.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
}

impl CheckOutError {
    /// The reason in the `ConnectionCheckOutFailed` event.
    #[must_use]
    pub fn reason(&self) -> CheckOutFailedReason {
        match self {
            Self::PoolClosed(_) => CheckOutFailedReason::PoolClosed,
            Self::WaitQueueTimeout(_) => CheckOutFailedReason::Timeout,
            Self::PoolCleared(_) | Self::Connection(_) => CheckOutFailedReason::ConnectionError,
        }
    }

    /// Whether the operation that wanted the connection may be tried again. It was not sent in any case. Pause before:
    /// a pool that is paused refuses at once.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::PoolClosed(_) | Self::WaitQueueTimeout(_) => false,
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

/// `PoolClosedError`: a check-out failed because the pool was closed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("Attempted to check out a connection from closed connection pool")]
pub struct PoolClosed {
    /// The pool's address.
    pub address: Arc<str>,
}

/// `PoolClearedError`: an operation failed because the pool was cleared.
///
/// It is a retryable error in the sense of the specifications of retryable reads and retryable writes. They retry reads,
/// and writes that the server recognises by `lsid` and `txnNumber`. Any other operation may be run again only if it was
/// not [`sent`](Self::sent).
#[derive(Debug, Clone)]
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
}

impl fmt::Display for PoolCleared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = &self.address;
        match &self.cause {
            _ if self.interrupted => write!(f, "Connection to {address} interrupted due to server monitor timeout"),
            Some(cause) => {
                write!(f, "Connection pool for {address} was cleared because another operation failed with: {cause}")
            }
            None => write!(f, "Connection pool for {address} is paused until its server is known to be reachable"),
        }
    }
}

impl StdError for PoolCleared {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn StdError + 'static))
    }
}

/// `WaitQueueTimeoutError`: no connection came free within `waitQueueTimeoutMS`, or before the caller's deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitQueueTimeout {
    /// The pool's address.
    pub address: Arc<str>,
    /// The pool's `maxPoolSize` (0: no limit).
    pub max_pool_size: u32,
    /// In load-balanced mode, what the connections in use are held by.
    pub holders: Option<Holders>,
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
        match &self.holders {
            None => f.write_str("Timed out while checking out a connection from connection pool"),
            Some(holders) => write!(
                f,
                "Timeout waiting for connection from the connection pool. maxPoolSize: {}, connections in use by \
                 cursors: {}, connections in use by transactions: {}, connections in use by other operations: {}",
                self.max_pool_size, holders.cursors, holders.transactions, holders.other_operations
            ),
        }
    }
}

impl StdError for WaitQueueTimeout {}

/// A connection could not be established: what [`Establish`](crate::Establish) reports, with the pool's view added.
///
/// Cloning is cheap; the clones share one allocation.
#[derive(Debug, Clone)]
pub struct ConnectionError(Arc<ConnectionErrorParts>);

#[derive(Debug)]
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
#[derive(Debug, Clone)]
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

/// The source may quote the server, so its text is shown escaped and cut.
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
        f.debug_struct("ForeignConnection").field("address", &self.address).finish_non_exhaustive()
    }
}

impl<C> fmt::Display for ForeignConnection<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "A connection was checked into the pool for {}, which did not create it", self.address)
    }
}

impl<C> StdError for ForeignConnection<C> {}

/// A pool in load-balanced mode was cleared as a whole, or any other pool by service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ClearError {
    /// The pool is in load-balanced mode: name the service whose connections are to become stale.
    #[error("a pool in load-balanced mode is cleared by serviceId")]
    ServiceIdRequired,
    /// The pool is not in load-balanced mode: it has no services.
    #[error("only a pool in load-balanced mode is cleared by serviceId")]
    NotLoadBalanced,
}
