//! The check of a connection before it is used.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, advance};
use wharf::{
    CheckBeforeUse, CheckOutError, CheckResult, Clear, Establish, EstablishError, Establishing, Pool, PoolEvent,
    PoolOptions,
};

use super::mock::{Log, poll_once, settle};

const SECOND: Duration = Duration::from_secs(1);

/// How a server's checks misbehave.
#[derive(Debug, Clone, Copy)]
enum Mood {
    Silent = 1,
    Panics,
}

/// A server that can restart. A restart breaks its connections, and the pool does not notice.
#[derive(Clone, Default)]
struct Server {
    restarts: Arc<AtomicU32>,
    checks: Arc<AtomicUsize>,
    mood: Arc<AtomicU32>,
}

/// A connection. It stores how many times the server had restarted before the connection was opened.
struct ToServer(u32);

impl Server {
    fn restart(&self) {
        self.restarts.fetch_add(1, Ordering::SeqCst);
    }

    fn be(&self, mood: Mood) {
        self.mood.store(mood as u32, Ordering::SeqCst);
    }

    fn is_alive(&self, connection: &ToServer) -> bool {
        connection.0 == self.restarts.load(Ordering::SeqCst)
    }

    /// Returns the number of checks since the last call.
    fn checks(&self) -> usize {
        self.checks.swap(0, Ordering::SeqCst)
    }
}

impl Establish for Server {
    type Connection = ToServer;
    const HAS_CHECK: bool = true;

    async fn establish(&self, _: Establishing) -> Result<ToServer, EstablishError> {
        Ok(ToServer(self.restarts.load(Ordering::SeqCst)))
    }

    async fn check(&self, connection: &mut ToServer) -> CheckResult {
        self.checks.fetch_add(1, Ordering::SeqCst);
        match self.mood.load(Ordering::SeqCst) {
            mood if mood == Mood::Silent as u32 => pending().await,
            mood if mood == Mood::Panics as u32 => panic!("the check was told to panic"),
            _ => yield_now().await,
        }
        if self.is_alive(connection) { Ok(()) } else { Err("connection reset by peer".into()) }
    }
}

/// Returns a ready pool whose idle times follow tokio's clock.
fn pool(server: &Server, options: PoolOptions) -> (Pool<Server>, Log) {
    let log = Log::default();
    let builder = Pool::builder("server", server.clone()).options(options).subscriber(log.subscriber());
    let pool = builder.tokio_clock(true).build().unwrap();
    pool.ready();
    (pool, log)
}

/// Opens this many connections, and leaves them idle.
async fn fill(pool: &Pool<Server>, connections: usize) {
    let mut held = Vec::new();
    for _ in 0..connections {
        held.push(pool.check_out().await.unwrap());
    }
}

fn one_connection() -> PoolOptions {
    PoolOptions::default().max_pool_size(1)
}

fn always() -> PoolOptions {
    one_connection().check_before_use(CheckBeforeUse::Always)
}

#[tokio::test(start_paused = true)]
async fn try_check_out_leaves_a_connection_that_is_due_for_a_check() {
    let server = Server::default();
    let (pool, _log) = pool(&server, one_connection());
    fill(&pool, 1).await;
    assert!(pool.try_check_out().is_some(), "was used just now");
    advance(2 * SECOND).await;
    assert!(pool.try_check_out().is_none());
    drop(pool.check_out().await.unwrap());
    assert_eq!(server.checks(), 1, "the call that found it due has not made it look used");
    assert!(pool.try_check_out().is_some());
}

#[tokio::test(start_paused = true)]
async fn no_use_after_a_restart_gets_a_dead_connection() {
    let default = PoolOptions::default;
    for (options, idle_for) in
        [(default(), 2 * SECOND), (default().check_before_use(CheckBeforeUse::Always), Duration::ZERO)]
    {
        let server = Server::default();
        let (pool, log) = pool(&server, options);
        fill(&pool, 20).await;
        server.restart();
        advance(idle_for).await;
        let mut dead = 0;
        for _ in 0..40 {
            dead += u32::from(!server.is_alive(&pool.check_out().await.unwrap()));
        }
        assert_eq!(dead, 0, "of the next 40 uses");
        assert_eq!(log.count("ConnectionClosed"), 20, "{:?}", log.lines());
        assert_eq!(log.lines().iter().filter(|line| line.ends_with(" error")).count(), 20);
        let status = pool.status();
        assert_eq!((status.total, status.available, status.in_use), (1, 1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn no_use_at_the_same_time_gets_a_dead_connection() {
    let server = Server::default();
    let (pool, _log) = pool(&server, PoolOptions::default().max_pool_size(20).max_connecting(20));
    fill(&pool, 20).await;
    server.restart();
    advance(2 * SECOND).await;
    let uses = (0..40).map(|_| {
        let (pool, server) = (pool.clone(), server.clone());
        tokio::spawn(async move {
            let connection = pool.check_out().await.unwrap();
            yield_now().await;
            server.is_alive(&connection)
        })
    });
    for use_ in uses.collect::<Vec<_>>() {
        assert!(use_.await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn connection_is_checked_when_it_was_idle_for_longer_than_the_policy_says() {
    let seconds = |time| CheckBeforeUse::IdleLongerThan(Duration::from_secs(time));
    let idle_for_1_5_s_then_5_s = [
        (None, [1, 1]),
        (Some(seconds(3)), [0, 1]),
        (Some(CheckBeforeUse::Never), [0, 0]),
        (Some(CheckBeforeUse::Always), [1, 1]),
    ];
    for (policy, expected) in idle_for_1_5_s_then_5_s {
        let server = Server::default();
        let mut options = PoolOptions::default();
        options.check_before_use = policy;
        let (pool, _log) = pool(&server, options);
        fill(&pool, 1).await;
        assert_eq!(server.checks(), 0, "{policy:?}: a connection that was opened for the check-out is checked");
        for (idle_for, checks) in [3 * SECOND / 2, 5 * SECOND].into_iter().zip(expected) {
            advance(idle_for).await;
            let connection = pool.check_out().await.unwrap();
            // The time in use does not count as idle time.
            advance(5 * SECOND).await;
            drop(connection);
            assert_eq!(server.checks(), checks, "{policy:?} {idle_for:?}");
            drop(pool.check_out().await.unwrap());
            assert_eq!(
                server.checks(),
                usize::from(policy == Some(CheckBeforeUse::Always)),
                "{policy:?}: in steady use"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn connection_that_is_handed_over_is_checked_if_every_connection_is() {
    let server = Server::default();
    let (pool, _log) = pool(&server, always());
    let held = pool.check_out().await.unwrap();
    let waiter = tokio::spawn({
        let pool = pool.clone();
        async move { pool.check_out().await.map(drop) }
    });
    settle().await;
    assert_eq!(pool.status().waiting, 1);
    drop(held);
    waiter.await.unwrap().unwrap();
    assert_eq!(server.checks(), 1);
}

#[tokio::test(start_paused = true)]
async fn check_out_that_is_dropped_during_the_check_closes_the_connection() {
    let server = Server::default();
    let (pool, log) = pool(&server, always());
    fill(&pool, 1).await;
    server.be(Mood::Silent);
    {
        let mut check_out = pin!(pool.check_out());
        assert!(poll_once(check_out.as_mut()).await.is_none());
        assert_eq!((server.checks(), pool.status().in_use), (1, 1));
    }
    assert_eq!(pool.status().total, 0);
    assert!(log.lines().last().unwrap().starts_with("ConnectionCheckOutFailed"), "{:?}", log.lines());
    assert_eq!(log.count("ConnectionClosed 1 error"), 1, "{:?}", log.lines());
    fill(&pool, 1).await;
    pool.close();
    pool.closed().await;
}

#[tokio::test(start_paused = true)]
async fn time_limit_of_a_check_out_covers_the_check() {
    let server = Server::default();
    let (pool, log) = pool(&server, always().wait_queue_timeout(SECOND));
    fill(&pool, 1).await;
    server.be(Mood::Silent);
    let begun = Instant::now();
    let error = pool.check_out().await.unwrap_err();
    assert!(matches!(error, CheckOutError::WaitQueueTimeout(_)), "{error}");
    assert_eq!(begun.elapsed(), SECOND);
    assert_eq!((pool.status().total, log.count("ConnectionClosed 1 error")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn check_that_panics_closes_the_connection_and_fails_no_check_out() {
    let server = Server::default();
    let (pool, log) = pool(&server, always());
    fill(&pool, 1).await;
    server.be(Mood::Panics);
    assert_eq!(pool.check_out().await.unwrap().id(), 2);
    assert_eq!(log.count("ConnectionClosed 1 error"), 1);
}

#[tokio::test(start_paused = true)]
async fn check_out_whose_connection_fails_keeps_its_turn() {
    let server = Server::default();
    let (pool, _log) = pool(&server, always());
    fill(&pool, 1).await;
    server.restart();
    let mut first = pin!(pool.check_out());
    assert!(poll_once(first.as_mut()).await.is_none());
    let mut second = pin!(pool.check_out());
    assert!(poll_once(second.as_mut()).await.is_none());
    assert_eq!(first.await.unwrap().id(), 2);
    assert_eq!(second.await.unwrap().id(), 2);
}

#[tokio::test(start_paused = true)]
async fn clear_ends_the_check() {
    let server = Server::default();
    let (pool, log) = pool(&server, always());
    fill(&pool, 1).await;
    server.be(Mood::Silent);
    let check_out = tokio::spawn({
        let pool = pool.clone();
        async move { pool.check_out().await.map(drop) }
    });
    settle().await;
    pool.clear(Clear::new()).unwrap();
    let error = check_out.await.unwrap().unwrap_err();
    assert!(matches!(error, CheckOutError::PoolCleared(_)), "{error}");
    assert_eq!((pool.status().total, log.count("ConnectionClosed 1 stale")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn event_says_why_a_connection_has_failed_its_check() {
    let server = Server::default();
    let (pool, _log) = pool(&server, always());
    let (errors, seen) = std::sync::mpsc::channel();
    pool.subscribe(move |event: &PoolEvent| {
        if let PoolEvent::ConnectionClosed { error: Some(error), .. } = event {
            errors.send(error.clone()).unwrap();
        }
    });
    fill(&pool, 1).await;
    server.restart();
    drop(pool.check_out().await.unwrap());
    let error = seen.try_recv().unwrap();
    assert_eq!(error.to_string(), "the connection failed the check before its use: connection reset by peer");
    assert_eq!(error.source().unwrap().to_string(), "connection reset by peer");
}

#[tokio::test]
async fn connection_is_checked_by_the_shared_clock_too() {
    let server = Server::default();
    let policy = CheckBeforeUse::IdleLongerThan(3 * SECOND / 10);
    let pool = Pool::builder("server", server.clone())
        .options(PoolOptions::default().check_before_use(policy))
        .build()
        .unwrap();
    pool.ready();
    fill(&pool, 1).await;
    let begun = Instant::now();
    let mut uses = 0;
    while begun.elapsed() < SECOND / 2 {
        drop(pool.check_out().await.unwrap());
        uses += 1;
        yield_now().await;
    }
    assert!(uses > 1);
    // The connection is in steady use, unless the machine pauses for a while.
    let checks = server.checks();
    // The pool's clock does not depend on the runtime, which does not run during this sleep.
    std::thread::sleep(SECOND / 2);
    drop(pool.check_out().await.unwrap());
    assert_eq!(server.checks(), 1, "after {uses} uses with {checks} checks");
}

#[tokio::test]
async fn policy_is_refused_for_connections_without_a_check() {
    let refused = super::mock::builder(&super::mock::Mock::new([])).options(always()).build().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "checkBeforeUse must be Never for connections without a check (Establish::HAS_CHECK), got Always"
    );
    let never = one_connection().check_before_use(CheckBeforeUse::Never);
    assert!(super::mock::builder(&super::mock::Mock::new([])).options(never).build().is_ok());
}

/// Opens a connection in 300 ms. A check takes two polls.
struct SlowToOpen;

impl Establish for SlowToOpen {
    type Connection = ();
    const HAS_CHECK: bool = true;

    async fn establish(&self, _: Establishing) -> Result<(), EstablishError> {
        tokio::time::sleep(3 * SECOND / 10).await;
        Ok(())
    }

    async fn check(&self, (): &mut ()) -> CheckResult {
        yield_now().await;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn time_of_an_opening_does_not_count_when_a_returned_connection_is_checked() {
    let log = Log::default();
    let options = PoolOptions::default().check_before_use(CheckBeforeUse::Always).wait_queue_timeout(SECOND / 10);
    let builder = Pool::builder("slow", SlowToOpen).options(options).subscriber(log.subscriber());
    let pool = builder.tokio_clock(true).build().unwrap();
    pool.ready();
    let held = pool.check_out().await.unwrap();
    let mut opens = pin!(pool.check_out());
    assert!(poll_once(opens.as_mut()).await.is_none());
    advance(3 * SECOND / 20).await;
    drop(held);
    assert_eq!(opens.await.unwrap().id(), 1);
    assert_eq!(log.count("ConnectionClosed"), 0);
}
