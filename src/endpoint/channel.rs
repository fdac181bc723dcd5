//! Requests and replies over a byte stream, as exchanges that can be paused and resumed.

mod busy_poll;
mod receiving;

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bson::RawDocument;
use zeroize::Zeroize;

use super::decompressing::Decompressing;
use super::inbox::Inbox;
use super::transport::Transport;
use crate::endpoint::options::Compressor;
use crate::endpoint::wire::header::Header;
use crate::endpoint::wire::op_msg::{self, OutgoingSequence};
use crate::endpoint::wire::{DEFAULT_MAX_MESSAGE_SIZE, Flags, HelloReply, Limits, Outgoing, WireError, compressed};
use crate::pool::condition::Condition;
use crate::pool::error::Cause;

use busy_poll::BusyPoll;
pub(super) use receiving::Reply;

/// The limits that apply until the connection is established.
///
/// Until then the peer is unverified, and all messages are short.
pub(super) const HANDSHAKE_LIMITS: Limits = Limits { max_message_size: 1024 * 1024, max_document_size: 1024 * 1024 };

/// The maximum capacity, in bytes, that each of the three buffers keeps between two commands.
///
/// A pool has many connections, most of them idle, so a single large message must not occupy memory for good. A larger
/// buffer is freed when the command completes or, if the reply borrows from it, at check-in.
pub(super) const KEPT_CAPACITY: usize = 64 * 1024;

/// A compressed reply of at least this many bytes, before or after decompression, is decompressed on a blocking thread.
///
/// A shorter reply takes a few milliseconds, or a few tens of milliseconds if a server crafted it to be slow.
pub(super) const LONG_TO_DECOMPRESS: usize = 1024 * 1024;

/// A byte stream that carries one request and its reply at a time.
///
/// An exchange is a state of the channel, not of a future. [`begin`](Self::begin) encodes the request, each call to
/// [`advance`](Self::advance) makes one write or one read, and [`take_reply`](Self::take_reply) ends the exchange. A
/// caller that stops partway loses nothing, and another caller may continue ([`drain`](Self::drain)).
pub(super) struct Channel {
    pub(super) transport: Transport,
    /// The limits on requests.
    pub(super) limits: Limits,
    /// The maximum length of a message in bytes, compressed or not.
    pub(super) most_received: u32,
    /// Elements that are appended to every command: the declared server API.
    appended: Arc<[u8]>,
    /// The compressor that the handshake agreed on.
    compressor: Option<Compressor>,
    /// The compressors that the handshake offered, which replies may use.
    pub(super) accepted: compressed::Accepted,
    last_request_id: i32,
    pub(super) state: ExchangeState,
    pub(super) outgoing: Vec<u8>,
    pub(super) incoming: Inbox,
    /// The length in bytes of a reply that has already been taken, but is still at the start of `incoming`, before
    /// other replies of its stream.
    taken: usize,
    /// A message before compression, or after decompression.
    pub(super) plain: Vec<u8>,
    /// Whether `plain` holds the received reply.
    pub(super) is_decompressed: bool,
    /// A large reply that is being decompressed on another thread.
    pub(super) decompressing: Option<Decompressing>,
    /// Decides whether a wait for a reply keeps its thread awake.
    busy_poll: BusyPoll,
    /// The error that broke the channel.
    broken_by: Option<Cause>,
}

/// The state of the exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExchangeState {
    /// No exchange is in progress.
    Idle,
    /// The request is being written from `outgoing`.
    Sending {
        /// The number of bytes already written.
        written: usize,
        /// The reply to wait for afterwards; `None` for a request without a reply.
        then: Option<Awaited>,
    },
    /// A request without a reply is written, but may still be in the stream's own buffer. Without a flush, only a later
    /// read or write would send it.
    Flushing,
    /// The reply is being read into `incoming`.
    Receiving(Awaited),
    /// The reply is complete.
    Received {
        /// The reply that was awaited.
        awaited: Awaited,
        /// The reply's header.
        header: Header,
    },
    /// The reply is complete, and is being decompressed on another thread.
    Decompressing {
        /// The reply that was awaited.
        awaited: Awaited,
        /// The reply's header.
        header: Header,
    },
    /// No exchange is in progress, but the last reply is in a large buffer, where the caller may still read it.
    Lent,
    /// The reply is being read only to be discarded, and is too large to be buffered.
    Discarding {
        /// The number of bytes still to come.
        left: u64,
    },
    /// The stream failed, or it is not known what its next bytes mean.
    Broken,
}

/// The reply that an exchange is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Awaited {
    /// The request ID that the reply answers.
    pub response_to: i32,
    /// Whether more replies may follow without another request.
    pub exhaust: bool,
}

/// A command as it is sent over the channel.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub database: &'a str,
    pub body: &'a RawDocument,
    pub sequences: &'a [OutgoingSequence<'a>],
    /// [`Flags::MORE_TO_COME`]: there is no reply. [`Flags::EXHAUST_ALLOWED`]: there may be several replies.
    pub flags: Flags,
    /// Elements that are appended only to this command, in two parts.
    pub appended: [&'a [u8]; 2],
}

/// Shows only lengths: commands and replies belong to the application and may hold secrets.
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

/// Why a request received no reply.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// The stream failed or ended.
    Network(io::Error),
    /// Either the request is refused before anything is sent, or the reply is malformed.
    Wire(WireError),
    /// An earlier exchange failed or is unfinished, so the stream cannot carry another exchange.
    NotReusable,
}

impl From<WireError> for ExchangeError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl Channel {
    /// Creates a channel with [`HANDSHAKE_LIMITS`].
    ///
    /// `appended` holds the BSON elements that every command carries, including hello and the authentication commands
    /// ([`server_api::elements`](crate::endpoint::wire::server_api::elements)).
    pub fn new(transport: Transport, appended: Arc<[u8]>) -> Self {
        Self {
            transport,
            limits: HANDSHAKE_LIMITS,
            most_received: HANDSHAKE_LIMITS.max_message_size,
            appended,
            compressor: None,
            accepted: compressed::Accepted::default(),
            last_request_id: 0,
            state: ExchangeState::Idle,
            outgoing: Vec::new(),
            incoming: Inbox::default(),
            taken: 0,
            plain: Vec::new(),
            is_decompressed: false,
            decompressing: None,
            busy_poll: BusyPoll::new(Duration::ZERO),
            broken_by: None,
        }
    }

    /// Applies the server's own limits to later messages.
    ///
    /// Received messages are always limited to 48,000,000 bytes. No server sends more, and the limit that a server
    /// announces may be false.
    pub fn set_limits(&mut self, hello: &HelloReply) {
        let HelloReply { max_message_size, max_document_size, .. } = *hello;
        self.limits = Limits { max_message_size, max_document_size };
        self.most_received = max_message_size.min(DEFAULT_MAX_MESSAGE_SIZE);
    }

    /// From now on, accepts replies that are compressed with one of the `offered` compressors.
    ///
    /// A server that was offered compressors may compress each of its replies, including the reply to that offer
    /// (OP_COMPRESSED specification, "MongoDB Handshake Amendment").
    pub fn accept_compressed(&mut self, offered: &[Compressor]) {
        self.accepted = compressed::Accepted::new(offered);
    }

    /// Compresses later requests, except those that must not be compressed.
    pub fn set_compressor(&mut self, compressor: Option<Compressor>) {
        self.compressor = compressor;
    }

    /// Lets each later wait for a reply keep its thread awake for at most `limit`.
    pub fn set_busy_poll(&mut self, limit: Duration) {
        self.busy_poll = BusyPoll::new(limit);
    }

    /// Overwrites and frees the buffers, after something possibly secret was sent or received.
    ///
    /// An unfinished exchange cannot continue without the buffers, so the channel is then broken.
    pub fn wipe(&mut self) {
        self.return_to_idle();
        if self.state != ExchangeState::Idle {
            self.state = ExchangeState::Broken;
        }
        self.taken = 0;
        self.is_decompressed = false;
        self.decompressing = None;
        self.incoming.zeroize();
        for buffer in [&mut self.outgoing, &mut self.plain] {
            buffer.zeroize();
            *buffer = Vec::new();
        }
    }

    /// Returns the part of the awaited reply that has arrived.
    pub fn received(&self) -> &[u8] {
        &self.incoming
    }

    /// Returns the elements that every command carries.
    pub fn appended(&self) -> &Arc<[u8]> {
        &self.appended
    }

    /// Returns the underlying stream.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Returns the underlying stream, and drops the rest.
    pub fn into_transport(self) -> Transport {
        self.transport
    }

    /// Returns the condition of the channel: whether it can carry another exchange.
    #[inline]
    pub fn condition(&self) -> Condition {
        match self.state {
            // A request counts as never sent if none of it was written.
            ExchangeState::Idle | ExchangeState::Lent | ExchangeState::Sending { written: 0, .. } => {
                Condition::Reusable
            }
            ExchangeState::Sending { then: None, .. } => Condition::NeedsDrain,
            // Only the server knows how many replies will follow. Closing the connection also makes the server stop.
            ExchangeState::Sending { then: Some(awaited), .. }
            | ExchangeState::Receiving(awaited)
            | ExchangeState::Decompressing { awaited, .. }
            | ExchangeState::Received { awaited, .. } => {
                if awaited.exhaust {
                    Condition::Broken
                } else {
                    Condition::NeedsDrain
                }
            }
            ExchangeState::Flushing | ExchangeState::Discarding { .. } => Condition::NeedsDrain,
            ExchangeState::Broken => Condition::Broken,
        }
    }

    /// Returns whether the request has been written in full, so only reading remains.
    #[inline]
    pub fn is_sent(&self) -> bool {
        !matches!(
            self.state,
            ExchangeState::Idle | ExchangeState::Lent | ExchangeState::Sending { .. } | ExchangeState::Flushing
        )
    }

    /// Returns whether any part of the current exchange has left this process. False if there is no exchange.
    pub fn has_sent(&self) -> bool {
        !matches!(self.state, ExchangeState::Idle | ExchangeState::Lent | ExchangeState::Sending { written: 0, .. })
    }

    /// Sends `command`, and returns the reply's body, borrowed from the channel's buffer.
    ///
    /// Dropping the future early leaves the exchange unfinished if anything was sent.
    pub async fn exchange(&mut self, database: &str, command: &RawDocument) -> Result<&RawDocument, ExchangeError> {
        self.begin(&Request { database, body: command, sequences: &[], flags: Flags::NONE, appended: [&[], &[]] })?;
        self.finish().await?;
        Ok(self.take_body()?.document)
    }

    /// Checks an idle stream for bytes that no request asked for.
    ///
    /// This makes no system call unless something has arrived.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Network`] if the stream has ended or failed, [`ExchangeError::Wire`] if bytes have arrived. The
    /// channel is then broken.
    #[inline]
    pub fn check_idle(&mut self) -> Result<(), ExchangeError> {
        match self.transport.take_unasked() {
            Ok(0) => Ok(()),
            Ok(count) => Err(self.wire(WireError::Unasked { count: count as u64 })),
            Err(error) => Err(self.network(error)),
        }
    }

    /// Begins an exchange by encoding the request. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`ExchangeError::Wire`] or [`ExchangeError::NotReusable`]. Nothing has happened in either case.
    #[inline]
    pub fn begin(&mut self, request: &Request<'_>) -> Result<(), ExchangeError> {
        if !self.is_idle() {
            // If no part of an earlier request was sent, that request is dropped in favour of the new one.
            if !self.condition().is_reusable() {
                return Err(ExchangeError::NotReusable);
            }
            self.return_to_idle();
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
                // Usually there is nothing to append. The first arm then skips the search for the place to append.
                match [&*self.appended, appended[0], appended[1]] {
                    [[], [], []] => op_msg::encode(&message, most, &mut self.outgoing)?,
                    [[], elements, []] => op_msg::encode_with(&message, &[elements], most, &mut self.outgoing)?,
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

    /// Encodes and compresses a request. Keeps the request uncompressed if compression does not make it shorter.
    fn encode_compressed(
        &mut self,
        compressor: Compressor,
        message: &Outgoing<'_>,
        appended: [&[u8]; 2],
    ) -> Result<(), WireError> {
        let most = self.limits.max_message_size;
        self.plain.clear();
        op_msg::encode_with(message, &[&self.appended, appended[0], appended[1]], most, &mut self.plain)?;
        if !compressed::compress(&self.plain, compressor, most, &mut self.outgoing)? {
            std::mem::swap(&mut self.plain, &mut self.outgoing);
        }
        Ok(())
    }

    /// Makes one write or one read. Returns whether nothing is left to write or read: the reply is complete, or the
    /// request has no reply.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the channel records what was written and read.
    pub async fn advance(&mut self) -> Result<bool, ExchangeError> {
        poll_fn(|context| self.poll_advance(context)).await
    }

    /// Advances until nothing is left to write or read. Dropping the future loses nothing.
    pub async fn finish(&mut self) -> Result<(), ExchangeError> {
        poll_fn(|context| self.poll_finish(context)).await
    }

    /// Polls [`finish`](Self::finish).
    ///
    /// This is a poll function rather than a future, because all state is in the channel. A future would only add a
    /// state machine to the path of every command.
    // Inlined into `EndpointConnection::poll_finish`, so that a command's code is contiguous.
    #[inline(always)]
    pub fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ExchangeError>> {
        // The usual case.
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

    /// Polls [`advance`](Self::advance).
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
            ExchangeState::Decompressing { awaited, header } => self.poll_decompress(context, awaited, header),
            ExchangeState::Discarding { left } => self.poll_discard(context, left),
            ExchangeState::Broken => Poll::Ready(Err(ExchangeError::NotReusable)),
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

    /// Returns whether no exchange is in progress.
    #[inline]
    pub fn is_idle(&self) -> bool {
        matches!(self.state, ExchangeState::Idle)
    }

    /// Returns whether a request has been begun, but none of it has been sent.
    pub fn is_unsent(&self) -> bool {
        matches!(self.state, ExchangeState::Sending { written: 0, .. })
    }

    /// Breaks the channel because a reply violates the protocol above the framing.
    pub fn mark_broken(&mut self) {
        self.state = ExchangeState::Broken;
    }

    /// Makes the channel idle if no exchange is in progress: takes back a reply that was lent out, or drops a request
    /// if no part of it was sent.
    #[cold]
    pub fn return_to_idle(&mut self) {
        if let ExchangeState::Lent | ExchangeState::Sending { written: 0, .. } = self.state {
            self.state = ExchangeState::Idle;
            self.trim();
        }
    }

    #[inline]
    fn greatest_capacity(&self) -> usize {
        self.outgoing.capacity().max(self.incoming.capacity()).max(self.plain.capacity())
    }

    /// Frees the memory of an unusually large message, between two exchanges.
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

    /// Returns the error that broke the channel, if any.
    pub(super) fn broken_by(&self) -> Option<&Cause> {
        self.broken_by.as_ref()
    }

    /// Breaks the channel because the stream failed.
    #[cold]
    pub(super) fn network(&mut self, error: io::Error) -> ExchangeError {
        self.state = ExchangeState::Broken;
        // This is a copy, because the command's caller receives the original error.
        self.broken_by = Some(Arc::new(io::Error::new(error.kind(), error.to_string())));
        ExchangeError::Network(error)
    }

    /// Breaks the channel because the peer violated the protocol.
    #[cold]
    pub(super) fn wire(&mut self, error: WireError) -> ExchangeError {
        self.state = ExchangeState::Broken;
        self.broken_by = Some(Arc::new(error.clone()));
        ExchangeError::Wire(error)
    }
}
