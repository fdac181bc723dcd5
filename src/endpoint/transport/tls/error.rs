//! TLS failures that the TLS library's error alone would not explain.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thiserror::Error;
use tokio_rustls::rustls::pki_types::UnixTime;
use tokio_rustls::rustls::{self, CertificateError};

/// A TLS handshake failed for a reason that a change to the options or the server's certificate can fix. A retry does
/// not help.
///
/// This is the cause of an [`EstablishError`](crate::EstablishError) at [`Stage::Tls`](crate::Stage::Tls). The cause of
/// other TLS failures is an [`io::Error`] that contains the [`rustls::Error`], and the cause of a
/// failed revocation check is an [`OcspError`](crate::endpoint::wire::ocsp::OcspError).
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The server answered a TLS handshake with something other than TLS.
    #[error("the server does not speak TLS: remove tls=true, or connect to a port that does ({source})")]
    #[non_exhaustive]
    NotSpoken {
        /// The TLS library's error.
        source: Arc<io::Error>,
    },
    /// The system has no certificate authorities to trust, so no server certificate can be verified. Install the
    /// system's certificates, set `SSL_CERT_FILE` or `SSL_CERT_DIR`, or set `tlsCAFile`.
    #[error("the system has no certificate authorities ({}); set tlsCAFile", reasons.join("; "))]
    #[non_exhaustive]
    NoTrustedAuthority {
        /// The errors that occurred while looking for the authorities. May be empty.
        reasons: Vec<String>,
    },
    /// The server presents an authority's certificate (`CA:TRUE`) as its own, and that certificate is not a self-signed
    /// certificate in `tlsCAFile`.
    #[error(
        "the server presents an authority's certificate (CA:TRUE) as its own; if it is self-signed, add it to \
         tlsCAFile, otherwise give the server a certificate with CA:FALSE"
    )]
    AuthorityAsServer,
    /// No authority that the client trusts issued the server's certificate.
    #[error(
        "no trusted authority has issued the server's certificate: set tlsCAFile to the certificate of its authority \
         ({source})"
    )]
    #[non_exhaustive]
    UnknownIssuer {
        /// The TLS library's error.
        source: rustls::Error,
    },
    /// The server's certificate, or one in its chain, has expired.
    #[error("the server's certificate expired on {}: renew it, or correct this machine's clock ({source})", Date(*.since))]
    #[non_exhaustive]
    Expired {
        /// The end of the certificate's validity.
        since: SystemTime,
        /// The TLS library's error.
        source: rustls::Error,
    },
    /// The server's certificate, or one in its chain, is not valid yet.
    #[error("the server's certificate is not valid before {}: correct this machine's clock ({source})", Date(*.until))]
    #[non_exhaustive]
    NotValidYet {
        /// The beginning of the certificate's validity.
        until: SystemTime,
        /// The TLS library's error.
        source: rustls::Error,
    },
}

/// Displays a certificate's date in UTC.
struct Date(SystemTime);

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since_1970 = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        match der::DateTime::from_unix_duration(since_1970) {
            Ok(date) => date.fmt(f),
            // The date is after the year 9999.
            Err(_) => write!(f, "second {} after 1970", since_1970.as_secs()),
        }
    }
}

impl TlsError {
    /// Returns the error with a hint, if there is a hint for the cause of the failure.
    pub(super) fn hinted(error: &io::Error) -> Option<Self> {
        let time = |time: UnixTime| UNIX_EPOCH + Duration::from_secs(time.as_secs());
        let source: &rustls::Error = error.get_ref()?.downcast_ref()?;
        let rustls::Error::InvalidCertificate(certificate) = source else { return None };
        let source = source.clone();
        match *certificate {
            CertificateError::UnknownIssuer => Some(Self::UnknownIssuer { source }),
            CertificateError::ExpiredContext { not_after, .. } => {
                Some(Self::Expired { since: time(not_after), source })
            }
            CertificateError::NotValidYetContext { not_before, .. } => {
                Some(Self::NotValidYet { until: time(not_before), source })
            }
            _ => None,
        }
    }
}

crate::pool::error::debug_as_sentence!(TlsError);
