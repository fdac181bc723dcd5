//! Pools that are warmed up.

use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use wharf::{BackgroundInterval, CheckOutError, PoolOptions, Stage};

use super::mock::{Attempt, Mock, counts, poll_once, pool, settle, slow_to_close};

#[tokio::test(start_paused = true)]
async fn warm_up_opens_as_many_at_a_time_as_allowed_and_tells_its_progress() {
    let mock = Mock::new([Attempt::Held; 5]);
    let options = PoolOptions::default().background_interval(BackgroundInterval::Never);
    let (pool, log) = pool(options, &mock);
    let told = Mutex::new(Vec::new());
    let mut warm = pin!(pool.warm_up(5, |open| told.lock().unwrap().push(open)));
    assert!(poll_once(warm.as_mut()).await.is_none());
    settle().await;
    for opened in 1..=5 {
        assert_eq!(log.count("ConnectionCreated"), (opened + 1).min(5), "more or fewer than maxConnecting");
        mock.let_one_in();
        settle().await;
        let is_done = poll_once(warm.as_mut()).await.is_some();
        settle().await;
        assert_eq!((is_done, counts(&pool).2), (opened == 5, opened as u32));
    }
    assert_eq!(*told.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(pool.warm_up(3, |open| assert_eq!(open, 5)).await.map_err(|error| error.to_string()), Ok(()));
    assert_eq!(log.count("ConnectionCheckOut"), 0, "the warm-up checked connections out");
}

#[tokio::test(start_paused = true)]
async fn warm_up_beyond_the_maximum_ends_at_it_and_beside_check_outs() {
    let (pool, _log) = pool(PoolOptions::default().max_pool_size(4), &Mock::new([]));
    let _held = [pool.check_out().await.unwrap(), pool.check_out().await.unwrap()];
    pool.warm_up(9, |_| ()).await.unwrap();
    assert_eq!(counts(&pool), (4, 0, 2, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn warm_up_ends_although_its_connections_expire() {
    let mock = Mock::new([Attempt::Held; 3]);
    let options = PoolOptions::default().max_connecting(1).max_idle_time(Duration::from_secs(1));
    let (pool, log) = pool(options.background_interval(BackgroundInterval::Every(Duration::from_millis(100))), &mock);
    let mut warm = pin!(pool.warm_up(3, |_| ()));
    for _ in 0..3 {
        assert!(poll_once(warm.as_mut()).await.is_none());
        settle().await;
        mock.let_one_in();
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    assert_eq!(counts(&pool).0, 0, "the connections have not expired");
    warm.await.unwrap();
    assert_eq!(log.count("ConnectionCreated"), 3);
}

#[tokio::test(start_paused = true)]
async fn warm_up_waits_for_the_openings_of_others() {
    let mock = Mock::new([Attempt::Held; 2]);
    let (pool, log) = pool(PoolOptions::default().max_connecting(1), &mock);
    let mut opens = Box::pin(pool.check_out());
    assert!(poll_once(opens.as_mut()).await.is_none());
    let mut warm = pin!(pool.warm_up(2, |_| ()));
    assert!(poll_once(warm.as_mut()).await.is_none());
    settle().await;
    assert_eq!(log.count("ConnectionCreated"), 1);
    mock.let_one_in();
    drop(opens.await.unwrap());
    let ends = async {
        mock.let_one_in();
        warm.await
    };
    tokio::time::timeout(Duration::from_secs(5), ends).await.expect("the warm-up was not woken").unwrap();
    assert_eq!(counts(&pool), (2, 0, 2, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn warm_up_fails_with_its_opening_or_with_the_pool_and_leaves_the_rest_open() {
    let mock = Mock::new([]);
    let (pool, _log) = pool(PoolOptions::default().max_connecting(1), &mock);
    pool.warm_up(1, |_| ()).await.unwrap();
    mock.instruct([Attempt::Fails]);
    let CheckOutError::Establish(error) = pool.warm_up(3, |_| ()).await.unwrap_err() else { panic!("another error") };
    assert_eq!((error.stage(), counts(&pool).2), (Stage::Hello, 1));
    mock.instruct([Attempt::Held]);
    let mut warm = pin!(pool.warm_up(2, |_| ()));
    assert!(poll_once(warm.as_mut()).await.is_none());
    settle().await;
    pool.clear(wharf::Clear::new()).unwrap();
    assert!(matches!(warm.await, Err(CheckOutError::PoolCleared(_))));
    pool.close();
    assert!(matches!(pool.warm_up(2, |_| ()).await, Err(CheckOutError::PoolClosed(_))));
    mock.let_one_in();
    pool.closed().await;
    assert_eq!(mock.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn warm_up_that_is_dropped_leaves_its_openings_to_the_pool() {
    let mock = Mock::new([Attempt::Held; 2]);
    let (pool, _log) = pool(PoolOptions::default(), &mock);
    {
        let mut warm = pin!(pool.warm_up(9, |_| ()));
        assert!(poll_once(warm.as_mut()).await.is_none());
        settle().await;
    }
    mock.let_one_in();
    mock.let_one_in();
    settle().await;
    assert_eq!(counts(&pool), (2, 0, 2, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn warm_up_after_a_renewal_replaces_all_connections() {
    let options = PoolOptions::default().max_pool_size(5).background_interval(BackgroundInterval::Never);
    let (pool, log) = pool(options.clone(), &Mock::new([]));
    pool.warm_up(5, |_| ()).await.unwrap();
    pool.renew();
    pool.warm_up(5, |_| ()).await.unwrap();
    assert_eq!((counts(&pool), log.count("ConnectionCreated")), ((5, 0, 5, 0, 0), 10));

    let (pool, _log) = slow_to_close(options);
    pool.warm_up(5, |_| ()).await.unwrap();
    pool.renew();
    pool.warm_up(5, |_| ()).await.unwrap();
    assert_eq!(pool.status().available, 5, "connections that were being closed counted");
}

#[tokio::test(start_paused = true)]
async fn warm_up_during_a_renewal_opens_all_connections_anew() {
    let mock = Mock::new([Attempt::Held; 4]);
    let options = PoolOptions::default().background_interval(BackgroundInterval::Never);
    let (pool, log) = pool(options, &mock);
    let mut warm = pin!(pool.warm_up(2, |_| ()));
    assert!(poll_once(warm.as_mut()).await.is_none());
    settle().await;
    pool.renew();
    for _ in 0..4 {
        mock.let_one_in();
        settle().await;
    }
    warm.await.unwrap();
    assert_eq!((counts(&pool), log.count("ConnectionCreated")), ((2, 0, 2, 0, 0), 4));
}
