//! The subjects of the comparison: one adapter per pool, all with the same dummy connection.
//!
//! Every adapter is configured to do the least that its pool allows, because wharf does no more by default: no test of
//! a connection at check-out, no maximum lifetime, no idle timeout, no reaper, no metrics sink. Anything that cannot be
//! turned off is part of the pool and is measured with it: sqlx's and bb8's timeout around every check-out, sqlx's
//! clock readings, and the task that sqlx spawns for every check-in. The harness does not box anything: the loops are
//! compiled separately for each subject.

use std::future::Future;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub mod bb8;
pub mod deadpool;
pub mod floor;
pub mod kanal;
pub mod model;
pub mod observed;
pub mod qp;
pub mod sqlx;
pub mod wharf;

/// The connection in every pool: a cache line of plain data. So moving a connection has a cost, but opening one costs
/// next to nothing.
#[derive(Debug)]
pub struct Dummy {
    /// Marks the connection as unusable, for pools that check connections at check-in.
    pub broken: bool,
    number: u64,
    buffers: [usize; 6],
}

impl Dummy {
    /// Opens a connection.
    pub fn open() -> Self {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        // ORD: Relaxed; the number is only a name and publishes nothing.
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        Self { broken: false, number, buffers: [0; 6] }
    }
}

/// Keeps the compiler from optimizing away the closing of a connection.
impl Drop for Dummy {
    #[inline]
    fn drop(&mut self) {
        black_box((self.number, self.buffers));
    }
}

/// A pool that is measured. For a pool that supports only check-out and check-in, this trait suffices.
pub trait Subject: Send + Sync + Sized + 'static {
    /// The column's title.
    const NAME: &'static str;

    /// A checked-out connection. Dropping it checks the connection in.
    type Guard<'a>: Send;

    /// Creates a pool of at most `size` connections, which need not be open yet. Runs inside a tokio runtime.
    fn open(size: usize) -> impl Future<Output = Self> + Send;

    /// Checks out a connection, and waits for one if necessary.
    fn check_out(&self) -> impl Future<Output = Self::Guard<'_>> + Send;

    /// Fills the pool with `size` available connections: checks all of them out, and only then checks them in.
    fn warm(&self, size: usize) -> impl Future<Output = ()> + Send {
        async move {
            let mut held = Vec::with_capacity(size);
            for _ in 0..size {
                held.push(self.check_out().await);
            }
        }
    }
}

/// The source of connections for the tasks of a saturated case: any subject, or [`floor::Turns`], which go to tasks by
/// number.
pub trait Source: Send + Sync + Sized + 'static {
    /// A checked-out connection. Dropping it checks the connection in.
    type Guard<'a>: Send;

    /// Like [`Subject::open`].
    fn open(size: usize) -> impl Future<Output = Self> + Send;

    /// Like [`Subject::warm`].
    fn warm(&self, size: usize) -> impl Future<Output = ()> + Send;

    /// Checks out a connection for the task with this number, and waits for one if necessary.
    fn check_out_for(&self, task: usize) -> impl Future<Output = Self::Guard<'_>> + Send;
}

impl<S: Subject> Source for S {
    type Guard<'a> = <S as Subject>::Guard<'a>;

    fn open(size: usize) -> impl Future<Output = Self> + Send {
        <S as Subject>::open(size)
    }

    fn warm(&self, size: usize) -> impl Future<Output = ()> + Send {
        <S as Subject>::warm(self, size)
    }

    #[inline]
    fn check_out_for(&self, _task: usize) -> impl Future<Output = Self::Guard<'_>> + Send {
        self.check_out()
    }
}

/// A subject whose callers wait while all connections are in use.
pub trait Queue: Subject {}

/// A subject that opens connections on demand and can be made to close a connection instead of keeping it.
pub trait Create: Subject {
    /// Opens a connection for this caller, hands it out, and removes it from the pool.
    ///
    /// The pool is empty before and after. Its count of connections is correct again, so the next call also opens a
    /// connection.
    fn create_and_close(&self) -> impl Future<Output = ()> + Send;
}

/// A subject that can drop all available connections in one call and keep working afterwards.
pub trait Clear: Subject {
    /// Drops all available connections.
    fn clear(&self);

    /// Fills a cleared pool with `size` available connections again.
    fn refill(&self, size: usize) -> impl Future<Output = ()> + Send {
        self.warm(size)
    }
}

/// Called for each event, on the thread that delivers it.
pub type Handler = Arc<dyn Fn() + Send + Sync>;

/// A subject that calls a handler for its events: three for a check-out and check-in.
pub trait Handled: Subject {
    /// Creates a pool like [`Subject::open`], with a handler.
    fn open_handled(size: usize, handler: Handler) -> impl Future<Output = Self> + Send;

    /// Checks out a connection within the limit, or returns `None`.
    fn check_out_within(&self, limit: Duration) -> impl Future<Output = Option<Self::Guard<'_>>> + Send;
}
