//! One case: its entities, its operations in order, and its expectations at the end ("Executing a Test").

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{Bson, Document};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::instrument::WithSubscriber;
use wharf::ClientError;
use wharf::client::ClientStatus;
use wharf_testbed::edition::Edition;

use crate::clients::{Bucket, Changes, Collection, Cursor, Database, Session, Which};
use crate::environment::Environment;
use crate::format::{
    Component, Entity, EventType, ExpectedEvents, ExpectedLogMessage, ExpectedLogMessages, Level, Operation, Test,
    TestFile,
};
use crate::matching::{Entities, all_match, bson, document, matches};
use crate::observed::{Message, Observed, ObservedClient, PATIENCE, TOPOLOGY, keeping, until};
use crate::operations;
use crate::spans::Collector;
use crate::stop::Stop;

/// How long a case may take.
const CASE_LIMIT: Duration = Duration::from_secs(60);

/// The state that a case's operations share.
pub struct Case {
    pub environment: Arc<Environment>,
    /// The kind of client that the case uses.
    which: Which,
    entities: Mutex<HashMap<String, Held>>,
    /// The names of the fail points that were set.
    pub fail_points: Mutex<Vec<String>>,
    /// The log messages about commands and server selections.
    messages: Arc<Mutex<Vec<Message>>>,
    spans: Collector,
    /// Whether an operation sets fail points, in which case the clients check their servers more often.
    has_fail_points: bool,
    /// Whether an operation starts a transaction, which may still be open at the end.
    starts_transactions: bool,
    /// Whether an expected timeout may fail to occur, depending on the machine's load.
    timeout_by_chance: bool,
}

/// A cursor or a change stream, or `None` after it has been closed.
type Shared<T> = Arc<tokio::sync::Mutex<Option<T>>>;
pub type SharedCursor = Shared<Cursor>;
pub type SharedChanges = Shared<Changes>;

/// An entity.
#[derive(Clone)]
pub enum Held {
    Client(Arc<ObservedClient>),
    Database(Database),
    Collection(Collection),
    Cursor(SharedCursor),
    Changes(SharedChanges),
    Bson(Bson),
    Topology(ClientStatus),
    Thread(Arc<Thread>),
    Session(HeldSession),
    Bucket(Bucket),
}

/// A session, or `None` after it has ended.
#[derive(Clone)]
pub struct HeldSession {
    pub id: Bson,
    pub session: Arc<tokio::sync::Mutex<Option<Session>>>,
}

/// A queue of operations, and the task that runs them.
pub struct Thread {
    pub queue: Mutex<Option<mpsc::UnboundedSender<Operation>>>,
    pub task: Mutex<Option<JoinHandle<Result<(), Stop>>>>,
}

/// The result of an operation.
pub enum Returned {
    Nothing,
    /// A value. It is matched as a root-level document if it is a document.
    Value(Bson),
    /// The documents from a cursor, each of which is matched as a root-level document.
    Documents(Vec<Document>),
    Cursor(Box<Cursor>),
    Changes(Box<Changes>),
    Collection(Collection),
}

impl Entities for Case {
    fn bson(&self, name: &str) -> Option<Bson> {
        match self.entities.lock().unwrap().get(name)? {
            Held::Bson(value) => Some(value.clone()),
            _ => None,
        }
    }

    fn session_id(&self, name: &str) -> Option<Bson> {
        match self.entities.lock().unwrap().get(name)? {
            Held::Session(held) => Some(held.id.clone()),
            _ => None,
        }
    }
}

impl Case {
    /// Runs a case. `Err` says why it failed, or which feature is missing. With `timeout_by_chance`, an operation may
    /// succeed where the case expects a timeout, and more events may then follow. Everything else is still checked.
    pub async fn run(
        environment: &Arc<Environment>,
        which: Which,
        file: &TestFile,
        test: &Test,
        timeout_by_chance: bool,
    ) -> Result<(), Stop> {
        let case = Arc::new(Self {
            environment: environment.clone(),
            which,
            entities: Mutex::default(),
            fail_points: Mutex::default(),
            messages: Arc::default(),
            spans: Collector::default(),
            starts_transactions: test
                .operations
                .iter()
                .any(|operation| ["startTransaction", "withTransaction"].contains(&operation.name.as_str())),
            has_fail_points: test.operations.iter().any(|operation| operation.name == "failPoint"),
            timeout_by_chance,
        });
        // Refuse the case before it makes the primary step down: otherwise the next case would find a set without a
        // primary.
        if which == Which::Single && test.operations.iter().any(|operation| operation.name == "waitForPrimaryChange") {
            return Err(Stop::Lacks("a monitor, which learns of another primary without an operation"));
        }
        for data in file.initial_data.iter().flat_map(|data| &data.0) {
            environment.set_up(data).await?;
        }
        // If the file has no initial data, empty its collections: otherwise the case would find the documents from the
        // other client's earlier run.
        if file.initial_data.is_none() {
            for collection in &file.collections() {
                environment.set_up(collection).await?;
            }
        }
        // Each secondary must have replicated the collection that `$out` or `$merge` writes to, before the case runs.
        let writes_a_result = |operation: &Operation| {
            let pipeline = operation.arguments.get("pipeline").map(Value::to_string).unwrap_or_default();
            pipeline.contains("$out") || pipeline.contains("$merge")
        };
        if test.operations.iter().any(writes_a_result) {
            environment.wait_for_all_members().await?;
        }
        let whole = async {
            for entity in file.create_entities.iter().flat_map(|entities| &entities.0) {
                case.create(entity).await?;
            }
            for operation in &test.operations {
                case.execute(operation).await?;
            }
            Ok(())
        };
        // Only messages and spans from this task are kept: they come from the case's commands, not from the runner's
        // monitors.
        let ended = if test.expect_log_messages.is_some() {
            let targets = &["wharf::command", "wharf::serverSelection", TOPOLOGY];
            tokio::time::timeout(CASE_LIMIT, whole.with_subscriber(keeping(targets, case.messages.clone()))).await
        } else if test.expect_spans.is_some() {
            tokio::time::timeout(CASE_LIMIT, whole.with_subscriber(case.spans.clone())).await
        } else {
            tokio::time::timeout(CASE_LIMIT, whole).await
        };
        let mut ended = ended.unwrap_or_else(|_| Err(Stop::Broken("the case hangs".to_owned())));
        if ended.is_ok() {
            ended = case.check_end(test).await;
        }
        case.clean_up(ended.is_err()).await;
        ended
    }

    /// Returns how long to wait for an event. A single client does nothing between its calls, so no event can arrive
    /// unless another thread is in a call.
    pub fn patience(&self) -> Duration {
        let has_threads = self.entities.lock().unwrap().values().any(|held| matches!(held, Held::Thread(_)));
        if self.which == Which::Single && !has_threads { Duration::ZERO } else { PATIENCE }
    }

    async fn clean_up(&self, has_failed: bool) {
        let names = std::mem::take(&mut *self.fail_points.lock().unwrap());
        for name in names {
            self.environment.disable_fail_point(&name).await;
        }
        let may_be_open = self.starts_transactions;
        let entities = std::mem::take(&mut *self.entities.lock().unwrap());
        for held in entities.values() {
            match held {
                Held::Cursor(cursor) => drop(cursor.lock().await.take()),
                Held::Changes(changes) => drop(changes.lock().await.take()),
                Held::Session(held) => drop(held.session.lock().await.take()),
                Held::Thread(thread) => {
                    if let Some(task) = thread.task.lock().unwrap().take() {
                        task.abort();
                    }
                }
                _ => {}
            }
        }
        // Shut down the clients only now, after their sessions and cursors have been dropped.
        for held in entities.values() {
            if let Held::Client(client) = held {
                client.client.shutdown(Duration::from_secs(1)).await;
            }
        }
        if has_failed || may_be_open {
            self.environment.kill_all_sessions().await;
        }
    }

    /// Adds an entity. The name must not be in use.
    pub fn add(&self, name: &str, held: Held) -> Result<(), Stop> {
        match self.entities.lock().unwrap().insert(name.to_owned(), held) {
            None => Ok(()),
            Some(_) => Err(Stop::Broken(format!("there is already an entity {name}"))),
        }
    }

    pub fn get(&self, name: &str) -> Result<Held, Stop> {
        let found = self.entities.lock().unwrap().get(name).cloned();
        found.ok_or_else(|| Stop::Broken(format!("there is no entity {name}")))
    }

    pub fn client(&self, name: &str) -> Result<Arc<ObservedClient>, Stop> {
        match self.get(name)? {
            Held::Client(client) => Ok(client),
            _ => Err(Stop::Broken(format!("{name} is not a client"))),
        }
    }

    fn database(&self, name: &str) -> Result<Database, Stop> {
        match self.get(name)? {
            Held::Database(database) => Ok(database),
            _ => Err(Stop::Broken(format!("{name} is not a database"))),
        }
    }

    pub fn thread(&self, name: &str) -> Result<Arc<Thread>, Stop> {
        match self.get(name)? {
            Held::Thread(thread) => Ok(thread),
            _ => Err(Stop::Broken(format!("{name} is not a thread"))),
        }
    }

    pub fn session(&self, name: &str) -> Result<HeldSession, Stop> {
        match self.get(name)? {
            Held::Session(session) => Ok(session),
            _ => Err(Stop::Broken(format!("{name} is not a session"))),
        }
    }

    pub fn topology(&self, name: &str) -> Result<ClientStatus, Stop> {
        match self.get(name)? {
            Held::Topology(topology) => Ok(topology),
            _ => Err(Stop::Broken(format!("{name} is not a topology description"))),
        }
    }

    pub async fn create(self: &Arc<Self>, entity: &Entity) -> Result<(), Stop> {
        match entity {
            Entity::Client(entity) => {
                let client = ObservedClient::new(&self.environment, self.which, entity, self.has_fail_points).await?;
                self.add(&entity.id, Held::Client(Arc::new(client)))
            }
            Entity::Database(entity) => {
                let client = &self.client(&entity.client)?.client;
                let database = client.database(&entity.database_name, &entity.database_options);
                self.add(&entity.id, Held::Database(database))
            }
            Entity::Collection(entity) => {
                let database = self.database(&entity.database)?;
                let collection = database.collection(&entity.collection_name, &entity.collection_options);
                self.add(&entity.id, Held::Collection(collection))
            }
            Entity::Session(entity) => {
                let client = self.client(&entity.client)?;
                let session = client.client.start_session(&entity.session_options, &**self)?;
                let id = session.id();
                let session = Arc::new(tokio::sync::Mutex::new(Some(session)));
                self.add(&entity.id, Held::Session(HeldSession { id, session }))
            }
            Entity::Thread(entity) => {
                let (queue, mut operations) = mpsc::unbounded_channel::<Operation>();
                let case = self.clone();
                let task = tokio::spawn(async move {
                    while let Some(operation) = operations.recv().await {
                        case.execute(&operation).await?;
                    }
                    Ok(())
                });
                let thread = Thread { queue: Mutex::new(Some(queue)), task: Mutex::new(Some(task)) };
                self.add(&entity.id, Held::Thread(Arc::new(thread)))
            }
            Entity::Bucket(entity) => {
                if !entity.options.is_empty() {
                    return Err(Stop::Broken("the runner knows no bucketOptions".to_owned()));
                }
                self.add(&entity.id, Held::Bucket(self.database(&entity.database)?.bucket()))
            }
            Entity::ClientEncryption(_) => Err(Stop::Lacks("client-side encryption")),
        }
    }

    /// Runs an operation, and checks its result or error.
    pub async fn execute(self: &Arc<Self>, operation: &Operation) -> Result<(), Stop> {
        self.execute_and_return_error(operation).await.map(drop)
    }

    /// Runs an operation, and checks its result or error. Returns the expected error that it raised, for a
    /// transaction's callback.
    pub fn execute_and_return_error<'c>(
        self: &'c Arc<Self>,
        operation: &'c Operation,
    ) -> Pin<Box<dyn Future<Output = Result<Option<ClientError>, Stop>> + Send + 'c>> {
        Box::pin(async move {
            operation.check()?;
            let outcome = operations::run(self, operation).await;
            let place = |error: String| Stop::Broken(format!("{}: {error}", operation.name));
            let raised = match &outcome {
                Err(stop @ (Stop::Lacks(_) | Stop::Broken(_))) => return Err(stop.clone()),
                Err(Stop::Raised(error)) => Some((**error).clone()),
                Err(Stop::Refused(error)) => Some(ClientError::other(error.clone())),
                Ok(_) => None,
            };
            if operation.ignore_result_and_error == Some(true) {
                return Ok(raised);
            }
            match (outcome, &operation.expect_error) {
                (Err(error), Some(expected)) => error.check(expected, &**self).map_err(place)?,
                // In a callback, the error from an operation without expectations becomes the transaction's error.
                (Err(error), None) if !operation.is_in_callback => return Err(place(error.describe())),
                (Err(_), None) => {}
                (Ok(_), Some(expected)) if self.timeout_by_chance && expected.is_timeout_error == Some(true) => {}
                (Ok(_), Some(_)) => return Err(place("an error was expected".to_owned())),
                (Ok(returned), None) => self.returned(operation, returned).map_err(place)?,
            }
            Ok(raised)
        })
    }

    fn returned(&self, operation: &Operation, returned: Returned) -> Result<(), String> {
        let save = |held: Held| match &operation.save_result_as_entity {
            Some(name) => self.add(name, held).map_err(|error| error.describe()),
            None => Ok(()),
        };
        let expected = operation.expect_result.as_ref().map(bson);
        match returned {
            Returned::Cursor(cursor) => save(Held::Cursor(Arc::new(tokio::sync::Mutex::new(Some(*cursor))))),
            Returned::Changes(changes) => save(Held::Changes(Arc::new(tokio::sync::Mutex::new(Some(*changes))))),
            Returned::Collection(collection) => save(Held::Collection(collection)),
            Returned::Nothing => match expected {
                Some(expected) => matches(&expected, None, true, self),
                None if operation.save_result_as_entity.is_some() => Err("there is no result to save".to_owned()),
                None => Ok(()),
            },
            Returned::Value(value) => {
                if let Some(expected) = expected {
                    matches(&expected, Some(&value), true, self)?;
                }
                save(Held::Bson(value))
            }
            Returned::Documents(documents) => {
                let documents = Bson::Array(documents.into_iter().map(Bson::from).collect());
                if let Some(expected) = expected {
                    all_match(&expected, Some(&documents), self)?;
                }
                save(Held::Bson(documents))
            }
        }
    }

    async fn check_end(&self, test: &Test) -> Result<(), Stop> {
        let held: Vec<_> = self.entities.lock().unwrap().values().cloned().collect();
        for held in held {
            if let Held::Client(client) = held {
                client.connect_late().await;
            }
        }
        for expected in test.expect_events.iter().flat_map(|events| &events.0) {
            self.check_events(expected).await.map_err(|error| format!("events of {}: {error}", expected.client))?;
        }
        for expected in test.expect_log_messages.iter().flat_map(|messages| &messages.0) {
            self.check_messages(expected).await.map_err(|error| format!("messages of {}: {error}", expected.client))?;
        }
        for data in test.outcome.iter().flat_map(|data| &data.0) {
            self.environment.check(data).await?;
        }
        for expected in test.expect_spans.iter().flat_map(|spans| &spans.0) {
            self.spans.check(expected, self)?;
            self.client(&expected.client)?.spans.check(expected, self)?;
        }
        Ok(())
    }

    async fn check_events(&self, expected: &ExpectedEvents) -> Result<(), String> {
        let client = self.client(&expected.client).map_err(|error| error.describe())?;
        let is_of_type = |event: &&Observed| match expected.event_type {
            EventType::Command => matches!(event, Observed::Command(_)),
            EventType::Cmap => matches!(event, Observed::Pool(_)),
            EventType::Sdam => matches!(event, Observed::Topology(_)),
        };
        let observed =
            || -> Vec<Observed> { client.events.lock().unwrap().iter().filter(is_of_type).cloned().collect() };
        // An event from a background task, such as `killCursors`, may arrive a little later.
        _ = until(Duration::from_secs(2), || observed().len() >= expected.events.len()).await;
        let observed = observed();
        let names = || -> Vec<_> { observed.iter().map(summary).collect() };
        for (index, event) in expected.events.iter().enumerate() {
            let Some(actual) = observed.get(index) else {
                return Err(format!("expected {} events, got {:?}", expected.events.len(), names()));
            };
            actual.check(event, self).map_err(|error| format!("[{index}] {error}; all: {:?}", names()))?;
        }
        let ignores_extra_events = expected.ignore_extra_events || self.timeout_by_chance;
        match observed.len() > expected.events.len() && !ignores_extra_events {
            true => Err(format!("expected {} events, got {:?}", expected.events.len(), names())),
            false => Ok(()),
        }
    }

    async fn check_messages(&self, expected: &ExpectedLogMessages) -> Result<(), String> {
        let client = self.client(&expected.client).map_err(|error| error.describe())?;
        let components = &client.observes_logs_of;
        let is_ignored = |message: &Message| {
            expected.ignore_messages.iter().any(|ignored| self.message_matches(ignored, message).is_ok())
        };
        let observed = || -> Vec<Message> {
            let id = client.topology_id.lock().unwrap().map(|id| Bson::String(id.to_hex()));
            let mut all = self.messages.lock().unwrap().clone();
            all.extend(
                crate::topology_messages()
                    .lock()
                    .unwrap()
                    .iter()
                    .filter(|message| id.is_some() && message.values.get("topologyId") == id.as_ref())
                    .cloned(),
            );
            let is_meant = |message: &Message| {
                component(message).is_some_and(|of| components.contains(&of))
                    && !["commandName", "operation"]
                        .iter()
                        .any(|name| message.values.get(name).and_then(Bson::as_str) == Some("configureFailPoint"))
            };
            all.into_iter().filter(|message| is_meant(message) && !is_ignored(message)).collect()
        };
        _ = until(PATIENCE / 5, || observed().len() >= expected.messages.len()).await;
        let observed = observed();
        for (index, message) in expected.messages.iter().enumerate() {
            let Some(actual) = observed.get(index) else {
                return Err(format!("expected {} messages, got {observed:?}", expected.messages.len()));
            };
            self.message_matches(message, actual).map_err(|error| format!("[{index}] {error}; all: {observed:?}"))?;
        }
        match observed.len() > expected.messages.len() && !expected.ignore_extra_messages {
            true => Err(format!("expected {} messages, got {observed:?}", expected.messages.len())),
            false => Ok(()),
        }
    }

    fn message_matches(&self, expected: &ExpectedLogMessage, actual: &Message) -> Result<(), String> {
        let is_waiting = expected.data.get("message").and_then(Value::as_str)
            == Some("Waiting for suitable server to become available");
        let level = match expected.level {
            Level::Debug if is_waiting && Edition::present() == Edition::Fetched => tracing::Level::INFO,
            Level::Debug => tracing::Level::DEBUG,
            Level::Trace => tracing::Level::TRACE,
            Level::Info | Level::Notice => tracing::Level::INFO,
            Level::Warning => tracing::Level::WARN,
            _ => tracing::Level::ERROR,
        };
        if component(actual) != Some(expected.component) || level != actual.level {
            return Err(format!("expected a message of {:?} at {level}, got {actual:?}", expected.component));
        }
        let values: Document = actual.values.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        matches(&Bson::Document(document(&expected.data)), Some(&values.into()), true, self)?;
        let failure = actual.values.get("failure").and_then(Bson::as_str);
        match (expected.failure_is_redacted, failure) {
            // A failure's text that is not redacted contains the server's message and begins with where the failure
            // occurred. Only redacted text begins with these words.
            (Some(is_redacted), Some(text)) if is_redacted != text.starts_with("the server refused the command") => {
                Err(format!("failureIsRedacted must be {is_redacted}, got {text}"))
            }
            (Some(_), None) => Err("there is no failure".to_owned()),
            _ => Ok(()),
        }
    }
}

fn component(message: &Message) -> Option<Component> {
    match message.target {
        "wharf::command" => Some(Component::Command),
        "wharf::topology" => Some(Component::Topology),
        "wharf::serverSelection" => Some(Component::ServerSelection),
        "wharf::connection" => Some(Component::Connection),
        _ => None,
    }
}

fn summary(event: &Observed) -> String {
    match event {
        Observed::Command(event) => {
            format!("{:?} {}", Observed::Command(event.clone()).kind(), event.source().command_name)
        }
        other => format!("{:?}", other.kind()),
    }
}

/// Returns an argument of an operation as text.
pub fn text<'a>(operation: &'a Operation, name: &str) -> Result<&'a str, Stop> {
    let value = operation.arguments.get(name).and_then(Value::as_str);
    value.ok_or_else(|| Stop::Broken(format!("{} needs the string {name}", operation.name)))
}
