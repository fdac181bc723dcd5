//! Serves one connection: reads messages and writes replies.

use std::io;
use std::sync::Arc;

use bson::oid::ObjectId;
use bson::{RawDocument, RawDocumentBuf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use wharf::unstable::wire::{Flags, Header, Limits, Message, Outgoing, op_msg};

use super::Shared;
use super::commands::{self, Command, Course, Effect};

/// The `maxMessageSizeBytes` that the server announces and enforces.
pub(super) const MAX_MESSAGE_SIZE: i32 = 48_000_000;

/// The `maxBsonObjectSize` that the server announces and enforces.
pub(super) const MAX_BSON_OBJECT_SIZE: i32 = 16 * 1024 * 1024;

const LIMITS: Limits =
    Limits { max_message_size: MAX_MESSAGE_SIZE as u32, max_document_size: MAX_BSON_OBJECT_SIZE as u32 };

/// Counts a connection as open until this value is dropped.
#[derive(Debug)]
pub(super) struct OpenConnection(Arc<Shared>);

impl OpenConnection {
    pub fn count(shared: &Arc<Shared>) -> Self {
        shared.counters.send_modify(|counters| {
            counters.connections_opened += 1;
            counters.connections_open += 1;
        });
        Self(Arc::clone(shared))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.counters.send_modify(|counters| counters.connections_open -= 1);
    }
}

/// The state that the server keeps about the client on a connection.
#[derive(Debug)]
pub(super) struct Client {
    /// The connection's number.
    pub id: u64,
    /// The application's name, from the handshake.
    pub app_name: Option<String>,
    /// The service that the handshake assigned to the connection.
    pub service_id: Option<ObjectId>,
    /// Whether there has been a handshake.
    pub greeted: bool,
}

/// Serves a connection until the client closes it or sends an invalid message, or until a fault or a fail point closes
/// it.
pub(super) async fn serve(stream: TcpStream, id: u64, open: OpenConnection) {
    // Locals are dropped in reverse order, so the stream is closed before the connection is counted as closed.
    let open = open;
    let mut stream = stream;
    // The connection is being closed, so the error cannot be reported on it.
    let _ = exchange_messages(&mut stream, id, &open.0).await;
}

async fn exchange_messages(stream: &mut TcpStream, id: u64, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut client = Client { id, app_name: None, service_id: None, greeted: false };
    let mut incoming = Vec::new();
    let mut outgoing = Vec::new();
    let mut replies = 0;
    loop {
        let length = receive(stream, &mut incoming).await?;
        let message = Message::decode(&incoming[..length], LIMITS).map_err(io::Error::other)?;
        let Some(reply) = answer(stream, message.body, &mut client, shared).await? else { return Ok(()) };
        if !message.flags.contains(Flags::MORE_TO_COME) {
            replies += 1;
            encode(&reply, replies, message.header.request_id, shared, &mut outgoing)?;
            send(stream, &outgoing, shared).await?;
        }
        incoming.drain(..length);
    }
}

/// Reads until `incoming` starts with a whole message, and returns its length in bytes.
async fn receive(stream: &mut TcpStream, incoming: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        if let Some(header) = Header::read(incoming, LIMITS.max_message_size).map_err(io::Error::other)? {
            let length = header.message_length as usize;
            if incoming.len() >= length {
                return Ok(length);
            }
        }
        incoming.reserve(4096);
        if stream.read_buf(incoming).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Returns the reply to a command, or `None` to close the connection.
async fn answer(
    stream: &mut TcpStream,
    body: &RawDocument,
    client: &mut Client,
    shared: &Shared,
) -> io::Result<Option<RawDocumentBuf>> {
    // A message without a command name or a database is invalid.
    let Some(command) = Command::read(body) else { return Ok(None) };
    let Course { pause, effect } = commands::receive(&command, client, shared);
    if !pause.is_zero() {
        tokio::time::sleep(pause).await;
    }
    match effect {
        Effect::Execute => Ok(Some(commands::execute(&command, client, shared))),
        Effect::Reply(reply) => Ok(Some(reply)),
        Effect::Close => Ok(None),
        Effect::Hang => {
            // Reads and discards all later messages without answering them, until the client closes the connection.
            tokio::io::copy(stream, &mut tokio::io::sink()).await?;
            Ok(None)
        }
    }
}

fn encode(
    reply: &RawDocument,
    request_id: i32,
    response_to: i32,
    shared: &Shared,
    outgoing: &mut Vec<u8>,
) -> io::Result<()> {
    let faults = shared.faults.current();
    let response_to = faults.response_to.unwrap_or(response_to);
    let message = Outgoing { request_id, response_to, flags: Flags::NONE, body: reply, database: None, sequences: &[] };
    outgoing.clear();
    op_msg::encode(&message, LIMITS.max_message_size, outgoing).map_err(io::Error::other)?;
    if let Some(length) = faults.message_length {
        outgoing[..4].copy_from_slice(&length.to_le_bytes());
    }
    Ok(())
}

async fn send(stream: &mut TcpStream, outgoing: &[u8], shared: &Shared) -> io::Result<()> {
    match shared.faults.current().cut_replies_after {
        Some(most) if most < outgoing.len() => {
            stream.write_all(&outgoing[..most]).await?;
            Err(io::Error::other("the reply was cut on request"))
        }
        _ => stream.write_all(outgoing).await,
    }
}
