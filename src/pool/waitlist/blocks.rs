//! The wait list that ships, built on nodes of its own.
//!
//! A node is part of the future that waits. A lane is a chain of blocks, and a block holds a few pointers to nodes. One
//! short lock guards all of it. A granter claims the first node by taking its pointer out of its block, and then writes
//! the grant directly into the node, so no other task can take the grant in between. Serving one waiter takes two
//! locked sections, and neither touches the node's memory, which is usually in another core's cache. Checking for the
//! grant takes no lock, and neither does polling again with the same waker.
//!
//! # What happens under the lock
//!
//! No operation's work depends on how many nodes wait, or on how many have left. A node knows its block and its entry.
//! A block records in one word which of its entries wait, and leaves its chain as soon as none does. Nothing is
//! allocated or freed under the lock: a missing block is allocated outside of it ([`WaitList::lock_with_room`]), and
//! spare blocks are kept for reuse. Grants are written and wakers run outside of the lock.
//!
//! A list keeps its blocks until it is dropped. For each node of the longest queue so far, that is between 10 bytes
//! (full blocks) and 128 bytes (one waiting node left in each block).

mod chain;

use std::cell::Cell;
use std::marker::{PhantomData, PhantomPinned};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};

use super::Lane;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Backoff, BriefGuard, BriefLock, UnsafeCell, discard, follow, reads, unless_mutant, writes};
use chain::{Block, Chain, block};

/// A waiter's place in the queue.
///
/// INV-3 (nodes stay): from when it is enqueued until it is granted or has left the queue, a node does not move. Its
/// owner therefore leaves under the list's lock. An owner that finds its node claimed (no longer in its block, not yet
/// granted) waits for the grant, which the granter is about to write.
///
/// INV-4 (access to a node's cells): the owner before the node is enqueued; the holder of the list's lock while the
/// node is in a block; the granter while the node is claimed; the owner again once the node is granted or has left. In
/// addition, the owner may read `waker` at any time, because only the owner writes it. `block` and `entry` are the
/// owner's alone.
///
/// A node is part of every check-out's future and moves from core to core with it, so it is small.
pub(in crate::pool) struct Node<G> {
    /// The node's state: `APART`, `QUEUED` or `GRANTED`.
    progress: AtomicU32,
    /// The index of the block's entry that points here.
    entry: UnsafeCell<u32>,
    block: UnsafeCell<Option<NonNull<Block<G>>>>,
    /// The waker's bits, from when the node is enqueued. The granter moves the waker out and leaves the bits.
    waker: UnsafeCell<MaybeUninit<Waker>>,
    grant: UnsafeCell<Option<G>>,
    /// A block points here.
    _pinned: PhantomPinned,
}

// SAFETY: INV-4: at any time, a node's cells are either touched by one thread or read by two. A grant moves from the
// granter's thread to the waiter's, hence `G: Send`. The pointer to the block is followed only under the list's lock.
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
            progress: AtomicU32::new(Self::APART),
            entry: UnsafeCell::new(0),
            block: UnsafeCell::new(None),
            waker: UnsafeCell::new(MaybeUninit::uninit()),
            grant: UnsafeCell::new(None),
            _pinned: PhantomPinned,
        }
    }

    /// Returns whether the node was enqueued and its grant not yet taken. Called by the owner of a node that has not
    /// left.
    pub(in crate::pool) fn is_queued(&self) -> bool {
        // Relaxed: only the owner changes the word to or from `APART`.
        self.progress.load(Ordering::Relaxed) != Self::APART
    }

    /// Takes the grant, if it has come. Called by the owner.
    fn take_grant(&self) -> Option<G> {
        // ORD: Acquire; pairs with the Release in `Claimed::grant`; makes the grant visible.
        if self.progress.load(Ordering::Acquire) != Self::GRANTED {
            return None;
        }
        // Relaxed: only the owner reads it until the node is enqueued again.
        self.progress.store(Self::APART, Ordering::Relaxed);
        // SAFETY: INV-4: the node is granted, so it is the owner's.
        self.grant.with_mut(|grant| unsafe { (*grant).take() })
    }

    /// Makes the node ready to be enqueued. Called by the owner of a node that is not enqueued.
    fn prepare(&self, waker: Waker) {
        // Relaxed: only the owner itself reads this value. A granter reaches the node through the lock.
        self.progress.store(Self::QUEUED, Ordering::Relaxed);
        // SAFETY: INV-4: not enqueued yet, so it is the caller's.
        self.waker.with_mut(|present| unsafe { (*present).write(waker) });
    }

    /// Notes where the node was enqueued. Called by its owner.
    fn note(&self, place: &Place<G>) {
        // SAFETY: INV-4: only the owner touches these cells.
        unsafe {
            self.entry.with_mut(|present| *present = place.entry);
            self.block.with_mut(|present| *present = Some(place.block));
        }
    }

    /// Waits for the grant of a claimed node. At most [`WaitList::BATCH`] grants are written before it. Each is a few
    /// stores, unless the granter is preempted meanwhile.
    fn await_grant(&self) -> G {
        let mut backoff = Backoff::new();
        loop {
            if let Some(grant) = self.take_grant() {
                return grant;
            }
            backoff.pause();
        }
    }

    /// Returns whether the stored waker wakes the same task as `waker`. Called by the owner of an enqueued node,
    /// without the lock.
    ///
    /// The granter may have moved the stored waker out. That does no harm while the two are equal: the granter wakes it
    /// after the grant. The stored waker may even have been freed, and `waker` may belong to another task at the same
    /// address. But then the grant was published before `waker` was created, and the owner, which has looked for the
    /// grant since, has found it.
    fn would_wake(&self, waker: &Waker) -> bool {
        // SAFETY: INV-4: the owner reads. Only the bits are compared, and no waker is dropped.
        self.waker.with(|present| unsafe { (*present).assume_init_ref().will_wake(waker) })
    }

    /// Moves the waker out.
    ///
    /// # Safety
    ///
    /// The node was enqueued, its waker was not moved out since then, and no thread writes it meanwhile (INV-4).
    unsafe fn move_waker_out(&self) -> Waker {
        // SAFETY: the caller guarantees it. The bits are read and left in place, because the owner may be reading them
        // too.
        self.waker.with(|waker| unsafe { (*waker).assume_init_read() })
    }
}

/// A node that was taken out of its block and is about to receive a grant.
#[must_use = "its owner waits for the grant"]
pub(in crate::pool) struct Claimed<G>(NonNull<Node<G>>);

// SAFETY: INV-4: the node is touched only as the invariant allows.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Claimed<G> {}

#[allow(unsafe_code)]
impl<G> Claimed<G> {
    /// Writes the grant. Returns the waker of the node's owner.
    ///
    /// Must not be called under a lock that a waiter takes: the first write usually has to fetch the node's cache line.
    pub(in crate::pool) fn grant(self, grant: G) -> Waker {
        // SAFETY: INV-3: the node is claimed, so it stays in place.
        let node = unsafe { self.0.as_ref() };
        follow();
        // SAFETY: INV-4: the node is claimed, so it is the granter's.
        let waker = unsafe {
            // Overwrites without reading: the old value is `None`, because the owner has taken every earlier grant.
            node.grant.with_mut(|present| present.write(Some(grant)));
            node.move_waker_out()
        };
        // ORD: Release; pairs with the Acquire in `Node::take_grant`; publishes the grant. The node may be gone from
        // here on.
        node.progress.store(Node::<G>::GRANTED, unless_mutant("grant_publishes_nothing", Ordering::Release));
        waker
    }
}

/// Where a node was enqueued.
struct Place<G> {
    block: NonNull<Block<G>>,
    entry: u32,
}

// SAFETY: the pointer is followed only under the list's lock.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Place<G> {}

/// The nodes that [`LockedWaitList::turn_away`] took out of [`Lane::Waiters`]: all nodes up to this era.
#[must_use = "the owners wait for a refusal"]
pub(in crate::pool) struct TurnedAway<G> {
    era: u32,
    of: PhantomData<fn() -> G>,
}

pub(in crate::pool) struct WaitList<G> {
    queue: BriefLock<LockedWaitList<G>>,
}

impl<G> WaitList<G> {
    /// The most nodes that [`claim_turned_away`](Self::claim_turned_away) claims at a time. It is small, so that the
    /// section under the lock is short, and so is the time during which the nodes' owners cannot leave.
    pub(in crate::pool) const BATCH: usize = 16;

    pub(in crate::pool) fn new() -> Self {
        Self { queue: BriefLock::new(LockedWaitList::new()) }
    }

    pub(in crate::pool) fn lock(&self) -> BriefGuard<'_, LockedWaitList<G>> {
        self.queue.lock()
    }

    /// Takes the lock, with room for one more node in `lane`. If there is no room, allocates a block outside of the
    /// lock.
    #[inline]
    pub(in crate::pool) fn lock_with_room(&self, lane: Lane) -> BriefGuard<'_, LockedWaitList<G>> {
        let queue = self.lock();
        if queue.has_room(lane) { queue } else { self.make_room(queue) }
    }

    #[cold]
    fn make_room<'l>(&'l self, queue: BriefGuard<'l, LockedWaitList<G>>) -> BriefGuard<'l, LockedWaitList<G>> {
        drop(queue);
        let block = Block::new();
        let mut queue = self.lock();
        queue.keep(block);
        queue
    }

    /// Runs a section under the lock, on this thread or on the one that holds the lock.
    #[inline(always)]
    pub(in crate::pool) fn run<R: Send, F: FnOnce(&mut LockedWaitList<G>) -> R + Send>(
        &self,
        now: impl FnOnce(&mut LockedWaitList<G>) -> R,
        later: impl FnOnce() -> F,
    ) -> R {
        self.queue.run(now, later)
    }

    /// Appends the node to the waiters, if others wait already and a block has room.
    #[inline]
    #[allow(unsafe_code)]
    pub(in crate::pool) fn try_join(&self, node: Pin<&Node<G>>, waker: &Waker) -> Option<Poll<G>>
    where
        G: Send,
    {
        let (node, waker) = (node.get_ref(), Cell::new(Some(waker.clone())));
        let prepare = || waker.take().into_iter().for_each(|waker| node.prepare(waker));
        let now = |queue: &mut LockedWaitList<G>| {
            queue.admits_another().then(|| {
                // Under the lock, because an exchange such as that of the lock waits for the stores before it.
                prepare();
                queue.append(Lane::Waiters, node)
            })
        };
        let later = || {
            prepare();
            |queue: &mut LockedWaitList<G>| queue.admits_another().then(|| queue.append(Lane::Waiters, node))
        };
        if let Some(place) = self.run(now, later) {
            node.note(&place);
            return Some(Poll::Pending);
        }
        if node.is_queued() {
            // Relaxed: only the owner reads it until the node is enqueued.
            node.progress.store(Node::<G>::APART, Ordering::Relaxed);
            // SAFETY: INV-4: the node was not enqueued, so it is the owner's.
            discard(unsafe { node.move_waker_out() });
        }
        discard(waker.take());
        None
    }

    /// Does nothing: a node waits from when it is enqueued.
    #[inline(always)]
    pub(in crate::pool) fn begin(&self, _: Pin<&Node<G>>) -> Poll<G> {
        Poll::Pending
    }

    /// Does nothing: a granter claims under the lock.
    #[inline(always)]
    pub(in crate::pool) fn try_claim(&self, _: impl Fn() -> bool) -> Option<Claimed<G>> {
        None
    }

    /// Claims up to [`BATCH`](Self::BATCH) of the nodes that were turned away and have not left. If it claims none, no
    /// more are left.
    ///
    /// `claimed` must be empty and have room for a batch.
    pub(in crate::pool) fn claim_turned_away(&self, away: &mut TurnedAway<G>, claimed: &mut Vec<Claimed<G>>) {
        debug_assert!(claimed.is_empty() && claimed.capacity() >= Self::BATCH, "BUG: no room for a batch");
        let mut queue = self.lock();
        while claimed.len() < Self::BATCH
            && let Some(next) = queue.claim_turned_away(away)
        {
            claimed.push(next);
        }
    }

    /// Leaves the queue, and calls `settle` while the lock is held. Returns the grant if one came first. Called by the
    /// owner of a node that was enqueued and whose grant was not taken since then.
    #[allow(unsafe_code)]
    pub(in crate::pool) fn leave(&self, node: &Node<G>, settle: impl FnOnce(&LockedWaitList<G>)) -> Option<G> {
        let mut queue = self.lock();
        if !queue.remove(node) {
            drop(queue);
            return Some(node.await_grant());
        }
        settle(&queue);
        drop(queue);
        // Relaxed: only the owner reads it until the node is enqueued again.
        node.progress.store(Node::<G>::APART, Ordering::Relaxed);
        // SAFETY: INV-4: the node has left, so it is the owner's. No granter has had it.
        discard(unsafe { node.move_waker_out() });
        None
    }

    /// Takes the grant if it has come; otherwise replaces the waker if it changed. Called by the owner of a node that
    /// was enqueued and whose grant was not taken since then.
    #[inline]
    pub(in crate::pool) fn poll(&self, node: &Node<G>, context: &mut Context<'_>) -> Poll<G> {
        let granted = match node.take_grant() {
            None if node.would_wake(context.waker()) => None,
            None => self.renew(node, context.waker()),
            granted => granted,
        };
        granted.map_or(Poll::Pending, Poll::Ready)
    }

    /// Replaces the waker. Returns the grant if one came first.
    #[cold]
    #[allow(unsafe_code)]
    fn renew(&self, node: &Node<G>, waker: &Waker) -> Option<G> {
        // Cloned before the lock is taken, and the old waker is dropped after its release: both run foreign code.
        let new = waker.clone();
        let queue = self.lock();
        if queue.find(node).is_none() {
            drop(queue);
            discard(new);
            return Some(node.await_grant());
        }
        // SAFETY: INV-4: the node is in a block and we hold the lock. We are also the owner.
        let old = unsafe {
            let old = node.move_waker_out();
            node.waker.with_mut(|present| (*present).write(new));
            old
        };
        drop(queue);
        discard(old);
        None
    }
}

/// The list, locked: a chain of blocks for each lane.
///
/// The layout puts all that a saturated pool needs, and the number of openers, into the lock's cache line. A second
/// line that moves from core to core with each hand-over cost an eighth of the throughput.
#[repr(C)]
pub(in crate::pool) struct LockedWaitList<G> {
    waiters: Chain<G>,
    openers: Chain<G>,
    /// Blocks without waiting nodes, linked by `next`.
    spare: Option<NonNull<Block<G>>>,
    /// The blocks that [`LockedWaitList::turn_away`] took out of `waiters` and whose nodes are not all claimed yet.
    away: Chain<G>,
    /// Counts how often all of `waiters` were turned away, modulo 2^32. A block of this lane records the era in which
    /// it was linked, which says whether the block is in `waiters` or in `away`.
    era: u32,
}

// SAFETY: a chain owns its blocks, and the thread that has the queue has exclusive access to them. Nodes: INV-4.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for LockedWaitList<G> {}

/// The position of a node.
struct Found<G> {
    chain: Which,
    block: NonNull<Block<G>>,
    entry: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Lane(Lane),
    Away,
}

impl<G> LockedWaitList<G> {
    fn new() -> Self {
        Self { waiters: Chain::new(), openers: Chain::new(), spare: None, away: Chain::new(), era: 0 }
    }

    /// Returns the number of nodes that wait in a lane.
    pub(in crate::pool) fn len(&self, lane: Lane) -> u32 {
        self.chain(lane).len
    }

    #[inline]
    fn chain(&self, lane: Lane) -> &Chain<G> {
        match lane {
            Lane::Openers => &self.openers,
            Lane::Waiters => &self.waiters,
        }
    }

    #[inline]
    fn chain_mut(&mut self, which: Which) -> &mut Chain<G> {
        match which {
            Which::Lane(Lane::Openers) => &mut self.openers,
            Which::Lane(Lane::Waiters) => &mut self.waiters,
            Which::Away => &mut self.away,
        }
    }

    fn has_room(&self, lane: Lane) -> bool {
        self.chain(lane).has_room() || self.spare.is_some()
    }

    /// Returns whether others wait, and a block has room for one more.
    #[inline(always)]
    fn admits_another(&self) -> bool {
        self.waiters.len > 0 && self.has_room(Lane::Waiters)
    }

    /// Appends a node to a lane. The caller owns the node, and holds the lock from [`WaitList::lock_with_room`] for that
    /// lane.
    pub(in crate::pool) fn enqueue(&mut self, lane: Lane, node: Pin<&Node<G>>, waker: Waker) {
        node.prepare(waker);
        let place = self.append(lane, node.get_ref());
        node.note(&place);
    }

    /// Appends a node to a lane that has room. Its owner notes the place.
    #[inline]
    fn append(&mut self, lane: Lane, node: &Node<G>) -> Place<G> {
        if !self.chain_mut(Which::Lane(lane)).has_room() {
            let spare = self.spare.expect("BUG: a lock without room");
            self.spare = block(spare).next;
            let era = self.era;
            let present = block(spare);
            (present.lane, present.era) = (lane, era);
            self.chain_mut(Which::Lane(lane)).append(spare);
        }
        let chain = self.chain_mut(Which::Lane(lane));
        let last = chain.last.expect("BUG: room in no block");
        let entry = chain.filled;
        chain.filled += 1;
        chain.len += 1;
        let present = block(last);
        writes(&raw const present.entries[entry as usize]);
        present.entries[entry as usize] = std::ptr::from_ref(node);
        present.waiting |= 1 << entry;
        Place { block: last, entry }
    }

    /// Claims the first node of a lane, if the lane has one.
    #[inline]
    pub(in crate::pool) fn claim_first(&mut self, lane: Lane) -> Option<Claimed<G>> {
        let chain = self.chain_mut(Which::Lane(lane));
        if chain.len == 0 {
            return None;
        }
        let first = chain.first.expect("BUG: a lane with a length and without a block");
        self.claim(Which::Lane(lane), first)
    }

    /// Takes all nodes of [`Lane::Waiters`] out of the queue at once, to be claimed one by one and refused. Until a
    /// node is claimed, its owner may leave. The node receives no other grant.
    pub(in crate::pool) fn turn_away(&mut self) -> Option<TurnedAway<G>> {
        if self.waiters.len == 0 {
            return None;
        }
        let last = self.waiters.last.expect("BUG: a lane with a length and without a block");
        if block(last).waiting == 0 {
            self.unlink(Which::Lane(Lane::Waiters), last);
        }
        let era = self.era;
        self.era = era.wrapping_add(1);
        let waiters = std::mem::replace(&mut self.waiters, Chain::new());
        self.away.append_all(waiters);
        Some(TurnedAway { era, of: PhantomData })
    }

    /// Claims the first of the nodes that were turned away up to the era of `away`.
    fn claim_turned_away(&mut self, away: &TurnedAway<G>) -> Option<Claimed<G>> {
        // Blocks are in the order of their eras.
        let first = self.away.first.filter(|first| block(*first).era.wrapping_sub(away.era) as i32 <= 0)?;
        self.claim(Which::Away, first)
    }

    /// Claims the first waiting node of a block that has one.
    fn claim(&mut self, chain: Which, from: NonNull<Block<G>>) -> Option<Claimed<G>> {
        let waiting = block(from).waiting;
        let entry = waiting.trailing_zeros();
        reads(&raw const block(from).entries[entry as usize]);
        let node = block(from).entries[entry as usize];
        self.take_out(Found { chain, block: from, entry });
        Some(Claimed(NonNull::new(node.cast_mut()).expect("BUG: an entry is marked as waiting but points nowhere")))
    }

    /// Takes a node out of its block. Returns `false` if the node has been claimed.
    fn remove(&mut self, node: &Node<G>) -> bool {
        let found = self.find(node);
        let is_here = found.is_some();
        found.into_iter().for_each(|found| self.take_out(found));
        is_here
    }

    /// Returns where a node is, unless it has been claimed. Called by the owner of a node that was enqueued.
    #[allow(unsafe_code)]
    fn find(&self, node: &Node<G>) -> Option<Found<G>> {
        // SAFETY: INV-4: only the owner, which is the caller, changes these cells. A granter does not touch them.
        let (place, entry) = unsafe { (node.block.with(|block| *block), node.entry.with(|entry| *entry)) };
        let place = place.expect("BUG: a node waits but was never enqueued");
        let present = block(place);
        // The block of a claimed node may have become spare and then been reused for other nodes. The node is here only
        // if its entry says so.
        let is_here = present.waiting >> entry & 1 == 1 && std::ptr::eq(present.entries[entry as usize], node);
        let is_away = present.lane == Lane::Waiters && present.era != self.era;
        let chain = if is_away { Which::Away } else { Which::Lane(present.lane) };
        is_here.then_some(Found { chain, block: place, entry })
    }

    fn take_out(&mut self, Found { chain, block: from, entry }: Found<G>) {
        let present = block(from);
        present.waiting &= !(1 << entry);
        let is_empty = present.waiting == 0;
        let whole = self.chain_mut(chain);
        whole.len -= 1;
        if !is_empty {
            return;
        }
        if chain != Which::Away && whole.last == Some(from) {
            // The block stays, for later nodes.
            whole.filled = 0;
        } else {
            self.unlink(chain, from);
        }
    }

    /// Takes an empty block out of its chain.
    fn unlink(&mut self, chain: Which, empty: NonNull<Block<G>>) {
        let (previous, next) = (block(empty).previous, block(empty).next);
        let chain = self.chain_mut(chain);
        match previous {
            Some(previous) => block(previous).next = next,
            None => chain.first = next,
        }
        match next {
            Some(next) => block(next).previous = previous,
            None => {
                chain.last = previous;
                // The new last block takes no more nodes: its free entries may lie before entries that still wait.
                chain.filled = Block::<()>::ENTRIES as u32;
            }
        }
        block(empty).next = self.spare.replace(empty);
    }

    /// Keeps a new block as a spare.
    fn keep(&mut self, new: Box<Block<G>>) {
        let new = NonNull::from(Box::leak(new));
        block(new).next = self.spare.replace(new);
    }
}

impl<G> Drop for LockedWaitList<G> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        for mut next in [self.waiters.first, self.openers.first, self.away.first, self.spare] {
            while let Some(here) = next {
                // SAFETY: INV-7: the list is being dropped, and each block is in one chain only. It came from a `Box`.
                next = unsafe { Box::from_raw(here.as_ptr()) }.next;
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
