//! Peers that break the wire protocol.

use super::*;

#[tokio::test]
async fn reply_to_another_request_is_refused() {
    let server = start().await;
    let mut connection = connect(&server).await;
    server.faults().response_to(Some(-7));
    let failure = connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
    let Some(WireError::ResponseTo { value: -7, .. }) = wire_error(&failure) else {
        panic!("unexpected failure: {failure}")
    };
    assert!(!connection.condition().is_reusable());
    let error = endpoint(&server).connect().await.unwrap_err();
    assert_refused(&error, Stage::Hello, Labels::NONE);
}

#[tokio::test]
async fn impossible_length_is_refused_at_once() {
    let server = start().await;
    for length in [48_000_001, i32::MAX, 15, 0, -1, i32::MIN] {
        server.faults().clear();
        let mut connection = connect(&server).await;
        server.faults().message_length(Some(length));
        let failure = connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
        let Some(&WireError::Length { value, .. }) = wire_error(&failure) else {
            panic!("unexpected failure: {failure}")
        };
        assert_eq!(value, i64::from(length));
        assert!(!connection.condition().is_reusable());
    }
}

/// A server may announce a higher limit, but no server sends more than 48,000,000 bytes.
#[tokio::test]
async fn reply_is_bounded_even_if_the_server_announces_a_higher_limit() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let endpoint = Endpoint::new(&listener.local_addr().unwrap().to_string()).unwrap();
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let hello = rawdoc! { "ok": 1.0, "maxWireVersion": 21, "maxMessageSizeBytes": i32::MAX };
        let response_to = received(&mut stream).await.request_id;
        let message =
            Outgoing { request_id: 1, response_to, flags: Flags::NONE, body: &hello, database: None, sequences: &[] };
        let mut bytes = Vec::new();
        op_msg::encode(&message, 1 << 20, &mut bytes).unwrap();
        stream.write_all(&bytes).await.unwrap();
        let request = received(&mut stream).await;
        let mut reply = successful(request, Flags::NONE, &[]);
        reply[..4].copy_from_slice(&48_000_001_i32.to_le_bytes());
        stream.write_all(&reply).await.unwrap();
        stream
    };
    let using = async {
        let mut connection = endpoint.connect().await.unwrap();
        assert_eq!(connection.hello().max_message_size, i32::MAX as u32);
        connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err()
    };
    // A client that trusted the server's limit would wait for the rest of the reply.
    let both = async { tokio::join!(using, serving) };
    let (failure, _stream) = tokio::time::timeout(AGES, both).await.unwrap();
    let Some(&WireError::Length { value, most, .. }) = wire_error(&failure) else {
        panic!("unexpected failure: {failure}")
    };
    assert_eq!((value, most), (48_000_001, 48_000_000));
}

#[tokio::test]
async fn length_shorter_than_the_reply_is_refused() {
    let server = start().await;
    for length in 16..38 {
        server.faults().clear();
        let mut connection = connect(&server).await;
        server.faults().message_length(Some(length));
        let failure = connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
        assert!(matches!(failure, CommandError::Wire { .. }), "{failure}");
    }
}

/// Starts a server that answers one message with the bytes that `reply` derives from its header, and then waits until
/// the client closes.
async fn answering(reply: impl FnOnce(Header) -> Vec<u8> + Send + 'static) -> Endpoint {
    answering_to(|options| options, reply).await
}

/// Like [`answering`], for an endpoint with these options.
async fn answering_to(
    options: impl FnOnce(Options) -> Options,
    reply: impl FnOnce(Header) -> Vec<u8> + Send + 'static,
) -> Endpoint {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let endpoint = options(Options::new([&*address]).unwrap()).endpoint().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let header = received(&mut stream).await;
        let _ = stream.write_all(&reply(header)).await;
        let _ = stream.read(&mut [0]).await;
    });
    endpoint
}

/// Receives one message and returns its header.
async fn received(stream: &mut TcpStream) -> Header {
    let mut request = Vec::new();
    loop {
        stream.read_buf(&mut request).await.unwrap();
        match Header::read(&request, 1 << 20).unwrap() {
            Some(header) if request.len() == header.message_length as usize => return header,
            _ => {}
        }
    }
}

fn successful(request: Header, flags: Flags, sequences: &[op_msg::OutgoingSequence<'_>]) -> Vec<u8> {
    let body = &*rawdoc! { "ok": 1.0, "maxWireVersion": 17 };
    let response_to = request.request_id;
    let message = Outgoing { request_id: 1, response_to, flags, body, database: None, sequences };
    let mut bytes = Vec::new();
    op_msg::encode(&message, 1 << 20, &mut bytes).unwrap();
    bytes
}

async fn refusal(reply: impl FnOnce(Header) -> Vec<u8> + Send + 'static) -> WireError {
    let connecting = answering(reply).await;
    let error = tokio::time::timeout(AGES, connecting.connect()).await.unwrap().unwrap_err();
    assert_refused(&error, Stage::Hello, Labels::NONE);
    cause::<WireError>(&error).clone()
}

#[tokio::test]
async fn handshake_reserves_no_memory_for_long_replies() {
    const MOST: u32 = 1024 * 1024;
    let claiming = |message_length: u32| {
        refusal(move |request| {
            let mut reply = successful(request, Flags::NONE, &[]);
            reply[..4].copy_from_slice(&message_length.to_le_bytes());
            reply.resize(reply.len() + 1, 0);
            reply
        })
    };
    let WireError::Length { value, most, .. } = claiming(MOST + 1).await else { panic!("unexpected refusal") };
    assert_eq!((value, most), (i64::from(MOST) + 1, u64::from(MOST)));
}

/// OP_COMPRESSED: a server that is offered a compressor may use it immediately, for any reply.
#[cfg(feature = "zlib")]
#[tokio::test]
async fn hello_reply_may_be_compressed_if_compressors_are_offered() {
    use wharf::Compressor;
    use wharf::unstable::wire::compressed;
    const ZLIB: Compressor = Compressor::Zlib { level: -1 };

    let packed = |request: Header| {
        let mut packed = Vec::new();
        assert!(compressed::compress(&successful(request, Flags::NONE, &[]), ZLIB, 1 << 20, &mut packed).unwrap());
        packed
    };
    let connecting = answering_to(|options| options.compressors([ZLIB]), packed).await;
    tokio::time::timeout(AGES, connecting.connect()).await.unwrap().unwrap();
    // This client offers no compressor.
    let error = refusal(packed).await;
    assert_eq!(error, WireError::OpCode { value: compressed::OP_CODE, allowed: op_msg::OP_CODE });
}

#[tokio::test]
async fn reply_with_a_checksum_is_accepted_if_it_matches() {
    let connecting = answering(|request| successful(request, Flags::CHECKSUM_PRESENT, &[])).await;
    assert!(connecting.connect().await.is_ok());

    let error = refusal(|request| {
        let mut reply = successful(request, Flags::CHECKSUM_PRESENT, &[]);
        *reply.last_mut().unwrap() ^= 1;
        reply
    });
    assert!(matches!(error.await, WireError::Checksum { .. }));
}

#[tokio::test]
async fn reply_that_announces_another_is_refused() {
    let error = refusal(|request| successful(request, Flags::MORE_TO_COME, &[])).await;
    assert_eq!(error, WireError::FlagBits { value: 2, allowed: 1 });
}

#[tokio::test]
async fn reply_with_a_sequence_is_refused() {
    let sequence = op_msg::OutgoingSequence::new("documents", &[] as &[RawDocumentBuf]);
    let error = refusal(move |request| successful(request, Flags::NONE, &[sequence])).await;
    assert_eq!(error, WireError::Sequences { count: 1 });
}

#[tokio::test]
async fn second_reply_is_refused() {
    let error = refusal(|request| successful(request, Flags::NONE, &[]).repeat(2)).await;
    assert!(matches!(error, WireError::Unasked { .. }), "{error}");
}

/// Returns text made of line breaks, escape sequences and changes of writing direction. Its length is about a quarter
/// of the limit for a handshake reply.
fn hostile_text() -> String {
    "all is well\r\n[ERROR] \u{1b}[2J\u{202e}".repeat(9_000)
}

#[track_caller]
fn assert_printable(text: &str) {
    assert!(text.len() < 12_000, "{} bytes", text.len());
    assert!(!text.contains(|character: char| character.is_control() || character == '\u{202e}'), "{text}");
}

/// Asserts that neither the error nor its sources can inject lines into a log.
#[track_caller]
fn assert_chain_is_printable(error: &dyn StdError) {
    let mut next = Some(error);
    while let Some(error) = next {
        assert_printable(&error.to_string());
        next = error.source();
    }
}

#[tokio::test]
async fn text_of_a_server_reaches_errors_escaped_and_cut() {
    let text = hostile_text();
    let key = bson::raw::CString::try_from(text.replace('\0', "")).unwrap();
    // A string that is not UTF-8, in a field whose name an error quotes.
    let mut malformed = RawDocumentBuf::new();
    malformed.append(&key, "x");
    let mut malformed = malformed.into_bytes();
    let end = malformed.len();
    malformed[end - 3] = 0xff;
    let malformed = RawDocumentBuf::from_bytes(malformed).unwrap();
    let mut unknown = RawDocumentBuf::new();
    unknown.append(&key, 1);
    let hellos = [
        rawdoc! { "ok": 0, "code": 1, "codeName": &*text, "errmsg": &*text, "errorLabels": [&*text] },
        malformed,
        unknown,
        rawdoc! { "ok": &*text },
        rawdoc! { "ok": 1, "maxWireVersion": &*text },
    ];
    for hello in hellos {
        let connecting = answering(move |request| {
            let mut bytes = Vec::new();
            let message = Outgoing {
                request_id: 1,
                response_to: request.request_id,
                flags: Flags::NONE,
                body: &hello,
                database: None,
                sequences: &[],
            };
            op_msg::encode(&message, 2 << 20, &mut bytes).unwrap();
            bytes
        });
        let error = tokio::time::timeout(AGES, connecting.await.connect()).await.unwrap().unwrap_err();
        assert_refused(&error, Stage::Hello, Labels::NONE);
        assert_chain_is_printable(&error);
    }
}

#[test]
fn printed_hello_is_escaped_and_cut() {
    let mut names = bson::RawArrayBuf::new();
    (0..100_000).for_each(|_| names.push("\u{202e}".repeat(20)));
    let hello = rawdoc! { "ok": 1, "setName": hostile_text(), "\n": "\u{202e}", "compression": names };
    assert_printable(&format!("{:?}", HelloReply::read(hello).unwrap()));
}

/// Bytes that arrive between two commands: the second command is not sent, so it may be run on another connection.
#[tokio::test]
async fn command_is_not_sent_on_a_connection_with_unasked_bytes() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let endpoint = Endpoint::new(&listener.local_addr().unwrap().to_string()).unwrap();
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let request = received(&mut stream).await;
        // The unsolicited bytes arrive after the reply was taken.
        stream.write_all(&successful(request, Flags::NONE, &[])).await.unwrap();
        stream
    };
    let (connection, mut stream) = tokio::join!(endpoint.connect(), serving);
    let mut connection = connection.unwrap();
    stream.write_all(b"unasked").await.unwrap();
    let ping = rawdoc! { "ping": 1 };
    // The runtime notices the bytes after a while. Until then nothing is sent, because the replies are never polled.
    let failure = loop {
        match connection.exhaust(Command::new("admin", &ping)) {
            Ok(replies) => drop(replies),
            Err(failure) => break failure,
        }
        tokio::task::yield_now().await;
    };
    let CommandError::Lost { source, .. } = &failure else { panic!("unexpected failure: {failure}") };
    assert_eq!(source.kind(), io::ErrorKind::InvalidData);
    assert!(failure.is_retryable() && !failure.clears_pool() && !failure.is_timeout(), "{failure:?}");
    assert!(!connection.condition().is_reusable());
    let mut rest = Vec::new();
    drop(connection);
    stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty(), "the command was sent");
}

#[tokio::test]
async fn peer_that_speaks_another_protocol_is_named() {
    let answers: [(&[u8], &str); 4] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer answered in HTTP (\"HTTP/1.1 400 Bad Request\"): is this a"),
        (
            b"SSH-2.0-OpenSSH_9.2\r\n",
            "the peer answered with text (\"SSH-2.0-OpenSSH_9.2\"): is this a MongoDB server?",
        ),
        // Shorter than a header: the client waits for the rest until the peer closes.
        (b"nope\n", "the peer answered with text (\"nope\")"),
        // A TLS alert: unexpected_message.
        (&[0x15, 3, 1, 0, 2, 2, 10], "the server answered in TLS: set tls=true"),
    ];
    for (answer, expected) in answers {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let endpoint = Endpoint::new(&listener.local_addr().unwrap().to_string()).unwrap();
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            received(&mut stream).await;
            stream.write_all(answer).await.unwrap();
        };
        let (error, ()) = tokio::join!(endpoint.connect(), serving);
        let error = error.unwrap_err();
        assert_refused(&error, Stage::Hello, Labels::NONE);
        cause::<ForeignProtocolError>(&error);
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn silent_peer_is_reported_without_a_guess() {
    for (answer, stage_labels) in [(&b""[..], OVERLOADED), (b"HTTP/1.0", Labels::NONE)] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let options = Options::new([&*listener.local_addr().unwrap().to_string()]).unwrap();
        let endpoint = options.connect_timeout(Duration::from_millis(500)).endpoint().unwrap();
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            received(&mut stream).await;
            stream.write_all(answer).await.unwrap();
            stream
        };
        let (error, _stream) = tokio::join!(endpoint.connect(), serving);
        assert_refused(&error.unwrap_err(), Stage::Hello, stage_labels);
    }
}

/// A mongod that requires TLS behaves like this.
#[tokio::test]
async fn server_that_closes_instead_of_answering_hello_may_require_tls() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let endpoint = Endpoint::new(&listener.local_addr().unwrap().to_string()).unwrap();
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        received(&mut stream).await;
    };
    let (error, ()) = tokio::join!(endpoint.connect(), serving);
    let error = error.unwrap_err();
    // The server may also be overloaded, and the specification requires the labels in that case.
    assert_refused(&error, Stage::Hello, OVERLOADED);
    assert_eq!(cause::<io::Error>(&error).kind(), io::ErrorKind::UnexpectedEof);
    let expected = "the server closed the connection; if every connection ends like this, the server may require TLS: \
                    set tls=true";
    assert!(error.to_string().ends_with(expected), "{error}");
}
