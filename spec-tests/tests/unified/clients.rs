//! The two clients of wharf behind one interface: the asynchronous one with pools, and the single one, which blocks.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bson::{Bson, Document, RawDocument, RawDocumentBuf, Timestamp};
use tokio::task::block_in_place;
use tracing::dispatcher;
use wharf::client::{
    self, ClientStatus, CommandEvent, OpenCursor, TopologyEvent, TracingOptions, TransactionOptions, TransactionState,
    Watch, WatchTarget, Write, Written,
};
use wharf::{ClientError, DriverInfo, InvalidOption, Operation, Options, PoolEvent, single};

use crate::environment::owned;
use crate::format::Object;
use crate::matching::Entities;
use crate::sessions::session_options;
use crate::stop::Stop;

/// Which client runs a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    Pooled,
    Single,
}

/// Runs a blocking function on a thread outside the runtime. Its log messages go where this task's messages go.
pub fn apart<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    let messages = dispatcher::get_default(Clone::clone);
    let run = || dispatcher::with_default(&messages, run);
    let joined = block_in_place(|| thread::scope(|scope| scope.spawn(run).join()));
    joined.unwrap_or_else(|panic| resume_unwind(panic))
}

/// A value whose drop may send commands, so it must not be dropped inside the runtime.
pub struct Apart<T: Send>(Option<T>);

impl<T: Send> Apart<T> {
    fn shared(&self) -> &T {
        self.0.as_ref().expect("only `into_value` and the drop take it")
    }

    fn value(&mut self) -> &mut T {
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

#[derive(Clone)]
pub enum Client {
    Pooled(wharf::Client),
    Single(single::Client),
}

pub enum Session {
    Pooled(client::Session),
    Single(Apart<single::Session>),
}

pub enum Cursor {
    Pooled(client::Cursor),
    Single(Apart<single::Cursor>),
}

pub enum Changes {
    Pooled(client::ChangeStream),
    Single(Apart<single::ChangeStream>),
}

type Take<E> = Arc<dyn Fn(&E) + Send + Sync>;

/// The receivers of a client's events, if it observes any of the kind.
#[derive(Default)]
pub struct Subscribers {
    pub commands: Option<Take<CommandEvent>>,
    pub pools: Option<Take<PoolEvent>>,
    pub topology: Option<Take<TopologyEvent>>,
    pub tracing: TracingOptions,
}

/// Builds a client of either kind: the builders have the same methods.
macro_rules! build {
    ($client:ty, $options:expr, $subscribers:expr) => {{
        // Log messages are compared in full.
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
        builder.build()
    }};
}

const OWN: &str = "a session is used with its own client";

impl Client {
    pub fn new(which: Which, options: Options, subscribers: Subscribers) -> Result<Self, InvalidOption> {
        Ok(match which {
            Which::Pooled => Self::Pooled(build!(wharf::Client, options, subscribers)?),
            Which::Single => Self::Single(build!(single::Client, options, subscribers)?),
        })
    }

    pub fn options(&self) -> &Options {
        match self {
            Self::Pooled(client) => client.options(),
            Self::Single(client) => client.options(),
        }
    }

    pub fn append_metadata(&self, library: DriverInfo) -> Result<(), InvalidOption> {
        match self {
            Self::Pooled(client) => client.append_metadata(library),
            Self::Single(client) => client.append_metadata(library),
        }
    }

    pub fn status(&self) -> ClientStatus {
        match self {
            Self::Pooled(client) => client.status(),
            Self::Single(client) => client.status(),
        }
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

    pub fn start_session(&self, options: &Object, entities: &dyn Entities) -> Result<Session, Stop> {
        let started = match self {
            Self::Pooled(client) => {
                let start = session_options(client.start_session(), options, entities)?;
                start.into_future().into_inner().map(Session::Pooled)
            }
            Self::Single(client) => {
                session_options(client.start_session(), options, entities)?.run().map(Session::single)
            }
        };
        started.map_err(|error| Stop::Refused(error.to_string()))
    }

    pub async fn run_command(&self, database: &str, command: &RawDocument) -> Result<RawDocumentBuf, ClientError> {
        match self {
            Self::Pooled(client) => client.run_command(database, command).await,
            Self::Single(client) => apart(|| client.run_command(database, command)),
        }
    }

    pub async fn run<'c>(
        &self,
        operation: Operation<'c>,
        session: Option<&'c mut Session>,
    ) -> Result<RawDocumentBuf, ClientError> {
        match (self, session) {
            (Self::Pooled(client), None) => client.run(operation).await,
            (Self::Pooled(client), Some(Session::Pooled(session))) => client.run(operation.session(session)).await,
            (Self::Single(client), None) => apart(|| client.run(operation)),
            (Self::Single(_), Some(Session::Single(session))) => apart(|| session.value().run(operation)),
            _ => unreachable!("{OWN}"),
        }
    }

    /// Opens a cursor whose options `with` sets.
    pub async fn cursor<'c>(
        &self,
        operation: Operation<'c>,
        session: Option<&'c mut Session>,
        with: impl FnOnce(OpenCursor<'c>) -> OpenCursor<'c> + Send,
    ) -> Result<Cursor, ClientError> {
        let single = |cursor| Cursor::Single(Apart(Some(cursor)));
        match (self, session) {
            (Self::Pooled(client), None) => with(client.cursor(operation)).await.map(Cursor::Pooled),
            (Self::Pooled(client), Some(Session::Pooled(session))) => {
                with(client.cursor(operation.session(session))).await.map(Cursor::Pooled)
            }
            (Self::Single(client), None) => apart(|| client.cursor(operation).with(with).run()).map(single),
            (Self::Single(_), Some(Session::Single(session))) => {
                apart(|| session.value().cursor(operation).with(with).run()).map(single)
            }
            _ => unreachable!("{OWN}"),
        }
    }

    /// Sends the writes that `with` adds.
    pub async fn write<'c>(
        &self,
        database: &'c str,
        collection: &'c str,
        session: Option<&'c mut Session>,
        with: impl FnOnce(Write<'c>) -> Write<'c> + Send,
    ) -> Result<Written, ClientError> {
        match (self, session) {
            (Self::Pooled(client), None) => with(client.write(database, collection)).await,
            (Self::Pooled(client), Some(Session::Pooled(session))) => {
                with(client.write(database, collection)).session(session).await
            }
            (Self::Single(client), None) => apart(|| client.write(database, collection).with(with).run()),
            (Self::Single(_), Some(Session::Single(session))) => {
                apart(|| session.value().write(database, collection).with(with).run())
            }
            _ => unreachable!("{OWN}"),
        }
    }

    /// Opens a change stream whose options `with` sets.
    pub async fn watch<'c>(
        &self,
        target: WatchTarget<'c>,
        pipeline: Bson,
        session: Option<&'c mut Session>,
        with: impl FnOnce(Watch<'c>) -> Watch<'c> + Send,
    ) -> Result<Changes, ClientError> {
        let single = |changes| Changes::Single(Apart(Some(changes)));
        match (self, session) {
            (Self::Pooled(client), None) => with(client.watch(target, pipeline)).await.map(Changes::Pooled),
            (Self::Pooled(client), Some(Session::Pooled(session))) => {
                with(client.watch(target, pipeline)).session(session).await.map(Changes::Pooled)
            }
            (Self::Single(client), None) => apart(|| client.watch(target, pipeline).with(with).run()).map(single),
            (Self::Single(_), Some(Session::Single(session))) => {
                apart(|| session.value().watch(target, pipeline).with(with).run()).map(single)
            }
            _ => unreachable!("{OWN}"),
        }
    }
}

impl Session {
    fn single(session: single::Session) -> Self {
        Self::Single(Apart(Some(session)))
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

    pub fn start_transaction(&mut self, options: TransactionOptions) -> Result<(), ClientError> {
        match self {
            Self::Pooled(session) => session.start_transaction(options),
            Self::Single(session) => session.value().start_transaction(options),
        }
    }

    pub async fn commit_transaction(&mut self) -> Result<(), ClientError> {
        match self {
            Self::Pooled(session) => session.commit_transaction().await,
            Self::Single(session) => apart(|| session.value().commit_transaction()),
        }
    }

    pub async fn abort_transaction(&mut self) -> Result<(), ClientError> {
        match self {
            Self::Pooled(session) => session.abort_transaction().await,
            Self::Single(session) => apart(|| session.value().abort_transaction()),
        }
    }

    /// Runs `body` in a transaction. It gets the session, and gives it back unless it ended it.
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
                        // The operations of the body look the session up by its name, so the session moves.
                        let stand_in = lent.client().start_session().run()?;
                        let moved = Session::single(std::mem::replace(lent, stand_in));
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
            Self::Pooled(cursor) => Ok(cursor.next_if_any().await?.as_deref().map(owned)),
            Self::Single(cursor) => apart(|| Ok(cursor.value().next_if_any()?.as_deref().map(owned))),
        }
    }

    /// Returns the next document, waiting for it at the end of a tailable cursor.
    pub async fn next(&mut self) -> Result<Option<Document>, ClientError> {
        match self {
            Self::Pooled(cursor) => Ok(cursor.next_document().await?.map(owned)),
            Self::Single(cursor) => apart(|| Ok(cursor.value().next_document()?.map(owned))),
        }
    }

    pub async fn rest(mut self) -> Result<Vec<Document>, ClientError> {
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
            Self::Pooled(changes) => Ok(changes.next().await?.as_deref().map(owned)),
            Self::Single(changes) => apart(|| Ok(changes.value().next_event()?.map(owned))),
        }
    }

    pub async fn next_if_any(&mut self) -> Result<Option<Document>, ClientError> {
        match self {
            Self::Pooled(changes) => Ok(changes.next_if_any().await?.as_deref().map(owned)),
            Self::Single(changes) => apart(|| Ok(changes.value().next_if_any()?.as_deref().map(owned))),
        }
    }
}
