//! Sessions and transactions.

use std::fmt;
use std::ops::ControlFlow;
use std::panic::Location;
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf, Timestamp};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Client, Prepared};
use crate::client::{
    self, BodyError, ClientError, End, OpenCursor, Operation, Query, Repeating, StartSession, TransactionOptions,
    TransactionState, TypedCommand, Watch, WatchTarget, Write,
};
use crate::endpoint::Limit;

/// A session. Its operations see the effects of earlier operations in the session (causal consistency), read the same
/// point in time (`snapshot`), or belong to a transaction. Start a session with [`Client::start_session`].
///
/// Operations in the session are methods of the session. Dropping the session aborts its transaction, and releases its
/// identifier for reuse. The drop blocks until the transaction is aborted, except with a
/// [`blocking::Client`](crate::blocking::Client), which aborts it on its own thread.
///
/// ```no_run
/// # fn example(client: wharf::single::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use bson::doc;
///
/// let take = doc! { "q": { "_id": 1 }, "u": { "$inc": { "n": -5 } } };
/// let give = doc! { "q": { "_id": 2 }, "u": { "$inc": { "n": 5 } } };
/// let mut session = client.start_session().run()?;
/// session.with_transaction(|session| {
///     session.update("bank", "accounts", [&take]).run()?;
///     session.update("bank", "accounts", [&give]).run()
/// })?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ClientSession")]
pub struct Session {
    client: Client,
    pub(super) session: client::Session,
}

impl Session {
    pub(super) fn new(client: Client, session: client::Session) -> Self {
        Self { client, session }
    }

    /// Returns the client that the session belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Runs an operation in this session. See [`Client::run`].
    ///
    /// # Errors
    ///
    /// The same as for [`Client::run`], and [`ClientError::Session`] if the session does not allow the operation.
    #[track_caller]
    pub fn run<'c>(&'c mut self, operation: impl Into<Operation<'c>>) -> Result<RawDocumentBuf, ClientError> {
        self.client.run(operation.into().session(&mut self.session))
    }

    /// Prepares any query in this session. See [`Client::cursor`].
    #[track_caller]
    pub fn cursor<'c>(&'c mut self, operation: impl Into<Operation<'c>>) -> Prepared<OpenCursor<'c>> {
        self.client.cursor(operation.into().session(&mut self.session))
    }

    /// Prepares a query in this session. See [`Client::find`].
    #[track_caller]
    pub fn find<'c>(&'c mut self, database: &'c str, collection: &str, filter: impl Serialize) -> Prepared<Query<'c>> {
        self.client.find(database, collection, filter).with(|find| find.session(&mut self.session))
    }

    /// Prepares an aggregation in this session. See [`Client::aggregate`].
    #[track_caller]
    pub fn aggregate<'c>(
        &'c mut self,
        database: &'c str,
        collection: &str,
        pipeline: impl Serialize,
    ) -> Prepared<Query<'c>> {
        self.client.aggregate(database, collection, pipeline).with(|query| query.session(&mut self.session))
    }

    /// Prepares a command in this session. See [`Client::run_typed`].
    #[track_caller]
    pub fn run_typed<'c, R: DeserializeOwned>(
        &'c mut self,
        database: &'c str,
        command: impl Serialize,
    ) -> Prepared<TypedCommand<'c, R>> {
        self.client.run_typed(database, command).with(|command| command.session(&mut self.session))
    }

    /// Prepares inserts in this session. See [`Client::insert`].
    #[track_caller]
    pub fn insert<'c>(
        &'c mut self,
        database: &'c str,
        collection: &'c str,
        documents: impl IntoIterator<Item = impl Serialize>,
    ) -> Prepared<Write<'c>> {
        self.client.insert(database, collection, documents).with(|write| write.session(&mut self.session))
    }

    /// Prepares updates in this session. See [`Client::update`].
    #[track_caller]
    pub fn update<'c>(
        &'c mut self,
        database: &'c str,
        collection: &'c str,
        statements: impl IntoIterator<Item = impl Serialize>,
    ) -> Prepared<Write<'c>> {
        self.client.update(database, collection, statements).with(|write| write.session(&mut self.session))
    }

    /// Prepares deletes in this session. See [`Client::delete`].
    #[track_caller]
    pub fn delete<'c>(
        &'c mut self,
        database: &'c str,
        collection: &'c str,
        statements: impl IntoIterator<Item = impl Serialize>,
    ) -> Prepared<Write<'c>> {
        self.client.delete(database, collection, statements).with(|write| write.session(&mut self.session))
    }

    /// Prepares writes in this session. See [`Client::write`].
    #[track_caller]
    pub fn write<'c>(&'c mut self, database: &'c str, collection: &'c str) -> Prepared<Write<'c>> {
        self.client.write(database, collection).with(|write| write.session(&mut self.session))
    }

    /// Prepares a change stream that belongs to this session. See [`Client::watch`].
    #[track_caller]
    pub fn watch<'c>(&'c mut self, target: WatchTarget<'c>, pipeline: impl Serialize) -> Prepared<Watch<'c>> {
        self.client.watch(target, pipeline).with(|watch| watch.session(&mut self.session))
    }

    /// Returns the value of `lsid` in the session's commands.
    #[must_use]
    pub fn id(&self) -> RawDocumentBuf {
        self.session.id()
    }

    /// Returns the newest `$clusterTime` that the session has seen.
    #[must_use]
    pub fn cluster_time(&self) -> Option<RawDocumentBuf> {
        self.session.cluster_time()
    }

    /// Returns the time of the session's latest operation.
    #[must_use]
    pub fn operation_time(&self) -> Option<Timestamp> {
        self.session.operation_time()
    }

    /// Returns the point in time that a session with `snapshot` reads, once it is known.
    #[must_use]
    pub fn snapshot_time(&self) -> Option<Timestamp> {
        self.session.snapshot_time()
    }

    /// Returns whether the session is pinned, and whether it is dirty, for the specification's tests.
    #[cfg(feature = "unstable")]
    #[doc(hidden)]
    #[must_use]
    pub fn is_pinned_and_dirty(&self) -> (bool, bool) {
        self.session.is_pinned_and_dirty()
    }

    /// Returns the state of the session's transaction.
    #[must_use]
    pub fn transaction_state(&self) -> TransactionState {
        self.session.transaction_state()
    }

    /// Advances the cluster time to that of another session, if that is newer.
    ///
    /// # Errors
    ///
    /// [`ClientError::Session`] if the document has no timestamp in `clusterTime`.
    pub fn advance_cluster_time(&mut self, cluster_time: &RawDocument) -> Result<(), ClientError> {
        self.session.advance_cluster_time(cluster_time)
    }

    /// Advances the operation time to that of another session, if that is newer, so that this session sees the effects
    /// of the other session.
    pub fn advance_operation_time(&mut self, time: Timestamp) {
        self.session.advance_operation_time(time);
    }

    /// Starts a transaction. Sends nothing: the server learns of the transaction from the first command.
    ///
    /// # Errors
    ///
    /// [`ClientError::Session`] in a transaction, in a session with `snapshot`, or for an unacknowledged write concern.
    pub fn start_transaction(&mut self, options: TransactionOptions) -> Result<(), ClientError> {
        self.session.start_transaction(options)
    }

    /// Commits the transaction. The method may be called again if the error has the label
    /// `UnknownTransactionCommitResult`.
    ///
    /// # Errors
    ///
    /// [`ClientError::Session`] if there is no transaction to commit, otherwise the error from the command, after one
    /// retry if the specification allows it.
    #[track_caller]
    pub fn commit_transaction(&mut self) -> Result<(), ClientError> {
        let (session, site) = (&mut self.session, Location::caller());
        self.client.drive_within(session.limit_of_commit(), |limit| session.end(End::Commit, Some(limit), site))?
    }

    /// Commits the transaction within this limit (`timeoutMS`). Zero means no limit.
    ///
    /// # Errors
    ///
    /// The same as for [`commit_transaction`](Self::commit_transaction).
    #[track_caller]
    pub fn commit_transaction_within(&mut self, limit: Duration) -> Result<(), ClientError> {
        let (session, site) = (&mut self.session, Location::caller());
        self.client.drive_within(Limit::of(limit), |limit| session.end(End::Commit, Some(limit), site))?
    }

    /// Aborts the transaction. The command's errors are not reported: the server aborts the transaction when it
    /// expires.
    ///
    /// # Errors
    ///
    /// [`ClientError::Session`] if there is no transaction to abort.
    #[track_caller]
    pub fn abort_transaction(&mut self) -> Result<(), ClientError> {
        let (session, site) = (&mut self.session, Location::caller());
        self.client.drive_within(session.limit_of_abort(), |limit| session.end(End::Abort, Some(limit), site))?
    }

    /// Aborts the transaction within this limit (`timeoutMS`). Zero means no limit.
    ///
    /// # Errors
    ///
    /// The same as for [`abort_transaction`](Self::abort_transaction).
    #[track_caller]
    pub fn abort_transaction_within(&mut self, limit: Duration) -> Result<(), ClientError> {
        let (session, site) = (&mut self.session, Location::caller());
        self.client.drive_within(Limit::of(limit), |limit| session.end(End::Abort, Some(limit), site))?
    }

    /// Runs `body` in a transaction and commits it. Repeats `body` and the commit if the labels of their errors allow
    /// it, for at most 120 seconds, or `defaultTimeoutMS` or `timeoutMS` if set (Convenient API for Transactions).
    ///
    /// `body` receives this session, and runs its operations in it. `body` may run several times, so any other effects
    /// should be safe to repeat. If it returns an error, the transaction is aborted.
    ///
    /// `body` must return the error from each command, and must not continue after an error: the error may have aborted
    /// the transaction on the server. [`client::Session::with_transaction`](crate::client::Session::with_transaction)
    /// describes what happens otherwise.
    ///
    /// # Errors
    ///
    /// The error from `body`, from starting the transaction, or from the commit.
    #[doc(alias = "and_run")]
    pub fn with_transaction<T>(
        &mut self,
        body: impl FnMut(&mut Self) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        self.with_transaction_as(TransactionOptions::default(), body)
    }

    /// Like [`with_transaction`](Self::with_transaction), with options for the transaction.
    ///
    /// # Errors
    ///
    /// The same as for [`with_transaction`](Self::with_transaction).
    pub fn with_transaction_options<T>(
        &mut self,
        options: TransactionOptions,
        body: impl FnMut(&mut Self) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        self.with_transaction_as(options, body)
    }

    /// Like [`with_transaction_options`](Self::with_transaction_options), but returns the error type of `body`, which
    /// may be the application's own type: see
    /// [`client::Session::with_transaction_as`](crate::client::Session::with_transaction_as).
    ///
    /// # Errors
    ///
    /// The same as for [`with_transaction`](Self::with_transaction), converted into the error type of `body`.
    pub fn with_transaction_as<E: BodyError<Kind>, T, Kind>(
        &mut self,
        options: TransactionOptions,
        mut body: impl FnMut(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut repeating = Repeating::begin(&self.session, options);
        let mut outcome = None;
        loop {
            let session = &mut self.session;
            let limit = session.limit_of_advance(matches!(outcome, Some(Err(_))));
            let advanced = self.client.drive_within(limit, |_| repeating.advance(session, outcome.take()));
            // If the call did not begin, the error from `body` is more informative than the error from the abort.
            if let (Err(_), Some(Err(error))) = (&advanced, outcome.take()) {
                return Err(error);
            }
            match advanced? {
                ControlFlow::Continue(_) => outcome = Some(body(self)),
                ControlFlow::Break(ended) => return ended,
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.session.abandon() {
            self.client.finish_kept();
        }
    }
}

impl StartSession<'_, Client> {
    /// Starts the session. Sends nothing, and does not block.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidOption`] if options conflict.
    pub fn run(self) -> Result<Session, ClientError> {
        Ok(Session::new(self.client.clone(), self.start()?))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.session.fmt(f)
    }
}
