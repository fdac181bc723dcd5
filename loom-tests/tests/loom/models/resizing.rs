//! Models of resizes: no check-out is admitted under an old maximum, no waiter is forgotten, and no surplus connection
//! is left.

use std::sync::Arc;

use loom::thread;
use wharf::PoolOptions;
use wharf::unstable::pool::Grant;

use super::harness::model;
use super::world::*;

fn resize(pool: &Arc<Pool>, change: impl Fn(PoolOptions) -> PoolOptions) {
    let seen = pool.present_options();
    assert!(pool.try_resize(&seen, &change(seen.clone())), "the sizes have changed");
}

/// Asserts that, with a new maximum of one, maintenance closes every connection except the one in use.
fn assert_only_one_is_left(pool: &Arc<Pool>, held: Leased) {
    pool.maintain();
    assert_eq!(pool.status().total, 1, "a surplus connection is left");
    check_in(held);
    assert_eq!(pool.status().available, 1, "too many connections were closed");
}

#[test]
fn check_out_during_a_resize_is_not_admitted_by_the_old_maximum() {
    model("check_out_during_a_resize_is_not_admitted_by_the_old_maximum", Some(3), || {
        let pool = unheard(options(2, 2));
        let held = leased(&pool);
        let admits = thread::spawn({
            let pool = pool.clone();
            move || poll(&mut waiter(&pool)).filter(|grant| matches!(grant, Grant::Permit(_)))
        });
        resize(&pool, |options| options.max_pool_size(1));
        let total = pool.status().total;
        let admitted = admits.join().unwrap();
        assert!(admitted.is_none() || total == 2, "a connection was admitted after the resize");
        drop(admitted);
        check_in(held);
        wind_up(pool);
    });
}

#[test]
fn check_out_that_queues_up_while_the_pool_grows_is_served() {
    model("check_out_that_queues_up_while_the_pool_grows_is_served", Some(4), || {
        let pool = unheard(options(1, 2));
        let held = leased(&pool);
        let grows = thread::spawn({
            let pool = pool.clone();
            move || resize(&pool, |options| options.max_pool_size(2))
        });
        drop(permit(acquire(&pool)));
        grows.join().unwrap();
        check_in(held);
        wind_up(pool);
    });
}

#[test]
fn connection_checked_in_while_the_pool_shrinks_is_no_surplus() {
    model("connection_checked_in_while_the_pool_shrinks_is_no_surplus", Some(4), || {
        let pool = unheard(options(2, 2));
        let (held, returned) = (leased(&pool), leased(&pool));
        let returns = thread::spawn(move || check_in(returned));
        resize(&pool, |options| options.max_pool_size(1));
        returns.join().unwrap();
        assert_only_one_is_left(&pool, held);
        wind_up(pool);
    });
}

#[test]
fn connection_opened_while_the_pool_shrinks_is_no_surplus() {
    model("connection_opened_while_the_pool_shrinks_is_no_surplus", Some(4), || {
        let pool = unheard(options(2, 2));
        let held = leased(&pool);
        let (idle, opening) = opened(&pool);
        let opens = thread::spawn(move || opening.hand_on(Some(idle)));
        resize(&pool, |options| options.max_pool_size(1));
        opens.join().unwrap();
        assert_only_one_is_left(&pool, held);
        wind_up(pool);
    });
}

#[test]
fn pool_that_is_closed_while_it_shrinks_closes_each_connection_once() {
    model("pool_that_is_closed_while_it_shrinks_closes_each_connection_once", Some(4), || {
        let pool = recorded(options(2, 2));
        let (one, other) = (leased(&pool), leased(&pool));
        check_in(one);
        check_in(other);
        let closes = thread::spawn({
            let pool = pool.clone();
            move || pool.close()
        });
        resize(&pool, |options| options.max_pool_size(1));
        assert!(closes.join().unwrap());
        assert_empty(&pool);
        wind_up(pool);
    });
}
