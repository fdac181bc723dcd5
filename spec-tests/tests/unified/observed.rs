//! Client entities, and the events and messages that the runner observes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::oid::ObjectId;
use bson::{Bson, Document};
use serde_json::Value;
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use wharf::client::{CommandEvent, TopologyEvent};
use wharf::{Options, PoolEvent, ServerApi, ServerApiVersion};
use wharf_testbed::log::Listener;

use crate::clients::{Client, Subscribers, Which};
use crate::environment::{Environment, owned};
use crate::format::{ClientEntity, Component, EventKind, ExpectedEvent, Topology};
use crate::matching::{Entities, bson, matches};
use crate::spans::Exported;
use crate::stop::Stop;

/// How long the runner waits for events and messages (the format's "waitForEvent").
pub const PATIENCE: Duration = Duration::from_secs(10);

/// An event from a client.
#[derive(Debug, Clone)]
pub enum Observed {
    Command(CommandEvent),
    Pool(PoolEvent),
    Topology(TopologyEvent),
}

/// A client entity.
pub struct ObservedClient {
    pub client: Client,
    pub events: Arc<Mutex<Vec<Observed>>>,
    pub topology_id: Arc<Mutex<Option<ObjectId>>>,
    pub observes_logs_of: Vec<Component>,
    pub spans: Exported,
    /// Whether the case may expect server checks as soon as the client is created, although this client has no
    /// monitors.
    connects_late: bool,
}

impl Observed {
    pub fn kind(&self) -> EventKind {
        use EventKind::*;
        match self {
            Self::Command(CommandEvent::Started(_)) => CommandStartedEvent,
            Self::Command(CommandEvent::Succeeded(_)) => CommandSucceededEvent,
            Self::Command(_) => CommandFailedEvent,
            Self::Pool(event) => match event {
                PoolEvent::PoolCreated { .. } => PoolCreatedEvent,
                PoolEvent::PoolReady { .. } => PoolReadyEvent,
                PoolEvent::PoolCleared { .. } => PoolClearedEvent,
                PoolEvent::PoolClosed { .. } => PoolClosedEvent,
                PoolEvent::ConnectionCreated { .. } => ConnectionCreatedEvent,
                PoolEvent::ConnectionReady { .. } => ConnectionReadyEvent,
                PoolEvent::ConnectionClosed { .. } => ConnectionClosedEvent,
                PoolEvent::ConnectionCheckOutStarted { .. } => ConnectionCheckOutStartedEvent,
                PoolEvent::ConnectionCheckOutFailed { .. } => ConnectionCheckOutFailedEvent,
                PoolEvent::ConnectionCheckedOut { .. } => ConnectionCheckedOutEvent,
                _ => ConnectionCheckedInEvent,
            },
            Self::Topology(event) => match event {
                TopologyEvent::TopologyOpening { .. } => TopologyOpeningEvent,
                TopologyEvent::TopologyClosed { .. } => TopologyClosedEvent,
                TopologyEvent::TopologyDescriptionChanged { .. } => TopologyDescriptionChangedEvent,
                TopologyEvent::ServerDescriptionChanged { .. } => ServerDescriptionChangedEvent,
                TopologyEvent::ServerHeartbeatStarted { .. } => ServerHeartbeatStartedEvent,
                TopologyEvent::ServerHeartbeatSucceeded { .. } => ServerHeartbeatSucceededEvent,
                _ => ServerHeartbeatFailedEvent,
            },
        }
    }

    /// Checks an event against the assertions for its fields.
    pub fn check(&self, expected: &ExpectedEvent, entities: &dyn Entities) -> Result<(), String> {
        if self.kind() != expected.kind {
            return Err(format!("expected a {:?}, got {self:?}", expected.kind));
        }
        for (field, value) in &expected.fields {
            let (expected, actual) = (bson(value), self.field(field));
            // An expected description may lack a type, so it is compared as a root-level document, which may have extra
            // fields.
            let is_root = true;
            matches(&expected, actual.as_ref(), is_root, entities)
                .map_err(|error| format!("{field} of a {:?}: {error}", self.kind()))?;
        }
        Ok(())
    }

    /// Returns the value that an assertion is about.
    fn field(&self, field: &str) -> Option<Bson> {
        match self {
            Self::Command(event) => {
                let source = event.source();
                match (field, event) {
                    ("command", CommandEvent::Started(event)) => Some(owned(&event.command).into()),
                    ("reply", CommandEvent::Succeeded(event)) => Some(owned(&event.reply).into()),
                    ("commandName", _) => Some(source.command_name.as_str().into()),
                    ("databaseName", _) => Some(source.database_name.as_str().into()),
                    ("hasServiceId", _) => Some(source.service_id.is_some().into()),
                    ("hasServerConnectionId", _) => Some(source.server_connection_id.is_some().into()),
                    _ => None,
                }
            }
            Self::Pool(event) => match (field, event) {
                ("hasServiceId", PoolEvent::PoolCleared { service_id, .. }) => Some(service_id.is_some().into()),
                ("interruptInUseConnections", PoolEvent::PoolCleared { interrupt_in_use_connections, .. }) => {
                    Some((*interrupt_in_use_connections).into())
                }
                ("reason", PoolEvent::ConnectionClosed { reason, .. }) => Some(reason.as_str().into()),
                ("reason", PoolEvent::ConnectionCheckOutFailed { reason, .. }) => Some(reason.as_str().into()),
                _ => None,
            },
            Self::Topology(event) => {
                let of = |name: &str| Some(Bson::Document(bson::doc! { "type": name }));
                match (field, event) {
                    ("previousDescription", TopologyEvent::ServerDescriptionChanged { previous, .. }) => {
                        of(previous.server_type().name())
                    }
                    ("newDescription", TopologyEvent::ServerDescriptionChanged { new, .. }) => {
                        of(new.server_type().name())
                    }
                    ("previousDescription", TopologyEvent::TopologyDescriptionChanged { previous, .. }) => {
                        of(previous.topology_type().name())
                    }
                    ("newDescription", TopologyEvent::TopologyDescriptionChanged { new, .. }) => {
                        of(new.topology_type().name())
                    }
                    (
                        "awaited",
                        TopologyEvent::ServerHeartbeatStarted { awaited, .. }
                        | TopologyEvent::ServerHeartbeatSucceeded { awaited, .. }
                        | TopologyEvent::ServerHeartbeatFailed { awaited, .. },
                    ) => Some((*awaited).into()),
                    _ => None,
                }
            }
        }
    }
}

impl ObservedClient {
    pub async fn new(
        environment: &Environment,
        which: Which,
        entity: &ClientEntity,
        has_fail_points: bool,
    ) -> Result<Self, Stop> {
        if entity.auto_encrypt_opts.is_some() {
            return Err(Stop::Lacks("client-side encryption"));
        }
        if entity.store_events.is_some() {
            return Err(Stop::Lacks("storeEventsAsEntities, which no file uses"));
        }
        let uri = uri(environment, entity, has_fail_points);
        let mut options = Options::parse(&uri).map_err(|error| Stop::Broken(format!("{uri}: {error}")))?;
        if let Some(api) = &entity.server_api {
            if api.version != ServerApiVersion::V1.as_str() {
                return Err(Stop::Broken(format!("the server API {} is not supported", api.version)));
            }
            let mut declared = ServerApi::new(ServerApiVersion::V1);
            (declared.strict, declared.deprecation_errors) = (api.strict, api.deprecation_errors);
            options = options.server_api(declared);
        }
        let observed: Vec<EventKind> = entity.observe_events.iter().flat_map(|kinds| kinds.0.clone()).collect();
        let events = Arc::new(Mutex::new(Vec::new()));
        let topology_id = Arc::new(Mutex::new(None));
        let keep = {
            let (events, observed) = (events.clone(), observed.clone());
            move |event: Observed| {
                if observed.contains(&event.kind()) {
                    events.lock().unwrap().push(event);
                }
            }
        };
        let mut ignored: Vec<String> = vec!["configureFailPoint".to_owned()];
        ignored.extend(entity.ignore_command_monitoring_events.iter().flat_map(|names| names.0.clone()));
        let sees_sensitive = entity.observe_sensitive_commands;
        let mut subscribers = Subscribers::default();
        if observed.iter().any(|kind| kind.is_command()) {
            let keep = keep.clone();
            subscribers.commands = Some(Arc::new(move |event| {
                let source = event.source();
                if !ignored.contains(&source.command_name) && (!source.is_sensitive || sees_sensitive) {
                    keep(Observed::Command(event.clone()));
                }
            }));
        }
        if observed.iter().any(|kind| !kind.is_command() && !kind.is_sdam()) {
            let keep = keep.clone();
            subscribers.pools = Some(Arc::new(move |event| keep(Observed::Pool(event.clone()))));
        }
        let observes_logs_of: Vec<_> =
            entity.observe_log_messages.iter().flat_map(|of| of.0.iter().map(|(component, _)| *component)).collect();
        if observed.iter().any(|kind| kind.is_sdam()) || !observes_logs_of.is_empty() {
            let id = topology_id.clone();
            subscribers.topology = Some(Arc::new(move |event| {
                *id.lock().unwrap() = Some(event.topology_id());
                if !matches!(event, TopologyEvent::ServerOpening { .. } | TopologyEvent::ServerClosed { .. }) {
                    keep(Observed::Topology(event.clone()));
                }
            }));
        }
        let (spans, tracing) = Exported::of(entity.observe_tracing.as_ref());
        subscribers.tracing = tracing;
        let subscribes_to_topology = observed.iter().any(|kind| kind.is_sdam());
        let subscribes_to_pools = observed.iter().any(|kind| !kind.is_command() && !kind.is_sdam());
        let client = Client::new(which, options, subscribers);
        let client = client.map_err(|error| Stop::Broken(format!("{uri}: {error}")))?;
        let observes_topology = subscribes_to_topology || !observes_logs_of.is_empty();
        let connects_late = which == Which::Single && observes_topology;
        let observed = Self { client, events, topology_id, observes_logs_of, spans, connects_late };
        // In the specification, creating a client starts its monitors. In wharf, the first use of the client starts
        // them, so the client connects here. A single client also connects here, because its cases have the same time
        // limits. It does not if the case observes pools, topologies or heartbeats, because those events would come too
        // early. The log messages of the task do not belong to the case.
        if which == Which::Pooled || !(observes_topology || subscribes_to_pools) {
            let client = observed.client.clone();
            let connecting = tokio::spawn(async move { client.connect().await });
            // Only one thread at a time can use a single client, so wait for the task. If connecting fails, the first
            // operation of the case retries it.
            if which != Which::Pooled {
                _ = connecting.await;
            }
        }
        if let Some(limit) = entity.await_min_pool_size_ms {
            observed.await_min_pool_size(Duration::from_millis(limit)).await?;
        }
        Ok(observed)
    }

    /// Makes a single client check its servers, if the case looks at past events and no operation has used the client. The
    /// check may fail.
    pub async fn connect_late(&self) {
        let is_used = self.topology_id.lock().unwrap().is_some();
        if self.connects_late && !is_used {
            let client = self.client.clone();
            // The log messages of this task belong to the case.
            _ = tokio::spawn(async move { client.connect().await }).await;
        }
    }

    /// Waits until the pools have reached their minimum sizes, and discards all earlier events.
    async fn await_min_pool_size(&self, limit: Duration) -> Result<(), Stop> {
        let least = self.client.options().pool.min_pool_size;
        if least == 0 {
            return Ok(());
        }
        self.client.connect().await.map_err(|error| Stop::Broken(error.to_string()))?;
        let is_filled = || {
            let status = self.client.status();
            let mut data_bearing = status.servers.iter().filter(|server| server.server_type != "RSOther");
            data_bearing.all(|server| server.pool.as_ref().is_some_and(|pool| pool.available >= least))
        };
        until(limit, is_filled).await.map_err(|()| Stop::Broken("the pools are not filled in time".to_owned()))?;
        self.events.lock().unwrap().clear();
        Ok(())
    }

    /// Returns how many events match.
    pub fn count(&self, expected: &ExpectedEvent, entities: &dyn Entities) -> usize {
        self.events.lock().unwrap().iter().filter(|event| event.check(expected, entities).is_ok()).count()
    }

    /// Returns the number of connections in use.
    pub fn in_use(&self) -> u64 {
        let status = self.client.status();
        status.servers.iter().filter_map(|server| server.pool.as_ref()).map(|pool| u64::from(pool.in_use)).sum()
    }

    /// Returns the `lsid` of the last two commands.
    pub fn last_two_sessions(&self) -> Result<[Document; 2], Stop> {
        let events = self.events.lock().unwrap();
        let sent = events.iter().rev().filter_map(|event| match event {
            Observed::Command(CommandEvent::Started(started)) => Some(owned(&started.command)),
            _ => None,
        });
        let mut sessions = sent.take(2).map(|command| command.get_document("lsid").cloned());
        match (sessions.next(), sessions.next()) {
            (Some(Ok(last)), Some(Ok(other))) => Ok([last, other]),
            _ => Err(Stop::Broken("the last two commands have no lsid".to_owned())),
        }
    }
}

/// Waits until a condition holds. No event reports this, so the condition is polled.
pub async fn until(limit: Duration, holds: impl Fn() -> bool) -> Result<(), ()> {
    let end = Instant::now() + limit;
    while !holds() {
        if Instant::now() > end {
            return Err(());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Returns the connection string of a client.
fn uri(environment: &Environment, entity: &ClientEntity, has_fail_points: bool) -> String {
    let of_two = environment.uri_of_two.as_ref().filter(|_| entity.use_multiple_mongoses == Some(true));
    let mut uri = of_two.unwrap_or(&environment.uri).clone();
    let is_direct = entity.uri_options.get("directConnection") == Some(&Value::Bool(true));
    if is_direct {
        // A direct connection takes exactly one seed and no set name.
        let hosts = uri.trim_start_matches("mongodb://").split('/').next().unwrap_or_default();
        uri = format!("mongodb://{}/?", hosts.split(',').next().unwrap_or_default());
    }
    let has = |name: &str| entity.uri_options.keys().any(|key| key.eq_ignore_ascii_case(name));
    if has_fail_points && !has("heartbeatFrequencyMS") && environment.topology != Topology::LoadBalanced {
        uri.push_str("&heartbeatFrequencyMS=500");
    }
    for (name, value) in &entity.uri_options {
        let mut push = |value: &str| uri.push_str(&format!("&{name}={value}"));
        match value {
            Value::String(text) => push(text),
            Value::Array(texts) => texts.iter().for_each(|text| push(text.as_str().expect("a string"))),
            other => push(&other.to_string()),
        }
    }
    uri.replace("?&", "?")
}

/// A log message: its level, its component and its values.
#[derive(Debug, Clone)]
pub struct Message {
    pub level: tracing::Level,
    pub target: &'static str,
    pub values: BTreeMap<&'static str, Bson>,
}

/// The target of the log messages about topologies. A message's `topologyId` says which client the message belongs to.
pub const TOPOLOGY: &str = "wharf::topology";

/// Returns a subscriber that keeps log messages with some targets.
pub fn keeping(targets: &'static [&'static str], kept: Arc<Mutex<Vec<Message>>>) -> impl Subscriber + Send + Sync {
    Listener {
        reads: move |metadata: &Metadata<'_>| targets.contains(&metadata.target()),
        on_event: move |event: &Event<'_>| {
            let mut values = Values::default();
            event.record(&mut values);
            let (level, target) = (*event.metadata().level(), event.metadata().target());
            // Messages about topologies come from many tasks. A single list keeps them in order.
            let kept = if target == TOPOLOGY { crate::topology_messages() } else { &*kept };
            kept.lock().unwrap().push(Message { level, target, values: values.0 });
        },
    }
}

#[derive(Default)]
pub struct Values(pub BTreeMap<&'static str, Bson>);

impl Visit for Values {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name(), i64::try_from(value).unwrap().into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name(), value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name(), value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name(), value.into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.into());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}").into());
    }
}
