//! What is reported when authentication fails.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use thiserror::Error;

use crate::endpoint::channel::ExchangeError;
use crate::endpoint::deadline::ConnectTimeout;
use crate::options::Mechanism;
use crate::wire::{CommandError, WireError};

/// A connection could not be authenticated.
#[derive(Debug)]
#[non_exhaustive]
pub struct AuthenticationFailed {
    /// The mechanism that was used.
    pub mechanism: Mechanism,
    /// The user's name, if the credential has one.
    pub username: Option<String>,
    /// `authSource`: the database that the user was looked for in.
    pub database: String,
    /// What went wrong.
    pub cause: AuthenticationCause,
}

impl fmt::Display for AuthenticationFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mechanism, username, database, cause } = self;
        match username {
            Some(username) => write!(f, "{username:?} of {database:?} by {}: {cause}", mechanism.name()),
            None => write!(f, "{}, without a user's name, of {database:?}: {cause}", mechanism.name()),
        }
    }
}

impl StdError for AuthenticationFailed {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.cause)
    }
}

/// Why a connection could not be authenticated.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AuthenticationCause {
    /// The server refused: the user or the proof is wrong, or the mechanism is not enabled.
    #[error(transparent)]
    Refused(Box<CommandError>),
    /// The network failed, or the server closed the connection.
    #[error("the network failed: {0}")]
    Network(#[source] io::Error),
    /// The server did not answer in time.
    #[error(transparent)]
    Timeout(ConnectTimeout),
    /// A reply breaks the protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The connection cannot carry a conversation, because an earlier exchange on it failed or was cancelled.
    #[error("the connection failed before")]
    Errored,
    /// The proof could not be obtained: from a file, a cloud's metadata service, or the application's callback.
    #[error("{0}")]
    Provider(#[source] Box<dyn StdError + Send + Sync>),
}

impl From<ExchangeError> for AuthenticationCause {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Network(error) => Self::Network(error),
            ExchangeError::Wire(error) => Self::Wire(error),
            ExchangeError::Errored => Self::Errored,
        }
    }
}
