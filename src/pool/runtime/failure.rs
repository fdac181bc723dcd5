//! The failure sink of a pool, which is usually the monitor of the server.

use std::fmt;

use crate::pool::core::Clear;
use crate::pool::error::EstablishError;
use crate::pool::options::InvalidOption;
use crate::pool::service_id::ServiceId;

/// Receives each failure to establish a connection.
pub(super) type FailureSink = dyn Fn(&FailedConnection<'_>) + Send + Sync;

/// A connection that could not be established, as passed to the failure sink.
///
/// The sink receives the failures of connections that are opened for check-outs or in the background. It is called
/// before the connection's `ConnectionClosed` event is emitted.
pub struct FailedConnection<'f> {
    pub(super) error: &'f EstablishError,
    pub(super) service: Option<(ServiceId, u64)>,
    pub(super) is_load_balanced: bool,
    /// Clears the pool, or the connection's service.
    pub(super) clear: &'f dyn Fn(Clear) -> Result<bool, InvalidOption>,
}

impl fmt::Debug for FailedConnection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailedConnection")
            .field("error", &self.error)
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}

impl FailedConnection<'_> {
    /// Returns the error, with the connection's number and generation.
    #[must_use]
    pub fn error(&self) -> &EstablishError {
        self.error
    }

    /// Returns the service that the connection belongs to, in load-balanced mode. Returns `None` if the connection
    /// failed before the handshake named the service.
    #[must_use]
    pub fn service_id(&self) -> Option<ServiceId> {
        self.service.map(|(service_id, _)| service_id)
    }

    /// Returns the generation of the failed connection: the generation of its service in load-balanced mode, otherwise
    /// of the pool.
    pub(crate) fn generation(&self) -> Option<u64> {
        self.service.map(|(_, generation)| generation).or(self.error.generation())
    }

    /// Returns whether the specifications require the pool to be cleared because of this error.
    ///
    /// They do not require it if the server may be overloaded (`SystemOverloadedError`), or if the server reports that
    /// it is not the primary or is recovering, and is not shutting down. In load-balanced mode, they do not require it
    /// before the handshake has named the service.
    #[must_use]
    pub fn clears_pool(&self) -> bool {
        self.error.clears_pool() && (self.service.is_some() || !self.is_load_balanced)
    }

    /// Clears the pool, or in load-balanced mode the connection's service, because of this error. Returns `false` if
    /// the pool or the service had already been cleared after the connection was created.
    pub fn clear_pool(&self) -> bool {
        let clear = Clear::new().because(self.error.cause().clone());
        self.generation().is_some_and(|generation| (self.clear)(clear.only_at_generation(generation)).unwrap_or(false))
    }
}
