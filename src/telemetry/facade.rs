//! The metrics of a pool or a client, through the facade of the `metrics` crate.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{Label, Unit};

use super::differences::LastRead;
use super::readings::{METRICS, MetricKind, Reading, ReadingValue, readings};
use super::source::{Continued, Metered, PoolName, PoolSnapshot, Series, Source};

/// The maximum number of times that one call records into each histogram.
const MOST: u64 = 10_000;

/// Passes the metrics of a pool, or of all of a client's pools, to the `metrics` crate's recorder whenever
/// [`publish`](Self::publish) is called.
///
/// The names come from [`METRICS`]. Each metric has the `pool` label and the label of its [`Reading`]. The metrics of a
/// client also have the labels `server_address` and `server_port` (no port for a Unix socket).
///
/// | | `pool` | after [`named("shop")`](Self::named) |
/// | --- | --- | --- |
/// | a pool | the pool's address | `shop` |
/// | a client | the server's address | `shop/` and the server's address |
///
/// ```no_run
/// use wharf::telemetry::FacadeMetrics;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = wharf::Client::from_uri("mongodb://localhost")?;
/// // After the application has installed its recorder.
/// let metrics = FacadeMetrics::new(&client);
/// // At each scrape. A recorder that pushes needs a task instead, which ends with the client:
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
/// Gauges and counters are exact. The facade does not accept whole histograms, so each call records the times since the
/// last call, each as a value within 3.2 % of the true time. If a histogram has more than 10,000 new times, the call
/// records 10,000 of them in the same proportions. Only a sample of the uses is timed. `wharf_pool_check_outs_total`
/// gives the exact numbers: its sum is the number of uses that have begun, and its outcomes show how many check-outs
/// waited.
///
/// # A server that leaves
///
/// The facade cannot remove a series. When a server has left the client's deployment, its gauges are set to zero once,
/// and nothing more about it is passed on. A recorder that drops idle series, such as the Prometheus recorder, then
/// drops the server's series. If the server comes back, its counters continue where they left off.
///
/// A `FacadeMetrics` does not keep the pool or the client open. Clones are cheap, and share the record of what was
/// passed on: a time is recorded once, even if several clones publish.
#[derive(Clone)]
pub struct FacadeMetrics {
    source: Source,
    name: Option<String>,
    series: Arc<Mutex<Series<OfPool>>>,
}

/// The state kept for one pool, in the order of the readings.
#[derive(Default)]
struct OfPool {
    gauges: Vec<(&'static str, Vec<Label>)>,
    counters: Vec<Continued>,
    histograms: Vec<LastRead>,
}

impl FacadeMetrics {
    /// Describes the metrics to the recorder, and prepares the metrics of a pool or a client.
    pub fn new(source: &impl Metered) -> Self {
        describe();
        Self { source: source.source(), name: None, series: Arc::default() }
    }

    /// Sets the `pool` label of a pool, or the beginning of this label for each server of a client. From then on, this
    /// value shares nothing with its earlier clones, because its series have a different label.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { source: self.source, name: Some(name.into()), series: Arc::default() }
    }

    /// Passes the metrics to the recorder. Returns whether the pool or the client still exists. If it no longer exists,
    /// the call only sets its gauges to zero.
    ///
    /// This uses the calling thread's recorder, if there is one, and the global recorder otherwise. The first call
    /// passes on all times since the pools were built.
    pub fn publish(&self) -> bool {
        let read = self.source.read();
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshots = read.as_deref().unwrap_or_default();
        for snapshot in snapshots {
            let (kept, is_another) = series.present(snapshot);
            kept.publish(snapshot, &self.labels(&snapshot.metrics.address), is_another);
        }
        series.leave(snapshots, |kept| {
            for (name, labels) in kept.gauges.drain(..) {
                metrics::gauge!(name, labels).set(0.0);
            }
            kept.histograms.clear();
        });
        read.is_some()
    }

    /// Returns the labels of a pool.
    fn labels(&self, address: &str) -> Vec<Label> {
        let PoolName { name, server } = self.source.name(self.name.as_deref(), address);
        let mut labels = vec![Label::new("pool", name)];
        if let Some((host, port)) = server {
            labels.push(Label::new("server_address", host.to_owned()));
            labels.extend(port.map(|port| Label::new("server_port", port.to_string())));
        }
        labels
    }
}

impl OfPool {
    fn publish(&mut self, snapshot: &PoolSnapshot, of_pool: &[Label], is_another: bool) {
        if is_another {
            self.histograms.clear();
        }
        self.gauges.clear();
        let (mut counters, mut histograms) = (0, 0);
        for Reading { metric, label, value } in readings(&snapshot.metrics) {
            let mut labels = of_pool.to_vec();
            labels.extend(label.map(|(name, value)| Label::from_static_parts(name, value)));
            let name = metric.name;
            match (metric.kind, value) {
                (MetricKind::Counter, ReadingValue::Number(number)) => {
                    let number = nth(&mut self.counters, &mut counters).count(number, is_another);
                    metrics::counter!(name, labels).absolute(number);
                }
                (_, ReadingValue::Number(number)) => {
                    metrics::gauge!(name, labels.clone()).set(number as f64);
                    self.gauges.push((name, labels));
                }
                (_, ReadingValue::Times(times)) => {
                    let histogram = metrics::histogram!(name, labels);
                    nth(&mut self.histograms, &mut histograms).take(times, MOST, |seconds, count| {
                        histogram.record_many(seconds, usize::try_from(count).unwrap_or(usize::MAX));
                    });
                }
            }
        }
    }
}

/// Returns the next value, creating it if necessary.
fn nth<'k, T: Default>(kept: &'k mut Vec<T>, next: &mut usize) -> &'k mut T {
    let place = *next;
    *next += 1;
    if kept.len() == place {
        kept.push(T::default());
    }
    &mut kept[place]
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
