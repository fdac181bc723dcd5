//! A shard: a lock-free stack (last in, first out) of available connections. Its head is a single `AtomicU64`, and the
//! links are in the slab.

use crossbeam_utils::CachePadded;

use super::slab::{INDEX_BITS, Link, NO_SLOT, Slab, Slot};
use crate::pool::sync::atomic::{AtomicU64, Ordering};
use crate::pool::sync::{step, unless_mutant};

/// A reading of a shard's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    top: Option<u32>,
    /// The flag, which says that a check-out is waiting. While it is raised, a check-in hands its connection over
    /// instead of pushing it, and a check-out queues up instead of popping. Changes only under the wait list's lock,
    /// and is raised only while the shard is empty.
    waiting: bool,
    /// Counts the changes, modulo 2^43, so that a head is never mistaken for an older head with the same top. If one
    /// shard changes 100 million times a second, the tag wraps after a day.
    tag: u64,
}

/// A head that a shard had earlier, for comparison with later heads.
///
/// If the shard still has this head, its stack has not changed since. The comparison can be wrong only after a multiple
/// of 2^43 changes, when the tag repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PastHead(u64);

impl PastHead {
    /// No shard ever has this head, because it is flagged but not empty.
    pub(super) const OF_NO_SHARD: Self = Self(1 << Head::WAITING_SHIFT);

    #[inline]
    fn head(self) -> Head {
        Head::unpack(self.0)
    }
}

impl Head {
    const NONE: u64 = NO_SLOT as u64;
    const WAITING_SHIFT: u32 = INDEX_BITS;
    const TAG_SHIFT: u32 = Self::WAITING_SHIFT + 1;
    const TAG_MASK: u64 = (1 << (u64::BITS - Self::TAG_SHIFT)) - 1;

    #[inline]
    fn pack(self) -> u64 {
        self.top.map_or(Self::NONE, u64::from)
            | u64::from(self.waiting) << Self::WAITING_SHIFT
            | self.tag << Self::TAG_SHIFT
    }

    #[inline]
    fn unpack(word: u64) -> Self {
        let top = word & Self::NONE;
        Self {
            top: (top != Self::NONE).then_some(top as u32),
            waiting: word >> Self::WAITING_SHIFT & 1 == 1,
            tag: word >> Self::TAG_SHIFT,
        }
    }

    /// Returns the head that is left once the top slot has been taken.
    #[inline]
    fn without<C>(self, top: &Slot<C>) -> Self {
        Self { top: top.link().next, ..self.next() }
    }

    #[inline]
    fn with<C>(self, slot: &Slot<C>) -> Self {
        Self { top: Some(slot.index()), ..self.next() }
    }

    #[inline]
    fn past(self) -> PastHead {
        PastHead(self.pack())
    }

    #[inline]
    fn next(self) -> Self {
        Self { tag: self.tag.wrapping_add(1) & Self::TAG_MASK, ..self }
    }
}

pub(super) enum Popped<'s, C> {
    /// A slot, which the caller now owns.
    Slot(&'s Slot<C>),
    Empty,
    /// The shard is flagged: the caller has to queue up.
    Waiting,
}

/// Why a slot was not pushed. The caller still owns it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PushError {
    /// The shard is flagged: the connection belongs to a waiting check-out.
    Waiting,
    /// The connection is no longer current.
    Stale,
}

pub(super) enum Obstacle {
    Refused(PushError),
    /// The next attempt begins with this head.
    Again(Head),
}

/// A pool's shards. Their number is a power of two.
///
/// They stay in place, even if the core is moved (INV-16).
pub(super) struct Shards(Box<[CachePadded<Shard>]>);

impl Shards {
    /// The maximum number of shards, which only machines with many cores reach. A power of two.
    #[cfg(not(any(loom, shuttle)))]
    const MOST: usize = 256;
    /// Small, because the model checkers explore every possible shard.
    #[cfg(any(loom, shuttle))]
    const MOST: usize = 4;

    /// Creates about one shard per thread (a power of two), but at most one for every two connections. With more
    /// shards, more threads could work without moving a cache line between cores. But the first check-out to wait flags
    /// all shards: with one shard per connection, the throughput of a nearly saturated pool drops by up to half.
    pub(super) fn new(threads: usize, capacity: u32) -> Self {
        Self((0..Self::count(threads, capacity)).map(|_| CachePadded::new(Shard::new())).collect())
    }

    fn count(threads: usize, capacity: u32) -> usize {
        let affordable = (capacity as usize / 2).max(1);
        let wanted = threads.clamp(1, Self::MOST).next_power_of_two();
        // The largest power of two within the limit.
        wanted.min(1 << affordable.ilog2())
    }

    #[inline]
    pub(super) fn preferred(&self, hint: usize) -> &Shard {
        &self.0[hint & (self.0.len() - 1)]
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns all shards, in the order of their hints.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Shard> {
        self.0.iter().map(|shard| &**shard)
    }
}

/// A shard is a single atomic, and therefore an `UnsafeCell`. A reference to an `UnsafeCell` may outlive the cell, as
/// happens when other threads free the core after a push. Any other reference passed as a parameter must point to live
/// memory until the function returns. So the functions that push take pointers to the slab and the slot.
#[derive(Debug)]
pub(super) struct Shard(AtomicU64);

impl Shard {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(Head { top: None, waiting: false, tag: 0 }.pack()))
    }

    #[inline]
    fn load(&self) -> Head {
        // ORD: Acquire; pairs with the Release in every change. Later reads by the caller (the top's link and
        // connection, the pool word) are at least as new as the head.
        Head::unpack(self.0.load(unless_mutant("head_acquires_nothing", Ordering::Acquire)))
    }

    #[inline]
    fn swap(&self, seen: Head, new: Head) -> Result<(), Head> {
        self.0
            // ORD: Release on success; pairs with the Acquire in `load`; publishes the slot that a push links, and the
            // steps before a detach. An Acquire would add nothing: the caller has acquired `seen`, and the tag
            // guarantees that this swap replaces exactly that head. The Acquire on failure has the same purpose as in
            // `load`.
            .compare_exchange_weak(
                seen.pack(),
                new.pack(),
                unless_mutant("head_publishes_nothing", Ordering::Release),
                Ordering::Acquire,
            )
            .map(|_| ())
            .map_err(Head::unpack)
    }

    /// Returns whether the caller sees this head on the shard.
    #[inline]
    pub(super) fn is_at(&self, past: PastHead) -> bool {
        self.load().past() == past
    }

    /// Takes the slot that this head points to, if it is still the shard's head. Returns the new head.
    #[inline]
    pub(super) fn pop_from<C>(&self, with: PastHead, top: &Slot<C>) -> Option<PastHead> {
        let below = with.head().without(top);
        self.swap(with.head(), below).ok()?;
        Some(below.past())
    }

    /// Puts a slot back, if the shard still has this head. It must be the head that was left when the slot was taken,
    /// and the slot must still have its link. Returns the new head.
    ///
    /// The slot's connection was taken or created after this head was made. So it is current, unless a clear or a close
    /// is in progress that has not reached this shard yet. In that case, the clear or the close detaches the slot with
    /// the others, because it changes the pool word first and then the heads of all shards.
    ///
    /// # Safety
    ///
    /// The caller owns the slot (INV-1), which belongs to this shard's core.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) unsafe fn put_back<C>(&self, without: PastHead, slot: *const Slot<C>) -> Option<PastHead> {
        let above = {
            // SAFETY: INV-1: the caller owns the slot until the swap.
            let slot = unsafe { &*slot };
            debug_assert_eq!(slot.link().next, without.head().top, "BUG: the slot has another link");
            without.head().with(slot)
        };
        self.swap(without.head(), above).ok()?;
        Some(above.past())
    }

    /// Takes the top in a single attempt, if it is one of the slab's first slots. Also returns the new head. If this
    /// finds nothing, [`Shard::pop`] may still find a slot.
    ///
    /// Without a loop or a call, the compiler needs few registers and saves none on the stack.
    #[inline]
    pub(super) fn try_pop<'s, C>(&self, slab: &'s Slab<C>) -> Option<(&'s Slot<C>, PastHead)> {
        // The flag is not checked: a flagged shard is empty. Until this shard's flag is raised, a check-out that takes
        // the top is considered to come before a check-out that is queuing up.
        let head = self.load();
        let slot = slab.first_slot(head.top?)?;
        let below = head.without(slot);
        self.swap(head, below).ok()?;
        Some((slot, below.past()))
    }

    #[inline]
    pub(super) fn pop<'s, C>(&self, slab: &'s Slab<C>) -> Popped<'s, C> {
        let mut head = self.load();
        loop {
            if head.waiting {
                return Popped::Waiting;
            }
            let Some(top) = head.top else { return Popped::Empty };
            // The slot may have been taken and its link rewritten since `load`. In that case, the tag has changed too,
            // and the swap fails. Slots are never deallocated, so the read itself is always allowed.
            let slot = slab.slot(top);
            match self.swap(head, head.without(slot)) {
                Ok(()) => return Popped::Slot(slot),
                Err(now) => head = now,
            }
        }
    }

    /// Takes the top, or raises the flag if the shard is empty. The caller holds the wait list's lock.
    pub(super) fn pop_or_flag<'s, C>(&self, slab: &'s Slab<C>) -> Option<&'s Slot<C>> {
        step();
        let mut head = self.load();
        loop {
            let slot = head.top.map(|top| slab.slot(top));
            let new = match slot {
                Some(slot) => head.without(slot),
                None => Head { waiting: true, ..head.next() },
            };
            match self.swap(head, new) {
                Ok(()) => return slot,
                Err(now) => head = now,
            }
        }
    }

    /// Pushes a slot that the caller owns, unless the shard is flagged or `is_current` returns `false`.
    ///
    /// `is_current` is called after the head is read and before it is swapped. A clear changes the pool word first and
    /// then every head, so the push notices one of the two changes:
    ///
    /// | push | clear |
    /// | --- | --- |
    /// | 1. reads the head | a. changes the pool word |
    /// | 2. reads the pool word (`is_current`) | b. detaches, and so changes the head |
    /// | 3. swaps the head | |
    ///
    /// If step b comes before step 1, the Acquire in step 1 makes step a visible to step 2: the slot is stale. If step
    /// b comes between steps 1 and 3, the swap fails and the push starts again. If step b comes after step 3, the slot
    /// is detached with the others.
    ///
    /// # Safety
    ///
    /// The caller owns the slot (INV-1). The slot and the slab belong to this shard's core.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) unsafe fn push<C>(
        &self,
        slab: *const Slab<C>,
        slot: *const Slot<C>,
        is_current: impl Fn() -> bool,
    ) -> Result<(), PushError> {
        let mut head = self.load();
        loop {
            // SAFETY: INV-2: the caller's connection keeps the slab alive until it is pushed.
            let height = head.top.map_or(0, |top| unsafe { (*slab).slot(top) }.link().depth);
            // SAFETY: the caller guarantees this.
            match unsafe { self.push_onto(head, height, slot, &is_current) } {
                Ok(_) => return Ok(()),
                Err(Obstacle::Refused(why)) => return Err(why),
                Err(Obstacle::Again(now)) => head = now,
            }
        }
    }

    /// Pushes as [`Shard::push`] does, but in a single attempt, and only onto one of the slab's first slots or onto an
    /// empty stack. Returns the slot's link and the new head. If this fails, [`Shard::push`] may still push the slot.
    ///
    /// # Safety
    ///
    /// The same as for [`Shard::push`].
    #[inline]
    #[allow(unsafe_code)]
    pub(super) unsafe fn try_push<C>(
        &self,
        slab: *const Slab<C>,
        slot: *const Slot<C>,
        is_current: impl Fn() -> bool,
    ) -> Result<(Link, PastHead), Obstacle> {
        let head = self.load();
        let height = match head.top {
            None => 0,
            // SAFETY: INV-2, as in `push`.
            Some(top) => match unsafe { (*slab).first_slot(top) } {
                None => return Err(Obstacle::Again(head)),
                Some(below) => below.link().depth,
            },
        };
        // SAFETY: the caller guarantees this.
        unsafe { self.push_onto(head, height, slot, is_current) }
    }

    /// Makes one attempt to push onto this head. `height` is the height of its stack. Returns the slot's link and the
    /// new head.
    ///
    /// # Safety
    ///
    /// The same as for [`Shard::put_back`].
    #[inline]
    #[allow(unsafe_code)]
    unsafe fn push_onto<C>(
        &self,
        head: Head,
        height: u32,
        slot: *const Slot<C>,
        is_current: impl Fn() -> bool,
    ) -> Result<(Link, PastHead), Obstacle> {
        if head.waiting {
            return Err(Obstacle::Refused(PushError::Waiting));
        }
        if !is_current() {
            return Err(Obstacle::Refused(PushError::Stale));
        }
        let link = Link { next: head.top, depth: 1 + height };
        let above = {
            // SAFETY: INV-1: the caller owns the slot until the swap.
            let slot = unsafe { &*slot };
            slot.set_link(link);
            head.with(slot)
        };
        self.swap(head, above).map_err(Obstacle::Again)?;
        Ok((link, above.past()))
    }

    /// Takes all slots at once, still linked, and returns the top. Changes the head even if the shard is empty, so that
    /// a push that has read the old head fails.
    pub(super) fn detach(&self) -> Option<u32> {
        let mut head = self.load();
        loop {
            match self.swap(head, Head { top: None, ..head.next() }) {
                Ok(()) => return head.top,
                Err(now) => head = now,
            }
        }
    }

    /// Returns whether a check-out is waiting, or was until a moment ago.
    #[inline]
    pub(super) fn is_waited_for(&self) -> bool {
        self.load().waiting
    }

    /// Lowers the flag if it is raised. The caller holds the wait list's lock.
    pub(super) fn lower_flag(&self) {
        step();
        let mut head = self.load();
        while head.waiting
            && let Err(now) = self.swap(head, Head { waiting: false, ..head.next() })
        {
            head = now;
        }
    }

    /// Returns the number of slots, and a value that changes whenever the stack does.
    pub(super) fn len<C>(&self, slab: &Slab<C>) -> (u32, u64) {
        loop {
            let head = self.load();
            let depth = head.top.map_or(0, |top| slab.slot(top).link_between_heads().depth);
            if self.load() == head {
                return (depth, head.pack());
            }
        }
    }

    /// Calls `f` with the index of each slot, for a caller that does not own the stack. Starts over if the stack
    /// changes during the walk, and gives up after many attempts, in which case it may have missed a slot. Either way,
    /// it may have called `f` with slots that were in the stack for only part of the walk.
    pub(super) fn for_each_slot<C>(&self, slab: &Slab<C>, mut f: impl FnMut(u32)) {
        const ATTEMPTS: u32 = 64;
        for _ in 0..ATTEMPTS {
            let head = self.load();
            let chain = slab.visible_chain(head.top, Slot::link_between_heads);
            chain.take(slab.handed_out()).for_each(|slot| f(slot.index()));
            if self.load() == head {
                return;
            }
        }
    }

    /// Returns the slots from the top down, but only as a guess: other threads may be taking the slots, and the walk
    /// may then leave the stack.
    pub(super) fn guessed_slots<'s, C>(&self, slab: &'s Slab<C>) -> impl Iterator<Item = &'s Slot<C>> {
        let top = self.load().top;
        slab.visible_chain(top, Slot::link).take(slab.handed_out())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn head_keeps_its_fields(
            top in prop::option::of(0..(1_u32 << 20) - 1),
            waiting: bool,
            tag in 0..1_u64 << 43,
        ) {
            let head = Head { top, waiting, tag };
            prop_assert_eq!(Head::unpack(head.pack()), head);
        }

        #[test]
        fn tag_wraps_without_touching_its_neighbours(top in prop::option::of(0..(1_u32 << 20) - 1), waiting: bool) {
            let last = Head { top, waiting, tag: Head::TAG_MASK };
            prop_assert_eq!(Head::unpack(last.next().pack()), Head { tag: 0, ..last });
        }
    }

    #[test]
    fn small_pools_have_few_shards() {
        let counts = [
            (1, 100, 1),
            (2, 100, 2),
            (3, 100, 4),
            (16, 10, 4),
            (16, 3, 1),
            (16, 1, 1),
            (64, 100, 32),
            (500, 100_000, 256),
        ];
        for (threads, capacity, shards) in counts {
            assert_eq!(Shards::count(threads, capacity), shards, "{threads} threads, {capacity} connections");
        }
    }

    #[test]
    fn each_thread_of_a_large_machine_has_a_shard_of_its_own() {
        for threads in [1, 64, 128, 256] {
            let shards = Shards::new(threads, 100_000);
            assert_eq!(shards.len(), threads);
            for (hint, shard) in shards.iter().enumerate() {
                assert!(std::ptr::eq(shards.preferred(hint), shard), "hint {hint} of {threads}");
                assert!(std::ptr::eq(shards.preferred(hint + threads), shard), "hint {hint} of {threads}, once more");
            }
            assert_eq!(shards.iter().count(), threads);
        }
    }

    fn slab_of(slots: u32) -> Slab<()> {
        let slab = Slab::new(slots);
        for _ in 0..slots {
            slab.grow();
        }
        slab
    }

    /// Pushes a slot that is in no stack.
    #[allow(unsafe_code)]
    fn put_on_top(shard: &Shard, slab: &Slab<()>, index: u32, is_current: bool) -> Result<(), PushError> {
        // SAFETY: INV-1: the test has one thread, and the slot is in no stack.
        unsafe { shard.push(slab, slab.slot(index), || is_current) }
    }

    fn drain(shard: &Shard, slab: &Slab<()>) -> Vec<u32> {
        std::iter::from_fn(|| match shard.pop(slab) {
            Popped::Slot(slot) => Some(slot.index()),
            Popped::Empty | Popped::Waiting => None,
        })
        .collect()
    }

    #[test]
    fn stack_is_last_in_first_out_and_knows_its_length() {
        let (shard, slab) = (Shard::new(), slab_of(3));
        for index in 0..3 {
            assert_eq!(shard.len(&slab).0, index);
            put_on_top(&shard, &slab, index, true).unwrap();
        }
        assert_eq!(shard.len(&slab).0, 3);
        assert_eq!(drain(&shard, &slab), [2, 1, 0]);
        assert_eq!(shard.len(&slab).0, 0);
    }

    /// A slot keeps its link if the link is still correct, so each part of the link must be compared.
    #[test]
    fn slot_that_comes_back_is_linked_to_what_is_below_it_now() {
        let (shard, slab) = (Shard::new(), slab_of(3));
        let push = |indices: &[u32]| {
            indices.iter().for_each(|&index| put_on_top(&shard, &slab, index, true).unwrap());
        };
        let linked = |index: u32| (slab.slot(index).link().next, slab.slot(index).link().depth);
        push(&[0, 1]);
        assert_eq!(linked(1), (Some(0), 2));
        // The slot returns to the same place.
        shard.pop(&slab);
        push(&[1]);
        assert_eq!(linked(1), (Some(0), 2));
        // The slot is again at the same height, but above another slot.
        assert_eq!(drain(&shard, &slab), [1, 0]);
        push(&[2, 1]);
        assert_eq!(linked(1), (Some(2), 2));
        // It is above the same slot, but at another height.
        assert_eq!(drain(&shard, &slab), [1, 2]);
        push(&[0, 2, 1]);
        assert_eq!(linked(1), (Some(2), 3));
        assert_eq!(drain(&shard, &slab), [1, 2, 0]);
    }

    #[test]
    fn flag_is_raised_on_an_empty_shard_and_bars_push_and_pop() {
        let (shard, slab) = (Shard::new(), slab_of(2));
        put_on_top(&shard, &slab, 0, true).unwrap();
        assert_eq!(shard.pop_or_flag(&slab).map(Slot::index), Some(0));
        assert!(matches!(shard.pop(&slab), Popped::Empty), "the flag was raised over a connection");
        assert!(shard.pop_or_flag(&slab).is_none());
        assert_eq!(put_on_top(&shard, &slab, 1, true), Err(PushError::Waiting));
        assert!(matches!(shard.pop(&slab), Popped::Waiting));
        shard.lower_flag();
        assert!(matches!(shard.pop(&slab), Popped::Empty));
        put_on_top(&shard, &slab, 1, true).unwrap();
    }

    #[test]
    fn stale_slot_is_not_pushed() {
        let (shard, slab) = (Shard::new(), slab_of(1));
        assert_eq!(put_on_top(&shard, &slab, 0, false), Err(PushError::Stale));
        assert!(matches!(shard.pop(&slab), Popped::Empty));
    }

    /// The walk reads links without acquiring them, so a link may lead to a slot whose segment this thread does not see
    /// yet. In this test the segment does not exist at all.
    #[test]
    fn glance_ends_at_a_slot_that_it_does_not_see() {
        let (shard, slab) = (Shard::new(), Slab::<()>::new(1_000));
        let top = slab.grow();
        put_on_top(&shard, &slab, top, true).unwrap();
        slab.slot(top).set_link(Link { next: Some(500), depth: 2 });
        let seen: Vec<_> = shard.guessed_slots(&slab).map(Slot::index).collect();
        assert_eq!(seen, [top]);
    }

    #[test]
    fn detach_takes_all_and_outdates_every_reading() {
        let (shard, slab) = (Shard::new(), slab_of(2));
        put_on_top(&shard, &slab, 0, true).unwrap();
        put_on_top(&shard, &slab, 1, true).unwrap();
        let seen = shard.load();
        let first = shard.detach();
        assert_eq!(first, Some(1));
        assert_eq!(slab.slot(1).link().next, Some(0));
        let empty = shard.load();
        assert!(shard.swap(seen, seen.next()).is_err());
        assert_eq!(shard.detach(), None);
        assert_ne!(shard.load(), empty, "an empty shard changes too");
    }
}
