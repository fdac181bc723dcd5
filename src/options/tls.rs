//! How connections are secured by TLS.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::crypto::CryptoProvider;
use zeroize::Zeroizing;

use super::{InvalidOption, Secret};

mod material;

use material::Made;
pub(crate) use material::{CaCertificates, ClientCertificate};

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
/// # Self-signed servers
///
/// A server may present a certificate that it has signed itself. Name that very certificate in the CA file, or give it
/// to [`ca_pem`](Self::ca_pem) or [`ca_der`](Self::ca_der). Then it is accepted, also where it says that it is an
/// authority's (`CA:TRUE`, as `openssl req -x509` writes it); its name, its times and its purpose (key usage and extended
/// key usage) are checked like any other's. The certificate of an authority that has not signed itself is never
/// accepted as a server's own.
///
/// # From memory
///
/// Certificates and keys need not be files:
///
/// ```
/// use wharf::{Options, TlsOptions};
///
/// fn options(ca: &str, client: &str) -> Result<Options, wharf::InvalidAddress> {
///     let tls = TlsOptions::default().ca_pem(ca).certificate_key_pem(client);
///     Ok(Options::new(["db.example.com"])?.tls(tls))
/// }
/// ```
///
/// # Your own cryptography
///
/// wharf uses rustls with *ring*. [`crypto_provider`](Self::crypto_provider) takes another provider, such as AWS-LC in its
/// FIPS mode, and [`client_config`](Self::client_config) a whole configuration of rustls.
/// [`min_version`](Self#structfield.min_version) refuses TLS 1.2.
///
/// ```
/// use std::sync::Arc;
/// use wharf::rustls::crypto::{CryptoProvider, ring};
/// use wharf::{Options, TlsOptions, TlsVersion};
///
/// // With aws-lc-rs: `rustls::crypto::aws_lc_rs::default_provider()`, or `default_fips_provider()`.
/// let provider: CryptoProvider = ring::default_provider();
/// let tls = TlsOptions::default().crypto_provider(Arc::new(provider)).min_version(TlsVersion::Tls13);
/// let endpoint = Options::new(["db.example.com"])?.tls(tls).endpoint()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// The oldest version of TLS to accept. Default TLS 1.2. Not part of connection strings.
    pub min_version: TlsVersion,
    pub(crate) ca: Option<CaCertificates>,
    pub(crate) certificate_key: Option<ClientCertificate>,
    crypto_provider: Option<Made<CryptoProvider>>,
    client_config: Option<Made<ClientConfig>>,
}

/// A version of TLS. The newer one is the greater.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TlsVersion {
    /// TLS 1.2 (RFC 5246).
    #[default]
    Tls12,
    /// TLS 1.3 (RFC 8446).
    Tls13,
}

impl TlsOptions {
    /// Sets [`ca_file`](Self#structfield.ca_file), in the place of authorities from memory.
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self.ca = None;
        self
    }

    /// Takes the certificate authorities to trust from memory: what a [`ca_file`](Self#structfield.ca_file) would
    /// contain, in the place of such a file.
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(CaCertificates::Pem(pem.into()));
        self.ca_file = None;
        self
    }

    /// Like [`ca_pem`](Self::ca_pem), with each certificate in DER.
    pub fn ca_der<C: Into<Vec<u8>>>(mut self, certificates: impl IntoIterator<Item = C>) -> Self {
        self.ca = Some(CaCertificates::Der(certificates.into_iter().map(Into::into).collect()));
        self.ca_file = None;
        self
    }

    /// Sets [`certificate_key_file`](Self#structfield.certificate_key_file), in the place of a certificate from memory.
    pub fn certificate_key_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.certificate_key_file = Some(file.into());
        self.certificate_key = None;
        self
    }

    /// Takes the client's certificate and its private key from memory: what a
    /// [`certificate_key_file`](Self#structfield.certificate_key_file) would contain, in the place of such a file. An
    /// encrypted key needs its [password](Self#structfield.certificate_key_file_password).
    ///
    /// wharf wipes its copy when it is dropped; the caller's own is the caller's to wipe.
    pub fn certificate_key_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificate_key = Some(ClientCertificate::Pem(Zeroizing::new(pem.into())));
        self.certificate_key_file = None;
        self
    }

    /// Like [`certificate_key_pem`](Self::certificate_key_pem), in DER: the client's certificate first in `chain`, then
    /// those of the authorities between, and the key in PKCS#8, PKCS#1 or SEC1, not encrypted.
    pub fn certificate_key_der<C: Into<Vec<u8>>>(
        mut self,
        chain: impl IntoIterator<Item = C>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        let chain = chain.into_iter().map(Into::into).collect();
        self.certificate_key = Some(ClientCertificate::Der { chain, key: Zeroizing::new(key.into()) });
        self.certificate_key_file = None;
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

    /// Sets [`min_version`](Self#structfield.min_version).
    pub fn min_version(mut self, version: TlsVersion) -> Self {
        self.min_version = version;
        self
    }

    /// Uses this provider of cryptography instead of *ring*, for everything that TLS needs: key exchange, cipher suites,
    /// the verification of certificates and of stapled OCSP responses, and the client's key.
    ///
    /// wharf never uses the process's default provider: to share it, pass a clone of
    /// [`CryptoProvider::get_default`]. Whether *ring* or the provider keeps or wipes the client's key is its own matter.
    pub fn crypto_provider(mut self, provider: Arc<CryptoProvider>) -> Self {
        self.crypto_provider = Some(Made(provider));
        self
    }

    /// Uses this configuration of rustls as it is, for what no other option can say: a verifier of your own, a hardware
    /// key, a list of cipher suites.
    ///
    /// What decides then is the configuration alone. wharf adds only the server's name, which is the host that
    /// [`Options`](super::Options) names. It neither checks certificates nor verifies stapled OCSP responses, beyond what
    /// the configuration's verifier does, and the system's authorities are not read. Every other option here must
    /// be at its default, and the endpoint is refused otherwise, so that none is ignored. At a Unix domain socket there
    /// is no such TLS, because no certificate can name a path.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use wharf::rustls::{ClientConfig, RootCertStore, crypto::ring};
    /// use wharf::{Options, TlsOptions};
    ///
    /// let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
    ///     .with_safe_default_protocol_versions()?
    ///     .with_root_certificates(RootCertStore::empty())
    ///     .with_no_client_auth();
    /// let tls = TlsOptions::default().client_config(Arc::new(config));
    /// let endpoint = Options::new(["db.example.com"])?.tls(tls).endpoint()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn client_config(mut self, config: Arc<ClientConfig>) -> Self {
        self.client_config = Some(Made(config));
        self
    }

    /// The provider of cryptography, if it is not *ring*.
    pub(crate) fn own_provider(&self) -> Option<&Arc<CryptoProvider>> {
        self.crypto_provider.as_ref().map(|Made(provider)| provider)
    }

    /// The configuration to use as it is, if there is one.
    pub(crate) fn own_config(&self) -> Option<&Arc<ClientConfig>> {
        self.client_config.as_ref().map(|Made(config)| config)
    }

    /// Whether a client's certificate is there to present.
    pub(super) fn has_client_certificate(&self) -> bool {
        self.certificate_key_file.is_some()
            || self.certificate_key.is_some()
            || self.own_config().is_some_and(|config| config.client_auth_cert_resolver.has_certs())
    }

    /// Refuses options of which one would be ignored.
    pub(super) fn check(&self) -> Result<(), InvalidOption> {
        let refuse = |option, with: &str| Err(InvalidOption::conflict(option, with));
        if self.ca_file.is_some() && self.ca.is_some() {
            return refuse("tlsCAFile", "certificate authorities from memory");
        }
        if self.certificate_key_file.is_some() && self.certificate_key.is_some() {
            return refuse("tlsCertificateKeyFile", "a certificate from memory");
        }
        if self.client_config.is_none() {
            return Ok(());
        }
        let ignored = [
            ("tlsCAFile", self.ca_file.is_some()),
            ("certificate authorities from memory", self.ca.is_some()),
            ("tlsCertificateKeyFile", self.certificate_key_file.is_some()),
            ("a client's certificate from memory", self.certificate_key.is_some()),
            ("tlsCertificateKeyFilePassword", self.certificate_key_file_password.is_some()),
            ("tlsAllowInvalidCertificates", self.allow_invalid_certificates),
            ("tlsAllowInvalidHostnames", self.allow_invalid_hostnames),
            ("tlsDisableOCSPEndpointCheck", self.disable_ocsp_endpoint_check),
            ("tlsDisableCertificateRevocationCheck", self.disable_certificate_revocation_check),
            ("min_version", self.min_version != TlsVersion::default()),
            ("crypto_provider", self.crypto_provider.is_some()),
        ];
        match ignored.into_iter().find(|(_, is_set)| *is_set) {
            Some((option, _)) => refuse(option, "client_config, which decides alone"),
            None => Ok(()),
        }
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
