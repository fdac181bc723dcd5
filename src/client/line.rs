//! The cursors of a transaction behind a load balancer that close.
//!
//! Only the connection of the transaction leads to its cursors. A cursor that is dropped closes in the background, and the next
//! operation of the transaction would have the connection first. So the cursor takes a place in the line of its transaction
//! as soon as it is dropped. The cursors in the line close one after the other, and operations wait until it is empty.
//!
//! Operations and `getMore` commands take no place, because a place holds up all others: a call of
//! [`Cursor::next`](super::Cursor::next) that was cancelled is not polled, and stays in its cursor.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The cursors of one transaction that close.
#[derive(Default)]
pub(super) struct Line {
    /// The numbers of their tickets. The first one closes now.
    places: Mutex<VecDeque<u64>>,
    /// Notified of each place that is left.
    left: Notify,
    /// The number of tickets.
    tickets: AtomicU64,
}

impl Line {
    /// Returns the ticket of another cursor.
    pub(super) fn ticket(self: &Arc<Self>) -> Ticket {
        // Relaxed: the numbers only have to differ.
        Ticket { line: self.clone(), number: self.tickets.fetch_add(1, Ordering::Relaxed) }
    }

    /// Returns whether no cursor closes.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Waits until no cursor closes.
    pub(super) async fn empty(&self) {
        self.until(|places| places.is_empty().then_some(())).await;
    }

    /// Waits until `find` finds something in the places.
    async fn until<T>(&self, find: impl Fn(&VecDeque<u64>) -> Option<T>) -> T {
        loop {
            // Made before the look at the places, so that it does not miss what happens after that.
            let left = self.left.notified();
            let found = find(&self.lock());
            if let Some(found) = found {
                return found;
            }
            left.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u64>> {
        // Each change is one call of a method.
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

    /// Waits until no other cursor closes. Returns false if this one is in the line by then.
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
