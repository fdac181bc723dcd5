//! A server that can restart, and whose credential can change. A restart breaks its connections without notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A simulated server. All accesses are SeqCst, because this bench does not time them.
#[derive(Debug)]
pub struct Server {
    restarts: AtomicU64,
    credential: AtomicU64,
    checks: AtomicU64,
    /// How long it takes to open a connection.
    opening: Duration,
}

/// A connection, with the state of the server when the connection was opened.
#[derive(Debug)]
pub struct Dummy {
    server: Arc<Server>,
    restarts: u64,
    pub credential: u64,
    /// Set by a task that finds the connection dead, for pools that check at check-in whether a connection is broken.
    pub broken: bool,
}

impl Server {
    pub fn new(opening: Duration) -> Self {
        Self { restarts: AtomicU64::new(0), credential: AtomicU64::new(0), checks: AtomicU64::new(0), opening }
    }

    pub async fn connect(self: &Arc<Self>) -> Dummy {
        let (restarts, credential) = (self.restarts.load(Ordering::SeqCst), self.credential.load(Ordering::SeqCst));
        if !self.opening.is_zero() {
            tokio::time::sleep(self.opening).await;
        }
        Dummy { server: self.clone(), restarts, credential, broken: false }
    }

    pub fn restart(&self) {
        self.restarts.fetch_add(1, Ordering::SeqCst);
    }

    /// Changes the credential of new connections, and returns it.
    pub fn change_credential(&self) -> u64 {
        self.credential.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Returns whether a connection works, without counting a check.
    pub fn knows(&self, dummy: &Dummy) -> bool {
        dummy.restarts == self.restarts.load(Ordering::SeqCst)
    }

    /// Returns the number of checks since the last call.
    pub fn checks(&self) -> u64 {
        self.checks.swap(0, Ordering::SeqCst)
    }
}

/// Asks the server whether the connection works.
pub fn is_alive(dummy: &Dummy) -> bool {
    dummy.server.checks.fetch_add(1, Ordering::SeqCst);
    dummy.server.knows(dummy)
}
