//! How connections are secured by TLS.

use std::path::PathBuf;

use super::Secret;

/// The options of TLS. `TlsOptions::default()` trusts the system's certificate authorities, and checks the chain to one of
/// them, the times, and that the certificate is the server's, by its name or IP address in the subject's alternative names.
///
/// The files are read when an endpoint is built; a change to them needs a new endpoint. The system's authorities are read
/// with the first connection, once in the life of the process (`SSL_CERT_FILE` and `SSL_CERT_DIR` may name others). TLS 1.2
/// and 1.3 are spoken. The client's key is wiped from the memory that wharf holds it in, but *ring*, which signs with it,
/// does not wipe its own form of it.
///
/// # Revocation
///
/// wharf does not check whether a certificate was revoked, neither by OCSP nor by revocation lists (OCSP Support
/// specification, "Documentation Requirements"). rustls asks servers for a stapled OCSP response but has nothing that
/// verifies it, so it is ignored, also if it says "revoked", and also if it is missing from a certificate that demands one
/// (Must-Staple): there the mongo shell and drivers that support OCSP refuse to connect, also when the responder is
/// unavailable, and wharf connects. Whoever uses an authority whose certificates can be revoked by OCSP only, as MongoDB
/// Atlas may, has no revocation check with wharf.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct TlsOptions {
    /// `tlsCAFile`: a PEM file with the certificate authorities to trust, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// `tlsCertificateKeyFile`: a PEM file with the client's certificate, those of the authorities between if there are,
    /// and its private key: in PKCS#8, PKCS#1 or SEC1. PKCS#8 may be encrypted with AES under PBKDF2 or scrypt. The legacy
    /// encryption of PEM itself is refused.
    pub certificate_key_file: Option<PathBuf>,
    /// `tlsCertificateKeyFilePassword`: what the private key is encrypted with. Ignored if it is not.
    pub certificate_key_file_password: Option<Secret>,
    /// `tlsAllowInvalidCertificates`: accept any certificate. Whoever is between the two ends can then read and change
    /// everything. Default `false`.
    pub allow_invalid_certificates: bool,
    /// `tlsAllowInvalidHostnames`: accept a certificate of another name. The chain to an authority is checked all the
    /// same. Needed for TLS at a Unix domain socket, unless nothing is checked. Default `false`.
    pub allow_invalid_hostnames: bool,
    /// `tlsDisableOCSPEndpointCheck`: do not ask the certificate authority whether a certificate was revoked. wharf never
    /// does, so this changes nothing. Default `false`.
    pub disable_ocsp_endpoint_check: bool,
    /// `tlsDisableCertificateRevocationCheck`: do not check whether a certificate was revoked. wharf never
    /// does (see [Revocation](Self#revocation)), so this changes nothing. Default `false`.
    pub disable_certificate_revocation_check: bool,
}

impl TlsOptions {
    /// Sets [`ca_file`](Self#structfield.ca_file).
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self
    }

    /// Sets [`certificate_key_file`](Self#structfield.certificate_key_file).
    pub fn certificate_key_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.certificate_key_file = Some(file.into());
        self
    }

    /// Sets [`certificate_key_file_password`](Self#structfield.certificate_key_file_password).
    pub fn certificate_key_file_password(mut self, password: impl Into<Secret>) -> Self {
        self.certificate_key_file_password = Some(password.into());
        self
    }

    /// Sets [`allow_invalid_certificates`](Self#structfield.allow_invalid_certificates).
    pub fn allow_invalid_certificates(mut self, allow: bool) -> Self {
        self.allow_invalid_certificates = allow;
        self
    }

    /// Sets [`allow_invalid_hostnames`](Self#structfield.allow_invalid_hostnames).
    pub fn allow_invalid_hostnames(mut self, allow: bool) -> Self {
        self.allow_invalid_hostnames = allow;
        self
    }

    /// Sets [`disable_ocsp_endpoint_check`](Self#structfield.disable_ocsp_endpoint_check).
    pub fn disable_ocsp_endpoint_check(mut self, disable: bool) -> Self {
        self.disable_ocsp_endpoint_check = disable;
        self
    }

    /// Sets [`disable_certificate_revocation_check`](Self#structfield.disable_certificate_revocation_check).
    pub fn disable_certificate_revocation_check(mut self, disable: bool) -> Self {
        self.disable_certificate_revocation_check = disable;
        self
    }

    /// `tlsInsecure`: everything that relaxes a check, at once: the two `allow_invalid_`, and the two `disable_`.
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.allow_invalid_certificates = insecure;
        self.allow_invalid_hostnames = insecure;
        self.disable_ocsp_endpoint_check = insecure;
        self.disable_certificate_revocation_check = insecure;
        self
    }
}
