//! Authentication of every connection before it is used (Authentication specification).
//!
//! An [`Authenticator`] is created once for all endpoints with the same options. It holds the state that connections
//! share: the keys derived from a password, and the caches of the cloud mechanisms. Each connection
//!
//! 1. sends the mechanism's first message along with hello ([`Authenticator::speculation`]), which saves a round trip,
//! 2. completes the conversation ([`Authenticator::authenticate`]), and keeps the resulting [`Authentication`],
//! 3. authenticates again whenever the server asks for it (error 391, [`Authentication::repeat`]).
//!
//! To add a mechanism, add a variant to `Method`, a file here for its conversation, and a file in
//! [`wire::auth`](crate::endpoint::wire::auth) for its messages.

use std::io;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

#[cfg(feature = "aws")]
mod aws;
mod conversation;
mod error;
mod keys;
#[cfg(feature = "oidc")]
mod oidc;
mod scram;
#[cfg(any(feature = "aws", feature = "oidc"))]
mod token_file;

pub(super) use conversation::{Wiped, Wiping, without_text};
pub use error::{AuthenticationCause, AuthenticationError};

use conversation::Conversation;
use error::AuthenticationCause as Cause;
use keys::KeyCache;
use scram::Scram;

use super::channel::Channel;
use super::deadline::Deadline;
use crate::endpoint::options::{Credential, InvalidOption, Mechanism, Options, Secret, ServerAddress};
use crate::endpoint::wire::HelloReply;
use crate::endpoint::wire::auth::scram::Hash;
use crate::endpoint::wire::auth::{plain, sasl, x509};

/// Authenticates connections with one credential.
#[derive(Debug)]
pub(super) struct Authenticator {
    username: Option<String>,
    /// The database in which the user is defined.
    source: String,
    /// Whether the source is the database in the connection string's path for lack of an `authSource`.
    is_source_of_path: bool,
    method: Method,
}

/// The mechanism, and the state that connections share for it.
#[derive(Debug)]
enum Method {
    Scram(Scram),
    X509,
    Plain(Secret),
    #[cfg(feature = "aws")]
    Aws(aws::Aws),
    #[cfg(feature = "oidc")]
    Oidc(Box<oidc::Oidc>),
}

/// The fields that hello carries for authentication. This type does not implement `Debug`, because it may hold a token.
#[derive(Default)]
pub(super) struct Speculation {
    /// `saslSupportedMechs`, if the server and the client must negotiate the mechanism.
    pub supported_mechanisms_of: Option<String>,
    /// `speculativeAuthenticate`.
    pub command: Option<Wiped>,
    state: Speculated,
}

impl Speculation {
    /// Returns whether the command holds a secret, which the server's error may repeat.
    pub fn is_secret(&self) -> bool {
        match self.state {
            #[cfg(feature = "oidc")]
            Speculated::Oidc(_) => true,
            Speculated::Nothing | Speculated::Scram(_) | Speculated::X509 => false,
        }
    }
}

/// The state of the message that was sent along with hello.
#[derive(Default)]
enum Speculated {
    #[default]
    Nothing,
    Scram(scram::Begun),
    X509,
    #[cfg(feature = "oidc")]
    Oidc(oidc::Token),
}

/// The authentication of one connection, with the state for repeating it.
#[derive(Debug)]
pub(super) struct Authentication {
    authenticator: Arc<Authenticator>,
    address: ServerAddress,
    state: Authenticated,
}

/// The mechanism-specific state of an authenticated connection.
#[derive(Debug)]
enum Authenticated {
    Scram(Hash),
    X509,
    Plain,
    #[cfg(feature = "aws")]
    Aws,
    #[cfg(feature = "oidc")]
    Oidc(oidc::Token),
}

impl Authenticator {
    /// Creates the authenticator for the options' credential. Returns `None` if there is no credential.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the mechanism is not implemented or not compiled in, or if the credential is incomplete.
    pub fn new(options: &Options) -> Result<Option<Arc<Self>>, InvalidOption> {
        let Some(credential) = &options.credential else { return Ok(None) };
        let source = credential.effective_source(options.default_database.as_deref()).to_owned();
        let method = match credential.mechanism {
            None => Method::Scram(Scram::new(credential, &source, None)?),
            Some(Mechanism::ScramSha1) => Method::Scram(Scram::new(credential, &source, Some(Hash::Sha1))?),
            Some(Mechanism::ScramSha256) => Method::Scram(Scram::new(credential, &source, Some(Hash::Sha256))?),
            Some(Mechanism::MongoDbX509) => Method::X509,
            Some(Mechanism::Plain) => Method::Plain(plain_password(credential)?),
            #[cfg(feature = "aws")]
            Some(Mechanism::MongoDbAws) => Method::Aws(aws::Aws::new(credential)?),
            #[cfg(feature = "oidc")]
            Some(Mechanism::MongoDbOidc) => Method::Oidc(Box::new(oidc::Oidc::new(options)?)),
            #[allow(unreachable_patterns, reason = "reached only without the features of the arms above")]
            Some(mechanism @ (Mechanism::Gssapi | Mechanism::MongoDbAws | Mechanism::MongoDbOidc)) => {
                return Err(unavailable(mechanism));
            }
        };
        Ok(Some(Arc::new(Self {
            username: credential.username.clone(),
            is_source_of_path: credential.source.is_none() && options.default_database.as_deref() == Some(&*source),
            source,
            method,
        })))
    }

    /// Returns the parts of the authentication to send along with hello. Authentication also works without them, but
    /// takes one more round trip.
    #[cfg_attr(not(feature = "oidc"), expect(unused_variables, reason = "only OIDC needs the address"))]
    pub fn speculation(&self, address: &ServerAddress) -> Speculation {
        let (command, state) = match &self.method {
            Method::Scram(scram) => {
                // If random bytes are unavailable, the conversation that follows reports the error.
                let (command, state) = scram.speculation().map_or((None, Speculated::Nothing), |(command, begun)| {
                    (Some(Wiped::new(command)), Speculated::Scram(begun))
                });
                return Speculation { supported_mechanisms_of: scram.supported_mechanisms_of(), command, state };
            }
            Method::X509 => {
                let mut command = x509::command(self.username.as_deref());
                command.append(bson::raw::cstr!("db"), self.source.as_str());
                (Some(command), Speculated::X509)
            }
            // The specification defines no speculative authentication for PLAIN.
            Method::Plain(_) => (None, Speculated::Nothing),
            #[cfg(feature = "aws")]
            Method::Aws(_) => (None, Speculated::Nothing),
            #[cfg(feature = "oidc")]
            Method::Oidc(oidc) => match oidc.speculation(address) {
                None => (None, Speculated::Nothing),
                Some((command, token)) => (Some(command), Speculated::Oidc(token)),
            },
        };
        Speculation { supported_mechanisms_of: None, command: command.map(Wiped::new), state }
    }

    /// Authenticates a new connection after its hello. `speculation` was sent along with that hello.
    ///
    /// Returns `None` for an arbiter if `keeps_arbiter` is true: an arbiter has no users, so its handshake is complete
    /// without authentication. Otherwise an arbiter causes an error, because operations that rely on the credential
    /// would go to a server that has proven nothing.
    ///
    /// # Errors
    ///
    /// [`AuthenticationError`]. The connection must then be closed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the channel broken if anything may have been sent.
    pub async fn authenticate(
        self: &Arc<Self>,
        channel: &mut Channel,
        address: &ServerAddress,
        hello: &HelloReply,
        speculation: Speculation,
        deadline: Deadline,
        keeps_arbiter: bool,
    ) -> Result<Option<Authentication>, AuthenticationError> {
        if hello.is_arbiter() {
            let mechanism = self.mechanism(hello);
            return if keeps_arbiter { Ok(None) } else { Err(self.failed(mechanism, Cause::Arbiter)) };
        }
        let mut conversation = Conversation::new(channel, address, deadline);
        let speculated = (speculation.state, hello.speculative_authenticate());
        let state = match &self.method {
            Method::Scram(scram) => {
                let hash = scram.choose(hello.sasl_supported_mechanisms.as_deref());
                let begun = match speculated {
                    (Speculated::Scram(begun), Some(reply)) => Some((begun, reply)),
                    _ => None,
                };
                let outcome = scram.authenticate(&mut conversation, hash, begun).await;
                outcome.map(|()| Authenticated::Scram(hash)).map_err(|cause| self.failed(hash.mechanism(), cause))
            }
            Method::X509 => {
                let outcome = match speculated {
                    // The server replied with the user that it took from the certificate.
                    (Speculated::X509, Some(_)) => Ok(()),
                    _ => self.x509(&mut conversation).await,
                };
                outcome.map(|()| Authenticated::X509).map_err(|cause| self.failed(Mechanism::MongoDbX509, cause))
            }
            Method::Plain(password) => {
                let outcome = self.plain(&mut conversation, password).await;
                outcome.map(|()| Authenticated::Plain).map_err(|cause| self.failed(Mechanism::Plain, cause))
            }
            #[cfg(feature = "aws")]
            Method::Aws(aws) => {
                let outcome = aws.authenticate(&mut conversation).await;
                outcome.map(|()| Authenticated::Aws).map_err(|cause| self.failed(Mechanism::MongoDbAws, cause))
            }
            #[cfg(feature = "oidc")]
            Method::Oidc(oidc) => {
                let speculated = match speculated {
                    (Speculated::Oidc(token), Some(reply)) => Some((token, reply)),
                    _ => None,
                };
                let outcome = oidc.authenticate(&mut conversation, speculated).await;
                outcome.map(Authenticated::Oidc).map_err(|cause| self.failed(Mechanism::MongoDbOidc, cause))
            }
        }?;
        Ok(Some(Authentication { authenticator: Arc::clone(self), address: address.clone(), state }))
    }

    /// Returns the mechanism that the credential names, or the mechanism that was negotiated through the server's
    /// hello.
    fn mechanism(&self, hello: &HelloReply) -> Mechanism {
        match &self.method {
            Method::Scram(scram) => scram.choose(hello.sasl_supported_mechanisms.as_deref()).mechanism(),
            Method::X509 => Mechanism::MongoDbX509,
            Method::Plain(_) => Mechanism::Plain,
            #[cfg(feature = "aws")]
            Method::Aws(_) => Mechanism::MongoDbAws,
            #[cfg(feature = "oidc")]
            Method::Oidc(_) => Mechanism::MongoDbOidc,
        }
    }

    async fn x509(&self, conversation: &mut Conversation<'_>) -> Result<(), Cause> {
        conversation.run(&self.source, &x509::command(self.username.as_deref())).await.map(drop)
    }

    async fn plain(&self, conversation: &mut Conversation<'_>, password: &Secret) -> Result<(), Cause> {
        let username = self.username.as_deref().unwrap_or_default();
        let command = sasl::start(Mechanism::Plain, &plain::message(username, password.reveal()), None);
        let reply = sasl::SaslReply::read(conversation.run_secret(&self.source, command).await?)?;
        if reply.done { Ok(()) } else { Err(Cause::Endless) }
    }

    fn failed(&self, mechanism: Mechanism, cause: Cause) -> AuthenticationError {
        AuthenticationError {
            mechanism,
            username: self.username.clone(),
            database: self.source.clone(),
            cause,
            is_database_of_path: self.is_source_of_path,
        }
    }
}

impl Authentication {
    /// Authenticates the connection again at the server's request (error 391), without another hello.
    ///
    /// # Errors
    ///
    /// [`AuthenticationError`]. The connection must then not be used again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the channel broken if anything may have been sent.
    pub async fn repeat(&mut self, channel: &mut Channel, deadline: Deadline) -> Result<(), AuthenticationError> {
        let Self { authenticator, address, state } = self;
        let mut conversation = Conversation::new(channel, address, deadline);
        let (mechanism, outcome) = match (&authenticator.method, state) {
            (Method::Scram(scram), Authenticated::Scram(hash)) => {
                (hash.mechanism(), scram.authenticate(&mut conversation, *hash, None).await)
            }
            (Method::X509, _) => (Mechanism::MongoDbX509, authenticator.x509(&mut conversation).await),
            (Method::Plain(password), _) => (Mechanism::Plain, authenticator.plain(&mut conversation, password).await),
            #[cfg(feature = "aws")]
            (Method::Aws(aws), _) => (Mechanism::MongoDbAws, aws.authenticate(&mut conversation).await),
            #[cfg(feature = "oidc")]
            (Method::Oidc(oidc), Authenticated::Oidc(token)) => {
                (Mechanism::MongoDbOidc, oidc.reauthenticate(&mut conversation, token).await)
            }
            _ => unreachable!("BUG: a connection was not authenticated with its authenticator's mechanism"),
        };
        outcome.map_err(|cause| authenticator.failed(mechanism, cause))
    }
}

/// Returns unpredictable bytes as printable characters other than commas.
fn nonce() -> Result<String, Cause> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).map_err(|error| Cause::Randomness(io::Error::other(error.to_string())))?;
    Ok(BASE64.encode(bytes))
}

/// Returns the name and password that a mechanism needs.
fn name_and_password(credential: &Credential) -> Result<(&str, &Secret), InvalidOption> {
    let lacking = |option| {
        let reason = match credential.mechanism {
            Some(mechanism) => format!("with authMechanism={}", mechanism.name()),
            None => "without authMechanism, because the mechanism is SCRAM".to_owned(),
        };
        Err(InvalidOption::missing(option, reason))
    };
    match (credential.username.as_deref(), &credential.password) {
        (None | Some(""), _) => lacking("username"),
        (_, None) => lacking("password"),
        (Some(username), Some(password)) => Ok((username, password)),
    }
}

/// Returns the password for PLAIN. Refuses a username or password with a zero byte, because zero bytes separate the parts
/// of PLAIN's message.
fn plain_password(credential: &Credential) -> Result<Secret, InvalidOption> {
    let (username, password) = name_and_password(credential)?;
    for (option, text) in [("username", username), ("password", password.reveal())] {
        if text.contains('\0') {
            return Err(InvalidOption::because(option, "must not contain a zero byte with authMechanism=PLAIN"));
        }
    }
    Ok(password.clone())
}

/// Returns the error for a mechanism that wharf does not support, or that is not compiled in.
fn unavailable(mechanism: Mechanism) -> InvalidOption {
    let feature = |feature| format!(", because wharf was compiled without its feature `{feature}`");
    let reason = match mechanism {
        Mechanism::MongoDbAws => feature("aws"),
        Mechanism::MongoDbOidc => feature("oidc"),
        _ => String::new(),
    };
    let problem = format!("{} is not supported{reason}; use one of {}", mechanism.name(), Mechanism::supported());
    InvalidOption::because("authMechanism", problem)
}
