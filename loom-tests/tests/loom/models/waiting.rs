//! Orderings 3 and 4: no wake-up is lost, nothing that was handed over is lost, and nobody overtakes.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use loom::thread;
use wharf::Clear;
use wharf::unstable::pool::Grant;

use super::harness::model;
use super::world::*;

#[test]
fn a_check_in_against_a_registration_loses_no_wake_up() {
    model("a_check_in_against_a_registration_loses_no_wake_up", Some(6), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in(lease));
        let idle = connection(acquire(&pool));
        check_in(check_out(&pool, idle));
        returns.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn a_check_in_to_another_shard_against_a_registration_loses_no_wake_up() {
    model("a_check_in_to_another_shard_against_a_registration_loses_no_wake_up", Some(6), || {
        let pool = unheard(options(8, 1));
        let lease = leased(&pool);
        let blocks_opening = pending(&pool);
        let returns = thread::spawn(move || {
            prefer_shard(1);
            check_in(lease);
        });
        let idle = connection(acquire(&pool));
        check_in(check_out(&pool, idle));
        returns.join().unwrap();
        drop(blocks_opening);
        wind_up(pool);
    });
}

#[test]
fn a_permit_that_comes_free_against_a_registration_loses_no_wake_up() {
    model("a_permit_that_comes_free_against_a_registration_loses_no_wake_up", None, || {
        let pool = unheard(options(1, 1));
        let pending = pending(&pool);
        let fails = thread::spawn(move || drop(pending));
        drop(permit(acquire(&pool)));
        fails.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn two_check_outs_share_one_connection_and_both_are_answered() {
    model("two_check_outs_share_one_connection_and_both_are_answered", Some(2), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let others = [(); 2].map(|()| {
            let pool = pool.clone();
            thread::spawn(move || {
                let idle = connection(acquire(&pool));
                check_in(check_out(&pool, idle));
            })
        });
        check_in(lease);
        for other in others {
            other.join().unwrap();
        }
        wind_up(pool);
    });
}

/// The first in the queue gives up while something is granted. The second must get it.
fn cancelled(name: &'static str, prepare: impl Fn(&Arc<Pool>) -> Box<dyn FnOnce() + Send> + Send + Sync + 'static) {
    model(name, Some(3), move || {
        let pool = unheard(options(1, 1));
        let give = prepare(&pool);
        let (first, second) = (queued(&pool), queued(&pool));
        let gives = thread::spawn(give);
        let cancels = thread::spawn(move || drop(first));
        match loom::future::block_on(second) {
            Grant::Refused(refusal) => panic!("{refusal:?}"),
            granted => drop(granted),
        }
        gives.join().unwrap();
        cancels.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn a_cancelled_waiter_loses_no_connection_for_the_next() {
    cancelled("a_cancelled_waiter_loses_no_connection_for_the_next", |pool| {
        let lease = leased(pool);
        Box::new(move || check_in(lease))
    });
}

#[test]
fn a_cancelled_waiter_loses_no_permit_for_the_next() {
    cancelled("a_cancelled_waiter_loses_no_permit_for_the_next", |pool| {
        let pending = pending(pool);
        Box::new(move || drop(pending))
    });
}

#[test]
fn a_connection_for_the_last_waiter_who_gave_up_is_available_again() {
    model("a_connection_for_the_last_waiter_who_gave_up_is_available_again", None, || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let only = queued(&pool);
        let cancels = thread::spawn(move || drop(only));
        check_in(lease);
        cancels.join().unwrap();
        drop(pool.try_take().expect("the connection is there for all"));
        wind_up(pool);
    });
}

#[test]
fn a_clear_against_a_registration_lets_nobody_wait_forever() {
    model("a_clear_against_a_registration_lets_nobody_wait_forever", Some(5), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let clears = thread::spawn({
            let pool = pool.clone();
            move || pool.clear(Clear::new()).unwrap()
        });
        assert!(matches!(acquire(&pool), Grant::Refused(_)));
        clears.join().unwrap();
        check_in(lease);
        wind_up(pool);
    });
}

#[test]
fn a_close_against_a_registration_lets_nobody_wait_forever() {
    model("a_close_against_a_registration_lets_nobody_wait_forever", Some(5), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let closes = thread::spawn({
            let pool = pool.clone();
            move || pool.close()
        });
        assert!(matches!(acquire(&pool), Grant::Refused(_)));
        closes.join().unwrap();
        check_in(lease);
        wind_up(pool);
    });
}

#[test]
fn a_clear_against_a_hand_over_answers_the_waiter_once() {
    model("a_clear_against_a_hand_over_answers_the_waiter_once", Some(3), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let waits = queued(&pool);
        let returns = thread::spawn(move || check_in(lease));
        let clears = thread::spawn({
            let pool = pool.clone();
            move || pool.clear(Clear::new()).unwrap()
        });
        drop(loom::future::block_on(waits));
        returns.join().unwrap();
        clears.join().unwrap();
        pool.maintain();
        assert_empty(&pool);
        wind_up(pool);
    });
}

#[test]
fn a_cleared_connection_is_never_handed_to_a_later_waiter() {
    model("a_cleared_connection_is_never_handed_to_a_later_waiter", Some(3), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let earlier = queued(&pool);
        let returns = thread::spawn(move || check_in(lease));
        pool.clear(Clear::new()).unwrap();
        drop(earlier);
        pool.ready();
        drop(permit(acquire(&pool)));
        returns.join().unwrap();
        wind_up(pool);
    });
}

/// Somebody waits, something comes free, and a newcomer asks for it. The one who waits must be first.
fn in_order(name: &'static str, prepare: impl Fn(&Arc<Pool>) -> Box<dyn FnOnce() + Send> + Send + Sync + 'static) {
    model(name, Some(2), move || {
        let pool = unheard(options(1, 1));
        let order = Arc::new(Mutex::new(Vec::new()));
        let give = prepare(&pool);
        let first = queued(&pool);
        let gives = thread::spawn(give);
        let newcomer = thread::spawn({
            let (pool, order) = (pool.clone(), order.clone());
            move || {
                let granted = acquire(&pool);
                order.lock().unwrap().push("newcomer");
                drop(granted);
            }
        });
        let granted = loom::future::block_on(first);
        order.lock().unwrap().push("first");
        drop(granted);
        gives.join().unwrap();
        newcomer.join().unwrap();
        assert_eq!(*order.lock().unwrap(), ["first", "newcomer"]);
        wind_up(pool);
    });
}

#[test]
fn a_newcomer_never_overtakes_who_waits_for_a_connection() {
    in_order("a_newcomer_never_overtakes_who_waits_for_a_connection", |pool| {
        let lease = leased(pool);
        Box::new(move || check_in(lease))
    });
}

#[test]
fn a_newcomer_never_overtakes_who_waits_for_a_permit() {
    in_order("a_newcomer_never_overtakes_who_waits_for_a_permit", |pool| {
        let pending = pending(pool);
        Box::new(move || drop(pending))
    });
}

#[test]
fn a_warm_up_never_overtakes_who_waits_for_a_permit() {
    model("a_warm_up_never_overtakes_who_waits_for_a_permit", Some(6), || {
        let pool = unheard(options(1, 1).min_pool_size(1));
        let failing = pending(&pool);
        let mut waits = queued(&pool);
        let fails = thread::spawn(move || drop(failing));
        assert!(pool.populate().is_none(), "the permit belongs to who waits");
        fails.join().unwrap();
        drop(permit(poll(&mut waits).expect("a permit")));
        wind_up(pool);
    });
}

#[test]
fn the_second_in_the_queue_is_never_served_before_the_first() {
    model("the_second_in_the_queue_is_never_served_before_the_first", None, || {
        let pool = unheard(options(2, 2));
        let leases = [(); 2].map(|()| leased(&pool));
        let (mut first, mut second) = (queued(&pool), queued(&pool));
        let returns = thread::spawn(move || leases.into_iter().for_each(check_in));
        if let Some(granted) = poll(&mut second) {
            // The first connection was granted by the thread that has since granted the second, which we still hold: given
            // back, it would go to the first.
            drop(connection(poll(&mut first).expect("the first is served first")));
            drop(connection(granted));
        }
        returns.join().unwrap();
        drop((first, second));
        wind_up(pool);
    });
}

/// It has queued up with a waker that wakes nobody.
#[test]
fn a_waiter_polled_with_another_waker_is_woken_by_that_one() {
    model("a_waiter_polled_with_another_waker_is_woken_by_that_one", None, || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let waits = queued(&pool);
        let returns = thread::spawn(move || check_in(lease));
        drop(connection(loom::future::block_on(waits)));
        returns.join().unwrap();
        wind_up(pool);
    });
}

/// A second poll compares the wakers without the lock, while the granter may be moving the waker out.
#[test]
fn a_waiter_polled_again_with_its_waker_is_woken_once_it_is_served() {
    model("a_waiter_polled_again_with_its_waker_is_woken_once_it_is_served", None, || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let mut waits = queued(&pool);
        let returns = thread::spawn(move || check_in(lease));
        let twice = poll_fn(|context| match waits.as_mut().poll(context) {
            Poll::Pending => waits.as_mut().poll(context),
            granted => granted,
        });
        drop(connection(loom::future::block_on(twice)));
        returns.join().unwrap();
        drop(waits);
        wind_up(pool);
    });
}

/// A clear takes all waiters out of the queue at once, and refuses them one after the other.
///
/// The second one is not polled before the end of the clear: it would wait for its grant as the first one does, and loom
/// never tires of running two threads in turn that both wait for a third.
#[test]
fn a_waiter_that_leaves_during_a_clear_is_counted_out_once() {
    model("a_waiter_that_leaves_during_a_clear_is_counted_out_once", Some(2), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let (first, second) = (queued(&pool), queued(&pool));
        let clears = thread::spawn({
            let pool = pool.clone();
            move || pool.clear(Clear::new()).unwrap()
        });
        let leaves = thread::spawn(move || drop(first));
        clears.join().unwrap();
        assert!(matches!(loom::future::block_on(second), Grant::Refused(_)));
        leaves.join().unwrap();
        assert_eq!(pool.status().waiting, 0);
        check_in(lease);
        pool.maintain();
        wind_up(pool);
    });
}
