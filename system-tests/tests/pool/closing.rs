//! A connection counts towards the size of its pool until its close has completed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use wharf::{Condition, Establish, EstablishError, Establishing, Pool, PoolOptions};

use super::mock::{poll_once, settle};

/// Says goodbye on each connection that it closes, and waits until the goodbye is sent.
#[derive(Clone)]
struct Polite(Arc<Shared>);

struct Shared {
    goodbyes: Semaphore,
    alive: AtomicU32,
}

/// A connection that is never reusable.
struct Once(Arc<Shared>);

impl Drop for Once {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Polite {
    fn new() -> Self {
        Self(Arc::new(Shared { goodbyes: Semaphore::new(0), alive: AtomicU32::new(0) }))
    }

    fn alive(&self) -> u32 {
        self.0.alive.load(Ordering::SeqCst)
    }

    /// Returns a ready pool of one connection.
    fn pool(&self) -> Pool<Self> {
        let options = PoolOptions::default().max_pool_size(1);
        let pool = Pool::builder("polite", self.clone()).options(options).build().unwrap();
        pool.ready();
        pool
    }
}

impl Establish for Polite {
    type Connection = Once;

    async fn establish(&self, _: Establishing) -> Result<Once, EstablishError> {
        self.0.alive.fetch_add(1, Ordering::SeqCst);
        Ok(Once(self.0.clone()))
    }

    fn condition(&self, _: &mut Once) -> Condition {
        Condition::Broken
    }

    async fn close(&self, connection: Once) {
        connection.0.goodbyes.acquire().await.unwrap().forget();
    }
}

#[tokio::test(start_paused = true)]
async fn capacity_is_free_when_the_close_has_run() {
    let polite = Polite::new();
    let pool = polite.pool();
    drop(pool.check_out().await.unwrap());
    let mut next = Box::pin(pool.check_out());
    assert!(poll_once(next.as_mut()).await.is_none(), "the capacity is given away before the connection is closed");
    settle().await;
    assert_eq!((pool.status().total, pool.status().waiting, polite.alive()), (1, 1, 1));
    polite.0.goodbyes.add_permits(1);
    let _next = next.await.unwrap();
    assert_eq!((pool.status().in_use, polite.alive()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn closed_waits_for_the_close_of_the_last_connection() {
    let polite = Polite::new();
    let pool = polite.pool();
    let held = pool.check_out().await.unwrap();
    pool.close();
    let mut closed = Box::pin(pool.closed());
    drop(held);
    settle().await;
    assert!(poll_once(closed.as_mut()).await.is_none(), "a connection is alive");
    assert_eq!(polite.alive(), 1);
    polite.0.goodbyes.add_permits(1);
    closed.await;
    assert_eq!(polite.alive(), 0);
}

#[tokio::test(start_paused = true)]
async fn close_ends_after_five_seconds() {
    let polite = Polite::new();
    let pool = polite.pool();
    let held = pool.check_out().await.unwrap();
    pool.close();
    drop(held);
    let begun = Instant::now();
    pool.closed().await;
    assert_eq!((polite.alive(), begun.elapsed().as_secs()), (0, 5));
}

#[test]
fn connection_is_dropped_at_once_without_a_runtime() {
    let polite = Polite::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (pool, held) = runtime.block_on(async {
        let pool = polite.pool();
        let held = pool.check_out().await.unwrap();
        (pool, held)
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(held);
    assert_eq!((polite.alive(), pool.status().total), (0, 0));
}

/// The runtime shuts down while the close is waiting.
#[test]
fn close_ends_with_its_runtime() {
    let polite = Polite::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let pool = runtime.block_on(async {
        let pool = polite.pool();
        drop(pool.check_out().await.unwrap());
        pool
    });
    assert_eq!(polite.alive(), 1);
    drop(runtime);
    assert_eq!((polite.alive(), pool.status().total), (0, 0));
}
