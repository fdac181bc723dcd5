//! The cost of encoding and decoding messages, including zstd's allocations. zstd's library does not use Rust's
//! allocator, so `wire_allocations` cannot count them.

use std::hint::black_box;

use bson::rawdoc;
use wharf::unstable::wire::op_msg::encode;
use wharf::unstable::wire::{Flags, Limits, Message, Outgoing};

use crate::callgrind::{Cost, cost_of_a_round};

const LIMITS: Limits = Limits { max_message_size: 48_000_000, max_document_size: 16 * 1024 * 1024 };

/// Encoding a small command. Measured: 226, with rustc 1.95. The bound leaves 15 % for other compilers.
const ENCODE_INSTRUCTIONS: f64 = 260.0;

/// Decoding a reply of any length. Measured: 157, with the same compiler and margin.
const DECODE_INSTRUCTIONS: f64 = 181.0;

fn outgoing(body: &bson::RawDocument) -> Outgoing<'_> {
    Outgoing { request_id: 1, response_to: 0, flags: Flags::NONE, body, database: Some("admin"), sequences: &[] }
}

#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn encoding_a_small_command() {
    let cost = cost_of_a_round("wire::encoding_a_small_command", |rounds| {
        let (body, mut buffer) = (rawdoc! { "ping": 1 }, Vec::new());
        for _ in 0..rounds {
            buffer.clear();
            encode(black_box(&outgoing(&body)), LIMITS.max_message_size, &mut buffer).unwrap();
            black_box(&buffer);
        }
    });
    assert_cost(&cost, ENCODE_INSTRUCTIONS);
}

#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn decoding_a_small_reply() {
    let cost = cost_of_a_round("wire::decoding_a_small_reply", |rounds| {
        let mut buffer = Vec::new();
        encode(&outgoing(&rawdoc! { "ok": 1.0 }), LIMITS.max_message_size, &mut buffer).unwrap();
        for _ in 0..rounds {
            let message = Message::decode(black_box(&buffer), LIMITS).unwrap();
            black_box(message.body);
        }
    });
    assert_cost(&cost, DECODE_INSTRUCTIONS);
}

/// Decoding checks only the frame of a message's content: ten thousand elements cost the same as none.
#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn decoding_a_large_reply() {
    let cost = cost_of_a_round("wire::decoding_a_large_reply", |rounds| {
        let mut buffer = Vec::new();
        let numbers: bson::RawArrayBuf = (0..10_000).collect();
        encode(&outgoing(&rawdoc! { "ok": 1.0, "numbers": numbers }), LIMITS.max_message_size, &mut buffer).unwrap();
        for _ in 0..rounds {
            let message = Message::decode(black_box(&buffer), LIMITS).unwrap();
            black_box(message.body);
        }
    });
    assert_cost(&cost, DECODE_INSTRUCTIONS);
}

/// zstd's contexts are reused, so its library does not allocate either. `wire_allocations` cannot see into that
/// library.
#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn zstd_allocates_nothing() {
    let cost = cost_of_a_round("wire::zstd_allocates_nothing", |rounds| {
        let (mut plain, mut packed, mut again) = (Vec::new(), Vec::new(), Vec::new());
        encode(&outgoing(&rawdoc! { "text": "wharf ".repeat(100) }), LIMITS.max_message_size, &mut plain).unwrap();
        for _ in 0..rounds {
            packed.clear();
            again.clear();
            wharf::unstable::wire::compressed::compress(
                &plain,
                wharf::Compressor::Zstd,
                LIMITS.max_message_size,
                &mut packed,
            )
            .unwrap();
            wharf::unstable::wire::compressed::decompress(&packed, LIMITS.max_message_size, &mut again).unwrap();
        }
    });
    println!("{cost}");
    for function in cost.outside.keys() {
        assert!(!["malloc", "calloc", "realloc", "free"].iter().any(|name| function.contains(name)), "{cost}");
    }
}

/// Asserts that there are at most `most` instructions, and no calls outside the program except memory copies.
fn assert_cost(cost: &Cost, most: f64) {
    println!("{cost}");
    assert!(cost.outside.keys().all(|function| function.contains("mem")), "{cost}");
    assert!(cost.instructions <= most, "more than {most} instructions: {cost}");
}
