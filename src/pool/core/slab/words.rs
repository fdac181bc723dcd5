//! The packed words of a slot.

pub(in crate::pool::core) const INDEX_BITS: u32 = 20;

/// The index that means "no slot".
pub(in crate::pool::core) const NO_SLOT: u32 = (1 << INDEX_BITS) - 1;

/// The slot below this slot in its stack, and the height of the stack up to and including this slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pool::core) struct Link {
    pub(in crate::pool::core) next: Option<u32>,
    pub(in crate::pool::core) depth: u32,
}

impl Link {
    /// The same value as in a shard's head, so that an index can be copied between the two unchanged.
    const NONE: u32 = NO_SLOT;

    #[inline]
    pub(super) fn pack(self) -> u64 {
        u64::from(self.next.unwrap_or(Self::NONE)) | u64::from(self.depth) << 32
    }

    #[inline]
    pub(super) fn unpack(word: u64) -> Self {
        let next = word as u32;
        Self { next: (next != Self::NONE).then_some(next), depth: (word >> 32) as u32 }
    }
}

/// The state of a slot's connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::pool::core) struct Stamp {
    /// The pool's generation when the connection was created.
    pub(in crate::pool::core) generation: u64,
    pub(in crate::pool::core) live: bool,
    pub(in crate::pool::core) pending: bool,
    /// Whether the connection's owner should stop what it is doing.
    pub(in crate::pool::core) interrupted: bool,
    /// Whether the owner has left a waker, which an interruption must wake.
    pub(in crate::pool::core) watched: bool,
}

impl Stamp {
    pub(super) const LIVE: u64 = 1;
    pub(super) const PENDING: u64 = 1 << 1;
    pub(super) const WATCHED: u64 = 1 << 3;

    #[inline]
    pub(super) fn pack(self) -> u64 {
        u64::from(self.live)
            | u64::from(self.pending) << 1
            | u64::from(self.interrupted) << 2
            | u64::from(self.watched) << 3
            | self.generation << 4
    }

    #[inline]
    pub(super) fn unpack(word: u64) -> Self {
        Self {
            live: word & Self::LIVE != 0,
            pending: word & Self::PENDING != 0,
            interrupted: word >> 2 & 1 == 1,
            watched: word & Self::WATCHED != 0,
            generation: word >> 4,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn link_keeps_its_fields(next in prop::option::of(0..NO_SLOT), depth in 0..1_u32 << 20) {
            let link = Link { next, depth };
            prop_assert_eq!(Link::unpack(link.pack()), link);
        }

        #[test]
        fn stamp_keeps_its_fields(
            generation in 0..1_u64 << 60,
            live: bool,
            pending: bool,
            interrupted: bool,
            watched: bool,
        ) {
            let stamp = Stamp { generation, live, pending, interrupted, watched };
            prop_assert_eq!(Stamp::unpack(stamp.pack()), stamp);
        }
    }
}
