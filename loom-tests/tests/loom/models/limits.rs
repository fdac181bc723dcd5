//! Orderings 5 and 9: the limits hold at every instant, and nothing is left after close, which is noticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use loom::thread;
use wharf::unstable::pool::{Grant, Permit};

use super::harness::model;
use super::world::*;

/// What the tokens that exist add up to. std's, because loom's threads take turns and these are no part of the pool.
#[derive(Default)]
struct Tokens {
    total: AtomicU32,
    pending: AtomicU32,
}

impl Tokens {
    fn more(count: &AtomicU32, limit: u32) {
        assert!(count.fetch_add(1, Ordering::Relaxed) < limit, "more than {limit} at an instant");
    }

    fn less(count: &AtomicU32) {
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Three threads try once to get a permit each, and do `open` with it.
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
fn total_stays_within_max_pool_size_at_every_instant() {
    let open_and_fail = |_: &Arc<Pool>, permit: Permit<World>, tokens: &Tokens| {
        let pending = permit.create().unwrap();
        Tokens::less(&tokens.total);
        Tokens::less(&tokens.pending);
        drop(pending);
    };
    limits("total_stays_within_max_pool_size_at_every_instant", 1, 2, open_and_fail, |()| ());
}

#[test]
fn pending_stays_within_max_connecting_at_every_instant() {
    let open_and_keep = |pool: &Arc<Pool>, permit: Permit<World>, tokens: &Tokens| {
        let (idle, opening) = permit.create().unwrap().established(pool.environment().connect()).unwrap();
        Tokens::less(&tokens.pending);
        drop(opening);
        check_out(pool, idle)
    };
    limits("pending_stays_within_max_connecting_at_every_instant", 3, 1, open_and_keep, check_in);
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

/// Whoever closes a pool and then finds something left relies on being told when it is gone.
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
        assert!(left == 0 || told > 0, "nobody says that the last connection is gone");
        wind_up(pool);
    });
}

/// A good one comes to the shard's head, which tells already. A broken one does not.
#[test]
fn the_end_of_a_closed_pools_last_connection_is_noticed() {
    let breaks = |draining| end_drain(draining, false);
    noticed("the_end_of_a_closed_pools_last_connection_is_noticed", Some(4), begin_drain, breaks);
}

#[test]
fn the_end_of_a_closed_pools_last_establishment_is_noticed() {
    noticed("the_end_of_a_closed_pools_last_establishment_is_noticed", Some(4), pending, drop);
}

#[test]
fn the_end_of_a_closed_pools_last_permit_is_noticed() {
    let unused = |pool: &Arc<Pool>| permit(acquire(pool));
    noticed("the_end_of_a_closed_pools_last_permit_is_noticed", Some(6), unused, drop);
}
