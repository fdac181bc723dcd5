//! The targets.

mod addresses;
mod authentication;
mod messages;
mod replies;
mod revocation;
mod uri;

use crate::Target;

/// All targets.
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

/// Leaves an input unchanged.
fn as_it_is(_: &mut Vec<u8>) {}

/// Corrects the length at the start of a message or a document.
#[allow(clippy::ptr_arg, reason = "`Target::mend` has one type")]
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
