//! How serde sees a histogram.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Histogram;

/// A histogram in numbers. Times are in nanoseconds.
#[derive(Serialize, Deserialize)]
pub(super) struct Stored {
    count: u64,
    sum_ns: u64,
    max_ns: u64,
    /// The longest time of each bucket that is not empty, and how many times it has counted.
    buckets: Vec<(u64, u64)>,
}

impl From<Histogram> for Stored {
    fn from(histogram: Histogram) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            count: histogram.count(),
            sum_ns: nanos(histogram.sum()),
            max_ns: histogram.max().map_or(0, nanos),
            buckets: histogram.buckets().map(|(longest, times)| (nanos(longest), times)).collect(),
        }
    }
}

impl TryFrom<Stored> for Histogram {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        let Stored { count, sum_ns, max_ns, buckets } = stored;
        Self::of_parts(count, sum_ns, max_ns, &buckets)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Recorder;
    use super::*;

    #[test]
    fn histogram_comes_back_as_it_was() {
        let recorder = Recorder::default();
        for nanos in [1, 70, 70, 1_000_000, u64::MAX / 8] {
            recorder.record(nanos);
        }
        for histogram in [Histogram::default(), recorder.snapshot()] {
            let text = serde_json::to_string(&histogram).unwrap();
            assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), histogram, "{text}");
        }
    }

    #[test]
    fn histogram_that_does_not_add_up_is_refused() {
        let text = r#"{"count":2,"sum_ns":5,"max_ns":5,"buckets":[[5,1]]}"#;
        let error = serde_json::from_str::<Histogram>(text).unwrap_err();
        assert!(error.to_string().contains("do not add up"), "{error}");
    }
}
