//! The source of exported metrics: a pool, or the pools of a client, which come and go.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::log::host_and_port;
use crate::pool::metrics::PoolMetrics;
use crate::pool::runtime::{Establish, Pool};

/// The object whose metrics an exporter passes on: a [`Pool`], or a client ([`wharf::Client`](crate::Client) or
/// [`single::Client`](crate::single::Client)) with the pools of all its servers.
///
/// The servers of a client come and go, and so do their series. An exporter begins to pass on the metrics of a server
/// once the client has discovered it, and stops once the server has left the deployment. If the server comes back, its
/// counters continue where they left off, although its new pool starts at zero.
pub trait Metered: sealed::Metered {}

impl<T: sealed::Metered> Metered for T {}

pub(crate) mod sealed {
    /// The sealed base of [`Metered`](super::Metered). The returned `Source` must not keep the pool or the client open.
    pub trait Metered {
        fn source(&self) -> super::Source;
    }
}

/// Reads the metrics that an exporter passes on.
#[derive(Clone)]
pub struct Source {
    read: Arc<Read>,
    /// Whether the pools belong to the servers of a client.
    has_servers: bool,
}

/// Returns the metrics of the existing pools, or `None` if no pool will ever exist again.
type Read = dyn Fn() -> Option<Vec<PoolSnapshot>> + Send + Sync;

/// The metrics of one pool, and its identity, because a server that leaves and comes back has a new pool at the same
/// address.
pub(crate) struct PoolSnapshot {
    pub(crate) pool: Weak<dyn Any + Send + Sync>,
    pub(crate) metrics: PoolMetrics,
}

impl<E: Establish> sealed::Metered for Pool<E> {
    fn source(&self) -> Source {
        let read = self.weak_metrics();
        // A single pool is never replaced by another pool at its address, so its identity does not matter.
        let pool: Weak<dyn Any + Send + Sync> = Weak::<()>::new();
        Source {
            read: Arc::new(move || Some(vec![PoolSnapshot { pool: pool.clone(), metrics: read()? }])),
            has_servers: false,
        }
    }
}

impl Source {
    /// Creates the source of a client.
    pub(crate) fn of_servers(read: impl Fn() -> Option<Vec<PoolSnapshot>> + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), has_servers: true }
    }

    pub(super) fn read(&self) -> Option<Vec<PoolSnapshot>> {
        (self.read)()
    }

    /// Returns the name of the pool at `address`, and its host and port if the pool belongs to a client's server.
    /// `given` is the application's name for the pool or the client.
    pub(super) fn name<'a>(&self, given: Option<&str>, address: &'a str) -> PoolName<'a> {
        let name = match given {
            Some(given) if self.has_servers => format!("{given}/{address}"),
            Some(given) => given.to_owned(),
            None => address.to_owned(),
        };
        PoolName { name, server: self.has_servers.then(|| host_and_port(address)) }
    }
}

/// The labels that distinguish a pool's series from other series.
pub(super) struct PoolName<'a> {
    pub(super) name: String,
    pub(super) server: Option<(&'a str, Option<u16>)>,
}

/// The state that an exporter keeps for each address.
///
/// The counts for servers that have left are kept, because the monitoring system expects counters never to fall. They
/// take about as much memory as the monitoring system uses for the series.
pub(super) struct Series<T>(BTreeMap<Arc<str>, Entry<T>>);

struct Entry<T> {
    pool: Weak<dyn Any + Send + Sync>,
    is_present: bool,
    kept: T,
}

impl<T> Default for Series<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Default> Series<T> {
    /// Notes that a pool is present. Returns the state kept for its address, and whether another pool had the address
    /// before.
    pub(super) fn present(&mut self, snapshot: &PoolSnapshot) -> (&mut T, bool) {
        let PoolSnapshot { pool, metrics } = snapshot;
        let entry = self.0.entry(metrics.address.clone()).or_insert_with(|| Entry {
            pool: pool.clone(),
            is_present: true,
            kept: T::default(),
        });
        let is_another = !Weak::ptr_eq(&entry.pool, pool);
        entry.pool = pool.clone();
        entry.is_present = true;
        (&mut entry.kept, is_another)
    }

    /// Calls `leave` for each address that was present last time but is not among `snapshots`.
    pub(super) fn leave(&mut self, snapshots: &[PoolSnapshot], mut leave: impl FnMut(&mut T)) {
        for (address, entry) in &mut self.0 {
            if entry.is_present && snapshots.iter().all(|snapshot| snapshot.metrics.address != *address) {
                entry.is_present = false;
                leave(&mut entry.kept);
            }
        }
    }
}

/// A counter that continues when a new pool starts counting from zero.
#[derive(Debug, Default)]
pub(super) struct Continued {
    /// The sum of the last counts of earlier pools.
    before: u64,
    last: u64,
}

impl Continued {
    pub(super) fn count(&mut self, now: u64, is_another: bool) -> u64 {
        if is_another {
            self.before += self.last;
        }
        self.last = now;
        self.before + now
    }
}
