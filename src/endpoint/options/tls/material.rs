//! Certificates, a private key and rustls objects that an application supplies in memory.

use std::fmt;
#[cfg(feature = "tls")]
use std::sync::Arc;

use zeroize::Zeroizing;

/// The certificates of the authorities to trust.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum CaCertificates {
    /// The content of a `tlsCAFile`.
    Pem(Vec<u8>),
    /// One certificate per element.
    Der(Vec<Vec<u8>>),
}

/// The client's certificate and its private key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum ClientCertificate {
    /// The content of a `tlsCertificateKeyFile`.
    Pem(Zeroizing<Vec<u8>>),
    /// The certificate and the intermediate certificates, and the key.
    Der { chain: Vec<Vec<u8>>, key: Zeroizing<Vec<u8>> },
}

/// A rustls object that the application made. It is equal only to its clones.
#[cfg(feature = "tls")]
#[derive(Clone)]
pub(crate) struct Made<T>(pub Arc<T>);

#[cfg(feature = "tls")]
impl<T> PartialEq for Made<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(feature = "tls")]
impl<T> Eq for Made<T> {}

/// rustls's output is long, and the application's verifier or key may print secrets.
#[cfg(feature = "tls")]
impl<T> fmt::Debug for Made<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(made by the application)")
    }
}

impl fmt::Debug for CaCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pem(text) => write!(f, "({} bytes of PEM)", text.len()),
            Self::Der(certificates) => write!(f, "({} certificates)", certificates.len()),
        }
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
