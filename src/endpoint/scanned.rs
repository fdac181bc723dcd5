//! Connections that serve checks of their server, too, where there is no monitor.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::Endpoint;

/// What an endpoint and the checks of its server tell each other.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    /// How long the last hello of a new connection took, in nanoseconds.
    hello_took: AtomicU64,
    /// Whether a connection to an arbiter is kept without authentication.
    allows_arbiter: AtomicBool,
}

impl Scanned {
    /// Returns how long the hello of the newest connection took.
    pub(crate) fn hello_took(&self) -> Duration {
        // Relaxed: a measured value, which publishes nothing.
        Duration::from_nanos(self.hello_took.load(Ordering::Relaxed))
    }

    pub(super) fn note_hello(&self, took: Duration) {
        // Relaxed: a measured value, which publishes nothing.
        self.hello_took.store(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Sets whether connections may be opened to a server that says that it is an arbiter, although it cannot
    /// authenticate them. Commands go there only if the server is the only one of the topology.
    pub(crate) fn allow_arbiter(&self, allowed: bool) {
        // Relaxed: the thread that opens the connections writes it.
        self.allows_arbiter.store(allowed, Ordering::Relaxed);
    }

    pub(super) fn allows_arbiter(&self) -> bool {
        // Relaxed: the thread that opens the connections has written it.
        self.allows_arbiter.load(Ordering::Relaxed)
    }
}

impl Endpoint {
    /// Returns what the checks of the server need, if the connections serve them.
    pub(crate) fn scanned(&self) -> Option<&Scanned> {
        self.scanned.as_deref()
    }
}
