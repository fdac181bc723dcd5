//! The hit path: `try_check_out` with `pop_at_once`, and the drop of a lease with `push_at_once`, against each other and
//! against all that changes a shard's head.

use loom::thread;
use wharf::Clear;

use super::harness::model;
use super::world::*;

#[test]
fn two_hits_share_no_connection() {
    model("two_hits_share_no_connection", None, || {
        let pool = unheard(options(1, 1));
        check_in(leased(&pool));
        let other = thread::spawn({
            let pool = pool.clone();
            move || hit(&pool).map(check_in).is_some()
        });
        let here = hit(&pool).map(check_in).is_some();
        assert!(other.join().unwrap() || here, "one of the two is first");
        assert_eq!(pool.status().available, 1);
        wind_up(pool);
    });
}

#[test]
fn two_returns_lose_no_connection() {
    model("two_returns_lose_no_connection", None, || {
        let pool = unheard(options(2, 2));
        let [here, there] = [(); 2].map(|()| leased(&pool));
        let other = thread::spawn(move || check_in(there));
        check_in(here);
        other.join().unwrap();
        assert_eq!(pool.status().available, 2);
        wind_up(pool);
    });
}

#[test]
fn a_hit_against_a_return_loses_no_connection() {
    model("a_hit_against_a_return_loses_no_connection", None, || {
        let pool = unheard(options(2, 2));
        let [here, there] = [(); 2].map(|()| leased(&pool));
        check_in(here);
        let returns = thread::spawn(move || check_in(there));
        let taken = hit(&pool).or_else(|| hit(&pool));
        returns.join().unwrap();
        taken.into_iter().for_each(check_in);
        assert_eq!(pool.status().available, 2);
        wind_up(pool);
    });
}

#[test]
fn a_hit_sees_what_the_last_user_did() {
    model("a_hit_sees_what_the_last_user_did", None, || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in(lease));
        hit(&pool).into_iter().for_each(check_in);
        returns.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn a_hit_never_mistakes_an_old_head_for_a_new_one() {
    model("a_hit_never_mistakes_an_old_head_for_a_new_one", Some(6), || {
        let pool = unheard(options(2, 2));
        let leases = [(); 2].map(|()| leased(&pool));
        leases.into_iter().for_each(check_in);
        let shuffles = thread::spawn({
            let pool = pool.clone();
            move || {
                let (top, below) = (hit(&pool), hit(&pool));
                top.into_iter().for_each(check_in);
                below
            }
        });
        let taken = hit(&pool);
        let below = shuffles.join().unwrap();
        let left = hit(&pool);
        [taken, below, left].into_iter().flatten().for_each(check_in);
        assert_eq!(pool.status().available, 2);
        wind_up(pool);
    });
}

#[test]
fn a_hit_and_its_return_against_a_registration_lose_no_wake_up() {
    model("a_hit_and_its_return_against_a_registration_lose_no_wake_up", Some(4), || {
        let pool = unheard(options(1, 1));
        check_in(leased(&pool));
        let hits = thread::spawn({
            let pool = pool.clone();
            move || hit(&pool).map(check_in).is_some()
        });
        let idle = connection(acquire(&pool));
        check_in(check_out(&pool, idle));
        hits.join().unwrap();
        check_in(hit(&pool).expect("nobody waits, so the connection is there for all"));
        wind_up(pool);
    });
}

#[test]
fn a_hit_never_overtakes_a_queued_waiter() {
    model("a_hit_never_overtakes_a_queued_waiter", Some(3), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let mut waits = queued(&pool);
        let returns = thread::spawn(move || check_in(lease));
        assert!(hit(&pool).is_none(), "the connection is the waiter's");
        returns.join().unwrap();
        drop(connection(poll(&mut waits).expect("the waiter is served")));
        check_in(hit(&pool).expect("nobody waits, so the connection is there for all"));
        wind_up(pool);
    });
}

#[test]
fn a_hit_against_a_clear_shares_no_connection_with_it() {
    model("a_hit_against_a_clear_shares_no_connection_with_it", Some(6), || {
        let pool = unheard(options(1, 1));
        check_in(leased(&pool));
        let clears = thread::spawn({
            let pool = pool.clone();
            move || {
                pool.clear(Clear::new()).unwrap();
                pool.maintain();
            }
        });
        hit(&pool).into_iter().for_each(check_in);
        clears.join().unwrap();
        pool.maintain();
        assert_empty(&pool);
        wind_up(pool);
    });
}

/// The stale connection lies in the shard, or it does not: a hit after the clear tells.
#[test]
fn a_return_against_a_clear_leaves_no_stale_connection_to_hit() {
    model("a_return_against_a_clear_leaves_no_stale_connection_to_hit", Some(6), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in(lease));
        pool.clear(Clear::new()).unwrap();
        pool.ready();
        returns.join().unwrap();
        assert!(hit(&pool).is_none(), "a connection of an older generation");
        pool.maintain();
        assert_empty(&pool);
        wind_up(pool);
    });
}

#[test]
fn a_hit_against_a_close_shares_no_connection_with_it() {
    model("a_hit_against_a_close_shares_no_connection_with_it", Some(4), || {
        let pool = unheard(options(1, 1));
        check_in(leased(&pool));
        let closes = thread::spawn({
            let pool = pool.clone();
            move || pool.close()
        });
        hit(&pool).into_iter().for_each(check_in);
        closes.join().unwrap();
        assert_empty(&pool);
        wind_up(pool);
    });
}

#[test]
fn a_return_against_a_close_is_closed_once() {
    model("a_return_against_a_close_is_closed_once", Some(6), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in(lease));
        pool.close();
        returns.join().unwrap();
        assert!(hit(&pool).is_none(), "a closed pool has nothing to hit");
        assert_empty(&pool);
        wind_up(pool);
    });
}

/// One connection goes from the bottom of one stack to the top of the other, while the caller holds a third. A reading
/// of its new height with the old head would count the held one as available.
#[test]
fn a_consistent_status_counts_a_held_connection_as_in_use() {
    model("a_consistent_status_counts_a_held_connection_as_in_use", Some(2), || {
        let pool = unheard(options(8, 3));
        let [held, first, second] = [(); 3].map(|()| leased(&pool));
        check_in(first);
        prefer_shard(1);
        check_in(second);
        let moves = thread::spawn({
            let pool = pool.clone();
            move || {
                prefer_shard(0);
                let moved = hit(&pool).expect("nobody else takes it");
                prefer_shard(1);
                check_in(moved);
            }
        });
        let status = pool.status();
        assert!(!status.consistent || status.in_use > 0, "{status:?}");
        moves.join().unwrap();
        check_in(held);
        wind_up(pool);
    });
}

#[test]
fn a_hit_takes_nothing_where_events_are_due() {
    model("a_hit_takes_nothing_where_events_are_due", None, || {
        let pool = recorded(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in(lease));
        assert!(hit(&pool).is_none(), "a check-out without its events");
        returns.join().unwrap();
        assert!(hit(&pool).is_none(), "a check-out without its events");
        wind_up(pool);
    });
}
