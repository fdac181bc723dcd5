//! Nodes: the waiters' entries in the list.

use std::marker::PhantomPinned;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::task::Waker;

use super::hall::Hall;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Patience, UnsafeCell, made_progress, unless_mutant};

/// A waiter's place in the queue.
///
/// INV-3 (nodes stay): from when it is enqueued until it is granted or has left the queue, a node does not move.
///
/// INV-4 (access to a node's cells): the owner, except for a granter from when it has taken the node from its place until
/// it publishes the grant. In addition, the owner may read `waker` at any time, because only the owner writes it. `seat` is
/// the owner's alone.
///
/// A node is part of every check-out's future and moves from core to core with it, so it is small. What a granter touches
/// comes first, so that most nodes have it in one cache line.
#[repr(C, align(8))]
pub(in crate::pool) struct Node<G> {
    /// The waker's bits, from when the node is enqueued. The granter moves the waker out and leaves the bits.
    pub(super) waker: UnsafeCell<MaybeUninit<Waker>>,
    /// There while the node is `GRANTED`. The owner then takes it in any case.
    grant: UnsafeCell<MaybeUninit<G>>,
    /// The node's state: `APART`, `QUEUED` or `GRANTED`.
    progress: AtomicU32,
    /// Where the node was enqueued, if it was.
    seat: UnsafeCell<MaybeUninit<Seat<G>>>,
    /// A place points here.
    _pinned: PhantomPinned,
}

/// A hall, and the number of a ticket there.
pub(super) struct Seat<G> {
    pub(super) number: u32,
    pub(super) hall: NonNull<Hall<G>>,
}

impl<G> Clone for Seat<G> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<G> Copy for Seat<G> {}

// SAFETY: INV-4: at any time, a node's cells are either touched by one thread or read by two. A grant moves from the
// granter's thread to the waiter's, hence `G: Send`. The pointer to the hall leads to what is `Sync`, or is used under the
// list's lock.
#[allow(unsafe_code)]
unsafe impl<G: Send> Sync for Node<G> {}
// SAFETY: as above. No part of a node is tied to a thread.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Node<G> {}

#[allow(unsafe_code)]
impl<G> Node<G> {
    const APART: u32 = 0;
    /// Enqueued, and the outcome not yet taken.
    const QUEUED: u32 = 1;
    /// Enqueued, and the grant is written.
    const GRANTED: u32 = 2;

    pub(in crate::pool) fn new() -> Self {
        Self {
            waker: UnsafeCell::new(MaybeUninit::uninit()),
            grant: UnsafeCell::new(MaybeUninit::uninit()),
            progress: AtomicU32::new(Self::APART),
            seat: UnsafeCell::new(MaybeUninit::uninit()),
            _pinned: PhantomPinned,
        }
    }

    /// Returns whether the node was enqueued and its grant not yet taken. Called by the owner of a node that has not
    /// left.
    #[inline]
    pub(in crate::pool) fn is_queued(&self) -> bool {
        // Relaxed: only the owner changes the word to or from `APART`.
        self.progress.load(Ordering::Relaxed) != Self::APART
    }

    /// Takes the grant, if it has come. Called by the owner.
    #[inline]
    pub(super) fn take_grant(&self) -> Option<G> {
        // ORD: Acquire; pairs with the Release in `grant`; makes the grant visible.
        if self.progress.load(Ordering::Acquire) != Self::GRANTED {
            return None;
        }
        self.end_wait();
        // SAFETY: INV-4: the node was granted, so it is the owner's, and the grant is there. The node no longer says so.
        Some(self.grant.with_mut(|grant| unsafe { (*grant).assume_init_read() }))
    }

    pub(super) fn end_wait(&self) {
        // Relaxed: only the owner reads it until the node is enqueued again.
        self.progress.store(Self::APART, Ordering::Relaxed);
    }

    /// Writes the grant, and moves the waker out.
    ///
    /// # Safety
    ///
    /// The caller has taken the node from its place (INV-4), in which it was since its waker was written.
    #[inline]
    pub(super) unsafe fn grant(&self, grant: G) -> Waker {
        // SAFETY: the caller guarantees it. The waker's bits are read and left in place, because the owner may be reading
        // them too.
        let waker = unsafe {
            self.grant.with_mut(|present| (*present).write(grant));
            self.move_waker_out()
        };
        // ORD: Release; pairs with the Acquire in `take_grant`; publishes the grant. The node may be gone from here on.
        self.progress.store(Self::GRANTED, unless_mutant("grant_publishes_nothing", Ordering::Release));
        made_progress();
        waker
    }

    /// Makes the node ready to be put at its place. Called by the owner of a node that is at none.
    #[inline]
    pub(super) fn prepare(&self, seat: Seat<G>, waker: Waker) {
        // Relaxed: only the owner itself reads this value. A granter reaches the node through its place.
        self.progress.store(Self::QUEUED, Ordering::Relaxed);
        // SAFETY: INV-4: at no place, so it is the caller's.
        unsafe {
            self.seat.with_mut(|present| (*present).write(seat));
            self.waker.with_mut(|present| (*present).write(waker));
        }
    }

    /// Returns where the node was enqueued. Called by the owner of an enqueued node.
    #[inline]
    pub(super) fn seat(&self) -> Seat<G> {
        // SAFETY: INV-4: only the owner touches the cell, and has written it.
        self.seat.with(|seat| unsafe { (*seat).assume_init_read() })
    }

    /// Waits for the grant of a claimed node. Its granter has a bounded number of steps to go.
    #[cold]
    pub(super) fn await_grant(&self) -> G {
        let mut patience = Patience::new();
        loop {
            if let Some(grant) = self.take_grant() {
                return grant;
            }
            patience.pause();
        }
    }

    /// Returns whether the stored waker wakes the same task as `waker`. Called by the owner of an enqueued node.
    ///
    /// A granter may have moved the stored waker out. That does no harm while the two are equal: the granter wakes it
    /// after the grant. The stored waker may even have been freed, and `waker` may belong to another task at the same
    /// address. But then the grant was published before `waker` was created, and the owner, which has looked for the
    /// grant since, has found it.
    #[inline]
    pub(super) fn would_wake(&self, waker: &Waker) -> bool {
        // SAFETY: INV-4: the owner reads. Only the bits are compared, and no waker is dropped.
        self.waker.with(|present| unsafe { (*present).assume_init_ref().will_wake(waker) })
    }

    /// Moves the waker out.
    ///
    /// # Safety
    ///
    /// The node was enqueued, its waker was not moved out since it was written, and no thread writes it meanwhile (INV-4).
    pub(super) unsafe fn move_waker_out(&self) -> Waker {
        // SAFETY: the caller guarantees it.
        self.waker.with(|waker| unsafe { (*waker).assume_init_read() })
    }
}
