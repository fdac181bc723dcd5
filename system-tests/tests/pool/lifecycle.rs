//! The construction and closing of a pool, its handles and guards, and misbehaving establishers.

use std::time::Duration;

use wharf::{BackgroundInterval, CheckOutError, Clear, Phase, Pool, PoolEvent, PoolOptions};

use super::mock::{Attempt, Log, Mock, builder, counts, pool, settle};

#[tokio::test(start_paused = true)]
async fn invalid_options_are_refused_at_build() {
    let refused = [
        (PoolOptions::default().max_pool_size(2).min_pool_size(3), "minPoolSize"),
        (PoolOptions::default().max_connecting(0), "maxConnecting"),
        (PoolOptions::default().max_pool_size(wharf::MAX_CONNECTIONS + 1), "maxPoolSize"),
        (PoolOptions::default().background_interval(BackgroundInterval::Every(Duration::ZERO)), "backgroundInterval"),
    ];
    for (options, name) in refused {
        let log = Log::default();
        match builder(&Mock::new([])).options(options).subscriber(log.subscriber()).build() {
            Err(error) => assert_eq!(error.option, name),
            other => panic!("{name}: {other:?}"),
        }
        assert!(log.lines().is_empty(), "a pool that was not built emitted events");
    }
}

#[test]
fn pool_needs_a_current_or_a_given_runtime() {
    assert_eq!(builder(&Mock::new([])).build().unwrap_err().option, "runtime");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let pool = builder(&Mock::new([])).runtime(runtime.handle().clone()).build().unwrap();
    assert_eq!(pool.status().phase, Phase::Paused);
}

#[tokio::test(start_paused = true)]
async fn check_in_works_on_a_thread_without_a_runtime() {
    let (pool, _log) = pool(PoolOptions::default(), &Mock::new([]));
    let connection = pool.check_out().await.unwrap();
    std::thread::spawn(move || drop(connection)).join().unwrap();
    assert_eq!(counts(&pool), (1, 0, 1, 0, 0));
}

#[test]
fn connection_that_comes_back_after_its_runtime_has_ended_is_closed() {
    let mock = Mock::new([]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (pool, connection, log) = runtime.block_on(async {
        let (pool, log) = pool(PoolOptions::default(), &mock);
        let connection = pool.check_out().await.unwrap();
        (pool, connection, log)
    });
    drop(runtime);
    drop(connection);
    assert_eq!(counts(&pool), (0, 0, 0, 0, 0), "a connection is kept whose runtime has ended");
    drop(pool);
    assert_eq!(
        log.lines()[3..],
        ["ConnectionCheckedOut 1", "ConnectionCheckedIn 1", "ConnectionClosed 1 stale", "PoolClosed"]
    );
    assert_eq!(mock.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn check_in_to_another_pool_returns_the_connection() {
    let mock = Mock::new([]);
    let (one, log) = pool(PoolOptions::default(), &mock);
    let other = Pool::builder("elsewhere:27017", mock.clone()).build().unwrap();
    let connection = one.check_out().await.unwrap();
    log.take();
    let refused = other.check_in(connection).unwrap_err();
    assert_eq!(&*refused.address, "elsewhere:27017");
    assert!(refused.to_string().contains("elsewhere:27017"));
    assert_eq!(counts(&one), (1, 0, 0, 1, 0), "the connection has left its own pool");
    assert!(log.lines().is_empty());
    one.check_in(refused.connection).unwrap();
    assert_eq!(log.take(), ["ConnectionCheckedIn 1"]);
    assert_eq!(counts(&one), (1, 0, 1, 0, 0));
    assert_eq!(counts(&other), (0, 0, 0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn last_handle_closes_the_pool_while_a_connection_is_in_use() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    let clone = pool.clone();
    let (out, available) = (pool.check_out().await.unwrap(), pool.check_out().await.unwrap());
    drop(available);
    log.take();
    drop(pool);
    assert!(log.lines().is_empty(), "the pool was closed while another handle exists");
    drop(clone);
    assert_eq!(log.take(), ["ConnectionClosed 2 poolClosed", "PoolClosed"]);
    assert_eq!(
        (mock.live(), out.broken, out.address()),
        (1, false, "mock:27017"),
        "the connection in use has become unusable"
    );
    drop(out);
    assert_eq!(log.take(), ["ConnectionCheckedIn 1", "ConnectionClosed 1 poolClosed"]);
    assert_eq!(mock.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn closed_completes_with_the_last_connection() {
    let mock = Mock::new([]);
    let (pool, _log) = pool(PoolOptions::default(), &mock);
    let (first, second) = (pool.check_out().await.unwrap(), pool.check_out().await.unwrap());
    let closed = tokio::spawn({
        let pool = pool.clone();
        async move { pool.closed().await }
    });
    settle().await;
    pool.close();
    drop(first);
    settle().await;
    assert!(!closed.is_finished(), "closed() completed while a connection is in use");
    drop(second);
    tokio::time::timeout(Duration::from_secs(1), closed).await.expect("closed() hangs").unwrap();
    tokio::time::timeout(Duration::from_secs(1), pool.closed()).await.expect("closed() hangs the second time");
}

#[tokio::test(start_paused = true)]
async fn closed_completes_when_pending_connections_are_given_up() {
    let mock = Mock::new([Attempt::Held]);
    let (pool, _log) = pool(PoolOptions::default(), &mock);
    let check_out = tokio::spawn({
        let pool = pool.clone();
        async move { pool.check_out().await.map(drop) }
    });
    settle().await;
    assert_eq!(counts(&pool), (1, 1, 0, 0, 0));
    pool.close();
    tokio::time::timeout(Duration::from_secs(1), pool.closed()).await.expect("closed() hangs");
    assert!(matches!(check_out.await.unwrap(), Err(CheckOutError::PoolClosed(_))));
    assert_eq!(mock.live(), 0);
}

/// A timer has a cost even if it never fires: while one is set, the runtime reads the clock whenever it goes to sleep.
#[tokio::test(start_paused = true)]
async fn idle_pool_sets_a_timer_only_if_time_alone_can_bring_work() {
    const HOUR: Duration = Duration::from_secs(3600);
    let kept = || PoolOptions::default().max_idle_time(2 * HOUR);
    for (options, wakes) in [
        (PoolOptions::default(), false),
        (kept(), true),
        (PoolOptions::default().min_pool_size(1), true),
        (PoolOptions::default().load_balanced(true), true),
        (kept().background_interval(BackgroundInterval::Never), false),
    ] {
        let (pool, _log) = pool(options, &Mock::new([]));
        drop(pool.check_out().await.unwrap());
        settle().await;
        let metrics = tokio::runtime::Handle::current().metrics();
        let before = metrics.worker_park_count(0);
        tokio::time::sleep(HOUR).await;
        let parks = metrics.worker_park_count(0) - before;
        // An hour contains 360 default intervals. The test's own sleep parks the worker a few times.
        assert!(if wakes { parks >= 360 } else { parks <= 10 }, "{parks} with {:?}", pool.options());
        assert_eq!(counts(&pool), (1, 0, 1, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn establisher_that_panics_fails_one_check_out() {
    let mock = Mock::new([Attempt::Panics]);
    let (pool, log) = pool(PoolOptions::default().max_pool_size(1), &mock);
    let error = pool.check_out().await.unwrap_err();
    assert!(matches!(error, CheckOutError::Establish(_)), "{error:?}");
    settle().await;
    assert_eq!((counts(&pool), mock.live()), ((0, 0, 0, 0, 0), 0));
    assert_eq!(log.count("ConnectionClosed 1 error"), 1);
    assert_eq!(log.count("ConnectionCheckOutFailed connectionError"), 1);
    drop(pool.check_out().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn establisher_that_panics_in_the_background_is_retried() {
    let mock = Mock::new([Attempt::Panics, Attempt::Panics]);
    let (pool, _log) = pool(PoolOptions::default().min_pool_size(1), &mock);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((counts(&pool), mock.live()), ((1, 0, 1, 0, 0), 1));
}

/// Reads the status in a subscriber at every event, and after every step.
#[tokio::test(start_paused = true)]
async fn status_adds_up_at_every_step() {
    let mock = Mock::new([Attempt::Held]);
    let pool = builder(&mock).options(PoolOptions::default().max_pool_size(2)).build().unwrap();
    let looks = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    pool.subscribe({
        let (lent, looks) = (pool.clone(), looks.clone());
        move |event: &PoolEvent| {
            let status = lent.status();
            let sum = status.pending + status.available + status.in_use + status.stale;
            looks.lock().unwrap().push((event.name(), status.total == sum && status.total <= 2 && status.pending <= 2));
        }
    });
    assert_eq!(counts(&pool), (0, 0, 0, 0, 0));
    pool.ready();
    let opening = tokio::spawn({
        let pool = pool.clone();
        async move { pool.check_out().await.unwrap() }
    });
    settle().await;
    assert_eq!(counts(&pool), (1, 1, 0, 0, 0), "pending");
    let second = pool.check_out().await.unwrap();
    assert_eq!(counts(&pool), (2, 1, 0, 1, 0), "another in use");
    let waiting = tokio::spawn({
        let pool = pool.clone();
        async move { pool.check_out().await.unwrap() }
    });
    settle().await;
    assert_eq!(counts(&pool), (2, 1, 0, 1, 1), "another waits");
    mock.let_one_in();
    let first = opening.await.unwrap();
    assert_eq!(counts(&pool), (2, 0, 0, 2, 1), "established");
    drop(first);
    let third = waiting.await.unwrap();
    assert_eq!(counts(&pool), (2, 0, 0, 2, 0), "handed over");
    drop(second);
    assert_eq!(counts(&pool), (2, 0, 1, 1, 0), "available");
    pool.clear(Clear::new()).unwrap();
    assert_eq!(counts(&pool), (2, 0, 0, 1, 0), "stale");
    assert_eq!(pool.status().stale, 1);
    settle().await;
    assert_eq!(counts(&pool), (1, 0, 0, 1, 0), "closed");
    drop(third);
    assert_eq!(counts(&pool), (0, 0, 0, 0, 0), "closed at check-in");
    pool.close();
    let looks = looks.lock().unwrap();
    assert!(looks.iter().all(|(_, adds_up)| *adds_up), "{looks:?}");
    assert_eq!(looks.last().unwrap().0, "PoolClosed");
}
