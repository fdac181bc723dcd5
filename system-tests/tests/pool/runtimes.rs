//! Pools whose runtime shuts down, pools that use several runtimes, and pools without a runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;
use wharf::{BackgroundInterval, CheckOutError, Pool, PoolEvent, PoolOptions};
use wharf_testbed::executor::drive;

use super::mock::{Attempt, Log, Mock, builder, counts, poll_once};

/// A time limit that only a hanging test reaches.
const AGES: Duration = Duration::from_secs(60);

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn kinds() -> [fn() -> Runtime; 2] {
    [current_thread, multi_thread]
}

/// Waits until the condition holds, letting other tasks run even on a current-thread runtime.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(AGES, waiting).await.unwrap_or_else(|_| panic!("never {what}"));
}

async fn check_out(pool: &Pool<Mock>) -> wharf::Connection<Mock> {
    tokio::time::timeout(AGES, pool.check_out()).await.expect("the check-out hangs").unwrap()
}

#[test]
fn static_pool_serves_one_runtime_after_another() {
    static MOCK: LazyLock<Mock> = LazyLock::new(|| Mock::new([]));
    static POOL: LazyLock<Pool<Mock>> = LazyLock::new(|| {
        let pool = builder(&MOCK).options(PoolOptions::default().max_pool_size(2)).build().unwrap();
        pool.ready();
        pool
    });
    for (round, kind) in [current_thread, multi_thread, current_thread, multi_thread].into_iter().enumerate() {
        let runtime = kind();
        runtime.block_on(async {
            let (first, second) = (check_out(&POOL).await, check_out(&POOL).await);
            assert_eq!((first.id(), second.id()), (2 * round as u64 + 1, 2 * round as u64 + 2));
            assert_eq!(MOCK.live(), 2, "connections of the last runtime are still open");
        });
        drop(runtime);
        assert_eq!(counts(&POOL), (0, 0, 0, 0, 0), "an available connection outlives its runtime");
    }
}

#[test]
fn pool_moves_to_the_runtime_that_lives_on() {
    for kind in kinds() {
        let mock = Mock::new([]);
        let log = Log::default();
        let (first, second) = (kind(), kind());
        let pool = first.block_on(async {
            let pool = builder(&mock).subscriber(log.subscriber()).build().unwrap();
            pool.ready();
            pool
        });
        let held = second.block_on(check_out(&pool).map_running(&first));
        drop(first);
        assert!(held.is_stale());
        second.block_on(async {
            let other = check_out(&pool).await;
            assert_eq!((held.id(), other.id(), other.is_stale()), (1, 2, false));
            drop((held, other));
            until("closed the first and kept the second", || counts(&pool) == (1, 0, 1, 0, 0)).await;
            assert_eq!(check_out(&pool).await.id(), 2);
        });
        assert!(log.lines().contains(&"ConnectionClosed 1 stale".to_owned()));
        assert_eq!(log.count("PoolCleared"), 0, "the pool was cleared though the server has not failed");
    }
}

/// Runs a future while another thread drives the given current-thread runtime.
trait MapRunning: Future + Sized {
    async fn map_running(self, runtime: &Runtime) -> Self::Output {
        let driven = Arc::new(tokio::sync::Notify::new());
        std::thread::scope(|scope| {
            scope.spawn({
                let driven = driven.clone();
                move || runtime.block_on(async move { tokio::time::timeout(AGES, driven.notified()).await.unwrap() })
            });
            let outcome = drive(self);
            driven.notify_one();
            outcome
        })
    }
}

impl<F: Future> MapRunning for F {}

#[test]
fn waiter_is_served_when_the_runtime_that_opens_for_another_ends() {
    for kind in kinds() {
        let mock = Mock::new([Attempt::Held]);
        let (first, second) = (kind(), kind());
        let options = PoolOptions::default().max_connecting(1);
        let pool = first.block_on(async { builder(&mock).options(options).build().unwrap() });
        pool.ready();
        second.block_on(async {
            let mut opens = pin!(check_out(&pool));
            assert!(poll_once(opens.as_mut()).await.is_none());
            let mut waits = pin!(check_out(&pool));
            assert!(poll_once(waits.as_mut()).await.is_none());
            assert_eq!(counts(&pool).4, 1);
            std::thread::spawn(move || drop(first)).join().unwrap();
            mock.forget_instructions();
            let (opened, waited) = tokio::join!(opens, waits);
            drop((opened, waited));
            until("settled", || counts(&pool).1 == 0).await;
        });
        assert_eq!(mock.live(), pool.status().total as usize);
    }
}

#[test]
fn background_task_resumes_on_the_next_runtime() {
    for kind in kinds() {
        let mock = Mock::new([]);
        let pool = {
            let runtime = kind();
            runtime.block_on(async {
                let pool = builder(&mock).options(PoolOptions::default().min_pool_size(3)).build().unwrap();
                pool.ready();
                until("populated", || counts(&pool).2 == 3).await;
                pool
            })
        };
        assert_eq!((counts(&pool), mock.live()), ((0, 0, 0, 0, 0), 0));
        kind().block_on(async {
            drop(check_out(&pool).await);
            until("populated again", || counts(&pool).2 == 3).await;
        });
    }
}

#[test]
fn ready_moves_a_pool_whose_runtime_has_ended() {
    let mock = Mock::new([]);
    let pool =
        current_thread().block_on(async { builder(&mock).options(PoolOptions::default().min_pool_size(1)).build() });
    let pool = pool.unwrap();
    current_thread().block_on(async {
        pool.ready();
        until("populated", || counts(&pool).2 == 1).await;
    });
}

#[test]
fn pool_without_a_background_interval_moves_too() {
    let mock = Mock::new([]);
    let options = PoolOptions::default().background_interval(BackgroundInterval::Never);
    let pool = current_thread().block_on(async {
        let pool = builder(&mock).options(options).build().unwrap();
        pool.ready();
        drop(check_out(&pool).await);
        pool
    });
    assert_eq!(pool.status().available, 0);
    current_thread().block_on(async { assert_eq!(check_out(&pool).await.id(), 2) });
}

#[test]
fn services_connections_become_stale_with_their_runtime() {
    let mock = Mock::new([]);
    let pool = current_thread().block_on(async {
        let pool = builder(&mock).options(PoolOptions::default().load_balanced(true)).build().unwrap();
        pool.ready();
        pool
    });
    let held = current_thread().block_on(async {
        let held = check_out(&pool).await;
        assert_eq!(held.generation(), 0);
        held
    });
    assert!(held.is_stale());
    let clear = wharf::Clear::new().only_at_generation(held.generation());
    assert_eq!(
        pool.clear_service(held.service_id().unwrap(), clear),
        Ok(false),
        "an error of a stale connection cleared its service"
    );
}

#[test]
fn runtime_that_has_ended_builds_no_pool() {
    let ended = multi_thread();
    let handle = ended.handle().clone();
    drop(ended);
    assert_eq!(builder(&Mock::new([])).runtime(handle).build().unwrap_err().option, "runtime");
}

#[test]
fn check_outs_and_their_limits_work_on_another_executor() {
    let runtime = multi_thread();
    let limited = PoolOptions::default().max_pool_size(1).wait_queue_timeout(Duration::from_millis(10));
    let pool = builder(&Mock::new([])).options(limited).runtime(runtime.handle().clone()).build().unwrap();
    pool.ready();
    let held = drive(pool.check_out()).unwrap();
    let CheckOutError::WaitQueueTimeout(_) = drive(pool.check_out()).unwrap_err() else { panic!("unexpected error") };
    let until = pool.check_out_until(Instant::now() + Duration::from_millis(1));
    assert!(matches!(drive(until).unwrap_err(), CheckOutError::WaitQueueTimeout(_)));
    drop(held);
    drop(drive(pool.check_out()).unwrap());
}

#[test]
fn check_out_without_any_runtime_says_so() {
    let runtime = multi_thread();
    let limited = PoolOptions::default().max_pool_size(1).wait_queue_timeout(AGES);
    let pool = builder(&Mock::new([])).options(limited).runtime(runtime.handle().clone()).build().unwrap();
    pool.ready();
    let held = drive(pool.check_out()).unwrap();
    drop(runtime);
    let refused = |outcome: Result<wharf::Connection<Mock>, CheckOutError>| {
        let error = outcome.unwrap_err();
        assert!(matches!(error, CheckOutError::NoRuntime(_)) && !error.is_retryable(), "{error}");
        assert_eq!(
            error.to_string(),
            "no tokio runtime for the connection pool for mock:27017: the pool's runtime has ended, and the \
             check-out is not polled on a running one"
        );
    };
    refused(drive(pool.check_out()));
    drop(held);
    refused(drive(pool.check_out()));
    // The pool works again as soon as a check-out is polled on a running runtime.
    current_thread().block_on(check_out(&pool));
}

#[test]
fn time_limit_kept_by_a_runtime_for_another_executor_ends_with_it() {
    let runtime = multi_thread();
    let options = PoolOptions::default().max_pool_size(1).wait_queue_timeout(AGES);
    let pool = builder(&Mock::new([])).options(options).runtime(runtime.handle().clone()).build().unwrap();
    pool.ready();
    let _held = drive(pool.check_out()).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let mut waits = pin!(pool.check_out());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    drop(runtime);
    let Poll::Ready(Err(error)) = waits.as_mut().poll(&mut context) else { panic!("the check-out still waits") };
    assert!(matches!(error, CheckOutError::NoRuntime(_)), "{error}");
}

/// Returns a pool with a minimum of three connections, whose runtime shut down while the background task was creating
/// the first of them. The task continues when a message is sent.
fn ended_while_it_opens() -> (Pool<Mock>, mpsc::Sender<()>) {
    let (created, has_created) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let first = Mutex::new(Some((created, goes_on)));
    let subscriber = move |event: &PoolEvent| {
        if matches!(event, PoolEvent::ConnectionCreated { .. })
            && let Some((created, goes_on)) = first.lock().unwrap().take()
        {
            created.send(()).unwrap();
            goes_on.recv().unwrap();
        }
    };
    let runtime = multi_thread();
    let mock = Mock::new([]);
    let builder = builder(&mock).options(PoolOptions::default().min_pool_size(3)).subscriber(subscriber);
    let pool = runtime.block_on(async { builder.build().unwrap() });
    pool.ready();
    has_created.recv().unwrap();
    let handle = runtime.handle().clone();
    runtime.shutdown_background();
    // Once the runtime has shut down, it drops every new task immediately.
    while !handle.spawn(std::future::pending::<()>()).is_finished() {
        std::thread::yield_now();
    }
    (pool, go_on)
}

#[test]
fn pool_that_opens_its_minimum_lets_its_runtime_end() {
    let (pool, go_on) = ended_while_it_opens();
    go_on.send(()).unwrap();
    let end = Instant::now() + AGES;
    while pool.status().generation == 0 {
        assert!(Instant::now() < end, "the background task does not end");
        std::thread::yield_now();
    }
    assert_eq!(counts(&pool), (0, 0, 0, 0, 0));
}

#[test]
fn warm_up_moves_a_pool_whose_runtime_is_ending() {
    let (pool, go_on) = ended_while_it_opens();
    current_thread().block_on(async {
        let mut warm = pin!(pool.warm_up(2, |_| ()));
        until("opened one beside the one that the old runtime is creating", || {
            assert!(warm.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            counts(&pool).2 == 1
        })
        .await;
        go_on.send(()).unwrap();
        tokio::time::timeout(AGES, warm).await.expect("the warm-up hangs").unwrap();
        assert!(pool.status().available >= 2);
    });
}
