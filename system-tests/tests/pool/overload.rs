//! A limit on the number of waiting check-outs.

use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};

use wharf::{CheckOutError, Connection, PoolOptions, WaitQueueFull};

use super::mock::{Attempt, Log, Mock, builder, counts, poll_once, settle};

/// Returns a ready pool with at most one connection and room for this many waiting check-outs.
fn limited(mock: &Mock, log: &Log, most: u32) -> wharf::Pool<Mock> {
    let options = PoolOptions::default().max_pool_size(1);
    let pool = builder(mock).options(options).max_waiting(Some(most)).subscriber(log.subscriber()).build().unwrap();
    pool.ready();
    assert_eq!(pool.max_waiting(), Some(most));
    pool
}

fn refused(outcome: Result<Connection<Mock>, CheckOutError>) -> WaitQueueFull {
    match outcome.unwrap_err() {
        CheckOutError::WaitQueueFull(error) => *error,
        other => panic!("unexpected error: {other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn check_out_beyond_max_waiting_fails_at_once_with_the_numbers() {
    let log = Log::default();
    let pool = limited(&Mock::new([]), &log, 2);
    let held = pool.check_out().await.unwrap();
    let (mut first, mut second) = (pin!(pool.check_out()), Box::pin(pool.check_out()));
    assert!(poll_once(first.as_mut()).await.is_none());
    assert!(poll_once(second.as_mut()).await.is_none());
    log.take();
    let error = refused(pool.check_out().await);
    assert_eq!((error.max_waiting, error.waiting, error.in_use, error.max_pool_size), (2, 2, 1, 1));
    assert_eq!(log.take(), ["ConnectionCheckOutStarted", "ConnectionCheckOutFailed timeout"]);
    assert!(!CheckOutError::from(error.clone()).is_retryable());
    assert_eq!(
        error.to_string(),
        "the queue of the connection pool for mock:27017 is full: check-outs waiting: 2, allowed: 2, connections in \
         use: 1, being opened: 0, maxPoolSize: 1"
    );
    drop(second);
    let mut third = pin!(pool.check_out());
    assert!(poll_once(third.as_mut()).await.is_none(), "the place of a check-out that left stays taken");
    refused(pool.check_out().await);
    drop(held);
    drop(first.await.unwrap());
    drop(third.await.unwrap());
    assert_eq!((pool.metrics().check_outs.failed.queue_full, counts(&pool)), (2, (1, 0, 1, 0, 0)));
}

#[tokio::test(start_paused = true)]
async fn pool_whose_check_outs_may_not_wait_serves_what_it_can() {
    let (mock, log) = (Mock::new([Attempt::Held]), Log::default());
    let pool = limited(&mock, &log, 0);
    let mut opens = pin!(pool.check_out());
    assert!(poll_once(opens.as_mut()).await.is_none(), "an opener does not count as waiting");
    settle().await;
    assert_eq!(refused(pool.check_out().await).pending, 1);
    mock.let_one_in();
    let held = opens.await.unwrap();
    refused(pool.check_out().await);
    drop(held);
    for _ in 0..3 {
        assert_eq!(pool.check_out().await.unwrap().id(), 1, "a refusal left the shards flagged");
    }
}

#[test]
fn no_more_check_outs_wait_than_may_however_many_threads_come_at_once() {
    const THREADS: usize = 8;
    const MOST: u32 = 3;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let log = Log::default();
    let pool = runtime.block_on(async { limited(&Mock::new([]), &log, MOST) });
    let _held = runtime.block_on(pool.check_out()).unwrap();
    for round in 0..200 {
        let (arrive, leave) = (Barrier::new(THREADS), Barrier::new(THREADS));
        let attempt = || {
            let mut check_out = pin!(pool.check_out());
            arrive.wait();
            let polled = check_out.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            leave.wait();
            match polled {
                Poll::Pending => 1,
                Poll::Ready(outcome) => {
                    refused(outcome);
                    0
                }
            }
        };
        let waited: u32 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(attempt)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((waited, pool.status().waiting), (MOST, 0), "in round {round}");
    }
}
