//! MongoDB's wire protocol without any I/O: bytes in, bytes out.
//!
//! Everything here is a pure function of its arguments, so it can be fuzzed, and shared by clients and test servers.
//! Documents stay raw BSON: encoding copies their bytes after a header into a buffer that the caller reuses, and
//! decoding borrows them from the buffer in which they were received.
//!
//! - [`header`]: the sixteen bytes before every message, which include the operation. A module for an operation other
//!   than `OP_MSG` would be a sibling of [`op_msg`] that starts from the same [`Header`].
//! - [`op_msg`]: requests and replies (OP_MSG specification).
//! - [`compressed`]: the envelope of a compressed message (OP_COMPRESSED specification).
//! - [`reply`]: whether a command succeeded, according to its reply.
//! - [`server_api`]: the fields that every command carries if a server API is declared.
//! - [`hello`] and [`metadata`]: the first command on every connection, and its reply (MongoDB Handshake
//!   specification).
//! - [`ocsp`]: responses about the revocation of the server's certificate, stapled to a TLS handshake (OCSP Support
//!   specification).
//! - [`auth`]: authentication messages (Authentication specification).
//!
//! Nothing here panics on any input: a peer's mistakes are [`WireError`]s.

use thiserror::Error;

pub mod auth;
pub mod compressed;
pub(crate) mod element;
pub mod header;
pub mod hello;
pub mod metadata;
pub(crate) mod nesting;
#[cfg(feature = "tls")]
pub mod ocsp;
pub mod op_msg;
pub mod reply;
pub mod server_api;

#[doc(inline)]
pub use header::Header;
#[doc(inline)]
pub use hello::HelloReply;
pub(crate) use hello::Role;
#[doc(inline)]
pub use op_msg::{Flags, Limits, Message, Outgoing};
#[doc(inline)]
pub use reply::ServerError;

#[doc(inline)]
pub use crate::text::printable::PeerText;

/// The `maxMessageSizeBytes` of every known server, in bytes, and the default for a server that does not report its
/// own.
pub const DEFAULT_MAX_MESSAGE_SIZE: u32 = 48_000_000;

/// A received message is invalid, or a message cannot be sent.
///
/// After such an error in a received message, nothing more can be read from the connection.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// A length is impossible at its position, or larger than the limit.
    #[error("{field} must be {least} to {most} bytes, got {value}")]
    Length {
        /// The field that holds the length.
        field: &'static str,
        /// The declared length, in bytes.
        value: i64,
        /// The smallest length allowed, in bytes.
        least: u64,
        /// The largest length that the negotiated limits or the rest of the message allow, in bytes.
        most: u64,
    },
    /// The bytes end too early.
    #[error("{field} needs {needed} bytes, but only {available} are available")]
    Truncated {
        /// The field that is truncated.
        field: &'static str,
        /// The number of bytes that it needs.
        needed: u64,
        /// The number of bytes that are left.
        available: u64,
    },
    /// Bytes follow the end of a message where none are allowed.
    #[error("{count} unexpected bytes follow the end of the message")]
    Unasked {
        /// The number of bytes.
        count: u64,
    },
    /// The message has an unexpected operation.
    #[error("opCode must be {allowed}, got {value}")]
    OpCode {
        /// The operation in the header.
        value: i32,
        /// The operation that was expected.
        allowed: i32,
    },
    /// A compressed message contains an unexpected operation.
    #[error("originalOpcode must be {allowed}, got {value}")]
    OriginalOpCode {
        /// The operation in the message.
        value: i32,
        /// The operation that was expected.
        allowed: i32,
    },
    /// The compressor of a message, received or to be sent, is unknown or not compiled in.
    #[error("compressorId must be {allowed}, got {value}")]
    Compressor {
        /// The compressor's number, and its name if it has one.
        value: String,
        /// The available compressors.
        allowed: String,
    },
    /// The content of a compressed message is invalid for its compressor, or its length differs from the declared
    /// length.
    #[error("compressedMessage is not valid {compressor} data: {reason}")]
    Compressed {
        /// The compressor that the message names.
        compressor: &'static str,
        /// The reason.
        reason: PeerText,
    },
    /// The message cannot be compressed, for example at an invalid zlib level.
    #[error("the message cannot be compressed with {compressor}: {reason}")]
    Compression {
        /// The compressor that the caller chose.
        compressor: &'static str,
        /// The reason.
        reason: String,
    },
    /// The message answers another request.
    #[error("responseTo must be {allowed}, got {value}")]
    ResponseTo {
        /// The `responseTo` in the header.
        value: i32,
        /// The `requestID` of the request that is waiting for its reply.
        allowed: i32,
    },
    /// A required flag bit that is undefined, or not allowed in this message, is set.
    #[error("flagBits is {value:#010x}, but of the low 16 bits only {allowed:#06x} may be set")]
    FlagBits {
        /// All 32 bits.
        value: u32,
        /// The required bits that are allowed.
        allowed: u32,
    },
    /// A section has a payload type that does not exist.
    #[error("payloadType must be 0 or 1, got {value}")]
    PayloadType {
        /// The payload type in the section.
        value: u8,
    },
    /// A message has no body, or several.
    #[error("the message must have exactly 1 section of payload type 0, got {count}")]
    Bodies {
        /// The number of bodies.
        count: u64,
    },
    /// A reply has sections of payload type 1, which only requests may contain.
    #[error("the reply must have no section of payload type 1, got {count}")]
    Sequences {
        /// The number of sequences.
        count: u64,
    },
    /// The identifier of a document sequence is invalid.
    #[error("identifier must be {allowed}, got {value:?}")]
    Identifier {
        /// The identifier, with replacement characters where it is not UTF-8.
        value: PeerText,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A document is not framed as BSON: its length or its end is wrong.
    #[error("{field} is not a BSON document: {reason}")]
    Document {
        /// The document's place in the message.
        field: &'static str,
        /// The reason.
        reason: PeerText,
    },
    /// The checksum does not match the message.
    #[error("checksum must be {allowed:#010x}, got {value:#010x}")]
    Checksum {
        /// The checksum at the end of the message.
        value: u32,
        /// The CRC-32C of the bytes before it.
        allowed: u32,
    },
    /// A field of a reply is missing, or has the wrong type or value.
    #[error("the reply's {field} {}", requirement(value, allowed))]
    ReplyField {
        /// The field's name.
        field: &'static str,
        /// The field's value, or "missing".
        value: PeerText,
        /// What is allowed.
        allowed: &'static str,
    },
}

crate::pool::error::debug_as_sentence!(WireError);

/// Returns what the message of [`WireError::ReplyField`] says about the field.
fn requirement(value: &PeerText, allowed: &str) -> String {
    match value.as_str() {
        "missing" => "is missing".to_owned(),
        value => format!("must be {allowed}, got {value}"),
    }
}
