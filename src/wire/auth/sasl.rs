//! The commands that carry the messages of SASL mechanisms (Authentication specification, "SASL Mechanisms").

use bson::raw::cstr;
use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use crate::options::Mechanism;
use crate::wire::WireError;
use crate::wire::reply::whole_number;

/// The longest payload that a server's reply may have, in bytes. The longest that any mechanism needs is that of OIDC,
/// with the address of an identity provider.
pub const MAX_PAYLOAD: usize = 64 * 1024;

/// The command that begins a conversation.
///
/// `options` is the document of that name, if there is to be one.
#[must_use]
pub fn start(mechanism: Mechanism, payload: &[u8], options: Option<&RawDocument>) -> RawDocumentBuf {
    let mut command = rawdoc! { "saslStart": 1, "mechanism": mechanism.name() };
    command.append(cstr!("payload"), binary(payload));
    command.append(cstr!("autoAuthorize"), 1);
    if let Some(options) = options {
        command.append(cstr!("options"), options);
    }
    command
}

/// The command that continues the conversation that `reply` belongs to.
#[must_use]
pub fn advance(reply: &SaslReply<'_>, payload: &[u8]) -> RawDocumentBuf {
    let mut command = rawdoc! { "saslContinue": 1 };
    command.append(cstr!("conversationId"), reply.conversation_id);
    command.append(cstr!("payload"), binary(payload));
    command
}

fn binary(bytes: &[u8]) -> RawBsonRef<'_> {
    RawBsonRef::Binary(RawBinaryRef { subtype: BinarySubtype::Generic, bytes })
}

/// A server's reply to either command, if it was successful.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SaslReply<'a> {
    /// `conversationId`: what the next command must repeat.
    pub conversation_id: RawBsonRef<'a>,
    /// `payload`: the mechanism's message.
    pub payload: &'a [u8],
    /// `done`: whether the conversation has ended, as far as the server is concerned.
    pub done: bool,
}

impl<'a> SaslReply<'a> {
    /// Reads the reply of a successful command (see [`reply::check`](crate::wire::reply::check)), or the reply to a
    /// speculative one.
    ///
    /// # Errors
    ///
    /// [`WireError::ReplyField`] if a field is missing or not of its type.
    pub fn read(reply: &'a RawDocument) -> Result<Self, WireError> {
        whole_number(reply, "conversationId")?;
        let conversation_id = field(reply, "conversationId", "a whole number")?;
        let payload = match field(reply, "payload", "binary data")? {
            RawBsonRef::Binary(RawBinaryRef { bytes, .. }) => bytes,
            other => return Err(refuse("payload", format!("{:?}", other.element_type()), "binary data")),
        };
        if payload.len() > MAX_PAYLOAD {
            return Err(refuse("payload", format!("{} bytes", payload.len()), "at most 65536 bytes"));
        }
        match field(reply, "done", "a boolean")? {
            RawBsonRef::Boolean(done) => Ok(Self { conversation_id, payload, done }),
            other => Err(refuse("done", format!("{:?}", other.element_type()), "a boolean")),
        }
    }
}

fn field<'a>(reply: &'a RawDocument, field: &'static str, allowed: &'static str) -> Result<RawBsonRef<'a>, WireError> {
    match reply.get(field) {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(refuse(field, "missing".to_owned(), allowed)),
        Err(error) => Err(refuse(field, error.to_string(), allowed)),
    }
}

fn refuse(field: &'static str, value: String, allowed: &'static str) -> WireError {
    WireError::ReplyField { field, value, allowed }
}
