//! The interface between the core and its surroundings.

use std::time::{Duration, Instant};

use super::budget::Budget;
use super::draining::Draining;
use super::nearby::Nearby;
use super::tokens::Closing;
use crate::pool::condition::Condition;
use crate::pool::error::Cause;
use crate::pool::event::PoolEvent;

/// The unit of the coarse clock, which measures how long a connection has been idle before it is checked.
pub const COARSE_TICK: Duration = Duration::from_millis(100);

/// The connections that have become stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WentStale {
    /// All the pool's connections.
    All,
    /// The connections to one service.
    OfService,
}

/// The surroundings of a core. They provide its clock and its subscribers, and they judge, drain and close connections.
///
/// The core itself does not do I/O, read a clock, spawn tasks or draw random numbers. This lets loom check it, tests
/// drive it in virtual time, and benchmarks compare it with other pools on dummy connections.
///
/// The core may call `emit` under its registry's lock, so `emit` must not call back into the pool. It should only queue
/// the event. `deliver` is called outside all locks.
///
/// # Safety
///
/// Check-outs and check-ins follow the pointers that [`with_nearby`](Self::with_nearby) provides. That method must
/// behave in one of two ways, always the same way for a given thread:
///
/// - It returns `None`, and does not call `f`.
/// - It calls `f` with the thread's note. Each thread has one note, and no other thread has access to it. Apart from
///   the call to `f`, the method does not use any pool.
#[allow(unsafe_code)]
pub unsafe trait Environment: Send + Sync + 'static {
    /// The type of the pool's connections. The core moves connections around but never looks inside them.
    type Connection: Send + 'static;

    /// Whether the pool keeps the metrics of `crate::pool::metrics`. `false` only in models, and in benchmarks of a
    /// pool without metrics.
    const METERED: bool = true;

    /// Whether connections can be checked before use. If they cannot, check-outs and check-ins contain no code for
    /// checks.
    const CHECKS: bool = false;

    /// Returns the current instant from a monotonic clock. Called only if `maxIdleTimeMS` needs it.
    fn now(&self) -> Instant;

    /// Returns the time in nanoseconds since an instant that the environment chooses, for frequent measurements. The
    /// difference between two readings is accurate to within a few nanoseconds. If the later reading is smaller, the
    /// difference is taken to be 0.
    ///
    /// Tests do not pause this clock. Limits and idle times use [`now`](Self::now).
    fn stopwatch(&self) -> u64;

    /// Returns the reading of the coarse clock, in [`COARSE_TICK`]s. Called at each check-out and check-in if
    /// connections can be [checked](Self::CHECKS), so it must be cheap.
    #[inline]
    fn coarse(&self) -> u32 {
        0
    }

    /// Returns the calling thread's preferred shard: always the same number for one thread, and different numbers for
    /// different threads.
    fn shard_hint(&self) -> usize;

    /// Calls `f` with the calling thread's note of the shard that it used last, and returns the result of `f`. Returns
    /// `None` if threads do not keep notes here. In a forked child, [`Nearby::forget`] must be called before anything
    /// uses a pool. This function does not take `&self`, because a check-in calls it while other threads may already be
    /// freeing the core and its environment.
    #[inline]
    fn with_nearby<R>(f: impl FnOnce(&Nearby) -> R) -> Option<R> {
        let _ = f;
        None
    }

    /// Returns how many check-outs may wait at the same time. `None` means no limit. Always returns the same value.
    fn max_waiting(&self) -> Option<u32> {
        None
    }

    /// Returns the budget that the pool's connections count against. Always returns the same budget.
    fn budget(&self) -> Option<&Budget> {
        None
    }

    /// Returns whether this is a forked child that has inherited the environment.
    #[inline]
    fn is_inherited(&self) -> bool {
        false
    }

    /// Gives up a connection in a forked child, where it still belongs to the parent.
    fn abandon(&self, connection: Self::Connection) {
        std::mem::forget(connection);
    }

    /// Returns whether a subscriber is listening. If not, no events are built. An environment that starts listening
    /// later must call [`Core::heed_listeners`](super::Core::heed_listeners) first. If this then returns `true` to a
    /// thread, the thread also sees the effect of that call.
    ///
    /// May be called under the registry's lock, so it must not call foreign code.
    fn listens(&self) -> bool {
        false
    }

    /// Returns whether a log is listening. A log may start or stop listening at any time; while it is listening,
    /// [`listens`](Self::listens) returns `true`. The core notices these changes in
    /// [`Core::heed_log`](super::Core::heed_log).
    fn log_listens(&self) -> bool {
        false
    }

    /// Returns whether a subscriber other than the log is listening.
    fn has_subscribers(&self) -> bool {
        self.listens()
    }

    /// Returns whether the queue may contain events. They stay there even if the log has stopped listening.
    fn may_have_events(&self) -> bool {
        self.listens()
    }

    /// Takes an event. The order of the calls to this method determines the order of the events.
    fn emit(&self, event: PoolEvent) {
        drop(event);
    }

    /// Delivers the events taken so far to their subscribers. Never called under a lock.
    fn deliver(&self) {}

    /// Takes an event and delivers it: [`emit`](Self::emit) and [`deliver`](Self::deliver) in one call.
    fn publish(&self, event: PoolEvent) {
        self.emit(event);
        self.deliver();
    }

    /// Delivers one of the frequent events before returning, unless it is called inside a subscriber. Never called
    /// under a lock. The event belongs to the caller, so an environment that keeps the event must clone it.
    fn publish_inline(&self, event: &PoolEvent) {
        self.publish(event.clone());
    }

    /// Returns the condition of a connection that is being checked in. Called at every check-in, so an implementation
    /// may also free memory that only the connection's last user needed.
    fn condition(&self, connection: &mut Self::Connection) -> Condition {
        let _ = connection;
        Condition::Reusable
    }

    /// Returns why a connection is not [`Condition::Reusable`], for its `ConnectionClosed` event. Called only if a
    /// subscriber is listening.
    fn broken_by(&self, connection: &Self::Connection) -> Option<Cause> {
        let _ = connection;
        None
    }

    /// Drains a connection whose condition at check-in was [`Condition::NeedsDrain`]. Called outside all locks, and
    /// only if the drain was not already displaced for a check-out. By default, closes the connection.
    fn drain(&self, draining: Draining<Self>)
    where
        Self: Sized,
    {
        drop(draining);
    }

    /// Closes a connection that has left the pool. Must not block. The pool counts the connection until `closing` is
    /// dropped.
    fn dispose(&self, connection: Self::Connection, closing: Closing<Self>)
    where
        Self: Sized,
    {
        drop(connection);
        drop(closing);
    }

    /// Tells the tasks that hold a [`Draining`] that connections have become stale: the pool or one of its services was
    /// cleared, or the pool was closed. Called outside all locks.
    fn connections_went_stale(&self, which: WentStale) {
        let _ = which;
    }

    /// Returns the non-zero number of the task that is running on the calling thread. Called only if the pool accounts
    /// for holders.
    fn task_id(&self) -> Option<u64> {
        None
    }

    /// Requests a call to [`Core::review_holds`](super::Core::review_holds), which has work to do.
    fn review_holds(&self) {}

    /// Requests a call to [`Core::maintain`](super::Core::maintain) or [`Core::populate`](super::Core::populate), which
    /// has work to do.
    fn schedule_maintenance(&self) {}
}
