//! Refusing check-outs that would be served too late.

use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::time::{Instant, advance};
use wharf::{Budget, CheckOutError, Connection, Pool, PoolOptions, TimeLimit, TooLate, WaitQueueFull};

use super::mock::{Attempt, Mock, builder, counts, poll_once, settle};

type CheckOut<'p> = Pin<Box<dyn Future<Output = Result<Connection<Mock>, CheckOutError>> + 'p>>;

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// Returns a ready pool of one connection that refuses late check-outs, on tokio's clock.
fn refusing(options: PoolOptions) -> Pool<Mock> {
    let options = options.max_pool_size(1).refuse_late(true);
    let pool = builder(&Mock::new([])).options(options).tokio_clock(true).build().unwrap();
    pool.ready();
    pool
}

/// Returns the future of a check-out with this time limit after its first poll, or the error from that poll.
async fn begin(pool: &Pool<Mock>, time: Duration) -> Result<CheckOut<'_>, WaitQueueFull> {
    let mut check_out: CheckOut<'_> = Box::pin(pool.check_out_until(Instant::now() + time));
    match poll_once(Pin::new(&mut check_out)).await {
        None => Ok(check_out),
        Some(Err(CheckOutError::WaitQueueFull(error))) => Err(*error),
        Some(other) => panic!("unexpected outcome: {other:?}"),
    }
}

fn too_late(outcome: Result<CheckOut<'_>, WaitQueueFull>) -> TooLate {
    outcome.err().expect("the check-out was not refused").too_late.expect("no reason")
}

/// Lets waiters take turns with the connection, each for this long, without ever emptying the queue. Returns the
/// connection.
async fn take_turns(pool: &Pool<Mock>, mut held: Connection<Mock>, turns: u32, each: Duration) -> Connection<Mock> {
    let mut next = Box::pin(pool.check_out());
    assert!(poll_once(next.as_mut()).await.is_none());
    for turn in 1..=turns {
        let mut behind = Box::pin(pool.check_out());
        if turn < turns {
            assert!(poll_once(behind.as_mut()).await.is_none());
        }
        advance(each).await;
        drop(held);
        held = next.await.unwrap();
        next = behind;
    }
    held
}

#[tokio::test(start_paused = true)]
async fn check_out_that_would_be_served_too_late_fails_at_once_with_the_numbers() {
    let pool = refusing(PoolOptions::default());
    let held = take_turns(&pool, pool.check_out().await.unwrap(), 10, ms(8)).await;
    let _first = begin(&pool, ms(100)).await.ok().unwrap();
    let _second = begin(&pool, ms(100)).await.ok().unwrap();
    // Two check-outs wait and one connection is in use, so this check-out would finish with the connection after four
    // times 8 ms, plus a quarter as a margin.
    let error = begin(&pool, ms(39)).await.err().unwrap();
    assert_eq!((error.waiting, error.in_use, error.max_pool_size, error.max_waiting), (2, 1, 1, u32::MAX));
    let TooLate { limit, time_left, estimated, pace, .. } = error.too_late.clone().unwrap();
    assert_eq!((limit, time_left, estimated, pace), (TimeLimit::Deadline, ms(39), ms(40), ms(8)));
    assert_eq!(
        error.to_string(),
        "the queue of the connection pool for mock:27017 is too long: estimated time: 40.0ms, time left: 39.0ms (the \
         caller's deadline), check-outs waiting: 2, served per second: 125.0, connections in use: 1, being opened: 0, \
         maxPoolSize: 1"
    );
    assert_eq!((counts(&pool), pool.metrics().check_outs.failed.queue_full), ((1, 0, 0, 1, 2), 1));
    let third = begin(&pool, ms(40)).await.ok().unwrap();
    too_late(begin(&pool, ms(49)).await);
    drop(third);
    assert!(begin(&pool, ms(40)).await.is_ok(), "a check-out that has left still counts");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn connections_beyond_a_reduced_maximum_serve_no_waiter_and_do_not_count() {
    let pool = refusing(PoolOptions::default());
    pool.resize(|options| options.max_pool_size(2)).unwrap();
    let _surplus = pool.check_out().await.unwrap();
    let held = take_turns(&pool, pool.check_out().await.unwrap(), 10, ms(8)).await;
    pool.resize(|options| options.max_pool_size(1)).unwrap();
    assert_eq!(counts(&pool).0, 2);
    let _first = begin(&pool, ms(100)).await.ok().unwrap();
    // One check-out waits and one connection counts, so this check-out would finish with the connection after three
    // times 8 ms, plus a quarter as a margin.
    let TooLate { estimated, .. } = too_late(begin(&pool, ms(29)).await);
    assert_eq!(estimated, ms(30));
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn waiters_that_open_a_connection_count_as_served() {
    let pool = refusing(PoolOptions::default());
    let mut held = pool.check_out().await.unwrap();
    let mut next = Box::pin(pool.check_out());
    assert!(poll_once(next.as_mut()).await.is_none());
    for _ in 0..10 {
        let mut behind = Box::pin(pool.check_out());
        assert!(poll_once(behind.as_mut()).await.is_none());
        advance(ms(8)).await;
        held.discard();
        held = next.await.unwrap();
        next = behind;
    }
    let TooLate { pace, .. } = too_late(begin(&pool, ms(1)).await);
    assert_eq!(pace, ms(8));
}

#[tokio::test(start_paused = true)]
async fn limit_of_the_queue_alone_does_not_include_the_use() {
    let pool = refusing(PoolOptions::default().wait_queue_timeout(ms(30)));
    let _held = take_turns(&pool, pool.check_out().await.unwrap(), 10, ms(8)).await;
    let (mut first, mut second) = (pin!(pool.check_out()), pin!(pool.check_out()));
    assert!(poll_once(first.as_mut()).await.is_none());
    assert!(poll_once(second.as_mut()).await.is_none());
    // The next check-out would get the connection after three times 8 ms, plus a quarter, which is just in time.
    let mut third = pin!(pool.check_out());
    assert!(poll_once(third.as_mut()).await.is_none());
    let CheckOutError::WaitQueueFull(error) = pool.check_out().await.unwrap_err() else { panic!("another error") };
    let TooLate { limit, estimated, .. } = error.too_late.unwrap();
    assert_eq!((limit, estimated), (TimeLimit::WaitQueueTimeout, ms(40)));
    // Both limits apply to a check-out with its own deadline.
    let late = too_late(begin(&pool, ms(1_000)).await);
    assert_eq!(late.limit, TimeLimit::WaitQueueTimeout);
}

#[tokio::test(start_paused = true)]
async fn no_check_out_is_refused_without_a_limit_or_a_queue_or_the_option() {
    let pool = refusing(PoolOptions::default());
    let held = take_turns(&pool, pool.check_out().await.unwrap(), 10, ms(8)).await;
    let first = begin(&pool, ms(1)).await.ok().unwrap();
    too_late(begin(&pool, ms(1)).await);
    let mut unlimited = pin!(pool.check_out());
    assert!(poll_once(unlimited.as_mut()).await.is_none());
    drop((first, held));
    drop(unlimited.await.unwrap());
    drop(pool.check_out_until(Instant::now()).await.expect("an available connection was refused"));

    let options = PoolOptions::default().max_pool_size(1);
    let pool = builder(&Mock::new([])).options(options).tokio_clock(true).build().unwrap();
    pool.ready();
    let _held = take_turns(&pool, pool.check_out().await.unwrap(), 10, ms(8)).await;
    let _first = begin(&pool, ms(1)).await.ok().unwrap();
    assert!(begin(&pool, ms(1)).await.is_ok(), "it is off by default");
}

#[tokio::test(start_paused = true)]
async fn no_check_out_is_refused_until_the_pace_is_known() {
    let pool = refusing(PoolOptions::default());
    let held = pool.check_out().await.unwrap();
    let mut first = pin!(pool.check_out());
    assert!(poll_once(first.as_mut()).await.is_none());
    advance(ms(8)).await;
    let second = begin(&pool, ms(1)).await.expect("no waiter was served yet");
    drop((second, held));
    let _held = first.await.unwrap();
    advance(ms(1)).await;
    let _third = begin(&pool, ms(1)).await.ok().unwrap();
    too_late(begin(&pool, ms(1)).await);
}

#[tokio::test(start_paused = true)]
async fn stalled_pool_refuses_only_while_others_wait_and_accepts_again_when_it_serves() {
    let pool = refusing(PoolOptions::default());
    let held = take_turns(&pool, pool.check_out().await.unwrap(), 40, ms(8)).await;
    let first = begin(&pool, ms(2_000)).await.ok().unwrap();
    drop(begin(&pool, ms(100)).await.ok().unwrap());
    // The connection is not checked in during this time.
    advance(ms(1_000)).await;
    let stalled = too_late(begin(&pool, ms(100)).await);
    assert!(stalled.pace > ms(30), "{stalled:?}");
    advance(ms(1_000)).await;
    let error = first.await.unwrap_err();
    assert!(matches!(error, CheckOutError::WaitQueueTimeout(_)), "{error}");
    // The queue is empty, so a check-out is admitted, however slow the pool was.
    let second = begin(&pool, ms(100)).await.expect("a stalled pool locks everyone out");
    too_late(begin(&pool, ms(100)).await);
    drop(second);
    // The connection changes hands again, and with each turn the stall counts less.
    let mut held = held;
    for _ in 0..12 {
        held = take_turns(&pool, held, 8, ms(8)).await;
        let mut other = pin!(pool.check_out());
        assert!(poll_once(other.as_mut()).await.is_none());
        drop(begin(&pool, ms(100)).await);
    }
    let _first = begin(&pool, ms(100)).await.ok().unwrap();
    assert!(begin(&pool, ms(100)).await.is_ok(), "the pool has recovered");
    assert_eq!(too_late(begin(&pool, ms(1)).await).pace, ms(8));
}

#[tokio::test(start_paused = true)]
async fn pool_that_may_open_connections_refuses_none() {
    let mock = Mock::new([Attempt::Held, Attempt::Held]);
    let options = PoolOptions::default().max_pool_size(1).max_connecting(1).refuse_late(true);
    let pool = builder(&mock).options(options).tokio_clock(true).build().unwrap();
    pool.ready();
    mock.let_one_in();
    let _held = take_turns(&pool, pool.check_out().await.unwrap(), 10, ms(8)).await;
    let _first = begin(&pool, ms(100)).await.ok().unwrap();
    too_late(begin(&pool, ms(1)).await);
    // The first waiter opens the second connection, and the others wait until there may be a third.
    pool.resize(|options| options.max_pool_size(3)).unwrap();
    settle().await;
    let _second = begin(&pool, ms(100)).await.ok().unwrap();
    let _third = begin(&pool, ms(1)).await.expect("a pool that grows refused a check-out");
}

#[tokio::test(start_paused = true)]
async fn pool_whose_budget_is_used_up_refuses_as_if_it_had_all_of_its_connections() {
    let budget = Budget::new(1).unwrap();
    let options = PoolOptions::default().max_pool_size(3).refuse_late(true);
    let [pool, other] = [(); 2].map(|()| {
        let builder = builder(&Mock::new([])).options(options.clone()).tokio_clock(true);
        let pool = builder.budget(&budget).build().unwrap();
        pool.ready();
        pool
    });
    let held = take_turns(&pool, pool.check_out().await.unwrap(), 10, ms(8)).await;
    let first = begin(&pool, ms(100)).await.ok().unwrap();
    assert_eq!(too_late(begin(&pool, ms(1)).await).pace, ms(8));
    // A pool without a connection has served no waiter, so its pace is unknown.
    let _second = begin(&other, ms(100)).await.ok().unwrap();
    advance(ms(50)).await;
    let _third = begin(&other, ms(1)).await.expect("a pool without a pace refused a check-out");
    drop((first, held));
}

#[tokio::test(start_paused = true)]
async fn paused_pool_says_that_it_is_paused() {
    let pool = refusing(PoolOptions::default());
    let _held = take_turns(&pool, pool.check_out().await.unwrap(), 10, ms(8)).await;
    let first = begin(&pool, ms(100)).await.ok().unwrap();
    pool.clear(wharf::Clear::new()).unwrap();
    let error = pool.check_out_until(Instant::now()).await.unwrap_err();
    assert!(matches!(error, CheckOutError::PoolCleared(_)), "{error}");
    drop(first);
}

#[tokio::test]
async fn threads_are_refused_as_well() {
    let options = PoolOptions::default().max_pool_size(1).refuse_late(true);
    let pool = builder(&Mock::new([])).options(options).build().unwrap();
    pool.ready();
    let held = pool.check_out().await.unwrap();
    let mut first = pin!(pool.check_out());
    assert!(poll_once(first.as_mut()).await.is_none());
    let begun = std::time::Instant::now();
    while begun.elapsed() < ms(2) {}
    drop(held);
    let _held = first.await.unwrap();
    let mut second = pin!(pool.check_out());
    assert!(poll_once(second.as_mut()).await.is_none());
    let error = pool.check_out_blocking(Some(ms(1))).unwrap_err();
    assert!(matches!(error, CheckOutError::WaitQueueFull(_)), "{error}");
}
