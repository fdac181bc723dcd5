//! What is compared: one adapter per pool, all over the same dummy connection.
//!
//! Every adapter is configured to do the least its pool allows, because wharf does no more by default: no test of a
//! connection at check-out, no maximum lifetime, no idle timeout, no reaper, no metrics sink. What cannot be turned
//! off (sqlx's and bb8's timeout around every check-out, sqlx's clock readings and the task it spawns for every
//! check-in) is part of the pool and is measured with it. Nothing is boxed by the harness: the loops are compiled
//! once per subject.

use std::future::Future;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

pub mod bb8;
pub mod deadpool;
pub mod floor;
pub mod kanal;
pub mod qp;
pub mod sqlx;
pub mod wharf;

/// The connection every pool holds: a cache line of plain data, so that a pool which moves connections about pays for
/// moving something, and opening one costs next to nothing.
#[derive(Debug)]
pub struct Dummy {
    /// Asks for the connection not to be pooled again, in pools that judge connections when they come back.
    pub broken: bool,
    number: u64,
    buffers: [usize; 6],
}

impl Dummy {
    /// Opens a connection.
    pub fn open() -> Self {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        // ORD: Relaxed; the number is only a name, nothing is published by it.
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        Self { broken: false, number, buffers: [0; 6] }
    }
}

/// Closing a connection is something the compiler must not leave out.
impl Drop for Dummy {
    #[inline]
    fn drop(&mut self) {
        black_box((self.number, self.buffers));
    }
}

/// A pool under measurement. One that has nothing to add to it beyond check-out and check-in implements no more.
pub trait Subject: Send + Sync + Sized + 'static {
    /// The column's title.
    const NAME: &'static str;

    /// A checked-out connection. Dropping it is the check-in.
    type Guard<'a>: Send;

    /// A pool of at most `size` connections, none of which need be open yet. Runs inside a tokio runtime.
    fn open(size: usize) -> impl Future<Output = Self> + Send;

    /// Checks a connection out, waiting for one if need be.
    fn check_out(&self) -> impl Future<Output = Self::Guard<'_>> + Send;

    /// Makes the pool hold `size` idle connections: all are checked out at once, then all checked in.
    fn warm(&self, size: usize) -> impl Future<Output = ()> + Send {
        async move {
            let mut held = Vec::with_capacity(size);
            for _ in 0..size {
                held.push(self.check_out().await);
            }
        }
    }
}

/// A subject that makes a caller wait when all connections are out.
pub trait Queue: Subject {}

/// A subject that opens connections on demand and can be made to close one instead of keeping it.
pub trait Create: Subject {
    /// Opens a connection for this caller, hands it out, and removes it from the pool for good.
    ///
    /// The pool is empty before and after, and its count of connections is right again, so that the next call opens a
    /// connection too.
    fn create_and_close(&self) -> impl Future<Output = ()> + Send;
}

/// A subject whose idle connections can be thrown away in one call, after which the pool goes on working.
pub trait Clear: Subject {
    /// Throws away every idle connection.
    fn clear(&self);

    /// Makes a cleared pool hold `size` idle connections again.
    fn refill(&self, size: usize) -> impl Future<Output = ()> + Send {
        self.warm(size)
    }
}
