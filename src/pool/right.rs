//! The right to open a connection, in the hands of two.

use super::environment::Environment;
use super::tokens::Permit;
use crate::sync::{Mutex, mutant};

/// A [`Permit`] that a check-out shares with the task that is to open: it belongs to the first of them that takes it.
///
/// The task takes it to open a connection. The check-out takes it when another connection has come, and drops it, so that
/// the next in the queue gets the right. A permit that neither takes is dropped with the last reference.
pub struct SharedPermit<E: Environment>(Mutex<Option<Permit<E>>>);

impl<E: Environment> SharedPermit<E> {
    /// Shares a permit.
    pub fn new(permit: Permit<E>) -> Self {
        Self(Mutex::new(Some(permit)))
    }

    /// Takes the permit, unless it was taken before.
    pub fn take(&self) -> Option<Permit<E>> {
        if mutant("shared_permit_stays") {
            return None;
        }
        let taken = self.0.lock().take();
        if mutant("shared_permit_is_lost") {
            std::mem::forget(taken);
            return None;
        }
        taken
    }
}
