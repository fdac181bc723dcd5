//! Tests that need the pool's side of a load-balanced establishment. The other tests use the public API, in
//! `system-tests/tests/endpoint/main.rs`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use bson::oid::ObjectId;
use bson::rawdoc;
use tokio::net::{TcpListener, TcpStream};
use wharf_testbed::embedded::{EmbeddedOptions, EmbeddedServer};

use super::*;
use crate::endpoint::wire::hello::IncompatibleServerError;
use crate::pool::error::Labels;

/// Returns a channel with the limits of an established connection, and the peer's end of its stream.
pub(super) async fn pair() -> (Channel, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let options = Options::new([listener.local_addr().unwrap().to_string().as_str()]).unwrap();
    let connector = Connectors::new(&options).unwrap().connector(&options.hosts[0]).unwrap();
    let deadline = Deadline::after(options.connect_timeout);
    let (transport, accepted) = tokio::join!(connector.connect(deadline, Stages::UNMEASURED), listener.accept());
    let mut channel = Channel::new(transport.unwrap(), [].into());
    channel.set_limits(&HelloReply::read(rawdoc! {}).unwrap());
    (channel, accepted.unwrap().0)
}

/// Opens a load-balanced connection, and returns it with the services that were identified.
async fn open(server: &EmbeddedServer) -> (Result<EndpointConnection, EstablishError>, Vec<ServiceId>) {
    let endpoint = Endpoint::new(&server.address()).unwrap();
    let identified = Mutex::new(Vec::new());
    let identify = |id| identified.lock().unwrap().push(id);
    let connection = endpoint
        .open(OpenContext {
            connection_id: 1,
            generation: 0,
            each_command: None,
            identify: Some(&identify),
            stages: Stages::UNMEASURED,
            terms: Terms::default(),
        })
        .await;
    (connection.map(|(connection, _)| connection), identified.into_inner().unwrap())
}

#[tokio::test]
async fn load_balanced_connection_identifies_the_service_of_its_hello() {
    let service_ids = vec![ObjectId::new(), ObjectId::new()];
    let options = EmbeddedOptions { service_ids: service_ids.clone(), ..EmbeddedOptions::default() };
    let server = EmbeddedServer::start(options).await.unwrap();
    for turn in 0..4 {
        let (connection, identified) = open(&server).await;
        assert_eq!(identified, [service_ids[turn % 2].into()]);
        assert_eq!(connection.unwrap().hello().service_id, Some(service_ids[turn % 2].into()));
    }

    let hello = server.counters().last_handshake.unwrap();
    assert!(hello.get_bool("loadBalanced").unwrap());
    assert_eq!(server.counters().commands("hello"), 4);
    assert_eq!(server.counters().commands("isMaster"), 0);
}

#[tokio::test]
async fn server_without_load_balancing_is_refused_with_the_specifications_message() {
    let server = EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap();
    let (connection, identified) = open(&server).await;
    let error = connection.unwrap_err();
    assert_eq!(identified, []);
    assert_eq!((error.stage(), error.labels()), (Stage::Hello, Labels::NONE));
    assert!(matches!(error.cause().downcast_ref(), Some(IncompatibleServerError::NoLoadBalancer)));
    assert_eq!(
        error.cause().to_string(),
        "Driver attempted to initialize in load balancing mode, but the server does not support this mode."
    );
}

#[tokio::test]
async fn connection_without_load_balancing_has_no_service() {
    let options = EmbeddedOptions { service_ids: vec![ObjectId::new()], ..EmbeddedOptions::default() };
    let server = EmbeddedServer::start(options).await.unwrap();
    let connection = Endpoint::new(&server.address()).unwrap().connect().await.unwrap();
    assert_eq!(connection.hello().service_id, None);
}

/// In a forked child, the value that waits for the drain belongs to the parent. Dropping it would take a lock that one
/// of the parent's threads may hold.
#[tokio::test]
async fn connection_that_is_abandoned_after_a_fork_leaves_alone_what_waits_for_its_drain() {
    #[derive(Debug)]
    struct Waiting(#[expect(dead_code)] Arc<()>);

    impl AwaitsDrain for Waiting {
        fn drained(self: Box<Self>) {}
    }

    let options = EmbeddedOptions { service_ids: vec![ObjectId::new()], ..EmbeddedOptions::default() };
    let server = EmbeddedServer::start(options).await.unwrap();
    let mut connection = open(&server).await.0.unwrap();
    let parents = Arc::new(());
    connection.await_drain(Box::new(Waiting(parents.clone())));
    connection.abandon_after_fork();
    assert_eq!(Arc::strong_count(&parents), 2, "it was dropped");
}

/// Returns a channel to a server that never answers. The listener accepts and holds the connection.
async fn unanswered(credential: crate::endpoint::options::Credential) -> (Endpoint, Channel, tokio::net::TcpListener) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let endpoint = Options::new([&*address]).unwrap().credential(credential).endpoint().unwrap();
    let transport = endpoint
        .connector
        .connect(Deadline::after(endpoint.options.connect_timeout), Stages::UNMEASURED)
        .await
        .unwrap();
    (endpoint, Channel::new(transport, [].into()), listener)
}

#[tokio::test]
async fn cancelled_hello_leaves_no_speculative_authentication_in_the_buffers() {
    let (endpoint, mut channel, _listener) =
        unanswered(crate::endpoint::options::Credential::new("ada", "secret")).await;
    let speculation = endpoint.authenticator.as_ref().unwrap().speculation(&endpoint.address);
    assert!(speculation.command.is_some());
    // On its own, a cancelled handshake leaves its speculative authentication in the buffer.
    let made = endpoint.handshake.make(&mut channel, false, &speculation, Deadline::after(std::time::Duration::ZERO));
    assert!(is_left_waiting(made).await);
    assert!(channel.outgoing.windows(9).any(|window| window == b"saslStart"));

    let (endpoint, mut channel, _listener) =
        unanswered(crate::endpoint::options::Credential::new("ada", "secret")).await;
    let greeting = endpoint.greet(&mut channel, false, &speculation, Deadline::after(std::time::Duration::ZERO));
    assert!(is_left_waiting(greeting).await);
    assert_eq!((&channel.outgoing[..], channel.condition()), (&[][..], Condition::Broken));
}

#[tokio::test]
async fn long_reply_takes_memory_as_it_arrives() {
    use bson::rawdoc;
    use tokio::io::AsyncWriteExt;

    use crate::endpoint::channel::Request;
    use crate::endpoint::wire::{Flags, Outgoing, op_msg};

    const MEBIBYTE: usize = 1024 * 1024;
    let (_endpoint, mut channel, listener) =
        unanswered(crate::endpoint::options::Credential::new("ada", "secret")).await;
    let mut server = listener.accept().await.unwrap().0;
    channel.set_limits(&HelloReply::read(rawdoc! { "maxMessageSizeBytes": i32::MAX }).unwrap());
    let body = rawdoc! { "ok": 1, "text": "a".repeat(12 * MEBIBYTE) };
    let reply =
        Outgoing { request_id: 9, response_to: 1, flags: Flags::NONE, body: &body, database: None, sequences: &[] };
    let mut bytes = Vec::new();
    op_msg::encode(&reply, 48_000_000, &mut bytes).unwrap();

    for declared in [bytes.len(), 48_000_000] {
        let ping = rawdoc! { "ping": 1 };
        channel
            .begin(&Request {
                database: "admin",
                body: &ping,
                sequences: &[],
                flags: Flags::NONE,
                appended: [&[], &[]],
            })
            .unwrap();
        while !channel.is_sent() {
            channel.advance().await.unwrap();
        }
        let is_whole = declared == bytes.len();
        let mut sent = bytes.clone();
        sent[..4].copy_from_slice(&(declared as u32).to_le_bytes());
        sent[8..12].copy_from_slice(&if is_whole { 1_i32 } else { 2 }.to_le_bytes());
        let length = sent.len();
        let sends = tokio::spawn(async move {
            // The reply is sent in many small parts, as a network might deliver it.
            for part in sent.chunks(64 * 1024) {
                server.write_all(part).await.unwrap();
                tokio::task::yield_now().await;
            }
            server
        });
        let (mut moves, mut room) = (0, channel.incoming.capacity());
        while channel.incoming.len() < length {
            channel.advance().await.unwrap();
            let capacity = channel.incoming.capacity();
            let most = channel.incoming.len().max(256 * 1024) * 2 + MEBIBYTE;
            assert!(capacity <= most, "{capacity} bytes allocated after {} arrived", channel.incoming.len());
            moves += u32::from(std::mem::replace(&mut room, capacity) != capacity);
        }
        assert!(moves <= 8, "moved {moves} times");
        server = sends.await.unwrap();
        if is_whole {
            let reply = channel.take_reply().unwrap();
            assert_eq!(channel.body(&reply), &*body);
        }
    }
}

/// Polls once, returns whether the future is pending, and drops it.
async fn is_left_waiting<F: Future>(future: F) -> bool {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

/// Polls a command until it no longer wakes itself, in a runtime that is otherwise idle. Returns the number of polls,
/// and how long they took.
fn asks_for_polls(runtime: &tokio::runtime::Runtime, command: impl Future) -> (u32, Duration) {
    let asked = Arc::new(Asked::default());
    let waker = Waker::from(Arc::clone(&asked));
    let mut command = std::pin::pin!(command);
    let _entered = runtime.enter();
    let start = std::time::Instant::now();
    let mut polls = 0;
    loop {
        polls += 1;
        assert!(command.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        if !asked.0.swap(false, Ordering::Relaxed) {
            return (polls, start.elapsed());
        }
    }
}

#[derive(Default)]
struct Asked(AtomicBool);

impl Wake for Asked {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn busy_polling_keeps_a_waiting_command_awake_up_to_its_limit() {
    const LIMIT: Duration = Duration::from_millis(5);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = runtime.block_on(EmbeddedServer::start(EmbeddedOptions::default())).unwrap();
    let connect = |limit| {
        let endpoint = Options::new([&*server.address()]).unwrap().busy_poll(limit).endpoint().unwrap();
        runtime.block_on(async move { endpoint.connect().await }).unwrap()
    };
    let ping = rawdoc! { "ping": 1 };

    let mut connection = connect(Duration::ZERO);
    assert_eq!(asks_for_polls(&runtime, connection.run(Command::new("admin", &ping))).0, 1);

    let mut connection = connect(LIMIT);
    let (polls, time) = asks_for_polls(&runtime, connection.run(Command::new("admin", &ping)));
    assert!(polls > 1 && time >= LIMIT, "{polls} polls in {time:?}");
    assert!(runtime.block_on(connection.drain()));
    // That reply came too late, so the next command lets its thread sleep immediately.
    assert_eq!(asks_for_polls(&runtime, connection.run(Command::new("admin", &ping))).0, 1);
    assert!(runtime.block_on(connection.drain()));
    runtime.block_on(connection.run(Command::new("admin", &ping))).unwrap();

    // The next reply of a stream arrives only when the server has something to report, so busy polling would be
    // pointless.
    let mut connection = connect(LIMIT);
    let hello = rawdoc! { "hello": 1, "maxAwaitTimeMS": 60_000 };
    let streaming = Command::new("admin", &hello).with_flags(crate::endpoint::wire::Flags::EXHAUST_ALLOWED);
    let limit = Limit::Infinite;
    assert_eq!(asks_for_polls(&runtime, connection.complete(&streaming, limit)).0, 1);
}
