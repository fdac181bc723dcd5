//! Authentication: who the application is, proven on every connection before it is used.
//!
//! An [`Authenticator`] is made once for all endpoints of some options. It keeps what connections may share: the keys
//! derived from a password, and what the clouds' mechanisms remember. Each connection
//!
//! 1. sends the first message of the mechanism along with hello ([`Authenticator::speculation`]), which saves a round
//!    trip,
//! 2. holds the rest of the conversation ([`Authenticator::authenticate`]), and keeps the [`Authentication`] that
//!    results,
//! 3. and repeats it whenever the server wants it (error 391, [`Authentication::repeat`]).

use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf};

#[cfg(feature = "aws")]
mod aws;
mod conversation;
mod failure;
#[cfg(any(feature = "aws", feature = "oidc"))]
mod http;
#[cfg(feature = "oidc")]
mod oidc;
#[cfg(any(feature = "aws", feature = "oidc"))]
mod token_file;

pub use failure::{AuthenticationCause, AuthenticationFailed};

use conversation::Conversation;
use failure::AuthenticationCause as Cause;

use super::channel::Channel;
use super::deadline::Deadline;
use crate::options::{Credential, InvalidOption, Mechanism, Options, ServerAddress};
use crate::wire::HelloReply;

/// Authenticates connections by one credential.
#[derive(Debug)]
pub(super) struct Authenticator {
    credential: Credential,
    method: Method,
}

/// How it is done, with what the connections share for it.
#[derive(Debug)]
enum Method {
    #[cfg(feature = "aws")]
    Aws(aws::Aws),
    #[cfg(feature = "oidc")]
    Oidc(oidc::Oidc),
}

/// What hello carries for authentication.
#[derive(Debug, Default)]
pub(super) struct Speculation {
    /// `saslSupportedMechs`, if the mechanism is to be negotiated.
    pub supported_mechanisms_of: Option<String>,
    /// `speculativeAuthenticate`.
    pub command: Option<RawDocumentBuf>,
    state: Speculated,
}

/// What must be remembered of the message that was sent along with hello.
#[derive(Debug, Default)]
enum Speculated {
    #[default]
    Nothing,
    #[cfg(feature = "oidc")]
    Oidc(oidc::Token),
}

/// The authentication of one connection, and all that it takes to repeat it.
#[derive(Debug)]
pub(super) struct Authentication {
    authenticator: Arc<Authenticator>,
    address: ServerAddress,
    state: Authenticated,
}

/// What a connection was authenticated by.
#[derive(Debug)]
enum Authenticated {
    #[cfg(feature = "aws")]
    Aws,
    #[cfg(feature = "oidc")]
    Oidc(oidc::Token),
}

impl Authenticator {
    /// The authenticator for the options' credential; `None` if they have none.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the mechanism is not implemented or not compiled in, or lacks something.
    pub fn new(options: &Options) -> Result<Option<Arc<Self>>, InvalidOption> {
        let Some(credential) = &options.credential else { return Ok(None) };
        let method = match credential.mechanism {
            #[cfg(feature = "aws")]
            Some(Mechanism::MongoDbAws) => Method::Aws(aws::Aws::new(credential)?),
            #[cfg(feature = "oidc")]
            Some(Mechanism::MongoDbOidc) => Method::Oidc(oidc::Oidc::new(options)?),
            Some(mechanism) => return Err(not_compiled_in(mechanism)),
            None => return Err(not_compiled_in(Mechanism::ScramSha256)),
        };
        Ok(Some(Arc::new(Self { credential: credential.clone(), method })))
    }

    /// What to send along with hello. Without it authentication works just as well, with a round trip more.
    pub async fn speculation(&self, address: &ServerAddress) -> Speculation {
        match &self.method {
            #[cfg(feature = "aws")]
            Method::Aws(_) => Speculation::default(),
            #[cfg(feature = "oidc")]
            Method::Oidc(oidc) => match oidc.speculation(address) {
                None => Speculation::default(),
                Some((command, token)) => {
                    Speculation { command: Some(command), state: Speculated::Oidc(token), ..Speculation::default() }
                }
            },
        }
    }

    /// Authenticates a new connection, after its hello.
    ///
    /// `speculation` is what was sent along with that hello.
    pub async fn authenticate(
        self: &Arc<Self>,
        channel: &mut Channel,
        address: &ServerAddress,
        hello: &HelloReply,
        speculation: Speculation,
        deadline: Deadline,
    ) -> Result<Authentication, AuthenticationFailed> {
        let mut conversation = Conversation { channel, address, deadline };
        let reply = speculative_reply(hello);
        let state = match &self.method {
            #[cfg(feature = "aws")]
            Method::Aws(aws) => aws.authenticate(&mut conversation).await.map(|()| Authenticated::Aws),
            #[cfg(feature = "oidc")]
            Method::Oidc(oidc) => {
                let speculated = match (speculation.state, reply) {
                    (Speculated::Oidc(token), Some(reply)) => Some((token, reply)),
                    _ => None,
                };
                oidc.authenticate(&mut conversation, speculated).await.map(Authenticated::Oidc)
            }
        };
        match state {
            Ok(state) => Ok(Authentication { authenticator: Arc::clone(self), address: address.clone(), state }),
            Err(cause) => Err(self.failed(cause)),
        }
    }

    fn failed(&self, cause: Cause) -> AuthenticationFailed {
        AuthenticationFailed {
            mechanism: self.credential.mechanism.unwrap_or(Mechanism::ScramSha1),
            username: self.credential.username.clone(),
            database: self.credential.source.clone().unwrap_or_else(|| "admin".to_owned()),
            cause,
        }
    }
}

impl Authentication {
    /// Authenticates the connection again, because the server wants it (error 391), without another hello.
    ///
    /// # Errors
    ///
    /// [`AuthenticationFailed`]. The connection must not be used again then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the channel errored, if anything may have been sent.
    pub async fn repeat(&mut self, channel: &mut Channel, deadline: Deadline) -> Result<(), AuthenticationFailed> {
        let Self { authenticator, address, state } = self;
        let mut conversation = Conversation { channel, address, deadline };
        let outcome = match (&authenticator.method, state) {
            #[cfg(feature = "aws")]
            (Method::Aws(aws), _) => aws.authenticate(&mut conversation).await,
            #[cfg(feature = "oidc")]
            (Method::Oidc(oidc), Authenticated::Oidc(token)) => oidc.reauthenticate(&mut conversation, token).await,
            #[cfg(feature = "oidc")]
            (Method::Oidc(_), _) => unreachable!("BUG: a connection was authenticated by another mechanism"),
        };
        outcome.map_err(|cause| authenticator.failed(cause))
    }
}

/// The reply to the message that was sent along with hello, if the server heeded it.
fn speculative_reply(hello: &HelloReply) -> Option<&RawDocument> {
    hello.document.get_document("speculativeAuthenticate").ok()
}

/// The error for a mechanism that this build cannot use.
fn not_compiled_in(mechanism: Mechanism) -> InvalidOption {
    InvalidOption {
        option: "authMechanism",
        value: mechanism.name().to_owned(),
        allowed: "a mechanism that wharf was compiled with".to_owned(),
    }
}
