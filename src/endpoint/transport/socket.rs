//! The sockets of the operating system.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

use crate::endpoint::options::InvalidOption;

/// How long a connection may be silent before the operating system probes its peer, and how long it waits for an answer
/// before the next probe.
///
/// Firewalls and load balancers forget a connection after a few minutes of silence. With Linux's default interval, it
/// would take eleven more minutes to detect a dead peer.
const KEEPALIVE_TIME: Duration = Duration::from_secs(120);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Refuses a path that cannot belong to a Unix domain socket on this platform.
pub(super) fn check_path(path: &Path) -> Result<(), InvalidOption> {
    let refuse = |must| InvalidOption::new("hosts", must, format!("{path:?}"));
    #[cfg(unix)]
    {
        let fits = std::os::unix::net::SocketAddr::from_pathname(path);
        fits.map(drop).map_err(|error| refuse(format!("the path of a Unix domain socket ({error})")))
    }
    #[cfg(not(unix))]
    Err(refuse("a name or an IP address: this platform has no Unix domain sockets".to_owned()))
}

/// A connected socket.
#[derive(Debug)]
pub(super) enum Socket {
    /// A TCP socket.
    Tcp(TcpStream),
    /// A Unix domain socket.
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Socket {
    /// Connects to a TCP port.
    pub async fn connect(peer: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(peer).await?;
        // A command is sent in one write, and the client then waits for the reply. Delaying the write to gather more
        // data would gain nothing.
        stream.set_nodelay(true)?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_INTERVAL);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        Ok(Self::Tcp(stream))
    }

    /// Connects to a Unix domain socket.
    #[cfg(unix)]
    pub async fn connect_unix(path: &Path) -> io::Result<Self> {
        Ok(Self::Unix(UnixStream::connect(path).await?))
    }

    /// Always fails, because this platform has no Unix domain sockets. [`check_path`] already refuses their paths.
    #[cfg(not(unix))]
    pub async fn connect_unix(_: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns the local address and the peer's address. A Unix domain socket has neither.
    pub fn addresses(&self) -> io::Result<(Option<SocketAddr>, Option<SocketAddr>)> {
        match self {
            Self::Tcp(stream) => Ok((Some(stream.local_addr()?), Some(stream.peer_addr()?))),
            #[cfg(unix)]
            Self::Unix(_) => Ok((None, None)),
        }
    }

    /// Reads the bytes that have arrived, if the runtime knows of any. Otherwise returns
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) without a system call.
    #[inline]
    pub fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(bytes),
            #[cfg(unix)]
            Self::Unix(stream) => stream.try_read(bytes),
        }
    }

    /// Writes as many bytes as fit, if the runtime considers the socket writable. Otherwise returns
    /// [`WouldBlock`](io::ErrorKind::WouldBlock).
    #[inline]
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            #[cfg(unix)]
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }

    /// Drops the socket in a forked child without any effect on the parent's socket.
    ///
    /// An ordinary drop would remove the socket from tokio's epoll instance, which the parent and the child share. The
    /// parent would then never be notified about its own socket again. Closing only the child's descriptor leaves the
    /// registration intact, because the registration belongs to the socket, which the parent keeps open. The memory of
    /// the registration is leaked.
    #[cfg(unix)]
    pub fn abandon_after_fork(self) {
        use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

        let descriptor = match &self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        };
        std::mem::forget(self);
        // SAFETY: the descriptor is open, because the stream that owned it has only just been forgotten. It is closed
        // only here, because that stream was its sole owner and is never dropped.
        #[allow(unsafe_code)]
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }

    /// Leaks the socket. This platform has no fork.
    #[cfg(not(unix))]
    pub fn abandon_after_fork(self) {
        std::mem::forget(self);
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    // Neither kind of socket buffers bytes in this process.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn tcp_socket_sends_at_once_and_probes_silent_peers() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let socket = Socket::connect(listener.local_addr().unwrap()).await.unwrap();
        let Socket::Tcp(stream) = &socket else { panic!("{socket:?}") };
        assert!(stream.nodelay().unwrap());
        let stream = SockRef::from(stream);
        assert!(stream.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        {
            assert_eq!(stream.tcp_keepalive_time().unwrap(), KEEPALIVE_TIME);
            assert_eq!(stream.tcp_keepalive_interval().unwrap(), KEEPALIVE_INTERVAL);
        }
    }
}
