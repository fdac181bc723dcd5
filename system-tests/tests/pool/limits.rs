//! The time limits of check-outs.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use wharf::{CheckOutError, FailedConnection, Pool, PoolOptions, Stage, TimeLimit};

use super::mock::{Attempt, Log, Mock, builder, counts, pool, settle};

const MS: Duration = Duration::from_millis(1);

/// Returns a ready pool whose only connection is in use until the test ends.
async fn exhausted(options: PoolOptions, timeout: Option<Duration>) -> Pool<Mock> {
    let pool = builder(&Mock::new([])).options(options.max_pool_size(1)).timeout(timeout).build().unwrap();
    pool.ready();
    std::mem::forget(pool.check_out().await.unwrap());
    pool
}

fn ended_by(error: CheckOutError) -> (TimeLimit, Duration) {
    match error {
        CheckOutError::WaitQueueTimeout(error) => (error.limit, error.waited),
        other => panic!("unexpected error: {other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn deadline_of_a_check_out_leaves_wait_queue_timeout_in_force() {
    let pool = exhausted(PoolOptions::default().wait_queue_timeout(100 * MS), None).await;
    let until = async |time: Duration| {
        let begun = Instant::now();
        let error = pool.check_out_until(begun + time).await.unwrap_err();
        (ended_by(error), begun.elapsed())
    };
    assert_eq!(until(10_000 * MS).await, ((TimeLimit::WaitQueueTimeout, 100 * MS), 100 * MS));
    assert_eq!(until(40 * MS).await, ((TimeLimit::Deadline, 40 * MS), 40 * MS));
}

#[tokio::test(start_paused = true)]
async fn timeout_bounds_a_check_out_and_replaces_wait_queue_timeout() {
    let options = PoolOptions::default().wait_queue_timeout(10 * MS);
    let pool = exhausted(options.clone(), Some(300 * MS)).await;
    assert_eq!(ended_by(pool.check_out().await.unwrap_err()), (TimeLimit::Timeout, 300 * MS));
    let until = pool.check_out_until(Instant::now() + 50 * MS).await;
    assert_eq!(
        ended_by(until.unwrap_err()),
        (TimeLimit::Deadline, 50 * MS),
        "the caller's deadline does not replace timeoutMS"
    );
    let until = pool.check_out_until(Instant::now() + 500 * MS).await;
    assert_eq!(
        ended_by(until.unwrap_err()),
        (TimeLimit::Deadline, 500 * MS),
        "a later deadline does not replace timeoutMS"
    );

    let pool = exhausted(options, Some(Duration::ZERO)).await;
    let waiting = tokio::time::timeout(3600 * 1000 * MS, pool.check_out());
    assert!(waiting.await.is_err(), "timeoutMS 0 limits the check-out");
}

#[tokio::test(start_paused = true)]
async fn timeout_bounds_the_establishment_that_a_check_out_waits_for() {
    let mock = Mock::new([Attempt::Held]);
    let pool = builder(&mock).timeout(Some(300 * MS)).build().unwrap();
    pool.ready();
    assert_eq!(ended_by(pool.check_out().await.unwrap_err()), (TimeLimit::Timeout, 300 * MS));
    assert_eq!(counts(&pool), (1, 1, 0, 0, 0), "the establishment does not continue");
    mock.let_one_in();
    settle().await;
    assert_eq!(counts(&pool), (1, 0, 1, 0, 0));
}

fn check_outs(pool: &Pool<Mock>, count: usize) -> Vec<JoinHandle<Result<(), CheckOutError>>> {
    let check_out = |pool: Pool<Mock>| tokio::spawn(async move { pool.check_out().await.map(drop) });
    (0..count).map(|_| check_out(pool.clone())).collect()
}

/// CMAP, "WaitQueue": a check-out stays in the queue until it has a connection or its own time runs out.
#[tokio::test(start_paused = true)]
async fn waiters_keep_waiting_when_an_establishment_times_out() {
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().max_pool_size(3), &mock);
    let in_use = [pool.check_out().await.unwrap(), pool.check_out().await.unwrap()];
    mock.instruct([Attempt::HeldToTimeOut, Attempt::Held]);
    let mut waiting = check_outs(&pool, 6);
    settle().await;
    assert_eq!(counts(&pool), (3, 1, 0, 2, 5));
    mock.let_one_in();
    settle().await;
    let opener = waiting.remove(0);
    let CheckOutError::Establish(error) = opener.await.unwrap().unwrap_err() else { panic!("unexpected error") };
    assert!(error.is_timeout() && error.stage() == Stage::Connect);
    assert!(CheckOutError::from(error).is_retryable());
    assert_eq!(counts(&pool), (3, 1, 0, 2, 4), "the first waiter does not open the next connection");
    drop(in_use);
    assert!(collect(waiting).await.iter().all(Result::is_ok));
    assert_eq!(log.count("ConnectionCheckOutFailed"), 1);
}

#[tokio::test(start_paused = true)]
async fn waiters_keep_waiting_when_an_establishment_is_refused() {
    let mock = Mock::new([Attempt::HeldToFail]);
    let (pool, _log) = pool(PoolOptions::default().max_connecting(1), &mock);
    let waiting = check_outs(&pool, 5);
    settle().await;
    mock.let_one_in();
    let outcomes = collect(waiting).await;
    assert_eq!(
        outcomes.iter().filter(|outcome| outcome.is_err()).count(),
        1,
        "more than the opener's check-out failed"
    );
}

async fn collect(check_outs: Vec<JoinHandle<Result<(), CheckOutError>>>) -> Vec<Result<(), CheckOutError>> {
    let mut outcomes = Vec::new();
    for check_out in check_outs {
        outcomes.push(check_out.await.unwrap());
    }
    outcomes
}

/// This happens, for example, at a server's connection limit.
#[tokio::test(start_paused = true)]
async fn openings_that_fail_one_after_another_back_off_until_one_succeeds() {
    let mock = Mock::new([Attempt::Fails; 1_000]);
    let (pool, log) = pool(PoolOptions::default().max_connecting(1).wait_queue_timeout(300 * MS), &mock);
    let waiting = check_outs(&pool, 1_000);
    tokio::time::sleep(250 * MS).await;
    let created = log.count("ConnectionCreated");
    assert!(
        (5..=8).contains(&created),
        "{created} attempts: the pauses are 10, 20, 40, 80, 160 ms or down to half of it"
    );
    let outcomes = collect(waiting).await;
    let failed = outcomes.into_iter().filter_map(Result::err).filter(|error| match error {
        CheckOutError::WaitQueueTimeout(error) => {
            assert_eq!(error.waited, 300 * MS, "the back-off makes no check-out wait longer than its limit");
            false
        }
        _ => true,
    });
    assert_eq!(failed.count(), log.count("ConnectionCreated"), "each attempt fails its own check-out");
    mock.forget_instructions();
    let _in_use = pool.check_out_until(Instant::now() + 2_000 * MS).await.unwrap();
    // A single failure does not yet cause a pause.
    mock.instruct([Attempt::Fails]);
    let begun = Instant::now();
    pool.check_out().await.unwrap_err();
    pool.check_out().await.unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

/// For example, a server refuses logins, and each refusal clears the service.
#[tokio::test(start_paused = true)]
async fn openings_that_clear_their_service_one_after_another_back_off() {
    let mock = Mock::new([Attempt::Fails; 1_000]);
    let (log, options) = (Log::default(), PoolOptions::default().max_connecting(1).load_balanced(true));
    let clears = |failed: &FailedConnection<'_>| assert!(failed.clear_pool());
    let pool = builder(&mock).options(options).subscriber(log.subscriber()).on_failure(clears).build().unwrap();
    pool.ready();
    let waiting = check_outs(&pool, 1_000);
    tokio::time::sleep(250 * MS).await;
    let created = log.count("ConnectionCreated");
    assert!((5..=8).contains(&created), "{created} attempts");
    assert_eq!(log.count("PoolCleared"), created);
    // The close ends the pause.
    let begun = Instant::now();
    pool.close();
    pool.closed().await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(collect(waiting).await.iter().all(Result::is_err));
}

#[tokio::test(start_paused = true)]
async fn opening_that_succeeds_ends_the_pause_of_another() {
    let mock = Mock::new([Attempt::Held]);
    let (pool, log) = pool(PoolOptions::default().max_connecting(2), &mock);
    let in_use = tokio::spawn({
        let pool = pool.clone();
        async move { pool.check_out().await.unwrap() }
    });
    settle().await;
    mock.instruct([Attempt::Fails; 7]);
    mock.instruct([Attempt::Held; 2]);
    let mut waiting = check_outs(&pool, 9);
    let last = waiting.split_off(7);
    assert!(collect(waiting).await.iter().all(Result::is_err));
    mock.let_one_in();
    let _in_use = in_use.await.unwrap();
    // The last pause is 160 ms or more.
    settle().await;
    assert_eq!(log.count("ConnectionCreated"), 10, "one of the last two has no permit");
    mock.let_one_in();
    mock.let_one_in();
    assert!(collect(last).await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn close_ends_a_back_off() {
    let mock = Mock::new([Attempt::Fails; 20]);
    let (pool, _log) = pool(PoolOptions::default(), &mock);
    let waiting = check_outs(&pool, 20);
    tokio::time::sleep(100 * MS).await;
    assert!(pool.status().pending > 0, "an opening that backs off keeps its permit");
    let begun = Instant::now();
    pool.close();
    pool.closed().await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(collect(waiting).await.iter().all(Result::is_err));
}
