//! The simulated pools: wharf, and reference designs.

pub mod channel;
pub mod mutex;
pub mod semaphore;
pub mod stack;
#[cfg(simulated)]
pub mod wharf;

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::runtime::Work;
use crate::shared::Word;

/// A pool.
pub trait Design: Send + Sync + Sized + 'static {
    /// The name of the design in the reports.
    const NAME: &'static str;

    /// A connection that is checked out. Dropping the connection checks it in.
    type Guard: Send;

    /// Creates a pool of `size` connections for a machine with this many cores. If the pool assigns connections to
    /// cores, the first `owners` cores share them evenly.
    fn open(cores: usize, size: usize, owners: usize) -> Arc<Self>;

    /// Checks out a connection.
    fn check_out(self: &Arc<Self>) -> impl Future<Output = Self::Guard> + Send;

    /// The tasks that the pool itself needs.
    fn tasks(self: &Arc<Self>) -> Vec<Work> {
        Vec::new()
    }
}

/// Hands a connection to a waiting task. Each mailbox is on a separate cache line.
#[derive(Debug, Default)]
struct Mailbox {
    is_full: Word,
    content: Mutex<(Option<u32>, Option<Waker>)>,
}

impl Mailbox {
    fn content(&self) -> MutexGuard<'_, (Option<u32>, Option<Waker>)> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a connection in, and wakes the task that is waiting for it.
    #[track_caller]
    fn put(&self, connection: u32) {
        let waker = {
            let mut content = self.content();
            content.0 = Some(connection);
            content.1.take()
        };
        self.is_full.store(1);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the connection, or leaves a waker behind.
    #[track_caller]
    fn poll(&self, context: &mut Context<'_>) -> Poll<u32> {
        self.is_full.load();
        let mut content = self.content();
        match content.0.take() {
            Some(connection) => Poll::Ready(connection),
            None => {
                content.1 = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
