//! The metrics of pools in the text format of Prometheus.
//!
//! wharf's histograms are read as they are at each scrape, so nothing is lost, thinned out or counted twice.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use wharf::metrics::Histogram;
use wharf::telemetry::{METRICS, MetricKind, ReadingValue, readings};
use wharf::{Endpoint, Pool};

/// The upper bounds of the buckets, in seconds.
const BOUNDS: [f64; 17] =
    [5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Returns a registry with the metrics of pools, each with the label `pool`: its address.
pub fn registry(pools: Vec<Pool<Endpoint>>) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Pools(pools)));
    registry
}

/// Reads the metrics of all pools at each scrape.
#[derive(Debug)]
struct Pools(Vec<Pool<Endpoint>>);

impl Collector for Pools {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let all: Vec<_> = self.0.iter().map(Pool::metrics).collect();
        // All pools of one metric follow each other, as the format demands.
        for metric in METRICS {
            let kind = match metric.kind {
                MetricKind::Counter => MetricType::Counter,
                MetricKind::Histogram => MetricType::Histogram,
                _ => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for metrics in &all {
                for reading in readings(metrics).filter(|reading| reading.metric == metric) {
                    let mut labels = vec![("pool", &*metrics.address)];
                    labels.extend(reading.label);
                    let encoder = family.encode_family(&labels)?;
                    match (metric.kind, reading.value) {
                        (_, ReadingValue::Times(times)) => encode_times(encoder, times)?,
                        (MetricKind::Counter, ReadingValue::Number(number)) => encode_counter(encoder, number)?,
                        (_, ReadingValue::Number(number)) => encode_gauge(encoder, number)?,
                        (_, other) => unreachable!("a value of another kind: {other:?}"),
                    }
                }
            }
        }
        Ok(())
    }
}

fn encode_counter(mut encoder: MetricEncoder<'_>, number: u64) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, u64, u64>(&number, None)
}

fn encode_gauge(mut encoder: MetricEncoder<'_>, number: u64) -> fmt::Result {
    encoder.encode_gauge(&i64::try_from(number).unwrap_or(i64::MAX))
}

fn encode_times(mut encoder: MetricEncoder<'_>, times: &Histogram) -> fmt::Result {
    encoder.encode_histogram::<NoLabelSet>(times.sum().as_secs_f64(), times.count(), &buckets(times), None)
}

/// Sorts times into fewer buckets. A time is counted by its upper bound, which exceeds it by 6.25 % at most.
fn buckets(times: &Histogram) -> Vec<(f64, u64)> {
    let mut buckets: Vec<_> = BOUNDS.into_iter().chain([f64::INFINITY]).map(|bound| (bound, 0)).collect();
    for (longest, count) in times.buckets() {
        let longest = longest.as_secs_f64();
        let bucket = buckets.iter_mut().find(|(bound, _)| longest <= *bound);
        bucket.expect("the last bucket has no bound").1 += count;
    }
    buckets
}
