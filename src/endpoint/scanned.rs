//! Connections that serve checks of their server, too, where there is no monitor.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bson::RawDocumentBuf;

use super::Endpoint;

/// What an endpoint and the checks of its server tell each other.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    /// How long the last hello of a new connection took, in nanoseconds.
    hello_took: AtomicU64,
    /// Whether a connection to an arbiter is kept without authentication.
    allows_arbiter: AtomicBool,
    /// Whether a check opens a connection.
    is_checking: AtomicBool,
    /// The reply to the hello of the last connection that could not be authenticated.
    unauthenticated: Mutex<Option<RawDocumentBuf>>,
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

    /// Notes that a check opens a connection, until the value is dropped.
    pub(crate) fn begin_check(&self) -> Opening<'_> {
        // Relaxed: the thread that opens the connections reads it.
        self.is_checking.store(true, Ordering::Relaxed);
        Opening(self)
    }

    /// Returns whether a check opens a connection. The check then applies what becomes of it.
    pub(crate) fn is_checking(&self) -> bool {
        // Relaxed: the thread that opens the connections has written it.
        self.is_checking.load(Ordering::Relaxed)
    }

    fn unauthenticated(&self) -> MutexGuard<'_, Option<RawDocumentBuf>> {
        // Valid at any time.
        self.unauthenticated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the reply to the hello of a connection that could not be authenticated: a check needs no more.
    pub(super) fn keep_unauthenticated(&self, reply: RawDocumentBuf) {
        *self.unauthenticated() = Some(reply);
    }

    /// Takes the reply to the hello of the connection that could not be authenticated.
    pub(crate) fn take_unauthenticated(&self) -> Option<RawDocumentBuf> {
        self.unauthenticated().take()
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

/// A check opens a connection.
pub(crate) struct Opening<'s>(&'s Scanned);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        // Relaxed: the thread that opens the connections reads it.
        self.0.is_checking.store(false, Ordering::Relaxed);
    }
}

impl Endpoint {
    /// Returns what the checks of the server need, if the connections serve them.
    pub(crate) fn scanned(&self) -> Option<&Scanned> {
        self.scanned.as_deref()
    }
}
