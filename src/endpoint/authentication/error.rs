//! Authentication errors.

use std::error::Error as StdError;
use std::fmt;
use std::io;

use thiserror::Error;

use crate::endpoint::channel::ExchangeError;
use crate::endpoint::deadline::ConnectTimeoutError;
use crate::endpoint::handshake;
use crate::endpoint::options::Mechanism;
use crate::endpoint::wire::auth::scram::ScramError;
use crate::endpoint::wire::{ServerError, WireError};
use crate::pool::error::{EstablishError, Stage};

/// Why a connection could not be authenticated.
///
/// This is the source of an [`EstablishError`] at [`Stage::Authenticate`]. It is also the source of a command's error
/// if the server answered the command by asking the connection to authenticate again. It contains the user's name, but
/// no secrets.
///
/// ```
/// use wharf::EstablishError;
/// use wharf::endpoint::AuthenticationError;
///
/// fn refused_user(error: &EstablishError) -> Option<&str> {
///     let error: &AuthenticationError = error.cause().downcast_ref()?;
///     error.server_error()?;
///     error.username.as_deref()
/// }
/// ```
#[non_exhaustive]
pub struct AuthenticationError {
    /// The mechanism that was used: the credential's mechanism, or the negotiated mechanism.
    pub mechanism: Mechanism,
    /// The user's name, if the credential has one.
    pub username: Option<String>,
    /// `authSource`: the database in which the user is defined.
    pub database: String,
    /// Why authentication failed.
    pub(crate) cause: AuthenticationCause,
    /// Whether the database comes from the connection string's path for lack of an `authSource`.
    pub(crate) is_database_of_path: bool,
}

crate::pool::error::debug_as_sentence!(AuthenticationError);

impl AuthenticationError {
    /// Returns the server's error, if the server refused a command.
    #[must_use]
    pub fn server_error(&self) -> Option<&ServerError> {
        match &self.cause {
            AuthenticationCause::Refused(error) => Some(error),
            _ => None,
        }
    }

    /// Converts the error into an establishment error.
    ///
    /// The pool adds no label to failures after hello (CMAP, "Backpressure-enabled"). A wrong password clears the pool,
    /// and so does a network failure during authentication. The labels and the retryability of the server's own error
    /// are kept.
    pub(in crate::endpoint) fn into_establish_error(self) -> EstablishError {
        let refused = self.server_error().cloned();
        let is_of_network = matches!(self.cause, AuthenticationCause::Network(_)) || self.cause.is_timeout();
        match refused {
            Some(error) => handshake::judged_by(&error, EstablishError::permanent(Stage::Authenticate, self)),
            None if is_of_network => EstablishError::network(Stage::Authenticate, self),
            None => EstablishError::permanent(Stage::Authenticate, self),
        }
    }
}

impl fmt::Display for AuthenticationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mechanism, username, database, cause, is_database_of_path } = self;
        match username {
            Some(username) => write!(f, "user {username:?} of database {database:?} ({}): {cause}", mechanism.name())?,
            None => write!(f, "database {database:?} ({}): {cause}", mechanism.name())?,
        }
        match cause {
            AuthenticationCause::Refused(_) if *is_database_of_path && database != "admin" => f.write_str(
                "; the database comes from the connection string's path: for a user of admin, add authSource=admin",
            ),
            _ => Ok(()),
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
    /// The server refused the authentication: the user name, the password or some other proof is wrong, or the
    /// mechanism is not enabled.
    #[error(transparent)]
    Refused(Box<ServerError>),
    /// The network failed, or the server closed the connection.
    #[error("the network failed: {0}")]
    Network(#[source] io::Error),
    /// Time ran out before authentication completed.
    #[error("{0}")]
    Timeout(#[source] ConnectTimeoutError),
    /// A reply violates the protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The server violates SCRAM or does not know the password, or the password cannot be used.
    #[error(transparent)]
    Scram(#[from] ScramError),
    /// The server continued a conversation that was already over.
    #[error("the server continued the conversation after its end")]
    Endless,
    /// The credentials or the token could not be obtained from a file, a cloud's metadata service, or the application's
    /// callback.
    #[error("{0}")]
    Provider(#[source] Box<dyn StdError + Send + Sync>),
    /// The server says that it is an arbiter. Arbiters have no users, and a pool with a credential does not use a
    /// server that cannot check the credential.
    #[error(
        "the server says that it is an arbiter, which has no users to authenticate; \
         remove the credential to use an arbiter"
    )]
    Arbiter,
    /// The operating system cannot supply random bytes.
    #[error("the operating system has no random bytes: {0}")]
    Randomness(#[source] io::Error),
    /// The runtime shut down while keys were being derived.
    #[error("the runtime shut down while keys were being derived from the password")]
    Interrupted,
    /// An earlier exchange on the connection failed or was cancelled, so the connection cannot carry a conversation.
    #[error("an earlier exchange on the connection failed or was cancelled")]
    NotReusable,
}

crate::pool::error::debug_as_sentence!(AuthenticationCause);

impl AuthenticationCause {
    /// Returns whether one of the client's time limits expired: `connectTimeoutMS`, the rest of `timeoutMS`, or the
    /// limit for an OIDC callback.
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
            ExchangeError::NotReusable => Self::NotReusable,
        }
    }
}
