//! A pool's use of `tracing`: spans of waiting check-outs and of establishments, and warnings about slow check-outs.
//!
//! A check-out that finds a connection at once does not run any code in this file. If no `tracing` subscriber wants the
//! spans, a waiting check-out reads one static word, and no span is built.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::field::{Empty, display};
use tracing::level_filters::LevelFilter;
use tracing::{Instrument, Level, Span, debug_span, warn};

use super::check_out::Waiting;
use super::establish::Establish;
use super::opening::Acquired;
use super::pool::Pool;
use crate::pool::core::Environment;
use crate::pool::error::CheckOutError;
use crate::pool::runtime::boxed;
use crate::text::printable::PrintableError;

/// The target of spans and messages: the "connection" component of the logging specification.
pub(crate) const TARGET: &str = "wharf::connection";

/// The shortest time between two warnings from a pool.
const PACE: Duration = Duration::from_secs(1);

/// Returns whether a waiting check-out may need the span or the warning that [`observed`] adds.
#[inline]
pub(super) fn is_wanted<E: Establish>(pool: &Pool<E>) -> bool {
    LevelFilter::current() >= Level::DEBUG || pool.core.environment().slow_check_outs.is_some()
}

/// Adds a span and a warning to a wait, if they are wanted.
#[cold]
#[inline(never)]
pub(super) fn observed<'p, E: Establish>(pool: &'p Pool<E>, waiting: Waiting<'p, E>) -> Waiting<'p, E> {
    let span = debug_span!(target: TARGET, "check_out", address = pool.address(), connection_id = Empty, error = Empty);
    if span.is_disabled() && pool.core.environment().slow_check_outs.is_none() {
        return waiting;
    }
    Waiting::Otherwise { future: boxed(|| observe(pool, waiting, span)) }
}

async fn observe<'p, E: Establish>(pool: &'p Pool<E>, waiting: Waiting<'p, E>, span: Span) -> Acquired<E> {
    let mut timed = Timed { pool, since: pool.core.environment().stopwatch(), outcome: "cancelled" };
    let acquired = async {
        let mut waiting = pin!(waiting);
        poll_fn(|context| waiting.as_mut().poll_for(pool, context)).await
    };
    let acquired = acquired.instrument(span.clone()).await;
    match &acquired {
        Ok(idle) => {
            timed.outcome = "checked out";
            span.record("connection_id", idle.id());
        }
        Err(error) => {
            timed.outcome = "failed";
            span.record("error", display(PrintableError(error)));
        }
    }
    acquired
}

/// Returns the span of an establishment. `cause` is the span of the check-out that requested the connection. The cause
/// is not the parent, because an establishment may outlive the check-out.
pub(super) fn establishment(address: &str, connection_id: u64, in_background: bool, cause: Option<&Span>) -> Span {
    let span = debug_span!(
        target: TARGET,
        parent: None,
        "establish",
        address,
        connection_id,
        in_background,
        error = Empty
    );
    if let Some(cause) = cause {
        span.follows_from(cause);
    }
    span
}

pub(super) fn failed(span: &Span, error: &CheckOutError) {
    span.record("error", display(PrintableError(error)));
}

/// A waiting check-out. Dropping this value logs a warning if the check-out was slow.
struct Timed<'p, E: Establish> {
    pool: &'p Pool<E>,
    since: u64,
    outcome: &'static str,
}

impl<E: Establish> Drop for Timed<'_, E> {
    fn drop(&mut self) {
        let environment = self.pool.core.environment();
        let Some(slow) = &environment.slow_check_outs else { return };
        let now = environment.stopwatch();
        if let Some(suppressed) = slow.report(now.saturating_sub(self.since), now) {
            self.warn(slow, Duration::from_nanos(now.saturating_sub(self.since)), suppressed);
        }
    }
}

impl<E: Establish> Timed<'_, E> {
    #[cold]
    fn warn(&self, slow: &SlowCheckOuts, waited: Duration, suppressed: u64) {
        let status = self.pool.status();
        warn!(
            target: TARGET,
            address = self.pool.address(),
            outcome = self.outcome,
            waited_ms = waited.as_secs_f64() * 1e3,
            threshold_ms = slow.threshold().as_secs_f64() * 1e3,
            in_use = status.in_use,
            available = status.available,
            pending = status.pending,
            waiting = status.waiting,
            max = self.pool.options().max_pool_size,
            suppressed,
            "slow check-out"
        );
    }
}

/// Decides which slow check-outs are reported.
#[derive(Debug)]
pub(super) struct SlowCheckOuts {
    /// In nanoseconds.
    threshold: u64,
    /// When the next report is due, in nanoseconds of the environment's stopwatch.
    due: AtomicU64,
    /// The number of slow check-outs since the last report.
    suppressed: AtomicU64,
}

impl SlowCheckOuts {
    pub(super) fn new(threshold: Duration) -> Self {
        let threshold = u64::try_from(threshold.as_nanos()).unwrap_or(u64::MAX);
        Self { threshold, due: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    pub(super) fn threshold(&self) -> Duration {
        Duration::from_nanos(self.threshold)
    }

    /// Records a check-out that ends at `now` after waiting for `waited`, both in nanoseconds. If the check-out should
    /// be reported, returns how many slow check-outs have gone unreported since the last report.
    fn report(&self, waited: u64, now: u64) -> Option<u64> {
        if waited < self.threshold {
            return None;
        }
        let next = now.saturating_add(u64::try_from(PACE.as_nanos()).expect("the pace fits"));
        // Relaxed: `due` only decides which check-out reports, and the count is a statistic. Nothing is published.
        let due = self.due.load(Ordering::Relaxed);
        if now >= due && self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // Relaxed: as above.
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        // Relaxed: as above.
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn one_slow_check_out_a_second_is_reported_with_the_number_of_others() {
        let slow = SlowCheckOuts::new(Duration::from_nanos(100));
        assert_eq!(slow.report(99, 0), None);
        assert_eq!(slow.report(100, 5), Some(0));
        assert_eq!(slow.report(100, 6), None);
        assert_eq!(slow.report(99, 7), None);
        assert_eq!(slow.report(u64::MAX, SECOND + 4), None);
        assert_eq!(slow.report(100, SECOND + 5), Some(2));
        assert_eq!(slow.report(100, 3 * SECOND), Some(0));
    }

    #[test]
    fn each_slow_check_out_is_reported_or_counted_once() {
        const THREADS: u64 = 4;
        const EACH: u64 = 10_000;
        let slow = SlowCheckOuts::new(Duration::ZERO);
        let seen: u64 = std::thread::scope(|scope| {
            let report =
                || (0..EACH).filter_map(|now| slow.report(0, now * SECOND / 100)).map(|others| others + 1).sum();
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(report)).collect();
            threads.into_iter().map(|thread| -> u64 { thread.join().unwrap() }).sum()
        });
        // Relaxed: the threads have finished.
        assert_eq!(seen + slow.suppressed.load(Ordering::Relaxed), THREADS * EACH);
    }
}
