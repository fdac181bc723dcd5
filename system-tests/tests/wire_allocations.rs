//! Messages allocate nothing if their buffers are reused. `hot_path` shows the same for whole commands.
#![cfg(not(loom))]

use bson::{RawDocumentBuf, rawdoc};
use wharf::Compressor;
use wharf::unstable::wire::op_msg::{OutgoingSequence, encode};
use wharf::unstable::wire::{Flags, Limits, Message, Outgoing, compressed, reply};

use wharf_testbed::counting::{self, CountingAllocator};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

use counting::allocations;
#[cfg(feature = "zstd")]
use counting::peak;

const LIMITS: Limits = Limits { max_message_size: 48_000_000, max_document_size: 16 * 1024 * 1024 };

fn outgoing<'a>(body: &'a RawDocumentBuf, flags: Flags, sequences: &'a [OutgoingSequence<'a>]) -> Outgoing<'a> {
    Outgoing { request_id: 1, response_to: 0, flags, body, database: Some("test"), sequences }
}

/// Runs the closure twice to grow its buffers and create its contexts, then counts allocations.
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

/// zstd's library has its own allocator, which is not counted here. `instructions` shows the same for zstd.
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

/// Returns a compressed message with a zstd frame that announces `size` bytes and has this many blocks, each of which
/// decompresses to 128 KiB of a single byte value.
#[cfg(feature = "zstd")]
fn bomb(size: u32, blocks: usize) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xc0, 7 << 3];
    frame.extend_from_slice(&u64::from(size).to_le_bytes());
    for left in (0..blocks).rev() {
        let header = u32::from(left == 0) | (1 << 1) | (128 * 1024) << 3;
        frame.extend_from_slice(&header.to_le_bytes()[..3]);
        frame.push(0);
    }
    let mut message = Vec::new();
    let message_length = (25 + frame.len()) as u32;
    wharf::unstable::wire::Header { message_length, request_id: 1, response_to: 1, op_code: compressed::OP_CODE }
        .write(&mut message);
    message.extend_from_slice(&2013_i32.to_le_bytes());
    message.extend_from_slice(&size.to_le_bytes());
    message.push(3);
    message.extend_from_slice(&frame);
    message
}

/// Decompressing a small message that announces a large size takes that much memory only if the message delivers that
/// many bytes, and never takes more than the maximum message size.
#[cfg(feature = "zstd")]
#[test]
fn decompression_bomb_takes_no_memory() {
    const MOST: usize = 48_000_000;
    let decompressing = |message: &[u8]| {
        let mut outcome = Ok(());
        let peak = peak(|| outcome = compressed::decompress(message, LIMITS.max_message_size, &mut Vec::new()));
        (outcome.is_ok(), peak)
    };
    // The first message creates the contexts.
    decompressing(&bomb(128 * 1024, 1));
    // 65 kB that announce 2 GB, and would deliver all of it.
    let (accepted, peak) = decompressing(&bomb(i32::MAX as u32, 16_384));
    assert!(!accepted && peak < 64 * 1024, "{peak} bytes");
    // 1.5 kB that announce 98 MB, or that announce half of it but deliver one block too few.
    for size in [98_000_000, MOST as u32 - 16] {
        let (accepted, peak) = decompressing(&bomb(size, 366));
        assert!(!accepted && peak < 64 * 1024, "{peak} bytes for {size}");
    }
    // A message that delivers the announced size takes this much memory, once.
    let (accepted, peak) = decompressing(&bomb(366 * 128 * 1024, 366));
    assert!(accepted && peak <= MOST + 64 * 1024, "{peak} bytes");
}
