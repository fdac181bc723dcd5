//! The time, as sessions use it.

use std::ops::Add;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// What moments are relative to: the first time that was asked for.
static ORIGIN: OnceLock<Instant> = OnceLock::new();

/// A point in time, in nanoseconds since this process first asked for one. They last for 584 years.
///
/// Each operation compares several of them, and a slot of the pool holds one. With an integer, both take an instruction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Returns the present.
    pub fn now() -> Self {
        let now = Instant::now();
        Self(nanos(now.saturating_duration_since(*ORIGIN.get_or_init(|| now))))
    }

    pub(super) fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(super) fn nanos(self) -> u64 {
        self.0
    }

    /// Returns whether at least this time has passed since an earlier moment.
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
    use super::*;

    #[test]
    fn moments_follow_the_clock() {
        let (before, first) = (Instant::now(), Moment::now());
        let second = Moment::now();
        let between = Duration::from_nanos(second.nanos() - first.nanos());
        assert!(second >= first && between <= before.elapsed());
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
