//! Messages: the header, `OP_MSG` and `OP_COMPRESSED`.

use bson::{Binary, RawDocument, rawdoc, spec::BinarySubtype};
use wharf::Compressor;
use wharf::unstable::wire::op_msg::{OutgoingSequence, encode};
use wharf::unstable::wire::{Flags, Header, Message, Outgoing, compressed, header};

use super::{as_it_is, length_first};
use crate::Target;
use crate::seeds::{LIMITS, compressed_messages, messages};

pub const HEADER: Target = Target {
    name: "header",
    run: header,
    seeds: || messages().into_iter().chain(compressed_messages()).collect(),
    mend: length_first,
    words: &[],
};

fn header(bytes: &[u8]) -> bool {
    let most = LIMITS.max_message_size;
    let read = Header::read(bytes, most);
    let whole = Header::of_whole(bytes, most);
    match read {
        Ok(None) => assert!(bytes.len() < header::LENGTH && whole.is_err()),
        Err(_) => assert!(bytes.len() >= header::LENGTH && whole.is_err()),
        Ok(Some(read)) => {
            assert!((header::LENGTH..=most as usize).contains(&(read.message_length as usize)));
            let mut written = Vec::new();
            read.write(&mut written);
            assert_eq!(written, bytes[..header::LENGTH]);
            assert_eq!(whole.is_ok(), read.message_length as usize == bytes.len());
        }
    }
    whole.is_ok()
}

pub const OP_MSG: Target = Target {
    name: "op_msg",
    run: op_msg,
    seeds: messages,
    mend: length_first,
    words: &[b"\0\x05\0\0\0\0", b"\x01\x06\0\0\0a\0", b"\x01\x0b\0\0\0a\0\x05\0\0\0\0", b"documents\0"],
};

fn op_msg(bytes: &[u8]) -> bool {
    let Ok(message) = Message::decode(bytes, LIMITS) else { return false };
    for sequence in &message.sequences {
        for document in sequence.documents.clone() {
            assert!(document.as_bytes().len() <= LIMITS.max_document_size as usize);
            // The elements may be invalid. The iterator then returns an error.
            let _ = document.iter().count();
        }
    }
    let _ = message.body.iter().count();

    let mut encoded = Vec::new();
    encode_again(&message, &mut encoded);
    let again = Message::decode(&encoded, LIMITS).expect("an encoded message is not decoded");
    assert_same(&message, &again);
    // A message with its body first and without undefined flags has only one encoding. Its checksum is determined by
    // the bytes before it.
    let flags = u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
    if bytes[20] == 0 && flags == message.flags.bits() {
        assert_eq!(encoded, bytes);
    }
    true
}

fn encode_again(message: &Message<'_>, buffer: &mut Vec<u8>) {
    let documents: Vec<Vec<&RawDocument>> =
        message.sequences.iter().map(|sequence| sequence.documents.clone().collect()).collect();
    let sequences: Vec<_> = message
        .sequences
        .iter()
        .zip(&documents)
        .map(|(sequence, documents)| OutgoingSequence::new(sequence.identifier, documents))
        .collect();
    let Header { request_id, response_to, .. } = message.header;
    let Message { flags, body, .. } = *message;
    let outgoing = Outgoing { request_id, response_to, flags, body, database: None, sequences: &sequences };
    encode(&outgoing, LIMITS.max_message_size, buffer).expect("a decoded message is not encoded");
}

fn assert_same(one: &Message<'_>, other: &Message<'_>) {
    assert_eq!((one.header, one.flags), (other.header, other.flags));
    assert_eq!(one.body.as_bytes(), other.body.as_bytes());
    assert_eq!(one.sequences.len(), other.sequences.len());
    for (one, other) in one.sequences.iter().zip(&other.sequences) {
        assert_eq!(one.identifier, other.identifier);
        assert!(
            one.documents.clone().map(RawDocument::as_bytes).eq(other.documents.clone().map(RawDocument::as_bytes))
        );
    }
}

pub const COMPRESSED: Target = Target {
    name: "compressed",
    run: decompress,
    seeds: compressed_messages,
    mend: length_first,
    words: &[b"\xdd\x07\0\0", b"\x28\xb5\x2f\xfd", b"\x78\x9c", b"\x50\x2a\x4d\x18"],
};

fn decompress(bytes: &[u8]) -> bool {
    let mut message = vec![0xaa];
    if compressed::decompress(bytes, LIMITS.max_message_size, &mut message).is_err() {
        assert_eq!(message, [0xaa], "an error has changed the buffer");
        return false;
    }
    let message = &message[1..];
    let declared = u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]);
    assert_eq!(message.len(), header::LENGTH + declared as usize);
    assert_eq!(message[4..12], bytes[4..12], "requestID and responseTo");
    assert_survives(message);
    let _ = op_msg(message);
    true
}

pub const COMPRESS: Target = Target { name: "compress", run: compress, seeds: messages, mend: as_it_is, words: &[] };

/// Compresses a message that contains the bytes. This must succeed for any content.
fn compress(bytes: &[u8]) -> bool {
    let body = rawdoc! { "b": Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() } };
    let flags = Flags::NONE;
    let request = Outgoing { request_id: 1, response_to: 0, flags, body: &body, database: Some("d"), sequences: &[] };
    let mut message = Vec::new();
    encode(&request, LIMITS.max_message_size, &mut message).expect("the input exceeds the limit");
    assert_survives(&message);
    // The bytes themselves are also passed as a message, which may be refused.
    let mut buffer = Vec::new();
    let accepted = compressed::compress(bytes, Compressor::Snappy, LIMITS.max_message_size, &mut buffer);
    accepted.is_ok()
}

fn assert_survives(message: &[u8]) {
    // A different level needs a new context, which costs far more than compressing the message.
    let level = if message.len().is_multiple_of(64) { message.len() as i32 / 64 % 11 - 1 } else { -1 };
    for compressor in [Compressor::Snappy, Compressor::Zstd, Compressor::Zlib { level }] {
        let (mut packed, mut again) = (Vec::new(), Vec::new());
        if compressed::compress(message, compressor, LIMITS.max_message_size, &mut packed)
            .expect("the message is incomplete")
        {
            compressed::decompress(&packed, LIMITS.max_message_size, &mut again)
                .expect("a compressed message is not decompressed");
            assert!(again == message, "{compressor:?} yields another message");
        }
    }
}
