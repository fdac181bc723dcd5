//! Models of pools that share a budget: there are never more connections than places, no pool is forgotten, and no
//! connection is closed unnecessarily.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use loom::thread;
use wharf::unstable::pool::{Budget, Grant};

use super::harness::model;
use super::world::*;

fn budget(connections: u32) -> Budget {
    Budget::new(connections).unwrap()
}

#[test]
fn pools_never_hold_more_connections_than_their_budget_has_places() {
    model("pools_never_hold_more_connections_than_their_budget_has_places", Some(4), || {
        let budget = budget(1);
        let (one, two) = (sharing(&budget, options(2, 2)), sharing(&budget, options(2, 2)));
        let held = Arc::new(AtomicU32::new(0));
        let attempt = |pool, held: Arc<AtomicU32>| {
            if let Some(Grant::Permit(permit)) = poll(&mut waiter(&pool)) {
                assert_eq!(held.fetch_add(1, Ordering::Relaxed), 0, "two connections under a budget of one");
                thread::yield_now();
                held.fetch_sub(1, Ordering::Relaxed);
                drop(permit);
            }
        };
        let other = thread::spawn({
            let (one, held) = (one.clone(), held.clone());
            move || attempt(one, held)
        });
        attempt(two.clone(), held);
        other.join().unwrap();
        assert_eq!(budget.status().connections, 0, "a place is lost");
        wind_up(one);
        wind_up(two);
    });
}

#[test]
fn place_given_back_while_another_pool_queues_up_loses_no_wake_up() {
    model("place_given_back_while_another_pool_queues_up_loses_no_wake_up", Some(4), || {
        let budget = budget(1);
        let (one, two) = (sharing(&budget, options(1, 1)), sharing(&budget, options(1, 1)));
        let permit_of_one = permit(poll(&mut waiter(&one)).expect("no permit"));
        let gives_back = thread::spawn(move || drop(permit_of_one));
        drop(permit(acquire(&two)));
        gives_back.join().unwrap();
        wind_up(one);
        wind_up(two);
    });
}

#[test]
fn place_given_back_while_a_pool_leaves_the_queue_goes_to_the_next_pool() {
    model("place_given_back_while_a_pool_leaves_the_queue_goes_to_the_next_pool", Some(2), || {
        let budget = budget(1);
        let [one, two, three] = [(); 3].map(|()| sharing(&budget, options(1, 1)));
        let permit_of_one = permit(poll(&mut waiter(&one)).expect("no permit"));
        let cancelled = queued(&two);
        let gives_back = thread::spawn(move || drop(permit_of_one));
        let waits = thread::spawn({
            let three = three.clone();
            move || drop(permit(acquire(&three)))
        });
        // The cancelled check-out may already have been granted the permit.
        drop(cancelled);
        gives_back.join().unwrap();
        waits.join().unwrap();
        assert_eq!((budget.status().connections, budget.status().waiting_pools), (0, 0));
        for pool in [one, two, three] {
            wind_up(pool);
        }
    });
}

#[test]
fn pool_whose_waiters_leave_is_no_longer_in_the_queue() {
    model("pool_whose_waiters_leave_is_no_longer_in_the_queue", Some(4), || {
        let budget = budget(1);
        let (one, two) = (sharing(&budget, options(1, 1)), sharing(&budget, options(1, 1)));
        let held = leased(&one);
        let (first, second) = (queued(&two), queued(&two));
        let leaves = thread::spawn(move || drop(first));
        drop(second);
        leaves.join().unwrap();
        assert_eq!(budget.status().waiting_pools, 0, "a pool without a waiter is in the queue");
        check_in(held);
        assert_eq!(one.status().available, 1, "a connection was closed for nothing");
        wind_up(one);
        wind_up(two);
    });
}

#[test]
fn connection_returned_while_another_pool_queues_up_is_found_at_the_next_look() {
    model("connection_returned_while_another_pool_queues_up_is_found_at_the_next_look", None, || {
        let budget = budget(1);
        let (one, two) = (sharing(&budget, options(1, 1)), sharing(&budget, options(1, 1)));
        let held = leased(&one);
        let returns = thread::spawn(move || check_in(held));
        let mut waits = waiter(&two);
        let granted = poll(&mut waits);
        returns.join().unwrap();
        two.maintain();
        let granted =
            granted.or_else(|| poll(&mut waits)).expect("a pool starves while another has an idle connection");
        drop(permit(granted));
        drop(waits);
        wind_up(one);
        wind_up(two);
    });
}

#[test]
fn pool_in_the_queue_costs_others_one_connection() {
    model("pool_in_the_queue_costs_others_one_connection", Some(4), || {
        let budget = budget(3);
        let (one, two) = (sharing(&budget, options(3, 3)), sharing(&budget, options(1, 1)));
        let [first, second, third] = [(); 3].map(|()| leased(&one));
        let mut starves = queued(&two);
        let returns = thread::spawn(move || check_in(first));
        check_in(second);
        returns.join().unwrap();
        assert_eq!(one.status().total, 2, "not one connection was closed");
        drop(permit(poll(&mut starves).expect("the pool that starves was not served")));
        drop(starves);
        check_in(third);
        wind_up(one);
        wind_up(two);
    });
}

#[test]
fn connection_is_returned_while_a_check_out_that_may_not_wait_asks_for_a_place() {
    model("connection_is_returned_while_a_check_out_that_may_not_wait_asks_for_a_place", Some(4), || {
        let budget = budget(1);
        let pool = impatient(&budget, options(2, 2));
        let held = leased(&pool);
        let returns = thread::spawn(move || check_in(held));
        let granted = poll(&mut waiter(&pool)).expect("the check-out waits");
        returns.join().unwrap();
        assert!(matches!(granted, Grant::Connection(_) | Grant::Refused(_)), "two connections under a budget of one");
        drop(granted);
        assert_eq!((pool.status().available, budget.status().waiting_pools), (1, 0));
        wind_up(pool);
    });
}
