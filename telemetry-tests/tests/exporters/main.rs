//! The exporters, with the OpenTelemetry SDK and with a recorder for the `metrics` facade.
#![cfg(not(any(loom, shuttle)))]

mod clients;
mod prometheus;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{CounterFn, GaugeFn, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use wharf::telemetry::{FacadeMetrics, METRICS, MetricKind, OpenTelemetryMetrics};
use wharf::{Establish, EstablishError, Establishing, Pool, PoolOptions};

/// Opens dummy connections.
struct Plain;

impl Establish for Plain {
    type Connection = ();

    async fn establish(&self, _: Establishing) -> Result<(), EstablishError> {
        Ok(())
    }
}

fn pool_of(most: u32) -> Pool<Plain> {
    let options = PoolOptions::default().max_pool_size(most);
    let pool = Pool::builder("here:1", Plain).options(options).build().unwrap();
    pool.ready();
    pool
}

/// Runs one check-out that opens a connection, then `hits` check-outs that find it available, and one more that holds
/// it while the last check-out times out.
async fn use_it(pool: &Pool<Plain>, hits: u32) {
    for _ in 0..=hits {
        drop(pool.check_out().await.unwrap());
    }
    let _held = pool.check_out().await.unwrap();
    let soon = tokio::time::Instant::now() + Duration::from_millis(1);
    pool.check_out_until(soon).await.map(drop).unwrap_err();
}

/// A meter provider that stores its collections in memory.
struct Collecting {
    exporter: InMemoryMetricExporter,
    provider: SdkMeterProvider,
}

impl Collecting {
    fn new() -> Self {
        let exporter = InMemoryMetricExporter::default();
        // An interval longer than any test, so that only `collect` collects.
        let reader = PeriodicReader::builder(exporter.clone()).with_interval(Duration::from_secs(86_400)).build();
        Self { exporter, provider: SdkMeterProvider::builder().with_reader(reader).build() }
    }

    /// Collects once. Returns the values. The key of a value is its name, its unit and its attributes without the
    /// pool's name.
    fn collect(&self) -> BTreeMap<String, f64> {
        let found = self.collect_named().into_iter().map(|((pool, name), value)| {
            assert_eq!(pool, "here:1", "{name}");
            (name, value)
        });
        found.collect()
    }

    /// Collects once. Returns the values. The key of a value is the name of its pool, and its key in the result of
    /// `collect`.
    fn collect_named(&self) -> BTreeMap<(String, String), f64> {
        self.exporter.reset();
        self.provider.force_flush().unwrap();
        let collections = self.exporter.get_finished_metrics().unwrap();
        collections.last().map(values).unwrap_or_default()
    }
}

fn values(collected: &ResourceMetrics) -> BTreeMap<(String, String), f64> {
    let mut values = BTreeMap::new();
    let mut keep = |name: String, attributes: &mut dyn Iterator<Item = &opentelemetry::KeyValue>, value: f64| {
        let mut name = name;
        let mut pool = None;
        for attribute in attributes {
            match attribute.key.as_str() {
                "db.client.connection.pool.name" => pool = Some(attribute.value.to_string()),
                key => name = format!("{name} {key}={}", attribute.value),
            }
        }
        let pool = pool.unwrap_or_else(|| panic!("{name} has no name of a pool"));
        assert!(values.insert((pool, name), value).is_none());
    };
    for metric in collected.scope_metrics().flat_map(|scope| scope.metrics()) {
        let name = format!("{} {}", metric.name(), metric.unit());
        match metric.data() {
            AggregatedMetrics::I64(MetricData::Sum(sum)) => {
                assert!(!sum.is_monotonic(), "{name}");
                sum.data_points().for_each(|point| keep(name.clone(), &mut point.attributes(), point.value() as f64));
            }
            AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                assert!(sum.is_monotonic(), "{name}");
                sum.data_points().for_each(|point| keep(name.clone(), &mut point.attributes(), point.value() as f64));
            }
            AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
                for point in histogram.data_points() {
                    keep(format!("{name} count"), &mut point.attributes(), point.count() as f64);
                    keep(format!("{name} sum"), &mut point.attributes(), point.sum());
                }
            }
            other => panic!("{name} is {other:?}"),
        }
    }
    values
}

#[tokio::test]
async fn metrics_have_the_names_units_and_states_of_the_conventions() {
    let collecting = Collecting::new();
    let pool = pool_of(1);
    let registration = OpenTelemetryMetrics::register(&pool, &collecting.provider.meter("test"));
    use_it(&pool, 5).await;
    let _held = pool.check_out().await.unwrap();
    let mut waits = pin!(pool.check_out());
    std::future::poll_fn(|context| {
        assert!(std::future::Future::poll(waits.as_mut(), context).is_pending());
        std::task::Poll::Ready(())
    })
    .await;

    let mut found = collecting.collect();
    let sum = found.remove("db.client.connection.wait_time s sum").unwrap();
    let truth = pool.metrics().check_outs.wait_time().sum().as_secs_f64();
    assert!((sum / truth - 1.0).abs() <= 0.032, "{sum} instead of {truth}");
    for name in ["create", "use"] {
        assert!(found.remove(&format!("db.client.connection.{name}_time s sum")).is_some(), "{found:?}");
    }
    let used = found.remove("db.client.connection.use_time s count").unwrap();
    assert_eq!(used, pool.metrics().use_time.count() as f64);
    assert!(used >= 1.0, "the first use is timed");
    let expected = [
        ("db.client.connection.count {connection} db.client.connection.state=idle", 0.0),
        ("db.client.connection.count {connection} db.client.connection.state=pending", 0.0),
        ("db.client.connection.count {connection} db.client.connection.state=used", 1.0),
        ("db.client.connection.create_time s count", 1.0),
        ("db.client.connection.idle.max {connection}", 1.0),
        ("db.client.connection.idle.min {connection}", 0.0),
        ("db.client.connection.max {connection}", 1.0),
        ("db.client.connection.pending_requests {request}", 1.0),
        ("db.client.connection.timeouts {timeout}", 1.0),
        ("db.client.connection.wait_time s count", 1.0),
        ("wharf.pool.check_outs {check_out} wharf.check_out.outcome=hit", 7.0),
        ("wharf.pool.check_outs {check_out} wharf.check_out.outcome=opened", 1.0),
        ("wharf.pool.check_outs {check_out} wharf.check_out.outcome=waited", 0.0),
    ];
    assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value)).into());
    drop(registration);
}

#[tokio::test]
async fn each_collection_has_new_numbers_and_records_each_time_once() {
    let collecting = Collecting::new();
    let pool = pool_of(1);
    let _registration = OpenTelemetryMetrics::register(&pool, &collecting.provider.meter("test"));
    let hits = "wharf.pool.check_outs {check_out} wharf.check_out.outcome=hit";
    let waits = "db.client.connection.wait_time s count";
    use_it(&pool, 1).await;
    for expected in [2.0, 3.0] {
        let found = collecting.collect();
        assert_eq!((found[hits], found[waits]), (expected, 1.0));
        drop(pool.check_out().await.unwrap());
    }
}

#[tokio::test]
async fn values_end_with_the_registration_and_with_the_pool() {
    let is_observed = |found: BTreeMap<String, f64>| found.contains_key("db.client.connection.max {connection}");
    let collecting = Collecting::new();
    let pool = pool_of(1);
    let registration = OpenTelemetryMetrics::register(&pool, &collecting.provider.meter("test"));
    assert!(is_observed(collecting.collect()));
    drop(registration);
    assert!(!is_observed(collecting.collect()));

    let collecting = Collecting::new();
    let _registration = OpenTelemetryMetrics::register(&pool, &collecting.provider.meter("test"));
    assert!(is_observed(collecting.collect()));
    let closed = Arc::new(Mutex::new(false));
    pool.subscribe({
        let closed = closed.clone();
        move |event: &wharf::PoolEvent| *closed.lock().unwrap() |= event.name() == "PoolClosed"
    });
    drop(pool);
    assert!(*closed.lock().unwrap(), "the registration keeps the pool open");
    assert!(!is_observed(collecting.collect()));
}

#[tokio::test]
async fn pool_without_a_limit_has_no_maximum() {
    let collecting = Collecting::new();
    let pool = pool_of(0);
    let _registration = OpenTelemetryMetrics::register(&pool, &collecting.provider.meter("test"));
    let found = collecting.collect();
    assert!(!found.keys().any(|name| name.contains(".max")), "{found:?}");
}

type Described = (MetricKind, Option<Unit>);

/// A facade recorder that keeps what it is given.
#[derive(Clone, Default)]
struct Kept {
    values: Arc<Mutex<BTreeMap<String, (f64, usize)>>>,
    described: Arc<Mutex<BTreeMap<String, Described>>>,
}

struct Value(Kept, String);

impl Value {
    fn of(kept: &Kept, key: &Key) -> Arc<Self> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Self(kept.clone(), format!("{} {}", key.name(), labels.join(" "))))
    }

    fn set(&self, to: f64) {
        self.0.values.lock().unwrap().insert(self.1.clone(), (to, 1));
    }
}

impl CounterFn for Value {
    fn increment(&self, _: u64) {
        panic!("{} is set, not incremented", self.1);
    }
    fn absolute(&self, value: u64) {
        self.set(value as f64);
    }
}

impl GaugeFn for Value {
    fn increment(&self, _: f64) {
        panic!("{} is set, not incremented", self.1);
    }
    fn decrement(&self, _: f64) {
        panic!("{} is set, not decremented", self.1);
    }
    fn set(&self, value: f64) {
        Value::set(self, value);
    }
}

impl HistogramFn for Value {
    fn record(&self, value: f64) {
        let mut values = self.0.values.lock().unwrap();
        let (sum, count) = values.entry(self.1.clone()).or_default();
        *sum += value;
        *count += 1;
    }
}

impl Recorder for Kept {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().insert(key.as_str().to_owned(), (MetricKind::Counter, unit));
    }
    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().insert(key.as_str().to_owned(), (MetricKind::Gauge, unit));
    }
    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.described.lock().unwrap().insert(key.as_str().to_owned(), (MetricKind::Histogram, unit));
    }
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> metrics::Counter {
        metrics::Counter::from_arc(Value::of(self, key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> metrics::Gauge {
        metrics::Gauge::from_arc(Value::of(self, key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> metrics::Histogram {
        metrics::Histogram::from_arc(Value::of(self, key))
    }
}

#[tokio::test]
async fn facade_gets_every_metric_with_its_description() {
    let kept = Kept::default();
    let pool = pool_of(1);
    let facade = metrics::with_local_recorder(&kept, || FacadeMetrics::new(&pool).named("orders"));
    use_it(&pool, 5).await;
    for _ in 0..2 {
        assert!(metrics::with_local_recorder(&kept, || facade.publish()));
    }
    let values = kept.values.lock().unwrap();
    let expected = [
        ("wharf_pool_connections pool=orders state=idle", 1.0),
        ("wharf_pool_connections_max pool=orders", 1.0),
        ("wharf_pool_check_outs_total pool=orders outcome=hit", 6.0),
        ("wharf_pool_check_outs_failed_total pool=orders reason=timeout", 1.0),
        ("wharf_pool_connections_created_total pool=orders", 1.0),
    ];
    for (name, value) in expected {
        assert_eq!(values.get(name), Some(&(value, 1)), "{name} of {values:?}");
    }
    // Only one time was measured, and the two calls recorded it only once.
    assert_eq!(values["wharf_pool_wait_seconds pool=orders outcome=opened"].1, 1);
    let described = kept.described.lock().unwrap();
    for metric in METRICS {
        let unit = if metric.kind == MetricKind::Histogram { Unit::Seconds } else { Unit::Count };
        assert_eq!(described[metric.name], (metric.kind, Some(unit)), "{}", metric.name);
    }
    assert!(values.keys().all(|key| described.contains_key(key.split(' ').next().unwrap())), "{values:?}");
}

#[tokio::test]
async fn clones_of_a_facade_record_each_time_once() {
    let kept = Kept::default();
    let pool = pool_of(1);
    let facade = FacadeMetrics::new(&pool);
    use_it(&pool, 1).await;
    for publisher in [facade.clone(), facade.clone(), facade] {
        assert!(metrics::with_local_recorder(&kept, || publisher.publish()));
    }
    assert_eq!(kept.values.lock().unwrap()["wharf_pool_wait_seconds pool=here:1 outcome=opened"].1, 1);
}

#[tokio::test]
async fn facade_ends_with_the_pool() {
    let kept = Kept::default();
    let pool = pool_of(1);
    let facade = FacadeMetrics::new(&pool);
    drop(pool);
    assert!(!metrics::with_local_recorder(&kept, || facade.publish()));
    assert!(kept.values.lock().unwrap().is_empty());
}
