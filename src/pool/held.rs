//! The raw form of the tokens that hold a connection, and what becomes of a connection that is given up.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use bson::oid::ObjectId;

use super::acquire::Grant;
use super::core::Core;
use super::environment::Environment;
use super::fault::Fault;
use super::shard::{PushError, Shard};
use super::slab::{Record, Slot, Stamp};
use super::state::Phase;
use super::tokens::Idle;
use super::waitlist::Lane;
use crate::error::Cause;
use crate::event::{ConnectionClosedReason, EventError, PoolEvent};
use crate::sync::{discard, wake};

/// A slot that is owned (INV-1), whose connection keeps its pool alive (INV-2). The raw form of all tokens.
///
/// One pointer, and the pool is found through the slot: a result of two words comes back in two stores, and a caller
/// that reads both with one load has to wait until the stores are done. That was a sixth of a check-out and check-in.
pub(super) struct Held<E: Environment> {
    slot: NonNull<Slot<E::Connection>>,
    core: PhantomData<NonNull<Core<E>>>,
}

impl<E: Environment> Clone for Held<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: Environment> Copy for Held<E> {}

// SAFETY: what the pointers lead to is `Sync` (`Core`, `Slot`), and owning a slot means owning its connection, which
// is `Send`. Shared access to a token gives shared access to the connection only where `Lease: Sync` says so.
#[allow(unsafe_code)]
unsafe impl<E: Environment> Send for Held<E> {}

#[allow(unsafe_code)]
impl<E: Environment> Held<E> {
    /// For a caller that owns the slot, which is one of the core's.
    #[inline]
    pub(super) fn new(core: &Core<E>, slot: &Slot<E::Connection>) -> Self {
        let held = Self { slot: NonNull::from(slot), core: PhantomData };
        debug_assert!(std::ptr::eq(held.core_pointer(), core), "BUG: a slot of another pool");
        held
    }

    #[inline]
    pub(super) fn core_pointer(&self) -> *const Core<E> {
        // SAFETY: INV-1: we own the slot. It has lived through `Permit::create` of this very type of core.
        unsafe { self.slot().core() }.cast()
    }

    #[inline]
    pub(super) fn into_idle(self) -> Idle<E> {
        Idle::of(self)
    }

    #[inline]
    pub(super) fn core(&self) -> &Core<E> {
        // SAFETY: INV-2: the connection holds an `Arc` of the core until its slot is freed, which ends this ownership.
        unsafe { &*self.core_pointer() }
    }

    #[inline]
    pub(super) fn slot(&self) -> &Slot<E::Connection> {
        // SAFETY: slots live as long as the core, and INV-2 as above.
        unsafe { self.slot.as_ref() }
    }

    /// Looks at the record. A shared borrow, as threads that share a `Lease` may do this at the same time.
    #[inline]
    pub(super) fn record<R>(&self, f: impl FnOnce(&Record) -> R) -> R {
        // SAFETY: INV-1: we own the slot; whoever changes the record has its token alone.
        unsafe { self.slot().with_record(f) }
    }

    /// Changes the record, for callers whose token is not shared: it is borrowed exclusively, or not `Sync`.
    pub(super) fn record_mut<R>(&self, f: impl FnOnce(&mut Record) -> R) -> R {
        // SAFETY: INV-1: we own the slot; no closure that is passed here touches the record in another way.
        unsafe { self.slot().with_record_mut(f) }
    }

    /// The core's `Arc`, borrowed from the record (INV-2): cloning it is one more reference, dropping it is none less.
    pub(super) fn shared_core(&self) -> ManuallyDrop<Arc<Core<E>>> {
        // SAFETY: INV-2: there is an `Arc` of the core, and the pointer is its own. It is never dropped as this one.
        ManuallyDrop::new(unsafe { Arc::from_raw(self.core_pointer()) })
    }

    /// What the environment knows to be wrong with the connection.
    pub(super) fn fault(&self) -> Option<Cause> {
        // SAFETY: INV-1: we own the slot, and the borrow ends here.
        let connection = unsafe { self.slot().value_ref() }?;
        self.core().environment.fault(connection)
    }

    pub(super) fn id(&self) -> u64 {
        self.slot().known_as().0
    }

    pub(super) fn generation(&self) -> u64 {
        self.slot().stamp().generation
    }

    /// Whether the connection belongs to a service that was cleared since.
    #[inline]
    pub(super) fn is_stale_member(&self) -> bool {
        self.core().vetting
            && self.core().options.load_balanced
            && self.record(|record| record.membership.as_ref().is_some_and(|membership| membership.is_stale()))
    }

    /// The service and the service's generation, in load-balanced mode.
    pub(super) fn service(&self) -> Option<(ObjectId, u64)> {
        self.record(|record| record.membership.as_ref().map(|of| (of.service_id, of.generation)))
    }

    /// Makes the connection available: pushes it, or hands it to the first who waits, or closes it as stale.
    ///
    /// The push, or the grant, is the last thing done: from then on the connection belongs to others, who may close it
    /// and the pool, and free the core.
    #[inline(never)]
    pub(super) fn make_available(self) {
        self.offer(Lane::OF_RETURNED);
    }

    /// As [`Held::make_available`], for those who wait in the lanes' given order.
    pub(super) fn offer(self, lanes: [Lane; 2]) {
        let core = self.core();
        self.put_on(core.shard(core.environment.shard_hint()), lanes);
    }

    /// As [`Held::offer`], on a shard of the caller's choice.
    #[inline]
    pub(super) fn put_on(self, shard: &Shard, lanes: [Lane; 2]) {
        let core = self.core();
        let generation = self.generation();
        loop {
            // Asked by `push` at the right moment: a service is cleared before `Core::reap` detaches, as a pool is
            // cleared before its clear detaches.
            let is_current = || self.is_current(generation);
            match shard.push(&core.slab, self.slot(), is_current) {
                Ok(()) => return,
                Err(PushError::Stale) => return self.retire(self.stale_reason(), false),
                Err(PushError::Waiting) => {
                    if self.hand_over(generation, lanes) {
                        return;
                    }
                }
            }
        }
    }

    /// Hands the connection to the first who waits in the first lane where anybody does. `false`: nobody does, any more.
    #[inline(never)]
    fn hand_over(self, generation: u64, lanes: [Lane; 2]) -> bool {
        let core = self.core();
        let mut queue = core.wait_list.lock();
        if !self.is_current(generation) {
            drop(queue);
            self.retire(self.stale_reason(), false);
            return true;
        }
        let Some(claimed) = lanes.into_iter().find_map(|lane| queue.claim_first(lane)) else { return false };
        core.settle(&queue);
        drop(queue);
        wake(claimed.grant(Grant::Connection(self.into_idle())));
        true
    }

    /// Whether neither the pool nor the connection's service was cleared since. `generation` is the connection's.
    #[inline]
    fn is_current(&self, generation: u64) -> bool {
        self.core().state.load().generation == generation && !self.is_stale_member()
    }

    /// Why a connection of an older generation is closed.
    pub(super) fn stale_reason(&self) -> ConnectionClosedReason {
        match self.core().state.load().phase {
            Phase::Closed => ConnectionClosedReason::PoolClosed,
            Phase::Paused | Phase::Ready => ConnectionClosedReason::Stale,
        }
    }

    /// Closes the connection, for a reason other than an error: emits `ConnectionClosed`, frees the slot, gives back its
    /// capacity, disposes of the connection. `pending`: it still counts as pending.
    pub(super) fn retire(self, reason: ConnectionClosedReason, pending: bool) {
        self.close(reason, None, pending, true);
    }

    /// As [`Held::retire`], with the reason "error".
    #[cold]
    pub(super) fn retire_because(self, fault: Fault, pending: bool) {
        let error = self.explained(fault);
        self.close(ConnectionClosedReason::Error, error, pending, true);
    }

    /// As [`Held::retire`], for a caller that serves the capacity to those who wait, and delivers the events then.
    pub(super) fn retire_for_waiter(self, reason: ConnectionClosedReason, error: Option<EventError>) {
        self.close(reason, error, false, false);
    }

    /// The error for the event, if there is a listener.
    pub(super) fn explained(self, fault: Fault) -> Option<EventError> {
        self.core().environment.listens().then(|| fault.into_error(self))
    }

    /// As [`Held::retire`]. `serves`: those who wait for the capacity are served, and the events are delivered.
    #[inline(never)]
    fn close(self, reason: ConnectionClosedReason, error: Option<EventError>, pending: bool, serves: bool) {
        let core = self.shared_core();
        let connection_id = self.id();
        // SAFETY: INV-1: the token is consumed, so nothing borrows the connection.
        let connection = unsafe { self.slot().replace(None) };
        let (home, waker) = {
            let mut registry = core.registry.lock();
            // Under the lock, so that a connection is not seen closed as stale before the pool is seen cleared.
            let address = &core.address;
            core.emit_locked(|| PoolEvent::ConnectionClosed { address: address.clone(), connection_id, reason, error });
            let record = self.record_mut(std::mem::take);
            if let Some(membership) = &record.membership {
                registry.services.quit(membership, self.slot().index());
            }
            let waker = self.slot().take_waker();
            self.slot().set_stamp(Stamp::default());
            registry.free.push(self.slot().index());
            (record.home, waker)
        };
        // Outside of the lock, as it is foreign code.
        discard(waker);
        // Freed before the capacity is given back, so that there are never more slots than the capacity allows.
        if core.capacity.release(1, u32::from(pending)) && serves {
            core.serve_permits();
        }
        if let Some(connection) = connection {
            core.environment.dispose(connection);
        }
        if pending {
            // An establishment that failed is not followed by the next at once: the server may be overloaded.
            core.schedule_if_closed();
        } else {
            core.schedule_population();
        }
        // After all else, so that a slow subscriber does not keep the permit from others.
        if serves && core.environment.listens() {
            core.environment.deliver();
        }
        // Last: this may free the core.
        drop(home);
    }

    /// Notes since when the connection is available, where that matters.
    #[inline]
    pub(super) fn touch(&self) {
        let core = self.core();
        if core.vetting && !core.options.max_idle_time.is_zero() {
            self.slot().set_since(core.environment.now().duration_since(core.epoch));
        }
    }

    /// Tells that the connection is checked in. The caller asks for delivery.
    pub(super) fn end_use(&self) {
        self.core().emit_locked(|| self.checked_in());
    }

    /// The event that the connection is checked in, which is about to be emitted.
    pub(super) fn checked_in(&self) -> PoolEvent {
        self.slot().set_known_as(self.id(), false);
        PoolEvent::ConnectionCheckedIn { address: self.core().address.clone(), connection_id: self.id() }
    }

    /// Checks the connection in and closes it.
    pub(super) fn close_after_use(self, reason: ConnectionClosedReason) {
        self.end_use();
        self.retire(reason, false);
    }

    /// As [`Held::close_after_use`], with the reason "error".
    pub(super) fn close_because(self, fault: Fault) {
        self.end_use();
        self.retire_because(fault, false);
    }

    /// Whether the pool has been cleared or closed since the connection was created.
    #[inline]
    pub(super) fn is_stale(self) -> bool {
        self.generation() != self.core().state.load().generation || self.is_stale_member()
    }
}

/// Closes a connection that cannot be judged, because the judge panics: it would be lost, and its capacity with it.
pub(super) struct ClosedOnPanic<E: Environment>(pub(super) Held<E>);

impl<E: Environment> Drop for ClosedOnPanic<E> {
    fn drop(&mut self) {
        self.0.close_because(Fault::Panicked);
    }
}

/// Delivers when it is dropped, and keeps the core for that: for a caller that gives away what kept it.
pub(super) struct Delivers<E: Environment>(pub(super) Arc<Core<E>>);

impl<E: Environment> Drop for Delivers<E> {
    fn drop(&mut self) {
        self.0.environment.deliver();
    }
}
