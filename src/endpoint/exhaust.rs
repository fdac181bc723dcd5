//! Several replies to one command.

use bson::RawDocument;

use super::Endpoint;
use super::command::{Command, Limit, MaxTime};
use super::connection::EndpointConnection;
use super::failure::CommandError;
use super::pooled::OperationError;
use crate::runtime::Connection;
use crate::wire::Flags;

/// The replies to one command, which follow each other without being asked for (OP_MSG, "moreToCome on responses").
///
/// The connection is theirs until the last one. Dropping this before leaves it in the middle, and as only the server
/// knows how many replies there would be, it is not brought to an end: the connection is closed at check-in, which also
/// tells the server to stop.
#[derive(Debug)]
#[must_use = "nothing is sent before the first reply is asked for"]
pub struct Replies<'c, C> {
    connection: &'c mut C,
    /// For each reply.
    limit: Limit,
    is_over: bool,
}

impl EndpointConnection {
    /// Prepares `command` for which the server may send several replies (`exhaustAllowed`): `getMore`, and from server
    /// 4.4 on `hello` with a `topologyVersion`. To allow that for other commands is an error of the caller's.
    ///
    /// A time limit, the command's or that of [`Options::timeout`](crate::Options::timeout), is one for each reply. The
    /// server is not told of it.
    ///
    /// # Errors
    ///
    /// [`CommandError::Wire`], [`Lost`](CommandError::Lost) and [`Closed`](CommandError::Closed), as
    /// [`run`](Self::run). Nothing has been sent.
    pub fn exhaust(&mut self, command: Command<'_>) -> Result<Replies<'_, Self>, CommandError> {
        let limit = self.begin_exhaust(&command).map_err(|failure| *failure)?;
        Ok(Replies { connection: self, limit, is_over: false })
    }

    fn begin_exhaust(&mut self, command: &Command<'_>) -> Result<Limit, Box<CommandError>> {
        self.begin(&command.with_flags(Flags::EXHAUST_ALLOWED), MaxTime::NONE)?;
        Ok(match (command.limit, self.options().timeout) {
            (Limit::Unset, Some(timeout)) => Limit::of(timeout),
            (limit, _) => limit,
        })
    }
}

/// What a reply's failure means for those after it: after a timeout of the client's they go on.
fn ends_replies(failure: &CommandError) -> bool {
    failure.server_error().is_some() || !failure.is_timeout()
}

impl Replies<'_, EndpointConnection> {
    /// The next reply of success, as it lies in the connection's buffer; `None` after the last one.
    ///
    /// That a cursor is not at its end does not mean that there is another reply: ask for more with a command of its own
    /// then.
    ///
    /// # Errors
    ///
    /// Those of [`EndpointConnection::run`]. After [`CommandError::Timeout`] the replies go on, and the next one may be
    /// asked for again. After any other there are no more.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the next call returns the reply that this one would have.
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

    /// Whether the last reply has been returned.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}

impl Connection<Endpoint> {
    /// As [`EndpointConnection::exhaust`], but the replies end when the pool is cleared with
    /// `interruptInUseConnections`.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn exhaust(&mut self, command: Command<'_>) -> Result<Replies<'_, Self>, OperationError> {
        let begun = self.begin_exhaust(&command);
        let limit = begun.map_err(|failure| self.placed(*failure))?;
        Ok(Replies { connection: self, limit, is_over: false })
    }
}

impl Replies<'_, Connection<Endpoint>> {
    /// As the `next` of an [`EndpointConnection`]'s replies, but also ends when the pool is cleared with
    /// `interruptInUseConnections`.
    ///
    /// # Errors
    ///
    /// As there, and [`OperationError::Interrupted`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the next call returns the reply that this one would have.
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

    /// Whether the last reply has been returned.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }
}
