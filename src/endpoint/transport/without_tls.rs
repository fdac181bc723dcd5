//! Takes the place of `tls` without the `tls` feature: rejects the option, so no stream can use TLS.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::socket::Socket;
use crate::endpoint::deadline::Deadline;
use crate::endpoint::options::{Host, InvalidOption, TlsOptions, without_feature};
use crate::pool::error::EstablishError;

/// A TLS configuration, which nothing can create.
#[derive(Debug)]
pub(super) struct Tls(Infallible);

pub(super) type Identity = Infallible;

impl Tls {
    pub fn new(_: &TlsOptions, _: bool) -> Result<Self, InvalidOption> {
        Err(without_feature())
    }

    pub fn identity_of(&self, _: &Host) -> Result<Identity, InvalidOption> {
        match self.0 {}
    }

    pub async fn secure(&self, _: Socket, _: &Identity, _: Deadline) -> Result<TlsStream, EstablishError> {
        match self.0 {}
    }
}

pub(super) fn is_refusal(_: &io::Error) -> bool {
    false
}

/// A TLS stream, which nothing can create.
#[derive(Debug)]
pub(super) struct TlsStream(Infallible);

impl TlsStream {
    pub fn into_socket(self) -> Socket {
        match self.0 {}
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.0 {}
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        match self.0 {}
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0 {}
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_is_refused_with_the_name_of_the_feature() {
        let refused = Tls::new(&TlsOptions::default(), true).unwrap_err().to_string();
        assert_eq!(refused, "tls must be false, because wharf was built without the tls feature");
    }

    /// Otherwise, a client with an SRV name would keep looking the name up.
    #[cfg(not(feature = "tls"))]
    #[test]
    fn client_with_tls_is_refused_before_it_looks_a_name_up() {
        let srv = cfg!(feature = "srv").then_some("mongodb+srv://a.example.com");
        for uri in ["mongodb://a/?tls=true"].into_iter().chain(srv) {
            let refused = crate::Client::from_uri(uri).unwrap_err().to_string();
            assert!(refused.ends_with("without the tls feature"), "{uri}: {refused}");
        }
    }
}
