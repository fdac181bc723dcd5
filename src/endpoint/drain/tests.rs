//! Abandons exchanges at every byte offset, and checks the limits. How a pool drains connections is tested through the
//! public API, in `system-tests/tests/drain/main.rs`.

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::endpoint::channel::Request;
use crate::endpoint::tests::pair;
use crate::endpoint::wire::{Limits, Message, Outgoing};
use crate::pool::condition::Condition;

/// A limit that no test reaches.
const PLENTY: u64 = 64 * 1024 * 1024;

/// Receives the next message on the stream.
async fn receive(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = vec![0; header::LENGTH];
    stream.read_exact(&mut bytes).await.unwrap();
    let length = Header::read(&bytes, 48_000_000).unwrap().unwrap().message_length as usize;
    bytes.resize(length, 0);
    stream.read_exact(&mut bytes[header::LENGTH..]).await.unwrap();
    bytes
}

fn reply(response_to: i32, flags: Flags, body: &RawDocument) -> Vec<u8> {
    let message = Outgoing { request_id: 1000 + response_to, response_to, flags, body, database: None, sequences: &[] };
    let mut bytes = Vec::new();
    op_msg::encode(&message, 48_000_000, &mut bytes).unwrap();
    bytes
}

fn begin(channel: &mut Channel, body: &RawDocument, flags: Flags) {
    channel.begin(&Request { database: "test", body, sequences: &[], flags, appended: [&[], &[]] }).unwrap();
}

fn body_of(message: &[u8]) -> RawDocumentBuf {
    let limits = Limits { max_message_size: 48_000_000, max_document_size: 16 << 20 };
    Message::decode(message, limits).unwrap().body.to_owned()
}

/// Sends the whole request, and begins to wait for the reply.
async fn send_ping(channel: &mut Channel) {
    begin(channel, &rawdoc! { "ping": 1 }, Flags::NONE);
    while !channel.is_sent() {
        channel.advance().await.unwrap();
    }
}

/// Reads until `most` bytes of the reply have arrived, and stops in the middle of the next read.
async fn read_prefix(channel: &mut Channel, most: usize) {
    while channel.incoming.len() < most {
        channel.advance().await.unwrap();
    }
    let mut next = Box::pin(channel.advance());
    let polled = std::future::poll_fn(|context| std::task::Poll::Ready(next.as_mut().poll(context))).await;
    assert!(polled.is_pending());
}

#[tokio::test]
async fn request_can_be_left_at_any_byte() {
    let (mut channel, mut server) = pair().await;
    let ping = rawdoc! { "ping": "a value of some length" };
    begin(&mut channel, &ping, Flags::NONE);
    let length = channel.outgoing.len();
    for written in 0..=length {
        begin(&mut channel, &ping, Flags::NONE);
        let request = channel.outgoing.clone();
        let ExchangeState::Sending { then, .. } = channel.state else { panic!("{:?}", channel.state) };
        let mut already = 0;
        while already < written {
            already += channel.transport.write(&request[already..written]).await.unwrap();
        }
        channel.state = ExchangeState::Sending { written, then };
        let expected = if written == 0 { Condition::Reusable } else { Condition::NeedsDrain };
        assert_eq!(channel.condition(), expected, "{written}");
        if written > 0 {
            let serve = async {
                let received = receive(&mut server).await;
                assert_eq!(received, request, "{written}");
                let number = Header::read(&received, 48_000_000).unwrap().unwrap().request_id;
                server.write_all(&reply(number, Flags::NONE, &rawdoc! { "ok": 1 })).await.unwrap();
            };
            let (drained, ()) = tokio::join!(channel.drain(PLENTY), serve);
            drained.unwrap();
        } else {
            channel.drain(0).await.unwrap();
        }
        assert_eq!((channel.condition(), channel.state), (Condition::Reusable, ExchangeState::Idle), "{written}");
    }
    goes_on(&mut channel, &mut server).await;
}

#[tokio::test]
async fn reply_can_be_left_at_any_byte() {
    let (mut channel, mut server) = pair().await;
    let body = rawdoc! { "ok": 1, "note": "a reply of some length" };
    let length = reply(0, Flags::NONE, &body).len();
    for prefix in 0..length {
        send_ping(&mut channel).await;
        let number = Header::read(&receive(&mut server).await, 48_000_000).unwrap().unwrap().request_id;
        let bytes = reply(number, Flags::NONE, &body);
        server.write_all(&bytes[..prefix]).await.unwrap();
        read_prefix(&mut channel, prefix).await;
        assert_eq!(channel.condition(), Condition::NeedsDrain, "{prefix}");
        // A cancelled drain loses no bytes.
        tokio::select! {
            biased;
            drained = channel.drain(PLENTY) => panic!("nothing more was sent: {drained:?}"),
            () = std::future::ready(()) => {}
        }
        server.write_all(&bytes[prefix..]).await.unwrap();
        channel.drain(PLENTY).await.unwrap();
        assert_eq!(channel.condition(), Condition::Reusable, "{prefix}");
    }
    goes_on(&mut channel, &mut server).await;
}

#[tokio::test]
async fn large_reply_is_discarded_without_buffering_and_can_be_left() {
    let (mut channel, mut server) = pair().await;
    let body = rawdoc! { "ok": 1, "much": "x".repeat(5_000_000) };
    // The reply is cut off in the header, in the flags, just after the flags, and far into the body.
    for prefix in [0, 7, 16, 19, 20, 21, 300_000, 4_000_000] {
        send_ping(&mut channel).await;
        let number = Header::read(&receive(&mut server).await, 48_000_000).unwrap().unwrap().request_id;
        let bytes = reply(number, Flags::NONE, &body);
        let (head, tail) = bytes.split_at(prefix);
        let (sent, ()) = tokio::join!(server.write_all(head), read_prefix(&mut channel, prefix));
        sent.unwrap();
        let half = tail.len() / 2;
        tokio::select! {
            drained = channel.drain(PLENTY) => panic!("half of it was not sent: {drained:?}"),
            // The operating system's buffers cannot hold this much, so the drain has read some of it.
            sent = server.write_all(&tail[..half]) => sent.unwrap(),
        }
        assert_eq!(channel.condition(), Condition::NeedsDrain);
        let (sent, drained) = tokio::join!(server.write_all(&tail[half..]), channel.drain(PLENTY));
        sent.unwrap();
        drained.unwrap();
        assert_eq!(channel.condition(), Condition::Reusable, "{prefix}");
        assert!(channel.incoming.capacity() <= KEPT_CAPACITY, "{}", channel.incoming.capacity());
    }
    goes_on(&mut channel, &mut server).await;
}

#[tokio::test]
async fn request_without_a_reply_is_only_written() {
    let (mut channel, mut server) = pair().await;
    begin(&mut channel, &rawdoc! { "insert": "c" }, Flags::MORE_TO_COME);
    let request = channel.outgoing.clone();
    assert_eq!(channel.transport.write(&request[..5]).await.unwrap(), 5);
    channel.state = ExchangeState::Sending { written: 5, then: None };
    assert_eq!(channel.condition(), Condition::NeedsDrain);
    channel.drain(PLENTY).await.unwrap();
    assert_eq!(receive(&mut server).await, request);

    // The request was written, but perhaps only into the TLS buffer.
    begin(&mut channel, &rawdoc! { "insert": "c" }, Flags::MORE_TO_COME);
    let request = channel.outgoing.clone();
    assert!(!channel.advance().await.unwrap());
    assert_eq!((channel.state, channel.condition()), (ExchangeState::Flushing, Condition::NeedsDrain));
    channel.drain(PLENTY).await.unwrap();
    assert_eq!(channel.condition(), Condition::Reusable);
    assert_eq!(receive(&mut server).await, request);
    goes_on(&mut channel, &mut server).await;
}

#[tokio::test]
async fn more_than_the_limit_is_not_drained() {
    let (mut channel, mut server) = pair().await;
    send_ping(&mut channel).await;
    let bytes = reply(1, Flags::NONE, &rawdoc! { "ok": 1 });
    server.write_all(&bytes[..16]).await.unwrap();
    let needed = bytes.len() as u64;
    let refused = channel.drain(needed - 1).await;
    assert!(matches!(refused, Err(NotDrained::TooMuch { needed: n, allowed }) if (n, allowed) == (needed, needed - 1)));
    assert_eq!(channel.condition(), Condition::NeedsDrain);
    server.write_all(&bytes[16..]).await.unwrap();
    channel.drain(needed).await.unwrap();

    let (mut channel, _server) = pair().await;
    begin(&mut channel, &rawdoc! { "ping": "x".repeat(100) }, Flags::NONE);
    let request = channel.outgoing.clone();
    channel.transport.write(&request[..1]).await.unwrap();
    let ExchangeState::Sending { then, .. } = channel.state else { panic!("{:?}", channel.state) };
    channel.state = ExchangeState::Sending { written: 1, then };
    assert!(matches!(channel.drain(100).await, Err(NotDrained::TooMuch { .. })));
}

#[tokio::test]
async fn replies_without_a_known_end_are_not_drained() {
    let (mut channel, mut server) = pair().await;
    begin(&mut channel, &rawdoc! { "getMore": 1_i64 }, Flags::EXHAUST_ALLOWED);
    assert_eq!(channel.condition(), Condition::Reusable, "nothing was sent yet");
    while !channel.is_sent() {
        channel.advance().await.unwrap();
    }
    receive(&mut server).await;
    assert_eq!(channel.condition(), Condition::Broken);
    assert!(matches!(channel.drain(PLENTY).await, Err(NotDrained::Endless)));
    // Two replies in one packet, each answering the previous message.
    let mut bytes = reply(1, Flags::MORE_TO_COME, &rawdoc! { "ok": 1, "n": 1 });
    bytes.extend(reply(1001, Flags::NONE, &rawdoc! { "ok": 1, "n": 2 }));
    server.write_all(&bytes).await.unwrap();
    for (number, is_last) in [(1, false), (2, true)] {
        channel.finish().await.unwrap();
        let reply = channel.take_reply().unwrap();
        assert_eq!(channel.body(&reply).get_i32("n").unwrap(), number);
        assert_eq!(channel.condition(), if is_last { Condition::Reusable } else { Condition::Broken });
    }
    goes_on(&mut channel, &mut server).await;
}

#[tokio::test]
async fn reply_that_breaks_the_protocol_ends_the_drain() {
    let large = rawdoc! { "ok": 1, "much": "x".repeat(KEPT_CAPACITY) };
    let small = rawdoc! { "ok": 1 };
    let mut changed = reply(1, Flags::NONE, &small);
    // Corrupts the length of the body's document.
    changed[21] += 1;
    let wrong: [Vec<u8>; 6] = [
        reply(2, Flags::NONE, &small),
        reply(1, Flags::MORE_TO_COME, &small),
        reply(1, Flags::MORE_TO_COME, &large),
        reply(1, Flags::NONE, &small).repeat(2),
        [reply(1, Flags::NONE, &large), vec![0]].concat(),
        changed,
    ];
    for bytes in wrong {
        let (mut channel, mut server) = pair().await;
        send_ping(&mut channel).await;
        let (drained, _) = tokio::join!(channel.drain(PLENTY), async {
            server.write_all(&bytes).await.unwrap();
            // After a shutdown, everything that was sent can still be read.
            server.shutdown().await.unwrap();
        });
        assert!(matches!(drained, Err(NotDrained::Failed(ExchangeError::Wire(_)))), "{drained:?}");
        assert_eq!(channel.condition(), Condition::Broken);
    }
}

/// Answers the next request, and returns its body.
async fn answer(server: &mut TcpStream, body: &RawDocument) -> RawDocumentBuf {
    let request = receive(server).await;
    let number = Header::read(&request, 48_000_000).unwrap().unwrap().request_id;
    server.write_all(&reply(number, Flags::NONE, body)).await.unwrap();
    body_of(&request)
}

#[tokio::test]
async fn cursor_that_a_reply_without_a_caller_has_opened_is_closed() {
    let batch = |length: usize| bson::rawbson!([{ "text": "x".repeat(length) }]);
    let (mut channel, mut server) = pair().await;
    for length in [1, KEPT_CAPACITY, 1_000_000] {
        for cursor in [
            rawdoc! { "firstBatch": batch(length), "id": 7_i64, "ns": "test.some.name" },
            rawdoc! { "id": 7_i64, "ns": "test.some.name", "firstBatch": batch(length) },
        ] {
            // The reply arrives in one piece, or begins with a part that is too short to be conclusive.
            for prefix in [0, TELLING - 1] {
                send_ping(&mut channel).await;
                let number = Header::read(&receive(&mut server).await, 48_000_000).unwrap().unwrap().request_id;
                let bytes = reply(number, Flags::NONE, &rawdoc! { "cursor": cursor.clone(), "ok": 1 });
                server.write_all(&bytes[..prefix]).await.unwrap();
                read_prefix(&mut channel, prefix).await;
                let serve = async {
                    server.write_all(&bytes[prefix..]).await.unwrap();
                    // The server claims to have opened another cursor, but the drain ignores that claim.
                    answer(&mut server, &rawdoc! { "cursor": cursor.clone(), "ok": 1 }).await
                };
                let (drained, sent) = tokio::join!(channel.drain(PLENTY), serve);
                drained.unwrap();
                assert_eq!(sent, rawdoc! { "killCursors": "some.name", "cursors": [7_i64], "$db": "test" });
                assert_eq!((channel.condition(), channel.state), (Condition::Reusable, ExchangeState::Idle));
                assert!(channel.incoming.capacity() <= KEPT_CAPACITY, "{}", channel.incoming.capacity());
            }
        }
    }
    goes_on(&mut channel, &mut server).await;
}

#[tokio::test]
async fn drain_closes_no_cursor_that_has_ended_or_that_a_caller_knows() {
    let (mut channel, mut server) = pair().await;
    for cursor in [
        rawdoc! { "firstBatch": [], "id": 0_i64, "ns": "test.c" },
        rawdoc! { "nextBatch": [], "id": 7_i64, "ns": "test.c" },
        rawdoc! { "nextBatch": ["x".repeat(KEPT_CAPACITY)], "id": 7_i64, "ns": "test.c" },
        rawdoc! { "firstBatch": [], "id": 7_i64, "ns": "test" },
        rawdoc! { "firstBatch": [], "id": "7", "ns": "test.c" },
    ] {
        send_ping(&mut channel).await;
        let body = rawdoc! { "cursor": cursor, "ok": 1 };
        let (drained, _) = tokio::join!(channel.drain(PLENTY), answer(&mut server, &body));
        drained.unwrap();
        assert_eq!(channel.condition(), Condition::Reusable);
        // The server receives the next command, not a `killCursors`.
        goes_on(&mut channel, &mut server).await;
    }
}

/// Checks that the channel still works.
async fn goes_on(channel: &mut Channel, server: &mut TcpStream) {
    let (answer, ()) = tokio::join!(
        async { channel.exchange("admin", &rawdoc! { "ping": 1 }).await.unwrap().get_i32("last").unwrap() },
        async {
            let request = receive(server).await;
            assert_eq!(body_of(&request), rawdoc! { "ping": 1, "$db": "admin" });
            let number = Header::read(&request, 48_000_000).unwrap().unwrap().request_id;
            server.write_all(&reply(number, Flags::NONE, &rawdoc! { "last": 1 })).await.unwrap();
        }
    );
    assert_eq!((answer, channel.condition()), (1, Condition::Reusable));
}
