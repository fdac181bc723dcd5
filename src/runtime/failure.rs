//! What a pool tells its failure sink, usually the monitor of the server.

use bson::oid::ObjectId;

use super::environment::TokioEnvironment;
use super::establish::Establish;
use crate::error::{ClearError, EstablishError};
use crate::pool::{Clear, Core};

/// Receives the failures of a pool's establishments.
pub(super) type FailureSink = dyn Fn(&FailedConnection<'_>) + Send + Sync;

/// A connection could not be established: what a pool tells whoever watches its server.
///
/// The errors of check-outs come here as well as those of connections that are opened in the background, each before
/// its `ConnectionClosed` event.
pub struct FailedConnection<'f> {
    pub(super) error: &'f EstablishError,
    pub(super) service: Option<(ObjectId, u64)>,
    pub(super) pool: &'f dyn Clearable,
}

impl FailedConnection<'_> {
    /// The error, with the connection's number and generation.
    #[must_use]
    pub fn error(&self) -> &EstablishError {
        self.error
    }

    /// The service that the connection belongs to, in load-balanced mode, if the handshake had come so far.
    #[must_use]
    pub fn service_id(&self) -> Option<ObjectId> {
        self.service.map(|(service_id, _)| service_id)
    }

    /// Whether the specifications want the pool cleared because of this error: not if the server may be overloaded
    /// (`SystemOverloadedError`), nor if it says that it is not the primary or is draining without shutting down, nor in
    /// load-balanced mode before the handshake has told the service.
    #[must_use]
    pub fn clears_pool(&self) -> bool {
        self.error.clears_pool() && (self.service.is_some() || !self.pool.is_load_balanced())
    }

    /// Clears the pool, or in load-balanced mode the connection's service, because of this error; unless that has
    /// happened since the connection was created. Returns whether it was done.
    pub fn clear_pool(&self) -> bool {
        let cause = self.error.cause().clone();
        let cleared = match self.service {
            Some((service_id, generation)) => {
                self.pool.clear_service(service_id, Clear::new().because(cause).only_at_generation(generation))
            }
            None => {
                let of = |generation| self.pool.clear(Clear::new().because(cause).only_at_generation(generation));
                self.error.generation().map_or(Ok(false), of)
            }
        };
        cleared.unwrap_or(false)
    }
}

/// What a [`FailedConnection`] can do to its pool, whatever the pool's type.
pub(super) trait Clearable {
    fn is_load_balanced(&self) -> bool;
    fn clear(&self, clear: Clear) -> Result<bool, ClearError>;
    fn clear_service(&self, service_id: ObjectId, clear: Clear) -> Result<bool, ClearError>;
}

impl<E: Establish> Clearable for Core<TokioEnvironment<E>> {
    fn is_load_balanced(&self) -> bool {
        self.options().is_load_balanced()
    }

    fn clear(&self, clear: Clear) -> Result<bool, ClearError> {
        Core::clear(self, clear)
    }

    fn clear_service(&self, service_id: ObjectId, clear: Clear) -> Result<bool, ClearError> {
        Core::clear_service(self, service_id, clear)
    }
}
