//! What becomes of a connection that was checked in unfinished: it is closed once, or goes to the next.

use loom::thread;
use wharf::{Clear, ConnectionClosedReason};

use super::clearing::closed_reasons;
use super::harness::model;
use super::world::*;

#[test]
fn a_recovery_against_a_clear_is_closed_once_as_stale() {
    model("a_recovery_against_a_clear_is_closed_once_as_stale", None, || {
        let pool = recorded(options(1, 1));
        let patient = unfinished(&pool);
        let recovers = thread::spawn(move || recover(patient, true));
        assert!(pool.clear(Clear::new()).unwrap());
        recovers.join().unwrap();
        pool.run();
        assert_empty(&pool);
        assert_eq!(closed_reasons(&pool), [ConnectionClosedReason::Stale]);
        wind_up(pool);
    });
}

#[test]
fn a_recovery_against_a_close_is_closed_once_with_the_pool() {
    model("a_recovery_against_a_close_is_closed_once_with_the_pool", Some(6), || {
        let pool = recorded(options(1, 1));
        let patient = unfinished(&pool);
        let recovers = thread::spawn(move || recover(patient, true));
        pool.close();
        recovers.join().unwrap();
        assert_empty(&pool);
        assert_eq!(closed_reasons(&pool), [ConnectionClosedReason::PoolClosed]);
        wind_up(pool);
    });
}

#[test]
fn a_recovery_that_fails_against_a_clear_is_closed_once() {
    model("a_recovery_that_fails_against_a_clear_is_closed_once", None, || {
        let pool = recorded(options(1, 1));
        let patient = unfinished(&pool);
        let recovers = thread::spawn(move || recover(patient, false));
        assert!(pool.clear(Clear::new()).unwrap());
        recovers.join().unwrap();
        assert_empty(&pool);
        assert_eq!(closed_reasons(&pool).len(), 1);
        wind_up(pool);
    });
}

/// What waits for one that is pending, and so for no place.
#[test]
fn a_recovered_connection_goes_to_who_waits() {
    model("a_recovered_connection_goes_to_who_waits", Some(5), || {
        let pool = unheard(options(2, 1));
        let patient = unfinished(&pool);
        let blocks_opening = pending(&pool);
        let recovers = thread::spawn(move || recover(patient, true));
        check_in(check_out(&pool, connection(acquire(&pool))));
        recovers.join().unwrap();
        drop(blocks_opening);
        wind_up(pool);
    });
}

#[test]
fn a_recovery_that_fails_gives_its_place_to_who_waits() {
    model("a_recovery_that_fails_gives_its_place_to_who_waits", Some(6), || {
        let pool = unheard(options(1, 1));
        let patient = unfinished(&pool);
        let recovers = thread::spawn(move || recover(patient, false));
        drop(place(acquire(&pool)));
        recovers.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn a_clear_against_a_recovery_answers_who_waits_once() {
    model("a_clear_against_a_recovery_answers_who_waits_once", Some(3), || {
        let pool = recorded(options(2, 1));
        let patient = unfinished(&pool);
        let blocks_opening = pending(&pool);
        let waiter = queued(&pool);
        let recovers = thread::spawn(move || recover(patient, true));
        pool.clear(Clear::new()).unwrap();
        make_use(&pool, loom::future::block_on(waiter));
        recovers.join().unwrap();
        drop(blocks_opening);
        pool.run();
        assert_empty(&pool);
        wind_up(pool);
    });
}

#[test]
fn a_cleared_connection_that_recovers_is_never_handed_to_a_later_waiter() {
    model("a_cleared_connection_that_recovers_is_never_handed_to_a_later_waiter", Some(3), || {
        let pool = unheard(options(1, 1));
        let patient = unfinished(&pool);
        let recovers = thread::spawn(move || recover(patient, true));
        pool.clear(Clear::new()).unwrap();
        pool.ready();
        drop(place(acquire(&pool)));
        recovers.join().unwrap();
        wind_up(pool);
    });
}
