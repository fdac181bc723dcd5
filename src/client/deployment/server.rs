//! One server of a deployment: its pool, its monitor's controls, its round-trip times, and its operations in progress.

use std::fmt;
use std::ops::Deref;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::checker::Uses;
use super::heartbeat::Heartbeats;
use crate::client::topology::RoundTrips;
use crate::endpoint::Endpoint;
use crate::endpoint::options::ServerAddress;
use crate::pool::runtime::{Pool, thread_number};

/// The number of handles to each server, a power of two. If there are more threads than handles, threads share them.
const HANDLES: usize = 16;

/// A server of a deployment.
pub(crate) struct Server {
    pub(crate) address: ServerAddress,
    pub(crate) pool: Pool<Endpoint>,
    /// Opens the monitor's connections. `None` if there is no monitor: behind a load balancer, and where operations
    /// scan.
    pub(super) probe: Option<ArcSwap<Endpoint>>,
    pub(super) control: Control,
    pub(super) heartbeats: Heartbeats,
    /// When the monitor or an operation began to check the server.
    checks_begun: Mutex<Instant>,
    round_trips: Mutex<RoundTrips>,
    /// The shortest recent round trip, in nanoseconds.
    least_round_trip: AtomicU64,
    /// The times at which the server was checked and used, for scans.
    pub(super) uses: Uses,
}

/// The signals to a monitor.
#[derive(Default)]
pub(super) struct Control {
    /// Notified to request an immediate check.
    pub(super) check: Notify,
    /// Whether a check is in progress, or is about to begin without a pause.
    is_checking: AtomicBool,
    /// Notified to cancel the check in progress.
    pub(super) cancel: Notify,
    /// Notified to request an immediate round-trip measurement.
    pub(super) measure: Notify,
    /// Notified when `has_ended` is set.
    end: Notify,
    /// Whether the server has left the deployment, or the deployment is closed.
    has_ended: AtomicBool,
}

impl Control {
    /// Requests an immediate check. The request is ignored while a check is in progress (Server Monitoring, "Requesting
    /// an immediate check"). A task that waits for the topology to change is notified when the check completes, and may
    /// then request another check.
    pub(super) fn ask(&self) {
        // ORD: Acquire; pairs with the Release in `set_checking`. See there.
        if !self.is_checking.load(Ordering::Acquire) {
            self.check.notify_one();
        }
    }

    /// Records whether a check is in progress. The monitor records the completion of a check before it applies the
    /// result and notifies the waiting tasks. A task listens before it requests a check. Listening and notifying both
    /// take the event's lock. If the task listens first, its request may be ignored, but it is notified. If the monitor
    /// notifies first, the task sees that the check has completed.
    pub(super) fn set_checking(&self, on: bool) {
        // ORD: Release; pairs with the Acquire in `ask`.
        self.is_checking.store(on, Ordering::Release);
    }

    /// Withdraws a cancellation that no check has noticed. The pool has already been cleared, so connections opened
    /// before then cannot cause another cancellation.
    pub(super) fn forget_cancellation(&self) {
        // Consumes the stored notification, if there is one.
        pin!(self.cancel.notified()).enable();
    }

    /// Stops the monitor.
    pub(super) fn end(&self) {
        // ORD: Release; pairs with the Acquire in `has_ended`. The notification wakes a monitor that is waiting.
        self.has_ended.store(true, Ordering::Release);
        self.end.notify_waiters();
    }

    pub(super) fn has_ended(&self) -> bool {
        // ORD: Acquire; pairs with the Release in `end`.
        self.has_ended.load(Ordering::Acquire)
    }

    /// Completes when the monitor must stop.
    pub(super) async fn ended(&self) {
        // The future receives notifications from this point on, so it cannot miss one that is sent after `has_ended`
        // has been read.
        let end = self.end.notified();
        if !self.has_ended() {
            end.await;
        }
    }
}

impl Server {
    pub(super) fn new(address: ServerAddress, pool: Pool<Endpoint>, probe: Option<Endpoint>) -> Self {
        Self {
            address,
            pool,
            probe: probe.map(ArcSwap::from_pointee),
            control: Control::default(),
            heartbeats: Heartbeats::default(),
            checks_begun: Mutex::new(Instant::now()),
            round_trips: Mutex::default(),
            least_round_trip: AtomicU64::new(0),
            uses: Uses::default(),
        }
    }

    /// Records that the monitor or an operation is beginning to check this server.
    pub(super) fn begin_checks(&self) {
        self.control.set_checking(true);
        // Every value under the lock is valid, here and below.
        *self.checks_begun.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns how long the monitor has been checking the server, in whole milliseconds.
    pub(super) fn checked_for(&self) -> Duration {
        let checks_begun = *self.checks_begun.lock().unwrap_or_else(PoisonError::into_inner);
        Duration::from_millis(u64::try_from(checks_begun.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Adds the duration of one hello.
    pub(super) fn add_round_trip(&self, sample: Duration) {
        let mut round_trips = self.round_trips.lock().unwrap_or_else(PoisonError::into_inner);
        round_trips.add(sample);
        self.note(&round_trips);
    }

    /// Forgets the round-trip times, because the server is unknown. The caller holds the deployment's lock, so that no
    /// check applies the old times.
    pub(super) fn forget_round_trips(&self) {
        let mut round_trips = self.round_trips.lock().unwrap_or_else(PoisonError::into_inner);
        *round_trips = RoundTrips::default();
        self.note(&round_trips);
    }

    /// Returns the average and the minimum of the round-trip times.
    pub(super) fn round_trips(&self) -> (Option<Duration>, Duration) {
        let round_trips = self.round_trips.lock().unwrap_or_else(PoisonError::into_inner);
        (round_trips.average(), round_trips.minimum())
    }

    /// Returns the shortest recent round trip (`minRoundTripTime`), or zero if it is not known. Takes no lock.
    pub(crate) fn least_round_trip(&self) -> Duration {
        // Relaxed: a measured value, which publishes nothing.
        Duration::from_nanos(self.least_round_trip.load(Ordering::Relaxed))
    }

    fn note(&self, round_trips: &RoundTrips) {
        let least = u64::try_from(round_trips.minimum().as_nanos()).unwrap_or(u64::MAX);
        // Relaxed: a measured value, which publishes nothing.
        self.least_round_trip.store(least, Ordering::Relaxed);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address.as_str())
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

/// A server in a snapshot, with the handles through which operations use it.
///
/// Each operation clones its thread's handle, and drops the clone when it finishes. So the number of references to the
/// handles is the number of operations in progress, and operations on different threads write to different cache lines.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) server: Arc<Server>,
    handles: [Selected; HANDLES],
}

/// A server that an operation is using. The operation counts as in progress while it holds this value.
#[derive(Debug, Clone)]
pub(crate) struct Selected(Arc<CachePadded<Arc<Server>>>);

impl Selected {
    /// Returns the server, for uses that do not count as operations in progress, such as an open cursor.
    pub(crate) fn server(&self) -> &Arc<Server> {
        &self.0
    }
}

impl Deref for Selected {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl Member {
    pub(super) fn new(server: Arc<Server>) -> Self {
        let handles = std::array::from_fn(|_| Selected(Arc::new(CachePadded::new(server.clone()))));
        Self { server, handles }
    }

    /// Begins an operation on the server.
    pub(super) fn select(&self) -> Selected {
        self.handles[thread_number() % HANDLES].clone()
    }

    /// Returns the number of operations in progress (`operationCount`).
    pub(crate) fn operation_count(&self) -> u64 {
        self.handles.iter().map(|handle| Arc::strong_count(&handle.0) as u64 - 1).sum()
    }
}
