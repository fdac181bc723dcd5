//! The extension point, with connections without a server.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, Semaphore};
use wharf::{Clear, Condition, Establish, EstablishError, Establishing, Pool, PoolEvent, PoolOptions};

use super::AGES;

/// Connections that drain when the test says so.
#[derive(Clone)]
struct Mock(Arc<Gates>);

struct Gates {
    /// A permit for each drain that may end.
    gate: Semaphore,
    begun: Notify,
    /// What a drain makes of a connection.
    result: Mutex<Condition>,
    panics: bool,
    /// Whether connections that are opened from now on never get established.
    hangs: AtomicBool,
    /// How often a drain was polled.
    polls: AtomicU32,
}

#[derive(Debug)]
struct MockConnection {
    condition: Condition,
}

impl Mock {
    fn new(result: Condition, panics: bool) -> Self {
        let (gate, begun, result) = (Semaphore::new(0), Notify::new(), Mutex::new(result));
        let (hangs, polls) = (AtomicBool::new(false), AtomicU32::new(0));
        Self(Arc::new(Gates { gate, begun, result, panics, hangs, polls }))
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
        assert!(!self.0.panics, "on request");
        connection.condition = *self.0.result.lock().unwrap();
    }
}

type Events = Arc<Mutex<Vec<String>>>;

/// A ready pool of one connection, and the events from then on.
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

/// Checks the only connection in undrained, and waits until its drain has begun.
async fn give_up(pool: &Pool<Mock>, mock: &Mock, events: &Events) {
    give_up_one(pool, mock, events).await;
    assert!(taken(events).is_empty(), "it is not checked in yet");
    let status = pool.status();
    assert_eq!((status.total, status.in_use, status.available), (1, 1, 0), "it counts as in use");
}

async fn give_up_one(pool: &Pool<Mock>, mock: &Mock, events: &Events) {
    let mut connection = pool.check_out().await.unwrap();
    connection.condition = Condition::NeedsDrain;
    taken(events);
    drop(connection);
    tokio::time::timeout(AGES, mock.0.begun.notified()).await.unwrap();
}

#[tokio::test]
async fn drained_connection_goes_to_a_check_out_that_opens_one() {
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool_with(&mock, PoolOptions::default().max_pool_size(2));
    give_up(&pool, &mock, &events).await;
    mock.0.hangs.store(true, Ordering::Relaxed);
    let mut opening = Box::pin(pool.check_out());
    while !taken(&events).contains(&"ConnectionCreated".to_owned()) {
        assert!(futures_poll(&mut opening).await.is_none(), "it opens one that never gets established");
        tokio::task::yield_now().await;
    }
    mock.0.gate.add_permits(1);
    let connection = tokio::time::timeout(AGES, opening).await.unwrap().unwrap();
    assert_eq!(connection.id(), 1);
    drop(connection);
    assert_eq!(pool.status().available, 1);
    let expected = ["ConnectionCheckedIn", "ConnectionCheckedOut", "ConnectionCheckedIn"];
    assert_eq!(taken(&events), expected);
}

#[tokio::test]
async fn check_out_that_would_wait_closes_the_connection_and_takes_its_place() {
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool(&mock);
    give_up(&pool, &mock, &events).await;
    // Whatever the task does that drains, the place is there at the first poll.
    let mut waiting = Box::pin(pool.check_out());
    assert!(futures_poll(&mut waiting).await.is_none(), "it opens one");
    assert_eq!(taken(&events), ["ConnectionCheckOutStarted", "ConnectionCheckedIn", "ConnectionClosed error"]);
    let status = pool.status();
    assert_eq!((status.total, status.pending, status.waiting), (1, 1, 0));
    let connection = tokio::time::timeout(AGES, waiting).await.unwrap().unwrap();
    assert_eq!(connection.id(), 2);
    drop(connection);
    // The drain has been told, and is over, without a second end of the connection.
    let freed = async {
        while Arc::strong_count(&mock.0) > 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(AGES, freed).await.unwrap();
    let events = taken(&events);
    assert_eq!(events.iter().filter(|event| event.starts_with("ConnectionClosed")).count(), 0, "{events:?}");
    assert_eq!(pool.status().available, 1);
}

/// Polls once.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|context| match std::pin::Pin::new(&mut *future).poll(context) {
        std::task::Poll::Ready(done) => std::task::Poll::Ready(Some(done)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}

#[tokio::test]
async fn slow_subscriber_does_not_keep_the_place_of_a_drain_from_a_check_out() {
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
    assert_eq!(*seen.lock().unwrap(), [(1, 1, 0)], "the check-out has the place by then");
    pool.close();
}

#[tokio::test]
async fn a_connection_that_cannot_be_drained_is_closed() {
    for (result, panics) in [(Condition::NeedsDrain, false), (Condition::Broken, false), (Condition::Reusable, true)] {
        let mock = Mock::new(result, panics);
        let (pool, events) = pool(&mock);
        give_up(&pool, &mock, &events).await;
        mock.0.gate.add_permits(1);
        until(&pool, 0).await;
        assert_eq!(taken(&events), ["ConnectionCheckedIn", "ConnectionClosed error"], "{result:?}");
    }
}

/// Panics before there is a future to poll.
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
        assert_eq!(*connection, Condition::Broken, "it always panics");
        std::future::ready(())
    }
}

#[tokio::test]
async fn a_drain_that_panics_when_it_is_called_closes_the_connection_however_good_it_looks() {
    let pool = Pool::builder("mock:27017", Hasty).options(PoolOptions::default().max_pool_size(1)).build().unwrap();
    pool.ready();
    let mut connection = pool.check_out().await.unwrap();
    *connection = Condition::NeedsDrain;
    drop(connection);
    until(&pool, 0).await;
}

#[tokio::test]
async fn connections_that_come_and_go_do_not_wake_a_drain() {
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool_with(&mock, PoolOptions::default().max_pool_size(3).min_pool_size(2));
    give_up_one(&pool, &mock, &events).await;
    for _ in 0..20 {
        // Each of them is replaced, because of `minPoolSize`, by a run of the background task.
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
async fn a_clear_ends_the_drain_and_the_connection() {
    for interrupt in [false, true] {
        let mock = Mock::new(Condition::Reusable, false);
        let (pool, events) = pool(&mock);
        give_up(&pool, &mock, &events).await;
        pool.clear(Clear::new().interrupt_in_use_connections(interrupt)).unwrap();
        until(&pool, 0).await;
        assert_eq!(taken(&events), ["PoolCleared", "ConnectionCheckedIn", "ConnectionClosed stale"]);
    }
}

#[tokio::test]
async fn a_close_ends_the_drain_and_the_connection() {
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool(&mock);
    give_up(&pool, &mock, &events).await;
    pool.close();
    tokio::time::timeout(AGES, pool.closed()).await.unwrap();
    let events = taken(&events);
    assert!(events.contains(&"ConnectionClosed poolClosed".to_owned()), "{events:?}");
}

#[tokio::test]
async fn a_connection_that_is_stale_already_is_closed_at_once() {
    let mock = Mock::new(Condition::Reusable, false);
    let (pool, events) = pool(&mock);
    let mut connection = pool.check_out().await.unwrap();
    connection.condition = Condition::NeedsDrain;
    pool.clear(Clear::new()).unwrap();
    taken(&events);
    drop(connection);
    assert_eq!(taken(&events), ["ConnectionCheckedIn", "ConnectionClosed stale"]);
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
    // tokio drops tasks in an order that depends on their numbers, so that other tasks between them change it.
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
    }
}

/// Waits until the pool has that many connections.
async fn until<E: Establish>(pool: &Pool<E>, total: u32) {
    let reached = async {
        while pool.status().total != total {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(AGES, reached).await.unwrap();
}
