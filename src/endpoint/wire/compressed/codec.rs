//! The envelope, and the compressors' contexts.

use super::{OP_CODE, PREFIX_LENGTH};
use crate::endpoint::options::Compressor;
use crate::endpoint::wire::header::{self, Header};
use crate::endpoint::wire::{WireError, op_msg};

/// The compressors' contexts, which are reused from one message to the next. Each context is created on first use.
/// Until then, a codec takes only a few dozen bytes.
#[derive(Default)]
pub struct Codec {
    #[cfg(feature = "snappy")]
    snappy: super::snappy::Snappy,
    #[cfg(feature = "zlib")]
    zlib: super::zlib::Zlib,
    #[cfg(feature = "zstd")]
    zstd: super::zstd::Zstd,
}

impl std::fmt::Debug for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Codec").finish_non_exhaustive()
    }
}

const NOOP_ID: u8 = 0;
const SNAPPY_ID: u8 = 1;
const ZLIB_ID: u8 = 2;
const ZSTD_ID: u8 = 3;

pub(super) fn id(compressor: Compressor) -> u8 {
    match compressor {
        Compressor::Snappy => SNAPPY_ID,
        Compressor::Zlib { .. } => ZLIB_ID,
        Compressor::Zstd => ZSTD_ID,
    }
}

impl Codec {
    /// Creates a codec without any contexts.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            #[cfg(feature = "snappy")]
            snappy: super::snappy::Snappy::new(),
            #[cfg(feature = "zlib")]
            zlib: super::zlib::Zlib::new(),
            #[cfg(feature = "zstd")]
            zstd: super::zstd::Zstd::new(),
        }
    }

    /// See [`compress`](super::compress).
    ///
    /// # Errors
    ///
    /// The same as for [`compress`](super::compress).
    pub fn compress(
        &mut self,
        message: &[u8],
        compressor: Compressor,
        max_message_size: u32,
        buffer: &mut Vec<u8>,
    ) -> Result<bool, WireError> {
        let header = Header::of_whole(message, max_message_size)?;
        if header.op_code != op_msg::OP_CODE {
            return Err(WireError::OpCode { value: header.op_code, allowed: op_msg::OP_CODE });
        }
        let content = &message[header::LENGTH..];
        let start = buffer.len();
        let compressor_id = id(compressor);
        // The length is filled in at the end.
        Header { message_length: 0, op_code: OP_CODE, ..header }.write(buffer);
        buffer.extend_from_slice(&op_msg::OP_CODE.to_le_bytes());
        buffer.extend_from_slice(&(content.len() as u32).to_le_bytes());
        buffer.push(compressor_id);

        let outcome = self.append_compressed(content, compressor, buffer);
        let length = buffer.len() - start;
        // The length is sent as a signed integer.
        let fits = length <= max_message_size.min(i32::MAX as u32) as usize;
        if outcome.is_ok() && fits {
            buffer[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
        } else {
            buffer.truncate(start);
        }
        outcome.map(|()| fits)
    }

    /// See [`decompress`](super::decompress).
    ///
    /// # Errors
    ///
    /// The same as for [`decompress`](super::decompress).
    pub fn decompress(&mut self, bytes: &[u8], max_message_size: u32, buffer: &mut Vec<u8>) -> Result<(), WireError> {
        let envelope = Envelope::read(bytes, max_message_size)?;
        let start = buffer.len();
        Header {
            message_length: (header::LENGTH + envelope.uncompressed_size) as u32,
            op_code: op_msg::OP_CODE,
            ..envelope.header
        }
        .write(buffer);
        let outcome = self.append_decompressed(&envelope, buffer);
        if outcome.is_err() {
            buffer.truncate(start);
        }
        outcome
    }

    #[allow(unused_variables, clippy::ptr_arg, reason = "without any compressor")]
    fn append_compressed(
        &mut self,
        content: &[u8],
        compressor: Compressor,
        buffer: &mut Vec<u8>,
    ) -> Result<(), WireError> {
        #[allow(unused, reason = "without any compressor")]
        let refused = |reason: String| WireError::Compression { compressor: compressor.name(), reason };
        match compressor {
            #[cfg(feature = "snappy")]
            Compressor::Snappy => self.snappy.compress(content, buffer).map_err(refused),
            #[cfg(feature = "zlib")]
            Compressor::Zlib { level } => self.zlib.compress(content, level, buffer).map_err(refused),
            #[cfg(feature = "zstd")]
            Compressor::Zstd => self.zstd.compress(content, buffer).map_err(refused),
            #[allow(unreachable_patterns, reason = "with all compressors")]
            _ => Err(unsupported(id(compressor), is_compiled_in)),
        }
    }

    /// Decompresses the content, and appends it after the message's header. On success, the content has the length that
    /// the envelope declares.
    #[allow(unused_variables, reason = "without any compressor")]
    fn append_decompressed(&mut self, envelope: &Envelope<'_>, buffer: &mut Vec<u8>) -> Result<(), WireError> {
        let Envelope { uncompressed_size: expected, compressor_id, content, .. } = *envelope;
        let start = buffer.len();
        let (compressor, outcome): (_, Result<(), String>) = match compressor_id {
            SNAPPY_ID | ZLIB_ID | ZSTD_ID
                if is_compiled_in(compressor_id) && content.len() > most_compressed(expected) =>
            {
                let name = NAMES[usize::from(compressor_id)].1;
                (name, Err(format!("its {} bytes are too many for {expected}", content.len())))
            }
            NOOP_ID if content.len() == expected => {
                buffer.extend_from_slice(content);
                ("noop", Ok(()))
            }
            NOOP_ID => ("noop", Err(format!("it has {} bytes instead of {expected}", content.len()))),
            #[cfg(feature = "snappy")]
            SNAPPY_ID => ("snappy", self.snappy.decompress(content, expected, buffer)),
            #[cfg(feature = "zlib")]
            ZLIB_ID => ("zlib", self.zlib.decompress(content, expected, buffer)),
            #[cfg(feature = "zstd")]
            ZSTD_ID => ("zstd", self.zstd.decompress(content, expected, buffer)),
            unknown => return Err(unsupported(unknown, is_compiled_in)),
        };
        let outcome = outcome.and_then(|()| match buffer.len() - start {
            length if length == expected => Ok(()),
            length => Err(yields(length, expected)),
        });
        outcome.map_err(|reason| WireError::Compressed { compressor, reason: reason.into() })
    }
}

/// Returns the maximum length in bytes of compressed content that yields `length` bytes.
///
/// No compressor produces more output than this. If the compressed content exceeds the maximum, it contains blocks that
/// yield nothing and only take time.
fn most_compressed(length: usize) -> usize {
    length.saturating_add(length / 4).saturating_add(1024)
}

/// Returns the reason for refusing a compressed message whose length differs from the declared length.
pub(super) fn yields(length: usize, expected: usize) -> String {
    format!("it yields {length} bytes instead of {expected}")
}

/// A compressed message before decompression.
struct Envelope<'a> {
    header: Header,
    /// The length of the decompressed content. It is within the limit even with the length of a header added.
    uncompressed_size: usize,
    compressor_id: u8,
    content: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn read(bytes: &'a [u8], max_message_size: u32) -> Result<Self, WireError> {
        let header = Header::of_whole(bytes, max_message_size)?;
        if header.op_code != OP_CODE {
            return Err(WireError::OpCode { value: header.op_code, allowed: OP_CODE });
        }
        let Some((prefix, content)) = bytes.split_first_chunk::<PREFIX_LENGTH>() else {
            let (needed, available) = (PREFIX_LENGTH as u64, bytes.len() as u64);
            return Err(WireError::Truncated { field: "OP_COMPRESSED", needed, available });
        };
        let field = |at: usize| i32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]]);
        let original = field(header::LENGTH);
        if original != op_msg::OP_CODE {
            return Err(WireError::OriginalOpCode { value: original, allowed: op_msg::OP_CODE });
        }
        let declared = field(header::LENGTH + 4);
        // The length of the whole message is also sent as a signed integer.
        let most = (max_message_size.min(i32::MAX as u32) as usize).saturating_sub(header::LENGTH);
        let uncompressed_size = match usize::try_from(declared) {
            Ok(size) if size <= most => size,
            _ => {
                let (value, most) = (declared.into(), most as u64);
                return Err(WireError::Length { field: "uncompressedSize", value, least: 0, most });
            }
        };
        Ok(Self { header, uncompressed_size, compressor_id: prefix[PREFIX_LENGTH - 1], content })
    }
}

const NAMES: [(u8, &str, bool); 4] = [
    (NOOP_ID, "noop", true),
    (SNAPPY_ID, "snappy", cfg!(feature = "snappy")),
    (ZLIB_ID, "zlib", cfg!(feature = "zlib")),
    (ZSTD_ID, "zstd", cfg!(feature = "zstd")),
];

fn is_compiled_in(compressor_id: u8) -> bool {
    NAMES.iter().any(|(id, _, is_there)| *id == compressor_id && *is_there)
}

/// Returns the error for a compressor that is not among the `allowed` compressors.
pub(super) fn unsupported(compressor_id: u8, allowed: impl Fn(u8) -> bool) -> WireError {
    let value = match NAMES.iter().find(|(id, ..)| *id == compressor_id) {
        Some((id, name, _)) => format!("{id} ({name})"),
        None => compressor_id.to_string(),
    };
    let known: Vec<_> =
        NAMES.iter().filter(|(id, ..)| allowed(*id)).map(|(id, name, _)| format!("{id} ({name})")).collect();
    WireError::Compressor { value, allowed: known.join(" or ") }
}
