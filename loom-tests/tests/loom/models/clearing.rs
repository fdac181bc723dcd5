//! Models of orderings 6 and 8: which connections a clear and a close reach, and when they emit their events.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Waker};

use loom::thread;
use wharf::unstable::pool::Grant;
use wharf::{Clear, ConnectionClosedReason, PoolEvent};

use super::harness::model;
use super::world::*;

pub fn closed_reasons(pool: &Pool) -> Vec<ConnectionClosedReason> {
    let reason = |event| match event {
        PoolEvent::ConnectionClosed { reason, .. } => Some(reason),
        _ => None,
    };
    pool.environment().events().into_iter().filter_map(reason).collect()
}

#[test]
fn connection_checked_in_during_a_clear_is_closed_once_as_stale() {
    model("connection_checked_in_during_a_clear_is_closed_once_as_stale", None, || {
        let pool = recorded(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in(lease));
        assert!(pool.clear(Clear::new()).unwrap());
        returns.join().unwrap();
        pool.maintain();
        assert_empty(&pool);
        assert_eq!(closed_reasons(&pool), [ConnectionClosedReason::Stale]);
        wind_up(pool);
    });
}

#[test]
fn connection_checked_in_during_a_close_is_closed_once_with_the_pool() {
    model("connection_checked_in_during_a_close_is_closed_once_with_the_pool", Some(6), || {
        let pool = recorded(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in(lease));
        pool.close();
        returns.join().unwrap();
        assert_empty(&pool);
        assert_eq!(closed_reasons(&pool), [ConnectionClosedReason::PoolClosed]);
        wind_up(pool);
    });
}

#[test]
fn connection_checked_in_during_a_clear_and_a_close_is_closed_once() {
    model("connection_checked_in_during_a_clear_and_a_close_is_closed_once", Some(2), || {
        let pool = recorded(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in(lease));
        let clears = thread::spawn({
            let pool = pool.clone();
            move || pool.clear(Clear::new()).unwrap()
        });
        pool.close();
        returns.join().unwrap();
        clears.join().unwrap();
        assert_empty(&pool);
        assert_eq!(closed_reasons(&pool).len(), 1);
        wind_up(pool);
    });
}

#[test]
fn check_out_during_a_clear_shares_no_connection_with_it() {
    model("check_out_during_a_clear_shares_no_connection_with_it", Some(6), || {
        let pool = recorded(options(1, 1));
        check_in(leased(&pool));
        let clears = thread::spawn({
            let pool = pool.clone();
            move || {
                pool.clear(Clear::new()).unwrap();
                pool.maintain();
            }
        });
        if let Some(idle) = pool.try_take() {
            check_in(check_out(&pool, idle));
        }
        clears.join().unwrap();
        pool.maintain();
        assert_empty(&pool);
        wind_up(pool);
    });
}

#[test]
fn check_out_after_a_clear_gets_a_permit_while_stale_connections_are_closed() {
    model("check_out_after_a_clear_gets_a_permit_while_stale_connections_are_closed", Some(6), || {
        let pool = unheard(options(1, 1));
        check_in(leased(&pool));
        pool.clear(Clear::new()).unwrap();
        pool.ready();
        let runs = thread::spawn({
            let pool = pool.clone();
            move || pool.maintain()
        });
        drop(permit(acquire(&pool)));
        runs.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn pool_cleared_follows_the_generation_change() {
    model("pool_cleared_follows_the_generation_change", None, || {
        let pool = recorded(options(1, 1));
        let clears = thread::spawn({
            let pool = pool.clone();
            move || pool.clear(Clear::new()).unwrap()
        });
        if pool.environment().seen().iter().any(|event| event.name() == "PoolCleared") {
            assert_eq!(pool.state().generation, 1, "PoolCleared was emitted before the generation changed");
        }
        clears.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn clear_of_a_paused_pool_emits_no_event() {
    model("clear_of_a_paused_pool_emits_no_event", None, || {
        let pool = recorded(options(1, 1));
        let clears = thread::spawn({
            let pool = pool.clone();
            move || pool.clear(Clear::new()).unwrap()
        });
        assert!(pool.clear(Clear::new()).unwrap());
        assert!(clears.join().unwrap());
        assert_eq!(pool.state().generation, 2, "a clear did not increment the generation");
        assert_eq!(pool.environment().names(), ["PoolCreated", "PoolReady", "PoolCleared"]);
        wind_up(pool);
    });
}

/// Returns a closure that clears the pool with interruption, makes it ready again, and then runs the maintenance that
/// interrupts the users.
fn interrupting_clear(pool: &Arc<Pool>) -> impl FnOnce() + use<> {
    let pool = pool.clone();
    move || {
        pool.clear(Clear::new().interrupt_in_use_connections(true)).unwrap();
        pool.ready();
        pool.maintain();
    }
}

#[test]
fn interruption_reaches_exactly_the_generations_before_its_clear() {
    model("interruption_reaches_exactly_the_generations_before_its_clear", Some(3), || {
        let pool = unheard(options(2, 1));
        let old = leased(&pool);
        let clears = thread::spawn(interrupting_clear(&pool));
        let permit = match poll(&mut waiter(&pool)) {
            Some(Grant::Permit(permit)) => permit.create().ok(),
            _ => None,
        };
        let open = permit.and_then(|pending| pending.established(pool.environment().connect()).ok());
        let new = open.map(|(idle, opening)| {
            drop(opening);
            check_out(&pool, idle)
        });
        clears.join().unwrap();
        assert!(old.is_interrupted());
        if let Some(new) = new {
            assert_eq!(new.is_interrupted(), new.generation() == 0, "generation {}", new.generation());
            check_in(new);
        }
        check_in(old);
        wind_up(pool);
    });
}

#[test]
fn interruption_wakes_the_user_that_waits_for_it() {
    model("interruption_wakes_the_user_that_waits_for_it", Some(5), || {
        let pool = unheard(options(1, 1));
        let mut lease = leased(&pool);
        let clears = thread::spawn({
            let pool = pool.clone();
            move || {
                pool.clear(Clear::new().interrupt_in_use_connections(true)).unwrap();
                pool.maintain();
            }
        });
        let (_, mut interruption) = lease.interruptible();
        loom::future::block_on(poll_fn(|context| interruption.poll(context)));
        drop(interruption);
        clears.join().unwrap();
        check_in(lease);
        wind_up(pool);
    });
}

#[test]
fn slot_is_watched_again_only_after_its_last_waker_was_taken() {
    model("slot_is_watched_again_only_after_its_last_waker_was_taken", Some(2), || {
        let pool = unheard(options(1, 1));
        let mut lease = leased(&pool);
        let mut context = Context::from_waker(Waker::noop());
        let (_, mut interruption) = lease.interruptible();
        assert!(interruption.poll(&mut context).is_pending(), "interrupted before the clear");
        let clears = thread::spawn(interrupting_clear(&pool));
        drop(interruption);
        check_in(lease);
        // The next connection has the same slot. If it was created after the clear, the clear must not interrupt it.
        if let Some(Grant::Permit(permit)) = poll(&mut waiter(&pool))
            && let Ok(pending) = permit.create()
        {
            let interrupted = pending.poll_interrupted(&mut context).is_ready();
            assert!(!interrupted || pending.generation() == 0, "generation {}", pending.generation());
        }
        clears.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn pending_connection_interrupted_by_a_close_is_closed_with_the_pool() {
    model("pending_connection_interrupted_by_a_close_is_closed_with_the_pool", Some(4), || {
        let pool = recorded(options(1, 1));
        let pending = pending(&pool);
        let closes = thread::spawn({
            let pool = pool.clone();
            move || pool.close()
        });
        let interrupted = pending.poll_interrupted(&mut Context::from_waker(Waker::noop())).is_ready();
        drop(pending);
        closes.join().unwrap();
        let reason = if interrupted { ConnectionClosedReason::PoolClosed } else { ConnectionClosedReason::Error };
        let reasons = closed_reasons(&pool);
        assert!(reasons == [reason] || reasons == [ConnectionClosedReason::PoolClosed], "{interrupted}: {reasons:?}");
        wind_up(pool);
    });
}

/// The third connection is the first in a new segment of the slab.
#[test]
fn interruption_during_growth_of_the_slab_finds_every_slot() {
    model("interruption_during_growth_of_the_slab_finds_every_slot", Some(4), || {
        let pool = unheard(options(3, 3));
        let leases = [(); 2].map(|()| leased(&pool));
        pool.clear(Clear::new().interrupt_in_use_connections(true)).unwrap();
        pool.ready();
        let permit = permit(poll(&mut waiter(&pool)).expect("no permit"));
        let creates = thread::spawn(move || drop(permit.create()));
        pool.maintain();
        creates.join().unwrap();
        for lease in leases {
            assert!(lease.is_interrupted());
            check_in(lease);
        }
        wind_up(pool);
    });
}

#[test]
fn waiters_fail_after_pool_cleared_is_emitted() {
    model("waiters_fail_after_pool_cleared_is_emitted", Some(3), || {
        let pool = recorded(options(1, 1));
        let lease = leased(&pool);
        let waits = queued(&pool);
        let fails = thread::spawn({
            let pool = pool.clone();
            move || match loom::future::block_on(waits) {
                Grant::Refused(refusal) => {
                    drop(pool.check_out_failed(pool.check_out_started(), pool.refused(*refusal)))
                }
                other => panic!("{other:?}"),
            }
        });
        pool.clear(Clear::new()).unwrap();
        fails.join().unwrap();
        let names = pool.environment().names();
        let place_of = |name| names.iter().position(|present| *present == name).expect("an event is missing");
        assert!(place_of("PoolCleared") < place_of("ConnectionCheckOutFailed"), "{names:?}");
        check_in(lease);
        wind_up(pool);
    });
}
