//! Errors that occur while a connection is being established.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::{Cause, Labels, debug_as_sentence};
use crate::text::milliseconds::Milliseconds;
use crate::text::printable::PrintableError;

debug_as_sentence!(EstablishError, ConnectTimeoutError);

/// A connection could not be established.
///
/// [`Establish::establish`](crate::Establish::establish) returns this error, created with
/// [`overloaded`](Self::overloaded), [`network`](Self::network) or [`permanent`](Self::permanent). The pool adds the
/// identity of the failed connection, and passes the error to the check-out
/// ([`CheckOutError::Establish`](super::CheckOutError::Establish)) and to
/// [`PoolBuilder::on_failure`](crate::PoolBuilder::on_failure).
///
/// Cloning is cheap, because clones share one allocation.
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

/// The pool, and the connection that failed.
#[derive(Clone)]
struct Pooled {
    address: Arc<str>,
    /// The connection's number and generation, or `None` if the attempt failed before the connection was created.
    created: Option<(u64, u64)>,
}

impl EstablishError {
    /// Creates the error for a network error or timeout that occurs before `hello` has completed.
    ///
    /// The server may be overloaded, so the error has the labels `SystemOverloadedError` and `RetryableError`, and does
    /// not request a clear of the pool.
    pub fn overloaded(stage: Stage, source: impl StdError + Send + Sync + 'static) -> Self {
        let labels = Labels::SYSTEM_OVERLOADED.with(Labels::RETRYABLE);
        Self::new(stage, source, true).with_labels(labels)
    }

    /// Creates the error for a network error or timeout that overload cannot have caused. Examples are a name that does
    /// not resolve, and a failure after `hello`, such as one during authentication.
    ///
    /// The error is retryable, has no labels, and requests a clear of the pool. The failure sink decides whether to
    /// clear the pool.
    pub fn network(stage: Stage, source: impl StdError + Send + Sync + 'static) -> Self {
        Self::new(stage, source, true)
    }

    /// Creates the error for any other failure, such as an invalid certificate or a reply that refuses the connection.
    ///
    /// The error is not retryable, has no labels, and requests a clear of the pool. The failure sink decides whether to
    /// clear the pool.
    pub fn permanent(stage: Stage, source: impl StdError + Send + Sync + 'static) -> Self {
        Self::new(stage, source, false)
    }

    fn new(stage: Stage, source: impl StdError + Send + Sync + 'static, retryable: bool) -> Self {
        let source = Arc::new(source);
        Self(Arc::new(Parts { pooled: None, stage, labels: Labels::NONE, retryable, clears_pool: true, source }))
    }

    /// Returns the error with these labels in place of its own.
    #[must_use]
    pub fn with_labels(self, labels: Labels) -> Self {
        self.changed(|parts| parts.labels = labels)
    }

    /// Sets whether the error is retryable if none of its labels makes it so.
    ///
    /// No part of the operation was sent, so this only says whether a new attempt may succeed. A new attempt may
    /// succeed after a network error, a timeout, or a server error that the specifications for retryable reads and
    /// writes list. It cannot succeed after a wrong password.
    #[must_use]
    pub fn with_retryable(self, retryable: bool) -> Self {
        self.changed(|parts| parts.retryable = retryable)
    }

    /// Sets whether the error clears the pool. With the `SystemOverloadedError` label, it never does.
    ///
    /// An error saying that the server is not primary or is recovering does not clear the pool, unless the server is
    /// shutting down (SDAM, "Error handling pseudocode").
    #[must_use]
    pub fn with_clears_pool(self, clears_pool: bool) -> Self {
        self.changed(|parts| parts.clears_pool = clears_pool)
    }

    /// Returns the error with the connection's pool, number and generation.
    pub(crate) fn in_pool(self, address: Arc<str>, connection_id: u64, generation: u64) -> Self {
        self.changed(|parts| parts.pooled = Some(Pooled { address, created: Some((connection_id, generation)) }))
    }

    /// Returns the error with its pool, for a failure before the connection was created.
    pub(crate) fn before_creation(self, address: Arc<str>) -> Self {
        self.changed(|parts| parts.pooled = Some(Pooled { address, created: None }))
    }

    fn changed(mut self, change: impl FnOnce(&mut Parts)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Returns the pool's address, or `None` if the connection belonged to no pool.
    #[must_use]
    pub fn address(&self) -> Option<&str> {
        self.0.pooled.as_ref().map(|pooled| &*pooled.address)
    }

    /// Returns the number of the connection that failed, or `None` if it belonged to no pool or had not been created
    /// yet.
    #[must_use]
    pub fn connection_id(&self) -> Option<u64> {
        self.created().map(|(connection_id, _)| connection_id)
    }

    fn created(&self) -> Option<(u64, u64)> {
        self.0.pooled.as_ref()?.created
    }

    /// Returns the generation in which the connection was created, or `None` if it belonged to no pool or had not been
    /// created yet.
    ///
    /// An error from a generation that is older than the pool's current generation says nothing new about the server.
    #[must_use]
    pub fn generation(&self) -> Option<u64> {
        self.created().map(|(_, generation)| generation)
    }

    /// Returns the stage that failed.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.0.stage
    }

    /// Returns the labels, which say whether the server may be overloaded and whether to retry.
    #[must_use]
    pub fn labels(&self) -> Labels {
        self.0.labels
    }

    /// Returns whether the operation that needed the connection may be retried, according to a label or to
    /// [`with_retryable`](Self::with_retryable).
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.retryable || self.0.labels.contains(Labels::RETRYABLE)
    }

    /// Returns whether this error clears the pool, according to the specifications or to
    /// [`with_clears_pool`](Self::with_clears_pool). Always false with the `SystemOverloadedError` label.
    #[must_use]
    pub fn clears_pool(&self) -> bool {
        self.0.clears_pool && !self.0.labels.contains(Labels::SYSTEM_OVERLOADED)
    }

    /// Returns whether the attempt timed out: the error or one of its sources is a [`ConnectTimeoutError`], or an
    /// [`io::Error`] of kind [`TimedOut`](io::ErrorKind::TimedOut).
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

    /// Returns the underlying error.
    #[must_use]
    pub fn cause(&self) -> &Cause {
        &self.0.source
    }
}

impl fmt::Display for EstablishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { pooled, stage, source, .. } = &*self.0;
        match pooled {
            Some(Pooled { address, created: Some((connection_id, _)) }) => {
                write!(f, "connection {connection_id} to {address} could not be established: ")?;
            }
            Some(Pooled { address, created: None }) => {
                write!(f, "a connection to {address} could not be established: ")?;
            }
            None => {}
        }
        write!(f, "{stage}: {}", PrintableError(source))
    }
}

impl StdError for EstablishError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0.source)
    }
}

/// A step in establishing or reauthenticating a connection took longer than a limit allows.
///
/// An [`Establish`](crate::Establish) may return it as the cause of its error, so that
/// [`EstablishError::is_timeout`] is true:
///
/// ```
/// use std::time::Duration;
/// use wharf::{ConnectTimeoutError, EstablishError, Stage};
///
/// let timeout = ConnectTimeoutError::new("connectTimeoutMS", Duration::from_secs(10));
/// assert_eq!(timeout.to_string(), "it did not finish within connectTimeoutMS (10000 ms)");
/// assert!(EstablishError::overloaded(Stage::Connect, timeout).is_timeout());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
#[error("it did not finish within {option} ({})", Milliseconds(*limit))]
pub struct ConnectTimeoutError {
    /// The time that was allowed.
    pub limit: Duration,
    /// The name of the limit: `connectTimeoutMS` for all steps together, `timeoutMS` or `socketTimeoutMS` for one
    /// command, or `the limit of an OIDC callback`.
    pub option: &'static str,
}

impl ConnectTimeoutError {
    /// Creates the error for a `limit` set by `option`.
    #[must_use]
    pub const fn new(option: &'static str, limit: Duration) -> Self {
        Self { limit, option }
    }
}

/// The stages of establishing a connection, in order.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn failure_before_the_creation_of_a_connection_names_no_connection() {
        let failure = || EstablishError::permanent(Stage::Connect, io::Error::other("the task ended"));
        let error = failure().before_creation("mock:27017".into());
        assert_eq!((error.address(), error.connection_id(), error.generation()), (Some("mock:27017"), None, None));
        assert_eq!(
            error.to_string(),
            "a connection to mock:27017 could not be established: connecting: the task ended"
        );
        let error = failure().in_pool("mock:27017".into(), 3, 1);
        assert_eq!((error.connection_id(), error.generation()), (Some(3), Some(1)));
        assert_eq!(
            error.to_string(),
            "connection 3 to mock:27017 could not be established: connecting: the task ended"
        );
    }
}
