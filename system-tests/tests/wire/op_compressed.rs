//! Compressed messages: each compressor in both directions.

use wharf_testbed::mongod::{Mongod, MongodOptions};

use super::*;

const COMPRESSORS: [(Compressor, u8); 3] =
    [(Compressor::Snappy, 1), (Compressor::Zlib { level: -1 }, 2), (Compressor::Zstd, 3)];

/// The offset at which a compressed message names its compressor.
const COMPRESSOR_ID: usize = 24;

fn op_code(received: &[u8]) -> i32 {
    Header::read(received, LIMITS.max_message_size).unwrap().unwrap().op_code
}

#[test]
fn each_compressor_works_in_both_directions_with_a_server() {
    let server = mongod::shared().unwrap();
    for (compressor, id) in COMPRESSORS {
        if !compressor.is_supported() {
            continue;
        }
        let mut peer = Peer::connect(server.address(), Some(compressor));
        let is_compressed = |peer: &Peer| {
            let compressed = op_code(&peer.received) == compressed::OP_CODE && peer.received[COMPRESSOR_ID] == id;
            assert!(compressed, "the server did not compress its reply with {}", compressor.name());
        };
        peer.run("admin", &rawdoc! { "ping": 1 });
        is_compressed(&peer);

        // As many documents as fit into the first batch of a find.
        let collection = collection();
        let documents: Vec<_> = (0..100).map(|i| rawdoc! { "_id": i, "text": "wharf ".repeat(i as usize) }).collect();
        let insert = rawdoc! { "insert": &*collection, "ordered": true };
        let inserted = peer.run_with("test", &insert, &[OutgoingSequence::new("documents", &documents)]);
        assert_eq!(inserted.get_i32("n").unwrap(), 100);
        is_compressed(&peer);
        let found = peer.run("test", &rawdoc! { "find": &*collection, "sort": { "_id": 1 }, "batchSize": 100 });
        assert_eq!(batch(&found, "firstBatch"), documents);
        is_compressed(&peer);
        assert!(peer.received.len() * 2 < peer.reply.len(), "compression saved less than half of the reply");
        peer.run("test", &rawdoc! { "drop": &*collection });
    }
}

/// The level matters only to the sender: the server understands every level.
#[test]
#[cfg(feature = "zlib")]
fn server_understands_each_level_of_zlib() {
    let server = mongod::shared().unwrap();
    for level in -1..=9 {
        let mut peer = Peer::connect(server.address(), Some(Compressor::Zlib { level }));
        peer.run("admin", &rawdoc! { "ping": 1, "comment": "wharf ".repeat(1_000) });
    }
}

/// OP_COMPRESSED, "Connection strings, and results": the server and the client share no compressor.
#[test]
fn server_without_the_compressor_answers_uncompressed() {
    let options =
        MongodOptions { extra_args: vec!["--networkMessageCompressors".into(), "zlib".into()], ..Default::default() };
    let server = Mongod::start(options).unwrap();
    let mut peer = Peer::connect(server.address(), None);
    let hello = peer.run("admin", &rawdoc! { "hello": 1, "compression": ["snappy", "zstd"] });
    assert_eq!(hello.get("compression").unwrap(), None);
    assert_eq!(op_code(&peer.received), op_msg::OP_CODE);
    server.stop().unwrap();
}
