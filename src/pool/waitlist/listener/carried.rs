//! Carries a task's waker out of event-listener's lock.
//!
//! An event calls a listener's waker inside of `Event::notify`, under its lock. A task's waker is foreign code, which
//! must not run there: it may panic, take long, or poll its task at once, which would take the same lock again. The
//! listener therefore gets a waker of the node's own. It does not wake anything, but moves the task's waker out of the
//! node and leaves it for the caller of `notify`, which wakes the task after that.
//!
//! `notify` has no result for the waker, so it is left in a variable of the thread. The variable is used only from when
//! [`collect`] is called until it returns. A waker that is called at any other time wakes its task at once. So this does
//! not rely on when an event calls its wakers.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::task::{RawWaker, RawWakerVTable, Waker};

use crate::sync::{UnsafeCell, discard, thread_local, wake};

/// The variable.
struct Hands {
    collecting: Cell<bool>,
    /// `ManuallyDrop`, so that the variable needs no destructor and can be used until the thread ends.
    carried: Cell<Option<ManuallyDrop<Waker>>>,
}

impl Hands {
    const fn empty() -> Self {
        Self { collecting: Cell::new(false), carried: Cell::new(None) }
    }
}

#[cfg(not(any(loom, shuttle)))]
thread_local! {
    static HANDS: Hands = const { Hands::empty() };
}
// The model checkers' macros know no `const`.
#[cfg(any(loom, shuttle))]
thread_local! {
    static HANDS: Hands = Hands::empty();
}

/// Calls `notify`. Returns its result, and the task's waker if a [`Carrier`] was called meanwhile.
#[inline]
pub(super) fn collect<R>(notify: impl FnOnce() -> R) -> (R, Option<Waker>) {
    HANDS.with(|hands| hands.collecting.set(true));
    let result = notify();
    let carried = HANDS.with(|hands| {
        hands.collecting.set(false);
        hands.carried.take()
    });
    (result, carried.map(ManuallyDrop::into_inner))
}

fn carry(waker: Waker) {
    let waker = HANDS.with(|hands| {
        if !hands.collecting.replace(false) {
            return Some(waker);
        }
        hands.carried.set(Some(ManuallyDrop::new(waker)));
        None
    });
    if let Some(waker) = waker {
        wake(waker);
    }
}

/// The place of a task's waker, and the source of wakers that carry it out.
///
/// INV-10 (carriers): while a waker of [`as_waker`](Self::as_waker) is registered with an event, the cell belongs to the
/// thread that the event lets call the waker, and the carrier stays in place. At all other times it is the owner's. The
/// owner ends the registration by an operation of the listener: it receives its notification, registers another waker,
/// or is dropped. Each takes the event's lock, as calling the waker does.
pub(super) struct Carrier(UnsafeCell<Option<Waker>>);

// SAFETY: INV-10: one thread at a time touches the cell. A waker may be used and dropped on any thread.
#[allow(unsafe_code)]
unsafe impl Sync for Carrier {}

#[allow(unsafe_code)]
impl Carrier {
    pub(super) fn new() -> Self {
        Self(UnsafeCell::new(None))
    }

    /// Replaces the task's waker. Returns the old one, if the event has not called for it.
    ///
    /// # Safety
    ///
    /// The caller is the owner, and no waker of this carrier is registered (INV-10).
    pub(super) unsafe fn replace(&self, waker: Option<Waker>) -> Option<Waker> {
        // SAFETY: the caller guarantees it.
        self.0.with_mut(|present| unsafe { std::mem::replace(&mut *present, waker) })
    }

    /// Returns a waker that carries the task's waker out. Only an event may keep a clone of it.
    ///
    /// # Safety
    ///
    /// The carrier stays in place until no clone is registered any more.
    pub(super) unsafe fn as_waker(self: Pin<&Self>) -> ManuallyDrop<Waker> {
        // SAFETY: the functions of the table keep the contract of `RawWaker`, as far as the caller keeps its part.
        ManuallyDrop::new(unsafe { Waker::new(std::ptr::from_ref(self.get_ref()).cast(), &TABLE) })
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        // SAFETY: no thread but the owner's can reach it any more.
        #[allow(unsafe_code)]
        discard(unsafe { self.replace(None) });
    }
}

static TABLE: RawWakerVTable = RawWakerVTable::new(clone, carry_out, carry_out, |_| {});

fn clone(carrier: *const ()) -> RawWaker {
    RawWaker::new(carrier, &TABLE)
}

#[allow(unsafe_code)]
fn carry_out(carrier: *const ()) {
    // SAFETY: INV-10: the waker is registered, so the carrier is in place and its cell is ours.
    let waker = unsafe { (*carrier.cast::<Carrier>()).replace(None) };
    if let Some(waker) = waker {
        carry(waker);
    }
}
