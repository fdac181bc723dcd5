//! Tracks whether a thread is inside a subscriber.

use std::cell::Cell;

use crate::pool::sync::thread_local;

/// A thread's outermost delivery, and the embargo on events that were emitted inside it. A thread delivers inline only
/// while it is outside all subscribers, so only its outermost delivery can be inline.
struct Nesting {
    /// [`OUTSIDE`], [`FROM_A_QUEUE`], or the address of the delivery whose event this thread is delivering inline.
    outermost: Cell<usize>,
    /// The embargo on the events that were emitted inside the inline delivery, or 0 if there were none.
    embargo: Cell<u64>,
}

const OUTSIDE: usize = 0;
/// This is never the address of a delivery, because deliveries are aligned.
const FROM_A_QUEUE: usize = 1;

thread_local! {
    #[allow(clippy::missing_const_for_thread_local, reason = "loom's macro takes no const block")]
    static NESTING: Nesting = Nesting { outermost: Cell::new(OUTSIDE), embargo: Cell::new(0) };
}

/// Returns whether the thread is inside a subscriber. A thread that is exiting has no thread-locals left. It is treated
/// as inside a subscriber, so that it does not wait.
pub(super) fn is_inside() -> bool {
    NESTING.try_with(|nesting| nesting.outermost.get() != OUTSIDE).unwrap_or(true)
}

/// Returns whether the thread is delivering an event inline for the `Delivery` at this address.
pub(super) fn is_inline_in(address: usize) -> bool {
    NESTING.try_with(|nesting| nesting.outermost.get() == address).unwrap_or(false)
}

/// Runs an inline delivery. `deliver` must not panic. Returns the embargo on the events that were emitted during the
/// delivery, or 0 if there were none. Returns `None`, without calling `deliver`, if the thread is already inside a
/// subscriber.
#[inline]
pub(super) fn inline(address: usize, deliver: impl FnOnce()) -> Option<u64> {
    let inline = |nesting: &Nesting| {
        if nesting.outermost.get() != OUTSIDE {
            return None;
        }
        nesting.outermost.set(address);
        deliver();
        nesting.outermost.set(OUTSIDE);
        Some(nesting.embargo.take())
    };
    NESTING.try_with(inline).ok().flatten()
}

/// Returns the embargo for an event that is emitted while the thread delivers inline for the `Delivery` at this
/// address. `begin` creates the embargo when the first such event is emitted. Returns 0 if the thread is not delivering
/// inline for that `Delivery`.
pub(super) fn embargo_of(address: usize, begin: impl FnOnce() -> u64) -> u64 {
    let embargo_of = |nesting: &Nesting| {
        if nesting.outermost.get() != address {
            return 0;
        }
        if nesting.embargo.get() == 0 {
            nesting.embargo.set(begin());
        }
        nesting.embargo.get()
    };
    NESTING.try_with(embargo_of).unwrap_or(0)
}

/// Marks the thread as inside a subscriber that is called from a queue. Marks may be nested, even inside inline
/// deliveries.
pub(super) struct Inside {
    before: Option<usize>,
}

impl Inside {
    pub(super) fn enter() -> Self {
        let enter = |nesting: &Nesting| {
            let before = nesting.outermost.get();
            if before == OUTSIDE {
                nesting.outermost.set(FROM_A_QUEUE);
            }
            before
        };
        Self { before: NESTING.try_with(enter).ok() }
    }

    /// Returns whether the thread was outside all subscribers.
    pub(super) fn is_outermost(&self) -> bool {
        self.before == Some(OUTSIDE)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        let _ = NESTING.try_with(|nesting| nesting.outermost.set(before));
    }
}
