//! Models of a connection that needs a drain: it is either closed exactly once or passed to the next check-out.

use loom::thread;
use wharf::{Clear, ConnectionClosedReason};

use super::clearing::closed_reasons;
use super::harness::model;
use super::world::*;

#[test]
fn connection_drained_during_a_clear_is_closed_once_as_stale() {
    model("connection_drained_during_a_clear_is_closed_once_as_stale", None, || {
        let pool = recorded(options(1, 1));
        let draining = begin_drain(&pool);
        let drains = thread::spawn(move || end_drain(draining, true));
        assert!(pool.clear(Clear::new()).unwrap());
        drains.join().unwrap();
        pool.maintain();
        assert_empty(&pool);
        assert_eq!(closed_reasons(&pool), [ConnectionClosedReason::Stale]);
        wind_up(pool);
    });
}

#[test]
fn connection_drained_during_a_close_is_closed_once_with_the_pool() {
    model("connection_drained_during_a_close_is_closed_once_with_the_pool", Some(6), || {
        let pool = recorded(options(1, 1));
        let draining = begin_drain(&pool);
        let drains = thread::spawn(move || end_drain(draining, true));
        pool.close();
        drains.join().unwrap();
        assert_empty(&pool);
        assert_eq!(closed_reasons(&pool), [ConnectionClosedReason::PoolClosed]);
        wind_up(pool);
    });
}

#[test]
fn drain_that_fails_during_a_clear_closes_its_connection_once() {
    model("drain_that_fails_during_a_clear_closes_its_connection_once", None, || {
        let pool = recorded(options(1, 1));
        let draining = begin_drain(&pool);
        let drains = thread::spawn(move || end_drain(draining, false));
        assert!(pool.clear(Clear::new()).unwrap());
        drains.join().unwrap();
        assert_empty(&pool);
        assert_eq!(closed_reasons(&pool).len(), 1);
        wind_up(pool);
    });
}

/// The check-out waits because another connection is pending, not because it lacks capacity, so it does not displace a
/// drain.
#[test]
fn drained_connection_goes_to_a_waiter() {
    model("drained_connection_goes_to_a_waiter", Some(4), || {
        let pool = unheard(options(2, 1));
        let draining = begin_drain(&pool);
        let blocks_opening = pending(&pool);
        let drains = thread::spawn(move || end_drain(draining, true));
        check_in(check_out(&pool, connection(acquire(&pool))));
        drains.join().unwrap();
        drop(blocks_opening);
        wind_up(pool);
    });
}

#[test]
fn failed_drain_gives_a_permit_to_a_waiter() {
    model("failed_drain_gives_a_permit_to_a_waiter", Some(4), || {
        let pool = unheard(options(1, 1));
        let draining = begin_drain(&pool);
        let drains = thread::spawn(move || end_drain(draining, false));
        drop(permit(acquire(&pool)));
        drains.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn clear_during_a_drain_answers_a_waiter_once() {
    model("clear_during_a_drain_answers_a_waiter_once", Some(3), || {
        let pool = recorded(options(2, 1));
        let draining = begin_drain(&pool);
        let blocks_opening = pending(&pool);
        let waiter = queued(&pool);
        let drains = thread::spawn(move || end_drain(draining, true));
        pool.clear(Clear::new()).unwrap();
        make_use(&pool, loom::future::block_on(waiter));
        drains.join().unwrap();
        drop(blocks_opening);
        pool.maintain();
        assert_empty(&pool);
        wind_up(pool);
    });
}

#[test]
fn stale_drained_connection_is_never_handed_to_a_later_waiter() {
    model("stale_drained_connection_is_never_handed_to_a_later_waiter", Some(3), || {
        let pool = unheard(options(1, 1));
        let draining = begin_drain(&pool);
        let drains = thread::spawn(move || end_drain(draining, true));
        pool.clear(Clear::new()).unwrap();
        pool.ready();
        drop(permit(acquire(&pool)));
        drains.join().unwrap();
        wind_up(pool);
    });
}
