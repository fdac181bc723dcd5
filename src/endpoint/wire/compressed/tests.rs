use std::cell::RefCell;
use std::sync::mpsc;
use std::thread;

use bson::{RawDocumentBuf, rawdoc};
#[cfg(any(feature = "snappy", feature = "zlib", feature = "zstd"))]
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::endpoint::wire::{Flags, Outgoing, op_msg};

const LIMIT: u32 = 1 << 20;

/// Returns every compressor in this build, with zlib at each of its levels.
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
    let mut bytes = b"before".to_vec();
    assert!(compress(message, compressor, LIMIT, &mut bytes).unwrap());
    assert!(bytes.starts_with(b"before"));
    bytes.split_off(6)
}

fn decompressed(bytes: &[u8]) -> Result<Vec<u8>, WireError> {
    let mut buffer = b"before".to_vec();
    let outcome = decompress(bytes, LIMIT, &mut buffer);
    assert!(buffer.starts_with(b"before"));
    assert!(outcome.is_ok() || buffer.len() == 6, "an error appends nothing");
    outcome.map(|()| buffer.split_off(6))
}

fn refusal(bytes: &[u8]) -> String {
    decompressed(bytes).unwrap_err().to_string()
}

/// Returns an envelope around `content`, with the right length.
fn envelope(original: i32, size: i32, compressor_id: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let message_length = (PREFIX_LENGTH + content.len()) as u32;
    super::super::Header { message_length, request_id: 1, response_to: 2, op_code: OP_CODE }.write(&mut bytes);
    bytes.extend_from_slice(&original.to_le_bytes());
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.push(compressor_id);
    bytes.extend_from_slice(content);
    bytes
}

/// Returns `bytes` with their length corrected after a change.
fn resized(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Returns `bytes` with a different `uncompressedSize`.
fn claiming(mut bytes: Vec<u8>, size: usize) -> Vec<u8> {
    bytes[20..24].copy_from_slice(&(size as u32).to_le_bytes());
    bytes
}

#[test]
fn compressed_message_is_decompressed_again() {
    for content in ["", "a", &"wharf ".repeat(10_000)] {
        let message = message(&rawdoc! { "insert": "c", "text": content });
        for compressor in compressors() {
            let bytes = compressed(&message, compressor);
            assert_eq!(decompressed(&bytes).unwrap(), message, "{compressor:?}");
            let stored = compressor == Compressor::Zlib { level: 0 };
            assert!(content.len() < 2 || stored || bytes.len() * 10 < message.len(), "{compressor:?} compresses");
        }
    }
}

#[test]
fn envelope_is_laid_out_as_in_the_specification() {
    let message = message(&rawdoc! { "ping": 1 });
    for (compressor, id) in [(Compressor::Snappy, 1), (Compressor::Zlib { level: 6 }, 2), (Compressor::Zstd, 3)] {
        if !compressor.is_supported() {
            continue;
        }
        let bytes = compressed(&message, compressor);
        let content = bytes[25..].to_vec();
        let mut expected = (bytes.len() as u32).to_le_bytes().to_vec();
        expected.extend_from_slice(&message[4..12]);
        expected.extend_from_slice(&[0xdc, 7, 0, 0, 0xdd, 7, 0, 0, message.len() as u8 - 16, 0, 0, 0, id]);
        expected.extend_from_slice(&content);
        assert_eq!(bytes, expected);
    }
}

#[cfg(feature = "zlib")]
#[test]
fn level_is_respected_after_another_level() {
    let text: String = (0..4_000).map(|number| (number * number % 977).to_string()).collect();
    let message = message(&rawdoc! { "text": text });
    let length = |level| compressed(&message, Compressor::Zlib { level }).len();
    let (stored, fastest, best, default) = (length(0), length(1), length(9), length(-1));
    assert!(stored > message.len() && stored > fastest && fastest > best, "{stored} {fastest} {best}");
    assert_eq!((length(0), length(9), default), (stored, best, length(6)));
    for level in [-2, 10, i32::MAX, i32::MIN] {
        let mut buffer = vec![1];
        let error = compress(&message, Compressor::Zlib { level }, LIMIT, &mut buffer).unwrap_err().to_string();
        let reason = format!("zlibCompressionLevel must be -1 to 9, got {level}");
        assert_eq!(error, format!("the message cannot be compressed with zlib: {reason}"));
        assert_eq!(buffer, [1]);
    }
}

#[test]
fn listed_commands_are_never_compressed() {
    let list = [
        "hello",
        "isMaster",
        "ismaster",
        "saslStart",
        "saslContinue",
        "getnonce",
        "authenticate",
        "createUser",
        "updateUser",
        "copydbSaslStart",
        "copydbgetnonce",
        "copydb",
    ];
    for name in list {
        let mut command = RawDocumentBuf::new();
        command.append(bson::raw::CString::try_from(name).unwrap(), 1);
        assert!(!may_be_compressed(&command), "{name}");
    }
    let others = [
        rawdoc! { "ping": 1 },
        rawdoc! { "helloWorld": 1 },
        rawdoc! { "hell": 1 },
        rawdoc! { "HELLO": 1 },
        rawdoc! { "find": "hello", "authenticate": 1 },
        rawdoc! {},
    ];
    for command in others {
        assert!(may_be_compressed(&command), "{command:?}");
    }
}

#[test]
fn message_that_grows_beyond_the_limit_is_not_compressed() {
    let message = message(&rawdoc! { "ping": 1 });
    for compressor in compressors() {
        let mut buffer = vec![1];
        let longer = compressed(&message, compressor).len() as u32;
        assert!(longer > message.len() as u32, "the message grows");
        assert_eq!(compress(&message, compressor, longer - 1, &mut buffer), Ok(false));
        assert_eq!(buffer, [1]);
        assert_eq!(compress(&message, compressor, longer, &mut buffer), Ok(true));
    }
}

#[test]
fn only_a_whole_op_msg_is_compressed() {
    let whole = message(&rawdoc! { "ping": 1 });
    for compressor in compressors() {
        let refusal = |message: &[u8]| compress(message, compressor, LIMIT, &mut Vec::new()).unwrap_err().to_string();
        let length = whole.len();
        assert_eq!(
            refusal(&whole[..length - 1]),
            format!("message needs {length} bytes, but only {} are available", length - 1)
        );
        assert!(refusal(&[&whole[..], b"x"].concat()).starts_with("1 unexpected bytes follow the end of the message"));
        assert_eq!(refusal(&compressed(&whole, compressor)), "opCode must be 2013, got 2012");
    }
}

#[test]
fn each_mistake_of_an_envelope_is_named() {
    let inside: &[u8] = b"\0\0\0\0\0\x05\0\0\0\0";
    let mistakes = [
        (vec![1, 0], "header needs 16 bytes, but only 2 are available"),
        (resized(envelope(2013, 0, 0, b"")[..24].to_vec()), "OP_COMPRESSED needs 25 bytes, but only 24 are available"),
        (message(&rawdoc! {}), "opCode must be 2012, got 2013"),
        (envelope(2012, 10, 0, inside), "originalOpcode must be 2013, got 2012"),
        (envelope(1, 10, 0, inside), "originalOpcode must be 2013, got 1"),
        (envelope(2013, -1, 0, inside), "uncompressedSize must be 0 to 1048560 bytes, got -1"),
        (envelope(2013, 1_048_561, 0, inside), "uncompressedSize must be 0 to 1048560 bytes, got 1048561"),
        (envelope(2013, 9, 0, inside), "compressedMessage is not valid noop data: it has 10 bytes instead of 9"),
    ];
    for (bytes, error) in mistakes {
        assert_eq!(refusal(&bytes), error, "{bytes:?}");
    }
    for id in [4, 255] {
        let error = refusal(&envelope(2013, 10, id, inside));
        assert!(error.starts_with("compressorId must be 0 (noop)"), "{error}");
        assert!(error.ends_with(&format!(", got {id}")), "{error}");
    }
    let mut too_long = envelope(2013, 10, 0, inside);
    too_long.push(0);
    assert!(refusal(&too_long).starts_with("1 unexpected bytes follow"));
}

#[test]
fn uncompressed_content_is_unwrapped() {
    let inside: &[u8] = b"\0\0\0\0\0\x05\0\0\0\0";
    let message = decompressed(&envelope(2013, 10, 0, inside)).unwrap();
    assert_eq!(message, [b"\x1a\0\0\0\x01\0\0\0\x02\0\0\0\xdd\x07\0\0", inside].concat());
}

#[test]
fn compressor_that_is_not_compiled_in_is_refused() {
    for (compressor, id) in [(Compressor::Snappy, 1), (Compressor::Zlib { level: 6 }, 2), (Compressor::Zstd, 3)] {
        let compressed = compress(&message(&rawdoc! {}), compressor, LIMIT, &mut Vec::new());
        let reply = decompressed(&envelope(2013, 10, id, b"x"));
        let refused =
            |error| matches!(error, Some(WireError::Compressor { value, .. }) if value.starts_with(&id.to_string()));
        assert_eq!(refused(compressed.err()), !compressor.is_supported());
        assert_eq!(refused(reply.err()), !compressor.is_supported());
    }
}

#[test]
fn wrong_size_of_the_content_is_refused() {
    // Includes cases that the libraries accept: lengths that are too large by one, and zeros after the end.
    let message = message(&rawdoc! { "text": "wharf ".repeat(1_000) });
    let size = message.len() - 16;
    for compressor in compressors() {
        let bytes = compressed(&message, compressor);
        for claimed in [0, 1, size - 1, size + 1, size * 2, LIMIT as usize - 16] {
            let error = decompressed(&claiming(bytes.clone(), claimed)).unwrap_err();
            assert!(matches!(error, WireError::Compressed { .. }), "{compressor:?} {claimed}: {error}");
        }
    }
}

#[test]
fn trailing_bytes_are_refused() {
    let message = message(&rawdoc! { "text": "wharf ".repeat(1_000) });
    for compressor in compressors() {
        let bytes = compressed(&message, compressor);
        // Includes an entire second frame, which zstd itself would decompress after the first.
        for more in [&b"\0"[..], b"\xff", &bytes[PREFIX_LENGTH..]] {
            for size in [message.len() - 16, 2 * (message.len() - 16)] {
                let longer = resized(claiming([&bytes, more].concat(), size));
                assert!(matches!(decompressed(&longer), Err(WireError::Compressed { .. })), "{compressor:?} {more:?}");
            }
        }
    }
}

#[test]
fn truncated_content_is_refused() {
    let message = message(&rawdoc! { "text": "wharf, a pool. ".repeat(20) });
    for compressor in compressors() {
        let bytes = compressed(&message, compressor);
        for end in PREFIX_LENGTH..bytes.len() {
            let error = decompressed(&resized(bytes[..end].to_vec())).unwrap_err();
            assert!(matches!(error, WireError::Compressed { .. }), "{compressor:?} {end}: {error}");
        }
    }
}

#[test]
fn impossible_size_allocates_nothing() {
    for id in [1, 2, 3] {
        for content in [&b""[..], b"x", b"\x78\x9c", &[0xff; 20]] {
            let mut buffer = Vec::new();
            assert!(decompress(&envelope(2013, LIMIT as i32 - 16, id, content), LIMIT, &mut buffer).is_err());
            assert!(buffer.capacity() < 1_000, "{id} {content:?}: {}", buffer.capacity());
        }
    }
}

/// Returns a zstd frame with `blocks` that declares content of `size` bytes.
#[cfg(feature = "zstd")]
fn frame(size: u64, blocks: &[(u32, u32, &[u8])]) -> Vec<u8> {
    // No checksum, a size of eight bytes, and a window of 128 KiB.
    let mut bytes = vec![0x28, 0xb5, 0x2f, 0xfd, 0xc0, 7 << 3];
    bytes.extend_from_slice(&size.to_le_bytes());
    for (index, (kind, length, content)) in blocks.iter().enumerate() {
        let is_last = u32::from(index + 1 == blocks.len());
        bytes.extend_from_slice(&(is_last | kind << 1 | length << 3).to_le_bytes()[..3]);
        bytes.extend_from_slice(content);
    }
    bytes
}

#[cfg(feature = "zstd")]
#[test]
fn zstd_frame_allocates_no_more_than_its_blocks_can_yield() {
    const BLOCK: u32 = 128 * 1024;
    let size = LIMIT - 16;
    let decompressing = |size: u32, content: &[u8]| {
        let mut buffer = Vec::new();
        let outcome = decompress(&envelope(2013, size as i32, 3, content), LIMIT, &mut buffer);
        (outcome.map_err(|error| error.to_string()), buffer)
    };
    let lies: [&[(u32, u32, &[u8])]; 3] = [
        &[(0, 3, b"raw")],
        // Seven blocks of a repeated byte, but eight are needed.
        &[(1, BLOCK, &b"x"[..]); 7],
        &[(1, BLOCK, &b"x"[..]), (1, size - 2 * BLOCK, b"x")],
    ];
    for blocks in lies {
        let (outcome, buffer) = decompressing(size, &frame(size.into(), blocks));
        let error = outcome.unwrap_err();
        assert!(error.ends_with(&format!("its blocks cannot yield {size} bytes")), "{error}");
        assert!(buffer.capacity() < 1_000, "{}", buffer.capacity());
    }
    // A valid frame of the highest density.
    let mut blocks = vec![(1, BLOCK, &b"x"[..]); 7];
    blocks.push((1, size - 7 * BLOCK, b"x"));
    let content = frame(size.into(), &blocks);
    assert!(content.len() < 50);
    let (outcome, buffer) = decompressing(size, &content);
    assert_eq!((outcome, buffer.len()), (Ok(()), LIMIT as usize));
    assert!(buffer.capacity() < LIMIT as usize + 1_000);
}

#[test]
fn densest_content_is_accepted() {
    // Nothing compresses better than zeros. The checks against impossible lengths must accept them.
    let mut densest = vec![0; 1_000_000];
    let body =
        rawdoc! { "zeros": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: densest.split_off(1) } };
    let message = message(&body);
    for compressor in compressors() {
        assert_eq!(decompressed(&compressed(&message, compressor)).unwrap(), message, "{compressor:?}");
    }
}

/// The destructors of a thread's locals run in an unspecified order, so the codec may be dropped before another local.
#[test]
fn ending_thread_still_has_a_codec() {
    struct AtTheEnd(mpsc::Sender<Vec<u8>>);
    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            for compressor in compressors() {
                let bytes = compressed(&message(&rawdoc! { "ping": 1 }), compressor);
                self.0.send(decompressed(&bytes).unwrap()).unwrap();
            }
        }
    }
    thread_local! {
        static LAST: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
    }
    for codec_first in [true, false] {
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            let use_codec = || compressors().into_iter().for_each(|each| drop(compressed(&message(&rawdoc! {}), each)));
            if codec_first {
                use_codec();
            }
            LAST.set(Some(AtTheEnd(sender)));
            if !codec_first {
                use_codec();
            }
        });
        thread.join().unwrap();
        let received: Vec<_> = receiver.into_iter().collect();
        assert_eq!(received, vec![message(&rawdoc! { "ping": 1 }); compressors().len()]);
    }
}

#[cfg(any(feature = "snappy", feature = "zlib", feature = "zstd"))]
fn any_compressor() -> impl Strategy<Value = Compressor> {
    proptest::sample::select(compressors())
}

#[cfg(any(feature = "snappy", feature = "zlib", feature = "zstd"))]
proptest! {
    #[test]
    fn any_content_survives_a_round_trip(
        compressor in any_compressor(),
        noise in vec(any::<u8>(), 0..3_000),
        repeated in 0_usize..20,
    ) {
        let bytes = [noise.repeat(repeated), noise].concat();
        let message = message(&rawdoc! { "b": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes } });
        prop_assert_eq!(decompressed(&compressed(&message, compressor)).unwrap(), message);
    }

    #[test]
    fn no_bytes_make_decompressing_panic(id in 0_u8..5, size in 0_i32..4_000, content in vec(any::<u8>(), 0..300)) {
        if let Ok(message) = decompressed(&envelope(2013, size, id, &content)) {
            prop_assert_eq!(message.len(), 16 + size as usize);
        }
    }

    #[test]
    fn changed_message_is_refused_or_has_the_declared_length(
        compressor in any_compressor(),
        text in "[a-d]{0,400}",
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = compressed(&message(&rawdoc! { "text": text }), compressor);
        for (at, value) in changes {
            let at = 4 + at.index(bytes.len() - 4);
            bytes[at] = value;
        }
        if let Ok(message) = decompressed(&bytes) {
            let declared = u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]);
            prop_assert_eq!(message.len(), 16 + declared as usize);
        }
    }
}

/// An empty block takes more time to process than the same number of bytes of ordinary content.
#[cfg(feature = "zlib")]
#[test]
fn content_that_is_much_longer_than_its_yield_is_not_looked_into() {
    let plain = message(&rawdoc! { "ping": 1 });
    let content = &plain[crate::endpoint::wire::header::LENGTH..];
    let mut packed = vec![0x78, 0x01];
    // Stored blocks without content.
    (0..300).for_each(|_| packed.extend_from_slice(&[0, 0, 0, 0xff, 0xff]));
    let refused = refusal(&envelope(op_msg::OP_CODE, content.len() as i32, 2, &packed));
    assert!(refused.contains(&format!("its {} bytes are too many for {}", packed.len(), content.len())), "{refused}");
    let noise: Vec<_> = (0..LIMIT / 2).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for length in [0, 1, 100, noise.len()] {
        let binary = bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: noise[..length].to_vec() };
        let plain = message(&rawdoc! { "x": binary });
        for compressor in compressors() {
            assert_eq!(decompressed(&compressed(&plain, compressor)).unwrap(), plain);
        }
    }
}
