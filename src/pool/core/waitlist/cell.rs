//! A cell: the meeting point of a ticket's waiter and its granter.

use std::ptr::NonNull;
use std::task::Waker;

use super::parking::{Parking, WaiterSide, Withdrawn};
use super::segments::{TICKET_BITS, start_of};
use super::word::Ticket;
use crate::pool::sync::atomic::{AtomicU32, Ordering};
use crate::pool::sync::{UnsafeCell, made_progress, unless_mutant};

/// The cell of one ticket.
///
/// | state | means | is followed by |
/// | --- | --- | --- |
/// | a state of another ticket | neither side has come | waits; or granted, if the granter comes first |
/// | waits | the waiter is parked | granted; or left, under the list's lock |
/// | granted | the grant is there | over, when the waiter has taken it |
/// | left | the waiter has left before its ticket was claimed | |
/// | over | the ticket is done | |
///
/// A state carries the [tag](tag_of) of its ticket, so a cell can be reused without being reset.
///
/// The granter's last access to the cell changes the state, and so does the last access of a waiter that takes its
/// grant. As soon as the state has changed, the cell may be freed. So `grant`, `park` and `take` are passed a pointer
/// to the cell: a reference would have to stay valid until the call returns.
///
/// INV-4 (access to a cell): `parking` belongs to the waiter, with one exception. Once a granter has claimed the ticket
/// and found that the waiter is waiting, `parking` belongs to the granter until it publishes the grant. In addition,
/// the waiter may read the waker at any time, because only the waiter writes it. `grant` belongs to the granter until
/// the cell is granted, and to the waiter from then on.
///
/// Each cell has its own cache line. When neighbours in the queue shared a cache line, a hand-over took 5 % longer.
#[repr(align(64))]
pub(super) struct Cell<G> {
    state: AtomicU32,
    /// The ticket at the other end of the gap, if a gap begins or ends with this cell's ticket. Only the holder of the
    /// list's lock uses it.
    other_end: UnsafeCell<Ticket>,
    grant: UnsafeCell<Option<G>>,
    parking: Parking,
}

// SAFETY: INV-4, and the lock for `other_end`. A grant moves from the granter's thread to the waiter's thread.
#[allow(unsafe_code)]
unsafe impl<G: Send> Sync for Cell<G> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Cell<G> {}

#[cfg(not(any(loom, shuttle, simulated)))]
const _: () = assert!(size_of::<Cell<[usize; 2]>>() == 64, "a cell has one cache line");

const NEVER_USED: u32 = u32::MAX;
const WAITS: u32 = 0;
const GRANTED: u32 = 1;
const LEFT: u32 = 2;
const OVER: u32 = 3;
const STATE_BITS: u32 = 2;

/// Returns the tag that all states of a ticket share. Tickets that use the same cell have different tags.
#[inline]
fn tag_of(ticket: Ticket) -> u32 {
    start_of(ticket).number() << STATE_BITS
}

const _: () = assert!(TICKET_BITS + STATE_BITS <= u32::BITS, "a ticket's tag and a state fit into a word");

/// Lets a model detect accesses to a freed cell: any access that is not ordered before this drop is a race.
#[cfg(loom)]
impl<G> Drop for Cell<G> {
    fn drop(&mut self) {
        self.grant.with_mut(|_| ());
    }
}

#[allow(unsafe_code)]
impl<G> Cell<G> {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU32::new(NEVER_USED),
            other_end: UnsafeCell::new(Ticket::FIRST),
            grant: UnsafeCell::new(None),
            parking: Parking::new(),
        }
    }

    /// Makes the cell look as if it had never been used. The caller owns the cell.
    pub(super) fn forget(&self) {
        // Relaxed: the limit publishes it.
        self.state.store(NEVER_USED, Ordering::Relaxed);
    }

    /// Returns whether no thread will access the cell again. The ticket must have been claimed or skipped. Called under
    /// the list's lock.
    pub(super) fn is_over(&self, ticket: Ticket) -> bool {
        // ORD: Acquire; pairs with the Release in `take_out`: the waiter's accesses come before the cell is freed or
        // reused.
        let state = self.state.load(unless_mutant("cell_is_gone_unseen", Ordering::Acquire));
        state == tag_of(ticket) | OVER || state == tag_of(ticket) | LEFT
    }

    /// Parks the waiter. Returns the grant if the granter came first.
    ///
    /// # Safety
    ///
    /// The caller is the waiter, it parks only once, and the ticket is not over.
    #[inline]
    pub(super) unsafe fn park(this: NonNull<Self>, ticket: Ticket, parked: &mut WaiterSide, waker: Waker) -> Option<G> {
        // SAFETY: the caller guarantees this.
        let cell = unsafe { this.as_ref() };
        // SAFETY: INV-4: the waiter is not parked yet, and a granter does not look here before it sees that the waiter
        // is waiting.
        unsafe { cell.parking.park(parked, waker) };
        // ORD: Release; pairs with the Acquire in `grant`; publishes the waker. Acquire; pairs with the Release in
        // `grant`; makes an early grant visible.
        let order = unless_mutant("cell_publishes_no_waiter", Ordering::AcqRel);
        let before = cell.state.swap(tag_of(ticket) | WAITS, order);
        made_progress();
        if before != tag_of(ticket) | GRANTED {
            return None;
        }
        // SAFETY: INV-4: a granter that came first does not look at the parking, and has finished with the grant.
        let (withdrawn, grant) = unsafe { (cell.parking.withdraw(parked), Self::take_out(cell, ticket)) };
        drop(withdrawn);
        Some(grant)
    }

    /// Takes the grant out of a granted cell. After that, the ticket is over.
    ///
    /// # Safety
    ///
    /// The caller is the waiter, and has seen the grant (INV-4).
    #[inline]
    unsafe fn take_out(cell: &Self, ticket: Ticket) -> G {
        // SAFETY: the caller guarantees this.
        let grant = cell.grant.with_mut(|grant| unsafe { (*grant).take() }).expect("BUG: a grant is missing");
        // ORD: Release; pairs with the Acquire in `is_over`.
        cell.state.store(tag_of(ticket) | OVER, unless_mutant("taken_cell_is_over_early", Ordering::Release));
        made_progress();
        grant
    }

    /// Takes the grant, if there is one. After that, the ticket is over.
    ///
    /// # Safety
    ///
    /// The caller is the waiter, and the ticket is not over.
    #[inline]
    pub(super) unsafe fn take(this: NonNull<Self>, ticket: Ticket, parked: &mut WaiterSide) -> Option<G> {
        // SAFETY: the caller guarantees this.
        let cell = unsafe { this.as_ref() };
        // ORD: Acquire; pairs with the Releases in `grant`; makes the grant visible.
        let state = cell.state.load(unless_mutant("grant_is_not_acquired", Ordering::Acquire));
        if state != tag_of(ticket) | GRANTED || !cell.parking.is_released(parked) {
            return None;
        }
        // SAFETY: INV-4: the cell is granted.
        Some(unsafe { Self::take_out(cell, ticket) })
    }

    /// Returns whether this waker would wake the waiter. Called by the waiter, which has not seen a grant.
    #[inline]
    pub(super) fn wakes(&self, parked: &mut WaiterSide, waker: &Waker) -> bool {
        // SAFETY: INV-4: the waiter only reads, and so does a granter.
        unsafe { self.parking.wakes(parked, waker) }
    }

    /// Replaces the waker, and returns the old one. Called under the list's lock, by the waiter with a withheld ticket.
    pub(super) fn renew(&self, parked: &mut WaiterSide, waker: Waker) -> Withdrawn {
        // SAFETY: INV-4: the waiter is waiting and is not claimed.
        unsafe {
            let old = self.parking.withdraw(parked);
            self.parking.park(parked, waker);
            old
        }
    }

    /// Marks the ticket as left. Called under the list's lock, by the waiter with a withheld ticket.
    pub(super) fn leave(&self, ticket: Ticket, parked: &mut WaiterSide) -> Withdrawn {
        // SAFETY: INV-4: the waiter is waiting and is not claimed.
        let withdrawn = unsafe { self.parking.withdraw(parked) };
        // Relaxed: this and the next use of the cell are under the lock.
        self.state.store(tag_of(ticket) | LEFT, Ordering::Relaxed);
        made_progress();
        withdrawn
    }

    /// Returns whether the waiter with an unclaimed ticket has left. Called under the list's lock.
    pub(super) fn is_left(&self, ticket: Ticket) -> bool {
        // Relaxed: a waiter leaves under the lock.
        self.state.load(Ordering::Relaxed) == tag_of(ticket) | LEFT
    }

    /// Grants something to the waiter. Returns the waker, or `None` if the waiter has not parked yet and will find the
    /// grant here.
    ///
    /// # Safety
    ///
    /// The caller has claimed the ticket, and grants only once.
    #[inline]
    pub(super) unsafe fn grant(this: NonNull<Self>, ticket: Ticket, grant: G) -> Option<Waker> {
        // SAFETY: the caller guarantees this.
        let cell = unsafe { this.as_ref() };
        // SAFETY: INV-4: the caller has claimed the ticket, and the cell is not granted yet.
        cell.grant.with_mut(|place| unsafe { *place = Some(grant) });
        // ORD: Acquire; pairs with the Release in `park`; makes the waker visible.
        let seen = cell.state.load(unless_mutant("cell_acquires_no_waiter", Ordering::Acquire));
        if seen != tag_of(ticket) | WAITS {
            #[cfg(any(debug_assertions, loom, shuttle))]
            assert!(
                seen == NEVER_USED || seen >> STATE_BITS << STATE_BITS != tag_of(ticket),
                "BUG: a grant to a waiter without need"
            );
            // ORD: Release; pairs with the Acquire in `park` and in `take`; publishes the grant. Acquire on failure: as
            // above.
            let order = unless_mutant("early_grant_publishes_nothing", Ordering::Release);
            if cell.state.compare_exchange(seen, tag_of(ticket) | GRANTED, order, Ordering::Acquire).is_ok() {
                made_progress();
                return None;
            }
            // The waiter has parked in the meantime.
        }
        // SAFETY: INV-4: the waiter is waiting and has been claimed.
        unsafe {
            cell.parking.release(|| {
                // ORD: Release; pairs with the Acquire in `take`; publishes the grant.
                cell.state.store(tag_of(ticket) | GRANTED, unless_mutant("grant_publishes_nothing", Ordering::Release));
                made_progress();
            })
        }
    }

    /// Calls `f` with the other end of the gap. Called by the holder of the list's lock.
    pub(super) fn with_other_end<R>(&self, f: impl FnOnce(&mut Ticket) -> R) -> R {
        // SAFETY: the caller holds the lock, and `f` never calls this again.
        self.other_end.with_mut(|end| f(unsafe { &mut *end }))
    }
}
