//! The inputs that mutations start from.

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use wharf::unstable::wire::op_msg::OutgoingSequence;
use wharf::unstable::wire::{Flags, Limits, Message, Outgoing, compressed, op_msg};

/// The message limits for all targets, low enough that no input makes a target slow.
pub const LIMITS: Limits = Limits { max_message_size: 1 << 20, max_document_size: 1 << 18 };

/// Uncompressed replies from MongoDB 6.0.27.
const PLAIN: [&[u8]; 8] = [
    include_bytes!("../corpus/hello.bin"),
    include_bytes!("../corpus/hello-compression.bin"),
    include_bytes!("../corpus/find.bin"),
    include_bytes!("../corpus/find-strings.bin"),
    include_bytes!("../corpus/get-more-exhaust.bin"),
    include_bytes!("../corpus/ping.bin"),
    include_bytes!("../corpus/ping-checksum.bin"),
    include_bytes!("../corpus/update.bin"),
];

/// Compressed replies from the same server.
const COMPRESSED: [&[u8]; 9] = [
    include_bytes!("../corpus/snappy-insert.bin"),
    include_bytes!("../corpus/snappy-drop.bin"),
    include_bytes!("../corpus/snappy-find.bin"),
    include_bytes!("../corpus/zlib-ping.bin"),
    include_bytes!("../corpus/zlib-drop.bin"),
    include_bytes!("../corpus/zlib-find.bin"),
    include_bytes!("../corpus/zstd-ping.bin"),
    include_bytes!("../corpus/zstd-find.bin"),
    include_bytes!("../corpus/zstd-get-more.bin"),
];

/// Responses from OpenSSL 3.0 about the second of the [`CERTIFICATES`]. "good" is signed by its issuer; "revoked" and
/// "unknown" are signed by the third certificate.
pub const OCSP_RESPONSES: [&[u8]; 3] = [
    include_bytes!("../corpus/ocsp-good.bin"),
    include_bytes!("../corpus/ocsp-revoked-delegated.bin"),
    include_bytes!("../corpus/ocsp-unknown.bin"),
];

/// Certificates that OpenSSL 3.0 generated: an authority's certificate, a server's certificate that requires a stapled
/// response, and a responder's certificate.
pub const CERTIFICATES: [&[u8]; 3] = [
    include_bytes!("../corpus/certificate-authority.bin"),
    include_bytes!("../corpus/certificate-must-staple.bin"),
    include_bytes!("../corpus/certificate-responder.bin"),
];

/// Returns messages with the opcode `OP_MSG`: replies from a server, and requests.
pub fn messages() -> Vec<Vec<u8>> {
    let documents: Vec<_> = (0..5).map(|id| rawdoc! { "_id": id, "name": "a".repeat(id as usize) }).collect();
    let sequence = [OutgoingSequence::new("documents", &documents)];
    let two = [OutgoingSequence::new("updates", &documents[..2]), OutgoingSequence::new("a", &documents[..0])];
    let requests: [(RawDocumentBuf, Flags, &[OutgoingSequence<'_>]); 5] = [
        (rawdoc! { "ping": 1 }, Flags::NONE, &[]),
        (rawdoc! { "ping": 1 }, Flags::CHECKSUM_PRESENT, &[]),
        (rawdoc! { "insert": "c", "ordered": true }, Flags::NONE, &sequence),
        (rawdoc! { "insert": "c", "writeConcern": { "w": 0 } }, Flags::MORE_TO_COME, &sequence),
        (rawdoc! { "update": "c" }, Flags::EXHAUST_ALLOWED.with(Flags::CHECKSUM_PRESENT), &two),
    ];
    let mut messages: Vec<Vec<u8>> = PLAIN.map(<[u8]>::to_vec).into();
    for (body, flags, sequences) in requests {
        let request = Outgoing { request_id: 7, response_to: 0, flags, body: &body, database: Some("test"), sequences };
        let mut bytes = Vec::new();
        op_msg::encode(&request, LIMITS.max_message_size, &mut bytes).expect("the message cannot be encoded");
        messages.push(bytes);
    }
    messages
}

/// Returns messages with the opcode `OP_COMPRESSED`.
pub fn compressed_messages() -> Vec<Vec<u8>> {
    let mut messages: Vec<Vec<u8>> = COMPRESSED.map(<[u8]>::to_vec).into();
    // This message is not actually compressed, so that mutations reach the message inside.
    let plain = &PLAIN[2][16..];
    let mut wrapped = Vec::new();
    let message_length = (25 + plain.len()) as u32;
    wharf::unstable::wire::Header { message_length, request_id: 1, response_to: 2, op_code: compressed::OP_CODE }
        .write(&mut wrapped);
    wrapped.extend_from_slice(&op_msg::OP_CODE.to_le_bytes());
    wrapped.extend_from_slice(&(plain.len() as u32).to_le_bytes());
    wrapped.push(0);
    wrapped.extend_from_slice(plain);
    messages.push(wrapped);
    messages
}

/// Returns the documents in a server's replies.
pub fn replies() -> Vec<Vec<u8>> {
    let made = [
        rawdoc! {
            "ok": 0.0, "errmsg": "not now", "code": 91, "codeName": "ShutdownInProgress",
            "errorLabels": ["RetryableWriteError", "SystemOverloadedError"], "retryAfterMS": 5,
            "topologyVersion": { "processId": bson::oid::ObjectId::from_bytes([7; 12]), "counter": 3_i64 },
        },
        rawdoc! { "ok": 1, "n": 2, "writeErrors": [{ "index": 0, "code": 11000, "errmsg": "duplicate" }] },
        rawdoc! { "ok": true, "writeConcernError": { "code": 64, "errmsg": "timeout" } },
        rawdoc! {
            "ok": 1.0, "isWritablePrimary": true, "msg": "isdbgrid", "serviceId": bson::oid::ObjectId::from_bytes([1; 12]),
            "minWireVersion": 0, "maxWireVersion": 25, "maxBsonObjectSize": 16_777_216, "maxMessageSizeBytes": 48_000_000,
            "maxWriteBatchSize": 100_000, "connectionId": 7.0, "helloOk": true, "compression": ["zstd", "snappy"],
            "saslSupportedMechs": ["SCRAM-SHA-1", "SCRAM-SHA-256"], "logicalSessionTimeoutMinutes": 30,
            "speculativeAuthenticate": { "conversationId": 1, "done": false, "ok": 1.0 },
        },
    ];
    let received = PLAIN.iter().map(|bytes| body(bytes).as_bytes().to_vec());
    received.chain(made.iter().map(|document| document.as_bytes().to_vec())).collect()
}

fn body(message: &'static [u8]) -> &'static RawDocument {
    Message::decode(message, LIMITS).expect("a server's reply cannot be decoded").body
}
