//! The messages with which a client proves its identity (Authentication specification), without any I/O.
//!
//! - [`sasl`]: the commands `saslStart` and `saslContinue`, which carry the messages of most mechanisms, and their
//!   replies.
//! - [`scram`]: the SCRAM-SHA-1 and SCRAM-SHA-256 messages.
//! - [`plain`]: the PLAIN message.
//! - [`x509`]: the MONGODB-X509 command.
//! - `aws`: the MONGODB-AWS messages.
//! - `oidc`: the MONGODB-OIDC messages.

use bson::RawDocumentBuf;

#[cfg(feature = "aws")]
pub mod aws;
#[cfg(feature = "oidc")]
pub mod oidc;
pub mod plain;
pub mod sasl;
pub mod scram;
pub mod x509;

/// Returns an empty document with room for elements of `room` bytes. A document that will hold a secret must not grow,
/// because growing would leave behind a copy that is never wiped.
pub(crate) fn document_with_room(room: usize) -> RawDocumentBuf {
    const EMPTY: [u8; 5] = [5, 0, 0, 0, 0];
    let mut bytes = Vec::with_capacity(EMPTY.len() + room);
    bytes.extend_from_slice(&EMPTY);
    RawDocumentBuf::from_bytes(bytes).expect("BUG: an empty document is invalid")
}
