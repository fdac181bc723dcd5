//! The first command on every connection, and the server's reply to it (MongoDB Handshake).

use std::fmt;

use bson::raw::cstr;
use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf};
use thiserror::Error;
use zeroize::Zeroize;

use super::auth::document_with_room;
use super::reply::{text, whole_number};
use super::{DEFAULT_MAX_MESSAGE_SIZE, PeerText, WireError};
use crate::endpoint::options::Compressor;
use crate::pool::service_id::ServiceId;
use crate::text::printable::PrintableError;

/// The oldest wire version that wharf supports: MongoDB 4.2's.
pub const MIN_WIRE_VERSION: i32 = 8;

/// The newest wire version that wharf supports: MongoDB 8.0's.
pub const MAX_WIRE_VERSION: i32 = 25;

/// The field in hello, and in its reply, that carries the first authentication message.
const SPECULATIVE_AUTHENTICATE: &str = "speculativeAuthenticate";

/// The contents of a client's first command. Debug output omits the speculative command, which may contain a token.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The metadata document ([`ClientMetadata::to_document`](super::metadata::ClientMetadata::to_document)).
    pub client: &'a RawDocument,
    /// Whether a server API is declared. The elements that declare it are not part of this command:
    /// [`server_api::elements`](super::server_api::elements) returns them, as for every other command.
    pub server_api: bool,
    /// Whether the connection is in load-balanced mode.
    pub load_balanced: bool,
    /// The compressors to offer, most preferred first.
    pub compressors: &'a [Compressor],
    /// `saslSupportedMechs`: `database.username` of the user whose mechanism must be negotiated.
    pub supported_mechanisms_of: Option<&'a str>,
    /// `speculativeAuthenticate`: the first authentication command, with its database in `db`.
    pub speculative_authenticate: Option<&'a RawDocument>,
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, server_api, load_balanced, compressors, supported_mechanisms_of, speculative_authenticate } =
            self;
        f.debug_struct("Request")
            .field("client", client)
            .field("server_api", server_api)
            .field("load_balanced", load_balanced)
            .field("compressors", compressors)
            .field("supported_mechanisms_of", supported_mechanisms_of)
            .field("speculative_authenticate", &speculative_authenticate.map(|_| "***"))
            .finish()
    }
}

impl Request<'_> {
    /// Returns the handshake command, to be run on the `admin` database.
    ///
    /// With a server API or in load-balanced mode, which only newer servers support, it is `hello`. Otherwise it is the
    /// legacy hello, `isMaster`, with `helloOk`, which asks the server whether later commands may be `hello`. Both are
    /// sent as `OP_MSG`.
    #[must_use]
    pub fn command(&self) -> RawDocumentBuf {
        let speculated = self.speculative_authenticate.map_or(0, |first| first.as_bytes().len());
        let user = self.supported_mechanisms_of.map_or(0, str::len);
        let mut command = document_with_room(512 + self.client.as_bytes().len() + user + speculated);
        if self.server_api || self.load_balanced {
            command.append(cstr!("hello"), 1);
        } else {
            command.append(cstr!("isMaster"), 1);
            command.append(cstr!("helloOk"), true);
        }
        if self.load_balanced {
            command.append(cstr!("loadBalanced"), true);
        }
        // The version of the client backpressure specification, as a string.
        command.append(cstr!("backpressure"), "2");
        command.append(cstr!("client"), self.client);
        let mut compression = RawArrayBuf::new();
        for compressor in self.compressors {
            compression.push(compressor.name());
        }
        command.append(cstr!("compression"), compression);
        if let Some(user) = self.supported_mechanisms_of {
            command.append(cstr!("saslSupportedMechs"), user);
        }
        if let Some(first) = self.speculative_authenticate {
            command.append(cstr!("speculativeAuthenticate"), first);
        }
        command
    }
}

/// A server's reply to the handshake: the limits and the identity of this connection.
///
/// Debug output omits the reply to `speculativeAuthenticate`, because it is part of a proof of identity.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct HelloReply {
    /// `minWireVersion`; 0 if it is missing.
    pub min_wire_version: i32,
    /// `maxWireVersion`; 0 if it is missing.
    pub max_wire_version: i32,
    /// `maxMessageSizeBytes`: the longest request, in bytes. By default 48,000,000.
    ///
    /// The specification lets the server set this limit ("MongoDB Handshake"). wharf accepts values from 1,024 to
    /// 2,147,483,647, and applies the limit once the connection is established. Until then, no message may be longer than 1
    /// MiB.
    ///
    /// Replies, compressed or not, may be at most 48,000,000 bytes long, or less if the server sets a lower limit. No
    /// server sends longer replies, and the maximum bounds the memory of a connection. Memory for a reply is allocated
    /// as its bytes arrive, not according to its declared length. For a compressed reply, the declared uncompressed
    /// length is allocated, if the compressed bytes can yield that much.
    pub max_message_size: u32,
    /// `maxBsonObjectSize`: the largest document, in bytes. By default 16,777,216.
    pub max_document_size: u32,
    /// `maxWriteBatchSize`: the maximum number of writes in one command. By default 100,000.
    pub max_write_batch_size: u32,
    /// `logicalSessionTimeoutMinutes`; `None` if the server does not support sessions.
    pub logical_session_timeout_minutes: Option<i64>,
    /// `helloOk`: whether later commands may be `hello` instead of the legacy hello.
    pub hello_ok: bool,
    /// The part of the server's role that stays the same while the connection is open.
    pub(crate) role: Role,
    /// `connectionId`: the server's number for the connection.
    pub server_connection_id: Option<i64>,
    /// `serviceId`: in load-balanced mode, the service behind the load balancer.
    pub service_id: Option<ServiceId>,
    /// `compression`: the names of the offered compressors that the server also supports.
    pub compressors: Vec<String>,
    /// `saslSupportedMechs`: the mechanisms of the user named in the request, including any that wharf does not know;
    /// `None` if the user does not exist, or if the request named no user.
    pub sasl_supported_mechanisms: Option<Vec<String>>,
    /// The whole reply. The reply of an established connection lacks `speculativeAuthenticate`, which was needed only
    /// to authenticate. A pooled connection's reply takes at most 16 KiB: some elements of a longer reply are left out.
    pub document: RawDocumentBuf,
}

/// The kind of server at the other end of a connection. It changes only when the server restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A server that is not part of a replica set.
    Standalone,
    /// A member of a replica set, even before the set is initiated.
    Member,
    /// A mongos.
    Mongos,
}

impl Role {
    /// Returns the role of a server that sent this hello reply (SDAM, "Parsing a hello or legacy hello response").
    pub(crate) fn of_reply(reply: &RawDocument) -> Self {
        if matches!(reply.get_str("msg"), Ok("isdbgrid")) {
            Self::Mongos
        } else if matches!(reply.get("isreplicaset"), Ok(Some(RawBsonRef::Boolean(true))))
            || text(reply, "setName").is_some()
        {
            Self::Member
        } else {
            Self::Standalone
        }
    }
}

impl HelloReply {
    /// Reads the reply to a successful handshake (see `wire::reply::check`).
    ///
    /// # Errors
    ///
    /// Returns an error if a field has the wrong type or is out of range.
    pub fn read(document: RawDocumentBuf) -> Result<Self, WireError> {
        let reply: &RawDocument = &document;
        let version = |field| match whole_number(reply, field)? {
            None => Ok(0),
            Some(number) => i32::try_from(number).map_err(|_| out_of_range(field, number, "a 32-bit integer")),
        };
        let limit = |field, default: u32, least: u32, allowed| match whole_number(reply, field)? {
            None => Ok(default),
            Some(number) => match u32::try_from(number) {
                Ok(limit) if limit >= least && limit <= i32::MAX as u32 => Ok(limit),
                _ => Err(out_of_range(field, number, allowed)),
            },
        };
        Ok(Self {
            min_wire_version: version("minWireVersion")?,
            max_wire_version: version("maxWireVersion")?,
            // The minimum leaves room for everything in a message besides the command's own content, so the limit
            // cannot rule out every command.
            max_message_size: limit("maxMessageSizeBytes", DEFAULT_MAX_MESSAGE_SIZE, 1024, "1024 to 2147483647")?,
            max_document_size: limit("maxBsonObjectSize", 16 * 1024 * 1024, 1024, "1024 to 2147483647")?,
            max_write_batch_size: limit("maxWriteBatchSize", 100_000, 1, "1 to 2147483647")?,
            logical_session_timeout_minutes: whole_number(reply, "logicalSessionTimeoutMinutes").ok().flatten(),
            compressors: names(reply, "compression").unwrap_or_default(),
            sasl_supported_mechanisms: names(reply, "saslSupportedMechs"),
            hello_ok: matches!(reply.get("helloOk"), Ok(Some(RawBsonRef::Boolean(true)))),
            role: Role::of_reply(reply),
            server_connection_id: whole_number(reply, "connectionId")?,
            service_id: service_id(reply)?,
            document,
        })
    }

    /// Returns the compressor to use: the first of `offered` that the server also supports (OP_COMPRESSED
    /// specification).
    #[must_use]
    pub fn agreed_compressor(&self, offered: &[Compressor]) -> Option<Compressor> {
        offered.iter().copied().find(|ours| self.compressors.iter().any(|theirs| theirs == ours.name()))
    }

    /// Returns `speculativeAuthenticate`: the reply to that command, if the server ran it.
    #[must_use]
    pub fn speculative_authenticate(&self) -> Option<&RawDocument> {
        self.document.get(SPECULATIVE_AUTHENTICATE).ok().flatten().and_then(RawBsonRef::as_document)
    }

    /// Removes the reply to the speculative command, which may be a secret part of a conversation, and wipes its
    /// memory.
    pub(crate) fn forget_speculation(&mut self) {
        if matches!(self.document.get(SPECULATIVE_AUTHENTICATE), Ok(None)) {
            return;
        }
        let mut rest = RawDocumentBuf::new();
        // Elements after an unreadable element cannot be separated from it, and are dropped with it.
        for (key, value) in
            self.document.iter().map_while(Result::ok).filter(|(key, _)| key.as_str() != SPECULATIVE_AUTHENTICATE)
        {
            rest.append(key, value);
        }
        std::mem::replace(&mut self.document, rest).into_bytes().zeroize();
    }

    /// Leaves out elements of an unusually long document, so that an idle connection keeps at most 16 KiB of it. Short
    /// elements are kept before long ones, in the server's order.
    pub(crate) fn shrink(&mut self) {
        if self.document.as_bytes().len() <= KEPT_DOCUMENT {
            return;
        }
        let mut kept = RawDocumentBuf::new();
        for limit in [KEPT_ELEMENT, KEPT_DOCUMENT] {
            for (key, value) in self.document.iter().map_while(Result::ok) {
                let mut element = RawDocumentBuf::new();
                element.append(key, value);
                let length = element.as_bytes().len();
                let fits = length <= limit && kept.as_bytes().len() + length <= KEPT_DOCUMENT;
                if fits && (limit == KEPT_ELEMENT || length > KEPT_ELEMENT) {
                    kept.append(key, value);
                }
            }
        }
        self.document = RawDocumentBuf::from_bytes(kept.into_bytes().into_boxed_slice().into_vec())
            .expect("BUG: a document that was just built is invalid");
    }

    /// Returns whether the server is an arbiter (SDAM's "RSArbiter"), which has no users.
    #[must_use]
    pub fn is_arbiter(&self) -> bool {
        let is_true = |field| matches!(self.document.get(field), Ok(Some(RawBsonRef::Boolean(true))));
        let is_member = matches!(self.document.get("setName"), Ok(Some(RawBsonRef::String(_))));
        let bears_data = ["isWritablePrimary", "ismaster", "secondary"].into_iter().any(is_true);
        is_member && is_true("arbiterOnly") && !bears_data
    }

    /// Returns `topologyVersion`: the version of the server's view of its topology.
    #[must_use]
    pub fn topology_version(&self) -> Option<&RawDocument> {
        self.document.get("topologyVersion").ok().flatten().and_then(RawBsonRef::as_document)
    }

    /// Checks that the server supports a wire version that wharf supports (SDAM, "Checking wire protocol
    /// compatibility").
    ///
    /// # Errors
    ///
    /// Returns an error with the specification's message.
    pub fn check_compatible(&self, address: &str) -> Result<(), IncompatibleServerError> {
        check_wire_versions(self.min_wire_version, self.max_wire_version, address)
    }

    /// Returns the service behind the load balancer.
    ///
    /// # Errors
    ///
    /// Returns an error if the reply does not name a service.
    pub fn required_service_id(&self) -> Result<ServiceId, IncompatibleServerError> {
        self.service_id.ok_or(IncompatibleServerError::NoLoadBalancer)
    }
}

impl fmt::Debug for HelloReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // This is destructured so that a new field causes a compile error until it is handled here.
        let Self {
            min_wire_version,
            max_wire_version,
            max_message_size,
            max_document_size,
            max_write_batch_size,
            logical_session_timeout_minutes,
            hello_ok,
            server_connection_id,
            service_id,
            compressors,
            sasl_supported_mechanisms,
            document,
            // The document already shows the role.
            role: _,
        } = self;
        f.debug_struct("HelloReply")
            .field("min_wire_version", min_wire_version)
            .field("max_wire_version", max_wire_version)
            .field("max_message_size", max_message_size)
            .field("max_document_size", max_document_size)
            .field("max_write_batch_size", max_write_batch_size)
            .field("logical_session_timeout_minutes", logical_session_timeout_minutes)
            .field("hello_ok", hello_ok)
            .field("server_connection_id", server_connection_id)
            .field("service_id", service_id)
            .field("compressors", compressors)
            .field("sasl_supported_mechanisms", sasl_supported_mechanisms)
            .field("document", &format_args!("{}", PrintableError(Shown(document))))
            .finish()
    }
}

/// The elements of a hello reply that may be printed.
struct Shown<'a>(&'a RawDocument);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let elements = self.0.into_iter().flatten().map(|(name, value)| (name.as_str(), value));
        f.debug_map().entries(elements.filter(|(name, _)| *name != SPECULATIVE_AUTHENTICATE)).finish()
    }
}

/// Checks that a range of wire versions overlaps the range that wharf supports.
pub(crate) fn check_wire_versions(least: i32, most: i32, address: &str) -> Result<(), IncompatibleServerError> {
    let address = || address.to_owned();
    if least > MAX_WIRE_VERSION {
        return Err(IncompatibleServerError::TooNew { address: address(), version: least });
    }
    if most < MIN_WIRE_VERSION {
        return Err(IncompatibleServerError::TooOld { address: address(), version: most });
    }
    Ok(())
}

/// The maximum length, in bytes, of the hello document that an idle connection keeps. The document of a large replica
/// set is about 5 KiB long.
const KEPT_DOCUMENT: usize = 16 * 1024;

/// The maximum length, in bytes, of an element that is considered short. Short elements are kept before long ones.
const KEPT_ELEMENT: usize = 256;

/// The maximum number of compressor or mechanism names that are read, and the maximum length of each, in bytes. Servers
/// support a handful of each. Without these limits, many short names could take ten times as much memory as the hello
/// that contains them.
const MOST_NAMES: usize = 32;
const LONGEST_NAME: usize = 64;

/// Returns the strings of an array, ignoring other elements. Returns `None` if there is no array.
fn names(reply: &RawDocument, field: &str) -> Option<Vec<String>> {
    let array = reply.get(field).ok().flatten()?.as_array()?;
    let names = array.into_iter().flatten().filter_map(|name| name.as_str());
    Some(names.filter(|name| name.len() <= LONGEST_NAME).take(MOST_NAMES).map(str::to_owned).collect())
}

fn service_id(reply: &RawDocument) -> Result<Option<ServiceId>, WireError> {
    let refuse =
        |value: String| Err(WireError::ReplyField { field: "serviceId", value: value.into(), allowed: "an ObjectId" });
    match reply.get("serviceId") {
        Ok(None | Some(RawBsonRef::Null)) => Ok(None),
        Ok(Some(RawBsonRef::ObjectId(id))) => Ok(Some(id.into())),
        Ok(Some(other)) => refuse(format!("{:?}", other.element_type())),
        Err(error) => refuse(error.to_string()),
    }
}

pub(crate) fn out_of_range(field: &'static str, value: i64, allowed: &'static str) -> WireError {
    WireError::ReplyField { field, value: PeerText::of(value), allowed }
}

/// The server does not work with this version of wharf, or with the mode that the options require. Retrying does not
/// help.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IncompatibleServerError {
    /// The server supports only wire versions that are too new for wharf.
    #[error(
        "Server at {address} requires wire version {version}, but this version of wharf only supports up to \
         {MAX_WIRE_VERSION}."
    )]
    #[non_exhaustive]
    TooNew {
        /// The server's address.
        address: String,
        /// The server's `minWireVersion`.
        version: i32,
    },
    /// The server supports only wire versions that wharf has dropped.
    #[error(
        "Server at {address} reports wire version {version}, but this version of wharf requires at least \
         {MIN_WIRE_VERSION} (MongoDB 4.2)."
    )]
    #[non_exhaustive]
    TooOld {
        /// The server's address.
        address: String,
        /// The server's `maxWireVersion`.
        version: i32,
    },
    /// The options require load-balanced mode, but the server is not behind a load balancer that supports it: its hello
    /// reply has no `serviceId`.
    #[error("Driver attempted to initialize in load balancing mode, but the server does not support this mode.")]
    NoLoadBalancer,
}

crate::pool::error::debug_as_sentence!(IncompatibleServerError);

#[cfg(test)]
mod tests {
    use bson::oid::ObjectId;
    use bson::{Document, doc, rawdoc};

    use super::*;

    fn plain(client: &RawDocument) -> Request<'_> {
        Request {
            client,
            server_api: false,
            load_balanced: false,
            compressors: &[],
            supported_mechanisms_of: None,
            speculative_authenticate: None,
        }
    }

    fn document(request: Request<'_>) -> Document {
        Document::try_from(request.command()).unwrap()
    }

    #[test]
    fn first_command_is_the_legacy_hello_with_the_handshake_fields() {
        let client = rawdoc! { "a": 1 };
        let expected = doc! {
            "isMaster": 1, "helloOk": true, "backpressure": "2", "client": { "a": 1 }, "compression": [],
        };
        assert_eq!(document(plain(&client)), expected);
    }

    #[test]
    fn first_command_is_hello_in_load_balanced_mode_and_with_a_server_api() {
        let expected = doc! { "hello": 1, "loadBalanced": true, "backpressure": "2", "client": {}, "compression": [] };
        assert_eq!(document(Request { load_balanced: true, ..plain(&rawdoc! {}) }), expected);
        let expected = doc! { "hello": 1, "backpressure": "2", "client": {}, "compression": [] };
        assert_eq!(document(Request { server_api: true, ..plain(&rawdoc! {}) }), expected);
    }

    #[test]
    fn compressors_and_authentication_are_offered_if_given() {
        let (client, first) = (rawdoc! {}, rawdoc! { "saslStart": 1 });
        let request = Request {
            compressors: &[Compressor::Zstd, Compressor::Zlib { level: 3 }],
            supported_mechanisms_of: Some("admin.ada"),
            speculative_authenticate: Some(&first),
            ..plain(&client)
        };
        let expected = doc! {
            "isMaster": 1, "helloOk": true, "backpressure": "2", "client": {}, "compression": ["zstd", "zlib"],
            "saslSupportedMechs": "admin.ada", "speculativeAuthenticate": { "saslStart": 1 },
        };
        assert_eq!(document(request), expected);
    }

    #[test]
    fn agreed_compressor_is_the_first_offered_one_that_the_server_has() {
        let reply = HelloReply::read(rawdoc! { "compression": ["snappy", 7, "zlib", "new"] }).unwrap();
        let zlib = Compressor::Zlib { level: 3 };
        assert_eq!(reply.agreed_compressor(&[Compressor::Zstd, zlib, Compressor::Snappy]), Some(zlib));
        assert_eq!(reply.agreed_compressor(&[Compressor::Snappy, zlib]), Some(Compressor::Snappy));
        assert_eq!(reply.agreed_compressor(&[Compressor::Zstd]), None);
        assert_eq!(HelloReply::read(rawdoc! {}).unwrap().agreed_compressor(&[zlib]), None);
    }

    #[test]
    fn unknown_mechanisms_are_kept() {
        let mechanisms = |document| HelloReply::read(document).unwrap().sasl_supported_mechanisms;
        let unknown = rawdoc! { "saslSupportedMechs": ["NEW", 1, "SCRAM-SHA-1"] };
        assert_eq!(mechanisms(unknown), Some(vec!["NEW".to_owned(), "SCRAM-SHA-1".to_owned()]));
        assert_eq!(mechanisms(rawdoc! { "saslSupportedMechs": [] }), Some(vec![]));
        assert_eq!(mechanisms(rawdoc! { "saslSupportedMechs": "SCRAM-SHA-1" }), None);
        assert_eq!(mechanisms(rawdoc! {}), None);
    }

    #[test]
    fn speculative_authentication_is_not_printed_and_can_be_removed() {
        let token = rawdoc! { "jwt": "pencil" };
        let request = Request { speculative_authenticate: Some(&token), ..plain(&token) };
        let shown = format!("{:?}", Request { client: &rawdoc! {}, ..request });
        assert!(shown.contains("***") && !shown.contains("70656e63696c"), "{shown}");

        let fields = |reply: &HelloReply| Document::try_from(reply.document.clone()).unwrap();
        let mut reply = HelloReply::read(rawdoc! { "a": 1, "speculativeAuthenticate": token, "ok": 1.0 }).unwrap();
        assert!(reply.speculative_authenticate().is_some());
        reply.forget_speculation();
        assert_eq!(fields(&reply), doc! { "a": 1, "ok": 1.0 });
        reply.forget_speculation();
        assert_eq!(fields(&reply), doc! { "a": 1, "ok": 1.0 });
    }

    #[test]
    fn arbiter_is_recognised_by_its_flag_within_a_set() {
        let is_arbiter = |document| HelloReply::read(document).unwrap().is_arbiter();
        assert!(is_arbiter(rawdoc! { "setName": "rs", "arbiterOnly": true }));
        assert!(!is_arbiter(rawdoc! { "arbiterOnly": true }));
        assert!(!is_arbiter(rawdoc! { "setName": "rs" }));
        assert!(!is_arbiter(rawdoc! { "setName": "rs", "arbiterOnly": true, "secondary": true }));
    }

    #[test]
    fn reply_is_read_with_any_numeric_types() {
        let id = ObjectId::new();
        let document = rawdoc! {
            "minWireVersion": 0_i64, "maxWireVersion": 17.0, "maxMessageSizeBytes": 1_000_000, "maxBsonObjectSize": 2_000,
            "maxWriteBatchSize": 10, "helloOk": true, "connectionId": 5.0, "serviceId": id, "logicalSessionTimeoutMinutes": 30,
            "topologyVersion": { "counter": 1_i64 },
        };
        let reply = HelloReply::read(document).unwrap();
        assert_eq!((reply.min_wire_version, reply.max_wire_version), (0, 17));
        assert_eq!(
            (reply.max_message_size, reply.max_document_size, reply.max_write_batch_size),
            (1_000_000, 2_000, 10)
        );
        assert_eq!((reply.hello_ok, reply.server_connection_id, reply.service_id), (true, Some(5), Some(id.into())));
        assert_eq!(reply.logical_session_timeout_minutes, Some(30));
        assert_eq!(reply.topology_version().unwrap().get_i64("counter").ok(), Some(1));
    }

    #[test]
    fn debug_output_of_a_reply_omits_the_authentication() {
        let document = rawdoc! {
            "maxWireVersion": 17, "setName": "rs", "speculativeAuthenticate": { "payload": "a proof" }, "me": "here",
        };
        let printed = format!("{:?}", HelloReply::read(document).unwrap());
        for part in ["max_wire_version: 17", "\"setName\": ", "\"rs\"", "\"me\": "] {
            assert!(printed.contains(part), "no {part} in {printed}");
        }
        let proof: String = "a proof".bytes().map(|byte| format!("{byte:02x}")).collect();
        for part in ["speculativeAuthenticate", "a proof", &proof] {
            assert!(!printed.contains(part), "{part} in {printed}");
        }
    }

    #[test]
    fn missing_and_null_fields_have_the_default_of_the_specification() {
        let nulls = rawdoc! {
            "minWireVersion": null, "maxWireVersion": null, "maxMessageSizeBytes": null, "maxBsonObjectSize": null,
            "maxWriteBatchSize": null, "helloOk": null, "connectionId": null, "serviceId": null,
            "logicalSessionTimeoutMinutes": null,
        };
        let of_nulls = HelloReply::read(nulls).unwrap();
        let reply = HelloReply::read(rawdoc! {}).unwrap();
        assert_eq!(HelloReply { document: rawdoc! {}, ..of_nulls }, reply);
        assert_eq!((reply.min_wire_version, reply.max_wire_version), (0, 0));
        assert_eq!(
            (reply.max_message_size, reply.max_document_size, reply.max_write_batch_size),
            (48_000_000, 16_777_216, 100_000)
        );
        assert_eq!((reply.hello_ok, reply.server_connection_id, reply.service_id), (false, None, None));
    }

    #[test]
    fn invalid_field_is_refused_by_name_value_and_range() {
        let refusals = [
            (rawdoc! { "maxWireVersion": "17" }, "maxWireVersion must be a whole number, got String"),
            (rawdoc! { "connectionId": 1.5 }, "connectionId must be a whole number, got 1.5"),
            (rawdoc! { "maxMessageSizeBytes": 15 }, "maxMessageSizeBytes must be 1024 to 2147483647, got 15"),
            (rawdoc! { "maxWriteBatchSize": 0 }, "maxWriteBatchSize must be 1 to 2147483647, got 0"),
            (rawdoc! { "serviceId": 1 }, "serviceId must be an ObjectId, got Int32"),
        ];
        for (document, message) in refusals {
            assert_eq!(HelloReply::read(document).unwrap_err().to_string(), format!("the reply's {message}"));
        }
    }

    #[test]
    fn server_without_a_common_wire_version_is_refused_with_the_message_of_the_specification() {
        let check = |min: i32, max: i32| {
            let reply = HelloReply::read(rawdoc! { "minWireVersion": min, "maxWireVersion": max }).unwrap();
            reply.check_compatible("example.com:27017").map_err(|error| error.to_string())
        };
        assert_eq!(check(0, 8), Ok(()));
        assert_eq!(check(25, 30), Ok(()));
        let too_old = "Server at example.com:27017 reports wire version 7, but this version of wharf requires at least 8 \
                       (MongoDB 4.2).";
        assert_eq!(check(0, 7), Err(too_old.into()));
        let too_new = "Server at example.com:27017 requires wire version 26, but this version of wharf only supports up \
                       to 25.";
        assert_eq!(check(26, 30), Err(too_new.into()));
    }
}
