//! The connections of a pool: from a server's address to an established connection that runs commands.
//!
//! An [`Endpoint`] knows one server and opens connections to it, for a pool (it implements [`Establish`]) or one by one
//! ([`Endpoint::connect`]). Establishing takes these steps, all of them under one deadline:
//!
//! 1. a stream is opened (`transport`): over TCP to the first of the server's addresses that accepts, through a SOCKS5
//!    proxy, or at a Unix domain socket, and then TLS on top of it,
//! 2. the hello handshake is made (`handshake`), in `OP_MSG` (`channel`, over [`wire`](crate::wire)),
//! 3. the application proves who it is, if the options have a credential (`authentication`).
//!
//! Commands then run as exchanges that belong to the channel, not to whoever waits for them: cancelled, they are
//! brought to their end by the pool (`drain`).
//!
//! The `channel` neither knows nor interprets the bytes of the `transport`; compression is in the `channel`, between
//! encoding and writing and between reading and decoding.

use std::sync::Arc;

use bson::oid::ObjectId;
use thiserror::Error;
use tokio::runtime::Handle;

use crate::condition::Condition;
use crate::error::{Cause, EstablishError, Stage};
use crate::options::{DriverInfo, InvalidAddress, InvalidOption, Options, ServerAddress};
use crate::runtime::{Establish, Establishing, Pool, PoolBuilder};
use crate::wire::HelloReply;

mod authentication;
mod channel;
mod command;
mod connection;
mod deadline;
mod drain;
mod exhaust;
mod failure;
mod foreign;
mod handshake;
mod inbox;
mod platform;
mod pooled;
mod srv;
#[cfg(test)]
mod tests;
mod transport;
mod unpacking;

pub use authentication::{AuthenticationCause, AuthenticationError};
pub use command::Command;
pub use connection::EndpointConnection;
pub use deadline::ConnectTimeoutError;
pub use exhaust::Replies;
pub use failure::{CommandError, CommandTimeoutError, Origin};
pub use foreign::ForeignProtocolError;
pub use pooled::OperationError;
pub use srv::ResolveError;
#[cfg(feature = "srv")]
pub use srv::hickory_resolver;
pub use transport::{ConnectAttempt, ConnectError, ProxyError, TlsError};

#[doc(inline)]
pub use crate::wire::ServerError;
#[doc(inline)]
pub use crate::wire::ocsp::OcspError;

use authentication::{Authenticator, Speculation, Wiping};
use channel::Channel;
use connection::Opened;
use deadline::Deadline;
use handshake::Handshake;
use transport::{Connector, Connectors};

/// One MongoDB server, or a load balancer in front of several, and how connections to it are opened.
///
/// Clones, and all endpoints that [`Options::endpoints`] made together, share what connections may share: TLS sessions,
/// and the keys and tokens that prove who the application is.
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
}

impl Options {
    /// The one server of the deployment.
    ///
    /// Reads the files that the options name; looks nothing up and connects to nothing. Options that no pool applies are
    /// logged as warnings: see [`Options::unapplied`].
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if [`Options::validate`] or a file refuses, or if there is not exactly one host.
    pub fn endpoint(&self) -> Result<Endpoint, InvalidOption> {
        let mut endpoints = self.endpoints()?;
        match (endpoints.pop(), endpoints.len()) {
            (Some(endpoint), 0) => Ok(endpoint),
            (_, others) => Err(InvalidOption {
                option: "hosts",
                value: format!("{} hosts", others + 1),
                allowed: "one host; use Options::endpoints for several".to_owned(),
            }),
        }
    }

    /// The servers of the deployment, in the order of their hosts: one [pool](Endpoint::pool) is to be made of each.
    ///
    /// Reads the files that the options name; looks nothing up and connects to nothing. Options that no pool applies are
    /// logged as warnings: see [`Options::unapplied`].
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if [`Options::validate`] or a file refuses, if the servers are not
    /// [resolved](Options::resolve) yet, or if the credential's mechanism is not supported or lacks its proof.
    pub fn endpoints(&self) -> Result<Vec<Endpoint>, InvalidOption> {
        self.validate()?;
        self.check_resolved()?;
        self.check_certificate()?;
        for warning in self.unapplied() {
            tracing::warn!(target: "wharf::options", "{warning}");
        }
        let options = Arc::new(self.clone());
        let handshake = Arc::new(Handshake::new(&options)?);
        let authenticator = Authenticator::new(&options)?;
        let connectors = Connectors::new(&options)?;
        let endpoint = |address: &ServerAddress| {
            Ok(Endpoint {
                address: address.clone(),
                connector: connectors.connector(address)?,
                options: options.clone(),
                handshake: handshake.clone(),
                authenticator: authenticator.clone(),
            })
        };
        self.hosts.iter().map(endpoint).collect()
    }
}

impl Endpoint {
    /// The endpoint at `address`: `host`, `host:port`, `[IPv6]` or `[IPv6]:port`, with every option at its default. The
    /// port is 27017 by default.
    ///
    /// Looks nothing up and connects to nothing.
    ///
    /// # Errors
    ///
    /// [`InvalidAddress`] says what an address must be.
    pub fn new(address: &str) -> Result<Self, InvalidAddress> {
        // Of the default options only the address can be refused: a path is not read before it is used.
        Options::new([address])?.endpoint().map_err(|_| InvalidAddress {
            address: address.to_owned(),
            allowed: "a path that a Unix domain socket can have on this platform, if it is a path",
        })
    }

    /// A pool of connections to this endpoint, with the pool options that the endpoint was made with. Once built, it is
    /// paused until [`Pool::ready`].
    pub fn pool(self) -> PoolBuilder<Self> {
        let options = self.options.pool.clone();
        let timeout = self.options.timeout;
        Pool::builder(&self.address.text.clone(), self).options(options).timeout(timeout)
    }

    /// The server's address, `host:port`, with the host in lower case and an IPv6 address in brackets.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address.text
    }

    /// The options that the endpoint was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Appends a library that wraps wharf to the metadata that connections send with their hello (MongoDB Handshake,
    /// "Metadata updates after MongoClient initialization").
    ///
    /// It concerns the connections that are opened from now on, of this endpoint, its clones, its pool, and all other
    /// endpoints that were made together with it. A library that has been appended before is not appended again.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if there is no name, if a field contains `|`, or if the metadata would be longer than 512
    /// bytes.
    pub fn append_metadata(&self, library: DriverInfo) -> Result<(), InvalidOption> {
        self.handshake.append_metadata(library)
    }

    /// Opens a connection that belongs to no pool. It is not in load-balanced mode. It is registered with the tokio runtime
    /// that the future is polled on, and is of no use any more when that has ended.
    ///
    /// # Errors
    ///
    /// [`EstablishError`] tells how far the attempt came. Its cause is one of
    ///
    /// - an [`io::Error`](std::io::Error) (the name does not resolve, or the network or TLS failed),
    ///   [`ConnectError`], [`ProxyError`], [`TlsError`] or [`ConnectTimeoutError`];
    /// - an [`OcspError`]: what the server has stapled about its certificate's revocation, or should have, is not
    ///   accepted. (A certificate that was revoked is an error of TLS.)
    /// - an [`AuthenticationError`];
    /// - a [`ServerError`], an [`IncompatibleServerError`](crate::wire::hello::IncompatibleServerError) or a
    ///   [`WireError`](crate::wire::WireError): the server's answer to hello;
    /// - a [`ForeignProtocolError`]: the peer's answer to hello, if it is of another protocol.
    ///
    /// A server that says that it is an arbiter has no users and is not authenticated with, also if the options have a
    /// credential: [`EndpointConnection::is_authenticated`] tells. A pool refuses such a connection, because a server can
    /// say so that knows no password.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what has been opened. Nothing else is lost.
    pub async fn connect(&self) -> Result<EndpointConnection, EstablishError> {
        self.open(OpenContext { connection_id: 0, generation: 0, each_command: None, identify: None }).await
    }

    /// Opens a connection in `context`, in load-balanced mode if that is the pool's.
    async fn open(&self, context: OpenContext<'_>) -> Result<EndpointConnection, EstablishError> {
        let runtime = Handle::try_current().map_err(|_| EstablishError::permanent(Stage::Resolve, NotOnRuntime))?;
        let deadline = Deadline::after(self.options.connect_timeout).with_each(context.each_command);
        let transport = self.connector.connect(deadline).await?;
        let mut channel = Channel::new(transport, Arc::clone(self.handshake.server_api()));
        let speculation = match &self.authenticator {
            Some(authenticator) => authenticator.speculation(&self.address),
            None => Speculation::default(),
        };
        let load_balanced = context.identify.is_some();
        let mut hello = self.greet(&mut channel, load_balanced, &speculation, deadline).await?;
        if let Some(identify) = context.identify {
            let refuse = |error| EstablishError::permanent(Stage::Hello, error);
            identify(hello.required_service_id().map_err(refuse)?);
        }
        let authentication = match &self.authenticator {
            Some(authenticator) => {
                let is_pooled = context.connection_id > 0;
                let outcome =
                    authenticator.authenticate(&mut channel, &self.address, &hello, speculation, deadline, is_pooled);
                outcome.await.map_err(AuthenticationError::into_establish_error)?.map(Box::new)
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

    /// How long one command of a pooled connection's handshake may take (CSOT, "Server Selection" and "Background
    /// Connection Pooling"). What opens for a check-out has no limit by `timeoutMS`, because it outlives the check-out.
    fn limit_of_each_command(&self, in_background: bool) -> Option<ConnectTimeoutError> {
        let (limit, option) = match self.options.timeout {
            Some(timeout) if in_background => (timeout, "timeoutMS"),
            Some(_) => return None,
            None => (self.options.socket_timeout, "socketTimeoutMS"),
        };
        (!limit.is_zero()).then_some(ConnectTimeoutError { limit, option })
    }

    /// Makes the handshake, and leaves nothing of it in the channel's buffers, because what was speculated may be a
    /// token: not even where the future is dropped in the middle of it.
    async fn greet(
        &self,
        channel: &mut Channel,
        load_balanced: bool,
        speculation: &Speculation,
        deadline: Deadline,
    ) -> Result<HelloReply, EstablishError> {
        let channel = Wiping(channel);
        self.handshake.make(channel.0, self.address(), load_balanced, speculation, deadline).await
    }
}

/// A connection was to be opened by a future that is not polled on a tokio runtime.
#[derive(Debug, Error)]
#[error("a connection can only be opened on a tokio runtime")]
struct NotOnRuntime;

/// What a connection is opened for.
struct OpenContext<'a> {
    /// Its number in its pool, or 0.
    connection_id: u64,
    /// The pool's generation, or 0.
    generation: u64,
    /// How long one command of the handshake may take, besides the limit for the whole.
    each_command: Option<ConnectTimeoutError>,
    /// In load-balanced mode, who is to be told the connection's service.
    identify: Option<&'a (dyn Fn(ObjectId) + Sync)>,
}

impl Establish for Endpoint {
    type Connection = EndpointConnection;

    async fn establish(&self, connecting: Establishing) -> Result<EndpointConnection, EstablishError> {
        let identify = |service_id| connecting.identify(service_id);
        self.open(OpenContext {
            connection_id: connecting.connection_id(),
            generation: connecting.generation(),
            each_command: self.limit_of_each_command(connecting.in_background()),
            identify: if connecting.load_balanced() { Some(&identify) } else { None },
        })
        .await
    }

    #[inline]
    fn condition(&self, connection: &mut EndpointConnection) -> Condition {
        connection.settle()
    }

    fn fault(&self, connection: &EndpointConnection) -> Option<Cause> {
        Some(connection.fault())
    }

    async fn drain(&self, connection: &mut EndpointConnection) {
        connection.drain().await;
    }

    fn abandon_after_fork(&self, connection: EndpointConnection) {
        connection.abandon_after_fork();
    }
}
