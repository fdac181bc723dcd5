//! Panics in the code of whoever embeds the pool cost that code's own call, and no place in the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use wharf::{
    Clear, ConnectionClosedReason, Establish, EstablishError, Establishing, Pool, PoolEvent, PoolOptions, Stage,
};

/// Panics where it is told to, once each time.
#[derive(Clone, Default)]
struct Fragile {
    judge: Arc<AtomicBool>,
    close: Arc<AtomicBool>,
    refuse: Arc<AtomicBool>,
}

impl Establish for Fragile {
    type Connection = u64;

    async fn establish(&self, connecting: Establishing) -> Result<u64, EstablishError> {
        if self.refuse.swap(false, Ordering::Relaxed) {
            return Err(EstablishError::unlabelled(Stage::Hello, std::io::Error::other("refused")));
        }
        Ok(connecting.connection_id())
    }

    fn is_errored(&self, _connection: &u64) -> bool {
        assert!(!self.judge.swap(false, Ordering::Relaxed), "the judge was told to panic");
        false
    }

    fn close(&self, _connection: u64) {
        assert!(!self.close.swap(false, Ordering::Relaxed), "closing was told to panic");
    }
}

fn pool(fragile: &Fragile, options: PoolOptions) -> Pool<Fragile> {
    let pool = Pool::builder("here:1", fragile.clone())
        .options(options)
        .on_failure(|_| panic!("the sink always panics"))
        .build()
        .unwrap();
    pool.ready();
    pool
}

async fn ends(pool: Pool<Fragile>) {
    pool.close();
    tokio::time::timeout(Duration::from_secs(60), pool.closed()).await.expect("closed() hangs");
    assert_eq!(pool.status().total, 0);
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_judgement_panics_is_closed_as_errored() {
    let fragile = Fragile::default();
    let pool = pool(&fragile, PoolOptions::default().max_pool_size(1));
    let (reasons, mut seen) = tokio::sync::mpsc::unbounded_channel();
    pool.subscribe(move |event: &PoolEvent| {
        if let PoolEvent::ConnectionClosed { reason, .. } = event {
            reasons.send(*reason).unwrap();
        }
    });
    let connection = pool.check_out().await.unwrap();
    fragile.judge.store(true, Ordering::Relaxed);
    drop(connection);
    assert_eq!(seen.recv().await, Some(ConnectionClosedReason::Error));
    assert_eq!(pool.check_out().await.unwrap().id(), 2, "its place is free");
    ends(pool).await;
}

#[tokio::test(start_paused = true)]
async fn a_closing_that_panics_costs_neither_a_place_nor_the_background_task() {
    let fragile = Fragile::default();
    let pool = pool(&fragile, PoolOptions::default().min_pool_size(3));
    let full = async || {
        while pool.status().available < 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), full()).await.unwrap();
    fragile.close.store(true, Ordering::Relaxed);
    pool.clear(Clear::new()).unwrap();
    pool.ready();
    let renewed = async || {
        while pool.status().total != 3 || pool.status().available != 3 || fragile.close.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), renewed()).await.expect("the background task is gone");
    ends(pool).await;
}

#[tokio::test(start_paused = true)]
async fn a_failure_sink_that_panics_hides_no_error() {
    let fragile = Fragile::default();
    let pool = pool(&fragile, PoolOptions::default());
    fragile.refuse.store(true, Ordering::Relaxed);
    let error = pool.check_out().await.unwrap_err();
    assert_eq!(error.to_string(), "Connection 1 to here:1 could not be established: MongoDB handshake: refused");
    ends(pool).await;
}
