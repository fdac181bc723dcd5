//! The connections of a pool: from a server's address to an established connection that runs commands.
//!
//! An [`Endpoint`] opens connections to one server, either for a pool (it implements [`Establish`]) or one at a time
//! ([`Endpoint::connect`]). Establishing a connection takes three steps, under one deadline:
//!
//! 1. `transport` opens a stream: over TCP to the first of the server's addresses that accepts, through a SOCKS5 proxy,
//!    or to a Unix domain socket. Then it sets up TLS.
//! 2. `handshake` exchanges hello in `OP_MSG` (`channel`, over `wire`).
//! 3. `authentication` authenticates the application, if the options have a credential.
//!
//! Commands then run as exchanges. An exchange belongs to the channel rather than to the task that is waiting for it.
//! When a command is cancelled, the pool drains its connection (`drain`).
//!
//! The `channel` does not interpret the bytes of the `transport`. It compresses between encoding and writing, and
//! decompresses between reading and decoding.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bson::RawDocument;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::{Instrument, debug_span};

use crate::pool::condition::Condition;
use crate::pool::error::{Cause, EstablishError, Stage};
use crate::pool::runtime::boxed;
use crate::pool::runtime::{Establish, Establishing, Pool, PoolBuilder, TARGET};
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
mod scanned;
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
pub(crate) use scanned::Scanned;
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

/// Why a connection could not be opened. An application reads the text, or asks [`EstablishError`].
#[cfg(any(feature = "unstable", test))]
pub(crate) mod causes {
    pub use super::authentication::AuthenticationCause;
    pub use super::foreign::ForeignProtocolError;
    pub use super::transport::{ConnectAttempt, ConnectError, ProxyError, TlsError};
}

use authentication::{Authenticator, Speculation, Wiping};
use channel::Channel;
pub(crate) use connection::AwaitsDrain;
use connection::Opened;
use deadline::Deadline;
use stages::Stages;
use transport::{Connector, Connectors};

/// A MongoDB server, or a load balancer in front of several, and how to open connections to it.
///
/// Clones, and all endpoints made by one call to [`Options::endpoints`], share TLS sessions and the keys and tokens of
/// authentication.
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
    /// Set if the connections also serve checks of the server.
    scanned: Option<Arc<Scanned>>,
    on_hello: Option<HelloSink>,
}

/// Receives the reply to the hello of each connection, and the generation of the connection.
#[derive(Clone)]
struct HelloSink(Arc<OnHello>);

type OnHello = dyn Fn(&RawDocument, u64) + Send + Sync;

impl fmt::Debug for HelloSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HelloSink").finish_non_exhaustive()
    }
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

    /// Returns the endpoints of the deployment's servers, in the order of the hosts. Each is meant to get its own
    /// [pool](Endpoint::pool).
    ///
    /// Reads the files that the options name. Does not look anything up or connect. Options that no pool applies are
    /// logged as warnings, or are errors after [`Options::parse_strict`]: see [`Options::unapplied`].
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if [`Options::validate`] fails, a file is refused, the servers are not
    /// [resolved](Options::resolve) yet, or the credential's mechanism is not supported or lacks its proof.
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
    serves_scans: bool,
}

impl Endpoints {
    /// Reads the files that the options name. The handshake comes from these options, or from options that differ only in
    /// the servers, the credential and the time limits.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if [`Options::validate`] fails, a file is refused, or the credential's mechanism is not
    /// supported or lacks its proof.
    pub(crate) fn new(options: Arc<Options>, handshake: Arc<Handshake>) -> Result<Self, InvalidOption> {
        options.validate()?;
        options.check_certificate()?;
        let authenticator = Authenticator::new(&options)?;
        let connectors = Connectors::new(&options)?;
        Ok(Self { options, connectors, handshake, authenticator, serves_scans: false })
    }

    /// Creates endpoints whose pooled connections also serve checks of the server.
    pub(crate) fn for_scans(self) -> Self {
        Self { serves_scans: true, ..self }
    }

    /// Returns the endpoint at an address.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the address and the options contradict each other, such as a zone with a proxy.
    pub(crate) fn at(&self, address: &ServerAddress) -> Result<Endpoint, InvalidOption> {
        Ok(Endpoint {
            address: address.clone(),
            connector: self.connectors.connector(address)?,
            options: self.options.clone(),
            handshake: self.handshake.clone(),
            authenticator: self.authenticator.clone(),
            scanned: self.serves_scans.then(Arc::default),
            on_hello: None,
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
    /// [`InvalidOption`] if the address is malformed; it says what an address must be.
    pub fn new(address: &str) -> Result<Self, InvalidOption> {
        // With default options, only the address can be refused. A path is not read before it is used.
        let allowed = "a path that a Unix domain socket can have on this platform, if it is a path";
        Options::new([address])?.endpoint().map_err(|_| ServerAddress::refuse(address, allowed))
    }

    /// Creates an endpoint that tells `sink` the reply to the hello of each connection, and the generation of the
    /// connection.
    pub(crate) fn on_hello(self, sink: impl Fn(&RawDocument, u64) + Send + Sync + 'static) -> Self {
        Self { on_hello: Some(HelloSink(Arc::new(sink))), ..self }
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
    /// ended.
    ///
    /// # Errors
    ///
    /// [`EstablishError`] says how far the attempt got. Among its causes are [`io::Error`](std::io::Error),
    /// [`ConnectTimeoutError`], [`AuthenticationError`], and [`ServerError`] for a hello that the server refused.
    ///
    /// A server that says that it is an arbiter has no users, so the connection is not authenticated even if the
    /// options have a credential: see [`EndpointConnection::is_authenticated`]. A pool refuses such a connection,
    /// because a server that does not know the password can say so too.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what it opened. Nothing else is lost.
    pub async fn connect(&self) -> Result<DirectConnection, EstablishError> {
        let context = OpenContext {
            connection_id: 0,
            generation: 0,
            each_command: None,
            identify: None,
            stages: Stages::UNMEASURED,
            any_version: false,
        };
        Ok(DirectConnection { connection: self.open(context).await? })
    }

    /// Opens a monitor's connection, and returns it with the time that its hello took. A server whose wire versions
    /// wharf does not support is not refused here: the topology reports it.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As for [`connect`](Self::connect).
    pub(crate) async fn probe(&self) -> Result<(DirectConnection, Duration), EstablishError> {
        let took = OnceLock::new();
        let context = OpenContext {
            connection_id: 0,
            generation: 0,
            each_command: None,
            identify: None,
            stages: Stages::hello(&took),
            any_version: true,
        };
        let connection = DirectConnection { connection: self.open(context).await? };
        Ok((connection, took.get().copied().unwrap_or_default()))
    }

    /// Opens a connection for `context`, in load-balanced mode if its pool is in that mode.
    async fn open(&self, context: OpenContext<'_>) -> Result<EndpointConnection, EstablishError> {
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
        let begun = self.scanned.as_ref().map(|_| Instant::now());
        let mut hello = context.stages.timed(Stage::Hello, greeting).await?;
        if let (Some(scanned), Some(begun)) = (&self.scanned, begun) {
            scanned.note_hello(begun.elapsed());
        }
        if !context.any_version {
            let refuse = |incompatible| EstablishError::permanent(Stage::Hello, incompatible);
            hello.check_compatible(self.address()).map_err(refuse)?;
        }
        if let Some(identify) = context.identify {
            let refuse = |error| EstablishError::permanent(Stage::Hello, error);
            identify(hello.required_service_id().map_err(refuse)?);
        }
        if let Some(HelloSink(sink)) = &self.on_hello {
            sink(&hello.document, context.generation);
        }
        let authentication = match &self.authenticator {
            Some(authenticator) => {
                let may_be_arbiter = self.scanned.as_ref().is_some_and(|scanned| scanned.allows_arbiter());
                let is_pooled = context.connection_id > 0 && !may_be_arbiter;
                let authenticating = boxed(|| {
                    let (channel, address) = (&mut channel, &self.address);
                    let outcome =
                        authenticator.authenticate(channel, address, &hello, speculation, deadline, is_pooled);
                    let outcome = outcome.instrument(debug_span!(target: TARGET, "authenticate"));
                    async { outcome.await.map_err(AuthenticationError::into_establish_error) }
                });
                let authenticated = context.stages.timed(Stage::Authenticate, authenticating).await;
                if let (Err(error), Some(scanned)) = (&authenticated, &self.scanned)
                    && scanned.is_checking()
                {
                    hello.forget_speculation();
                    scanned.keep_failure(hello.document.clone(), error);
                }
                authenticated?.map(Box::new)
            }
            None => None,
        };
        hello.forget_speculation();
        if context.connection_id > 0 {
            hello.shrink();
        }
        Ok(EndpointConnection::new(Opened {
            address: Arc::clone(&self.address.text),
            options: Arc::clone(&self.options),
            connection_id: context.connection_id,
            generation: context.generation,
            runtime,
            channel,
            compressor: self.handshake.agreed_compressor(&hello),
            hello,
            authentication,
        }))
    }

    /// Returns how long one command of a pooled connection's handshake may take (CSOT, "Server Selection" and
    /// "Background Connection Pooling").
    ///
    /// `timeoutMS` does not limit a connection that is opened for a check-out, because the opening outlives the
    /// check-out. A connection of a scan has only `connectTimeoutMS`, because its handshake is also the check of the
    /// server (Server Monitoring, "Socket timeout").
    fn limit_of_each_command(&self, in_background: bool) -> Option<ConnectTimeoutError> {
        let (limit, option) = match self.options.timeout {
            _ if self.scanned.is_some() => return None,
            Some(timeout) if in_background => (timeout, "timeoutMS"),
            Some(_) => return None,
            None => (self.options.socket_timeout, "socketTimeoutMS"),
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

/// A future that opens a connection was not polled on a tokio runtime.
#[derive(Debug, Error)]
#[error("a connection can only be opened on a tokio runtime")]
struct NotOnRuntime;

/// The purpose of a new connection.
struct OpenContext<'a> {
    /// The connection's number in its pool, or 0.
    connection_id: u64,
    /// The pool's generation, or 0.
    generation: u64,
    /// How long each command of the handshake may take, besides the limit for the whole handshake.
    each_command: Option<ConnectTimeoutError>,
    /// Receives the connection's service in load-balanced mode.
    identify: Option<&'a (dyn Fn(ServiceId) + Sync)>,
    stages: Stages<'a>,
    /// Whether to accept a server whose wire versions wharf does not support.
    any_version: bool,
}

impl Establish for Endpoint {
    type Connection = EndpointConnection;

    const HAS_SOCKETS: bool = true;

    async fn establish(&self, connecting: Establishing) -> Result<EndpointConnection, EstablishError> {
        if let Some(error) = self.scanned.as_ref().and_then(|scanned| scanned.take_failure()) {
            return Err(error);
        }
        let identify = |service_id| connecting.identify(service_id);
        self.open(OpenContext {
            connection_id: connecting.connection_id(),
            generation: connecting.generation(),
            each_command: self.limit_of_each_command(connecting.is_in_background()),
            identify: if connecting.is_load_balanced() { Some(&identify) } else { None },
            stages: Stages::of(&connecting),
            any_version: self.scanned.is_some(),
        })
        .await
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
