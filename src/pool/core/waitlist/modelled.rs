//! The wait list on its own, for models of its cells and segments.

use std::task::{Context, Poll, Waker};

use super::{Lane, WaitList, Waiter};

/// A list of waiters that are granted numbers.
pub struct ModelledList(WaitList<u32>);

/// A waiter of a list.
pub struct ModelledWaiter(Waiter<u32>);

impl ModelledList {
    /// Creates an empty list.
    #[allow(clippy::new_without_default, reason = "only the models make one")]
    pub fn new() -> Self {
        Self(WaitList::new(u32::MAX))
    }

    /// Queues up, without the lock if others are waiting. Returns the grant if it has already come.
    pub fn wait(&self) -> (ModelledWaiter, Poll<u32>) {
        let mut waiter = Waiter::new();
        let polled = self.0.try_join(&mut waiter, Waker::noop()).unwrap_or_else(|| {
            let seat = self.0.lock_with_room(Lane::Waiters).enqueue(Lane::Waiters).expect("there is room");
            self.0.sit_down(&mut waiter, seat, Waker::noop().clone())
        });
        (ModelledWaiter(waiter), polled)
    }

    /// Grants a number to the first waiter, without the lock if possible. Returns whether there was a waiter.
    pub fn grant(&self, grant: u32) -> bool {
        let claimed = self.0.try_claim(|| true).or_else(|| self.0.lock().claim_first(Lane::Waiters));
        claimed.map(|claimed| drop(claimed.grant(grant))).is_some()
    }

    /// Removes the segments that are over.
    pub fn maintain(&self) {
        self.0.maintain();
    }

    /// Takes the grant of a waiter that was claimed.
    pub fn take(&self, ModelledWaiter(waiter): &mut ModelledWaiter) -> u32 {
        match self.0.poll(waiter, &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(grant) => grant,
            Poll::Pending => waiter.await_grant(),
        }
    }
}
