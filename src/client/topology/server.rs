//! The description of one server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::oid::ObjectId;
use bson::{DateTime, RawBsonRef, RawDocument};

use super::TopologyVersion;
use crate::endpoint::options::{Host, ServerAddress};
use crate::endpoint::wire::hello::{IncompatibleServerError, check_wire_versions, out_of_range};
use crate::endpoint::wire::reply::{self, Unsuccessful, whole_number};
use crate::endpoint::wire::{DEFAULT_MAX_MESSAGE_SIZE, Role, WireError};
use crate::pool::error::Cause;
use crate::text::printable::PeerText;

/// The kind of a server (SDAM, "ServerType").
///
/// The specification's `PossiblePrimary` is absent, because only clients that check one server at a time need it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ServerType {
    /// A server that is not a member of a replica set.
    Standalone,
    /// A router of a sharded cluster.
    Mongos,
    /// The primary of a replica set.
    RsPrimary,
    /// A secondary of a replica set.
    RsSecondary,
    /// An arbiter of a replica set, which holds no data.
    RsArbiter,
    /// A member of a replica set that does not serve queries: hidden, starting or recovering.
    RsOther,
    /// A member of a replica set that does not know its set's configuration.
    RsGhost,
    /// A load balancer, which is never checked.
    LoadBalancer,
    /// A server that has not been checked yet, or whose last check failed.
    #[default]
    Unknown,
}

impl ServerType {
    /// Returns the specification's name for the type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Standalone => "Standalone",
            Self::Mongos => "Mongos",
            Self::RsPrimary => "RSPrimary",
            Self::RsSecondary => "RSSecondary",
            Self::RsArbiter => "RSArbiter",
            Self::RsOther => "RSOther",
            Self::RsGhost => "RSGhost",
            Self::LoadBalancer => "LoadBalancer",
            Self::Unknown => "Unknown",
        }
    }

    /// Returns whether servers of this type can serve reads ("Data-Bearing Server Type").
    #[must_use]
    pub fn is_data_bearing(self) -> bool {
        matches!(self, Self::Mongos | Self::RsPrimary | Self::RsSecondary | Self::Standalone | Self::LoadBalancer)
    }

    /// Returns whether servers of this type accept writes, if their deployment does.
    pub(crate) fn accepts_writes(self) -> bool {
        self.is_data_bearing() && self != Self::RsSecondary
    }

    /// Returns whether the type is [`Unknown`](Self::Unknown).
    #[must_use]
    pub fn is_unknown(self) -> bool {
        self == Self::Unknown
    }

    /// Returns the type indicated by a successful hello reply (SDAM, "Parsing a hello or legacy hello response").
    pub(crate) fn of_reply(reply: &RawDocument) -> Self {
        let is_true = |field| matches!(reply.get(field), Ok(Some(RawBsonRef::Boolean(true))));
        let is_writable_primary = match reply.get("isWritablePrimary") {
            Ok(Some(value)) => value.as_bool() == Some(true),
            _ => is_true("ismaster"),
        };
        match Role::of_reply(reply) {
            Role::Mongos => return Self::Mongos,
            Role::Standalone => return Self::Standalone,
            Role::Member if is_true("isreplicaset") => return Self::RsGhost,
            Role::Member => {}
        }
        if is_true("hidden") {
            Self::RsOther
        } else if is_writable_primary {
            Self::RsPrimary
        } else if is_true("secondary") {
            Self::RsSecondary
        } else if is_true("arbiterOnly") {
            Self::RsArbiter
        } else {
            Self::RsOther
        }
    }
}

/// The client's view of one server (SDAM, "ServerDescription").
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServerDescription {
    /// The address that the client connects to.
    pub address: ServerAddress,
    /// The kind of server.
    pub server_type: ServerType,
    /// The error that made the server unknown.
    pub error: Option<Cause>,
    /// The average round-trip time of the server's checks; `None` while the server is unknown.
    pub average_round_trip_time: Option<Duration>,
    /// The minimum of the recent round-trip times; zero while there are fewer than two.
    pub minimum_round_trip_time: Duration,
    /// When the server was last checked, by the client's monotonic clock.
    pub last_update_time: Option<Instant>,
    /// `lastWrite.lastWriteDate`: the time of the primary's last write that this server knows of.
    pub last_write_date: Option<DateTime>,
    /// `minWireVersion`.
    pub min_wire_version: i32,
    /// `maxWireVersion`.
    pub max_wire_version: i32,
    /// `me`: the address by which the replica set knows the server.
    pub me: Option<ServerAddress>,
    /// `hosts`: the members of the replica set that are neither passive nor arbiters.
    pub hosts: Vec<ServerAddress>,
    /// `passives`: the members that cannot become the primary.
    pub passives: Vec<ServerAddress>,
    /// `arbiters`: the members that hold no data.
    pub arbiters: Vec<ServerAddress>,
    /// `tags`: the server's tags.
    pub tags: BTreeMap<String, String>,
    /// `setName`: the name of the replica set.
    pub set_name: Option<String>,
    /// `electionId`: the election that made the server primary.
    pub election_id: Option<ObjectId>,
    /// `setVersion`: the version of the replica set's configuration.
    pub set_version: Option<i64>,
    /// `primary`: the member that the server reports as the primary.
    pub primary: Option<ServerAddress>,
    /// `logicalSessionTimeoutMinutes`; `None` if the server does not support sessions.
    pub logical_session_timeout_minutes: Option<i64>,
    /// The `topologyVersion` from the last reply.
    pub topology_version: Option<TopologyVersion>,
    /// `helloOk`: whether later checks may use `hello` instead of the legacy hello.
    pub hello_ok: bool,
    /// `maxWriteBatchSize`: the maximum number of statements in a write command. The default is 100,000.
    pub max_write_batch_size: u32,
    /// `maxMessageSizeBytes`: the maximum length of a message, in bytes. The default is 48,000,000.
    pub max_message_size: u32,
    /// `iscryptd`: whether the server is a mongocryptd.
    pub is_cryptd: bool,
}

impl ServerDescription {
    /// Describes a server before its first check.
    #[must_use]
    pub fn unknown(address: ServerAddress) -> Self {
        Self {
            address,
            server_type: ServerType::Unknown,
            error: None,
            average_round_trip_time: None,
            minimum_round_trip_time: Duration::ZERO,
            last_update_time: None,
            last_write_date: None,
            min_wire_version: 0,
            max_wire_version: 0,
            me: None,
            hosts: Vec::new(),
            passives: Vec::new(),
            arbiters: Vec::new(),
            tags: BTreeMap::new(),
            set_name: None,
            election_id: None,
            set_version: None,
            primary: None,
            logical_session_timeout_minutes: None,
            topology_version: None,
            hello_ok: false,
            max_write_batch_size: 100_000,
            max_message_size: DEFAULT_MAX_MESSAGE_SIZE,
            is_cryptd: false,
        }
    }

    /// Describes a server that became unknown after a failed check or an error.
    #[must_use]
    pub fn failed(address: ServerAddress, error: Cause) -> Self {
        Self { error: Some(error), ..Self::unknown(address) }
    }

    /// Describes a load balancer, which is never checked.
    #[must_use]
    pub fn load_balancer(address: ServerAddress) -> Self {
        Self { server_type: ServerType::LoadBalancer, ..Self::unknown(address) }
    }

    /// Describes a server from its reply to a hello. `now` is the time at which the reply arrived. The caller adds the
    /// round-trip times.
    ///
    /// A reply that reports a failure, or that has an invalid field, makes the server unknown. The description then
    /// holds the error.
    #[must_use]
    pub fn of_reply(address: ServerAddress, reply: &RawDocument, now: Instant) -> Self {
        let read = match reply::check(reply) {
            Ok(()) => Self::read(address.clone(), reply).map_err(|error| Arc::new(error) as Cause),
            Err(Unsuccessful::Command(error)) => Err(Arc::new(*error) as Cause),
            Err(Unsuccessful::Wire(error)) => Err(Arc::new(error) as Cause),
        };
        let description = read.unwrap_or_else(|error| Self::failed(address, error));
        Self { last_update_time: Some(now), ..description }
    }

    fn read(address: ServerAddress, reply: &RawDocument) -> Result<Self, WireError> {
        let version = |field| match whole_number(reply, field)? {
            None => Ok(0),
            Some(number) => i32::try_from(number).map_err(|_| out_of_range(field, number, "a 32-bit integer")),
        };
        // Invalid limits are replaced by the defaults here. A connection's handshake refuses them.
        let limit = |field, default| {
            let number = whole_number(reply, field).ok().flatten();
            number.and_then(|number| u32::try_from(number).ok()).filter(|&limit| limit > 0).unwrap_or(default)
        };
        let read = Self {
            server_type: ServerType::of_reply(reply),
            last_write_date: reply
                .get_document("lastWrite")
                .ok()
                .and_then(|last| last.get_datetime("lastWriteDate").ok()),
            min_wire_version: version("minWireVersion")?,
            max_wire_version: version("maxWireVersion")?,
            me: address_of(reply, "me")?,
            hosts: addresses(reply, "hosts")?,
            passives: addresses(reply, "passives")?,
            arbiters: addresses(reply, "arbiters")?,
            tags: tags(reply),
            set_name: set_name(reply)?,
            election_id: reply.get_object_id("electionId").ok(),
            set_version: whole_number(reply, "setVersion")?,
            primary: address_of(reply, "primary")?,
            logical_session_timeout_minutes: whole_number(reply, "logicalSessionTimeoutMinutes")?,
            topology_version: TopologyVersion::of_reply(reply),
            hello_ok: reply.get_bool("helloOk").unwrap_or(false),
            max_write_batch_size: limit("maxWriteBatchSize", 100_000),
            max_message_size: limit("maxMessageSizeBytes", DEFAULT_MAX_MESSAGE_SIZE),
            is_cryptd: reply.get_bool("iscryptd").unwrap_or(false),
            ..Self::unknown(address)
        };
        match read.members().count() {
            count if count > MOST_MEMBERS => Err(too_many("hosts, passives and arbiters", count)),
            _ => Ok(read),
        }
    }

    /// Returns whether the two descriptions look equal to an application (SDAM, "Server Description Equality").
    /// Round-trip times, dates and the time of the check are ignored.
    #[must_use]
    pub fn is_equivalent(&self, other: &Self) -> bool {
        let text = |error: &Option<Cause>| error.as_ref().map(ToString::to_string);
        // Destructured so that adding a field causes a compile error until the field is handled here.
        let Self {
            address,
            server_type,
            error,
            average_round_trip_time: _,
            minimum_round_trip_time: _,
            last_update_time: _,
            last_write_date: _,
            min_wire_version,
            max_wire_version,
            me,
            hosts,
            passives,
            arbiters,
            tags,
            set_name,
            election_id,
            set_version,
            primary,
            logical_session_timeout_minutes,
            topology_version,
            hello_ok: _,
            max_write_batch_size: _,
            max_message_size: _,
            is_cryptd,
        } = self;
        *address == other.address
            && *server_type == other.server_type
            && text(error) == text(&other.error)
            && *min_wire_version == other.min_wire_version
            && *max_wire_version == other.max_wire_version
            && *me == other.me
            && is_same_set(hosts, &other.hosts)
            && is_same_set(passives, &other.passives)
            && is_same_set(arbiters, &other.arbiters)
            && *tags == other.tags
            && *set_name == other.set_name
            && *election_id == other.election_id
            && *set_version == other.set_version
            && *primary == other.primary
            && *logical_session_timeout_minutes == other.logical_session_timeout_minutes
            && *topology_version == other.topology_version
            && *is_cryptd == other.is_cryptd
    }

    /// Returns the members of the replica set that the server reports: `hosts`, `passives` and `arbiters`, in this order.
    pub fn members(&self) -> impl Iterator<Item = &ServerAddress> {
        self.hosts.iter().chain(&self.passives).chain(&self.arbiters)
    }

    /// Checks that wharf supports at least one wire version of a known server.
    ///
    /// # Errors
    ///
    /// Returns [`IncompatibleServerError`], with the specification's message.
    pub fn check_compatible(&self) -> Result<(), IncompatibleServerError> {
        if self.server_type.is_unknown() || self.server_type == ServerType::LoadBalancer {
            return Ok(());
        }
        check_wire_versions(self.min_wire_version, self.max_wire_version, self.address.as_str())
    }
}

/// The maximum number of replica set members that a server may report, in each of its lists and in total. Servers allow
/// 50.
pub(super) const MOST_MEMBERS: usize = 100;

/// Returns whether two lists of at most a hundred addresses contain the same addresses in any order.
fn is_same_set(ours: &[ServerAddress], theirs: &[ServerAddress]) -> bool {
    ours == theirs
        || ours.iter().all(|address| theirs.contains(address)) && theirs.iter().all(|address| ours.contains(address))
}

/// Returns the addresses in an array of a hello reply, in lower case; empty if the array is missing.
fn addresses(reply: &RawDocument, field: &'static str) -> Result<Vec<ServerAddress>, WireError> {
    let Ok(array) = reply.get_array(field) else { return Ok(Vec::new()) };
    // The number of addresses is checked before any of them is stored.
    match reply::texts(array).count() {
        count if count > MOST_MEMBERS => Err(too_many(field, count)),
        _ => reply::texts(array).map(|text| parse(field, &text)).collect(),
    }
}

fn too_many(field: &'static str, count: usize) -> WireError {
    WireError::ReplyField { field, value: PeerText::of(count), allowed: "at most 100 addresses" }
}

fn address_of(reply: &RawDocument, field: &'static str) -> Result<Option<ServerAddress>, WireError> {
    reply::text(reply, field).filter(|text| !text.is_empty()).map(|text| parse(field, &text)).transpose()
}

/// Reads an address that a server reports. A socket on this machine is refused, because only the application may name
/// one. An address that is not valid UTF-8 cannot name a server, so it is refused too.
fn parse(field: &'static str, text: &str) -> Result<ServerAddress, WireError> {
    let refuse = |allowed| WireError::ReplyField { field, value: text.into(), allowed };
    match ServerAddress::read(text) {
        Ok(_) if text.contains(char::REPLACEMENT_CHARACTER) => Err(refuse("host or host:port, in UTF-8")),
        Ok(address) if matches!(address.host, Host::Tcp { .. }) => Ok(address),
        Ok(_) => Err(refuse("host or host:port, and no path of a socket")),
        Err(allowed) => Err(refuse(allowed)),
    }
}

/// Returns the name of the replica set. Errors and logs show the name, and names are compared, so an invalid name is
/// refused rather than truncated.
fn set_name(reply: &RawDocument) -> Result<Option<String>, WireError> {
    let Some(name) = reply::text(reply, "setName") else { return Ok(None) };
    match *PeerText::of(&name) == *name {
        true => Ok(Some(name)),
        false => Err(WireError::ReplyField {
            field: "setName",
            value: (&*name).into(),
            allowed: "at most 1024 bytes without control characters",
        }),
    }
}

fn tags(reply: &RawDocument) -> BTreeMap<String, String> {
    let Ok(tags) = reply.get_document("tags") else { return BTreeMap::new() };
    let of_strings = tags.iter_elements().map_while(Result::ok).filter_map(|element| {
        let value = reply::lossy(&element)?;
        Some((element.key().as_str().to_owned(), value))
    });
    of_strings.collect()
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn members_are_three_sets_in_any_order() {
        let describe = |hosts: &[&str], arbiters: &[&str]| {
            let [hosts, arbiters] =
                [hosts, arbiters].map(|members| members.iter().copied().collect::<bson::RawArrayBuf>());
            let reply = rawdoc! {
                "ok": 1, "setName": "rs", "secondary": true, "hosts": hosts, "arbiters": arbiters, "maxWireVersion": 21,
            };
            ServerDescription::of_reply(ServerAddress::parse("a").unwrap(), &reply, Instant::now())
        };
        let description = describe(&["a", "b", "c"], &[]);
        assert_eq!(description.members().count(), 3);
        assert!(description.is_equivalent(&describe(&["c", "a", "b"], &[])), "another order");
        assert!(!description.is_equivalent(&describe(&["a", "b"], &["c"])), "a member became an arbiter");
        assert!(!description.is_equivalent(&describe(&["a", "b"], &[])), "a member has left");
    }

    fn error_of(reply: &RawDocument) -> String {
        let description = ServerDescription::of_reply(ServerAddress::parse("a").unwrap(), reply, Instant::now());
        assert!(description.server_type.is_unknown(), "{description:?}");
        description.error.unwrap().to_string()
    }

    #[test]
    fn server_may_not_name_a_socket_of_this_machine() {
        for field in ["me", "primary"] {
            let mut reply = rawdoc! { "ok": 1, "setName": "rs", "secondary": true };
            reply.append(<&bson::raw::CStr>::try_from(field).unwrap(), "/run/docker.sock");
            let text =
                format!("the reply's {field} must be host or host:port, and no path of a socket, got /run/docker.sock");
            assert_eq!(error_of(&reply), text);
        }
        let reply = rawdoc! { "ok": 1, "setName": "rs", "secondary": true, "hosts": ["a", "/tmp/\nb.sock"] };
        assert!(error_of(&reply).ends_with("got /tmp/\\nb.sock"), "{}", error_of(&reply));
    }

    #[test]
    fn text_that_is_cut_inside_a_character_is_not_left_out() {
        // The second byte of the last character is missing.
        let cut = |reply: bson::RawDocumentBuf| {
            let mut bytes = reply.into_bytes();
            let at = bytes.windows(2).position(|pair| pair == "é".as_bytes()).unwrap();
            bytes[at + 1] = b'x';
            bson::RawDocumentBuf::from_bytes(bytes).unwrap()
        };
        let allowed = "must be host or host:port, in UTF-8, got bé";
        for (field, reply) in [
            ("hosts", rawdoc! { "ok": 1, "setName": "rs", "secondary": true, "hosts": ["a", "bé", "c"] }),
            ("arbiters", rawdoc! { "ok": 1, "setName": "rs", "secondary": true, "arbiters": ["bé"] }),
            ("me", rawdoc! { "ok": 1, "setName": "rs", "secondary": true, "me": "bé" }),
            ("primary", rawdoc! { "ok": 1, "setName": "rs", "secondary": true, "primary": "bé" }),
        ] {
            let expected = format!("the reply's {field} {allowed}").replace('é', "\u{fffd}x");
            assert_eq!(error_of(&cut(reply)), expected);
        }
        let reply =
            cut(rawdoc! { "ok": 1, "setName": "rs", "secondary": true, "tags": { "dc": "bé", "use": "reports" } });
        let described = ServerDescription::of_reply(ServerAddress::parse("a").unwrap(), &reply, Instant::now());
        let tags: Vec<_> = described.tags.into_iter().collect();
        assert_eq!(tags, [("dc", "b\u{fffd}x"), ("use", "reports")].map(|(name, value)| (name.into(), value.into())));
    }

    #[test]
    fn more_members_than_a_replica_set_has_are_refused() {
        let named = |from: usize, to: usize| (from..to).map(|n| format!("host{n}")).collect::<bson::RawArrayBuf>();
        let reply = |hosts, arbiters| {
            rawdoc! { "ok": 1, "setName": "rs", "secondary": true, "hosts": named(0, hosts), "arbiters": named(0, arbiters) }
        };
        assert_eq!(error_of(&reply(101, 0)), "the reply's hosts must be at most 100 addresses, got 101");
        let text = "the reply's hosts, passives and arbiters must be at most 100 addresses, got 120";
        assert_eq!(error_of(&reply(60, 60)), text);
        let address = ServerAddress::parse("a").unwrap();
        let described = ServerDescription::of_reply(address, &reply(50, 50), Instant::now());
        assert_eq!(described.members().count(), 100);
    }

    #[test]
    fn names_from_a_server_can_be_printed() {
        let forged = "rs\n2026-01-01 INFO user admin logged in";
        let error = error_of(&rawdoc! { "ok": 1, "setName": forged, "secondary": true });
        assert!(!error.contains('\n') && error.contains("setName must be at most 1024 bytes"), "{error}");
        for name in [&*"x".repeat(900_000), "a\u{1b}[2J", "a\u{202e}b"] {
            for reply in [
                rawdoc! { "ok": 1, "setName": "rs", "secondary": true, "hosts": ["a", name] },
                rawdoc! { "ok": 1, "setName": "rs", "secondary": true, "me": name },
                rawdoc! { "ok": 1, "setName": "rs", "secondary": true, "primary": name },
            ] {
                let error = error_of(&reply);
                assert!(error.len() < 1_300 && !error.contains(['\u{1b}', '\u{202e}']), "{error}");
            }
        }
    }
}
