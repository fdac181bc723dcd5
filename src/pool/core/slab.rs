//! The slab: one slot for each connection that exists, in segments that are never deallocated while the pool lives.
//!
//! Slots are never deallocated, so reading a slot through an outdated index is always allowed. The tag of the head that
//! contained the index shows whether what was read is still valid.

mod words;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool as UnmodelledBool, AtomicU32 as UnmodelledU32, AtomicU64 as UnmodelledU64,
    Ordering as UnmodelledOrdering,
};
use std::task::{Context, Poll, Waker};

use super::check_out::Started;
use super::hold::Hold;
use super::pinning::Purpose;
use super::services::Membership;
use super::tally::{FirstUse, Tally};
use crate::pool::metrics::Counter;
use crate::pool::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::pool::sync::{Mutex, OnceLock, UnsafeCell, follow, unless_mutant};

pub(super) use words::{INDEX_BITS, Link, NO_SLOT, Stamp};

/// The memory for one connection.
///
/// INV-1 (one owner): from its allocation until it is released to the registry, a slot has one owner at a time: a
/// token, or the stack that it was pushed onto. Only the owner touches `record` and `value`. Ownership passes by a swap
/// of a shard's head, by a hand-over through the wait list, under the registry's lock, or by moving a token. Each of
/// these steps has Release and Acquire semantics.
#[repr(align(64))]
pub(super) struct Slot<C> {
    /// Written by the owner before a push, unless it already has the right value. Any thread may read it at any time.
    link: AtomicU64,
    /// Written by the owner. Any thread may interrupt the connection, which sets `interrupted` and clears `watched`.
    stamp: AtomicU64,
    /// When the connection last became available, in nanoseconds since the pool's epoch. During a timed use, this holds
    /// a reading of the environment's stopwatch instead: the start of the use. Written by the owner.
    since: AtomicU64,
    /// The count of the slot's uses. Written by the owner.
    tally: Tally,
    index: u32,
    /// Whether the connection's last event said that it is in use. Written by the owner, if a subscriber is listening.
    in_use: UnmodelledBool,
    /// Whether the connection was opened for the check-out that is about to take it. Written by the owner.
    opened: UnmodelledBool,
    /// When the connection last became available, on the environment's coarse clock. Written by the owner, if
    /// connections can be checked before use.
    idle_since: UnmodelledU32,
    /// When the connection's lifetime ends, in ticks of the coarse clock since the pool's epoch. Written by the owner
    /// before the connection is live; any thread may read it.
    expires_at: UnmodelledU32,
    /// The connection's number. Written by the owner, before the connection is live.
    id: UnmodelledU64,
    /// When the connection was last checked out ([`Started::word`]). Written by the owner, if a subscriber is
    /// listening.
    started: UnmodelledU64,
    /// The core that the slot belongs to. Set when a connection is created; only the owner reads it.
    core: UnsafeCell<CorePointer>,
    record: UnsafeCell<Record>,
    /// This is a separate allocation, because most slots of a lightly used pool never hold a connection.
    value: UnsafeCell<Option<Box<C>>>,
    /// The waker to wake when the connection is interrupted.
    ///
    /// INV-6 (waker ownership): while the stamp is `watched`, no thread touches this cell. The thread that clears the
    /// mark `watched` (the owner or an interrupter) may then touch the cell. While the stamp is not `watched`, the cell
    /// belongs to the owner, with one exception. An interrupter holds the lock `interrupting` from before it sets
    /// `interrupted` until it has taken the waker, and an owner that finds `interrupted` set waits for the lock.
    waker: UnsafeCell<Option<Waker>>,
    interrupting: Mutex<()>,
    /// Where and when the connection was checked out. Created by the owner when it is first needed.
    hold: OnceLock<Box<Hold>>,
}

/// A pointer to the core. The slot does not know the core's type.
#[derive(Clone, Copy)]
struct CorePointer(*const ());

// SAFETY: only a token follows the pointer, and the core is `Sync`.
#[allow(unsafe_code)]
unsafe impl Send for CorePointer {}

/// The pool's record of a connection.
#[derive(Default)]
pub(super) struct Record {
    /// The reading of the environment's stopwatch when the connection was created.
    pub(super) created: u64,
    /// The service that the connection belongs to, in load-balanced mode.
    pub(super) membership: Option<Membership>,
    pub(super) purpose: Purpose,
    pub(super) first_use: FirstUse,
    /// INV-2 (a connection keeps its pool): an `Arc` to the core, from the connection's creation until the slot is
    /// released to the registry. Tokens hold plain pointers to the core and rely on this invariant.
    pub(super) core: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: INV-1: one owner at a time touches `record` and `value`, on any thread, so `C` must be `Send`. INV-6
// guarantees the same for `waker`.
#[allow(unsafe_code)]
unsafe impl<C: Send> Sync for Slot<C> {}

#[allow(unsafe_code)]
impl<C> Slot<C> {
    fn new(index: u32) -> Self {
        Self {
            link: AtomicU64::new(Link { next: None, depth: 0 }.pack()),
            stamp: AtomicU64::new(Stamp::default().pack()),
            since: AtomicU64::new(0),
            tally: Tally::new(),
            index,
            in_use: UnmodelledBool::new(false),
            opened: UnmodelledBool::new(false),
            idle_since: UnmodelledU32::new(0),
            expires_at: UnmodelledU32::new(u32::MAX),
            id: UnmodelledU64::new(0),
            started: UnmodelledU64::new(0),
            core: UnsafeCell::new(CorePointer(std::ptr::null())),
            record: UnsafeCell::new(Record::default()),
            value: UnsafeCell::new(None),
            waker: UnsafeCell::new(None),
            interrupting: Mutex::new(()),
            hold: OnceLock::new(),
        }
    }

    #[inline]
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Returns the connection's number, and whether the events so far say that it is in use. Called by the owner, and
    /// by a forked child, which has no other threads.
    #[inline]
    pub(super) fn known_as(&self) -> (u64, bool) {
        // Relaxed: the owner reads its own or the previous owner's value, ordered by the step that passed the slot on.
        (self.id.load(UnmodelledOrdering::Relaxed), self.in_use.load(UnmodelledOrdering::Relaxed))
    }

    /// Sets the values that [`Slot::known_as`] returns. Called by the owner.
    pub(super) fn set_known_as(&self, id: u64, in_use: bool) {
        // Relaxed: see `known_as`.
        self.id.store(id, UnmodelledOrdering::Relaxed);
        self.in_use.store(in_use, UnmodelledOrdering::Relaxed);
    }

    /// Records the time at which the connection was checked out. Called by the owner.
    pub(super) fn set_started(&self, started: Started) {
        // Relaxed: see `known_as`.
        self.started.store(started.word(), UnmodelledOrdering::Relaxed);
    }

    /// Takes the time at which the connection was checked out, if a subscriber was listening then. Called by the owner,
    /// and by a forked child.
    pub(super) fn take_started(&self) -> Started {
        // Relaxed: see `known_as`. This is not a swap, because nothing else writes the word.
        let started = Started::from_word(self.started.load(UnmodelledOrdering::Relaxed));
        self.started.store(Started::UNHEARD.word(), UnmodelledOrdering::Relaxed);
        started
    }

    /// Forgets that a subscriber was told of a use. Any thread may call this. If the owner notes a use at the same
    /// time, the end of that use is reported as if no subscriber had been told of its beginning.
    #[cold]
    pub(super) fn forget_use(&self) {
        // Relaxed: see `known_as`.
        self.in_use.store(false, UnmodelledOrdering::Relaxed);
        self.started.store(Started::UNHEARD.word(), UnmodelledOrdering::Relaxed);
    }

    /// Returns the core that the slot belongs to.
    ///
    /// # Safety
    ///
    /// The caller owns the slot (INV-1), and a connection was created in it.
    #[inline]
    pub(super) unsafe fn core(&self) -> *const () {
        // SAFETY: INV-1, as the caller guarantees.
        self.core.with(|core| unsafe { (*core).0 })
    }

    /// Sets the core that the slot belongs to.
    ///
    /// # Safety
    ///
    /// The caller owns the slot (INV-1).
    pub(super) unsafe fn set_core(&self, core: *const ()) {
        // SAFETY: INV-1, as the caller guarantees.
        self.core.with_mut(|present| unsafe { *present = CorePointer(core) });
    }

    #[inline]
    pub(super) fn link(&self) -> Link {
        // Relaxed: published by the swap of the head that leads here. A reader that has not acquired that head
        // (`Shard::guessed_slots`) only guesses.
        Link::unpack(self.link.load(Ordering::Relaxed))
    }

    /// Returns the link, for a reader that compares the heads before and after its walk.
    pub(super) fn link_between_heads(&self) -> Link {
        // ORD: Acquire; pairs with the Release in `set_link`. If a reader finds the link from a later push, it then
        // finds that the head has changed.
        Link::unpack(self.link.load(unless_mutant("link_acquires_nothing", Ordering::Acquire)))
    }

    /// Sets the link. Called by the owner.
    ///
    /// A slot that returns to its old position already has the right link, so the store is skipped. The swap that
    /// follows waits for every earlier store, and this store would have to wait until the link of the slot below has
    /// been read.
    #[inline]
    pub(super) fn set_link(&self, link: Link) {
        // Relaxed: the owner reads its own or the previous owner's value, ordered by the step that passed the slot on.
        if self.link.load(Ordering::Relaxed) == link.pack() {
            return;
        }
        // ORD: Release; pairs with the Acquire in `link_between_heads`; publishes that the slot was taken. For all
        // other readers, the swap of the head publishes the link.
        self.link.store(link.pack(), unless_mutant("link_publishes_nothing", Ordering::Release));
    }

    #[inline]
    pub(super) fn stamp(&self) -> Stamp {
        // ORD: Acquire; pairs with the AcqRel in `interrupt`: an owner that finds the mark `interrupted` also finds the
        // reason for it, which is the phase of the pool. An owner reads only its own generation.
        Stamp::unpack(self.stamp.load(unless_mutant("stamp_acquires_nothing", Ordering::Acquire)))
    }

    /// Sets the stamp. Called by the owner.
    pub(super) fn set_stamp(&self, stamp: Stamp) {
        // Relaxed: the stamp publishes only itself.
        self.stamp.store(stamp.pack(), Ordering::Relaxed);
    }

    /// Marks the connection as given up: its owner is about to close it, so it no longer counts as live. Called under
    /// the registry's lock.
    pub(super) fn give_up(&self) {
        // Relaxed: the lock orders it.
        self.stamp.fetch_and(!Stamp::LIVE, Ordering::Relaxed);
    }

    /// Marks the connection as established. Returns the previous stamp, including any mark of interruption.
    pub(super) fn set_established(&self) -> Stamp {
        // Relaxed: only the mark matters here. Dropping the `Pending` acquires the stamp again before reading the
        // reason.
        Stamp::unpack(self.stamp.fetch_and(!Stamp::PENDING, Ordering::Relaxed))
    }

    /// Marks the connection as interrupted and counts the interruption, if the connection is live, not marked yet, and
    /// accepted by `applies`. Returns the waker to wake.
    pub(super) fn interrupt(&self, counter: Option<&Counter>, applies: impl Fn(Stamp) -> bool) -> Option<Waker> {
        let concerned = |stamp: Stamp| stamp.live && !stamp.interrupted && applies(stamp);
        if !concerned(self.stamp()) {
            return None;
        }
        let interrupting = self.interrupting.lock();
        let before = self
            .stamp
            // ORD: AcqRel; the Release pairs with the Acquire in `stamp`. The Acquire pairs with the Release in
            // `watch`, so the waker is visible.
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
                let stamp = Stamp::unpack(word);
                concerned(stamp).then(|| Stamp { interrupted: true, watched: false, ..stamp }.pack())
            })
            .map(Stamp::unpack)
            .ok()?;
        counter.inspect(|counter| counter.count());
        let waker = self.waker_left_by(before);
        drop(interrupting);
        waker
    }

    /// Completes when the connection is interrupted. Called by the owner.
    ///
    /// The marks `interrupted` and `watched` are in one word, so the thread that sets the second mark sees the first.
    #[inline]
    pub(super) fn poll_interrupted(&self, context: &mut Context<'_>) -> Poll<()> {
        let stamp = self.stamp();
        if stamp.interrupted {
            return Poll::Ready(());
        }
        let replaced = if stamp.watched { self.take_waker() } else { None };
        let waker = match replaced {
            Some(present) if present.will_wake(context.waker()) => present,
            _ => context.waker().clone(),
        };
        if self.watch(waker) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Leaves a waker for an interruption to wake. Returns whether the connection is already interrupted. Called by the
    /// owner, which has not left a waker yet.
    #[inline]
    fn watch(&self, waker: Waker) -> bool {
        // SAFETY: INV-6: the stamp is not `watched`, so the cell belongs to the owner. An interrupter that sets its
        // mark now does not find `watched` set.
        self.waker.with_mut(|present| unsafe { *present = Some(waker) });
        // ORD: AcqRel; the Release pairs with the Acquire in `interrupt` and publishes the waker. The Acquire has the
        // same purpose as in `stamp`.
        let order = unless_mutant("watch_publishes_nothing", Ordering::AcqRel);
        let before = Stamp::unpack(self.stamp.fetch_or(Stamp::WATCHED, order));
        before.interrupted
    }

    /// Takes back the waker that an interruption would wake. Called by the owner, which drops it outside all locks.
    #[inline]
    pub(super) fn take_waker(&self) -> Option<Waker> {
        // Relaxed: if the mark `watched` was still set, the owner left the waker itself. If an interrupter has taken
        // the waker, the owner waits for the interrupter's lock, which orders the two threads.
        let before = Stamp::unpack(self.stamp.fetch_and(!Stamp::WATCHED, Ordering::Relaxed));
        if before.interrupted {
            self.await_interrupter();
        }
        self.waker_left_by(before)
    }

    /// Takes the waker, if the stamp `before` says that there is one. Called by the thread that has cleared the mark
    /// `watched`.
    #[inline]
    fn waker_left_by(&self, before: Stamp) -> Option<Waker> {
        // SAFETY: INV-6: the caller cleared the mark.
        before.watched.then(|| self.waker.with_mut(|waker| unsafe { (*waker).take() })).flatten()
    }

    /// Waits for the interrupter that set the mark and may still be taking the waker.
    #[cold]
    fn await_interrupter(&self) {
        drop(self.interrupting.lock());
    }

    /// Returns the record of the connection's holder, if it has been created.
    pub(super) fn hold(&self) -> Option<&Hold> {
        self.hold.get().map(|hold| &**hold)
    }

    /// Returns the record of the connection's holder, creating it if necessary. Called by the owner.
    pub(super) fn hold_or_new(&self) -> &Hold {
        if self.hold.get().is_none() {
            let made = self.hold.set(Box::new(Hold::new()));
            assert!(made.is_ok(), "BUG: two owners of a slot");
        }
        self.hold().expect("BUG: a record is gone")
    }

    /// Returns the time at which the connection became available, or at which its timed use began.
    #[inline]
    pub(super) fn since(&self) -> u64 {
        // Relaxed: the owner reads its own or the previous owner's value, ordered by the step that passed the slot on.
        // Other threads only guess.
        self.since.load(Ordering::Relaxed)
    }

    /// Sets the instant that [`Slot::since`] returns. Called by the owner.
    ///
    /// The beginning of a timed use overwrites the instant at which the connection became available, and the check-in
    /// sets it again. In the meantime, a search for connections that have been idle for too long may guess wrong
    /// (`Shard::guessed_slots`), and then corrects itself.
    #[inline]
    pub(super) fn set_since(&self, since: u64) {
        // Relaxed: see `since`.
        self.since.store(since, Ordering::Relaxed);
    }

    /// Returns the time at which the connection became available, on the environment's coarse clock. Called by the
    /// owner.
    #[inline]
    pub(super) fn idle_since(&self) -> u32 {
        // Relaxed: see `known_as`.
        self.idle_since.load(UnmodelledOrdering::Relaxed)
    }

    /// Sets the instant that [`Slot::idle_since`] returns. Called by the owner.
    ///
    /// Skips the store if the tick has not changed, for the reason given at `set_link`.
    #[inline]
    pub(super) fn set_idle_since(&self, tick: u32) {
        // Relaxed: see `known_as`.
        if self.idle_since.load(UnmodelledOrdering::Relaxed) != tick {
            self.idle_since.store(tick, UnmodelledOrdering::Relaxed);
        }
    }

    /// Returns the time at which the connection's lifetime ends. Any thread may call this. `u32::MAX` means never.
    pub(super) fn expires_at(&self) -> u32 {
        // Relaxed: see `since`.
        self.expires_at.load(UnmodelledOrdering::Relaxed)
    }

    /// Sets the instant that [`Slot::expires_at`] returns. Called by the owner.
    pub(super) fn set_expires_at(&self, tick: u32) {
        // Relaxed: see `since`.
        self.expires_at.store(tick, UnmodelledOrdering::Relaxed);
    }

    #[inline]
    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Marks the connection as opened for the check-out that is about to take it. Called by the owner.
    pub(super) fn mark_opened(&self) {
        // Relaxed, as in `take_opened_mark`: only the owner uses the mark.
        self.opened.store(true, UnmodelledOrdering::Relaxed);
    }

    /// Removes the mark, and returns whether it was set. Called by the owner.
    pub(super) fn take_opened_mark(&self) -> bool {
        let marked = self.opened.load(UnmodelledOrdering::Relaxed);
        if marked {
            self.opened.store(false, UnmodelledOrdering::Relaxed);
        }
        marked
    }

    /// Calls `f` with the record.
    ///
    /// # Safety
    ///
    /// The caller owns the slot (INV-1), and nothing changes the record during the call.
    #[inline]
    pub(super) unsafe fn with_record<R>(&self, f: impl FnOnce(&Record) -> R) -> R {
        // SAFETY: INV-1, as the caller guarantees.
        self.record.with(|record| f(unsafe { &*record }))
    }

    /// Calls `f` with the record, to change it.
    ///
    /// # Safety
    ///
    /// The caller owns the slot (INV-1), and nothing else uses the record during the call.
    #[inline]
    pub(super) unsafe fn with_record_mut<R>(&self, f: impl FnOnce(&mut Record) -> R) -> R {
        // SAFETY: INV-1, as the caller guarantees.
        self.record.with_mut(|record| f(unsafe { &mut *record }))
    }

    /// Puts a connection into the slot or takes it out. Returns the previous content.
    ///
    /// # Safety
    ///
    /// The caller owns the slot (INV-1), and nothing borrows the connection.
    pub(super) unsafe fn replace(&self, value: Option<C>) -> Option<C> {
        // SAFETY: INV-1, as the caller guarantees.
        let before = self.value.with_mut(|present| std::mem::replace(unsafe { &mut *present }, value.map(Box::new)));
        before.map(|before| *before)
    }

    /// Returns the connection, which its owner may borrow for as long as it owns the slot.
    ///
    /// # Safety
    ///
    /// The caller owns the slot (INV-1).
    #[inline]
    pub(super) unsafe fn value_ref(&self) -> Option<&C> {
        // SAFETY: INV-1: nothing else touches the value while the owner borrows it.
        self.value.with(|value| unsafe { (*value).as_deref() })
    }

    /// Returns the connection, for its owner to change.
    ///
    /// # Safety
    ///
    /// The caller owns the slot (INV-1) and does not hold another borrow of the connection.
    #[allow(clippy::mut_from_ref, reason = "exclusive by INV-1, not by the borrow of the slot")]
    #[inline]
    pub(super) unsafe fn value_mut(&self) -> Option<&mut C> {
        // SAFETY: INV-1: nothing else touches the value while the owner borrows it.
        self.value.with_mut_behind(|value| unsafe { (*value).as_deref_mut() })
    }
}

pub(super) struct Slab<C> {
    /// The first slots. Most pools do not need any other slots, and a single comparison identifies a first slot.
    first: Box<[Slot<C>]>,
    /// Segment `k` has `2^k` times as many slots as `first`: as many as `first` and all earlier segments together.
    segments: [OnceLock<Box<[Slot<C>]>>; Slab::<()>::SEGMENTS],
    /// The number of slots that have ever been handed out.
    len: AtomicU32,
}

impl<C> Slab<C> {
    /// Enough for 2^20 slots, even with the fewest first slots.
    #[cfg(not(loom))]
    const SEGMENTS: usize = 20;
    /// The models use at most eight slots. Creating more segments would take much of an execution's time.
    #[cfg(loom)]
    const SEGMENTS: usize = 2;
    /// A pool of the default size does not need segments.
    #[cfg(not(any(loom, shuttle)))]
    const FIRST_SLOTS: u32 = 128;
    /// The models use segments from the third slot on.
    #[cfg(any(loom, shuttle))]
    const FIRST_SLOTS: u32 = 2;

    /// Creates a slab for up to `capacity` slots, with none handed out.
    pub(super) fn new(capacity: u32) -> Self {
        let first = capacity.clamp(1, Self::FIRST_SLOTS).next_power_of_two();
        Self {
            first: (0..first).map(Slot::new).collect(),
            segments: std::array::from_fn(|_| OnceLock::new()),
            len: AtomicU32::new(0),
        }
    }

    #[inline]
    pub(super) fn slot(&self, index: u32) -> &Slot<C> {
        match self.first_slot(index) {
            Some(slot) => slot,
            None => self.later_slot(index),
        }
    }

    /// Returns the slot if it is one of the first slots.
    #[inline]
    pub(super) fn first_slot(&self, index: u32) -> Option<&Slot<C>> {
        // The index comes from the word that was just read.
        follow();
        self.first.get(index as usize)
    }

    #[cold]
    fn later_slot(&self, index: u32) -> &Slot<C> {
        // The index comes from a word that was written after `grow` returned the index, and that the caller has
        // acquired.
        self.visible_slot(index).expect("BUG: an index without a slot")
    }

    /// Returns the slot if the calling thread sees it. An index that was read without acquiring it may belong to a
    /// segment that this thread does not see yet.
    fn visible_slot(&self, index: u32) -> Option<&Slot<C>> {
        self.first_slot(index).or_else(|| {
            let (segment, offset) = self.locate(index);
            self.segments.get(segment)?.get()?.get(offset)
        })
    }

    /// Returns the segment for an index beyond the first slots, and the offset in that segment.
    fn locate(&self, index: u32) -> (usize, usize) {
        let first = self.first.len().trailing_zeros();
        // Segment `k` begins at index `first * 2^k`, so the index's highest bit determines the segment.
        let highest = u32::BITS - 1 - index.leading_zeros();
        ((highest - first) as usize, (index - (1 << highest)) as usize)
    }

    /// Hands out a slot for the first time. The caller holds the registry's lock and stays within the capacity.
    pub(super) fn grow(&self) -> u32 {
        // Relaxed: changes are made under the registry's lock.
        let index = self.len.load(Ordering::Relaxed);
        // The index at which a segment begins is also the number of its slots.
        if index as usize >= self.first.len() && index.is_power_of_two() {
            let (segment, _) = self.locate(index);
            let made = self.segments[segment].set((index..2 * index).map(Slot::new).collect());
            assert!(made.is_ok(), "BUG: segment {segment} created twice");
        }
        // ORD: Release; pairs with the Acquire in `iter`; publishes the segment.
        self.len.store(index + 1, unless_mutant("growth_publishes_nothing", Ordering::Release));
        index
    }

    /// Returns the number of slots that have ever been handed out. This is at least the height of any stack whose head
    /// the caller has acquired.
    pub(super) fn handed_out(&self) -> usize {
        // Relaxed: each slot of a stack was handed out before it was pushed, and the head publishes the push.
        self.len.load(Ordering::Relaxed) as usize
    }

    /// Returns the slots of a stack as [`Slab::chain`] does, for a caller that does not own the stack. The walk may
    /// leave the stack, so the result is only a guess, unless the caller reads the links with
    /// [`Slot::link_between_heads`] and compares the heads. The walk ends at a slot that this thread does not see.
    pub(super) fn visible_chain(&self, top: Option<u32>, link: fn(&Slot<C>) -> Link) -> impl Iterator<Item = &Slot<C>> {
        let mut next = top;
        std::iter::from_fn(move || {
            let slot = self.visible_slot(next?)?;
            next = link(slot).next;
            Some(slot)
        })
    }

    /// Returns the slots of a stack from the top down. Called by the owner of the stack. The link of each slot is read
    /// before the slot is returned, so the caller may give the slot away.
    pub(super) fn chain(&self, top: Option<u32>) -> impl Iterator<Item = &Slot<C>> {
        let mut next = top;
        std::iter::from_fn(move || {
            let slot = self.slot(next?);
            next = slot.link().next;
            Some(slot)
        })
    }

    /// Returns all slots that have ever been handed out.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot<C>> {
        // ORD: Acquire; pairs with the Release in `grow`; makes the segments visible.
        (0..self.len.load(unless_mutant("growth_acquires_nothing", Ordering::Acquire))).map(|index| self.slot(index))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_index_has_a_slot_of_its_own(capacity in 1_u32..1_500) {
            let slab = Slab::<()>::new(capacity);
            for index in 0..capacity {
                prop_assert_eq!(slab.grow(), index);
            }
            for index in 0..capacity {
                prop_assert_eq!(slab.slot(index).index(), index);
            }
            prop_assert_eq!(slab.iter().count(), capacity as usize);
        }
    }

    #[test]
    fn last_index_lies_in_a_segment() {
        for capacity in [1, 2, 128, 1 << 20] {
            let (segment, _) = Slab::<()>::new(capacity).locate((1 << 20) - 2);
            assert!(segment < Slab::<()>::SEGMENTS, "first slots for {capacity}: segment {segment}");
        }
    }

    /// A pool allocates slots for connections that it may never open, so a slot must not grow unnoticed.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn slot_takes_192_bytes_whatever_the_connection() {
        assert_eq!([size_of::<Slot<()>>(), size_of::<Slot<[u8; 1_000]>>()], [192, 192]);
    }

    #[test]
    fn interruption_reaches_the_generations_it_is_meant_for() {
        let (slot, counter) = (Slot::<()>::new(0), Counter::default());
        let mut context = Context::from_waker(Waker::noop());
        slot.set_stamp(Stamp { generation: 5, live: true, pending: true, ..Stamp::default() });
        assert!(slot.poll_interrupted(&mut context).is_pending());
        assert!(slot.interrupt(Some(&counter), |stamp| stamp.generation <= 4).is_none());
        assert!(slot.poll_interrupted(&mut context).is_pending());
        assert!(slot.interrupt(Some(&counter), |stamp| stamp.generation <= 5).is_some());
        assert!(slot.poll_interrupted(&mut context).is_ready());
        slot.set_stamp(Stamp::default());
        assert!(slot.interrupt(Some(&counter), |_| true).is_none(), "nothing lives here");
        assert_eq!(counter.get(), 1);
    }
}
