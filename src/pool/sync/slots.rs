//! Stacks of slots: a pool of plain values, without locks or `unsafe`.
//!
//! [`Slots`] holds the values. Each slot is on a [`SlotStack`], or belongs to the one thread that took it off a stack.
//! Only the owner writes and reads the slot's value, through shared references: the value consists of relaxed atomics,
//! and the head of the stack publishes it. So no access causes undefined behaviour.
//!
//! # ABA
//!
//! [`SlotStack::pop`] reads the top and the slot below it, and then swaps the top if it has not changed:
//!
//! 1. Thread A reads the top, slot 2, and below it slot 1.
//! 2. Thread B takes slots 2 and 1, and puts slot 2 back.
//! 3. A swaps the top, which is slot 2 again, for slot 1, which B owns.
//!
//! Therefore each change to the head increments its tag, and A's swap fails. It can wrongly succeed only if the number
//! of changes between steps 1 and 3 is a multiple of 2⁴⁰. At ten million changes a second, that takes 30 hours.

use super::atomic::{AtomicU32, AtomicU64, Ordering};
use super::{OnceLock, unless_mutant};

/// The number of bits in a head that identify a slot.
const INDEX_BITS: u32 = 24;
/// The index that means no slot. All slots have smaller indices.
const NONE: u32 = (1 << INDEX_BITS) - 1;
/// The number of slots in the first segment. Each later segment has twice as many as the previous one.
const FIRST_SEGMENT: u32 = 16;
/// The number of segments. Another segment would need more index bits.
const SEGMENTS: usize = (INDEX_BITS - FIRST_SEGMENT.ilog2()) as usize;

#[derive(Debug)]
struct Slot<T> {
    /// The slot below this one on its stack.
    below: AtomicU32,
    value: T,
}

/// Room for up to 16 million values. A slot is never deallocated while the `Slots` lives.
#[derive(Debug)]
pub struct Slots<T> {
    segments: [OnceLock<Box<[Slot<T>]>>; SEGMENTS],
    /// The number of slots that [`grow`](Self::grow) has handed out.
    used: AtomicU32,
}

impl<T: Default> Slots<T> {
    /// Creates a `Slots` that has no slots yet.
    #[allow(clippy::new_without_default, reason = "nothing needs it; public only in the models' build")]
    pub fn new() -> Self {
        Self { segments: std::array::from_fn(|_| OnceLock::new()), used: AtomicU32::new(0) }
    }

    /// Returns the index of a slot that has never been used and holds the default value. The caller owns the slot.
    /// Returns `None` if there are already 16 million slots.
    pub fn grow(&self) -> Option<u32> {
        // ORD: Relaxed; the number only has to be unique. The segment is published by its `OnceLock`, and the value by
        // the push of the slot.
        let next = |used: u32| (used < NONE).then_some(used + 1);
        let index = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        let segment = Self::locate(index).0;
        if segment >= SEGMENTS {
            return None;
        }
        if self.segments[segment].get().is_none() {
            let slot = || Slot { below: AtomicU32::new(NONE), value: T::default() };
            // If another thread was first, its segment stays, and this segment is dropped.
            let _ = self.segments[segment].set((0..FIRST_SEGMENT << segment).map(|_| slot()).collect());
        }
        Some(index)
    }

    /// Returns the value of a slot that the caller owns.
    pub fn value(&self, index: u32) -> &T {
        &self.slot(index).value
    }

    fn slot(&self, index: u32) -> &Slot<T> {
        let (segment, offset) = Self::locate(index);
        let slots = self.segments[segment].get().expect("BUG: a slot has an index before it exists");
        &slots[offset]
    }

    /// Returns the segment of a slot and the slot's index in it.
    fn locate(index: u32) -> (usize, usize) {
        let shifted = index + FIRST_SEGMENT;
        let segment = shifted.ilog2() - FIRST_SEGMENT.ilog2();
        (segment as usize, (shifted - (FIRST_SEGMENT << segment)) as usize)
    }
}

/// A lock-free stack of slots (last in, first out).
#[derive(Debug)]
pub struct SlotStack {
    head: AtomicU64,
}

impl SlotStack {
    /// Creates an empty stack.
    #[allow(clippy::new_without_default, reason = "nothing needs it; public only in the models' build")]
    pub fn new() -> Self {
        Self { head: AtomicU64::new(StackHead { tag: 0, top: NONE }.pack()) }
    }

    /// Takes the slot on top. The caller owns it.
    pub fn pop<T: Default>(&self, slots: &Slots<T>) -> Option<u32> {
        self.change(|head| {
            if head.top == NONE {
                return None;
            }
            // ORD: Relaxed; the pusher wrote this link before the head that has just been read. A later owner may have
            // changed the link, but then the head has also changed, and the swap fails.
            let below = slots.slot(head.top).below.load(Ordering::Relaxed);
            Some((below, head.top))
        })
    }

    /// Pushes a slot that the caller owns.
    pub fn push<T: Default>(&self, slots: &Slots<T>, index: u32) {
        self.push_chain(slots, index, index);
    }

    /// Pushes one or more slots. The caller owns them, and has linked them from `first` to `last`.
    pub fn push_chain<T: Default>(&self, slots: &Slots<T>, first: u32, last: u32) {
        let pushed = self.change(|head| {
            // ORD: Relaxed; published by the swap of the head.
            slots.slot(last).below.store(head.top, Ordering::Relaxed);
            Some((first, ()))
        });
        debug_assert!(pushed.is_some());
    }

    /// Takes all slots, and returns the top. The caller owns them, and follows their links with [`below`](Self::below).
    pub fn detach(&self) -> Option<u32> {
        self.change(|head| (head.top != NONE).then_some((NONE, head.top)))
    }

    /// Returns the slot below a slot that the caller has detached and has not pushed since.
    pub fn below<T: Default>(slots: &Slots<T>, index: u32) -> Option<u32> {
        // ORD: Relaxed; the caller owns the slot.
        Some(slots.slot(index).below.load(Ordering::Relaxed)).filter(|&below| below != NONE)
    }

    /// Links one slot on top of another. The caller owns both.
    pub fn link<T: Default>(slots: &Slots<T>, upper: u32, lower: u32) {
        // ORD: Relaxed; the caller owns both slots, and publishes them when it pushes them.
        slots.slot(upper).below.store(lower, Ordering::Relaxed);
    }

    /// Returns whether the stack was empty a moment ago.
    pub fn is_empty(&self) -> bool {
        // ORD: Relaxed; only a hint, which publishes nothing.
        StackHead::unpack(self.head.load(Ordering::Relaxed)).top == NONE
    }

    /// Calls `next`, replaces the head with the first part of its result, and returns the second part.
    fn change<R>(&self, mut next: impl FnMut(StackHead) -> Option<(u32, R)>) -> Option<R> {
        // ORD: Acquire, here and after a failed swap; pairs with the Release of the swap that made this head; makes the
        // slots below the top, and the values of all slots, visible.
        let acquire = unless_mutant("slot_stack_acquires_nothing", Ordering::Acquire);
        let mut present = self.head.load(acquire);
        loop {
            let head = StackHead::unpack(present);
            let (top, outcome) = next(head)?;
            let changed = StackHead { tag: head.tag.wrapping_add(1), top }.pack();
            // ORD: Release; publishes the value and the link of a slot that is pushed. A swap that pops a slot passes
            // on what was published earlier.
            let release = unless_mutant("slot_stack_publishes_nothing", Ordering::Release);
            match self.head.compare_exchange_weak(present, changed, release, acquire) {
                Ok(_) => return Some(outcome),
                Err(other) => present = other,
            }
        }
    }
}

/// The head of a stack: the slot on top, and the number of times the head has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StackHead {
    tag: u64,
    top: u32,
}

impl StackHead {
    fn pack(self) -> u64 {
        self.tag << INDEX_BITS | u64::from(self.top)
    }

    fn unpack(word: u64) -> Self {
        Self { tag: word >> INDEX_BITS, top: word as u32 & NONE }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn head_keeps_its_fields(tag in 0_u64..1 << 40, top in 0..=NONE) {
            let head = StackHead { tag, top };
            prop_assert_eq!(StackHead::unpack(head.pack()), head);
        }

        #[test]
        fn every_index_has_a_place_of_its_own(index in 0..NONE - FIRST_SEGMENT) {
            let (segment, offset) = Slots::<u8>::locate(index);
            prop_assert!(segment < SEGMENTS && offset < (FIRST_SEGMENT << segment) as usize);
            let (next_segment, next_offset) = Slots::<u8>::locate(index + 1);
            prop_assert!((next_segment, next_offset) == (segment, offset + 1) || (next_segment, next_offset) == (segment + 1, 0));
        }
    }

    #[test]
    fn tag_wraps_around_without_touching_the_top() {
        let stack = SlotStack { head: AtomicU64::new(StackHead { tag: (1 << 40) - 1, top: NONE }.pack()) };
        let slots = Slots::<u8>::new();
        let index = slots.grow().unwrap();
        stack.push(&slots, index);
        assert_eq!(StackHead::unpack(stack.head.load(Ordering::Relaxed)), StackHead { tag: 0, top: index });
        assert_eq!(stack.pop(&slots), Some(index));
        assert!(stack.is_empty());
    }

    #[test]
    fn stack_is_last_in_first_out_across_segments() {
        let (stack, slots) = (SlotStack::new(), Slots::<u8>::new());
        for expected in 0..100 {
            let index = slots.grow().unwrap();
            assert_eq!(index, expected);
            stack.push(&slots, index);
        }
        for expected in (50..100).rev() {
            assert_eq!(stack.pop(&slots), Some(expected));
        }
        let top = stack.detach().unwrap();
        assert!(stack.is_empty() && stack.detach().is_none());
        let detached: Vec<_> = std::iter::successors(Some(top), |&index| SlotStack::below(&slots, index)).collect();
        assert_eq!(detached, (0..50).rev().collect::<Vec<_>>());
        stack.push_chain(&slots, 49, 0);
        assert_eq!(stack.pop(&slots), Some(49));
    }

    #[test]
    fn head_that_changed_and_came_back_is_noticed() {
        let (stack, slots) = (SlotStack::new(), Slots::<u8>::new());
        let [lower, upper] = [(); 2].map(|()| slots.grow().unwrap());
        stack.push(&slots, lower);
        stack.push(&slots, upper);
        let mut attempts = 0;
        let popped = stack.change(|head| {
            attempts += 1;
            let below = slots.slot(head.top).below.load(Ordering::Relaxed);
            if attempts == 1 {
                // Another thread takes both slots, and puts back only the upper slot, so the same slot is on top again.
                assert_eq!([stack.pop(&slots), stack.pop(&slots)], [Some(upper), Some(lower)]);
                stack.push(&slots, upper);
            }
            Some((below, head.top))
        });
        assert_eq!((popped, attempts), (Some(upper), 2));
        assert!(stack.is_empty(), "the slot that another thread owns is not on the stack");
    }
}
