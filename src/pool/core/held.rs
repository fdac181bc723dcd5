//! The raw form of the tokens that hold a connection: how a connection becomes available, is handed over or is closed.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use super::acquire::Grant;
use super::close_error::CloseError;
use super::core::Core;
use super::environment::Environment;
use super::shard::{PushError, Shard};
use super::slab::{Record, Slot, Stamp};
use super::state::Phase;
use super::tokens::{Closing, CountsAs, Idle};
use super::waitlist::{Claimed, Lane, LockedWaitList};
use crate::pool::error::Cause;
use crate::pool::event::{ConnectionClosedReason, EventError, PoolEvent};
use crate::pool::service_id::ServiceId;
use crate::pool::sync::{discard, wake};

/// The raw form of all tokens that hold a connection: a slot that its owner holds (INV-1). The slot's connection keeps
/// its pool alive (INV-2).
///
/// It is a single pointer, because the slot leads to the core. A two-word result would be written with two stores, and
/// a caller that reads both words with one load would have to wait for the stores. That wait took up a sixth of the
/// time for a check-out and check-in.
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

// SAFETY: the pointer points to `Sync` values (`Core`, `Slot`). Owning a slot means owning its connection, which is
// `Send`. Shared access to a token gives shared access to the connection only where `Lease: Sync` allows it.
#[allow(unsafe_code)]
unsafe impl<E: Environment> Send for Held<E> {}

#[allow(unsafe_code)]
impl<E: Environment> Held<E> {
    /// Creates the raw token for a caller that owns the slot. The slot must belong to this core.
    #[inline]
    pub(super) fn new(core: &Core<E>, slot: &Slot<E::Connection>) -> Self {
        let held = Self { slot: NonNull::from(slot), core: PhantomData };
        debug_assert!(std::ptr::eq(held.core_pointer(), core), "BUG: the slot is of another pool");
        held
    }

    #[inline]
    pub(super) fn core_pointer(&self) -> *const Core<E> {
        // SAFETY: INV-1: we own the slot. `Permit::create` for this type of core created its connection.
        unsafe { self.slot().core() }.cast()
    }

    #[inline]
    pub(super) fn into_idle(self) -> Idle<E> {
        Idle::of(self)
    }

    #[inline]
    pub(super) fn core(&self) -> &Core<E> {
        // SAFETY: INV-2: the connection holds an `Arc` to the core until its slot is released, which ends this
        // ownership.
        unsafe { &*self.core_pointer() }
    }

    #[inline]
    pub(super) fn slot_pointer(&self) -> *const Slot<E::Connection> {
        self.slot.as_ptr()
    }

    #[inline]
    pub(super) fn slot(&self) -> &Slot<E::Connection> {
        // SAFETY: slots live as long as the core. INV-2 as above.
        unsafe { self.slot.as_ref() }
    }

    /// Calls `f` with the record. The borrow is shared, because threads that share a `Lease` may call this at the same
    /// time.
    #[inline]
    pub(super) fn record<R>(&self, f: impl FnOnce(&Record) -> R) -> R {
        // SAFETY: INV-1: we own the slot. Only a caller that does not share its token changes the record.
        unsafe { self.slot().with_record(f) }
    }

    /// Calls `f` with the record, to change it. The caller's token must not be shared: it is either borrowed
    /// exclusively or not `Sync`.
    pub(super) fn record_mut<R>(&self, f: impl FnOnce(&mut Record) -> R) -> R {
        // SAFETY: INV-1: we own the slot. No closure that is passed here accesses the record except through its
        // argument.
        unsafe { self.slot().with_record_mut(f) }
    }

    /// Returns the core's `Arc`, borrowed from the record (INV-2). Cloning it adds a reference, but dropping it does
    /// not remove one.
    pub(super) fn shared_core(&self) -> ManuallyDrop<Arc<Core<E>>> {
        // SAFETY: INV-2: an `Arc` to the core exists, and the pointer was obtained from it. The `Arc` is never dropped
        // through this pointer.
        ManuallyDrop::new(unsafe { Arc::from_raw(self.core_pointer()) })
    }

    /// Returns why the connection cannot be used again, if the environment knows the reason.
    pub(super) fn broken_by(&self) -> Option<Cause> {
        // SAFETY: INV-1: we own the slot, and the borrow ends here.
        let connection = unsafe { self.slot().value_ref() }?;
        self.core().environment.broken_by(connection)
    }

    pub(super) fn id(&self) -> u64 {
        self.slot().known_as().0
    }

    pub(super) fn generation(&self) -> u64 {
        self.slot().stamp().generation
    }

    /// Returns whether the connection belongs to a service that was cleared after the connection was identified.
    #[inline]
    pub(super) fn is_stale_member(&self) -> bool {
        self.core().vetting
            && self.core().options.load_balanced
            && self.record(|record| record.membership.as_ref().is_some_and(|membership| membership.is_stale()))
    }

    /// Returns the service that the connection belongs to and the service's generation, in load-balanced mode.
    pub(super) fn service(&self) -> Option<(ServiceId, u64)> {
        self.record(|record| record.membership.as_ref().map(|of| (of.service_id, of.generation)))
    }

    /// Makes the connection available: pushes it onto this shard, hands it over to the first check-out in the queue, or
    /// closes it if it is stale, surplus, or needed by another pool under the budget.
    #[inline(never)]
    pub(super) fn make_available(self, shard: &Shard) {
        if self.core().gives_up_as_surplus(self) {
            return self.retire_stale();
        }
        if self.is_asked_for() {
            return self.close_for_another_pool(self.stale_reason());
        }
        self.offer(shard, Lane::OF_RETURNED, || {});
    }

    /// Makes the connection available as [`Held::make_available`] does. If check-outs are waiting, the connection goes
    /// to the first check-out in the first non-empty lane of `lanes`.
    ///
    /// Calls `before_grant` before it hands the connection over, because the check-out that gets the connection may
    /// return before this function does.
    ///
    /// The push or the grant is the last step. From then on the connection belongs to other threads, which may close it
    /// and the pool, and free the core. So no function on the way to the push or the grant takes a reference to the
    /// core or to the slot.
    #[inline]
    pub(super) fn offer(self, shard: &Shard, lanes: [Lane; 3], mut before_grant: impl FnMut()) {
        let core = self.core();
        let generation = self.generation();
        loop {
            // `push` calls this between reading and swapping the head. This suffices: a service is marked as cleared
            // before `Core::reap` detaches the stacks, and a pool is marked as cleared before its clear detaches them.
            let is_current = || self.is_current(generation);
            // SAFETY: INV-1: we own the slot, which belongs to this core. It is not touched after a push.
            match unsafe { shard.push(&raw const core.slab, self.slot_pointer(), is_current) } {
                Ok(()) => return,
                Err(PushError::Stale) => return self.retire_stale(),
                Err(PushError::Waiting) => {
                    if self.hand_over(generation, lanes, &mut before_grant) {
                        return;
                    }
                }
            }
        }
    }

    /// Hands the connection over to the first check-out in the first non-empty lane. Returns `false` if no check-out is
    /// still waiting.
    #[inline]
    fn hand_over(self, generation: u64, lanes: [Lane; 3], before_grant: impl FnMut()) -> bool {
        if let Some(claimed) = self.core().wait_list.try_claim(|| self.is_current(generation)) {
            self.core().waiter_is_served();
            self.grant_to(claimed, before_grant);
            return true;
        }
        self.hand_over_by_lock(generation, lanes, before_grant)
    }

    #[inline(never)]
    fn hand_over_by_lock(self, generation: u64, lanes: [Lane; 3], before_grant: impl FnMut()) -> bool {
        let claimed = self.core().wait_list.run(
            |queue| self.claim_first(generation, lanes, queue),
            || move |queue: &mut LockedWaitList<_>| self.claim_first(generation, lanes, queue),
        );
        match claimed {
            Ok(None) => return false,
            Ok(Some(claimed)) => self.grant_to(claimed, before_grant),
            Err(Stale) => self.retire_stale(),
        }
        true
    }

    #[inline(always)]
    fn grant_to(self, claimed: Claimed<Grant<E>>, mut before_grant: impl FnMut()) {
        before_grant();
        wake(claimed.grant(Grant::Connection(self.into_idle())));
    }

    /// Claims the first check-out in the first non-empty lane. Runs under the wait list's lock.
    #[inline(always)]
    fn claim_first(
        self,
        generation: u64,
        lanes: [Lane; 3],
        queue: &mut LockedWaitList<Grant<E>>,
    ) -> Result<Option<Claimed<Grant<E>>>, Stale> {
        if !self.is_current(generation) {
            return Err(Stale);
        }
        let claimed = lanes.into_iter().find_map(|lane| queue.claim_first(lane).map(|claimed| (lane, claimed)));
        Ok(claimed.map(|(lane, claimed)| {
            // An opener that had to wait was already counted as served when it was granted its permit.
            if !matches!(lane, Lane::Openers) {
                self.core().waiter_is_served();
            }
            self.core().settle(queue);
            claimed
        }))
    }

    /// Returns whether the connection, which is of this generation, is current: neither the pool nor the connection's
    /// service has been cleared since.
    #[inline]
    fn is_current(&self, generation: u64) -> bool {
        self.core().state.load().generation == generation && !self.is_stale_member()
    }

    /// Returns the reason for closing a connection from an older generation.
    pub(super) fn stale_reason(&self) -> ConnectionClosedReason {
        match self.core().state.load().phase {
            Phase::Closed => ConnectionClosedReason::PoolClosed,
            Phase::Paused | Phase::Ready => ConnectionClosedReason::Stale,
        }
    }

    /// Closes an established connection, for a reason other than an error. Emits `ConnectionClosed`, releases the slot,
    /// gives back the capacity and disposes of the connection.
    pub(super) fn retire(self, reason: ConnectionClosedReason) {
        self.close(reason, None, CountsAs::Established);
    }

    /// Closes a connection from an older generation as [`Held::retire`] does.
    #[cold]
    #[inline(never)]
    pub(super) fn retire_stale(self) {
        self.retire(self.stale_reason());
    }

    /// Checks the connection in and closes it, with the reason "error".
    #[cold]
    pub(super) fn retire_because(self, error: CloseError) {
        self.end_use();
        self.close(ConnectionClosedReason::Error, self.explained(error), CountsAs::Established);
    }

    /// Checks in a connection whose drain was displaced, and closes it.
    pub(super) fn retire_displaced(self) {
        let (reason, error) = match self.is_stale() {
            true => (self.stale_reason(), None),
            false => (ConnectionClosedReason::Error, self.explained(CloseError::Displaced)),
        };
        self.end_use();
        self.close(reason, error, CountsAs::Displaced);
    }

    /// Gives up the connection in a forked child, without touching anything else in the parent's pool.
    pub(super) fn abandon(self) {
        if let Some(connection) = self.take() {
            self.core().environment.abandon(connection);
        }
    }

    /// Takes the connection out of its slot, for a caller whose token is consumed.
    pub(super) fn take(self) -> Option<E::Connection> {
        // SAFETY: INV-1: the token is consumed, so nothing borrows the connection.
        unsafe { self.slot().replace(None) }
    }

    /// Returns the error for the event, if a subscriber is listening.
    pub(super) fn explained(self, error: CloseError) -> Option<EventError> {
        self.core().environment.listens().then(|| error.into_event_error(self))
    }

    /// Closes the connection, passes its capacity on to a waiter and delivers the events.
    ///
    /// The connection is counted until the environment has disposed of it.
    #[inline(never)]
    pub(super) fn close(self, reason: ConnectionClosedReason, error: Option<EventError>, counts_as: CountsAs) {
        // The connection's own reference is dropped when its slot is released.
        let core = Arc::clone(&self.shared_core());
        let (connection, closing) = self.begin_close(reason, error, counts_as);
        match connection {
            Some(connection) => core.environment.dispose(connection, closing),
            None => drop(closing),
        }
        // This comes last, so that a slow subscriber does not delay another check-out's permit.
        if core.environment.may_have_events() {
            core.environment.deliver();
        }
    }

    /// Emits `ConnectionClosed` and releases the slot. Returns the connection if it was established, and the token for
    /// its capacity.
    pub(super) fn begin_close(
        self,
        reason: ConnectionClosedReason,
        error: Option<EventError>,
        counts_as: CountsAs,
    ) -> (Option<E::Connection>, Closing<E>) {
        let core = self.shared_core();
        let connection_id = self.id();
        let connection = self.take();
        let (reference, waker) = {
            let mut registry = core.registry.lock();
            // Emitted under the lock, so that subscribers never see a connection closed as stale before they see the
            // pool cleared.
            let address = &core.address;
            core.emit_locked(|| PoolEvent::ConnectionClosed { address: address.clone(), connection_id, reason, error });
            registry.counts.close(reason);
            let record = self.record_mut(std::mem::take);
            if let Some(membership) = &record.membership {
                registry.services.quit(membership, self.slot().index());
            }
            let waker = self.slot().take_waker();
            self.slot().set_stamp(Stamp::default());
            registry.free.push(self.slot().index());
            (record.core, waker)
        };
        // Dropped outside the lock, because the drop runs foreign code.
        discard(waker);
        // The slot is released before the capacity is given back, so that there are never more slots than the
        // capacity allows.
        let closing = Closing::of(Arc::clone(&core), counts_as);
        // This is dropped only now, because `closing` must acquire its own reference first.
        drop(reference);
        (connection, closing)
    }

    /// Records when the connection became available, if `maxIdleTimeMS` or a check before use needs it.
    #[inline]
    pub(super) fn touch(&self) {
        let core = self.core();
        self.note_idle();
        if core.notes_idle_times() {
            self.slot().set_since(core.nanos_since_epoch());
        }
    }

    /// Tells the subscribers that the connection is checked in. This happens before the connection is passed on,
    /// because its next event may come from another thread. The caller must not hold a lock.
    pub(super) fn end_use(&self) {
        let core = self.core();
        // This comes first, so that the pool notices if the log has stopped listening. Otherwise the end of this use
        // could later be reported to the log.
        core.heed_log();
        if core.environment.listens() {
            let connection_id = self.id();
            self.slot().set_known_as(connection_id, false);
            let duration = self.slot().take_started().elapsed(core);
            core.tell(|address| PoolEvent::ConnectionCheckedIn { address, connection_id, duration });
        }
    }

    /// Returns whether the pool, or the connection's service, has been cleared or closed since the connection was
    /// created.
    #[inline]
    pub(super) fn is_stale(self) -> bool {
        self.generation() != self.core().state.load().generation || self.is_stale_member()
    }
}

/// Indicates that the pool or the connection's service has moved on to a newer generation.
struct Stale;

/// Closes a connection if the code that judges it panics, because otherwise the connection and its capacity would be
/// lost.
pub(super) struct ClosedOnPanic<E: Environment>(pub(super) Held<E>);

impl<E: Environment> Drop for ClosedOnPanic<E> {
    fn drop(&mut self) {
        self.0.retire_because(CloseError::Panicked);
    }
}
