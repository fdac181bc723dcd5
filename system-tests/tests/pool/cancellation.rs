//! Cancelled check-outs: a check-out is dropped at every point where that is possible.
//!
//! A scenario is a check-out and a list of steps that other parties take. Turns alternate between polls and steps: the
//! check-out is polled, then a step runs, and so on until the check-out completes. Each scenario runs once for every
//! turn, and drops the check-out after that turn. So a check-out is dropped before its first poll, in the queue, after
//! a grant, during an establishment, and after the delivery of its connection. Nothing may be lost at any of these
//! turns.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::time::Instant;
use wharf::{CheckOutError, Clear, Connection, Pool, PoolOptions};

use super::mock::{Attempt, Log, Mock, counts, pool, settle};

type CheckOut<'p> = Pin<Box<dyn Future<Output = Result<Connection<Mock>, CheckOutError>> + 'p>>;

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Everything around a check-out: the pool, its events and its establisher.
struct World {
    pool: Pool<Mock>,
    log: Log,
    mock: Mock,
    held: Option<Connection<Mock>>,
}

/// How the check-out is started. Each kind has different await points.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Plain,
    /// With `waitQueueTimeoutMS`.
    Timed,
    /// With the caller's deadline.
    Until,
}

const KINDS: [Kind; 3] = [Kind::Plain, Kind::Timed, Kind::Until];

impl World {
    async fn new(kind: Kind, attempts: impl IntoIterator<Item = Attempt>, holds_one: bool) -> Self {
        Self::of_size(1, kind, attempts, holds_one).await
    }

    async fn of_size(size: u32, kind: Kind, attempts: impl IntoIterator<Item = Attempt>, holds_one: bool) -> Self {
        let options = PoolOptions::default().max_pool_size(size);
        let options = match kind {
            Kind::Timed => options.wait_queue_timeout(Duration::from_secs(3600)),
            Kind::Plain | Kind::Until => options,
        };
        let mock = Mock::new(attempts);
        let (pool, log) = pool(options, &mock);
        let held = if holds_one { Some(pool.check_out().await.unwrap()) } else { None };
        Self { pool, log, mock, held }
    }

    fn check_out<'p>(pool: &'p Pool<Mock>, kind: Kind) -> CheckOut<'p> {
        match kind {
            Kind::Plain | Kind::Timed => Box::pin(pool.check_out()),
            Kind::Until => Box::pin(pool.check_out_until(Instant::now() + Duration::from_secs(3600))),
        }
    }

    /// Asserts the conditions that hold once all tasks are idle.
    async fn verify(self, at: &str) {
        settle().await;
        let (total, pending, available, in_use, waiting) = counts(&self.pool);
        assert_eq!((pending, in_use, waiting, available), (0, 0, 0, total), "{at}: {:?}", self.pool.status());
        assert_eq!(self.mock.live(), total as usize, "{at}");
        let (started, done) = (
            self.log.count("ConnectionCheckOutStarted"),
            self.log.count("ConnectionCheckedOut") + self.log.count("ConnectionCheckOutFailed"),
        );
        assert_eq!(started, done, "{at}: {:?}", self.log.lines());
        self.mock.forget_instructions();
        self.pool.ready();
        let next = tokio::time::timeout(Duration::from_secs(1), self.pool.check_out()).await;
        drop(next.unwrap_or_else(|_| panic!("{at}: the next check-out hangs")).unwrap());
        self.pool.close();
        assert_eq!((counts(&self.pool), self.mock.live()), ((0, 0, 0, 0, 0), 0), "{at}");
    }
}

/// Runs a scenario once for every turn and returns the number of turns.
async fn enumerate(
    name: &str,
    kind: Kind,
    world: impl AsyncFn() -> World,
    steps: &[fn(&mut World)],
    succeeds: bool,
) -> usize {
    for last in 0.. {
        let mut world = world().await;
        let pool = world.pool.clone();
        let mut check_out = Some(World::check_out(&pool, kind));
        let mut steps = steps.iter();
        let mut waker = Arc::new(Wakes::default());
        let mut turn = 0;
        let done = loop {
            if turn == last {
                break None;
            }
            turn += 1;
            if turn % 2 == 1 {
                let woken = waker.0.load(Ordering::SeqCst) > 0;
                // Each poll gets a new waker: only the latest waker may be woken.
                waker = Arc::new(Wakes::default());
                let polled = check_out.as_mut().unwrap().as_mut();
                if let Poll::Ready(done) = polled.poll(&mut Context::from_waker(&Waker::from(waker.clone()))) {
                    assert!(turn == 1 || woken, "{name}, {kind:?}: completed without a wake-up");
                    break Some(done);
                }
            } else {
                steps.next().expect("a check-out that completes after the last step")(&mut world);
                settle().await;
            }
        };
        let at = format!("{name}, {kind:?}, dropped after turn {last}");
        drop(check_out.take());
        // The remaining steps run without the check-out.
        for step in steps {
            step(&mut world);
            settle().await;
        }
        if let Some(done) = done {
            assert_eq!(done.is_ok(), succeeds, "{at}: {done:?}");
            drop(done);
            world.verify(&at).await;
            return last;
        }
        world.verify(&at).await;
    }
    unreachable!()
}

#[tokio::test(start_paused = true)]
async fn while_waiting_for_a_connection() {
    for kind in KINDS {
        let turns = enumerate(
            "waits",
            kind,
            async || World::new(kind, [], true).await,
            &[|world| drop(world.held.take())],
            true,
        )
        .await;
        assert_eq!(turns, 3, "polled, granted, polled");
    }
}

#[tokio::test(start_paused = true)]
async fn while_waiting_for_a_permit() {
    for kind in KINDS {
        let steps: &[fn(&mut World)] = &[
            |world| {
                world.held.as_mut().unwrap().broken = true;
                drop(world.held.take());
            },
            |_| {},
        ];
        let turns = enumerate("place", kind, async || World::new(kind, [], true).await, steps, true).await;
        assert_eq!(turns, 5, "polled, granted, polled, delivered, polled");
    }
}

#[tokio::test(start_paused = true)]
async fn while_establishing() {
    for kind in KINDS {
        let world = async || World::new(kind, [Attempt::Held], false).await;
        let turns = enumerate("establishes", kind, world, &[|_| {}, |world| world.mock.let_one_in()], true).await;
        assert_eq!(turns, 5, "polled, establishing, polled, delivered, polled");
    }
}

#[tokio::test(start_paused = true)]
async fn while_establishing_when_another_connection_comes_back() {
    for kind in KINDS {
        let world = async || {
            let world = World::of_size(2, kind, [], true).await;
            world.mock.instruct([Attempt::Held]);
            world
        };
        let steps: &[fn(&mut World)] = &[|_| {}, |world| drop(world.held.take()), |world| world.mock.let_one_in()];
        let turns = enumerate("takes another", kind, world, steps, true).await;
        assert_eq!(turns, 5, "polled, establishing, polled, granted, polled");
    }
}

#[tokio::test(start_paused = true)]
async fn while_a_ready_task_checks_one_in() {
    for kind in KINDS {
        let world = async || World::of_size(2, kind, [], true).await;
        let turns = enumerate("is given one", kind, world, &[|world| drop(world.held.take())], true).await;
        assert_eq!(turns, 3, "polled, granted, polled");
    }
}

#[tokio::test(start_paused = true)]
async fn while_failing_to_establish() {
    for kind in KINDS {
        let world = async || World::new(kind, [Attempt::Fails], false).await;
        assert_eq!(enumerate("fails", kind, world, &[|_| {}], false).await, 3);
    }
}

#[tokio::test(start_paused = true)]
async fn while_being_refused() {
    for kind in KINDS {
        let clear: &[fn(&mut World)] = &[|world| {
            world.pool.clear(Clear::new()).unwrap();
            drop(world.held.take());
        }];
        assert_eq!(enumerate("cleared", kind, async || World::new(kind, [], true).await, clear, false).await, 3);
    }
}

/// The same turns with a second check-out in the queue: it gets everything that the dropped check-out does not take.
#[tokio::test(start_paused = true)]
async fn waiter_behind_a_cancelled_one_is_served() {
    for spoil in [false, true] {
        for polls_after_grant in 0..2 {
            let World { pool, mut held, .. } = World::new(Kind::Plain, [], true).await;
            let mut first = World::check_out(&pool, Kind::Plain);
            let mut second = World::check_out(&pool, Kind::Plain);
            let wakes = Arc::new(Wakes::default());
            let mut context = Context::from_waker(Waker::noop());
            assert!(first.as_mut().poll(&mut context).is_pending());
            assert!(second.as_mut().poll(&mut Context::from_waker(&Waker::from(wakes.clone()))).is_pending());
            held.as_mut().unwrap().broken = spoil;
            drop(held.take());
            assert_eq!(wakes.0.load(Ordering::SeqCst), 0, "the first waiter is served first");
            if polls_after_grant == 1 {
                // By now the first check-out has the connection or is opening a connection. If the first check-out is
                // dropped, this connection goes to the second one.
                let _ = first.as_mut().poll(&mut context);
            }
            drop(first);
            let second = tokio::time::timeout(Duration::from_secs(1), second).await;
            drop(second.expect("the second check-out hangs").unwrap());
            settle().await;
            assert_eq!(counts(&pool), (1, 0, 1, 0, 0));
        }
    }
}

/// Many concurrent check-outs on several threads are cancelled at arbitrary points.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn storm_of_cancellations_loses_nothing() {
    const TASKS: usize = 16;
    const EACH: usize = 400;
    let mock = Mock::new([]);
    let (pool, log) = pool(PoolOptions::default().max_pool_size(3).max_connecting(1), &mock);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let pool = pool.clone();
            tokio::spawn(async move {
                for round in 0..EACH {
                    let patience = (task * 7 + round * 13) % 5;
                    let mut check_out = Box::pin(pool.check_out());
                    let mut polls = 0;
                    // Gives up after the given number of polls, or waits until the check-out completes.
                    let got = std::future::poll_fn(|context| {
                        polls += 1;
                        match check_out.as_mut().poll(context) {
                            Poll::Ready(done) => Poll::Ready(Some(done)),
                            Poll::Pending if polls > patience && patience < 3 => Poll::Ready(None),
                            Poll::Pending => Poll::Pending,
                        }
                    })
                    .await;
                    if let Some(connection) = got {
                        let mut connection = connection.unwrap();
                        connection.broken = round % 11 == 0;
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("a task hangs").unwrap();
    }
    // Establishments may outlive their cancelled check-outs. Their connections become available.
    let deadline = Instant::now() + Duration::from_secs(10);
    while pool.status().pending > 0 && Instant::now() < deadline {
        tokio::task::yield_now().await;
    }
    let (total, pending, available, in_use, waiting) = counts(&pool);
    assert_eq!((pending, in_use, waiting, available), (0, 0, 0, total));
    assert_eq!(mock.live(), total as usize);
    assert_eq!(log.count("ConnectionCheckOutStarted"), TASKS * EACH);
    assert_eq!(log.count("ConnectionCheckedOut") + log.count("ConnectionCheckOutFailed"), TASKS * EACH);
}
