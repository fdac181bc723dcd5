//! The queue of closing cursors, for a transaction behind a load balancer.
//!
//! A transaction's cursors can be reached only through the transaction's connection. A dropped cursor closes in the
//! background, so the transaction's next operation would take the connection first. To prevent this, a cursor joins its
//! transaction's queue as soon as it is dropped. The cursors in the queue close one after the other, and operations
//! wait until the queue is empty.
//!
//! Operations and `getMore` commands do not join the queue. A cancelled call to [`Cursor::next`](super::Cursor::next)
//! stays in its cursor and is not polled. If it were in the queue, it would delay all later cursors.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// One transaction's cursors that are closing.
#[derive(Default)]
pub(super) struct ClosingQueue {
    /// The numbers of the queued cursors. The first cursor is closing now.
    queued: Mutex<VecDeque<u64>>,
    /// Notified whenever a cursor leaves the queue.
    left: Notify,
    /// How many numbers have been assigned.
    numbers: AtomicU64,
}

impl ClosingQueue {
    /// Assigns a number to a cursor.
    pub(super) fn number(self: &Arc<Self>) -> QueueNumber {
        // Relaxed: the numbers only need to be unique.
        QueueNumber { queue: self.clone(), number: self.numbers.fetch_add(1, Ordering::Relaxed) }
    }

    /// Returns whether no cursor is closing.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Waits until no cursor is closing.
    pub(super) async fn empty(&self) {
        self.until(|queued| queued.is_empty().then_some(())).await;
    }

    /// Waits until `find` returns a value for the numbers in the queue.
    async fn until<T>(&self, find: impl Fn(&VecDeque<u64>) -> Option<T>) -> T {
        loop {
            // This is created before the queue is read, so that it does not miss a later change.
            let left = self.left.notified();
            let found = find(&self.lock());
            if let Some(found) = found {
                return found;
            }
            left.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u64>> {
        // Each change is a single method call, so the state is always valid.
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A cursor's number, which lets the cursor join its transaction's queue.
#[derive(Clone)]
pub(super) struct QueueNumber {
    queue: Arc<ClosingQueue>,
    number: u64,
}

impl QueueNumber {
    /// Adds the cursor to the end of the queue.
    pub(super) fn queue_up(&self) -> QueueGuard {
        self.queue.lock().push_back(self.number);
        QueueGuard(self.clone())
    }

    /// Waits until the queue is empty, or this cursor is in it. Returns true if the queue is empty.
    pub(super) async fn is_alone(&self) -> bool {
        let is_alone = |queued: &VecDeque<u64>| match queued.is_empty() {
            true => Some(true),
            false => queued.contains(&self.number).then_some(false),
        };
        self.queue.until(is_alone).await
    }
}

/// A cursor in the queue. The cursor leaves the queue when this value is dropped.
#[must_use = "dropping the guard leaves the queue"]
pub(super) struct QueueGuard(QueueNumber);

impl QueueGuard {
    /// Waits until the cursor is the first in the queue.
    pub(super) async fn first(&self) {
        let QueueNumber { queue, number } = &self.0;
        queue.until(|queued| (queued.front() == Some(number)).then_some(())).await;
    }
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        let QueueNumber { queue, number } = &self.0;
        {
            let mut queued = queue.lock();
            if let Some(at) = queued.iter().position(|other| other == number) {
                queued.remove(at);
            }
        }
        queue.left.notify_waiters();
    }
}
