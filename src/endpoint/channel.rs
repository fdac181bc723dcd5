//! Requests and replies over a stream of bytes.

use std::io;
use std::sync::Arc;

use bson::RawDocument;
use zeroize::Zeroize;

use super::transport::Transport;
use crate::wire::header::{self, Header};
use crate::wire::{DEFAULT_MAX_MESSAGE_SIZE, Flags, HelloReply, Limits, Message, Outgoing, WireError, op_msg};

/// How many bytes a read has room for at least, so that a reply of common size takes one.
const READ_AHEAD: usize = 4 * 1024;

/// The greatest capacity in bytes that each buffer keeps between two commands. A pool has many connections, most of
/// them idle, and one large message is no reason to hold its room for good.
const KEPT_CAPACITY: usize = 256 * 1024;

/// A stream of bytes that carries one request and its reply at a time.
#[derive(Debug)]
pub(super) struct Channel {
    transport: Transport,
    limits: Limits,
    /// The elements that every command carries: the declared server API.
    appended: Arc<[u8]>,
    last_request_id: i32,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// Whether the stream is not, or might not be, between two exchanges.
    errored: bool,
}

/// Why a request has no reply.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// The stream failed or ended.
    Network(io::Error),
    /// The request must not be sent (then nothing has happened), or the reply is none.
    Wire(WireError),
    /// An earlier exchange failed or was cancelled, so that the stream cannot carry another.
    Errored,
}

impl From<WireError> for ExchangeError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl Channel {
    /// A channel with the limits that hold until the server has told its own.
    ///
    /// `appended` are BSON elements that every command is to carry, hello and those of authentication included
    /// ([`server_api::elements`](crate::wire::server_api::elements)).
    pub fn new(transport: Transport, appended: Arc<[u8]>) -> Self {
        let limits = Limits { max_message_size: DEFAULT_MAX_MESSAGE_SIZE, max_document_size: 16 * 1024 * 1024 };
        Self {
            transport,
            limits,
            appended,
            last_request_id: 0,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            errored: false,
        }
    }

    /// Overwrites what the buffers hold, after something that may be secret was sent or received.
    pub fn wipe(&mut self) {
        self.outgoing.zeroize();
        self.incoming.zeroize();
    }

    /// Holds later messages to the server's own limits.
    pub fn set_limits(&mut self, hello: &HelloReply) {
        let HelloReply { max_message_size, max_document_size, .. } = *hello;
        self.limits = Limits { max_message_size, max_document_size };
    }

    /// The stream below.
    pub fn transport(&self) -> &Transport {
        &self.transport
    }

    /// Gives the stream back.
    pub fn into_transport(self) -> Transport {
        self.transport
    }

    /// Whether the stream cannot carry another exchange.
    pub fn is_errored(&self) -> bool {
        self.errored
    }

    /// Sends `command`, and returns the reply's body as it lies in the channel's own buffer.
    ///
    /// Dropping the future before it has ended leaves the channel errored if anything may have been sent.
    pub async fn exchange(&mut self, database: &str, command: &RawDocument) -> Result<&RawDocument, ExchangeError> {
        if self.errored {
            return Err(ExchangeError::Errored);
        }
        self.trim();
        let request_id = self.last_request_id.wrapping_add(1);
        self.last_request_id = request_id;
        let request = Outgoing {
            request_id,
            response_to: 0,
            flags: Flags::NONE,
            body: command,
            database: Some(database),
            sequences: &[],
        };
        self.outgoing.clear();
        op_msg::encode_with(&request, &[&self.appended], self.limits.max_message_size, &mut self.outgoing)?;

        self.errored = true;
        self.transport.write_all(&self.outgoing).await.map_err(ExchangeError::Network)?;
        self.receive(request_id).await?;
        let body = reply_body(&self.incoming, self.limits)?;
        self.errored = false;
        Ok(body)
    }

    /// Gives back the room of an unusually large message.
    pub fn trim(&mut self) {
        for buffer in [&mut self.outgoing, &mut self.incoming] {
            if buffer.capacity() > KEPT_CAPACITY {
                *buffer = Vec::new();
            }
        }
    }

    /// Reads until the reply to `request_id` is whole. A header that cannot be its own is refused at once.
    async fn receive(&mut self, request_id: i32) -> Result<(), ExchangeError> {
        self.incoming.clear();
        loop {
            let missing = match Header::read(&self.incoming, self.limits.max_message_size)? {
                None => header::LENGTH - self.incoming.len(),
                Some(header) => {
                    check_header(header, request_id)?;
                    (header.message_length as usize).saturating_sub(self.incoming.len())
                }
            };
            if missing == 0 {
                return Ok(());
            }
            // The length that the server declares is within the limit, so it may decide how much room there is.
            self.incoming.reserve_exact(missing.max(READ_AHEAD));
            self.transport.read(&mut self.incoming).await.map_err(ExchangeError::Network)?;
        }
    }
}

fn check_header(header: Header, request_id: i32) -> Result<(), WireError> {
    if header.op_code != op_msg::OP_CODE {
        return Err(WireError::OpCode { value: header.op_code, allowed: op_msg::OP_CODE });
    }
    if header.response_to != request_id {
        return Err(WireError::ResponseTo { value: header.response_to, allowed: request_id });
    }
    Ok(())
}

/// The body of a reply, which has nothing beside it, and nothing after it either, because the request did not ask for
/// further replies.
fn reply_body(bytes: &[u8], limits: Limits) -> Result<&RawDocument, WireError> {
    let message = Message::decode(bytes, limits)?;
    if message.flags.contains(Flags::MORE_TO_COME) {
        return Err(WireError::FlagBits { value: message.flags.bits(), allowed: Flags::CHECKSUM_PRESENT.bits() });
    }
    match message.sequences.len() {
        0 => Ok(message.body),
        count => Err(WireError::Sequences { count: count as u64 }),
    }
}
