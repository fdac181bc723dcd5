//! Room for one plain value in front of a slower store: a cache of one place, without locks and without `unsafe`.
//!
//! Like a slot of [`Slots`](super::Slots), the value consists of atomics that are accessed with relaxed orderings, and
//! only by the thread that holds the room. A thread holds it for a few loads and stores. Another one that comes meanwhile
//! goes to the slower store instead of waiting, so an operation has a bounded number of steps.

use super::atomic::{AtomicU32, Ordering};
use super::unless_mutant;

/// No value.
const EMPTY: u32 = 0;
/// A thread reads or writes the value.
const HELD: u32 = 1;
/// A value.
const FULL: u32 = 2;

/// The room.
#[derive(Debug)]
pub struct Front<T> {
    state: AtomicU32,
    value: T,
}

/// What became of a value that was put to the front.
#[derive(Debug)]
pub enum Placed<R> {
    /// It is there.
    Alone,
    /// It is there, and this is what was there before.
    Displaced(R),
    /// It is not there, because another thread holds the room.
    Refused,
}

impl<T: Default> Front<T> {
    /// Makes an empty room.
    #[allow(clippy::new_without_default, reason = "nothing needs it; public only in the models' build")]
    pub fn new() -> Self {
        Self { state: AtomicU32::new(EMPTY), value: T::default() }
    }

    /// Takes the value out with `read`, if there is one.
    #[inline]
    pub fn take<R>(&self, read: impl FnOnce(&T) -> R) -> Option<R> {
        if !self.hold(FULL) {
            return None;
        }
        let taken = read(&self.value);
        self.release(EMPTY);
        Some(taken)
    }

    /// Puts a value there with `write`. What was there before is taken out with `read`.
    #[inline]
    pub fn put<R>(&self, write: impl FnOnce(&T), read: impl FnOnce(&T) -> R) -> Placed<R> {
        let placed = if self.hold(EMPTY) {
            Placed::Alone
        } else if self.hold(FULL) {
            Placed::Displaced(read(&self.value))
        } else {
            return Placed::Refused;
        };
        write(&self.value);
        self.release(FULL);
        placed
    }

    /// Holds the room, if it is in this state.
    #[inline]
    fn hold(&self, state: u32) -> bool {
        // Relaxed: only a check, which costs less than an exchange that fails.
        if self.state.load(Ordering::Relaxed) != state {
            return false;
        }
        // ORD: Acquire; pairs with the Release in `release`; makes the last holder's writes visible, and keeps this
        // holder's writes behind the last one's reads.
        let order = unless_mutant("front_acquires_nothing", Ordering::Acquire);
        self.state.compare_exchange(state, HELD, order, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn release(&self, state: u32) {
        // ORD: Release; pairs with the Acquire in `hold`.
        self.state.store(state, unless_mutant("front_publishes_nothing", Ordering::Release));
    }
}
