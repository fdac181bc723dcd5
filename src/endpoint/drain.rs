//! Drains exchanges that no caller is waiting for any longer, so that their connections can be used again.
//!
//! A command that was cancelled or timed out leaves behind a half-written request or an unread reply. Closing the
//! connection is simpler, and is what the CSOT specification asks for after a timeout. But callers cancel when the
//! server is slow, and a new connection for each cancelled command slows the server down further. So the channel writes
//! the rest of the request, then reads and discards the reply. It does so within limits, and only while no check-out
//! needs the connection's capacity.
//!
//! A reply that no caller has seen may name a cursor that the server opened. The drain closes that cursor, which the
//! server would otherwise keep for ten minutes.

use std::task::{Context, Poll, ready};

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use thiserror::Error;

use super::channel::{Channel, ExchangeError, ExchangeState, KEPT_CAPACITY, Request};
use super::inbox::Inbox;
use crate::endpoint::wire::header::{self, Header};
use crate::endpoint::wire::reply::whole_number;
use crate::endpoint::wire::{Flags, WireError, op_msg};

#[cfg(test)]
mod tests;

/// How many bytes of a large reply are read and discarded at a time.
const DISCARDED_AT_A_TIME: usize = 64 * 1024;

/// The maximum length in bytes of a reply that is kept and searched for a cursor. The limit bounds the memory used by
/// many connections that are drained at the same time.
const LONGEST_LOOKED_INTO: usize = 1024 * 1024;

/// The length of the prefix that shows whether a reply may answer a query. It ends with the name of the cursor's first
/// field.
const TELLING: usize = FIRST_OF_CURSOR + NEXT_BATCH.len();

/// Where the body's first field begins: after the header, the flags, the kind of the section and the body's length.
const FIRST_FIELD: usize = header::LENGTH + 4 + 1 + 4;

/// The type and the name of the first field in replies with a cursor.
const CURSOR: &[u8] = b"\x03cursor\0";

/// Where the first field of the cursor begins, after the cursor's length.
const FIRST_OF_CURSOR: usize = FIRST_FIELD + CURSOR.len() + 4;

/// The type and the name of the cursor's first field in the reply to a `getMore`.
const NEXT_BATCH: &[u8] = b"\x04nextBatch\0";

/// Why an exchange was not drained.
#[derive(Debug, Error)]
pub(super) enum NotDrained {
    /// The stream failed, or the reply is malformed.
    #[error("the exchange failed: {0:?}")]
    Failed(ExchangeError),
    /// More bytes are left than may be drained.
    #[error("{needed} bytes are left, but at most {allowed} may be drained")]
    TooMuch {
        /// The rest of the request, or the length of the reply.
        needed: u64,
        /// The limit.
        allowed: u64,
    },
    /// The number of replies is unknown.
    #[error("the replies have no known end")]
    Endless,
}

impl From<ExchangeError> for NotDrained {
    fn from(error: ExchangeError) -> Self {
        Self::Failed(error)
    }
}

impl Channel {
    /// Drains the exchange: writes the rest of its request, then reads and discards its reply.
    ///
    /// A reply of up to 64 KiB is checked like a reply that a caller awaits, and so is a larger reply that begins like
    /// the reply to a query. For any other reply, only the header and the flags are checked.
    ///
    /// If the reply names a newly opened cursor, the drain closes the cursor (`killCursors`), and drains that command
    /// as well. It does not inspect a reply of more than 1 MiB, or a compressed reply of more than 64 KiB.
    ///
    /// Neither the rest of the request nor the reply may exceed `most` bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the exchange has not completed. [`condition`](Self::condition) says whether another call may
    /// still complete it.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the next call continues where this call stopped.
    pub async fn drain(&mut self, most: u64) -> Result<(), NotDrained> {
        let mut has_closed = false;
        loop {
            match self.state {
                ExchangeState::Idle => return Ok(()),
                // The request was never sent, or the caller that borrowed the reply is done with it.
                ExchangeState::Lent | ExchangeState::Sending { written: 0, .. } => self.return_to_idle(),
                ExchangeState::Sending { then: Some(awaited), .. }
                | ExchangeState::Receiving(awaited)
                | ExchangeState::Decompressing { awaited, .. }
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
                    let reply = self.take_reply()?;
                    let closing = if has_closed { None } else { closing_of(self.body(&reply)) };
                    self.return_to_idle();
                    if let Some((database, body)) = closing
                        && self.begin_closing(&database, &body)
                    {
                        has_closed = true;
                        // Sends the first bytes. Otherwise, the next iteration would discard the request as unsent.
                        self.advance().await?;
                    }
                }
                ExchangeState::Flushing | ExchangeState::Decompressing { .. } | ExchangeState::Discarding { .. } => {
                    self.advance().await?;
                }
                ExchangeState::Broken => return Err(ExchangeError::NotReusable.into()),
            }
        }
    }

    /// Looks at the part of the reply that has arrived, and starts to discard the rest if the reply is large.
    fn begin_discarding(&mut self, most: u64) -> Result<(), NotDrained> {
        let header = match Header::read(&self.incoming, self.most_received) {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(()),
            Err(error) => return Err(self.wire(error).into()),
        };
        let length = header.message_length as usize;
        check(length, most)?;
        if length <= KEPT_CAPACITY || self.incoming.len() >= length {
            return Ok(());
        }
        let Some((start, _)) = self.incoming.split_first_chunk::<TELLING>() else { return Ok(()) };
        if header.op_code == op_msg::OP_CODE && length <= LONGEST_LOOKED_INTO && may_open_cursor(start) {
            return Ok(());
        }
        if header.op_code == op_msg::OP_CODE {
            let value = u32::from_le_bytes([start[16], start[17], start[18], start[19]]);
            let allowed = Flags::CHECKSUM_PRESENT.bits();
            // The upper half of the flag bits may have any value.
            if value & 0xffff & !allowed != 0 {
                return Err(self.wire(WireError::FlagBits { value, allowed }).into());
            }
        }
        let left = (length - self.incoming.len()) as u64;
        self.incoming = Inbox::default();
        self.state = ExchangeState::Discarding { left };
        Ok(())
    }

    /// Reads and discards part of the rest of a large reply. Returns whether nothing is left.
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

impl Channel {
    /// Encodes the command that closes a cursor. Returns false if it cannot be sent.
    fn begin_closing(&mut self, database: &str, body: &RawDocument) -> bool {
        let request = Request { database, body, sequences: &[], flags: Flags::NONE, appended: [&[], &[]] };
        self.begin(&request).is_ok()
    }
}

/// Returns whether a reply that begins like this may name a newly opened cursor, rather than a cursor that is already
/// known.
fn may_open_cursor(start: &[u8; TELLING]) -> bool {
    start[FIRST_FIELD..].starts_with(CURSOR) && !start[FIRST_OF_CURSOR..].starts_with(NEXT_BATCH)
}

/// Returns the database and the command for closing the cursor that, according to the reply, the server has opened.
fn closing_of(reply: &RawDocument) -> Option<(String, RawDocumentBuf)> {
    let cursor = reply.get_document("cursor").ok()?;
    // The reply to a `getMore` contains the next batch rather than the first. The caller of a `getMore` already knows
    // the cursor.
    cursor.get_array("firstBatch").ok()?;
    let id = whole_number(cursor, "id").ok()?.filter(|&id| id != 0)?;
    let (database, collection) = cursor.get_str("ns").ok()?.split_once('.')?;
    Some((database.to_owned(), rawdoc! { "killCursors": collection, "cursors": [id] }))
}

fn check(needed: usize, allowed: u64) -> Result<(), NotDrained> {
    let needed = needed as u64;
    if needed > allowed { Err(NotDrained::TooMuch { needed, allowed }) } else { Ok(()) }
}
