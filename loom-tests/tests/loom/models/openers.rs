//! Orderings 3 and 4 for those who open a connection and take one that comes back sooner. In all of these models the own
//! connection never arrives: who is not woken by the one that comes back waits forever, which loom reports.

use loom::thread;

use super::harness::model;
use super::world::*;

#[test]
fn a_check_in_against_an_opener_loses_no_wake_up() {
    model("a_check_in_against_an_opener_loses_no_wake_up", Some(6), || {
        let pool = unheard(options(2, 1));
        let lease = leased(&pool);
        let own = pending(&pool);
        let returns = thread::spawn(move || check_in(lease));
        let idle = loom::future::block_on(pool.acquire_as_opener());
        check_in(check_out(&pool, idle));
        returns.join().unwrap();
        drop(pool.try_take().expect("nobody waits, so the connection is there for all"));
        drop(own);
        wind_up(pool);
    });
}

#[test]
fn an_opener_who_gives_up_loses_no_connection_for_the_next() {
    model("an_opener_who_gives_up_loses_no_connection_for_the_next", Some(3), || {
        let pool = unheard(options(2, 1));
        let lease = leased(&pool);
        let own = pending(&pool);
        let (opens, waits) = (opener(&pool), queued(&pool));
        let returns = thread::spawn(move || check_in(lease));
        let gives_up = thread::spawn(move || drop(opens));
        drop(connection(loom::future::block_on(waits)));
        returns.join().unwrap();
        gives_up.join().unwrap();
        drop(pool.try_take().expect("nobody waits, so the connection is there for all"));
        drop(own);
        wind_up(pool);
    });
}

#[test]
fn who_leaves_the_queue_lowers_no_flag_over_an_opener() {
    model("who_leaves_the_queue_lowers_no_flag_over_an_opener", Some(3), || {
        let pool = unheard(options(2, 1));
        let lease = leased(&pool);
        let own = pending(&pool);
        let (opens, waits) = (opener(&pool), queued(&pool));
        let leaves = thread::spawn(move || drop(waits));
        let returns = thread::spawn(move || check_in(lease));
        drop(loom::future::block_on(opens));
        leaves.join().unwrap();
        returns.join().unwrap();
        drop(pool.try_take().expect("nobody waits, so the connection is there for all"));
        drop(own);
        wind_up(pool);
    });
}

#[test]
fn a_permit_that_comes_free_is_not_for_an_opener() {
    model("a_permit_that_comes_free_is_not_for_an_opener", Some(3), || {
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
