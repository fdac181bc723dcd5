//! Check-outs that open a connection take one that comes back sooner.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;
use wharf::{BackgroundInterval, CheckOutError, Clear, Connection, Pool, PoolOptions};

use super::mock::{Attempt, Mock, builder, counts, poll_once, pool, settle};

type CheckedOut = Result<Connection<Mock>, CheckOutError>;

/// A check-out in a task that has not run yet.
fn spawned(pool: &Pool<Mock>) -> JoinHandle<CheckedOut> {
    let pool = pool.clone();
    tokio::spawn(async move { pool.check_out().await })
}

/// A check-out that has come as far as it can.
async fn begun(pool: &Pool<Mock>) -> JoinHandle<CheckedOut> {
    let check_out = spawned(pool);
    settle().await;
    check_out
}

/// The connection that a check-out has got by now.
async fn got(check_out: &mut JoinHandle<CheckedOut>) -> Option<Connection<Mock>> {
    settle().await;
    poll_once(Pin::new(check_out)).await.map(|done| done.unwrap().unwrap())
}

/// A pool with one connection out, and a check-out that has another one opened as told. Returns both.
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
async fn who_opens_takes_a_connection_that_comes_back_and_its_own_becomes_available() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    let (returns, mut opens) = one_out_and_one_opens(&pool, &mock, Attempt::Held).await;
    assert_eq!(counts(&pool), (2, 1, 0, 1, 0));
    drop(returns);
    let taken = got(&mut opens).await.expect("the one that came back");
    assert_eq!((taken.id(), counts(&pool)), (1, (2, 1, 0, 1, 0)));
    mock.let_one_in();
    settle().await;
    assert_eq!(counts(&pool), (2, 0, 1, 1, 0));
    assert_eq!(pool.check_out().await.unwrap().id(), 2);
    assert_eq!(log.count("ConnectionCheckOutFailed"), 0);
}

#[tokio::test(start_paused = true)]
async fn who_opens_comes_before_who_came_later() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().max_connecting(1), &mock);
    let (returns, mut opens) = one_out_and_one_opens(&pool, &mock, Attempt::Held).await;
    let mut came_later = begun(&pool).await;
    assert_eq!(counts(&pool), (2, 1, 0, 1, 1));
    drop(returns);
    assert!(got(&mut came_later).await.is_none(), "not before the older one");
    let _first = got(&mut opens).await.expect("the one that came back");
    mock.let_one_in();
    assert_eq!(got(&mut came_later).await.expect("the one that the other has opened").id(), 2);
    assert_eq!(log.count("ConnectionCreated"), 2);
}

/// Who waits is granted a place, and before it comes to look there is a connection after all.
#[tokio::test(start_paused = true)]
async fn a_place_is_given_on_where_a_connection_is_available() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().max_pool_size(2), &mock);
    let [mut breaks, returns] = [pool.check_out().await.unwrap(), pool.check_out().await.unwrap()];
    let mut waits = begun(&pool).await;
    breaks.errored = true;
    drop(breaks);
    assert_eq!(counts(&pool), (2, 1, 0, 1, 0), "granted, and does not know yet");
    drop(returns);
    assert_eq!(got(&mut waits).await.expect("the one that came back").id(), 2);
    assert_eq!((log.count("ConnectionCreated"), counts(&pool)), (2, (1, 0, 1, 0, 0)));
}

/// The right to open one goes to whoever is next then.
#[tokio::test(start_paused = true)]
async fn what_ready_tasks_give_back_need_not_be_opened() {
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
async fn who_is_about_to_open_one_is_refused_after_a_clear() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    let mut check_out = std::pin::pin!(pool.check_out());
    assert!(poll_once(check_out.as_mut()).await.is_none(), "the ready tasks come first");
    assert!(pool.clear(Clear::new()).unwrap());
    let refused = check_out.await.unwrap_err();
    assert!(matches!(refused, CheckOutError::PoolCleared(_)), "{refused:?}");
    assert_eq!((log.count("ConnectionCreated"), counts(&pool)), (0, (0, 0, 0, 0, 0)));
}

/// Such as in a `select!` whose other branch needs a connection itself.
#[tokio::test(start_paused = true)]
async fn who_is_not_polled_again_keeps_nobody_from_opening() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().max_connecting(1), &mock);
    let mut not_polled = std::pin::pin!(pool.check_out());
    assert!(poll_once(not_polled.as_mut()).await.is_none());
    let other = tokio::time::timeout(Duration::from_secs(1), pool.check_out()).await;
    assert_eq!(other.expect("the right to open one is kept").unwrap().id(), 2);
    assert_eq!((not_polled.await.unwrap().id(), log.count("ConnectionCreated")), (2, 2));
}

/// Who tries again and again, and never waits, is served at last.
#[tokio::test(start_paused = true)]
async fn what_a_check_out_began_to_open_is_opened_without_it() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    assert!(poll_once(Box::pin(pool.check_out()).as_mut()).await.is_none(), "and is dropped");
    settle().await;
    assert_eq!((log.count("ConnectionCreated"), counts(&pool)), (1, (1, 0, 1, 0, 0)));
}

#[tokio::test(start_paused = true)]
async fn who_has_another_one_gives_on_the_right_to_open_at_once() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().max_connecting(1), &mock);
    let returns = pool.check_out().await.unwrap();
    let mut check_out = std::pin::pin!(pool.check_out());
    assert!(poll_once(check_out.as_mut()).await.is_none());
    assert_eq!(counts(&pool), (2, 1, 0, 1, 0));
    drop(returns);
    let _given = poll_once(check_out.as_mut()).await.expect("the one that came back").unwrap();
    assert_eq!((log.count("ConnectionCreated"), counts(&pool)), (1, (1, 0, 0, 1, 0)), "before any other task has run");
}

#[test]
fn check_out_goes_on_where_it_is_polled_when_its_opener_is_cancelled() {
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
                Ok(connection) if !closes => assert_eq!(connection.id(), 1, "none was created before"),
                Err(CheckOutError::PoolClosed(_)) if closes => {}
                other => panic!("closes: {closes}: {other:?}"),
            }
        });
        drop(of_caller);
        assert_eq!(counts(&pool), (0, 0, 0, 0, 0));
    }
}

/// As the specification's test of `minPoolSize` and `maxConnecting` wants it: no connection more than needed.
#[tokio::test(start_paused = true)]
async fn a_new_connection_goes_to_who_would_open_one_more() {
    let mock = Mock::new([Attempt::Held, Attempt::Held]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    let gone = begun(&pool).await;
    let mut opens = begun(&pool).await;
    let mut waits = begun(&pool).await;
    gone.abort();
    assert_eq!(counts(&pool), (2, 2, 0, 0, 1));
    mock.let_one_in();
    let _one = got(&mut waits).await.expect("the one whose check-out was cancelled");
    assert!(got(&mut opens).await.is_none());
    mock.let_one_in();
    let _two = got(&mut opens).await.expect("its own");
    assert_eq!((log.count("ConnectionCreated"), counts(&pool)), (2, (2, 0, 0, 2, 0)));
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_goes_to_who_opens_where_nobody_else_waits() {
    let mock = Mock::new([Attempt::Held, Attempt::Held]);
    let (pool, _log) = pool(PoolOptions::default(), &mock);
    let gone = begun(&pool).await;
    let mut opens = begun(&pool).await;
    gone.abort();
    mock.let_one_in();
    assert_eq!(got(&mut opens).await.expect("the one whose check-out was cancelled").id(), 1);
    mock.let_one_in();
    settle().await;
    assert_eq!(counts(&pool), (2, 0, 2, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_opens_another_while_one_opens() {
    let mock = Mock::new([Attempt::Held]);
    let (pool, _log) = pool(PoolOptions::default(), &mock);
    let mut opens = begun(&pool).await;
    let newcomer = pool.check_out().await.unwrap();
    assert_eq!((newcomer.id(), counts(&pool)), (2, (2, 1, 0, 1, 0)));
    drop(newcomer);
    assert_eq!(got(&mut opens).await.expect("the newcomer's").id(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_its_own_does_not_reach_who_has_another() {
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
    let taken = got(&mut opens).await.expect("the one that came back");
    mock.let_one_in();
    settle().await;
    assert_eq!((taken.id(), counts(&pool)), (1, (1, 0, 0, 1, 0)));
    assert_eq!(*told.lock().unwrap(), [Some(2)], "the failure sink hears of it");
}

#[tokio::test(start_paused = true)]
async fn a_clear_leaves_it_to_what_becomes_of_its_own() {
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
async fn a_connection_of_after_the_clear_serves_who_opens_since_before() {
    let mock = Mock::new([Attempt::Held]);
    let (pool, _log) = pool(PoolOptions::default(), &mock);
    let mut opens = begun(&pool).await;
    pool.clear(Clear::new()).unwrap();
    pool.ready();
    drop(pool.check_out().await.unwrap());
    let taken = got(&mut opens).await.expect("the newer one");
    assert_eq!((taken.id(), taken.is_stale()), (2, false));
    mock.let_one_in();
    settle().await;
    assert_eq!(counts(&pool), (1, 0, 0, 1, 0), "its own is stale");
}

/// The first that comes back is stale when the one who was granted it comes to look.
#[tokio::test(start_paused = true)]
async fn who_was_granted_a_connection_that_is_stale_takes_the_next_that_comes_back() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    let (returns, mut opens) = one_out_and_one_opens(&pool, &mock, Attempt::Held).await;
    drop(returns);
    pool.clear(Clear::new()).unwrap();
    pool.ready();
    assert!(got(&mut opens).await.is_none(), "neither has come: the one is stale, the other not open");
    assert_eq!((log.count("ConnectionClosed 1 stale"), counts(&pool)), (1, (1, 1, 0, 0, 0)));
    drop(pool.check_out().await.unwrap());
    assert_eq!(got(&mut opens).await.expect("the newer one").id(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_its_own_comes_after_what_came_back_before() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default(), &mock);
    let (returns, mut opens) = one_out_and_one_opens(&pool, &mock, Attempt::HeldToFail).await;
    mock.let_one_in();
    drop(returns);
    let taken = got(&mut opens).await.expect("the one that came back");
    assert_eq!(taken.id(), 1);
    assert_eq!((log.count("ConnectionCheckOutFailed"), counts(&pool)), (0, (1, 0, 0, 1, 0)));
}

/// Without a background task, whoever comes closes a few of the stale connections, and not all of them.
#[tokio::test(start_paused = true)]
async fn who_comes_while_one_opens_closes_a_few_stale_connections() {
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

/// Nor is it granted anything by them where the limit is another: then it waits, and not in a circle.
#[tokio::test(start_paused = true)]
async fn who_comes_while_as_many_open_as_may_waits_once_nothing_stale_is_left() {
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
    drop(got(&mut opens).await.expect("its own"));
    assert_eq!(got(&mut waits).await.expect("one of its own").id(), 12);
}

/// Populating leaves the places to those who wait for one, and an opener does not.
#[tokio::test(start_paused = true)]
async fn who_leaves_the_queue_bars_nobody_over_an_opener() {
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
    breaks.iter_mut().for_each(|connection| connection.errored = true);
    drop(breaks);
    settle().await;
    assert_eq!((log.count("ConnectionCreated"), counts(&pool).0), (4, 2), "as many as there are to be");
}
