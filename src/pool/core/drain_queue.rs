//! The drain queue: the connections that are being drained, in the order in which their drains began.
//!
//! If a waiter lacks only capacity, the oldest drain is *displaced*: it is removed from the queue, and the holder of
//! its [`Draining`](super::Draining) is notified and drops the token. The connection is then closed as usual, and the
//! waiter gets its capacity after the close.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use super::core::Core;
use super::environment::Environment;
use super::held::Held;
use super::registry::Registry;
use crate::pool::sync::{discard, wake};

/// A drain's number in its pool. Drains are numbered in the order in which they begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DrainNumber(u64);

#[derive(Default)]
pub(super) struct DrainQueue {
    last: u64,
    present: BTreeMap<DrainNumber, Drain>,
    /// The slot of the displaced drain, until the drain ends. Only one drain is displaced at a time.
    displaced: Option<u32>,
}

struct Drain {
    index: u32,
    waker: Option<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// The drain ended without being displaced.
    Ended,
    /// The drain was displaced: its connection must be closed for a waiter.
    Displaced,
}

impl DrainQueue {
    pub(super) fn len(&self) -> u32 {
        self.present.len() as u32
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.present.values().map(|drain| drain.index).chain(self.displaced)
    }
}

impl<E: Environment> Core<E> {
    /// Adds a drain of the caller's connection to the queue. Returns the drain's number, and whether a waiter needs the
    /// connection's capacity. If so, the caller must call [`Core::serve_permits`].
    pub(super) fn enter_drain(&self, held: &Held<E>) -> (DrainNumber, bool) {
        let mut registry = self.registry.lock();
        registry.counts.drains += 1;
        registry.drains.last += 1;
        let number = DrainNumber(registry.drains.last);
        let is_first = registry.drains.present.is_empty();
        registry.drains.present.insert(number, Drain { index: held.slot().index(), waker: None });
        // If an earlier drain is in the queue, a waiting check-out has already noticed that drain.
        (number, is_first && self.capacity.set_draining(true, self.limits()))
    }

    /// Removes a drain from the queue when it ends, unless it was displaced.
    pub(super) fn leave_drains(&self, number: DrainNumber) -> Left {
        let mut registry = self.registry.lock();
        let Some(drain) = registry.drains.present.remove(&number) else {
            registry.drains.displaced = None;
            return Left::Displaced;
        };
        self.note_drains(&registry);
        drop(registry);
        // The waker is dropped outside the lock.
        discard(drain.waker);
        Left::Ended
    }

    /// Displaces the oldest drain, if a waiter still needs its capacity.
    pub(super) fn displace_oldest_drain(&self) {
        let waker = {
            let mut registry = self.registry.lock();
            if !self.capacity.begin_displacing(self.limits()) {
                return;
            }
            let oldest = registry.drains.present.pop_first();
            let (_, drain) = oldest.expect("BUG: the draining flag is raised without a drain");
            registry.drains.displaced = Some(drain.index);
            self.note_drains(&registry);
            drain.waker
        };
        if let Some(waker) = waker {
            wake(waker);
        }
    }

    /// Lowers the draining flag if the last drain has just been removed from the registry.
    fn note_drains(&self, registry: &Registry) {
        if registry.drains.present.is_empty() {
            // There is no drain left to displace, so the result does not matter.
            let _ = self.capacity.set_draining(false, self.limits());
        }
    }

    /// Completes when the drain is displaced.
    pub(super) fn poll_displaced(&self, number: DrainNumber, context: &mut Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        let before = {
            let mut registry = self.registry.lock();
            match registry.drains.present.get_mut(&number) {
                None => return Poll::Ready(()),
                Some(drain) => drain.waker.replace(waker),
            }
        };
        // Dropped outside the lock, because dropping a waker runs foreign code.
        discard(before);
        Poll::Pending
    }

    pub(super) fn is_displaced(&self, number: DrainNumber) -> bool {
        !self.registry.lock().drains.present.contains_key(&number)
    }
}
