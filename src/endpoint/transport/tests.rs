//! Tests what a cancelled operation leaves behind. The other tests use the public API, in
//! `system-tests/tests/transport/main.rs`.

use std::future::poll_fn;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::rustls::version::TLS13;
use wharf_testbed::certificates::{Certificates, Pem};
use wharf_testbed::relay::Relay;
use wharf_testbed::tls_front::TlsFront;

use super::*;
use crate::endpoint::channel::{Channel, Request};
use crate::endpoint::options::TlsOptions;
use crate::endpoint::wire::Flags;

const AGES: Duration = Duration::from_secs(60);

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn connect(address: SocketAddr, tls: Option<TlsOptions>) -> Transport {
    let host = format!("localhost:{}", address.port());
    let options = Options::new([host.as_str()]).unwrap();
    let options = if let Some(tls) = tls { options.tls(tls) } else { options };
    let connector = Connectors::new(&options).unwrap().connector(&options.hosts[0]).unwrap();
    connector.connect(Deadline::after(AGES), Stages::UNMEASURED).await.unwrap()
}

/// Offers the polling methods as futures.
impl Transport {
    pub async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|context| self.poll_flush(context)).await
    }

    pub async fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        let mut room = [0; 4096];
        let read = poll_fn(|context| self.poll_read(context, &mut room)).await?;
        buffer.extend_from_slice(&room[..read]);
        Ok(())
    }
}

/// Returns both ends of a TLS stream. An intermediate server terminates TLS.
async fn secured(certificates: &Certificates) -> (Transport, TcpStream, TlsFront) {
    let (listener, address) = listen().await;
    let front = TlsFront::start(address, &certificates.file(Pem::Server), &TLS13, None).await.unwrap();
    let tls = TlsOptions::default().ca_file(certificates.file(Pem::Authority));
    let transport = connect(front.address(), Some(tls)).await;
    (transport, listener.accept().await.unwrap().0, front)
}

/// Returns a section of an endless stream. Each byte is determined by its position, so that a missing or repeated byte
/// is noticed.
fn bytes_from(place: usize, length: usize) -> Vec<u8> {
    (place..place + length).map(|place| (place % 251) as u8).collect()
}

/// Writes until the buffers of the peer, which does not read, are full. Cancels every write that does not complete
/// immediately.
async fn fill(transport: &mut Transport) -> usize {
    let mut written = 0;
    let mut cancelled = 0;
    while cancelled < 100 {
        match timeout(Duration::ZERO, transport.write(&bytes_from(written, 100_000))).await {
            Ok(length) => written += length.unwrap(),
            Err(_) => cancelled += 1,
        }
        // The intermediate server runs in this process, and needs a turn to forward the bytes.
        tokio::task::yield_now().await;
    }
    written
}

async fn write_all(transport: &mut Transport, bytes: &[u8]) {
    let mut written = 0;
    while written < bytes.len() {
        written += transport.write(&bytes[written..]).await.unwrap();
    }
    transport.flush().await.unwrap();
}

/// Lets the peer read, and asserts that it receives everything that was written.
async fn assert_arrives(peer: &mut TcpStream, written: usize) {
    let mut arrived = vec![0; written];
    timeout(AGES, peer.read_exact(&mut arrived)).await.unwrap().unwrap();
    assert!(arrived == bytes_from(0, written), "the bytes differ from those that were reported");
}

#[tokio::test]
async fn cancelled_write_writes_only_what_it_reported() {
    let (listener, address) = listen().await;
    let mut transport = connect(address, None).await;
    let mut peer = listener.accept().await.unwrap().0;
    let written = fill(&mut transport).await;
    transport.flush().await.unwrap();
    drop(transport);
    assert_arrives(&mut peer, written).await;
    assert_eq!(peer.read(&mut [0]).await.unwrap(), 0, "more than was reported");
}

#[tokio::test]
async fn cancelled_tls_write_writes_only_what_it_reported() {
    let certificates = Certificates::create().unwrap();
    let (mut transport, mut peer, _front) = secured(&certificates).await;
    let written = fill(&mut transport).await;
    let (flushed, ()) = tokio::join!(transport.flush(), assert_arrives(&mut peer, written));
    flushed.unwrap();
    write_all(&mut transport, &[255]).await;
    assert_eq!(peer.read_u8().await.unwrap(), 255, "more than was reported");
}

#[tokio::test]
async fn sent_request_without_a_reply_has_left_the_tls_buffer() {
    let certificates = Certificates::create().unwrap();
    let (transport, mut peer, _front) = secured(&certificates).await;
    let mut channel = Channel::new(transport, Arc::new([]));
    let body = bson::rawdoc! { "insert": "x".repeat(10_000) };
    let request =
        Request { database: "test", body: &body, sequences: &[], flags: Flags::MORE_TO_COME, appended: [&[], &[]] };
    let mut sent = 0;
    // Writes until the buffers of the peer, which does not read, are full.
    loop {
        channel.begin(&request).unwrap();
        sent += channel.outgoing.len();
        let polled = poll_fn(|context| Poll::Ready(channel.poll_finish(context))).await;
        match polled {
            Poll::Pending => break,
            Poll::Ready(finished) => finished.unwrap(),
        }
        let Stream::Tls(stream) = &channel.transport.stream else { panic!("{channel:?}") };
        assert!(!stream.0.get_ref().1.wants_write(), "after {sent} bytes");
        tokio::task::yield_now().await;
    }
    let mut arrived = vec![0; sent];
    let (finished, arrived) = tokio::join!(channel.finish(), timeout(AGES, peer.read_exact(&mut arrived)));
    finished.unwrap();
    assert_eq!(arrived.unwrap().unwrap(), sent);
}

#[tokio::test]
async fn tls_read_sends_what_was_written() {
    let certificates = Certificates::create().unwrap();
    let (mut transport, mut peer, _front) = secured(&certificates).await;
    let written = fill(&mut transport).await;
    let mut buffer = Vec::with_capacity(100);
    let answering = async {
        assert_arrives(&mut peer, written).await;
        peer.write_all(b"answer").await.unwrap();
    };
    // A cancelled read takes no bytes.
    assert!(timeout(Duration::ZERO, transport.read(&mut buffer)).await.is_err());
    let (read, ()) = tokio::join!(timeout(AGES, transport.read(&mut buffer)), answering);
    read.expect("the end of the request was not sent").unwrap();
    assert_eq!(buffer, b"answer");
}

#[tokio::test]
async fn tls_read_fills_the_buffer_and_leaves_the_rest() {
    let certificates = Certificates::create().unwrap();
    let (mut transport, mut peer, _front) = secured(&certificates).await;
    peer.write_all(&bytes_from(0, 40_000)).await.unwrap();
    let mut read = Vec::new();
    while read.len() < 40_000 {
        let mut room = [0; 63];
        let length = poll_fn(|context| transport.poll_read(context, &mut room)).await.unwrap();
        assert!((1..=room.len()).contains(&length), "{length}");
        read.extend_from_slice(&room[..length]);
    }
    assert_eq!(read, bytes_from(0, 40_000));
    drop(peer);
    let end = transport.read(&mut Vec::new()).await.unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn abandoned_or_dropped_tls_stream_sends_nothing() {
    let certificates = Certificates::create().unwrap();
    let (listener, address) = listen().await;
    let front = TlsFront::start(address, &certificates.file(Pem::Server), &TLS13, None).await.unwrap();
    let relay = Relay::start(front.address()).await.unwrap();
    for end in [Transport::abandon_after_fork, drop] {
        let tls = TlsOptions::default().ca_file(certificates.file(Pem::Authority));
        let mut transport = connect(relay.address(), Some(tls)).await;
        let mut peer = listener.accept().await.unwrap().0;
        write_all(&mut transport, b"all").await;
        peer.read_exact(&mut [0; 3]).await.unwrap();
        let sent = relay.relayed().to_server;
        end(transport);
        assert_eq!(relay.until(|relayed| relayed.open == 0).await.to_server, sent);
    }
}

#[tokio::test]
async fn failed_tls_write_says_why_the_server_closed() {
    let certificates = Certificates::create().unwrap();
    let (_listener, address) = listen().await;
    let (file, authority) = (certificates.file(Pem::Server), certificates.file(Pem::Authority));
    let front = TlsFront::start(address, &file, &TLS13, Some(&authority)).await.unwrap();
    let relay = Relay::start(front.address()).await.unwrap();
    let mut transport = connect(relay.address(), Some(TlsOptions::default().ca_file(authority))).await;
    // The server refused the client, which has no certificate, and closed the connection.
    relay.until(|relayed| relayed.opened == 1 && relayed.open == 0).await;
    let failed = loop {
        if let Err(error) = transport.write(b"hello").await {
            break error;
        }
    };
    assert!(tls::is_refusal(&failed), "{failed:?}");
    let failed = stream_failed(Stage::Hello, failed);
    assert_eq!(failed.labels(), crate::pool::error::Labels::NONE);
    let reset = stream_failed(Stage::Hello, io::ErrorKind::ConnectionReset.into());
    assert!(reset.labels().contains(crate::pool::error::Labels::SYSTEM_OVERLOADED));
}
