//! A pool's metrics through the facade of the crate `metrics`.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use metrics::{Label, SharedString, Unit};

use super::differences::LastRead;
use super::readings::{METRICS, MetricKind, ReadingValue, readings};
use crate::metrics::PoolMetrics;
use crate::runtime::{Establish, Pool};

/// How many times one call records at most into each histogram.
const MOST: u64 = 10_000;

/// Passes a pool's metrics to the recorder of the crate `metrics`, whenever [`publish`](Self::publish) is called.
///
/// The names are those of [`METRICS`]. Each has the label `pool`, which is the pool's address unless
/// [`named`](Self::named) sets it, and the label of its [`Reading`](super::Reading).
///
/// ```no_run
/// use wharf::telemetry::FacadeMetrics;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = wharf::Endpoint::new("localhost")?.pool().build()?;
/// // After the application has installed its recorder.
/// let metrics = FacadeMetrics::new(&pool);
/// // At each scrape. A recorder that pushes needs a task instead, which ends with the pool:
/// tokio::spawn(async move {
///     let mut interval = tokio::time::interval(std::time::Duration::from_secs(10));
///     while metrics.publish() {
///         interval.tick().await;
///     }
/// });
/// # Ok(())
/// # }
/// ```
///
/// # How exact it is
///
/// Gauges and counters are exact. The facade has no way to pass a histogram on as it is, so each call records the times
/// since the last call: each with a value that is 3.2 % from the true one or less. If there are more than 10,000 new
/// times in a histogram, it records 10,000 of them in the same proportions. The times of uses are a sample in any case.
/// `wharf_pool_check_outs` has the exact numbers: its sum that of the uses that have begun, and its outcomes those of the
/// check-outs that waited.
///
/// It does not keep the pool open.
pub struct FacadeMetrics {
    read: Box<dyn Fn() -> Option<PoolMetrics> + Send + Sync>,
    name: SharedString,
    /// One for each histogram, in the order of the readings.
    last: Mutex<Vec<LastRead>>,
}

impl FacadeMetrics {
    /// Describes the metrics to the recorder, and prepares those of a pool.
    pub fn new<E: Establish>(pool: &Pool<E>) -> Self {
        describe();
        let name = SharedString::from(pool.address().to_owned());
        Self { read: Box::new(pool.weak_metrics()), name, last: Mutex::default() }
    }

    /// Sets the value of the label `pool`.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = SharedString::from(name.into());
        self
    }

    /// Passes the metrics to the recorder. Returns whether the pool still exists; if not, nothing is passed.
    ///
    /// The recorder is the one of the calling thread, or else the global one. The first call passes all times since the
    /// pool was built.
    pub fn publish(&self) -> bool {
        let Some(metrics) = (self.read)() else { return false };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let mut histograms = 0;
        for reading in readings(&metrics) {
            let mut labels = vec![Label::new("pool", self.name.clone())];
            labels.extend(reading.label.map(|(name, value)| Label::from_static_parts(name, value)));
            let name = reading.metric.name;
            match (reading.metric.kind, reading.value) {
                (MetricKind::Counter, ReadingValue::Number(number)) => metrics::counter!(name, labels).absolute(number),
                (_, ReadingValue::Number(number)) => metrics::gauge!(name, labels).set(number as f64),
                (_, ReadingValue::Times(times)) => {
                    let histogram = metrics::histogram!(name, labels);
                    if last.len() == histograms {
                        last.push(LastRead::default());
                    }
                    last[histograms].take(times, MOST, |seconds, count| {
                        histogram.record_many(seconds, usize::try_from(count).unwrap_or(usize::MAX));
                    });
                    histograms += 1;
                }
            }
        }
        true
    }
}

fn describe() {
    for metric in METRICS {
        match metric.kind {
            MetricKind::Gauge => metrics::describe_gauge!(metric.name, Unit::Count, metric.help),
            MetricKind::Counter => metrics::describe_counter!(metric.name, Unit::Count, metric.help),
            MetricKind::Histogram => metrics::describe_histogram!(metric.name, Unit::Seconds, metric.help),
        }
    }
}

impl fmt::Debug for FacadeMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FacadeMetrics").field("name", &self.name).finish_non_exhaustive()
    }
}
