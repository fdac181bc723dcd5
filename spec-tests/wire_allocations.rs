//! What messages allocate between buffers that are reused: nothing. `hot_path` says the same of whole commands.
#![cfg(not(loom))]

use bson::{RawDocumentBuf, rawdoc};
use wharf::Compressor;
use wharf::wire::op_msg::{OutgoingSequence, encode};
use wharf::wire::{Flags, Limits, Message, Outgoing, compressed, reply};

#[path = "allocations/counting.rs"]
mod counting;

use counting::allocations;

const LIMITS: Limits = Limits { max_message_size: 48_000_000, max_document_size: 16 * 1024 * 1024 };

fn outgoing<'a>(body: &'a RawDocumentBuf, flags: Flags, sequences: &'a [OutgoingSequence<'a>]) -> Outgoing<'a> {
    Outgoing { request_id: 1, response_to: 0, flags, body, database: Some("test"), sequences }
}

/// Runs it twice, so that the buffers have grown and the contexts are made, and then counts.
fn in_the_steady_state(mut run: impl FnMut()) -> usize {
    run();
    run();
    allocations(|| (0..100).for_each(|_| run())).0
}

#[test]
fn encoding_and_decoding_allocate_nothing() {
    let reply = rawdoc! { "cursor": { "id": 0_i64, "firstBatch": ["wharf".repeat(1_000)] }, "ok": 1.0 };
    for flags in [Flags::NONE, Flags::CHECKSUM_PRESENT] {
        let mut buffer = Vec::new();
        let count = in_the_steady_state(|| {
            buffer.clear();
            encode(&outgoing(&reply, flags, &[]), LIMITS.max_message_size, &mut buffer).unwrap();
            let message = Message::decode(&buffer, LIMITS).unwrap();
            reply::check(message.body).unwrap();
        });
        assert_eq!(count, 0, "{flags:?}");
    }
}

#[test]
fn encoding_sequences_allocates_nothing() {
    let documents: Vec<_> = (0..100).map(|id| rawdoc! { "_id": id }).collect();
    let sequences = [OutgoingSequence::new("documents", &documents)];
    let (command, mut buffer) = (rawdoc! { "insert": "c" }, Vec::new());
    let count = in_the_steady_state(|| {
        buffer.clear();
        encode(&outgoing(&command, Flags::NONE, &sequences), LIMITS.max_message_size, &mut buffer).unwrap();
    });
    assert_eq!(count, 0);
}

/// For zstd, whose library is not Rust's and has an allocator of its own, `instructions` shows the same.
#[test]
fn compressing_and_decompressing_allocate_nothing() {
    let command = rawdoc! { "insert": "c", "text": "wharf, a pool. ".repeat(1_000) };
    let mut plain = Vec::new();
    encode(&outgoing(&command, Flags::NONE, &[]), LIMITS.max_message_size, &mut plain).unwrap();
    for compressor in
        [Compressor::Snappy, Compressor::Zlib { level: -1 }, Compressor::Zlib { level: 9 }, Compressor::Zstd]
    {
        if !compressor.is_supported() {
            continue;
        }
        let (mut packed, mut again) = (Vec::new(), Vec::new());
        let count = in_the_steady_state(|| {
            packed.clear();
            again.clear();
            assert!(compressed::compress(&plain, compressor, LIMITS.max_message_size, &mut packed).unwrap());
            compressed::decompress(&packed, LIMITS.max_message_size, &mut again).unwrap();
        });
        assert_eq!(count, 0, "{compressor:?}");
        assert_eq!(again, plain);
    }
}
