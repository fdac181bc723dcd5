//! The round-trip times of one server's checks.

use std::collections::VecDeque;
use std::time::Duration;

/// The average and the minimum round-trip time of one server (Server Selection, "Calculation of Average Round Trip
/// Times"; Server Monitoring, "Measuring RTT").
///
/// When a server becomes unknown, start over with [`RoundTrips::default`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RoundTrips {
    average: Option<Duration>,
    /// The latest samples, oldest first.
    recent: VecDeque<Duration>,
}

impl RoundTrips {
    /// The weight of a new sample in the moving average.
    const ALPHA: f64 = 0.2;
    /// The number of samples that the minimum covers.
    const RECENT: usize = 10;

    /// Adds the duration of one hello.
    pub fn add(&mut self, sample: Duration) {
        self.average = Some(match self.average {
            None => sample,
            // Neither factor is negative, and the weights add up to 1, so the result is between the two durations.
            Some(average) => average.mul_f64(1.0 - Self::ALPHA) + sample.mul_f64(Self::ALPHA),
        });
        if self.recent.len() == Self::RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(sample);
    }

    /// Returns the exponentially weighted moving average; `None` before the first sample.
    #[must_use]
    pub fn average(&self) -> Option<Duration> {
        self.average
    }

    /// Returns the minimum of the last ten samples; zero if there are fewer than two, as the specification requires.
    #[must_use]
    pub fn minimum(&self) -> Duration {
        if self.recent.len() < 2 {
            return Duration::ZERO;
        }
        self.recent.iter().copied().min().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimum_covers_the_last_ten_samples() {
        let mut trips = RoundTrips::default();
        let sample = Duration::from_millis;
        trips.add(sample(1));
        assert_eq!(trips.minimum(), Duration::ZERO, "one sample is not enough");
        for milliseconds in [9, 8, 7, 6, 5, 6, 7, 8, 9] {
            trips.add(sample(milliseconds));
        }
        assert_eq!(trips.minimum(), sample(1));
        trips.add(sample(9));
        assert_eq!(trips.minimum(), sample(5), "the first sample has left the last ten");
    }

    #[test]
    fn first_sample_is_the_average() {
        let mut trips = RoundTrips::default();
        assert_eq!(trips.average(), None);
        trips.add(Duration::from_millis(10));
        assert_eq!(trips.average(), Some(Duration::from_millis(10)));
        trips.add(Duration::from_millis(20));
        assert_eq!(trips.average(), Some(Duration::from_millis(12)));
    }
}
