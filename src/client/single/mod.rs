//! The client on a single thread: blocking, without threads or background tasks.
//!
//! This client is meant for language runtimes that embed wharf, and for command-line tools.
//!
//! ```no_run
//! use bson::{Document, doc};
//! use wharf::single::Client;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = Client::from_uri("mongodb://localhost,db2.example.com/?replicaSet=rs0")?;
//!     let orders = client.database("shop").collection::<Document>("orders");
//!     orders.insert_one(doc! { "_id": 1, "paid": false }).run()?;
//!     for order in orders.find(doc! { "paid": false }).run()? {
//!         println!("{}", order?.get_i32("_id")?);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # What differs from [`wharf::Client`](crate::Client)
//!
//! | | [`wharf::Client`](crate::Client) | this client |
//! | --- | --- | --- |
//! | calls | are futures | block |
//! | servers are checked | by monitors, all the time | by operations: before the first operation, after `heartbeatFrequencyMS` (60 s by default), when a server has replied that it is not primary or is shutting down, and when no server is suitable |
//! | connections | a pool for each server | one for each server, for checks and commands. Behind a load balancer, each open cursor or transaction has a separate connection, up to `maxPoolSize`: a call that needs one more connection waits in vain |
//! | no suitable server | waits for `serverSelectionTimeoutMS` | fails after one scan, unless `serverSelectionTryOnce=false` |
//! | a connection that cannot be authenticated | fails the operation, or is retried as the error says | the same; a retry that has to scan comes 500 ms after the last scan. In the pool's events and metrics, the scan's attempt and the check-out that fails with its error count separately |
//! | a connection that is lost while it is idle | the next command takes another connection | the same; in addition, a connection that has been idle for 5 s is checked before a command or a cursor uses it |
//!
//! Operations, retries, errors, sessions, transactions, change streams, events and options are the same as in the
//! asynchronous client, and share its code.
//!
//! # How long a call takes
//!
//! A scan checks all servers concurrently, and ends when every check has been answered or has failed. A check takes at
//! most `connectTimeoutMS`, or twice as long if it fails on the server's existing connection and then opens a new
//! connection. Scans skip a server for 5 s after a failed check, and scans are at least 500 ms apart. With
//! `serverSelectionTryOnce=true` (the default), server selection takes at most the time of one scan, plus up to 500 ms
//! before it. Otherwise it takes at most `serverSelectionTimeoutMS` plus the time of one scan. `timeoutMS` limits the
//! total. Once half the time that was left at the start of a scan has passed, the scan may end as soon as a suitable
//! server has answered, so an unresponsive server does not block operations.
//!
//! The operating system resolves host names (`getaddrinfo`), one after another, on the calling thread. None of wharf's
//! time limits apply to these lookups.
//!
//! # Threads
//!
//! The client is [`Send`] and [`Sync`], and clones share everything. A lock admits one call at a time, and other calls
//! wait. A language runtime may therefore call the client from any of its threads. The `timeoutMS` of a call includes
//! its wait for the lock. If the time runs out before the call acquires the lock, the call fails with
//! [`ClientError::InUse`]. Other limits start when the lock admits the call.
//!
//! Nothing runs between calls. If a cursor or a change stream is dropped before it has ended, the thread that drops it
//! closes it on the server immediately. If a session is dropped with an open transaction, the thread likewise aborts
//! the transaction immediately. A call does all such work before it returns, for at most `connectTimeoutMS`, and never
//! for more than 10 s, even if `connectTimeoutMS` is 0 (no limit). With `timeoutMS`, the work takes at most the time
//! that is left. If no time is left, the work is done by the next call or when a cursor or a change stream is next
//! dropped.
//!
//! # Inside of a tokio runtime
//!
//! A call inside an asynchronous task would block the task's thread, so it fails with [`ClientError::OnRuntime`]. A
//! call from one of the client's own subscribers, from `spawn_blocking`, or on a thread that has entered a runtime
//! (`Runtime::enter`) fails in the same way. A call from the destructor of a thread-local value fails with
//! [`ClientError::EventLoop`] if tokio's own thread-local values are already destroyed. The next call then does the
//! work that a dropped cursor or session has left behind.
//!
//! # Forks
//!
//! A forked child starts afresh: it opens new connections, and leaves its parent's connections alone. The parent's
//! cursors and sessions cannot be used in the child.
//!
//! # How it works
//!
//! A private current-thread tokio runtime drives the asynchronous client. This runtime runs only inside calls
//! (`driver.rs`). The deployment scans instead of running monitors, and the servers' pools do not spawn anything
//! (`src/client/deployment/scanning.rs`).

#[cfg(test)]
mod authentication_tests;
mod background;
mod change_stream;
mod cursor;
#[cfg(test)]
mod cursor_tests;
mod driver;
#[cfg(feature = "gridfs")]
mod gridfs;
mod handles;
#[cfg(test)]
mod limit_tests;
#[cfg(test)]
mod log_tests;
mod prepared;
#[cfg(test)]
mod scan_tests;
mod session;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use change_stream::ChangeStream;
pub use cursor::Cursor;
#[cfg(feature = "gridfs")]
pub use gridfs::{GridFsBucket, GridFsDownloadStream, GridFsUploadStream};
pub use handles::{Collection, Database};
pub use prepared::Prepared;
pub use session::Session;

use crate::client::deployment::Checks;
use crate::client::{
    self, ClientError, ClientStatus, CommandSubscriber, Limited, OpenCursor, Operation, Query, StartSession,
    TopologySubscriber, TracingOptions, TypedCommand, Watch, WatchTarget, Write,
};
use crate::endpoint::Limit;
use crate::endpoint::options::{DriverInfo, InvalidOption, Options};
use crate::pool::metrics::PoolMetrics;
use crate::pool::runtime::Subscriber;
#[cfg(any(feature = "metrics-facade", feature = "opentelemetry"))]
use crate::telemetry::{Source, sealed};
use background::Background;
use driver::{Driver, Erased, erased};

/// A blocking client for a MongoDB deployment, without threads or background tasks.
///
/// See the [module](self) for a description. Creating a client does no I/O: it connects on first use. Dropping the last
/// clone closes all connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

/// The state that all clones share.
struct Shared {
    // Dropped before the runner, because the client's sockets are registered with the runner's runtime.
    client: client::Client,
    runner: Runner,
}

/// Runs the calls.
enum Runner {
    /// One call at a time, without a thread.
    Driver(Driver),
    /// Any number of calls at a time, for a client with pools (`wharf::blocking`).
    Background(Background),
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A value that was dropped inside a runtime may have left work behind. This work holds a reference to the
        // client, which would keep the client alive.
        drop(self.client.deployment().kept());
        if let Runner::Background(background) = &self.runner {
            let client = self.client.clone();
            background.finish(async move { client.finish_background().await });
        }
    }
}

/// Builds a [`Client`].
#[must_use]
pub struct ClientBuilder {
    builder: client::ClientBuilder,
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.builder.fmt(f)
    }
}

impl ClientBuilder {
    /// Adds a subscriber to the events of all connections, which the client also
    /// [logs](crate::ClientBuilder::subscriber). The subscriber must not use the client: see [the
    /// module](self#inside-of-a-tokio-runtime).
    #[doc(alias = "cmap_event_handler")]
    pub fn subscriber(self, subscriber: impl Subscriber) -> Self {
        Self { builder: self.builder.subscriber(subscriber) }
    }

    /// Adds a subscriber to the events of all commands that the client runs.
    #[doc(alias = "command_event_handler")]
    pub fn command_subscriber(self, subscriber: impl CommandSubscriber) -> Self {
        Self { builder: self.builder.command_subscriber(subscriber) }
    }

    /// Adds a subscriber to the events of checks, and of the changes that they reveal.
    #[doc(alias = "sdam_event_handler")]
    pub fn topology_subscriber(self, subscriber: impl TopologySubscriber) -> Self {
        Self { builder: self.builder.topology_subscriber(subscriber) }
    }

    /// Sets the number of characters after which a command or a reply in a log message is truncated: see
    /// [`client::ClientBuilder::max_logged_document_length`](crate::ClientBuilder::max_logged_document_length).
    pub fn max_logged_document_length(self, characters: usize) -> Self {
        Self { builder: self.builder.max_logged_document_length(characters) }
    }

    /// Sets the options for spans: see [`client::ClientBuilder::tracing`](crate::ClientBuilder::tracing).
    pub fn tracing(self, options: TracingOptions) -> Self {
        Self { builder: self.builder.tracing(options) }
    }

    /// Sets the resolver to use for an SRV name (`mongodb+srv://`) in place of the system's configuration.
    #[cfg(feature = "srv")]
    #[doc(alias = "resolver_config")]
    pub fn resolver(self, resolver: crate::endpoint::hickory_resolver::TokioResolver) -> Self {
        Self { builder: self.builder.resolver(resolver) }
    }

    /// Builds the client. Does not connect.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] names the first option that is invalid, its value and what is allowed.
    pub fn build(self) -> Result<Client, InvalidOption> {
        let client = self.builder.build_with(Checks::ByOperations)?;
        Ok(Client { shared: Arc::new(Shared { client, runner: Runner::Driver(Driver::default()) }) })
    }
}

impl Client {
    /// Creates a client from a connection string. Neither resolves names nor connects.
    ///
    /// `heartbeatFrequencyMS` is 60 s by default. An SRV name (`mongodb+srv://`) is looked up on first use.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] as for [`Options::parse`] and [`Client::new`].
    #[doc(alias = "with_uri_str")]
    pub fn from_uri(uri: &str) -> Result<Self, InvalidOption> {
        Self::new(Options::parse(uri)?)
    }

    /// Creates a client with these options. Does not connect.
    ///
    /// `heartbeatFrequencyMS` is 60 s by default.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] names the first option that is invalid, its value and what is allowed.
    #[doc(alias = "with_options")]
    pub fn new(options: Options) -> Result<Self, InvalidOption> {
        Self::builder(options).build()
    }

    /// Returns a builder for a client with these options. See [`new`](Self::new) for their defaults.
    pub fn builder(options: Options) -> ClientBuilder {
        ClientBuilder { builder: client::Client::builder(options.without_monitors()) }
    }

    /// Creates a blocking client from a client with pools and monitors.
    pub(crate) fn with_pools(client: client::Client) -> Self {
        Self { shared: Arc::new(Shared { client, runner: Runner::Background(Background::default()) }) }
    }

    /// Returns the client's options.
    pub fn options(&self) -> &Options {
        self.client().options()
    }

    /// Appends the name of a wrapping library to the metadata of connections that are opened from now on. Sends
    /// nothing. See [`wharf::Client::append_metadata`](crate::Client::append_metadata).
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the name is empty, a field contains `|`, or the metadata would be longer than 512 bytes.
    pub fn append_metadata(&self, library: DriverInfo) -> Result<(), InvalidOption> {
        self.client().append_metadata(library)
    }

    /// Runs `command` on `database`, on the primary, and returns the server's successful reply. Shorthand for
    /// [`run`](Self::run) with [`Operation::new`].
    ///
    /// # Errors
    ///
    /// The same as for [`run`](Self::run).
    #[track_caller]
    pub fn run_command(&self, database: &str, command: &RawDocument) -> Result<RawDocumentBuf, ClientError> {
        self.run_at(Operation::new(database, command), Location::caller())
    }

    /// Selects a server, runs an operation on it, and returns the server's successful reply. See
    /// [`wharf::Client::run`](crate::Client::run).
    ///
    /// # Errors
    ///
    /// [`ClientError`] says how far the operation got.
    #[track_caller]
    pub fn run<'c>(&self, operation: impl Into<Operation<'c>>) -> Result<RawDocumentBuf, ClientError> {
        self.run_at(operation.into(), Location::caller())
    }

    fn run_at(
        &self,
        operation: Operation<'_>,
        site: &'static Location<'static>,
    ) -> Result<RawDocumentBuf, ClientError> {
        let client = self.client();
        self.drive_within(client.limit_of(&operation)?, |limit| client.run_within(operation, limit, site))?
    }

    /// Prepares any query: `find`, `aggregate`, `listCollections`, `listIndexes` and others. The `batchSize` in the
    /// command's document applies to all batches. [`Prepared::with`] sets other cursor options, such as how long the
    /// server waits for documents.
    #[track_caller]
    pub fn cursor<'c>(&self, operation: impl Into<Operation<'c>>) -> Prepared<OpenCursor<'c>> {
        Prepared::new(self.clone(), self.client().cursor(operation))
    }

    /// Prepares a query for the documents in a collection that match `filter`. See
    /// [`wharf::Client::find`](crate::Client::find).
    #[track_caller]
    pub fn find<'c>(&self, database: &'c str, collection: &str, filter: impl Serialize) -> Prepared<Query<'c>> {
        Prepared::new(self.clone(), self.client().find(database, collection, filter))
    }

    /// Prepares an aggregation of a collection's documents. See
    /// [`wharf::Client::aggregate`](crate::Client::aggregate).
    #[track_caller]
    pub fn aggregate<'c>(&self, database: &'c str, collection: &str, pipeline: impl Serialize) -> Prepared<Query<'c>> {
        Prepared::new(self.clone(), self.client().aggregate(database, collection, pipeline))
    }

    /// Prepares a command whose document and reply are values of the application's own types. See
    /// [`wharf::Client::run_typed`](crate::Client::run_typed).
    #[track_caller]
    pub fn run_typed<'c, R: DeserializeOwned>(
        &self,
        database: &'c str,
        command: impl Serialize,
    ) -> Prepared<TypedCommand<'c, R>> {
        Prepared::new(self.clone(), self.client().run_typed(database, command))
    }

    /// Prepares inserts into a collection. The client adds an `_id` to documents without one.
    #[track_caller]
    pub fn insert<'c>(
        &self,
        database: &'c str,
        collection: &'c str,
        documents: impl IntoIterator<Item = impl Serialize>,
    ) -> Prepared<Write<'c>> {
        Prepared::new(self.clone(), self.client().insert(database, collection, documents))
    }

    /// Prepares updates to a collection. Each is a statement in the server's `update` command.
    #[track_caller]
    pub fn update<'c>(
        &self,
        database: &'c str,
        collection: &'c str,
        statements: impl IntoIterator<Item = impl Serialize>,
    ) -> Prepared<Write<'c>> {
        Prepared::new(self.clone(), self.client().update(database, collection, statements))
    }

    /// Prepares deletes from a collection. Each is a statement in the server's `delete` command.
    #[track_caller]
    pub fn delete<'c>(
        &self,
        database: &'c str,
        collection: &'c str,
        statements: impl IntoIterator<Item = impl Serialize>,
    ) -> Prepared<Write<'c>> {
        Prepared::new(self.clone(), self.client().delete(database, collection, statements))
    }

    /// Prepares writes of any kind to a collection, in bulk. [`Prepared::with`] adds the statements.
    #[track_caller]
    pub fn write<'c>(&self, database: &'c str, collection: &'c str) -> Prepared<Write<'c>> {
        Prepared::new(self.clone(), self.client().write(database, collection))
    }

    /// Prepares a change stream. See [`wharf::Client::watch`](crate::Client::watch) for what `pipeline` may be.
    ///
    /// ```no_run
    /// # fn example(client: wharf::single::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use bson::doc;
    /// use wharf::client::WatchTarget;
    ///
    /// let inserts = [doc! { "$match": { "operationType": "insert" } }];
    /// for change in client.watch(WatchTarget::Collection("shop", "orders"), inserts).run()? {
    ///     println!("{:?}", change?.get_document("fullDocument")?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn watch<'c>(&self, target: WatchTarget<'c>, pipeline: impl Serialize) -> Prepared<Watch<'c>> {
        Prepared::new(self.clone(), self.client().watch(target, pipeline))
    }

    /// Prepares a session. [`run`](StartSession::run) starts the session, and sends nothing: the server learns of the
    /// session from its first command.
    pub fn start_session(&self) -> StartSession<'_, Self> {
        StartSession::of(self)
    }

    /// Connects before the first use. Scans the servers if a scan is due, and waits for a server that the options' read
    /// preference allows. Then opens a connection to each server that has answered and has no connection yet.
    ///
    /// # Errors
    ///
    /// [`ClientError`]: no server was found, or a connection could not be opened. The other connections stay open.
    #[doc(alias = "warm_connection_pool")]
    pub fn warm_up(&self) -> Result<(), ClientError> {
        self.warm_up_to(1)
    }

    /// Returns a snapshot of the deployment: its type, and each server. Sends nothing.
    #[must_use]
    pub fn status(&self) -> ClientStatus {
        self.client().status()
    }

    /// Returns the metrics of the connections to all current servers: see
    /// [`wharf::Client::metrics`](crate::Client::metrics). Sends nothing.
    #[must_use]
    pub fn metrics(&self) -> Vec<PoolMetrics> {
        self.client().metrics()
    }

    /// Does the work that dropped values have left behind, ends the sessions that no operation is using, and closes all
    /// connections, all within `limit`. Returns whether all connections are closed. Operations that begin later fail
    /// with [`ServerSelectionError::Closed`](crate::client::ServerSelectionError::Closed).
    ///
    /// # Errors
    ///
    /// [`ClientError::OnRuntime`], [`ClientError::EventLoop`], and [`ClientError::InUse`] if another thread used the
    /// client for the whole time. In these cases, nothing is closed.
    pub fn shutdown(&self, limit: Duration) -> Result<bool, ClientError> {
        // Here, zero means no time rather than no limit.
        self.drive_within(Limit::For(limit), |limit| self.client().shutdown(limit.left().unwrap_or(Duration::MAX)))
    }

    pub(crate) fn warm_up_to(&self, connections: u32) -> Result<(), ClientError> {
        self.drive(self.client().warm_up(connections))?
    }

    pub(crate) fn client(&self) -> &client::Client {
        &self.shared.client
    }

    /// Blocks until the future completes. Then does the work that this future, or values dropped earlier, have left
    /// behind.
    ///
    /// # Errors
    ///
    /// [`ClientError::OnRuntime`] and [`ClientError::EventLoop`].
    fn drive<T>(&self, future: impl Future<Output = T>) -> Result<T, ClientError> {
        self.drive_within(Limit::Unset, |_| future)
    }

    /// Like [`drive`](Self::drive), within a limit. The limit includes the wait for other calls, and has already
    /// started when `begin` receives it.
    ///
    /// # Errors
    ///
    /// The same as for [`drive`](Self::drive), and [`ClientError::InUse`].
    fn drive_within<F: Future>(&self, limit: Limit, begin: impl FnOnce(Limit) -> F) -> Result<F::Output, ClientError> {
        erased(limit, begin, |running, call| self.drive_erased(running, call))
    }

    fn drive_erased(&self, running: &Cell<Limit>, call: Erased<'_>) -> Result<(), ClientError> {
        match &self.shared.runner {
            Runner::Background(background) => background.drive(running, call),
            Runner::Driver(driver) => {
                let call = async {
                    call.await;
                    self.client().deployment().finish_kept(running.get()).await;
                };
                driver.drive(running, pin!(call))
            }
        }
    }

    /// Runs a prepared operation.
    ///
    /// # Errors
    ///
    /// The same as for [`drive_within`](Self::drive_within), and [`ClientError::Session`].
    fn run_prepared<P: Limited>(&self, prepared: P) -> Result<P::Output, ClientError> {
        self.drive_within(prepared.limit()?, |limit| prepared.begin(limit))
    }

    /// Does the work that a dropped value has left behind. If this is not possible now, the next call does the work.
    fn finish_kept(&self) {
        let _ = self.drive(async {});
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("status", &self.status()).finish()
    }
}

#[cfg(any(feature = "metrics-facade", feature = "opentelemetry"))]
impl sealed::Metered for Client {
    fn source(&self) -> Source {
        let shared = Arc::downgrade(&self.shared);
        Source::of_servers(move || Some(Self { shared: shared.upgrade()? }.client().pool_snapshots()))
    }
}
