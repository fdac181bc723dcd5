//! Ordering 5: the limits hold at every instant, and nothing is left after close.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use loom::thread;
use wharf::pool::Grant;

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

/// Tries once to get a place, and opens and closes a connection with it.
fn open_and_close(pool: &Arc<Pool>, tokens: &Tokens, max_pool_size: u32, max_connecting: u32) {
    let Some(Grant::Place(place)) = poll(&mut waiter(pool)) else { return };
    Tokens::more(&tokens.total, max_pool_size);
    Tokens::more(&tokens.pending, max_connecting);
    let (idle, opening) = place.create().unwrap().established(pool.host().connect()).unwrap();
    let lease = check_out(pool, idle);
    Tokens::less(&tokens.pending);
    drop(opening);
    Tokens::less(&tokens.total);
    check_in(lease);
}

fn limits(name: &'static str, max_pool_size: u32, max_connecting: u32) {
    model(name, Some(2), move || {
        let (pool, tokens) = (unheard(options(max_pool_size, max_connecting)), Arc::new(Tokens::default()));
        let others = [(); 2].map(|()| {
            let (pool, tokens) = (pool.clone(), tokens.clone());
            thread::spawn(move || open_and_close(&pool, &tokens, max_pool_size, max_connecting))
        });
        open_and_close(&pool, &tokens, max_pool_size, max_connecting);
        for other in others {
            other.join().unwrap();
        }
        wind_up(pool);
    });
}

#[test]
fn total_stays_within_max_pool_size_at_every_instant() {
    limits("total_stays_within_max_pool_size_at_every_instant", 1, 2);
}

#[test]
fn pending_stays_within_max_connecting_at_every_instant() {
    limits("pending_stays_within_max_connecting_at_every_instant", 2, 1);
}

#[test]
fn a_status_shows_no_more_than_the_limits() {
    model("a_status_shows_no_more_than_the_limits", Some(3), || {
        let pool = unheard(options(1, 1));
        let opens = thread::spawn({
            let pool = pool.clone();
            move || {
                let granted = acquire(&pool);
                make_use(&pool, granted);
            }
        });
        let status = pool.status();
        assert!(status.total <= 1 && status.pending <= 1, "{status:?}");
        let parts = status.pending + status.available + status.in_use + status.stale;
        assert_eq!(status.total, parts, "{status:?}");
        opens.join().unwrap();
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
