//! Stacks of slots, in the memory of one shard of the session pool.
//!
//! A [`Slab`] has room for idle sessions. Each of its slots is on one of the shard's two stacks, or belongs to the one
//! thread that took it off a stack. A slot holds only atomics, so no access to it can be undefined, and this file has no
//! `unsafe`. Its data are written and read by the owner alone.
//!
//! # ABA
//!
//! [`Stack::pop`] reads the top and the slot below it, and then swaps the top if it has not changed. Meanwhile another
//! thread may pop the slot and push it again with another slot below. Therefore each change of a stack's head also counts
//! up its tag. The swap succeeds wrongly only if a thread rests between these two steps while the stack changes exactly
//! 2⁴⁰ times or a multiple: at ten million changes a second that takes 30 hours.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The number of bits of a head that name a slot.
const INDEX_BITS: u32 = 24;
/// The index that stands for no slot. All slots have smaller ones.
const NONE: u32 = (1 << INDEX_BITS) - 1;
/// The number of slots in the first segment. Each further segment has twice as many as the one before.
const FIRST_SEGMENT: u32 = 16;
/// The number of segments: more slots would have no index.
const SEGMENTS: usize = (INDEX_BITS - FIRST_SEGMENT.ilog2()) as usize;

/// The room for one idle session.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The slot below this one on its stack.
    below: AtomicU32,
    pub(super) id: [AtomicU64; 2],
    /// Nanoseconds since the pool was made.
    pub(super) last_use: AtomicU64,
    pub(super) transaction_number: AtomicU64,
    pub(super) forks: AtomicU32,
}

/// The slots of one shard. They are never deallocated while the pool lives.
#[derive(Debug, Default)]
pub(super) struct Slab {
    segments: [OnceLock<Box<[Slot]>>; SEGMENTS],
    /// How many slots were given out by [`grow`](Self::grow).
    used: AtomicU32,
}

impl Slab {
    /// Returns a slot that exists.
    pub(super) fn slot(&self, index: u32) -> &Slot {
        let (segment, offset) = Self::place(index);
        let slots = self.segments[segment].get().expect("BUG: a slot has an index before it exists");
        &slots[offset]
    }

    /// Gives out a slot that was never used, or `None` if there are 16 million.
    pub(super) fn grow(&self) -> Option<u32> {
        // ORD: Relaxed; the number only has to be unique. The segment is published by its `OnceLock`, and the slot's data
        // by the push of the slot.
        let next = |used: u32| (used < NONE).then_some(used + 1);
        let index = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        let segment = Self::place(index).0;
        if segment >= SEGMENTS {
            return None;
        }
        if self.segments[segment].get().is_none() {
            let slots = (0..FIRST_SEGMENT << segment).map(|_| Slot::default()).collect();
            // If another thread was faster, its segment stays, and this one is dropped.
            let _ = self.segments[segment].set(slots);
        }
        Some(index)
    }

    /// Returns the segment of a slot and its place there.
    fn place(index: u32) -> (usize, usize) {
        let shifted = index + FIRST_SEGMENT;
        let segment = shifted.ilog2() - FIRST_SEGMENT.ilog2();
        (segment as usize, (shifted - (FIRST_SEGMENT << segment)) as usize)
    }
}

/// A stack of slots, last in first out. Lock-free.
#[derive(Debug)]
pub(super) struct Stack {
    head: AtomicU64,
}

impl Stack {
    pub(super) fn new() -> Self {
        Self { head: AtomicU64::new(Head { tag: 0, top: NONE }.pack()) }
    }

    /// Takes the slot on top. The caller owns it.
    pub(super) fn pop(&self, slab: &Slab) -> Option<u32> {
        self.change(|head| {
            if head.top == NONE {
                return None;
            }
            // ORD: Relaxed; the pusher wrote it before the head that was just read. A later owner may have changed it since,
            // but then the head has changed too, and the swap fails.
            let below = slab.slot(head.top).below.load(Ordering::Relaxed);
            Some((below, head.top))
        })
    }

    /// Puts a slot on top, which the caller owns.
    pub(super) fn push(&self, slab: &Slab, index: u32) {
        self.push_chain(slab, index, index);
    }

    /// Puts slots on top that the caller owns and that are linked from `first` to `last`.
    pub(super) fn push_chain(&self, slab: &Slab, first: u32, last: u32) {
        let pushed = self.change(|head| {
            // ORD: Relaxed; published by the swap of the head.
            slab.slot(last).below.store(head.top, Ordering::Relaxed);
            Some((first, ()))
        });
        debug_assert!(pushed.is_some());
    }

    /// Takes all slots, and returns the one on top. The caller owns them, and follows them with [`below`](Self::below).
    pub(super) fn detach(&self) -> Option<u32> {
        self.change(|head| (head.top != NONE).then_some((NONE, head.top)))
    }

    /// Returns the slot below one that the caller owns and has not pushed since it was detached.
    pub(super) fn below(slab: &Slab, index: u32) -> Option<u32> {
        // ORD: Relaxed; the caller owns the slot.
        Some(slab.slot(index).below.load(Ordering::Relaxed)).filter(|&below| below != NONE)
    }

    /// Links a slot that the caller owns on top of another one of its own.
    pub(super) fn link(slab: &Slab, upper: u32, lower: u32) {
        // ORD: Relaxed; the caller owns both slots, and publishes them when it pushes them.
        slab.slot(upper).below.store(lower, Ordering::Relaxed);
    }

    /// Returns whether the stack was empty a moment ago.
    pub(super) fn is_empty(&self) -> bool {
        // ORD: Relaxed; a hint, which publishes nothing.
        Head::unpack(self.head.load(Ordering::Relaxed)).top == NONE
    }

    /// Replaces the top by what `next` returns, and returns the second part of it.
    fn change<T>(&self, mut next: impl FnMut(Head) -> Option<(u32, T)>) -> Option<T> {
        // ORD: Acquire; pairs with the swap below by the thread that pushed the top; makes visible what is below the top.
        let mut present = self.head.load(Ordering::Acquire);
        loop {
            let head = Head::unpack(present);
            let (top, outcome) = next(head)?;
            let changed = Head { tag: head.tag.wrapping_add(1), top }.pack();
            // ORD: AcqRel; the release publishes the data and the link of a slot that is pushed, and pairs with the acquire
            // of a later swap that pops it. On failure: as the load above.
            match self.head.compare_exchange_weak(present, changed, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(outcome),
                Err(other) => present = other,
            }
        }
    }
}

/// The head of a stack: the slot on top, and how often the head has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    /// Wraps around after 2⁴⁰ changes.
    tag: u64,
    top: u32,
}

impl Head {
    fn pack(self) -> u64 {
        self.tag << INDEX_BITS | u64::from(self.top)
    }

    fn unpack(word: u64) -> Self {
        Self { tag: word >> INDEX_BITS, top: word as u32 & NONE }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn head_keeps_its_fields(tag in 0_u64..1 << 40, top in 0..=NONE) {
            let head = Head { tag, top };
            prop_assert_eq!(Head::unpack(head.pack()), head);
        }

        #[test]
        fn every_index_has_a_place_of_its_own(index in 0..NONE - FIRST_SEGMENT) {
            let (segment, offset) = Slab::place(index);
            prop_assert!(segment < SEGMENTS && offset < (FIRST_SEGMENT << segment) as usize);
            let (next_segment, next_offset) = Slab::place(index + 1);
            prop_assert!((next_segment, next_offset) == (segment, offset + 1) || (next_segment, next_offset) == (segment + 1, 0));
        }
    }

    #[test]
    fn tag_wraps_around_without_touching_the_top() {
        let stack = Stack { head: AtomicU64::new(Head { tag: (1 << 40) - 1, top: NONE }.pack()) };
        let slab = Slab::default();
        let index = slab.grow().unwrap();
        stack.push(&slab, index);
        assert_eq!(Head::unpack(stack.head.load(Ordering::Relaxed)), Head { tag: 0, top: index });
        assert_eq!(stack.pop(&slab), Some(index));
        assert!(stack.is_empty());
    }

    #[test]
    fn stack_is_last_in_first_out_across_segments() {
        let (stack, slab) = (Stack::new(), Slab::default());
        for expected in 0..100 {
            let index = slab.grow().unwrap();
            assert_eq!(index, expected);
            stack.push(&slab, index);
        }
        for expected in (50..100).rev() {
            assert_eq!(stack.pop(&slab), Some(expected));
        }
        let top = stack.detach().unwrap();
        assert!(stack.is_empty() && stack.detach().is_none());
        let detached: Vec<_> = std::iter::successors(Some(top), |&index| Stack::below(&slab, index)).collect();
        assert_eq!(detached, (0..50).rev().collect::<Vec<_>>());
        stack.push_chain(&slab, 49, 0);
        assert_eq!(stack.pop(&slab), Some(49));
    }

    #[test]
    fn head_that_changed_and_came_back_is_noticed() {
        let (stack, slab) = (Stack::new(), Slab::default());
        let [lower, upper] = [(); 2].map(|()| slab.grow().unwrap());
        stack.push(&slab, lower);
        stack.push(&slab, upper);
        let mut attempts = 0;
        let popped = stack.change(|head| {
            attempts += 1;
            let below = slab.slot(head.top).below.load(Ordering::Relaxed);
            if attempts == 1 {
                // Another thread takes both slots, and puts the upper one back alone: the top is the same as before.
                assert_eq!([stack.pop(&slab), stack.pop(&slab)], [Some(upper), Some(lower)]);
                stack.push(&slab, upper);
            }
            Some((below, head.top))
        });
        assert_eq!((popped, attempts), (Some(upper), 2));
        assert!(stack.is_empty(), "the slot that another thread owns is not on the stack");
    }
}
