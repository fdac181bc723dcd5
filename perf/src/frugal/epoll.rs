//! The server itself.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, rawdoc};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::{COMMANDS, CPU_NANOS};
use crate::Failure;
use crate::item::{ITEMS_READ, Item, id_of, item, written};
use crate::load::cpu_time;

/// The opcode of `OP_MSG`.
const OPERATION: i32 = 2013;
/// The length of the header, the flags and the body's kind.
const BEFORE_BODY: usize = 16 + 4 + 1;
/// No request to this server is longer than this; the longest is hello.
const REQUEST_CAPACITY: usize = 16 * 1024;
/// The event numbers for the listener and for standard input. All other numbers stand for connections.
const LISTENER: u64 = u64::MAX;
const INPUT: u64 = u64::MAX - 1;

/// Serves until standard input is closed. If there is a delay, each `ping` takes that long.
pub fn serve(delay: Option<Duration>) -> Result<(), Failure> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    listener.set_nonblocking(true)?;
    println!("{}", listener.local_addr()?);
    let input = io::stdin();
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
    epoll.add(input.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP, INPUT))?;
    let mut server = Server::new(delay)?;
    let mut events = [EpollEvent::empty(); 256];
    loop {
        let timeout = server.reply_when_due()?;
        let count = match epoll.wait(&mut events, timeout) {
            Ok(count) => count,
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for event in &events[..count] {
            match event.data() {
                INPUT => return Ok(()),
                LISTENER => server.accept(&listener, &epoll)?,
                number => server.answer(number as usize)?,
            }
        }
    }
}

/// The connections and the counts.
struct Server {
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    created: i64,
    commands: i64,
    ok: Vec<u8>,
    /// The reply to an insert or an update of one document.
    written: Vec<u8>,
    /// The reply to a query for one item.
    found: Found,
    delay: Option<Duration>,
    /// The delayed replies, earliest first.
    due: VecDeque<Due>,
}

/// A delayed reply to a `ping`.
struct Due {
    at: Instant,
    /// The connection's number, and the count of earlier connections, because numbers are reused.
    connection: (usize, i64),
    request: [u8; 4],
}

/// The reply to a query for one item by `_id`, and the position of the `_id` in the reply.
struct Found {
    reply: Vec<u8>,
    id: Range<usize>,
}

impl Found {
    fn new() -> Result<Self, Failure> {
        let id = id_of(u32::MAX);
        let batch: RawArrayBuf = [written(&Item { id: Some(id), ..item(1) })?].into_iter().collect();
        let reply = message(&rawdoc! { "cursor": { "firstBatch": batch, "id": 0_i64, "ns": "perf.items" }, "ok": 1.0 });
        let id = id.bytes();
        let start = reply.windows(id.len()).position(|part| part == id).ok_or("the reply has no _id")?;
        Ok(Self { reply, id: start..start + id.len() })
    }
}

struct Connection {
    stream: TcpStream,
    /// The number of earlier connections.
    before: i64,
    request: Box<[u8; REQUEST_CAPACITY]>,
    length: usize,
}

impl Server {
    fn new(delay: Option<Duration>) -> Result<Self, Failure> {
        Ok(Self {
            connections: Vec::new(),
            free: Vec::new(),
            created: 0,
            commands: 0,
            ok: message(&rawdoc! { "ok": 1.0 }),
            written: message(&rawdoc! { "n": 1, "nModified": 1, "ok": 1.0 }),
            found: Found::new()?,
            delay,
            due: VecDeque::new(),
        })
    }

    fn accept(&mut self, listener: &TcpListener, epoll: &Epoll) -> Result<(), Failure> {
        let (stream, _): (TcpStream, SocketAddr) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let number = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, number as u64))?;
        self.connections[number] =
            Some(Connection { stream, before: self.created, request: Box::new([0; REQUEST_CAPACITY]), length: 0 });
        self.created += 1;
        Ok(())
    }

    /// Reads from a connection, and answers the request if it is complete. A connection is closed if anything goes wrong on
    /// it.
    fn answer(&mut self, number: usize) -> Result<(), Failure> {
        let Some(connection) = &mut self.connections[number] else { return Ok(()) };
        let Connection { stream, request, length, .. } = connection;
        let is_open = match stream.read(&mut request[*length..]) {
            Ok(0) => false,
            Ok(read) => {
                *length += read;
                match whole(&request[..*length]) {
                    Some(whole) => {
                        self.commands += 1;
                        *length = 0;
                        self.reply(number, whole)?
                    }
                    None => *length < REQUEST_CAPACITY,
                }
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        if !is_open {
            // Dropping the stream also removes it from the epoll instance.
            self.connections[number] = None;
            self.free.push(number);
        }
        Ok(())
    }

    /// Sends the delayed replies that are due. Returns the time until the next reply is due.
    fn reply_when_due(&mut self) -> Result<EpollTimeout, Failure> {
        while let Some(due) = self.due.front() {
            let left = due.at.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                // The time is rounded up to milliseconds, as in tokio's timers.
                return Ok(EpollTimeout::try_from(left + Duration::from_micros(999))?);
            }
            let (number, before) = due.connection;
            self.ok[8..12].copy_from_slice(&due.request);
            self.due.pop_front();
            if let Some(connection) = self.connections[number].as_mut().filter(|connection| connection.before == before)
            {
                // The write fails if the client has closed the connection, in which case no reply is needed.
                let _ = connection.stream.write(&self.ok);
            }
        }
        Ok(EpollTimeout::NONE)
    }

    /// Answers a connection's request. Returns whether the connection is still usable.
    fn reply(&mut self, number: usize, length: usize) -> Result<bool, Failure> {
        let open = self.connections.len() - self.free.len();
        let Some(Connection { stream, before, request, .. }) = &mut self.connections[number] else { return Ok(false) };
        let request = &request[..length];
        let mut other;
        if field(request, 12) != OPERATION {
            return Ok(false);
        }
        let reply = match name(request) {
            b"ping" => {
                if let Some(delay) = self.delay {
                    let request = [request[4], request[5], request[6], request[7]];
                    self.due.push_back(Due { at: Instant::now() + delay, connection: (number, *before), request });
                    return Ok(true);
                }
                &mut self.ok
            }
            b"insert" | b"update" => &mut self.written,
            b"find" => {
                let Some(id) = body(request).and_then(asked_for) else { return Ok(false) };
                self.found.reply[self.found.id.clone()].copy_from_slice(&id.bytes());
                &mut self.found.reply
            }
            name => {
                other = message(&match name {
                    b"hello" | b"isMaster" | b"ismaster" => hello(),
                    b"serverStatus" => rawdoc! {
                        "connections": { "current": i64::try_from(open)?, "totalCreated": self.created },
                        CPU_NANOS: i64::try_from(cpu_time()?.as_nanos())?,
                        COMMANDS: self.commands,
                        "ok": 1.0,
                    },
                    b"count" => rawdoc! { "n": i32::try_from(ITEMS_READ)?, "ok": 1.0 },
                    b"endSessions" => rawdoc! { "ok": 1.0 },
                    name => rawdoc! {
                        "ok": 0.0, "code": 59, "codeName": "CommandNotFound", "errmsg": String::from_utf8_lossy(name).as_ref(),
                    },
                });
                &mut other
            }
        };
        reply[8..12].copy_from_slice(&request[4..8]);
        Ok(stream.write(reply).is_ok_and(|written| written == reply.len()))
    }
}

/// Returns the name of the command, which is the first key of the body.
fn name(request: &[u8]) -> &[u8] {
    let key = &request[BEFORE_BODY + 5..];
    &key[..key.iter().position(|&byte| byte == 0).unwrap_or(0)]
}

/// Returns the body, which other sections may follow, or `None` if it is malformed.
fn body(request: &[u8]) -> Option<&RawDocument> {
    let end = BEFORE_BODY + usize::try_from(field(request, BEFORE_BODY)).ok()?;
    RawDocument::from_bytes(request.get(BEFORE_BODY..end)?).ok()
}

/// Returns the `_id` that a query asks for.
fn asked_for(find: &RawDocument) -> Option<ObjectId> {
    find.get_document("filter").ok()?.get_object_id("_id").ok()
}

/// Returns the length of the message, if it is complete.
fn whole(received: &[u8]) -> Option<usize> {
    let length = usize::try_from(field(received.get(..16)?, 0)).ok()?;
    (length > BEFORE_BODY + 5 && received.len() >= length).then_some(length)
}

/// Returns the integer at an offset.
fn field(message: &[u8], at: usize) -> i32 {
    i32::from_le_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]])
}

/// Returns the hello reply of a standalone 6.0 server that supports sessions.
fn hello() -> RawDocumentBuf {
    rawdoc! {
        "isWritablePrimary": true,
        "ismaster": true,
        "helloOk": true,
        "maxBsonObjectSize": 16 * 1024 * 1024,
        "maxMessageSizeBytes": 48_000_000,
        "maxWriteBatchSize": 100_000,
        "localTime": bson::DateTime::now(),
        "logicalSessionTimeoutMinutes": 30,
        "connectionId": 1,
        "minWireVersion": 0,
        "maxWireVersion": 17,
        "readOnly": false,
        "ok": 1.0,
    }
}

/// Returns the bytes of a reply. Its `responseTo` is 0 until it is sent.
fn message(body: &RawDocument) -> Vec<u8> {
    let body = body.as_bytes();
    let length = i32::try_from(BEFORE_BODY + body.len()).expect("BUG: the document is too long");
    let mut bytes: Vec<u8> = [length, 1, 0, OPERATION, 0].iter().flat_map(|field| field.to_le_bytes()).collect();
    bytes.push(0);
    bytes.extend_from_slice(body);
    bytes
}
