//! A TLS server that relays to a server without TLS, and records the clients' handshakes.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{HandshakeKind, RootCertStore, ServerConfig, SupportedProtocolVersion};

/// A successful handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedHandshake {
    /// Whether the client resumed an earlier session.
    pub resumed: bool,
    /// The server name that the client sent (SNI).
    pub server_name: Option<String>,
}

/// A running server. Dropping it closes its port and all connections.
#[derive(Debug)]
pub struct TlsFront {
    address: SocketAddr,
    handshakes: Arc<Mutex<Vec<ServedHandshake>>>,
    accepting: JoinHandle<()>,
}

impl TlsFront {
    /// Starts a server on 127.0.0.1, on a port that the operating system chooses, with the certificate and key in a PEM
    /// file and one version of TLS. It runs on the current tokio runtime. With `client_authority`, clients must present a
    /// certificate from that authority; a client without a certificate gets an alert.
    ///
    /// # Errors
    ///
    /// Returns an error if a file is invalid, or no port can be bound.
    ///
    /// # Panics
    ///
    /// Panics if polled outside a tokio runtime.
    pub async fn start(
        server: SocketAddr,
        certificate_key: &Path,
        version: &'static SupportedProtocolVersion,
        client_authority: Option<&Path>,
    ) -> io::Result<Self> {
        Self::start_stapling(server, certificate_key, version, client_authority, Vec::new()).await
    }

    /// Like [`start`](Self::start), but staples `staple`, a valid or invalid OCSP response, unless it is empty.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`start`](Self::start).
    ///
    /// # Panics
    ///
    /// Panics if polled outside a tokio runtime.
    pub async fn start_stapling(
        server: SocketAddr,
        certificate_key: &Path,
        version: &'static SupportedProtocolVersion,
        client_authority: Option<&Path>,
        staple: Vec<u8>,
    ) -> io::Result<Self> {
        let chain = CertificateDer::pem_file_iter(certificate_key).and_then(Iterator::collect);
        let chain: Vec<_> = chain.map_err(io::Error::other)?;
        let key = PrivateKeyDer::from_pem_file(certificate_key).map_err(io::Error::other)?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[version])
            .map_err(io::Error::other)?;
        let builder = match client_authority {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let mut authorities = RootCertStore::empty();
                let authority = CertificateDer::from_pem_file(file).map_err(io::Error::other)?;
                authorities.add(authority).map_err(io::Error::other)?;
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(io::Error::other)?)
            }
        };
        let config = builder.with_single_cert_with_ocsp(chain, key, staple).map_err(io::Error::other)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let handshakes = Arc::default();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let accepting = tokio::spawn(accept(listener, acceptor, server, Arc::clone(&handshakes)));
        Ok(Self { address, handshakes, accepting })
    }

    /// Returns the address that clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the successful handshakes so far, in order.
    #[must_use]
    pub fn handshakes(&self) -> Vec<ServedHandshake> {
        self.handshakes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Accepts connections until the task is aborted, which also closes them.
async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    server: SocketAddr,
    handshakes: Arc<Mutex<Vec<ServedHandshake>>>,
) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((client, _)) = listener.accept().await else { continue };
        let (acceptor, handshakes) = (acceptor.clone(), Arc::clone(&handshakes));
        connections.spawn(async move {
            // Otherwise a small message may wait up to 40 ms for the acknowledgement of the previous one.
            let Ok(()) = client.set_nodelay(true) else { return };
            let Ok(mut client) = acceptor.accept(client).await else { return };
            let session = client.get_ref().1;
            let handshake = ServedHandshake {
                resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
                server_name: session.server_name().map(str::to_owned),
            };
            handshakes.lock().unwrap_or_else(PoisonError::into_inner).push(handshake);
            if let Ok(mut server) = TcpStream::connect(server).await
                && server.set_nodelay(true).is_ok()
            {
                // The client sees its connection end, so there is nothing to report.
                let _ = copy_bidirectional(&mut client, &mut server).await;
            }
        });
    }
}
