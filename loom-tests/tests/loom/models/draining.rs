//! What becomes of a connection that was checked in undrained: it is closed once, or goes to the next.

use loom::thread;
use wharf::{Clear, ConnectionClosedReason};

use super::clearing::closed_reasons;
use super::harness::model;
use super::world::*;

#[test]
fn a_drain_against_a_clear_is_closed_once_as_stale() {
    model("a_drain_against_a_clear_is_closed_once_as_stale", None, || {
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
fn a_drain_against_a_close_is_closed_once_with_the_pool() {
    model("a_drain_against_a_close_is_closed_once_with_the_pool", Some(6), || {
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
fn a_drain_that_fails_against_a_clear_is_closed_once() {
    model("a_drain_that_fails_against_a_clear_is_closed_once", None, || {
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

/// What waits for one that is pending, and so for no capacity.
#[test]
fn a_drained_connection_goes_to_who_waits() {
    model("a_drained_connection_goes_to_who_waits", Some(5), || {
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
fn a_drain_that_fails_gives_its_permit_to_who_waits() {
    model("a_drain_that_fails_gives_its_permit_to_who_waits", Some(6), || {
        let pool = unheard(options(1, 1));
        let draining = begin_drain(&pool);
        let drains = thread::spawn(move || end_drain(draining, false));
        drop(permit(acquire(&pool)));
        drains.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn a_clear_against_a_drain_answers_who_waits_once() {
    model("a_clear_against_a_drain_answers_who_waits_once", Some(3), || {
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
fn a_cleared_connection_that_was_drained_is_never_handed_to_a_later_waiter() {
    model("a_cleared_connection_that_was_drained_is_never_handed_to_a_later_waiter", Some(3), || {
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
