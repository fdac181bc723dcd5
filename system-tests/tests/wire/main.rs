//! The wire formats against a real server: the server understands the messages that `wharf::unstable::wire` writes, and
//! `wharf::unstable::wire` reads the server's messages. These are the test plans of OP_MSG and OP_COMPRESSED, at
//! message level.
#![cfg(not(loom))]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bson::oid::ObjectId;
use bson::{RawDocument, RawDocumentBuf, rawdoc};
use wharf::Compressor;
use wharf::unstable::wire::compressed::{self, may_be_compressed};
use wharf::unstable::wire::op_msg::OutgoingSequence;
use wharf::unstable::wire::{Flags, Header, Limits, Message, Outgoing, op_msg, reply};
use wharf_testbed::mongod;

mod ocsp;
mod op_compressed;
mod op_msg_tests;

const LIMITS: Limits = Limits { max_message_size: 48_000_000, max_document_size: 16 * 1024 * 1024 };

/// The time after which a hanging test fails.
const AGES: Duration = Duration::from_secs(60);

/// A connection that exposes all transferred bytes.
struct Peer {
    stream: TcpStream,
    last_request_id: i32,
    /// Compresses every command that may be compressed.
    compressor: Option<Compressor>,
    /// The last reply as it arrived (`received`), and as an `OP_MSG` (`reply`).
    received: Vec<u8>,
    reply: Vec<u8>,
}

impl Peer {
    /// Connects and says hello, offering `compressor`.
    fn connect(address: SocketAddr, compressor: Option<Compressor>) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(AGES)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut peer = Self { stream, last_request_id: 0, compressor, received: Vec::new(), reply: Vec::new() };
        let names: bson::RawArrayBuf = compressor.iter().map(|compressor| compressor.name()).collect();
        let hello = peer.run("admin", &rawdoc! { "hello": 1, "helloOk": true, "compression": names });
        let agreed = hello.get("compression").unwrap().map(|agreed| agreed.as_array().unwrap().to_owned());
        let expected = compressor.map(|compressor| bson::RawArrayBuf::from_iter([compressor.name()]));
        assert_eq!(agreed, expected);
        peer
    }

    /// Runs a command that consists only of its body.
    fn run(&mut self, database: &str, command: &RawDocument) -> RawDocumentBuf {
        self.run_with(database, command, &[])
    }

    fn run_with(
        &mut self,
        database: &str,
        command: &RawDocument,
        sequences: &[OutgoingSequence<'_>],
    ) -> RawDocumentBuf {
        self.send(database, command, sequences, Flags::NONE);
        let answers = self.last_request_id;
        let message = self.receive();
        assert_eq!((message.header.response_to, message.flags), (answers, Flags::NONE));
        reply::check(message.body).unwrap();
        message.body.to_owned()
    }

    fn send(&mut self, database: &str, command: &RawDocument, sequences: &[OutgoingSequence<'_>], flags: Flags) {
        self.last_request_id += 1;
        let (request_id, database) = (self.last_request_id, Some(database));
        let request = Outgoing { request_id, response_to: 0, flags, body: command, database, sequences };
        let (mut plain, mut packed) = (Vec::new(), Vec::new());
        op_msg::encode(&request, LIMITS.max_message_size, &mut plain).unwrap();
        match self.compressor.filter(|_| may_be_compressed(command)) {
            Some(compressor) => {
                assert!(compressed::compress(&plain, compressor, LIMITS.max_message_size, &mut packed).unwrap());
                self.stream.write_all(&packed).unwrap();
            }
            None => self.stream.write_all(&plain).unwrap(),
        }
    }

    fn receive(&mut self) -> Message<'_> {
        self.received.resize(16, 0);
        self.stream.read_exact(&mut self.received).unwrap();
        let header = Header::read(&self.received, LIMITS.max_message_size).unwrap().unwrap();
        self.received.resize(header.message_length as usize, 0);
        self.stream.read_exact(&mut self.received[16..]).unwrap();
        self.reply.clear();
        if header.op_code == compressed::OP_CODE {
            compressed::decompress(&self.received, LIMITS.max_message_size, &mut self.reply).unwrap();
        } else {
            self.reply.extend_from_slice(&self.received);
        }
        Message::decode(&self.reply, LIMITS).unwrap()
    }
}

/// Returns a collection name that no other test uses.
fn collection() -> String {
    ObjectId::new().to_hex()
}

/// Returns the documents of a reply's only batch.
fn batch(reply: &RawDocument, name: &str) -> Vec<RawDocumentBuf> {
    let batch = reply.get_document("cursor").unwrap().get_array(name).unwrap();
    batch.into_iter().map(|document| document.unwrap().as_document().unwrap().to_owned()).collect()
}
