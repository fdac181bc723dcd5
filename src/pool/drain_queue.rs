//! The drain queue: connections that came back in need of a drain, in the order in which they came back.
//!
//! A drain owns its connection, but not the connection's slot. The slot belongs to the entry here until a thread
//! [claims](Core::claim_drain) it under the registry's lock. The first to claim it becomes its owner: the end of the
//! drain itself, or a check-out that waits for capacity and closes the oldest drain. The connection is in the
//! [`Draining`](super::Draining), so its capacity comes free at once, no matter what the task that drains it is doing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::core::Core;
use super::environment::Environment;
use super::fault::Fault;
use super::held::Held;
use super::registry::Registry;
use crate::event::ConnectionClosedReason;
use crate::sync::{discard, wake};

/// The number of a drain in its pool. Drains are numbered in the order in which they begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

#[derive(Default)]
pub(super) struct DrainQueue {
    last: u64,
    present: BTreeMap<Ticket, Drain>,
}

struct Drain {
    /// The slot of the drain's connection.
    index: u32,
    /// The waker to wake when the connection is closed for its capacity.
    waker: Option<Waker>,
}

impl DrainQueue {
    /// Returns the number of connections that are drained.
    pub(super) fn len(&self) -> u32 {
        self.present.len() as u32
    }

    /// Returns the slots of the connections that are drained.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.present.values().map(|drain| drain.index)
    }
}

impl<E: Environment> Core<E> {
    /// Enters a drain. From now on its connection is the caller's, and its slot is the entry's. Also returns whether a
    /// waiter waits for the capacity, which the caller must then serve.
    pub(super) fn enter_drain(&self, held: Held<E>) -> (Ticket, bool) {
        let mut registry = self.registry.lock();
        registry.counts.drains += 1;
        registry.drains.last += 1;
        let ticket = Ticket(registry.drains.last);
        let is_first = registry.drains.present.is_empty();
        registry.drains.present.insert(ticket, Drain { index: held.slot().index(), waker: None });
        // If there were other drains before, a check-out that waits has noticed those.
        (ticket, is_first && self.capacity.set_draining(true, self.limits))
    }

    /// Makes the slot of a drain the caller's, which counts what becomes of it. Returns `None` if the connection was
    /// closed for its capacity.
    pub(super) fn claim_drain(&self, ticket: Ticket) -> Option<Held<E>> {
        let mut registry = self.registry.lock();
        let drain = registry.drains.present.remove(&ticket)?;
        let held = self.owned_now(&registry, &drain);
        drop(registry);
        // The waker is dropped outside of the lock.
        discard(drain.waker);
        Some(held)
    }

    /// Closes the connection that has been draining for the longest time. Returns `false` if there is none. The caller
    /// must serve the capacity to waiters and deliver the events.
    pub(super) fn close_oldest_drain(self: &Arc<Self>) -> bool {
        let (held, waker) = {
            let mut registry = self.registry.lock();
            let Some((_, drain)) = registry.drains.present.pop_first() else { return false };
            (self.owned_now(&registry, &drain), drain.waker)
        };
        self.measures.drains.displaced.count();
        let (reason, error) = match held.is_stale() {
            true => (held.stale_reason(), None),
            false => (ConnectionClosedReason::Error, held.explained(Fault::Displaced)),
        };
        held.end_use();
        held.retire_for_waiter(reason, error);
        if let Some(waker) = waker {
            wake(waker);
        }
        true
    }

    /// Returns the slot of a drain that was just taken out of the registry.
    fn owned_now(&self, registry: &Registry, drain: &Drain) -> Held<E> {
        if registry.drains.present.is_empty() {
            // Lowering the flag keeps no check-out waiting, so the result does not matter.
            let _ = self.capacity.set_draining(false, self.limits);
        }
        Held::new(self, self.slab.slot(drain.index))
    }

    /// Completes when the connection of a drain was closed for its capacity.
    pub(super) fn poll_drain_closed(&self, ticket: Ticket, context: &mut Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        let before = {
            let mut registry = self.registry.lock();
            match registry.drains.present.get_mut(&ticket) {
                None => return Poll::Ready(()),
                Some(drain) => drain.waker.replace(waker),
            }
        };
        // Dropped outside of the lock, because it is foreign code.
        discard(before);
        Poll::Pending
    }

    /// Returns whether the connection of a drain was closed for its capacity.
    pub(super) fn is_drain_closed(&self, ticket: Ticket) -> bool {
        !self.registry.lock().drains.present.contains_key(&ticket)
    }
}
