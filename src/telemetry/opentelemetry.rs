//! The metrics of a pool or a client, through the OpenTelemetry API.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Histogram, Meter};

use super::differences::LastRead;
use super::source::{Continued, Metered, PoolName, PoolSnapshot, Series, Source};
use crate::pool::metrics::PoolMetrics;

/// The maximum number of times that one collection records into each histogram.
const MOST: u64 = 100_000;

/// Bucket bounds in seconds: the bounds that the conventions recommend for the duration of database operations, and one
/// smaller bound. The SDK's default bounds are meant for milliseconds.
const BOUNDS: [f64; 10] = [0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];

const POOL: &str = "db.client.connection.pool.name";
const SERVER_ADDRESS: &str = "server.address";
const SERVER_PORT: &str = "server.port";
const STATE: &str = "db.client.connection.state";
const OUTCOME: &str = "wharf.check_out.outcome";

/// Exports the metrics of a pool, or of all of a client's pools, through the OpenTelemetry API, until it is dropped.
///
/// The names come from the semantic conventions for database client connections (version 1.44, in which they all have
/// the status "development"). Each metric has the `db.client.connection.pool.name` attribute. The metrics of a client
/// also have the attributes `server.address` and `server.port` (no port for a Unix socket).
///
/// | | the pool's name | after [`register_as("shop", …)`](Self::register_as) |
/// | --- | --- | --- |
/// | a pool | the pool's address | `shop` |
/// | a client | the server's address | `shop/` and the server's address |
///
/// | metric | instrument | unit | value |
/// | --- | --- | --- | --- |
/// | `db.client.connection.count` | observable up-down counter | `{connection}` | connections by `db.client.connection.state`: `idle`, `used` (including connections that are being drained), and wharf's own `pending` |
/// | `db.client.connection.idle.max` | observable up-down counter | `{connection}` | `maxPoolSize`; none if there is no limit |
/// | `db.client.connection.idle.min` | observable up-down counter | `{connection}` | `minPoolSize` |
/// | `db.client.connection.max` | observable up-down counter | `{connection}` | `maxPoolSize`; none if there is no limit |
/// | `db.client.connection.pending_requests` | observable up-down counter | `{request}` | check-outs that wait in the queue |
/// | `db.client.connection.timeouts` | observable counter | `{timeout}` | check-outs that reached a time limit |
/// | `db.client.connection.create_time` | histogram | `s` | establishments that succeeded |
/// | `db.client.connection.wait_time` | histogram | `s` | check-outs that got a connection, but not at once |
/// | `db.client.connection.use_time` | histogram | `s` | a sample of the uses of connections, about one in 128; the count is the number of sampled uses |
/// | `wharf.pool.check_outs` | observable counter | `{check_out}` | check-outs that got a connection, by `wharf.check_out.outcome`: `hit`, `waited`, `opened` |
///
/// # How exact the histograms are
///
/// The pool has its own histograms, which OpenTelemetry instruments do not accept. So each collection records the times
/// since the last collection, each as a value within 3.2 % of the true time. If a histogram has more than 100,000 new
/// times, the collection records 100,000 of them in the same proportions. The exported count is then too low. Times
/// between the last collection and the end of the pool are not recorded.
///
/// Check-outs that find a connection immediately, in less than a microsecond, are not timed, so `wait_time` does not
/// contain them.
///
/// # The number of uses
///
/// The count of `use_time` is not the number of uses, which cannot be derived from it exactly. There are 64 to 190
/// other uses between two timed uses of a connection ([`PoolMetrics::use_time`]). The exact number is the sum of
/// `wharf.pool.check_outs` over its outcomes, because each check-out that gets a connection begins one use. That sum
/// also counts the uses in progress: at most as many as `db.client.connection.count` shows with the state `used`.
/// Likewise, the outcomes `waited` and `opened` give the exact number for `wait_time`.
///
/// # End
///
/// The registration does not keep the pool or the client open. It ends when this handle, or the last handle to the pool
/// or the client, is dropped. From then on, no instrument reports a value for the pool or the client. OpenTelemetry
/// cannot remove the callbacks, so a few words of memory remain for each registration.
///
/// Likewise, no observable instrument reports a value for a server that has left the client's deployment. If the server
/// comes back, its counters continue where they left off. OpenTelemetry cannot remove the series of a histogram, so the
/// histograms of such a server stay as they are.
///
/// # Cost
///
/// Between collections, a registration costs nothing. A collection takes one snapshot of each pool
/// ([`Pool::metrics`](crate::Pool::metrics)) for all instruments, on the thread that collects.
///
/// ```no_run
/// use opentelemetry::global;
/// use wharf::telemetry::OpenTelemetryMetrics;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = wharf::Client::from_uri("mongodb://localhost")?;
/// // After the application has set its meter provider.
/// let registration = OpenTelemetryMetrics::register(&client, &global::meter("shop"));
/// # drop(registration);
/// # Ok(())
/// # }
/// ```
#[must_use = "the metrics are exported until this handle is dropped"]
pub struct OpenTelemetryMetrics {
    /// The callbacks hold only weak references to this value.
    _exported: Arc<Exported>,
}

impl OpenTelemetryMetrics {
    /// Exports the metrics of a pool under its address, or the metrics of a client's pools under the servers'
    /// addresses.
    pub fn register(source: &impl Metered, meter: &Meter) -> Self {
        Self::export(None, source.source(), meter)
    }

    /// Exports the metrics of a pool or a client under a name, which must be unique in the application.
    pub fn register_as(name: impl Into<String>, source: &impl Metered, meter: &Meter) -> Self {
        Self::export(Some(name.into()), source.source(), meter)
    }

    fn export(name: Option<String>, source: Source, meter: &Meter) -> Self {
        let times = |name: &'static str, description: &'static str| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(description);
            histogram.with_boundaries(BOUNDS.to_vec()).build()
        };
        let exported = Arc::new(Exported {
            source,
            name,
            create_time: times("db.client.connection.create_time", "The time it took to create a new connection."),
            wait_time: times(
                "db.client.connection.wait_time",
                "The time it took to obtain an open connection from the pool.",
            ),
            use_time: times(
                "db.client.connection.use_time",
                "The time between borrowing a connection and returning it to the pool. A sample of about one use in \
                 128; the sum of wharf.pool.check_outs is the number of uses.",
            ),
            last: Mutex::default(),
        });
        observe_all(&exported, meter);
        Self { _exported: exported }
    }
}

impl fmt::Debug for OpenTelemetryMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenTelemetryMetrics").field("name", &self._exported.name).finish_non_exhaustive()
    }
}

/// Creates the observable instruments.
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
        |pool, observer| {
            let status = &pool.metrics.status;
            for (state, count) in [("idle", status.available), ("used", status.in_use), ("pending", status.pending)] {
                observer.observe(count.into(), &pool.attributes_and(KeyValue::new(STATE, state)));
            }
        },
    );
    gauge(
        1,
        "db.client.connection.idle.max",
        "{connection}",
        "The maximum number of idle open connections allowed.",
        observe_limit,
    );
    gauge(
        2,
        "db.client.connection.idle.min",
        "{connection}",
        "The minimum number of idle open connections allowed.",
        |pool, observer| observer.observe(pool.metrics.min_pool_size.into(), &pool.attributes),
    );
    gauge(
        3,
        "db.client.connection.max",
        "{connection}",
        "The maximum number of open connections allowed.",
        observe_limit,
    );
    gauge(
        4,
        "db.client.connection.pending_requests",
        "{request}",
        "The number of current pending requests for an open connection.",
        |pool, observer| observer.observe(pool.metrics.status.waiting.into(), &pool.attributes),
    );
    counter(
        5,
        "db.client.connection.timeouts",
        "{timeout}",
        "The number of connection timeouts that have occurred trying to obtain a connection from the pool.",
        |pool, observer| observer.observe(pool.timeouts, &pool.attributes),
    );
    counter(
        6,
        "wharf.pool.check_outs",
        "{check_out}",
        "The number of check-outs that got a connection, by how.",
        |pool, observer| {
            for (outcome, count) in pool.outcomes {
                observer.observe(count, &pool.attributes_and(KeyValue::new(OUTCOME, outcome)));
            }
        },
    );
}

/// Reports `maxPoolSize`, which is also the maximum number of idle connections. Reports nothing if there is no limit.
fn observe_limit(pool: &Observed, observer: &dyn AsyncInstrument<i64>) {
    if pool.metrics.status.max_pool_size > 0 {
        observer.observe(pool.metrics.status.max_pool_size.into(), &pool.attributes);
    }
}

/// Passes values from a snapshot to an instrument.
type Observe<T> = fn(&Observed, &dyn AsyncInstrument<T>);

fn callback<T: 'static>(
    exported: &Arc<Exported>,
    instrument: u32,
    observe: Observe<T>,
) -> impl Fn(&dyn AsyncInstrument<T>) + Send + Sync + 'static {
    let exported: Weak<Exported> = Arc::downgrade(exported);
    move |observer| {
        if let Some(exported) = exported.upgrade() {
            for pool in &*exported.pools_for(instrument) {
                observe(pool, observer);
            }
        }
    }
}

/// The state that one registration's callbacks share.
struct Exported {
    source: Source,
    /// The application's name for the pool or the client.
    name: Option<String>,
    create_time: Histogram<f64>,
    wait_time: Histogram<f64>,
    use_time: Histogram<f64>,
    last: Mutex<Last>,
}

/// The last collection, and its progress.
#[derive(Default)]
struct Last {
    pools: Option<Arc<[Observed]>>,
    /// The instruments that have read the pools, one bit each.
    seen: u32,
    series: Series<OfPool>,
}

/// A pool, as one collection sees it.
struct Observed {
    metrics: PoolMetrics,
    attributes: Vec<KeyValue>,
    timeouts: u64,
    outcomes: [(&'static str, u64); 3],
}

impl Observed {
    fn attributes_and(&self, another: KeyValue) -> Vec<KeyValue> {
        let mut attributes = self.attributes.clone();
        attributes.push(another);
        attributes
    }
}

/// The state kept for a pool between collections.
#[derive(Default)]
struct OfPool {
    timeouts: Continued,
    outcomes: [Continued; 3],
    create_time: LastRead,
    wait_time: LastRead,
    use_time: LastRead,
}

impl OfPool {
    /// Forgets the times recorded for a pool that no longer exists. Its counts are kept.
    fn forget_times(&mut self) {
        (self.create_time, self.wait_time, self.use_time) = Default::default();
    }
}

impl Exported {
    /// Returns the pools of the current collection. When an instrument calls this a second time, the next collection
    /// begins: new snapshots are taken, and their times are recorded.
    fn pools_for(&self, instrument: u32) -> Arc<[Observed]> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let Last { pools, seen, series } = &mut *last;
        let bit = 1 << instrument;
        if *seen & bit != 0 {
            *pools = None;
            *seen = 0;
        }
        *seen |= bit;
        pools.get_or_insert_with(|| self.collect(series)).clone()
    }

    fn collect(&self, series: &mut Series<OfPool>) -> Arc<[Observed]> {
        let snapshots = self.source.read().unwrap_or_default();
        series.leave(&snapshots, OfPool::forget_times);
        let observed = snapshots.into_iter().map(|snapshot| {
            let (kept, is_another) = series.present(&snapshot);
            self.observed(snapshot, kept, is_another)
        });
        observed.collect()
    }

    /// Records the times since the last snapshot, and returns the values for the observable instruments.
    fn observed(&self, snapshot: PoolSnapshot, kept: &mut OfPool, is_another: bool) -> Observed {
        let metrics = snapshot.metrics;
        if is_another {
            kept.forget_times();
        }
        let attributes = self.attributes(&metrics.address);
        let into = |histogram: &Histogram<f64>, seconds, times| {
            (0..times).for_each(|_| histogram.record(seconds, &attributes));
        };
        kept.create_time.take(&metrics.connections.establish_time, MOST, |seconds, times| {
            into(&self.create_time, seconds, times);
        });
        kept.wait_time.take(&metrics.check_outs.wait_time(), MOST, |seconds, times| {
            into(&self.wait_time, seconds, times);
        });
        kept.use_time.take(&metrics.use_time, MOST, |seconds, times| into(&self.use_time, seconds, times));

        let of = &metrics.check_outs;
        let timeouts = kept.timeouts.count(of.failed.timeout, is_another);
        let [hits, waited, opened] = &mut kept.outcomes;
        let outcomes = [
            ("hit", hits.count(of.hits, is_another)),
            ("waited", waited.count(of.waited.count(), is_another)),
            ("opened", opened.count(of.opened.count(), is_another)),
        ];
        Observed { attributes, timeouts, outcomes, metrics }
    }

    /// Returns the attributes of a pool.
    fn attributes(&self, address: &str) -> Vec<KeyValue> {
        let PoolName { name, server } = self.source.name(self.name.as_deref(), address);
        let mut attributes = vec![KeyValue::new(POOL, name)];
        if let Some((host, port)) = server {
            attributes.push(KeyValue::new(SERVER_ADDRESS, host.to_owned()));
            attributes.extend(port.map(|port| KeyValue::new(SERVER_PORT, i64::from(port))));
        }
        attributes
    }
}
