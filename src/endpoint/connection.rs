//! An established connection, and what can go wrong with a command on it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf};
use thiserror::Error;

use super::authentication::Authentication;
use super::channel::{Channel, ExchangeError};
use crate::options::Compressor;
use crate::wire::reply::{self, Unsuccessful};
use crate::wire::{CommandError, HelloReply, WireError};

/// An established connection to a MongoDB server. Dropping it closes it.
#[derive(Debug)]
pub struct EndpointConnection {
    address: Arc<str>,
    connection_id: u64,
    generation: u64,
    channel: Channel,
    compressor: Option<Compressor>,
    hello: HelloReply,
    authentication: Option<Box<Authentication>>,
}

/// All that a connection is when it has been established.
pub(super) struct Opened {
    /// The endpoint's address.
    pub address: Arc<str>,
    /// The connection's number in its pool; 0 if it belongs to none.
    pub connection_id: u64,
    /// The pool's generation when the connection was created; 0 if it belongs to none.
    pub generation: u64,
    pub channel: Channel,
    /// The compressor that was agreed on, for all messages that may be compressed; not for those of authentication.
    pub compressor: Option<Compressor>,
    pub hello: HelloReply,
    /// What repeats the authentication; `None` if there was none.
    pub authentication: Option<Box<Authentication>>,
}

impl EndpointConnection {
    pub(super) fn new(opened: Opened) -> Self {
        let Opened { address, connection_id, generation, channel, compressor, hello, authentication } = opened;
        Self { address, connection_id, generation, channel, compressor, hello, authentication }
    }

    /// Runs `command` on `database`, and returns the reply of its success.
    ///
    /// The command is sent as it is, with `$db` appended, so it must not have a `$db` of its own. It takes as long as
    /// the server takes: bound it with a timeout of your own. A reply with `ok: 1` is a success also if it has
    /// `writeErrors` or a `writeConcernError`: look for them in replies to writes.
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
    /// [`CommandFailure`] tells a command that the server refused from one whose outcome is unknown. After the latter
    /// [`is_errored`](Self::is_errored) is true.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future after its first poll leaves the connection errored, because a reply may arrive that nobody
    /// waits for: the pool closes it at check-in. Whether the server executes the command is then unknown.
    pub async fn run_command(
        &mut self,
        database: &str,
        command: &RawDocument,
    ) -> Result<RawDocumentBuf, CommandFailure> {
        let address = Arc::clone(&self.address);
        let reply = self.reply_to(database, command).await?;
        let outcome = match reply::check(reply) {
            Ok(()) => Ok(reply.to_owned()),
            Err(Unsuccessful::Command(error)) => Err(CommandFailure::Command { address, source: error }),
            Err(Unsuccessful::Wire(source)) => Err(CommandFailure::Wire { address, source }),
        };
        self.channel.trim();
        outcome
    }

    /// Runs `command` on `database`, and returns the server's reply whether it reports success or not.
    ///
    /// The reply is borrowed from the connection's buffer: in the steady state nothing is allocated.
    ///
    /// # Errors
    ///
    /// Those of [`run_command`](Self::run_command) but for [`CommandFailure::Command`].
    ///
    /// # Cancel safety
    ///
    /// That of [`run_command`](Self::run_command).
    pub async fn reply_to(&mut self, database: &str, command: &RawDocument) -> Result<&RawDocument, CommandFailure> {
        let Self { address, channel, .. } = self;
        channel.exchange(database, command).await.map_err(|error| {
            let address = Arc::clone(address);
            match error {
                ExchangeError::Network(source) => CommandFailure::Network { address, source },
                ExchangeError::Wire(source) => CommandFailure::Wire { address, source },
                ExchangeError::Errored => CommandFailure::Closed { address },
            }
        })
    }

    /// Whether the connection can run no further command: an earlier one met a network or protocol error, or was
    /// cancelled.
    #[must_use]
    pub fn is_errored(&self) -> bool {
        self.channel.is_errored()
    }

    /// The address of the endpoint that opened the connection.
    #[must_use]
    pub fn address(&self) -> &Arc<str> {
        &self.address
    }

    /// The server's reply to the handshake on this very connection, with its limits.
    #[must_use]
    pub fn hello(&self) -> &HelloReply {
        &self.hello
    }

    /// This end's socket address.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.channel.transport().local()
    }

    /// The server's socket address.
    #[must_use]
    pub fn peer_address(&self) -> SocketAddr {
        self.channel.transport().peer()
    }

    pub(super) fn abandon_after_fork(self) {
        self.channel.into_transport().abandon_after_fork();
    }
}

/// A command has no successful reply.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CommandFailure {
    /// The server executed the command, or refused to, and says that it failed. The connection is as good as before.
    /// The error's labels tell whether to try again.
    #[error("Command on {address} failed: {source}")]
    Command {
        /// The endpoint's address.
        address: Arc<str>,
        /// What the server says.
        source: Box<CommandError>,
    },
    /// The network failed, or the server closed the connection. The command may or may not have been executed.
    #[error("Connection to {address} failed during a command: {source}")]
    Network {
        /// The endpoint's address.
        address: Arc<str>,
        /// The operating system's error, or [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
        source: io::Error,
    },
    /// The command is too large to be sent, in which case the connection is as good as before; or the reply breaks the
    /// protocol, and then trying again does not help.
    #[error("Wire protocol error on a connection to {address}: {source}")]
    Wire {
        /// The endpoint's address.
        address: Arc<str>,
        /// The field that is not as it must be.
        source: WireError,
    },
    /// The connection was errored before, so the command was not sent. It may be run on another connection.
    #[error("Connection to {address} cannot be used again after an earlier failure or cancellation")]
    Closed {
        /// The endpoint's address.
        address: Arc<str>,
    },
}

impl CommandFailure {
    /// The endpoint's address.
    #[must_use]
    pub fn address(&self) -> &str {
        match self {
            Self::Command { address, .. }
            | Self::Network { address, .. }
            | Self::Wire { address, .. }
            | Self::Closed { address } => address,
        }
    }

    /// The server's error, if it is the server that says the command failed.
    #[must_use]
    pub fn command_error(&self) -> Option<&CommandError> {
        match self {
            Self::Command { source, .. } => Some(source),
            _ => None,
        }
    }
}
