//! `Pool::metrics`: each counter counts exactly the operations that its documentation names.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;
use wharf::metrics::{CheckOutFailures, Closes, PoolMetrics};
use wharf::telemetry::{METRICS, prometheus_text};
use wharf::{Clear, Pool, PoolOptions, Stage};

use super::mock::{Attempt, Mock, builder, poll_once, service, settle};

const MS: Duration = Duration::from_millis(1);

/// Returns a ready pool without subscribers.
fn pool(options: PoolOptions, mock: &Mock) -> Pool<Mock> {
    let pool = builder(mock).options(options).build().unwrap();
    assert!(pool.ready());
    pool
}

/// Returns how many check-outs hit, waited and opened.
fn check_outs(metrics: &PoolMetrics) -> (u64, u64, u64) {
    let check_outs = &metrics.check_outs;
    assert_eq!(check_outs.wait_time().count(), check_outs.waited.count() + check_outs.opened.count());
    assert_eq!(check_outs.succeeded(), check_outs.hits + check_outs.wait_time().count());
    (check_outs.hits, check_outs.waited.count(), check_outs.opened.count())
}

fn failures(metrics: &PoolMetrics) -> CheckOutFailures {
    metrics.check_outs.failed
}

#[tokio::test]
async fn check_outs_count_by_how_they_got_their_connection() {
    let pool = pool(PoolOptions::default().max_pool_size(1), &Mock::new([]));
    assert_eq!(check_outs(&pool.metrics()), (0, 0, 0));
    let connection = pool.check_out().await.unwrap();
    assert_eq!(check_outs(&pool.metrics()), (0, 0, 1));
    drop(connection);
    for hits in 1..=5 {
        drop(pool.check_out().await.unwrap());
        assert_eq!(check_outs(&pool.metrics()), (hits, 0, 1));
    }
    let connection = pool.check_out().await.unwrap();
    let mut waits = pin!(pool.check_out());
    assert!(poll_once(waits.as_mut()).await.is_none());
    assert_eq!(check_outs(&pool.metrics()), (6, 0, 1), "the check-out still waits");
    drop(connection);
    drop(waits.await.unwrap());
    assert_eq!(check_outs(&pool.metrics()), (6, 1, 1));
    assert_eq!(failures(&pool.metrics()).total(), 0);
}

#[tokio::test]
async fn text_for_prometheus_has_each_metric_once_and_its_values_for_each_pool() {
    let pool = pool(PoolOptions::default(), &Mock::new([]));
    drop(pool.check_out().await.unwrap());
    let text = prometheus_text(&[pool.metrics(), pool.metrics()]);
    let count = |line: &str| text.lines().filter(|other| *other == line).count();
    for metric in METRICS {
        assert_eq!(count(&format!("# HELP {} {}", metric.name, metric.help)), 1, "{}", metric.name);
    }
    assert_eq!(count("# TYPE wharf_pool_retries_total counter"), 1, "{text}");
    let labels = format!("pool=\"{}\"", pool.address());
    assert_eq!(count(&format!("wharf_pool_retries_total{{{labels}}} 0")), 2, "{text}");
    assert_eq!(count(&format!("wharf_pool_connections{{{labels},state=\"idle\"}} 1")), 2, "{text}");
    assert_eq!(count(&format!("wharf_pool_create_seconds_bucket{{{labels},le=\"+Inf\"}} 1")), 2, "{text}");
    assert_eq!(count(&format!("wharf_pool_create_seconds_count{{{labels}}} 1")), 2, "{text}");
    assert!(text.contains(&format!("wharf_pool_create_seconds_bucket{{{labels},le=\"5e-5\"}} ")), "{text}");
}

/// A check-out with a time limit, or with a subscriber, takes a different path through the pool.
#[tokio::test]
async fn check_outs_count_the_same_on_every_path() {
    let limited = PoolOptions::default().max_pool_size(1).wait_queue_timeout(10_000 * MS);
    for (options, listens) in [
        (limited.clone(), false),
        (limited, true),
        (PoolOptions::default().max_pool_size(1), true),
        (PoolOptions::default().max_pool_size(1).max_idle_time(10_000 * MS), false),
    ] {
        let builder = builder(&Mock::new([])).options(options);
        let pool = if listens { builder.subscriber(|_: &_| {}) } else { builder }.build().unwrap();
        pool.ready();
        drop(pool.check_out().await.unwrap());
        drop(pool.check_out_until(Instant::now() + 10_000 * MS).await.unwrap());
        let connection = pool.check_out().await.unwrap();
        let mut waits = pin!(pool.check_out());
        assert!(poll_once(waits.as_mut()).await.is_none());
        drop(connection);
        drop(waits.await.unwrap());
        assert_eq!(check_outs(&pool.metrics()), (2, 1, 1));
    }
}

/// An opener that takes a returned connection counts as having waited. The connection that it was opening then serves
/// another check-out.
#[tokio::test(start_paused = true)]
async fn opener_that_takes_another_connection_has_waited() {
    let mock = Mock::new([]);
    let pool = pool(PoolOptions::default().max_pool_size(2), &mock);
    let first = pool.check_out().await.unwrap();
    mock.instruct([Attempt::Held]);
    let mut opens = pin!(pool.check_out());
    assert!(poll_once(opens.as_mut()).await.is_none());
    settle().await;
    drop(first);
    let second = opens.await.unwrap();
    assert_eq!(check_outs(&pool.metrics()), (0, 1, 1));
    let mut waits = pin!(pool.check_out());
    assert!(poll_once(waits.as_mut()).await.is_none());
    mock.let_one_in();
    drop(waits.await.unwrap());
    assert_eq!(check_outs(&pool.metrics()), (0, 2, 1), "the connection was opened for another check-out");
    drop(second);
}

#[tokio::test]
async fn waits_and_uses_and_establishments_take_the_time_they_take() {
    let mock = Mock::new([Attempt::Held]);
    let pool = pool(PoolOptions::default().max_pool_size(1), &mock);
    let busy = |time: Duration| {
        let begun = std::time::Instant::now();
        while begun.elapsed() < time {}
    };
    let begun = std::time::Instant::now();
    let mut opens = pin!(pool.check_out());
    assert!(poll_once(opens.as_mut()).await.is_none());
    busy(20 * MS);
    mock.let_one_in();
    let connection = opens.await.unwrap();
    let mut waits = pin!(pool.check_out());
    assert!(poll_once(waits.as_mut()).await.is_none());
    busy(10 * MS);
    drop(connection);
    drop(waits.await.unwrap());
    let (metrics, most) = (pool.metrics(), begun.elapsed());
    let opened = metrics.check_outs.opened.sum();
    assert!((20 * MS..most).contains(&opened), "{opened:?}");
    assert_eq!(metrics.check_outs.opened.max(), Some(opened), "one time");
    let waited = metrics.check_outs.waited.sum();
    assert!((10 * MS..most).contains(&waited), "{waited:?}");
    let used = metrics.use_time.sum();
    assert_eq!(metrics.use_time.count(), 1, "the first use of a place is timed");
    assert!((10 * MS..most).contains(&used), "{used:?}");
    let established = metrics.connections.establish_time.sum();
    assert!(established <= opened && established < most, "{established:?}");
}

#[tokio::test]
async fn one_use_in_128_is_timed_whether_it_hit_or_waited() {
    const USES: u64 = 128_000;
    let pool = pool(PoolOptions::default().max_pool_size(1), &Mock::new([]));
    drop(pool.check_out().await.unwrap());
    for _ in 0..USES {
        drop(pool.check_out().await.unwrap());
    }
    let hits = pool.metrics().use_time.count();
    assert!((900..1_100).contains(&hits), "{hits}");
    let mut connection = pool.check_out().await.unwrap();
    for _ in 0..USES {
        let mut waits = pin!(pool.check_out());
        assert!(poll_once(waits.as_mut()).await.is_none());
        drop(connection);
        connection = waits.await.unwrap();
    }
    let metrics = pool.metrics();
    assert_eq!(check_outs(&metrics), (USES + 1, USES, 1));
    let waits = metrics.use_time.count() - hits;
    assert!((900..1_100).contains(&waits), "{waits}");
}

#[tokio::test(start_paused = true)]
async fn failed_check_outs_count_by_reason() {
    let mock = Mock::new([Attempt::Fails]);
    let pool = pool(PoolOptions::default().max_pool_size(1).wait_queue_timeout(10 * MS), &mock);
    pool.check_out().await.unwrap_err();
    let mut expected = CheckOutFailures::default();
    expected.establish = 1;
    assert_eq!(failures(&pool.metrics()), expected);
    let connection = pool.check_out().await.unwrap();
    pool.check_out().await.unwrap_err();
    expected.timeout = 1;
    assert_eq!(failures(&pool.metrics()), expected);
    assert!(poll_once(pin!(pool.check_out())).await.is_none());
    expected.cancelled = 1;
    assert_eq!(failures(&pool.metrics()), expected);
    pool.clear(Clear::new()).unwrap();
    for _ in 0..2 {
        pool.check_out().await.unwrap_err();
    }
    expected.pool_cleared = 2;
    assert_eq!(failures(&pool.metrics()), expected);
    pool.close();
    pool.check_out().await.unwrap_err();
    expected.pool_closed = 1;
    assert_eq!(failures(&pool.metrics()), expected);
    assert_eq!(failures(&pool.metrics()).total(), 6);
    assert_eq!(check_outs(&pool.metrics()), (0, 0, 1));
    drop(connection);
}

#[test]
fn check_out_without_a_runtime_counts() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended = runtime();
    let mock = Mock::new([]);
    let pool = ended.block_on(async { pool(PoolOptions::default(), &mock) });
    drop(ended);
    let polled = pin!(pool.check_out()).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(matches!(polled, std::task::Poll::Ready(Err(wharf::CheckOutError::NoRuntime(_)))));
    let mut expected = CheckOutFailures::default();
    expected.no_runtime = 1;
    assert_eq!(failures(&pool.metrics()), expected);
    // The pool continues to count on its next runtime.
    runtime().block_on(async { drop(pool.check_out().await.unwrap()) });
    assert_eq!(failures(&pool.metrics()), expected);
    assert_eq!(check_outs(&pool.metrics()), (0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn establishments_and_closes_count_by_stage_and_by_reason() {
    let mock = Mock::new([Attempt::Fails, Attempt::HeldToTimeOut, Attempt::Panics, Attempt::Held]);
    let pool = pool(PoolOptions::default().max_idle_time(50 * MS), &mock);
    pool.check_out().await.unwrap_err();
    mock.let_one_in();
    pool.check_out().await.unwrap_err();
    pool.check_out().await.unwrap_err();
    let connections = pool.metrics().connections;
    assert_eq!(connections.failed.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [0, 0, 1, 0, 1, 0]);
    assert_eq!((*connections.failed.of(Stage::Hello), *connections.failed.of(Stage::Connect)), (1, 1));
    assert_eq!((connections.given_up, connections.created), (1, 3), "the establisher that panicked gave up");
    let mut closed = Closes::default();
    closed.error = 3;
    assert_eq!(connections.closed, closed);
    assert_eq!(connections.establish_time.count(), 0);

    // This connection is interrupted during its establishment.
    let opens = tokio::spawn({
        let pool = pool.clone();
        async move { drop(pool.check_out().await.unwrap_err()) }
    });
    settle().await;
    pool.clear(Clear::new().interrupt_in_use_connections(true)).unwrap();
    settle().await;
    opens.await.unwrap();
    pool.ready();
    let metrics = pool.metrics();
    closed.stale = 1;
    assert_eq!((metrics.connections.closed, metrics.connections.given_up), (closed, 2));
    assert_eq!((metrics.clears, metrics.interruptions), (1, 1));

    drop(pool.check_out().await.unwrap());
    tokio::time::sleep(60 * MS).await;
    let connection = pool.check_out().await.unwrap();
    let connections = pool.metrics().connections;
    closed.idle = 1;
    assert_eq!((connections.closed, connections.created), (closed, 6));
    assert_eq!(connections.establish_time.count(), 2);

    pool.close();
    drop(connection);
    pool.closed().await;
    let connections = pool.metrics().connections;
    closed.pool_closed = 1;
    assert_eq!(connections.closed, closed);
    assert_eq!(connections.closed.total(), connections.created);
}

#[tokio::test(start_paused = true)]
async fn clears_count_while_the_pool_is_ready() {
    let pool = pool(PoolOptions::default(), &Mock::new([]));
    let mut connection = pool.check_out().await.unwrap();
    connection.broken = false;
    pool.clear(Clear::new()).unwrap();
    pool.clear(Clear::new()).unwrap();
    let metrics = pool.metrics();
    assert_eq!((metrics.clears, metrics.interruptions, metrics.status.generation), (1, 0, 2));
    pool.ready();
    pool.clear(Clear::new().interrupt_in_use_connections(true)).unwrap();
    settle().await;
    let metrics = pool.metrics();
    assert_eq!((metrics.clears, metrics.interruptions), (2, 1), "the connection in use is interrupted");
}

/// An idle connection has no user to interrupt.
#[tokio::test(start_paused = true)]
async fn idle_connections_do_not_count_as_interrupted() {
    for load_balanced in [false, true] {
        let pool = pool(PoolOptions::default().load_balanced(load_balanced), &Mock::new([]));
        let (first, second) = (pool.check_out().await.unwrap(), pool.check_out().await.unwrap());
        let in_use = pool.check_out().await.unwrap();
        drop((first, second));
        let clear = Clear::new().interrupt_in_use_connections(true);
        assert!(if load_balanced { pool.clear_service(service(), clear) } else { pool.clear(clear) }.unwrap());
        settle().await;
        assert_eq!(pool.metrics().interruptions, 1, "load balanced: {load_balanced}");
        assert!(in_use.is_stale());
    }
}

#[tokio::test(start_paused = true)]
async fn clears_of_services_count() {
    let pool = pool(PoolOptions::default().load_balanced(true), &Mock::new([]));
    let connection = pool.check_out().await.unwrap();
    assert!(pool.clear_service(service(), Clear::new().interrupt_in_use_connections(true)).unwrap());
    settle().await;
    let metrics = pool.metrics();
    assert_eq!((metrics.clears, metrics.service_clears, metrics.interruptions), (0, 1, 1));
    drop(connection);
    assert!(!pool.clear_service(service(), Clear::new()).unwrap());
    assert_eq!(pool.metrics().service_clears, 1, "no connection, no clear");
}

#[tokio::test]
async fn snapshot_has_the_pools_numbers() {
    let pool = pool(PoolOptions::default().min_pool_size(1).max_pool_size(7), &Mock::new([]));
    let connection = pool.check_out().await.unwrap();
    let metrics = pool.metrics();
    assert_eq!((&*metrics.address, metrics.min_pool_size), ("mock:27017", 1));
    assert_eq!((metrics.status.in_use, metrics.status.max_pool_size), (1, 7));
    drop(connection);
}

/// No counter decreases between two snapshots. In each snapshot, no more operations have finished than have begun.
#[test]
fn snapshots_under_load_are_consistent_and_never_decrease() {
    const TASKS: usize = 8;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mock = Mock::new([]);
    let pool = runtime.block_on(async { pool(PoolOptions::default().max_pool_size(3), &mock) });
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    for task in 0..TASKS {
        let (pool, stop) = (pool.clone(), stop.clone());
        runtime.spawn(async move {
            for round in 0_usize.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(mut connection) = pool.check_out().await {
                    connection.broken = (round + task).is_multiple_of(7);
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut before = numbers(&pool.metrics());
                for round in 0..2_000 {
                    if round % 100 == 0 {
                        pool.clear(Clear::new().interrupt_in_use_connections(true)).unwrap();
                        pool.ready();
                    }
                    let metrics = pool.metrics();
                    let connections = &metrics.connections;
                    assert!(connections.closed.total() <= connections.created, "{metrics:?}");
                    assert!(connections.establish_time.count() + connections.given_up <= connections.created);
                    assert!(metrics.check_outs.opened.count() <= connections.establish_time.count(), "{metrics:?}");
                    assert!(metrics.use_time.count() <= metrics.check_outs.succeeded(), "{metrics:?}");
                    let now = numbers(&metrics);
                    for (index, (before, now)) in before.iter().zip(&now).enumerate() {
                        assert!(before <= now, "number {index} fell from {before} to {now}");
                    }
                    before = now;
                }
            });
        }
    });
    stop.store(true, Ordering::Relaxed);
    let seen = numbers(&pool.metrics());
    assert!(seen[..7].iter().all(|number| *number > 0), "{seen:?}");
}

/// Returns all numbers that must not decrease. The numbers that the load must have changed come first.
fn numbers(metrics: &PoolMetrics) -> Vec<u64> {
    let PoolMetrics { check_outs, connections, .. } = metrics;
    let mut numbers = vec![
        check_outs.waited.count(),
        check_outs.opened.count(),
        connections.created,
        connections.closed.total(),
        connections.closed.error,
        metrics.use_time.count(),
        metrics.clears,
        check_outs.hits,
        check_outs.failed.total(),
        metrics.interruptions,
        connections.given_up,
    ];
    for histogram in [&check_outs.waited, &check_outs.opened, &metrics.use_time, &connections.establish_time] {
        numbers.push(histogram.sum().as_nanos() as u64);
        numbers.push(histogram.max().unwrap_or_default().as_nanos() as u64);
    }
    numbers
}
