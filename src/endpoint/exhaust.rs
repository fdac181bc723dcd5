//! Commands to which the server sends several replies.

use bson::RawDocument;

use super::Endpoint;
use super::command::{Command, Limit, MaxTime};
use super::connection::EndpointConnection;
use super::direct::DirectConnection;
use super::error::CommandError;
use super::pooled::OperationError;
use crate::endpoint::wire::Flags;
use crate::pool::runtime::Connection;

/// The replies that the server sends to one command without further requests (OP_MSG, "moreToCome on responses").
///
/// Borrows the connection until the last reply. Dropping this value earlier leaves the connection in the middle of the
/// stream. Only the server knows how many replies would follow, so the connection cannot be drained: check-in closes
/// it, which also tells the server to stop.
#[derive(Debug)]
#[must_use = "nothing is sent before the first reply is asked for"]
pub struct Replies<'c, C> {
    connection: &'c mut C,
    /// The time limit for each reply.
    limit: Limit,
    is_over: bool,
}

impl EndpointConnection {
    fn begin_exhaust(&mut self, command: &Command<'_>) -> Result<Limit, Box<CommandError>> {
        self.begin(&command.with_flags(Flags::EXHAUST_ALLOWED), MaxTime::NONE)?;
        Ok(match (command.limit, self.options().timeout) {
            (Limit::Unset, Some(timeout)) => Limit::of(timeout),
            (limit, _) => limit,
        })
    }
}

/// Returns whether a failed reply is the last. After the client's own timeout, more replies may follow.
fn ends_replies(failure: &CommandError) -> bool {
    failure.server_error().is_some() || !failure.is_timeout()
}

impl DirectConnection {
    /// Prepares `command`, to which the server may send several replies (`exhaustAllowed`).
    ///
    /// Use this only for `getMore` and, with server 4.4 or later, for `hello` with a `topologyVersion`.
    ///
    /// A time limit, whether from the command or from [`Options::timeout`](crate::Options::timeout), applies to each
    /// reply. It is not sent to the server.
    ///
    /// # Errors
    ///
    /// [`CommandError::Wire`], [`Lost`](CommandError::Lost) and [`NotReusable`](CommandError::NotReusable), as for
    /// [`run`](Self::run). Nothing is sent in these cases.
    pub fn exhaust(&mut self, command: Command<'_>) -> Result<Replies<'_, Self>, CommandError> {
        let limit = self.connection.begin_exhaust(&command).map_err(|failure| *failure)?;
        Ok(Replies { connection: self, limit, is_over: false })
    }
}

impl Replies<'_, DirectConnection> {
    /// Returns the next successful reply, borrowed from the connection's buffer, or `None` after the last reply.
    ///
    /// A cursor may still be open after the last reply. Run another command to get more documents from it.
    ///
    /// # Errors
    ///
    /// The same as for [`DirectConnection::run`]. After [`CommandError::Timeout`] the stream continues, and the call
    /// can be repeated. After any other error there are no more replies.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the next call returns the same reply.
    pub async fn next(&mut self) -> Result<Option<&RawDocument>, CommandError> {
        if self.is_over {
            return Ok(None);
        }
        let limit = self.limit.start();
        let reply = match self.connection.finish_in_time(limit).await {
            Ok(()) => self.connection.take(limit),
            Err(failure) => Err(failure),
        };
        match reply {
            Ok(reply) => {
                self.is_over = !reply.more_to_come;
                Ok(Some(self.connection.channel.body(&reply)))
            }
            Err(failure) => {
                self.is_over = ends_replies(&failure);
                Err(*failure)
            }
        }
    }

    /// Returns whether the last reply has been returned.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

impl Connection<Endpoint> {
    /// Like [`DirectConnection::exhaust`], but the replies stop when the pool is cleared with
    /// `interruptInUseConnections`.
    ///
    /// # Errors
    ///
    /// The same as for [`DirectConnection::exhaust`].
    pub fn exhaust(&mut self, command: Command<'_>) -> Result<Replies<'_, Self>, OperationError> {
        let begun = self.begin_exhaust(&command);
        let limit = begun.map_err(|failure| self.placed(*failure))?;
        Ok(Replies { connection: self, limit, is_over: false })
    }
}

impl Replies<'_, Connection<Endpoint>> {
    /// Like `next` on a [`DirectConnection`]'s replies, but also returns when the pool is cleared with
    /// `interruptInUseConnections`.
    ///
    /// # Errors
    ///
    /// The errors from `next` on a [`DirectConnection`]'s replies, and [`OperationError::Interrupted`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the next call returns the same reply.
    pub async fn next(&mut self) -> Result<Option<&RawDocument>, OperationError> {
        if self.is_over {
            return Ok(None);
        }
        let limit = self.limit.start();
        let reply = match self.connection.interruptible(async |one| one.finish_in_time(limit).await).await {
            Ok(Ok(())) => self.connection.take(limit),
            Ok(Err(failure)) => Err(failure),
            Err(_) => {
                self.is_over = true;
                return Err(self.connection.cut_short());
            }
        };
        match reply {
            Ok(reply) => {
                self.is_over = !reply.more_to_come;
                Ok(Some(self.connection.channel.body(&reply)))
            }
            Err(failure) => {
                self.is_over = ends_replies(&failure);
                Err(self.connection.placed(*failure))
            }
        }
    }

    /// Returns whether the last reply has been returned.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}
