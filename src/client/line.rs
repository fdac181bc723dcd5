//! The line of closing cursors, for a transaction behind a load balancer.
//!
//! Only the connection of the transaction leads to its cursors. A cursor that is dropped closes in the background, and
//! the next operation of the transaction would get the connection first. So the cursor takes a place in the line of its
//! transaction as soon as it is dropped. The cursors in the line close one after the other, and operations wait until
//! it is empty.
//!
//! Operations and `getMore` commands do not take a place, because a place holds up all others: a cancelled call to
//! [`Cursor::next`](super::Cursor::next) stays in its cursor and is not polled.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The cursors of one transaction that are closing.
#[derive(Default)]
pub(super) struct Line {
    /// Their ticket numbers. The first cursor is closing now.
    places: Mutex<VecDeque<u64>>,
    /// Notified whenever a cursor leaves its place.
    left: Notify,
    /// The number of tickets so far.
    tickets: AtomicU64,
}

impl Line {
    /// Returns a ticket for one more cursor.
    pub(super) fn ticket(self: &Arc<Self>) -> Ticket {
        // Relaxed: the numbers only have to differ.
        Ticket { line: self.clone(), number: self.tickets.fetch_add(1, Ordering::Relaxed) }
    }

    /// Returns whether no cursor is closing.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Waits until no cursor is closing.
    pub(super) async fn empty(&self) {
        self.until(|places| places.is_empty().then_some(())).await;
    }

    /// Waits until `find` returns something for the places.
    async fn until<T>(&self, find: impl Fn(&VecDeque<u64>) -> Option<T>) -> T {
        loop {
            // Created before the places are read, so that it does not miss a later change.
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
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right of a cursor to a place in the line of its transaction.
#[derive(Clone)]
pub(super) struct Ticket {
    line: Arc<Line>,
    number: u64,
}

impl Ticket {
    /// Takes the last place in the line.
    pub(super) fn line_up(&self) -> Place {
        self.line.lock().push_back(self.number);
        Place(self.clone())
    }

    /// Waits until no other cursor is closing. Returns false if this one is in the line by then.
    pub(super) async fn is_alone(&self) -> bool {
        let is_alone = |places: &VecDeque<u64>| match places.is_empty() {
            true => Some(true),
            false => places.contains(&self.number).then_some(false),
        };
        self.line.until(is_alone).await
    }
}

/// A place in the line, which the cursor leaves when the value drops.
#[must_use = "dropping the place leaves the line"]
pub(super) struct Place(Ticket);

impl Place {
    /// Waits until it is the first place.
    pub(super) async fn first(&self) {
        let Ticket { line, number } = &self.0;
        line.until(|places| (places.front() == Some(number)).then_some(())).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Ticket { line, number } = &self.0;
        {
            let mut places = line.lock();
            if let Some(at) = places.iter().position(|other| other == number) {
                places.remove(at);
            }
        }
        line.left.notify_waiters();
    }
}
