//! Commands on established connections: their bytes, their time limits and their errors.
#![cfg(not(loom))]

use std::time::Duration;

use bson::{Document, RawDocument, RawDocumentBuf, doc, rawdoc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wharf::unstable::wire::{Flags, Header, Limits, Message, Outgoing, op_msg};
use wharf::{Endpoint, Options, Pool};
use wharf_testbed::embedded::{EmbeddedOptions, EmbeddedServer};

mod errors;
mod real;
mod requests;
mod runtimes;
mod timeouts;

/// The time limit after which a hanging test fails.
const AGES: Duration = Duration::from_secs(60);

async fn start() -> EmbeddedServer {
    EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap()
}

fn options(address: &str) -> Options {
    Options::new([address]).unwrap()
}

fn pool_of(options: Options) -> Pool<Endpoint> {
    let pool = options.endpoint().unwrap().pool().build().unwrap();
    pool.ready();
    pool
}

async fn set_fail_point(server: &EmbeddedServer, mode: impl Into<bson::Bson>, data: Document) {
    let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
    let command = RawDocumentBuf::try_from(command).unwrap();
    let mut connection = Endpoint::new(&server.address()).unwrap().connect().await.unwrap();
    connection.run_command("admin", &command).await.unwrap();
}

/// One connection of a peer that the test controls, after the handshake.
struct Peer {
    stream: TcpStream,
    incoming: Vec<u8>,
}

/// A request, as received by the peer.
#[derive(Debug)]
struct Received {
    header: Header,
    flags: Flags,
    body: RawDocumentBuf,
    sequences: Vec<(String, Vec<RawDocumentBuf>)>,
}

const LIMITS: Limits = Limits { max_message_size: 48_000_000, max_document_size: 16 * 1024 * 1024 };

impl Peer {
    /// Accepts a connection and completes the handshake.
    async fn accept(listener: &TcpListener) -> Self {
        let (stream, _) = listener.accept().await.unwrap();
        // Without this, the system holds a short piece back until the client's system has acknowledged the previous
        // piece.
        stream.set_nodelay(true).unwrap();
        let mut peer = Self { stream, incoming: Vec::new() };
        let hello = peer.receive().await;
        peer.reply(&hello, &rawdoc! { "ok": 1, "maxWireVersion": 21, "connectionId": 77 }).await;
        peer
    }

    async fn receive(&mut self) -> Received {
        let length = loop {
            match Header::read(&self.incoming, LIMITS.max_message_size).unwrap() {
                Some(header) if self.incoming.len() >= header.message_length as usize => break header.message_length,
                _ => {}
            }
            assert_ne!(self.stream.read_buf(&mut self.incoming).await.unwrap(), 0, "the client closed the connection");
        };
        let bytes: Vec<u8> = self.incoming.drain(..length as usize).collect();
        let message = Message::decode(&bytes, LIMITS).unwrap();
        let documents = |sequence: &op_msg::Sequence<'_>| {
            sequence.documents.clone().map(|document| document.to_owned()).collect::<Vec<_>>()
        };
        let sequences = message.sequences.iter().map(|one| (one.identifier.to_owned(), documents(one))).collect();
        Received { header: message.header, flags: message.flags, body: message.body.to_owned(), sequences }
    }

    async fn reply(&mut self, request: &Received, body: &RawDocument) {
        self.send(1000 + request.header.request_id, request.header.request_id, Flags::NONE, body).await;
    }

    async fn send(&mut self, request_id: i32, response_to: i32, flags: Flags, body: &RawDocument) {
        let message = Outgoing { request_id, response_to, flags, body, database: None, sequences: &[] };
        let mut bytes = Vec::new();
        op_msg::encode(&message, LIMITS.max_message_size, &mut bytes).unwrap();
        self.stream.write_all(&bytes).await.unwrap();
    }
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}
