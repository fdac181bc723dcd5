//! Models of orderings 3 and 4: wake-ups and grants are never lost, and check-outs never overtake a waiter.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering as StatisticOrdering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use loom::thread;
use wharf::Clear;
use wharf::unstable::pool::Grant;

use super::harness::model;
use super::world::*;

#[test]
fn check_in_while_a_check_out_queues_up_loses_no_wake_up() {
    model("check_in_while_a_check_out_queues_up_loses_no_wake_up", Some(5), || {
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
fn check_in_to_another_shard_while_a_check_out_queues_up_loses_no_wake_up() {
    model("check_in_to_another_shard_while_a_check_out_queues_up_loses_no_wake_up", Some(5), || {
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
fn permit_freed_while_a_check_out_queues_up_loses_no_wake_up() {
    model("permit_freed_while_a_check_out_queues_up_loses_no_wake_up", Some(5), || {
        let pool = unheard(options(1, 1));
        let pending = pending(&pool);
        let fails = thread::spawn(move || drop(pending));
        drop(permit(acquire(&pool)));
        fails.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn two_check_outs_are_both_served_by_one_connection() {
    model("two_check_outs_are_both_served_by_one_connection", Some(1), || {
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

/// Cancels the first of two waiters just as it may be granted the connection or permit that `prepare` provides. The
/// second waiter must then get it.
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
fn cancelled_waiter_passes_its_connection_on() {
    cancelled("cancelled_waiter_passes_its_connection_on", |pool| {
        let lease = leased(pool);
        Box::new(move || check_in(lease))
    });
}

#[test]
fn cancelled_waiter_passes_its_permit_on() {
    cancelled("cancelled_waiter_passes_its_permit_on", |pool| {
        let pending = pending(pool);
        Box::new(move || drop(pending))
    });
}

#[test]
fn connection_granted_to_a_cancelled_last_waiter_is_available_again() {
    model("connection_granted_to_a_cancelled_last_waiter_is_available_again", None, || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let only = queued(&pool);
        let cancels = thread::spawn(move || drop(only));
        check_in(lease);
        cancels.join().unwrap();
        drop(pool.try_take().expect("the connection is not available"));
        wind_up(pool);
    });
}

#[test]
fn check_out_that_queues_up_during_a_clear_is_refused() {
    model("check_out_that_queues_up_during_a_clear_is_refused", Some(4), || {
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

/// The newcomer queues up behind the other waiter without the lock, while the clear takes all tickets out of the word.
#[test]
fn check_out_that_queues_up_behind_another_during_a_clear_is_refused() {
    model("check_out_that_queues_up_behind_another_during_a_clear_is_refused", Some(3), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let first = queued(&pool);
        let clears = thread::spawn({
            let pool = pool.clone();
            move || pool.clear(Clear::new()).unwrap()
        });
        assert!(matches!(acquire(&pool), Grant::Refused(_)));
        clears.join().unwrap();
        drop(first);
        check_in(lease);
        wind_up(pool);
    });
}

#[test]
fn check_out_that_queues_up_during_a_close_is_refused() {
    model("check_out_that_queues_up_during_a_close_is_refused", Some(4), || {
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
fn hand_over_during_a_clear_answers_the_waiter_once() {
    model("hand_over_during_a_clear_answers_the_waiter_once", Some(2), || {
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
fn stale_connection_is_never_handed_to_a_later_waiter() {
    model("stale_connection_is_never_handed_to_a_later_waiter", Some(3), || {
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

/// Asserts that `first` is served before a newcomer that arrives while it waits.
fn served_before_a_newcomer(pool: &Arc<Pool>, first: impl Future<Output = Grant<World>>) {
    let order = Arc::new(Mutex::new(Vec::new()));
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
    newcomer.join().unwrap();
    assert_eq!(*order.lock().unwrap(), ["first", "newcomer"]);
}

/// Frees a connection or a permit while one check-out is waiting and another arrives.
fn in_order(name: &'static str, prepare: impl Fn(&Arc<Pool>) -> Box<dyn FnOnce() + Send> + Send + Sync + 'static) {
    model(name, Some(2), move || {
        let pool = unheard(options(1, 1));
        let give = prepare(&pool);
        let first = queued(&pool);
        let gives = thread::spawn(give);
        served_before_a_newcomer(&pool, first);
        gives.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn newcomer_never_overtakes_a_waiter_for_a_connection() {
    in_order("newcomer_never_overtakes_a_waiter_for_a_connection", |pool| {
        let lease = leased(pool);
        Box::new(move || check_in(lease))
    });
}

/// The first waiter's connection goes stale after the grant.
#[test]
fn newcomer_never_overtakes_a_check_out_whose_connection_went_stale() {
    model("newcomer_never_overtakes_a_check_out_whose_connection_went_stale", Some(2), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let mut first = queued(&pool);
        check_in(lease);
        let stale = connection(poll(&mut first).expect("no connection"));
        pool.renew();
        served_before_a_newcomer(&pool, pool.reacquire(stale));
        wind_up(pool);
    });
}

#[test]
fn check_out_queued_again_during_a_clear_is_refused() {
    model("check_out_queued_again_during_a_clear_is_refused", Some(3), || {
        let pool = unheard(options(2, 1));
        let lease = leased(&pool);
        let opening = pending(&pool);
        let mut first = queued(&pool);
        check_in(lease);
        let stale = connection(poll(&mut first).expect("no connection"));
        pool.renew();
        let clears = thread::spawn({
            let pool = pool.clone();
            move || pool.clear(Clear::new()).unwrap()
        });
        let granted = loom::future::block_on(pool.reacquire(stale));
        assert!(matches!(granted, Grant::Refused(_)), "{granted:?}");
        clears.join().unwrap();
        drop(opening);
        wind_up(pool);
    });
}

#[test]
fn newcomer_never_overtakes_a_waiter_for_a_permit() {
    in_order("newcomer_never_overtakes_a_waiter_for_a_permit", |pool| {
        let pending = pending(pool);
        Box::new(move || drop(pending))
    });
}

#[test]
fn background_task_never_overtakes_a_waiter_for_a_permit() {
    model("background_task_never_overtakes_a_waiter_for_a_permit", Some(6), || {
        let pool = unheard(options(1, 1).min_pool_size(1));
        let failing = pending(&pool);
        let mut waits = queued(&pool);
        let fails = thread::spawn(move || drop(failing));
        assert!(pool.populate().is_none(), "the background task overtook the waiter");
        fails.join().unwrap();
        drop(permit(poll(&mut waits).expect("no permit")));
        wind_up(pool);
    });
}

#[test]
fn second_waiter_is_never_served_before_the_first() {
    model("second_waiter_is_never_served_before_the_first", None, || {
        let pool = unheard(options(2, 2));
        let leases = [(); 2].map(|()| leased(&pool));
        let (mut first, mut second) = (queued(&pool), queued(&pool));
        let returns = thread::spawn(move || leases.into_iter().for_each(check_in));
        if let Some(granted) = poll(&mut second) {
            // The first waiter must already have been granted the other connection. The second waiter's connection is
            // held until then, because returning it would serve the first waiter.
            drop(connection(poll(&mut first).expect("the second waiter was served first")));
            drop(connection(granted));
        }
        returns.join().unwrap();
        drop((first, second));
        wind_up(pool);
    });
}

/// The waiter has queued up with a waker that does nothing.
#[test]
fn waiter_polled_with_a_new_waker_is_woken_through_it() {
    model("waiter_polled_with_a_new_waker_is_woken_through_it", Some(5), || {
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
fn waiter_polled_again_with_its_waker_is_woken_when_served() {
    model("waiter_polled_again_with_its_waker_is_woken_when_served", Some(4), || {
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

/// A clear takes all waiters out of the queue at once, and refuses them one by one.
///
/// The second waiter is not polled until the clear has finished. Otherwise it would wait for its grant like the first
/// waiter, and loom would alternate between two waiting threads forever.
#[test]
fn waiter_cancelled_during_a_clear_is_counted_out_once() {
    model("waiter_cancelled_during_a_clear_is_counted_out_once", Some(2), || {
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

/// The granter reads the shard's flag while the earlier check-out is waiting. By the time it reads the wait list's
/// word, two later check-outs may have queued up.
#[test]
fn stale_connection_is_never_handed_to_the_first_of_two_later_waiters() {
    model("stale_connection_is_never_handed_to_the_first_of_two_later_waiters", Some(2), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let earlier = queued(&pool);
        let returns = thread::spawn(move || check_in(lease));
        pool.clear(Clear::new()).unwrap();
        drop(earlier);
        pool.ready();
        let mut later = [(); 2].map(|()| waiter(&pool));
        let granted = later.each_mut().map(poll);
        returns.join().unwrap();
        for (mut waiter, granted) in later.into_iter().zip(granted) {
            drop(permit(granted.or_else(|| poll(&mut waiter)).expect("no permit")));
        }
        wind_up(pool);
    });
}

/// One of the newcomers needs the next segment. The newcomer that leaves may be the later one.
#[test]
fn newcomer_that_leaves_takes_no_grant_of_one_before_it() {
    model("newcomer_that_leaves_takes_no_grant_of_one_before_it", Some(2), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let first = queued(&pool);
        let leaves = thread::spawn({
            let mut newcomer = waiter(&pool);
            move || drop(poll(&mut newcomer))
        });
        let (mut between, mut stays) = (waiter(&pool), waiter(&pool));
        let granted = [poll(&mut between), poll(&mut stays)];
        check_in(lease);
        drop(first);
        let [granted_between, granted] = granted;
        drop((granted_between, between));
        leaves.join().unwrap();
        drop(connection(granted.or_else(|| poll(&mut stays)).expect("the grant is lost")));
        wind_up(pool);
    });
}

/// The third check-out waits in a different segment from the first check-out.
#[test]
fn third_waiter_is_never_served_before_the_first() {
    model("third_waiter_is_never_served_before_the_first", Some(2), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let first_is_served = Arc::new(AtomicBool::new(false));
        let others = thread::spawn({
            let (pool, first_is_served) = (pool.clone(), first_is_served.clone());
            move || {
                let are_late = pool.status().waiting == 1;
                let (second, mut third) = (queued(&pool), queued(&pool));
                check_in(lease);
                let third_is_served = poll(&mut third).is_some();
                let is_early = third_is_served && are_late && !first_is_served.load(StatisticOrdering::Relaxed);
                assert!(!is_early, "the third check-out was served first");
                drop((second, third));
            }
        });
        let granted = acquire(&pool);
        first_is_served.store(true, StatisticOrdering::Relaxed);
        drop(connection(granted));
        others.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn refusal_never_reaches_a_waiter_that_came_after_the_clear() {
    model("refusal_never_reaches_a_waiter_that_came_after_the_clear", Some(2), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let earlier = [(); 2].map(|()| queued(&pool));
        let change = pool.begin_clear(Clear::new()).unwrap();
        pool.ready();
        let later = queued(&pool);
        let refuses = thread::spawn({
            let pool = pool.clone();
            move || pool.conclude(change)
        });
        check_in(lease);
        drop(permit(loom::future::block_on(later)));
        refuses.join().unwrap();
        for mut waiter in earlier {
            assert!(
                matches!(poll(&mut waiter), Some(Grant::Refused(_))),
                "a check-out from before the clear was served"
            );
        }
        wind_up(pool);
    });
}

/// The tickets before and after each clear use cells in the same segments.
#[test]
fn claim_reaches_its_waiter_during_two_clears() {
    model("claim_reaches_its_waiter_during_two_clears", Some(1), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let waits = queued(&pool);
        let returns = thread::spawn(move || check_in(lease));
        let changes = thread::spawn({
            let pool = pool.clone();
            move || {
                pool.clear(Clear::new()).unwrap();
                pool.ready();
                let mut later = waiter(&pool);
                let polled = poll(&mut later);
                pool.clear(Clear::new()).unwrap();
                (polled, later)
            }
        });
        drop(loom::future::block_on(waits));
        returns.join().unwrap();
        drop(changes.join().unwrap());
        pool.maintain();
        wind_up(pool);
    });
}
