//! Bringing to an end an exchange that nobody waits for any more, so that its connection can be used again.
//!
//! A command that was cancelled, or whose time was up, has left a request half written, or a reply unread. To close the
//! connection would be simple, and is what the CSOT specification asks for after a timeout. But whoever cancels does so
//! when the server is slow, and to open one connection for each command that is given up then makes it slower still. So
//! the rest is written, and the reply read and thrown away, within bounds, and only as long as no check-out waits for the
//! connection's place.

use std::task::{Context, Poll, ready};

use thiserror::Error;

use super::channel::{Channel, ExchangeError, ExchangeState, KEPT_CAPACITY};
use super::inbox::Inbox;
use crate::wire::header::{self, Header};
use crate::wire::{Flags, WireError, op_msg};

#[cfg(test)]
mod tests;

/// How many bytes of a large reply are read at a time, to be thrown away.
const DISCARDED_AT_A_TIME: usize = 64 * 1024;

/// Why an exchange was not brought to an end.
#[derive(Debug, Error)]
pub(super) enum NotDrained {
    /// The stream failed, or the reply is none.
    #[error("the exchange failed: {0:?}")]
    Failed(ExchangeError),
    /// It would have taken more bytes than it may.
    #[error("{needed} bytes are left, but at most {allowed} may be drained")]
    TooMuch {
        /// What is left of the request, or the length of the reply.
        needed: u64,
        /// The limit.
        allowed: u64,
    },
    /// Nobody knows how many replies there would be.
    #[error("the replies have no known end")]
    Endless,
}

impl From<ExchangeError> for NotDrained {
    fn from(error: ExchangeError) -> Self {
        Self::Failed(error)
    }
}

impl Channel {
    /// Brings the exchange to an end: writes what is left of its request, and reads its reply for nobody. A reply of up
    /// to 64 KiB is examined as any other, of a larger one only the header and the flags.
    ///
    /// Neither what is left of the request nor the reply may have more than `most` bytes.
    ///
    /// # Errors
    ///
    /// The exchange is not at its end. [`condition`](Self::condition) tells whether it might be brought there yet.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: to drain once more goes on where this has stopped.
    pub async fn drain(&mut self, most: u64) -> Result<(), NotDrained> {
        loop {
            match self.state {
                ExchangeState::Idle => return Ok(()),
                // Never sent, or not looked at any more.
                ExchangeState::Lent | ExchangeState::Sending { written: 0, .. } => self.settle(),
                ExchangeState::Sending { then: Some(awaited), .. }
                | ExchangeState::Receiving(awaited)
                | ExchangeState::Unpacking { awaited, .. }
                | ExchangeState::Received { awaited, .. }
                    if awaited.exhaust =>
                {
                    return Err(NotDrained::Endless);
                }
                ExchangeState::Sending { written, .. } => {
                    check(self.outgoing.len() - written, most)?;
                    self.advance().await?;
                }
                ExchangeState::Receiving(_) => {
                    self.begin_discarding(most)?;
                    self.advance().await?;
                }
                ExchangeState::Received { .. } => {
                    self.take_reply()?;
                    self.settle();
                }
                ExchangeState::Flushing | ExchangeState::Unpacking { .. } | ExchangeState::Discarding { .. } => {
                    self.advance().await?;
                }
                ExchangeState::Errored => return Err(ExchangeError::Errored.into()),
            }
        }
    }

    /// Looks at as much of the reply as is there, and decides to throw away the rest if it is a large one.
    fn begin_discarding(&mut self, most: u64) -> Result<(), NotDrained> {
        let header = match Header::read(&self.incoming, self.most_received) {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(()),
            Err(error) => return Err(self.wire(error).into()),
        };
        let length = header.message_length as usize;
        check(length, most)?;
        let Some((start, _)) = self.incoming.split_first_chunk::<{ header::LENGTH + 4 }>() else { return Ok(()) };
        if length <= KEPT_CAPACITY || self.incoming.len() >= length {
            return Ok(());
        }
        if header.op_code == op_msg::OP_CODE {
            let value = u32::from_le_bytes([start[16], start[17], start[18], start[19]]);
            let allowed = Flags::CHECKSUM_PRESENT.bits();
            // The high half of the bits may be anything.
            if value & 0xffff & !allowed != 0 {
                return Err(self.wire(WireError::FlagBits { value, allowed }).into());
            }
        }
        let left = (length - self.incoming.len()) as u64;
        self.incoming = Inbox::default();
        self.state = ExchangeState::Discarding { left };
        Ok(())
    }

    /// Reads some of the rest of a large reply, for nobody. Returns whether that was all.
    pub(super) fn poll_discard(&mut self, context: &mut Context<'_>, left: u64) -> Poll<Result<bool, ExchangeError>> {
        self.incoming.clear();
        if let Err(error) = ready!(self.incoming.poll_fill(&mut self.transport, context, DISCARDED_AT_A_TIME)) {
            return Poll::Ready(Err(self.network(error)));
        }
        let read = self.incoming.len() as u64;
        if read > left {
            return Poll::Ready(Err(self.wire(WireError::Unasked { count: read - left })));
        }
        self.state = if read == left { ExchangeState::Idle } else { ExchangeState::Discarding { left: left - read } };
        Poll::Ready(Ok(read == left))
    }
}

fn check(needed: usize, allowed: u64) -> Result<(), NotDrained> {
    let needed = needed as u64;
    if needed > allowed { Err(NotDrained::TooMuch { needed, allowed }) } else { Ok(()) }
}
