//! What TLS is given in memory: certificates, a private key, and parts of rustls.

use std::fmt;
use std::sync::Arc;

use zeroize::Zeroizing;

/// The certificates of the authorities to trust.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum CaCertificates {
    /// What a `tlsCAFile` would contain.
    Pem(Vec<u8>),
    /// One certificate each.
    Der(Vec<Vec<u8>>),
}

/// The client's certificate and its private key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum ClientCertificate {
    /// What a `tlsCertificateKeyFile` would contain.
    Pem(Zeroizing<Vec<u8>>),
    /// The certificate, those of the authorities between, and the key.
    Der { chain: Vec<Vec<u8>>, key: Zeroizing<Vec<u8>> },
}

/// A part of rustls that the application has made. It is equal to itself and to nothing else.
#[derive(Clone)]
pub(crate) struct Made<T>(pub Arc<T>);

impl<T> PartialEq for Made<T> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Eq for Made<T> {}

/// What rustls prints of itself is long, and may be what a verifier or a key of the application prints.
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
