//! What the core asks of the world around it.

use std::time::Instant;

use crate::event::PoolEvent;

/// The world around a core: its clock, its observer, and what becomes of connections.
///
/// The core itself does no I/O, reads no clock, spawns nothing and draws no random numbers. That lets loom check it,
/// tests drive it in virtual time, and anybody compare it with other pools on dummy connections.
///
/// The core may call `emit` under its ledger's lock, so it must not call back into the pool: it should do no more than
/// queue the event. `deliver` is called outside of all locks.
pub trait Host<C>: Send + Sync + 'static {
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

    /// Whether a connection that comes back must not be used again.
    fn is_errored(&self, connection: &C) -> bool {
        let _ = connection;
        false
    }

    /// Closes a connection that left the pool. Must not block.
    fn dispose(&self, connection: C) {
        drop(connection);
    }

    /// There is something to do for [`Core::run`](super::Core::run) or [`Core::populate`](super::Core::populate).
    fn schedule_run(&self) {}
}
