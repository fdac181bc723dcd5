//! Drains keep no check-out waiting: where only their capacity is missing, one of them is closed, exactly once.

use std::sync::Arc;

use loom::thread;
use wharf::{Clear, PoolEvent};

use super::harness::model;
use super::world::*;

/// No more connections than that exist at any instant, as the events tell it.
fn assert_at_most(pool: &Arc<Pool>, most: usize) {
    let mut total = 0;
    for event in pool.environment().events() {
        match event {
            PoolEvent::ConnectionCreated { .. } => total += 1,
            PoolEvent::ConnectionClosed { .. } => total -= 1,
            _ => {}
        }
        assert!(total <= most, "more than {most} at an instant");
    }
}

/// The drain never ends by itself.
#[test]
fn a_drain_that_begins_against_a_registration_keeps_no_check_out_waiting() {
    model("a_drain_that_begins_against_a_registration_keeps_no_check_out_waiting", Some(4), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in_undrained(lease));
        drop(permit(acquire(&pool)));
        returns.join().unwrap();
        drop(pool.environment().last_draining());
        wind_up(pool);
    });
}

#[test]
fn a_drain_that_ends_against_a_check_out_that_would_wait_has_one_end() {
    model("a_drain_that_ends_against_a_check_out_that_would_wait_has_one_end", Some(3), || {
        let pool = recorded(options(1, 1));
        let draining = begin_drain(&pool);
        let drains = thread::spawn(move || end_drain(draining, true));
        let grant = acquire(&pool);
        make_use(&pool, grant);
        drains.join().unwrap();
        assert_at_most(&pool, 1);
        wind_up(pool);
    });
}

#[test]
fn a_drain_that_fails_against_a_check_out_that_would_wait_has_one_end() {
    model("a_drain_that_fails_against_a_check_out_that_would_wait_has_one_end", Some(3), || {
        let pool = recorded(options(1, 1));
        let draining = begin_drain(&pool);
        let drains = thread::spawn(move || end_drain(draining, false));
        let grant = acquire(&pool);
        make_use(&pool, grant);
        drains.join().unwrap();
        assert_at_most(&pool, 1);
        wind_up(pool);
    });
}

/// While one is pending, the capacity of a drain is of no use. Neither drain nor connection comes back by itself.
#[test]
fn a_permit_to_open_that_comes_free_against_a_registration_closes_a_drain() {
    model("a_permit_to_open_that_comes_free_against_a_registration_closes_a_drain", Some(4), || {
        let pool = unheard(options(2, 1));
        let draining = begin_drain(&pool);
        let (idle, opening) = opened(&pool);
        let lease = check_out(&pool, idle);
        let established = thread::spawn(move || drop(opening));
        drop(permit(acquire(&pool)));
        established.join().unwrap();
        drop(draining);
        check_in(lease);
        wind_up(pool);
    });
}

/// One is there already, the other begins.
#[test]
fn a_second_drain_that_begins_against_two_check_outs_keeps_neither_waiting() {
    model("a_second_drain_that_begins_against_two_check_outs_keeps_neither_waiting", Some(3), || {
        let pool = unheard(options(2, 2));
        let lease = leased(&pool);
        let draining = begin_drain(&pool);
        let returns = thread::spawn(move || check_in_undrained(lease));
        let first = permit(acquire(&pool));
        let second = permit(acquire(&pool));
        returns.join().unwrap();
        drop((first, second, draining, pool.environment().last_draining()));
        wind_up(pool);
    });
}

#[test]
fn a_second_drain_stays_after_the_first_has_ended_and_keeps_no_check_out_waiting() {
    model("a_second_drain_stays_after_the_first_has_ended_and_keeps_no_check_out_waiting", Some(3), || {
        let pool = unheard(options(2, 2));
        let (held, stays) = (leased(&pool), leased(&pool));
        let ends = {
            check_in_undrained(held);
            pool.environment().last_draining()
        };
        let stays = {
            check_in_undrained(stays);
            pool.environment().last_draining()
        };
        let drains = thread::spawn(move || end_drain(ends.expect("nothing waits"), false));
        let (first, second) = (permit(acquire(&pool)), permit(acquire(&pool)));
        drains.join().unwrap();
        drop((first, second, stays));
        wind_up(pool);
    });
}

#[test]
fn a_drain_against_a_clear_and_a_check_out_has_one_end() {
    model("a_drain_against_a_clear_and_a_check_out_has_one_end", Some(2), || {
        let pool = recorded(options(1, 1));
        let draining = begin_drain(&pool);
        let drains = thread::spawn(move || end_drain(draining, true));
        let waits = thread::spawn({
            let pool = pool.clone();
            move || {
                let grant = acquire(&pool);
                make_use(&pool, grant);
            }
        });
        pool.clear(Clear::new()).unwrap();
        drains.join().unwrap();
        waits.join().unwrap();
        pool.maintain();
        assert_empty(&pool);
        assert_at_most(&pool, 1);
        wind_up(pool);
    });
}

#[test]
fn a_drain_against_a_close_and_a_check_out_has_one_end() {
    model("a_drain_against_a_close_and_a_check_out_has_one_end", Some(2), || {
        let pool = recorded(options(1, 1));
        let draining = begin_drain(&pool);
        let drains = thread::spawn(move || end_drain(draining, true));
        let waits = thread::spawn({
            let pool = pool.clone();
            move || {
                let grant = acquire(&pool);
                make_use(&pool, grant);
            }
        });
        pool.close();
        drains.join().unwrap();
        waits.join().unwrap();
        assert_empty(&pool);
        wind_up(pool);
    });
}
