//! Requests and replies over a stream of bytes, as exchanges that can be left and taken up again.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bson::RawDocument;
use zeroize::Zeroize;

use super::inbox::Inbox;
use super::transport::Transport;
use super::unpacking::Unpacking;
use crate::condition::Condition;
use crate::error::Cause;
use crate::options::Compressor;
use crate::wire::header::{self, Header};
use crate::wire::op_msg::{self, OutgoingSequence};
use crate::wire::{DEFAULT_MAX_MESSAGE_SIZE, Flags, HelloReply, Limits, Message, Outgoing, WireError, compressed};

/// The limits that hold until the connection is established: nobody knows yet who is at the other end, and all that is
/// said until then is short.
pub(super) const HANDSHAKE_LIMITS: Limits = Limits { max_message_size: 1024 * 1024, max_document_size: 1024 * 1024 };

/// The greatest capacity in bytes that each of the three buffers keeps between two commands. A pool has many connections,
/// most of them idle, and one large message is no reason to hold its room for good.
///
/// Greater ones are given back when the command has ended, or if its reply was lent out of its buffer, at check-in.
pub(super) const KEPT_CAPACITY: usize = 64 * 1024;

/// How many bytes a compressed reply becomes at least that is decompressed on a thread for blocking work. A shorter one
/// takes some milliseconds at worst.
pub(super) const LONG_TO_UNPACK: usize = 1024 * 1024;

/// A stream of bytes that carries one request and its reply at a time.
///
/// An exchange is a state of the channel, not of a future: [`begin`](Self::begin) encodes the request,
/// [`advance`](Self::advance) makes one write or one read, as often as it takes, and [`take_reply`](Self::take_reply)
/// ends it. Whoever stops in between loses nothing, and somebody else may go on ([`drain`](Self::drain)).
pub(super) struct Channel {
    pub(super) transport: Transport,
    /// The limits of requests.
    pub(super) limits: Limits,
    /// The longest message that is received, in bytes, whether compressed or not.
    pub(super) most_received: u32,
    /// The elements that every command carries: the declared server API.
    appended: Arc<[u8]>,
    /// Agreed on in the handshake.
    compressor: Option<Compressor>,
    /// Whether replies may be compressed, by whatever compressor: since compressors were offered.
    accepts_compressed: bool,
    last_request_id: i32,
    pub(super) state: ExchangeState,
    pub(super) outgoing: Vec<u8>,
    pub(super) incoming: Inbox,
    /// How many bytes at the start of `incoming` are a reply that was taken already, before others of its stream.
    taken: usize,
    /// A message as it is before it is compressed, or after it was decompressed.
    pub(super) plain: Vec<u8>,
    /// Whether `plain` is the reply that was received.
    pub(super) is_unpacked: bool,
    /// A large reply that is being decompressed elsewhere.
    pub(super) unpacking: Option<Unpacking>,
    /// What the channel met with that made it errored.
    fault: Option<Cause>,
}

/// Where the exchange is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExchangeState {
    /// There is none.
    Idle,
    /// The request is being written, from `outgoing`.
    Sending {
        /// How many bytes of it are written.
        written: usize,
        /// What follows it; `None` for a request without a reply.
        then: Option<Awaited>,
    },
    /// A request without a reply is written, but may still be in the stream's own buffer, which only a later read or
    /// write would push on.
    Flushing,
    /// The reply is being read, into `incoming`.
    Receiving(Awaited),
    /// The reply is there.
    Received {
        /// What it was known by.
        awaited: Awaited,
        /// Its header.
        header: Header,
    },
    /// The reply is there, and is being decompressed on another thread.
    Unpacking {
        /// What it was known by.
        awaited: Awaited,
        /// Its header.
        header: Header,
    },
    /// There is no exchange, but the last reply lies in a large buffer, where its reader may still look at it.
    Lent,
    /// The reply is being read for nobody, and is too large to be kept.
    Discarding {
        /// How many bytes of it are still to come.
        left: u64,
    },
    /// The stream failed, or nobody knows what comes next on it.
    Errored,
}

/// The reply that is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Awaited {
    /// The message that it answers.
    pub response_to: i32,
    /// Whether others may follow it by themselves.
    pub exhaust: bool,
}

/// How much of a reply is there.
enum Progress {
    /// All of it, with this header.
    Whole(Header),
    /// This many bytes are missing, as far as is known: at least those of the header.
    Missing(usize),
}

/// A command as it goes over the channel.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub database: &'a str,
    pub body: &'a RawDocument,
    pub sequences: &'a [OutgoingSequence<'a>],
    /// [`Flags::MORE_TO_COME`]: there is no reply. [`Flags::EXHAUST_ALLOWED`]: there may be several.
    pub flags: Flags,
    /// Further elements for this command alone.
    pub appended: &'a [u8],
}

/// The body of a reply, in one of the channel's buffers.
pub(super) struct Body<'c> {
    pub document: &'c RawDocument,
    is_plain: bool,
    /// Whether another reply follows by itself.
    pub more_to_come: bool,
}

/// A reply that lies in one of the channel's buffers until the channel is used again. [`Channel::body`] shows it.
#[derive(Debug)]
pub(super) struct Reply {
    /// Where its body is.
    body: Range<usize>,
    is_plain: bool,
    /// Whether another one follows by itself.
    pub more_to_come: bool,
}

/// Commands and replies are the application's, and may hold what nobody is to see: only their lengths are shown.
impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("transport", &self.transport)
            .field("limits", &self.limits)
            .field("compressor", &self.compressor)
            .field("state", &self.state)
            .field("outgoing_bytes", &self.outgoing.len())
            .field("incoming_bytes", &self.incoming.len())
            .finish_non_exhaustive()
    }
}

/// Why a request has no reply.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// The stream failed or ended.
    Network(io::Error),
    /// The request must not be sent (then nothing has happened), or the reply is none.
    Wire(WireError),
    /// An earlier exchange failed or was not finished, so that the stream cannot carry another.
    Errored,
}

impl From<WireError> for ExchangeError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl Channel {
    /// A channel with [`HANDSHAKE_LIMITS`].
    ///
    /// `appended` are BSON elements that every command is to carry, hello and those of authentication included
    /// ([`server_api::elements`](crate::wire::server_api::elements)).
    pub fn new(transport: Transport, appended: Arc<[u8]>) -> Self {
        Self {
            transport,
            limits: HANDSHAKE_LIMITS,
            most_received: HANDSHAKE_LIMITS.max_message_size,
            appended,
            compressor: None,
            accepts_compressed: false,
            last_request_id: 0,
            state: ExchangeState::Idle,
            outgoing: Vec::new(),
            incoming: Inbox::default(),
            taken: 0,
            plain: Vec::new(),
            is_unpacked: false,
            unpacking: None,
            fault: None,
        }
    }

    /// Holds later messages to the server's own limits. No server sends more than 48,000,000 bytes, whatever it says, and
    /// what it says is not known to be true.
    pub fn set_limits(&mut self, hello: &HelloReply) {
        let HelloReply { max_message_size, max_document_size, .. } = *hello;
        self.limits = Limits { max_message_size, max_document_size };
        self.most_received = max_message_size.min(DEFAULT_MAX_MESSAGE_SIZE);
    }

    /// Accepts compressed replies from now on: a server that is offered compressors may compress each of its replies,
    /// the one to that offer included (OP_COMPRESSED specification, "MongoDB Handshake Amendment").
    pub fn accept_compressed(&mut self) {
        self.accepts_compressed = true;
    }

    /// Compresses later requests, but for those that must not be.
    pub fn set_compressor(&mut self, compressor: Option<Compressor>) {
        self.compressor = compressor;
    }

    /// Overwrites what the buffers hold, after something that may be secret was sent or received, and gives them back.
    ///
    /// An exchange that has not ended cannot go on without them, so the channel is errored then.
    pub fn wipe(&mut self) {
        self.settle();
        if self.state != ExchangeState::Idle {
            self.state = ExchangeState::Errored;
        }
        self.taken = 0;
        self.is_unpacked = false;
        self.unpacking = None;
        self.incoming.zeroize();
        for buffer in [&mut self.outgoing, &mut self.plain] {
            buffer.zeroize();
            *buffer = Vec::new();
        }
    }

    /// What has been received of the awaited reply.
    pub fn received(&self) -> &[u8] {
        &self.incoming
    }

    /// The stream below.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Gives the stream back.
    pub fn into_transport(self) -> Transport {
        self.transport
    }

    /// What the channel is good for.
    #[inline]
    pub fn condition(&self) -> Condition {
        match self.state {
            // A request that has not begun to leave was never sent.
            ExchangeState::Idle | ExchangeState::Lent | ExchangeState::Sending { written: 0, .. } => {
                Condition::Reusable
            }
            ExchangeState::Sending { then: None, .. } => Condition::NeedsDrain,
            // Only the server knows how many replies there will be, and closing the connection also stops it.
            ExchangeState::Sending { then: Some(awaited), .. }
            | ExchangeState::Receiving(awaited)
            | ExchangeState::Unpacking { awaited, .. }
            | ExchangeState::Received { awaited, .. } => {
                if awaited.exhaust {
                    Condition::Broken
                } else {
                    Condition::NeedsDrain
                }
            }
            ExchangeState::Flushing | ExchangeState::Discarding { .. } => Condition::NeedsDrain,
            ExchangeState::Errored => Condition::Broken,
        }
    }

    /// Whether the exchange is about to be read, rather than written.
    #[inline]
    pub fn is_sent(&self) -> bool {
        !matches!(
            self.state,
            ExchangeState::Idle | ExchangeState::Lent | ExchangeState::Sending { .. } | ExchangeState::Flushing
        )
    }

    /// Whether a part of the exchange has left this process. Not where there is none.
    pub fn has_sent(&self) -> bool {
        !matches!(self.state, ExchangeState::Idle | ExchangeState::Lent | ExchangeState::Sending { written: 0, .. })
    }

    /// Sends `command`, and returns the reply's body as it lies in the channel's own buffer.
    ///
    /// Dropping the future before it has ended leaves the exchange unfinished if anything was sent.
    pub async fn exchange(&mut self, database: &str, command: &RawDocument) -> Result<&RawDocument, ExchangeError> {
        self.begin(&Request { database, body: command, sequences: &[], flags: Flags::NONE, appended: &[] })?;
        self.finish().await?;
        Ok(self.take_body()?.document)
    }

    /// Notices what has come over an idle stream, where nobody has asked for anything. As long as nothing has, this is
    /// no system call.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Network`] if the stream has ended or failed, [`ExchangeError::Wire`] if bytes have come. The
    /// channel is errored then.
    #[inline]
    pub fn glance(&mut self) -> Result<(), ExchangeError> {
        match self.transport.take_unasked() {
            Ok(0) => Ok(()),
            Ok(count) => Err(self.wire(WireError::Unasked { count: count as u64 })),
            Err(error) => Err(self.network(error)),
        }
    }

    /// Begins an exchange: encodes the request. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Wire`] or [`ExchangeError::Errored`], and nothing has happened.
    #[inline]
    pub fn begin(&mut self, request: &Request<'_>) -> Result<(), ExchangeError> {
        if !self.is_idle() {
            // One that has not begun to leave makes room for the next.
            if !self.condition().is_reusable() {
                return Err(ExchangeError::Errored);
            }
            self.settle();
        }
        let request_id = self.last_request_id.wrapping_add(1);
        self.last_request_id = request_id;
        let Request { database, body, sequences, flags, appended } = *request;
        let message = Outgoing { request_id, response_to: 0, flags, body, database: Some(database), sequences };
        self.outgoing.clear();
        match self.compressor {
            Some(compressor) if compressed::may_be_compressed(body) => {
                self.encode_compressed(compressor, &message, appended)?;
            }
            _ => {
                let most = self.limits.max_message_size;
                // Mostly there is nothing to append, and then nobody need look for it.
                match [&*self.appended, appended] {
                    [[], []] => op_msg::encode(&message, most, &mut self.outgoing)?,
                    appended => op_msg::encode_with(&message, &appended, most, &mut self.outgoing)?,
                }
            }
        }
        let has_reply = !flags.contains(Flags::MORE_TO_COME);
        let exhaust = flags.contains(Flags::EXHAUST_ALLOWED);
        self.incoming.clear();
        self.taken = 0;
        let then = has_reply.then_some(Awaited { response_to: request_id, exhaust });
        self.state = ExchangeState::Sending { written: 0, then };
        Ok(())
    }

    /// Encodes a request and compresses it, if that makes it shorter.
    fn encode_compressed(
        &mut self,
        compressor: Compressor,
        message: &Outgoing<'_>,
        appended: &[u8],
    ) -> Result<(), WireError> {
        let most = self.limits.max_message_size;
        self.plain.clear();
        op_msg::encode_with(message, &[&self.appended, appended], most, &mut self.plain)?;
        if !compressed::compress(&self.plain, compressor, most, &mut self.outgoing)? {
            std::mem::swap(&mut self.plain, &mut self.outgoing);
        }
        Ok(())
    }

    /// Makes one write or one read, and returns whether there is nothing more to write or read: the reply is there, or
    /// the request has none.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: what was written and read is noted in the channel.
    pub async fn advance(&mut self) -> Result<bool, ExchangeError> {
        poll_fn(|context| self.poll_advance(context)).await
    }

    /// Advances until there is nothing more to write or read. Loses nothing when it is dropped, either.
    pub async fn finish(&mut self) -> Result<(), ExchangeError> {
        poll_fn(|context| self.poll_finish(context)).await
    }

    /// [`finish`](Self::finish) as a function: all state is the channel's, so a future of its own would only add a state
    /// machine, and every command comes through here.
    #[inline(always)] // Into the connection's own, where a command's code lies together.
    pub fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        // The course of nearly every command, straight on.
        while let ExchangeState::Sending { written, then } = self.state {
            ready!(self.poll_send(context, written, then))?;
        }
        if let ExchangeState::Receiving(awaited) = self.state {
            while !ready!(self.poll_receive(context, awaited))? {}
            return Poll::Ready(Ok(()));
        }
        while !ready!(self.poll_advance(context))? {}
        Poll::Ready(Ok(()))
    }

    /// [`advance`](Self::advance) as a function.
    fn poll_advance(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, ExchangeError>> {
        match self.state {
            ExchangeState::Sending { written, then } => self.poll_send(context, written, then).map_ok(|()| false),
            ExchangeState::Flushing => {
                if let Err(error) = ready!(self.transport.poll_flush(context)) {
                    return Poll::Ready(Err(self.network(error)));
                }
                self.state = ExchangeState::Idle;
                Poll::Ready(Ok(true))
            }
            ExchangeState::Receiving(awaited) => self.poll_receive(context, awaited),
            ExchangeState::Idle | ExchangeState::Lent | ExchangeState::Received { .. } => Poll::Ready(Ok(true)),
            ExchangeState::Unpacking { awaited, header } => self.poll_unpack(context, awaited, header),
            ExchangeState::Discarding { left } => self.poll_discard(context, left),
            ExchangeState::Errored => Poll::Ready(Err(ExchangeError::Errored)),
        }
    }

    /// Makes at most one write of the request.
    #[inline(always)]
    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        written: usize,
        then: Option<Awaited>,
    ) -> Poll<Result<(), ExchangeError>> {
        let sent = match ready!(self.transport.poll_write(context, &self.outgoing[written..])) {
            Ok(sent) => sent,
            Err(error) => return Poll::Ready(Err(self.network(error))),
        };
        self.state = match then {
            _ if written + sent < self.outgoing.len() => ExchangeState::Sending { written: written + sent, then },
            Some(awaited) => ExchangeState::Receiving(awaited),
            None => ExchangeState::Flushing,
        };
        Poll::Ready(Ok(()))
    }

    /// Makes at most one read of the reply, and returns whether it is there.
    #[inline(always)]
    fn poll_receive(&mut self, context: &mut Context<'_>, awaited: Awaited) -> Poll<Result<bool, ExchangeError>> {
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
                        return self.begin_unpacking(context, awaited, header);
                    }
                    self.state = ExchangeState::Received { awaited, header };
                    return Poll::Ready(Ok(true));
                }
                Err(error) => return Poll::Ready(Err(self.wire(error))),
            };
            if has_read {
                return Poll::Ready(Ok(false));
            }
            if let Err(error) = ready!(self.incoming.poll_fill(&mut self.transport, context, missing)) {
                return Poll::Ready(Err(self.network(error)));
            }
            has_read = true;
        }
    }

    /// Ends the exchange whose reply is there, or where others follow it by themselves, goes on to the next of them.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Wire`] if it is no reply; the channel is errored then.
    #[inline(always)] // Into the connection's `outcome`, as `poll_finish`.
    pub fn take_body(&mut self) -> Result<Body<'_>, ExchangeError> {
        let ExchangeState::Received { awaited, header } = self.state else { return Err(ExchangeError::Errored) };
        // Until the reply turns out to be one.
        self.state = ExchangeState::Errored;
        let length = header.message_length as usize;
        // The next reply of a stream may have been read along with this one.
        let bytes = if awaited.exhaust { &self.incoming[..length] } else { &self.incoming[..] };
        let is_plain = header.op_code == compressed::OP_CODE;
        let message = if is_plain {
            if !std::mem::take(&mut self.is_unpacked) {
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

    /// As [`take_body`](Self::take_body), for a body that is looked at later. If it lies in a large buffer, that is given
    /// back by [`settle`](Self::settle).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn take_reply(&mut self) -> Result<Reply, ExchangeError> {
        let Body { document, is_plain, more_to_come } = self.take_body()?;
        let (at, length) = (document.as_bytes().as_ptr().addr(), document.as_bytes().len());
        let start = at - self.buffer(is_plain).as_ptr().addr();
        if self.is_idle() && self.greatest_capacity() > KEPT_CAPACITY {
            self.state = ExchangeState::Lent;
        }
        Ok(Reply { body: start..start + length, is_plain, more_to_come })
    }

    /// The body of the reply that was taken last.
    pub fn body(&self, reply: &Reply) -> &RawDocument {
        let bytes = &self.buffer(reply.is_plain)[reply.body.clone()];
        RawDocument::from_bytes(bytes).expect("BUG: it was a document when it was decoded")
    }

    /// Where a reply lies.
    fn buffer(&self, is_plain: bool) -> &[u8] {
        if is_plain { &self.plain } else { &self.incoming }
    }

    /// Whether there is no exchange.
    #[inline]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, ExchangeState::Idle)
    }

    /// Whether a request was begun of which nothing has been sent.
    pub fn is_unsent(&self) -> bool {
        matches!(self.state, ExchangeState::Sending { written: 0, .. })
    }

    /// What came over the stream breaks the protocol above the messages: nothing more is to.
    pub fn condemn(&mut self) {
        self.state = ExchangeState::Errored;
    }

    /// Ends what is no exchange: the last reply is not looked at any more, and a request of which nothing was sent is not
    /// going to be.
    #[cold]
    pub fn settle(&mut self) {
        if let ExchangeState::Lent | ExchangeState::Sending { written: 0, .. } = self.state {
            self.state = ExchangeState::Idle;
            self.trim();
        }
    }

    #[inline]
    fn greatest_capacity(&self) -> usize {
        self.outgoing.capacity().max(self.incoming.capacity()).max(self.plain.capacity())
    }

    /// Gives back the room of an unusually large message, between two exchanges.
    #[inline]
    pub fn trim(&mut self) {
        if self.greatest_capacity() > KEPT_CAPACITY && self.is_idle() {
            self.give_back_room();
        }
    }

    #[cold]
    fn give_back_room(&mut self) {
        for buffer in [&mut self.outgoing, &mut self.plain] {
            if buffer.capacity() > KEPT_CAPACITY {
                *buffer = Vec::new();
            }
        }
        if self.incoming.capacity() > KEPT_CAPACITY {
            self.incoming = Inbox::default();
        }
    }

    /// How much of the awaited reply is there. A header that cannot be its own is refused at once.
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
        let is_compressed = header.op_code == compressed::OP_CODE && self.accepts_compressed;
        if header.op_code != op_msg::OP_CODE && !is_compressed {
            return Err(WireError::OpCode { value: header.op_code, allowed: op_msg::OP_CODE });
        }
        if header.response_to != awaited.response_to {
            return Err(WireError::ResponseTo { value: header.response_to, allowed: awaited.response_to });
        }
        Ok(())
    }

    /// The error that made the channel errored, if there was one.
    pub(super) fn fault(&self) -> Option<&Cause> {
        self.fault.as_ref()
    }

    /// The stream failed.
    #[cold]
    pub(super) fn network(&mut self, error: io::Error) -> ExchangeError {
        self.state = ExchangeState::Errored;
        // The error itself goes to the caller of the command.
        self.fault = Some(Arc::new(io::Error::new(error.kind(), error.to_string())));
        ExchangeError::Network(error)
    }

    /// The peer broke the protocol.
    #[cold]
    pub(super) fn wire(&mut self, error: WireError) -> ExchangeError {
        self.state = ExchangeState::Errored;
        self.fault = Some(Arc::new(error.clone()));
        ExchangeError::Wire(error)
    }
}
