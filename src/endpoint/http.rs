//! A single HTTP/1.1 request to a cloud service or a responder, on a new connection.
//!
//! Redirects, cookies and proxies are not supported: the services respond directly or not at all. Their responses are
//! short. A longer response is refused before it is buffered.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};
use zeroize::Zeroizing;

use super::deadline::Deadline;
use super::transport::connect_first;
use crate::pool::runtime::{LookUps, blocking};
use crate::text::milliseconds::Milliseconds;
use crate::text::printable::PrintableError;

/// The maximum length of a response body, in bytes.
const MAX_BODY: usize = 64 * 1024;

/// The maximum length of a response head, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// A request. Its headers and body may hold secrets; its path must not.
#[derive(Clone)]
pub(super) struct HttpRequest<'a> {
    pub method: Method,
    /// `http://host:port` or `https://host:port`.
    pub base: &'a str,
    /// The path and query, encoded, with a leading slash.
    pub path: &'a str,
    pub headers: &'a [(&'static str, &'a str)],
    pub body: Zeroizing<Vec<u8>>,
    /// The addresses allowed for the service; `None` allows all. A name is resolved once, and all of its addresses must
    /// be allowed. The connection goes to one of these addresses, so a later DNS answer cannot change the destination.
    pub peers: Option<Peers>,
    /// The time limit for the whole exchange.
    pub limit: Duration,
}

/// Decides whether an address is allowed for a service.
pub(super) type Peers = fn(IpAddr) -> bool;

/// The response to a request, whatever its status.
pub(super) struct HttpAnswer {
    pub status: StatusCode,
    pub body: Zeroizing<Vec<u8>>,
}

/// Why there is no response. The error repeats nothing from the request except the address.
#[derive(Debug, Error)]
pub(super) enum HttpError {
    #[error("{url:?} is not the URL of a service: it must be http://host:port or https://host:port")]
    Url { url: String },
    #[error("{field} has characters that are not allowed in an HTTP request")]
    Characters { field: &'static str },
    #[error("it did not answer within {}", Milliseconds(*limit))]
    Timeout { limit: Duration },
    #[error("its host has the address {address}, which is not allowed")]
    Peer { address: IpAddr },
    #[error("connecting failed: {0}")]
    Connect(#[source] io::Error),
    #[error("securing the connection with TLS failed: {}", PrintableError(.0))]
    Tls(#[source] io::Error),
    #[error("the exchange failed: {0}")]
    Exchange(#[source] hyper::Error),
    #[error("its answer is longer than {MAX_BODY} bytes")]
    TooLong,
}

impl HttpRequest<'_> {
    /// Sends the request, and returns the response.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the connection. The service may have processed the request.
    pub async fn send(self) -> Result<HttpAnswer, HttpError> {
        self.send_trusting(system_trust).await
    }

    /// Like [`send`](Self::send), but trusts the authorities that `trust` returns.
    async fn send_trusting(self, trust: Trust) -> Result<HttpAnswer, HttpError> {
        let limit = self.limit;
        timeout(limit, self.send_unbounded(trust)).await.map_err(|_| HttpError::Timeout { limit })?
    }

    async fn send_unbounded(self, trust: Trust) -> Result<HttpAnswer, HttpError> {
        let service = Service::parse(self.base)?;
        let mut request = Request::builder()
            .method(self.method)
            .uri(self.path)
            .header(HOST, &service.authority)
            .body(Full::new(Bytes::from_owner(self.body)))
            .map_err(|_| HttpError::Characters { field: "the path" })?;
        for (name, value) in self.headers {
            let mut value = HeaderValue::from_str(value).map_err(|_| HttpError::Characters { field: name })?;
            value.set_sensitive(true);
            request.headers_mut().append(*name, value);
        }
        let stream = service.connect(self.peers).await?;
        if !service.secure {
            return exchange(stream, request).await;
        }
        let name = ServerName::try_from(service.host).map_err(|_| HttpError::Url { url: self.base.to_owned() })?;
        let roots = blocking(trust).await.map_err(io::Error::other);
        let config = roots.and_then(|roots| tls(roots?)).map_err(HttpError::Tls)?;
        let connector = TlsConnector::from(config);
        exchange(connector.connect(name, stream).await.map_err(HttpError::Tls)?, request).await
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Full<Bytes>>,
) -> Result<HttpAnswer, HttpError> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(HttpError::Exchange)?;
    let answer = async {
        let (head, body) = sender.send_request(request).await.map_err(HttpError::Exchange)?.into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return HttpError::TooLong;
            }
            let error = error
                .downcast()
                .expect("BUG: a body failed with an error that is neither its own nor that of its limit");
            HttpError::Exchange(*error)
        })?;
        // If the bytes have a single owner, the conversion takes over their buffer, which is then wiped rather than
        // only freed.
        let body = Zeroizing::new(Vec::from(body.to_bytes()));
        Ok(HttpAnswer { status: head.status, body })
    };
    let (mut answer, mut connection) = (std::pin::pin!(answer), std::pin::pin!(connection));
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // If the connection fails, so does the response. If the connection closes cleanly, the whole response has been
        // received.
        _ = &mut connection => answer.await,
    }
}

/// The address of a service.
struct Service {
    secure: bool,
    /// A name or an IP address, without brackets.
    host: String,
    port: u16,
    /// The host, and the port if it was given, as in the `Host` header.
    authority: String,
}

impl Service {
    fn parse(base: &str) -> Result<Self, HttpError> {
        // The part before an at sign may hold a password.
        let url = if base.contains('@') { "(not shown: it has an at-sign)" } else { base };
        let refuse = || HttpError::Url { url: url.to_owned() };
        let uri: Uri = base.parse().map_err(|_| refuse())?;
        let authority = uri.authority().ok_or_else(refuse)?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(refuse()),
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() || authority.as_str().contains('@') {
            return Err(refuse());
        }
        let port = match (authority.as_str().strip_prefix(authority.host()), authority.port_u16()) {
            (_, Some(port)) => port,
            (Some(""), None) => {
                if secure {
                    443
                } else {
                    80
                }
            }
            // An invalid port.
            _ => return Err(refuse()),
        };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { secure, host, port, authority: authority.to_string() })
    }

    async fn connect(&self, peers: Option<Peers>) -> Result<TcpStream, HttpError> {
        let addresses = LookUps::default().look_up(&self.host, self.port).await.map_err(HttpError::Connect)?;
        let is_refused = |address: &IpAddr| peers.is_some_and(|allows| !allows(*address));
        if let Some(address) = addresses.iter().map(SocketAddr::ip).find(is_refused) {
            return Err(HttpError::Peer { address });
        }
        // The request has its own limit.
        let connecting = connect_first(addresses, TcpStream::connect::<SocketAddr>, Deadline::after(Duration::ZERO));
        connecting.await.map_err(|error| HttpError::Connect(io::Error::other(error)))
    }
}

/// A function that returns the authorities to trust. It may read files.
type Trust = fn() -> io::Result<RootCertStore>;

/// Returns the authorities in the operating system's trust store.
fn system_trust() -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match roots.is_empty() {
        true => Err(io::Error::other("the operating system's trust store has no certificates")),
        false => Ok(roots),
    }
}

fn tls(roots: RootCertStore) -> io::Result<Arc<ClientConfig>> {
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::rustls::pki_types::CertificateDer;
    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use tokio_rustls::rustls::version;
    use wharf_testbed::certificates::{Certificates, Pem};
    use wharf_testbed::tls_front::TlsFront;

    use super::*;

    #[test]
    fn service_is_a_scheme_a_host_and_a_port() {
        for (base, secure, host, port, authority) in [
            ("http://metadata", false, "metadata", 80, "metadata"),
            ("https://sts.amazonaws.com", true, "sts.amazonaws.com", 443, "sts.amazonaws.com"),
            ("http://127.0.0.1:8000/", false, "127.0.0.1", 8000, "127.0.0.1:8000"),
            ("http://[::1]:8000", false, "::1", 8000, "[::1]:8000"),
        ] {
            let service = Service::parse(base).ok().unwrap();
            assert_eq!((service.secure, &*service.host, service.port), (secure, host, port));
            assert_eq!(service.authority, authority);
        }
        for base in [
            "",
            "metadata",
            "/path",
            "ftp://host",
            "http://host/path",
            "http://host?x",
            "http://u:p@host",
            "http://",
            "http://host:",
            "http://host:65536",
            "http://host:x",
            "http://[::1]:65536",
        ] {
            let refused = Service::parse(base).err().unwrap();
            assert!(matches!(refused, HttpError::Url { .. }), "{base}");
            assert!(!refused.to_string().contains("u:p"), "{refused}");
        }
    }

    fn get(base: &str) -> HttpRequest<'_> {
        HttpRequest {
            method: Method::GET,
            base,
            path: "/",
            headers: &[],
            body: Zeroizing::default(),
            peers: None,
            limit: Duration::from_secs(60),
        }
    }

    #[tokio::test]
    async fn service_at_a_refused_address_is_not_connected_to() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        for host in ["127.0.0.1", "localhost"] {
            let base = format!("http://{host}:{}", listener.local_addr().unwrap().port());
            let request = HttpRequest { peers: Some(|address| !address.is_loopback()), ..get(&base) };
            let refused = request.send().await.err().unwrap();
            assert!(matches!(refused, HttpError::Peer { address } if address.is_loopback()), "{refused}");
        }
        let accepted = timeout(Duration::ZERO, listener.accept()).await;
        assert!(accepted.is_err(), "a connection was opened");
    }

    /// Starts a service behind TLS that answers every request with "hello".
    async fn secure_service(certificates: &Certificates, certificate: Pem) -> (TlsFront, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let answering = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await.unwrap_or(0) > 0 {}
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await;
            }
        });
        let file = certificates.file(certificate);
        (TlsFront::start(address, &file, &version::TLS13, None).await.unwrap(), answering)
    }

    #[tokio::test]
    async fn tls_service_needs_a_certificate_for_its_name_from_a_trusted_authority() {
        static TRUSTED: OnceLock<PathBuf> = OnceLock::new();
        let trust: Trust = || {
            let mut roots = RootCertStore::empty();
            let file = TRUSTED.get().expect("set before the first request");
            roots.add(CertificateDer::from_pem_file(file).map_err(io::Error::other)?).map_err(io::Error::other)?;
            Ok(roots)
        };
        let certificates = Certificates::create().unwrap();
        TRUSTED.set(certificates.file(Pem::Authority)).unwrap();
        for (certificate, is_trusted) in [
            (Pem::Server, true),
            (Pem::OtherAuthoritysServer, false),
            (Pem::OtherNameServer, false),
            (Pem::ExpiredServer, false),
        ] {
            let (front, answering) = secure_service(&certificates, certificate).await;
            let base = format!("https://{}", front.address());
            let request = get(&base);
            // The operating system's trust store does not contain this authority.
            let untrusted = request.clone().send().await;
            assert!(matches!(untrusted, Err(HttpError::Tls(_))), "{certificate:?}");
            match request.send_trusting(trust).await {
                Ok(answer) => assert_eq!((is_trusted, &answer.body[..]), (true, &b"hello"[..])),
                Err(error) => assert!(!is_trusted && matches!(error, HttpError::Tls(_)), "{certificate:?}: {error}"),
            }
            answering.abort();
        }
    }
}
