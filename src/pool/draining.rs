//! Drains: what becomes of a connection that is checked in and cannot be reused as it is.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::core::Core;
use super::drain_queue::Ticket;
use super::environment::Environment;
use super::fault::Fault;
use super::held::{ClosedOnPanic, Held};
use super::services::Membership;
use crate::condition::Condition;

impl<E: Environment> Held<E> {
    /// Disposes of a connection that cannot be reused as it is.
    #[cold]
    #[inline(never)]
    pub(super) fn not_reusable(self, condition: Condition) {
        self.unpin();
        match condition {
            Condition::NeedsDrain if !self.is_stale() => self.drain(),
            // A stale connection could not be used again, even after a drain.
            Condition::NeedsDrain => self.close_after_use(self.stale_reason()),
            Condition::Reusable | Condition::Broken => self.close_because(Fault::Unusable),
        }
    }

    /// Has the environment bring to its end what the connection's user left undone. If a check-out waits for the
    /// capacity, the oldest drain is closed first. If that is this one, there is nothing left to drain.
    #[allow(unsafe_code)]
    fn drain(self) {
        let core = Arc::clone(&self.shared_core());
        // SAFETY: INV-1: the token is consumed, so nothing borrows the connection.
        let connection = unsafe { self.slot().replace(None) };
        let (id, generation) = (self.id(), self.generation());
        let membership = self.record(|record| record.membership.clone());
        // From here on the slot is the registry's.
        let (ticket, is_wanted) = core.enter_drain(self);
        if is_wanted {
            core.serve_permits();
        }
        let draining = Draining { ticket, connection, id, generation, membership, core: Arc::clone(&core) };
        // The drain that was closed need not be this one.
        if !(is_wanted && draining.is_over()) {
            core.environment.drain(draining);
        }
    }
}

/// A connection that came back with something undone, and is checked in only after that was brought to its end.
///
/// Until then the connection counts as in use. Dropping the token judges the connection once more: it becomes available
/// if it can be reused now, and is closed otherwise. A check-out that waits for the capacity may close it earlier.
/// Dropping the token then only disposes of the connection.
#[must_use = "dropping it closes the connection, unless it has been drained"]
pub struct Draining<E: Environment> {
    /// The drain whose slot this is, as long as the registry has it.
    ticket: Ticket,
    /// Taken only by `drop`, `close` and `leak`.
    connection: Option<E::Connection>,
    id: u64,
    /// The pool's generation when the connection was created.
    generation: u64,
    /// The service that the connection belongs to, in load-balanced mode.
    membership: Option<Membership>,
    core: Arc<Core<E>>,
}

impl<E: Environment> Draining<E> {
    /// Returns the connection's number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the environment of the pool that the connection belongs to.
    pub fn environment(&self) -> &E {
        &self.core.environment
    }

    /// Returns the pool's core, for a task that outlives the connection.
    pub(crate) fn core(&self) -> Arc<Core<E>> {
        Arc::clone(&self.core)
    }

    /// Returns the connection, and a value that tells when draining it has become useless.
    pub fn revocable(&mut self) -> (&mut E::Connection, Revocation<'_, E>) {
        let Self { ticket, connection, generation, membership, core, .. } = self;
        let connection = connection.as_mut().expect("BUG: a drain without its connection");
        (connection, Revocation { ticket: *ticket, generation: *generation, membership, core })
    }

    /// Closes the connection with the reason "error", even if it looks reusable: the code that was to drain it
    /// panicked.
    pub fn close(mut self) {
        if let Some(held) = self.claim() {
            self.core.measures.drains.failed.count();
            held.close_because(Fault::Panicked);
        }
    }

    /// Takes the connection out of the pool for good, as [`Lease::leak`](super::Lease::leak) does.
    pub(crate) fn leak(self) -> Option<E::Connection> {
        // All else stays where it is: a forked child touches nothing of the pool.
        std::mem::ManuallyDrop::new(self).connection.take()
    }

    /// Returns whether the connection was closed for its capacity.
    fn is_over(&self) -> bool {
        self.core.is_drain_closed(self.ticket)
    }

    /// Puts the connection back into its slot, which is then the caller's. Returns `None` if the connection was closed
    /// for its capacity, in which case it is disposed of, or if it was already taken.
    #[allow(unsafe_code)]
    fn claim(&mut self) -> Option<Held<E>> {
        let connection = self.connection.take()?;
        let Some(held) = self.core.claim_drain(self.ticket) else {
            self.core.environment.dispose(connection, None);
            return None;
        };
        // SAFETY: INV-1: the claim made the slot ours, and it is empty.
        unsafe { held.slot().replace(Some(connection)) };
        Some(held)
    }
}

impl<E: Environment> Drop for Draining<E> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let Some(held) = self.claim() else { return };
        let ends = &self.core.measures.drains;
        if held.is_stale() {
            ends.given_up.count();
            return held.close_after_use(held.stale_reason());
        }
        let closed_on_panic = FailedOnPanic(ClosedOnPanic(held));
        // SAFETY: INV-1: the slot is ours, and nothing else borrows the connection.
        let connection = unsafe { held.slot().value_mut() }.expect("BUG: a drain without its connection");
        let condition = self.core.environment.condition(connection);
        std::mem::forget(closed_on_panic);
        if !condition.is_reusable() {
            ends.failed.count();
            return held.close_because(Fault::Unusable);
        }
        ends.reused.count();
        held.end_use();
        held.touch();
        held.make_available();
    }
}

/// Counts a drain as failed and closes its connection, if the code that judges the connection panics.
struct FailedOnPanic<E: Environment>(ClosedOnPanic<E>);

impl<E: Environment> Drop for FailedOnPanic<E> {
    fn drop(&mut self) {
        self.0.0.core().measures.drains.failed.count();
    }
}

/// Tells when draining a connection has become useless.
pub struct Revocation<'u, E: Environment> {
    ticket: Ticket,
    generation: u64,
    membership: &'u Option<Membership>,
    core: &'u Arc<Core<E>>,
}

impl<E: Environment> Revocation<'_, E> {
    /// Returns whether the pool has been cleared or closed since the connection was created. The connection will then
    /// be closed in any case.
    pub fn is_stale(&self) -> bool {
        self.generation != self.core.state.load().generation
            || self.membership.as_ref().is_some_and(Membership::is_stale)
    }

    /// Completes when the connection was closed for its capacity, which a check-out then has. Takes the registry's
    /// lock.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        self.core.poll_drain_closed(self.ticket, context)
    }
}

impl<E: Environment> fmt::Debug for Draining<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draining").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl<E: Environment> fmt::Debug for Revocation<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Revocation").field("is_stale", &self.is_stale()).finish_non_exhaustive()
    }
}
