//! The drains: connections that came back undrained, in the order in which they came.
//!
//! A drain owns its connection, but not its capacity. The slot belongs to the entry here, and so to the first that
//! [claims](Core::claim_drain) it, under the registry's lock: the drain's own end, or a check-out that waits for capacity
//! and closes the oldest. The connection itself is with the [`Draining`](super::Draining), so that the capacity is free
//! at once, whatever the task does that drains.

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

/// The number of a drain in its pool, in the order in which they begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

#[derive(Default)]
pub(super) struct DrainQueue {
    last: u64,
    present: BTreeMap<Ticket, Drain>,
}

struct Drain {
    /// The slot of its connection.
    index: u32,
    /// Whom to wake when the connection is closed for its capacity.
    waker: Option<Waker>,
}

impl<E: Environment> Core<E> {
    /// Enters a connection whose value is the caller's from now on, while its slot is the entry's. Also returns whether a
    /// check-out waits for its capacity, which the caller is to serve then.
    pub(super) fn enter_drain(&self, held: Held<E>) -> (Ticket, bool) {
        let mut registry = self.registry.lock();
        registry.drains.last += 1;
        let ticket = Ticket(registry.drains.last);
        let is_first = registry.drains.present.is_empty();
        registry.drains.present.insert(ticket, Drain { index: held.slot().index(), waker: None });
        // Where there are others, a check-out that waits has seen those.
        (ticket, is_first && self.capacity.set_draining(true, self.limits))
    }

    /// Makes the slot of a drain the caller's. `None`: it was closed for its capacity.
    pub(super) fn claim_drain(&self, ticket: Ticket) -> Option<Held<E>> {
        let mut registry = self.registry.lock();
        let drain = registry.drains.present.remove(&ticket)?;
        let held = self.owned_now(&registry, &drain);
        drop(registry);
        // The waker, outside of the lock.
        discard(drain.waker);
        Some(held)
    }

    /// Closes the connection that has been drained for the longest time. `false`: there is none. Its capacity is the caller's
    /// to serve to those who wait, and its events to deliver.
    pub(super) fn close_oldest_drain(self: &Arc<Self>) -> bool {
        let (held, waker) = {
            let mut registry = self.registry.lock();
            let Some((_, drain)) = registry.drains.present.pop_first() else { return false };
            (self.owned_now(&registry, &drain), drain.waker)
        };
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

    /// The slot of a drain that has just been taken out of the registry.
    fn owned_now(&self, registry: &Registry, drain: &Drain) -> Held<E> {
        if registry.drains.present.is_empty() {
            // That there are none any more keeps nobody waiting.
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
        // Outside of the lock, as it is code of others.
        discard(before);
        Poll::Pending
    }

    /// Whether the connection of a drain was closed for its capacity.
    pub(super) fn is_drain_closed(&self, ticket: Ticket) -> bool {
        !self.registry.lock().drains.present.contains_key(&ticket)
    }
}
