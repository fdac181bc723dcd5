//! What is reported when authentication fails.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use thiserror::Error;

use crate::endpoint::channel::ExchangeError;
use crate::endpoint::deadline::ConnectTimeoutError;
use crate::endpoint::handshake;
use crate::error::{EstablishError, Stage};
use crate::options::Mechanism;
use crate::wire::auth::scram::ScramError;
use crate::wire::{ServerError, WireError};

/// A connection could not be authenticated. It is the source of an [`EstablishError`] of [`Stage::Authenticate`], and of
/// the error of a command for which the server wanted the connection to be authenticated again.
///
/// It names the user, but nothing that is secret.
#[non_exhaustive]
pub struct AuthenticationError {
    /// The mechanism that was used: the one that the credential names, or the one that was negotiated.
    pub mechanism: Mechanism,
    /// The user's name, if the credential has one.
    pub username: Option<String>,
    /// `authSource`: the database that the user was looked for in.
    pub database: String,
    /// What went wrong.
    pub cause: AuthenticationCause,
}

crate::error::debug_as_sentence!(AuthenticationError);

impl AuthenticationError {
    /// The server's error, if it is the server that refused.
    #[must_use]
    pub fn server_error(&self) -> Option<&ServerError> {
        match &self.cause {
            AuthenticationCause::Refused(error) => Some(error),
            _ => None,
        }
    }

    /// The error of a connection's establishment.
    ///
    /// The pool adds no label to what happens after hello (CMAP, "Backpressure-enabled"): a wrong password clears the
    /// pool, and so does a network that fails here. What the server's own error says is kept.
    pub(in crate::endpoint) fn into_establish_error(self) -> EstablishError {
        let refused = self.server_error().cloned();
        let is_of_network = matches!(self.cause, AuthenticationCause::Network(_) | AuthenticationCause::Timeout(_));
        match refused {
            Some(error) => handshake::judged_by(&error, EstablishError::permanent(Stage::Authenticate, self)),
            None if is_of_network => EstablishError::network(Stage::Authenticate, self),
            None => EstablishError::permanent(Stage::Authenticate, self),
        }
    }
}

impl fmt::Display for AuthenticationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mechanism, username, database, cause } = self;
        match username {
            Some(username) => write!(f, "user {username:?} of database {database:?} ({}): {cause}", mechanism.name()),
            None => write!(f, "database {database:?} ({}): {cause}", mechanism.name()),
        }
    }
}

impl StdError for AuthenticationError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.cause)
    }
}

/// Why a connection could not be authenticated.
#[derive(Error)]
#[non_exhaustive]
pub enum AuthenticationCause {
    /// The server refused: the user or the proof is wrong, or the mechanism is not enabled.
    #[error(transparent)]
    Refused(Box<ServerError>),
    /// The network failed, or the server closed the connection.
    #[error("the network failed: {0}")]
    Network(#[source] io::Error),
    /// Not all was done in time.
    #[error("{0}")]
    Timeout(#[source] ConnectTimeoutError),
    /// A reply breaks the protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The server does not follow SCRAM, or does not know the password; or the password cannot be used.
    #[error(transparent)]
    Scram(#[from] ScramError),
    /// The server goes on with a conversation that is at its end.
    #[error("the server goes on with the conversation after its end")]
    Endless,
    /// The proof could not be obtained: from a file, a cloud's metadata service, or the application's callback.
    #[error("{0}")]
    Provider(#[source] Box<dyn StdError + Send + Sync>),
    /// The server says that it is an arbiter. Arbiters have no users, and a pool with a credential does not use a server
    /// that it cannot authenticate with.
    #[error(
        "the server says that it is an arbiter, which nobody can authenticate with; \
         leave the credential out to use an arbiter"
    )]
    Arbiter,
    /// The operating system has no random bytes.
    #[error("no random bytes: {0}")]
    Randomness(#[source] io::Error),
    /// The runtime shut down while keys were being derived.
    #[error("the runtime shut down while keys were being derived from the password")]
    Interrupted,
    /// The connection cannot carry a conversation, because an earlier exchange on it failed or was cancelled.
    #[error("an earlier exchange on the connection failed or was cancelled")]
    Errored,
}

crate::error::debug_as_sentence!(AuthenticationCause);

impl AuthenticationCause {
    /// Whether it was a time limit of the client: `connectTimeoutMS`, what was left of `timeoutMS`, or that of an OIDC
    /// callback, which may be either.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Timeout(_) => true,
            Self::Network(error) => error.kind() == io::ErrorKind::TimedOut,
            #[cfg(feature = "oidc")]
            Self::Provider(error) => super::oidc::is_timeout(&**error),
            _ => false,
        }
    }
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
