//! MongoDB's wire protocol without any I/O: bytes in, bytes out.
//!
//! Everything here is a pure function of its arguments, so that it can be fuzzed, and used by clients and test servers
//! alike. Documents stay raw BSON: encoding copies their bytes behind a header into a buffer that the caller reuses, and
//! decoding borrows them from the buffer they were received in.
//!
//! - [`header`]: the sixteen bytes before every message. It is what tells `OP_MSG` from any other operation, so
//!   another one is a sibling of [`op_msg`] that starts from the same [`Header`].
//! - [`op_msg`]: requests and replies (OP_MSG specification).
//! - [`compressed`]: the envelope of a compressed message (OP_COMPRESSED specification).
//! - [`reply`]: what a command's reply says about its success.
//! - [`server_api`]: what every command carries if a server API is declared.
//! - [`hello`] and [`metadata`]: the first command on every connection, and its reply (MongoDB Handshake
//!   specification).
//! - [`ocsp`]: what is stapled to a TLS handshake about the revocation of the server's certificate (OCSP Support
//!   specification).
//! - [`auth`]: what is said to prove who the client is (Authentication specification).
//!
//! Nothing here panics, whatever bytes it is given: a peer's mistakes are [`WireError`]s.

use thiserror::Error;

pub mod auth;
pub mod compressed;
mod element;
pub mod header;
pub mod hello;
pub mod metadata;
pub mod ocsp;
pub mod op_msg;
pub mod reply;
pub mod server_api;

#[doc(inline)]
pub use header::Header;
#[doc(inline)]
pub use hello::HelloReply;
#[doc(inline)]
pub use op_msg::{Flags, Limits, Message, Outgoing};
#[doc(inline)]
pub use reply::ServerError;

#[doc(inline)]
pub use crate::printable::PeerText;

/// The `maxMessageSizeBytes` of every server there is, in bytes, and of one that does not tell its own.
pub const DEFAULT_MAX_MESSAGE_SIZE: u32 = 48_000_000;

/// Bytes that are no message of the wire protocol, or a message that the limits forbid to send.
///
/// After one of these about a received message nothing more can be read from the connection.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// A length is impossible where it stands, or larger than the limit.
    #[error("{field} is {value} bytes, but must be {least} to {most}")]
    Length {
        /// The field that holds the length.
        field: &'static str,
        /// What it says, in bytes.
        value: i64,
        /// The least length allowed, in bytes.
        least: u64,
        /// The greatest length allowed, in bytes: by the negotiated limits, or by the room that is left in the message.
        most: u64,
    },
    /// The bytes end too early.
    #[error("{field} needs {needed} bytes, but only {available} are there")]
    Truncated {
        /// The field that is cut off.
        field: &'static str,
        /// The bytes that it takes.
        needed: u64,
        /// The bytes that are left.
        available: u64,
    },
    /// Bytes follow the end of a message where none may.
    #[error("{count} bytes follow the end of the message, but the sender has no turn to send any")]
    Unasked {
        /// How many bytes there are.
        count: u64,
    },
    /// The message is of another operation.
    #[error("opCode is {value}, but must be {allowed}")]
    OpCode {
        /// What the header says.
        value: i32,
        /// The operation that was expected.
        allowed: i32,
    },
    /// A compressed message holds another operation.
    #[error("originalOpcode is {value}, but must be {allowed}")]
    OriginalOpCode {
        /// What the message says.
        value: i32,
        /// The operation that was expected.
        allowed: i32,
    },
    /// A message is compressed, or to be compressed, by something unknown or not compiled in.
    #[error("compressorId is {value}, but must be {allowed}")]
    Compressor {
        /// The number, and the compressor's name if it has one.
        value: String,
        /// The compressors that there are.
        allowed: String,
    },
    /// The content of a compressed message is not what its compressor makes, or not as long as the message says.
    #[error("compressedMessage is no message compressed with {compressor}: {reason}")]
    Compressed {
        /// The compressor that the message names.
        compressor: &'static str,
        /// What is wrong.
        reason: PeerText,
    },
    /// The message answers another request.
    #[error("responseTo is {value}, but must be {allowed}")]
    ResponseTo {
        /// What the header says.
        value: i32,
        /// The `requestID` of the request that waits for its reply.
        allowed: i32,
    },
    /// A required flag bit is set that is undefined, or not allowed in this message.
    #[error("flagBits is {value:#010x}, but of the low 16 bits only {allowed:#06x} may be set")]
    FlagBits {
        /// All 32 bits.
        value: u32,
        /// The required bits that are allowed.
        allowed: u32,
    },
    /// A section has a payload type that does not exist.
    #[error("payloadType is {value}, but must be 0 or 1")]
    PayloadType {
        /// What the section says.
        value: u8,
    },
    /// A message has no body, or several.
    #[error("the message has {count} sections of payload type 0, but must have exactly 1")]
    Bodies {
        /// How many there are.
        count: u64,
    },
    /// A reply has sections of payload type 1, which only requests have.
    #[error("the reply has {count} sections of payload type 1, but must have none")]
    Sequences {
        /// How many there are.
        count: u64,
    },
    /// The identifier of a document sequence is not what it must be.
    #[error("identifier is {value:?}, but must be {allowed}")]
    Identifier {
        /// The identifier, with replacement characters for what is not UTF-8.
        value: PeerText,
        /// What it must be.
        allowed: &'static str,
    },
    /// A document is not framed as BSON: its length or its end is wrong.
    #[error("{field} is no BSON document: {reason}")]
    Document {
        /// Where the document stands.
        field: &'static str,
        /// What is wrong with it.
        reason: PeerText,
    },
    /// The checksum does not match the message.
    #[error("checksum is {value:#010x}, but must be {allowed:#010x}")]
    Checksum {
        /// The checksum that the message ends with.
        value: u32,
        /// The CRC-32C of the bytes before it.
        allowed: u32,
    },
    /// A field of a reply is missing, or not of its type.
    #[error("the reply's {field} is {value}, but must be {allowed}")]
    ReplyField {
        /// The field's name.
        field: &'static str,
        /// Its value, or "missing".
        value: PeerText,
        /// What it must be.
        allowed: &'static str,
    },
}

crate::error::debug_as_sentence!(WireError);
