//! What becomes of a connection that is checked in and not good for the next.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::core::Core;
use super::held::Held;
use super::host::{Fit, Host};
use crate::event::ConnectionClosedReason;
use crate::sync::mutant;

impl<C: Send + 'static, H: Host<C>> Held<C, H> {
    /// Disposes of a connection that cannot be used by the next as it is.
    #[cold]
    pub(super) fn not_good(self, fit: Fit) {
        match fit {
            // Nobody could use it anyway.
            Fit::Unfinished if self.is_stale() => self.retire(self.stale_reason(), false),
            Fit::Unfinished => {
                if mutant("unfinished_is_available_too") {
                    self.make_available();
                }
                self.core().host.recover(Unfinished(self));
            }
            Fit::Good | Fit::Broken => self.retire(ConnectionClosedReason::Error, false),
        }
    }

    /// Whether the pool has been cleared or closed since the connection was created.
    #[inline]
    pub(super) fn is_stale(self) -> bool {
        self.generation() != self.core().state.load().generation || self.is_stale_member()
    }
}

/// A connection that was checked in in the middle of something, and counts as in use until that has been brought to an
/// end. Dropping it judges it once more: it becomes available if it is good by now, and else is closed.
#[must_use = "dropping it closes the connection, unless it has recovered"]
pub struct Unfinished<C: Send + 'static, H: Host<C>>(Held<C, H>);

impl<C: Send + 'static, H: Host<C>> Unfinished<C, H> {
    /// The connection's number.
    pub fn id(&self) -> u64 {
        self.0.id()
    }

    /// The world around the pool that the connection belongs to.
    pub fn host(&self) -> &H {
        &self.0.core().host
    }

    /// The pool's core, for whoever must outlive the connection.
    pub(crate) fn core(&self) -> Arc<Core<C, H>> {
        Arc::clone(&self.0.shared_core())
    }

    /// The connection, and what tells meanwhile whether it has become stale.
    #[allow(unsafe_code)]
    pub fn recoverable(&mut self) -> (&mut C, Staleness<'_, C, H>) {
        // SAFETY: INV-1: we own the slot; the borrow is the token's, and exclusive. A `Staleness` does not lead to the
        // connection.
        let connection = unsafe { self.0.slot().value_mut() }.expect("BUG: an unfinished connection is not there");
        (connection, Staleness { held: self.0, token: PhantomData })
    }

    /// Closes the connection with the reason "error", however good it looks.
    pub fn close(self) {
        ManuallyDrop::new(self).0.retire(ConnectionClosedReason::Error, false);
    }

    /// Takes the connection out of the pool for good, as [`Lease::leak`](super::Lease::leak) does.
    #[allow(unsafe_code)]
    pub(crate) fn leak(self) -> Option<C> {
        let held = ManuallyDrop::new(self).0;
        // SAFETY: INV-1: the token is consumed, so nothing borrows the connection.
        unsafe { held.slot().replace(None) }
    }
}

/// Tells whether an unfinished connection has become stale.
pub struct Staleness<'u, C: Send + 'static, H: Host<C>> {
    held: Held<C, H>,
    token: PhantomData<&'u ()>,
}

impl<C: Send + 'static, H: Host<C>> Staleness<'_, C, H> {
    /// Whether the pool has been cleared or closed since the connection was created, so that it will be closed whatever
    /// becomes of it.
    pub fn is_stale(&self) -> bool {
        self.held.is_stale()
    }
}

impl<C: Send + 'static, H: Host<C>> Drop for Unfinished<C, H> {
    fn drop(&mut self) {
        let held = self.0;
        if held.is_stale() {
            return held.retire(held.stale_reason(), false);
        }
        let closed_on_panic = ClosedOnPanic(held);
        let fit = held.core().host.fit(self.recoverable().0);
        std::mem::forget(closed_on_panic);
        if fit != Fit::Good {
            return held.retire(ConnectionClosedReason::Error, false);
        }
        held.touch();
        if !mutant("recovered_is_kept") {
            held.make_available();
        }
    }
}

/// Closes a connection that cannot be judged, because the judge panics: it would be lost, and its place with it.
pub(super) struct ClosedOnPanic<C: Send + 'static, H: Host<C>>(pub(super) Held<C, H>);

impl<C: Send + 'static, H: Host<C>> Drop for ClosedOnPanic<C, H> {
    fn drop(&mut self) {
        self.0.retire(ConnectionClosedReason::Error, false);
    }
}

impl<C: Send + 'static, H: Host<C>> fmt::Debug for Unfinished<C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unfinished").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl<C: Send + 'static, H: Host<C>> fmt::Debug for Staleness<'_, C, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staleness").field("is_stale", &self.is_stale()).finish_non_exhaustive()
    }
}
