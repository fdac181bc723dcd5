//! A pool's metrics through the API of OpenTelemetry.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Histogram, Meter};

use super::differences::LastRead;
use crate::metrics::PoolMetrics;
use crate::runtime::{Establish, Pool};

/// How many times one collection records at most into each histogram.
const MOST: u64 = 100_000;

/// Bounds of buckets in seconds: those that the conventions advise for the duration of database operations, and one
/// below. The SDK's own are meant for milliseconds.
const BOUNDS: [f64; 10] = [0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];

const POOL: &str = "db.client.connection.pool.name";
const STATE: &str = "db.client.connection.state";
const OUTCOME: &str = "wharf.check_out.outcome";

/// Exports a pool's metrics through the API of OpenTelemetry, until it is dropped.
///
/// The names are those of the semantic conventions for database client connections (version 1.44, where all of them
/// have the status "development"). Each has the attribute `db.client.connection.pool.name`, which is the pool's address
/// unless [`register_as`](Self::register_as) names it.
///
/// | metric | instrument | unit | value |
/// | --- | --- | --- | --- |
/// | `db.client.connection.count` | observable up-down counter | `{connection}` | connections by `db.client.connection.state`: `idle`, `used` (drained ones included), and wharf's own `pending` |
/// | `db.client.connection.idle.max` | observable up-down counter | `{connection}` | `maxPoolSize`; none if there is no limit |
/// | `db.client.connection.idle.min` | observable up-down counter | `{connection}` | `minPoolSize` |
/// | `db.client.connection.max` | observable up-down counter | `{connection}` | `maxPoolSize`; none if there is no limit |
/// | `db.client.connection.pending_requests` | observable up-down counter | `{request}` | check-outs that wait in the queue |
/// | `db.client.connection.timeouts` | observable counter | `{timeout}` | check-outs that reached a time limit |
/// | `db.client.connection.create_time` | histogram | `s` | establishments that succeeded |
/// | `db.client.connection.wait_time` | histogram | `s` | check-outs that did not find a connection at once and got one |
/// | `db.client.connection.use_time` | histogram | `s` | a sample of the uses of connections, about one in 64; the count is that of the sample |
/// | `wharf.pool.check_outs` | observable counter | `{check_out}` | check-outs that got a connection, by `wharf.check_out.outcome`: `hit`, `waited`, `opened` |
///
/// # How exact the histograms are
///
/// The pool has its own histograms, and OpenTelemetry has no instrument that would take them as they are. So each
/// collection records the times since the last one: each with a value that is 3.2 % from the true one or less. If there
/// are more than 100,000 new times in a histogram, it records 100,000 of them in the same proportions. Their number is
/// then too small. Times between the last collection and the end of the pool are not recorded.
///
/// Check-outs that find a connection at once are not timed, so `wait_time` does not contain them. They take less than a
/// microsecond.
///
/// # The number of uses
///
/// The count of `use_time` is not the number of uses, and cannot be made from it exactly: between two timed uses of a
/// connection lie 32 to 94 others ([`PoolMetrics::use_time`]). The exact number is the sum of `wharf.pool.check_outs` over
/// its outcomes, because each check-out that gets a connection begins one use. It counts the uses that have not ended, too:
/// at most as many as `db.client.connection.count` shows with the state `used`. In the same way, the outcomes `waited` and
/// `opened` have the exact number for `wait_time`.
///
/// # End
///
/// The registration does not keep the pool open. It ends when this handle or the pool's last handle is dropped: no
/// instrument has a value of this pool from then on. OpenTelemetry cannot remove the callbacks, so a few words of memory
/// remain for each registration.
///
/// # Cost
///
/// Nothing between collections. A collection takes one snapshot ([`Pool::metrics`]) for all instruments, on the thread
/// of the collection.
///
/// ```no_run
/// use opentelemetry::global;
/// use wharf::telemetry::OpenTelemetryMetrics;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = wharf::Endpoint::new("localhost")?.pool().build()?;
/// // After the application has set its meter provider.
/// let registration = OpenTelemetryMetrics::register(&pool, &global::meter("shop"));
/// # drop(registration);
/// # Ok(())
/// # }
/// ```
#[must_use = "the metrics are exported until this handle is dropped"]
pub struct OpenTelemetryMetrics {
    /// The callbacks hold it weakly.
    _exported: Arc<Exported>,
}

impl OpenTelemetryMetrics {
    /// Exports the metrics of a pool under its address.
    pub fn register<E: Establish>(pool: &Pool<E>, meter: &Meter) -> Self {
        Self::register_as(pool.address().to_owned(), pool, meter)
    }

    /// Exports the metrics of a pool under a name, which must be unique in the application.
    pub fn register_as<E: Establish>(name: impl Into<String>, pool: &Pool<E>, meter: &Meter) -> Self {
        let times = |name: &'static str, description: &'static str| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(description);
            histogram.with_boundaries(BOUNDS.to_vec()).build()
        };
        let exported = Arc::new(Exported {
            read: Box::new(pool.weak_metrics()),
            name: KeyValue::new(POOL, name.into()),
            create_time: times("db.client.connection.create_time", "The time it took to create a new connection."),
            wait_time: times(
                "db.client.connection.wait_time",
                "The time it took to obtain an open connection from the pool.",
            ),
            use_time: times(
                "db.client.connection.use_time",
                "The time between borrowing a connection and returning it to the pool. A sample of about one use in 64; \
                 the sum of wharf.pool.check_outs is the number of uses.",
            ),
            last: Mutex::default(),
        });
        observe_all(&exported, meter);
        Self { _exported: exported }
    }
}

impl fmt::Debug for OpenTelemetryMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenTelemetryMetrics").field("name", &self._exported.name.value).finish_non_exhaustive()
    }
}

/// Makes the observable instruments.
fn observe_all(exported: &Arc<Exported>, meter: &Meter) {
    let gauge = |instrument, name, unit, description, observe: Observe<i64>| {
        let instruments = meter.i64_observable_up_down_counter(name).with_unit(unit).with_description(description);
        instruments.with_callback(callback(exported, instrument, observe)).build();
    };
    let counter = |instrument, name, unit, description, observe: Observe<u64>| {
        let instruments = meter.u64_observable_counter(name).with_unit(unit).with_description(description);
        instruments.with_callback(callback(exported, instrument, observe)).build();
    };
    gauge(
        0,
        "db.client.connection.count",
        "{connection}",
        "The number of connections that are currently in state described by the state attribute.",
        |metrics, name, observer| {
            let status = &metrics.status;
            for (state, count) in [("idle", status.available), ("used", status.in_use), ("pending", status.pending)] {
                observer.observe(count.into(), &[name.clone(), KeyValue::new(STATE, state)]);
            }
        },
    );
    gauge(
        1,
        "db.client.connection.idle.max",
        "{connection}",
        "The maximum number of idle open connections allowed.",
        |metrics, name, observer| observe_limit(metrics, name, observer),
    );
    gauge(
        2,
        "db.client.connection.idle.min",
        "{connection}",
        "The minimum number of idle open connections allowed.",
        |metrics, name, observer| observer.observe(metrics.min_pool_size.into(), std::slice::from_ref(name)),
    );
    gauge(
        3,
        "db.client.connection.max",
        "{connection}",
        "The maximum number of open connections allowed.",
        |metrics, name, observer| observe_limit(metrics, name, observer),
    );
    gauge(
        4,
        "db.client.connection.pending_requests",
        "{request}",
        "The number of current pending requests for an open connection.",
        |metrics, name, observer| observer.observe(metrics.status.waiting.into(), std::slice::from_ref(name)),
    );
    counter(
        5,
        "db.client.connection.timeouts",
        "{timeout}",
        "The number of connection timeouts that have occurred trying to obtain a connection from the pool.",
        |metrics, name, observer| observer.observe(metrics.check_outs.failed.timeout, std::slice::from_ref(name)),
    );
    counter(
        6,
        "wharf.pool.check_outs",
        "{check_out}",
        "The number of check-outs that got a connection, by how.",
        |metrics, name, observer| {
            let of = &metrics.check_outs;
            let outcomes = [("hit", of.hits), ("waited", of.waited.count()), ("opened", of.opened.count())];
            for (outcome, count) in outcomes {
                observer.observe(count, &[name.clone(), KeyValue::new(OUTCOME, outcome)]);
            }
        },
    );
}

/// `maxPoolSize` is also the most idle connections. Without a limit there is no value.
fn observe_limit(metrics: &PoolMetrics, name: &KeyValue, observer: &dyn AsyncInstrument<i64>) {
    if metrics.status.max_pool_size > 0 {
        observer.observe(metrics.status.max_pool_size.into(), std::slice::from_ref(name));
    }
}

/// Passes values from a snapshot to an instrument.
type Observe<T> = fn(&PoolMetrics, &KeyValue, &dyn AsyncInstrument<T>);

fn callback<T: 'static>(
    exported: &Arc<Exported>,
    instrument: u32,
    observe: Observe<T>,
) -> impl Fn(&dyn AsyncInstrument<T>) + Send + Sync + 'static {
    let exported: Weak<Exported> = Arc::downgrade(exported);
    move |observer| {
        if let Some(exported) = exported.upgrade()
            && let Some(metrics) = exported.metrics_for(instrument)
        {
            observe(&metrics, &exported.name, observer);
        }
    }
}

/// What the callbacks of one registration share.
struct Exported {
    /// Returns a snapshot, or `None` once the pool is gone.
    read: Box<dyn Fn() -> Option<PoolMetrics> + Send + Sync>,
    name: KeyValue,
    create_time: Histogram<f64>,
    wait_time: Histogram<f64>,
    use_time: Histogram<f64>,
    last: Mutex<Last>,
}

/// The last snapshot, and how far it was recorded.
#[derive(Default)]
struct Last {
    metrics: Option<Arc<PoolMetrics>>,
    /// The instruments that have seen the snapshot, one bit each.
    seen: u32,
    create_time: LastRead,
    wait_time: LastRead,
    use_time: LastRead,
}

impl Exported {
    /// Returns the snapshot of the present collection. An instrument that asks for the second time begins the next
    /// collection: a new snapshot is taken, and its times are recorded.
    fn metrics_for(&self, instrument: u32) -> Option<Arc<PoolMetrics>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let bit = 1 << instrument;
        if last.metrics.is_none() || last.seen & bit != 0 {
            last.metrics = (self.read)().map(Arc::new);
            last.seen = 0;
            if let Some(metrics) = last.metrics.clone() {
                self.record(&mut last, &metrics);
            }
        }
        last.seen |= bit;
        last.metrics.clone()
    }

    /// Records the times since the last snapshot.
    fn record(&self, last: &mut Last, metrics: &PoolMetrics) {
        let name = std::slice::from_ref(&self.name);
        let into =
            |histogram: &Histogram<f64>, seconds, times| (0..times).for_each(|_| histogram.record(seconds, name));
        last.create_time.take(&metrics.connections.establish_time, MOST, |seconds, times| {
            into(&self.create_time, seconds, times);
        });
        last.wait_time.take(&metrics.check_outs.wait_time(), MOST, |seconds, times| {
            into(&self.wait_time, seconds, times);
        });
        last.use_time.take(&metrics.use_time, MOST, |seconds, times| into(&self.use_time, seconds, times));
    }
}
