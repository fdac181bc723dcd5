//! `OP_COMPRESSED`: the envelope of a compressed message (OP_COMPRESSED specification).
//!
//! The envelope replaces the header of the message inside. It carries the same `requestID` and `responseTo`, followed
//! by the original operation, the uncompressed length and the compressor. The compressed content is everything after
//! the original header.
//!
//! [`compress`] and [`decompress`] read from one of the caller's buffers and write to another. The compressors'
//! contexts are large: hundreds of kilobytes for zlib, and up to a few megabytes for zstd. They are needed only while
//! one of these functions runs. Each *thread* therefore keeps its own contexts, created on first use, and the
//! connections of a pool keep none. Once the contexts exist and the buffers have grown, neither function allocates. A
//! caller that wants its own contexts uses a [`Codec`].
//!
//! A peer's message may declare any length. The length is checked against `maxMessageSizeBytes` before any memory is
//! reserved for it, and no memory is reserved if the compressed bytes cannot yield that much. The compressors write
//! straight into the buffer, so the memory for their windows does not depend on the message.

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
use crate::endpoint::options::Compressor;

/// The operation's number in the header.
pub const OP_CODE: i32 = 2012;

/// The length of the header, `originalOpcode`, `uncompressedSize` and `compressorId`, which precede the compressed
/// bytes.
const PREFIX_LENGTH: usize = super::header::LENGTH + 4 + 4 + 1;

/// The commands that must never be compressed: if an attacker can repeat part of a message, the compressed length
/// reveals the message's secrets. The legacy hello has two names.
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

/// Returns whether `command` may be compressed (OP_COMPRESSED, "Messages not allowed to be compressed"). The answer
/// depends on the name of the first element, in the spelling that servers use. Once a compressor is negotiated, all
/// other commands must be compressed.
///
/// ```
/// use bson::rawdoc;
/// use wharf::unstable::wire::compressed::may_be_compressed;
///
/// assert!(may_be_compressed(&rawdoc! { "insert": "users" }));
/// assert!(!may_be_compressed(&rawdoc! { "createUser": "eve", "pwd": "..." }));
/// ```
#[must_use]
pub fn may_be_compressed(command: &RawDocument) -> bool {
    // The first element's type follows the document's length. Only the name is read, so that a large or invalid value
    // costs nothing.
    let name = command.as_bytes().get(5..).unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default();
    !NEVER_COMPRESSED.contains(&name)
}

/// Compresses `message`, one whole `OP_MSG`, and appends it to `buffer` as an `OP_COMPRESSED`. Returns whether it was
/// appended. If the result would be longer than `max_message_size` bytes, nothing is appended, and the message must be
/// sent uncompressed.
///
/// ```
/// # #[cfg(feature = "zlib")] {
/// use bson::rawdoc;
/// use wharf::Compressor;
/// use wharf::unstable::wire::{Flags, Outgoing, compressed, op_msg};
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
/// # Ok::<(), wharf::unstable::wire::WireError>(())
/// ```
///
/// # Errors
///
/// If it fails, nothing has been appended.
///
/// - [`WireError::Compressor`] if `compressor` is not compiled in ([`Compressor::is_supported`]).
/// - [`WireError::Length`], [`WireError::Truncated`], [`WireError::Unasked`] or [`WireError::OpCode`] if `message` is
///   not one whole `OP_MSG`.
/// - [`WireError::Compression`] if the compressor fails, for example at a zlib level outside -1 to 9.
pub fn compress(
    message: &[u8],
    compressor: Compressor,
    max_message_size: u32,
    buffer: &mut Vec<u8>,
) -> Result<bool, WireError> {
    with_codec(|codec| codec.compress(message, compressor, max_message_size, buffer))
}

/// Decompresses `bytes`, one whole `OP_COMPRESSED`, and appends the `OP_MSG` inside to `buffer`, with its original
/// header.
///
/// # Errors
///
/// If it fails, nothing has been appended. The connection that the bytes came from must be closed.
///
/// - [`WireError::Length`] if the message, compressed or not, is longer than `max_message_size` bytes.
/// - [`WireError::Truncated`] or [`WireError::Unasked`] if `bytes` are not one whole message.
/// - [`WireError::OpCode`] or [`WireError::OriginalOpCode`] if the envelope, or the message inside it, has a different
///   operation.
/// - [`WireError::Compressor`] if the compressor is unknown or not compiled in.
/// - [`WireError::Compressed`] if the compressed bytes are invalid, yield more or fewer bytes than declared, or are
///   followed by more bytes.
pub fn decompress(bytes: &[u8], max_message_size: u32, buffer: &mut Vec<u8>) -> Result<(), WireError> {
    with_codec(|codec| codec.decompress(bytes, max_message_size, buffer))
}

/// Returns the uncompressed length that `bytes`, one whole `OP_COMPRESSED`, declares for its content without a header.
/// Returns `None` if the length is invalid.
pub(crate) fn announced_size(bytes: &[u8]) -> Option<usize> {
    let size = bytes.get(super::header::LENGTH + 4..)?.first_chunk()?;
    usize::try_from(i32::from_le_bytes(*size)).ok()
}

/// The compressors that were offered to a peer, and that it may therefore use. The no-op compressor is never among
/// them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Accepted(u8);

impl Accepted {
    pub fn new(offered: &[Compressor]) -> Self {
        Self(offered.iter().fold(0, |all, one| all | 1 << codec::id(*one)))
    }

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Checks the compressor of `bytes`, one whole `OP_COMPRESSED`.
    ///
    /// # Errors
    ///
    /// Returns [`WireError::Compressor`] for a compressor that was not offered. Bytes that are too short to name a
    /// compressor are not refused here.
    pub fn check(self, bytes: &[u8]) -> Result<(), WireError> {
        match bytes.get(PREFIX_LENGTH - 1) {
            Some(&id) if id >= 8 || self.0 & 1 << id == 0 => {
                Err(codec::unsupported(id, |known| self.0 & 1 << known != 0))
            }
            _ => Ok(()),
        }
    }
}

/// Calls `run` with this thread's codec, which is taken out of its thread-local variable for the call. A thread that is
/// exiting no longer has this variable, and creates a codec for each call.
fn with_codec<T>(run: impl FnOnce(&mut Codec) -> T) -> T {
    thread_local! {
        static CODEC: Cell<Codec> = const { Cell::new(Codec::new()) };
    }
    let mut codec = CODEC.try_with(Cell::take).unwrap_or_default();
    let result = run(&mut codec);
    let _ = CODEC.try_with(|place| place.set(codec));
    result
}
