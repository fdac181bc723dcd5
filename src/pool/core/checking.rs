//! Checking an available connection before use.

use std::fmt;
use std::mem::ManuallyDrop;

use super::close_error::CloseError;
use super::core::Core;
use super::environment::{COARSE_TICK, Environment};
use super::held::Held;
use super::tokens::{CountsAs, Idle};
use crate::pool::error::Cause;
use crate::pool::event::ConnectionClosedReason;
use crate::pool::options::CheckBeforeUse;

/// An available connection that is being checked for the check-out that took it.
///
/// Dropping it closes the connection with the reason "error", because a check that has not passed may have left an
/// unfinished exchange on the connection.
#[must_use = "dropping it closes the connection"]
pub struct Checking<E: Environment> {
    held: Held<E>,
    error: Option<CloseError>,
}

impl CheckBeforeUse {
    /// Returns the number of coarse-clock ticks after which an idle connection is due for a check.
    ///
    /// This is one tick less than the given time, because the clock may be almost one tick late.
    fn ticks(self) -> u32 {
        match self {
            Self::Never => u32::MAX,
            Self::Always => 0,
            Self::IdleLongerThan(time) => {
                let ticks = time.as_millis() / COARSE_TICK.as_millis();
                u32::try_from(ticks).unwrap_or(u32::MAX).saturating_sub(1)
            }
        }
    }
}

impl<E: Environment> Core<E> {
    /// Returns the number of coarse-clock ticks after which an idle connection is due for a check.
    pub(super) fn ticks_before_check(policy: Option<CheckBeforeUse>) -> u32 {
        if E::CHECKS { policy.unwrap_or(CheckBeforeUse::DEFAULT).ticks() } else { CheckBeforeUse::Never.ticks() }
    }
}

impl<E: Environment> Held<E> {
    /// Records the current tick as the time at which the connection became available.
    #[inline]
    pub(super) fn note_idle(&self) {
        if E::CHECKS {
            self.slot().set_idle_since(self.core().environment.coarse());
        }
    }

    /// Returns whether the connection has been available so long that it must be checked before its next use.
    #[inline]
    pub(super) fn needs_check(&self) -> bool {
        // The subtraction saturates, because the thread that checked the connection in may have read a later tick.
        E::CHECKS
            && self.core().environment.coarse().saturating_sub(self.slot().idle_since()) >= self.core().check_after
    }
}

impl<E: Environment> Idle<E> {
    /// Returns whether the connection must be [checked](Self::begin_check) before use.
    #[inline]
    pub fn needs_check(&self) -> bool {
        self.held().needs_check()
    }

    /// Begins checking the connection.
    pub fn begin_check(self) -> Checking<E> {
        Checking { held: ManuallyDrop::new(self).held(), error: None }
    }
}

impl<E: Environment> Checking<E> {
    /// Returns the connection, and a function that tells whether the check has become pointless. The check becomes
    /// pointless if the pool or the connection's service is cleared, or if the pool is closed.
    #[allow(unsafe_code)]
    pub fn connection(&mut self) -> (&mut E::Connection, impl Fn() -> bool) {
        let held = self.held;
        // SAFETY: INV-1: we own the slot. The borrow lasts as long as the exclusive borrow of the token. The function
        // does not touch the connection.
        let connection = unsafe { self.held.slot().value_mut() }.expect("BUG: a check without its connection");
        (connection, move || held.is_stale())
    }

    /// Ends a check that the connection has passed.
    pub fn pass(self) -> Idle<E> {
        let held = ManuallyDrop::new(self).held;
        held.note_idle();
        held.into_idle()
    }

    /// Records why the connection failed the check. The connection is closed when the token is dropped.
    pub fn fail(mut self, cause: Cause) -> Self {
        self.error = Some(CloseError::CheckFailed(cause));
        self
    }

    /// Records that the check panicked. The connection is closed when the token is dropped.
    pub fn fail_by_panic(mut self) -> Self {
        self.error = Some(CloseError::Panicked);
        self
    }
}

impl<E: Environment> Drop for Checking<E> {
    fn drop(&mut self) {
        let held = self.held;
        // As when an `Idle` is dropped, the accounting may have mistaken the connection for one in use.
        held.end_hold();
        if held.is_stale() {
            return held.retire_stale();
        }
        let error = held.explained(self.error.take().unwrap_or(CloseError::CheckGivenUp));
        held.close(ConnectionClosedReason::Error, error, CountsAs::Established);
    }
}

impl<E: Environment> fmt::Debug for Checking<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checking").field("id", &self.held.id()).field("error", &self.error).finish_non_exhaustive()
    }
}
