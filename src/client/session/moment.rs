//! Points in time for sessions.

use std::ops::Add;
use std::sync::OnceLock;
use std::time::Duration;

use crate::pool::runtime::Stopwatch;

/// The clock for all moments. The lifetimes of sessions are given in minutes, so the fast clock is precise enough.
/// Reading it takes a tenth as many instructions as reading the system clock.
static CLOCK: OnceLock<Stopwatch> = OnceLock::new();

/// A point in time, in nanoseconds since this process first requested a moment. The range is 584 years.
///
/// Each operation compares several moments, and each slot of the pool holds a moment. Because a moment is an integer,
/// comparing and storing it take one instruction each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Returns the current moment.
    pub fn now() -> Self {
        Self(CLOCK.get_or_init(Stopwatch::fast).read())
    }

    pub(super) fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(super) fn nanos(self) -> u64 {
        self.0
    }

    /// Returns whether at least this much time has passed since an earlier moment.
    pub(super) fn is_past(self, earlier: Self, time: Duration) -> bool {
        self.0.saturating_sub(earlier.0) >= nanos(time)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(nanos(time)))
    }
}

#[inline]
fn nanos(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1_000_000_000).saturating_add(time.subsec_nanos().into())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn moments_follow_the_clock() {
        let (before, first) = (Instant::now(), Moment::now());
        let inner = Instant::now();
        while inner.elapsed() < Duration::from_millis(10) {}
        let (least, second) = (inner.elapsed(), Moment::now());
        let between = Duration::from_nanos(second.nanos() - first.nanos());
        // Calibration leaves an error of less than a thousandth.
        let most = before.elapsed().mul_f64(1.001);
        assert!(least.mul_f64(0.999) <= between && between <= most, "{least:?} {between:?} {most:?}");
    }

    #[test]
    fn time_is_past_at_its_very_end() {
        let start = Moment::now();
        let second = Duration::from_secs(1);
        assert!((start + second).is_past(start, second));
        assert!(!(start + Duration::from_nanos(999_999_999)).is_past(start, second));
        assert!(!start.is_past(start + second, Duration::from_nanos(1)), "an earlier moment");
        assert_eq!(start + Duration::MAX, Moment::from_nanos(u64::MAX));
    }
}
