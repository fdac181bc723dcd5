//! Pools that are suspended and resumed.

use std::pin::pin;
use std::thread;
use std::time::Duration;

use wharf::{CheckOutError, Clear, PoolOptions, TimeLimit};

use super::mock::{Attempt, Mock, builder, counts, poll_once, pool, settle};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(start_paused = true)]
async fn check_outs_wait_for_a_suspended_pool_however_much_is_available() {
    let (pool, log) = pool(PoolOptions::default(), &Mock::new([]));
    drop(pool.check_out().await.unwrap());
    assert!(pool.suspend() && !pool.suspend() && pool.is_suspended());
    log.take();
    let (mut plain, mut until) =
        (pin!(pool.check_out()), pin!(pool.check_out_until(tokio::time::Instant::now() + 60_000 * MS)));
    assert!(poll_once(plain.as_mut()).await.is_none() && poll_once(until.as_mut()).await.is_none());
    assert!(pool.try_check_out().is_none());
    settle().await;
    assert_eq!(counts(&pool), (1, 0, 1, 0, 0));
    assert!(pool.resume() && !pool.resume() && !pool.is_suspended());
    let (plain, until) = (plain.await.unwrap(), until.await.unwrap());
    assert_eq!((plain.id(), until.id()), (1, 2));
    assert_eq!(log.count("ConnectionCheckOutFailed"), 0);
    drop((plain, until));
    let hits = pool.metrics().check_outs.hits;
    drop(pool.check_out().await.unwrap());
    assert_eq!(pool.metrics().check_outs.hits, hits + 1);
}

#[tokio::test(start_paused = true)]
async fn check_outs_of_a_suspended_pool_wait_while_it_is_paused() {
    let (pool, log) = pool(PoolOptions::default(), &Mock::new([]));
    let held = pool.check_out().await.unwrap();
    pool.suspend();
    pool.clear(Clear::new()).unwrap();
    let mut waits = pin!(pool.check_out());
    assert!(poll_once(waits.as_mut()).await.is_none(), "the check-out failed instead of waiting");
    drop(held);
    pool.ready();
    assert!(poll_once(waits.as_mut()).await.is_none());
    pool.resume();
    assert_eq!(waits.await.unwrap().id(), 2);
    assert_eq!(log.count("ConnectionCheckOutFailed"), 0);
    // A pool that is resumed while it is paused still refuses check-outs.
    pool.suspend();
    pool.clear(Clear::new()).unwrap();
    let mut waits = pin!(pool.check_out());
    assert!(poll_once(waits.as_mut()).await.is_none());
    pool.resume();
    assert!(matches!(waits.await, Err(CheckOutError::PoolCleared(_))));
}

#[tokio::test(start_paused = true)]
async fn suspension_lets_waiters_and_openers_go_on() {
    let mock = Mock::new([Attempt::Held]);
    let (pool, _log) = pool(PoolOptions::default().max_pool_size(1), &mock);
    let (mut opens, mut waits) = (Box::pin(pool.check_out()), Box::pin(pool.check_out()));
    assert!(poll_once(opens.as_mut()).await.is_none() && poll_once(waits.as_mut()).await.is_none());
    pool.suspend();
    mock.let_one_in();
    drop(opens.await.unwrap());
    drop(waits.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn wait_for_a_resumption_ends_with_its_time_or_with_the_pool() {
    let options = PoolOptions::default().wait_queue_timeout(100 * MS);
    let pool = builder(&Mock::new([])).options(options).build().unwrap();
    pool.ready();
    pool.suspend();
    let CheckOutError::WaitQueueTimeout(error) = pool.check_out().await.unwrap_err() else { panic!("another error") };
    assert_eq!((error.limit, error.waited), (TimeLimit::WaitQueueTimeout, 100 * MS));
    assert!(error.suspended && error.to_string().contains(", and the pool is suspended"), "{error}");
    let mut waits = pin!(pool.check_out());
    assert!(poll_once(waits.as_mut()).await.is_none());
    pool.close();
    assert!(matches!(waits.await, Err(CheckOutError::PoolClosed(_))));
    assert!(matches!(pool.check_out().await, Err(CheckOutError::PoolClosed(_))));
}

#[test]
fn threads_wait_for_a_resumption_as_well() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let pool = runtime.block_on(async { pool(PoolOptions::default(), &Mock::new([])).0 });
    pool.suspend();
    thread::scope(|scope| {
        let waits: Vec<_> = (0..4).map(|_| scope.spawn(|| pool.check_out_blocking(None).map(drop))).collect();
        let error = pool.check_out_blocking(Some(MS)).unwrap_err();
        assert!(matches!(error, CheckOutError::WaitQueueTimeout(_)));
        assert!(waits.iter().all(|waits| !waits.is_finished()));
        pool.resume();
        waits.into_iter().for_each(|waits| waits.join().unwrap().unwrap());
    });
}
