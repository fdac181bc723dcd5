//! The wait list on event-listener.
//!
//! The queue is an `Event` whose notifications carry the grants as their tags. A lock around the counting makes two
//! numbers agree: `len`, how many wait and are not promised anything, and the length of the event's list, which is
//! `len` plus the promises that are not kept yet.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use event_listener::{Event, EventListener, IntoNotification};

use crate::sync::{Mutex, MutexGuard, UnsafeCell, yield_now};

/// A place in the queue. Its cell is touched by its owner only.
pub(in crate::pool) struct Node<G> {
    listener: UnsafeCell<Option<EventListener<G>>>,
}

// SAFETY: the cell is touched by the owner only.
#[allow(unsafe_code)]
unsafe impl<G: Send> Sync for Node<G> {}

impl<G> Node<G> {
    pub(in crate::pool) fn new() -> Self {
        Self { listener: UnsafeCell::new(None) }
    }

    /// Whether it was enqueued and its grant not yet taken. By the owner, who has not left.
    #[allow(unsafe_code)]
    pub(in crate::pool) fn is_queued(&self) -> bool {
        // SAFETY: the caller is the owner.
        self.listener.with(|listener| unsafe { (*listener).is_some() })
    }

    /// Looks for the grant. By the owner, who has enqueued the node.
    #[allow(unsafe_code)]
    fn poll(&self, context: &mut Context<'_>) -> Poll<G> {
        // SAFETY: the caller is the owner.
        self.listener.with_mut(|listener| {
            let listener = unsafe { &mut *listener };
            let present = listener.as_mut().expect("BUG: a node that waits without a listener");
            let polled = Pin::new(present).poll(context);
            if polled.is_ready() {
                *listener = None;
            }
            polled
        })
    }

    fn try_take(&self) -> Option<G> {
        match self.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(grant) => Some(grant),
            Poll::Pending => None,
        }
    }
}

/// The promise of a grant to the first in the queue.
#[must_use = "somebody waits for the grant"]
pub(in crate::pool) struct Claimed<G>(Arc<Event<G>>);

impl<G> Claimed<G> {
    /// Grants. Returns whom to wake: nobody, as the event has done it already.
    pub(in crate::pool) fn grant(self, grant: G) -> Waker {
        let mut grant = Some(grant);
        let take = || grant.take().expect("BUG: one grant for two");
        let notified = self.0.notify(1.additional().relaxed().tag_with(take));
        assert_eq!(notified, 1, "BUG: a promise to nobody");
        Waker::noop().clone()
    }
}

pub(in crate::pool) struct WaitList<G> {
    queue: Mutex<WaitQueue<G>>,
}

/// The list, locked.
pub(in crate::pool) struct WaitQueue<G> {
    event: Arc<Event<G>>,
    len: u32,
}

impl<G> WaitList<G> {
    pub(in crate::pool) fn new() -> Self {
        Self { queue: Mutex::new(WaitQueue { event: Arc::new(Event::with_tag()), len: 0 }) }
    }

    pub(in crate::pool) fn lock(&self) -> MutexGuard<'_, WaitQueue<G>> {
        self.queue.lock()
    }

    /// Looks for the grant, and else renews whom to wake. By the node's owner, who has enqueued it and not taken a
    /// grant since.
    pub(in crate::pool) fn poll(&self, node: &Node<G>, context: &mut Context<'_>) -> Poll<G> {
        node.poll(context)
    }

    /// Leaves the queue, and tells `settle` while the lock is held. By the node's owner, who has enqueued it and not
    /// taken a grant since. Returns the grant if one was promised.
    #[allow(unsafe_code)]
    pub(in crate::pool) fn leave(&self, node: &Node<G>, settle: impl FnOnce(&WaitQueue<G>)) -> Option<G> {
        let mut queue = self.lock();
        if let Some(grant) = node.try_take() {
            return Some(grant);
        }
        if queue.len == 0 {
            // All who are left are promised something, we among them.
            drop(queue);
            loop {
                if let Some(grant) = node.try_take() {
                    return Some(grant);
                }
                yield_now();
            }
        }
        // Whoever is promised something is still in the list when one who is not promised anything leaves it. A grant
        // may come to us even so, now that we have looked: then it is the one of somebody behind us.
        queue.len -= 1;
        // SAFETY: the caller is the owner.
        let listener = node.listener.with_mut(|listener| unsafe { (*listener).take() });
        // Passes a grant on to the next in the list, if one has just come.
        drop(listener);
        settle(&queue);
        None
    }
}

impl<G> WaitQueue<G> {
    pub(in crate::pool) fn len(&self) -> u32 {
        self.len
    }

    pub(in crate::pool) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Queues up at the end.
    #[allow(unsafe_code)]
    pub(in crate::pool) fn enqueue(&mut self, node: Pin<&Node<G>>, waker: Waker) {
        let mut listener = self.event.listen();
        let polled = Pin::new(&mut listener).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "BUG: a grant for somebody who has just queued up");
        // SAFETY: the caller owns the node.
        node.listener.with_mut(|present| unsafe { *present = Some(listener) });
        self.len += 1;
    }

    /// Promises something to the first in the queue, if anybody waits.
    pub(in crate::pool) fn claim_first(&mut self) -> Option<Claimed<G>> {
        self.len = self.len.checked_sub(1)?;
        Some(Claimed(self.event.clone()))
    }

    /// Promises something to all who wait.
    pub(in crate::pool) fn claim_all(&mut self) -> Vec<Claimed<G>> {
        std::iter::from_fn(|| self.claim_first()).collect()
    }
}
