//! Pools used by threads without an executor, either on their own or alongside runtimes and another executor.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use wharf::{CheckOutError, Connection, Pool, PoolOptions, TimeLimit};
use wharf_testbed::executor::drive;

use super::mock::{Mock, builder, counts, poll_once};

const MS: Duration = Duration::from_millis(1);
/// A time limit that only a hanging test reaches.
const AGES: Duration = Duration::from_secs(60);

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn pool_on(runtime: &Runtime, options: PoolOptions) -> Pool<Mock> {
    let pool = builder(&Mock::new([])).options(options).runtime(runtime.handle().clone()).build().unwrap();
    pool.ready();
    pool
}

fn ended_by(outcome: Result<Connection<Mock>, CheckOutError>) -> TimeLimit {
    match outcome.unwrap_err() {
        CheckOutError::WaitQueueTimeout(error) => error.limit,
        other => panic!("unexpected error: {other}"),
    }
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < AGES, "never {what}");
        thread::yield_now();
    }
}

#[test]
fn threads_share_a_pool_smaller_than_their_number() {
    let runtime = multi_thread();
    let pool = pool_on(&runtime, PoolOptions::default().max_pool_size(3));
    let in_use = AtomicU32::new(0);
    let work = || {
        for _ in 0..300 {
            let connection = pool.check_out_blocking(Some(AGES)).unwrap();
            assert!(in_use.fetch_add(1, Ordering::SeqCst) < 3);
            thread::yield_now();
            in_use.fetch_sub(1, Ordering::SeqCst);
            drop(connection);
        }
    };
    thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(work))));
    let check_outs = pool.metrics().check_outs;
    assert_eq!((check_outs.succeeded(), check_outs.failed.total()), (2_400, 0));
}

/// The thread enforces the time limit itself, because no thread drives the pool's runtime.
#[test]
fn limit_of_a_thread_holds_without_a_runtime() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let pool = pool_on(&runtime, PoolOptions::default().max_pool_size(1));
    let limited = |limit| {
        let begun = Instant::now();
        (ended_by(pool.check_out_blocking(Some(limit))), begun.elapsed() >= limit)
    };
    assert_eq!(limited(20 * MS), (TimeLimit::Deadline, true), "while its connection is being opened");
    let held = runtime.block_on(pool.check_out()).unwrap();
    assert_eq!(limited(20 * MS), (TimeLimit::Deadline, true), "in the queue");
    drop(runtime);
    assert_eq!(limited(20 * MS), (TimeLimit::Deadline, true), "after the end of the runtime");
    assert_eq!(counts(&pool).4, 0, "a check-out whose time is up stays in the queue");
    assert_eq!(pool.metrics().check_outs.failed.timeout, 3);
    drop(held);
    assert!(matches!(pool.check_out_blocking(Some(AGES)), Err(CheckOutError::NoRuntime(_))));
}

#[test]
fn limits_of_the_options_hold_for_threads() {
    let runtime = multi_thread();
    let options = PoolOptions::default().max_pool_size(1).wait_queue_timeout(10 * MS);
    let pool = pool_on(&runtime, options.clone());
    let held = pool.check_out_blocking(None).unwrap();
    assert_eq!(ended_by(pool.check_out_blocking(None)), TimeLimit::WaitQueueTimeout);
    assert_eq!(ended_by(pool.check_out_blocking(Some(AGES))), TimeLimit::WaitQueueTimeout);
    assert_eq!(ended_by(pool.check_out_blocking(Some(MS))), TimeLimit::Deadline);
    drop(held);
    let whole = builder(&Mock::new([])).options(options).timeout(Some(5 * MS)).runtime(runtime.handle().clone());
    let pool = whole.build().unwrap();
    pool.ready();
    let _held = pool.check_out_blocking(Some(AGES)).unwrap();
    assert_eq!(ended_by(pool.check_out_blocking(None)), TimeLimit::Timeout);
    assert_eq!(ended_by(pool.check_out_blocking(Some(MS))), TimeLimit::Deadline);
}

#[test]
fn threads_and_tasks_are_served_in_the_order_of_their_arrival() {
    let runtime = multi_thread();
    let pool = pool_on(&runtime, PoolOptions::default().max_pool_size(1));
    let held = pool.check_out_blocking(None).unwrap();
    let served = AtomicBool::new(false);
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let connection = pool.check_out_blocking(None).unwrap();
            served.store(true, Ordering::SeqCst);
            connection
        });
        until("queued", || pool.status().waiting == 1);
        runtime.block_on(async {
            let mut second = pin!(pool.check_out());
            assert!(poll_once(second.as_mut()).await.is_none());
            drop(held);
            drop(first.join().unwrap());
            drop(second.await.unwrap());
            assert!(served.load(Ordering::SeqCst));
        });
    });
}

#[test]
fn close_and_clear_end_the_wait_of_a_thread() {
    let runtime = multi_thread();
    let pool = pool_on(&runtime, PoolOptions::default().max_pool_size(1));
    let _held = pool.check_out_blocking(None).unwrap();
    let wait = |end: &dyn Fn()| {
        thread::scope(|scope| {
            let waits = scope.spawn(|| pool.check_out_blocking(Some(AGES)).map(drop));
            until("queued", || pool.status().waiting == 1);
            end();
            waits.join().unwrap().unwrap_err()
        })
    };
    assert!(matches!(wait(&|| drop(pool.clear(wharf::Clear::new()))), CheckOutError::PoolCleared(_)));
    pool.ready();
    assert!(matches!(wait(&|| pool.close()), CheckOutError::PoolClosed(_)));
}

#[test]
fn thread_moves_a_pool_whose_runtime_has_ended_to_another_one_that_opened_for_it() {
    let (first, second) = (multi_thread(), multi_thread());
    let pool = pool_on(&first, PoolOptions::default());
    drop(second.block_on(pool.check_out()).unwrap());
    drop(first);
    drop(pool.check_out_blocking(Some(AGES)).unwrap());
    assert_eq!(pool.runtime().map(|runtime| runtime.id()), Some(second.handle().id()));
    drop(second);
    assert!(matches!(pool.check_out_blocking(Some(AGES)), Err(CheckOutError::NoRuntime(_))));
}

/// Threads, two runtimes and another executor use one pool. The runtime that opens its connections shuts down partway
/// through, and no check-out fails: the pool moves to the other runtime, even for threads without a runtime.
#[test]
fn threads_runtimes_and_another_executor_share_a_pool_whose_runtime_ends() {
    const EACH: u32 = 400;
    let (first, second) = (multi_thread(), multi_thread());
    let pool = pool_on(&first, PoolOptions::default().max_pool_size(3).max_connecting(3));
    // The pool learns of the second runtime when it opens a connection for it.
    let held = second.block_on(async { [pool.check_out().await.unwrap(), pool.check_out().await.unwrap()] });
    drop(held);
    let done = AtomicU32::new(0);
    let used = |connection: Connection<Mock>| {
        thread::yield_now();
        drop(connection);
        done.fetch_add(1, Ordering::SeqCst);
    };
    let in_tasks = |runtime: &Runtime, rounds: u32| {
        runtime.block_on(async {
            for _ in 0..rounds {
                used(tokio::time::timeout(AGES, pool.check_out()).await.expect("a check-out hangs").unwrap());
            }
        });
    };
    thread::scope(|scope| {
        let (in_tasks, used, done, pool) = (&in_tasks, &used, &done, &pool);
        for _ in 0..2 {
            scope.spawn(move || (0..EACH).for_each(|_| used(pool.check_out_blocking(Some(AGES)).unwrap())));
            scope.spawn(move || (0..EACH).for_each(|_| used(drive(pool.check_out()).unwrap())));
            scope.spawn(|| in_tasks(&second, EACH));
        }
        scope.spawn(move || {
            in_tasks(&first, EACH / 2);
            until("half done", || done.load(Ordering::SeqCst) > 2 * EACH);
            drop(first);
        });
    });
    assert_eq!(done.load(Ordering::SeqCst), 6 * EACH + EACH / 2);
    assert_eq!(pool.runtime().map(|runtime| runtime.id()), Some(second.handle().id()));
    let status = pool.status();
    assert!(status.total <= 3 && status.waiting == 0, "{status:?}");
}
