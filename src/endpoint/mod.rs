//! The connections of a pool: from a server's address to an established connection that runs commands.
//!
//! An [`Endpoint`] knows one server and opens connections to it, for a pool (it implements [`Establish`]) or one by one
//! ([`Endpoint::connect`]). Establishing takes these steps, all of them under one deadline:
//!
//! 1. the server's name is resolved and a TCP connection opened (`transport`),
//! 2. the hello handshake is made, in `OP_MSG` (`channel`, over [`wire`](crate::wire)).
//!
//! Where further steps belong: another kind of socket, and TLS, are in `transport`, whose bytes the `channel` neither
//! knows nor interprets; compression is in the `channel`, between encoding and writing and between reading and
//! decoding; authentication comes after hello in `Endpoint::open`, on the finished channel.

use std::sync::Arc;

use bson::RawDocumentBuf;
use bson::oid::ObjectId;

use crate::error::{EstablishError, Labels, Stage};
use crate::options::{InvalidAddress, InvalidOption, Options, ServerAddress};
use crate::runtime::{Establish, Establishing, Pool, PoolBuilder};
use crate::wire::metadata::ClientMetadata;
use crate::wire::reply::{self, Unsuccessful};
use crate::wire::{HelloReply, hello};

mod channel;
mod connection;
mod deadline;
mod platform;
mod pooled;
mod srv;
#[cfg(test)]
mod tests;
mod transport;

pub use connection::{CommandFailure, EndpointConnection};
pub use deadline::ConnectTimeout;
pub use pooled::OperationError;
pub use srv::ResolveError;
#[cfg(feature = "srv")]
pub use srv::hickory_resolver;
pub use transport::ConnectFailed;

#[doc(inline)]
pub use crate::wire::CommandError;

use channel::{Channel, ExchangeError};
use deadline::Deadline;
use transport::Connector;

/// One MongoDB server, or a load balancer in front of several, and how connections to it are opened.
///
/// Clones share what connections may share: TLS sessions and the keys derived from passwords.
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
    /// The client metadata, as it is sent.
    client: Arc<RawDocumentBuf>,
}

impl Options {
    /// The one server of the deployment.
    ///
    /// Reads the files that the options name; looks nothing up and connects to nothing.
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

    /// The servers of the deployment, in the order of their hosts.
    ///
    /// Reads the files that the options name; looks nothing up and connects to nothing.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if [`Options::validate`] or a file refuses, or if the servers are not
    /// [resolved](Options::resolve) yet.
    pub fn endpoints(&self) -> Result<Vec<Endpoint>, InvalidOption> {
        self.validate()?;
        self.check_resolved()?;
        let options = Arc::new(self.clone());
        let metadata = ClientMetadata { app_name: self.app_name.clone(), ..platform::metadata() };
        let client = Arc::new(metadata.to_document());
        let endpoint = |address: &ServerAddress| {
            Ok(Endpoint {
                address: address.clone(),
                connector: Connector::new(address, &options)?,
                options: options.clone(),
                client: client.clone(),
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
        Ok(Options::new([address])?.endpoint().expect("BUG: the default options are refused"))
    }

    /// A pool of connections to this endpoint, with the pool options that the endpoint was made with.
    pub fn pool(self) -> PoolBuilder<Self> {
        let options = self.options.pool.clone();
        Pool::builder(&self.address.text.clone(), self).options(options)
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

    /// Opens a connection that belongs to no pool. It is not in load-balanced mode.
    ///
    /// # Errors
    ///
    /// [`EstablishError`] tells how far the attempt came. Its source is one of
    ///
    /// - an [`io::Error`](std::io::Error) (the name does not resolve, or the network failed during hello),
    ///   [`ConnectFailed`] or [`ConnectTimeout`];
    /// - a [`CommandError`], an [`IncompatibleServer`](hello::IncompatibleServer) or a
    ///   [`WireError`](crate::wire::WireError): the server's answer to hello.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes what has been opened. Nothing else is lost.
    pub async fn connect(&self) -> Result<EndpointConnection, EstablishError> {
        self.open(None::<fn(ObjectId)>).await
    }

    /// Opens a connection. With `identify` it is in load-balanced mode, and `identify` is told its service.
    async fn open(&self, identify: Option<impl FnOnce(ObjectId) + Send>) -> Result<EndpointConnection, EstablishError> {
        let deadline = Deadline::after(self.options.connect_timeout);
        let transport = self.connector.connect(deadline).await?;
        let mut channel = Channel::new(transport);
        let hello = self.shake_hands(&mut channel, identify.is_some(), deadline).await?;
        channel.set_limits(&hello);
        if let Some(identify) = identify {
            let refuse = |error| EstablishError::unlabelled(Stage::Hello, error);
            identify(hello.required_service_id().map_err(refuse)?);
        }
        Ok(EndpointConnection::new(Arc::clone(&self.address.text), channel, hello))
    }

    async fn shake_hands(
        &self,
        channel: &mut Channel,
        load_balanced: bool,
        deadline: Deadline,
    ) -> Result<HelloReply, EstablishError> {
        let command = hello::command(&self.client, load_balanced);
        let document = match deadline.bound(channel.exchange("admin", &command)).await {
            Ok(Ok(document)) => document,
            Ok(Err(ExchangeError::Network(error))) => return Err(EstablishError::overloaded(Stage::Hello, error)),
            Ok(Err(ExchangeError::Wire(error))) => return Err(EstablishError::unlabelled(Stage::Hello, error)),
            Ok(Err(ExchangeError::Errored)) => unreachable!("BUG: hello is the first command on its channel"),
            Err(timeout) => return Err(EstablishError::overloaded(Stage::Hello, timeout)),
        };
        reply::check(document).map_err(refusal)?;
        let hello =
            HelloReply::read(document.to_owned()).map_err(|error| EstablishError::unlabelled(Stage::Hello, error))?;
        match hello.check_compatible(self.address()) {
            Ok(()) => Ok(hello),
            Err(incompatible) => Err(EstablishError::unlabelled(Stage::Hello, incompatible)),
        }
    }
}

/// A hello that the server refused. It has the labels that the server gave it, and no others.
fn refusal(unsuccessful: Unsuccessful) -> EstablishError {
    match unsuccessful {
        Unsuccessful::Wire(error) => EstablishError::unlabelled(Stage::Hello, error),
        Unsuccessful::Command(error) => {
            let labels = [Labels::SYSTEM_OVERLOADED, Labels::RETRYABLE]
                .into_iter()
                .filter(|label| label.names().all(|name| error.has_label(name)))
                .fold(Labels::NONE, Labels::with);
            EstablishError { stage: Stage::Hello, labels, source: Arc::new(*error) }
        }
    }
}

impl Establish for Endpoint {
    type Connection = EndpointConnection;

    async fn establish(&self, connecting: Establishing) -> Result<EndpointConnection, EstablishError> {
        let identify = connecting.load_balanced().then_some(|service_id| connecting.identify(service_id));
        self.open(identify).await
    }

    fn is_errored(&self, connection: &EndpointConnection) -> bool {
        connection.is_errored()
    }

    fn abandon_after_fork(&self, connection: EndpointConnection) {
        connection.abandon_after_fork();
    }
}
