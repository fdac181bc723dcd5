//! A connection without a pool.

use std::ops::{Deref, DerefMut};

use bson::{RawDocument, RawDocumentBuf};

use super::command::Command;
use super::connection::EndpointConnection;
use super::error::CommandError;
#[cfg(doc)]
use crate::pool::condition::Condition;
use crate::pool::runtime::boxed;

/// A connection without a pool, opened by [`Endpoint::connect`](super::Endpoint::connect). It is closed when it is
/// dropped.
///
/// Used by a monitor, or by a task that holds one connection for as long as it runs.
#[derive(Debug)]
pub struct DirectConnection {
    pub(super) connection: EndpointConnection,
}

impl Deref for DirectConnection {
    type Target = EndpointConnection;

    fn deref(&self) -> &EndpointConnection {
        &self.connection
    }
}

impl DerefMut for DirectConnection {
    fn deref_mut(&mut self) -> &mut EndpointConnection {
        &mut self.connection
    }
}

/// Lets an implementation of [`Establish`](crate::Establish) delegate to an endpoint, which opens the connections and
/// reports their condition.
impl From<DirectConnection> for EndpointConnection {
    fn from(direct: DirectConnection) -> Self {
        direct.connection
    }
}

impl DirectConnection {
    /// Runs `command` on `database`, and returns the server's successful reply. Shorthand for [`run`](Self::run) with
    /// [`Command::new`].
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use bson::rawdoc;
    /// use wharf::Endpoint;
    ///
    /// let mut connection = Endpoint::new("localhost")?.connect().await?;
    /// let reply = connection.run_command("admin", &rawdoc! { "ping": 1 }).await?;
    /// assert_eq!(reply.get_f64("ok")?, 1.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`run`](Self::run).
    pub async fn run_command(&mut self, database: &str, command: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
        self.run(Command::new(database, command)).await
    }

    /// Runs `command`, and returns the server's successful reply.
    ///
    /// Without a time limit, it waits for as long as the server takes. See [`Command::timeout`].
    ///
    /// A reply with `ok: 1` counts as success even if it contains `writeErrors` or a `writeConcernError`. Check replies
    /// to writes for these fields. The `writeConcernError` may be the only sign that the server is shutting down or is
    /// no longer primary (SDAM, "not writable primary and node is recovering"). Such a reply is not reported as an
    /// error, and no pool is cleared. A caller that tracks the state of servers passes each reply to a write to
    /// [`StateChange::of_reply`](super::StateChange::of_reply):
    ///
    /// ```
    /// use bson::rawdoc;
    /// use wharf::endpoint::StateChange;
    ///
    /// let reply = rawdoc! { "ok": 1, "n": 1, "writeConcernError": { "code": 91, "errmsg": "shutting down" } };
    /// assert_eq!(StateChange::of_reply(&reply), Some(StateChange::ShuttingDown));
    /// ```
    ///
    /// If the server asks the connection to authenticate again (error 391), the connection does so and runs the command
    /// once more.
    ///
    /// In the usual case this takes one write, one read, and one allocation for the reply.
    ///
    /// # Errors
    ///
    /// [`CommandError`] distinguishes a command that the server refused, a command whose outcome is unknown, and a
    /// command that was not sent. After a [`Network`](CommandError::Network) or [`Wire`](CommandError::Wire) error, and
    /// after a command that was sent times out, the connection's [`condition`](EndpointConnection::condition) is no
    /// longer [reusable](Condition::Reusable).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future after its first poll leaves the connection in the middle of the command, and the next
    /// command fails with [`CommandError::NotReusable`]. Whether the server executes the command is unknown.
    /// [`drain`](EndpointConnection::drain) finishes the command.
    pub async fn run(&mut self, command: Command<'_>) -> Result<RawDocumentBuf, CommandError> {
        let limit = command.limit(self.connection.options());
        let outcome = self.connection.complete(&command, limit).await.and_then(|()| self.connection.outcome(limit));
        let outcome = match outcome {
            Err(failure) if self.connection.must_authenticate(&failure) => {
                boxed(|| self.connection.run_again(command.within(limit))).await
            }
            outcome => outcome,
        };
        outcome.map_err(|failure| *failure)
    }

    /// Runs `command` on `database`, and returns the server's reply, whether it reports success or not.
    ///
    /// The reply is borrowed from the connection's buffer, so nothing is allocated in the steady state. The buffer
    /// keeps the memory allocated for a large reply until the next command. The connection does not authenticate again,
    /// even if the server asks it to.
    ///
    /// # Errors
    ///
    /// The same as for [`run`](Self::run), except [`CommandError::Server`] and a timeout that the server reports.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`run`](Self::run).
    pub async fn reply_to(&mut self, database: &str, command: &RawDocument) -> Result<&RawDocument, CommandError> {
        let command = Command::new(database, command);
        self.connection
            .complete(&command, command.limit(self.connection.options()))
            .await
            .map_err(|failure| *failure)?;
        let reply = self.connection.channel.take_reply().map_err(|error| *self.connection.identity.failed(error))?;
        Ok(self.connection.channel.body(&reply))
    }

    /// Sends `command`, to which the server does not reply (OP_MSG, "moreToCome on requests"). Completes when the
    /// operating system has accepted all of it.
    ///
    /// Used for a write with the write concern `{ w: 0 }`, which the command's document must contain.
    ///
    /// # Errors
    ///
    /// The same as for [`run`](Self::run), except the errors that depend on a reply. The outcome of the command remains
    /// unknown.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`run`](Self::run).
    pub async fn send(&mut self, command: Command<'_>) -> Result<(), CommandError> {
        self.connection.send_unanswered(command).await.map_err(|failure| *failure)
    }
}
