//! A thread notes the shard that it used last (`src/pool/nearby.rs`). These tests use several pools on one thread, without
//! subscribers, so that check-outs and check-ins take the path that reads the note.

use wharf::{Pool, PoolOptions};

use super::mock::{Mock, builder, counts};

/// Returns a pool with one connection, which is available.
async fn filled() -> Pool<Mock> {
    let pool = builder(&Mock::new([])).options(PoolOptions::default().max_pool_size(1)).build().unwrap();
    pool.ready();
    drop(pool.check_out().await.unwrap());
    pool
}

#[tokio::test]
async fn connections_of_several_pools_come_back_to_their_own() {
    const ROUNDS: u64 = 1_000;
    let pools = [filled().await, filled().await, filled().await];
    for round in 0..ROUNDS {
        let mut held = Vec::new();
        for pool in &pools {
            held.push(pool.check_out().await.unwrap());
            assert_eq!(counts(pool), (1, 0, 0, 1, 0), "a connection that is in use");
        }
        // Each connection comes back first, second and last, after a check-out of each pool.
        held.rotate_left(round as usize % 3);
        drop(held);
        for pool in &pools {
            assert_eq!(counts(pool), (1, 0, 1, 0, 0), "a connection that came back");
        }
    }
    for pool in &pools {
        let metrics = pool.metrics();
        assert_eq!((metrics.connections.created, metrics.check_outs.hits), (1, ROUNDS));
    }
}

/// The memory of a pool is often that of the one before.
#[tokio::test]
async fn pool_is_not_mistaken_for_one_that_was_there_before() {
    for _ in 0..200 {
        let pool = filled().await;
        for _ in 0..3 {
            drop(pool.check_out().await.unwrap());
        }
        assert_eq!((pool.metrics().check_outs.hits, counts(&pool)), (3, (1, 0, 1, 0, 0)));
        pool.close();
        pool.closed().await;
        assert_eq!(counts(&pool), (0, 0, 0, 0, 0));
    }
}
