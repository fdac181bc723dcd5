//! Starts sessions, for `Client` and for `single::Client`.

use std::fmt;
use std::future::{IntoFuture, Ready, ready};
use std::time::Duration;

use bson::Timestamp;

use super::super::Client;
use super::super::collection::{AnyClient, sealed};
use super::super::error::ClientError;
use super::Session;
use crate::client::session::{SessionOptions, TransactionOptions};
use crate::pool::runtime::Process;

impl Client {
    /// Prepares a session. Await it to start the session. This sends nothing: the server learns of the session from its
    /// first command.
    ///
    /// ```no_run
    /// # async fn example(client: wharf::Client) -> Result<(), wharf::ClientError> {
    /// use wharf::client::TransactionOptions;
    ///
    /// let mut session = client.start_session().await?;
    /// let mut snapshot = client.start_session().snapshot(true).await?;
    /// let options = TransactionOptions::default().read_concern("snapshot");
    /// let mut transactions = client.start_session().default_transaction_options(options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_session(&self) -> StartSession<'_> {
        StartSession::of(self)
    }
}

/// The start of a session: [`Client::start_session`].
///
/// If a session is idle for more than a minute between two operations, the server may end it.
#[must_use = "the session starts when the value is awaited or run"]
pub struct StartSession<'c, C = Client> {
    pub(crate) client: &'c C,
    options: SessionOptions,
}

impl<'c, C: AnyClient> StartSession<'c, C> {
    pub(crate) fn of(client: &'c C) -> Self {
        Self { client, options: SessionOptions::default() }
    }

    /// Sets `causalConsistency`: whether each operation sees the effects of earlier operations in the session, and the
    /// data that they read (Causal Consistency). Default: true, except with [`snapshot`](Self::snapshot).
    /// Unacknowledged writes are not seen.
    pub fn causal_consistency(mut self, value: bool) -> Self {
        self.options = self.options.causal_consistency(value);
        self
    }

    /// Sets `snapshot`: whether all reads in the session see the same point in time (Snapshot Reads). Needs MongoDB
    /// 5.0. Default: false.
    pub fn snapshot(mut self, value: bool) -> Self {
        self.options = self.options.snapshot(value);
        self
    }

    /// Sets `snapshotTime`: the point in time, from another session's [`Session::snapshot_time`]. Default: the point in
    /// time of the first read.
    pub fn snapshot_time(mut self, time: Timestamp) -> Self {
        self.options = self.options.snapshot_time(time);
        self
    }

    /// Sets `defaultTransactionOptions`: the options for transactions that do not set their own.
    pub fn default_transaction_options(mut self, options: TransactionOptions) -> Self {
        self.options = self.options.default_transaction_options(options);
        self
    }

    /// Sets `defaultTimeoutMS`: how long a commit, an abort or a whole `with_transaction` may take. Zero means no
    /// limit. Default: [`Options::timeout`](crate::Options#structfield.timeout).
    pub fn default_timeout(mut self, limit: Duration) -> Self {
        self.options = self.options.default_timeout(limit);
        self
    }

    /// Starts the session on the client that runs its operations.
    pub(crate) fn start(&self) -> Result<Session, ClientError> {
        let client = sealed::Client::running(self.client);
        let explicit = client.start_session_as(&self.options, false)?;
        Ok(Session { client: client.clone(), explicit, ends: true, process: Process::this() })
    }
}

impl IntoFuture for StartSession<'_> {
    type Output = Result<Session, ClientError>;
    type IntoFuture = Ready<Self::Output>;

    /// Starts the session. Sends nothing.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidOption`] if options conflict.
    fn into_future(self) -> Self::IntoFuture {
        ready(self.start())
    }
}

impl<C> fmt::Debug for StartSession<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StartSession").field("options", &self.options).finish_non_exhaustive()
    }
}
