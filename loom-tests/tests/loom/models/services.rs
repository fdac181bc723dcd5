//! Load-balanced mode: what the clear of one service reaches, and what the background run does to the others.

use bson::oid::ObjectId;
use loom::thread;
use wharf::{Clear, ConnectionClosedReason, PoolEvent, PoolOptions};

use super::harness::model;
use super::world::*;

const CLEARED: ObjectId = ObjectId::from_bytes([1; 12]);
const KEPT: ObjectId = ObjectId::from_bytes([2; 12]);

fn load_balanced(max_pool_size: u32) -> PoolOptions {
    options(max_pool_size, 1).load_balanced(true)
}

/// A connection to a service, opened and checked out.
fn leased_of(pool: &std::sync::Arc<Pool>, service: ObjectId) -> Leased {
    let pending = pending(pool);
    pending.identify(service);
    let (idle, opening) = pending.established(pool.environment().connect()).expect("nobody interrupts");
    drop(opening);
    check_out(pool, idle)
}

fn closed(pool: &Pool) -> Vec<(u64, ConnectionClosedReason)> {
    let closed = |event| match event {
        PoolEvent::ConnectionClosed { connection_id, reason, .. } => Some((connection_id, reason)),
        _ => None,
    };
    pool.environment().events().into_iter().filter_map(closed).collect()
}

#[test]
fn a_check_in_against_a_clear_of_its_service_is_closed_once_as_stale() {
    model("a_check_in_against_a_clear_of_its_service_is_closed_once_as_stale", None, || {
        let pool = recorded(load_balanced(1));
        let lease = leased_of(&pool, CLEARED);
        let returns = thread::spawn(move || check_in(lease));
        assert!(pool.clear_service(CLEARED, Clear::new()).unwrap());
        pool.maintain();
        returns.join().unwrap();
        // The run may have come before the check-in, which then has closed the connection itself: no second run.
        assert_empty(&pool);
        assert_eq!(closed(&pool), [(1, ConnectionClosedReason::Stale)]);
        wind_up(pool);
    });
}

#[test]
fn a_check_out_while_a_run_looks_through_the_shards_is_handed_what_is_put_back() {
    model("a_check_out_while_a_run_looks_through_the_shards_is_handed_what_is_put_back", Some(4), || {
        let pool = recorded(load_balanced(2));
        let (cleared, kept) = (leased_of(&pool, CLEARED), leased_of(&pool, KEPT));
        check_in(kept);
        assert!(pool.clear_service(CLEARED, Clear::new()).unwrap());
        let runs = thread::spawn({
            let pool = pool.clone();
            move || pool.maintain()
        });
        // While the run has the connection off its shard this finds nothing, and there is no permit either.
        check_in(check_out(&pool, connection(acquire(&pool))));
        runs.join().unwrap();
        assert_eq!(closed(&pool), []);
        check_in(cleared);
        assert_eq!(closed(&pool), [(1, ConnectionClosedReason::Stale)]);
        wind_up(pool);
    });
}

#[test]
fn a_clear_of_a_service_reaches_every_shard_in_one_of_two_runs() {
    model("a_clear_of_a_service_reaches_every_shard_in_one_of_two_runs", Some(4), || {
        let pool = recorded(options(8, 1).load_balanced(true));
        let [first, second] = [(); 2].map(|()| leased_of(&pool, CLEARED));
        check_in(first);
        prefer_shard(1);
        check_in(second);
        let clears = thread::spawn({
            let pool = pool.clone();
            move || assert!(pool.clear_service(CLEARED, Clear::new()).unwrap())
        });
        pool.maintain();
        clears.join().unwrap();
        // A run that has taken note of the clear has done all there is to do.
        pool.maintain();
        assert_eq!(closed(&pool).len(), 2);
        assert_empty(&pool);
        wind_up(pool);
    });
}
