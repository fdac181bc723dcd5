//! Rights as tokens: to open a connection, to hold an available one, to use one.
//!
//! Each is `#[must_use]` and undoes itself when it is dropped; no count is corrected by hand anywhere else.
//!
//! ```text
//!           create             established                check_out
//! Permit ──────────────► Pending ─────────────► Idle + Opening ──────────► Lease
//!   │ drop                 │ drop                │ drop                     │ drop
//!   ▼                      ▼                     ▼                          ▼
//! capacity − 1         closed (error)        available, or            checked in: available,
//!                                            handed to a waiter       handed over, closed, or
//!                                                                     Draining ──► one of these
//! ```

use std::fmt;
use std::mem::ManuallyDrop;
use std::num::NonZeroU64;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering as StatisticOrdering;
use std::task::{Context, Poll};
use std::time::Duration;

use bson::oid::ObjectId;

use super::acquire::{Grant, Refusal};
use super::core::Core;
use super::draining::ClosedOnPanic;
use super::environment::Environment;
use super::fault::Fault;
use super::held::{Delivers, Held};
use super::slab::{Purpose, Record, Slot, Stamp};
use super::state::Phase;
use super::waitlist::Lane;
use crate::error::{EstablishError, PoolClearedError};
use crate::event::PoolEvent;
use crate::sync::{discard, mutant, wake};

/// The right to open one connection: it counts as pending already.
#[must_use = "dropping it gives the right to the next in the queue"]
pub struct Permit<E: Environment> {
    core: Arc<Core<E>>,
}

impl<E: Environment> Permit<E> {
    /// For a caller that has counted it in the capacity word.
    pub(super) fn new(core: Arc<Core<E>>) -> Self {
        Self { core }
    }

    /// Creates the connection, in the state "pending", and emits `ConnectionCreated`.
    ///
    /// Under the registry's lock, where the pool is marked ready, cleared and closed as well: the event lies between a
    /// `PoolReady` and the next `PoolCleared`, and the ids are in the order of the events (orderings 1 and 7).
    ///
    /// # Errors
    ///
    /// [`Refusal`] when the pool was cleared or closed since the right was given.
    #[allow(unsafe_code)]
    pub fn create(self) -> Result<Pending<E>, Refusal> {
        let core = &self.core;
        let mut registry = core.registry.lock();
        let state = core.state.load();
        if state.phase != Phase::Ready {
            drop(registry);
            return Err(self.core.refusal());
        }
        let created = core.environment.now();
        let slot = core.slab.slot(registry.allocate(&core.slab));
        let connection_id = core.next_id();
        let home: Arc<Core<E>> = core.clone();
        slot.set_known_as(connection_id, false);
        let record = Record { created: Some(created), home: Some(home), ..Record::default() };
        // SAFETY: INV-1: the slot was nobody's, and so is ours.
        unsafe {
            slot.with_record_mut(|present| *present = record);
            slot.set_core(Arc::as_ptr(core).cast());
        }
        slot.set_stamp(Stamp { generation: state.generation, live: true, pending: true, ..Stamp::default() });
        let registry = (!mutant("created_outside_the_lock")).then_some(registry);
        core.emit_locked(|| PoolEvent::ConnectionCreated { address: core.address.clone(), connection_id });
        drop(registry);
        core.environment.deliver();
        let held = Held::new(core, slot);
        // The count goes on to the pending connection; the reference to the core, which the record has, does not.
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again, and its `Drop` does not run.
        drop(unsafe { std::ptr::read(&raw const this.core) });
        Ok(Pending(held))
    }
}

impl<E: Environment> Drop for Permit<E> {
    fn drop(&mut self) {
        if mutant("unused_permit_is_kept") {
            return;
        }
        if self.core.capacity.release(1, 1) {
            self.core.serve_permits();
        }
        // It counted: towards `minPoolSize`, and as the last thing that a closed pool had.
        self.core.schedule_population();
    }
}

/// A connection in establishment. Dropping it closes it as failed.
#[must_use = "dropping it closes the connection"]
pub struct Pending<E: Environment>(Held<E>);

impl<E: Environment> Pending<E> {
    /// The connection's number.
    pub fn id(&self) -> u64 {
        self.0.id()
    }

    /// The pool's generation when the connection was created.
    pub fn generation(&self) -> u64 {
        self.0.generation()
    }

    /// Counts the connection in with its service, in load-balanced mode; from then on it has that service's
    /// generation. Without effect in other modes, and the second time.
    pub fn identify(&self, service_id: ObjectId) {
        let core = self.0.core();
        if core.options.load_balanced && self.0.service().is_none() {
            let membership = core.registry.lock().join(service_id, self.0.slot().index());
            self.0.record_mut(|record| record.membership = Some(membership));
        }
    }

    /// The service and the service's generation at the time, once identified.
    pub fn service(&self) -> Option<(ObjectId, u64)> {
        self.0.service()
    }

    /// Completes when the establishment is to be given up: the pool was cleared with interruption, or closed.
    pub fn poll_interrupted(&self, context: &mut Context<'_>) -> Poll<()> {
        self.0.slot().poll_interrupted(context)
    }

    /// The connection is established: emits `ConnectionReady`. It still counts as pending until the second token is
    /// dropped, which must happen after the first has been handed on (ordering 2). The event is delivered then, too: a
    /// slow subscriber does not keep the new connection from others.
    ///
    /// # Errors
    ///
    /// When the establishment was to be given up, the connection is closed instead.
    #[allow(unsafe_code)]
    pub fn established(self, connection: E::Connection) -> Result<Established<E>, Interrupted> {
        let held = self.0;
        let core = held.core();
        // SAFETY: INV-1: we own the slot, and nothing borrows what is not there yet.
        unsafe { held.slot().replace(Some(connection)) };
        if held.slot().set_established().interrupted {
            // The drop of `self` closes it.
            return Err(Interrupted);
        }
        let created = held.record(|record| record.created);
        core.emit_locked(|| PoolEvent::ConnectionReady {
            address: core.address.clone(),
            connection_id: held.id(),
            duration: core.environment.now().duration_since(created.unwrap_or(core.epoch)),
        });
        held.touch();
        // Else the task that has opened the connection stays in memory for as long as the connection exists.
        discard(held.slot().take_waker());
        let core = Arc::clone(&held.shared_core());
        std::mem::forget(self);
        Ok((Idle(held), Opening { core }))
    }
}

impl<E: Environment> Pending<E> {
    /// Closes the connection because it could not be established, with the error for its `ConnectionClosed` event.
    pub fn fail(self, error: &EstablishError) {
        ManuallyDrop::new(self).close(Fault::Failed(error.clone()));
    }

    /// Closes the connection, for a caller that does not touch it again. An interruption comes before a fault: it may
    /// have brought that about.
    fn close(&self, fault: Fault) {
        if self.0.slot().stamp().interrupted {
            self.0.retire(self.0.stale_reason(), true);
        } else {
            self.0.retire_because(fault, true);
        }
    }
}

impl<E: Environment> Drop for Pending<E> {
    fn drop(&mut self) {
        self.close(Fault::GivenUp);
    }
}

/// An established connection, and its share in the pending count.
pub type Established<E> = (Idle<E>, Opening<E>);

/// An establishment was given up because the pool was cleared or closed meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted;

/// A connection's share in the pending count. Dropping it lets the next one be opened.
#[must_use = "dropping it before the connection has been handed on lets others open needless ones"]
pub struct Opening<E: Environment> {
    core: Arc<Core<E>>,
}

impl<E: Environment> Opening<E> {
    /// Makes the connection available, unless somebody has it already (`None`); only then it stops counting as pending
    /// (ordering 2). Of those who wait, it goes to the first who would open one more, before those who are opening one.
    pub fn hand_on(self, unclaimed: Option<Idle<E>>) {
        let offer = || unclaimed.map_or((), Idle::offer_as_new);
        if mutant("pending_dropped_first") {
            drop(self);
            return offer();
        }
        offer();
        drop(self);
    }
}

impl<E: Environment> Drop for Opening<E> {
    fn drop(&mut self) {
        if self.core.capacity.release(0, 1) {
            self.core.serve_permits();
        }
        self.core.schedule_population();
        if self.core.environment.listens() {
            self.core.environment.deliver();
        }
    }
}

/// An established connection that nobody uses, taken out of the stacks. Dropping it makes it available.
#[must_use = "dropping it makes the connection available again"]
pub struct Idle<E: Environment>(Held<E>);

impl<E: Environment> Idle<E> {
    /// For a caller that owns an established connection.
    #[inline]
    pub(super) fn of(held: Held<E>) -> Self {
        Self(held)
    }

    /// The connection's number.
    pub fn id(&self) -> u64 {
        self.0.id()
    }

    /// Whether the pool has been cleared or closed since the connection was created. One that was granted to somebody
    /// who waited may have become so before that one came to look.
    pub fn is_stale(&self) -> bool {
        self.0.generation() != self.0.core().state.load().generation
    }

    /// Makes the connection available for the first time.
    fn offer_as_new(self) {
        ManuallyDrop::new(self).0.offer(Lane::OF_NEW);
    }

    /// Checks the connection out, and emits `ConnectionCheckedOut` with the time since `started`.
    #[inline]
    pub fn check_out(self, started: Started) -> Lease<E> {
        let held = ManuallyDrop::new(self).0;
        let core = held.core();
        core.emit(|| {
            held.slot().set_known_as(held.id(), true);
            let (address, duration) = (core.address.clone(), started.elapsed(core));
            PoolEvent::ConnectionCheckedOut { address, connection_id: held.id(), duration }
        });
        Lease(held)
    }
}

impl<E: Environment> Drop for Idle<E> {
    fn drop(&mut self) {
        self.0.make_available();
    }
}

/// When a check-out started, in nanoseconds since the pool's epoch, and one. The clock is read only if somebody listens.
#[derive(Debug, Clone, Copy)]
pub struct Started(Option<NonZeroU64>);

impl Started {
    /// Of a check-out that nobody hears of.
    pub(super) const UNHEARD: Self = Self(None);

    pub(super) fn now<E: Environment>(core: &Core<E>) -> Self {
        let nanos = core.environment.now().duration_since(core.epoch).as_nanos() as u64;
        Self(Some(NonZeroU64::MIN.saturating_add(nanos)))
    }

    pub(super) fn elapsed<E: Environment>(self, core: &Core<E>) -> Duration {
        // Without an instant there was no listener at the start; the duration then counts from now.
        let since_then = |started: NonZeroU64| {
            let started = Duration::from_nanos(started.get() - 1);
            core.environment.now().duration_since(core.epoch).saturating_sub(started)
        };
        self.0.map(since_then).unwrap_or_default()
    }
}

/// A connection that is checked out. Dropping it checks it in.
#[must_use = "dropping it checks the connection in"]
pub struct Lease<E: Environment>(Held<E>);

// SAFETY: a shared lease gives shared access to the connection, and else reads only.
#[allow(unsafe_code)]
unsafe impl<E: Environment<Connection: Sync>> Sync for Lease<E> {}

impl<E: Environment> Lease<E> {
    /// For a caller that owns an established connection.
    #[inline]
    pub(super) fn of(held: Held<E>) -> Self {
        Self(held)
    }

    /// The connection's number.
    pub fn id(&self) -> u64 {
        self.0.id()
    }

    /// The pool's generation when the connection was created.
    pub fn generation(&self) -> u64 {
        self.0.generation()
    }

    /// The service that the connection belongs to and the service's generation at the time, in load-balanced mode.
    pub fn service(&self) -> Option<(ObjectId, u64)> {
        self.0.service()
    }

    /// The pool's address.
    pub fn address(&self) -> &Arc<str> {
        &self.0.core().address
    }

    /// The world around the pool that the connection belongs to.
    pub fn environment(&self) -> &E {
        &self.0.core().environment
    }

    /// Whether this pool created the connection.
    pub fn belongs_to(&self, core: &Arc<Core<E>>) -> bool {
        std::ptr::eq(self.0.core_pointer(), Arc::as_ptr(core))
    }

    /// Whether the pool has been cleared or closed since the connection was created.
    pub fn is_stale(&self) -> bool {
        self.0.is_stale()
    }

    /// Whether what the connection does is to be cancelled.
    pub fn is_interrupted(&self) -> bool {
        self.0.slot().stamp().interrupted
    }

    /// The connection, for use, and what tells meanwhile that the use is to be cancelled.
    #[allow(unsafe_code)]
    pub fn interruptible(&mut self) -> (&mut E::Connection, Interruption<'_, E::Connection>) {
        let slot = self.0.slot();
        // SAFETY: INV-1: we own the slot; the borrow is the token's, and exclusive. An `Interruption` does not lead to
        // the connection.
        let connection = unsafe { slot.value_mut() }.expect("BUG: a lease without a connection");
        (connection, Interruption { slot, waits: false })
    }

    /// The error for a use that was cancelled. `sent`: a part of it may have left this process.
    pub fn interrupted(&self, sent: bool) -> PoolClearedError {
        let address = self.0.core().address.clone();
        PoolClearedError { address, cause: None, interrupted: true, sent, never_ready: false }
    }

    /// Says what the connection is held for: counted in the time-out errors of load-balanced mode.
    pub fn pin_to(&mut self, purpose: Purpose) {
        self.0.pin_to(purpose);
    }

    /// Takes the connection out of the pool for good, without closing it: for a forked child, where nothing of the
    /// pool may be touched any more.
    #[allow(unsafe_code)]
    pub(crate) fn leak(self) -> Option<E::Connection> {
        let held = ManuallyDrop::new(self).0;
        // SAFETY: INV-1: the token is consumed, so nothing borrows the connection.
        unsafe { held.slot().replace(None) }
    }
}

#[allow(unsafe_code)]
impl<E: Environment> Deref for Lease<E> {
    type Target = E::Connection;

    #[inline]
    fn deref(&self) -> &E::Connection {
        // SAFETY: INV-1: we own the slot; the borrow is the token's.
        unsafe { self.0.slot().value_ref() }.expect("BUG: a lease without a connection")
    }
}

#[allow(unsafe_code)]
impl<E: Environment> DerefMut for Lease<E> {
    #[inline]
    fn deref_mut(&mut self) -> &mut E::Connection {
        // SAFETY: INV-1: we own the slot; the borrow is the token's, and exclusive.
        unsafe { self.0.slot().value_mut() }.expect("BUG: a lease without a connection")
    }
}

impl<E: Environment> Drop for Lease<E> {
    /// Checks the connection in.
    #[inline]
    fn drop(&mut self) {
        let core = self.0.core();
        // Where nobody listens and nothing is noted down, there is nothing to be done but to push.
        if !core.vetting && !core.environment.listens() {
            self.give_back::<true>();
        } else {
            self.give_back_and_tell();
        }
    }
}

impl<E: Environment> Lease<E> {
    /// Makes the connection available, or closes it, or has it drained. `PLAIN`: nothing is noted down about it.
    #[inline(always)]
    fn give_back<const PLAIN: bool>(&mut self) {
        let held = self.0;
        let core = held.core();
        let closed_on_panic = ClosedOnPanic(held);
        let condition = core.environment.condition(self);
        std::mem::forget(closed_on_panic);
        if !condition.is_reusable() {
            return held.not_reusable(condition);
        }
        if !PLAIN {
            held.end_use();
            held.unpin();
        }
        let stamp = held.slot().stamp();
        if stamp.interrupted {
            return held.retire(held.stale_reason(), false);
        }
        let shard = core.shard(core.environment.shard_hint());
        let is_current = || held.core().state.load().generation == stamp.generation;
        if !(PLAIN && shard.push_at_once(&core.slab, held.slot(), is_current)) {
            if mutant("return_that_fails_is_lost") {
                return;
            }
            held.touch();
            held.make_available();
        }
    }

    /// Gives the connection back, and delivers what that has brought about.
    ///
    /// `ConnectionCheckedIn` is emitted before the connection can be seen checked out again, or closed. It is delivered
    /// afterwards, so that a slow subscriber does not keep the connection from others.
    #[cold]
    fn give_back_and_tell(&mut self) {
        let held = self.0;
        let delivers = held.core().environment.listens().then(|| Delivers(Arc::clone(&held.shared_core())));
        self.give_back::<false>();
        drop(delivers);
    }
}

impl<E: Environment> Held<E> {
    /// Forgets what the connection was held for.
    pub(super) fn unpin(self) {
        if self.core().options.load_balanced {
            self.pin_to(Purpose::Operation);
        }
    }

    /// Notes what the connection is held for.
    fn pin_to(self, purpose: Purpose) {
        let core = self.core();
        let before = self.record_mut(|record| std::mem::replace(&mut record.purpose, purpose));
        core.count_pinned(purpose, 1);
        core.count_pinned(before, -1);
    }
}

/// Tells that the use of a connection is to be cancelled.
pub struct Interruption<'l, C> {
    slot: &'l Slot<C>,
    /// Whether a waker was left. What ends without waiting leaves none.
    waits: bool,
}

impl<C> Interruption<'_, C> {
    /// Whether the use is to be cancelled.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.slot.stamp().interrupted
    }

    /// Completes when the use is to be cancelled.
    #[inline]
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.waits = true;
        self.slot.poll_interrupted(context)
    }
}

impl<C> Drop for Interruption<'_, C> {
    /// Forgets whom to wake.
    #[inline]
    fn drop(&mut self) {
        if self.waits {
            discard(self.slot.take_waker());
        }
    }
}

impl<C> fmt::Debug for Interruption<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interruption").finish_non_exhaustive()
    }
}

impl<E: Environment> Core<E> {
    /// Hands free permits to those who wait, in their order, and closes drains for them where it is only their capacity that
    /// are missing.
    pub(super) fn serve_permits(self: &Arc<Self>) {
        if mutant("permits_are_not_served") {
            return;
        }
        let mut has_closed = false;
        loop {
            let claimed = {
                let mut queue = self.wait_list.lock();
                if queue.len(Lane::Waiters) == 0 {
                    break;
                }
                if let Err(counts) = self.capacity.admit_first(self.limits) {
                    drop(queue);
                    let is_wanted = counts.wants_a_drain_closed(self.limits) && !mutant("drains_are_not_closed");
                    if is_wanted && self.close_oldest_drain() {
                        has_closed = true;
                        continue;
                    }
                    break;
                }
                let claimed = queue.claim_first(Lane::Waiters).expect("BUG: a lane with a length and without a first");
                self.settle(&queue);
                claimed
            };
            wake(claimed.grant(Grant::Permit(Permit::new(self.clone()))));
        }
        // After all else, so that a slow subscriber does not keep the permit from others.
        if has_closed && self.environment.listens() {
            self.environment.deliver();
        }
    }

    /// A connection is gone, or an establishment has succeeded: there may be another to open towards `minPoolSize`.
    pub(super) fn schedule_population(&self) {
        if self.options.min_pool_size > 0 {
            self.environment.schedule_maintenance();
        } else {
            self.schedule_if_closed();
        }
    }

    /// A connection is gone: in a closed pool, there may be none left at all. To be called after its capacity was given
    /// back: `Capacity::order_releases` tells why the phase that is read here is not too old.
    pub(super) fn schedule_if_closed(&self) {
        if self.state.load().phase == Phase::Closed {
            self.environment.schedule_maintenance();
        }
    }

    fn count_pinned(&self, purpose: Purpose, change: i32) {
        let count = match purpose {
            Purpose::Operation => return,
            Purpose::Cursor => &self.pinned[0],
            Purpose::Transaction => &self.pinned[1],
        };
        // Relaxed: a statistic.
        count.fetch_add(change as u32, StatisticOrdering::Relaxed);
    }
}

macro_rules! debug_as_id {
    ($($token:ident)*) => {$(
        impl<E: Environment> fmt::Debug for $token<E> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($token)).field("id", &self.id()).finish_non_exhaustive()
            }
        }
    )*};
}

debug_as_id!(Pending Idle Lease);
