//! The removal of connections from the pool, by their users or by the pool's owner, and the record of how much they
//! were used.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use super::close_error::CloseError;
use super::core::Core;
use super::environment::Environment;
use super::held::Held;
use super::lease::Lease;
use super::tokens::{CountsAs, Idle};
use crate::pool::event::ConnectionClosedReason;

/// How long a connection has existed, and how much it has been used.
///
/// ```
/// use std::time::Duration;
/// use wharf::Usage;
///
/// fn is_worn_out(usage: &Usage) -> bool {
///     usage.age > Duration::from_secs(3_600) || usage.uses > 100_000
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "Metrics")]
pub struct Usage {
    /// The connection's number: 1, 2, 3 and so on within its pool.
    pub connection_id: u64,
    /// The time since the connection was created, that is, since its establishment began.
    pub age: Duration,
    /// How many times the connection has been checked out, including the current use.
    #[doc(alias = "recycle_count")]
    pub uses: u64,
    /// The time since the connection's last use ended. `None` while the connection is in use, and in a pool without
    /// `maxIdleTimeMS`, because its check-ins do not read the clock.
    #[doc(alias = "last_used")]
    pub idle: Option<Duration>,
}

impl<E: Environment> Held<E> {
    fn usage(self, is_idle: bool) -> Usage {
        let (core, slot) = (self.core(), self.slot());
        let (created, first_use) = self.record(|record| (record.created, record.first_use));
        let since = |since| Duration::from_nanos(core.nanos_since_epoch().saturating_sub(since));
        Usage {
            connection_id: self.id(),
            age: Duration::from_nanos(core.environment.stopwatch().saturating_sub(created)),
            uses: first_use.uses(slot.tally().hits()),
            idle: (is_idle && core.notes_idle_times()).then(|| since(slot.since())),
        }
    }
}

impl<E: Environment> Lease<E> {
    /// Returns how long the connection has existed, and how much it has been used.
    pub fn usage(&self) -> Usage {
        self.held().usage(false)
    }

    /// Checks the connection in and closes it, whatever its condition. In a forked child, gives up a connection that
    /// belongs to the parent.
    pub fn discard(self) {
        match self.end() {
            Ok(held) => held.retire_because(CloseError::Discarded),
            Err(inherited) => inherited.abandon(),
        }
    }

    /// Takes the connection out of the pool, which no longer counts it.
    pub fn detach(self) -> E::Connection {
        let taken = match self.end() {
            Ok(held) => {
                let core = Arc::clone(&held.shared_core());
                held.end_use();
                let (connection, closing) =
                    held.begin_close(ConnectionClosedReason::Stale, None, CountsAs::Established);
                drop(closing);
                if core.environment.may_have_events() {
                    core.environment.deliver();
                }
                connection
            }
            Err(inherited) => inherited.take(),
        };
        taken.expect("BUG: the lease has no connection")
    }

    /// Ends the use without making the connection available. In a forked child, returns a connection that belongs to
    /// the parent as an error, because the parent's pool must not be touched.
    fn end(self) -> Result<Held<E>, Held<E>> {
        let held = ManuallyDrop::new(self).held();
        if held.core().environment.is_inherited() {
            return Err(held);
        }
        if E::METERED && held.slot().tally().is_timed() {
            held.end_timed_use();
        }
        held.end_hold();
        held.unpin();
        Ok(held)
    }
}

impl<E: Environment> Core<E> {
    /// Closes the available connections for which `keep` returns `false`. Returns how many were closed.
    ///
    /// Judges the connections in one shard at a time, beginning with the least recently used connection. If `keep`
    /// panics, the remaining connections become available again.
    ///
    /// # Race window
    ///
    /// While a shard's connections are being judged, a check-out does not find them, and may open a connection or queue
    /// up. If it queues up, it gets the first connection that is kept.
    pub fn retain(&self, mut keep: impl FnMut(&mut E::Connection, &Usage) -> bool) -> usize {
        let mut closed = 0;
        for shard in self.shards.iter() {
            let idle = self.slab.chain(shard.detach()).map(|slot| Held::new(self, slot).into_idle());
            let mut detached: Vec<Idle<E>> = idle.collect();
            while let Some(mut idle) = detached.pop() {
                let (usage, connection) = (idle.held().usage(true), idle.connection());
                let is_kept = keep(connection, &usage);
                let held = ManuallyDrop::new(idle).held();
                if is_kept {
                    held.make_available(shard);
                } else {
                    held.retire(ConnectionClosedReason::Stale);
                    closed += 1;
                }
            }
        }
        closed
    }
}
