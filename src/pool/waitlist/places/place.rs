//! A place: where the waiter of a ticket and its granter meet, whichever comes first.

use std::ptr::{self, NonNull};
use std::task::Waker;

use super::Node;
use crate::sync::atomic::{AtomicPtr, Ordering};
use crate::sync::{UnsafeCell, fetch_surroundings, follow, made_progress, unless_mutant};

/// A place of a hall. It serves one ticket after another, each in a turn of its own.
///
/// | the word | means | is followed by |
/// | --- | --- | --- |
/// | free, with a turn | the waiter of this turn has not come | its node; or granted, if the granter comes first |
/// | left, with a turn | the same; and the waiter of the turn before has left | the same |
/// | a node | the waiter waits | free for the next turn, by the granter; or left, for the next turn |
/// | granted, with a turn | the grant came first | the node, for an instant; then free for the next turn |
///
/// A place has a cache line of its own. When neighbours in the queue shared one, a hand-over took a twentieth longer.
///
/// INV-15 (access to `early`): the granter of the present turn, while the word does not say granted; from then on the
/// waiter, until it makes the place free for the next turn.
#[repr(align(64))]
pub(super) struct Place<G> {
    /// A node's address, or a state in the two lowest bits, which a node's address has not set, and a turn above them.
    word: AtomicPtr<Node<G>>,
    early: UnsafeCell<Option<G>>,
    /// See [`Hall`](super::hall::Hall). Only the holder of the list's lock uses it.
    other_end: UnsafeCell<u32>,
}

// SAFETY: INV-15 for `early`, and the lock for `other_end`. A grant moves from the granter's thread to the waiter's, and
// nodes are `Sync` then.
#[allow(unsafe_code)]
unsafe impl<G: Send> Sync for Place<G> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Place<G> {}

const FREE: usize = 1;
const LEFT: usize = 2;
const GRANTED: usize = 3;
const STATE_BITS: u32 = 2;

fn word<G>(turn: u32, state: usize) -> *mut Node<G> {
    ptr::without_provenance_mut((turn as usize) << STATE_BITS | state)
}

/// Returns the state of a word. Zero means a node.
fn state<G>(word: *mut Node<G>) -> usize {
    word.addr() & ((1 << STATE_BITS) - 1)
}

#[allow(unsafe_code)]
impl<G> Place<G> {
    /// The turn at which a new place is free.
    pub(super) const FIRST_TURN: u32 = 0;

    pub(super) fn new() -> Self {
        let word = AtomicPtr::new(word(Self::FIRST_TURN, FREE));
        Self { word, early: UnsafeCell::new(None), other_end: UnsafeCell::new(0) }
    }

    /// Returns whether the place waits for the waiter of this turn.
    #[inline]
    pub(super) fn is_free(&self, turn: u32) -> bool {
        // Relaxed: the swap of the waiter or of the granter acquires.
        let seen = self.word.load(Ordering::Relaxed);
        seen == word(turn, FREE) || seen == word(turn, LEFT)
    }

    /// Returns whether the waiter of the turn before `next` has left. The holder of the list's lock asks this of a ticket
    /// that is not claimed.
    pub(super) fn is_left(&self, next: u32) -> bool {
        // Relaxed: a waiter leaves under the lock.
        self.word.load(Ordering::Relaxed) == word(next, LEFT)
    }

    /// The waiter of this turn comes. Returns the grant if it came first.
    #[inline]
    pub(super) fn take(&self, next: u32, node: &Node<G>) -> Result<(), G> {
        // ORD: Release; pairs with the Acquire in `grant`; publishes the node. Acquire; pairs with the Release in
        // `grant_early`; makes the grant visible.
        let before = self.word.swap(ptr::from_ref(node).cast_mut(), Ordering::AcqRel);
        made_progress();
        if state(before) != GRANTED {
            return Ok(());
        }
        Err(self.take_early(next))
    }

    #[cold]
    fn take_early(&self, next: u32) -> G {
        // SAFETY: INV-15: the word said granted.
        let grant = self.early.with_mut(|early| unsafe { (*early).take() }).expect("BUG: an early grant is missing");
        // ORD: Release; pairs with the Acquire in `grant`, whose caller may write to `early` after it.
        // No model has it: the threads of two early grants at one place would have to come late three times.
        self.word.store(word(next, FREE), Ordering::Release);
        made_progress();
        grant
    }

    /// The waiter leaves. Called under the list's lock, by the owner of a ticket that can be claimed no more.
    pub(super) fn leave(&self, next: u32) {
        // Relaxed: only its owner has written to the node, and no granter has written to `early` in this turn. A swap, because a
        // plain store would hide the turns before this one from the next granter.
        self.word.swap(word(next, LEFT), Ordering::Relaxed);
        made_progress();
    }

    /// Grants something to the waiter of this turn. Returns its waker, or `None` if the waiter has not come yet: then it
    /// finds the grant here.
    #[inline]
    pub(super) fn grant(&self, next: u32, grant: G) -> Option<Waker> {
        // ORD: Acquire; pairs with the Release in `take`; makes the node visible. And with that in `take_early`.
        let seen = self.word.load(unless_mutant("place_acquires_no_node", Ordering::Acquire));
        match Self::node(seen) {
            Some(node) => Some(self.grant_to(node, next, grant)),
            None => self.grant_early(seen, next, grant),
        }
    }

    /// Grants to the waiter's node. It stays, because a waiter that was claimed waits for the grant.
    #[inline]
    fn grant_to(&self, node: NonNull<Node<G>>, next: u32, grant: G) -> Waker {
        fetch_surroundings(node.as_ptr());
        // ORD: Release; pairs with the Acquire in `grant`: what the waiters and granters of this turn and of those before did
        // here comes before the next one. No model has it: three turns with three waiters and a granter are too many steps.
        // Before the grant: after it, the list may be gone.
        self.word.store(word(next, FREE), Ordering::Release);
        made_progress();
        follow();
        // SAFETY: INV-3, INV-4: the node was at its place, so it stays until it is granted, and it is the granter's.
        unsafe { node.as_ref().grant(grant) }
    }

    /// Leaves the grant for the waiter, if the waiter has not come meanwhile.
    #[cold]
    fn grant_early(&self, seen: *mut Node<G>, next: u32, grant: G) -> Option<Waker> {
        // SAFETY: INV-15.
        self.early.with_mut(|early| unsafe { *early = Some(grant) });
        // ORD: Release; pairs with the Acquire in `take`; publishes the grant. Acquire on failure: as in `grant`.
        let order = unless_mutant("early_grant_publishes_nothing", Ordering::Release);
        let Err(came) = self.word.compare_exchange(seen, word(next, GRANTED), order, Ordering::Acquire) else {
            return None;
        };
        // SAFETY: INV-15: the word does not say granted.
        let back = self.early.with_mut(|early| unsafe { (*early).take() }).expect("BUG: an early grant is missing");
        Some(self.grant_to(Self::node(came).expect("BUG: two granters at one place"), next, back))
    }

    fn node(word: *mut Node<G>) -> Option<NonNull<Node<G>>> {
        NonNull::new(word).filter(|_| state(word) == 0)
    }

    /// Calls `f` with the link. Called by the holder of the list's lock.
    pub(super) fn with_other_end<R>(&self, f: impl FnOnce(&mut u32) -> R) -> R {
        // SAFETY: the caller has the lock, and no `f` comes back here.
        self.other_end.with_mut(|end| f(unsafe { &mut *end }))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
impl<G> Place<G> {
    pub(super) fn begin_at(&self, turn: u32) {
        self.word.store(word(turn, FREE), Ordering::Relaxed);
    }
}
