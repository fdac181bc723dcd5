//! Models of load-balanced mode: which connections are closed when a service is cleared, and how maintenance treats the
//! others.

use loom::thread;
use wharf::{Clear, ConnectionClosedReason, PoolEvent, PoolOptions, ServiceId};

use super::harness::model;
use super::world::*;

const CLEARED: ServiceId = ServiceId::from_bytes([1; 12]);
const KEPT: ServiceId = ServiceId::from_bytes([2; 12]);

fn load_balanced(max_pool_size: u32) -> PoolOptions {
    options(max_pool_size, 1).load_balanced(true)
}

/// Opens a connection to a service and checks it out.
fn leased_of(pool: &std::sync::Arc<Pool>, service: ServiceId) -> Leased {
    let pending = pending(pool);
    pending.identify(service);
    let (idle, opening) = pending.established(pool.environment().connect()).expect("interrupted without a clear");
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
fn connection_checked_in_during_a_clear_of_its_service_is_closed_once_as_stale() {
    model("connection_checked_in_during_a_clear_of_its_service_is_closed_once_as_stale", None, || {
        let pool = recorded(load_balanced(1));
        let lease = leased_of(&pool, CLEARED);
        let returns = thread::spawn(move || check_in(lease));
        assert!(pool.clear_service(CLEARED, Clear::new()).unwrap());
        pool.maintain();
        returns.join().unwrap();
        // If maintenance came first, the check-in closed the connection itself. So maintenance does not have to run
        // again.
        assert_empty(&pool);
        assert_eq!(closed(&pool), [(1, ConnectionClosedReason::Stale)]);
        wind_up(pool);
    });
}

#[test]
fn check_out_during_maintenance_gets_the_connection_that_is_put_back() {
    model("check_out_during_maintenance_gets_the_connection_that_is_put_back", Some(4), || {
        let pool = recorded(load_balanced(2));
        let (cleared, kept) = (leased_of(&pool, CLEARED), leased_of(&pool, KEPT));
        check_in(kept);
        assert!(pool.clear_service(CLEARED, Clear::new()).unwrap());
        let runs = thread::spawn({
            let pool = pool.clone();
            move || pool.maintain()
        });
        // This finds neither a connection nor a permit if maintenance has just taken the connection off its shard.
        check_in(check_out(&pool, connection(acquire(&pool))));
        runs.join().unwrap();
        assert_eq!(closed(&pool), []);
        check_in(cleared);
        assert_eq!(closed(&pool), [(1, ConnectionClosedReason::Stale)]);
        wind_up(pool);
    });
}

#[test]
fn clear_of_a_service_reaches_every_shard_in_one_of_two_runs() {
    model("clear_of_a_service_reaches_every_shard_in_one_of_two_runs", Some(4), || {
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
        // If the first run noticed the clear, it closed both connections, and this run does nothing.
        pool.maintain();
        assert_eq!(closed(&pool).len(), 2);
        assert_empty(&pool);
        wind_up(pool);
    });
}
