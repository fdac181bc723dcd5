//! Connections through a SOCKS5 proxy (SOCKS5 Support specification).

use std::sync::Arc;

use thiserror::Error;
use tokio_socks::tcp::Socks5Stream;

use super::socket::Socket;
use super::{connect_tcp, resolve};
use crate::endpoint::deadline::Deadline;
use crate::error::{Cause, EstablishError, Stage};
use crate::options::ProxyOptions;

/// Has `proxy` open a connection to the server. A server's name is passed on as it is.
///
/// Nothing that goes wrong here, also when the proxy says that the server refused, tells anything about the server's
/// load, so no error has a label.
pub(super) async fn connect(
    proxy: &ProxyOptions,
    name: &str,
    port: u16,
    deadline: Deadline,
) -> Result<Socket, EstablishError> {
    let failed = |source: Cause, retryable| {
        let proxy = format!("{}:{}", proxy.host, proxy.port);
        EstablishError { retryable, ..EstablishError::unlabelled(Stage::Proxy, ProxyFailed { proxy, source }) }
    };
    let reached = async {
        let addresses = resolve(&proxy.host, proxy.port, deadline).await?;
        connect_tcp(addresses, deadline).await
    };
    let socket = reached.await.map_err(|error| failed(error.source, error.retryable))?;
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
        Ok(Ok(stream)) => Ok(stream.into_inner()),
        Ok(Err(error)) => {
            let retryable = is_of_network(&error);
            Err(failed(Arc::new(error), retryable))
        }
        Err(timeout) => Err(failed(Arc::new(timeout), true)),
    }
}

/// Whether it is the network that failed, on this side of the proxy or on the other, and not the proxy that refuses.
fn is_of_network(error: &tokio_socks::Error) -> bool {
    use tokio_socks::Error as Socks;
    matches!(
        error,
        Socks::Io(_)
            | Socks::ProxyServerUnreachable
            | Socks::GeneralSocksServerFailure
            | Socks::NetworkUnreachable
            | Socks::HostUnreachable
            | Socks::ConnectionRefused
            | Socks::TtlExpired
    )
}

/// The proxy could not be reached, or did not connect to the server.
#[derive(Error)]
#[error("SOCKS5 proxy {proxy}: {source}")]
pub struct ProxyFailed {
    /// The proxy's host and port.
    pub proxy: String,
    /// A [`ConnectFailed`](super::ConnectFailed) or an [`io::Error`](std::io::Error) when the proxy was not reached,
    /// what the protocol says when it refused, or a [`ConnectTimeout`](crate::endpoint::ConnectTimeout).
    pub source: Cause,
}

crate::error::debug_as_sentence!(ProxyFailed);
