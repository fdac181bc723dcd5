//! Why a connection could not be put into TLS, where the error of the TLS library would not help.

use std::io;
use std::sync::Arc;

use thiserror::Error;

/// A TLS handshake could not be made, for a reason that the options or the server's certificate can change. Trying again
/// does not help.
///
/// It is the cause of an [`EstablishError`](crate::EstablishError) of [`Stage::Tls`](crate::Stage::Tls). Other failures of
/// TLS are the cause as an [`io::Error`] around the [`rustls::Error`](crate::rustls::Error), and those of revocation as an
/// [`OcspError`](crate::wire::ocsp::OcspError).
///
/// ```
/// use wharf::EstablishError;
/// use wharf::endpoint::TlsError;
///
/// fn advice(error: &EstablishError) -> Option<&'static str> {
///     Some(match error.cause().downcast_ref()? {
///         TlsError::NotSpoken { .. } => "remove tls=true, or connect to another port",
///         TlsError::NoTrustedAuthority { .. } => "set tlsCAFile",
///         TlsError::AuthorityAsServer => "give the server a certificate of its own",
///         _ => "look at the message",
///     })
/// }
/// ```
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The server's answer to a TLS handshake is no TLS.
    #[error("the server does not speak TLS: remove tls=true, or connect to a port that does ({source})")]
    #[non_exhaustive]
    NotSpoken {
        /// The error of the TLS library.
        source: Arc<io::Error>,
    },
    /// The system has no certificate authority to trust, so no server's certificate can be verified. Install the system's
    /// certificates, let `SSL_CERT_FILE` or `SSL_CERT_DIR` name others, or set `tlsCAFile`.
    #[error("the system has no certificate authorities ({}); set tlsCAFile", reasons.join("; "))]
    #[non_exhaustive]
    NoTrustedAuthority {
        /// What went wrong when they were looked for. May be empty.
        reasons: Vec<String>,
    },
    /// The server presents the certificate of an authority (`CA:TRUE`) as its own, and it is not a self-signed one that
    /// `tlsCAFile` holds.
    #[error(
        "the server presents an authority's certificate (CA:TRUE) as its own; if it is self-signed, name that very \
         certificate in tlsCAFile, else give the server one with CA:FALSE"
    )]
    AuthorityAsServer,
}

crate::error::debug_as_sentence!(TlsError);
