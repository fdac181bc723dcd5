//! An available connection and an idle client never keep more memory than a stated bound. A connection's memory does
//! not depend on what was sent over it.
#![cfg(not(loom))]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use bson::oid::ObjectId;
use bson::{Binary, RawDocumentBuf, rawdoc, spec::BinarySubtype};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use wharf::unstable::wire::{Flags, Header, Outgoing, header, op_msg};
use wharf::{Client, Endpoint, Options, Pool, PoolOptions};
use wharf_testbed::counting::{TotalAllocator, total};

#[global_allocator]
static ALLOCATOR: TotalAllocator = TotalAllocator;

/// The bound that the guide promises: three buffers of 64 KiB, 16 KiB for the hello's document, and a few KiB for the
/// rest. The bound also covers the memory of the test server.
const BOUND: usize = 256 * 1024;

/// The memory that a client of one server keeps after one command, with three connections: the monitor's two, and one
/// in the pool. Measured: 71 KiB, including 25 for the pool's slots, 8 for its shards and 12 for the connections. The
/// rest of the bound allows for machines with more than two cores, where a pool has more shards, and for the test's
/// server.
const CLIENT_BOUND: usize = 100 * 1024;

/// The memory that a client keeps for each additional server, with the two connections of its monitor. Measured: 54
/// KiB.
const SERVER_BOUND: usize = 80 * 1024;

/// The number of measured clients.
const CLIENTS: usize = 20;

/// Tests take turns, because the allocator counts the bytes of the whole process.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The maximum number of connections.
const CONNECTIONS: usize = 50;

fn megabyte() -> Binary {
    Binary { subtype: BinarySubtype::Generic, bytes: vec![7; 1_000_000] }
}

fn message(body: &RawDocumentBuf) -> Vec<u8> {
    let outgoing = Outgoing { request_id: 1, response_to: 0, flags: Flags::NONE, body, database: None, sequences: &[] };
    let mut bytes = Vec::new();
    op_msg::encode(&outgoing, 48_000_000, &mut bytes).unwrap();
    bytes
}

/// Starts a server that does not keep what it receives. Its hello and its answers to large requests contain `padding`.
fn serve(hello: RawDocumentBuf) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    serve_at(listener, hello, unbounded_channel().0);
    address
}

/// The server's messages to the test.
#[derive(Debug, PartialEq)]
enum Told {
    /// The server is answering the first hello of a connection.
    Connected,
    /// The server has received a hello that asks for a reply once the server's state changes, and leaves it unanswered.
    Awaited,
}

fn serve_at(listener: TcpListener, hello: RawDocumentBuf, told: UnboundedSender<Told>) {
    let answers = Arc::new([
        message(&hello),
        message(&rawdoc! { "ok": 1.0 }),
        message(&rawdoc! { "ok": 1.0, "padding": megabyte() }),
    ]);
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let (answers, told) = (Arc::clone(&answers), told.clone());
            thread::Builder::new().stack_size(64 * 1024).spawn(move || answer(stream, &answers, &told)).unwrap();
        }
    });
}

fn answer(mut stream: TcpStream, answers: &[Vec<u8>; 3], told: &UnboundedSender<Told>) {
    stream.set_nodelay(true).unwrap();
    let mut start = [0; header::LENGTH + 64];
    // Every request here is longer than `start`.
    while stream.read_exact(&mut start).is_ok() {
        let request = Header::read(&start, 48_000_000).unwrap().unwrap();
        let mut rest = request.message_length as usize - start.len();
        let mut ignored = [0; 4096];
        while rest > 0 {
            rest -= stream.read(&mut ignored[..rest.min(4096)]).unwrap();
        }
        let says = |word: &[u8]| start.windows(word.len()).any(|window| window == word);
        // The connection tests ignore these messages.
        let answer = match () {
            () if says(b"topologyVersion") => {
                let _ = told.send(Told::Awaited);
                continue;
            }
            () if says(b"isMaster") => {
                let _ = told.send(Told::Connected);
                &answers[0]
            }
            () if says(b"large") => &answers[2],
            () => &answers[1],
        };
        let mut head = [0; header::LENGTH];
        head.copy_from_slice(&answer[..header::LENGTH]);
        head[8..12].copy_from_slice(&request.request_id.to_le_bytes());
        if stream.write_all(&head).and_then(|()| stream.write_all(&answer[header::LENGTH..])).is_err() {
            return;
        }
    }
}

fn pool(address: SocketAddr) -> Pool<Endpoint> {
    let mut options = Options::new([&*address.to_string()]).unwrap();
    options.pool = PoolOptions::default().max_pool_size(CONNECTIONS as u32);
    let pool = options.endpoint().unwrap().pool().build().unwrap();
    pool.ready();
    pool
}

/// Uses all connections at the same time. Returns how many bytes each connection keeps once all are idle again.
async fn left_behind(address: SocketAddr, way: Way) -> usize {
    let pool = pool(address);
    // The first command lets the runtime allocate what it needs.
    pool.run_command("admin", &request(&rawdoc! {})).await.unwrap();
    let before = total();
    let count = if let Way::HelloAlone = way { CONNECTIONS } else { 10 };
    let mut connections = Vec::with_capacity(count);
    for _ in 0..count {
        connections.push(pool.check_out().await.unwrap());
    }
    let large = request(&rawdoc! { "large": 1, "padding": megabyte() });
    let cursor = request(&rawdoc! { "large": 1 });
    for connection in &mut connections {
        match way {
            Way::HelloAlone => {}
            Way::Run => {
                let reply = connection.run_command("admin", &large).await.unwrap();
                assert!(reply.as_bytes().len() > 1_000_000);
            }
            Way::Lend => {
                let reply = connection.reply_to("admin", &large).await.unwrap();
                assert!(reply.as_bytes().len() > 1_000_000);
            }
            Way::Exhaust => {
                let mut replies = connection.exhaust(wharf::Command::new("admin", &cursor)).unwrap();
                assert!(replies.next().await.unwrap().unwrap().as_bytes().len() > 1_000_000);
            }
            Way::NotSent => drop(connection.exhaust(wharf::Command::new("admin", &large)).unwrap()),
        }
    }
    drop((connections, large, cursor));
    assert_eq!(pool.status().available as usize, count);
    total().saturating_sub(before) / count
}

#[derive(Debug, Clone, Copy)]
enum Way {
    HelloAlone,
    Run,
    Lend,
    Exhaust,
    NotSent,
}

/// Returns a request. The server looks only at its first bytes.
fn request(body: &RawDocumentBuf) -> RawDocumentBuf {
    let mut request = rawdoc! { "ping": 1 };
    for element in body.iter() {
        let (key, value) = element.unwrap();
        request.append(key, value);
    }
    request.append(bson::raw::cstr!("comment"), "x".repeat(100));
    request
}

/// Creates clients for one deployment with this many servers, and runs a command with each client. Returns how many
/// bytes each client keeps.
async fn kept_by_a_client(servers: usize) -> usize {
    let (sender, mut told) = unbounded_channel();
    let listeners: Vec<_> = (0..servers).map(|_| TcpListener::bind(("127.0.0.1", 0)).unwrap()).collect();
    let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    for (place, listener) in listeners.into_iter().enumerate() {
        let mut hosts = bson::RawArrayBuf::new();
        addresses.iter().for_each(|address| hosts.push(address.as_str()));
        let version = rawdoc! { "processId": ObjectId::from_bytes([7; 12]), "counter": 1_i64 };
        let hello = rawdoc! {
            "ok": 1.0, "maxWireVersion": 21, "setName": "rs", "hosts": hosts, "isWritablePrimary": place == 0,
            "secondary": place > 0, "topologyVersion": version,
        };
        serve_at(listener, hello, sender.clone());
    }
    let uri = format!("mongodb://{}/?replicaSet=rs", addresses.join(","));
    let _first = settled_client(&uri, servers, &mut told).await;
    let before = total();
    let mut clients = Vec::with_capacity(CLIENTS);
    for _ in 0..CLIENTS {
        clients.push(settled_client(&uri, servers, &mut told).await);
    }
    total().saturating_sub(before) / CLIENTS
}

/// Creates a client. Waits until the client has all its connections, and its monitors are waiting for changes.
async fn settled_client(uri: &str, servers: usize, told: &mut UnboundedReceiver<Told>) -> Client {
    let client = Client::from_uri(uri).unwrap();
    client.run_command("admin", &request(&rawdoc! {})).await.unwrap();
    let (mut connected, mut awaited) = (0, 0);
    while (connected, awaited) != (2 * servers + 1, servers) {
        match told.recv().await.unwrap() {
            Told::Connected => connected += 1,
            Told::Awaited => awaited += 1,
        }
        assert!(connected <= 2 * servers + 1 && awaited <= servers, "{connected} connections, {awaited} checks");
    }
    client
}

#[tokio::test]
async fn idle_client_keeps_no_more_than_its_bound() {
    let _turn = TURN.lock().await;
    let (one, three) = (kept_by_a_client(1).await, kept_by_a_client(3).await);
    let further = (three - one) / 2;
    println!("{one} bytes per client of one server, {further} for each further server");
    assert!(one <= CLIENT_BOUND, "{one} bytes per client of one server");
    assert!(further <= SERVER_BOUND, "{further} bytes for each further server");
}

#[tokio::test]
async fn idle_connection_keeps_no_more_than_its_bound() {
    let _turn = TURN.lock().await;
    let usual = rawdoc! { "ok": 1.0, "maxWireVersion": 21, "setName": "rs" };
    let long = {
        let mut long = usual.clone();
        long.append(bson::raw::cstr!("padding"), megabyte());
        let mut names = bson::RawArrayBuf::new();
        (0..2_000).for_each(|number| names.push(number.to_string()));
        long.append(bson::raw::cstr!("compression"), names);
        long
    };
    let (usual, long) = (serve(usual), serve(long));
    for way in [Way::HelloAlone, Way::Run, Way::Lend, Way::Exhaust, Way::NotSent] {
        for (hello, address) in [("a usual", usual), ("a long", long)] {
            let bytes = left_behind(address, way).await;
            println!("{bytes} bytes per connection after {way:?} with {hello} hello");
            assert!(bytes <= BOUND, "{bytes} bytes per connection after {way:?} with {hello} hello");
        }
    }
}
