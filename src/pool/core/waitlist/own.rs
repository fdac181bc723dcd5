//! Parking by leaving the waiter's waker in the cell.

use std::mem::MaybeUninit;
use std::task::Waker;

use crate::pool::sync::{UnsafeCell, discard};

/// The part of the cell that wakes its waiter.
pub(super) struct Parking {
    /// The waker's bits, once the waiter has parked. The thread that moves the waker out does not clear the bits.
    waker: UnsafeCell<MaybeUninit<Waker>>,
}

/// The waiter's side of parking. It is empty, because the cell holds everything.
#[derive(Debug)]
pub(super) struct WaiterSide;

impl WaiterSide {
    pub(super) fn new() -> Self {
        Self
    }
}

/// The waker that a waiter has taken back from its cell. Dropping it runs foreign code.
#[must_use = "dropped outside of the lock"]
pub(super) struct Withdrawn(Option<Waker>);

impl Drop for Withdrawn {
    fn drop(&mut self) {
        discard(self.0.take());
    }
}

#[allow(unsafe_code)]
impl Parking {
    pub(super) fn new() -> Self {
        Self { waker: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Leaves the waker here.
    ///
    /// # Safety
    ///
    /// The caller is the waiter, and the parking belongs to the waiter (INV-4).
    #[inline]
    pub(super) unsafe fn park(&self, _: &mut WaiterSide, waker: Waker) {
        // SAFETY: the caller guarantees this.
        self.waker.with_mut(|place| unsafe { (*place).write(waker) });
    }

    /// Returns whether the parked waker would wake the same task as `waker`.
    ///
    /// The granter may already have moved the parked waker out. If the two wakers are equal, this is harmless, because
    /// the granter wakes the parked waker after the grant. The parked waker may even have been freed, and `waker` may
    /// belong to another task at the same address. But in that case the grant was published before `waker` was created.
    /// The waiter has looked for its grant since then, and would have found it.
    ///
    /// # Safety
    ///
    /// The caller is the waiter, and is parked.
    #[inline]
    pub(super) unsafe fn wakes(&self, _: &mut WaiterSide, waker: &Waker) -> bool {
        // SAFETY: the waiter reads its own writes, and no other thread writes. Only the bits are compared, and no waker
        // is dropped.
        self.waker.with(|present| unsafe { (*present).assume_init_ref().will_wake(waker) })
    }

    /// Returns whether the waiter may take its grant.
    #[inline]
    pub(super) fn is_released(&self, _: &mut WaiterSide) -> bool {
        true
    }

    /// Takes the waker back.
    ///
    /// # Safety
    ///
    /// The caller is the waiter, is parked, and no granter looks at the parking (INV-4).
    pub(super) unsafe fn withdraw(&self, _: &mut WaiterSide) -> Withdrawn {
        // SAFETY: the caller guarantees this.
        Withdrawn(Some(unsafe { self.move_waker_out() }))
    }

    /// Calls `grant` for a parked waiter, and returns the waiter's waker.
    ///
    /// # Safety
    ///
    /// The caller is the granter, and `grant` publishes the grant. The parking belongs to the granter until then
    /// (INV-4).
    #[inline]
    pub(super) unsafe fn release(&self, grant: impl FnOnce()) -> Option<Waker> {
        // SAFETY: the caller guarantees this.
        let waker = unsafe { self.move_waker_out() };
        // The cell, and even the list, may be gone from here on.
        grant();
        Some(waker)
    }

    /// # Safety
    ///
    /// The waker was left here and has not been moved out since, and no thread writes it during the call.
    unsafe fn move_waker_out(&self) -> Waker {
        // SAFETY: the caller guarantees this. The bits stay, because the waiter may be reading them as well.
        self.waker.with(|waker| unsafe { (*waker).assume_init_read() })
    }
}
