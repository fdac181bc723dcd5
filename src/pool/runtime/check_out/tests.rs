//! Tests that measure how much work waiting check-outs do under the wait list's lock.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::time::Instant;

use crate::pool::runtime::tests::{CheckOut, Numbers};
use crate::pool::sync::census;
use crate::{CheckOutError, Clear, Connection, Pool, PoolOptions};

fn poll(check_out: &mut CheckOut<'_>, waker: &Waker) -> Poll<Result<Connection<Numbers>, CheckOutError>> {
    check_out.as_mut().poll(&mut Context::from_waker(waker))
}

async fn pool_of_one() -> (Pool<Numbers>, Connection<Numbers>) {
    let options = PoolOptions::default().max_pool_size(1);
    let pool = Pool::builder("mock:27017", Numbers).options(options).build().unwrap();
    pool.ready();
    let held = pool.check_out().await.unwrap();
    (pool, held)
}

/// The check-out takes the lock once to queue up, and the granter takes it once. The first poll looks for the grant
/// twice: before and after it creates the timer. The second look does not take a lock.
#[tokio::test(start_paused = true)]
async fn check_out_with_a_time_limit_takes_the_lock_once_and_its_granter_once() {
    // This is not `Waker::noop()`, because two no-op wakers are not always equal.
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let waker = Waker::from(Arc::new(Task));
    let (pool, held) = pool_of_one().await;
    let deadline = Instant::now() + Duration::from_secs(3_600);
    let wait = || -> CheckOut<'_> { Box::pin(pool.check_out_until(deadline)) };
    // For its first waiter, the list also allocates a block, which it keeps.
    assert!(poll(&mut wait(), &waker).is_pending());
    let mut waits = wait();
    let (queues_up, polled) = census::of(|| poll(&mut waits, &waker).is_pending());
    assert!(polled);
    let (polls_again, polled) = census::of(|| poll(&mut waits, &waker).is_pending());
    assert!(polled);
    let (grants, ()) = census::of(|| drop(held));
    let (takes, polled) = census::of(|| poll(&mut waits, &waker).is_ready());
    assert!(polled);
    assert_eq!([queues_up, polls_again, grants, takes].map(|census| census.sections), [1, 0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn no_locked_section_grows_with_the_number_of_waiters() {
    const WAITERS: usize = 5_000;
    // Each refusal in a batch takes a few steps. With one shard, settling is one step.
    const MOST_STEPS: u32 = 140;
    let (pool, held) = pool_of_one().await;
    let waiters = || {
        let mut waiters: Vec<CheckOut<'_>> = (0..WAITERS).map(|_| Box::pin(pool.check_out()) as _).collect();
        let (census, ()) = census::of(|| {
            waiters.iter_mut().for_each(|waiter| assert!(poll(waiter, Waker::noop()).is_pending()));
        });
        assert!(census.longest <= MOST_STEPS && census.allocations == 0, "queueing up: {census:?}");
        waiters
    };
    let assert_short = |what: &str, run: &dyn Fn(Vec<CheckOut<'_>>)| {
        let waiters = waiters();
        let (census, ()) = census::of(|| run(waiters));
        assert!(census.longest <= MOST_STEPS && census.allocations == 0, "{what}: {census:?}");
        assert!(census.sections >= 100, "{what}: {census:?}");
    };
    assert_short("leaving", &|waiters| drop(waiters));
    assert_short("a clear", &|mut waiters| {
        assert!(pool.clear(Clear::new()).unwrap());
        assert!(waiters.iter_mut().all(|waiter| poll(waiter, Waker::noop()).is_ready()));
        pool.ready();
    });
    assert_short("a close", &|mut waiters| {
        pool.close();
        assert!(waiters.iter_mut().all(|waiter| poll(waiter, Waker::noop()).is_ready()));
    });
    drop(held);
}
