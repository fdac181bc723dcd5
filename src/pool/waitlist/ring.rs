//! The wait list on nodes of its own.
//!
//! A waiter is a node inside of the future that waits; a lane is a ring of pointers to nodes, and both lanes are under
//! one short lock. Who has something to grant claims the first node by taking its pointer out of the ring, and puts the
//! grant straight into the node, so nobody can come in between. Two locked sections of some ten nanoseconds serve one
//! waiter, and neither touches a node's memory, which usually is in another core's cache. Looking whether the grant has
//! come takes no lock.
//!
//! Grants are written and wakers run outside of the lock.

use std::collections::VecDeque;
use std::marker::PhantomPinned;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};

use super::Lane;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{BriefGuard, BriefLock, UnsafeCell, mutant, unless_mutant, yield_now};

/// A place in the queue.
///
/// INV-3 (nodes stay): from its being enqueued until it is granted or has left the queue, a node stays where it is. Its
/// owner therefore leaves under the list's lock; and one that finds itself claimed (no longer in the ring, not yet
/// granted) waits for the grant, which its granter is just writing.
/// INV-4 (who touches a node's cells): the owner before the enqueuing; whoever holds the list's lock while the node is
/// in the ring; the granter while it is claimed; the owner again once it is granted or has left.
///
/// It is part of every check-out's future, and moves from core to core with that: hence its few bytes.
pub(in crate::pool) struct Node<G> {
    /// How far it has come: `APART`, `QUEUED` or `GRANTED`.
    progress: AtomicU32,
    /// The position of this node's pointer in the ring, counted from the ring's beginning of time, modulo 2^32.
    position: UnsafeCell<u32>,
    waker: UnsafeCell<Option<Waker>>,
    grant: UnsafeCell<Option<G>>,
    /// The ring points here.
    _pinned: PhantomPinned,
}

// SAFETY: INV-4: a node's cells are touched by one thread at a time. A grant travels from the granter's thread to the
// waiter's, hence `G: Send`.
#[allow(unsafe_code)]
unsafe impl<G: Send> Sync for Node<G> {}

#[allow(unsafe_code)]
impl<G> Node<G> {
    const APART: u32 = 0;
    /// Enqueued, and whatever comes of it not taken yet.
    const QUEUED: u32 = 1;
    /// Enqueued, and the grant is there.
    const GRANTED: u32 = 2;

    pub(in crate::pool) fn new() -> Self {
        Self {
            progress: AtomicU32::new(Self::APART),
            position: UnsafeCell::new(0),
            waker: UnsafeCell::new(None),
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

    /// Waits for the grant of a claimed node: a few stores of another thread, unless that was preempted just there.
    fn await_grant(&self) -> G {
        loop {
            if let Some(grant) = self.take_grant() {
                return grant;
            }
            yield_now();
        }
    }
}

/// A node that was taken out of the ring and is to be granted something.
#[must_use = "its owner waits for the grant"]
pub(in crate::pool) struct Claimed<G>(NonNull<Node<G>>);

// SAFETY: INV-4: the node is touched only as its rules allow.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Claimed<G> {}

#[allow(unsafe_code)]
impl<G> Claimed<G> {
    /// Grants. Returns whom to wake.
    ///
    /// Not to be called under a lock that a waiter takes: the first write usually has to fetch the node's cache line.
    pub(in crate::pool) fn grant(self, grant: G) -> Waker {
        // SAFETY: INV-3: claimed, so it stays.
        let node = unsafe { self.0.as_ref() };
        // SAFETY: INV-4: claimed, so the granter's.
        let waker = unsafe {
            // Without a look at what was there, which is `None`: the owner has taken every grant before this one.
            node.grant.with_mut(|present| present.write(Some(grant)));
            node.waker.with_mut(|waker| (*waker).take())
        };
        // ORD: Release; pairs with the Acquire in `Node::take_grant`; publishes the grant. From here on the node may be
        // gone.
        node.progress.store(Node::<G>::GRANTED, unless_mutant("grant_publishes_nothing", Ordering::Release));
        waker.expect("BUG: a queued node without a waker")
    }
}

pub(in crate::pool) struct WaitList<G> {
    queue: BriefLock<WaitQueue<G>>,
}

/// The list, locked: a ring for each lane.
///
/// Laid out so that all that a saturated pool needs, and how many openers there are, is in the lock's cache line: a second
/// line that moves from core to core with each hand-over was an eighth of the throughput.
#[repr(C)]
pub(in crate::pool) struct WaitQueue<G> {
    others: Ring<G>,
    openers: Ring<G>,
}

impl<G> WaitList<G> {
    pub(in crate::pool) fn new() -> Self {
        Self { queue: BriefLock::new(WaitQueue { others: Ring::new(), openers: Ring::new() }) }
    }

    pub(in crate::pool) fn lock(&self) -> BriefGuard<'_, WaitQueue<G>> {
        self.queue.lock()
    }

    /// Leaves the queue, and tells `settle` while the lock is held. By the node's owner, who has enqueued it and not
    /// taken a grant since. Returns the grant if one came before.
    pub(in crate::pool) fn leave(&self, node: &Node<G>, settle: impl FnOnce(&WaitQueue<G>)) -> Option<G> {
        let mut queue = self.lock();
        let Some((ring, place)) = queue.place_of(node) else {
            drop(queue);
            return Some(node.await_grant());
        };
        ring.give_up(place);
        settle(&queue);
        None
    }

    /// Looks for the grant, and else renews whom to wake. By the node's owner, who has enqueued it and not taken a
    /// grant since.
    #[inline]
    pub(in crate::pool) fn poll(&self, node: &Node<G>, context: &mut Context<'_>) -> Poll<G> {
        match node.take_grant().or_else(|| self.renew(node, context.waker())) {
            Some(grant) => Poll::Ready(grant),
            None => Poll::Pending,
        }
    }

    /// Renews whom to wake. Returns the grant if one came before.
    #[cold]
    #[allow(unsafe_code)]
    fn renew(&self, node: &Node<G>, waker: &Waker) -> Option<G> {
        let new = waker.clone();
        let mut queue = self.lock();
        if queue.place_of(node).is_none() {
            drop(queue);
            return Some(node.await_grant());
        }
        // SAFETY: INV-4: in a ring, and we hold the lock.
        let old = node.waker.with_mut(|present| unsafe { (*present).replace(new) });
        drop(queue);
        // Outside of the lock, as it is somebody else's code.
        drop(old);
        None
    }
}

impl<G> WaitQueue<G> {
    /// How many wait in a lane.
    pub(in crate::pool) fn len(&self, lane: Lane) -> u32 {
        self.ring(lane).len
    }

    /// Queues up at the end of a lane.
    pub(in crate::pool) fn enqueue(&mut self, lane: Lane, node: Pin<&Node<G>>, waker: Waker) {
        self.ring_mut(lane).enqueue(node, waker);
    }

    /// Claims the first in a lane, if anybody waits there.
    #[inline]
    pub(in crate::pool) fn claim_first(&mut self, lane: Lane) -> Option<Claimed<G>> {
        self.ring_mut(lane).claim_first()
    }

    /// Claims all in a lane.
    pub(in crate::pool) fn claim_all(&mut self, lane: Lane) -> Vec<Claimed<G>> {
        self.ring_mut(lane).claim_all()
    }

    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) fn entries(&self, lane: Lane) -> usize {
        self.ring(lane).entries.len()
    }

    #[inline]
    fn ring(&self, lane: Lane) -> &Ring<G> {
        match lane {
            Lane::Openers => &self.openers,
            Lane::Others => &self.others,
        }
    }

    #[inline]
    fn ring_mut(&mut self, lane: Lane) -> &mut Ring<G> {
        match lane {
            Lane::Openers => &mut self.openers,
            Lane::Others => &mut self.others,
        }
    }

    /// The node's ring and its place there, unless it has been claimed.
    fn place_of(&mut self, node: &Node<G>) -> Option<(&mut Ring<G>, usize)> {
        [&mut self.others, &mut self.openers].into_iter().find_map(|ring| {
            let place = ring.place_of(node)?;
            Some((ring, place))
        })
    }
}

/// One lane's nodes, in order.
#[repr(C)]
struct Ring<G> {
    /// How many wait.
    len: u32,
    /// The position of the first entry, modulo 2^32.
    front: u32,
    /// Who left the queue has `None` here until the ring gets around to it.
    entries: VecDeque<Option<Claimed<G>>>,
}

#[allow(unsafe_code)]
impl<G> Ring<G> {
    /// Rings below this size are not worth tidying up.
    const TIDY_FROM: usize = 64;

    fn new() -> Self {
        Self { entries: VecDeque::new(), front: 0, len: 0 }
    }

    fn enqueue(&mut self, node: Pin<&Node<G>>, waker: Waker) {
        let position = self.front.wrapping_add(self.entries.len() as u32);
        // Relaxed: for the owner itself; a granter comes through the lock.
        node.progress.store(Node::<G>::QUEUED, Ordering::Relaxed);
        // SAFETY: INV-4: not enqueued yet, so the caller's, who owns the node.
        unsafe {
            node.position.with_mut(|present| *present = position);
            node.waker.with_mut(|present| *present = Some(waker));
        }
        self.entries.push_back(Some(Claimed(NonNull::from(node.get_ref()))));
        self.len += 1;
    }

    #[inline]
    fn claim_first(&mut self) -> Option<Claimed<G>> {
        if mutant("last_come_first_served")
            && let Some(second) = self.entries.get_mut(1).and_then(Option::take)
        {
            self.len -= 1;
            return Some(second);
        }
        if self.len == 0 {
            return None;
        }
        while let Some(entry) = self.entries.pop_front() {
            self.front = self.front.wrapping_add(1);
            if entry.is_some() {
                self.len -= 1;
                return entry;
            }
        }
        None
    }

    fn claim_all(&mut self) -> Vec<Claimed<G>> {
        self.front = self.front.wrapping_add(self.entries.len() as u32);
        self.len = 0;
        self.entries.drain(..).flatten().collect()
    }

    /// The node's place, unless it is not here. That is where its position says, if it is there: the position of a
    /// claimed node may have come around meanwhile and be another's, and so may that of a node in the other ring.
    fn place_of(&self, node: &Node<G>) -> Option<usize> {
        // SAFETY: INV-4: changes are by the owner, who is calling, and under the lock, which we hold. A granter does
        // not touch the position.
        let position = node.position.with(|position| unsafe { *position });
        let place = position.wrapping_sub(self.front) as usize;
        let present = self.entries.get(place)?.as_ref()?;
        std::ptr::eq(present.0.as_ptr(), node).then_some(place)
    }

    fn give_up(&mut self, place: usize) {
        self.entries[place] = None;
        self.len -= 1;
        self.tidy();
    }

    /// Drops what is left of those who left: all of it where nobody waits, and most of it where they are the majority,
    /// so that a storm of cancellations does not make the ring grow.
    fn tidy(&mut self) {
        if self.len == 0 {
            self.front = self.front.wrapping_add(self.entries.len() as u32);
            self.entries.clear();
        } else if self.entries.len() >= Self::TIDY_FROM && self.entries.len() > 2 * self.len as usize {
            self.entries.retain(Option::is_some);
            for (offset, entry) in self.entries.iter().flatten().enumerate() {
                // SAFETY: INV-3: in the ring, so it stays.
                let node = unsafe { entry.0.as_ref() };
                // SAFETY: INV-4: in the ring, and we hold the lock.
                node.position.with_mut(|position| unsafe { *position = self.front.wrapping_add(offset as u32) });
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn queued_up<'n>(list: &WaitList<u32>, nodes: impl IntoIterator<Item = &'n Pin<Box<Node<u32>>>>) {
        nodes.into_iter().for_each(|node| list.lock().enqueue(Lane::Others, node.as_ref(), Waker::noop().clone()));
    }

    #[test]
    fn positions_come_around() {
        let list = WaitList::new();
        list.lock().others.front = u32::MAX - 1;
        let nodes = [(); 4].map(|()| Box::pin(Node::new()));
        queued_up(&list, &nodes);
        assert_eq!(list.leave(&nodes[2], |_| {}), None, "found beyond the turn");
        for (value, index) in [(7, 0), (8, 1), (9, 3)] {
            drop(list.lock().claim_first(Lane::Others).expect("somebody waits").grant(value));
            assert_eq!(nodes[index].take_grant(), Some(value));
        }
        assert_eq!(list.lock().others.front, 2);
        assert_eq!(list.lock().len(Lane::Others), 0);
    }

    #[test]
    fn a_claimed_node_does_not_take_the_place_of_another_for_its_own() {
        let list = WaitList::new();
        let nodes = [(); 2].map(|()| Box::pin(Node::new()));
        queued_up(&list, &nodes[..1]);
        let claimed = list.lock().claim_first(Lane::Others).expect("somebody waits");
        // As after 2^32 more.
        list.lock().others.front = 0;
        queued_up(&list, &nodes[1..]);
        assert_eq!(list.lock().others.place_of(&nodes[0]), None);
        assert_eq!(list.lock().others.place_of(&nodes[1]), Some(0));
        drop(claimed.grant(7));
        assert_eq!(list.leave(&nodes[0], |_| {}), Some(7));
        assert_eq!(list.leave(&nodes[1], |_| {}), None);
    }
}
