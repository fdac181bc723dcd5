//! Models of checking a connection before use.

use loom::thread;
use wharf::unstable::pool::{Checking, Grant};
use wharf::{Clear, ConnectionClosedReason};

use super::clearing::closed_reasons;
use super::harness::model;
use super::world::*;

/// Opens a connection, and takes it out of the pool for a check.
fn checking(pool: &std::sync::Arc<Pool>) -> Checking<World> {
    check_in(leased(pool));
    pool.try_take().expect("the connection is not available").begin_check()
}

/// Uses the connection for an exchange, as every check does, and then passes or fails the check.
fn end(mut checking: Checking<World>, passes: bool) {
    checking.connection().0.operate();
    if passes {
        drop(checking.pass());
    } else {
        drop(checking.fail(std::sync::Arc::new(std::fmt::Error)));
    }
}

#[test]
fn connection_that_fails_its_check_gives_a_permit_to_a_waiter() {
    model("connection_that_fails_its_check_gives_a_permit_to_a_waiter", Some(4), || {
        let pool = recorded(options(1, 1));
        let checking = checking(&pool);
        let waits = queued(&pool);
        let ends = thread::spawn(move || end(checking, false));
        let grant = loom::future::block_on(waits);
        assert!(matches!(grant, Grant::Permit(_)), "a connection that has failed its check was handed over");
        make_use(&pool, grant);
        ends.join().unwrap();
        assert_eq!(closed_reasons(&pool), [ConnectionClosedReason::Error]);
        wind_up(pool);
    });
}

#[test]
fn check_out_whose_connection_fails_its_check_is_granted_its_capacity() {
    model("check_out_whose_connection_fails_its_check_is_granted_its_capacity", Some(3), || {
        let pool = recorded(options(1, 1));
        let checking = checking(&pool);
        let newcomer = thread::spawn({
            let pool = pool.clone();
            move || {
                let grant = acquire(&pool);
                make_use(&pool, grant);
            }
        });
        let grant = loom::future::block_on(pool.reacquire(checking));
        assert!(matches!(grant, Grant::Permit(_)), "{grant:?}");
        make_use(&pool, grant);
        newcomer.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn connection_whose_check_ends_during_a_clear_is_closed_once() {
    for passes in [true, false] {
        model("connection_whose_check_ends_during_a_clear_is_closed_once", Some(4), move || {
            let pool = recorded(options(1, 1));
            let checking = checking(&pool);
            let ends = thread::spawn(move || end(checking, passes));
            assert!(pool.clear(Clear::new()).unwrap());
            ends.join().unwrap();
            pool.maintain();
            assert_empty(&pool);
            match closed_reasons(&pool)[..] {
                [ConnectionClosedReason::Stale] => {}
                [ConnectionClosedReason::Error] => assert!(!passes),
                ref other => panic!("closed for {other:?}"),
            }
            wind_up(pool);
        });
    }
}
