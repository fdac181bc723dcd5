//! Connections that are replaced: too old, idle for too long, or renewed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::{Instant, advance, sleep};
use wharf::{BackgroundInterval, Condition, Establish, EstablishError, Establishing, Pool, PoolOptions};

use super::mock::{Log, settle, slow_to_close};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// Opens each connection in 30 ms. A connection is just the version of the credentials that it was opened with.
#[derive(Clone, Default)]
struct Slow(Arc<AtomicU32>);

impl Establish for Slow {
    type Connection = u32;

    async fn establish(&self, _: Establishing) -> Result<u32, EstablishError> {
        let version = self.0.load(Ordering::SeqCst);
        sleep(30 * MS).await;
        Ok(version)
    }
}

fn pool(options: PoolOptions) -> (Pool<Slow>, Log, Slow) {
    let (log, slow) = (Log::default(), Slow::default());
    let options = options.background_interval(BackgroundInterval::Every(200 * MS));
    let builder = Pool::builder("slow", slow.clone()).options(options).subscriber(log.subscriber());
    let pool = builder.build().unwrap();
    pool.ready();
    (pool, log, slow)
}

async fn fill(pool: &Pool<Slow>, connections: usize) {
    let mut held = Vec::new();
    for _ in 0..connections {
        held.push(pool.check_out().await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn connection_past_its_lifetime_is_closed() {
    let (pool, log, _) = pool(PoolOptions::default().max_lifetime(10 * SECOND));
    fill(&pool, 3).await;
    let held = pool.check_out().await.unwrap();
    sleep(9 * SECOND).await;
    assert_eq!(pool.status().total, 3);
    sleep(2 * SECOND).await;
    assert_eq!((pool.status().total, log.count("ConnectionClosed")), (1, 2), "the one in use is left alone");
    let id = held.id();
    drop(held);
    assert_eq!((pool.status().total, log.count("ConnectionClosed")), (0, 3));
    assert_eq!(log.lines().last().unwrap(), &format!("ConnectionClosed {id} idle"));

    let held = pool.check_out().await.unwrap();
    sleep(11 * SECOND).await;
    pool.renew();
    let id = held.id();
    drop(held);
    let last = log.lines().pop().unwrap();
    assert_eq!(last, format!("ConnectionClosed {id} stale"), "the renewal is the reason, although it has expired, too");
}

/// Opens connections that need a drain once they have been used. A connection is just a flag: whether it needs a drain.
struct Drained;

impl Establish for Drained {
    type Connection = bool;

    async fn establish(&self, _: Establishing) -> Result<bool, EstablishError> {
        Ok(false)
    }

    fn condition(&self, needs_drain: &mut bool) -> Condition {
        if *needs_drain { Condition::NeedsDrain } else { Condition::Reusable }
    }

    async fn drain(&self, needs_drain: &mut bool) {
        *needs_drain = false;
    }
}

#[tokio::test(start_paused = true)]
async fn connection_past_its_lifetime_is_closed_after_its_drain() {
    let log = Log::default();
    let options = PoolOptions::default().max_lifetime(10 * SECOND).background_interval(BackgroundInterval::Never);
    let pool = Pool::builder("drained", Drained).options(options).subscriber(log.subscriber()).build().unwrap();
    pool.ready();
    for (lifetime, closed) in [(SECOND, 0), (10 * SECOND, 1)] {
        let mut connection = pool.check_out().await.unwrap();
        *connection = true;
        advance(lifetime).await;
        drop(connection);
        while pool.status().in_use > 0 {
            settle().await;
        }
        assert_eq!((pool.status().available, log.count("ConnectionClosed")), (1 - closed as u32, closed));
    }
}

#[tokio::test(start_paused = true)]
async fn connection_in_steady_use_is_replaced_when_its_lifetime_is_over() {
    for minimum in [0, 1] {
        let (pool, _log, _) = pool(PoolOptions::default().min_pool_size(minimum).max_lifetime(10 * SECOND));
        let (mut ids, begun) = (BTreeSet::new(), Instant::now());
        while begun.elapsed() < 35 * SECOND {
            let connection = pool.check_out().await.unwrap();
            sleep(20 * MS).await;
            ids.insert(connection.id());
        }
        assert!((3..=5).contains(&ids.len()), "{minimum}: {ids:?}");
    }
}

/// Watches a pool for a minute. Returns the minimum number of available connections and the maximum number of existing
/// connections.
async fn watch(pool: &Pool<Slow>) -> (u32, u32) {
    let (begun, mut fewest, mut most) = (Instant::now(), u32::MAX, 0);
    while begun.elapsed() < 60 * SECOND {
        let status = pool.status();
        (fewest, most) = (fewest.min(status.available), most.max(status.total));
        sleep(5 * MS).await;
    }
    (fewest, most)
}

#[tokio::test(start_paused = true)]
async fn minimum_is_kept_while_connections_are_replaced() {
    let options = PoolOptions::default().min_pool_size(5);
    for (name, options) in [
        ("idle time", options.clone().max_idle_time(10 * SECOND)),
        ("lifetime", options.clone().max_lifetime(10 * SECOND)),
        ("both", options.clone().max_idle_time(4 * SECOND).max_lifetime(9 * SECOND).jitter_percent(20)),
        ("little room", options.max_pool_size(6).max_lifetime(10 * SECOND)),
    ] {
        let limit = options.capacity();
        let (pool, log, _) = pool(options);
        while pool.status().available < 5 {
            sleep(5 * MS).await;
        }
        let (fewest, most) = watch(&pool).await;
        assert_eq!(fewest, 5, "{name}");
        assert!(most <= limit.min(10), "{name}: {most}");
        assert!(log.count("ConnectionClosed") >= 20, "{name}: {:?}", log.lines());
    }
}

#[tokio::test(start_paused = true)]
async fn full_pool_closes_a_connection_before_it_opens_the_next() {
    let (pool, log, _) = pool(PoolOptions::default().min_pool_size(3).max_pool_size(3).max_lifetime(10 * SECOND));
    while pool.status().available < 3 {
        sleep(5 * MS).await;
    }
    let (_, most) = watch(&pool).await;
    assert_eq!(most, 3);
    assert!(log.count("ConnectionClosed") >= 12, "{:?}", log.lines());
    assert!(pool.status().available >= 2);
}

#[tokio::test(start_paused = true)]
async fn full_pool_closes_one_connection_at_a_time_even_if_a_close_takes_long() {
    let options = PoolOptions::default().min_pool_size(3).max_pool_size(3).max_lifetime(10 * SECOND);
    let (pool, log) = slow_to_close(options.background_interval(BackgroundInterval::Every(200 * MS)));
    pool.warm_up(3, |_| ()).await.unwrap();
    sleep(9 * SECOND).await;
    for _ in 0..50 {
        sleep(100 * MS).await;
        assert!(pool.status().available >= 2, "{:?}", pool.status());
    }
    assert_eq!((log.count("ConnectionClosed"), log.count("ConnectionCreated")), (3, 6));
}

#[tokio::test(start_paused = true)]
async fn jitter_spreads_the_ends_of_connections_that_were_opened_together() {
    let (pool, log, _) = pool(PoolOptions::default().max_connecting(100).max_lifetime(100 * SECOND).jitter_percent(50));
    // The connections are replaced one after another, which takes three seconds.
    fill(&pool, 100).await;
    sleep(46 * SECOND).await;
    assert_eq!(log.count("ConnectionClosed"), 0);
    let mut closed = Vec::new();
    for _ in 0..6 {
        sleep(10 * SECOND).await;
        closed.push(log.count("ConnectionClosed"));
    }
    assert!(closed.windows(2).take(4).all(|pair| (4..=45).contains(&(pair[1] - pair[0]))), "{closed:?}");
    assert_eq!(closed[5], 100);
}

#[tokio::test(start_paused = true)]
async fn renewal_under_load_fails_no_check_out_and_leaves_no_old_connection() {
    let (pool, log, credentials) = pool(PoolOptions::default().max_pool_size(10));
    let floor = Arc::new(AtomicU32::new(0));
    let end = Instant::now() + 6 * SECOND;
    let tasks = (0..50).map(|_| {
        let (pool, floor) = (pool.clone(), floor.clone());
        tokio::spawn(async move {
            let mut uses = 0;
            while Instant::now() < end {
                let least = floor.load(Ordering::SeqCst);
                let connection = pool.check_out().await.expect("a check-out was refused");
                assert!(*connection >= least, "version {} instead of {least}", *connection);
                sleep(2 * MS).await;
                uses += 1;
            }
            uses
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for version in 1..=20 {
        sleep(250 * MS).await;
        credentials.0.store(version, Ordering::SeqCst);
        pool.renew();
        floor.store(version, Ordering::SeqCst);
    }
    let mut uses = 0;
    for task in tasks {
        uses += task.await.unwrap();
    }
    assert!(uses > 1_000, "{uses}");
    assert_eq!((log.count("PoolCleared"), log.count("ConnectionCheckOutFailed")), (0, 0));
    assert_eq!(log.lines().iter().filter(|line| line.ends_with(" stale")).count(), 200, "10 connections, 20 times");
}

#[tokio::test(start_paused = true)]
async fn renewal_closes_idle_connections_at_once_and_others_when_they_come_back() {
    let (pool, log, _) = pool(PoolOptions::default().min_pool_size(2));
    fill(&pool, 3).await;
    let held = pool.check_out().await.unwrap();
    pool.renew();
    assert!(held.is_stale());
    settle().await;
    assert_eq!(log.count("ConnectionClosed"), 2);
    advance(SECOND).await;
    settle().await;
    drop(held);
    settle().await;
    assert_eq!(log.count("ConnectionClosed"), 3);
    sleep(SECOND).await;
    assert_eq!(pool.status().available, 2, "the minimum is opened in the background");
    pool.close();
    pool.renew();
    pool.closed().await;
}

#[tokio::test(start_paused = true)]
async fn replaced_establisher_opens_all_further_connections() {
    let (pool, log, first) = pool(PoolOptions::default().max_pool_size(1));
    let held = pool.check_out().await.unwrap();
    let waiter = tokio::spawn({
        let pool = pool.clone();
        async move { *pool.check_out().await.unwrap() }
    });
    settle().await;
    let second = Slow::default();
    second.0.store(7, Ordering::SeqCst);
    pool.replace_establisher(second);
    assert_eq!(pool.establisher().0.load(Ordering::SeqCst), 7);
    assert_eq!(*held, 0);
    drop(held);
    assert_eq!(waiter.await.unwrap(), 7);
    assert_eq!(*pool.check_out().await.unwrap(), 7);
    assert_eq!((log.count("ConnectionCreated"), log.count("ConnectionCheckOutFailed")), (2, 0));
    assert_eq!(Arc::strong_count(&first.0), 2, "the earlier establisher is kept as long as the pool");
    pool.close();
    pool.closed().await;
    drop(pool);
    settle().await;
    assert_eq!(Arc::strong_count(&first.0), 1);
}
