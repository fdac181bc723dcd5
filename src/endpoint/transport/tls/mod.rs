//! TLS, with rustls and *ring*.
//!
//! The cryptographic provider is set here or in the options. The process's default provider is never used. An
//! application that also uses rustls therefore cannot change the provider by accident, and does not have to set it.
//!
//! # Revocation
//!
//! The OCSP response that a server staples is verified, and a certificate can require a response (Must-Staple): see
//! `revocation`, and the OCSP Support specification, "Suggested OCSP Behavior", steps 1 to 3 and 10. rustls asks every
//! server for a response and passes it on.
//!
//! With the `ocsp` feature, the responders named in the certificate are queried after an inconclusive handshake. This
//! is not done if `tlsDisableOCSPEndpointCheck` forbids it, or if a proxy is set, which no request may bypass
//! (`responders`; steps 4 and 7). Their answers are kept until they expire.
//!
//! Revocation lists are not read (steps 5 and 6): the specification only says that a driver SHOULD read them. A resumed
//! session relies on the chain and the stapled response of its first connection. But its responders are queried again,
//! unless their answer is known: rustls stores a session before the responders of its first connection have answered.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, InvalidMessage, SupportedProtocolVersion};

use super::socket::Socket;
use crate::endpoint::deadline::Deadline;
use crate::endpoint::host_name;
use crate::endpoint::options::{Host, InvalidOption, TlsOptions, TlsVersion};
use crate::pool::error::{EstablishError, Stage};
use crate::text::printable::Printable;

mod certificate_key;
mod error;
mod pem;
#[cfg(feature = "ocsp")]
mod responders;
mod revocation;
mod sessions;
mod trust;

pub use error::TlsError;

use sessions::Sessions;
use trust::Verifier;

/// The TLS configuration from the options. Holds the sessions that later connections resume.
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    /// `None` if the application supplied the configuration, with its own verifier.
    verifier: Option<Arc<Verifier>>,
    /// The sessions that `config` resumes, unless it is the application's.
    #[cfg(feature = "ocsp")]
    sessions: Arc<Sessions>,
}

/// The name that a server's certificate must contain. Only a DNS name is sent to the server (SNI), not an IP address.
pub(super) type Identity = ServerName<'static>;

impl Tls {
    /// Reads the files that the options name.
    ///
    /// The system's certificate authorities are not read yet, because that may take many milliseconds. The first
    /// connection reads them on a blocking thread.
    ///
    /// `asks_responders` says whether requests may go to the certificate authorities' responders.
    pub fn new(
        options: &TlsOptions,
        #[cfg_attr(not(feature = "ocsp"), allow(unused_variables, reason = "no responder is asked"))]
        asks_responders: bool,
    ) -> Result<Self, InvalidOption> {
        if let Some(config) = options.own_config() {
            return Ok(Self {
                config: Arc::clone(config),
                verifier: None,
                #[cfg(feature = "ocsp")]
                sessions: Arc::default(),
            });
        }
        let own_provider = options.own_provider();
        let provider = own_provider.map_or_else(|| Arc::new(ring::default_provider()), Arc::clone);
        let verifier = Verifier::new(options, &provider)?;
        #[cfg(feature = "ocsp")]
        let verifier = if asks_responders { verifier } else { verifier.without_responders() };
        let verifier = Arc::new(verifier);
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions(options.min_version))
            .map_err(|error| refuse_provider(&error, options.min_version))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::<Verifier>::clone(&verifier));
        let mut config = match certificate_key::read(options)? {
            None => builder.with_no_client_auth(),
            Some(own) => {
                builder.with_client_cert_resolver(Arc::new(own.into_resolver(own_provider.map(|own| &**own))?))
            }
        };
        let sessions = Arc::<Sessions>::default();
        config.resumption = Resumption::store(sessions.clone());
        Ok(Self {
            config: Arc::new(config),
            verifier: Some(verifier),
            #[cfg(feature = "ocsp")]
            sessions,
        })
    }

    /// Returns the name that the certificate of the server at `host` must contain.
    pub fn identity_of(&self, host: &Host) -> Result<Identity, InvalidOption> {
        match host {
            Host::Tcp { name, .. } => {
                let identity = host_name::canonical(name).and_then(|name| ServerName::try_from(name).ok());
                identity.ok_or_else(|| {
                    let must = "a DNS name in ASCII (xn--… for other characters) or an IP address, because TLS looks for \
                                it in the server's certificate";
                    InvalidOption::new("hosts", must, format!("{name:?}"))
                })
            }
            // Any IP address will do, because the name is not checked, and an IP address is not sent to the server.
            Host::Unix { .. } if self.verifier.as_ref().is_some_and(|verifier| !verifier.checks_name()) => {
                Ok(ServerName::from(IpAddr::from(Ipv4Addr::LOCALHOST)))
            }
            Host::Unix { path } => Err(InvalidOption::because(
                "tls",
                format!(
                    "must be false for the Unix domain socket {path:?}, because certificates hold no paths, or true with \
                     tlsAllowInvalidHostnames"
                ),
            )),
        }
    }

    /// Performs the TLS handshake with the server at the other end of `socket`.
    pub async fn secure(
        &self,
        socket: Socket,
        identity: &Identity,
        deadline: Deadline,
    ) -> Result<TlsStream, EstablishError> {
        if let Some(verifier) = &self.verifier {
            match deadline.bound(verifier.load()).await {
                Ok(loaded) => loaded.map_err(|error| EstablishError::permanent(Stage::Tls, error))?,
                // This machine was slow, so nothing is known about the server.
                Err(timeout) => return Err(EstablishError::network(Stage::Tls, timeout)),
            }
        }
        let handshake = async {
            let stream = TlsConnector::from(Arc::clone(&self.config)).connect(identity.clone(), socket).await?;
            #[cfg(feature = "ocsp")]
            self.ask_responders(&stream, identity, deadline).await?;
            Ok(stream)
        };
        match deadline.bound(handshake).await {
            Ok(Ok(stream)) => Ok(TlsStream(Box::new(stream))),
            Ok(Err(error)) => Err(
                match (revocation::refused_in(&error), trust::refused_in(&error).or_else(|| TlsError::hinted(&error))) {
                    (Some(refused), _) => EstablishError::permanent(Stage::Tls, refused.clone()),
                    (None, Some(refused)) => EstablishError::permanent(Stage::Tls, refused),
                    (None, None) if is_no_tls(&error) => {
                        EstablishError::permanent(Stage::Tls, TlsError::NotSpoken { source: Arc::new(error) })
                    }
                    (None, None) => {
                        let error = super::with_guess(error, "the server may not speak TLS: remove tls=true");
                        super::stream_failed(Stage::Tls, with_printable_names(error))
                    }
                },
            ),
            Err(timeout) => Err(EstablishError::overloaded(Stage::Tls, timeout)),
        }
    }
}

#[cfg(feature = "ocsp")]
impl Tls {
    /// Refuses the server's certificate if a responder that the certificate names reports a revocation.
    ///
    /// A resumed session has the certificate of its first handshake. So after a refusal, the next connection does not
    /// resume a session, and the server presents its current certificate.
    async fn ask_responders(
        &self,
        stream: &client::TlsStream<Socket>,
        identity: &Identity,
        deadline: Deadline,
    ) -> io::Result<()> {
        let Some(verifier) = &self.verifier else { return Ok(()) };
        let presented = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let asked = crate::pool::runtime::boxed(|| verifier.ask_responders(&presented, deadline.remaining())).await;
        asked.map_err(|error| {
            self.sessions.forget(identity);
            io::Error::new(io::ErrorKind::InvalidData, error)
        })
    }
}

/// Returns `oldest` and all later TLS versions, newest first.
fn versions(oldest: TlsVersion) -> &'static [&'static SupportedProtocolVersion] {
    static NEWEST_FIRST: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
    match oldest {
        TlsVersion::Tls12 => &NEWEST_FIRST,
        TlsVersion::Tls13 => &NEWEST_FIRST[..1],
    }
}

fn refuse_provider(error: &Error, oldest: TlsVersion) -> InvalidOption {
    let versions = match oldest {
        TlsVersion::Tls12 => "TLS 1.2 or 1.3",
        TlsVersion::Tls13 => "TLS 1.3, the min_version",
    };
    let problem = format!("must have cipher suites and key exchanges for {versions}: {error}");
    InvalidOption::because("crypto_provider", problem)
}

/// Leaves out the configuration, which holds a private key and is long when rustls prints it.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("verifier", &self.verifier).finish_non_exhaustive()
    }
}

/// The maximum number of names from a certificate that an error lists.
const MOST_NAMES: usize = 16;

/// If the error lists the names in the server's certificate, escapes and truncates these names. The certificate's
/// issuer chose them, so they are not trusted.
fn with_printable_names(error: io::Error) -> io::Error {
    let source = error.get_ref().and_then(|source| source.downcast_ref());
    let Some(Error::InvalidCertificate(CertificateError::NotValidForNameContext { expected, presented })) = source
    else {
        return error;
    };
    let mut names: Vec<_> = presented.iter().take(MOST_NAMES).map(|name| Printable(name).to_string()).collect();
    if let more @ 1.. = presented.len() - names.len() {
        names.push(format!("{more} more"));
    }
    let source = CertificateError::NotValidForNameContext { expected: expected.clone(), presented: names };
    io::Error::new(error.kind(), Error::InvalidCertificate(source))
}

/// Returns whether the peer sent something other than TLS records.
fn is_no_tls(error: &io::Error) -> bool {
    let source = error.get_ref().and_then(|source| source.downcast_ref());
    let Some(Error::InvalidMessage(invalid)) = source else { return false };
    matches!(invalid, InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion)
}

/// Returns whether TLS itself failed rather than the network below it: a certificate that one side does not accept, an
/// alert, or bytes that are not TLS.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|source| source.is::<Error>())
}

/// A TLS stream. It is boxed so that it neither enlarges plain streams nor makes connections costly to move.
#[derive(Debug)]
pub(super) struct TlsStream(pub(super) Box<client::TlsStream<Socket>>);

impl TlsStream {
    /// Returns the socket. Nothing is sent.
    pub fn into_socket(self) -> Socket {
        self.0.into_inner().0
    }

    /// Returns the reason for a failed write, if the server sent a reason before it closed the stream.
    ///
    /// A server that refuses the client's certificate after the handshake sends an alert and closes the stream. The
    /// first operation to fail may then be a write, whose own error is only a reset.
    fn reason(&mut self, error: io::Error, cx: &mut Context<'_>) -> io::Error {
        match Pin::new(&mut *self.0).poll_read(cx, &mut ReadBuf::new(&mut [])) {
            Poll::Ready(Err(reason)) if is_refusal(&reason) => reason,
            _ => error,
        }
    }
}

impl AsyncRead for TlsStream {
    /// Reads, and also sends pending bytes: the end of a request, or a message from TLS itself.
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = &mut self.get_mut().0;
        let pushed = match stream.get_ref().1.wants_write() {
            true => Pin::new(&mut **stream).poll_flush(cx),
            false => Poll::Ready(Ok(())),
        };
        // Data that can be read takes precedence over the write's error.
        match (Pin::new(&mut **stream).poll_read(cx, buffer), pushed) {
            (Poll::Pending, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
            // A stream may end without a `close_notify`, because messages state their length.
            (Poll::Ready(Err(error)), _) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            (read, _) => read,
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        Pin::new(&mut *this.0).poll_write(cx, bytes).map_err(|error| this.reason(error, cx))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        Pin::new(&mut *this.0).poll_flush(cx).map_err(|error| this.reason(error, cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::UnixTime;
    use wharf_testbed::certificates::{Certificates, Pem, VERSION_1};

    use super::*;

    /// Performs a handshake with a server that has [`VERSION_1`].
    async fn handshake(options: &TlsOptions, version: &'static SupportedProtocolVersion) -> io::Result<()> {
        let of_server = TlsOptions::default().certificate_key_pem(VERSION_1);
        let own = certificate_key::read(&of_server).unwrap().unwrap();
        let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(own.into_resolver(None).unwrap()));
        let (near, far) = tokio::io::duplex(1 << 16);
        let client = TlsConnector::from(Tls::new(options, false).unwrap().config);
        let name = ServerName::try_from("localhost").unwrap();
        let accept = TlsAcceptor::from(Arc::new(server)).accept(far);
        let (connected, _) = tokio::join!(client.connect(name, near), accept);
        connected.map(drop)
    }

    #[tokio::test]
    async fn server_with_a_certificate_of_version_1_is_accepted_where_any_certificate_is() {
        for version in [&TLS12, &TLS13] {
            let lax = TlsOptions::default().ca_pem(VERSION_1).insecure(true);
            handshake(&lax, version).await.unwrap();
            assert!(handshake(&lax.insecure(false), version).await.is_err());
        }
    }

    #[test]
    fn own_certificate_of_version_1_needs_its_own_key() {
        let read = |pem: &str| {
            let options = TlsOptions::default().certificate_key_pem(pem);
            certificate_key::read(&options).unwrap().unwrap().into_resolver(None).map(drop)
        };
        read(VERSION_1).unwrap();
        let key = VERSION_1.find("-----BEGIN PRIVATE KEY").unwrap();
        let other = other_key();
        let error = read(&format!("{}{other}", &VERSION_1[..key])).unwrap_err().to_string();
        assert!(error.contains("KeyMismatch"), "{error}");
    }

    /// Returns a private key in PEM.
    fn other_key() -> String {
        let certificates = Certificates::create().unwrap();
        let client = std::fs::read_to_string(certificates.file(Pem::Client)).unwrap();
        client[client.find("-----BEGIN PRIVATE").unwrap()..].to_owned()
    }

    #[test]
    fn hints_name_the_option_and_the_date() {
        let hinted = |error| {
            let error = Error::InvalidCertificate(error);
            TlsError::hinted(&io::Error::new(io::ErrorKind::InvalidData, error)).unwrap().to_string()
        };
        let [time, other] =
            [1_000_000_000, 2_000_000_000].map(|time| UnixTime::since_unix_epoch(Duration::from_secs(time)));
        assert!(hinted(CertificateError::UnknownIssuer).contains("set tlsCAFile"));
        let expired = hinted(CertificateError::ExpiredContext { time: other, not_after: time });
        assert!(expired.starts_with("the server's certificate expired on 2001-09-09T01:46:40Z: renew it"), "{expired}");
        let early = hinted(CertificateError::NotValidYetContext { time, not_before: other });
        assert!(early.starts_with("the server's certificate is not valid before 2033-05-18T03:33:20Z"), "{early}");
    }

    #[test]
    fn names_of_a_certificate_are_escaped_and_cut() {
        let expected = ServerName::try_from("db.example.com").unwrap();
        let presented = (0..1_000).map(|number| format!("DnsName(\"a{number}\n\u{1b}[2J\u{202e}\")")).collect();
        let error = Error::InvalidCertificate(CertificateError::NotValidForNameContext { expected, presented });
        let shown = with_printable_names(io::Error::new(io::ErrorKind::InvalidData, error));
        assert!(is_refusal(&shown) && shown.kind() == io::ErrorKind::InvalidData, "{shown:?}");
        let shown = shown.to_string();
        assert!(shown.contains(r#"DnsName("a15\n\u{1b}[2J\u{202e}")"#) && shown.contains("984 more"), "{shown}");
        assert!(!shown.contains(['\n', '\u{1b}', '\u{202e}']) && !shown.contains("a16"), "{shown}");
    }
}
