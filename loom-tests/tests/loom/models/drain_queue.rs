//! Models of the drain queue. A drain never delays a check-out: if a check-out lacks only capacity, one drain is
//! displaced for it, exactly once. The check-out gets the capacity when that drain's connection is closed.

use std::sync::Arc;

use loom::thread;
use wharf::{Clear, PoolEvent};

use super::harness::model;
use super::world::*;

/// Asserts that, according to the events, no more than `most` connections existed at any instant.
fn assert_at_most(pool: &Arc<Pool>, most: usize) {
    let mut total = 0;
    for event in pool.environment().events() {
        match event {
            PoolEvent::ConnectionCreated { .. } => total += 1,
            PoolEvent::ConnectionClosed { .. } => total -= 1,
            _ => {}
        }
        assert!(total <= most, "more than {most} connections at one instant");
    }
}

/// The drain never finishes on its own.
#[test]
fn drain_that_begins_while_a_check_out_queues_up_does_not_delay_it() {
    model("drain_that_begins_while_a_check_out_queues_up_does_not_delay_it", Some(4), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn({
            let pool = pool.clone();
            move || {
                check_in_undrained(lease);
                drain_until_displaced(pool.environment().last_draining());
            }
        });
        let permit = permit(acquire(&pool));
        assert_eq!(pool.environment().disposed(), 1, "there may be two connections");
        drop(permit);
        returns.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn drain_that_ends_while_a_check_out_needs_its_capacity_ends_once() {
    model("drain_that_ends_while_a_check_out_needs_its_capacity_ends_once", Some(3), || {
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
fn drain_that_fails_while_a_check_out_needs_its_capacity_ends_once() {
    model("drain_that_fails_while_a_check_out_needs_its_capacity_ends_once", Some(3), || {
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

/// While another connection is pending, a check-out cannot use a drain's capacity. Neither the drain nor the lease ends
/// on its own.
#[test]
fn permit_freed_while_a_check_out_queues_up_displaces_a_drain() {
    model("permit_freed_while_a_check_out_queues_up_displaces_a_drain", Some(4), || {
        let pool = unheard(options(2, 1));
        let draining = begin_drain(&pool);
        let (idle, opening) = opened(&pool);
        let lease = check_out(&pool, idle);
        let established = thread::spawn(move || {
            drop(opening);
            drain_until_displaced(Some(draining));
        });
        drop(permit(acquire(&pool)));
        established.join().unwrap();
        check_in(lease);
        wind_up(pool);
    });
}

/// One drain is displaced, and another begins.
#[test]
fn second_drain_that_begins_delays_neither_of_two_check_outs() {
    model("second_drain_that_begins_delays_neither_of_two_check_outs", Some(3), || {
        let pool = unheard(options(2, 2));
        let lease = leased(&pool);
        let draining = begin_drain(&pool);
        let returns = thread::spawn({
            let pool = pool.clone();
            move || {
                drain_until_displaced(Some(draining));
                check_in_undrained(lease);
                drain_until_displaced(pool.environment().last_draining());
            }
        });
        let first = permit(acquire(&pool));
        let second = permit(acquire(&pool));
        returns.join().unwrap();
        drop((first, second));
        wind_up(pool);
    });
}

#[test]
fn second_drain_outlives_the_first_and_delays_no_check_out() {
    model("second_drain_outlives_the_first_and_delays_no_check_out", Some(3), || {
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
        let drains = thread::spawn(move || {
            end_drain(ends.expect("the drain was displaced without a waiter"), false);
            drain_until_displaced(stays);
        });
        let (first, second) = (permit(acquire(&pool)), permit(acquire(&pool)));
        drains.join().unwrap();
        drop((first, second));
        wind_up(pool);
    });
}

#[test]
fn drain_during_a_clear_and_a_check_out_ends_once() {
    model("drain_during_a_clear_and_a_check_out_ends_once", Some(2), || {
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
fn drain_during_a_close_and_a_check_out_ends_once() {
    model("drain_during_a_close_and_a_check_out_ends_once", Some(2), || {
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
