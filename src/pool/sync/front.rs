//! Room for one plain value in front of a slower store: a cache for a single value, without locks and without `unsafe`.
//!
//! As in [`Slots`](super::Slots), the value consists of relaxed atomics, and only the thread that holds the room
//! accesses them. A thread holds the room only for a few loads and stores. During that time, other threads use the
//! slower store instead of waiting, so an operation takes a bounded number of steps.

use super::atomic::{AtomicU32, Ordering};
use super::unless_mutant;

const EMPTY: u32 = 0;
/// A thread is reading or writing the value.
const HELD: u32 = 1;
const FULL: u32 = 2;

/// Room for one value.
#[derive(Debug)]
pub struct Front<T> {
    state: AtomicU32,
    value: T,
}

/// The outcome of [`Front::put`].
#[derive(Debug)]
pub enum Placed<R> {
    /// The value was stored in the empty room.
    Alone,
    /// The value was stored, and replaced this earlier value.
    Replaced(R),
    /// The value was not stored, because another thread holds the room.
    Refused,
}

impl<T: Default> Front<T> {
    /// Creates an empty room.
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

    /// Stores a value with `write`. An earlier value is first taken out with `read`.
    #[inline]
    pub fn put<R>(&self, write: impl FnOnce(&T), read: impl FnOnce(&T) -> R) -> Placed<R> {
        let placed = if self.hold(EMPTY) {
            Placed::Alone
        } else if self.hold(FULL) {
            Placed::Replaced(read(&self.value))
        } else {
            return Placed::Refused;
        };
        write(&self.value);
        self.release(FULL);
        placed
    }

    /// Takes hold of the room if it is in this state. Returns whether this succeeded.
    #[inline]
    fn hold(&self, state: u32) -> bool {
        // Relaxed: only a check, which costs less than a failed compare-and-swap.
        if self.state.load(Ordering::Relaxed) != state {
            return false;
        }
        // ORD: Acquire; pairs with the Release in `release`; makes the last holder's writes visible, and orders this
        // holder's writes after the last holder's reads.
        let order = unless_mutant("front_acquires_nothing", Ordering::Acquire);
        self.state.compare_exchange(state, HELD, order, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn release(&self, state: u32) {
        // ORD: Release; pairs with the Acquire in `hold`.
        self.state.store(state, unless_mutant("front_publishes_nothing", Ordering::Release));
    }
}
