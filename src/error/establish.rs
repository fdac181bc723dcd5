//! Why a connection could not be established.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::{Cause, Labels, debug_as_sentence};
use crate::milliseconds::Milliseconds;
use crate::printable::PrintableError;

debug_as_sentence!(EstablishError, ConnectTimeoutError);

/// A connection could not be established.
///
/// [`Establish::establish`](crate::Establish::establish) returns it, made by [`overloaded`](Self::overloaded),
/// [`network`](Self::network) or [`permanent`](Self::permanent). The pool adds which connection it was, and passes it to the
/// check-out ([`CheckOutError::Establish`](super::CheckOutError::Establish)) and to
/// [`PoolBuilder::on_failure`](crate::PoolBuilder::on_failure).
///
/// Cloning is cheap; the clones share one allocation.
///
/// ```
/// use std::io;
/// use wharf::{EstablishError, Labels, Stage};
///
/// fn advice(error: &EstablishError) -> &'static str {
///     match error.stage() {
///         _ if error.labels().contains(Labels::SYSTEM_OVERLOADED) => "back off: the server may be overloaded",
///         _ if error.is_retryable() => "try again after a pause",
///         Stage::Authenticate => "look at the credential",
///         Stage::Tls => "look at the certificates",
///         _ => "look at the address and the options",
///     }
/// }
///
/// let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
/// assert_eq!(advice(&EstablishError::overloaded(Stage::Connect, refused)), "back off: the server may be overloaded");
/// let password = io::Error::other("wrong password");
/// assert_eq!(advice(&EstablishError::permanent(Stage::Authenticate, password)), "look at the credential");
/// ```
#[derive(Clone)]
pub struct EstablishError(Arc<Parts>);

#[derive(Clone)]
struct Parts {
    pooled: Option<Pooled>,
    stage: Stage,
    labels: Labels,
    retryable: bool,
    clears_pool: bool,
    source: Cause,
}

/// Which connection of which pool failed.
#[derive(Clone)]
struct Pooled {
    address: Arc<str>,
    connection_id: u64,
    generation: u64,
}

impl EstablishError {
    /// A network error or timeout before the end of `hello`: the server may be overloaded, so the error carries
    /// `SystemOverloadedError` and `RetryableError` and does not clear the pool.
    pub fn overloaded(stage: Stage, source: impl StdError + Send + Sync + 'static) -> Self {
        let labels = Labels::SYSTEM_OVERLOADED.with(Labels::RETRYABLE);
        Self::new(stage, source, true).with_labels(labels)
    }

    /// A network error or timeout that overload cannot cause, such as a name that does not resolve, or one after `hello`,
    /// such as during authentication. It is retryable, carries no label and clears the pool.
    pub fn network(stage: Stage, source: impl StdError + Send + Sync + 'static) -> Self {
        Self::new(stage, source, true)
    }

    /// Any other error, such as a certificate that does not verify, or a reply that refuses the connection. It is not
    /// retryable, carries no label and clears the pool.
    pub fn permanent(stage: Stage, source: impl StdError + Send + Sync + 'static) -> Self {
        Self::new(stage, source, false)
    }

    fn new(stage: Stage, source: impl StdError + Send + Sync + 'static, retryable: bool) -> Self {
        let source = Arc::new(source);
        Self(Arc::new(Parts { pooled: None, stage, labels: Labels::NONE, retryable, clears_pool: true, source }))
    }

    /// The same error with other labels.
    #[must_use]
    pub fn with_labels(self, labels: Labels) -> Self {
        self.changed(|parts| parts.labels = labels)
    }

    /// The same error, retryable or not although no label says so. Nothing of the operation was sent, so this says only
    /// whether a new attempt may succeed: yes after a network error or a timeout, and after a server's error that the
    /// retryable reads and writes specifications name; no after a wrong password.
    #[must_use]
    pub fn with_retryable(self, retryable: bool) -> Self {
        self.changed(|parts| parts.retryable = retryable)
    }

    /// The same error, for which the pool is cleared or not if no label says that the server may be overloaded. It is not
    /// cleared after an error that says that the server is not the primary or is recovering, unless it is shutting down
    /// (SDAM, "Error handling pseudocode").
    #[must_use]
    pub fn with_clears_pool(self, clears_pool: bool) -> Self {
        self.changed(|parts| parts.clears_pool = clears_pool)
    }

    /// The same error, with the pool's view of the connection.
    pub(crate) fn in_pool(self, address: Arc<str>, connection_id: u64, generation: u64) -> Self {
        self.changed(|parts| parts.pooled = Some(Pooled { address, connection_id, generation }))
    }

    fn changed(mut self, change: impl FnOnce(&mut Parts)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// The pool's address. `None` if the connection was for no pool.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        self.0.pooled.as_ref().map(|pooled| &*pooled.address)
    }

    /// The number of the connection that failed; 0 if the pool's runtime ended before one was created. `None` if it was for
    /// no pool.
    #[must_use]
    pub fn connection_id(&self) -> Option<u64> {
        self.0.pooled.as_ref().map(|pooled| pooled.connection_id)
    }

    /// The generation that the connection was created in. An error of an older generation than the pool's says nothing
    /// new about the server. `None` if the connection was for no pool.
    #[must_use]
    pub fn generation(&self) -> Option<u64> {
        self.0.pooled.as_ref().map(|pooled| pooled.generation)
    }

    /// How far the attempt had come.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.0.stage
    }

    /// The labels that tell whether the server was overloaded and whether to try again.
    #[must_use]
    pub fn labels(&self) -> Labels {
        self.0.labels
    }

    /// Whether the operation that wanted the connection may be tried again: a label says so, or
    /// [`with_retryable`](Self::with_retryable).
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.retryable || self.0.labels.contains(Labels::RETRYABLE)
    }

    /// Whether the specifications want the pool cleared because of this error: see
    /// [`with_clears_pool`](Self::with_clears_pool). Not if it has the label `SystemOverloadedError`.
    #[must_use]
    pub fn clears_pool(&self) -> bool {
        self.0.clears_pool && !self.0.labels.contains(Labels::SYSTEM_OVERLOADED)
    }

    /// Whether the attempt ran out of time: the error, or a source of it, is a [`ConnectTimeoutError`] or an
    /// [`io::Error`] of the kind [`TimedOut`](io::ErrorKind::TimedOut).
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        let mut next: Option<&(dyn StdError + 'static)> = Some(&*self.0.source);
        while let Some(error) = next {
            if error.is::<ConnectTimeoutError>()
                || error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
            {
                return true;
            }
            next = error.source();
        }
        false
    }

    /// The underlying error.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.0.source
    }
}

impl fmt::Display for EstablishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { pooled, stage, source, .. } = &*self.0;
        if let Some(Pooled { address, connection_id, .. }) = pooled {
            write!(f, "Connection {connection_id} to {address} could not be established: ")?;
        }
        write!(f, "{stage}: {}", PrintableError(source))
    }
}

impl StdError for EstablishError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0.source)
    }
}

/// A step of a connection's establishment, or of its repeated authentication, took longer than a limit allows.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
#[error("it did not end within {option} ({})", Milliseconds(*limit))]
pub struct ConnectTimeoutError {
    /// How long the limit is.
    pub limit: Duration,
    /// The limit's name: `connectTimeoutMS` for all steps together, `timeoutMS` or `socketTimeoutMS` for one command.
    pub option: &'static str,
}

impl ConnectTimeoutError {
    /// The error for a `limit` that the option named `option` sets.
    #[must_use]
    pub const fn new(option: &'static str, limit: Duration) -> Self {
        Self { limit, option }
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
