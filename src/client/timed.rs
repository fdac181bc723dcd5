//! Time limits that start before their operations, because a blocking call may have to wait for other calls first.

use std::panic::Location;

use bson::RawDocumentBuf;

use super::Client;
use super::error::ClientError;
use super::in_session::Explicit;
use super::operation::Operation;
use crate::client::session::SessionError;
use crate::endpoint::Limit;

/// A prepared operation that has a time limit.
pub(crate) trait Limited: IntoFuture + Sized {
    /// Returns the operation's time limit, `timeoutMS`, without starting the limit.
    ///
    /// # Errors
    ///
    /// [`SessionError::TimeoutInTransaction`] if both the operation and its session have a limit.
    fn limit(&self) -> Result<Limit, SessionError>;

    /// Sets [`limit`](Self::limit) to a limit that has already started.
    fn set_limit(&mut self, limit: Limit);

    /// Converts the operation into its future, with a limit that has already started.
    fn begin(mut self, limit: Limit) -> Self::IntoFuture {
        self.set_limit(limit);
        self.into_future()
    }
}

impl Client {
    /// Returns the first limit that is set: the session's limit, the operation's limit `own`, or the limit in the
    /// options.
    ///
    /// # Errors
    ///
    /// [`SessionError::TimeoutInTransaction`] if both the operation and its session have a limit.
    pub(super) fn limit_in(&self, session: Option<&Explicit>, own: Limit) -> Result<Limit, SessionError> {
        let of_session = session.map_or(Ok(None), |explicit| explicit.limit_of(own))?;
        Ok(of_session.unwrap_or_else(|| own.or(self.options().timeout)))
    }

    /// Returns the time limit of an operation, without starting the limit.
    ///
    /// # Errors
    ///
    /// [`SessionError::TimeoutInTransaction`] if both the operation and its session have a limit.
    pub(crate) fn limit_of(&self, operation: &Operation<'_>) -> Result<Limit, SessionError> {
        self.timeout_of(operation.limiting_session(), &operation.command)
    }

    /// Runs an operation for the caller at `site`. The limit comes from [`limit_of`](Self::limit_of), and is already
    /// running.
    pub(crate) fn run_within<'c>(
        &'c self,
        mut operation: Operation<'c>,
        limit: Limit,
        site: &'static Location<'static>,
    ) -> impl Future<Output = Result<RawDocumentBuf, ClientError>> + Send + 'c {
        operation.command.set_limit(limit);
        self.run_at(operation, site)
    }
}
