//! Commands on a connection that is checked out of a pool.

use bson::{RawDocument, RawDocumentBuf};
use thiserror::Error;

use super::Endpoint;
use super::connection::CommandFailure;
use crate::error::{Labels, PoolCleared};
use crate::runtime::Connection;

impl Connection<Endpoint> {
    /// Runs `command` on `database`, and returns the reply of its success.
    ///
    /// It hides [`EndpointConnection::run_command`](super::EndpointConnection::run_command), which does the same but
    /// for one thing: this one ends when the pool is cleared with `interruptInUseConnections`, that one goes on waiting
    /// for a server that may never answer.
    ///
    /// The command is sent as it is, with `$db` appended, so it must not have a `$db` of its own. It takes as long as
    /// the server takes: bound it with a timeout of your own. A reply with `ok: 1` is a success also if it has
    /// `writeErrors` or a `writeConcernError`: look for them in replies to writes.
    ///
    /// # Errors
    ///
    /// [`OperationError::Failed`] when the command has no successful reply, [`OperationError::Interrupted`] when the
    /// pool was cleared. [`OperationError::is_retryable`] tells whether to try again, on another connection.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future after its first poll leaves the connection errored, because a reply may arrive that nobody
    /// waits for: check-in closes it, with the reason "error". Whether the server executes the command is then unknown.
    /// So it is after an interruption.
    pub async fn run_command(
        &mut self,
        database: &str,
        command: &RawDocument,
    ) -> Result<RawDocumentBuf, OperationError> {
        let outcome = self.interruptible(async |connection| connection.run_command(database, command).await).await?;
        Ok(outcome?)
    }
}

/// An operation on a connection of a pool did not succeed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OperationError {
    /// The command has no successful reply.
    #[error(transparent)]
    Failed(#[from] CommandFailure),
    /// The pool was cleared with `interruptInUseConnections` meanwhile. Retryable.
    #[error(transparent)]
    Interrupted(#[from] PoolCleared),
}

impl OperationError {
    /// Whether the operation may be tried again, whatever it is: the pool was cleared, the server says so with the label
    /// `RetryableError`, or the command was not sent.
    ///
    /// After a network failure the server may have executed the command, so only who knows the command can tell.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Interrupted(_) | Self::Failed(CommandFailure::Closed { .. }) => true,
            Self::Failed(CommandFailure::Command { source, .. }) => {
                Labels::RETRYABLE.names().all(|label| source.has_label(label))
            }
            Self::Failed(CommandFailure::Network { .. } | CommandFailure::Wire { .. }) => false,
        }
    }

    /// The address of the server.
    #[must_use]
    pub fn address(&self) -> &str {
        match self {
            Self::Failed(failure) => failure.address(),
            Self::Interrupted(cleared) => &cleared.address,
        }
    }
}
