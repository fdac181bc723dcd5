//! Connections to MongoDB servers: from a server's address to an established connection that runs commands.
//!
//! An [`Endpoint`] opens connections to one server, either for a pool (it implements [`Establish`]) or one at a time
//! ([`Endpoint::connect`]). Establishing a connection takes three steps, under one deadline:
//!
//! 1. `transport` opens a stream: over TCP to the first of the server's addresses that accepts the connection, through
//!    a SOCKS5 proxy, or to a Unix domain socket. Then it sets up TLS.
//! 2. `handshake` exchanges hello in `OP_MSG` (`channel`, over `wire`).
//! 3. `authentication` authenticates the application, if the options have a credential.
//!
//! Commands then run as exchanges. An exchange belongs to the channel rather than to the task that is waiting for it.
//! When a command is cancelled, the pool drains the connection (`drain`).
//!
//! The `channel` does not interpret the bytes that the `transport` carries. It compresses between encoding and writing,
//! and decompresses between reading and decoding.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::{Instrument, debug_span};

use crate::pool::condition::Condition;
use crate::pool::error::{Cause, EstablishError, Stage};
use crate::pool::runtime::{Boxed, Establish, Establishing, Pool, PoolBuilder, TARGET, boxed};
use crate::pool::service_id::ServiceId;
use options::{DriverInfo, InvalidOption, Options, ServerAddress};

mod authentication;
mod channel;
mod command;
mod connection;
mod deadline;
mod decompressing;
mod direct;
mod drain;
mod error;
mod exhaust;
mod foreign;
mod handshake;
mod host_name;
#[cfg(any(feature = "aws", feature = "oidc", feature = "ocsp"))]
mod http;
mod inbox;
pub(crate) mod options;
mod platform;
mod pooled;
mod prepared;
mod regular_file;
mod service_id;
mod srv;
mod stages;
#[cfg(test)]
mod tests;
mod transport;
pub(crate) mod wire;

pub use authentication::AuthenticationError;
pub use command::Command;
pub(crate) use command::Limit;
pub use connection::EndpointConnection;
pub use deadline::ConnectTimeoutError;
pub use direct::DirectConnection;
pub use error::{CommandError, CommandTimeoutError, Origin};
pub use exhaust::Replies;
pub(crate) use handshake::Handshake;
pub(crate) use platform::is_function;
pub use pooled::OperationError;
pub use srv::ResolveError;
#[cfg(feature = "srv")]
pub use srv::hickory_resolver;
pub(crate) use srv::{Resolver, SHORTEST_RESCAN, choose, resolve_again, resolve_first};

#[doc(inline)]
pub use wire::PeerText;
#[doc(inline)]
pub use wire::hello::HelloReply;
#[doc(inline)]
pub use wire::op_msg::{OutgoingDocuments, OutgoingSequence};
#[doc(inline)]
pub use wire::reply::{ServerError, StateChange, WriteConcernError};

/// The reasons why a connection could not be opened. An application reads the error's text, or calls the methods of
/// [`EstablishError`].
#[cfg(any(feature = "unstable", test))]
pub(crate) mod causes {
    pub use super::authentication::AuthenticationCause;
    pub use super::foreign::ForeignProtocolError;
    #[cfg(feature = "tls")]
    pub use super::transport::TlsError;
    pub use super::transport::{ConnectAttempt, ConnectError, ProxyError};
}

use authentication::{Authenticator, Speculation, Wiping};
use channel::Channel;
pub(crate) use connection::AwaitsDrain;
use connection::Opened;
use deadline::Deadline;
use stages::Stages;
use transport::{Connector, Connectors};

/// A MongoDB server, or a load balancer in front of several servers, and how to open connections to it.
///
/// Clones, and all endpoints made by one call to [`Options::endpoints`], share TLS sessions, authentication keys and
/// tokens.
///
/// ```
/// use std::time::Duration;
/// use wharf::Options;
///
/// let options = Options::new(["localhost"])?.app_name("shop").connect_timeout(Duration::from_secs(2));
/// let endpoint = options.endpoint()?;
/// assert_eq!(endpoint.address(), "localhost:27017");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Endpoint {
    address: ServerAddress,
    options: Arc<Options>,
    connector: Connector,
    handshake: Arc<Handshake>,
    /// `None` if the options have no credential.
    authenticator: Option<Arc<Authenticator>>,
    observer: Option<Arc<dyn Observer>>,
}

/// Lets a client take part in opening a pool's connections. The client sets the terms, and receives each reply to
/// hello.
pub(crate) trait Observer: fmt::Debug + Send + Sync {
    /// Returns the terms on which the next connection is opened, or the error that the attempt fails with.
    fn terms(&self) -> Result<Terms, EstablishError>;

    /// Receives the reply to a connection's hello, the time that the reply took, and the connection's generation.
    fn greeted(&self, hello: &HelloReply, took: Duration, generation: u64);
}

/// The terms on which a connection is opened.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    /// Whether the handshake is a check of the server. If so, wire versions that wharf does not support are not
    /// refused, because the topology reports them. In addition, only `connectTimeoutMS` limits the opening of a pooled
    /// connection (Server Monitoring, "Socket timeout").
    pub(crate) is_check: bool,
    /// Whether to keep a connection to a server that calls itself an arbiter, although the connection cannot be
    /// authenticated.
    pub(crate) keeps_arbiter: bool,
}

impl Options {
    /// Returns the endpoint of a deployment with one server.
    ///
    /// Reads the files that the options name. Does not look anything up or connect. Options that no pool applies are
    /// logged as warnings, or are errors after [`Options::parse_strict`]: see [`Options::unapplied`].
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if [`Options::validate`] fails, a file is refused, or there is not exactly one host.
    pub fn endpoint(&self) -> Result<Endpoint, InvalidOption> {
        let mut endpoints = self.endpoints()?;
        match (endpoints.pop(), endpoints.len()) {
            (Some(endpoint), 0) => Ok(endpoint),
            (_, others) => Err(InvalidOption::because(
                "hosts",
                format!("must name one host, not {}; use Options::endpoints for several", others + 1),
            )),
        }
    }

    /// Returns the endpoints of the deployment's servers, in the order of the hosts. Each endpoint is meant to have its
    /// own [pool](Endpoint::pool).
    ///
    /// Reads the files that the options name. Does not look anything up or connect. Options that no pool applies are
    /// logged as warnings, or are errors after [`Options::parse_strict`]: see [`Options::unapplied`].
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if [`Options::validate`] fails, a file is refused, the servers are not
    /// [resolved](Options::resolve) yet, or the credential's mechanism is not supported or lacks something that it
    /// needs, such as a password or a client certificate.
    pub fn endpoints(&self) -> Result<Vec<Endpoint>, InvalidOption> {
        self.validate()?;
        self.check_resolved()?;
        let endpoints = Endpoints::new(Arc::new(self.clone()), Arc::new(Handshake::new(self)?))?;
        self.check_applied()?;
        self.hosts.iter().map(|address| endpoints.at(address)).collect()
    }
}

/// Creates the endpoints of one deployment, whose servers may become known later.
#[derive(Debug)]
pub(crate) struct Endpoints {
    options: Arc<Options>,
    connectors: Connectors,
    handshake: Arc<Handshake>,
    authenticator: Option<Arc<Authenticator>>,
}

impl Endpoints {
    /// Reads the files that the options name. The handshake must have been made from these options, or from options
    /// that differ only in the servers, the credential and the time limits.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if [`Options::validate`] fails, a file is refused, or the credential's mechanism is not
    /// supported or lacks something that it needs, such as a password or a client certificate.
    pub(crate) fn new(options: Arc<Options>, handshake: Arc<Handshake>) -> Result<Self, InvalidOption> {
        options.validate()?;
        options.check_certificate()?;
        let authenticator = Authenticator::new(&options)?;
        let connectors = Connectors::new(&options)?;
        Ok(Self { options, connectors, handshake, authenticator })
    }

    /// Returns the endpoint at an address.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the address and the options conflict, such as a zone with a proxy.
    pub(crate) fn at(&self, address: &ServerAddress) -> Result<Endpoint, InvalidOption> {
        Ok(Endpoint {
            address: address.clone(),
            connector: self.connectors.connector(address)?,
            options: self.options.clone(),
            handshake: self.handshake.clone(),
            authenticator: self.authenticator.clone(),
            observer: None,
        })
    }
}

impl Endpoint {
    /// Creates an endpoint with default options for `address`: `host`, `host:port`, `[IPv6]` or `[IPv6]:port`. The
    /// default port is 27017.
    ///
    /// Does not look anything up or connect.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the address is malformed. The error states which forms are allowed.
    pub fn new(address: &str) -> Result<Self, InvalidOption> {
        // With default options, only the address can be refused. The path of a socket is not checked before this point.
        let allowed = "a path that a Unix domain socket can have on this platform, if it is a path";
        Options::new([address])?.endpoint().map_err(|_| ServerAddress::refuse(address, allowed))
    }

    /// Returns the endpoint with an observer of its connections.
    pub(crate) fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Returns a builder for a pool of connections to this endpoint, with the endpoint's pool options. The pool is
    /// paused until [`Pool::ready`].
    pub fn pool(self) -> PoolBuilder<Self> {
        let options = self.options.pool.clone().load_balanced(self.options.is_load_balanced());
        let timeout = self.options.timeout;
        Pool::builder(&self.address.text.clone(), self).options(options).timeout(timeout)
    }

    /// Returns the server's address, `host:port`, with the host in lower case and an IPv6 address in brackets.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address.text
    }

    /// Returns the options that the endpoint was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Appends the name of a wrapping library to the metadata that connections send with their hello (MongoDB
    /// Handshake, "Metadata updates after MongoClient initialization").
    ///
    /// This applies to connections that are opened from now on by this endpoint, its clones, its pool, and all endpoints
    /// that were made together with it. A library that was already appended is not appended again.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the name is missing, a field contains `|`, or the metadata would be longer than 512 bytes.
    pub fn append_metadata(&self, library: DriverInfo) -> Result<(), InvalidOption> {
        self.handshake.append_metadata(library)
    }

    /// Opens a connection without a pool, never in load-balanced mode.
    ///
    /// The connection is registered with the tokio runtime that polls the future, and is unusable once that runtime has
    /// shut down.
    ///
    /// # Errors
    ///
    /// [`EstablishError`] says how far the attempt got. Among its causes are [`io::Error`](std::io::Error),
    /// [`ConnectTimeoutError`], [`AuthenticationError`], and [`ServerError`] for a hello that the server refused.
    ///
    /// A server that calls itself an arbiter has no users, so the connection is not authenticated even if the options
    /// have a credential: see [`EndpointConnection::is_authenticated`]. A pool refuses such a connection, because a
    /// server that does not know the password can also call itself an arbiter.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes every stream that it opened. Nothing else is lost.
    pub async fn connect(&self) -> Result<DirectConnection, EstablishError> {
        Ok(self.open_directly(false).await?.0)
    }

    /// Opens a monitor's connection, and returns it with the time that its hello took. A server whose wire versions
    /// wharf does not support is not refused here: the topology reports it.
    ///
    /// # Errors
    ///
    /// The same as for [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`connect`](Self::connect).
    pub(crate) async fn probe(&self) -> Result<(DirectConnection, Duration), EstablishError> {
        self.open_directly(true).await
    }

    async fn open_directly(&self, is_check: bool) -> Result<(DirectConnection, Duration), EstablishError> {
        let (connection, took) = self
            .open(OpenContext {
                connection_id: 0,
                generation: 0,
                each_command: None,
                identify: None,
                stages: Stages::UNMEASURED,
                terms: Terms { is_check, keeps_arbiter: true },
            })
            .await?;
        Ok((DirectConnection { connection }, took))
    }

    /// Opens a connection for `context`, in load-balanced mode if its pool is in that mode. Returns it with the time that
    /// its hello took.
    fn open<'e>(
        &'e self,
        context: OpenContext<'e>,
    ) -> Boxed<'e, Result<(EndpointConnection, Duration), EstablishError>> {
        Box::pin(async move {
            let runtime = Handle::try_current().map_err(|_| EstablishError::permanent(Stage::Resolve, NotOnRuntime))?;
            let deadline = Deadline::after(self.options.connect_timeout).with_each(context.each_command);
            let transport = self.connector.connect(deadline, context.stages).await?;
            let mut channel = Channel::new(transport, Arc::clone(self.handshake.server_api()));
            let speculation = match &self.authenticator {
                Some(authenticator) => authenticator.speculation(&self.address),
                None => Speculation::default(),
            };
            let load_balanced = context.identify.is_some();
            let greeting = boxed(|| {
                let greeting = self.greet(&mut channel, load_balanced, &speculation, deadline);
                greeting.instrument(debug_span!(target: TARGET, "hello"))
            });
            let begun = Instant::now();
            let mut hello = context.stages.timed(Stage::Hello, greeting).await?;
            let took = begun.elapsed();
            if !context.terms.is_check {
                let refuse = |incompatible| EstablishError::permanent(Stage::Hello, incompatible);
                hello.check_compatible(self.address()).map_err(refuse)?;
            }
            if let Some(identify) = context.identify {
                let refuse = |error| EstablishError::permanent(Stage::Hello, error);
                identify(hello.required_service_id().map_err(refuse)?);
            }
            if let Some(observer) = &self.observer {
                observer.greeted(&hello, took, context.generation);
            }
            let authentication = match &self.authenticator {
                Some(authenticator) => {
                    let authenticating = boxed(|| {
                        let (channel, address, keeps_arbiter) =
                            (&mut channel, &self.address, context.terms.keeps_arbiter);
                        let outcome =
                            authenticator.authenticate(channel, address, &hello, speculation, deadline, keeps_arbiter);
                        let outcome = outcome.instrument(debug_span!(target: TARGET, "authenticate"));
                        async { outcome.await.map_err(AuthenticationError::into_establish_error) }
                    });
                    context.stages.timed(Stage::Authenticate, authenticating).await?.map(Box::new)
                }
                None => None,
            };
            hello.forget_speculation();
            if context.connection_id > 0 {
                hello.shrink();
            }
            let connection = EndpointConnection::new(Opened {
                address: Arc::clone(&self.address.text),
                options: Arc::clone(&self.options),
                connection_id: context.connection_id,
                generation: context.generation,
                runtime,
                channel,
                compressor: self.handshake.agreed_compressor(&hello),
                hello,
                authentication,
            });
            Ok((connection, took))
        })
    }

    /// Returns how long one handshake command may take. If the connection is opened in the background, each command has
    /// a limit (CSOT, "Background Connection Pooling").
    ///
    /// A connection that is opened for a check-out outlives the check-out, so the operation's `timeoutMS` does not
    /// limit its opening. `socketTimeoutMS` limits it only if `timeoutMS` is not set and `connectTimeoutMS` is zero.
    fn limit_of_each_command(&self, in_background: bool) -> Option<ConnectTimeoutError> {
        let Options { timeout, connect_timeout, socket_timeout, .. } = &*self.options;
        let (limit, option) = match timeout {
            Some(timeout) if in_background => (*timeout, "timeoutMS"),
            None if in_background || connect_timeout.is_zero() => (*socket_timeout, "socketTimeoutMS"),
            _ => return None,
        };
        (!limit.is_zero()).then_some(ConnectTimeoutError { limit, option })
    }

    /// Performs the handshake, and wipes the channel's buffers even if the future is dropped midway. The speculative
    /// authentication may have sent a token.
    async fn greet(
        &self,
        channel: &mut Channel,
        load_balanced: bool,
        speculation: &Speculation,
        deadline: Deadline,
    ) -> Result<HelloReply, EstablishError> {
        let channel = Wiping(channel);
        self.handshake.make(channel.0, load_balanced, speculation, deadline).await
    }
}

/// The error for a future that opens a connection but is not polled on a tokio runtime.
#[derive(Debug, Error)]
#[error("a connection can only be opened on a tokio runtime")]
struct NotOnRuntime;

/// The parameters for opening a connection.
struct OpenContext<'a> {
    /// The connection's number in its pool, or 0.
    connection_id: u64,
    /// The pool's generation, or 0.
    generation: u64,
    /// How long each handshake command may take, in addition to the limit for the whole handshake.
    each_command: Option<ConnectTimeoutError>,
    /// Receives the connection's service in load-balanced mode.
    identify: Option<&'a (dyn Fn(ServiceId) + Sync)>,
    stages: Stages<'a>,
    terms: Terms,
}

impl Establish for Endpoint {
    type Connection = EndpointConnection;

    const HAS_SOCKETS: bool = true;

    async fn establish(&self, connecting: Establishing) -> Result<EndpointConnection, EstablishError> {
        let terms = self.observer.as_ref().map_or_else(|| Ok(Terms::default()), |observer| observer.terms())?;
        let each_command = || self.limit_of_each_command(connecting.is_in_background());
        let identify = |service_id| connecting.identify(service_id);
        let context = OpenContext {
            connection_id: connecting.connection_id(),
            generation: connecting.generation(),
            each_command: if terms.is_check { None } else { each_command() },
            identify: if connecting.is_load_balanced() { Some(&identify) } else { None },
            stages: Stages::of(&connecting),
            terms,
        };
        Ok(self.open(context).await?.0)
    }

    #[inline]
    fn condition(&self, connection: &mut EndpointConnection) -> Condition {
        connection.condition_at_check_in()
    }

    fn broken_by(&self, connection: &EndpointConnection) -> Option<Cause> {
        Some(connection.broken_by())
    }

    async fn drain(&self, connection: &mut EndpointConnection) {
        connection.drain().await;
    }

    fn abandon_after_fork(&self, connection: EndpointConnection) {
        connection.abandon_after_fork();
    }
}
