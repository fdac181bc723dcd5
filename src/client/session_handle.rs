//! The application's sessions and transactions.

mod ending;
mod starting;
mod timed;

use std::fmt;
use std::ops::ControlFlow;
use std::panic::Location;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf, Timestamp};

pub(crate) use self::ending::End;
use self::ending::end_transaction;
pub use self::starting::StartSession;
use super::Client;
use super::command_events::Observation;
use super::error::{BodyError, ClientError};
use super::in_session::Explicit;
use super::repeating::Repeating;
use crate::client::session::{Moment, Session as State, SessionOptions, TransactionOptions, TransactionState};
use crate::endpoint::Limit;
use crate::endpoint::options::InvalidOption;
use crate::pool::error::Labels;
use crate::pool::runtime::{Boxed, Process};

impl Client {
    /// Starts a session for the application, or for an operation with several commands.
    pub(super) fn start_session_as(
        &self,
        options: &SessionOptions,
        is_implicit: bool,
    ) -> Result<Arc<Explicit>, InvalidOption> {
        let now = Moment::now();
        let state = match is_implicit {
            true => State::of_operation(now, options, self.options())?,
            false => State::new(self.sessions().acquire(now, self.session_timeout()), options, self.options())?,
        };
        Ok(Explicit::new(self.clone(), state, is_implicit))
    }
}

/// A session groups operations that see the effects of earlier operations in the session (causal consistency), that
/// read data from the same point in time (`snapshot`), or that belong to a transaction.
///
/// Pass the session to an operation with [`Operation::session`](crate::Operation::session). A session runs one
/// operation at a time. Dropping it aborts its transaction in the background, and gives its identifier back for reuse.
/// In a forked child, dropping one of the parent's sessions does not touch the transaction.
///
/// # Cancel safety
///
/// It is unknown whether the server executes a cancelled operation, but the operation's transaction can continue.
/// Behind a load balancer, the transaction cannot continue, because the cancellation closes its connection, and the
/// server then aborts it. Later operations and the commit then fail with
/// [`SessionError::TransactionCutOff`](super::SessionError), which has the `TransientTransactionError` label:
/// [`with_transaction`](Self::with_transaction) repeats the transaction, and callers that do not use it must abort the
/// transaction first.
///
/// ```no_run
/// # async fn example(client: wharf::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use bson::doc;
///
/// let take = doc! { "q": { "_id": 1 }, "u": { "$inc": { "n": -5 } } };
/// let give = doc! { "q": { "_id": 2 }, "u": { "$inc": { "n": 5 } } };
/// let mut session = client.start_session().await?;
/// session
///     .with_transaction(async |mut session| {
///         client.update("bank", "accounts", [&take]).session(&mut session).await?;
///         client.update("bank", "accounts", [&give]).session(&mut session).await?;
///         Ok(())
///     })
///     .await?;
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ClientSession")]
pub struct Session {
    client: Client,
    explicit: Arc<Explicit>,
    /// Whether dropping this value ends the session. The body of a transaction receives a second handle, which does not
    /// end the session.
    ends: bool,
    /// The process that started the session.
    process: Process,
}

impl Session {
    /// Returns the client that the session belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn explicit(&self) -> &Arc<Explicit> {
        &self.explicit
    }

    /// Returns the value of `lsid` in the session's commands.
    #[must_use]
    pub fn id(&self) -> RawDocumentBuf {
        self.explicit.lock().id().document()
    }

    /// Returns the newest `$clusterTime` that the session has seen.
    #[must_use]
    pub fn cluster_time(&self) -> Option<RawDocumentBuf> {
        self.explicit.lock().cluster_time().map(RawDocument::to_owned)
    }

    /// Returns the time of the session's latest operation.
    #[must_use]
    pub fn operation_time(&self) -> Option<Timestamp> {
        self.explicit.lock().operation_time()
    }

    /// Returns the point in time that a session with `snapshot` reads, once it is known.
    #[must_use]
    pub fn snapshot_time(&self) -> Option<Timestamp> {
        self.explicit.lock().snapshot_time()
    }

    /// Returns the state of the session's transaction.
    #[must_use]
    pub fn transaction_state(&self) -> TransactionState {
        self.explicit.lock().transaction_state()
    }

    /// Returns whether the session is pinned, and whether it is dirty, for the specification's tests.
    #[cfg(feature = "unstable")]
    #[doc(hidden)]
    #[must_use]
    pub fn is_pinned_and_dirty(&self) -> (bool, bool) {
        let state = self.explicit.lock();
        (state.is_pinned(), state.is_dirty())
    }

    /// Advances the cluster time to that of another session, if that is newer.
    ///
    /// # Errors
    ///
    /// [`ClientError::Session`] if the document has no timestamp in `clusterTime`.
    pub fn advance_cluster_time(&mut self, cluster_time: &RawDocument) -> Result<(), ClientError> {
        Ok(self.explicit.lock().advance_cluster_time(cluster_time)?)
    }

    /// Advances the operation time to that of another session, if that is newer, so that this session sees the effects
    /// of the other session.
    pub fn advance_operation_time(&mut self, time: Timestamp) {
        self.explicit.lock().advance_operation_time(time);
    }

    /// Starts a transaction. Sends nothing: the server learns of the transaction from the first command.
    ///
    /// If a command fails, the server may have aborted the transaction. The server then refuses the commit with the
    /// error `NoSuchTransaction`.
    ///
    /// # Errors
    ///
    /// [`ClientError::Session`] in a transaction, in a session with `snapshot`, or for an unacknowledged write concern.
    pub fn start_transaction(&mut self, options: TransactionOptions) -> Result<(), ClientError> {
        let started = self.explicit.start_transaction(options);
        // Drops the previous transaction's pin outside the lock.
        drop(started?);
        Ok(())
    }

    /// Commits the transaction. The method may be called again if the error has the label
    /// `UnknownTransactionCommitResult`.
    ///
    /// # Errors
    ///
    /// [`ClientError::Session`] if there is no transaction to commit, otherwise the error from the command, after one
    /// retry if the specification allows it. If the retry was not sent, this is the error from the previous attempt.
    ///
    /// # Cancel safety
    ///
    /// It is unknown whether the transaction was committed. You can call `commit_transaction` again.
    #[track_caller]
    pub fn commit_transaction(&mut self) -> impl Future<Output = Result<(), ClientError>> + Send + '_ {
        self.end(End::Commit, None, Location::caller())
    }

    /// Commits the transaction as [`commit_transaction`](Self::commit_transaction) does, but within this limit
    /// (`timeoutMS`). Zero means no limit.
    ///
    /// # Errors
    ///
    /// The same as for [`commit_transaction`](Self::commit_transaction).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`commit_transaction`](Self::commit_transaction).
    #[track_caller]
    pub fn commit_transaction_within(
        &mut self,
        limit: Duration,
    ) -> impl Future<Output = Result<(), ClientError>> + Send + '_ {
        self.end(End::Commit, Some(Limit::of(limit).start()), Location::caller())
    }

    /// Aborts the transaction as [`abort_transaction`](Self::abort_transaction) does, but within this limit
    /// (`timeoutMS`). Zero means no limit.
    ///
    /// # Errors
    ///
    /// The same as for [`abort_transaction`](Self::abort_transaction).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`abort_transaction`](Self::abort_transaction).
    #[track_caller]
    pub fn abort_transaction_within(
        &mut self,
        limit: Duration,
    ) -> impl Future<Output = Result<(), ClientError>> + Send + '_ {
        self.end(End::Abort, Some(Limit::of(limit).start()), Location::caller())
    }

    /// Aborts the transaction. The command's errors are not reported: the server aborts the transaction when it
    /// expires.
    ///
    /// Behind a load balancer, the abort waits while a cursor in the transaction is closing, for as long as the time
    /// limit allows. Without a limit, it waits for at most `serverSelectionTimeoutMS`, and then uses another
    /// connection.
    ///
    /// # Errors
    ///
    /// [`ClientError::Session`] if there is no transaction to abort.
    ///
    /// # Cancel safety
    ///
    /// The session treats the transaction as aborted, but the server may not abort it until it expires.
    #[track_caller]
    pub fn abort_transaction(&mut self) -> impl Future<Output = Result<(), ClientError>> + Send + '_ {
        self.end(End::Abort, None, Location::caller())
    }

    /// Runs `body` in a transaction and commits it. Repeats `body` and the commit if the labels of their errors allow
    /// it, for at most 120 seconds, or `defaultTimeoutMS` or `timeoutMS` if set (Convenient API for Transactions).
    ///
    /// `body` receives this session, and passes it to each of its operations. An operation without the session is not
    /// part of the transaction. `body` may run several times, so any other effects should be safe to repeat. If it
    /// returns an error, the transaction is aborted. For your own error type, call
    /// [`with_transaction_as`](Self::with_transaction_as). `body` may mutate its captured variables, but the compiler
    /// cannot prove that the future is then [`Send`]. In a spawned task, a web handler or an `async_trait`, call
    /// [`with_transaction_in_task`](Self::with_transaction_in_task) instead.
    ///
    /// ```no_run
    /// # async fn example(client: wharf::Client, mut session: wharf::client::Session) -> Result<(), wharf::ClientError> {
    /// use bson::doc;
    ///
    /// let mut counts = Vec::new();
    /// session
    ///     .with_transaction(async |mut session| {
    ///         counts.clear();
    ///         counts.push(client.insert("shop", "orders", [doc! {}]).session(&mut session).await?.inserted);
    ///         Ok(())
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// `body` must return the error from each command, and must not continue after an error: the error may have aborted
    /// the transaction on the server, as a duplicate key does. The commit is then refused with `NoSuchTransaction`,
    /// whose label `TransientTransactionError` makes `with_transaction` repeat everything until its time runs out. To
    /// handle command errors differently, use [`start_transaction`](Self::start_transaction),
    /// [`commit_transaction`](Self::commit_transaction) and [`abort_transaction`](Self::abort_transaction).
    ///
    /// `defaultTimeoutMS` or `timeoutMS` limits the whole call: the body's operations have the remaining time, and an
    /// operation with its own time limit fails with [`SessionError::TimeoutInTransaction`](super::SessionError).
    /// Operations outside the session are not limited. For the abort, the limit starts afresh.
    ///
    /// # Errors
    ///
    /// The error from `body`, from starting the transaction, or from the commit.
    ///
    /// # Cancel safety
    ///
    /// The transaction is aborted in the background. Until the abort has finished, the session refuses operations with
    /// [`SessionError::AbortInProgress`](super::SessionError). If the commit was in progress, its outcome is unknown.
    #[doc(alias("and_run", "and_run2"))]
    pub async fn with_transaction<T>(
        &mut self,
        body: impl AsyncFnMut(Session) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        self.with_transaction_as(TransactionOptions::default(), body).await
    }

    /// Like [`with_transaction`](Self::with_transaction), with options for the transaction.
    ///
    /// # Errors
    ///
    /// The same as for [`with_transaction`](Self::with_transaction).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`with_transaction`](Self::with_transaction).
    pub async fn with_transaction_options<T>(
        &mut self,
        options: TransactionOptions,
        body: impl AsyncFnMut(Session) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        self.with_transaction_as(options, body).await
    }

    /// Like [`with_transaction_options`](Self::with_transaction_options), but returns the error type of `body`, which
    /// may be the application's own type.
    ///
    /// The transaction is repeated if a source of the error has the `TransientTransactionError` label: see the example
    /// at [`BodyError`]. If the compiler cannot infer the error type, name it: `with_transaction_as::<MyError, _, _>`.
    ///
    /// # Errors
    ///
    /// The same as for [`with_transaction`](Self::with_transaction), converted into the error type of `body`.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`with_transaction`](Self::with_transaction).
    pub async fn with_transaction_as<E: BodyError<Kind>, T, Kind>(
        &mut self,
        options: TransactionOptions,
        mut body: impl AsyncFnMut(Session) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut repeating = Repeating::begin(self, options);
        let mut outcome = None;
        loop {
            match repeating.advance(self, outcome.take()).await {
                ControlFlow::Continue(session) => outcome = Some(body(session).await),
                ControlFlow::Break(ended) => return ended,
            }
        }
    }

    /// Like [`with_transaction_options`](Self::with_transaction_options), but the future is [`Send`] even if `body`
    /// borrows its captured variables: for spawned tasks, web handlers and `async_trait`. In return, `body` cannot
    /// mutate its captured variables.
    ///
    /// # Errors
    ///
    /// The same as for [`with_transaction`](Self::with_transaction).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`with_transaction`](Self::with_transaction).
    pub async fn with_transaction_in_task<T, F>(
        &mut self,
        options: TransactionOptions,
        body: impl FnMut(Session) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        self.with_transaction_in_task_as(options, body).await
    }

    /// Like [`with_transaction_in_task`](Self::with_transaction_in_task), but returns the error type of `body`, as
    /// [`with_transaction_as`](Self::with_transaction_as) does.
    ///
    /// # Errors
    ///
    /// The same as for [`with_transaction_as`](Self::with_transaction_as).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`with_transaction`](Self::with_transaction).
    pub async fn with_transaction_in_task_as<E: BodyError<Kind>, T, F, Kind>(
        &mut self,
        options: TransactionOptions,
        mut body: impl FnMut(Session) -> F,
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let mut repeating = Repeating::begin(self, options);
        let mut outcome = None;
        loop {
            match repeating.advance(self, outcome.take()).await {
                ControlFlow::Continue(session) => outcome = Some(body(session).await),
                ControlFlow::Break(ended) => return ended,
            }
        }
    }

    /// Returns how long a transaction may be repeated, if the options set a limit.
    pub(super) fn timeout_of(&self, options: &TransactionOptions) -> Option<Duration> {
        self.explicit.lock().timeout_of(options)
    }

    /// Returns a second handle to the session, for the body of a transaction. Dropping this handle does not end the
    /// session.
    pub(super) fn for_body(&self) -> Self {
        Self { client: self.client.clone(), explicit: self.explicit.clone(), ends: false, process: self.process }
    }

    /// Ends the transaction: sends the command, and repeats it once if the error allows it. `limit` has already
    /// started.
    pub(crate) fn end(
        &mut self,
        end: End,
        limit: Option<Limit>,
        site: &'static Location<'static>,
    ) -> Boxed<'_, Result<(), ClientError>> {
        Box::pin(async move {
            let observation = end.observe(&self.explicit, site);
            let ended = observation.within(pin!(self.send_end(end, limit, site, &observation))).await;
            let may_be_repeated = |error: &ClientError| error.labels().contains(Labels::UNKNOWN_COMMIT_RESULT);
            if observation.is_observed() && !ended.as_ref().is_err_and(may_be_repeated) {
                // The span of the commit ends first.
                drop(observation);
                self.explicit.replace_span(None);
            }
            ended
        })
    }

    async fn send_end(
        &self,
        end: End,
        limit: Option<Limit>,
        site: &'static Location<'static>,
        observation: &Observation,
    ) -> Result<(), ClientError> {
        let must_send = {
            let mut state = self.explicit.lock();
            match end {
                End::Commit => state.begin_commit()?,
                End::Abort => state.begin_abort()?,
            }
        };
        if !must_send {
            let unpinned = self.explicit.lock().unpin();
            drop(unpinned);
            return Ok(());
        }
        let ended = end_transaction(&self.explicit, end, limit, site, observation).await;
        match end {
            End::Commit => ended,
            // The server aborts the transaction when it expires.
            End::Abort => Ok(()),
        }
    }
}

impl Session {
    /// Cleans up after the session by aborting its transaction in the background. Returns whether there was a
    /// transaction to abort.
    pub(crate) fn abandon(&mut self) -> bool {
        if !std::mem::take(&mut self.ends) {
            return false;
        }
        if self.process.is_ancestor() {
            // The transaction, its connection and the runtime belong to the parent process.
            return false;
        }
        let aborts = abandon(&self.explicit) || self.explicit.lock().is_aborting();
        if !aborts {
            let unpinned = self.explicit.lock().unpin();
            drop(unpinned);
        }
        aborts
    }
}

/// Aborts, in the background, the transaction that a session or a call left open. Until the abort has finished, the
/// session refuses operations. Returns whether there is anything to abort.
pub(super) fn abandon(explicit: &Arc<Explicit>) -> bool {
    if !explicit.lock().abandon() {
        return false;
    }
    let (aborting, site) = (Aborting(explicit.clone()), Location::caller());
    if let Some(background) = explicit.client().deployment().background() {
        background.take(Box::pin(async move {
            let explicit = &aborting.0;
            // If the abort fails, the server aborts the transaction when it expires.
            let observation = End::Abort.observe(explicit, site);
            let _ = observation.within(pin!(end_transaction(explicit, End::Abort, None, site, &observation))).await;
            if observation.is_observed() {
                drop(observation);
                explicit.replace_span(None);
            }
            drop(aborting);
        }));
    }
    true
}

/// An abort in the background. Dropping the value stops the attempt to abort.
struct Aborting(Arc<Explicit>);

impl Drop for Aborting {
    fn drop(&mut self) {
        let unpinned = self.0.lock().abort_ended();
        drop(unpinned);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.explicit.lock().id()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sessions_expire_also_before_the_first_check_but_not_behind_a_load_balancer() {
        let timeout = |uri| Client::from_uri(uri).unwrap().session_timeout();
        assert_eq!(timeout("mongodb://localhost"), Some(Duration::from_secs(1_800)));
        assert_eq!(timeout("mongodb://localhost/?loadBalanced=true"), None);
    }
}
