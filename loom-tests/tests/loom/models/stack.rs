//! Models of a shard's stack: each connection has one holder, and each holder sees the writes of the previous one.

use loom::thread;
use wharf::unstable::pool::Grant;

use super::harness::model;
use super::world::*;

#[test]
fn old_head_is_never_mistaken_for_a_new_one() {
    model("old_head_is_never_mistaken_for_a_new_one", Some(6), || {
        let pool = unheard(options(2, 2));
        let leases = [(); 2].map(|()| leased(&pool));
        leases.into_iter().for_each(check_in);
        let shuffles = thread::spawn({
            let pool = pool.clone();
            move || {
                let top = pool.try_take().map(|idle| check_out(&pool, idle));
                let below = pool.try_take().map(|idle| check_out(&pool, idle));
                top.into_iter().for_each(check_in);
                below
            }
        });
        let taken = pool.try_take().map(|idle| check_out(&pool, idle));
        let below = shuffles.join().unwrap();
        let left = pool.try_take().map(|idle| check_out(&pool, idle));
        [taken, below, left].into_iter().flatten().for_each(check_in);
        assert_eq!(pool.status().available, 2);
        wind_up(pool);
    });
}

#[test]
fn check_in_publishes_the_users_writes() {
    model("check_in_publishes_the_users_writes", None, || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in(lease));
        if let Some(idle) = pool.try_take() {
            check_in(check_out(&pool, idle));
        }
        returns.join().unwrap();
        wind_up(pool);
    });
}

/// Polls with a waker that does nothing, because waking would itself synchronise the threads.
#[test]
fn hand_over_publishes_the_users_writes() {
    model("hand_over_publishes_the_users_writes", None, || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let mut waits = queued(&pool);
        let returns = thread::spawn(move || check_in(lease));
        if let Some(granted) = poll(&mut waits) {
            assert!(matches!(granted, Grant::Connection(_)));
            make_use(&pool, granted);
        }
        returns.join().unwrap();
        drop(waits);
        wind_up(pool);
    });
}
