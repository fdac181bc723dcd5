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
use std::time::Duration;

use bson::RawDocumentBuf;
use bson::oid::ObjectId;

use crate::error::{EstablishError, Labels, Stage};
use crate::options::InvalidOption;
use crate::runtime::{Establish, Establishing};
use crate::wire::metadata::{ClientMetadata, MAX_APP_NAME};
use crate::wire::reply::{self, Unsuccessful};
use crate::wire::{HelloReply, hello};

mod address;
mod channel;
mod connection;
mod deadline;
mod platform;
#[cfg(test)]
mod tests;
mod transport;

pub use address::InvalidAddress;
pub use connection::{CommandFailure, EndpointConnection};
pub use deadline::ConnectTimeout;
pub use transport::ConnectFailed;

#[doc(inline)]
pub use crate::wire::CommandError;

use address::ServerAddress;
use channel::{Channel, ExchangeError};
use deadline::Deadline;
use transport::Transport;

/// One MongoDB server, or a load balancer in front of several, and how connections to it are opened.
///
/// ```
/// use std::time::Duration;
/// use wharf::Endpoint;
///
/// let endpoint = Endpoint::new("localhost")?.app_name("shop")?.connect_timeout(Duration::from_secs(2));
/// assert_eq!(endpoint.address(), "localhost:27017");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Endpoint {
    address: ServerAddress,
    connect_timeout: Duration,
    metadata: ClientMetadata,
    /// `metadata`, as it is sent.
    client: RawDocumentBuf,
}

impl Endpoint {
    /// The endpoint at `address`: `host`, `host:port`, `[IPv6]` or `[IPv6]:port`. The port is 27017 by default.
    ///
    /// Looks nothing up and connects to nothing.
    ///
    /// # Errors
    ///
    /// [`InvalidAddress`] says what an address must be.
    pub fn new(address: &str) -> Result<Self, InvalidAddress> {
        let metadata = platform::metadata();
        Ok(Self {
            address: ServerAddress::parse(address)?,
            connect_timeout: Duration::from_secs(10),
            client: metadata.to_document(),
            metadata,
        })
    }

    /// `appName`: the application's name, for the server's logs and profiles. By default there is none.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the name is longer than 128 bytes, which a server would refuse.
    pub fn app_name(mut self, name: impl Into<String>) -> Result<Self, InvalidOption> {
        let name = name.into();
        if name.len() > MAX_APP_NAME {
            return Err(InvalidOption {
                option: "appName",
                value: format!("{name:?} ({} bytes)", name.len()),
                allowed: format!("at most {MAX_APP_NAME} bytes"),
            });
        }
        self.metadata.app_name = Some(name);
        self.client = self.metadata.to_document();
        Ok(self)
    }

    /// `connectTimeoutMS`: how long the whole establishment of a connection may take, from resolving the server's name
    /// to the end of the handshake. Default 10 seconds; zero means no limit.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// The server's address, `host:port`, with the host in lower case and an IPv6 address in brackets.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address.text
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
        let deadline = Deadline::after(self.connect_timeout);
        let transport = Transport::connect(&self.address, deadline).await?;
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
