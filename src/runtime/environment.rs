//! The world around a core on tokio.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use event_listener::Event;
use tokio::runtime::Handle;

use super::draining;
use super::establish::Establish;
use super::fork;
use super::home::Residence;
use super::publisher::{Publisher, Subscribers};
use crate::condition::Condition;
use crate::error::{Cause, ClearError, EstablishError};
use crate::event::PoolEvent;
use crate::pool::{Clear, Core, Draining, Environment};
use crate::sync::contain;

/// Connects a core to its establisher, its subscribers, its background task and the clock.
pub struct TokioEnvironment<E: Establish> {
    pub(super) establish: Arc<E>,
    pub(super) publisher: Publisher,
    pub(super) on_failure: Option<Arc<FailureSink>>,
    /// `timeoutMS`: how long a check-out may take that has no limit of its own. Zero is no limit, and neither is `None`,
    /// with which `waitQueueTimeoutMS` counts.
    pub(super) timeout: Option<Duration>,
    /// The runtime that the pool's tasks run on.
    pub(super) residence: Residence,
    /// Wakes the background task.
    pub(super) maintenance: tokio::sync::Notify,
    /// Notified when the pool was cleared or closed, for those who drain connections of it.
    pub(super) changed: Event,
    /// `fork::forks()` when the pool was built.
    forks: u32,
}

impl<E: Establish> TokioEnvironment<E> {
    /// The world of a pool of this process. `is_closed`: the pool is born closed.
    pub(super) fn new(
        establish: Arc<E>,
        subscribers: Subscribers,
        on_failure: Option<Arc<FailureSink>>,
        is_closed: bool,
    ) -> Self {
        let publisher = Publisher::new(subscribers);
        if is_closed {
            publisher.delivery().end();
        }
        Self {
            establish,
            publisher,
            on_failure,
            timeout: None,
            residence: Residence::default(),
            maintenance: tokio::sync::Notify::new(),
            changed: Event::new(),
            forks: fork::forks(),
        }
    }

    /// The runtime of the pool's tasks, unless it is known to have ended.
    pub(super) fn living_runtime(&self) -> Option<Handle> {
        self.residence.home().map(|home| home.handle().clone())
    }

    /// Whether this is a forked child, and the pool its parent's.
    #[inline]
    pub(super) fn is_the_parents(&self) -> bool {
        self.forks != fork::forks()
    }
}

pub(super) type FailureSink = dyn Fn(&FailedConnection<'_>) + Send + Sync;

impl<E: Establish> Environment for TokioEnvironment<E> {
    type Connection = E::Connection;

    fn now(&self) -> Instant {
        // tokio's clock, which tests can stop.
        tokio::time::Instant::now().into_std()
    }

    /// Numbers the threads as they come.
    #[inline]
    fn shard_hint(&self) -> usize {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            // Relaxed: all that matters is that the numbers differ.
            static HINT: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        // A thread that is ending has no locals any more; any shard will do.
        HINT.try_with(|hint| *hint).unwrap_or(0)
    }

    #[inline]
    fn listens(&self) -> bool {
        self.publisher.is_listened_to()
    }

    fn emit(&self, event: PoolEvent) {
        self.publisher.emit(event);
    }

    fn deliver(&self) {
        self.publisher.deliver();
    }

    fn publish(&self, event: PoolEvent) {
        self.publisher.publish(event);
    }

    /// A connection whose judgement panics is not one to use again.
    #[inline]
    fn condition(&self, connection: &mut E::Connection) -> Condition {
        contain(|| self.establish.condition(connection)).unwrap_or(Condition::Broken)
    }

    fn fault(&self, connection: &E::Connection) -> Option<Cause> {
        contain(|| self.establish.fault(connection)).flatten()
    }

    fn drain(&self, draining: Draining<Self>) {
        draining::begin::<E>(draining);
    }

    /// A panic is not the pool's, and must not keep it from closing others; the panic hook has reported it.
    fn dispose(&self, connection: E::Connection) {
        contain(|| self.establish.close(connection));
    }

    fn connections_went_stale(&self) {
        self.changed.notify(usize::MAX);
    }

    fn schedule_maintenance(&self) {
        self.maintenance.notify_one();
        self.publisher.delivery().look_again();
    }
}

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
