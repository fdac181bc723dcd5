//! The refusal of check-outs that would be served too late ([`PoolOptions::refuse_late`](crate::PoolOptions)).
//!
//! A check-out with a time limit that finds others waiting is refused, before it joins them, if the pool expects to serve
//! it after its limit.
//!
//! # The pace
//!
//! The *pace* is the mean time from one served waiter to the next. A clock runs only while a waiter is in the queue, so
//! times without demand do not count. The pace is the time on this clock since a mark, divided by the number of waiters
//! that were served since with a connection that came back. The mark is 8 to 16 uses of each connection old, so the pace follows a change of the load
//! within that many uses.
//!
//! # The rule
//!
//! A check-out behind w waiters is served after w + 1 paces. While all of c connections are in use, each use takes c
//! paces. So if the limit includes the use, as `timeoutMS` and a caller's deadline do, the check-out needs w + 1 + c
//! paces. A quarter is added for what the estimate does not know. The check-out is refused if it has less time left.
//!
//! The margin was chosen by a simulation at 1.5 times the capacity, with limits of ten uses. Without it, all waiters are
//! served just before their limit, and with random times of use a third of the work was late. A larger margin
//! refuses check-outs of a short burst that could be served.
//!
//! | state of the pool | a check-out with a limit |
//! | --- | --- |
//! | no waiter in the queue | is never refused. So a server that has stalled is always tried again: once the waiters have reached their own limits, the next check-out joins. |
//! | it may open more connections | is never refused, and the pace begins anew, because it said nothing about a larger pool |
//! | the pace is unknown: fewer waiters were served than there are connections, or no check-out has asked for ten seconds | is never refused |
//! | no waiter is being served | sees the pace rise with the clock, until it falls again with the waiters that are served |
//! | paused or closed | fails for that reason |
//! | suspended | waits outside of the queue, and asks afterwards |
//!
//! An opener is not in the queue: it brings the connection that it takes.
//!
//! # Why the order stays first come, first served
//!
//! Serving the newest waiter first is the other remedy that is known. It keeps useful work as high as a refusal does,
//! but the waiters that it passes over fail only at their limit. At 0.95 of the capacity, where nothing need fail, it
//! makes some of the oldest late. And a newest waiter cannot be claimed with one swap of the list's word: its
//! ticket would leave a gap, which only the holder of the list's lock may make.

use std::sync::atomic::{AtomicU64 as StatisticU64, Ordering as StatisticOrdering};
use std::time::Duration;

use super::core::Core;
use super::environment::Environment;
use super::state::Phase;
use crate::pool::error::{TimeLimit, TooLate};
use crate::pool::sync::Mutex;

/// Measures how fast waiters are served. All its numbers are statistics: nothing is published by them, so all accesses
/// are relaxed.
#[derive(Default)]
pub(super) struct Pace {
    /// The clock that runs while a waiter is in the queue, in nanoseconds. While it runs, [`RUNS`](Self::RUNS) is set
    /// and the rest is the reading of the stopwatch at which the clock would have been at 0. Changes under the wait
    /// list's lock.
    clock: StatisticU64,
    /// The number of waiters that got a connection that was not opened for them.
    served: StatisticU64,
    /// The pace in nanoseconds, as the bits of an `f64`, or 0 if it is unknown.
    measured: StatisticU64,
    /// The reading of the stopwatch when the pace was measured.
    measured_at: StatisticU64,
    /// Two marks: the older one begins the measurement, and the newer one will replace it.
    marks: Mutex<[Mark; 2]>,
}

/// A reading of the clock and the number of check-outs served by then.
#[derive(Clone, Copy, Default)]
struct Mark {
    time: u64,
    served: u64,
}

impl Pace {
    const RUNS: u64 = 1 << 63;
    /// How many times each connection is used, on average, from one mark to the next.
    const USES: u64 = 8;
    /// The fewest waiters served from one mark to the next.
    const LEAST_SERVED: u64 = 32;
    /// The pace is measured once in this many nanoseconds, so that check-outs seldom meet at the lock.
    const MEASURED_EVERY: u64 = 1_000_000;
    /// If no check-out has asked for the pace for this many nanoseconds, it is forgotten.
    const KEPT_FOR: u64 = 10_000_000_000;
    /// What the estimate is multiplied by, because neither the pace nor the time of a use is constant.
    const MARGIN: f64 = 1.25;

    pub(super) fn count(&self) {
        self.served.fetch_add(1, StatisticOrdering::Relaxed);
    }

    /// Starts the clock, unless it is running. Called under the wait list's lock.
    fn start(&self, now: u64) {
        let time = self.clock.load(StatisticOrdering::Relaxed);
        if time & Self::RUNS == 0 {
            self.clock.store(Self::RUNS | now.saturating_sub(time), StatisticOrdering::Relaxed);
        }
    }

    /// Stops the clock. Called under the wait list's lock.
    fn stop(&self, now: u64) {
        self.clock.store(self.time(now), StatisticOrdering::Relaxed);
    }

    fn time(&self, now: u64) -> u64 {
        match self.clock.load(StatisticOrdering::Relaxed) {
            running if running & Self::RUNS != 0 => now.saturating_sub(running & !Self::RUNS),
            stopped => stopped,
        }
    }

    /// Returns the pace in nanoseconds, if it is known. `connections` is the number of connections that exist.
    fn nanos(&self, now: u64, connections: u32, may_grow: bool) -> Option<f64> {
        let before = self.measured_at.load(StatisticOrdering::Relaxed);
        let age = now.saturating_sub(before);
        let relaxed = StatisticOrdering::Relaxed;
        if age >= Self::MEASURED_EVERY && self.measured_at.compare_exchange(before, now, relaxed, relaxed).is_ok() {
            let pace = self.measure(now, connections.into(), may_grow || age >= Self::KEPT_FOR);
            self.measured.store(pace.to_bits(), relaxed);
        }
        let pace = f64::from_bits(self.measured.load(relaxed));
        (pace > 0.0 && !may_grow).then_some(pace)
    }

    fn measure(&self, now: u64, connections: u64, forget: bool) -> f64 {
        let mut marks = self.marks.lock();
        let here = Mark { time: self.time(now), served: self.served.load(StatisticOrdering::Relaxed) };
        let [older, newer] = &mut *marks;
        if forget {
            (*older, *newer) = (here, here);
        } else if here.served - newer.served >= Self::LEAST_SERVED.max(Self::USES * connections) {
            *older = std::mem::replace(newer, here);
        }
        let served = here.served - older.served;
        if served < connections { 0.0 } else { here.time.saturating_sub(older.time) as f64 / served as f64 }
    }
}

impl<E: Environment> Core<E> {
    /// Notes that a waiter is in the queue, for the pace. Called under the wait list's lock.
    pub(super) fn queue_begins(&self) {
        if let Some(pace) = &self.measures.pace {
            pace.start(self.environment.stopwatch());
        }
    }

    /// Notes that no waiter is in the queue. Called under the wait list's lock.
    pub(super) fn queue_ends(&self) {
        if let Some(pace) = &self.measures.pace {
            pace.stop(self.environment.stopwatch());
        }
    }

    /// Returns why a check-out that now joined the queue, with so much time left until `limit`, would be served too
    /// late, or `None` if it would not.
    ///
    /// Does not take the wait list's lock unless the check-out seems to be too late.
    pub fn too_late(&self, time_left: Duration, limit: TimeLimit) -> Option<TooLate> {
        let pace = self.measures.pace.as_ref()?;
        let joined = self.wait_list.span();
        if joined == 0 || self.state.load().phase != Phase::Ready {
            return None;
        }
        let total = self.capacity.load().total;
        let nanos = pace.nanos(self.environment.stopwatch(), total, total < self.limits().total)?;
        let uses = if limit.includes_use() { total } else { 0 };
        let estimated = |waiting: u32| {
            let served = f64::from(waiting) + 1.0 + f64::from(uses);
            Duration::from_nanos((served * nanos * Pace::MARGIN) as u64)
        };
        if estimated(joined) <= time_left {
            return None;
        }
        // Some may have left, which only the holder of the lock can tell.
        let waiting = self.wait_list.lock().waiting();
        let (estimated, pace) = (estimated(waiting), Duration::from_nanos(nanos as u64));
        (waiting > 0 && estimated > time_left).then_some(TooLate { limit, time_left, estimated, pace })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Serves this many waiters, one in each interval, to a queue that never ends.
    fn serve(pace: &Pace, now: &mut u64, waiters: u64, interval: u64) {
        for _ in 0..waiters {
            *now += interval;
            pace.count();
        }
    }

    #[test]
    fn pace_does_not_count_the_time_without_a_queue() {
        let (pace, mut now) = (Pace::default(), 5 * MS);
        pace.start(now);
        serve(&pace, &mut now, 3, 2 * MS);
        pace.start(now);
        serve(&pace, &mut now, 1, 2 * MS);
        pace.stop(now);
        pace.stop(now);
        now += 1_000 * MS;
        pace.start(now);
        serve(&pace, &mut now, 4, 2 * MS);
        assert_eq!(pace.nanos(now, 4, false), Some(2e6));
    }

    #[test]
    fn pace_is_unknown_until_as_many_waiters_were_served_as_there_are_connections() {
        let (pace, mut now) = (Pace::default(), 0);
        pace.start(now);
        serve(&pace, &mut now, 3, 2 * MS);
        assert_eq!(pace.nanos(now, 4, false), None);
        serve(&pace, &mut now, 1, 2 * MS);
        assert_eq!(pace.nanos(now, 4, false), Some(2e6));
        assert_eq!(pace.nanos(now, 4, true), None, "the pool may grow");
    }

    #[test]
    fn pace_follows_a_change_within_two_marks_and_rises_while_no_waiter_is_served() {
        let (pace, mut now) = (Pace::default(), 0);
        let ask = |now| pace.nanos(now, 4, false).unwrap();
        pace.start(now);
        for _ in 0..500 {
            serve(&pace, &mut now, 1, 2 * MS);
            pace.nanos(now, 4, false);
        }
        assert_eq!(ask(now), 2e6);
        let before = now;
        now += 1_000 * MS;
        assert!(ask(now) > 5.0 * 2e6, "a stall does not show: {}", ask(now));
        for _ in 0..2 * Pace::LEAST_SERVED {
            serve(&pace, &mut now, 1, MS);
            ask(now);
        }
        assert_eq!(ask(now), 1e6, "the stall still counts {} ms later", (now - before) / MS);
    }

    #[test]
    fn pace_that_is_not_asked_for_is_forgotten() {
        let (pace, mut now) = (Pace::default(), 0);
        pace.start(now);
        serve(&pace, &mut now, 4, 2 * MS);
        assert_eq!(pace.nanos(now, 4, false), Some(2e6));
        now += Pace::KEPT_FOR;
        assert_eq!(pace.nanos(now, 4, false), None);
        serve(&pace, &mut now, 4, 3 * MS);
        assert_eq!(pace.nanos(now, 4, false), Some(3e6));
    }

    #[test]
    fn pace_begins_anew_when_the_pool_may_grow() {
        let (pace, mut now) = (Pace::default(), 0);
        pace.start(now);
        serve(&pace, &mut now, 4, 2 * MS);
        assert_eq!(pace.nanos(now, 4, true), None);
        serve(&pace, &mut now, 3, MS);
        assert_eq!(pace.nanos(now, 4, false), None, "it says something about the smaller pool");
        serve(&pace, &mut now, 1, MS);
        assert_eq!(pace.nanos(now, 4, false), Some(1e6));
    }
}
