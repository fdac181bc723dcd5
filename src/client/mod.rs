//! The client: one handle to a whole deployment, which survives server failures.
//!
//! ```no_run
//! use bson::rawdoc;
//! use wharf::Client;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = Client::from_uri("mongodb://localhost,db2.example.com/?replicaSet=rs0")?;
//!     let reply = client.run_command("admin", &rawdoc! { "ping": 1 }).await?;
//!     println!("ok: {}", reply.get_f64("ok")?);
//!     Ok(())
//! }
//! ```
//!
//! A [`Client`] monitors the servers of its deployment, keeps a [pool](crate::Pool) for each of them, selects a server
//! for each [`Operation`], and retries operations where that is safe.

// rustdoc shows a type's methods in the order of the modules. These two modules come first, because their methods
// create a client and return its databases and collections.
mod creation;

mod collection;

mod appending;
mod change_stream;
mod closing_queue;
mod command_events;
mod command_metrics;
mod cursor;
pub(crate) mod deployment;
mod end_sessions;
mod engine;
mod error;
#[cfg(all(test, feature = "tls"))]
mod error_tests;
#[cfg(feature = "gridfs")]
pub mod gridfs;
mod held;
mod in_flight;
mod in_session;
mod lifecycle;
mod object_id;
mod operation;
mod query;
mod repeating;
mod run;
pub(crate) mod selection;
pub(crate) mod session;
mod session_handle;
mod spans;
mod status;
mod timed;
pub(crate) mod topology;
mod typed;
mod write;

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub use crate::endpoint::WriteConcernError;
pub use change_stream::{
    ChangeNamespace, ChangeStream, ChangeStreamEvent, OperationType, TruncatedArray, UpdateDescription, Watch,
    WatchTarget,
};
pub use collection::{
    AnyClient, BulkWriteResult, ClientBulkWriteFailure, ClientBulkWriteResult, ClientDeleteResult,
    ClientInsertOneResult, ClientUpdateResult, Collection, CollectionSpecification, Database, DatabaseSpecification,
    DeleteResult, IndexModel, IndexSpecification, InsertManyResult, InsertOneResult, NamespaceWriteModel,
    ReturnDocument, SearchIndexModel, UpdateResult, VerboseResults, WriteModel,
};
pub use command_events::{
    CommandEvent, CommandFailed, CommandFailure, CommandSource, CommandStarted, CommandSubscriber, CommandSucceeded,
};
pub use command_metrics::{CommandMetrics, CommandTimes};
pub use cursor::open::OpenCursor;
pub use cursor::{Cursor, CursorType, TimeoutMode};
pub use deployment::{ServerSelectionError, TopologySubscriber, TopologySummary};
pub use error::{BodyError, ClientError, Result};
pub use operation::Operation;
pub use query::Query;
pub(crate) use session_handle::End;
pub use session_handle::{Session, StartSession};
pub use spans::TracingOptions;
pub use status::{ClientStatus, ServerStatus};
pub use topology::{HeartbeatConnection, ServerType, ServerView, TopologyEvent, TopologyType, TopologyView};
pub use typed::TypedCommand;
pub use write::{Write, WriteError, WriteFailure, Written};

/// The builders that the methods of [`Collection`] and [`Database`] return. Awaiting a builder sends its command. If an
/// option is set twice, its last value is sent. `None` leaves an option unset.
pub mod action {
    pub use super::collection::{
        Aggregate, BulkWrite, ChangeSearchIndex, ClientBulkWrite, CountDocuments, CreateCollection, CreateIndex,
        CreateIndexes, CreateSearchIndex, CreateSearchIndexes, Delete, Distinct, DropIndexes, DropNamespace,
        EstimatedDocumentCount, Find, FindOne, FindOneAndDelete, FindOneAndReplace, FindOneAndUpdate, InsertMany,
        InsertOne, ListCollectionNames, ListCollections, ListDatabaseNames, ListDatabases, ListIndexNames, ListIndexes,
        ListSearchIndexes, Rename, Replace, RunCommand, RunCursorCommand, Update,
    };
}

pub(crate) use collection::{Call, sealed};
pub(crate) use cursor::{Advanced, PAUSE, read};
pub(crate) use repeating::Repeating;
pub(crate) use timed::Limited;

use command_events::CommandEvents;
use spans::Spans;

use crate::endpoint::options::{DriverInfo, InvalidOption, Options, ReadPreference};
use crate::endpoint::{Endpoint, Limit, OperationError, Resolver};
use crate::pool::core::Budget;
use crate::pool::error::CheckOutError;
use crate::pool::metrics::PoolMetrics;
use crate::pool::runtime::{Boxed, Connection, Subscriber, boxed};
use crate::text::shortened::MostLogged;
use deployment::{
    Checks, Demand, Deployment, LoggedOperation, Present, Publisher, Selected, WaitLogged, logs_selections,
};
use selection::Access;
use session::{Moment, ServerSessionPool, SharedClusterTime};
pub use session::{SessionError, TransactionOptions, TransactionState};

/// `logicalSessionTimeoutMinutes` of a server with the default setting.
const DEFAULT_SESSION_TIMEOUT_MINUTES: i64 = 30;

/// A client for a MongoDB deployment: a standalone server, a replica set, a sharded cluster, or servers behind a load
/// balancer.
///
/// ```no_run
/// use bson::doc;
/// use serde::{Deserialize, Serialize};
/// use wharf::{Client, Collection};
///
/// #[derive(Serialize, Deserialize)]
/// struct Order {
///     customer: String,
///     price: i64,
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let client = Client::from_uri("mongodb://app:secret@localhost/?timeoutMS=15000")?;
/// let orders: Collection<Order> = client.database("shop").collection("orders");
/// orders.insert_one(Order { customer: "Ada".into(), price: 20 }).await?;
/// let expensive: Vec<Order> = orders.find(doc! { "price": { "$gte": 10 } }).await?.try_collect().await?;
/// # Ok(())
/// # }
/// ```
///
/// | to do this | call that |
/// | --- | --- |
/// | create a client | [`from_uri`](Self::from_uri), [`new`](Self::new), or [`builder`](Self::builder) for subscribers |
/// | read and write documents | [`database`](Self::database), then [`Database::collection`](crate::Database::collection) and the methods of [`Collection`] |
/// | run a transaction | [`start_session`](Self::start_session), then [`Session::with_transaction`] |
/// | learn of changes | [`Collection::watch`](crate::Collection::watch), or [`watch`](Self::watch) for the whole cluster |
/// | store a file | [`Database::gridfs_bucket`](crate::Database::gridfs_bucket) |
/// | write to several collections at once | [`bulk_write`](Self::bulk_write) |
/// | run any command | [`run_command`](Self::run_command), or [`run`](Self::run) with an [`Operation`] |
/// | wait for a server, or open connections before they are needed | [`connect`](Self::connect), [`warm_up`](Self::warm_up) |
/// | see the servers and their pools | [`status`](Self::status), [`metrics`](Self::metrics) |
/// | find what holds connections | [`account_for_holders`](Self::account_for_holders) |
/// | shut the client down | [`shutdown`](Self::shutdown) |
///
/// Creating a client requires no runtime, and the client does not connect until it is first used. Clones are cheap, and
/// share everything. Dropping the last clone closes all pools and stops the monitors. A cancelled operation of a
/// [`Session`] holds a clone until the rest of its reply has been read, but for at most
/// [`Options::drain_timeout`](crate::Options#structfield.drain_timeout).
///
/// # Runtimes
///
/// The monitors run on the tokio runtime of the operation that first uses the client. When that runtime shuts down, the
/// next operation starts them again, on its own runtime. So a client in a `static` can serve one runtime after another.
///
/// # Forks
///
/// A forked child may use a client that it inherits. In the child, the client starts new monitors, on new connections,
/// and leaves the parent's connections alone. The child's client does not share sessions with the parent. The `_id`s
/// that the child adds to documents differ from the `_id`s of the parent and of the parent's other children.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

/// The state that all clones of a client share. Dropping it stops the client's monitors and closes its pools.
struct Inner {
    deployment: Present,
    command_events: CommandEvents,
    sessions: ServerSessionPool,
    cluster_time: SharedClusterTime,
    ending: end_sessions::Ending,
}

/// Builds a [`Client`].
#[must_use]
pub struct ClientBuilder {
    options: Options,
    subscribers: Vec<Arc<dyn Subscriber>>,
    command_subscribers: Vec<Arc<dyn CommandSubscriber>>,
    most_logged: Option<usize>,
    tracing: TracingOptions,
    topology_subscribers: Vec<Arc<dyn TopologySubscriber>>,
    resolver: Option<Resolver>,
    budget: Option<Budget>,
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder").field("options", &self.options).finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// Adds a subscriber to the events of all pools.
    ///
    /// The pools also log them through [`tracing`] at level `DEBUG`, with the `wharf::connection` target, as
    /// [`PoolBuilder::log`](crate::PoolBuilder::log) describes.
    #[doc(alias = "cmap_event_handler")]
    pub fn subscriber(mut self, subscriber: impl Subscriber) -> Self {
        self.subscribers.push(Arc::new(subscriber));
        self
    }

    /// Adds a subscriber to the events of all commands that the client runs, such as [`CommandMetrics`].
    #[doc(alias = "command_event_handler")]
    pub fn command_subscriber(mut self, subscriber: impl CommandSubscriber) -> Self {
        self.command_subscribers.push(Arc::new(subscriber));
        self
    }

    /// Sets the number of characters after which a command or a reply in a log message is truncated. This includes
    /// messages about monitoring. The default is the value of the environment variable
    /// `MONGODB_LOG_MAX_DOCUMENT_LENGTH` (a number, or `unlimited`), otherwise 1,000.
    ///
    /// Commands are logged through [`tracing`] at level `DEBUG` with the `wharf::command` target. Server selection uses
    /// the `wharf::serverSelection` target, at level `DEBUG`, and at `INFO` if an operation has to wait for a server.
    /// [The guide](crate::guide::metrics_and_traces#logs) lists all targets, and explains how environment variables set
    /// their levels.
    pub fn max_logged_document_length(mut self, characters: usize) -> Self {
        self.most_logged = Some(characters);
        self
    }

    /// Sets the options for spans of operations, commands and transactions. By default, the spans go to a [`tracing`]
    /// subscriber that enables the `wharf::operation` target at level `DEBUG`.
    pub fn tracing(mut self, options: TracingOptions) -> Self {
        self.tracing = options;
        self
    }

    /// Adds a subscriber to the monitoring events (SDAM Logging and Monitoring).
    ///
    /// The client also logs them through [`tracing`] at level `DEBUG`, with the `wharf::topology` target.
    #[doc(alias = "sdam_event_handler")]
    pub fn topology_subscriber(mut self, subscriber: impl TopologySubscriber) -> Self {
        self.topology_subscribers.push(Arc::new(subscriber));
        self
    }

    /// Sets the resolver to use for an SRV name (`mongodb+srv://`) in place of the system's configuration. The resolver
    /// caches according to its own settings.
    #[cfg(feature = "srv")]
    #[doc(alias = "resolver_config")]
    pub fn resolver(mut self, resolver: crate::endpoint::hickory_resolver::TokioResolver) -> Self {
        self.resolver = Some(resolver);
        self
    }

    /// Sets the budget that the pools of all servers share. Other clients and pools may share it. By default there is
    /// no budget.
    ///
    /// The monitors' connections do not count against it.
    pub fn budget(mut self, budget: &Budget) -> Self {
        self.budget = Some(budget.clone());
        self
    }

    /// Builds the client. Does not connect.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] names the first option that is invalid, its value and what is allowed.
    pub fn build(self) -> Result<Client, InvalidOption> {
        self.build_with(Checks::ByMonitors)
    }

    /// Builds a client that checks its servers as `checks` says.
    ///
    /// # Errors
    ///
    /// The same as for [`build`](Self::build).
    pub(crate) fn build_with(self, checks: Checks) -> Result<Client, InvalidOption> {
        let most_logged = MostLogged::new(self.most_logged);
        let publisher = Publisher::new(self.topology_subscribers, most_logged);
        let deployment =
            Deployment::new(self.options, self.subscribers, publisher, self.resolver, self.budget, checks)?;
        let command_events = CommandEvents::new(self.command_subscribers, most_logged, Spans::new(self.tracing));
        let sessions = ServerSessionPool::new(Moment::now());
        let cluster_time = SharedClusterTime::default();
        let deployment = Present::new(deployment);
        Ok(Client {
            inner: Arc::new(Inner {
                deployment,
                command_events,
                sessions,
                cluster_time,
                ending: end_sessions::Ending::default(),
            }),
        })
    }
}

impl Client {
    /// Returns the client's options. [`replace_options`](Self::replace_options) does not change them.
    pub fn options(&self) -> &Options {
        self.deployment().options()
    }

    /// Appends the name of a wrapping library to the metadata that connections send with their hello (MongoDB
    /// Handshake, "Metadata updates after MongoClient initialization").
    ///
    /// The change applies to all clones of the client, and to connections that are opened from now on, including the
    /// connections of monitors. It does not open or close connections. A library that has already been appended, or
    /// that [`Options::driver_info`](crate::Options#structfield.driver_info) names, is not appended again.
    ///
    /// ```
    /// use wharf::{Client, DriverInfo};
    ///
    /// let client = Client::from_uri("mongodb://localhost")?;
    /// client.append_metadata(DriverInfo::new("shop-framework").version("2.0"))?;
    /// # Ok::<(), wharf::InvalidOption>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the name is empty, a field contains `|`, or the metadata would be longer than 512 bytes.
    pub fn append_metadata(&self, library: DriverInfo) -> Result<(), InvalidOption> {
        self.deployment().handshake().append_metadata(library)
    }

    /// Replaces the credential, the TLS options and the compressors with the values in `options`, for instance because
    /// a password or a certificate has changed. All other options must be the same as the client's.
    ///
    /// This call reads the files that the options name. Connections that are opened from now on, including the
    /// monitors', use the new options. The pools are [renewed](crate::Pool::renew): no operation fails, and operations
    /// that begin after this call has returned do not use earlier connections. Until the operations in progress have
    /// finished, the server must accept both the old and the new values. Sessions, cursors and change streams continue.
    /// A monitor's connection is not authenticated, so the monitor keeps it until it closes.
    ///
    /// The new options are not tested first. If the servers refuse them, operations fail until the options are replaced
    /// again. The client keeps former credentials in memory until it is dropped.
    ///
    /// ```no_run
    /// use wharf::{Client, InvalidOption, Options};
    ///
    /// fn rotate(client: &Client, password: &str) -> Result<(), InvalidOption> {
    ///     client.replace_options(Options::parse(&format!("mongodb://app:{password}@db.example.com/?tls=true"))?)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] names an option that cannot change while the client is in use, such as `hosts` or
    /// `replicaSet`, or an option that is invalid, such as a file that cannot be read. In that case, nothing changes.
    #[doc(alias("rotate", "reload"))]
    pub fn replace_options(&self, options: Options) -> Result<(), InvalidOption> {
        self.deployment().replace_options(options)
    }

    pub(crate) fn deployment(&self) -> &Arc<Deployment> {
        self.inner.deployment.here()
    }

    fn command_events(&self) -> &CommandEvents {
        &self.inner.command_events
    }

    fn sessions(&self) -> &ServerSessionPool {
        &self.inner.sessions
    }

    fn cluster_time(&self) -> &SharedClusterTime {
        &self.inner.cluster_time
    }

    /// Returns how long the servers keep an idle session. Returns `None` behind a load balancer, where sessions do not
    /// expire. If no server is known, returns the servers' default, because a session that has been idle for longer may
    /// have expired.
    fn session_timeout(&self) -> Option<Duration> {
        let snapshot = self.deployment().snapshot();
        if snapshot.topology.topology_type() == TopologyType::LoadBalanced {
            return None;
        }
        let minutes = snapshot.topology.logical_session_timeout_minutes().unwrap_or(DEFAULT_SESSION_TIMEOUT_MINUTES);
        Some(Duration::from_secs(u64::try_from(minutes).unwrap_or(0).saturating_mul(60)))
    }

    /// Waits until the client knows a server that the read preference in the options allows, starting the monitors if
    /// necessary.
    ///
    /// # Errors
    ///
    /// [`ServerSelectionError`] with the state of each server, after `serverSelectionTimeoutMS`.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn connect(&self) -> Result<(), ServerSelectionError> {
        self.connecting().await
    }

    fn connecting(&self) -> Boxed<'_, Result<(), ServerSelectionError>> {
        Box::pin(async {
            let preference = &self.options().read_preference;
            let wait_logged = WaitLogged::new();
            self.select(preference, LoggedOperation::Named("connect", None), Limit::Unset, &wait_logged).await.map(drop)
        })
    }

    async fn select(
        &self,
        preference: &ReadPreference,
        operation: LoggedOperation<'_>,
        limit: Limit,
        wait_logged: &WaitLogged,
    ) -> Result<Selected, ServerSelectionError> {
        let access = Access::Read(preference);
        if !logs_selections()
            && let Some(server) = self.deployment().select_at_once(access)
        {
            return Ok(server);
        }
        let demand = Demand { access, deprioritized: &[], only: None, operation, wait_logged };
        boxed(|| self.deployment().select(demand, limit.deadline())).await
    }

    /// Returns the time by which an operation that begins now must have selected a server and checked out a connection,
    /// according to `serverSelectionTimeoutMS`. Returns `None` without `timeoutMS`, because `waitQueueTimeoutMS` then
    /// limits the check-out separately (CSOT, "Server Selection"). Also returns `None` if the time is beyond the
    /// clock's range.
    #[inline]
    fn selection_end(&self, limit: Limit) -> Option<Instant> {
        if !limit.is_set() {
            return None;
        }
        Instant::now().checked_add(self.options().server_selection_timeout)
    }

    /// Checks out a connection to a server that the read preference allows, for a series of commands. If `timeoutMS` is
    /// set, the earlier of `timeoutMS` and `serverSelectionTimeoutMS` limits the selection of the server and the
    /// check-out together.
    ///
    /// Run the commands with [`run_on`](Self::run_on). The client does not notice commands that run through the
    /// connection's own methods. They cause no events or log messages, and carry no `lsid` or `$clusterTime`. Their
    /// errors do not change the client's view of the server.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if no server was found or no connection was available.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`Pool::check_out`](crate::Pool::check_out).
    #[track_caller]
    pub fn check_out<'c>(
        &'c self,
        preference: &'c ReadPreference,
    ) -> impl Future<Output = Result<Connection<Endpoint>, ClientError>> + Send + 'c {
        let site = Location::caller();
        async move {
            let limit = Limit::Unset.or(self.options().timeout).start();
            let wait_logged = WaitLogged::new();
            loop {
                let selection_end = self.selection_end(limit);
                let operation = LoggedOperation::Named("checkOut", None);
                let server = self.select(preference, operation, limit, &wait_logged).await?;
                match server.pool.check_out_for(limit, selection_end, site).await {
                    // The server left the deployment after it was selected.
                    Err(OperationError::CheckOut(CheckOutError::PoolClosed(_)))
                        if self.deployment().has_lost(&server) => {}
                    outcome => return Ok(outcome?),
                }
            }
        }
    }

    /// Sets whether the pools of all servers record, for each connection, the line of code and the task that checked it
    /// out. The connections in use are then listed in [`ServerStatus::holders`], and in the error from a check-out that
    /// timed out.
    ///
    /// Recording can be switched on and off at any time.
    /// [`Pool::account_for_holders`](crate::Pool::account_for_holders) describes its cost.
    pub fn account_for_holders(&self, on: bool) {
        self.deployment().account_for_holders(on);
    }

    /// Returns a snapshot of the deployment: its type, and each server with its pool.
    #[must_use]
    pub fn status(&self) -> ClientStatus {
        ClientStatus::of(&self.deployment().snapshot())
    }

    /// Returns the metrics of the pools of all current servers, in the order in which the client discovered the
    /// servers: [`PoolMetrics::address`] distinguishes them. When a server leaves the deployment, the metrics of its
    /// pool disappear. If the server comes back, they start again from zero. The exporters in
    /// [`telemetry`](crate::telemetry) take a client and export these metrics.
    #[must_use]
    pub fn metrics(&self) -> Vec<PoolMetrics> {
        let snapshot = self.deployment().snapshot();
        snapshot.servers().filter_map(|(server, member)| Some(status::metrics(server, member?))).collect()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("status", &self.status()).finish()
    }
}
