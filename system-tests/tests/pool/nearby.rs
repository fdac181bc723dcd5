//! A thread notes the shard that it used last (`src/pool/core/nearby.rs`). These tests use several pools on one thread, without
//! subscribers, so that check-outs and check-ins take the path that reads the note.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};

use wharf::{Condition, Connection, Establish, EstablishError, Establishing, Pool, PoolOptions};
use wharf_testbed::dice::Dice;

use super::mock::{Mock, builder, counts};

/// Returns a pool with one available connection.
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
        // Over three rounds, each pool's connection is checked in first, second and last.
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

/// The thread holds up to three connections at a time, and returns them in pseudo-random order. So it often returns a
/// connection while its note is about a different one at the same position in the stack.
#[tokio::test]
async fn no_connection_is_handed_out_while_it_is_held() {
    const MOST: u32 = 3;
    let pool = builder(&Mock::new([])).options(PoolOptions::default().max_pool_size(MOST)).build().unwrap();
    pool.ready();
    let mut held: Vec<Connection<Mock>> = Vec::new();
    let mut dice = Dice(1);
    for step in 0..10_000 {
        if held.is_empty() || held.len() < MOST as usize && dice.roll(2) == 0 {
            let new = pool.check_out().await.unwrap();
            assert!(held.iter().all(|held| held.id() != new.id()), "step {step}");
            held.push(new);
        } else {
            let one = dice.roll(held.len() as u64) as usize;
            drop(held.swap_remove(one));
        }
    }
    drop(held);
    assert_eq!(counts(&pool), (MOST, 0, MOST, 0, 0));
    assert_eq!(pool.metrics().connections.created, u64::from(MOST));
}

/// A new pool often reuses the memory of an earlier pool.
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

/// Uses another pool when the pool asks for a connection's condition.
#[derive(Clone, Default)]
struct UsesAnother(Arc<OnceLock<Pool<Mock>>>);

impl Establish for UsesAnother {
    type Connection = ();

    async fn establish(&self, _connecting: Establishing) -> Result<(), EstablishError> {
        Ok(())
    }

    fn condition(&self, (): &mut ()) -> Condition {
        if let Some(other) = self.0.get() {
            let used = pin!(other.check_out()).poll(&mut Context::from_waker(Waker::noop()));
            assert!(used.is_ready(), "the other pool's connection is idle");
        }
        Condition::Reusable
    }
}

/// In the middle of a check-in, the thread uses the other pool and notes it. Right after the check-in, it uses the
/// other pool again. In the round `ahead`, the shards of both pools then have the same head.
#[tokio::test]
async fn check_in_during_which_another_pool_is_used_reaches_its_own() {
    for ahead in 1..6 {
        let (uses, other) = (UsesAnother::default(), filled().await);
        let pool =
            Pool::builder("uses", uses.clone()).options(PoolOptions::default().max_pool_size(1)).build().unwrap();
        pool.ready();
        for _ in 0..ahead {
            drop(pool.check_out().await.unwrap());
        }
        assert!(uses.0.set(other.clone()).is_ok(), "set once");
        for round in 1..10 {
            drop(pool.check_out().await.unwrap());
            drop(other.check_out().await.unwrap());
            assert_eq!(counts(&other), (1, 0, 1, 0, 0), "{ahead} ahead, round {round}");
            let (own, others) = (pool.status(), other.metrics());
            assert_eq!((own.total, own.available), (1, 1), "{ahead} ahead, round {round}");
            assert_eq!((others.connections.created, others.check_outs.hits), (1, 2 * round), "{ahead} ahead");
        }
    }
}
