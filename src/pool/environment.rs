//! What the core asks of the world around it.

use std::time::Instant;

use super::draining::Draining;
use crate::condition::Condition;
use crate::error::Cause;
use crate::event::PoolEvent;

/// The world around a core: its clock, its observer, and what becomes of connections.
///
/// The core itself does no I/O, reads no clock, spawns nothing and draws no random numbers. That lets loom check it,
/// tests drive it in virtual time, and anybody compare it with other pools on dummy connections.
///
/// The core may call `emit` under its registry's lock, so it must not call back into the pool: it should do no more than
/// queue the event. `deliver` is called outside of all locks.
pub trait Environment: Send + Sync + 'static {
    /// What the pool's connections are. The core moves them, and never looks inside.
    type Connection: Send + 'static;

    /// The present instant of a monotonic clock. Read only where `maxIdleTimeMS` or an event's duration needs it.
    fn now(&self) -> Instant;

    /// Which shard the calling thread should prefer: the same number for the same thread, other numbers for others.
    fn shard_hint(&self) -> usize;

    /// Whether events should be built at all.
    fn listens(&self) -> bool {
        false
    }

    /// Takes an event. The order of these calls is the order of the events.
    fn emit(&self, event: PoolEvent) {
        drop(event);
    }

    /// Passes the events taken so far on to their subscribers. Never called under a lock.
    fn deliver(&self) {}

    /// Takes an event and passes on: [`emit`](Self::emit) and [`deliver`](Self::deliver) in one.
    fn publish(&self, event: PoolEvent) {
        self.emit(event);
        self.deliver();
    }

    /// The condition of a connection that comes back. Asked at every check-in, which is also when the connection may give
    /// back memory that its last user needed.
    fn condition(&self, connection: &mut Self::Connection) -> Condition {
        let _ = connection;
        Condition::Reusable
    }

    /// What is wrong with a connection that is not [`Condition::Reusable`], for its `ConnectionClosed` event. Asked only if there
    /// is a listener.
    fn fault(&self, connection: &Self::Connection) -> Option<Cause> {
        let _ = connection;
        None
    }

    /// Takes care of a connection that came back [`Condition::NeedsDrain`]. Called outside of all locks, and only while no
    /// check-out waits for its capacity. By default the connection is closed.
    fn drain(&self, draining: Draining<Self>)
    where
        Self: Sized,
    {
        drop(draining);
    }

    /// Closes a connection that left the pool. Must not block.
    fn dispose(&self, connection: Self::Connection) {
        drop(connection);
    }

    /// The pool, or a service of it, was cleared, or the pool was closed: connections that were good have become stale.
    /// Called outside of all locks, for those that have an [`Draining`].
    fn connections_went_stale(&self) {}

    /// There is something to do for [`Core::maintain`](super::Core::maintain) or [`Core::populate`](super::Core::populate).
    fn schedule_maintenance(&self) {}
}
