//! Models of the hit path: `note_and_try_hit`, and the drop of a lease, with and without the thread's note. In the
//! models, these two run concurrently with each other and with every operation that changes a shard's head.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use loom::thread;
use wharf::Clear;
use wharf::unstable::pool::{Core, Environment, Grant, Hit};

use super::harness::model;
use super::world::*;

#[test]
fn concurrent_hits_share_no_connection() {
    model("concurrent_hits_share_no_connection", None, || {
        let pool = unheard(options(1, 1));
        check_in(leased(&pool));
        let other = thread::spawn({
            let pool = pool.clone();
            move || hit(&pool).map(check_in).is_some()
        });
        let here = hit(&pool).map(check_in).is_some();
        assert!(other.join().unwrap() || here, "both hits missed");
        assert_eq!(pool.status().available, 1);
        wind_up(pool);
    });
}

#[test]
fn concurrent_returns_lose_no_connection() {
    model("concurrent_returns_lose_no_connection", None, || {
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
fn hit_during_a_return_loses_no_connection() {
    model("hit_during_a_return_loses_no_connection", None, || {
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
fn hit_sees_the_last_users_writes() {
    model("hit_sees_the_last_users_writes", None, || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in(lease));
        hit(&pool).into_iter().for_each(check_in);
        returns.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn hit_never_mistakes_an_old_head_for_a_new_one() {
    model("hit_never_mistakes_an_old_head_for_a_new_one", Some(6), || {
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
fn hit_and_return_while_a_check_out_queues_up_lose_no_wake_up() {
    model("hit_and_return_while_a_check_out_queues_up_lose_no_wake_up", Some(4), || {
        let pool = unheard(options(1, 1));
        check_in(leased(&pool));
        let hits = thread::spawn({
            let pool = pool.clone();
            move || hit(&pool).map(check_in).is_some()
        });
        let idle = connection(acquire(&pool));
        check_in(check_out(&pool, idle));
        hits.join().unwrap();
        check_in(hit(&pool).expect("no check-out waits, but the connection is not available"));
        wind_up(pool);
    });
}

#[test]
fn hit_never_overtakes_a_waiter() {
    model("hit_never_overtakes_a_waiter", Some(3), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let mut waits = queued(&pool);
        let returns = thread::spawn(move || check_in(lease));
        assert!(hit(&pool).is_none(), "the hit overtook the waiter");
        returns.join().unwrap();
        drop(connection(poll(&mut waits).expect("the waiter was not served")));
        check_in(hit(&pool).expect("no check-out waits, but the connection is not available"));
        wind_up(pool);
    });
}

#[test]
fn hit_during_a_clear_shares_no_connection_with_it() {
    model("hit_during_a_clear_shares_no_connection_with_it", Some(6), || {
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

/// A hit after the clear shows whether the stale connection is still in the shard.
#[test]
fn return_during_a_clear_leaves_no_stale_connection_to_hit() {
    model("return_during_a_clear_leaves_no_stale_connection_to_hit", Some(6), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in(lease));
        pool.clear(Clear::new()).unwrap();
        pool.ready();
        returns.join().unwrap();
        assert!(hit(&pool).is_none(), "the hit took a connection of an older generation");
        pool.maintain();
        assert_empty(&pool);
        wind_up(pool);
    });
}

/// The thread that returns the connection also took it, so it puts the connection back unless the clear has changed the
/// head.
#[test]
fn connection_put_back_during_a_clear_is_not_left_to_hit() {
    model("connection_put_back_during_a_clear_is_not_left_to_hit", Some(6), || {
        let pool = unheard(options(1, 1));
        check_in(leased(&pool));
        let lease = hit(&pool).expect("no other thread uses the pool");
        let clears = thread::spawn({
            let pool = pool.clone();
            move || {
                pool.clear(Clear::new()).unwrap();
                pool.ready();
            }
        });
        check_in(lease);
        clears.join().unwrap();
        assert!(hit(&pool).is_none(), "the hit took a connection of an older generation");
        pool.maintain();
        assert_empty(&pool);
        wind_up(pool);
    });
}

/// Meanwhile, the shard that the connection was taken from does not change.
#[test]
fn connection_put_back_after_another_shard_had_it_is_linked_anew() {
    model("connection_put_back_after_another_shard_had_it_is_linked_anew", None, || {
        let pool = unheard(options(8, 3));
        let [here, elsewhere] = [(); 2].map(|()| leased(&pool));
        check_in(here);
        let taken = hit(&pool).expect("no other thread uses the shard");
        let back = thread::spawn({
            let pool = pool.clone();
            move || {
                prefer_shard(1);
                check_in(elsewhere);
                check_in(taken);
                hit(&pool).expect("no other thread uses the shard")
            }
        });
        check_in(back.join().unwrap());
        assert_eq!(pool.status().available, 2);
        wind_up(pool);
    });
}

/// The shards of both pools have equal heads.
#[test]
fn hit_after_the_use_of_another_pool_takes_no_slot_of_that_pool() {
    model("hit_after_the_use_of_another_pool_takes_no_slot_of_that_pool", None, || {
        let [used, other] = [(); 2].map(|()| unheard(options(1, 1)));
        let lease = leased(&other);
        thread::spawn(move || check_in(lease)).join().unwrap();
        check_in(leased(&used));
        let taken = hit(&other).expect("the connection is idle");
        assert!(taken.belongs_to(&other), "the hit took a connection of another pool");
        check_in(taken);
        [used, other].into_iter().for_each(wind_up);
    });
}

/// The head of the other pool's shard becomes equal to the head that the hits left on the first pool's shard. The
/// connection that is returned still has the link from its last push, which names a connection that is now in use.
#[test]
fn connection_is_not_put_back_by_the_head_of_another_pool() {
    model("connection_is_not_put_back_by_the_head_of_another_pool", None, || {
        let [used, other] = [(1, 1), (2, 2)].map(|(size, connecting)| unheard(options(size, connecting)));
        let lease = leased(&used);
        let both = [(); 2].map(|()| leased(&other));
        let twice = |lease| (0..2).fold(lease, |lease, _| take_again(&used, lease));
        let kept = twice(lease);
        both.into_iter().for_each(check_in);
        let both = thread::spawn({
            let other = other.clone();
            move || [(); 2].map(|()| hit(&other).expect("idle"))
        });
        let [top, below] = both.join().unwrap();
        check_in(top);
        let again = [(); 2].map(|()| hit(&other));
        again.into_iter().flatten().chain([below]).for_each(check_in);
        check_in(kept);
        [used, other].into_iter().for_each(wind_up);
    });
}

/// Both connections have the same link, because each was pushed onto an empty stack.
#[test]
fn hit_takes_the_connection_that_was_put_back_and_not_the_noted_one() {
    model("hit_takes_the_connection_that_was_put_back_and_not_the_noted_one", None, || {
        let pool = unheard(options(2, 2));
        let both = [(); 2].map(|()| leased(&pool));
        let [first, noted] = both.map(|lease| take_again(&pool, lease));
        check_in(first);
        let first = hit(&pool).expect("no other thread uses the shard");
        [first, noted].into_iter().for_each(check_in);
        wind_up(pool);
    });
}

/// Checks a connection in and takes it again.
fn take_again(pool: &Arc<Pool>, lease: Leased) -> Leased {
    check_in(lease);
    hit(pool).expect("no other thread uses the shard")
}

#[test]
fn hit_during_a_close_shares_no_connection_with_it() {
    model("hit_during_a_close_shares_no_connection_with_it", Some(4), || {
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
fn connection_returned_during_a_close_is_closed_once() {
    model("connection_returned_during_a_close_is_closed_once", Some(6), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in(lease));
        pool.close();
        returns.join().unwrap();
        assert!(hit(&pool).is_none(), "the hit took a connection of a closed pool");
        assert_empty(&pool);
        wind_up(pool);
    });
}

/// One connection moves from the bottom of one stack to the top of the other, while the caller holds another
/// connection. A status that combined the new height with the old head would count the held connection as available.
#[test]
fn consistent_status_counts_a_held_connection_as_in_use() {
    model("consistent_status_counts_a_held_connection_as_in_use", Some(2), || {
        let pool = unheard(options(8, 3));
        let [held, first, second] = [(); 3].map(|()| leased(&pool));
        check_in(first);
        prefer_shard(1);
        check_in(second);
        let moves = thread::spawn({
            let pool = pool.clone();
            move || {
                prefer_shard(0);
                let moved = hit(&pool).expect("the stack is empty");
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
fn hit_takes_no_connection_if_the_environment_listens() {
    model("hit_takes_no_connection_if_the_environment_listens", None, || {
        let pool = recorded(options(1, 1));
        let lease = leased(&pool);
        let returns = thread::spawn(move || check_in(lease));
        assert!(hit(&pool).is_none(), "the hit took a connection without its events");
        returns.join().unwrap();
        assert!(hit(&pool).is_none(), "the hit took a connection without its events");
        wind_up(pool);
    });
}

/// An environment with metrics.
struct Metered;

// SAFETY: threads keep no notes here.
#[allow(unsafe_code)]
unsafe impl Environment for Metered {
    type Connection = ();

    fn now(&self) -> Instant {
        // No model depends on how long a connection has been idle.
        Instant::now()
    }

    fn stopwatch(&self) -> u64 {
        0
    }

    fn shard_hint(&self) -> usize {
        0
    }
}

/// Only the first hit is timed.
#[test]
fn each_hit_is_counted_once_and_the_timed_one_is_measured() {
    model("each_hit_is_counted_once_and_the_timed_one_is_measured", None, || {
        let pool = Core::new("server:27017", options(1, 1), 1, Metered).unwrap();
        pool.ready();
        let Grant::Permit(permit) = loom::future::block_on(pin!(pool.acquire())) else { panic!("no permit") };
        let (idle, opening) = permit.create().unwrap().established(()).unwrap();
        opening.hand_on(Some(idle));
        let other = thread::spawn({
            let pool = pool.clone();
            move || pool.try_hit().map(Hit::begin).is_some()
        });
        let here = pool.try_hit().map(Hit::begin).is_some();
        let hits = u64::from(other.join().unwrap()) + u64::from(here);
        let metrics = pool.metrics();
        assert_eq!(metrics.check_outs.hits, hits, "a hit is not counted once");
        assert_eq!(metrics.use_time.count(), 1, "a use is not timed once");
        pool.close();
    });
}
