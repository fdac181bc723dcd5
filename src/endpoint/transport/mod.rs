//! The byte stream to a server: TCP or a Unix domain socket, optionally through a proxy or over TLS.
//!
//! [`Connectors`] reads the options of a deployment, including the files that they name. A [`Connector`] opens streams
//! to one of its servers, and each stream is a [`Transport`].
//!
//! Dropping a stream closes it, at any time and anywhere: no runtime is needed, and nothing is sent. A TLS stream is
//! therefore closed without `close_notify`, which would tell the peer that no bytes are missing. That is not needed
//! here, because every wire protocol message states its length.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tracing::{Instrument, debug_span};

use super::deadline::Deadline;
use super::stages::Stages;
use crate::endpoint::options::{Host, InvalidOption, Options, ProxyOptions, ServerAddress, split_zone};
use crate::pool::error::{EstablishError, Stage};
use crate::pool::runtime::boxed;
use crate::pool::runtime::{LookUps, TARGET};

mod local;
mod proxy;
mod race;
mod socket;
#[cfg(all(test, feature = "tls"))]
mod tests;
#[cfg(feature = "tls")]
mod tls;
#[cfg(any(not(feature = "tls"), test))]
#[cfg_attr(feature = "tls", expect(dead_code, reason = "only its test is needed"))]
mod without_tls;

pub use proxy::ProxyError;
#[cfg(any(feature = "aws", feature = "oidc", feature = "ocsp"))]
pub(super) use race::connect_first;
pub use race::{ConnectAttempt, ConnectError};
#[cfg(feature = "tls")]
pub use tls::TlsError;

use socket::Socket;
use tls::{Identity, Tls, TlsStream};
#[cfg(not(feature = "tls"))]
use without_tls as tls;

/// The state that all connections of one deployment share.
#[derive(Debug)]
pub(super) struct Connectors {
    look_ups: Arc<LookUps>,
    proxy: Option<Arc<ProxyOptions>>,
    tls: Option<Arc<Tls>>,
}

impl Connectors {
    /// Reads the files that the options name, so that an invalid file is refused here rather than by the first connection.
    pub fn new(options: &Options) -> Result<Self, InvalidOption> {
        let tls = options.tls.as_ref().map(|tls| Tls::new(tls, options.proxy.is_none())).transpose()?;
        Ok(Self { look_ups: Arc::default(), proxy: options.proxy.clone().map(Arc::new), tls: tls.map(Arc::new) })
    }

    /// Returns a connector to the server at `address`.
    pub fn connector(&self, address: &ServerAddress) -> Result<Connector, InvalidOption> {
        if let Host::Unix { path } = &address.host {
            socket::check_path(path)?;
        }
        if let (Host::Tcp { name, .. }, Some(_)) = (&address.host, &self.proxy)
            && split_zone(name).1.is_some()
        {
            return Err(InvalidOption::new(
                "hosts",
                "addresses without a zone with proxyHost, because a zone has a meaning on one machine only",
                format!("{name:?}"),
            ));
        }
        let tls = match &self.tls {
            None => None,
            Some(tls) => Some((Arc::clone(tls), tls.identity_of(&address.host)?)),
        };
        Ok(Connector { address: address.clone(), look_ups: self.look_ups.clone(), proxy: self.proxy.clone(), tls })
    }
}

/// Opens byte streams to one server, according to the options.
///
/// Clones, and the connectors to the deployment's other servers, share the TLS sessions that can be resumed.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    address: ServerAddress,
    look_ups: Arc<LookUps>,
    proxy: Option<Arc<ProxyOptions>>,
    tls: Option<(Arc<Tls>, Identity)>,
}

impl Connector {
    /// Opens a stream within the deadline.
    ///
    /// # Errors
    ///
    /// Network errors and timeouts carry the labels that mark a server as overloaded. Failures that overload cannot
    /// cause do not carry them: a name that does not resolve, a limit of this machine, any failure in connecting
    /// through a proxy, and any error in TLS itself.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes every stream that it opened.
    pub async fn connect(&self, deadline: Deadline, stages: Stages<'_>) -> Result<Transport, EstablishError> {
        let socket = match (&self.address.host, &self.proxy) {
            (Host::Unix { path }, _) => stages.timed(Stage::Connect, boxed(|| connect_unix(path, deadline))).await?,
            (Host::Tcp { name, port }, Some(proxy)) => {
                let connecting = boxed(|| {
                    proxy::connect(proxy, &self.look_ups, (name, *port), deadline)
                        .instrument(debug_span!(target: TARGET, "proxy"))
                });
                stages.timed(Stage::Proxy, connecting).await?
            }
            (Host::Tcp { name, port }, None) => {
                let addresses =
                    stages.timed(Stage::Resolve, boxed(|| resolve(&self.look_ups, name, *port, deadline))).await?;
                stages.timed(Stage::Connect, boxed(|| connect_tcp(addresses, deadline))).await?
            }
        };
        let (local, peer) = socket.addresses().map_err(|error| EstablishError::overloaded(Stage::Connect, error))?;
        let stream = match &self.tls {
            None => Stream::Plain(socket),
            Some((tls, identity)) => {
                let secured =
                    boxed(|| tls.secure(socket, identity, deadline).instrument(debug_span!(target: TARGET, "tls")));
                Stream::Tls(stages.timed(Stage::Tls, secured).await?)
            }
        };
        Ok(Transport { stream, local, peer })
    }
}

async fn connect_tcp(addresses: Vec<SocketAddr>, deadline: Deadline) -> Result<Socket, EstablishError> {
    let connecting = race::connect_first(addresses, Socket::connect, deadline);
    let connected = connecting.instrument(debug_span!(target: TARGET, "connect")).await;
    connected.map_err(unconnected)
}

/// Returns the establishment error for failed attempts to connect, whether the server or this machine caused them.
fn unconnected(failed: ConnectError) -> EstablishError {
    if failed.is_local() {
        EstablishError::network(Stage::Connect, failed)
    } else {
        EstablishError::overloaded(Stage::Connect, failed)
    }
}

/// Connects to a Unix domain socket. On other platforms, the options cannot name such a socket.
async fn connect_unix(path: &std::path::Path, deadline: Deadline) -> Result<Socket, EstablishError> {
    let (source, timeout) =
        match deadline.bound(Socket::connect_unix(path)).instrument(debug_span!(target: TARGET, "connect")).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => (error, None),
            Err(timeout) => (io::Error::new(io::ErrorKind::TimedOut, "no answer in time"), Some(timeout)),
        };
    let attempts = vec![ConnectAttempt { peer: path.display().to_string(), source }];
    Err(unconnected(ConnectError { attempts, timeout }))
}

/// Returns all of a host's addresses. There is at least one.
///
/// A failure here says nothing about the server's load, so the error carries no label.
async fn resolve(
    look_ups: &LookUps,
    name: &str,
    port: u16,
    deadline: Deadline,
) -> Result<Vec<SocketAddr>, EstablishError> {
    let looking_up = deadline.bound(look_ups.look_up(name, port));
    let addresses = match looking_up.instrument(debug_span!(target: TARGET, "resolve")).await {
        Ok(Ok(addresses)) => addresses,
        Ok(Err(error)) => return Err(EstablishError::network(Stage::Resolve, error)),
        Err(timeout) => return Err(EstablishError::network(Stage::Resolve, timeout)),
    };
    if addresses.is_empty() {
        let error = io::Error::new(io::ErrorKind::NotFound, format!("the name {name} has no address"));
        return Err(EstablishError::network(Stage::Resolve, error));
    }
    Ok(addresses)
}

/// Returns the establishment error for a stream that failed after it was opened and before hello completed.
///
/// TLS may have failed rather than the network. In TLS 1.3, a client has already completed its handshake when it learns
/// that the server does not accept its certificate. Overload cannot cause such an error, so it has no label (CMAP
/// specification, "Backpressure-enabled").
///
/// A refusal by TLS is recognised only if the server sends an alert. mongod 6.0 sends no alert: it checks the client's
/// certificate after the handshake, and closes the connection just as an overloaded server does.
pub(super) fn stream_failed(stage: Stage, error: io::Error) -> EstablishError {
    if tls::is_refusal(&error) {
        EstablishError::permanent(stage, error)
    } else {
        EstablishError::overloaded(stage, error)
    }
}

/// Adds a guess about the cause to the error, if the server ended the stream.
///
/// Overloaded servers also end streams, so the guess changes neither the error's kind nor its labels.
pub(super) fn with_guess(error: io::Error, guess: &str) -> io::Error {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error.kind() {
        kind @ (UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe) => {
            io::Error::new(kind, format!("{error}; if every connection ends like this, {guess}"))
        }
        _ => error,
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")
}

/// A connected byte stream.
#[derive(Debug)]
pub(super) struct Transport {
    stream: Stream,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
}

/// An enum rather than a trait object, so that a read or write on a plain socket costs no more than a match and a call.
#[derive(Debug)]
enum Stream {
    Plain(Socket),
    Tls(TlsStream),
}

impl Transport {
    /// Returns whether the stream uses TLS.
    pub fn is_secured(&self) -> bool {
        matches!(self.stream, Stream::Tls(_))
    }

    /// Returns the local address, or `None` if the stream is a Unix domain socket.
    pub fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Returns the peer's address, or `None` if the stream is a Unix domain socket. The peer is the proxy, if there is
    /// one.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Writes a prefix of `bytes`, and returns its length in bytes, which is 0 only if `bytes` is empty.
    ///
    /// Nothing was written if this returns `Pending`.
    ///
    /// With TLS, the bytes may still be in the stream's own buffer. The next call to this function or to
    /// [`poll_read`](Self::poll_read) sends them. A caller that is going to wait for a reply need not do anything. A
    /// caller that does not wait must call [`poll_flush`](Self::poll_flush).
    #[inline(always)] // Inlined, because its only caller is inlined.
    pub fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = match &mut self.stream {
            // A socket nearly always has room for a request, so try to write before registering for readiness.
            Stream::Plain(socket) => match socket.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(Pin::new(socket).poll_write(context, bytes))?
                }
                written => written?,
            },
            Stream::Tls(stream) => ready!(Pin::new(stream).poll_write(context, bytes))?,
        };
        Poll::Ready(match written {
            0 if !bytes.is_empty() => Err(io::ErrorKind::WriteZero.into()),
            written => Ok(written),
        })
    }

    /// Flushes all written bytes to the operating system. If this returns `Pending`, the next call continues.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(_) => Poll::Ready(Ok(())),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    /// Reads as many bytes as have arrived and fit in `room`, but at least one, and returns their number. `room` must
    /// not be empty.
    ///
    /// Nothing was read if this returns `Pending`: the bytes stay in the stream.
    ///
    /// The end of the stream is an error, because every reader expects at least one more byte.
    #[inline(always)] // Inlined, because its only caller is inlined.
    pub fn poll_read(&mut self, context: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(room);
        match &mut self.stream {
            Stream::Plain(socket) => ready!(Pin::new(socket).poll_read(context, &mut buffer))?,
            Stream::Tls(stream) => ready!(Pin::new(stream).poll_read(context, &mut buffer))?,
        }
        Poll::Ready(match buffer.filled().len() {
            0 => Err(closed()),
            read => Ok(read),
        })
    }

    /// Takes bytes that have arrived on a stream while no reply is expected, if the runtime has noticed them. Returns
    /// their number. For a plain socket on which nothing has arrived, this makes no system call.
    ///
    /// # Errors
    ///
    /// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the peer has closed the stream, or the operating system's
    /// error.
    #[inline]
    pub fn take_unasked(&mut self) -> io::Result<usize> {
        let mut bytes = [0; 64];
        let taken = match &mut self.stream {
            Stream::Plain(socket) => socket.try_read(&mut bytes),
            Stream::Tls(stream) => {
                // A TLS session ticket yields no bytes. The waker does nothing here, because the next read registers
                // its own.
                let mut buffer = ReadBuf::new(&mut bytes);
                match Pin::new(stream).poll_read(&mut Context::from_waker(Waker::noop()), &mut buffer) {
                    Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
                    Poll::Ready(read) => read.map(|()| buffer.filled().len()),
                }
            }
        };
        match taken {
            Ok(0) => Err(closed()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            taken => taken,
        }
    }

    /// Drops the stream in a forked child without any effect on the parent: nothing is sent, and the parent's socket
    /// stays open and registered.
    pub fn abandon_after_fork(self) {
        match self.stream {
            Stream::Plain(socket) => socket.abandon_after_fork(),
            Stream::Tls(stream) => stream.into_socket().abandon_after_fork(),
        }
    }
}

#[cfg(test)]
impl Transport {
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        std::future::poll_fn(|context| self.poll_write(context, bytes)).await
    }
}
