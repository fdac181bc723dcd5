//! Metrics that a pool keeps about itself, without a subscriber.
//!
//! [`Pool::metrics`](crate::Pool::metrics) returns a [`PoolMetrics`]. It is plain data: one pool's numbers at one point
//! in time. All counters and histograms start at zero when the pool is built, and only grow.
//!
//! # Precision
//!
//! | what | how it is measured |
//! | --- | --- |
//! | all counters | exact |
//! | wait times, creation times | exact: each check-out that waits and each establishment is timed |
//! | use times | sampled: about one use in 128 is timed, exactly |
//!
//! Times are measured in nanoseconds, with a clock that is accurate to within tens of nanoseconds. [`Histogram`] sorts
//! them into buckets, and states the precision of its quantiles. Unless
//! [`PoolBuilder::tokio_clock`](crate::PoolBuilder::tokio_clock) is set, the clock is not tokio's, and keeps running
//! while a test has paused tokio's clock.
//!
//! # Consistency
//!
//! In every snapshot, ends never outnumber beginnings: `closed` is at most `created`, and so on. If two snapshots are
//! ordered, for example because one thread takes them one after the other, no counter in the later snapshot is smaller.
//! [`PoolStatus::consistent`] says whether the numbers in [`PoolMetrics::status`] are from one instant. The counters
//! are read one after the other. So in a pool that is in use, two counters may differ by the events that occur between
//! the two reads.
//!
//! # Cost
//!
//! A check-out that finds a connection at once is counted in a word that only the connection's user writes. It does not
//! read a clock unless it is part of the sample. A check-out that waits reads the clock twice. A histogram takes about
//! 200 bytes once it has recorded a time, and 512 bytes for each range of times that is in use. A range spans a factor
//! of sixteen. Wait times and use times have a histogram for each of the pool's shards. There is about one shard for
//! each CPU core.

mod counter;
mod histogram;
mod stages;
#[cfg(feature = "serde")]
mod stored;

use std::sync::Arc;

pub(crate) use counter::Counter;
pub use histogram::Histogram;
pub(crate) use histogram::Recorder;
pub(crate) use stages::StageTimes;

pub use crate::pool::by_stage::ByStage;
use crate::pool::core::PoolStatus;

/// The metrics of one pool: its current numbers, and its counts and times so far.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PoolMetrics {
    /// The pool's address.
    pub address: Arc<str>,
    /// The current numbers of connections and of waiting check-outs.
    pub status: PoolStatus,
    /// Whether the pool is ready and its server accepts writes, as far as its client knows. A server accepts writes if
    /// it is a primary, a mongos or a standalone server, or is behind a load balancer. A pool without a client knows
    /// only whether it is ready.
    pub accepts_writes: bool,
    /// `minPoolSize`: how many connections the pool keeps open.
    pub min_pool_size: u32,
    /// The check-outs that have finished.
    pub check_outs: CheckOutMetrics,
    /// How long connections were in use, from the end of check-out to the beginning of check-in.
    ///
    /// Sampled: about one use in 128 is timed, and its time is exact. For each slot that the pool keeps for a
    /// connection, the first use is timed, and then one use after every 64 to 190 others. The exact number is random,
    /// so that the sample does not follow a pattern in the application's uses. [`Histogram::count`] is the number of
    /// timed uses. [`CheckOutMetrics::succeeded`] counts every use that has begun.
    pub use_time: Histogram,
    /// The connections that were opened and closed.
    pub connections: ConnectionMetrics,
    /// The drains of connections that were returned with unfinished work.
    pub drains: DrainMetrics,
    /// How many times the pool has been cleared while it was ready.
    pub clears: u64,
    /// How many times a service of the pool has been cleared, in load-balanced mode.
    pub service_clears: u64,
    /// How many connections in use or being established were interrupted, because the pool or their service was cleared
    /// with `interruptInUseConnections`, or because the pool was closed while they were being established.
    pub interruptions: u64,
    /// How many times [`Pool::run`](crate::Pool::run), [`run_command`](crate::Pool::run_command) or a client operation
    /// took another connection because the first was lost before anything was sent on it.
    pub retries: u64,
}

/// A pool's finished check-outs. A check-out is counted as soon as it has received its connection or failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CheckOutMetrics {
    /// Check-outs that found an available connection at once.
    pub hits: u64,
    /// How long check-outs waited for a connection that was not opened for them: another caller checked it in, or it
    /// was opened for another check-out or in the background. The times are exact, and are measured from the beginning
    /// of the check-out.
    pub waited: Histogram,
    /// How long check-outs waited for a connection that was opened for them. The times are exact, and are measured from
    /// the beginning of the check-out.
    pub opened: Histogram,
    /// Check-outs that did not get a connection.
    pub failed: CheckOutFailures,
}

impl CheckOutMetrics {
    /// Returns the number of check-outs that got a connection.
    #[must_use]
    pub fn succeeded(&self) -> u64 {
        self.hits + self.waited.count() + self.opened.count()
    }

    /// Returns the times of all successful check-outs that did not find a connection at once: the merged times of
    /// [`waited`](Self::waited) and [`opened`](Self::opened).
    #[must_use]
    pub fn wait_time(&self) -> Histogram {
        let mut both = self.waited.clone();
        both.merge(&self.opened);
        both
    }
}

/// How many check-outs did not get a connection, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CheckOutFailures {
    /// A time limit was reached: [`CheckOutError::WaitQueueTimeout`](crate::CheckOutError::WaitQueueTimeout).
    pub timeout: u64,
    /// Too many check-outs were waiting, or this one could not have been served in time:
    /// [`CheckOutError::WaitQueueFull`](crate::CheckOutError::WaitQueueFull).
    pub queue_full: u64,
    /// The pool was closed: [`CheckOutError::PoolClosed`](crate::CheckOutError::PoolClosed).
    pub pool_closed: u64,
    /// The pool was paused or cleared: [`CheckOutError::PoolCleared`](crate::CheckOutError::PoolCleared).
    pub pool_cleared: u64,
    /// A connection could not be established: [`CheckOutError::Establish`](crate::CheckOutError::Establish).
    pub establish: u64,
    /// There was no runtime: [`CheckOutError::NoRuntime`](crate::CheckOutError::NoRuntime).
    pub no_runtime: u64,
    /// The caller dropped the check-out's future before it completed.
    pub cancelled: u64,
}

impl CheckOutFailures {
    /// Returns the total number of check-outs that did not get a connection.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Self { timeout, queue_full, pool_closed, pool_cleared, establish, no_runtime, cancelled } = self;
        timeout + queue_full + pool_closed + pool_cleared + establish + no_runtime + cancelled
    }
}

/// The connections that a pool has opened and closed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ConnectionMetrics {
    /// Connections that were created. A connection is created when its establishment begins.
    pub created: u64,
    /// The exact time that each successful establishment took in total.
    pub establish_time: Histogram,
    /// The exact times of the establishment stages. A completed stage is counted even if a later stage failed. There
    /// are no times for a stage that connections skip, such as the TLS handshake when TLS is not used. A custom
    /// [`Establish`](crate::Establish) reports its stages with
    /// [`Establishing::stage_took`](crate::Establishing::stage_took).
    pub stage_times: ByStage<Histogram>,
    /// Establishments that failed, by the stage that failed.
    pub failed: ByStage<u64>,
    /// Establishments that were abandoned without an error, because the pool was closed or cleared or the runtime shut
    /// down.
    pub given_up: u64,
    /// Connections that were closed, by reason.
    pub closed: Closes,
}

/// How many connections were closed, by the reason in their `ConnectionClosed` event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Closes {
    /// The pool or the connection's service was cleared, the pool's runtime shut down, or the connection was detached
    /// or not retained.
    pub stale: u64,
    /// The connection was available for longer than `maxIdleTimeMS`.
    pub idle: u64,
    /// The connection failed or could not be established, or a check-out needed its capacity while it was being
    /// drained.
    pub error: u64,
    /// The pool was closed.
    pub pool_closed: u64,
}

impl Closes {
    /// Returns the total number of connections that were closed.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Self { stale, idle, error, pool_closed } = self;
        stale + idle + error + pool_closed
    }
}

/// The drains of connections that were returned with unfinished work, such as a reply that no caller read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct DrainMetrics {
    /// Drains that have begun. [`PoolStatus::draining`] counts the drains that have not ended.
    pub begun: u64,
    /// Drains after which the connection could be used again. A connection that had expired was closed anyway.
    pub reused: u64,
    /// Drains after which the connection was closed, because it still could not be used, or because the draining code
    /// panicked.
    pub failed: u64,
    /// Drains that were stopped because a check-out needed the connection's capacity.
    pub displaced: u64,
    /// Drains that were abandoned, because the pool was cleared or closed, or because its runtime shut down.
    pub given_up: u64,
}

impl DrainMetrics {
    /// Returns the number of drains that have ended.
    #[must_use]
    pub fn ended(&self) -> u64 {
        let Self { begun: _, reused, failed, displaced, given_up } = self;
        reused + failed + displaced + given_up
    }
}
