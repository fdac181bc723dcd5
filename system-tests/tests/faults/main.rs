//! A client under load while its servers or the network fail, or while its own process is stopped.
//!
//! Each test has a time limit, and checks afterwards that no task hangs, that no acknowledged write is lost, that no write
//! is executed twice, and that the pools' counts have recovered. It prints one line: how many operations failed, and how
//! long the longest stall was.
#![cfg(not(any(loom, shuttle)))]

#[path = "../client/events.rs"]
mod events;
mod load;
mod partition;
mod replica_set;
mod sockets;
mod standalone;
mod stopped;

use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};

/// Waits until no other test in this binary measures a rate, because they slow each other down. The other tests run
/// few operations, and do not wait.
async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

/// Runs a scenario, which must finish within its bound.
async fn within<T>(bound: Duration, scenario: impl Future<Output = T>) -> T {
    tokio::time::timeout(bound, scenario).await.unwrap_or_else(|_| panic!("not over within {bound:?}"))
}

/// Runs a blocking function.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}
