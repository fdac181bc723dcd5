//! Snapshots of a pool's numbers.

use super::core::Core;
use super::environment::Environment;
use super::state::{Phase, PoolState};
use crate::pool::sync::atomic::Ordering;

/// A snapshot of a pool.
///
/// `total` is always the sum of `pending`, `available`, `in_use` and `stale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PoolStatus {
    /// The pool's phase.
    pub phase: Phase,
    /// How many times the pool has been cleared or [renewed](crate::Pool::renew). Closing counts as a clear. So does
    /// the shutdown of the runtime that the connections were registered with, although it emits no event.
    pub generation: u64,
    /// The largest number of connections that may exist (`maxPoolSize`). 0 means no limit.
    pub max_pool_size: u32,
    /// Connections that exist (totalConnectionCount).
    pub total: u32,
    /// Connections being established, permits to open one, and failed openings that are backing off
    /// (pendingConnectionCount).
    pub pending: u32,
    /// Connections that can be checked out (availableConnectionCount).
    pub available: u32,
    /// Connections that are checked out, being drained after a check-out, being closed, or passing from one owner to
    /// another.
    pub in_use: u32,
    /// Connections counted in `in_use` that their callers have checked in and that are being drained.
    pub draining: u32,
    /// Connections that became stale while they were available, and are not closed yet.
    pub stale: u32,
    /// Check-outs in the queue that are neither opening a connection nor about to do so.
    pub waiting: u32,
    /// Whether all numbers are from the same instant. If the pool changes during every attempt to take a snapshot, each
    /// number is still correct, but the numbers may be from different instants.
    pub consistent: bool,
}

/// A snapshot of a service behind a load balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ServiceStatus {
    /// The generation of new connections to the service. Each clear increments it. If a service loses its last
    /// connection and later gets a new one, its generation is higher than all its earlier generations.
    pub generation: u64,
    /// The number of existing connections to the service. A connection is counted once its handshake has named the
    /// service.
    pub connections: u32,
}

impl<E: Environment> Core<E> {
    /// How many times a snapshot is attempted before an inconsistent snapshot is returned.
    const ATTEMPTS: u32 = 64;

    /// Returns a snapshot. Each attempt briefly takes the wait list's lock and, while connections are being drained,
    /// the registry's lock.
    ///
    /// Compares two successive readings of all words. Each word has a version, so if the readings are equal, nothing
    /// changed between them.
    pub fn status(&self) -> PoolStatus {
        let mut last = self.collect();
        for _ in 0..Self::ATTEMPTS {
            let now = self.collect();
            if now.versions == last.versions {
                return PoolStatus { consistent: true, ..now.status };
            }
            last = now;
        }
        last.status
    }

    /// Returns a snapshot whose numbers are each correct, but may be from different instants.
    pub(super) fn rough_status(&self) -> PoolStatus {
        self.collect().status
    }

    fn collect(&self) -> Collected {
        let PoolState { phase, generation } = self.state.load();
        let counts = self.capacity.load();
        let (mut available, mut heads) = (0, Vec::with_capacity(self.shards.len()));
        for shard in self.shards.iter() {
            let (len, head) = shard.len(&self.slab);
            available += len;
            heads.push(head);
        }
        // ORD: Relaxed; comparing two collections shows whether this value is consistent with the others.
        let stale = self.stale.load(Ordering::Relaxed);
        let waiting = self.wait_list.lock().waiting();
        // The flag avoids the lock in the usual case, when no connection is being drained.
        let draining = if counts.draining { self.registry.lock().drains.len() } else { 0 };
        // A connection that was handed over as soon as it was established may be closed before its opening completes.
        let (total, pending) = (counts.total, counts.pending.min(counts.total));
        // If the counts are from different instants, the parts may add up to more than the total.
        let stale = stale.min(total - pending);
        let available = available.min(total - pending - stale);
        let in_use = total - pending - stale - available;
        Collected {
            versions: (PoolState { phase, generation }, counts, heads, stale, waiting, draining),
            status: PoolStatus {
                phase,
                generation,
                max_pool_size: self.max_pool_size(),
                total,
                pending,
                available,
                in_use,
                draining: draining.min(in_use),
                stale,
                waiting,
                consistent: false,
            },
        }
    }
}

struct Collected {
    versions: (PoolState, super::capacity::Counts, Vec<u64>, u32, u32, u32),
    status: PoolStatus,
}

#[cfg(all(test, feature = "serde", not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn status_comes_back_as_it_was() {
        let status = PoolStatus {
            phase: Phase::Ready,
            generation: 3,
            max_pool_size: 100,
            total: 10,
            pending: 1,
            available: 2,
            in_use: 6,
            draining: 4,
            stale: 1,
            waiting: 5,
            consistent: true,
        };
        let text = serde_json::to_string(&status).unwrap();
        assert!(text.starts_with(r#"{"phase":"ready","generation":3,"max_pool_size":100,"#), "{text}");
        assert_eq!(serde_json::from_str::<PoolStatus>(&text).unwrap(), status);
        let service = ServiceStatus { generation: 3, connections: 2 };
        let text = serde_json::to_string(&service).unwrap();
        assert_eq!(serde_json::from_str::<ServiceStatus>(&text).unwrap(), service);
    }
}
