//! The floor: what a round trip costs with as little code around it as possible.
//!
//! This is hand-written code that does nothing but the round trip. A semaphore limits the number of streams. The stream
//! that was used last is taken first, because its memory is still warm. The request is encoded once; a round trip is
//! one write, and one read into a buffer that belongs to the stream. The code has no states, generations, events,
//! deadlines or documents, and its waits never time out. Still, it cuts no corners. It does not lose connections when a
//! task is cancelled. It checks that the reply is complete, answers the request and reports success. If anything goes
//! wrong on a connection, it closes that connection.

use std::io::{Error, ErrorKind};
use std::sync::{Mutex, PoisonError};

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::Subject;
use crate::Failure;

/// The id of every request. A stream never has more than one request in flight.
const REQUEST: i32 = 1;
/// The opcode of `OP_MSG`.
const OPERATION: i32 = 2013;
/// The length of the header, the flags and the body's kind.
const BEFORE_BODY: usize = 16 + 4 + 1;
/// The size of a stream's buffer: larger than the replies to hello and `ping`, so that one read receives a whole reply.
const REPLY_CAPACITY: usize = 4 * 1024;
/// The start of a successful reply's body after its length: the first element is `ok`, the double 1.
const SUCCESS: &[u8] = b"\x01ok\0\0\0\0\0\0\0\xf0\x3f";

/// Streams to one server, and the permits to use them.
pub struct Floor {
    server: String,
    /// One permit for each stream that may exist.
    permits: Semaphore,
    available: Mutex<Vec<Stream>>,
    ping: Vec<u8>,
}

struct Stream {
    stream: TcpStream,
    reply: Box<[u8; REPLY_CAPACITY]>,
}

impl Subject for Floor {
    async fn open(server: &str, connections: u32) -> Result<Self, Failure> {
        Ok(Self {
            server: server.to_owned(),
            permits: Semaphore::new(connections as usize),
            available: Mutex::new(Vec::with_capacity(connections as usize)),
            ping: message(&rawdoc! { "ping": 1, "$db": "admin" }),
        })
    }

    async fn fill(&self) -> Result<(), Failure> {
        for _ in 0..self.permits.available_permits() {
            let stream = Stream::open(&self.server).await?;
            self.give_back(stream);
        }
        Ok(())
    }

    async fn run(&self) -> Result<(), Failure> {
        // The permit is released after the stream is given back, so that its next owner finds a stream.
        let _permit = self.permits.acquire().await?;
        let mut stream = match self.take() {
            Some(stream) => stream,
            None => Stream::open(&self.server).await?,
        };
        let body = stream.exchange(&self.ping).await?;
        if !body[4..].starts_with(SUCCESS) {
            return Err("the server did not report success for a ping".into());
        }
        self.give_back(stream);
        Ok(())
    }

    async fn close(&self) {
        self.available.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Floor {
    fn take(&self) -> Option<Stream> {
        self.available.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn give_back(&self, stream: Stream) {
        self.available.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }
}

impl Stream {
    async fn open(server: &str) -> Result<Self, Failure> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let mut opened = Self { stream, reply: Box::new([0; REPLY_CAPACITY]) };
        let hello = message(&rawdoc! {
            "hello": 1,
            "client": { "driver": { "name": "floor", "version": "1" }, "os": { "type": "unknown" } },
            "$db": "admin",
        });
        let body = RawDocument::from_bytes(opened.exchange(&hello).await?)?;
        match body.get_f64("ok")? {
            1.0 => Ok(opened),
            _ => Err("the server refused hello".into()),
        }
    }

    /// Sends a request and returns the body of the reply.
    async fn exchange(&mut self, request: &[u8]) -> Result<&[u8], Error> {
        self.stream.write_all(request).await?;
        let mut length = 0;
        loop {
            length += match self.stream.read(&mut self.reply[length..]).await? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => read,
            };
            if length >= BEFORE_BODY && length >= self.field(0) as usize {
                break;
            }
        }
        if self.field(0) as usize != length || self.field(8) != REQUEST || self.field(12) != OPERATION {
            return Err(Error::new(ErrorKind::InvalidData, "the message does not answer the request"));
        }
        Ok(&self.reply[BEFORE_BODY..length])
    }

    /// Returns the integer at an offset in the header.
    fn field(&self, at: usize) -> i32 {
        i32::from_le_bytes([self.reply[at], self.reply[at + 1], self.reply[at + 2], self.reply[at + 3]])
    }
}

/// Returns the bytes of a request.
fn message(body: &RawDocumentBuf) -> Vec<u8> {
    let body = body.as_bytes();
    let length = i32::try_from(BEFORE_BODY + body.len()).expect("BUG: the document is too long");
    let header = [length, REQUEST, 0, OPERATION, 0];
    let mut bytes: Vec<u8> = header.iter().flat_map(|field| field.to_le_bytes()).collect();
    bytes.push(0);
    bytes.extend_from_slice(body);
    bytes
}
