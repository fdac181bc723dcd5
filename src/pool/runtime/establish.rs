//! The extension point: how a pool's connections are opened, checked and closed.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::environment::TokioEnvironment;
use super::stopwatch::Stopwatch;
use crate::pool::condition::Condition;
use crate::pool::core::Core;
use crate::pool::error::{Cause, EstablishError, Stage};
use crate::pool::metrics::StageTimes;
use crate::pool::service_id::ServiceId;

/// The outcome of a [check](Establish::check).
pub type CheckResult = Result<(), Box<dyn StdError + Send + Sync>>;

/// Opens, checks and closes the connections of a pool.
///
/// Implement this trait to pool your own connection type. [`Endpoint`](crate::Endpoint) is the implementation for
/// MongoDB servers.
///
/// # Panics
///
/// The pool catches panics. If [`condition`](Self::condition), [`check`](Self::check) or [`drain`](Self::drain) panics,
/// the connection is closed. A panic in [`close`](Self::close) has no further effect, because the connection has
/// already left the pool. A panic in [`establish`](Self::establish) fails only that attempt: the check-out fails, and
/// the failure sink is not called.
///
/// # Example
///
/// ```
/// use wharf::{Establish, EstablishError, Establishing};
///
/// /// Connections that are numbers.
/// struct Numbers;
///
/// impl Establish for Numbers {
///     type Connection = u64;
///
///     async fn establish(&self, connecting: Establishing) -> Result<u64, EstablishError> {
///         Ok(connecting.connection_id())
///     }
/// }
/// ```
pub trait Establish: Send + Sync + 'static {
    /// An established connection. The pool gives `&mut` access to one caller at a time.
    type Connection: Send + 'static;

    /// Whether pools keep [`metrics`](crate::metrics). `false` only in benchmarks of a pool without metrics.
    #[cfg(feature = "unstable")]
    #[doc(hidden)]
    const METERED: bool = true;

    /// Whether an established connection has a tokio socket, which implies that the pool's runtime has an I/O driver.
    #[doc(hidden)]
    const HAS_SOCKETS: bool = false;

    /// Whether [`check`](Self::check) is implemented. Set it together with `check`. If it is `false`, the pool never
    /// calls `check`, and its check-outs and check-ins contain no code for checks.
    const HAS_CHECK: bool = false;

    /// Opens one connection completely: transport, handshake and authentication.
    ///
    /// The pool limits how many of these futures run at the same time (`maxConnecting`), but not how long each takes.
    /// An implementation needs its own timeout.
    ///
    /// # Errors
    ///
    /// The [`EstablishError`] names the stage that failed and contains the error labels. The pool passes the error to
    /// the failure sink, and to the check-out that requested the connection. The check-outs in the queue keep waiting.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when the pool is closed or cleared with interruption, or when the runtime shuts down.
    /// Dropping it must close everything that it opened.
    fn establish(
        &self,
        connecting: Establishing,
    ) -> impl Future<Output = Result<Self::Connection, EstablishError>> + Send;

    /// Checks an idle connection before a check-out returns it, usually by an exchange with the server. An error means
    /// that the connection cannot be used.
    ///
    /// Called only if [`HAS_CHECK`](Self::HAS_CHECK) is `true`.
    /// [`PoolOptions::check_before_use`](crate::PoolOptions::check_before_use) decides which connections are checked:
    /// by default, those that have been idle for longer than a second.
    ///
    /// A connection that fails the check is closed with the reason "error". The check-out then takes the next
    /// connection or opens one, without losing its turn. The check counts towards the time limit of the check-out, if
    /// there is one. The pool does not otherwise limit the check, so an implementation needs its own timeout in case
    /// the server does not respond.
    ///
    /// This corresponds to `recycle` in deadpool, and to `is_valid` in bb8 and r2d2.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped, and the connection closed, when the check-out is dropped or times out, or when the pool
    /// is cleared or closed.
    #[doc(alias("recycle", "is_valid", "ping", "test_before_acquire", "before_acquire"))]
    fn check(&self, connection: &mut Self::Connection) -> impl Future<Output = CheckResult> + Send {
        let _ = connection;
        std::future::ready(Ok(()))
    }

    /// Returns the condition of a connection after its use: whether it can be checked out again.
    ///
    /// The pool calls this at check-in, and again after [`drain`](Self::drain). It must be quick, and must not block.
    ///
    /// By default, every connection is [reusable](Condition::Reusable). Return [`Condition::Broken`] for a connection
    /// that had an error. If the previous user of a connection may leave behind work that can still be completed,
    /// return [`Condition::NeedsDrain`] and implement [`drain`](Self::drain).
    ///
    /// A reusable connection may stay idle for a long time, so an implementation should also use this call to free
    /// memory that only the last user needed.
    ///
    /// This corresponds to `has_broken` in bb8 and r2d2.
    #[doc(alias("has_broken", "after_release"))]
    fn condition(&self, connection: &mut Self::Connection) -> Condition {
        let _ = connection;
        Condition::Reusable
    }

    /// Returns why a connection is not [reusable](Condition::Reusable), for its `ConnectionClosed` event and for the
    /// log. Called only if the pool has a subscriber. The default is `None`.
    fn broken_by(&self, connection: &Self::Connection) -> Option<Cause> {
        let _ = connection;
        None
    }

    /// Completes or undoes the unfinished work of a connection's last user. For example, a drain reads a reply that no
    /// caller is waiting for, or ends a transaction and resets the session. Called for connections that
    /// [need a drain](Condition::NeedsDrain). By default, it does nothing.
    ///
    /// The drain runs in a separate task on the pool's runtime. During the drain, the connection counts as in use.
    /// Afterwards, `ConnectionCheckedIn` is emitted and [`condition`](Self::condition) is called again: a reusable
    /// connection becomes available, and any other connection is closed with the reason "error". The pool does not
    /// limit the duration of a drain, so the implementation must.
    ///
    /// A check-out that lacks only capacity under `maxPoolSize` never waits for a drain to succeed. Instead, the pool
    /// drops the future of the oldest drain and [closes](Self::close) its connection. The check-out gets the capacity
    /// once the connection is closed. The pool gives up one drain at a time. It does not give up a drain to free a
    /// place under a [`Budget`](crate::Budget).
    ///
    /// # Cancel safety
    ///
    /// The future is dropped, and the connection closed, when a check-out needs its capacity, when the pool is cleared
    /// or closed, or when its runtime shuts down.
    #[doc(alias("reset", "recycle", "after_release"))]
    fn drain(&self, connection: &mut Self::Connection) -> impl Future<Output = ()> + Send {
        let _ = connection;
        std::future::ready(())
    }

    /// Closes a connection that has left the pool, for example after sending a last message to the server. By default,
    /// it drops the connection.
    ///
    /// The connection counts as in use until the future completes or is dropped. Until then, it counts towards
    /// `maxPoolSize`, and [`Pool::closed`](crate::Pool::closed) waits for it.
    ///
    /// It must not block. The future is polled once by the caller that closes the connection, and then by a task on the
    /// pool's runtime. After five seconds it is dropped. If the pool has no live runtime and the caller is not on one,
    /// it is dropped without being polled. A current-thread runtime runs the task and its timer only while something
    /// blocks on the runtime. Until then, the connection still counts as in use.
    fn close(&self, connection: Self::Connection) -> impl Future<Output = ()> + Send {
        drop(connection);
        std::future::ready(())
    }

    /// Gives up a connection in a forked child, while the parent may still be using it. By default, it leaks the
    /// connection's memory.
    ///
    /// It must not send anything on the connection or change its state. It must not use the pool, because the child is
    /// still creating the pool's successor.
    fn abandon_after_fork(&self, connection: Self::Connection) {
        std::mem::forget(connection);
    }
}

/// Describes the connection that [`Establish::establish`] opens.
pub struct Establishing {
    address: Arc<str>,
    connection_id: u64,
    generation: u64,
    load_balanced: bool,
    in_background: bool,
    stages: Arc<StageTimes>,
    /// The pool's clock.
    stopwatch: Stopwatch,
    identify: Box<dyn Fn(ServiceId) + Send + Sync>,
}

impl Establishing {
    pub(super) fn new<E: Establish>(
        core: &Core<TokioEnvironment<E>>,
        connection_id: u64,
        generation: u64,
        in_background: bool,
        stages: Arc<StageTimes>,
        identify: Box<dyn Fn(ServiceId) + Send + Sync>,
    ) -> Self {
        Self {
            address: core.address().clone(),
            connection_id,
            generation,
            load_balanced: core.options().load_balanced,
            in_background,
            stages,
            stopwatch: core.environment().stopwatch.clone(),
            identify,
        }
    }

    /// Returns the pool's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the connection's number: 1, 2, 3 and so on within its pool.
    #[must_use]
    pub fn connection_id(&self) -> u64 {
        self.connection_id
    }

    /// Returns the pool's generation when the connection was created.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns whether the pool is in load-balanced mode, in which [`Establishing::identify`] must be called.
    #[must_use]
    pub fn is_load_balanced(&self) -> bool {
        self.load_balanced
    }

    /// Returns whether the connection is being opened in the background to reach `minPoolSize`, rather than for a
    /// check-out or a warm-up.
    #[must_use]
    pub fn is_in_background(&self) -> bool {
        self.in_background
    }

    /// Reports how long a stage of the establishment took, for [`Pool::metrics`](crate::Pool::metrics) and for the
    /// [`ConnectionReady`](crate::PoolEvent::ConnectionReady) event. Report each stage when it ends, whether or not a
    /// later stage fails. If a stage is reported again, the last report wins.
    ///
    /// Reporting is optional. The pool measures the whole establishment itself.
    pub fn stage_took(&self, stage: Stage, took: Duration) {
        self.stages.set(stage, took);
    }

    /// Reads the clock with which the pool measures the whole establishment, in nanoseconds.
    pub(crate) fn stopwatch(&self) -> u64 {
        self.stopwatch.read()
    }

    /// Sets the service that the connection belongs to, in load-balanced mode. Call it as soon as the handshake has
    /// named the service.
    ///
    /// From then on the connection has the generation of that service. A second call, or a call in another mode, has no
    /// effect.
    pub fn identify(&self, service_id: impl Into<ServiceId>) {
        (self.identify)(service_id.into());
    }
}

impl fmt::Debug for Establishing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Establishing")
            .field("address", &self.address)
            .field("connection_id", &self.connection_id)
            .field("generation", &self.generation)
            .field("load_balanced", &self.load_balanced)
            .field("in_background", &self.in_background)
            .finish_non_exhaustive()
    }
}
