//! Controlling a pool in use: trying a check-out, discarding, detaching and retaining connections.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::time::Duration;

use wharf::PoolOptions;

use super::mock::{Log, Mock, builder, counts, poll_once, pool};

#[tokio::test(start_paused = true)]
async fn try_check_out_takes_only_what_is_available() {
    let (pool, log) = pool(PoolOptions::default().max_pool_size(1), &Mock::new([]));
    assert!(pool.try_check_out().is_none(), "a connection was opened");
    assert!(log.take().is_empty(), "a try that found nothing was reported");
    drop(pool.check_out().await.unwrap());
    log.take();
    let held = pool.try_check_out().unwrap();
    assert_eq!(log.take(), ["ConnectionCheckOutStarted", "ConnectionCheckedOut 1"]);
    assert!(pool.try_check_out().is_none(), "the connection was handed out twice");
    drop(held);
    pool.close();
    assert!(pool.try_check_out().is_none(), "a closed pool served a check-out");
    assert_eq!(pool.metrics().check_outs.failed.total(), 0);
}

#[tokio::test(start_paused = true)]
async fn try_check_out_finds_the_connection_of_another_thread() {
    let pool = builder(&Mock::new([])).options(PoolOptions::default()).build().unwrap();
    pool.ready();
    let connection = pool.check_out().await.unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| drop(connection)).join().unwrap();
        for _ in 0..4 {
            assert_eq!(scope.spawn(|| pool.try_check_out().map(|held| held.id())).join().unwrap(), Some(1));
        }
    });
}

#[tokio::test(start_paused = true)]
async fn try_check_out_does_not_overtake_a_waiter() {
    let (pool, _log) = pool(PoolOptions::default().max_pool_size(1), &Mock::new([]));
    let held = pool.check_out().await.unwrap();
    let mut waits = pin!(pool.check_out());
    assert!(poll_once(waits.as_mut()).await.is_none());
    drop(held);
    assert!(pool.try_check_out().is_none(), "the connection belongs to the waiter");
    drop(waits.await.unwrap());
    assert!(pool.try_check_out().is_some());
}

#[tokio::test(start_paused = true)]
async fn discarded_connection_is_closed_and_its_capacity_serves_a_waiter() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().max_pool_size(1), &mock);
    let held = pool.check_out().await.unwrap();
    let mut waits = pin!(pool.check_out());
    assert!(poll_once(waits.as_mut()).await.is_none());
    log.take();
    held.discard();
    assert_eq!(log.take(), ["ConnectionCheckedIn 1", "ConnectionClosed 1 error"]);
    assert_eq!(mock.live(), 0);
    assert_eq!(waits.await.unwrap().id(), 2);
    assert_eq!(pool.metrics().connections.closed.error, 1);
}

#[tokio::test(start_paused = true)]
async fn detached_connection_lives_on_and_its_capacity_serves_a_waiter() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().max_pool_size(1), &mock);
    let held = pool.check_out().await.unwrap();
    let mut waits = pin!(pool.check_out());
    assert!(poll_once(waits.as_mut()).await.is_none());
    log.take();
    let detached = held.detach();
    assert_eq!(log.take(), ["ConnectionCheckedIn 1", "ConnectionClosed 1 stale"]);
    let second = waits.await.unwrap();
    assert_eq!((second.id(), mock.live()), (2, 2), "the pool opens another in its place");
    drop(second);
    pool.close();
    pool.closed().await;
    assert_eq!(mock.live(), 1, "the detached connection was closed with the pool");
    drop(detached);
    assert_eq!(mock.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn detached_last_connection_of_a_closed_pool_ends_it() {
    let (pool, _log) = pool(PoolOptions::default(), &Mock::new([]));
    let held = pool.check_out().await.unwrap();
    pool.close();
    let mut closed = pin!(pool.closed());
    assert!(poll_once(closed.as_mut()).await.is_none());
    let _detached = held.detach();
    closed.await;
}

#[tokio::test(start_paused = true)]
async fn usage_counts_every_check_out_of_the_connection_and_of_no_other_in_its_slot() {
    let options = PoolOptions::default().max_pool_size(1).max_idle_time(Duration::from_secs(60));
    let pool = builder(&Mock::new([])).options(options).tokio_clock(true).build().unwrap();
    pool.ready();
    for first in [true, false] {
        for uses in 1..=200 {
            let held = pool.check_out().await.unwrap();
            assert_eq!((held.usage().uses, held.usage().idle), (uses, None));
        }
        let held = pool.check_out().await.unwrap();
        let mut waits = pin!(pool.check_out());
        assert!(poll_once(waits.as_mut()).await.is_none());
        drop(held);
        let held = waits.await.unwrap();
        assert_eq!(held.usage().uses, 202);
        tokio::time::advance(Duration::from_secs(2)).await;
        drop(held);
        tokio::time::advance(Duration::from_secs(3)).await;
        let closed = pool.retain(|_, usage| {
            assert_eq!((usage.uses, usage.age), (202, Duration::from_secs(5)));
            assert_eq!(usage.idle, Some(Duration::from_secs(3)));
            false
        });
        assert_eq!(closed, 1, "in the first round: {first}");
    }
}

#[tokio::test(start_paused = true)]
async fn retain_closes_the_available_connections_that_it_is_told_to() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(pool.check_out().await.unwrap());
    }
    held.truncate(2);
    log.take();
    let mut seen = Vec::new();
    let closed = pool.retain(|connection, usage| {
        assert!(!connection.broken);
        seen.push(usage.connection_id);
        usage.connection_id % 2 == 0
    });
    seen.sort_unstable();
    assert_eq!((closed, seen), (2, vec![3, 4, 5, 6]));
    let mut lines = log.take();
    lines.sort_unstable();
    assert_eq!(lines, ["ConnectionClosed 3 stale", "ConnectionClosed 5 stale"]);
    assert_eq!((counts(&pool), mock.live()), ((4, 0, 2, 2, 0), 4));
}

#[tokio::test(start_paused = true)]
async fn retain_that_panics_loses_no_connection() {
    let (pool, _log) = pool(PoolOptions::default(), &Mock::new([]));
    let held = [pool.check_out().await.unwrap(), pool.check_out().await.unwrap()];
    drop(held);
    let judged = catch_unwind(AssertUnwindSafe(|| pool.retain(|_, _| panic!("the judge's panic"))));
    assert!(judged.is_err());
    assert_eq!(counts(&pool), (2, 0, 2, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn weak_handle_does_not_keep_the_pool_open() {
    let log = Log::default();
    let pool = builder(&Mock::new([])).subscriber(log.subscriber()).build().unwrap();
    let weak = pool.downgrade();
    assert!(weak.clone().upgrade().is_some_and(|pool| pool.ready()));
    drop(pool);
    assert_eq!(log.count("PoolClosed"), 1);
    assert!(weak.upgrade().is_none());
}
