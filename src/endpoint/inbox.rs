//! The buffer of received bytes.

use std::io;
use std::ops::Deref;
use std::task::{Context, Poll, ready};

use zeroize::Zeroize;

use super::transport::Transport;

/// The minimum number of free bytes for a read, so that a reply of ordinary size takes one read.
const READ_AHEAD: usize = 4 * 1024;

/// The maximum number of bytes that are allocated for a length that the peer has only announced. Beyond that, the
/// buffer grows as bytes arrive, each time to at most twice the number of bytes received.
const TRUSTED: usize = 1024 * 1024;

/// The bytes that have been received but not yet used. Dereferences to a slice of these bytes.
///
/// The whole allocation is initialised once, when it is created, so that a read can write to it directly. The spare
/// capacity of a vector would have to be initialised before each read.
#[derive(Default)]
pub(super) struct Inbox {
    room: Vec<u8>,
    /// The number of received bytes at the start of `room`.
    filled: usize,
}

impl Inbox {
    /// Receives as many bytes as have arrived and fit, but at least one. `missing` is the number of bytes that are
    /// still expected.
    ///
    /// Nothing was received if this returns `Pending`.
    #[inline(always)] // A call costs a tenth of a read, and there are only two callers.
    pub fn poll_fill(
        &mut self,
        transport: &mut Transport,
        context: &mut Context<'_>,
        missing: usize,
    ) -> Poll<io::Result<()>> {
        let least = self.least_room(missing);
        if self.room.len() - self.filled < least {
            self.grow(least);
        }
        self.filled += ready!(transport.poll_read(context, &mut self.room[self.filled..]))?;
        Poll::Ready(Ok(()))
    }

    /// Returns the number of free bytes that the next read should find.
    #[inline]
    fn least_room(&self, missing: usize) -> usize {
        missing.min(TRUSTED.max(self.filled)).max(READ_AHEAD)
    }

    #[cold]
    fn grow(&mut self, least: usize) {
        // A buffer beyond `TRUSTED` grows only when it is full, not with each read.
        if least >= TRUSTED && self.room.len() - self.filled >= READ_AHEAD {
            return;
        }
        let length = self.filled + least;
        self.room.reserve_exact(length - self.room.len());
        self.room.resize(length, 0);
    }

    /// Drops the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
        self.room.copy_within(count..self.filled, 0);
        self.filled -= count;
    }

    /// Drops all bytes, but keeps the allocation.
    #[inline]
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Returns the size of the allocation in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.room.capacity()
    }
}

impl Deref for Inbox {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.room[..self.filled]
    }
}

/// Overwrites and frees the whole allocation, used or not.
impl Zeroize for Inbox {
    fn zeroize(&mut self) {
        self.room.zeroize();
        // Wiping a vector does not free its allocation.
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(bytes: &[u8]) -> Inbox {
        let mut inbox = Inbox::default();
        inbox.grow(bytes.len());
        inbox.room[..bytes.len()].copy_from_slice(bytes);
        inbox.filled = bytes.len();
        inbox
    }

    #[test]
    fn consuming_moves_the_rest_to_the_front() {
        let mut inbox = holding(b"first second");
        inbox.consume(6);
        assert_eq!((&*inbox, inbox.capacity()), (&b"second"[..], 12));
        inbox.consume(6);
        assert!(inbox.is_empty());
    }

    #[test]
    fn announced_length_alone_allocates_little() {
        assert_eq!(holding(b"header").least_room(10), READ_AHEAD);
        assert_eq!(holding(b"header").least_room(100_000), 100_000);
        assert_eq!(holding(b"header").least_room(48_000_000), TRUSTED);
        assert_eq!(holding(&[0; 3 * TRUSTED]).least_room(48_000_000), 3 * TRUSTED);
        assert_eq!(holding(&[0; 3 * TRUSTED]).least_room(TRUSTED), TRUSTED, "at most what the message needs");
    }

    #[test]
    fn clearing_keeps_the_allocation_and_wiping_frees_it() {
        let mut inbox = holding(b"secret");
        inbox.clear();
        assert_eq!((inbox.len(), inbox.capacity()), (0, 6));
        inbox.zeroize();
        assert_eq!((inbox.len(), inbox.room.capacity()), (0, 0));
    }
}
