//! The documents in a server's replies.

use bson::{RawDocument, RawDocumentBuf};
use wharf::unstable::wire::reply::{Unsuccessful, check};
use wharf::unstable::wire::{HelloReply, ServerError};

use super::document;
use crate::Target;
use crate::seeds::replies;

const WORDS: &[&[u8]] = &[
    b"\x10ok\0\x01\0\0\0",
    b"\x10ok\0\0\0\0\0",
    b"\x01ok\0\0\0\0\0\0\0\xf0\x3f",
    b"\x12code\0\x01\0\0\0\0\0\0\0",
    b"\x02errmsg\0\x02\0\0\0a\0",
    b"\x04errorLabels\0\x05\0\0\0\0",
    b"\x10maxMessageSizeBytes\0\0\x04\0\0",
    b"\x07serviceId\0aaaaaaaaaaaa",
    b"\x03topologyVersion\0\x05\0\0\0\0",
    b"\x08helloOk\0\x01",
];

pub const HELLO: Target = Target { name: "hello", run: hello, seeds: replies, mend: document, words: WORDS };

fn hello(bytes: &[u8]) -> bool {
    let Ok(document) = RawDocumentBuf::from_bytes(bytes.to_vec()) else { return false };
    let Ok(reply) = HelloReply::read(document) else { return false };
    // Later code relies on limits that leave room for a command.
    for limit in [reply.max_message_size, reply.max_document_size] {
        assert!((1024..=i32::MAX as u32).contains(&limit));
    }
    assert!((1..=i32::MAX as u32).contains(&reply.max_write_batch_size));
    assert_eq!(reply.document.as_bytes(), bytes);
    let _ = reply.topology_version().map(|version| version.iter().count());
    if let Err(incompatible) = reply.check_compatible("host:1") {
        assert!(incompatible.to_string().contains("host:1"));
    }
    assert_eq!(reply.required_service_id().ok(), reply.service_id);
    true
}

pub const REPLY: Target = Target { name: "reply", run: reply, seeds: replies, mend: document, words: WORDS };

fn reply(bytes: &[u8]) -> bool {
    let Ok(document) = RawDocument::from_bytes(bytes) else { return false };
    match check(document) {
        Ok(()) => true,
        Err(Unsuccessful::Command(error)) => {
            let ServerError { code, ref message, ref labels, ref reply, .. } = *error;
            assert_eq!(reply.as_bytes(), bytes);
            let shown = error.to_string();
            assert!(shown.contains(&code.to_string()));
            // Whatever the reply, the error is shown on one line. It contains the server's message verbatim, unless
            // that message needs escapes.
            assert!(!shown.contains(char::is_control));
            let is_plain = |c: char| c == ' ' || (c.is_ascii_graphic() && c != '\\');
            assert!(!message.chars().all(is_plain) || shown.contains(message.as_str()));
            assert!(labels.names().all(|label| error.has_label(label)));
            true
        }
        Err(Unsuccessful::Wire(error)) => {
            assert!(error.to_string().starts_with("the reply's ok "));
            false
        }
    }
}
