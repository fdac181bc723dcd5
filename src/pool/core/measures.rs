//! A core's counters and histograms. `crate::pool::metrics` documents them for users.
//!
//! | what | where it is counted |
//! | --- | --- |
//! | hits | in the slot's `Tally`, by its owner |
//! | waits, uses | in a histogram of the shard that the calling thread prefers; the sum of the waits in the slot's `Tally` |
//! | connections created and closed, clears, drains | in the registry, under its lock |
//! | everything else | in a counter or a histogram of the core |
//!
//! The end of each activity is counted after its beginning, and [`Core::metrics`] reads the counts of ends first.
//! Reading a count of ends acquires everything that was counted before those ends. So no snapshot has more ends than
//! beginnings.

use std::sync::atomic::{AtomicU64 as StatisticU64, Ordering as StatisticOrdering};

use crossbeam_utils::CachePadded;

use super::check_out::Started;
use super::core::Core;
use super::environment::Environment;
use super::held::Held;
use super::pace::Pace;
use super::state::Phase;
use crate::pool::error::CheckOutError;
use crate::pool::event::ConnectionClosedReason;
use crate::pool::metrics::{
    ByStage, CheckOutFailures, CheckOutMetrics, Closes, ConnectionMetrics, Counter, DrainMetrics, Histogram,
    PoolMetrics, Recorder, StageTimes,
};

/// The counts that are kept outside the slots and the registry.
pub(super) struct Measures {
    /// The histograms of each shard.
    by_shard: Box<[CachePadded<OfShard>]>,
    opened: Recorder,
    failures: Failures,
    established: Recorder,
    stages: ByStage<Recorder>,
    pub(super) failed: ByStage<Counter>,
    pub(super) given_up: Counter,
    pub(super) drains: DrainEnds,
    pub(super) interruptions: Counter,
    retries: Counter,
    /// Present if the pool refuses check-outs that would be served too late.
    pub(super) pace: Option<Pace>,
    /// The number of the last connection that the pool's predecessor created.
    ids_before: StatisticU64,
}

struct OfShard {
    waited: Recorder,
    used: Recorder,
}

impl Default for OfShard {
    fn default() -> Self {
        // Allocated here because waiting check-outs and check-ins must not allocate.
        Self { waited: Recorder::frequent(), used: Recorder::frequent() }
    }
}

#[derive(Default)]
struct Failures {
    timeout: Counter,
    queue_full: Counter,
    pool_closed: Counter,
    pool_cleared: Counter,
    establish: Counter,
    no_runtime: Counter,
    cancelled: Counter,
}

/// Counts drains by how they ended; see `DrainMetrics`.
#[derive(Default)]
pub(super) struct DrainEnds {
    pub(super) reused: Counter,
    pub(super) failed: Counter,
    pub(super) displaced: Counter,
    pub(super) given_up: Counter,
}

#[derive(Clone, Copy, Default)]
pub(super) struct RegistryCounts {
    pub(super) closed: Closes,
    pub(super) clears: u64,
    pub(super) service_clears: u64,
    pub(super) drains: u64,
}

impl RegistryCounts {
    pub(super) fn close(&mut self, reason: ConnectionClosedReason) {
        *match reason {
            ConnectionClosedReason::Stale => &mut self.closed.stale,
            ConnectionClosedReason::Idle => &mut self.closed.idle,
            ConnectionClosedReason::Error => &mut self.closed.error,
            ConnectionClosedReason::PoolClosed => &mut self.closed.pool_closed,
        } += 1;
    }
}

impl Measures {
    pub(super) fn new(shards: usize, refuses_late: bool) -> Self {
        Self {
            by_shard: (0..shards).map(|_| CachePadded::default()).collect(),
            opened: Recorder::default(),
            failures: Failures::default(),
            established: Recorder::default(),
            stages: ByStage::default(),
            failed: ByStage::default(),
            given_up: Counter::default(),
            drains: DrainEnds::default(),
            interruptions: Counter::default(),
            retries: Counter::default(),
            pace: refuses_late.then(Pace::default),
            ids_before: StatisticU64::new(0),
        }
    }

    /// Excludes the connections of the pool's predecessor from the counts. The last of them has the number `last_id`.
    pub(super) fn begin_after(&self, last_id: u64) {
        // Relaxed: set before the pool is shared.
        self.ids_before.store(last_id, StatisticOrdering::Relaxed);
    }

    fn of_shard(&self, hint: usize) -> &OfShard {
        // The number of shards is a power of two.
        &self.by_shard[hint & (self.by_shard.len() - 1)]
    }

    fn merged(&self, recorder: impl Fn(&OfShard) -> &Recorder) -> Histogram {
        let mut merged = Histogram::default();
        self.by_shard.iter().for_each(|of_shard| recorder(of_shard).add_to(&mut merged));
        merged
    }
}

impl<E: Environment> Held<E> {
    /// Counts a check-out that began at `started` and has taken this connection.
    #[inline]
    pub(super) fn count_check_out(&self, started: Started) {
        if !E::METERED {
            return;
        }
        // Another thread may have opened the connection before the check-out's first poll returned.
        let is_opened = self.slot().take_opened_mark();
        if is_opened || started.has_waited() {
            self.count_wait(started, is_opened);
        } else if self.slot().tally().count_hit() {
            self.begin_timed_use();
        }
    }

    #[inline]
    fn count_wait(&self, started: Started, is_opened: bool) {
        let (core, slot) = (self.core(), self.slot());
        let now = core.environment.stopwatch();
        let waited = started.until(now);
        self.record_mut(|record| record.first_use.count_other());
        if is_opened {
            core.measures.opened.record(waited);
        } else {
            // The sum comes first, because the count publishes it.
            slot.tally().add_waited(waited);
            core.measures.of_shard(core.environment.shard_hint()).waited.count(waited);
        }
        if slot.tally().count_other() {
            slot.set_since(now);
        }
    }

    /// Records the time at which a timed use begins.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_timed_use(&self) {
        self.slot().set_since(self.core().environment.stopwatch());
    }

    /// Records the duration of a timed use that is ending now.
    #[cold]
    #[inline(never)]
    pub(super) fn end_timed_use(&self) {
        let (core, slot) = (self.core(), self.slot());
        let now = core.environment.stopwatch();
        // The lowest bits of the reading are effectively random.
        slot.tally().end_timed(now ^ u64::from(slot.index()) << 32);
        core.measures.of_shard(core.environment.shard_hint()).used.record(now.saturating_sub(slot.since()));
        core.heed_log();
    }
}

impl<E: Environment> Core<E> {
    pub(super) fn count_failure(&self, error: &CheckOutError) {
        let failures = &self.measures.failures;
        match error {
            CheckOutError::WaitQueueTimeout(_) => &failures.timeout,
            CheckOutError::WaitQueueFull(_) => &failures.queue_full,
            CheckOutError::PoolClosed(_) => &failures.pool_closed,
            CheckOutError::PoolCleared(_) => &failures.pool_cleared,
            CheckOutError::Establish(_) => &failures.establish,
            CheckOutError::NoRuntime(_) => &failures.no_runtime,
        }
        .count();
    }

    /// Counts a check-out that its caller dropped.
    pub fn count_cancelled(&self) {
        self.measures.failures.cancelled.count();
    }

    /// Records how long each completed stage of an establishment took. Called once for each establishment, before its
    /// outcome is known to the core.
    pub(crate) fn stages_took(&self, times: &StageTimes) {
        let times = times.get();
        for (stage, recorder) in self.measures.stages.iter() {
            if let Some(nanos) = times.of(stage) {
                recorder.record(*nanos);
            }
        }
    }

    /// Records how long a successful establishment took, in nanoseconds.
    pub(super) fn establishment_took(&self, nanos: u64) {
        self.measures.established.record(nanos);
    }

    /// Counts an operation that took another connection because its first connection was lost while idle.
    pub fn count_retry(&self) {
        self.measures.retries.count();
    }

    /// Returns a snapshot of the metrics. Takes the locks that [`Core::status`] takes, and the registry's lock.
    pub fn metrics(&self) -> PoolMetrics {
        let measures = &self.measures;
        // Ends are read before their beginnings: uses, then check-outs, then establishments, then creations.
        let use_time = measures.merged(|of_shard| &of_shard.used);
        let failures = &measures.failures;
        let waited = measures.merged(|of_shard| &of_shard.waited);
        let all_waited = self.slab.iter().fold(0, |sum: u64, slot| sum.saturating_add(slot.tally().waited()));
        let check_outs = CheckOutMetrics {
            waited: waited.with_sum(all_waited),
            opened: measures.opened.snapshot(),
            hits: self.slab.iter().map(|slot| slot.tally().hits()).sum(),
            failed: CheckOutFailures {
                timeout: failures.timeout.get(),
                queue_full: failures.queue_full.get(),
                pool_closed: failures.pool_closed.get(),
                pool_cleared: failures.pool_cleared.get(),
                establish: failures.establish.get(),
                no_runtime: failures.no_runtime.get(),
                cancelled: failures.cancelled.get(),
            },
        };
        let establish_time = measures.established.snapshot();
        let stage_times = measures.stages.map(Recorder::snapshot);
        let (failed, given_up) = (measures.failed.map(Counter::get), measures.given_up.get());
        let ends = &measures.drains;
        let drained = DrainMetrics {
            reused: ends.reused.get(),
            failed: ends.failed.get(),
            displaced: ends.displaced.get(),
            given_up: ends.given_up.get(),
            begun: 0,
        };
        let (interruptions, retries) = (measures.interruptions.get(), measures.retries.get());
        let (created, RegistryCounts { closed, clears, service_clears, drains }) = {
            let registry = self.registry.lock();
            // Relaxed: see `begin_after`.
            (self.last_id() - measures.ids_before.load(StatisticOrdering::Relaxed), registry.counts)
        };
        let status = self.status();
        PoolMetrics {
            address: self.address.clone(),
            accepts_writes: status.phase == Phase::Ready,
            status,
            min_pool_size: self.min_pool_size(),
            check_outs,
            use_time,
            connections: ConnectionMetrics { created, establish_time, stage_times, failed, given_up, closed },
            drains: DrainMetrics { begun: drains, ..drained },
            clears,
            service_clears,
            interruptions,
            retries,
        }
    }
}
