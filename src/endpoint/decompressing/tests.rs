//! Tests which thread decompresses a large reply, and that the exchange can be abandoned during the decompression.

use std::future::poll_fn;
use std::sync::mpsc;
use std::task::Waker;
use std::thread;

use bson::{RawDocumentBuf, rawdoc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::endpoint::channel::Request;
use crate::endpoint::options::Compressor;
use crate::endpoint::wire::{Flags, Outgoing, header, op_msg};
use crate::pool::condition::Condition;

/// Returns a runtime with one blocking thread.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap()
}

/// Returns a channel that accepts compressed replies, and the peer's end of its stream.
async fn pair() -> (Channel, TcpStream) {
    let (mut channel, accepted) = crate::endpoint::tests::pair().await;
    channel.accept_compressed(&compressor().into_iter().collect::<Vec<_>>());
    (channel, accepted)
}

/// Returns a compressor that is compiled in.
fn compressor() -> Option<Compressor> {
    [Compressor::Zstd, Compressor::Snappy, Compressor::Zlib { level: 1 }].into_iter().find(|one| one.is_supported())
}

/// Returns a two-megabyte document.
fn large() -> RawDocumentBuf {
    rawdoc! { "ok": 1, "text": "wharf ".repeat(350_000) }
}

fn packed(response_to: i32, body: &RawDocumentBuf, compressor: Compressor) -> Vec<u8> {
    let message = Outgoing { request_id: 1, response_to, flags: Flags::NONE, body, database: None, sequences: &[] };
    let (mut plain, mut packed) = (Vec::new(), Vec::new());
    op_msg::encode(&message, 48_000_000, &mut plain).unwrap();
    assert!(compressed::compress(&plain, compressor, 48_000_000, &mut packed).unwrap());
    packed
}

/// Sends a command, and answers it with the result of `answer` for its request ID.
async fn exchange(channel: &mut Channel, server: &mut TcpStream, answer: impl Fn(i32) -> Vec<u8>) {
    let ping = rawdoc! { "ping": 1 };
    let request = Request { database: "admin", body: &ping, sequences: &[], flags: Flags::NONE, appended: [&[], &[]] };
    channel.begin(&request).unwrap();
    while !channel.is_sent() {
        channel.advance().await.unwrap();
    }
    let mut request = vec![0; channel.outgoing.len()];
    server.read_exact(&mut request).await.unwrap();
    let number = Header::read(&request, 1 << 20).unwrap().unwrap().request_id;
    server.write_all(&answer(number)).await.unwrap();
}

/// Reads until nothing is left to read: the reply is complete, or is being decompressed.
async fn read_all(channel: &mut Channel) {
    while let ExchangeState::Receiving(_) = channel.state {
        let polled = poll_fn(|context| Poll::Ready(channel.poll_finish(context))).await;
        assert!(!matches!(polled, Poll::Ready(Err(_))), "{polled:?}");
        tokio::task::yield_now().await;
    }
}

#[test]
fn large_reply_is_decompressed_on_a_blocking_thread_and_can_be_left_meanwhile() {
    let Some(compressor) = compressor() else { return };
    let runtime = runtime();
    runtime.block_on(async {
        let (mut channel, mut server) = pair().await;
        let body = large();
        // While the only blocking thread is busy, the reply waits for that thread.
        let (release, released) = mpsc::channel::<()>();
        let other_work = tokio::task::spawn_blocking(move || released.recv());
        exchange(&mut channel, &mut server, |number| packed(number, &body, compressor)).await;
        read_all(&mut channel).await;
        assert!(matches!(channel.state, ExchangeState::Decompressing { .. }), "{:?}", channel.state);
        assert_eq!(channel.condition(), Condition::NeedsDrain);
        assert!(channel.is_sent());

        // No caller is waiting for the reply any longer. A drain completes the exchange, and the channel is reusable
        // again.
        release.send(()).unwrap();
        other_work.await.unwrap().unwrap();
        channel.drain(u64::MAX).await.unwrap();
        assert_eq!((channel.state, channel.condition()), (ExchangeState::Idle, Condition::Reusable));
        for _ in 0..2 {
            exchange(&mut channel, &mut server, |number| packed(number, &body, compressor)).await;
            channel.finish().await.unwrap();
            assert_eq!(channel.take_body().unwrap().document, &*body);
        }
        // A small reply stays on this thread.
        let small = rawdoc! { "ok": 1, "text": "wharf ".repeat(1_000) };
        exchange(&mut channel, &mut server, |number| packed(number, &small, compressor)).await;
        read_all(&mut channel).await;
        assert!(matches!(channel.state, ExchangeState::Received { .. }) && !channel.is_decompressed);
        assert_eq!(channel.take_body().unwrap().document, &*small);
    });
}

/// Returns the bytes with a different compressor or content length.
fn forged(mut bytes: Vec<u8>, compressor_id: Option<u8>, size: Option<i32>) -> Vec<u8> {
    const PREFIX: usize = header::LENGTH + 8;
    bytes[PREFIX] = compressor_id.unwrap_or(bytes[PREFIX]);
    if let Some(size) = size {
        bytes[header::LENGTH + 4..PREFIX].copy_from_slice(&size.to_le_bytes());
    }
    bytes
}

#[test]
fn compressor_that_was_not_offered_is_refused_and_so_is_the_no_op() {
    let Some(compressor) = compressor() else { return };
    runtime().block_on(async {
        for id in [0, 1, 2, 7, 8, 255] {
            let (mut channel, mut server) = pair().await;
            channel.accept_compressed(&[Compressor::Zstd]);
            let small = rawdoc! { "ok": 1 };
            exchange(&mut channel, &mut server, |number| forged(packed(number, &small, compressor), Some(id), None))
                .await;
            let error = channel.finish().await.unwrap_err();
            assert!(matches!(&error, ExchangeError::Wire(WireError::Compressor { .. })), "{id}: {error:?}");
        }
    });
}

#[test]
fn long_content_that_announces_little_goes_to_a_blocking_thread_and_is_refused_there() {
    let Some(compressor) = compressor() else { return };
    runtime().block_on(async {
        let (mut channel, mut server) = pair().await;
        // These bytes cannot be compressed.
        let mut state = 1_u32;
        let bytes = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        let random = bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: bytes.take(1 << 21).collect() };
        let body = rawdoc! { "ok": 1, "random": random };
        exchange(&mut channel, &mut server, |number| forged(packed(number, &body, compressor), None, Some(100))).await;
        read_all(&mut channel).await;
        assert!(matches!(channel.state, ExchangeState::Decompressing { .. }), "{:?}", channel.state);
        let error = channel.finish().await.unwrap_err();
        assert!(
            matches!(&error, ExchangeError::Wire(error) if error.to_string().contains("too many for 100")),
            "{error:?}"
        );
    });
}

#[test]
fn reply_that_a_blocking_thread_cannot_decompress_is_refused() {
    let Some(compressor) = compressor() else { return };
    runtime().block_on(async {
        let (mut channel, mut server) = pair().await;
        let body = large();
        exchange(&mut channel, &mut server, |number| {
            let mut bytes = packed(number, &body, compressor);
            // The message announces one byte less than it contains.
            let size = i32::from_le_bytes(*bytes[header::LENGTH + 4..].first_chunk().unwrap()) - 1;
            bytes[header::LENGTH + 4..][..4].copy_from_slice(&size.to_le_bytes());
            bytes
        })
        .await;
        let Err(ExchangeError::Wire(error)) = channel.finish().await else { panic!("{:?}", channel.state) };
        assert!(matches!(error, WireError::Compressed { .. }), "{error}");
        assert_eq!(channel.condition(), Condition::Broken);
    });
}

#[test]
fn large_reply_outside_of_a_runtime_is_decompressed_when_it_is_taken() {
    let Some(compressor) = compressor() else { return };
    let runtime = runtime();
    let body = large();
    let (mut channel, _server) = runtime.block_on(async {
        let (mut channel, mut server) = pair().await;
        exchange(&mut channel, &mut server, |number| packed(number, &body, compressor)).await;
        (channel, server)
    });
    // The runtime keeps running on another thread, so that the socket's events are noticed.
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || runtime.block_on(stopped));
        while channel.poll_finish(&mut Context::from_waker(Waker::noop())).map(Result::unwrap).is_pending() {
            assert!(channel.decompressing.is_none());
            thread::yield_now();
        }
        assert!(matches!(channel.state, ExchangeState::Received { .. }) && !channel.is_decompressed);
        assert_eq!(channel.take_body().unwrap().document, &*body);
        drop(channel);
        stop.send(()).unwrap();
    });
}

#[test]
fn end_of_the_runtime_ends_the_exchange() {
    let Some(compressor) = compressor() else { return };
    let body = large();
    let (runtime, other) = (runtime(), Builder::new_current_thread().build().unwrap());
    let handle = other.handle().clone();
    drop(other);
    runtime.block_on(async {
        let (mut channel, mut server) = pair().await;
        exchange(&mut channel, &mut server, |number| packed(number, &body, compressor)).await;
        let outcome = loop {
            let polled = poll_fn(|context| {
                let _ended = handle.enter();
                Poll::Ready(channel.poll_finish(context))
            })
            .await;
            match polled {
                Poll::Ready(outcome) => break outcome,
                Poll::Pending => tokio::task::yield_now().await,
            }
        };
        assert!(matches!(outcome, Err(ExchangeError::Network(_))), "{outcome:?}");
        assert_eq!(channel.condition(), Condition::Broken);
    });
}
