//! `OP_COMPRESSED`: the envelope of a compressed message (OP_COMPRESSED specification).
//!
//! It stands in for the header of the message inside: the same `requestID` and `responseTo`, then the operation, the
//! length and the compressor of what was compressed, which is everything after that message's own header.
//!
//! [`compress`] and [`decompress`] go from one buffer of the caller's into another. The contexts of the compressors are
//! large, hundreds of kilobytes for zlib and up to some megabytes for zstd, and are of use only while one of these two
//! functions runs; so each *thread* keeps its own, made when it first compresses or decompresses, and a pool's many
//! connections keep none. After the first messages neither function allocates, if the buffers have grown. Whoever wants
//! contexts of their own has a [`Codec`].
//!
//! A message that the peer sent may claim anything. Its length is held to `maxMessageSizeBytes` before room is made for
//! it, and where the compressed bytes show that they cannot yield it, no room is made at all. No compressor's window
//! depends on what the message says: all of them write straight into the buffer.

mod codec;
#[cfg(feature = "snappy")]
mod snappy;
#[cfg(feature = "zlib")]
mod zlib;
#[cfg(feature = "zstd")]
mod zstd;

#[cfg(test)]
mod tests;

use std::cell::Cell;

use bson::RawDocument;

pub use codec::Codec;

use super::WireError;
use crate::options::Compressor;

/// The operation's number in the header.
pub const OP_CODE: i32 = 2012;

/// The length of what stands before the compressed bytes, in bytes: the header, `originalOpcode`, `uncompressedSize`
/// and `compressorId`.
const PREFIX_LENGTH: usize = super::header::LENGTH + 4 + 4 + 1;

/// The commands that must never be compressed, because an attacker who can have part of a message repeated learns
/// secrets from its compressed length. The legacy hello has two names.
const NEVER_COMPRESSED: [&[u8]; 12] = [
    b"hello",
    b"isMaster",
    b"ismaster",
    b"saslStart",
    b"saslContinue",
    b"getnonce",
    b"authenticate",
    b"createUser",
    b"updateUser",
    b"copydbSaslStart",
    b"copydbgetnonce",
    b"copydb",
];

/// Whether `command` may be compressed, which its name decides: that of its first element, as servers spell it (OP_COMPRESSED,
/// "Messages not allowed to be compressed"). All others must be, once a compressor has been negotiated.
///
/// ```
/// use bson::rawdoc;
/// use wharf::wire::compressed::may_be_compressed;
///
/// assert!(may_be_compressed(&rawdoc! { "insert": "users" }));
/// assert!(!may_be_compressed(&rawdoc! { "createUser": "eve", "pwd": "..." }));
/// ```
#[must_use]
pub fn may_be_compressed(command: &RawDocument) -> bool {
    // The first element's type follows the document's length. Only the name is looked at, so that a large value, or one
    // that is no BSON, costs nothing.
    let name = command.as_bytes().get(5..).unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default();
    !NEVER_COMPRESSED.contains(&name)
}

/// Appends `message`, one whole `OP_MSG`, to `buffer` as an `OP_COMPRESSED`. Says whether it did: where the result
/// would be longer than `max_message_size` bytes, nothing has been appended, and the message has to be sent as it is.
///
/// ```
/// # #[cfg(feature = "zlib")] {
/// use bson::rawdoc;
/// use wharf::Compressor;
/// use wharf::wire::{Flags, Outgoing, compressed, op_msg};
///
/// let body = rawdoc! { "insert": "users", "note": "a".repeat(1000) };
/// let flags = Flags::NONE;
/// let request = Outgoing { request_id: 1, response_to: 0, flags, body: &body, database: Some("shop"), sequences: &[] };
/// let (mut plain, mut packed, mut again) = (Vec::new(), Vec::new(), Vec::new());
/// op_msg::encode(&request, 48_000_000, &mut plain)?;
/// assert!(compressed::compress(&plain, Compressor::Zlib { level: -1 }, 48_000_000, &mut packed)?);
/// assert!(packed.len() < 200);
/// compressed::decompress(&packed, 48_000_000, &mut again)?;
/// assert_eq!(again, plain);
/// # }
/// # Ok::<(), wharf::wire::WireError>(())
/// ```
///
/// # Errors
///
/// Nothing has been appended then.
///
/// - [`WireError::Compressor`] if `compressor` is not compiled in ([`Compressor::is_supported`]).
/// - [`WireError::Length`], [`WireError::Truncated`], [`WireError::Unasked`] or [`WireError::OpCode`] if `message` is
///   not one whole `OP_MSG`.
/// - [`WireError::Compressed`] if the compressor fails, as it does for a zlib level outside -1 to 9.
pub fn compress(
    message: &[u8],
    compressor: Compressor,
    max_message_size: u32,
    buffer: &mut Vec<u8>,
) -> Result<bool, WireError> {
    with_codec(|codec| codec.compress(message, compressor, max_message_size, buffer))
}

/// Appends the `OP_MSG` that is inside `bytes`, one whole `OP_COMPRESSED`, to `buffer`, with the header that it had.
///
/// # Errors
///
/// Nothing has been appended then. The connection the bytes came from must be closed.
///
/// - [`WireError::Length`] if the message, compressed or not, is longer than `max_message_size` bytes.
/// - [`WireError::Truncated`] or [`WireError::Unasked`] if `bytes` are not one whole message.
/// - [`WireError::OpCode`] or [`WireError::OriginalOpCode`] if the operation is another one, outside or inside.
/// - [`WireError::Compressor`] if the compressor is unknown or not compiled in.
/// - [`WireError::Compressed`] if the compressed bytes are not what the compressor makes, yield more or fewer bytes than
///   the message says, or have others after them.
pub fn decompress(bytes: &[u8], max_message_size: u32, buffer: &mut Vec<u8>) -> Result<(), WireError> {
    with_codec(|codec| codec.decompress(bytes, max_message_size, buffer))
}

/// How many bytes `bytes`, one whole `OP_COMPRESSED`, announce to become without a header; `None` if they do not say.
pub(crate) fn announced_size(bytes: &[u8]) -> Option<usize> {
    let size = bytes.get(super::header::LENGTH + 4..)?.first_chunk()?;
    usize::try_from(i32::from_le_bytes(*size)).ok()
}

/// Lends this thread's codec, taken out of its place for that time. A thread that is ending has no place any more, and
/// makes a codec each time.
fn with_codec<T>(run: impl FnOnce(&mut Codec) -> T) -> T {
    thread_local! {
        static CODEC: Cell<Codec> = const { Cell::new(Codec::new()) };
    }
    let mut codec = CODEC.try_with(Cell::take).unwrap_or_default();
    let result = run(&mut codec);
    let _ = CODEC.try_with(|place| place.set(codec));
    result
}
