//! Operations that are prepared with options before they run.

use std::fmt;

use serde::de::DeserializeOwned;

use super::{ChangeStream, Client, Cursor};
use crate::client::{self, ClientError, OpenCursor, Query, TypedCommand, Watch, Write, Written};

/// A prepared operation: an [`OpenCursor`], a [`Query`], a [`TypedCommand`], a [`Write`] or a [`Watch`] from the
/// asynchronous client. `run` sends the operation, and waits for its outcome.
///
/// [`with`](Self::with) sets its options, which are the options of the asynchronous client:
///
/// ```no_run
/// # fn example(client: wharf::single::Client) -> Result<(), wharf::ClientError> {
/// use bson::doc;
///
/// let unpaid = client.find("shop", "orders", doc! { "paid": false });
/// for order in unpaid.with(|find| find.batch_size(100).options(doc! { "sort": { "_id": 1 } })).run()? {
///     println!("{:?}", order?);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "it is sent by `run`"]
pub struct Prepared<P> {
    client: Client,
    prepared: P,
}

impl<P> Prepared<P> {
    pub(super) fn new(client: Client, prepared: P) -> Self {
        Self { client, prepared }
    }

    /// Passes the prepared operation to `change`, which sets options with the operation's own methods.
    pub fn with(self, change: impl FnOnce(P) -> P) -> Self {
        Self { prepared: change(self.prepared), ..self }
    }
}

impl Prepared<OpenCursor<'_>> {
    /// Sends the query, and returns its results.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidOption`] if options conflict. [`ClientError::Reply`] if the reply contains no cursor.
    /// Otherwise the errors from [`Client::run`]. In a session, also [`ClientError::Session`] if the session does not
    /// allow the operation.
    pub fn run(self) -> Result<Cursor, ClientError> {
        let cursor: client::Cursor = self.client.run_prepared(self.prepared)??;
        Ok(Cursor::new(self.client, cursor))
    }
}

impl Prepared<Query<'_>> {
    /// Sends the query, and returns its results.
    ///
    /// # Errors
    ///
    /// [`ClientError::Argument`] if serde could not serialize the filter, the pipeline or the options, otherwise the
    /// errors from [`Client::run`].
    pub fn run(self) -> Result<Cursor, ClientError> {
        let cursor: client::Cursor = self.client.run_prepared(self.prepared)??;
        Ok(Cursor::new(self.client, cursor))
    }
}

impl<'c, R: DeserializeOwned> Prepared<TypedCommand<'c, R>> {
    /// Runs the command, and returns its reply.
    ///
    /// # Errors
    ///
    /// [`ClientError::Argument`] if serde could not serialize the command as a document. [`ClientError::Reply`] if it
    /// could not read the reply. Otherwise the errors from [`Client::run`].
    pub fn run(self) -> Result<R, ClientError> {
        self.client.run_prepared(self.prepared)?
    }
}

impl Prepared<Write<'_>> {
    /// Sends the writes.
    ///
    /// # Errors
    ///
    /// [`ClientError::Write`] if some statements may have been executed, otherwise the error with which the first
    /// command failed.
    pub fn run(self) -> Result<Written, ClientError> {
        self.client.run_prepared(self.prepared)?
    }
}

impl Prepared<Watch<'_>> {
    /// Opens the change stream.
    ///
    /// # Errors
    ///
    /// [`ClientError::Argument`] if serde could not serialize the pipeline, the stage or the options.
    /// [`ClientError::InvalidOption`] if `maxAwaitTimeMS` is not less than `timeoutMS`. Otherwise the errors of
    /// [`Client::run`].
    pub fn run(self) -> Result<ChangeStream, ClientError> {
        let stream = self.client.run_prepared(self.prepared)??;
        Ok(ChangeStream::new(self.client, stream))
    }
}

impl<P: fmt::Debug> fmt::Debug for Prepared<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.prepared.fmt(f)
    }
}
