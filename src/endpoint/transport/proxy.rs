//! Connections through a SOCKS5 proxy (SOCKS5 Support specification).

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_socks::tcp::Socks5Stream;

use super::socket::Socket;
use super::{connect_tcp, resolve};
use crate::endpoint::deadline::Deadline;
use crate::endpoint::options::ProxyOptions;
use crate::pool::error::{Cause, EstablishError, Stage};
use crate::pool::runtime::LookUps;

/// Connects to the server through `proxy`. The proxy resolves the server's name.
///
/// Any failure is a network error, even if the proxy refuses the login or its rules forbid the connection ("Connection
/// Establishment"). A failure says nothing about the server's load, even if the proxy reports that the server refused
/// the connection, so no error has a label.
pub(super) async fn connect(
    proxy: &ProxyOptions,
    look_ups: &LookUps,
    (name, port): (&str, u16),
    deadline: Deadline,
) -> Result<Socket, EstablishError> {
    let failed = |source: Cause, reply| {
        let failed = ProxyError { proxy: format!("{}:{}", proxy.host, proxy.port), reply, source };
        EstablishError::network(Stage::Proxy, failed)
    };
    let reached = async {
        let addresses = resolve(look_ups, &proxy.host, proxy.port, deadline).await?;
        connect_tcp(addresses, deadline).await
    };
    let socket = reached.await.map_err(|error| failed(Arc::clone(error.cause()), None))?;
    let mut heard = Heard::default();
    let socket = Overheard { socket, heard: &mut heard };
    let handshake = async {
        match &proxy.login {
            None => Socks5Stream::connect_with_socket(socket, (name, port)).await,
            Some((username, password)) => {
                let password = password.reveal();
                Socks5Stream::connect_with_password_and_socket(socket, (name, port), username, password).await
            }
        }
    };
    match deadline.bound(handshake).await {
        Ok(Ok(stream)) => Ok(stream.into_inner().socket),
        Ok(Err(error)) => Err(failed(Arc::new(error), heard.refusal())),
        Err(timeout) => Err(failed(Arc::new(timeout), None)),
    }
}

/// The first bytes that a proxy sends: the method, the outcome of a login if there is one, and its reply. They are kept
/// for the reply's code, because the library translates codes into text and does not know all of them.
#[derive(Default)]
struct Heard {
    bytes: [u8; 6],
    count: usize,
}

impl Heard {
    fn hear(&mut self, bytes: &[u8]) {
        for (place, byte) in self.bytes[self.count..].iter_mut().zip(bytes) {
            *place = *byte;
        }
        self.count = self.bytes.len().min(self.count + bytes.len());
    }

    /// Returns the reply's code, if a reply arrived and its code is not success (RFC 1928, section 6).
    fn refusal(&self) -> Option<u8> {
        let rest = match &self.bytes[..self.count] {
            // The first pattern follows a login by name and password (RFC 1929).
            [5, 2, 1, 0, rest @ ..] | [5, 0, rest @ ..] => rest,
            _ => return None,
        };
        match rest {
            [5, code, ..] if *code != 0 => Some(*code),
            _ => None,
        }
    }
}

/// A socket that records the first bytes that it receives.
struct Overheard<'h> {
    socket: Socket,
    heard: &'h mut Heard,
}

impl AsyncRead for Overheard<'_> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.socket).poll_read(cx, buffer))?;
        this.heard.hear(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Overheard<'_> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

/// The proxy could not be reached, or did not connect to the server.
#[derive(Error)]
#[non_exhaustive]
pub struct ProxyError {
    /// The proxy's host and port.
    pub proxy: String,
    /// The code in the proxy's reply, if it refused to connect to the server (RFC 1928, section 6).
    pub reply: Option<u8>,
    /// A [`ConnectError`](super::ConnectError) or an [`io::Error`] if the proxy was not reached, the protocol's error
    /// if the proxy refused, or a [`ConnectTimeoutError`](crate::endpoint::ConnectTimeoutError).
    pub source: Cause,
}

crate::pool::error::debug_as_sentence!(ProxyError);

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { proxy, reply, source } = self;
        match reply {
            None => write!(f, "SOCKS5 proxy {proxy}: {source}"),
            Some(code) => write!(f, "SOCKS5 proxy {proxy} replied with code {code} ({})", meaning(*code)),
        }
    }
}

/// Returns the meaning of a reply's code (RFC 1928, section 6).
fn meaning(code: u8) -> &'static str {
    match code {
        1 => "general SOCKS server failure",
        2 => "connection not allowed by ruleset",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "TTL expired",
        7 => "command not supported",
        8 => "address type not supported",
        _ => "not a code of RFC 1928",
    }
}
