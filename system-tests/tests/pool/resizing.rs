//! Pools that are resized while they are in use.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use wharf::{Pool, PoolOptions};

use super::mock::{Attempt, Mock, counts, poll_once, pool, settle, slow_to_close};

fn resize(pool: &Pool<Mock>, max: u32) {
    pool.resize(|options| options.max_pool_size(max)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn resize_refuses_what_cannot_work_or_cannot_change() {
    let (pool, _log) = pool(PoolOptions::default().min_pool_size(2), &Mock::new([]));
    let refused = |change: fn(PoolOptions) -> PoolOptions| pool.resize(change).unwrap_err().to_string();
    assert_eq!(refused(|options| options.max_pool_size(1)), "minPoolSize must be at most maxPoolSize (1), got 2");
    assert_eq!(refused(|options| options.max_connecting(0)), "maxConnecting must be at least 1, got 0");
    for (change, option) in [
        ((|options| options.max_idle_time(Duration::from_secs(1))) as fn(PoolOptions) -> PoolOptions, "maxIdleTimeMS"),
        (|options| options.load_balanced(true), "loadBalanced"),
        (|options| options.background_interval(wharf::BackgroundInterval::Never), "backgroundInterval"),
        (|options| options.check_before_use(wharf::CheckBeforeUse::Never), "checkBeforeUse"),
        (|options| options.max_lifetime(Duration::from_secs(1)), "maxLifetime"),
        (|options| options.jitter_percent(5), "jitterPercent"),
    ] {
        assert_eq!(refused(change), format!("{option} cannot change while the pool is in use"));
    }
    assert_eq!(pool.options(), PoolOptions::default().min_pool_size(2));
    pool.resize(|options| options.max_pool_size(7).min_pool_size(3).max_connecting(4)).unwrap();
    assert_eq!(pool.options(), PoolOptions::default().max_pool_size(7).min_pool_size(3).max_connecting(4));
    assert_eq!((pool.status().max_pool_size, pool.metrics().min_pool_size), (7, 3));
}

#[tokio::test(start_paused = true)]
async fn pool_that_grows_serves_its_waiters_at_once() {
    let (pool, _log) = pool(PoolOptions::default().max_pool_size(1), &Mock::new([]));
    let _held = pool.check_out().await.unwrap();
    let (mut first, mut second) = (pin!(pool.check_out()), pin!(pool.check_out()));
    assert!(poll_once(first.as_mut()).await.is_none() && poll_once(second.as_mut()).await.is_none());
    resize(&pool, 2);
    let _second = first.await.unwrap();
    assert!(poll_once(second.as_mut()).await.is_none(), "the pool exceeds its maximum");
    // A maximum of 0 means no limit.
    resize(&pool, 0);
    let _third = second.await.unwrap();
    let mut more = Vec::new();
    for _ in 0..200 {
        more.push(pool.check_out().await.unwrap());
    }
    assert_eq!(counts(&pool), (203, 0, 0, 203, 0), "the slab does not grow beyond its first size");
}

#[tokio::test(start_paused = true)]
async fn raised_max_connecting_serves_the_next_waiters() {
    let (pool, log) = pool(PoolOptions::default().max_connecting(1), &Mock::new([Attempt::Held; 3]));
    let mut check_outs: Vec<_> = (0..3).map(|_| Box::pin(pool.check_out())).collect();
    for check_out in &mut check_outs {
        assert!(poll_once(check_out.as_mut()).await.is_none());
    }
    settle().await;
    assert_eq!(log.count("ConnectionCreated"), 1);
    pool.resize(|options| options.max_connecting(3)).unwrap();
    for check_out in &mut check_outs {
        assert!(poll_once(check_out.as_mut()).await.is_none());
    }
    settle().await;
    assert_eq!(log.count("ConnectionCreated"), 3);
}

#[tokio::test(start_paused = true)]
async fn pool_that_shrinks_closes_what_is_idle_at_once_and_the_rest_when_it_comes_back() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(pool.check_out().await.unwrap());
    }
    held.truncate(4);
    log.take();
    resize(&pool, 2);
    assert_eq!(log.count("ConnectionClosed"), 2);
    assert_eq!((counts(&pool), mock.live()), ((4, 0, 0, 4, 0), 4));
    let mut waits = pin!(pool.check_out());
    assert!(poll_once(waits.as_mut()).await.is_none());
    log.take();
    held.truncate(2);
    assert_eq!(
        log.take(),
        ["ConnectionCheckedIn 3", "ConnectionClosed 3 stale", "ConnectionCheckedIn 4", "ConnectionClosed 4 stale"]
    );
    assert!(poll_once(waits.as_mut()).await.is_none(), "a surplus connection was handed over");
    held.truncate(1);
    assert_eq!(waits.await.unwrap().id(), 2);
    drop(held);
    assert_eq!((counts(&pool), mock.live()), ((2, 0, 2, 0, 0), 2));
    // The pool works as before: check-outs are hits.
    let hits = pool.metrics().check_outs.hits;
    drop(pool.check_out().await.unwrap());
    assert_eq!(pool.metrics().check_outs.hits, hits + 1);
}

#[tokio::test(start_paused = true)]
async fn pool_that_shrinks_closes_no_more_than_the_surplus_if_a_close_takes_long() {
    let (pool, log) = slow_to_close(PoolOptions::default());
    pool.warm_up(10, |_| ()).await.unwrap();
    let held = pool.check_out().await.unwrap();
    pool.resize(|options| options.max_pool_size(9)).unwrap();
    assert_eq!((log.count("ConnectionClosed"), pool.status().total), (1, 10));
    drop(held);
    settle().await;
    assert_eq!((log.count("ConnectionClosed"), pool.status().available), (1, 9));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((log.count("ConnectionClosed"), pool.status().total), (1, 9));
}

#[tokio::test(start_paused = true)]
async fn connection_that_opens_after_the_pool_has_shrunk_is_closed_after_its_use() {
    let mock = Mock::new([Attempt::Held, Attempt::Held]);
    let (pool, _log) = pool(PoolOptions::default(), &mock);
    let (mut first, mut second) = (Box::pin(pool.check_out()), Box::pin(pool.check_out()));
    assert!(poll_once(first.as_mut()).await.is_none() && poll_once(second.as_mut()).await.is_none());
    settle().await;
    resize(&pool, 1);
    drop(second);
    mock.let_one_in();
    mock.let_one_in();
    drop(first.await.unwrap());
    settle().await;
    assert_eq!((counts(&pool), mock.live()), ((1, 0, 1, 0, 0), 1));
}

#[tokio::test(start_paused = true)]
async fn minimum_that_is_raised_is_populated_and_then_kept() {
    let mock = Mock::new([]);
    let (pool, _log) = pool(PoolOptions::default(), &mock);
    settle().await;
    pool.resize(|options| options.min_pool_size(3)).unwrap();
    settle().await;
    assert_eq!(counts(&pool), (3, 0, 3, 0, 0));
    // A failed attempt to open a connection is repeated after an interval, even though the pool was built without one.
    mock.instruct([Attempt::Fails]);
    assert_eq!(pool.retain(|_, usage| usage.connection_id > 1), 1);
    settle().await;
    assert_eq!(counts(&pool), (2, 0, 2, 0, 0));
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(counts(&pool), (3, 0, 3, 0, 0));
}

#[test]
fn resizes_under_load_lose_nothing_and_leave_no_surplus() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mock = Mock::new([]);
    let (pool, _log) = runtime.block_on(async { pool(PoolOptions::default().max_pool_size(4), &mock) });
    let ends = AtomicBool::new(false);
    let use_it = || {
        while !ends.load(Ordering::Relaxed) {
            drop(pool.check_out_blocking(Some(Duration::from_secs(60))).unwrap());
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|_| drop(scope.spawn(use_it)));
        for round in 0..2_000 {
            resize(&pool, [4, 1, 3, 2, 0][round % 5]);
        }
        resize(&pool, 2);
        ends.store(true, Ordering::Relaxed);
    });
    // A check-in that was in progress during the resize may have left a surplus connection. A later use, or
    // maintenance, closes it.
    drop(pool.check_out_blocking(None).unwrap());
    runtime.block_on(async {
        pool.ready();
        while pool.status().total > 2 || pool.status().pending > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    assert_eq!(mock.live(), pool.status().total as usize);
}

#[tokio::test(start_paused = true)]
async fn pool_that_shrinks_closes_stale_connections_before_fresh_ones() {
    let options = PoolOptions::default().background_interval(wharf::BackgroundInterval::Never);
    let (pool, log) = pool(options, &Mock::new([]));
    pool.warm_up(6, |_| ()).await.unwrap();
    pool.renew();
    drop(pool.check_out().await.unwrap());
    assert_eq!(counts(&pool).0, 3, "the check-out closed four stale connections and opened another");
    log.take();
    resize(&pool, 2);
    assert_eq!(counts(&pool), (1, 0, 1, 0, 0));
    assert!(log.lines().iter().all(|line| line.ends_with(" stale")), "{:?}", log.lines());
}
