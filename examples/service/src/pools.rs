//! The data that `/pools` returns about each pool, and that `top` shows.

use serde::{Deserialize, Serialize};
use wharf::metrics::PoolMetrics;
use wharf::{Endpoint, Phase, Pool};

/// A pool at one moment. The counters start when the pool is built.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolRow {
    /// `host:port`, or the path of a socket.
    pub address: String,
    /// `ready`, `paused` or `closed`.
    pub phase: String,
    /// Connections that are checked out or being drained.
    pub in_use: u32,
    /// Connections that can be checked out.
    pub idle: u32,
    /// Connections being established.
    pub pending: u32,
    /// Check-outs in the queue.
    pub waiting: u32,
    /// `maxPoolSize`. 0 means no limit.
    pub max: u32,
    /// Check-outs that found a connection at once.
    pub hits: u64,
    /// Check-outs that got a connection in any other way.
    pub others: u64,
    /// Check-outs that reached a time limit.
    pub timeouts: u64,
    /// The durations of the check-outs in `others`: for each bucket, the longest duration that it counts, in
    /// nanoseconds, and its count.
    pub waits: Vec<(u64, u64)>,
    /// The connections that have been in use the longest, if the pool accounts for holders.
    #[serde(default)]
    pub holders: Vec<String>,
}

/// How many holders are listed.
const LISTED: usize = 5;

impl PoolRow {
    /// Reads a pool and its holders.
    #[must_use]
    pub fn with_holders(pool: &Pool<Endpoint>) -> Self {
        Self { holders: holders(pool), ..Self::of(&pool.metrics()) }
    }

    /// Reads a pool's metrics.
    #[must_use]
    pub fn of(metrics: &PoolMetrics) -> Self {
        let (status, check_outs, wait_time) = (metrics.status, &metrics.check_outs, metrics.check_outs.wait_time());
        let phase = match status.phase {
            Phase::Ready => "ready",
            Phase::Paused => "paused",
            Phase::Closed => "closed",
        };
        Self {
            address: metrics.address.to_string(),
            phase: phase.to_owned(),
            in_use: status.in_use,
            idle: status.available,
            pending: status.pending,
            waiting: status.waiting,
            max: status.max_pool_size,
            hits: check_outs.hits,
            others: wait_time.count(),
            timeouts: check_outs.failed.timeout,
            waits: wait_time
                .buckets()
                .map(|(longest, count)| (u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX), count))
                .collect(),
            holders: Vec::new(),
        }
    }
}

/// Describes the holders that have held their connections the longest. Without accounting, the pool knows only how many
/// holders there are.
fn holders(pool: &Pool<Endpoint>) -> Vec<String> {
    let accounted = pool.holders().into_iter().filter(|holder| holder.call_site.is_some());
    accounted.take(LISTED).map(|holder| holder.to_string()).collect()
}
