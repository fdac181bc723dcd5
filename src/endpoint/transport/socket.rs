//! The sockets that the operating system has.

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

use crate::options::InvalidOption;

/// How long a connection may be silent before the operating system asks whether its peer is still there, and how long it
/// waits for an answer before it asks again.
///
/// Firewalls and load balancers forget connections after a few silent minutes. Without the interval the system's own
/// would apply, which on Linux gives a dead peer eleven minutes more.
const KEEPALIVE_TIME: Duration = Duration::from_secs(120);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Refuses a path that cannot be a Unix domain socket's on this platform.
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
    /// One of TCP.
    Tcp(TcpStream),
    /// A Unix domain socket.
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Socket {
    /// Connects to a port of TCP.
    pub async fn connect(peer: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(peer).await?;
        // A command is one write and waits for its reply: holding it back for more to send would only delay it.
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

    /// There are no Unix domain sockets on this platform, and [`check_path`] has refused them before.
    #[cfg(not(unix))]
    pub async fn connect_unix(_: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The addresses of this end and of the other one. A Unix domain socket has none.
    pub fn addresses(&self) -> io::Result<(Option<SocketAddr>, Option<SocketAddr>)> {
        match self {
            Self::Tcp(stream) => Ok((Some(stream.local_addr()?), Some(stream.peer_addr()?))),
            #[cfg(unix)]
            Self::Unix(_) => Ok((None, None)),
        }
    }

    /// Reads what is there already, if the runtime knows of something; else [`WouldBlock`](io::ErrorKind::WouldBlock),
    /// without a system call.
    #[inline]
    pub fn try_read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(bytes),
            #[cfg(unix)]
            Self::Unix(stream) => stream.try_read(bytes),
        }
    }

    /// Writes what there is room for, if the runtime knows of any; else [`WouldBlock`](io::ErrorKind::WouldBlock).
    #[inline]
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            #[cfg(unix)]
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }

    /// Gives up the socket in a forked child, without any effect on the parent's.
    ///
    /// Dropping it would take the socket out of tokio's epoll instance, which parent and child share, and so the parent
    /// would never again hear of its own socket. Closing only the child's descriptor leaves the registration alone:
    /// that belongs to the open socket, which the parent keeps open. The memory of the registration is leaked.
    #[cfg(unix)]
    pub fn abandon_after_fork(self) {
        use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

        let descriptor = match &self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        };
        std::mem::forget(self);
        // SAFETY: the descriptor is open, because the stream that owned it has only just been forgotten; and nobody
        // else closes it, because that stream was its one owner and is never dropped.
        #[allow(unsafe_code)]
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }

    /// Gives up the socket by leaking it. There is no fork on this platform.
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

    // Neither kind of socket holds bytes back.
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
    async fn a_tcp_socket_sends_at_once_and_asks_after_silent_peers() {
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
