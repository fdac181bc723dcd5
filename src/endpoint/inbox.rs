//! The bytes that were received and not used yet.

use std::io;
use std::ops::Deref;
use std::task::{Context, Poll, ready};

use zeroize::Zeroize;

use super::transport::Transport;

/// How many bytes a read has room for at least, so that a reply of common size takes one.
const READ_AHEAD: usize = 4 * 1024;

/// How many bytes a peer's announcement alone is given room for. Beyond it, room is made as bytes arrive: at most as
/// much again as has come.
const TRUSTED: usize = 1024 * 1024;

/// The bytes that were received and not used yet: they are what it dereferences to.
///
/// All of its room is initialised once, when it is made, so that a read needs nothing but the place to write to. A
/// vector's spare capacity would have to be prepared for each of them.
#[derive(Default)]
pub(super) struct Inbox {
    room: Vec<u8>,
    /// How many bytes at the start of `room` were received.
    filled: usize,
}

impl Inbox {
    /// Receives at least one byte, and as many as are there and have room, where `missing` are known to come. Pending,
    /// nothing was received.
    #[inline(always)] // A call for each read of each command is a tenth of what reading takes, and there are two callers.
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

    /// How many bytes the next read should have room for.
    #[inline]
    fn least_room(&self, missing: usize) -> usize {
        missing.min(TRUSTED.max(self.filled)).max(READ_AHEAD)
    }

    #[cold]
    fn grow(&mut self, least: usize) {
        // What is longer than is trusted grows only when its room is used up, and not with each read.
        if least >= TRUSTED && self.room.len() - self.filled >= READ_AHEAD {
            return;
        }
        let length = self.filled + least;
        self.room.reserve_exact(length - self.room.len());
        self.room.resize(length, 0);
    }

    /// Forgets the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
        self.room.copy_within(count..self.filled, 0);
        self.filled -= count;
    }

    /// Forgets all bytes, and keeps the room.
    #[inline]
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// How many bytes of memory it has.
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

/// Overwrites and gives up all of the room, used or not.
impl Zeroize for Inbox {
    fn zeroize(&mut self) {
        self.room.zeroize();
        // A vector keeps its memory when it is wiped.
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
    fn what_is_consumed_makes_room_for_what_follows() {
        let mut inbox = holding(b"first second");
        inbox.consume(6);
        assert_eq!((&*inbox, inbox.capacity()), (&b"second"[..], 12));
        inbox.consume(6);
        assert!(inbox.is_empty());
    }

    #[test]
    fn an_announcement_alone_is_given_little_room() {
        assert_eq!(holding(b"header").least_room(10), READ_AHEAD);
        assert_eq!(holding(b"header").least_room(100_000), 100_000);
        assert_eq!(holding(b"header").least_room(48_000_000), TRUSTED);
        assert_eq!(holding(&[0; 3 * TRUSTED]).least_room(48_000_000), 3 * TRUSTED);
        assert_eq!(holding(&[0; 3 * TRUSTED]).least_room(TRUSTED), TRUSTED, "and the end is where the message ends");
    }

    #[test]
    fn clearing_keeps_the_room_and_wiping_gives_it_up() {
        let mut inbox = holding(b"secret");
        inbox.clear();
        assert_eq!((inbox.len(), inbox.capacity()), (0, 6));
        inbox.zeroize();
        assert_eq!((inbox.len(), inbox.room.capacity()), (0, 0));
    }
}
