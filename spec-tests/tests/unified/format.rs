//! The structure of test files, according to the schema of the unified test format. A file that violates the schema is
//! refused.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::clients::CommonOptions;
use crate::kms::KmsProviders;
use crate::spans::{ExpectedSpans, ObserveTracing};

pub type Object = Map<String, Value>;

/// The newest minor version of the format that this runner understands.
const NEWEST_MINOR: u32 = 28;

/// A version with two or three numbers.
#[derive(Debug, Clone, PartialEq, PartialOrd)]
pub struct Version(pub Vec<u32>);

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_plain = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let parts: Vec<&str> = text.split('.').collect();
        match parts.iter().all(|part| is_plain(part)) && (2..=3).contains(&parts.len()) {
            true => {
                Ok(Self(parts.iter().map(|part| part.parse().map_err(D::Error::custom)).collect::<Result<_, _>>()?))
            }
            false => Err(D::Error::custom(format!("{text} is not a version"))),
        }
    }
}

impl Version {
    /// Returns whether this version, of a server or a file, is at least `least`. Missing numbers are zero.
    pub fn is_at_least(&self, least: &Self) -> bool {
        let of = |version: &Self, place: usize| version.0.get(place).copied().unwrap_or(0);
        (0..3).map(|place| of(self, place)).ge((0..3).map(|place| of(least, place)))
    }
}

/// A list with at least one element.
#[derive(Debug, Clone)]
pub struct Filled<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Filled<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = Vec::deserialize(deserializer)?;
        if values.is_empty() {
            return Err(D::Error::custom("a list must not be empty"));
        }
        Ok(Self(values))
    }
}

/// Reads an optional field that must not be null.
pub fn set<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TestFile {
    #[serde(rename = "description")]
    _description: String,
    pub schema_version: Version,
    #[serde(default, deserialize_with = "set")]
    pub run_on_requirements: Option<Filled<RunOnRequirement>>,
    #[serde(default, deserialize_with = "set")]
    pub create_entities: Option<Filled<Entity>>,
    #[serde(default, deserialize_with = "set")]
    pub initial_data: Option<Filled<CollectionData>>,
    pub tests: Filled<Test>,
    #[serde(default, deserialize_with = "set", rename = "_yamlAnchors")]
    _anchors: Option<Object>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RunOnRequirement {
    #[serde(default, deserialize_with = "set")]
    pub min_server_version: Option<Version>,
    #[serde(default, deserialize_with = "set")]
    pub max_server_version: Option<Version>,
    #[serde(default, deserialize_with = "set")]
    pub topologies: Option<Filled<Topology>>,
    #[serde(default, deserialize_with = "set")]
    pub serverless: Option<Serverless>,
    #[serde(default, deserialize_with = "set")]
    pub server_parameters: Option<Object>,
    #[serde(default, deserialize_with = "set")]
    pub auth: Option<bool>,
    #[serde(default, deserialize_with = "set")]
    pub auth_mechanism: Option<String>,
    #[serde(default, deserialize_with = "set")]
    pub csfle: Option<Csfle>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    Single,
    #[serde(rename = "replicaset")]
    ReplicaSet,
    Sharded,
    #[serde(rename = "sharded-replicaset")]
    ShardedReplicaSet,
    LoadBalanced,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Serverless {
    Require,
    Forbid,
    Allow,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Csfle {
    Wanted(bool),
    From(#[allow(dead_code, reason = "only its form matters")] MinLibmongocrypt),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct MinLibmongocrypt {
    #[serde(rename = "minLibmongocryptVersion")]
    _min: Version,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Entity {
    Client(ClientEntity),
    ClientEncryption(#[allow(dead_code, reason = "only its form matters")] ClientEncryptionEntity),
    Database(DatabaseEntity),
    Collection(CollectionEntity),
    Session(SessionEntity),
    Bucket(BucketEntity),
    Thread(ThreadEntity),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ClientEntity {
    pub id: String,
    #[serde(default)]
    pub uri_options: Object,
    #[serde(default, deserialize_with = "set")]
    pub use_multiple_mongoses: Option<bool>,
    #[serde(default, deserialize_with = "set")]
    pub observe_events: Option<Filled<EventKind>>,
    #[serde(default, deserialize_with = "set")]
    pub ignore_command_monitoring_events: Option<Filled<String>>,
    #[serde(default)]
    pub observe_sensitive_commands: bool,
    #[serde(default, deserialize_with = "set")]
    pub observe_log_messages: Option<ObserveLogMessages>,
    #[serde(default, deserialize_with = "set", rename = "observeTracingMessages")]
    pub observe_tracing: Option<ObserveTracing>,
    #[serde(default, deserialize_with = "set")]
    pub server_api: Option<ServerApiEntity>,
    #[serde(default, deserialize_with = "set")]
    pub auto_encrypt_opts: Option<Object>,
    #[serde(default, deserialize_with = "set", rename = "awaitMinPoolSizeMS")]
    pub await_min_pool_size_ms: Option<u64>,
    #[serde(default, deserialize_with = "set", rename = "storeEventsAsEntities")]
    pub store_events: Option<Filled<StoreEvents>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreEvents {
    #[serde(rename = "id")]
    _id: String,
    #[serde(rename = "events")]
    _events: Filled<String>,
}

/// The events that can be observed, by their names in test files.
#[expect(clippy::enum_variant_names, reason = "these are the names of the format")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EventKind {
    CommandStartedEvent,
    CommandSucceededEvent,
    CommandFailedEvent,
    PoolCreatedEvent,
    PoolReadyEvent,
    PoolClearedEvent,
    PoolClosedEvent,
    ConnectionCreatedEvent,
    ConnectionReadyEvent,
    ConnectionClosedEvent,
    ConnectionCheckOutStartedEvent,
    ConnectionCheckOutFailedEvent,
    ConnectionCheckedOutEvent,
    ConnectionCheckedInEvent,
    ServerDescriptionChangedEvent,
    ServerHeartbeatStartedEvent,
    ServerHeartbeatSucceededEvent,
    ServerHeartbeatFailedEvent,
    TopologyDescriptionChangedEvent,
    TopologyOpeningEvent,
    TopologyClosedEvent,
}

impl EventKind {
    /// Returns whether the event belongs to server discovery and monitoring.
    pub fn is_sdam(self) -> bool {
        use EventKind::*;
        matches!(
            self,
            ServerDescriptionChangedEvent
                | ServerHeartbeatStartedEvent
                | ServerHeartbeatSucceededEvent
                | ServerHeartbeatFailedEvent
                | TopologyDescriptionChangedEvent
                | TopologyOpeningEvent
                | TopologyClosedEvent
        )
    }

    pub fn is_command(self) -> bool {
        matches!(self, Self::CommandStartedEvent | Self::CommandSucceededEvent | Self::CommandFailedEvent)
    }
}

#[derive(Debug, Clone)]
pub struct ObserveLogMessages(pub Vec<(Component, Level)>);

impl<'de> Deserialize<'de> for ObserveLogMessages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Object::deserialize(deserializer)?;
        let read = |(component, level): (String, Value)| {
            Ok((serde_json::from_value(component.into())?, serde_json::from_value(level)?))
        };
        let components: Result<Vec<_>, serde_json::Error> = object.into_iter().map(read).collect();
        match components {
            Ok(components) if components.is_empty() => Err(D::Error::custom("observeLogMessages must not be empty")),
            Ok(components) => Ok(Self(components)),
            Err(error) => Err(D::Error::custom(error)),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Component {
    Command,
    Topology,
    ServerSelection,
    Connection,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    Emergency,
    Alert,
    Critical,
    Error,
    Warning,
    Notice,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ServerApiEntity {
    pub version: String,
    #[serde(default, deserialize_with = "set")]
    pub strict: Option<bool>,
    #[serde(default, deserialize_with = "set")]
    pub deprecation_errors: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ClientEncryptionEntity {
    #[serde(rename = "id")]
    _id: String,
    #[serde(rename = "clientEncryptionOpts")]
    _options: ClientEncryptionOpts,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ClientEncryptionOpts {
    #[serde(rename = "keyVaultClient")]
    _client: String,
    #[serde(rename = "keyVaultNamespace")]
    _namespace: String,
    #[serde(rename = "kmsProviders")]
    _providers: KmsProviders,
    #[serde(default, deserialize_with = "set", rename = "keyExpirationMS")]
    _expiration: Option<i64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DatabaseEntity {
    pub id: String,
    pub client: String,
    pub database_name: String,
    #[serde(default)]
    pub database_options: CommonOptions,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CollectionEntity {
    pub id: String,
    pub database: String,
    pub collection_name: String,
    #[serde(default)]
    pub collection_options: CommonOptions,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SessionEntity {
    pub id: String,
    pub client: String,
    #[serde(default)]
    pub session_options: Object,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct BucketEntity {
    pub id: String,
    pub database: String,
    #[serde(default, rename = "bucketOptions")]
    pub options: Object,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadEntity {
    pub id: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CollectionData {
    pub collection_name: String,
    pub database_name: String,
    #[serde(default, deserialize_with = "set")]
    pub create_options: Option<Object>,
    pub documents: Vec<Object>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Test {
    pub description: String,
    #[serde(default, deserialize_with = "set")]
    pub run_on_requirements: Option<Filled<RunOnRequirement>>,
    #[serde(default, deserialize_with = "set")]
    pub skip_reason: Option<String>,
    pub operations: Vec<Operation>,
    #[serde(default, deserialize_with = "set")]
    pub expect_events: Option<Filled<ExpectedEvents>>,
    #[serde(default, deserialize_with = "set")]
    pub expect_log_messages: Option<Filled<ExpectedLogMessages>>,
    #[serde(default, deserialize_with = "set", rename = "expectTracingMessages")]
    pub expect_spans: Option<Filled<ExpectedSpans>>,
    #[serde(default, deserialize_with = "set")]
    pub outcome: Option<Filled<CollectionData>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Operation {
    pub name: String,
    pub object: String,
    #[serde(default)]
    pub arguments: Object,
    #[serde(default, deserialize_with = "set")]
    pub ignore_result_and_error: Option<bool>,
    #[serde(default, deserialize_with = "set")]
    pub expect_error: Option<ExpectedError>,
    #[serde(default, deserialize_with = "set")]
    pub expect_result: Option<Value>,
    #[serde(default, deserialize_with = "set")]
    pub save_result_as_entity: Option<String>,
    /// Whether the operation belongs to a transaction's callback.
    #[serde(skip)]
    pub is_in_callback: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ExpectedError {
    #[serde(default, deserialize_with = "set")]
    pub is_error: Option<bool>,
    #[serde(default, deserialize_with = "set")]
    pub is_client_error: Option<bool>,
    #[serde(default, deserialize_with = "set")]
    pub is_timeout_error: Option<bool>,
    #[serde(default, deserialize_with = "set")]
    pub error_contains: Option<String>,
    #[serde(default, deserialize_with = "set")]
    pub error_code: Option<i64>,
    #[serde(default, deserialize_with = "set")]
    pub error_code_name: Option<String>,
    #[serde(default, deserialize_with = "set")]
    pub error_labels_contain: Option<Filled<String>>,
    #[serde(default, deserialize_with = "set")]
    pub error_labels_omit: Option<Filled<String>>,
    #[serde(default, deserialize_with = "set")]
    pub write_errors: Option<Object>,
    #[serde(default, deserialize_with = "set")]
    pub write_concern_errors: Option<Vec<Object>>,
    #[serde(default, deserialize_with = "set")]
    pub error_response: Option<Object>,
    #[serde(default, deserialize_with = "set")]
    pub expect_result: Option<Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ExpectedEvents {
    pub client: String,
    #[serde(default)]
    pub event_type: EventType,
    pub events: Vec<ExpectedEvent>,
    #[serde(default)]
    pub ignore_extra_events: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EventType {
    #[default]
    Command,
    Cmap,
    Sdam,
}

/// An event with the assertions for its fields.
#[derive(Debug, Clone)]
pub struct ExpectedEvent {
    pub kind: EventKind,
    pub fields: Object,
}

impl<'de> Deserialize<'de> for ExpectedEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Object::deserialize(deserializer)?;
        let mut entries = object.into_iter();
        let (Some((name, Value::Object(fields))), None) = (entries.next(), entries.next()) else {
            return Err(D::Error::custom("an expected event has exactly one key, with an object"));
        };
        let kind = serde_json::from_value(name.clone().into()).map_err(D::Error::custom)?;
        use EventKind::*;
        let allowed: &[(&str, Check)] = match kind {
            CommandStartedEvent => &[
                ("command", Value::is_object),
                ("commandName", Value::is_string),
                ("databaseName", Value::is_string),
                ("hasServiceId", Value::is_boolean),
                ("hasServerConnectionId", Value::is_boolean),
            ],
            CommandSucceededEvent => &[
                ("reply", Value::is_object),
                ("commandName", Value::is_string),
                ("databaseName", Value::is_string),
                ("hasServiceId", Value::is_boolean),
                ("hasServerConnectionId", Value::is_boolean),
            ],
            CommandFailedEvent => &[
                ("commandName", Value::is_string),
                ("databaseName", Value::is_string),
                ("hasServiceId", Value::is_boolean),
                ("hasServerConnectionId", Value::is_boolean),
            ],
            PoolClearedEvent => {
                &[("hasServiceId", Value::is_boolean), ("interruptInUseConnections", Value::is_boolean)]
            }
            ConnectionClosedEvent | ConnectionCheckOutFailedEvent => &[("reason", Value::is_string)],
            ServerDescriptionChangedEvent => &[("previousDescription", is_server), ("newDescription", is_server)],
            TopologyDescriptionChangedEvent => &[("previousDescription", is_topology), ("newDescription", is_topology)],
            ServerHeartbeatStartedEvent | ServerHeartbeatSucceededEvent | ServerHeartbeatFailedEvent => {
                &[("awaited", Value::is_boolean)]
            }
            _ => &[],
        };
        for (field, value) in &fields {
            if !allowed.iter().any(|(name, is_allowed)| name == field && is_allowed(value)) {
                return Err(D::Error::custom(format!("{name} cannot have the field {field} with {value}")));
            }
        }
        Ok(Self { kind, fields })
    }
}

fn has_only_type(value: &Value, types: &[&str]) -> bool {
    let is_type = |(name, value): (&String, &Value)| name == "type" && types.iter().any(|of| value == of);
    value.as_object().is_some_and(|object| object.iter().all(is_type))
}

fn is_server(value: &Value) -> bool {
    let types =
        ["Standalone", "Mongos", "PossiblePrimary", "RSPrimary", "RSSecondary", "RSOther", "RSArbiter", "RSGhost"];
    has_only_type(value, &types) || has_only_type(value, &["LoadBalancer", "Unknown"])
}

fn is_topology(value: &Value) -> bool {
    has_only_type(
        value,
        &["Single", "Unknown", "ReplicaSetNoPrimary", "ReplicaSetWithPrimary", "Sharded", "LoadBalanced"],
    )
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ExpectedLogMessages {
    pub client: String,
    pub messages: Vec<ExpectedLogMessage>,
    #[serde(default)]
    pub ignore_extra_messages: bool,
    #[serde(default)]
    pub ignore_messages: Vec<ExpectedLogMessage>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ExpectedLogMessage {
    pub level: Level,
    pub component: Component,
    pub data: Object,
    #[serde(default, deserialize_with = "set")]
    pub failure_is_redacted: Option<bool>,
}

impl TestFile {
    /// Reads a file.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let [1, minor, ..] = file.schema_version.0[..] else {
            return Err(format!("schemaVersion {:?} is not supported", file.schema_version));
        };
        if minor > NEWEST_MINOR {
            return Err(format!("schemaVersion {:?} is newer than 1.{NEWEST_MINOR}", file.schema_version));
        }
        file.check()?;
        Ok(file)
    }

    /// Checks the rules that the types cannot express.
    fn check(&self) -> Result<(), String> {
        let all = self.run_on_requirements.iter().chain(self.tests.0.iter().flat_map(|test| &test.run_on_requirements));
        for requirement in all.flat_map(|requirements| &requirements.0) {
            requirement.check()?;
        }
        for data in self.initial_data.iter().flat_map(|data| &data.0) {
            if data.create_options.as_ref().is_some_and(|options| options.contains_key("writeConcern")) {
                return Err("createOptions must not have a writeConcern".to_owned());
            }
        }
        for test in &self.tests.0 {
            test.operations.iter().try_for_each(Operation::check)?;
            for events in test.expect_events.iter().flat_map(|events| &events.0) {
                let is_of_type = |event: &ExpectedEvent| match events.event_type {
                    EventType::Command => event.kind.is_command(),
                    EventType::Cmap => !event.kind.is_command() && !event.kind.is_sdam(),
                    EventType::Sdam => event.kind.is_sdam(),
                };
                if !events.events.iter().all(is_of_type) {
                    return Err(format!("an event is not of type {:?}", events.event_type));
                }
            }
        }
        Ok(())
    }
}

impl RunOnRequirement {
    fn check(&self) -> Result<(), String> {
        let is_empty = self.min_server_version.is_none()
            && self.max_server_version.is_none()
            && self.topologies.is_none()
            && self.serverless.is_none()
            && self.server_parameters.as_ref().is_none_or(Object::is_empty)
            && self.auth.is_none()
            && self.auth_mechanism.is_none()
            && self.csfle.is_none();
        if is_empty { Err("a requirement must not be empty".to_owned()) } else { Ok(()) }
    }
}

impl Operation {
    /// Checks that the operation's expectations do not contradict each other.
    pub fn check(&self) -> Result<(), String> {
        let (has_result, is_saved) = (self.expect_result.is_some(), self.save_result_as_entity.is_some());
        if self.expect_error.is_some() && (has_result || is_saved) {
            return Err(format!("{} expects an error and something else", self.name));
        }
        if self.ignore_result_and_error.is_some() && (has_result || is_saved || self.expect_error.is_some()) {
            return Err(format!("{} ignores its result and expects something", self.name));
        }
        let Some(error) = &self.expect_error else { return Ok(()) };
        let is_empty = error.is_error.is_none()
            && error.is_client_error.is_none()
            && error.is_timeout_error.is_none()
            && error.error_contains.is_none()
            && error.error_code.is_none()
            && error.error_code_name.is_none()
            && error.error_labels_contain.is_none()
            && error.error_labels_omit.is_none()
            && error.write_errors.is_none()
            && error.write_concern_errors.is_none()
            && error.error_response.is_none()
            && error.expect_result.is_none();
        match error.is_error {
            _ if is_empty => Err("an expected error must not be empty".to_owned()),
            Some(false) => Err("isError must be true".to_owned()),
            _ => Ok(()),
        }
    }
}

/// A function that returns whether the format allows a value.
type Check = fn(&Value) -> bool;
