//! The commands that carry the messages of SASL mechanisms (Authentication specification, "SASL Mechanisms").

use std::fmt;

use bson::raw::cstr;
use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::document_with_room;
use crate::endpoint::options::Mechanism;
use crate::endpoint::wire::WireError;
use crate::endpoint::wire::reply::whole_number;

/// The maximum length of the payload in a server's reply, in bytes. OIDC needs the longest payload, for the address of
/// an identity provider.
pub const MAX_PAYLOAD: usize = 64 * 1024;

/// An upper bound, in bytes, on the length of all elements of a command except its payload and its options. It includes
/// `conversationId`, and a `db` of ordinary length.
const AROUND: usize = 256;

/// Returns the command that begins a conversation.
///
/// If `options` is given, the command contains it under the same name.
#[must_use]
pub fn start(mechanism: Mechanism, payload: &[u8], options: Option<&RawDocument>) -> RawDocumentBuf {
    let mut command =
        document_with_room(AROUND + payload.len() + options.map_or(0, |options| options.as_bytes().len()));
    command.append(cstr!("saslStart"), 1);
    command.append(cstr!("mechanism"), mechanism.name());
    command.append(cstr!("payload"), binary(payload));
    command.append(cstr!("autoAuthorize"), 1);
    if let Some(options) = options {
        command.append(cstr!("options"), options);
    }
    command
}

/// Returns the command that continues a conversation.
///
/// `conversation_id` comes from the server's first reply ([`SaslReply::conversation_id`]).
#[must_use]
pub fn advance(conversation_id: &RawBson, payload: &[u8]) -> RawDocumentBuf {
    let mut command = document_with_room(AROUND + payload.len());
    command.append(cstr!("saslContinue"), 1);
    command.append(cstr!("conversationId"), conversation_id.clone());
    command.append(cstr!("payload"), binary(payload));
    command
}

fn binary(bytes: &[u8]) -> RawBsonRef<'_> {
    RawBsonRef::Binary(RawBinaryRef { subtype: BinarySubtype::Generic, bytes })
}

/// A server's successful reply to either command. Debug output omits the mechanism's message.
#[derive(Clone, PartialEq)]
pub struct SaslReply<'a> {
    /// `conversationId`: the value that the next commands must repeat. The server chooses its numeric type.
    pub conversation_id: RawBson,
    /// `payload`: the mechanism's message.
    pub payload: &'a [u8],
    /// `done`: whether the server considers the conversation complete.
    pub done: bool,
}

impl fmt::Debug for SaslReply<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaslReply")
            .field("conversation_id", &self.conversation_id)
            .field("payload_bytes", &self.payload.len())
            .field("done", &self.done)
            .finish()
    }
}

impl<'a> SaslReply<'a> {
    /// Reads the reply to a successful command (see [`reply::check`](crate::endpoint::wire::reply::check)), or the
    /// reply to a speculative command.
    ///
    /// # Errors
    ///
    /// Returns [`WireError::ReplyField`] if a field is missing or has the wrong type.
    pub fn read(reply: &'a RawDocument) -> Result<Self, WireError> {
        whole_number(reply, "conversationId")?;
        let conversation_id = field(reply, "conversationId", "a whole number")?.into();
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

    /// Refuses a reply that ends the conversation too early, or does not end it when it should.
    ///
    /// # Errors
    ///
    /// Returns [`WireError::ReplyField`] if `done` differs from what the mechanism expects.
    pub fn require_done(&self, done: bool) -> Result<(), WireError> {
        let allowed = if done { "true after the last message" } else { "false before the last message" };
        match self.done == done {
            true => Ok(()),
            false => Err(refuse("done", self.done.to_string(), allowed)),
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
    WireError::ReplyField { field, value: value.into(), allowed }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn reply() -> RawDocumentBuf {
        let mut reply = rawdoc! { "conversationId": 1, "done": false };
        reply.append(cstr!("payload"), binary(b"hello"));
        reply
    }

    #[test]
    fn commands_match_the_specification() {
        let command = start(Mechanism::ScramSha256, b"n,,", Some(&rawdoc! { "skipEmptyExchange": true }));
        assert_eq!(command.get_i32("saslStart").unwrap(), 1);
        assert_eq!(command.get_str("mechanism").unwrap(), "SCRAM-SHA-256");
        assert_eq!(command.get_binary("payload").unwrap().bytes, b"n,,");
        assert!(command.get_document("options").unwrap().get_bool("skipEmptyExchange").unwrap());
        assert_eq!(start(Mechanism::Plain, b"", None).get("options").unwrap(), None);

        let document = reply();
        let command = advance(&SaslReply::read(&document).unwrap().conversation_id, b"");
        assert_eq!(command.get_i32("saslContinue").unwrap(), 1);
        assert_eq!(command.get_i32("conversationId").unwrap(), 1);
        assert_eq!(command.get_binary("payload").unwrap().bytes, b"");
    }

    #[test]
    fn reply_is_read() {
        let document = reply();
        let read = SaslReply::read(&document).unwrap();
        assert_eq!((read.conversation_id, read.payload, read.done), (RawBson::Int32(1), &b"hello"[..], false));
        let shown = format!("{:?}", SaslReply::read(&document).unwrap());
        assert_eq!(shown, "SaslReply { conversation_id: Int32(1), payload_bytes: 5, done: false }");
    }

    #[test]
    fn reply_with_a_missing_or_invalid_field_is_refused() {
        let with = |build: &dyn Fn(&mut RawDocumentBuf)| {
            let mut document = RawDocumentBuf::new();
            build(&mut document);
            SaslReply::read(&document).unwrap_err().to_string()
        };
        assert_eq!(with(&|_| {}), "the reply's conversationId is missing");
        let no_payload = with(&|document| document.append(cstr!("conversationId"), 1));
        assert_eq!(no_payload, "the reply's payload is missing");
        let no_done = with(&|document| {
            document.append(cstr!("conversationId"), 1);
            document.append(cstr!("payload"), binary(b""));
        });
        assert_eq!(no_done, "the reply's done is missing");
        let text = with(&|document| {
            document.append(cstr!("conversationId"), 1);
            document.append(cstr!("payload"), "text");
        });
        assert_eq!(text, "the reply's payload must be binary data, got String");
        let long = with(&|document| {
            document.append(cstr!("conversationId"), 1);
            document.append(cstr!("payload"), binary(&[0; MAX_PAYLOAD + 1]));
        });
        assert_eq!(long, "the reply's payload must be at most 65536 bytes, got 65537 bytes");
    }
}
