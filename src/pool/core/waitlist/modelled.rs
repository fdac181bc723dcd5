//! The wait list on its own, for models of its cells and segments.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::{Lane, WaitList, Waiter};

/// A wait list whose grants are numbers.
pub struct ModelledList {
    list: WaitList<u32>,
    wakes: Arc<Wakes>,
}

/// Counts how many times waiters were woken. This is not part of the model: loom does not see it.
struct Wakes(AtomicU32);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        // Relaxed: publishes nothing.
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A waiter in a list.
pub struct ModelledWaiter(Waiter<u32>);

impl ModelledList {
    /// Creates an empty list.
    #[allow(clippy::new_without_default, reason = "only the models make one")]
    pub fn new() -> Self {
        Self { list: WaitList::new(u32::MAX), wakes: Arc::new(Wakes(AtomicU32::new(0))) }
    }

    /// Joins the queue, without the lock if other waiters are in it. Returns the grant if the granter came first.
    pub fn wait(&self) -> (ModelledWaiter, Poll<u32>) {
        let (mut waiter, waker) = (Waiter::new(), self.waker());
        let polled = self.list.try_join(&mut waiter, &waker).unwrap_or_else(|| {
            let seat = self.list.lock_with_room(Lane::Waiters).enqueue(Lane::Waiters).expect("there is room");
            self.list.sit_down(&mut waiter, seat, waker)
        });
        (ModelledWaiter(waiter), polled)
    }

    fn waker(&self) -> Waker {
        self.wakes.clone().into()
    }

    /// Returns how many times waiters were woken.
    pub fn wakes(&self) -> u32 {
        // Relaxed: as in `wake`.
        self.wakes.0.load(Ordering::Relaxed)
    }

    /// Grants a number to the first waiter, without the lock if possible, and wakes it. Returns whether there was a
    /// waiter.
    pub fn grant(&self, grant: u32) -> bool {
        let claimed = self.list.try_claim(|| true).or_else(|| self.list.lock().claim_first(Lane::Waiters));
        claimed.map(|claimed| claimed.grant(grant).wake()).is_some()
    }

    /// Polls the waiter. Returns whether it is still waiting for its grant.
    pub fn waits(&self, ModelledWaiter(waiter): &mut ModelledWaiter) -> bool {
        self.list.poll(waiter, &mut Context::from_waker(&self.waker())).is_pending()
    }

    /// Removes the segments that are over.
    pub fn maintain(&self) {
        self.list.maintain();
    }

    /// Takes the grant of a claimed waiter.
    pub fn take(&self, ModelledWaiter(waiter): &mut ModelledWaiter) -> u32 {
        match self.list.poll(waiter, &mut Context::from_waker(&self.waker())) {
            Poll::Ready(grant) => grant,
            Poll::Pending => waiter.await_grant(),
        }
    }
}
