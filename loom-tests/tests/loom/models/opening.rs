//! Models of orderings 1, 2 and 7: the events and the counts when connections are opened.

use std::sync::Arc;

use loom::thread::{self, JoinHandle};
use wharf::unstable::pool::{Grant, Opening, SharedOpening, SharedPermit};
use wharf::{Clear, Phase, PoolEvent};

use super::harness::model;
use super::world::*;

/// Asserts that every `ConnectionCreated` comes after a `PoolReady`, with no `PoolCleared` between these two events.
fn assert_created_while_ready(pool: &Pool) {
    let mut ready = false;
    for name in pool.environment().names() {
        match name {
            "PoolReady" => ready = true,
            "PoolCleared" => ready = false,
            "ConnectionCreated" => assert!(ready, "created while not ready: {:?}", pool.environment().names()),
            _ => {}
        }
    }
}

#[test]
fn pool_ready_is_emitted_before_a_check_out_creates_a_connection() {
    model("pool_ready_is_emitted_before_a_check_out_creates_a_connection", None, || {
        let pool = paused_and_recorded(options(1, 1));
        let marks = thread::spawn({
            let pool = pool.clone();
            move || pool.ready()
        });
        let grant = acquire(&pool);
        make_use(&pool, grant);
        marks.join().unwrap();
        assert_created_while_ready(&pool);
        wind_up(pool);
    });
}

#[test]
fn pool_ready_is_emitted_before_the_background_task_creates_a_connection() {
    model("pool_ready_is_emitted_before_the_background_task_creates_a_connection", None, || {
        let pool = paused_and_recorded(options(1, 1).min_pool_size(1));
        let marks = thread::spawn({
            let pool = pool.clone();
            move || pool.ready()
        });
        drop(pool.populate());
        marks.join().unwrap();
        assert_created_while_ready(&pool);
        wind_up(pool);
    });
}

#[test]
fn connections_are_created_only_between_pool_ready_and_pool_cleared() {
    model("connections_are_created_only_between_pool_ready_and_pool_cleared", Some(3), || {
        let pool = paused_and_recorded(options(1, 1));
        let marks = thread::spawn({
            let pool = pool.clone();
            move || pool.ready()
        });
        let clears = thread::spawn({
            let pool = pool.clone();
            move || pool.clear(Clear::new()).unwrap()
        });
        let grant = poll(&mut waiter(&pool)).expect("neither a permit nor a refusal");
        make_use(&pool, grant);
        marks.join().unwrap();
        clears.join().unwrap();
        assert_created_while_ready(&pool);
        wind_up(pool);
    });
}

#[test]
fn thread_that_sees_a_ready_pool_sees_the_pool_ready_event() {
    model("thread_that_sees_a_ready_pool_sees_the_pool_ready_event", None, || {
        let pool = paused_and_recorded(options(1, 1));
        let marks = thread::spawn({
            let pool = pool.clone();
            move || pool.ready()
        });
        if pool.state().phase == Phase::Ready {
            assert!(pool.environment().known() >= 2, "PoolCreated or PoolReady is not visible");
        }
        marks.join().unwrap();
        wind_up(pool);
    });
}

/// A connection becomes available and stops being pending while a check-out searches. The check-out must find this
/// connection and must not open a second one.
fn becomes_available(name: &'static str, max_pool_size: u32) {
    model(name, Some(5), move || {
        let pool = unheard(options(max_pool_size, 1));
        let (idle, opening) = opened(&pool);
        let opens = thread::spawn(move || {
            prefer_shard(1);
            opening.hand_on(Some(idle));
        });
        let idle = connection(acquire(&pool));
        check_in(check_out(&pool, idle));
        opens.join().unwrap();
        assert_eq!(pool.environment().opened(), 1, "the check-out opened a needless connection");
        wind_up(pool);
    });
}

#[test]
fn pending_count_drops_after_the_connection_is_available() {
    becomes_available("pending_count_drops_after_the_connection_is_available", 2);
}

#[test]
fn pending_count_drops_after_the_connection_is_available_on_another_shard() {
    becomes_available("pending_count_drops_after_the_connection_is_available_on_another_shard", 8);
}

#[test]
fn ids_are_in_the_order_of_the_created_events() {
    model("ids_are_in_the_order_of_the_created_events", None, || {
        let pool = recorded(options(2, 2));
        let permits = [(); 2].map(|()| permit(poll(&mut waiter(&pool)).unwrap()));
        let [here, there] = permits;
        let creates = thread::spawn(move || drop(there.create()));
        drop(here.create());
        creates.join().unwrap();
        let events = pool.environment().events();
        let created = events.iter().filter(|event| event.name() == "ConnectionCreated");
        let ids: Vec<u64> = created.filter_map(PoolEvent::connection_id).collect();
        assert_eq!(ids, [1, 2]);
        wind_up(pool);
    });
}

/// A check-out shares its permit with the task that opens the connection. If another connection is returned first, the
/// check-out gives up the permit. A second check-out is waiting for that permit.
#[test]
fn shared_permit_is_used_once_or_given_up() {
    model("shared_permit_is_used_once_or_given_up", Some(4), || {
        let pool = unheard(options(1, 1));
        let right = Arc::new(SharedPermit::new(permit(poll(&mut waiter(&pool)).expect("no permit"))));
        let waits = queued(&pool);
        let opens = thread::spawn({
            let (pool, right) = (pool.clone(), right.clone());
            move || {
                let Some(permit) = right.take() else { return false };
                make_use(&pool, Grant::Permit(permit));
                true
            }
        });
        let given_up = right.take().map(drop).is_some();
        drop(right);
        let granted = loom::future::block_on(waits);
        assert_eq!(given_up, matches!(granted, Grant::Permit(_)), "{granted:?}");
        assert_ne!(opens.join().unwrap(), given_up, "both owners took the permit, or neither");
        drop(granted);
        wind_up(pool);
    });
}

#[test]
fn connection_that_is_handed_to_a_waiter_is_not_pending() {
    model("connection_that_is_handed_to_a_waiter_is_not_pending", Some(4), || {
        let pool = unheard(options(2, 1));
        let (idle, opening) = opened(&pool);
        let waits = queued(&pool);
        let opens = thread::spawn(move || opening.hand_on(Some(idle)));
        let idle = connection(loom::future::block_on(waits));
        assert_eq!(pool.status().pending, 0, "the connection counts as pending");
        opens.join().unwrap();
        check_in(check_out(&pool, idle));
        wind_up(pool);
    });
}

/// Shares an opening with a new thread, which ends it. The caller also ends it.
fn opening_that_another_ends(opening: Opening<World>) -> (Arc<SharedOpening<World>>, JoinHandle<()>) {
    let shared = Arc::new(SharedOpening::new());
    shared.share(opening);
    let ends = thread::spawn({
        let shared = shared.clone();
        move || shared.end()
    });
    (shared, ends)
}

#[test]
fn opened_connection_is_not_pending_when_its_check_out_returns() {
    model("opened_connection_is_not_pending_when_its_check_out_returns", None, || {
        let pool = unheard(options(2, 1));
        let (idle, opening) = opened(&pool);
        let (shared, ends) = opening_that_another_ends(opening);
        shared.end();
        assert_eq!(pool.status().pending, 0, "the connection counts as pending");
        ends.join().unwrap();
        check_in(check_out(&pool, idle));
        wind_up(pool);
    });
}

#[test]
fn permit_of_an_opening_that_two_end_goes_to_a_waiter() {
    model("permit_of_an_opening_that_two_end_goes_to_a_waiter", Some(4), || {
        let pool = unheard(options(2, 1));
        let (idle, opening) = opened(&pool);
        let waits = queued(&pool);
        let (shared, ends) = opening_that_another_ends(opening);
        shared.end();
        drop(permit(loom::future::block_on(waits)));
        ends.join().unwrap();
        check_in(check_out(&pool, idle));
        wind_up(pool);
    });
}
