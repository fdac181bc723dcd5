//! The receiving side of a channel: from the bytes of a reply to its body.

use std::ops::Range;
use std::task::{Context, Poll};

use bson::RawDocument;

use super::{Awaited, Channel, ExchangeError, ExchangeState, KEPT_CAPACITY};
use crate::endpoint::wire::header::{self, Header};
use crate::endpoint::wire::{Flags, Message, WireError, compressed, op_msg};

/// How much of a reply has arrived.
enum Progress {
    /// All of it, with this header.
    Whole(Header),
    /// At least this many bytes are missing: the rest of the header or, once the header is complete, the rest of the
    /// message.
    Missing(usize),
}

/// The body of a reply, in one of the channel's buffers.
pub(in crate::endpoint) struct Body<'c> {
    pub document: &'c RawDocument,
    is_plain: bool,
    /// Whether another reply follows without another request.
    pub more_to_come: bool,
}

/// A reply that stays in one of the channel's buffers until the channel is used again. See [`Channel::body`].
#[derive(Debug)]
pub(in crate::endpoint) struct Reply {
    /// The range of the body within the buffer.
    body: Range<usize>,
    is_plain: bool,
    /// Whether another reply follows without another request.
    pub more_to_come: bool,
}

impl Channel {
    /// Makes at most one read of the reply. Returns whether the reply is complete.
    #[inline(always)]
    pub(super) fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        awaited: Awaited,
    ) -> Poll<Result<bool, ExchangeError>> {
        if self.taken > 0 {
            self.incoming.consume(self.taken);
            self.taken = 0;
        }
        let mut has_read = false;
        loop {
            let missing = match self.progress(awaited) {
                Ok(Progress::Missing(missing)) => missing,
                Ok(Progress::Whole(header)) => {
                    if header.op_code == compressed::OP_CODE {
                        return self.begin_decompressing(context, awaited, header);
                    }
                    self.state = ExchangeState::Received { awaited, header };
                    return Poll::Ready(Ok(true));
                }
                Err(error) => return Poll::Ready(Err(self.wire(error))),
            };
            if has_read {
                return Poll::Ready(Ok(false));
            }
            match self.incoming.poll_fill(&mut self.transport, context, missing) {
                Poll::Ready(Ok(())) => has_read = true,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(self.network(error))),
                Poll::Pending => {
                    // The next reply of a stream comes only when the server has something to report, so the thread is
                    // allowed to sleep.
                    if !awaited.exhaust {
                        self.busy_poll.wait(awaited.response_to, context);
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Returns how much of the awaited reply has arrived. Refuses an invalid header as soon as it has arrived.
    fn progress(&self, awaited: Awaited) -> Result<Progress, WireError> {
        let available = self.incoming.len();
        let Some(header) = Header::read(&self.incoming, self.most_received)? else {
            return Ok(Progress::Missing(header::LENGTH - available));
        };
        self.check_header(header, awaited)?;
        Ok(match (header.message_length as usize).saturating_sub(available) {
            0 => Progress::Whole(header),
            missing => Progress::Missing(missing),
        })
    }

    fn check_header(&self, header: Header, awaited: Awaited) -> Result<(), WireError> {
        let is_compressed = header.op_code == compressed::OP_CODE && !self.accepted.is_empty();
        if header.op_code != op_msg::OP_CODE && !is_compressed {
            return Err(WireError::OpCode { value: header.op_code, allowed: op_msg::OP_CODE });
        }
        if header.response_to != awaited.response_to {
            return Err(WireError::ResponseTo { value: header.response_to, allowed: awaited.response_to });
        }
        Ok(())
    }

    /// Takes the reply. If more replies follow, the exchange continues with the next reply. Otherwise the exchange is
    /// complete.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Wire`] if the message is not a valid reply. The channel is then broken.
    // Inlined into `EndpointConnection::outcome`, for the same reason as `poll_finish`.
    #[inline(always)]
    pub fn take_body(&mut self) -> Result<Body<'_>, ExchangeError> {
        let ExchangeState::Received { awaited, header } = self.state else { return Err(ExchangeError::NotReusable) };
        // The channel stays broken unless the message turns out to be a valid reply.
        self.state = ExchangeState::Broken;
        let length = header.message_length as usize;
        // The next reply of a stream may have been read along with this reply.
        let bytes = if awaited.exhaust { &self.incoming[..length] } else { &self.incoming[..] };
        let is_plain = header.op_code == compressed::OP_CODE;
        let message = if is_plain {
            if !std::mem::take(&mut self.is_decompressed) {
                self.plain.clear();
                compressed::decompress(bytes, self.most_received, &mut self.plain)?;
            }
            Message::decode(&self.plain, self.limits)?
        } else {
            header.check_whole(bytes)?;
            Message::after(header, bytes, self.limits)?
        };
        let more_to_come = message.flags.contains(Flags::MORE_TO_COME);
        if more_to_come && !awaited.exhaust {
            let (value, allowed) = (message.flags.bits(), Flags::CHECKSUM_PRESENT.bits());
            return Err(WireError::FlagBits { value, allowed }.into());
        }
        if !message.sequences.is_empty() {
            return Err(WireError::Sequences { count: message.sequences.len() as u64 }.into());
        }
        self.state = if more_to_come {
            self.taken = length;
            ExchangeState::Receiving(Awaited { response_to: header.request_id, exhaust: true })
        } else if self.incoming.len() > length {
            return Err(WireError::Unasked { count: (self.incoming.len() - length) as u64 }.into());
        } else {
            ExchangeState::Idle
        };
        Ok(Body { document: message.body, is_plain, more_to_come })
    }

    /// Takes the reply like [`take_body`](Self::take_body), for a body that is read later.
    /// [`return_to_idle`](Self::return_to_idle) frees a large buffer that holds it.
    ///
    /// # Errors
    ///
    /// The same as for [`take_body`](Self::take_body).
    pub fn take_reply(&mut self) -> Result<Reply, ExchangeError> {
        let Body { document, is_plain, more_to_come } = self.take_body()?;
        let (at, length) = (document.as_bytes().as_ptr().addr(), document.as_bytes().len());
        let start = at - self.buffer(is_plain).as_ptr().addr();
        if self.is_idle() && self.greatest_capacity() > KEPT_CAPACITY {
            self.state = ExchangeState::Lent;
        }
        Ok(Reply { body: start..start + length, is_plain, more_to_come })
    }

    /// Returns the body of the reply that was last taken.
    pub fn body(&self, reply: &Reply) -> &RawDocument {
        let bytes = &self.buffer(reply.is_plain)[reply.body.clone()];
        RawDocument::from_bytes(bytes).expect("BUG: a decoded body is not a document")
    }

    /// Returns the buffer that holds a reply.
    fn buffer(&self, is_plain: bool) -> &[u8] {
        if is_plain { &self.plain } else { &self.incoming }
    }
}
