use bson::{RawDocumentBuf, rawdoc};

use super::*;
use crate::wire::{Flags, Outgoing, op_msg};

const LIMIT: u32 = 1 << 20;

/// Every compressor that this build has.
fn compressors() -> Vec<Compressor> {
    let zlib = (-1..=9).map(|level| Compressor::Zlib { level });
    [Compressor::Snappy, Compressor::Zstd].into_iter().chain(zlib).filter(|each| each.is_supported()).collect()
}

fn message(body: &RawDocumentBuf) -> Vec<u8> {
    let (flags, database) = (Flags::NONE, Some("db"));
    let outgoing = Outgoing { request_id: 77, response_to: -3, flags, body, database, sequences: &[] };
    let mut bytes = Vec::new();
    op_msg::encode(&outgoing, LIMIT, &mut bytes).unwrap();
    bytes
}

fn compressed(message: &[u8], compressor: Compressor) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(compress(message, compressor, LIMIT, &mut bytes).unwrap());
    bytes
}

fn decompressed(bytes: &[u8]) -> Result<Vec<u8>, WireError> {
    let mut buffer = b"before".to_vec();
    let outcome = decompress(bytes, LIMIT, &mut buffer);
    assert!(buffer.starts_with(b"before"));
    assert!(outcome.is_ok() || buffer.len() == 6, "an error appends nothing");
    outcome.map(|()| buffer.split_off(6))
}

#[test]
fn what_is_compressed_is_decompressed() {
    for content in ["", "a", &"wharf ".repeat(10_000)] {
        let message = message(&rawdoc! { "insert": "c", "text": content });
        for compressor in compressors() {
            let bytes = compressed(&message, compressor);
            assert_eq!(decompressed(&bytes).unwrap(), message, "{compressor:?}");
        }
    }
}
