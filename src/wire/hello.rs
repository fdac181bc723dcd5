//! The first command on every connection, and what its reply says about the server (MongoDB Handshake).

use bson::oid::ObjectId;
use bson::raw::cstr;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use thiserror::Error;

use super::reply::whole_number;
use super::{DEFAULT_MAX_MESSAGE_SIZE, WireError};

/// The oldest wire version that wharf works with: MongoDB 4.2's.
pub const MIN_WIRE_VERSION: i32 = 8;

/// The newest wire version that wharf works with: MongoDB 8.0's.
pub const MAX_WIRE_VERSION: i32 = 25;

/// The handshake command, to be run on the `admin` database.
///
/// It is `hello` in load-balanced mode, which only newer servers have, and else the legacy hello, `isMaster`, with
/// `helloOk`, by which the server tells whether the commands after this one may be `hello`. Both travel in `OP_MSG`.
///
/// `client` is the metadata document ([`ClientMetadata::to_document`](super::metadata::ClientMetadata::to_document)).
#[must_use]
pub fn command(client: &RawDocument, load_balanced: bool) -> RawDocumentBuf {
    let mut command = RawDocumentBuf::new();
    if load_balanced {
        command.append(cstr!("hello"), 1);
        command.append(cstr!("loadBalanced"), true);
    } else {
        command.append(cstr!("isMaster"), 1);
    }
    command.append(cstr!("helloOk"), true);
    // The version of the client backpressure specification, which is a string.
    command.append(cstr!("backpressure"), "2");
    command.append(cstr!("client"), client);
    command
}

/// A server's reply to the handshake: the limits and the identity of this one connection.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HelloReply {
    /// `minWireVersion`; 0 if the server does not say.
    pub min_wire_version: i32,
    /// `maxWireVersion`; 0 if the server does not say.
    pub max_wire_version: i32,
    /// `maxMessageSizeBytes`: the longest message, in bytes. By default 48,000,000.
    pub max_message_size: u32,
    /// `maxBsonObjectSize`: the largest document, in bytes. By default 16,777,216.
    pub max_document_size: u32,
    /// `maxWriteBatchSize`: the most writes in one command. By default 100,000.
    pub max_write_batch_size: u32,
    /// `helloOk`: whether later commands may be `hello` instead of the legacy hello.
    pub hello_ok: bool,
    /// `connectionId`: the server's number for the connection.
    pub server_connection_id: Option<i64>,
    /// `serviceId`: in load-balanced mode, the service behind the load balancer.
    pub service_id: Option<ObjectId>,
    /// The whole reply.
    pub document: RawDocumentBuf,
}

impl HelloReply {
    /// Reads the reply of a successful handshake (see [`reply::check`](super::reply::check)).
    ///
    /// # Errors
    ///
    /// [`WireError::ReplyField`] if a field is not of its type, or out of its range.
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
            // The least is what a command takes around its own content, so that the limit cannot forbid every command.
            max_message_size: limit("maxMessageSizeBytes", DEFAULT_MAX_MESSAGE_SIZE, 1024, "1024 to 2147483647")?,
            max_document_size: limit("maxBsonObjectSize", 16 * 1024 * 1024, 1024, "1024 to 2147483647")?,
            max_write_batch_size: limit("maxWriteBatchSize", 100_000, 1, "1 to 2147483647")?,
            hello_ok: matches!(reply.get("helloOk"), Ok(Some(RawBsonRef::Boolean(true)))),
            server_connection_id: whole_number(reply, "connectionId")?,
            service_id: service_id(reply)?,
            document,
        })
    }

    /// `topologyVersion`: what the server knows of its topology, as it says it.
    #[must_use]
    pub fn topology_version(&self) -> Option<&RawDocument> {
        self.document.get("topologyVersion").ok().flatten().and_then(RawBsonRef::as_document)
    }

    /// Refuses a server that has no wire version in common with wharf (SDAM, "Checking wire protocol compatibility").
    ///
    /// # Errors
    ///
    /// [`IncompatibleServer`], with the specification's message.
    pub fn check_compatible(&self, address: &str) -> Result<(), IncompatibleServer> {
        if self.min_wire_version > MAX_WIRE_VERSION {
            let (address, version) = (address.to_owned(), self.min_wire_version);
            return Err(IncompatibleServer::TooNew { address, version });
        }
        if self.max_wire_version < MIN_WIRE_VERSION {
            let (address, version) = (address.to_owned(), self.max_wire_version);
            return Err(IncompatibleServer::TooOld { address, version });
        }
        Ok(())
    }

    /// The service behind the load balancer.
    ///
    /// # Errors
    ///
    /// [`LoadBalancingUnsupported`] if the reply does not name one.
    pub fn required_service_id(&self) -> Result<ObjectId, LoadBalancingUnsupported> {
        self.service_id.ok_or(LoadBalancingUnsupported)
    }
}

fn service_id(reply: &RawDocument) -> Result<Option<ObjectId>, WireError> {
    let refuse = |value| Err(WireError::ReplyField { field: "serviceId", value, allowed: "an ObjectId" });
    match reply.get("serviceId") {
        Ok(None) => Ok(None),
        Ok(Some(RawBsonRef::ObjectId(id))) => Ok(Some(id)),
        Ok(Some(other)) => refuse(format!("{:?}", other.element_type())),
        Err(error) => refuse(error.to_string()),
    }
}

fn out_of_range(field: &'static str, value: i64, allowed: &'static str) -> WireError {
    WireError::ReplyField { field, value: value.to_string(), allowed }
}

/// A server and wharf have no wire version in common. Trying again does not help.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum IncompatibleServer {
    /// The server no longer speaks any version that wharf knows.
    #[error(
        "Server at {address} requires wire version {version}, but this version of wharf only supports up to \
         {MAX_WIRE_VERSION}."
    )]
    TooNew {
        /// The server's address.
        address: String,
        /// The server's `minWireVersion`.
        version: i32,
    },
    /// The server speaks only versions that wharf has dropped.
    #[error(
        "Server at {address} reports wire version {version}, but this version of wharf requires at least \
         {MIN_WIRE_VERSION} (MongoDB 4.2)."
    )]
    TooOld {
        /// The server's address.
        address: String,
        /// The server's `maxWireVersion`.
        version: i32,
    },
}

/// The server is not behind a load balancer that says so: its hello reply has no `serviceId`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("Driver attempted to initialize in load balancing mode, but the server does not support this mode.")]
pub struct LoadBalancingUnsupported;

#[cfg(test)]
mod tests {
    use bson::{Document, doc, rawdoc};

    use super::*;

    #[test]
    fn the_first_command_is_the_legacy_hello_with_the_handshakes_arguments() {
        let command = command(&rawdoc! { "a": 1 }, false);
        let expected = doc! { "isMaster": 1, "helloOk": true, "backpressure": "2", "client": { "a": 1 } };
        assert_eq!(Document::try_from(command).unwrap(), expected);
    }

    #[test]
    fn in_load_balanced_mode_the_first_command_is_hello() {
        let command = command(&rawdoc! { "a": 1 }, true);
        let expected =
            doc! { "hello": 1, "loadBalanced": true, "helloOk": true, "backpressure": "2", "client": { "a": 1 } };
        assert_eq!(Document::try_from(command).unwrap(), expected);
    }

    #[test]
    fn a_reply_is_read_whatever_numeric_types_it_has() {
        let id = ObjectId::new();
        let document = rawdoc! {
            "minWireVersion": 0_i64, "maxWireVersion": 17.0, "maxMessageSizeBytes": 1_000_000, "maxBsonObjectSize": 2_000,
            "maxWriteBatchSize": 10, "helloOk": true, "connectionId": 5.0, "serviceId": id,
            "topologyVersion": { "counter": 1_i64 },
        };
        let reply = HelloReply::read(document).unwrap();
        assert_eq!((reply.min_wire_version, reply.max_wire_version), (0, 17));
        assert_eq!(
            (reply.max_message_size, reply.max_document_size, reply.max_write_batch_size),
            (1_000_000, 2_000, 10)
        );
        assert_eq!((reply.hello_ok, reply.server_connection_id, reply.service_id), (true, Some(5), Some(id)));
        assert_eq!(reply.topology_version().unwrap().get_i64("counter").ok(), Some(1));
    }

    #[test]
    fn what_a_reply_does_not_say_has_the_specifications_default() {
        let reply = HelloReply::read(rawdoc! {}).unwrap();
        assert_eq!((reply.min_wire_version, reply.max_wire_version), (0, 0));
        assert_eq!(
            (reply.max_message_size, reply.max_document_size, reply.max_write_batch_size),
            (48_000_000, 16_777_216, 100_000)
        );
        assert_eq!((reply.hello_ok, reply.server_connection_id, reply.service_id), (false, None, None));
    }

    #[test]
    fn a_field_that_makes_no_sense_is_refused_by_name_value_and_range() {
        let refusals = [
            (rawdoc! { "maxWireVersion": "17" }, "maxWireVersion is String, but must be a whole number"),
            (rawdoc! { "connectionId": 1.5 }, "connectionId is 1.5, but must be a whole number"),
            (rawdoc! { "maxMessageSizeBytes": 15 }, "maxMessageSizeBytes is 15, but must be 1024 to 2147483647"),
            (rawdoc! { "maxWriteBatchSize": 0 }, "maxWriteBatchSize is 0, but must be 1 to 2147483647"),
            (rawdoc! { "serviceId": 1 }, "serviceId is Int32, but must be an ObjectId"),
        ];
        for (document, message) in refusals {
            assert_eq!(HelloReply::read(document).unwrap_err().to_string(), format!("the reply's {message}"));
        }
    }

    #[test]
    fn a_server_without_a_common_wire_version_is_refused_with_the_specifications_message() {
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
