//! Drains by an application's own establisher, on connections without a server.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use wharf::{
    CheckOutError, Clear, Condition, Connection, Establish, EstablishError, Establishing, Pool, PoolEvent, PoolOptions,
};

use super::AGES;

/// An establisher that drains its connections when the test says so.
#[derive(Clone)]
struct Mock(Arc<Gates>);

struct Gates {
    /// A permit for each drain that may finish.
    gate: Semaphore,
    begun: Notify,
    /// The condition in which drains leave connections.
    result: Mutex<Condition>,
    panics: bool,
    /// Whether new connections hang while they are established.
    hangs: AtomicBool,
    /// Whether closes wait for a permit from `close_gate`.
    holds_closes: AtomicBool,
    close_gate: Semaphore,
    closing: Notify,
    /// How many times drains were polled.
    polls: AtomicU32,
}

#[derive(Debug)]
struct MockConnection {
    condition: Condition,
}

impl Mock {
    fn new(result: Condition, panics: bool) -> Self {
        let (gate, begun, result) = (Semaphore::new(0), Notify::new(), Mutex::new(result));
        let (hangs, holds_closes, polls) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU32::new(0));
        let (close_gate, closing) = (Semaphore::new(0), Notify::new());
        Self(Arc::new(Gates { gate, begun, result, panics, hangs, holds_closes, close_gate, closing, polls }))
    }
}

impl Establish for Mock {
    type Connection = MockConnection;

    async fn establish(&self, _: Establishing) -> Result<MockConnection, EstablishError> {
        if self.0.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(MockConnection { condition: Condition::Reusable })
    }

    fn condition(&self, connection: &mut MockConnection) -> Condition {
        connection.condition
    }

    async fn drain(&self, connection: &mut MockConnection) {
        self.0.begun.notify_one();
        let mut admission = pin!(self.0.gate.acquire());
        poll_fn(|context| {
            self.0.polls.fetch_add(1, Ordering::Relaxed);
            admission.as_mut().poll(context)
        })
        .await
        .unwrap()
        .forget();
        assert!(!self.0.panics, "the drain was told to panic");
        connection.condition = *self.0.result.lock().unwrap();
    }

    async fn close(&self, _connection: MockConnection) {
        if self.0.holds_closes.load(Ordering::Relaxed) {
            self.0.closing.notify_one();
            self.0.close_gate.acquire().await.unwrap().forget();
        }
    }
}

type CheckedOut = Result<Connection<Mock>, CheckOutError>;
type Events = Arc<Mutex<Vec<String>>>;

/// Returns a ready pool of one connection, and all later events.
fn pool(mock: &Mock) -> (Pool<Mock>, Events) {
    pool_with(mock, PoolOptions::default().max_pool_size(1))
}

fn pool_with(mock: &Mock, options: PoolOptions) -> (Pool<Mock>, Events) {
    let events = Events::default();
    let noted = events.clone();
    let pool = Pool::builder("mock:27017", mock.clone())
        .options(options)
        .subscriber(move |event: &PoolEvent| {
            let reason = event.reason().map(|reason| format!(" {reason}")).unwrap_or_default();
            noted.lock().unwrap().push(format!("{}{reason}", event.name()));
        })
        .build()
        .unwrap();
    pool.ready();
    (pool, events)
}

fn taken(events: &Events) -> Vec<String> {
    std::mem::take(&mut *events.lock().unwrap())
}

/// Checks in the only connection, which then needs a drain, and waits until the drain has begun.
async fn give_up(pool: &Pool<Mock>, mock: &Mock, events: &Events) {
    give_up_one(pool, mock, events).await;
    assert!(taken(events).is_empty(), "the connection was checked in before its drain has ended");
    let status = pool.status();
    assert_eq!(
        (status.total, status.in_use, status.draining, status.available, status.max_pool_size),
        (1, 1, 1, 0, pool.options().max_pool_size),
        "a connection that is being drained does not count as in use"
    );
}

async fn give_up_one(pool: &Pool<Mock>, mock: &Mock, events: &Events) {
    let mut connection = pool.check_out().await.unwrap();
    connection.condition = Condition::NeedsDrain;
    taken(events);
    let others = pool.status().draining;
    drop(connection);
    tokio::time::timeout(AGES, mock.0.begun.notified()).await.unwrap();
    assert_eq!(pool.status().draining, others + 1, "the number of connections that are drained");
}

#[tokio::test]
async fn connection_that_is_drained_has_no_holder() {
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool(&mock);
    pool.account_for_holders(true);
    give_up(&pool, &mock, &events).await;
    assert_eq!(pool.holders(), []);
    // A connection whose use was not recorded has no holder either.
    pool.account_for_holders(false);
    pool.account_for_holders(true);
    assert_eq!((pool.status().draining, pool.holders()), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn connection_is_idle_since_the_end_of_its_drain() {
    let most = Duration::from_secs(10);
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool_with(&mock, PoolOptions::default().max_pool_size(1).max_idle_time(most));
    give_up(&pool, &mock, &events).await;
    tokio::time::sleep(2 * most).await;
    mock.0.gate.add_permits(1);
    while pool.status().draining > 0 {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(most / 2).await;
    assert_eq!(pool.check_out().await.unwrap().id(), 1, "the time of the drain counts as idle time");
    assert_eq!(drains(&pool), (1, [1, 0, 0, 0]));
    tokio::time::sleep(2 * most).await;
    assert_eq!(pool.check_out().await.unwrap().id(), 2);
}

#[tokio::test]
async fn drained_connection_goes_to_a_check_out_that_opens_one() {
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool_with(&mock, PoolOptions::default().max_pool_size(2));
    give_up(&pool, &mock, &events).await;
    mock.0.hangs.store(true, Ordering::Relaxed);
    let mut opening = Box::pin(pool.check_out());
    while !taken(&events).contains(&"ConnectionCreated".to_owned()) {
        assert!(futures_poll(&mut opening).await.is_none(), "the check-out was served before the drain has ended");
        tokio::task::yield_now().await;
    }
    mock.0.gate.add_permits(1);
    let connection = tokio::time::timeout(AGES, opening).await.unwrap().unwrap();
    assert_eq!(connection.id(), 1);
    drop(connection);
    assert_eq!(pool.status().available, 1);
    let expected = ["ConnectionCheckedIn", "ConnectionCheckedOut", "ConnectionCheckedIn"];
    assert_eq!(taken(&events), expected);
    assert_eq!(drains(&pool), (1, [1, 0, 0, 0]));
}

#[tokio::test]
async fn check_out_that_would_wait_takes_the_capacity_of_a_drain() {
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool(&mock);
    give_up(&pool, &mock, &events).await;
    let mut waiting = Box::pin(pool.check_out());
    assert!(futures_poll(&mut waiting).await.is_none(), "the check-out completed without opening a connection");
    assert_eq!(taken(&events), ["ConnectionCheckOutStarted"]);
    let status = pool.status();
    assert_eq!((status.total, status.in_use, status.pending, status.waiting), (1, 1, 0, 1));
    let connection = tokio::time::timeout(AGES, waiting).await.unwrap().unwrap();
    assert_eq!(connection.id(), 2);
    let expected = [
        "ConnectionCheckedIn",
        "ConnectionClosed error",
        "ConnectionCreated",
        "ConnectionReady",
        "ConnectionCheckedOut",
    ];
    assert_eq!(taken(&events), expected);
    drop(connection);
    assert_eq!(pool.status().available, 1);
    assert_eq!(drains(&pool), (1, [0, 0, 1, 0]));
}

/// Queues for the capacity of the only connection, which is being drained, and waits until its close has begun. The
/// close does not complete until `close_gate` gives it a permit.
async fn displace<'p>(pool: &'p Pool<Mock>, mock: &Mock) -> Pin<Box<impl Future<Output = CheckedOut> + use<'p>>> {
    mock.0.holds_closes.store(true, Ordering::Relaxed);
    let mut waiting = Box::pin(pool.check_out());
    assert!(futures_poll(&mut waiting).await.is_none(), "the check-out completed without opening a connection");
    tokio::time::timeout(AGES, mock.0.closing.notified()).await.unwrap();
    mock.0.holds_closes.store(false, Ordering::Relaxed);
    waiting
}

#[tokio::test]
async fn check_out_gets_the_capacity_of_a_drain_when_its_connection_is_closed() {
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool(&mock);
    give_up(&pool, &mock, &events).await;
    let mut waiting = displace(&pool, &mock).await;
    for _ in 0..10 {
        assert!(futures_poll(&mut waiting).await.is_none(), "there are two connections");
        tokio::task::yield_now().await;
    }
    let status = pool.status();
    assert_eq!((status.total, status.in_use, status.pending, status.draining, status.waiting), (1, 1, 0, 0, 1));
    mock.0.close_gate.add_permits(1);
    let connection = tokio::time::timeout(AGES, waiting).await.unwrap().unwrap();
    assert_eq!(connection.id(), 2);
    assert_eq!(drains(&pool), (1, [0, 0, 1, 0]));
}

#[tokio::test]
async fn check_out_that_is_gone_before_its_drain_is_closed_keeps_no_capacity() {
    for is_cleared in [false, true] {
        let mock = Mock::new(Condition::Reusable, false);
        let (pool, events) = pool(&mock);
        give_up(&pool, &mock, &events).await;
        let waiting = displace(&pool, &mock).await;
        if is_cleared {
            pool.clear(Clear::new()).unwrap();
            assert!(waiting.await.is_err());
            pool.ready();
        } else {
            drop(waiting);
        }
        assert_eq!(pool.status().total, 1);
        mock.0.close_gate.add_permits(1);
        until(&pool, 0).await;
        // The next drain can also be displaced.
        for id in 2..=4 {
            let mut connection = tokio::time::timeout(AGES, pool.check_out()).await.unwrap().unwrap();
            assert_eq!(connection.id(), id);
            connection.condition = Condition::NeedsDrain;
        }
        assert_eq!(drains(&pool).1[2], 3, "the drains that were displaced");
    }
}

#[tokio::test]
async fn closed_pool_waits_for_the_close_of_a_connection_whose_drain_was_displaced() {
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool(&mock);
    give_up(&pool, &mock, &events).await;
    let waiting = displace(&pool, &mock).await;
    pool.close();
    assert!(waiting.await.is_err());
    let mut closed = Box::pin(pool.closed());
    assert!(futures_poll(&mut closed).await.is_none());
    mock.0.close_gate.add_permits(1);
    tokio::time::timeout(AGES, closed).await.unwrap();
}

/// Polls a future once.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| match std::pin::Pin::new(&mut *future).poll(context) {
        std::task::Poll::Ready(done) => std::task::Poll::Ready(Some(done)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}

#[tokio::test]
async fn slow_subscriber_does_not_keep_a_drains_capacity_from_a_check_out() {
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool(&mock);
    give_up(&pool, &mock, &events).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    pool.subscribe({
        let (pool, seen) = (pool.clone(), seen.clone());
        move |event: &PoolEvent| {
            if let PoolEvent::ConnectionClosed { .. } = event {
                let status = pool.status();
                seen.lock().unwrap().push((status.total, status.pending, status.waiting));
            }
        }
    });
    drop(tokio::time::timeout(AGES, pool.check_out()).await.unwrap().unwrap());
    assert_eq!(*seen.lock().unwrap(), [(1, 1, 0)], "the check-out had no permit when ConnectionClosed was delivered");
    pool.close();
}

#[tokio::test]
async fn connection_that_cannot_be_drained_is_closed() {
    for (result, panics) in [(Condition::NeedsDrain, false), (Condition::Broken, false), (Condition::Reusable, true)] {
        let mock = Mock::new(result, panics);
        let (pool, events) = pool(&mock);
        give_up(&pool, &mock, &events).await;
        mock.0.gate.add_permits(1);
        until(&pool, 0).await;
        assert_eq!(taken(&events), ["ConnectionCheckedIn", "ConnectionClosed error"], "{result:?}");
        assert_eq!(drains(&pool), (1, [0, 1, 0, 0]), "{result:?}");
    }
}

/// An establisher whose `drain` panics before it returns a future.
struct Hasty;

impl Establish for Hasty {
    type Connection = Condition;

    async fn establish(&self, _: Establishing) -> Result<Condition, EstablishError> {
        Ok(Condition::Reusable)
    }

    fn condition(&self, connection: &mut Condition) -> Condition {
        *connection
    }

    fn drain(&self, connection: &mut Condition) -> impl Future<Output = ()> + Send {
        *connection = Condition::Reusable;
        assert_eq!(*connection, Condition::Broken, "the drain was told to panic");
        std::future::ready(())
    }
}

#[tokio::test]
async fn drain_that_panics_when_called_closes_even_a_reusable_connection() {
    let pool = Pool::builder("mock:27017", Hasty).options(PoolOptions::default().max_pool_size(1)).build().unwrap();
    pool.ready();
    let mut connection = pool.check_out().await.unwrap();
    *connection = Condition::NeedsDrain;
    drop(connection);
    until(&pool, 0).await;
    assert_eq!(drains(&pool), (1, [0, 1, 0, 0]));
}

/// An establisher whose `condition` panics once a connection is drained.
struct Choosy;

/// Whether the last user left a command unfinished, and whether the connection was drained.
#[derive(Default)]
struct Chosen {
    is_undone: bool,
    is_drained: bool,
}

impl Establish for Choosy {
    type Connection = Chosen;

    async fn establish(&self, _: Establishing) -> Result<Chosen, EstablishError> {
        Ok(Chosen::default())
    }

    fn condition(&self, connection: &mut Chosen) -> Condition {
        assert!(!connection.is_drained, "judging was told to panic");
        if connection.is_undone { Condition::NeedsDrain } else { Condition::Reusable }
    }

    async fn drain(&self, connection: &mut Chosen) {
        *connection = Chosen { is_undone: false, is_drained: true };
    }
}

#[tokio::test]
async fn connection_whose_condition_panics_after_its_drain_is_closed_once() {
    let events = Events::default();
    let noted = events.clone();
    let subscriber = move |event: &PoolEvent| {
        let error = event.error().map(|error| format!(": {error}")).unwrap_or_default();
        noted.lock().unwrap().push(format!("{}{error}", event.name()));
    };
    let options = PoolOptions::default().max_pool_size(1);
    let pool = Pool::builder("mock:27017", Choosy).options(options).subscriber(subscriber).build().unwrap();
    pool.ready();
    for round in 1..=2 {
        // The second check-out shows that the capacity was returned.
        let mut connection = tokio::time::timeout(AGES, pool.check_out()).await.unwrap().unwrap();
        assert_eq!(connection.id(), round);
        connection.is_undone = true;
        taken(&events);
        drop(connection);
        until(&pool, 0).await;
        assert_eq!(
            taken(&events),
            [
                "ConnectionCheckedIn",
                "ConnectionClosed: the connection was left in a state in which it cannot be reused"
            ]
        );
        let (status, metrics) = (pool.status(), pool.metrics());
        assert_eq!((status.total, status.in_use, status.draining, status.available), (0, 0, 0, 0));
        assert_eq!(drains(&pool), (round, [0, round, 0, 0]));
        assert_eq!((metrics.connections.created, metrics.connections.closed.error), (round, round));
    }
    pool.close();
    tokio::time::timeout(AGES, pool.closed()).await.unwrap();
}

#[tokio::test]
async fn opening_and_closing_connections_does_not_wake_a_drain() {
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool_with(&mock, PoolOptions::default().max_pool_size(3).min_pool_size(2));
    give_up_one(&pool, &mock, &events).await;
    for _ in 0..20 {
        // Because of `minPoolSize`, a run of the background task replaces each closed connection.
        let mut connection = pool.check_out().await.unwrap();
        connection.condition = Condition::Broken;
        drop(connection);
        until(&pool, 2).await;
    }
    assert_eq!(mock.0.polls.load(Ordering::Relaxed), 1);
    pool.clear(Clear::new()).unwrap();
    until(&pool, 0).await;
}

#[tokio::test]
async fn clear_ends_the_drain_and_closes_the_connection() {
    for interrupt in [false, true] {
        let mock = Mock::new(Condition::Reusable, false);
        let (pool, events) = pool(&mock);
        give_up(&pool, &mock, &events).await;
        pool.clear(Clear::new().interrupt_in_use_connections(interrupt)).unwrap();
        until(&pool, 0).await;
        assert_eq!(taken(&events), ["PoolCleared", "ConnectionCheckedIn", "ConnectionClosed stale"]);
        assert_eq!(drains(&pool), (1, [0, 0, 0, 1]));
    }
}

#[tokio::test]
async fn close_ends_the_drain_and_closes_the_connection() {
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool(&mock);
    give_up(&pool, &mock, &events).await;
    pool.close();
    tokio::time::timeout(AGES, pool.closed()).await.unwrap();
    let events = taken(&events);
    assert!(events.contains(&"ConnectionClosed poolClosed".to_owned()), "{events:?}");
}

#[tokio::test]
async fn stale_connection_is_closed_instead_of_drained() {
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool(&mock);
    let mut connection = pool.check_out().await.unwrap();
    connection.condition = Condition::NeedsDrain;
    pool.clear(Clear::new()).unwrap();
    taken(&events);
    drop(connection);
    assert_eq!(taken(&events), ["ConnectionCheckedIn", "ConnectionClosed stale"]);
    assert_eq!(drains(&pool), (0, [0; 4]));
}

#[test]
fn connection_that_outlives_its_runtime_is_closed_as_stale() {
    let mock = Mock::new(Condition::Reusable, false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (pool, events, connection) = runtime.block_on(async {
        let (pool, events) = pool(&mock);
        let mut connection = pool.check_out().await.unwrap();
        connection.condition = Condition::NeedsDrain;
        taken(&events);
        (pool, events, connection)
    });
    drop(runtime);
    drop(connection);
    assert_eq!(taken(&events), ["ConnectionCheckedIn", "ConnectionClosed stale"]);
    assert_eq!(pool.status().total, 0);
}

#[test]
fn runtime_that_ends_during_the_drain_makes_the_connection_stale() {
    // tokio drops tasks in an order that depends on their ids. Other tasks, whose ids lie between the ids of the pool's
    // tasks, change that order.
    for others in 0..16 {
        let mock = Mock::new(Condition::Reusable, false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (pool, events) = runtime.block_on(async {
            let (pool, events) = pool(&mock);
            for _ in 0..others {
                tokio::spawn(std::future::pending::<()>());
            }
            give_up(&pool, &mock, &events).await;
            (pool, events)
        });
        drop(runtime);
        assert_eq!(taken(&events), ["ConnectionCheckedIn", "ConnectionClosed stale"], "with {others} other tasks");
        assert_eq!(pool.status().total, 0);
        assert_eq!(drains(&pool), (1, [0, 0, 0, 1]));
    }
}

/// Returns the number of drains that have begun, and their outcomes: reused, failed, displaced, given up.
fn drains<E: Establish>(pool: &Pool<E>) -> (u64, [u64; 4]) {
    let drains = pool.metrics().drains;
    let ends = [drains.reused, drains.failed, drains.displaced, drains.given_up];
    assert_eq!(drains.ended(), ends.iter().sum::<u64>());
    (drains.begun, ends)
}

/// Waits until the pool has this many connections.
async fn until<E: Establish>(pool: &Pool<E>, total: u32) {
    let reached = async {
        while pool.status().total != total {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(AGES, reached).await.unwrap();
}
