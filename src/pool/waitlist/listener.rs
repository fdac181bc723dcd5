//! The wait list built on event-listener.
//!
//! Each lane is an `Event` whose notifications carry the grants as their tags. A lock around the counting keeps two
//! numbers consistent: `len`, the number of nodes that wait and are not promised anything, and the length of the
//! event's list, which is `len` plus the number of promises that are not kept yet.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use event_listener::{Event, EventListener, IntoNotification};

use super::Lane;
#[cfg(not(loom))]
use crate::sync::contained;
use crate::sync::{Backoff, Mutex, MutexGuard, UnsafeCell};

/// In a model, no waker panics.
#[cfg(loom)]
fn contained(waker: Waker) -> Waker {
    waker
}

/// A waiter's place in the queue. Only its owner touches the cell.
pub(in crate::pool) struct Node<G> {
    listener: UnsafeCell<Option<(Lane, EventListener<G>)>>,
}

// SAFETY: only the owner touches the cell.
#[allow(unsafe_code)]
unsafe impl<G: Send> Sync for Node<G> {}

impl<G> Node<G> {
    pub(in crate::pool) fn new() -> Self {
        Self { listener: UnsafeCell::new(None) }
    }

    /// Returns whether the node was enqueued and its grant not yet taken. Called by the owner of a node that has not
    /// left.
    #[allow(unsafe_code)]
    pub(in crate::pool) fn is_queued(&self) -> bool {
        // SAFETY: the caller is the owner.
        self.listener.with(|listener| unsafe { (*listener).is_some() })
    }

    /// Takes the grant if it has come. Called by the owner of an enqueued node.
    #[allow(unsafe_code)]
    fn poll(&self, context: &mut Context<'_>) -> Poll<G> {
        // SAFETY: the caller is the owner.
        self.listener.with_mut(|listener| {
            let listener = unsafe { &mut *listener };
            let (_, present) = listener.as_mut().expect("BUG: a node waits without a listener");
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

/// A promise to grant something to the first in the queue.
#[must_use = "a waiter waits for the grant"]
pub(in crate::pool) struct Claimed<G>(Arc<Event<G>>);

impl<G> Claimed<G> {
    /// Grants. Returns a waker that does nothing, because the event has already woken the waiter.
    pub(in crate::pool) fn grant(self, grant: G) -> Waker {
        let mut grant = Some(grant);
        let take = || grant.take().expect("BUG: one grant was taken twice");
        let notified = self.0.notify(1.additional().relaxed().tag_with(take));
        assert_eq!(notified, 1, "BUG: a promise reached no waiter");
        Waker::noop().clone()
    }
}

pub(in crate::pool) struct WaitList<G> {
    queue: Mutex<LockedWaitList<G>>,
}

/// The list, locked.
pub(in crate::pool) struct LockedWaitList<G> {
    openers: Queue<G>,
    waiters: Queue<G>,
}

/// Promises that [`LockedWaitList::turn_away`] made and that are not kept yet.
#[must_use = "waiters wait for a refusal"]
pub(in crate::pool) struct TurnedAway<G> {
    event: Arc<Event<G>>,
    left: u32,
}

/// One lane.
struct Queue<G> {
    event: Arc<Event<G>>,
    len: u32,
}

impl<G> Queue<G> {
    fn new() -> Self {
        Self { event: Arc::new(Event::with_tag()), len: 0 }
    }
}

impl<G> WaitList<G> {
    /// The most promises that [`claim_turned_away`](Self::claim_turned_away) takes at a time.
    pub(in crate::pool) const BATCH: usize = 16;

    pub(in crate::pool) fn new() -> Self {
        Self { queue: Mutex::new(LockedWaitList { openers: Queue::new(), waiters: Queue::new() }) }
    }

    pub(in crate::pool) fn lock(&self) -> MutexGuard<'_, LockedWaitList<G>> {
        self.queue.lock()
    }

    /// Takes the lock. There is always room.
    pub(in crate::pool) fn lock_with_room(&self, _: Lane) -> MutexGuard<'_, LockedWaitList<G>> {
        self.lock()
    }

    /// Takes up to [`BATCH`](Self::BATCH) promises to the waiters that were turned away. If it takes none, no more are
    /// left.
    pub(in crate::pool) fn claim_turned_away(&self, away: &mut TurnedAway<G>, claimed: &mut Vec<Claimed<G>>) {
        while claimed.len() < Self::BATCH && away.left > 0 {
            away.left -= 1;
            claimed.push(Claimed(away.event.clone()));
        }
    }

    /// Takes the grant if it has come; otherwise replaces the waker. Called by the owner of a node that was enqueued
    /// and whose grant was not taken since then.
    pub(in crate::pool) fn poll(&self, node: &Node<G>, context: &mut Context<'_>) -> Poll<G> {
        // The event wakes, clones and drops wakers under its own lock, and does not tolerate a waker that panics there.
        let waker = contained(context.waker().clone());
        node.poll(&mut Context::from_waker(&waker))
    }

    /// Leaves the queue, and calls `settle` while the lock is held. Returns the grant if one was promised. Called by
    /// the owner of a node that was enqueued and whose grant was not taken since then.
    #[allow(unsafe_code)]
    pub(in crate::pool) fn leave(&self, node: &Node<G>, settle: impl FnOnce(&LockedWaitList<G>)) -> Option<G> {
        let mut queue = self.lock();
        if let Some(grant) = node.try_take() {
            return Some(grant);
        }
        // SAFETY: the caller is the owner.
        let lane = node.listener.with(|listener| unsafe { (*listener).as_ref().map(|(lane, _)| *lane) });
        let lane = queue.lane(lane.expect("BUG: a node waits without a listener"));
        if lane.len == 0 {
            // Every remaining waiter is promised something, and so are we.
            drop(queue);
            let mut backoff = Backoff::new();
            loop {
                if let Some(grant) = node.try_take() {
                    return Some(grant);
                }
                backoff.pause();
            }
        }
        // A waiter that is promised something is still in the list when one without a promise leaves it. A grant may
        // still reach us after the look above. Then it was meant for a waiter behind us.
        lane.len -= 1;
        // SAFETY: the caller is the owner.
        let listener = node.listener.with_mut(|listener| unsafe { (*listener).take() });
        // Dropping the listener passes a grant that has just come on to the next in the list.
        drop(listener);
        settle(&queue);
        None
    }
}

impl<G> LockedWaitList<G> {
    /// Returns the number of waiters in a lane that are not promised anything.
    pub(in crate::pool) fn len(&self, lane: Lane) -> u32 {
        match lane {
            Lane::Openers => self.openers.len,
            Lane::Waiters => self.waiters.len,
        }
    }

    /// Appends a node to a lane.
    #[allow(unsafe_code)]
    pub(in crate::pool) fn enqueue(&mut self, lane: Lane, node: Pin<&Node<G>>, waker: Waker) {
        let waker = contained(waker);
        let queue = self.lane(lane);
        let mut listener = queue.event.listen();
        let polled = Pin::new(&mut listener).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "BUG: a waiter that has just queued up was granted something");
        // SAFETY: the caller owns the node.
        node.listener.with_mut(|present| unsafe { *present = Some((lane, listener)) });
        queue.len += 1;
    }

    /// Promises something to the first waiter of a lane, if the lane has one.
    pub(in crate::pool) fn claim_first(&mut self, lane: Lane) -> Option<Claimed<G>> {
        let queue = self.lane(lane);
        queue.len = queue.len.checked_sub(1)?;
        Some(Claimed(queue.event.clone()))
    }

    /// Promises something to all waiters of [`Lane::Waiters`] at once.
    pub(in crate::pool) fn turn_away(&mut self) -> Option<TurnedAway<G>> {
        let left = std::mem::take(&mut self.waiters.len);
        (left > 0).then(|| TurnedAway { event: self.waiters.event.clone(), left })
    }

    fn lane(&mut self, lane: Lane) -> &mut Queue<G> {
        match lane {
            Lane::Openers => &mut self.openers,
            Lane::Waiters => &mut self.waiters,
        }
    }
}
