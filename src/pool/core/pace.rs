//! The pace of a pool: how fast it serves waiters.
//!
//! The *pace* is the mean time from one served waiter to the next. It is measured with a clock that runs only while a
//! waiter is in the queue, so periods without demand do not count. The pace is the time on this clock since a mark,
//! divided by the number of waiters that were served since the mark, each with a connection or a permit to open one.
//! Each connection has been used 8 to 16 times, on average, since the mark, so the pace adapts to a change in the load
//! within that many uses.
//!
//! A queue is not measured if it becomes empty before the pool has served as many waiters as it has connections.
//! Connections are often returned together, for example after a timer tick, and most of them then find no waiter. If
//! these queues were measured, the pool would seem slower than it is. But if no waiter was served at all, the queue's
//! time does count, because the pool may have stalled. A short queue that was served more than four times as fast as
//! the known pace counts as well: after a stall, all queues may be short, because check-outs that find a waiter are
//! refused.

use std::sync::atomic::{AtomicU64 as StatisticU64, Ordering as StatisticOrdering};

use crate::pool::sync::Mutex;

/// Measures how fast waiters are served. All its numbers are statistics that publish nothing, so all accesses are
/// relaxed.
#[derive(Default)]
pub(super) struct Pace {
    /// The clock that runs while a waiter is in the queue, in nanoseconds. While it runs, [`RUNS`](Self::RUNS) is set,
    /// and the other bits hold the stopwatch reading at which the clock would have shown 0. Changes under the wait
    /// list's lock.
    clock: StatisticU64,
    /// The number of waiters that have been served.
    served: StatisticU64,
    /// The time on the clock and the number of waiters served when the clock was last started.
    began: [StatisticU64; 2],
    /// The pace in nanoseconds, as the bits of an `f64`, or 0 if it is unknown.
    measured: StatisticU64,
    /// The reading of the stopwatch when the pace was measured.
    measured_at: StatisticU64,
    /// Two marks: the measurement begins at the older mark, which the newer mark will replace.
    marks: Mutex<[Mark; 2]>,
}

/// A reading of the clock, and the number of check-outs that had been served by that time.
#[derive(Clone, Copy, Default)]
struct Mark {
    time: u64,
    served: u64,
}

impl Pace {
    const RUNS: u64 = 1 << 63;
    /// How many times each connection is used, on average, from one mark to the next.
    const USES: u64 = 8;
    /// The minimum number of waiters served from one mark to the next.
    const LEAST_SERVED: u64 = 32;
    /// The minimum number of nanoseconds between two measurements of the pace, so that check-outs seldom contend for
    /// the lock.
    const MEASURED_EVERY: u64 = 1_000_000;
    /// The pace is forgotten if no check-out has asked for it for this many nanoseconds.
    const KEPT_FOR: u64 = 10_000_000_000;

    pub(super) fn count(&self) {
        self.served.fetch_add(1, StatisticOrdering::Relaxed);
    }

    /// Starts the clock, unless it is running. Called under the wait list's lock.
    pub(super) fn start(&self, now: u64) {
        let time = self.clock.load(StatisticOrdering::Relaxed);
        if time & Self::RUNS == 0 {
            let served = self.served.load(StatisticOrdering::Relaxed);
            self.began.iter().zip([time, served]).for_each(|(of, value)| of.store(value, StatisticOrdering::Relaxed));
            self.clock.store(Self::RUNS | now.saturating_sub(time), StatisticOrdering::Relaxed);
        }
    }

    /// Stops the clock, unless it has stopped. Called under the wait list's lock.
    pub(super) fn stop(&self, now: u64, connections: u32) {
        if self.clock.load(StatisticOrdering::Relaxed) & Self::RUNS == 0 {
            return;
        }
        let [time, before] = [0, 1].map(|of| self.began[of].load(StatisticOrdering::Relaxed));
        let served = self.served.load(StatisticOrdering::Relaxed).saturating_sub(before);
        let stopped = self.time(now);
        let known = f64::from_bits(self.measured.load(StatisticOrdering::Relaxed));
        let is_much_faster = 4.0 * (stopped.saturating_sub(time) as f64) < served as f64 * known;
        if (1..connections.into()).contains(&served) && !is_much_faster {
            self.served.fetch_sub(served, StatisticOrdering::Relaxed);
            self.clock.store(time, StatisticOrdering::Relaxed);
        } else {
            self.clock.store(stopped, StatisticOrdering::Relaxed);
        }
    }

    fn time(&self, now: u64) -> u64 {
        match self.clock.load(StatisticOrdering::Relaxed) {
            running if running & Self::RUNS != 0 => now.saturating_sub(running & !Self::RUNS),
            stopped => stopped,
        }
    }

    /// Returns the pace in nanoseconds, if it is known. `connections` is the number of connections that exist.
    pub(super) fn nanos(&self, now: u64, connections: u32, may_grow: bool) -> Option<f64> {
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
        } else if here.served.saturating_sub(newer.served) >= Self::LEAST_SERVED.max(Self::USES * connections) {
            *older = std::mem::replace(newer, here);
        }
        let served = here.served.saturating_sub(older.served);
        // A pool may have waiters but no connection, if its budget is used up.
        if served < connections.max(1) { 0.0 } else { here.time.saturating_sub(older.time) as f64 / served as f64 }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Serves this many waiters from a queue that never becomes empty, one waiter per interval.
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
        pace.stop(now, 4);
        pace.stop(now, 4);
        now += 1_000 * MS;
        pace.start(now);
        serve(&pace, &mut now, 4, 2 * MS);
        assert_eq!(pace.nanos(now, 4, false), Some(2e6));
    }

    #[test]
    fn short_queue_does_not_count_unless_no_waiter_was_served() {
        let (pace, mut now) = (Pace::default(), 0);
        pace.start(now);
        serve(&pace, &mut now, 8, 2 * MS);
        pace.stop(now, 4);
        for _ in 0..100 {
            now += MS;
            pace.start(now);
            serve(&pace, &mut now, 3, 5 * MS);
            pace.stop(now, 4);
        }
        assert_eq!(pace.nanos(now, 4, false), Some(2e6));
        pace.start(now);
        now += 24 * MS;
        pace.stop(now, 4);
        assert_eq!(pace.nanos(now, 4, false), Some(5e6));
    }

    #[test]
    fn pace_falls_after_a_stall_although_all_later_queues_are_short() {
        let (pace, mut now) = (Pace::default(), 0);
        pace.start(now);
        serve(&pace, &mut now, 200, MS);
        assert_eq!(pace.nanos(now, 10, false), Some(1e6));
        pace.stop(now, 10);
        pace.start(now);
        now += 5_000 * MS;
        pace.stop(now, 10);
        assert!(pace.nanos(now, 10, false) > Some(20e6), "the stall does not show");
        for _ in 0..1_000 {
            now += MS;
            pace.start(now);
            serve(&pace, &mut now, 1, MS);
            pace.nanos(now, 10, false);
            pace.stop(now, 10);
        }
        assert!(pace.nanos(now, 10, false) < Some(2e6), "{:?}", pace.nanos(now, 10, false));
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
