//! How connections are secured by TLS.

use std::path::PathBuf;

use super::Secret;

/// The options of TLS. `TlsOptions::default()` trusts the system's certificate authorities and checks everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct TlsOptions {
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) certificate_key_file: Option<PathBuf>,
    pub(crate) certificate_key_file_password: Option<Secret>,
    pub(crate) allow_invalid_certificates: bool,
    pub(crate) allow_invalid_hostnames: bool,
    pub(crate) disable_ocsp_endpoint_check: bool,
    pub(crate) disable_certificate_revocation_check: bool,
}

impl TlsOptions {
    /// `tlsCAFile`: a PEM file with the certificate authorities to trust, instead of the system's.
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self
    }

    /// `tlsCertificateKeyFile`: a PEM file with the client's certificate chain and its private key.
    pub fn certificate_key_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.certificate_key_file = Some(file.into());
        self
    }

    /// `tlsCertificateKeyFilePassword`: what the private key is encrypted with.
    pub fn certificate_key_file_password(mut self, password: impl Into<Secret>) -> Self {
        self.certificate_key_file_password = Some(password.into());
        self
    }

    /// `tlsAllowInvalidCertificates`: accept any certificate. Whoever is between the two ends can then read and change
    /// everything.
    pub fn allow_invalid_certificates(mut self, allow: bool) -> Self {
        self.allow_invalid_certificates = allow;
        self
    }

    /// `tlsAllowInvalidHostnames`: accept a certificate of another name.
    pub fn allow_invalid_hostnames(mut self, allow: bool) -> Self {
        self.allow_invalid_hostnames = allow;
        self
    }
}
