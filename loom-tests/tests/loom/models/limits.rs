//! Models of orderings 5 and 9: the counts never exceed the limits, nothing is left after a close, and the end of the
//! last connection is noticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use loom::thread;
use wharf::Clear;
use wharf::unstable::pool::{Grant, Permit};

use super::harness::model;
use super::world::*;

/// The numbers of tokens that exist. These counts can be std's atomics, because they are not part of the pool and
/// loom's threads take turns.
#[derive(Default)]
struct Tokens {
    total: AtomicU32,
    pending: AtomicU32,
}

impl Tokens {
    fn more(count: &AtomicU32, limit: u32) {
        assert!(count.fetch_add(1, Ordering::Relaxed) < limit, "more than {limit} at one instant");
    }

    fn less(count: &AtomicU32) {
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs three threads that each try once to get a permit and, if they succeed, call `open` with it.
fn limits<R: Send + 'static>(
    name: &'static str,
    max_pool_size: u32,
    max_connecting: u32,
    open: impl Fn(&Arc<Pool>, Permit<World>, &Tokens) -> R + Copy + Send + Sync + 'static,
    end: impl Fn(R) + Copy + Send + Sync + 'static,
) {
    model(name, Some(2), move || {
        let (pool, tokens) = (unheard(options(max_pool_size, max_connecting)), Arc::new(Tokens::default()));
        let attempt = move |pool: Arc<Pool>, tokens: Arc<Tokens>| match poll(&mut waiter(&pool)) {
            Some(Grant::Permit(permit)) => {
                Tokens::more(&tokens.total, max_pool_size);
                Tokens::more(&tokens.pending, max_connecting);
                Some(open(&pool, permit, &tokens))
            }
            _ => None,
        };
        let others = [(); 2].map(|()| {
            let (pool, tokens) = (pool.clone(), tokens.clone());
            thread::spawn(move || attempt(pool, tokens))
        });
        let opened = attempt(pool.clone(), tokens);
        let others = others.map(|other| other.join().unwrap());
        others.into_iter().flatten().chain(opened).for_each(end);
        wind_up(pool);
    });
}

#[test]
fn total_never_exceeds_max_pool_size() {
    let open_and_fail = |_: &Arc<Pool>, permit: Permit<World>, tokens: &Tokens| {
        let pending = permit.create().unwrap();
        Tokens::less(&tokens.total);
        Tokens::less(&tokens.pending);
        drop(pending);
    };
    limits("total_never_exceeds_max_pool_size", 1, 2, open_and_fail, |()| ());
}

#[test]
fn pending_never_exceeds_max_connecting() {
    let open_and_keep = |pool: &Arc<Pool>, permit: Permit<World>, tokens: &Tokens| {
        let (idle, opening) = permit.create().unwrap().established(pool.environment().connect()).unwrap();
        Tokens::less(&tokens.pending);
        drop(opening);
        check_out(pool, idle)
    };
    limits("pending_never_exceeds_max_connecting", 3, 1, open_and_keep, check_in);
}

/// A stale connection is closed while a check-out waits for its capacity.
#[test]
fn connection_counts_until_it_is_disposed_of() {
    model("connection_counts_until_it_is_disposed_of", Some(4), || {
        let pool = unheard(options(1, 1));
        let lease = leased(&pool);
        pool.clear(Clear::new()).unwrap();
        assert!(pool.ready());
        let closes = thread::spawn(move || check_in(lease));
        let permit = permit(acquire(&pool));
        assert_eq!(pool.environment().disposed(), 1, "there may be two connections");
        drop(permit);
        closes.join().unwrap();
        wind_up(pool);
    });
}

#[test]
fn both_counts_return_to_zero_after_close() {
    model("both_counts_return_to_zero_after_close", Some(3), || {
        let pool = recorded(options(1, 1));
        let opens = thread::spawn({
            let pool = pool.clone();
            move || {
                let grant = acquire(&pool);
                make_use(&pool, grant);
            }
        });
        pool.close();
        opens.join().unwrap();
        assert_empty(&pool);
        wind_up(pool);
    });
}

/// Checks that the end of `last` is noticed. A thread that closes a pool and finds that a connection still exists
/// relies on being notified when that connection is gone.
fn noticed<T: Send + 'static>(name: &'static str, bound: Option<usize>, last: fn(&Arc<Pool>) -> T, end: fn(T)) {
    model(name, bound, move || {
        let pool = unheard(options(1, 1));
        let last = last(&pool);
        let ends = thread::spawn({
            let pool = pool.clone();
            move || {
                end(last);
                pool.environment().maintenance_asked_for_here()
            }
        });
        pool.close();
        let left = pool.status().total;
        let told = ends.join().unwrap();
        assert!(left == 0 || told > 0, "the end of the last connection was not noticed");
        wind_up(pool);
    });
}

/// The drain fails on purpose: a broken connection does not reach the shard's head, whose update would order the two
/// threads.
#[test]
fn end_of_the_last_connection_of_a_closed_pool_is_noticed() {
    let breaks = |draining| end_drain(draining, false);
    noticed("end_of_the_last_connection_of_a_closed_pool_is_noticed", Some(4), begin_drain, breaks);
}

#[test]
fn end_of_the_last_establishment_of_a_closed_pool_is_noticed() {
    noticed("end_of_the_last_establishment_of_a_closed_pool_is_noticed", Some(4), pending, drop);
}

#[test]
fn end_of_the_last_permit_of_a_closed_pool_is_noticed() {
    let unused = |pool: &Arc<Pool>| permit(acquire(pool));
    noticed("end_of_the_last_permit_of_a_closed_pool_is_noticed", Some(6), unused, drop);
}
