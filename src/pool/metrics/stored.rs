//! The serialized form of a histogram.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Histogram;

/// The numbers that make up a serialized histogram. Times are in nanoseconds.
#[derive(Serialize, Deserialize)]
pub(super) struct Stored {
    count: u64,
    sum_ns: u64,
    max_ns: u64,
    /// For each bucket that is not empty, the longest time that it covers and the number of measurements in it.
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
    use std::cell::Cell;

    use serde_json::Value;

    use super::super::*;
    use crate::pool::core::{Phase, PoolStatus};

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

    /// Returns metrics in which no two numbers are the same.
    fn metrics() -> PoolMetrics {
        let last = Cell::new(0_u32);
        let small = || last.replace(last.get() + 1) + 1;
        let next = || u64::from(small());
        let times = || {
            let recorder = Recorder::default();
            [next(), next()].into_iter().for_each(|nanos| recorder.record(nanos * 1_000));
            recorder.snapshot()
        };
        fn by_stage<T>(value: impl Fn() -> T) -> ByStage<T> {
            ByStage::<()>::default().map(|()| value())
        }
        PoolMetrics {
            address: "db.example.com:27018".into(),
            status: PoolStatus {
                phase: Phase::Closed,
                generation: next(),
                max_pool_size: small(),
                total: small(),
                pending: small(),
                available: small(),
                in_use: small(),
                draining: small(),
                stale: small(),
                waiting: small(),
                consistent: true,
            },
            accepts_writes: true,
            min_pool_size: small(),
            check_outs: CheckOutMetrics {
                hits: next(),
                waited: times(),
                opened: times(),
                failed: CheckOutFailures {
                    timeout: next(),
                    queue_full: next(),
                    pool_closed: next(),
                    pool_cleared: next(),
                    establish: next(),
                    no_runtime: next(),
                    cancelled: next(),
                },
            },
            use_time: times(),
            connections: ConnectionMetrics {
                created: next(),
                establish_time: times(),
                stage_times: by_stage(times),
                failed: by_stage(next),
                given_up: next(),
                closed: Closes { stale: next(), idle: next(), error: next(), pool_closed: next() },
            },
            drains: DrainMetrics { begun: next(), reused: next(), failed: next(), displaced: next(), given_up: next() },
            clears: next(),
            service_clears: next(),
            interruptions: next(),
            retries: next(),
        }
    }

    /// Returns the paths of all values in a JSON document that look like defaults.
    fn defaults(path: &str, value: &Value) -> Vec<String> {
        match value {
            Value::Object(fields) => {
                fields.iter().flat_map(|(name, value)| defaults(&format!("{path}.{name}"), value)).collect()
            }
            Value::Array(values) if !values.is_empty() => {
                values.iter().flat_map(|value| defaults(&format!("{path}[]"), value)).collect()
            }
            Value::Number(number) if number.as_u64() != Some(0) => Vec::new(),
            Value::String(text) if !text.is_empty() => Vec::new(),
            Value::Bool(true) => Vec::new(),
            _ => vec![path.to_owned()],
        }
    }

    #[test]
    fn metrics_come_back_as_they_were() {
        let metrics = metrics();
        let stored = serde_json::to_value(&metrics).unwrap();
        assert_eq!(defaults("", &stored), [""; 0], "these fields would not be missed");
        assert_eq!(serde_json::from_value::<PoolMetrics>(stored).unwrap(), metrics);
    }

    #[test]
    fn histogram_that_does_not_add_up_is_refused() {
        let text = r#"{"count":2,"sum_ns":5,"max_ns":5,"buckets":[[5,1]]}"#;
        let error = serde_json::from_str::<Histogram>(text).unwrap_err();
        assert!(error.to_string().contains("do not add up"), "{error}");
    }
}
