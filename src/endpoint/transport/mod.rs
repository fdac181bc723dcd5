//! The stream of bytes to a server.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};

use super::deadline::Deadline;
use crate::error::{EstablishError, Stage};
use crate::options::{Host, InvalidOption, Options, ServerAddress};

/// How long a connection may be silent before the operating system asks whether its peer is still there.
const KEEPALIVE_TIME: Duration = Duration::from_secs(120);

/// Opens streams of bytes to one server, as the options want them.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    address: ServerAddress,
}

impl Connector {
    /// Reads the files that the options name, so that they are refused here and not with the first connection.
    pub fn new(address: &ServerAddress, options: &Options) -> Result<Self, InvalidOption> {
        let _ = options;
        Ok(Self { address: address.clone() })
    }

    /// Resolves the server's name and connects to the first of its addresses that accepts.
    ///
    /// While there are other addresses to try, an attempt has no more than its share of the time, so that one that
    /// does not answer leaves the others a chance.
    pub async fn connect(&self, deadline: Deadline) -> Result<Transport, EstablishError> {
        let Host::Tcp { name, port } = &self.address.host else { unimplemented!("Unix sockets") };
        let addresses = resolve(name, *port, deadline).await?;
        let mut failure = None;
        for (index, peer) in addresses.iter().enumerate() {
            let untried = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
            failure = Some(match deadline.share(untried).bound(Transport::connect_to(*peer)).await {
                Ok(Ok(transport)) => return Ok(transport),
                Ok(Err(source)) => EstablishError::overloaded(Stage::Connect, ConnectFailed { peer: *peer, source }),
                Err(timeout) => EstablishError::overloaded(Stage::Connect, timeout),
            });
        }
        Err(failure.unwrap_or_else(|| {
            let error = io::Error::new(io::ErrorKind::NotFound, "the server's name has no address");
            EstablishError::unlabelled(Stage::Resolve, error)
        }))
    }
}

/// A connected stream of bytes.
#[derive(Debug)]
pub(super) struct Transport {
    stream: TcpStream,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Transport {
    async fn connect_to(peer: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(peer).await?;
        // A command is one write and waits for its reply: holding it back for more to send would only delay it.
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_TIME))?;
        Ok(Self { local: stream.local_addr()?, peer, stream })
    }

    /// This end's address.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The server's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Writes a beginning of `bytes`, and returns its length in bytes.
    ///
    /// # Cancel safety
    ///
    /// The bytes that are reported are written, and nothing else: dropping the future before it is ready has written
    /// nothing.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.stream.write(bytes).await? {
            0 if !bytes.is_empty() => Err(io::ErrorKind::WriteZero.into()),
            written => Ok(written),
        }
    }

    /// Writes all of `bytes`.
    ///
    /// # Cancel safety
    ///
    /// None: dropping the future before it is ready has written a beginning of unknown length.
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads at least one byte, and as many as are there and fit in `buffer`'s spare capacity.
    ///
    /// The end of the stream is an error, because nobody reads without expecting something.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready has read nothing: the bytes stay in the stream, and `buffer` is as it was.
    pub async fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<()> {
        match self.stream.read_buf(buffer).await? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
            _ => Ok(()),
        }
    }

    /// Gives up the stream in a forked child, without any effect on the parent's.
    ///
    /// Dropping it would take the socket out of tokio's epoll instance, which parent and child share, and so the parent
    /// would never again hear of its own socket. Closing only the child's descriptor leaves the registration alone:
    /// that belongs to the open socket, which the parent keeps open. The memory of the registration is leaked.
    #[cfg(unix)]
    pub fn abandon_after_fork(self) {
        use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

        let descriptor = self.stream.as_raw_fd();
        std::mem::forget(self.stream);
        // SAFETY: the descriptor is open, because the stream that owned it has only just been forgotten; and nobody
        // else closes it, because that stream was its one owner and is never dropped.
        #[allow(unsafe_code)]
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }

    /// Gives up the stream by leaking it. There is no fork on this platform.
    #[cfg(not(unix))]
    pub fn abandon_after_fork(self) {
        std::mem::forget(self.stream);
    }
}

/// Every address of the server. Failing here says nothing about the server's load, so the errors have no label.
async fn resolve(name: &str, port: u16, deadline: Deadline) -> Result<Vec<SocketAddr>, EstablishError> {
    match deadline.bound(lookup_host((name, port))).await {
        Ok(Ok(addresses)) => Ok(addresses.collect()),
        Ok(Err(error)) => Err(EstablishError::unlabelled(Stage::Resolve, error)),
        Err(timeout) => Err(EstablishError::unlabelled(Stage::Resolve, timeout)),
    }
}

/// The last address that was tried did not accept a connection.
#[derive(Debug, Error)]
#[error("{peer} did not accept a connection: {source}")]
pub struct ConnectFailed {
    /// The address that was tried.
    pub peer: SocketAddr,
    /// The operating system's error.
    pub source: io::Error,
}
