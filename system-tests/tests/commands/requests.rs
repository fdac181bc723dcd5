//! The requests that a peer receives, and how a client handles several replies or none.

use wharf::unstable::wire::WireError;
use wharf::unstable::wire::op_msg::OutgoingSequence;
use wharf::{Command, CommandError, ServerApi, ServerApiVersion};

use super::*;

#[tokio::test]
async fn command_is_sent_unchanged_with_the_common_fields() {
    let (listener, address) = listen().await;
    let api = ServerApi::new(ServerApiVersion::V1).strict(true);
    let endpoint = options(&address).server_api(api).endpoint().unwrap();
    let (connection, mut peer) = tokio::join!(endpoint.connect(), Peer::accept(&listener));
    let mut connection = connection.unwrap();
    let documents = [rawdoc! { "_id": 1 }, rawdoc! { "_id": 2 }];
    let sequences = [OutgoingSequence::new("documents", &documents)];
    let insert = rawdoc! { "insert": "orders" };
    let command = Command::new("shop", &insert).sequences(&sequences).checksum().timeout(AGES);
    let (outcome, request) = tokio::join!(connection.run(command), async {
        let request = peer.receive().await;
        peer.reply(&request, &rawdoc! { "ok": 1, "n": 2 }).await;
        request
    });
    assert_eq!(outcome.unwrap().get_i32("n").unwrap(), 2);
    assert_eq!(request.flags, Flags::CHECKSUM_PRESENT, "the request carries no checksum to verify");
    assert_eq!(request.sequences, [("documents".to_owned(), documents.to_vec())]);
    let body = Document::try_from(request.body).unwrap();
    let names: Vec<_> = body.keys().map(String::as_str).collect();
    assert_eq!(names, ["insert", "$db", "apiVersion", "apiStrict", "maxTimeMS"]);
    assert_eq!((body.get_str("$db").unwrap(), body.get_str("apiVersion").unwrap()), ("shop", "1"));
    let max_time = u64::try_from(body.get_i64("maxTimeMS").unwrap()).unwrap();
    assert!((1..=AGES.as_millis() as u64).contains(&max_time), "{max_time}");

    // Without a limit, no `maxTimeMS` is sent. A command may also opt out of `maxTimeMS`.
    for (command, expected) in [
        (Command::new("shop", &insert), None),
        (Command::new("shop", &insert).timeout(Duration::ZERO), None),
        (Command::new("shop", &insert).timeout(AGES).without_max_time(), None),
    ] {
        let (outcome, request) = tokio::join!(connection.run(command), async {
            let request = peer.receive().await;
            peer.reply(&request, &rawdoc! { "ok": 1 }).await;
            request
        });
        outcome.unwrap();
        assert_eq!(request.body.get_i64("maxTimeMS").ok(), expected);
        assert_eq!((request.flags, request.sequences.len()), (Flags::NONE, 0));
    }
}

#[tokio::test]
async fn unacknowledged_command_waits_for_no_reply() {
    let (listener, address) = listen().await;
    let endpoint = Endpoint::new(&address).unwrap();
    let (connection, mut peer) = tokio::join!(endpoint.connect(), Peer::accept(&listener));
    let mut connection = connection.unwrap();
    let insert = rawdoc! { "insert": "orders", "documents": [], "writeConcern": { "w": 0 } };
    connection.send(Command::new("shop", &insert)).await.unwrap();
    connection.send(Command::new("shop", &insert)).await.unwrap();
    for _ in 0..2 {
        assert_eq!(peer.receive().await.flags, Flags::MORE_TO_COME);
    }
    let ping = rawdoc! { "ping": 1 };
    let (outcome, ()) = tokio::join!(connection.run_command("admin", &ping), async {
        let request = peer.receive().await;
        peer.reply(&request, &rawdoc! { "ok": 1 }).await;
    });
    outcome.unwrap();
}

#[tokio::test]
async fn cancellation_loses_none_of_several_replies() {
    let (listener, address) = listen().await;
    let endpoint = Endpoint::new(&address).unwrap();
    let (connection, mut peer) = tokio::join!(endpoint.connect(), Peer::accept(&listener));
    let mut connection = connection.unwrap();
    let get_more = rawdoc! { "getMore": 1_i64, "collection": "c" };
    let mut replies = connection.exhaust(Command::new("test", &get_more)).unwrap();
    // Sends the request, and is dropped before the reply arrives.
    tokio::select! {
        reply = replies.next() => panic!("unexpected reply: {reply:?}"),
        request = peer.receive() => {
            assert_eq!(request.flags, Flags::EXHAUST_ALLOWED);
            let id = request.header.request_id;
            peer.send(501, id, Flags::MORE_TO_COME, &rawdoc! { "ok": 1, "n": 1 }).await;
            peer.send(502, 501, Flags::MORE_TO_COME, &rawdoc! { "ok": 1, "n": 2 }).await;
        }
    }
    assert_eq!(replies.next().await.unwrap().unwrap().get_i32("n").unwrap(), 1);
    assert_eq!(replies.next().await.unwrap().unwrap().get_i32("n").unwrap(), 2);
    tokio::select! {
        biased;
        reply = replies.next() => panic!("unexpected third reply: {reply:?}"),
        () = std::future::ready(()) => {}
    }
    assert!(!replies.is_over());
    peer.send(503, 502, Flags::NONE, &rawdoc! { "ok": 1, "n": 3 }).await;
    assert_eq!(replies.next().await.unwrap().unwrap().get_i32("n").unwrap(), 3);
    assert!(replies.is_over());
    assert!(replies.next().await.unwrap().is_none());
    assert!(connection.condition().is_reusable());

    // Each reply must answer the previous reply.
    let mut replies = connection.exhaust(Command::new("test", &get_more)).unwrap();
    let (first, ()) = tokio::join!(replies.next(), async {
        let id = peer.receive().await.header.request_id;
        peer.send(601, id, Flags::MORE_TO_COME, &rawdoc! { "ok": 1 }).await;
        peer.send(602, id, Flags::NONE, &rawdoc! { "ok": 1 }).await;
    });
    first.unwrap().unwrap();
    let failure = replies.next().await.unwrap_err();
    assert!(matches!(wire_error(&failure), Some(WireError::ResponseTo { allowed: 601, .. })), "{failure}");
    assert!(replies.next().await.unwrap().is_none());
    assert!(!connection.condition().is_reusable());
}

#[tokio::test]
async fn compressed_reply_is_refused_without_an_agreed_compressor() {
    let (listener, address) = listen().await;
    let endpoint = Endpoint::new(&address).unwrap();
    let (connection, mut peer) = tokio::join!(endpoint.connect(), Peer::accept(&listener));
    let mut connection = connection.unwrap();
    let ping = rawdoc! { "ping": 1 };
    let (outcome, ()) = tokio::join!(connection.run_command("admin", &ping), async {
        let id = peer.receive().await.header.request_id;
        let body = rawdoc! { "ok": 1 };
        let reply = Outgoing {
            request_id: 1,
            response_to: id,
            flags: Flags::NONE,
            body: &body,
            database: None,
            sequences: &[],
        };
        let mut plain = Vec::new();
        op_msg::encode(&reply, 1000, &mut plain).unwrap();
        let content = &plain[16..];
        // The reply is compressed with "noop", which needs no compressor.
        let header =
            Header { message_length: 25 + content.len() as u32, request_id: 1, response_to: id, op_code: 2012 };
        let mut message = Vec::new();
        header.write(&mut message);
        message.extend(2013_i32.to_le_bytes());
        message.extend((content.len() as i32).to_le_bytes());
        message.push(0);
        message.extend(content);
        peer.stream.write_all(&message).await.unwrap();
    });
    let failure = outcome.unwrap_err();
    assert!(matches!(wire_error(&failure), Some(WireError::OpCode { value: 2012, .. })), "{failure}");
    assert!(!connection.condition().is_reusable());
}

#[tokio::test]
async fn bytes_after_the_last_of_several_replies_are_refused() {
    let (listener, address) = listen().await;
    let endpoint = Endpoint::new(&address).unwrap();
    let (connection, mut peer) = tokio::join!(endpoint.connect(), Peer::accept(&listener));
    let mut connection = connection.unwrap();
    let get_more = rawdoc! { "getMore": 1_i64, "collection": "c" };
    let mut replies = connection.exhaust(Command::new("test", &get_more)).unwrap();
    let (last, ()) = tokio::join!(replies.next(), async {
        let id = peer.receive().await.header.request_id;
        let body = rawdoc! { "ok": 1 };
        let reply = |request_id, response_to| Outgoing {
            request_id,
            response_to,
            flags: Flags::NONE,
            body: &body,
            database: None,
            sequences: &[],
        };
        // Both replies are in one write, so that the client reads them together.
        let mut both = Vec::new();
        op_msg::encode(&reply(601, id), 1000, &mut both).unwrap();
        op_msg::encode(&reply(602, 601), 1000, &mut both).unwrap();
        peer.stream.write_all(&both).await.unwrap();
    });
    let failure = last.unwrap_err();
    assert!(matches!(wire_error(&failure), Some(WireError::Unasked { .. })), "{failure}");
    assert!(!connection.condition().is_reusable());
}

#[tokio::test]
async fn unread_replies_close_the_connection_at_check_in() {
    let (listener, address) = listen().await;
    let pool = pool_of(options(&address));
    let (connection, mut peer) = tokio::join!(pool.check_out(), Peer::accept(&listener));
    let mut connection = connection.unwrap();
    let get_more = rawdoc! { "getMore": 1_i64, "collection": "c" };
    let mut replies = connection.exhaust(Command::new("test", &get_more)).unwrap();
    let (first, ()) = tokio::join!(replies.next(), async {
        let id = peer.receive().await.header.request_id;
        peer.send(601, id, Flags::MORE_TO_COME, &rawdoc! { "ok": 1, "n": 1 }).await;
    });
    assert_eq!(first.unwrap().unwrap().get_i32("n").unwrap(), 1);
    drop(connection);
    assert_eq!(pool.status().total, 0);
}

#[tokio::test]
async fn bytes_on_an_idle_connection_are_noticed_before_the_next_command() {
    for close in [false, true] {
        let (listener, address) = listen().await;
        let endpoint = Endpoint::new(&address).unwrap();
        let (connection, peer) = tokio::join!(endpoint.connect(), Peer::accept(&listener));
        let (mut connection, mut peer) = (connection.unwrap(), Some(peer));
        match &mut peer {
            Some(peer) if !close => peer.send(1, 0, Flags::NONE, &rawdoc! { "ok": 1 }).await,
            peer => *peer = None,
        }
        runtime_notices_sockets().await;
        let failure = connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
        match &failure {
            CommandError::Lost { source, .. } => {
                let unasked = source.get_ref().and_then(|source| source.downcast_ref());
                assert_eq!(matches!(unasked, Some(WireError::Unasked { .. })), !close, "{source:?}");
            }
            other => panic!("unexpected failure: {other}"),
        }
        // Nothing is sent in either case, but only a network failure says anything about the server.
        assert!(failure.is_retryable());
        assert_eq!(failure.clears_pool(), close);
        assert!(!connection.condition().is_reusable());
        drop(peer);
    }
}

#[tokio::test]
async fn server_that_closes_every_connection_is_not_retried_forever() {
    let (listener, address) = listen().await;
    let pool = pool_of(options(&address));
    let server = tokio::spawn(async move {
        loop {
            // The peer closes right after the handshake, so that the client finds the connection lost before it sends
            // anything.
            drop(Peer::accept(&listener).await);
        }
    });
    let error = tokio::time::timeout(AGES, pool.run_command("admin", &rawdoc! { "ping": 1 })).await.unwrap();
    let failure = error.unwrap_err();
    assert!(matches!(failure.command_error(), Some(CommandError::Lost { .. })), "{failure}");
    assert!(failure.is_retryable());
    server.abort();
}

#[tokio::test]
async fn pool_retries_on_the_next_connection_when_one_was_lost() {
    let (listener, address) = listen().await;
    let pool = pool_of(options(&address));
    let (mut held, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let (connection, peer) = tokio::join!(pool.check_out(), Peer::accept(&listener));
        held.push(connection.unwrap());
        peers.push(peer);
    }
    drop(held);
    // The connection that was returned last is used first.
    let (build_info, ping) = (rawdoc! { "buildInfo": 1 }, rawdoc! { "ping": 1 });
    let (outcome, ()) = tokio::join!(pool.run_command("admin", &build_info), async {
        let mut last = peers.pop().unwrap();
        last.receive().await;
    });
    outcome.unwrap_err();
    assert_eq!(pool.status().available, 2);
    let (outcome, ()) = tokio::join!(pool.run_command("admin", &ping), async {
        let request = peers[1].receive().await;
        peers[1].reply(&request, &rawdoc! { "ok": 1 }).await;
    });
    outcome.unwrap();

    drop(peers);
    runtime_notices_sockets().await;
    let (outcome, ()) = tokio::join!(pool.run_command("admin", &ping), async {
        let mut peer = Peer::accept(&listener).await;
        let request = peer.receive().await;
        peer.reply(&request, &rawdoc! { "ok": 1, "again": 1 }).await;
    });
    assert_eq!(outcome.unwrap().get_i32("again").unwrap(), 1);
    assert_eq!(pool.status().total, 1);
    assert_eq!(pool.metrics().retries, 2, "both connections were lost");
}

/// Waits until the runtime has noticed what has happened to all sockets. It notices events in the order in which they
/// occur, and the last event is a byte that this function sends.
async fn runtime_notices_sockets() {
    let (listener, address) = listen().await;
    let (sender, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (mut sender, (mut receiver, _)) = (sender.unwrap(), accepted.unwrap());
    sender.write_all(b".").await.unwrap();
    receiver.read_u8().await.unwrap();
}

/// Returns the violation of the wire protocol, if a command failed because of one.
fn wire_error(failure: &CommandError) -> Option<&WireError> {
    match failure {
        CommandError::Wire { source, .. } => source.downcast_ref(),
        _ => None,
    }
}
