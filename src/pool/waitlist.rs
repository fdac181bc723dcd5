//! The wait list: who waits for a connection, first come, first served.
//!
//! A waiter is a node inside of the future that waits; the list is a ring of pointers to nodes under a short lock. A
//! grant is put straight into the node of the first waiter, so nobody can come in between. Two locked sections of some
//! ten nanoseconds serve one waiter: one to enqueue it, one to grant. Looking whether the grant has come takes no lock.
//!
//! Wakers run outside of the lock.

use std::collections::VecDeque;
use std::marker::PhantomPinned;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::Waker;

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Mutex, MutexGuard, UnsafeCell};

/// A place in the queue.
///
/// INV-3 (nodes in the ring are alive): a pointer is in the ring only while its node's state is `QUEUED`, which changes
/// under the list's lock only; and a queued node is not dropped before its owner has left the queue under that lock.
/// INV-4 (who touches a node's cells): while `QUEUED`, the holder of the list's lock; otherwise the node's owner.
pub(super) struct Node<G> {
    state: AtomicU32,
    /// The position of this node's pointer in the ring, counted from the ring's beginning of time.
    position: UnsafeCell<u64>,
    waker: UnsafeCell<Option<Waker>>,
    grant: UnsafeCell<Option<G>>,
    /// The ring points here.
    _pinned: PhantomPinned,
}

const NEW: u32 = 0;
const QUEUED: u32 = 1;
const GRANTED: u32 = 2;

// SAFETY: INV-4: a node's cells are touched by one thread at a time. A grant travels from the granter's thread to the
// waiter's, hence `G: Send`.
#[allow(unsafe_code)]
unsafe impl<G: Send> Sync for Node<G> {}

#[allow(unsafe_code)]
impl<G> Node<G> {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU32::new(NEW),
            position: UnsafeCell::new(0),
            waker: UnsafeCell::new(None),
            grant: UnsafeCell::new(None),
            _pinned: PhantomPinned,
        }
    }

    /// Takes the grant, if it has come. By the owner.
    pub(super) fn take_grant(&self) -> Option<G> {
        // ORD: Acquire; pairs with the Release in `WaitQueue::grant_first`; makes the grant visible.
        if self.state.load(Ordering::Acquire) != GRANTED {
            return None;
        }
        // SAFETY: INV-4: granted, so the owner's.
        let grant = self.grant.with_mut(|grant| unsafe { (*grant).take() });
        // Relaxed: only the owner reads it from here on.
        self.state.store(NEW, Ordering::Relaxed);
        grant
    }
}

/// The ring points to nodes on other threads.
struct NodePointer<G>(NonNull<Node<G>>);

// SAFETY: INV-4: the pointer is followed only as the node's rules allow.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for NodePointer<G> {}

pub(super) struct WaitList<G> {
    queue: Mutex<WaitQueue<G>>,
}

/// The list, locked.
pub(super) struct WaitQueue<G> {
    /// Who left the queue has `None` here until the ring gets around to it.
    ring: VecDeque<Option<NodePointer<G>>>,
    /// The position of the ring's front.
    front: u64,
    len: u32,
}

impl<G> WaitList<G> {
    pub(super) fn new() -> Self {
        Self { queue: Mutex::new(WaitQueue { ring: VecDeque::new(), front: 0, len: 0 }) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, WaitQueue<G>> {
        self.queue.lock_patiently()
    }
}

#[allow(unsafe_code)]
impl<G> WaitQueue<G> {
    /// Rings below this size are not worth tidying up.
    const TIDY_FROM: usize = 64;

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Queues up at the end.
    pub(super) fn enqueue(&mut self, node: Pin<&Node<G>>, waker: Waker) {
        let position = self.front + self.ring.len() as u64;
        // SAFETY: INV-4: not queued yet, so the caller's, who owns the node.
        unsafe {
            node.position.with_mut(|present| *present = position);
            node.waker.with_mut(|present| *present = Some(waker));
        }
        // Relaxed: the granter sees the node by the list's lock.
        node.state.store(QUEUED, Ordering::Relaxed);
        self.ring.push_back(Some(NodePointer(NonNull::from(node.get_ref()))));
        self.len += 1;
    }

    /// Hands something to the first in the queue. Returns whom to wake, outside of the lock; or the grant, if nobody
    /// waits.
    pub(super) fn grant_first(&mut self, grant: G) -> Result<Waker, G> {
        while let Some(entry) = self.ring.pop_front() {
            self.front += 1;
            let Some(NodePointer(node)) = entry else { continue };
            self.len -= 1;
            // SAFETY: INV-3: in the ring, so alive.
            let node = unsafe { node.as_ref() };
            // SAFETY: INV-4: queued, and we hold the lock.
            let waker = unsafe {
                node.grant.with_mut(|present| *present = Some(grant));
                node.waker.with_mut(|waker| (*waker).take())
            };
            // ORD: Release; pairs with the Acquire in `Node::take_grant`; publishes the grant. From here on the node
            // may be gone.
            node.state.store(GRANTED, Ordering::Release);
            return Ok(waker.expect("BUG: a queued node without a waker"));
        }
        Err(grant)
    }

    /// Leaves the queue. Returns the grant if one came before. By the node's owner.
    pub(super) fn leave(&mut self, node: &Node<G>) -> (Option<G>, Option<Waker>) {
        // Relaxed: changes are under the lock, which we hold.
        if node.state.load(Ordering::Relaxed) != QUEUED {
            return (node.take_grant(), None);
        }
        // SAFETY: INV-4: queued, and we hold the lock.
        let (position, waker) =
            unsafe { (node.position.with(|position| *position), node.waker.with_mut(|waker| (*waker).take())) };
        self.ring[(position - self.front) as usize] = None;
        self.len -= 1;
        // Relaxed: only the owner reads it from here on.
        node.state.store(NEW, Ordering::Relaxed);
        self.tidy();
        (None, waker)
    }

    /// Renews whom to wake. Returns the old waker, to be dropped outside of the lock. By the node's owner.
    pub(super) fn set_waker(&mut self, node: &Node<G>, waker: Waker) -> Option<Waker> {
        // Relaxed: changes are under the lock, which we hold.
        if node.state.load(Ordering::Relaxed) != QUEUED {
            return Some(waker);
        }
        // SAFETY: INV-4: queued, and we hold the lock.
        node.waker.with_mut(|present| unsafe { (*present).replace(waker) })
    }

    /// Drops what is left of those who left: all of it where nobody waits, and most of it where they are the majority,
    /// so that a storm of cancellations does not make the ring grow.
    fn tidy(&mut self) {
        if self.len == 0 {
            self.front += self.ring.len() as u64;
            self.ring.clear();
        } else if self.ring.len() >= Self::TIDY_FROM && self.ring.len() > 2 * self.len as usize {
            self.ring.retain(Option::is_some);
            for (offset, entry) in self.ring.iter().flatten().enumerate() {
                // SAFETY: INV-3: in the ring, so alive.
                let node = unsafe { entry.0.as_ref() };
                // SAFETY: INV-4: queued, and we hold the lock.
                node.position.with_mut(|position| unsafe { *position = self.front + offset as u64 });
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn queue_up<'n>(list: &WaitList<u32>, nodes: impl IntoIterator<Item = &'n Pin<Box<Node<u32>>>>) {
        for node in nodes {
            list.lock().enqueue(node.as_ref(), Waker::noop().clone());
        }
    }

    fn nodes(count: usize) -> Vec<Pin<Box<Node<u32>>>> {
        (0..count).map(|_| Box::pin(Node::new())).collect()
    }

    fn grant(list: &WaitList<u32>, value: u32) -> bool {
        list.lock().grant_first(value).is_ok()
    }

    #[test]
    fn first_come_first_served() {
        let (list, nodes) = (WaitList::new(), nodes(3));
        queue_up(&list, &nodes);
        for (value, node) in nodes.iter().enumerate() {
            assert_eq!(node.take_grant(), None);
            assert!(grant(&list, value as u32));
            assert_eq!(node.take_grant(), Some(value as u32));
        }
        assert_eq!(list.lock().grant_first(9).unwrap_err(), 9, "nobody waits");
    }

    #[test]
    fn who_leaves_is_passed_over_and_who_was_granted_gets_it_back() {
        let (list, nodes) = (WaitList::new(), nodes(3));
        queue_up(&list, &nodes);
        assert_eq!(list.lock().leave(&nodes[1]).0, None);
        assert!(grant(&list, 1));
        assert_eq!(list.lock().leave(&nodes[0]).0, Some(1), "granted before it left");
        assert!(grant(&list, 2));
        assert_eq!(nodes[2].take_grant(), Some(2));
        assert!(list.lock().is_empty());
    }

    #[test]
    fn a_storm_of_cancellations_leaves_a_small_ring_in_the_same_order() {
        let (list, nodes) = (WaitList::new(), nodes(1_000));
        queue_up(&list, &nodes);
        let stays = |index: &usize| index.is_multiple_of(100);
        for index in (0..1_000).filter(|index| !stays(index)) {
            assert_eq!(list.lock().leave(&nodes[index]).0, None);
        }
        assert_eq!(list.lock().len(), 10);
        assert!(list.lock().ring.len() < WaitQueue::<u32>::TIDY_FROM);
        for index in (0..1_000).filter(stays) {
            assert!(grant(&list, index as u32));
            assert_eq!(nodes[index].take_grant(), Some(index as u32));
        }
        assert!(list.lock().is_empty());
    }

    #[test]
    fn a_node_can_queue_up_again() {
        let (list, nodes) = (WaitList::new(), nodes(1));
        for round in 0..3 {
            queue_up(&list, &nodes);
            assert!(grant(&list, round));
            assert_eq!(nodes[0].take_grant(), Some(round));
        }
    }
}
