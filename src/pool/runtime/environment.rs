//! The environment of a core that runs on tokio.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use event_listener::Event;
use tokio::runtime::Handle;

use super::closing;
use super::coarse::Coarse;
use super::draining;
use super::establish::Establish;
use super::establishers::Establishers;
use super::failure::FailureSink;
use super::failures::Failures;
use super::fork::Process;
use super::holders::{self, HoldReports};
use super::home::Residence;
use super::publisher::Publisher;
use super::stopwatch::Stopwatch;
use super::traced::SlowCheckOuts;
use crate::pool::condition::Condition;
use crate::pool::core::{Budget, Closing, Draining, Environment, Nearby, WentStale};
use crate::pool::error::Cause;
use crate::pool::event::PoolEvent;
use crate::pool::sync::contain;

thread_local! {
    /// The thread's number, or [`UNNUMBERED`]. It has no destructor and is not lazily initialized, so that reading it
    /// is one load on most systems.
    static NUMBER: Cell<usize> = const { Cell::new(UNNUMBERED) };
    /// The shard that the thread used last.
    static NEARBY: Nearby = const { Nearby::new() };
}

/// The number of a thread that has not been numbered yet.
const UNNUMBERED: usize = usize::MAX;

/// Forgets the shard that the thread used last. Called by the fork handler. On systems with native thread-locals, this
/// is a single store.
#[cfg(unix)]
pub(super) fn forget_nearby() {
    NEARBY.with(Nearby::forget);
}

/// Returns the calling thread's number. Threads are numbered in the order of their first call.
#[inline]
pub(crate) fn thread_number() -> usize {
    let number = NUMBER.get();
    if number == UNNUMBERED { number_this_thread() } else { number }
}

#[cold]
#[inline(never)]
fn number_this_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: the numbers only have to differ.
    let number = THREADS.fetch_add(1, Ordering::Relaxed);
    NUMBER.set(number);
    number
}

/// Connects a core to its establisher, its subscribers, its background task and the clock.
pub struct TokioEnvironment<E: Establish> {
    pub(super) establish: Establishers<E>,
    pub(super) publisher: Publisher,
    pub(super) on_failure: Option<Arc<FailureSink>>,
    /// `timeoutMS`: how long a check-out without its own limit may take. Zero means no limit. With `None`,
    /// `waitQueueTimeoutMS` applies instead.
    pub(super) timeout: Option<Duration>,
    /// How many check-outs may wait at a time.
    pub(super) max_waiting: Option<u32>,
    /// The budget that the pool's connections count against.
    pub(super) budget: Option<Budget>,
    /// Decides which slow check-outs are reported. With `None`, no check-out is reported.
    pub(super) slow_check_outs: Option<SlowCheckOuts>,
    pub(super) residence: Residence,
    pub(super) holds: HoldReports,
    pub(super) maintenance: tokio::sync::Notify,
    /// Tells warm-ups that the number of connections may have changed.
    pub(super) population: Event,
    pub(super) failures: Failures,
    /// Notified when connections go stale, when the pool is closed or resumed, and when a back-off ends. The listeners
    /// are draining tasks, checks, suspended check-outs, and openings that are backing off.
    pub(super) changed: Event,
    pub(super) stopwatch: Stopwatch,
    pub(super) coarse: Coarse,
    /// Whether the pool spawns tasks. If it does not, a check-out opens its connection itself.
    pub(super) has_tasks: bool,
    /// The process that built the pool.
    process: Process,
}

impl<E: Establish> TokioEnvironment<E> {
    /// Creates the environment of a pool in this process. `is_closed` says whether the pool is closed from the start.
    pub(super) fn new(
        establish: Arc<E>,
        publisher: Publisher,
        on_failure: Option<Arc<FailureSink>>,
        is_closed: bool,
    ) -> Self {
        if is_closed {
            publisher.delivery().end();
        }
        Self {
            establish: Establishers::new(establish),
            publisher,
            on_failure,
            timeout: None,
            max_waiting: None,
            budget: None,
            slow_check_outs: None,
            residence: Residence::default(),
            holds: HoldReports::default(),
            maintenance: tokio::sync::Notify::new(),
            population: Event::new(),
            failures: Failures::default(),
            changed: Event::new(),
            stopwatch: Stopwatch::fast(),
            coarse: Coarse::Still,
            has_tasks: true,
            process: Process::this(),
        }
    }

    /// Returns the runtime of the pool's tasks, unless it is known to have shut down.
    pub(super) fn living_runtime(&self) -> Option<Handle> {
        self.residence.home().map(|home| home.handle().clone())
    }
}

// SAFETY: each thread has one note, a thread-local that all pools share. A thread-local without a destructor lives as
// long as its thread, so `with` does not panic.
#[allow(unsafe_code)]
unsafe impl<E: Establish> Environment for TokioEnvironment<E> {
    type Connection = E::Connection;

    #[cfg(feature = "unstable")]
    const METERED: bool = E::METERED;

    const CHECKS: bool = E::HAS_CHECK;

    fn now(&self) -> Instant {
        // tokio's clock, because tests can pause it.
        tokio::time::Instant::now().into_std()
    }

    #[inline]
    fn stopwatch(&self) -> u64 {
        self.stopwatch.read()
    }

    #[inline]
    fn coarse(&self) -> u32 {
        self.coarse.read()
    }

    #[inline]
    fn shard_hint(&self) -> usize {
        thread_number()
    }

    #[inline]
    fn with_nearby<R>(f: impl FnOnce(&Nearby) -> R) -> Option<R> {
        Some(NEARBY.with(f))
    }

    fn max_waiting(&self) -> Option<u32> {
        self.max_waiting
    }

    fn budget(&self) -> Option<&Budget> {
        self.budget.as_ref()
    }

    #[inline]
    fn is_inherited(&self) -> bool {
        self.process.is_ancestor()
    }

    fn abandon(&self, connection: E::Connection) {
        self.establish.abandon_after_fork(connection);
    }

    #[inline]
    fn listens(&self) -> bool {
        self.publisher.is_listened_to()
    }

    #[inline]
    fn log_listens(&self) -> bool {
        self.publisher.is_logged()
    }

    fn has_subscribers(&self) -> bool {
        self.publisher.has_subscribers()
    }

    fn may_have_events(&self) -> bool {
        self.publisher.may_have_events()
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

    #[inline]
    fn publish_inline(&self, event: &PoolEvent) {
        self.publisher.publish_inline(event);
    }

    /// If the establisher panics, the connection is considered broken.
    #[inline]
    fn condition(&self, connection: &mut E::Connection) -> Condition {
        contain(|| self.establish.first().condition(connection)).unwrap_or(Condition::Broken)
    }

    fn broken_by(&self, connection: &E::Connection) -> Option<Cause> {
        contain(|| self.establish.broken_by(connection)).flatten()
    }

    fn drain(&self, draining: Draining<Self>) {
        draining::begin::<E>(draining);
    }

    fn dispose(&self, connection: E::Connection, closing: Closing<Self>) {
        closing::begin(self, connection, closing);
    }

    fn connections_went_stale(&self, which: WentStale) {
        // A refused login clears only its own service. It must not end the back-off, or the next login would follow at
        // once and be refused as well.
        if which == WentStale::All {
            self.failures.reset();
        }
        self.changed.notify(usize::MAX);
    }

    fn task_id(&self) -> Option<u64> {
        holders::task_id()
    }

    fn review_holds(&self) {
        self.holds.request();
    }

    fn schedule_maintenance(&self) {
        self.maintenance.notify_one();
        self.population.notify(usize::MAX);
        self.publisher.delivery().look_again();
    }
}
