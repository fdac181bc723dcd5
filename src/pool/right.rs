//! The right to open a connection, in the hands of two.

use super::environment::Environment;
use super::tokens::Place;
use crate::sync::{Mutex, mutant};

/// A [`Place`] that a check-out shares with the task that is to open: it belongs to the first of them that takes it.
///
/// The task takes it to open a connection. The check-out takes it when another connection has come, and drops it, so that
/// the next in the queue gets the right. A place that neither takes is dropped with the last reference.
pub struct SharedPlace<E: Environment>(Mutex<Option<Place<E>>>);

impl<E: Environment> SharedPlace<E> {
    /// Shares a place.
    pub fn new(place: Place<E>) -> Self {
        Self(Mutex::new(Some(place)))
    }

    /// Takes the place, unless it was taken before.
    pub fn take(&self) -> Option<Place<E>> {
        if mutant("shared_place_stays") {
            return None;
        }
        let taken = self.0.lock().take();
        if mutant("shared_place_is_lost") {
            std::mem::forget(taken);
            return None;
        }
        taken
    }
}
