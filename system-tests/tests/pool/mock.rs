//! Connections without a server: each test decides how they are opened, and the mock counts them.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use tokio::sync::Semaphore;
use wharf::{
    Condition, Establish, EstablishError, Establishing, Pool, PoolBuilder, PoolEvent, PoolOptions, ServiceId, Stage,
};

/// How one attempt to establish a connection proceeds.
#[derive(Debug, Clone, Copy)]
pub enum Attempt {
    /// The attempt waits for [`Mock::let_one_in`], then succeeds.
    Held,
    /// The attempt waits for [`Mock::let_one_in`], then fails.
    HeldToFail,
    /// The attempt waits for [`Mock::let_one_in`], then fails with a timeout.
    HeldToTimeOut,
    Fails,
    Panics,
}

/// An establisher. Attempts without instructions succeed immediately.
#[derive(Clone)]
pub struct Mock {
    attempts: Arc<Mutex<VecDeque<Attempt>>>,
    gate: Arc<Semaphore>,
    live: Arc<AtomicUsize>,
}

impl Mock {
    pub fn new(attempts: impl IntoIterator<Item = Attempt>) -> Self {
        Self {
            attempts: Arc::new(Mutex::new(attempts.into_iter().collect())),
            gate: Arc::new(Semaphore::new(0)),
            live: Arc::new(AtomicUsize::new(0)),
        }
    }

    /// Sets how the next attempts proceed.
    pub fn instruct(&self, attempts: impl IntoIterator<Item = Attempt>) {
        self.attempts.lock().unwrap().extend(attempts);
    }

    pub fn let_one_in(&self) {
        self.gate.add_permits(1);
    }

    /// Makes all later attempts succeed.
    pub fn forget_instructions(&self) {
        self.attempts.lock().unwrap().clear();
    }

    /// Returns the number of connections in memory. It does not depend on the pool's own count.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }
}

/// A connection. In load-balanced mode, all connections belong to [`service`].
#[derive(Debug)]
pub struct MockConnection {
    pub broken: bool,
    live: Arc<AtomicUsize>,
}

impl Drop for MockConnection {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::SeqCst);
    }
}

pub fn service() -> ServiceId {
    ServiceId::from_bytes([0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67])
}

impl Establish for Mock {
    type Connection = MockConnection;

    async fn establish(&self, connecting: Establishing) -> Result<MockConnection, EstablishError> {
        // The connection counts from the start of the attempt, because a socket would exist from then on.
        self.live.fetch_add(1, Ordering::SeqCst);
        let connection = MockConnection { broken: false, live: self.live.clone() };
        if connecting.is_load_balanced() {
            connecting.identify(service());
        }
        let attempt = self.attempts.lock().unwrap().pop_front();
        if let Some(Attempt::Held | Attempt::HeldToFail | Attempt::HeldToTimeOut) = attempt {
            self.gate.acquire().await.expect("the gate is closed").forget();
        }
        match attempt {
            None | Some(Attempt::Held) => {}
            Some(Attempt::Fails | Attempt::HeldToFail) => {
                return Err(EstablishError::permanent(Stage::Hello, io::Error::other("the mock was told to fail")));
            }
            Some(Attempt::HeldToTimeOut) => {
                return Err(EstablishError::overloaded(Stage::Connect, io::Error::from(io::ErrorKind::TimedOut)));
            }
            Some(Attempt::Panics) => panic!("the mock was told to panic"),
        }
        Ok(connection)
    }

    fn condition(&self, connection: &mut MockConnection) -> Condition {
        if connection.broken { Condition::Broken } else { Condition::Reusable }
    }
}

/// Opens connections immediately. Closing a connection takes a second.
pub struct SlowToClose;

impl Establish for SlowToClose {
    type Connection = ();

    async fn establish(&self, _: Establishing) -> Result<(), EstablishError> {
        Ok(())
    }

    async fn close(&self, (): ()) {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
}

/// Returns a ready pool whose connections take a second to close, and all its events.
pub fn slow_to_close(options: PoolOptions) -> (Pool<SlowToClose>, Log) {
    let log = Log::default();
    let pool = Pool::builder("slow", SlowToClose).options(options).subscriber(log.subscriber()).build().unwrap();
    pool.ready();
    (pool, log)
}

/// A pool's events, one short line each.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn subscriber(&self) -> impl Fn(&PoolEvent) + Send + Sync + 'static {
        let log = self.clone();
        move |event| {
            let id = event.connection_id().map(|id| format!(" {id}")).unwrap_or_default();
            let reason = event.reason().map(|reason| format!(" {reason}")).unwrap_or_default();
            log.0.lock().unwrap().push(format!("{}{id}{reason}", event.name()));
        }
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Returns the lines since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    pub fn count(&self, start: &str) -> usize {
        self.lines().iter().filter(|line| line.starts_with(start)).count()
    }
}

/// Returns a ready pool, and all its later events.
pub fn pool(options: PoolOptions, mock: &Mock) -> (Pool<Mock>, Log) {
    let log = Log::default();
    let pool = builder(mock).options(options).subscriber(log.subscriber()).build().unwrap();
    assert!(pool.ready());
    assert_eq!(log.take(), ["PoolCreated", "PoolReady"]);
    (pool, log)
}

pub fn builder(mock: &Mock) -> PoolBuilder<Mock> {
    Pool::builder("mock:27017", mock.clone())
}

/// Polls a future once. Returns its output if the poll completes it.
pub async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// Lets all tasks run until they are idle. Needs a runtime whose clock is paused: such a clock advances only when no
/// task can run.
pub async fn settle() {
    tokio::time::sleep(std::time::Duration::from_millis(1)).await;
}

/// Returns `(total, pending, available, in use, waiting)` and asserts that they add up.
pub fn counts(pool: &Pool<Mock>) -> (u32, u32, u32, u32, u32) {
    let status = pool.status();
    assert!(status.consistent, "{status:?}");
    assert_eq!(status.total, status.pending + status.available + status.in_use + status.stale, "{status:?}");
    (status.total, status.pending, status.available, status.in_use, status.waiting)
}
