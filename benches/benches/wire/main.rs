//! Measures the cost of messages by size: encoding, decoding, checksums, compressors and all allocations. Also measures
//! the cost of a whole command.
//!
//! `cargo bench --bench wire` runs criterion over every case. It then runs all cases in alternating turns and prints a
//! table: nanoseconds and allocations per message, bytes per nanosecond, and for compressors the compressed size as a
//! percentage of the original. `copy` is the cost of copying the same bytes, a lower bound for encoding. `-- --quick`
//! takes a tenth of the time. Criterion treats a filter such as `-- zstd` as a regular expression. The table includes
//! each "case/size" that contains the filter. `cargo test --benches` runs every case once. zstd needs
//! `--features zstd`.
//!
//! The size of a message is measured before compression. The zstd library has its own allocator, whose allocations are
//! not counted here, but `system-tests/instructions/tests/wire.rs` shows that there are none.

mod commands;
use wharf_testbed::counting::{self, CountingAllocator};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
mod messages;
mod table;

use std::env;
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, SamplingMode, Throughput};
use wharf::Compressor;
use wharf::unstable::wire::op_msg::encode;
use wharf::unstable::wire::{Flags, HelloReply, Message, compressed, reply};

use messages::{Content, LIMITS, SIZES};

/// A case to measure. Its function runs it once and owns the buffers that it needs.
struct Case {
    name: String,
    /// The number of bytes in the message.
    bytes: usize,
    /// The number of bytes after compression, if the case compresses.
    left: Option<usize>,
    run: Box<dyn FnMut()>,
}

fn main() {
    let flag = |name: &str| env::args().any(|argument| argument == name);
    let quick = flag("--quick");
    let time = |usual: u64| Duration::from_millis(if quick { usual / 10 } else { usual });
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(time(200))
        .measurement_time(time(1_000))
        .configure_from_args();
    let mut cases = cases();
    let mut group = criterion.benchmark_group("wire");
    group.sampling_mode(SamplingMode::Flat);
    for case in &mut cases {
        group.throughput(Throughput::Bytes(case.bytes as u64));
        group.bench_function(&case.name, |bencher| bencher.iter(&mut case.run));
    }
    group.finish();
    criterion.final_summary();

    let others = ["--test", "--list", "--profile-time", "--load-baseline"];
    if flag("--bench") && !others.into_iter().any(flag) {
        let filter = env::args().skip(1).find(|argument| !argument.starts_with('-'));
        cases.retain(|case| filter.as_ref().is_none_or(|filter| case.name.contains(filter.as_str())));
        table::print(&mut cases, time(100));
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (size, content) in SIZES.map(|(size, length)| (size, Content::of(length))) {
        cases.push(copy(size, &content));
        for (suffix, flags) in [("", Flags::NONE), ("-checksum", Flags::CHECKSUM_PRESENT)] {
            cases.push(encoding(format!("encode{suffix}/{size}"), content.clone(), flags));
            cases.push(decoding(format!("decode{suffix}/{size}"), &content, flags));
        }
        let sequences = content.clone().in_a_sequence();
        cases.push(encoding(format!("encode-sequence/{size}"), sequences.clone(), Flags::NONE));
        cases.push(decoding(format!("decode-sequence/{size}"), &sequences, Flags::NONE));
        for compressor in [Compressor::Snappy, Compressor::Zlib { level: -1 }, Compressor::Zstd] {
            if compressor.is_supported() {
                cases.extend(compression(size, &content, compressor));
            }
        }
    }
    cases.push(hello());
    cases.extend(commands::cases());
    cases
}

fn copy(size: &str, content: &Content) -> Case {
    let bytes = content.encoded(Flags::NONE);
    let mut buffer = Vec::new();
    let (name, length) = (format!("copy/{size}"), bytes.len());
    let run = move || {
        buffer.clear();
        buffer.extend_from_slice(black_box(&bytes));
        black_box(&buffer);
    };
    Case { name, bytes: length, left: None, run: Box::new(run) }
}

fn encoding(name: String, content: Content, flags: Flags) -> Case {
    let bytes = content.encoded(flags).len();
    let mut buffer = Vec::new();
    let run = move || {
        buffer.clear();
        content.with_outgoing(flags, |outgoing| {
            encode(black_box(outgoing), LIMITS.max_message_size, &mut buffer).expect("the message exceeds the limit");
        });
        black_box(&buffer);
    };
    Case { name, bytes, left: None, run: Box::new(run) }
}

fn decoding(name: String, content: &Content, flags: Flags) -> Case {
    let message = content.encoded(flags);
    let bytes = message.len();
    let run = move || {
        let message = Message::decode(black_box(&message), LIMITS).expect("an encoded message is not decoded");
        black_box(message.body);
    };
    Case { name, bytes, left: None, run: Box::new(run) }
}

/// Returns one case for compression and one for decompression.
fn compression(size: &str, content: &Content, compressor: Compressor) -> [Case; 2] {
    let plain = content.encoded(Flags::NONE);
    let (bytes, most, name) = (plain.len(), LIMITS.max_message_size, compressor.name());
    let mut packed = Vec::new();
    compressed::compress(&plain, compressor, most, &mut packed).expect("the message is incomplete");
    let left = Some(packed.len());
    let mut buffer = Vec::new();
    let compress = move || {
        buffer.clear();
        compressed::compress(black_box(&plain), compressor, most, &mut buffer).expect("the message is incomplete");
        black_box(&buffer);
    };
    let mut buffer = Vec::new();
    let decompress = move || {
        buffer.clear();
        compressed::decompress(black_box(&packed), most, &mut buffer)
            .expect("a compressed message is not decompressed");
        black_box(&buffer);
    };
    [
        Case { name: format!("compress-{name}/{size}"), bytes, left, run: Box::new(compress) },
        Case { name: format!("decompress-{name}/{size}"), bytes, left: None, run: Box::new(decompress) },
    ]
}

/// Measures reading a hello reply, from the message to the limits in its document. The result owns the reply.
fn hello() -> Case {
    let message = messages::hello();
    let bytes = message.len();
    let run = move || {
        let message = Message::decode(black_box(&message), LIMITS).expect("an encoded message is not decoded");
        reply::check(message.body).expect("the reply reports an error");
        black_box(HelloReply::read(message.body.to_owned()).expect("the reply has invalid fields"));
    };
    Case { name: "hello/reply".to_owned(), bytes, left: None, run: Box::new(run) }
}
