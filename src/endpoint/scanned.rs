//! Connections that also serve checks of their server, where there is no monitor.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bson::RawDocumentBuf;
use tokio::time::Instant;

use super::Endpoint;
use crate::endpoint::options::SHORTEST_HEARTBEAT;
use crate::pool::error::EstablishError;

/// The state that an endpoint shares with the checks of its server.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    /// How long the last hello of a new connection took, in nanoseconds.
    hello_took: AtomicU64,
    /// Whether a connection to an arbiter is kept without authentication.
    allows_arbiter: AtomicBool,
    /// Whether a check is opening a connection.
    is_checking: AtomicBool,
    /// The authentication that failed in the last check.
    failed: Mutex<Option<FailedAuthentication>>,
}

/// An authentication that failed in a check. The check itself succeeded with the reply to the hello. If the next
/// check-out from this server comes soon, it fails with the error instead of opening a connection.
#[derive(Debug)]
struct FailedAuthentication {
    /// `None` once the check has taken it.
    reply: Option<RawDocumentBuf>,
    error: EstablishError,
    /// When it failed, or when the scan ended.
    at: Instant,
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

    fn failed(&self) -> MutexGuard<'_, Option<FailedAuthentication>> {
        // Every value is valid.
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a check is opening a connection, until the returned value is dropped.
    pub(crate) fn begin_check(&self) -> Opening<'_> {
        *self.failed() = None;
        // Relaxed: the thread that opens the connections reads it.
        self.is_checking.store(true, Ordering::Relaxed);
        Opening(self)
    }

    /// Returns whether a check is opening a connection.
    pub(crate) fn is_checking(&self) -> bool {
        // Relaxed: the thread that opens the connections has written it.
        self.is_checking.load(Ordering::Relaxed)
    }

    /// Keeps an authentication failure in a check for the next check-out.
    pub(super) fn keep_failure(&self, reply: RawDocumentBuf, error: &EstablishError) {
        let failed = FailedAuthentication { reply: Some(reply), error: error.clone(), at: Instant::now() };
        *self.failed() = Some(failed);
    }

    /// Takes the hello reply of a check whose connection could not be authenticated.
    pub(crate) fn take_reply(&self) -> Option<RawDocumentBuf> {
        self.failed().as_mut()?.reply.take()
    }

    /// Records that a scan that began at this time has ended. Its operation will now check out its connection.
    pub(crate) fn scan_ended(&self, begun: Instant) {
        if let Some(failed) = self.failed().as_mut().filter(|failed| failed.at >= begun) {
            failed.at = Instant::now();
        }
    }

    /// Takes the failure that a check-out reports instead of opening a connection. It is not repeated before the server
    /// might be checked again.
    pub(super) fn take_failure(&self) -> Option<EstablishError> {
        let failed = self.failed().take()?;
        (failed.at.elapsed() < SHORTEST_HEARTBEAT).then_some(failed.error)
    }

    /// Sets whether connections may be opened to a server that claims to be an arbiter, although it cannot authenticate
    /// them. Commands go there only if the server is the only one in the topology.
    pub(crate) fn allow_arbiter(&self, allowed: bool) {
        // Relaxed: the thread that opens the connections writes it.
        self.allows_arbiter.store(allowed, Ordering::Relaxed);
    }

    pub(super) fn allows_arbiter(&self) -> bool {
        // Relaxed: the thread that opens the connections has written it.
        self.allows_arbiter.load(Ordering::Relaxed)
    }
}

/// A check is opening a connection.
pub(crate) struct Opening<'s>(&'s Scanned);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        // Relaxed: the thread that opens the connections reads it.
        self.0.is_checking.store(false, Ordering::Relaxed);
    }
}

impl Endpoint {
    /// Returns the state for checks of the server, if the connections serve them.
    pub(crate) fn scanned(&self) -> Option<&Scanned> {
        self.scanned.as_deref()
    }
}
