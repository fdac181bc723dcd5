//! The wait list on nodes of its own.
//!
//! A waiter is a node inside of the future that waits. A lane is a chain of blocks, and a block has a few pointers to
//! nodes. All of it is under one short lock. A granter claims the first node by taking its pointer out of its block, and
//! puts the grant straight into the node, so nothing comes in between. Two locked sections serve one waiter, and neither
//! touches a node's memory, which usually is in another core's cache. Looking whether the grant has come takes no lock,
//! and neither does polling again with the same waker.
//!
//! # What happens under the lock
//!
//! No operation's work depends on how many wait, or on how many have left: a node knows its block and its entry, a block
//! says in one word which of its entries wait, and a block of which none does leaves its chain at once. Nothing is
//! allocated or freed under the lock: a block that is missing is made outside of it ([`WaitList::lock_with_room`]), and
//! a spare one is kept for the next. Grants are written and wakers run outside of the lock.
//!
//! A list keeps the blocks that it once needed until it goes away. That is between 10 bytes (full blocks) and 128 bytes
//! (one waiter left in each) for each of the most waiters it has had.

use std::marker::{PhantomData, PhantomPinned};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};

use super::Lane;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Backoff, BriefGuard, BriefLock, UnsafeCell, discard, step, unless_mutant};

/// A place in the queue.
///
/// INV-3 (nodes stay): from its being enqueued until it is granted or has left the queue, a node stays where it is. Its
/// owner therefore leaves under the list's lock; and one that finds itself claimed (no longer in its block, not yet
/// granted) waits for the grant, which its granter is just writing.
/// INV-4 (who touches a node's cells): the owner before the enqueuing; the holder of the list's lock while the node is
/// in a block; the granter while it is claimed; the owner again once it is granted or has left. Besides, the owner may
/// read `waker` at any time, because only the owner writes it.
///
/// It is part of every check-out's future, and moves from core to core with that: hence its few bytes.
pub(in crate::pool) struct Node<G> {
    /// How far it has come: `APART`, `QUEUED` or `GRANTED`.
    progress: AtomicU32,
    /// Which of the block's entries points here.
    entry: UnsafeCell<u32>,
    block: UnsafeCell<Option<NonNull<Block<G>>>>,
    /// The bits of the waker from the enqueuing on. The granter moves it out and leaves the bits.
    waker: UnsafeCell<MaybeUninit<Waker>>,
    grant: UnsafeCell<Option<G>>,
    /// A block points here.
    _pinned: PhantomPinned,
}

// SAFETY: INV-4: a node's cells are touched by one thread at a time, or read by two. A grant travels from the granter's
// thread to the waiter's, hence `G: Send`. The pointer to the block is followed under the list's lock only.
#[allow(unsafe_code)]
unsafe impl<G: Send> Sync for Node<G> {}
// SAFETY: as above; nothing of it is tied to a thread.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Node<G> {}

#[allow(unsafe_code)]
impl<G> Node<G> {
    const APART: u32 = 0;
    /// Enqueued, and the outcome not taken yet.
    const QUEUED: u32 = 1;
    /// Enqueued, and the grant is there.
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

    /// Whether it was enqueued and its grant not yet taken. By the owner, who has not left.
    pub(in crate::pool) fn is_queued(&self) -> bool {
        // Relaxed: only the owner makes it zero, or anything else out of zero.
        self.progress.load(Ordering::Relaxed) != Self::APART
    }

    /// Takes the grant, if it has come. By the owner.
    fn take_grant(&self) -> Option<G> {
        // ORD: Acquire; pairs with the Release in `Claimed::grant`; makes the grant visible.
        if self.progress.load(Ordering::Acquire) != Self::GRANTED {
            return None;
        }
        // Relaxed: only the owner reads it until the node is enqueued again.
        self.progress.store(Self::APART, Ordering::Relaxed);
        // SAFETY: INV-4: granted, so the owner's.
        self.grant.with_mut(|grant| unsafe { (*grant).take() })
    }

    /// Waits for the grant of a claimed node, which is at most [`WaitList::BATCH`] grants away: a few stores each, unless
    /// the granter is preempted meanwhile.
    fn await_grant(&self) -> G {
        let mut backoff = Backoff::new();
        loop {
            if let Some(grant) = self.take_grant() {
                return grant;
            }
            backoff.pause();
        }
    }

    /// Whether the waker that was left is as good as this one. By the owner of an enqueued node, without the lock.
    ///
    /// The granter may have moved the waker out. That changes nothing as long as the waker is the same: the granter wakes
    /// it after the grant. It may even have been freed, and `waker` be another task's at the same address. But then the
    /// grant had been published before `waker` was made, and the owner, who has looked for the grant since, has found it.
    fn would_wake(&self, waker: &Waker) -> bool {
        // SAFETY: INV-4: the owner reads. Only the bits are compared, and no waker is dropped.
        self.waker.with(|present| unsafe { (*present).assume_init_ref().will_wake(waker) })
    }

    /// Moves the waker out.
    ///
    /// # Safety
    ///
    /// The node was enqueued, its waker was not moved out since, and nothing writes it meanwhile (INV-4).
    unsafe fn move_waker_out(&self) -> Waker {
        // SAFETY: by the caller's promise. It is read, not taken, because the owner may be reading it as well.
        self.waker.with(|waker| unsafe { (*waker).assume_init_read() })
    }
}

/// A node that was taken out of its block and is to be granted something.
#[must_use = "its owner waits for the grant"]
pub(in crate::pool) struct Claimed<G>(NonNull<Node<G>>);

// SAFETY: INV-4: the node is touched only as its rules allow.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Claimed<G> {}

#[allow(unsafe_code)]
impl<G> Claimed<G> {
    /// Grants. Returns the waker of the node's owner.
    ///
    /// Not to be called under a lock that a waiter takes: the first write usually has to fetch the node's cache line.
    pub(in crate::pool) fn grant(self, grant: G) -> Waker {
        // SAFETY: INV-3: claimed, so it stays.
        let node = unsafe { self.0.as_ref() };
        // SAFETY: INV-4: claimed, so the granter's.
        let waker = unsafe {
            // Without a look at what was there, which is `None`: the owner has taken every grant before this one.
            node.grant.with_mut(|present| present.write(Some(grant)));
            node.move_waker_out()
        };
        // ORD: Release; pairs with the Acquire in `Node::take_grant`; publishes the grant. From here on the node may be
        // gone.
        node.progress.store(Node::<G>::GRANTED, unless_mutant("grant_publishes_nothing", Ordering::Release));
        waker
    }
}

/// The waiters of [`Lane::Waiters`] that [`WaitQueue::turn_away`] took out of the queue: those up to this era.
#[must_use = "they wait for a refusal"]
pub(in crate::pool) struct TurnedAway<G> {
    era: u32,
    of: PhantomData<fn() -> G>,
}

pub(in crate::pool) struct WaitList<G> {
    queue: BriefLock<WaitQueue<G>>,
}

impl<G> WaitList<G> {
    /// How many [`claim_turned_away`](Self::claim_turned_away) claims at a time: few, so that its section under the lock
    /// is short, and so is the time in which their owners cannot leave.
    pub(in crate::pool) const BATCH: usize = 16;

    pub(in crate::pool) fn new() -> Self {
        Self { queue: BriefLock::new(WaitQueue::new()) }
    }

    pub(in crate::pool) fn lock(&self) -> BriefGuard<'_, WaitQueue<G>> {
        self.queue.lock()
    }

    /// The lock, with room for one more node in a lane. If there is none, makes it outside of the lock.
    #[inline]
    pub(in crate::pool) fn lock_with_room(&self, lane: Lane) -> BriefGuard<'_, WaitQueue<G>> {
        let queue = self.lock();
        if queue.has_room(lane) { queue } else { self.make_room(queue) }
    }

    #[cold]
    fn make_room<'l>(&'l self, queue: BriefGuard<'l, WaitQueue<G>>) -> BriefGuard<'l, WaitQueue<G>> {
        drop(queue);
        let block = Block::new();
        let mut queue = self.lock();
        queue.keep(block);
        queue
    }

    /// Claims up to [`BATCH`](Self::BATCH) of those who were turned away and have not left. None: there are no more.
    ///
    /// `claimed` is empty, and has room for them.
    pub(in crate::pool) fn claim_turned_away(&self, away: &mut TurnedAway<G>, claimed: &mut Vec<Claimed<G>>) {
        debug_assert!(claimed.is_empty() && claimed.capacity() >= Self::BATCH, "BUG: no room for a batch");
        let mut queue = self.lock();
        while claimed.len() < Self::BATCH
            && let Some(next) = queue.claim_turned_away(away)
        {
            claimed.push(next);
        }
    }

    /// Leaves the queue, and tells `settle` while the lock is held. By the node's owner, who has enqueued it and not
    /// taken a grant since. Returns the grant if one came before.
    #[allow(unsafe_code)]
    pub(in crate::pool) fn leave(&self, node: &Node<G>, settle: impl FnOnce(&WaitQueue<G>)) -> Option<G> {
        let mut queue = self.lock();
        if !queue.remove(node) {
            drop(queue);
            return Some(node.await_grant());
        }
        settle(&queue);
        drop(queue);
        // Relaxed: only the owner reads it until the node is enqueued again.
        node.progress.store(Node::<G>::APART, Ordering::Relaxed);
        // SAFETY: INV-4: it has left, so it is the owner's; no granter has had it.
        discard(unsafe { node.move_waker_out() });
        None
    }

    /// Looks for the grant, and else renews the waker. By the node's owner, who has enqueued it and not taken a grant
    /// since.
    #[inline]
    pub(in crate::pool) fn poll(&self, node: &Node<G>, context: &mut Context<'_>) -> Poll<G> {
        let granted = match node.take_grant() {
            None if node.would_wake(context.waker()) => None,
            None => self.renew(node, context.waker()),
            granted => granted,
        };
        granted.map_or(Poll::Pending, Poll::Ready)
    }

    /// Renews the waker. Returns the grant if one came before.
    #[cold]
    #[allow(unsafe_code)]
    fn renew(&self, node: &Node<G>, waker: &Waker) -> Option<G> {
        // Before the lock, and the old one is dropped after it: both are foreign code.
        let new = waker.clone();
        let queue = self.lock();
        if queue.find(node).is_none() {
            drop(queue);
            discard(new);
            return Some(node.await_grant());
        }
        // SAFETY: INV-4: in a block, and we hold the lock; we are the owner.
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
/// Laid out so that all that a saturated pool needs, and how many openers there are, is in the lock's cache line: a second
/// line that moves from core to core with each hand-over was an eighth of the throughput.
#[repr(C)]
pub(in crate::pool) struct WaitQueue<G> {
    waiters: Chain<G>,
    openers: Chain<G>,
    /// Blocks without nodes, linked by `next`.
    spare: Option<NonNull<Block<G>>>,
    /// What [`WaitQueue::turn_away`] took out of `waiters`, for as long as it is not claimed.
    away: Chain<G>,
    /// How often all of `waiters` were turned away, modulo 2^32. A block of theirs keeps the era in which it was linked,
    /// and so tells whether it is in `waiters` or in `away`.
    era: u32,
}

// SAFETY: a chain owns its blocks, and whoever has the queue has them alone. Nodes: INV-4.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for WaitQueue<G> {}

/// A lane's blocks, in order.
#[repr(C)]
struct Chain<G> {
    /// How many wait.
    len: u32,
    /// How many entries of the last block were used since it was linked or became empty.
    filled: u32,
    first: Option<NonNull<Block<G>>>,
    last: Option<NonNull<Block<G>>>,
}

/// Some entries of a chain, in order.
///
/// INV-7 (blocks stay): a block exists until its list goes away, and only the holder of the list's lock touches it. So a
/// claimed node's pointer to its block can be followed, and what is found there tells that the node is claimed.
#[repr(C, align(64))]
struct Block<G> {
    previous: Option<NonNull<Block<G>>>,
    next: Option<NonNull<Block<G>>>,
    /// Bit `i`: entry `i` is that of a node that waits. In a chain no block is without, except the last one of a lane.
    waiting: u16,
    lane: Lane,
    era: u32,
    entries: [*const Node<G>; Block::<()>::ENTRIES],
}

impl<G> Block<G> {
    /// With the rest, two cache lines.
    #[cfg(not(any(loom, shuttle)))]
    const ENTRIES: usize = 13;
    /// The model checkers are to see chains of blocks.
    #[cfg(any(loom, shuttle))]
    const ENTRIES: usize = 2;

    fn new() -> Box<Self> {
        Box::new(Self {
            previous: None,
            next: None,
            waiting: 0,
            lane: Lane::Waiters,
            era: 0,
            entries: [std::ptr::null(); Block::<()>::ENTRIES],
        })
    }
}

/// The block, for the holder of the list's lock.
#[allow(unsafe_code)]
fn block<'l, G>(pointer: NonNull<Block<G>>) -> &'l mut Block<G> {
    step();
    let mut pointer = pointer;
    // SAFETY: INV-7: it exists, and only the holder of the lock touches it. Each call is for one access, and no two
    // references to one block live at a time.
    unsafe { pointer.as_mut() }
}

/// Where a node is.
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

impl<G> WaitQueue<G> {
    fn new() -> Self {
        Self { waiters: Chain::new(), openers: Chain::new(), spare: None, away: Chain::new(), era: 0 }
    }

    /// How many wait in a lane.
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

    /// Queues up at the end of a lane. The caller has the lock from [`WaitList::lock_with_room`].
    #[allow(unsafe_code)]
    pub(in crate::pool) fn enqueue(&mut self, lane: Lane, node: Pin<&Node<G>>, waker: Waker) {
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
        present.entries[entry as usize] = std::ptr::from_ref(node.get_ref());
        present.waiting |= 1 << entry;
        // Relaxed: for the owner itself; a granter comes through the lock.
        node.progress.store(Node::<G>::QUEUED, Ordering::Relaxed);
        // SAFETY: INV-4: not enqueued yet, so the caller's, who owns the node and holds the lock.
        unsafe {
            node.entry.with_mut(|present| *present = entry);
            node.block.with_mut(|present| *present = Some(last));
            node.waker.with_mut(|present| (*present).write(waker));
        }
    }

    /// Claims the first in a lane, if anybody waits there.
    #[inline]
    pub(in crate::pool) fn claim_first(&mut self, lane: Lane) -> Option<Claimed<G>> {
        let chain = self.chain_mut(Which::Lane(lane));
        if chain.len == 0 {
            return None;
        }
        let first = chain.first.expect("BUG: a lane with a length and without a block");
        self.claim(Which::Lane(lane), first)
    }

    /// Takes all of [`Lane::Waiters`] out of the queue at once, to be claimed one by one and refused. Until then they may
    /// leave, and nothing else is granted to them.
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

    /// Claims the first of those who were turned away up to then.
    fn claim_turned_away(&mut self, away: &TurnedAway<G>) -> Option<Claimed<G>> {
        // Blocks are in the order of their eras.
        let first = self.away.first.filter(|first| block(*first).era.wrapping_sub(away.era) as i32 <= 0)?;
        self.claim(Which::Away, first)
    }

    /// Claims the first node of a block that has one.
    fn claim(&mut self, chain: Which, from: NonNull<Block<G>>) -> Option<Claimed<G>> {
        let waiting = block(from).waiting;
        let entry = waiting.trailing_zeros();
        let node = block(from).entries[entry as usize];
        self.take_out(Found { chain, block: from, entry });
        Some(Claimed(NonNull::new(node.cast_mut()).expect("BUG: an entry that waits and points nowhere")))
    }

    /// Takes a node out of its block. `false`: it has been claimed.
    fn remove(&mut self, node: &Node<G>) -> bool {
        let found = self.find(node);
        let is_here = found.is_some();
        found.into_iter().for_each(|found| self.take_out(found));
        is_here
    }

    /// Where a node is that its owner has enqueued, unless it has been claimed.
    #[allow(unsafe_code)]
    fn find(&self, node: &Node<G>) -> Option<Found<G>> {
        // SAFETY: INV-4: changes are by the owner, who is calling; a granter does not touch these.
        let (place, entry) = unsafe { (node.block.with(|block| *block), node.entry.with(|entry| *entry)) };
        let place = place.expect("BUG: a node that waits and was never enqueued");
        let present = block(place);
        // The block of a claimed node may have become spare, and other nodes' since: it is here only if its entry says so.
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
            // Stays, for those who come next.
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
                // What is the last one now is not written on any more: some of its entries may be behind others'.
                chain.filled = Block::<()>::ENTRIES as u32;
            }
        }
        block(empty).next = self.spare.replace(empty);
    }

    /// Keeps a new block for the next who needs one.
    fn keep(&mut self, new: Box<Block<G>>) {
        let new = NonNull::from(Box::leak(new));
        block(new).next = self.spare.replace(new);
    }
}

impl<G> Chain<G> {
    fn new() -> Self {
        Self { len: 0, filled: 0, first: None, last: None }
    }

    fn has_room(&self) -> bool {
        self.last.is_some() && (self.filled as usize) < Block::<()>::ENTRIES
    }

    /// Puts an empty block at the end.
    fn append(&mut self, new: NonNull<Block<G>>) {
        let present = block(new);
        (present.previous, present.next) = (self.last, None);
        match self.last.replace(new) {
            Some(last) => block(last).next = Some(new),
            None => self.first = Some(new),
        }
        self.filled = 0;
    }

    fn append_all(&mut self, other: Self) {
        let Some(first) = other.first else { return };
        block(first).previous = self.last;
        match self.last {
            Some(last) => block(last).next = other.first,
            None => self.first = other.first,
        }
        self.last = other.last;
        self.len += other.len;
    }
}

impl<G> Drop for WaitQueue<G> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        for mut next in [self.waiters.first, self.openers.first, self.away.first, self.spare] {
            while let Some(here) = next {
                // SAFETY: INV-7: the list goes away, and a block is in one chain only. It came from a `Box`.
                next = unsafe { Box::from_raw(here.as_ptr()) }.next;
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;
