//! Chains of blocks: where the nodes of a wait list are listed, a few in each block.

use std::ptr::NonNull;

use super::super::Lane;
use super::Node;
use crate::sync::{follow, reads, step, writes};

/// A lane's blocks, in order.
#[repr(C)]
pub(super) struct Chain<G> {
    /// The number of nodes that wait.
    pub(super) len: u32,
    /// The number of entries of the last block that were used since the block was linked or became empty.
    pub(super) filled: u32,
    pub(super) first: Option<NonNull<Block<G>>>,
    pub(super) last: Option<NonNull<Block<G>>>,
}

/// A few entries of a chain, in order.
///
/// INV-7 (blocks stay): a block exists until its list is dropped, and only the holder of the list's lock touches it. A
/// claimed node's pointer to its block can therefore be followed, and the block's content shows that the node is
/// claimed.
#[repr(C, align(64))]
pub(super) struct Block<G> {
    pub(super) previous: Option<NonNull<Block<G>>>,
    pub(super) next: Option<NonNull<Block<G>>>,
    /// Bit `i` is set if entry `i` points to a node that waits. Only the last block of a lane may have none set in a
    /// chain.
    pub(super) waiting: u16,
    pub(super) lane: Lane,
    pub(super) era: u32,
    pub(super) entries: [*const Node<G>; Block::<()>::ENTRIES],
}

impl<G> Block<G> {
    /// Together with the other fields, two cache lines.
    #[cfg(not(any(loom, shuttle)))]
    pub(super) const ENTRIES: usize = 13;
    /// Small, so that the model checkers explore chains of blocks.
    #[cfg(any(loom, shuttle))]
    pub(super) const ENTRIES: usize = 2;

    pub(super) fn new() -> Box<Self> {
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

impl<G> Chain<G> {
    pub(super) fn new() -> Self {
        Self { len: 0, filled: 0, first: None, last: None }
    }

    pub(super) fn has_room(&self) -> bool {
        self.last.is_some() && (self.filled as usize) < Block::<()>::ENTRIES
    }

    /// Appends an empty block.
    pub(super) fn append(&mut self, new: NonNull<Block<G>>) {
        let present = block(new);
        (present.previous, present.next) = (self.last, None);
        match self.last.replace(new) {
            Some(last) => block(last).next = Some(new),
            None => self.first = Some(new),
        }
        self.filled = 0;
    }

    pub(super) fn append_all(&mut self, other: Self) {
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

/// Returns a block to the holder of the list's lock.
#[allow(unsafe_code)]
pub(super) fn block<'l, G>(pointer: NonNull<Block<G>>) -> &'l mut Block<G> {
    step();
    // Most accesses change the block.
    follow();
    reads(pointer.as_ptr().cast::<[usize; 4]>());
    writes(pointer.as_ptr().cast::<[usize; 4]>());
    let mut pointer = pointer;
    // SAFETY: INV-7: the block exists, and only the holder of the lock touches it. Each call serves one access, and no
    // two references to one block are live at a time.
    unsafe { pointer.as_mut() }
}
