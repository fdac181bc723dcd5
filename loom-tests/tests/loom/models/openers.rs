//! Models of orderings 3 and 4 for openers, which take a connection that is returned before their own is ready. In all
//! of these models, the opener's own connection never arrives. An opener that is not woken for a returned connection
//! therefore waits forever, which loom reports.

use loom::thread;

use super::harness::model;
use super::world::*;

#[test]
fn check_in_while_an_opener_queues_up_loses_no_wake_up() {
    model("check_in_while_an_opener_queues_up_loses_no_wake_up", Some(6), || {
        let pool = unheard(options(2, 1));
        let lease = leased(&pool);
        let own = pending(&pool);
        let returns = thread::spawn(move || check_in(lease));
        let idle = loom::future::block_on(pool.acquire_as_opener());
        check_in(check_out(&pool, idle));
        returns.join().unwrap();
        drop(pool.try_take().expect("no check-out waits, but the connection is not available"));
        drop(own);
        wind_up(pool);
    });
}

#[test]
fn cancelled_opener_passes_its_connection_on() {
    model("cancelled_opener_passes_its_connection_on", Some(3), || {
        let pool = unheard(options(2, 1));
        let lease = leased(&pool);
        let own = pending(&pool);
        let (opens, waits) = (opener(&pool), queued(&pool));
        let returns = thread::spawn(move || check_in(lease));
        let gives_up = thread::spawn(move || drop(opens));
        drop(connection(loom::future::block_on(waits)));
        returns.join().unwrap();
        gives_up.join().unwrap();
        drop(pool.try_take().expect("no check-out waits, but the connection is not available"));
        drop(own);
        wind_up(pool);
    });
}

#[test]
fn waiter_that_leaves_keeps_the_flags_raised_for_an_opener() {
    model("waiter_that_leaves_keeps_the_flags_raised_for_an_opener", Some(3), || {
        let pool = unheard(options(2, 1));
        let lease = leased(&pool);
        let own = pending(&pool);
        let (opens, waits) = (opener(&pool), queued(&pool));
        let leaves = thread::spawn(move || drop(waits));
        let returns = thread::spawn(move || check_in(lease));
        drop(loom::future::block_on(opens));
        leaves.join().unwrap();
        returns.join().unwrap();
        drop(pool.try_take().expect("no check-out waits, but the connection is not available"));
        drop(own);
        wind_up(pool);
    });
}

#[test]
fn freed_permit_goes_to_a_waiter_and_not_to_an_opener() {
    model("freed_permit_goes_to_a_waiter_and_not_to_an_opener", Some(3), || {
        let pool = unheard(options(2, 2));
        let (own, fails) = (pending(&pool), pending(&pool));
        let (opens, waits) = (opener(&pool), queued(&pool));
        let failed = thread::spawn(move || drop(fails));
        drop(permit(loom::future::block_on(waits)));
        failed.join().unwrap();
        drop(opens);
        drop(own);
        wind_up(pool);
    });
}
