//! The two clients of wharf behind one interface: the asynchronous client with pools, and the single client, which
//! blocks.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bson::{Bson, Document, Timestamp};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::task::block_in_place;
use tracing::dispatcher;
use wharf::client::{
    self, ClientStatus, CommandEvent, TopologyEvent, TracingOptions, TransactionOptions, TransactionState,
};
use wharf::gridfs::GridFsBucket;
use wharf::{ClientError, DriverInfo, InvalidOption, Options, PoolEvent, ReadPreference, WriteConcern, single};

use crate::arguments::Argument;
use crate::environment::owned;
use crate::format::{Object, set};
use crate::matching::Entities;
use crate::sessions::session_options;
use crate::stop::Stop;

/// Which client runs a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    Pooled,
    Single,
    /// The blocking client with pools, which has the same handles as the single client.
    Blocking,
}

/// A value from either client.
#[derive(Clone)]
pub enum Of<P, S> {
    Pooled(P),
    Single(S),
}

pub type Client = Of<wharf::Client, single::Client>;
pub type Database = Of<wharf::Database, single::Database>;
pub type Collection = Of<wharf::Collection, single::Collection>;
pub type Bucket = Of<GridFsBucket, single::GridFsBucket>;
pub type Session = Of<client::Session, Apart<single::Session>>;
pub type Cursor = Of<client::Cursor<Document>, Apart<single::Cursor<Document>>>;
pub type Changes = Of<client::ChangeStream<Document>, Apart<single::ChangeStream<Document>>>;

/// Evaluates the same expression for a value from either client.
macro_rules! either {
    ($value:expr, |$of:ident| $same:expr) => {
        match $value {
            Of::Pooled($of) => $same,
            Of::Single($of) => $same,
        }
    };
}

/// Converts a value from either client into another value from the same client.
macro_rules! map {
    ($value:expr, |$of:ident| $made:expr) => {
        match $value {
            Of::Pooled($of) => Of::Pooled($made),
            Of::Single($of) => Of::Single($made),
        }
    };
}

/// Runs a blocking function on a thread outside the runtime. Its log messages go to the same subscriber as this task's.
pub fn apart<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    let messages = dispatcher::get_default(Clone::clone);
    let run = || dispatcher::with_default(&messages, run);
    let joined = block_in_place(|| thread::scope(|scope| scope.spawn(run).join()));
    joined.unwrap_or_else(|panic| resume_unwind(panic))
}

/// A value whose drop may send commands, so it must not be dropped inside the runtime.
pub struct Apart<T: Send>(Option<T>);

impl<T: Send> Apart<T> {
    pub fn of(value: T) -> Self {
        Self(Some(value))
    }

    fn shared(&self) -> &T {
        self.0.as_ref().expect("only `into_value` and the drop take it")
    }

    pub fn value(&mut self) -> &mut T {
        self.0.as_mut().expect("only `into_value` and the drop take it")
    }

    fn into_value(mut self) -> T {
        self.0.take().expect("only `into_value` and the drop take it")
    }
}

impl<T: Send> Drop for Apart<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            apart(|| drop(value));
        }
    }
}

/// The options of a database or a collection.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct CommonOptions {
    #[serde(default, deserialize_with = "set")]
    pub read_concern: Option<ReadConcern>,
    #[serde(default, deserialize_with = "argument")]
    pub read_preference: Option<ReadPreference>,
    #[serde(default, deserialize_with = "argument")]
    pub write_concern: Option<WriteConcern>,
    #[serde(default, deserialize_with = "argument", rename = "timeoutMS")]
    pub timeout: Option<Duration>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadConcern {
    #[serde(default, deserialize_with = "set")]
    pub level: Option<String>,
}

/// Reads an optional field whose type implements [`Argument`].
fn argument<'de, D: Deserializer<'de>, T: Argument>(deserializer: D) -> Result<Option<T>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    T::read(&value).map(Some).ok_or_else(|| D::Error::custom(format!("{value} has another type")))
}

type Take<E> = Arc<dyn Fn(&E) + Send + Sync>;

/// The receivers for a client's events, one for each kind of event that the client observes.
#[derive(Default)]
pub struct Subscribers {
    pub commands: Option<Take<CommandEvent>>,
    pub pools: Option<Take<PoolEvent>>,
    pub topology: Option<Take<TopologyEvent>>,
    pub tracing: TracingOptions,
}

/// Builds a client of either kind. The builders of both clients have the same methods.
macro_rules! build {
    ($client:ty, $options:expr, $subscribers:expr) => {{
        // Log messages are compared in full, so they must not be truncated.
        let mut builder =
            <$client>::builder($options).max_logged_document_length(1_000_000).tracing($subscribers.tracing);
        if let Some(take) = $subscribers.commands {
            builder = builder.command_subscriber(move |event: &CommandEvent| take(event));
        }
        if let Some(take) = $subscribers.pools {
            builder = builder.subscriber(move |event: &PoolEvent| take(event));
        }
        if let Some(take) = $subscribers.topology {
            builder = builder.topology_subscriber(move |event: &TopologyEvent| take(event));
        }
        builder
    }};
}

/// Applies an entity's options to a handle.
macro_rules! with_options {
    ($of:expr, $options:expr) => {{
        let (mut of, options) = ($of, $options);
        if let Some(preference) = &options.read_preference {
            of = of.read_preference(preference.clone());
        }
        if let Some(level) = options.read_concern.as_ref().and_then(|concern| concern.level.as_ref()) {
            of = of.read_concern(level);
        }
        if let Some(concern) = &options.write_concern {
            of = of.write_concern(concern.clone());
        }
        match options.timeout {
            Some(limit) => of.timeout(limit),
            None => of,
        }
    }};
}

impl Client {
    pub fn new(which: Which, options: Options, subscribers: Subscribers) -> Result<Self, InvalidOption> {
        Ok(match which {
            Which::Pooled => Self::Pooled(build!(wharf::Client, options, subscribers).build()?),
            Which::Single => Self::Single(build!(single::Client, options, subscribers).build()?),
            Which::Blocking => Self::Single((*build!(wharf::Client, options, subscribers).build_blocking()?).clone()),
        })
    }

    pub fn options(&self) -> &Options {
        either!(self, |client| client.options())
    }

    pub fn append_metadata(&self, library: DriverInfo) -> Result<(), InvalidOption> {
        either!(self, |client| client.append_metadata(library))
    }

    pub fn status(&self) -> ClientStatus {
        either!(self, |client| client.status())
    }

    pub fn database(&self, name: &str, options: &CommonOptions) -> Database {
        map!(self, |client| with_options!(client.database(name), options))
    }

    pub fn start_session(&self, options: &Object, entities: &dyn Entities) -> Result<Session, Stop> {
        Ok(match self {
            Self::Pooled(client) => {
                let start = session_options(client.start_session(), options, entities)?;
                Of::Pooled(start.into_future().into_inner()?)
            }
            Self::Single(client) => {
                Of::Single(Apart::of(session_options(client.start_session(), options, entities)?.run()?))
            }
        })
    }

    pub async fn connect(&self) -> Result<(), ClientError> {
        match self {
            Self::Pooled(client) => client.connect().await.map_err(ClientError::from),
            Self::Single(client) => apart(|| client.warm_up()),
        }
    }

    pub async fn shutdown(&self, limit: Duration) {
        match self {
            Self::Pooled(client) => _ = client.shutdown(limit).await,
            Self::Single(client) => _ = apart(|| client.shutdown(limit)),
        }
    }
}

impl Database {
    pub fn collection(&self, name: &str, options: &CommonOptions) -> Collection {
        map!(self, |database| with_options!(database.collection(name), options))
    }

    pub fn bucket(&self) -> Bucket {
        map!(self, |database| database.gridfs_bucket(None))
    }
}

impl Collection {
    /// Returns a handle to the collection's database, without the options of the original handle.
    pub fn database(&self) -> Database {
        map!(self, |collection| collection.client().database(collection.database()))
    }

    pub fn name(&self) -> &str {
        either!(self, |collection| collection.name())
    }
}

impl Session {
    /// Returns the asynchronous client's session.
    pub fn pooled(&mut self) -> &mut client::Session {
        match self {
            Self::Pooled(session) => session,
            Self::Single(_) => unreachable!("a session is used with its own client"),
        }
    }

    /// Returns the single client's session.
    pub fn single(&mut self) -> &mut single::Session {
        match self {
            Self::Pooled(_) => unreachable!("a session is used with its own client"),
            Self::Single(session) => session.value(),
        }
    }

    pub fn id(&self) -> Bson {
        match self {
            Self::Pooled(session) => owned(&session.id()).into(),
            Self::Single(session) => owned(&session.shared().id()).into(),
        }
    }

    pub fn snapshot_time(&self) -> Option<Timestamp> {
        match self {
            Self::Pooled(session) => session.snapshot_time(),
            Self::Single(session) => session.shared().snapshot_time(),
        }
    }

    pub fn transaction_state(&self) -> TransactionState {
        match self {
            Self::Pooled(session) => session.transaction_state(),
            Self::Single(session) => session.shared().transaction_state(),
        }
    }

    pub fn is_pinned_and_dirty(&self) -> (bool, bool) {
        match self {
            Self::Pooled(session) => session.is_pinned_and_dirty(),
            Self::Single(session) => session.shared().is_pinned_and_dirty(),
        }
    }

    pub fn start_transaction(&mut self, options: TransactionOptions) -> Result<(), ClientError> {
        match self {
            Self::Pooled(session) => session.start_transaction(options),
            Self::Single(session) => session.value().start_transaction(options),
        }
    }

    pub async fn commit_transaction(&mut self, limit: Option<Duration>) -> Result<(), ClientError> {
        match (self, limit) {
            (Self::Pooled(session), None) => session.commit_transaction().await,
            (Self::Pooled(session), Some(limit)) => session.commit_transaction_within(limit).await,
            (Self::Single(session), None) => apart(|| session.value().commit_transaction()),
            (Self::Single(session), Some(limit)) => apart(|| session.value().commit_transaction_within(limit)),
        }
    }

    pub async fn abort_transaction(&mut self, limit: Option<Duration>) -> Result<(), ClientError> {
        match (self, limit) {
            (Self::Pooled(session), None) => session.abort_transaction().await,
            (Self::Pooled(session), Some(limit)) => session.abort_transaction_within(limit).await,
            (Self::Single(session), None) => apart(|| session.value().abort_transaction()),
            (Self::Single(session), Some(limit)) => apart(|| session.value().abort_transaction_within(limit)),
        }
    }

    /// Runs `body` in a transaction. The closure takes the session, and returns it unless the session was ended.
    pub async fn with_transaction<F>(
        &mut self,
        options: TransactionOptions,
        body: impl Fn(Session) -> F + Send + Sync,
    ) -> Result<(), ClientError>
    where
        F: Future<Output = (Result<(), ClientError>, Option<Session>)> + Send,
    {
        match self {
            Self::Pooled(session) => {
                session
                    .with_transaction_in_task(options, |inner| {
                        let ran = body(Session::Pooled(inner));
                        async { ran.await.0 }
                    })
                    .await
            }
            Self::Single(session) => {
                let runtime = tokio::runtime::Handle::current();
                apart(|| {
                    session.value().with_transaction_options(options, |lent| {
                        // The operations in the body look up the session by name, so it is moved out, and a new session
                        // stands in for it.
                        let stand_in = lent.client().start_session().run()?;
                        let moved = Session::Single(Apart::of(std::mem::replace(lent, stand_in)));
                        let (ended, back) = runtime.block_on(body(moved));
                        if let Some(Session::Single(back)) = back {
                            *lent = back.into_value();
                        }
                        ended
                    })
                })
            }
        }
    }
}

impl Cursor {
    pub async fn next_if_any(&mut self) -> Result<Option<Document>, ClientError> {
        match self {
            Self::Pooled(cursor) => cursor.next_if_any().await,
            Self::Single(cursor) => apart(|| cursor.value().next_if_any()),
        }
    }

    /// Returns the next document, waiting for it at the end of a tailable cursor.
    pub async fn next(&mut self) -> Result<Option<Document>, ClientError> {
        match self {
            Self::Pooled(cursor) => cursor.next().await,
            Self::Single(cursor) => apart(|| cursor.value().next().transpose()),
        }
    }

    pub async fn rest(mut self) -> Result<Vec<Document>, Stop> {
        let mut documents = Vec::new();
        while let Some(found) = self.next_if_any().await? {
            documents.push(found);
        }
        Ok(documents)
    }

    pub async fn close(self, limit: Option<Duration>) {
        match (self, limit) {
            (Self::Pooled(cursor), None) => cursor.close().await,
            (Self::Pooled(cursor), Some(limit)) => cursor.close_within(limit).await,
            (Self::Single(cursor), None) => drop(cursor),
            (Self::Single(cursor), Some(limit)) => {
                let cursor = cursor.into_value();
                apart(|| cursor.close_within(limit));
            }
        }
    }
}

impl Changes {
    pub async fn next(&mut self) -> Result<Option<Document>, ClientError> {
        match self {
            Self::Pooled(changes) => changes.next().await,
            Self::Single(changes) => apart(|| changes.value().next().transpose()),
        }
    }

    pub async fn next_if_any(&mut self) -> Result<Option<Document>, ClientError> {
        match self {
            Self::Pooled(changes) => changes.next_if_any().await,
            Self::Single(changes) => apart(|| changes.value().next_if_any()),
        }
    }
}
