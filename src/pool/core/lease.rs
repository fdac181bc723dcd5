//! The use of a connection: the lease, its check-in, and its interruption.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::task::{Context, Poll};

use super::core::Core;
use super::environment::Environment;
use super::held::{ClosedOnPanic, Held};
use super::pinning::Purpose;
use super::shard::Shard;
use super::slab::Slot;
use crate::pool::condition::Condition;
use crate::pool::error::PoolClearedError;
use crate::pool::event::ConnectionClosedReason;
use crate::pool::service_id::ServiceId;
use crate::pool::sync::discard;

/// A connection that is checked out. Dropping the lease checks the connection in.
#[must_use = "dropping it checks the connection in"]
pub struct Lease<E: Environment>(Held<E>);

// SAFETY: a shared lease gives shared access to the connection, and otherwise only reads.
#[allow(unsafe_code)]
unsafe impl<E: Environment<Connection: Sync>> Sync for Lease<E> {}

impl<E: Environment> Lease<E> {
    /// Creates the token for a caller that owns an established connection.
    #[inline]
    pub(super) fn of(held: Held<E>) -> Self {
        Self(held)
    }

    #[inline]
    pub(super) fn held(&self) -> Held<E> {
        self.0
    }

    /// Records the time at which a timed use begins.
    #[inline]
    pub(super) fn begin_timed_use(&self) {
        self.0.begin_timed_use();
    }

    /// Returns the connection's number.
    pub fn id(&self) -> u64 {
        self.0.id()
    }

    /// Returns the pool's generation when the connection was created.
    pub fn generation(&self) -> u64 {
        self.0.generation()
    }

    /// Returns the service that the connection belongs to, and the service's generation when the connection was
    /// identified, in load-balanced mode.
    pub fn service(&self) -> Option<(ServiceId, u64)> {
        self.0.service()
    }

    /// Returns the pool's address.
    pub fn address(&self) -> &Arc<str> {
        &self.0.core().address
    }

    /// Returns the environment of the pool that the connection belongs to.
    pub fn environment(&self) -> &E {
        &self.0.core().environment
    }

    /// Returns whether this pool created the connection.
    pub fn belongs_to(&self, core: &Arc<Core<E>>) -> bool {
        std::ptr::eq(self.0.core_pointer(), Arc::as_ptr(core))
    }

    /// Returns whether the pool, or the connection's service, has been cleared or closed since the connection was
    /// created.
    pub fn is_stale(&self) -> bool {
        self.0.is_stale()
    }

    /// Returns whether the connection's use should be cancelled.
    pub fn is_interrupted(&self) -> bool {
        self.0.slot().stamp().interrupted
    }

    /// Returns the connection, and a value that reports when its use should be cancelled.
    #[allow(unsafe_code)]
    pub fn interruptible(&mut self) -> (&mut E::Connection, Interruption<'_, E::Connection>) {
        let slot = self.0.slot();
        // SAFETY: INV-1: we own the slot. The borrow lasts as long as the exclusive borrow of the token. An
        // `Interruption` gives no access to the connection.
        let connection = unsafe { slot.value_mut() }.expect("BUG: the lease has no connection");
        (connection, Interruption { slot, waits: false })
    }

    /// Returns the error for a use that was cancelled. `sent` says whether any part of the request may have left this
    /// process.
    pub fn interrupted(&self, sent: bool) -> PoolClearedError {
        let address = self.0.core().address.clone();
        PoolClearedError { address, cause: None, interrupted: true, sent, never_ready: false }
    }

    /// Sets the purpose for which the connection is held. Timeout errors in load-balanced mode count connections by
    /// purpose.
    pub fn pin_to(&mut self, purpose: Purpose) {
        self.0.pin_to(purpose);
        self.0.note_purpose(purpose);
    }
}

#[allow(unsafe_code)]
impl<E: Environment> Deref for Lease<E> {
    type Target = E::Connection;

    #[inline]
    fn deref(&self) -> &E::Connection {
        // SAFETY: INV-1: we own the slot. The borrow lasts as long as the borrow of the token.
        unsafe { self.0.slot().value_ref() }.expect("BUG: the lease has no connection")
    }
}

#[allow(unsafe_code)]
impl<E: Environment> DerefMut for Lease<E> {
    #[inline]
    fn deref_mut(&mut self) -> &mut E::Connection {
        // SAFETY: INV-1: we own the slot. The borrow lasts as long as the exclusive borrow of the token.
        unsafe { self.0.slot().value_mut() }.expect("BUG: the lease has no connection")
    }
}

impl<E: Environment> Drop for Lease<E> {
    /// Checks the connection in. In a forked child, gives up a connection that belongs to the parent (INV-16). A fork
    /// during the call counts as happening after it.
    #[inline(always)]
    fn drop(&mut self) {
        let held = self.0;
        match held.core().nearby_shard() {
            Some(shard) => self.check_in(shard),
            None => check_in_elsewhere(held),
        }
    }
}

impl<E: Environment> Lease<E> {
    /// Checks the connection in. If it is pushed, it goes onto this shard if possible.
    #[inline(always)]
    fn check_in(&mut self, shard: &Shard) {
        let held = self.0;
        let is_timed = E::METERED && held.slot().tally().is_timed();
        if !held.core().attention.is_needed() && !is_timed {
            self.check_in_plainly(shard);
        } else {
            check_in_at_length(held);
        }
    }

    /// Checks the connection in without recording or emitting anything.
    ///
    /// The shortest path makes no calls. On the other paths, every call is the last step, as in [`Core::try_hit`].
    #[inline(always)]
    fn check_in_plainly(&mut self, shard: &Shard) {
        let held = self.0;
        let condition = self.condition();
        if !condition.is_reusable() {
            return held.drain_or_retire(condition);
        }
        held.note_idle();
        if !held.put_back(shard) {
            held.push(shard);
        }
    }

    /// Asks the environment for the connection's condition, and closes the connection if the environment panics.
    #[inline(always)]
    fn condition(&mut self) -> Condition {
        let held = self.0;
        // This comes before the guard, so that nothing has to be undone if there is no connection.
        let connection = &mut **self;
        let closed_on_panic = ClosedOnPanic(held);
        let condition = held.core().environment.condition(connection);
        std::mem::forget(closed_on_panic);
        condition
    }
}

/// Checks a connection in on a thread that last used another pool, or in a forked child.
#[inline(never)]
fn check_in_elsewhere<E: Environment>(held: Held<E>) {
    let core = held.core();
    if core.environment.is_inherited() {
        held.abandon();
    } else {
        ManuallyDrop::new(Lease(held)).check_in(core.own_shard());
    }
}

/// Ends a timed use, tells the subscribers, and makes the connection available.
///
/// `ConnectionCheckedIn` is delivered before the connection can be seen checked out again or closed. So a slow
/// subscriber keeps the connection from other callers, and none of the connection's events overtakes another.
#[cold]
#[inline(never)]
fn check_in_at_length<E: Environment>(held: Held<E>) {
    let mut lease = ManuallyDrop::new(Lease(held));
    if E::METERED && held.slot().tally().is_timed() {
        held.end_timed_use();
    }
    let shard = held.core().own_shard();
    if !held.core().attention.is_needed() {
        return lease.check_in_plainly(shard);
    }
    held.end_hold();
    let condition = lease.condition();
    if !condition.is_reusable() {
        return held.drain_or_retire(condition);
    }
    held.end_use();
    held.unpin();
    if held.slot().stamp().interrupted {
        return held.retire_stale();
    }
    if held.core().gives_up_as_expired(held) {
        return match held.is_stale() {
            true => held.retire_stale(),
            false => held.retire(ConnectionClosedReason::Idle),
        };
    }
    held.touch();
    held.make_available(shard);
}

impl<E: Environment> fmt::Debug for Lease<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// Reports when the use of a connection should be cancelled.
pub struct Interruption<'l, C> {
    slot: &'l Slot<C>,
    /// Whether a waker was left in the slot. A use that ends without waiting does not leave a waker.
    waits: bool,
}

impl<C> Interruption<'_, C> {
    /// Returns whether the use should be cancelled.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.slot.stamp().interrupted
    }

    /// Completes when the use should be cancelled.
    #[inline]
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.waits = true;
        self.slot.poll_interrupted(context)
    }
}

impl<C> Drop for Interruption<'_, C> {
    /// Takes the waker back.
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
