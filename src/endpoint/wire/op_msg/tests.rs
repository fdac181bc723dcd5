use bson::{RawDocument, RawDocumentBuf, rawdoc};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { max_message_size: 1 << 20, max_document_size: 1 << 16 };

/// A ping in the specification's layout, written by hand.
const PING: &[u8] = b"\x33\0\0\0\x07\0\0\0\0\0\0\0\xdd\x07\0\0\
    \0\0\0\0\
    \0\x1e\0\0\0\x10ping\0\x01\0\0\0\x02$db\0\x06\0\0\0admin\0\0";

fn encoded(message: &Outgoing<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, LIMITS.max_message_size, &mut bytes).unwrap();
    bytes
}

fn outgoing<'a>(body: &'a RawDocument, sequences: &'a [OutgoingSequence<'a>]) -> Outgoing<'a> {
    Outgoing { request_id: 1, response_to: 0, flags: Flags::NONE, body, database: None, sequences }
}

#[test]
fn command_is_laid_out_as_in_the_specification() {
    let body = rawdoc! { "ping": 1 };
    let message = Outgoing { request_id: 7, database: Some("admin"), ..outgoing(&body, &[]) };
    assert_eq!(encoded(&message), PING);
    let read = Message::decode(PING, LIMITS).unwrap();
    assert_eq!(read.header.request_id, 7);
    assert_eq!(read.body, &*rawdoc! { "ping": 1, "$db": "admin" });
    assert!(read.sequences.is_empty());
}

#[test]
fn encoding_appends_to_the_buffer() {
    let mut buffer = b"before".to_vec();
    encode(&outgoing(&rawdoc! {}, &[]), 100, &mut buffer).unwrap();
    assert!(buffer.starts_with(b"before"));
    assert!(Message::decode(&buffer[6..], LIMITS).is_ok());
}

#[test]
fn message_beyond_the_limit_is_not_encoded() {
    let body = rawdoc! { "a": "b".repeat(100) };
    let length = encoded(&outgoing(&body, &[])).len() as u32;
    let mut buffer = Vec::new();
    let error = encode(&outgoing(&body, &[]), length - 1, &mut buffer).unwrap_err();
    assert_eq!(error.to_string(), format!("messageLength must be 16 to {} bytes, got {length}", length - 1));
    assert!(buffer.is_empty());
}

#[test]
fn identifiers_are_checked_before_encoding() {
    let body = rawdoc! {};
    let sequence = |identifier| OutgoingSequence::new(identifier, &[] as &[&RawDocument]);
    for sequences in [vec![sequence("")], vec![sequence("a\0b")], vec![sequence("a"), sequence("a")]] {
        let error = encode(&outgoing(&body, &sequences), 1_000, &mut Vec::new()).unwrap_err();
        assert!(matches!(error, WireError::Identifier { .. }), "{error}");
    }
}

/// Returns a message around `sections`, with the right length.
fn framed(flag_bits: u32, sections: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes[0] = 20 + sections.len() as u8;
    bytes[12..14].copy_from_slice(&[0xdd, 0x07]);
    bytes.extend_from_slice(&flag_bits.to_le_bytes());
    bytes.extend_from_slice(sections);
    bytes
}

#[test]
fn each_mistake_is_named() {
    const EMPTY_BODY: &[u8] = b"\0\x05\0\0\0\0";
    let with_body = |section: &[u8]| framed(0, &[EMPTY_BODY, section].concat());
    let mut other_operation = framed(0, EMPTY_BODY);
    other_operation[12] = 0xdc;
    let mut too_long = framed(0, EMPTY_BODY);
    too_long.push(0);
    let mistakes = [
        (vec![1, 0, 0], "header needs 16 bytes, but only 3 are available"),
        (PING[..50].to_vec(), "message needs 51 bytes, but only 50 are available"),
        (too_long, "1 unexpected bytes follow the end of the message"),
        (other_operation, "opCode must be 2013, got 2012"),
        (framed(4, EMPTY_BODY), "flagBits is 0x00000004, but of the low 16 bits only 0x0003 may be set"),
        (framed(0, b""), "the message must have exactly 1 section of payload type 0, got 0"),
        (with_body(EMPTY_BODY), "the message must have exactly 1 section of payload type 0, got 2"),
        (framed(0, b"\x02"), "payloadType must be 0 or 1, got 2"),
        (framed(0, b"\0\x05\0\0\0"), "body needs 5 bytes, but only 4 are available"),
        (framed(0, b"\0\x04\0\0\0\0"), "body must be 5 to 5 bytes, got 4"),
        (framed(0, b"\0\x06\0\0\0\0"), "body must be 5 to 5 bytes, got 6"),
        (framed(0, b"\0\xff\xff\xff\xff\0"), "body must be 5 to 5 bytes, got -1"),
        (framed(1, b"\0\0\0"), "checksum needs 4 bytes, but only 3 are available"),
        (with_body(b"\x01\x07\0\0\0a\0"), "document sequence size must be 6 to 6 bytes, got 7"),
        (with_body(b"\x01\x06\0\0\0ab"), "identifier must be ended by a zero byte, got \"ab\""),
        (with_body(b"\x01\x06\0\0\0\0\0"), "identifier must be at least one character of UTF-8, got \"\""),
        (with_body(b"\x01\x06\0\0\0\xff\0"), "identifier must be at least one character of UTF-8, got \"\u{fffd}\""),
        (with_body(b"\x01\x06\0\0\0a\0\x01\x06\0\0\0a\0"), "identifier must be unique within its message, got \"a\""),
        (with_body(b"\x01\x08\0\0\0a\0\0\0"), "document of a sequence needs 5 bytes, but only 2 are available"),
    ];
    for (bytes, message) in mistakes {
        assert_eq!(Message::decode(&bytes, LIMITS).unwrap_err().to_string(), message, "{bytes:?}");
    }
    let no_end = framed(0, b"\0\x05\0\0\0\x01");
    assert!(matches!(Message::decode(&no_end, LIMITS), Err(WireError::Document { field: "body", .. })));
}

#[test]
fn document_limit_applies_to_sequences_but_not_to_the_body() {
    let large = rawdoc! { "a": "b".repeat(100) };
    let limits = Limits { max_document_size: 50, ..LIMITS };
    assert!(Message::decode(&encoded(&outgoing(&large, &[])), limits).is_ok());
    let documents = [large];
    let sequences = [OutgoingSequence::new("documents", &documents)];
    let error = Message::decode(&encoded(&outgoing(&rawdoc! {}, &sequences)), limits).unwrap_err();
    assert_eq!(error.to_string(), "document of a sequence must be 5 to 50 bytes, got 113");
}

#[test]
fn undefined_optional_flags_are_ignored() {
    let mut bytes = PING.to_vec();
    bytes[18..20].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(Message::decode(&bytes, LIMITS).unwrap().flags, Flags::EXHAUST_ALLOWED);
}

#[test]
fn any_changed_byte_fails_the_checksum() {
    let body = rawdoc! { "ping": 1 };
    let bytes = encoded(&Outgoing { flags: Flags::CHECKSUM_PRESENT, ..outgoing(&body, &[]) });
    assert!(Message::decode(&bytes, LIMITS).is_ok());
    for at in 21..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        assert!(matches!(Message::decode(&changed, LIMITS), Err(WireError::Checksum { .. })), "byte {at}");
    }
}

fn documents() -> impl Strategy<Value = RawDocumentBuf> {
    vec(("[a-z]{1,8}", any::<i64>(), ".{0,20}"), 0..5).prop_map(|fields| {
        let mut document = RawDocumentBuf::new();
        for (name, number, text) in fields {
            let key = bson::raw::CString::try_from(name).unwrap();
            document.append(&key, number);
            document.append(&key, text);
        }
        document
    })
}

/// A message as owned parts: its body, and its sequences by identifier.
type Parts = (RawDocumentBuf, Vec<(String, Vec<RawDocumentBuf>)>);

fn parts() -> impl Strategy<Value = Parts> {
    let sequence = vec(documents(), 0..4);
    let sequences = proptest::collection::btree_map("[a-z]{1,8}", sequence, 0..3);
    (documents(), sequences).prop_map(|(body, sequences)| (body, sequences.into_iter().collect()))
}

fn encode_parts((body, sequences): &Parts, flags: Flags, database: Option<&str>) -> Vec<u8> {
    let gathered: Vec<Vec<&RawDocument>> =
        sequences.iter().map(|(_, documents)| documents.iter().map(|document| &**document).collect()).collect();
    let identified = || sequences.iter().zip(&gathered);
    let borrowed: Vec<_> =
        identified().map(|((identifier, _), documents)| OutgoingSequence::new(identifier, documents)).collect();
    let owned: Vec<_> =
        identified().map(|((identifier, documents), _)| OutgoingSequence::new(identifier, documents)).collect();
    let [borrowed, owned] = [borrowed, owned].map(|sequences| encode_sequences(body, &sequences, flags, database));
    assert_eq!(borrowed, owned);
    owned
}

fn encode_sequences(
    body: &RawDocument,
    sequences: &[OutgoingSequence<'_>],
    flags: Flags,
    database: Option<&str>,
) -> Vec<u8> {
    encoded(&Outgoing { request_id: 3, response_to: -4, flags, body, database, sequences })
}

fn flags() -> impl Strategy<Value = Flags> {
    let flag = |flag| prop_oneof![Just(Flags::NONE), Just(flag)];
    (flag(Flags::CHECKSUM_PRESENT), flag(Flags::MORE_TO_COME), flag(Flags::EXHAUST_ALLOWED))
        .prop_map(|(a, b, c)| a.with(b).with(c))
}

proptest! {
    #[test]
    fn encoded_message_is_decoded_again(parts in parts(), flags in flags(), database in proptest::option::of(".{0,20}")) {
        let bytes = encode_parts(&parts, flags, database.as_deref());
        let message = Message::decode(&bytes, LIMITS).unwrap();
        let (body, sequences) = &parts;
        prop_assert_eq!((message.header.request_id, message.header.response_to), (3, -4));
        prop_assert_eq!(message.flags, flags);
        let mut with_database = body.clone();
        if let Some(database) = &database {
            with_database.append(bson::raw::cstr!("$db"), database.as_str());
        }
        prop_assert_eq!(message.body, &*with_database);
        prop_assert_eq!(message.sequences.len(), sequences.len());
        for (read, (identifier, documents)) in message.sequences.iter().zip(sequences) {
            prop_assert_eq!(read.identifier, identifier);
            let documents: Vec<&RawDocument> = documents.iter().map(|document| &**document).collect();
            prop_assert_eq!(read.documents.clone().collect::<Vec<_>>(), documents);
        }
    }

    #[test]
    fn no_bytes_make_decoding_panic(bytes in vec(any::<u8>(), 0..200)) {
        let _ = Message::decode(&bytes, LIMITS);
    }

    #[test]
    fn no_sections_make_decoding_panic(flag_bits in 0_u32..4, sections in vec(0_u8..8, 0..100)) {
        let _ = Message::decode(&framed(flag_bits, &sections), LIMITS);
    }

    #[test]
    fn truncated_message_is_refused(parts in parts(), flags in flags(), keep in 0.0..1.0) {
        let bytes = encode_parts(&parts, flags, None);
        let keep = (bytes.len() as f64 * keep) as usize;
        prop_assert!(Message::decode(&bytes[..keep], LIMITS).is_err());
    }

    #[test]
    fn changed_message_does_not_make_reading_panic(
        parts in parts(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = encode_parts(&parts, Flags::NONE, Some("db"));
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(message) = Message::decode(&bytes, LIMITS) {
            let _ = crate::endpoint::wire::reply::check(message.body);
            let _ = crate::endpoint::wire::HelloReply::read(message.body.to_owned());
            for sequence in message.sequences {
                for document in sequence.documents {
                    let _ = document.iter().count();
                }
            }
        }
    }
}
