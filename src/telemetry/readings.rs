//! A pool's metrics as a flat list with names, for exporters to monitoring systems.

use crate::pool::metrics::{Histogram, PoolMetrics};

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MetricKind {
    /// Goes up and down.
    Gauge,
    /// Starts at zero when the pool is created, and only grows.
    Counter,
    /// Times, sorted into buckets.
    Histogram,
}

/// A pool metric, as an exporter describes it.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// The metric's name in Prometheus style: words joined by underscores. The names of counters end in `_total`, and
    /// the names of times end in `_seconds`.
    pub name: &'static str,
    /// The kind of the metric.
    pub kind: MetricKind,
    /// The unit: `connections`, `check-outs`, `seconds` and so on.
    pub unit: &'static str,
    /// The name of the label that distinguishes the metric's readings, if there are several.
    pub label: Option<&'static str>,
    /// What the metric counts or measures, as a sentence.
    pub help: &'static str,
}

/// The value of a [`Reading`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum ReadingValue<'m> {
    /// The value of a gauge or a counter.
    Number(u64),
    /// The value of a histogram.
    Times(&'m Histogram),
}

/// One number or one histogram from a pool's metrics.
///
/// ```
/// use wharf::metrics::PoolMetrics;
/// use wharf::telemetry::{ReadingValue, readings};
///
/// /// Prints the numbers of a pool in the manner of Prometheus.
/// fn print(metrics: &PoolMetrics) {
///     for reading in readings(metrics) {
///         if let ReadingValue::Number(number) = reading.value {
///             let label = reading.label.map(|(name, value)| format!("{{{name}={value:?}}}")).unwrap_or_default();
///             println!("{}{label} {number}", reading.metric.name);
///         }
///     }
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Reading<'m> {
    /// The metric.
    pub metric: &'static Metric,
    /// The name and the value of the label, if the metric has one.
    pub label: Option<(&'static str, &'static str)>,
    /// The value.
    pub value: ReadingValue<'m>,
}

/// Returns all readings of a pool's metrics, in the order of [`METRICS`]. Readings of the same metric are adjacent.
///
/// An exporter adds a label that names the pool, and passes the readings on: see the [guide](crate::guide::metrics_and_traces#exporters).
pub fn readings(metrics: &PoolMetrics) -> impl Iterator<Item = Reading<'_>> {
    let values = values(metrics);
    debug_assert_eq!(values.len(), METRICS.len());
    METRICS.iter().zip(values).flat_map(|(metric, values)| {
        values.into_iter().map(move |(label, value)| {
            debug_assert_eq!(metric.label.is_some(), label.is_some(), "{}", metric.name);
            Reading { metric, label: metric.label.zip(label), value }
        })
    })
}

/// Defines the metrics and their values from one list.
macro_rules! metrics {
    ($metrics:ident; $($kind:ident $name:literal $unit:literal $([$label:literal])? $help:literal => $value:expr;)*) => {
        /// All metrics that [`readings`] returns.
        pub static METRICS: &[Metric] = &[$(
            Metric {
                name: $name,
                kind: MetricKind::$kind,
                unit: $unit,
                label: [$(Some($label),)? None][0],
                help: $help,
            },
        )*];

        fn values($metrics: &PoolMetrics) -> Vec<Vec<(Option<&'static str>, ReadingValue<'_>)>> {
            vec![$(metrics!(@value $value $(, $label)?),)*]
        }
    };
    (@value $value:expr) => { vec![(None, Value::from($value).0)] };
    (@value $value:expr, $label:literal) => {
        $value.into_iter().map(|(label, value)| (Some(label), Value::from(value).0)).collect()
    };
}

metrics! { m;
    Gauge "wharf_pool_connections" "connections" ["state"]
        "Connections that exist. State: in_use (checked out), draining (checked in, being drained), idle (available), \
         pending (being established), stale (to be closed)."
        => [
            ("in_use", m.status.in_use - m.status.draining.min(m.status.in_use)),
            ("draining", m.status.draining),
            ("idle", m.status.available),
            ("pending", m.status.pending),
            ("stale", m.status.stale),
        ];
    Gauge "wharf_pool_connections_max" "connections" "The maximum number of connections (maxPoolSize); 0 means no limit."
        => m.status.max_pool_size;
    Gauge "wharf_pool_connections_min" "connections" "The connections that the pool keeps open (minPoolSize)."
        => m.min_pool_size;
    Gauge "wharf_pool_waiting" "check-outs" "Check-outs that wait in the queue."
        => m.status.waiting;
    Gauge "wharf_pool_ready" "pools" "1 while the pool is ready, 0 while it is paused or closed."
        => u64::from(m.status.phase == crate::pool::core::Phase::Ready);
    Gauge "wharf_pool_accepts_writes" "pools"
        "1 while the pool is ready and its server accepts writes, as far as a client knows that; 0 otherwise."
        => u64::from(m.accepts_writes);
    Counter "wharf_pool_check_outs_total" "check-outs" ["outcome"]
        "Check-outs that got a connection. Outcome: hit (found one at once), waited (got one that came back), opened \
         (got one that was opened for them)."
        => [("hit", m.check_outs.hits), ("waited", m.check_outs.waited.count()), ("opened", m.check_outs.opened.count())];
    Counter "wharf_pool_check_outs_failed_total" "check-outs" ["reason"]
        "Check-outs that got no connection. Reason: timeout (reached a time limit), queue_full (refused: the queue was \
         too long), pool_closed, pool_cleared (the pool was cleared or paused), establish (no connection could be opened), \
         no_runtime (the pool's runtime had ended), cancelled (dropped by the caller)."
        => [
            ("timeout", m.check_outs.failed.timeout),
            ("queue_full", m.check_outs.failed.queue_full),
            ("pool_closed", m.check_outs.failed.pool_closed),
            ("pool_cleared", m.check_outs.failed.pool_cleared),
            ("establish", m.check_outs.failed.establish),
            ("no_runtime", m.check_outs.failed.no_runtime),
            ("cancelled", m.check_outs.failed.cancelled),
        ];
    Counter "wharf_pool_connections_created_total" "connections" "Connections that were created: their establishment began."
        => m.connections.created;
    Counter "wharf_pool_connections_closed_total" "connections" ["reason"]
        "Connections that were closed, by the reason in their event: stale (the pool was cleared or renewed, or no longer \
         wanted the connection), idle (idle or open for too long, or another pool of the budget needed the capacity), \
         error (failed while it was opened or used), pool_closed."
        => [
            ("stale", m.connections.closed.stale),
            ("idle", m.connections.closed.idle),
            ("error", m.connections.closed.error),
            ("pool_closed", m.connections.closed.pool_closed),
        ];
    Counter "wharf_pool_establishments_failed_total" "connections" ["stage"]
        "Establishments that failed, by the stage that failed: resolve, proxy, connect, tls, hello, authenticate."
        => m.connections.failed.named().map(|(stage, failed)| (stage, *failed));
    Counter "wharf_pool_establishments_given_up_total" "connections"
        "Establishments that were given up because the pool was closed or cleared, or because its runtime ended."
        => m.connections.given_up;
    Counter "wharf_pool_clears_total" "clears" "How often the pool was cleared while it was ready."
        => m.clears;
    Counter "wharf_pool_service_clears_total" "clears" "How often a service of the pool was cleared (load-balanced mode)."
        => m.service_clears;
    Counter "wharf_pool_interruptions_total" "connections" "Connections that were interrupted by a clear or a close."
        => m.interruptions;
    Counter "wharf_pool_retries_total" "commands" "Commands that took another connection, because the first one was lost."
        => m.retries;
    Counter "wharf_pool_drains_total" "connections" ["outcome"]
        "Drains that have ended, by the fate of the connection: reused, failed, displaced (closed because a check-out \
         needed its capacity), given_up (the pool was cleared or closed)."
        => [
            ("reused", m.drains.reused),
            ("failed", m.drains.failed),
            ("displaced", m.drains.displaced),
            ("given_up", m.drains.given_up),
        ];
    Histogram "wharf_pool_wait_seconds" "seconds" ["outcome"]
        "The duration of successful check-outs that found no connection at once. Each is timed. Outcome: waited, opened."
        => [("waited", &m.check_outs.waited), ("opened", &m.check_outs.opened)];
    Histogram "wharf_pool_use_seconds" "seconds"
        "How long connections were in use. Sampled: about one use in 128 is timed. The sum of wharf_pool_check_outs_total is \
         the number of uses."
        => &m.use_time;
    Histogram "wharf_pool_create_seconds" "seconds"
        "The duration of successful establishments. Each is timed."
        => &m.connections.establish_time;
    Histogram "wharf_pool_create_stage_seconds" "seconds" ["stage"]
        "The durations of the stages of establishment. Each is timed. Stage: resolve, proxy, connect, tls, hello, \
         authenticate."
        => m.connections.stage_times.named();
}

/// Converts integers of any width, and histograms.
struct Value<'m>(ReadingValue<'m>);

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self(ReadingValue::Number(number.into()))
    }
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self(ReadingValue::Number(number))
    }
}

impl<'m> From<&'m Histogram> for Value<'m> {
    fn from(times: &'m Histogram) -> Self {
        Self(ReadingValue::Times(times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guide_lists_every_metric() {
        let guide = include_str!("../guide/metrics_and_traces.md");
        for Metric { name, kind, unit, label, help } in METRICS {
            let kind = format!("{kind:?}").to_lowercase();
            let label = label.map(|label| format!("`{label}`")).unwrap_or_default();
            let row = format!("| `{name}` | {kind} | {unit} | {label} | {help} |");
            assert!(guide.contains(&row), "src/guide/metrics_and_traces.md lacks\n{row}");
        }
    }

    #[tokio::test]
    async fn help_names_every_value_of_the_label() {
        let pool = crate::Endpoint::new("localhost").unwrap().pool().build().unwrap();
        for Reading { metric, label, .. } in readings(&pool.metrics()) {
            let mut words = metric.help.split(|char| !matches!(char, 'a'..='z' | '_'));
            let mut is_named = |value| words.any(|word| word == value);
            assert!(label.is_none_or(|(_, value)| is_named(value)), "{}: {label:?}", metric.name);
        }
    }

    #[test]
    fn names_are_unique_and_end_as_prometheus_has_it() {
        for (index, metric) in METRICS.iter().enumerate() {
            assert!(METRICS[..index].iter().all(|other| other.name != metric.name), "{}", metric.name);
            assert_eq!(metric.name.ends_with("_total"), metric.kind == MetricKind::Counter, "{}", metric.name);
            let is_time = metric.kind == MetricKind::Histogram;
            assert_eq!(
                (metric.name.ends_with("_seconds"), metric.unit == "seconds"),
                (is_time, is_time),
                "{}",
                metric.name
            );
        }
    }
}
