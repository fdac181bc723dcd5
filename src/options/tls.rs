//! How connections are secured by TLS.

use std::path::PathBuf;

use super::Secret;

/// The options of TLS. There is TLS only where [`Options::tls`](super::Options#structfield.tls) has them.
///
/// ```
/// use wharf::{Options, TlsOptions};
///
/// let tls = TlsOptions::default().ca_file("ca.pem").certificate_key_file("client.pem");
/// let options = Options::new(["db.example.com"])?.tls(tls);
/// # Ok::<(), wharf::InvalidAddress>(())
/// ```
///
/// `TlsOptions::default()` trusts the system's certificate authorities, and checks the chain to one of them, the times,
/// and that the certificate is the server's, by its name or IP address in the subject's alternative names.
///
/// The files are read when an endpoint is built; a change to them needs a new endpoint. The system's authorities are
/// read with the first connection, once in the life of the process (`SSL_CERT_FILE` and `SSL_CERT_DIR` may name
/// others). TLS 1.2 and 1.3 are spoken. The client's key is wiped from the memory that wharf holds it in, but *ring*,
/// which signs with it, does not wipe its own form of it.
///
/// # Revocation
///
/// Servers are asked to staple an OCSP response to their handshake, which says whether their certificate was revoked
/// (OCSP Support specification; RFC 6960). It is verified: that the certificate's issuer has signed it, or somebody
/// with a certificate of that issuer for this very purpose, that it is about this certificate, and that it holds now,
/// from a minute before its `thisUpdate` to its `nextUpdate`, or for a day if it has none.
///
/// | the server staples | wharf |
/// | --- | --- |
/// | a valid response, "good" | connects |
/// | a valid response, "revoked" | refuses |
/// | a valid response, "unknown" | connects: nothing speaks against the certificate |
/// | anything else, such as a response that has expired, is signed with SHA-1, or says "try later" | refuses |
/// | nothing, and the certificate demands it (Must-Staple, RFC 7633) | refuses |
/// | nothing | connects, and does not know whether the certificate was revoked |
///
/// What is not checked:
///
/// - **No OCSP responder is asked.** The certificate of a server that staples nothing may have been revoked, and wharf
///   connects, where drivers that support OCSP without stapling refuse. Whoever uses an authority whose certificates
///   can be revoked by OCSP only, as MongoDB Atlas may, has a revocation check only with servers that staple, as mongod
///   can from 4.4 on.
/// - No revocation list is read.
/// - Only the server's own certificate is looked at: not those of the authorities between, nor a responder's.
/// - A session that is resumed stands on the check of the connection that it began with.
///
/// [`disable_certificate_revocation_check`](Self#structfield.disable_certificate_revocation_check) turns all of it off,
/// as do [`allow_invalid_certificates`](Self#structfield.allow_invalid_certificates) and [`insecure`](Self::insecure).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct TlsOptions {
    /// `tlsCAFile`: a PEM file with the certificate authorities to trust, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// `tlsCertificateKeyFile`: a PEM file with the client's certificate, those of the authorities between if there
    /// are, and its private key: in PKCS#8, PKCS#1 or SEC1. PKCS#8 may be encrypted with AES under PBKDF2 or scrypt.
    /// The legacy encryption of PEM itself is refused.
    pub certificate_key_file: Option<PathBuf>,
    /// `tlsCertificateKeyFilePassword`: what the private key is encrypted with. Ignored if it is not.
    pub certificate_key_file_password: Option<Secret>,
    /// `tlsAllowInvalidCertificates`: accept any certificate, also if it was revoked. Whoever is between the two ends
    /// can then read and change everything. Default `false`.
    pub allow_invalid_certificates: bool,
    /// `tlsAllowInvalidHostnames`: accept a certificate of another name. The chain to an authority is checked all the
    /// same. Needed for TLS at a Unix domain socket, unless nothing is checked. Default `false`.
    pub allow_invalid_hostnames: bool,
    /// `tlsDisableOCSPEndpointCheck`: do not ask the certificate authority whether a certificate was revoked. wharf
    /// never does, so this changes nothing: what a server staples is verified all the same. Default `false`.
    pub disable_ocsp_endpoint_check: bool,
    /// `tlsDisableCertificateRevocationCheck`: do not check whether a certificate was revoked, and accept whatever the
    /// server staples or does not staple (see [Revocation](Self#revocation)). Default `false`.
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

    /// Whether a client's certificate is there to present.
    pub(super) fn has_client_certificate(&self) -> bool {
        self.certificate_key_file.is_some()
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
