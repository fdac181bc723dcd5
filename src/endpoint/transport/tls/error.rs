//! Errors of TLS for which the TLS library's own error would not help.

use std::io;
use std::sync::Arc;

use thiserror::Error;

/// A TLS handshake failed for a reason that the options or the server's certificate can change. A retry does not help.
///
/// This is the cause of an [`EstablishError`](crate::EstablishError) at [`Stage::Tls`](crate::Stage::Tls). The cause of
/// other TLS failures is an [`io::Error`] that contains the [`rustls::Error`](crate::rustls::Error), and the cause of a
/// failed revocation check is an [`OcspError`](crate::endpoint::OcspError).
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
    /// The server answered a TLS handshake with something other than TLS.
    #[error("the server does not speak TLS: remove tls=true, or connect to a port that does ({source})")]
    #[non_exhaustive]
    NotSpoken {
        /// The error of the TLS library.
        source: Arc<io::Error>,
    },
    /// The system has no certificate authorities to trust, so no server certificate can be verified. Install the
    /// system's certificates, set `SSL_CERT_FILE` or `SSL_CERT_DIR`, or set `tlsCAFile`.
    #[error("the system has no certificate authorities ({}); set tlsCAFile", reasons.join("; "))]
    #[non_exhaustive]
    NoTrustedAuthority {
        /// The errors of looking for them. May be empty.
        reasons: Vec<String>,
    },
    /// The server presents the certificate of an authority (`CA:TRUE`) as its own, and `tlsCAFile` does not hold it as
    /// a self-signed certificate.
    #[error(
        "the server presents an authority's certificate (CA:TRUE) as its own; if it is self-signed, add it to \
         tlsCAFile, otherwise give the server a certificate with CA:FALSE"
    )]
    AuthorityAsServer,
}

crate::error::debug_as_sentence!(TlsError);
