//! The targets.

mod addresses;
mod authentication;
mod messages;
mod replies;
mod revocation;
mod uri;

use crate::Target;

/// All of them.
pub const TARGETS: [Target; 13] = [
    messages::HEADER,
    messages::OP_MSG,
    messages::COMPRESSED,
    messages::COMPRESS,
    replies::HELLO,
    replies::REPLY,
    authentication::SASL,
    authentication::SCRAM_FIRST,
    authentication::SCRAM_FINAL,
    addresses::ADDRESS,
    revocation::OCSP,
    revocation::CERTIFICATE,
    uri::URI,
];

/// Leaves an input as it is.
fn as_it_is(_: &mut Vec<u8>) {}

/// Puts the length before a message or a document right, and ends a document as documents end.
#[allow(clippy::ptr_arg, reason = "one type for all that mend")]
fn length_first(bytes: &mut Vec<u8>) {
    let length = bytes.len() as u32;
    if let Some(field) = bytes.first_chunk_mut::<4>() {
        *field = length.to_le_bytes();
    }
}

fn document(bytes: &mut Vec<u8>) {
    if bytes.last() != Some(&0) {
        bytes.push(0);
    }
    length_first(bytes);
}
