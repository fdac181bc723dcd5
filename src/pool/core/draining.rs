//! Drains of connections that are checked in and cannot be reused as they are.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::close_error::CloseError;
use super::core::Core;
use super::drain_queue::{DrainNumber, Left};
use super::environment::Environment;
use super::held::{ClosedOnPanic, Held};
use crate::pool::condition::Condition;
use crate::pool::event::ConnectionClosedReason;

impl<E: Environment> Held<E> {
    /// Drains a connection that cannot be reused as it is, or closes it.
    #[cold]
    #[inline(never)]
    pub(super) fn drain_or_retire(self, condition: Condition) {
        self.unpin();
        match condition {
            Condition::NeedsDrain if !self.is_stale() => self.drain(),
            Condition::NeedsDrain => {
                // A stale connection could not be used again, even after a drain.
                self.end_use();
                self.retire_stale();
            }
            Condition::Reusable | Condition::Broken => self.retire_because(CloseError::Unusable),
        }
    }

    /// Makes the environment complete the work that the connection's user left unfinished. If a check-out is waiting
    /// for capacity, the oldest drain is displaced first. If this drain itself is displaced, there is nothing left to
    /// do.
    fn drain(self) {
        let core = Arc::clone(&self.shared_core());
        let (number, is_wanted) = core.enter_drain(&self);
        let draining = Draining { number, held: self };
        if is_wanted {
            core.serve_permits();
        }
        // The call may have displaced a different drain, or no drain at all.
        if !(is_wanted && core.is_displaced(number)) {
            core.environment.drain(draining);
        }
    }
}

/// A connection that was checked in with unfinished work. It becomes available once a drain has completed that work.
///
/// Until then, the connection counts as in use. When the token is dropped, the connection is judged again: it becomes
/// available if it can now be reused, and is closed if it cannot be reused, has expired, or was displaced.
#[must_use = "dropping it closes the connection, unless it has been drained"]
pub struct Draining<E: Environment> {
    number: DrainNumber,
    held: Held<E>,
}

impl<E: Environment> Draining<E> {
    /// Returns the connection's number.
    pub fn id(&self) -> u64 {
        self.held.id()
    }

    /// Returns the environment of the pool that the connection belongs to.
    pub fn environment(&self) -> &E {
        &self.held.core().environment
    }

    /// Returns the pool's core, for a task that outlives the connection.
    pub(crate) fn core(&self) -> Arc<Core<E>> {
        Arc::clone(&self.held.shared_core())
    }

    /// Returns the connection, and a value that reports when the drain has become pointless.
    #[allow(unsafe_code)]
    pub fn revocable(&mut self) -> (&mut E::Connection, Revocation<'_, E>) {
        let Self { number, held } = self;
        let revocation = Revocation { number: *number, held: *held, draining: PhantomData };
        // SAFETY: INV-1: we own the slot. The borrow lasts as long as the exclusive borrow of the token, and the
        // revocation does not touch the connection.
        let connection = unsafe { held.slot().value_mut() };
        (connection.expect("BUG: a drain without its connection"), revocation)
    }

    /// Closes the connection with the reason "error", even if it looks reusable, because the code that drained it
    /// panicked.
    pub fn close(self) {
        let held = ManuallyDrop::new(self).leave();
        if let Some(held) = held {
            held.core().measures.drains.failed.count();
            held.retire_because(CloseError::Panicked);
        }
    }

    /// Ends the drain. Returns the connection, or closes it if the drain was displaced. The caller must not use the
    /// token again.
    fn leave(&self) -> Option<Held<E>> {
        let (held, core) = (self.held, self.held.core());
        match core.leave_drains(self.number) {
            Left::Ended => Some(held),
            Left::Displaced => {
                core.measures.drains.displaced.count();
                held.retire_displaced();
                None
            }
        }
    }
}

impl<E: Environment> Drop for Draining<E> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        if self.environment().is_inherited() {
            return self.held.abandon();
        }
        let Some(held) = self.leave() else { return };
        let ends = &held.core().measures.drains;
        if held.is_stale() {
            ends.given_up.count();
            held.end_use();
            return held.retire_stale();
        }
        let closed_on_panic = FailedOnPanic(ClosedOnPanic(held));
        // SAFETY: INV-1: the slot is ours, and nothing else borrows the connection.
        let connection = unsafe { held.slot().value_mut() }.expect("BUG: a drain without its connection");
        let condition = held.core().environment.condition(connection);
        std::mem::forget(closed_on_panic);
        if !condition.is_reusable() {
            ends.failed.count();
            return held.retire_because(CloseError::Unusable);
        }
        ends.reused.count();
        held.end_use();
        if held.core().gives_up_as_expired(held) {
            return held.retire(ConnectionClosedReason::Idle);
        }
        held.touch();
        held.make_available(held.core().preferred_shard());
    }
}

/// Counts a drain as failed and closes its connection, if the code that judges the connection panics.
struct FailedOnPanic<E: Environment>(ClosedOnPanic<E>);

impl<E: Environment> Drop for FailedOnPanic<E> {
    fn drop(&mut self) {
        self.0.0.core().measures.drains.failed.count();
    }
}

/// Reports when draining a connection has become pointless.
pub struct Revocation<'u, E: Environment> {
    number: DrainNumber,
    held: Held<E>,
    draining: PhantomData<&'u ()>,
}

impl<E: Environment> Revocation<'_, E> {
    /// Returns whether the pool has been cleared or closed since the connection was created. The connection will then
    /// be closed, whatever the outcome of the drain.
    pub fn is_stale(&self) -> bool {
        self.held.is_stale()
    }

    /// Completes when the drain is displaced because a check-out is waiting for the connection's capacity. Takes the
    /// registry's lock.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        self.held.core().poll_displaced(self.number, context)
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
