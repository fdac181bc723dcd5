//! Models of a renewal and of worn connections. A renewal makes all connections stale, as a clear does, but the pool
//! stays ready and the waiters stay in the queue. Worn connections are closed only while enough other connections are
//! open.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use wharf::{ConnectionClosedReason, Phase};

use super::clearing::closed_reasons;
use super::harness::model;
use super::world::*;

#[test]
fn connection_checked_in_during_a_renewal_is_closed_once_as_stale() {
    model("connection_checked_in_during_a_renewal_is_closed_once_as_stale", None, || {
        let pool = recorded(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in(lease));
        pool.renew();
        returns.join().unwrap();
        pool.maintain();
        assert_empty(&pool);
        assert_eq!(closed_reasons(&pool), [ConnectionClosedReason::Stale]);
        assert_eq!(pool.state().phase, Phase::Ready);
        wind_up(pool);
    });
}

#[test]
fn check_out_that_queues_up_during_a_renewal_is_served() {
    model("check_out_that_queues_up_during_a_renewal_is_served", Some(2), || {
        let pool = unheard(options(1, 1));
        check_in(leased(&pool));
        let renews = thread::spawn({
            let pool = pool.clone();
            move || {
                pool.renew();
                pool.maintain();
            }
        });
        let grant = acquire(&pool);
        make_use(&pool, grant);
        renews.join().unwrap();
        pool.maintain();
        wind_up(pool);
    });
}

#[test]
fn waiter_is_served_despite_a_renewal() {
    model("waiter_is_served_despite_a_renewal", Some(2), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let waits = queued(&pool);
        let returns = thread::spawn(move || check_in(lease));
        let renews = thread::spawn({
            let pool = pool.clone();
            move || {
                pool.renew();
                pool.maintain();
            }
        });
        // A connection that is returned before the renewal may be granted and then go stale. The waiter then gets a
        // permit for that connection's capacity.
        let grant = match loom::future::block_on(waits) {
            wharf::unstable::pool::Grant::Connection(idle) if idle.is_stale() => {
                drop(idle);
                acquire(&pool)
            }
            grant => grant,
        };
        make_use(&pool, grant);
        returns.join().unwrap();
        renews.join().unwrap();
        pool.maintain();
        wind_up(pool);
    });
}

/// Returns a pool that keeps one connection open, and two of its connections, which are in use. Both exceed their
/// lifetime once [`LIFETIME`] has passed.
fn two_in_use() -> (Arc<Pool>, [Leased; 2]) {
    let pool = recorded(options(3, 2).min_pool_size(1).max_lifetime(LIFETIME));
    let leases = [(); 2].map(|()| leased(&pool));
    (pool, leases)
}

const LIFETIME: Duration = Duration::from_secs(1);

fn assert_one_is_left(pool: &Pool) {
    assert_eq!(closed_reasons(pool), [ConnectionClosedReason::Idle]);
    assert_eq!(pool.status().available, 1);
}

#[test]
fn two_worn_connections_that_come_back_leave_one_open() {
    model("two_worn_connections_that_come_back_leave_one_open", Some(3), || {
        let (pool, [first, second]) = two_in_use();
        pool.environment().pass(LIFETIME);
        let returns = thread::spawn(move || check_in(first));
        check_in(second);
        returns.join().unwrap();
        assert_one_is_left(&pool);
        wind_up(pool);
    });
}

#[test]
fn worn_connection_that_comes_back_during_maintenance_leaves_one_open() {
    model("worn_connection_that_comes_back_during_maintenance_leaves_one_open", Some(3), || {
        let (pool, [first, second]) = two_in_use();
        check_in(first);
        pool.environment().pass(LIFETIME);
        let returns = thread::spawn(move || check_in(second));
        pool.maintain();
        returns.join().unwrap();
        assert_one_is_left(&pool);
        wind_up(pool);
    });
}
