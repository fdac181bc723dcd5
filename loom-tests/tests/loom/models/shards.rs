//! Models with two shards; most other models have one. Operations on all shards must reach both.

use loom::thread;
use wharf::Clear;

use super::harness::model;
use super::world::*;

/// Checks a connection in on a shard.
fn check_in_on(shard: usize, lease: Leased) {
    prefer_shard(shard);
    check_in(lease);
}

/// Checks the connection in on each shard and takes it again with a hit. Asserts that no shard is flagged and that each
/// shard keeps the connection.
fn assert_each_shard_serves(pool: &std::sync::Arc<Pool>, mut lease: Leased) {
    for shard in 0..2 {
        check_in_on(shard, lease);
        lease = hit(pool).expect("no check-out waits, but the connection is not available");
    }
    check_in(lease);
}

#[test]
fn clear_during_returns_leaves_no_stale_connection_on_any_shard() {
    model("clear_during_returns_leaves_no_stale_connection_on_any_shard", Some(3), || {
        let pool = unheard(options(8, 2));
        let [first, second] = [(); 2].map(|()| leased(&pool));
        let returns = thread::spawn(move || {
            check_in_on(1, first);
            check_in_on(0, second);
        });
        pool.clear(Clear::new()).unwrap();
        pool.ready();
        returns.join().unwrap();
        for shard in 0..2 {
            prefer_shard(shard);
            assert!(hit(&pool).is_none(), "the hit took a connection of an older generation");
        }
        pool.maintain();
        assert_empty(&pool);
        wind_up(pool);
    });
}

#[test]
fn close_during_returns_empties_every_shard() {
    model("close_during_returns_empties_every_shard", Some(2), || {
        let pool = unheard(options(8, 2));
        let [first, second] = [(); 2].map(|()| leased(&pool));
        let returns = thread::spawn(move || {
            check_in_on(1, first);
            check_in_on(0, second);
        });
        pool.close();
        returns.join().unwrap();
        assert_empty(&pool);
        wind_up(pool);
    });
}

#[test]
fn cancelled_waiter_leaves_no_shard_flagged() {
    model("cancelled_waiter_leaves_no_shard_flagged", Some(3), || {
        let pool = unheard(options(8, 1));
        let lease = leased(&pool);
        let own = pending(&pool);
        let waits = queued(&pool);
        let cancels = thread::spawn(move || {
            prefer_shard(1);
            drop(waits);
        });
        check_in_on(1, lease);
        cancels.join().unwrap();
        let lease = hit(&pool).expect("no check-out waits, but the connection is not available");
        assert_each_shard_serves(&pool, lease);
        drop(own);
        wind_up(pool);
    });
}

#[test]
fn opener_is_served_from_every_shard_and_leaves_none_flagged() {
    model("opener_is_served_from_every_shard_and_leaves_none_flagged", Some(3), || {
        let pool = unheard(options(8, 1));
        let lease = leased(&pool);
        let own = pending(&pool);
        let returns = thread::spawn(move || check_in_on(1, lease));
        let idle = loom::future::block_on(pool.acquire_as_opener());
        returns.join().unwrap();
        assert_each_shard_serves(&pool, check_out(&pool, idle));
        drop(own);
        wind_up(pool);
    });
}

#[test]
fn opener_cancelled_during_a_clear_leaves_no_shard_flagged() {
    model("opener_cancelled_during_a_clear_leaves_no_shard_flagged", Some(3), || {
        let pool = unheard(options(8, 1));
        let lease = leased(&pool);
        let own = pending(&pool);
        let (opens, waits) = (opener(&pool), queued(&pool));
        let gives_up = thread::spawn(move || drop(opens));
        pool.clear(Clear::new()).unwrap();
        drop(loom::future::block_on(waits));
        gives_up.join().unwrap();
        drop(own);
        check_in_on(1, lease);
        pool.ready();
        let lease = leased(&pool);
        assert_each_shard_serves(&pool, lease);
        wind_up(pool);
    });
}

#[test]
fn check_out_that_queues_up_during_a_clear_leaves_no_shard_flagged() {
    model("check_out_that_queues_up_during_a_clear_leaves_no_shard_flagged", Some(2), || {
        let pool = unheard(options(8, 1));
        let lease = leased(&pool);
        let own = pending(&pool);
        let clears = thread::spawn({
            let pool = pool.clone();
            move || pool.clear(Clear::new()).unwrap()
        });
        drop(acquire(&pool));
        clears.join().unwrap();
        drop(own);
        check_in_on(1, lease);
        pool.ready();
        let lease = leased(&pool);
        assert_each_shard_serves(&pool, lease);
        wind_up(pool);
    });
}
