//! A check-out that is opening a connection takes another connection if one is returned sooner.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::task::JoinHandle;
use wharf::{BackgroundInterval, CheckOutError, Clear, Connection, Pool, PoolOptions};

use super::mock::{Attempt, Mock, builder, counts, poll_once, pool, settle};

type CheckedOut = Result<Connection<Mock>, CheckOutError>;

/// Spawns a check-out in a task that has not run yet.
fn spawned(pool: &Pool<Mock>) -> JoinHandle<CheckedOut> {
    let pool = pool.clone();
    tokio::spawn(async move { pool.check_out().await })
}

/// Spawns a check-out and lets it run as far as it can.
async fn begun(pool: &Pool<Mock>) -> JoinHandle<CheckedOut> {
    let check_out = spawned(pool);
    settle().await;
    check_out
}

/// Returns the connection that a check-out has received so far, if any.
async fn got(check_out: &mut JoinHandle<CheckedOut>) -> Option<Connection<Mock>> {
    settle().await;
    poll_once(Pin::new(check_out)).await.map(|done| done.unwrap().unwrap())
}

/// Checks out one connection, then starts a check-out that opens another connection with the given attempt. Returns
/// both.
async fn one_out_and_one_opens(
    pool: &Pool<Mock>,
    mock: &Mock,
    attempt: Attempt,
) -> (Connection<Mock>, JoinHandle<CheckedOut>) {
    let out = pool.check_out().await.unwrap();
    mock.instruct([attempt]);
    (out, begun(pool).await)
}

#[tokio::test(start_paused = true)]
async fn opener_takes_a_returned_connection_and_its_own_becomes_available() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    let (returns, mut opens) = one_out_and_one_opens(&pool, &mock, Attempt::Held).await;
    assert_eq!(counts(&pool), (2, 1, 0, 1, 0));
    drop(returns);
    let taken = got(&mut opens).await.expect("the opener was not given the connection that came back");
    assert_eq!((taken.id(), counts(&pool)), (1, (2, 1, 0, 1, 0)));
    mock.let_one_in();
    settle().await;
    assert_eq!(counts(&pool), (2, 0, 1, 1, 0));
    assert_eq!(pool.check_out().await.unwrap().id(), 2);
    assert_eq!(log.count("ConnectionCheckOutFailed"), 0);
}

#[tokio::test(start_paused = true)]
async fn opener_is_served_before_later_check_outs() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().max_connecting(1), &mock);
    let (returns, mut opens) = one_out_and_one_opens(&pool, &mock, Attempt::Held).await;
    let mut came_later = begun(&pool).await;
    assert_eq!(counts(&pool), (2, 1, 0, 1, 1));
    drop(returns);
    assert!(got(&mut came_later).await.is_none(), "the newer check-out was served first");
    let _first = got(&mut opens).await.expect("the opener was not given the connection that came back");
    mock.let_one_in();
    assert_eq!(got(&mut came_later).await.expect("the waiter was not given the new connection").id(), 2);
    assert_eq!(log.count("ConnectionCreated"), 2);
}

/// A waiter is granted a permit. Before the waiter is polled, a connection is returned.
#[tokio::test(start_paused = true)]
async fn granted_permit_passes_on_when_a_connection_is_available() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().max_pool_size(2), &mock);
    let [mut breaks, returns] = [pool.check_out().await.unwrap(), pool.check_out().await.unwrap()];
    let mut waits = begun(&pool).await;
    breaks.broken = true;
    drop(breaks);
    assert_eq!(counts(&pool), (2, 1, 0, 1, 0), "the waiter does not hold an unnoticed permit");
    drop(returns);
    assert_eq!(got(&mut waits).await.expect("the waiter was not given the connection that came back").id(), 2);
    assert_eq!((log.count("ConnectionCreated"), counts(&pool)), (2, (1, 0, 1, 0, 0)));
}

/// When a check-out is served, its permit goes to the next check-out in the queue.
#[tokio::test(start_paused = true)]
async fn connections_returned_by_ready_tasks_save_opening_new_ones() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().max_connecting(1), &mock);
    let [one, another] = [pool.check_out().await.unwrap(), pool.check_out().await.unwrap()];
    let [mut first, mut second] = [spawned(&pool), spawned(&pool)];
    let return_both = tokio::spawn(async move { drop([one, another]) });
    let taken = [got(&mut first).await.unwrap().id(), got(&mut second).await.unwrap().id()];
    return_both.await.unwrap();
    assert_eq!((taken, log.count("ConnectionCreated"), counts(&pool)), ([1, 2], 2, (2, 0, 2, 0, 0)));
}

#[tokio::test(start_paused = true)]
async fn check_out_about_to_open_is_refused_after_a_clear() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    let mut check_out = std::pin::pin!(pool.check_out());
    assert!(poll_once(check_out.as_mut()).await.is_none(), "the opening did not wait for the ready tasks");
    assert!(pool.clear(Clear::new()).unwrap());
    let refused = check_out.await.unwrap_err();
    assert!(matches!(refused, CheckOutError::PoolCleared(_)), "{refused:?}");
    assert_eq!((log.count("ConnectionCreated"), counts(&pool)), (0, (0, 0, 0, 0, 0)));
}

/// This happens, for example, in a `select!` whose other branch also needs a connection.
#[tokio::test(start_paused = true)]
async fn check_out_that_is_not_polled_does_not_block_openings() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().max_connecting(1), &mock);
    let mut not_polled = std::pin::pin!(pool.check_out());
    assert!(poll_once(not_polled.as_mut()).await.is_none());
    let other = tokio::time::timeout(Duration::from_secs(1), pool.check_out()).await;
    assert_eq!(other.expect("the check-out that is not polled keeps its permit").unwrap().id(), 2);
    assert_eq!((not_polled.await.unwrap().id(), log.count("ConnectionCreated")), (2, 2));
}

/// Otherwise a caller that repeatedly cancels its check-out would never be served.
#[tokio::test(start_paused = true)]
async fn opening_completes_after_its_check_out_is_dropped() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    assert!(
        poll_once(Box::pin(pool.check_out()).as_mut()).await.is_none(),
        "the check-out completed at its first poll"
    );
    settle().await;
    assert_eq!((log.count("ConnectionCreated"), counts(&pool)), (1, (1, 0, 1, 0, 0)));
}

#[tokio::test(start_paused = true)]
async fn served_check_out_passes_its_permit_on_at_once() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().max_connecting(1), &mock);
    let returns = pool.check_out().await.unwrap();
    let mut check_out = std::pin::pin!(pool.check_out());
    assert!(poll_once(check_out.as_mut()).await.is_none());
    assert_eq!(counts(&pool), (2, 1, 0, 1, 0));
    drop(returns);
    let _given = poll_once(check_out.as_mut())
        .await
        .expect("the check-out was not given the connection that came back")
        .unwrap();
    assert_eq!(
        (log.count("ConnectionCreated"), counts(&pool)),
        (1, (1, 0, 0, 1, 0)),
        "the permit is kept until another task runs"
    );
}

#[test]
fn check_out_continues_on_its_own_runtime_when_its_opening_is_cancelled() {
    for closes in [false, true] {
        let [of_pool, of_caller] =
            [(); 2].map(|()| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
        let pool = builder(&Mock::new([])).runtime(of_pool.handle().clone()).build().unwrap();
        pool.ready();
        of_caller.block_on(async {
            let mut check_out = std::pin::pin!(pool.check_out());
            assert!(poll_once(check_out.as_mut()).await.is_none());
            if closes {
                pool.close();
            }
            of_pool.shutdown_background();
            match check_out.await {
                Ok(connection) if !closes => assert_eq!(connection.id(), 1, "another connection was created before"),
                Err(CheckOutError::PoolClosed(_)) if closes => {}
                other => panic!("closes: {closes}: {other:?}"),
            }
        });
        drop(of_caller);
        assert_eq!(counts(&pool), (0, 0, 0, 0, 0));
    }
}

/// The specification's test of `minPoolSize` and `maxConnecting` requires this: the pool creates no more connections
/// than needed.
#[tokio::test(start_paused = true)]
async fn new_connection_goes_to_a_waiter_that_would_open_another() {
    let mock = Mock::new([Attempt::Held, Attempt::Held]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    let gone = begun(&pool).await;
    let mut opens = begun(&pool).await;
    let mut waits = begun(&pool).await;
    gone.abort();
    assert_eq!(counts(&pool), (2, 2, 0, 0, 1));
    mock.let_one_in();
    let _one = got(&mut waits).await.expect("the waiter was not given the cancelled check-out's connection");
    assert!(got(&mut opens).await.is_none());
    mock.let_one_in();
    let _two = got(&mut opens).await.expect("the opener was not given its own connection");
    assert_eq!((log.count("ConnectionCreated"), counts(&pool)), (2, (2, 0, 0, 2, 0)));
}

#[tokio::test(start_paused = true)]
async fn new_connection_goes_to_an_opener_if_no_waiter_needs_it() {
    let mock = Mock::new([Attempt::Held, Attempt::Held]);
    let (pool, _log) = pool(PoolOptions::default(), &mock);
    let gone = begun(&pool).await;
    let mut opens = begun(&pool).await;
    gone.abort();
    mock.let_one_in();
    assert_eq!(got(&mut opens).await.expect("the opener was not given the cancelled check-out's connection").id(), 1);
    mock.let_one_in();
    settle().await;
    assert_eq!(counts(&pool), (2, 0, 2, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn new_check_out_opens_another_connection_while_one_opens() {
    let mock = Mock::new([Attempt::Held]);
    let (pool, _log) = pool(PoolOptions::default(), &mock);
    let mut opens = begun(&pool).await;
    let newcomer = pool.check_out().await.unwrap();
    assert_eq!((newcomer.id(), counts(&pool)), (2, (2, 1, 0, 1, 0)));
    drop(newcomer);
    assert_eq!(got(&mut opens).await.expect("the opener was not given the newcomer's connection").id(), 2);
}

#[tokio::test(start_paused = true)]
async fn failed_opening_does_not_reach_a_served_check_out() {
    let mock = Mock::new([]);
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = told.clone();
    let pool = builder(&mock)
        .on_failure(move |failure| sink.lock().unwrap().push(failure.error().connection_id()))
        .build()
        .unwrap();
    pool.ready();
    let (returns, mut opens) = one_out_and_one_opens(&pool, &mock, Attempt::HeldToFail).await;
    drop(returns);
    let taken = got(&mut opens).await.expect("the opener was not given the connection that came back");
    mock.let_one_in();
    settle().await;
    assert_eq!((taken.id(), counts(&pool)), (1, (1, 0, 0, 1, 0)));
    assert_eq!(*told.lock().unwrap(), [Some(2)], "the failure sink was not told");
}

#[tokio::test(start_paused = true)]
async fn clear_leaves_an_opener_to_its_own_establishment() {
    for interrupt in [false, true] {
        let mock = Mock::new([]);
        let (pool, _log) = pool(PoolOptions::default(), &mock);
        let (returns, mut opens) = one_out_and_one_opens(&pool, &mock, Attempt::Held).await;
        pool.clear(Clear::new().interrupt_in_use_connections(interrupt)).unwrap();
        drop(returns);
        mock.let_one_in();
        settle().await;
        match (&mut opens).await.unwrap() {
            Ok(connection) => assert!(!interrupt && connection.is_stale() && connection.id() == 2),
            Err(error) => assert!(interrupt && matches!(error, CheckOutError::PoolCleared(_)), "{error:?}"),
        }
        assert_eq!(counts(&pool), (0, 0, 0, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn connection_opened_after_a_clear_serves_an_earlier_opener() {
    let mock = Mock::new([Attempt::Held]);
    let (pool, _log) = pool(PoolOptions::default(), &mock);
    let mut opens = begun(&pool).await;
    pool.clear(Clear::new()).unwrap();
    pool.ready();
    drop(pool.check_out().await.unwrap());
    let taken = got(&mut opens).await.expect("the opener was not given the newer connection");
    assert_eq!((taken.id(), taken.is_stale()), (2, false));
    mock.let_one_in();
    settle().await;
    assert_eq!(counts(&pool), (1, 0, 0, 1, 0), "the opener's own connection was not closed as stale");
}

/// The connection that is returned first is stale by the time the opener is polled.
#[tokio::test(start_paused = true)]
async fn opener_granted_a_stale_connection_takes_the_next_one() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    let (returns, mut opens) = one_out_and_one_opens(&pool, &mock, Attempt::Held).await;
    drop(returns);
    pool.clear(Clear::new()).unwrap();
    pool.ready();
    assert!(got(&mut opens).await.is_none(), "the opener was given a stale connection, or one that is not open yet");
    assert_eq!((log.count("ConnectionClosed 1 stale"), counts(&pool)), (1, (1, 1, 0, 0, 0)));
    drop(pool.check_out().await.unwrap());
    assert_eq!(got(&mut opens).await.expect("the opener was not given the newer connection").id(), 3);
}

#[tokio::test(start_paused = true)]
async fn returned_connection_wins_over_a_later_failure() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    let (returns, mut opens) = one_out_and_one_opens(&pool, &mock, Attempt::HeldToFail).await;
    mock.let_one_in();
    drop(returns);
    let taken = got(&mut opens).await.expect("the opener was not given the connection that came back");
    assert_eq!(taken.id(), 1);
    assert_eq!((log.count("ConnectionCheckOutFailed"), counts(&pool)), (0, (1, 0, 0, 1, 0)));
}

/// Without a background task, each check-out closes a few stale connections, but not all.
#[tokio::test(start_paused = true)]
async fn check_out_closes_a_few_stale_connections_while_one_opens() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().background_interval(BackgroundInterval::Never), &mock);
    let mut all = Vec::new();
    for _ in 0..10 {
        all.push(pool.check_out().await.unwrap());
    }
    drop(all);
    pool.clear(Clear::new()).unwrap();
    pool.ready();
    mock.instruct([Attempt::Held]);
    let _opens = begun(&pool).await;
    assert_eq!((log.count("ConnectionClosed"), pool.status().stale), (4, 6));
    let newcomer = pool.check_out().await.unwrap();
    assert_eq!((log.count("ConnectionClosed"), pool.status().stale, newcomer.id()), (8, 2, 12));
}

/// Under `maxConnecting`, closing stale connections does not grant the check-out a permit. The check-out closes all
/// stale connections and then waits, without looping.
#[tokio::test(start_paused = true)]
async fn check_out_at_max_connecting_waits_once_nothing_is_stale() {
    let mock = Mock::new([]);
    let options = PoolOptions::default().background_interval(BackgroundInterval::Never).max_connecting(1);
    let (pool, _log) = pool(options, &mock);
    let mut all = Vec::new();
    for _ in 0..10 {
        all.push(pool.check_out().await.unwrap());
    }
    drop(all);
    pool.clear(Clear::new()).unwrap();
    pool.ready();
    mock.instruct([Attempt::Held]);
    let mut opens = begun(&pool).await;
    assert_eq!(pool.status().stale, 6);
    let mut waits = begun(&pool).await;
    assert_eq!((pool.status().stale, counts(&pool)), (0, (1, 1, 0, 0, 1)));
    mock.let_one_in();
    drop(got(&mut opens).await.expect("the opener was not given its own connection"));
    assert_eq!(got(&mut waits).await.expect("the waiter did not open a connection of its own").id(), 12);
}

/// When the pool populates itself, it leaves permits for the check-outs that are waiting for one. An opener is not
/// waiting for a permit.
#[tokio::test(start_paused = true)]
async fn waiter_that_leaves_behind_an_opener_does_not_block_populating() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().max_pool_size(3).max_connecting(3).min_pool_size(2), &mock);
    settle().await;
    let mut breaks = [pool.check_out().await.unwrap(), pool.check_out().await.unwrap()];
    mock.instruct([Attempt::Held]);
    let _opens = begun(&pool).await;
    let leaves = begun(&pool).await;
    assert_eq!(counts(&pool), (3, 1, 0, 2, 1));
    leaves.abort();
    settle().await;
    breaks.iter_mut().for_each(|connection| connection.broken = true);
    drop(breaks);
    settle().await;
    assert_eq!(
        (log.count("ConnectionCreated"), counts(&pool).0),
        (4, 2),
        "the pool was not populated up to its minimum"
    );
}

#[tokio::test(start_paused = true)]
async fn populating_takes_all_permits_until_one_connection_is_missing() {
    let mock = Mock::new([Attempt::Held; 5]);
    let (pool, _log) = pool(PoolOptions::default().max_connecting(2).min_pool_size(5), &mock);
    for (total, pending) in [(2, 2), (3, 2), (4, 2), (4, 1), (5, 1), (5, 0)] {
        settle().await;
        assert_eq!(counts(&pool), (total, pending, total - pending, 0, 0));
        mock.let_one_in();
    }
}

/// A check-out that arrives while the background task holds all permits gets the first connection that is ready.
#[tokio::test(start_paused = true)]
async fn check_out_takes_the_first_connection_that_populating_opens() {
    let mock = Mock::new([Attempt::Held; 3]);
    let (pool, _log) = pool(PoolOptions::default().max_connecting(2).min_pool_size(3), &mock);
    settle().await;
    let mut check_out = begun(&pool).await;
    assert_eq!(counts(&pool), (2, 2, 0, 0, 1));
    mock.let_one_in();
    let _first = got(&mut check_out).await.expect("the check-out was not given the connection");
    assert_eq!(counts(&pool), (2, 1, 0, 1, 0), "the last permit is left to check-outs");
}

/// The numbers that [`counts`] returns.
type Counts = (u32, u32, u32, u32, u32);

type InProgress = Pin<Box<dyn Future<Output = CheckedOut> + Send>>;

/// Polls a check-out within the call that wakes it, as another thread might. Stores the pool's counts at the moment
/// when the check-out completes.
struct PolledAtOnce {
    pool: Pool<Mock>,
    check_out: Mutex<Option<InProgress>>,
    at_the_end: Mutex<Option<Counts>>,
}

impl PolledAtOnce {
    fn begin(pool: &Pool<Mock>) -> Arc<Self> {
        let check_out = {
            let pool = pool.clone();
            async move { pool.check_out().await }
        };
        let check_out: Mutex<Option<InProgress>> = Mutex::new(Some(Box::pin(check_out)));
        let this = Arc::new(Self { pool: pool.clone(), check_out, at_the_end: Mutex::default() });
        this.clone().wake();
        assert!(this.check_out.lock().unwrap().is_some(), "the check-out did not wait");
        this
    }
}

impl Wake for PolledAtOnce {
    fn wake(self: Arc<Self>) {
        let Some(mut check_out) = self.check_out.lock().unwrap().take() else { return };
        match check_out.as_mut().poll(&mut Context::from_waker(&Waker::from(self.clone()))) {
            Poll::Pending => *self.check_out.lock().unwrap() = Some(check_out),
            Poll::Ready(checked_out) => {
                *self.at_the_end.lock().unwrap() = Some(counts(&self.pool));
                drop(checked_out.unwrap());
            }
        }
    }
}

#[cfg_attr(feature = "event-listener-queue", ignore = "an event calls wakers under its lock, and this one polls")]
#[tokio::test(start_paused = true)]
async fn new_connection_is_in_use_and_not_pending_when_its_check_out_returns() {
    let mock = Mock::new([]);
    let (of_opener, _log) = pool(PoolOptions::default(), &mock);
    let opener = PolledAtOnce::begin(&of_opener);
    settle().await;
    assert_eq!(*opener.at_the_end.lock().unwrap(), Some((1, 0, 0, 1, 0)));

    mock.instruct([Attempt::Held]);
    let (of_waiter, _log) = pool(PoolOptions::default().min_pool_size(1).max_pool_size(1), &mock);
    settle().await;
    let waiter = PolledAtOnce::begin(&of_waiter);
    mock.let_one_in();
    settle().await;
    assert_eq!(*waiter.at_the_end.lock().unwrap(), Some((1, 0, 0, 1, 0)), "a waiter got the background's connection");
}
