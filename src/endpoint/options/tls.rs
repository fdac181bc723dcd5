//! The TLS options.

use std::path::PathBuf;
#[cfg(feature = "tls")]
use std::sync::Arc;

#[cfg(feature = "tls")]
use tokio_rustls::rustls::{ClientConfig, crypto::CryptoProvider};
use zeroize::Zeroizing;

use super::{InvalidOption, Secret};

mod material;

#[cfg(feature = "tls")]
use material::Made;
pub(crate) use material::{CaCertificates, ClientCertificate};

/// The TLS options. Connections use TLS if [`Options::tls`](super::Options#structfield.tls) is set.
///
/// ```
/// use wharf::{Options, TlsOptions};
///
/// let tls = TlsOptions::default().ca_file("ca.pem").certificate_key_file("client.pem");
/// let options = Options::new(["db.example.com"])?.tls(tls);
/// # Ok::<(), wharf::InvalidOption>(())
/// ```
///
/// `TlsOptions::default()` trusts the system's certificate authorities. It checks the server's certificate: the chain
/// to an authority, the validity period, and the subject alternative names, which must contain the server's name or IP
/// address.
///
/// The files are read when an endpoint is built, so a change to them takes effect only with a new endpoint, or after
/// [`Client::replace_options`](crate::Client::replace_options). The first connection of a process reads the system's
/// authorities (`SSL_CERT_FILE` and `SSL_CERT_DIR` can replace them). Connections use TLS 1.2 or 1.3. wharf wipes its
/// copy of the client's key from memory, but *ring*, which signs with the key, does not wipe its own copy.
///
/// # Self-signed servers
///
/// To accept a server's self-signed certificate, put that certificate in the CA file, or give it to
/// [`ca_pem`](Self::ca_pem) or [`ca_der`](Self::ca_der). It may be marked as an authority (`CA:TRUE`, as
/// `openssl req -x509` writes it). Its name, its validity period and its purpose (key usage and extended key usage) are
/// checked as for other certificates. An authority's certificate that is not self-signed is never accepted as a
/// server's certificate.
///
/// # From memory
///
/// Certificates and keys need not be files:
///
/// ```
/// use wharf::{Options, TlsOptions};
///
/// fn options(ca: &str, client: &str) -> Result<Options, wharf::InvalidOption> {
///     let tls = TlsOptions::default().ca_pem(ca).certificate_key_pem(client);
///     Ok(Options::new(["db.example.com"])?.tls(tls))
/// }
/// ```
///
/// # Your own cryptography
///
/// wharf uses rustls with *ring*. [`crypto_provider`](Self::crypto_provider) takes another provider, such as AWS-LC in
/// FIPS mode, and [`client_config`](Self::client_config) takes a complete rustls configuration.
/// [`min_version`](Self#structfield.min_version) can rule out TLS 1.2.
///
/// ```
/// # #[cfg(feature = "tls")] {
/// use std::sync::Arc;
/// use wharf::rustls::crypto::{CryptoProvider, ring};
/// use wharf::{Options, TlsOptions, TlsVersion};
///
/// // With aws-lc-rs: `rustls::crypto::aws_lc_rs::default_provider()`, or `default_fips_provider()`.
/// let provider: CryptoProvider = ring::default_provider();
/// let tls = TlsOptions::default().crypto_provider(Arc::new(provider)).min_version(TlsVersion::Tls13);
/// let endpoint = Options::new(["db.example.com"])?.tls(tls).endpoint()?;
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Revocation
///
/// wharf asks servers to staple an OCSP response to the handshake. The response says whether the server's certificate
/// has been revoked (OCSP Support specification; RFC 6960). wharf verifies three things about the response:
///
/// - It is signed by the certificate's issuer, or by a responder that the issuer certified for this purpose.
/// - It is about this certificate.
/// - It is valid now. It becomes valid a minute before its `thisUpdate`, and expires at its `nextUpdate` or, if it has
///   none, a day after its `thisUpdate`.
///
/// | the server staples | wharf |
/// | --- | --- |
/// | a valid response, "good" | connects |
/// | a valid response, "revoked" | refuses |
/// | a valid response, "unknown" | connects: the response does not say that the certificate was revoked |
/// | anything else, such as a response that has expired, is signed with SHA-1, or says "try later" | refuses |
/// | nothing, and the certificate demands it (Must-Staple, RFC 7633) | refuses |
/// | nothing | asks the responders that the certificate names |
///
/// If the server staples no response, or staples a response that says "unknown", wharf queries up to four responders in
/// parallel, over plain HTTP. The first valid response that says "good" or "revoked" decides, and is kept until it
/// expires. Responders have five seconds, and at most half the time that `connectTimeoutMS` leaves. If no responder
/// answers in that time, wharf connects, and does not query a responder again for a minute. wharf queries no responder
/// if the `ocsp` feature is off, if [`disable_ocsp_endpoint_check`](Self#structfield.disable_ocsp_endpoint_check) is
/// set, or if connections go through a proxy, which the request would bypass.
///
/// The check has limits:
///
/// - It does not read revocation lists.
/// - It checks only the server's own certificate, not the certificates of intermediate authorities or responders.
/// - A resumed session relies on the response that the server stapled when the session began. Responders are queried
///   again once their answer has expired.
///
/// [`disable_certificate_revocation_check`](Self#structfield.disable_certificate_revocation_check) turns the check off,
/// and so do [`allow_invalid_certificates`](Self#structfield.allow_invalid_certificates) and [`insecure`](Self::insecure).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct TlsOptions {
    /// `tlsCAFile`: a PEM file with the certificate authorities to trust, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// `tlsCertificateKeyFile`: a PEM file with the client's certificate, the intermediate certificates if there are any,
    /// and the private key.
    ///
    /// The key is in PKCS#8, PKCS#1 or SEC1 format. With the `cert-key-password` feature, PKCS#8 may be encrypted with
    /// AES, using PBKDF2 or scrypt. PEM's own legacy encryption is refused. Like [`ca_file`](Self#structfield.ca_file),
    /// the file must be a regular file of at most 4 MiB. A warning is logged if users other than its owner may write to
    /// it.
    pub certificate_key_file: Option<PathBuf>,
    /// `tlsCertificateKeyFilePassword`: the password of the private key. Ignored if the key is not encrypted. An encrypted
    /// key needs the `cert-key-password` feature.
    pub certificate_key_file_password: Option<Secret>,
    /// `tlsAllowInvalidCertificates`: whether to accept any certificate, even if it has been revoked. If so, an
    /// attacker on the network can read and change everything. Default `false`.
    pub allow_invalid_certificates: bool,
    /// `tlsAllowInvalidHostnames`: whether to accept a certificate with a different name. The chain to an authority is
    /// still checked. TLS over a Unix domain socket needs this option, unless all checks are off. Default `false`.
    pub allow_invalid_hostnames: bool,
    /// `tlsDisableOCSPEndpointCheck`: whether to skip the requests to the certificate authority about revocation (see
    /// [Revocation](Self#revocation)). A stapled response is still verified. Without the `ocsp` feature, wharf never
    /// asks. Default `false`.
    pub disable_ocsp_endpoint_check: bool,
    /// `tlsDisableCertificateRevocationCheck`: whether to skip the revocation check, whatever the server staples (see
    /// [Revocation](Self#revocation)). Default `false`.
    pub disable_certificate_revocation_check: bool,
    /// The oldest TLS version to accept. Default TLS 1.2. Not available in connection strings.
    pub min_version: TlsVersion,
    pub(crate) ca: Option<CaCertificates>,
    pub(crate) certificate_key: Option<ClientCertificate>,
    #[cfg(feature = "tls")]
    crypto_provider: Option<Made<CryptoProvider>>,
    #[cfg(feature = "tls")]
    client_config: Option<Made<ClientConfig>>,
}

/// Returns the error for options that turn TLS on, without the `tls` feature.
#[cfg(any(not(feature = "tls"), test))]
pub(crate) fn without_feature() -> InvalidOption {
    InvalidOption::because("tls", "must be false, because wharf was built without the tls feature")
}

/// A TLS version. A newer version compares as greater.
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
    /// Sets [`ca_file`](Self#structfield.ca_file), which replaces authorities from memory.
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self.ca = None;
        self
    }

    /// Sets, from memory, the certificate authorities to trust: the content of a [`ca_file`](Self#structfield.ca_file).
    /// They replace that file.
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

    /// Sets [`certificate_key_file`](Self#structfield.certificate_key_file), which replaces a certificate from memory.
    pub fn certificate_key_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.certificate_key_file = Some(file.into());
        self.certificate_key = None;
        self
    }

    /// Sets the client's certificate and its private key from memory: the content of a
    /// [`certificate_key_file`](Self#structfield.certificate_key_file). They replace that file. An encrypted key needs
    /// its [password](Self#structfield.certificate_key_file_password).
    ///
    /// wharf wipes its copy on drop. The caller must wipe its own copy.
    pub fn certificate_key_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificate_key = Some(ClientCertificate::Pem(Zeroizing::new(pem.into())));
        self.certificate_key_file = None;
        self
    }

    /// Like [`certificate_key_pem`](Self::certificate_key_pem), in DER. `chain` begins with the client's certificate;
    /// the intermediate certificates follow. The key is in unencrypted PKCS#8, PKCS#1 or SEC1.
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

    /// Sets the cryptography provider, which replaces *ring* for everything in TLS: key exchange, cipher suites,
    /// certificates, stapled OCSP responses, and the client's key.
    ///
    /// wharf does not use the process's default provider. To share that provider, pass a clone of
    /// [`CryptoProvider::get_default`]. The provider decides how long it keeps the client's key, and whether it wipes
    /// the key.
    #[cfg(feature = "tls")]
    pub fn crypto_provider(mut self, provider: Arc<CryptoProvider>) -> Self {
        self.crypto_provider = Some(Made(provider));
        self
    }

    /// Sets the complete rustls configuration, for needs that no other option covers: your own verifier, a hardware
    /// key, a list of cipher suites.
    ///
    /// Only this configuration applies. wharf adds only the server's name, which is the host in
    /// [`Options`](super::Options). Only the configuration's verifier checks certificates and stapled OCSP responses,
    /// and the system's authorities are not read. An endpoint is refused if any other option here is set, so that no
    /// option is ignored. It is also refused for a Unix domain socket, because certificates contain no paths.
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
    #[cfg(feature = "tls")]
    pub fn client_config(mut self, config: Arc<ClientConfig>) -> Self {
        self.client_config = Some(Made(config));
        self
    }

    /// Returns whether certificate authorities have been set from memory, by [`ca_pem`](Self::ca_pem) or
    /// [`ca_der`](Self::ca_der).
    #[must_use]
    pub fn has_ca_in_memory(&self) -> bool {
        self.ca.is_some()
    }

    /// Returns whether a client's certificate and its key have been set from memory, by
    /// [`certificate_key_pem`](Self::certificate_key_pem) or [`certificate_key_der`](Self::certificate_key_der).
    #[must_use]
    pub fn has_certificate_key_in_memory(&self) -> bool {
        self.certificate_key.is_some()
    }

    /// Returns the cryptography provider that was set by [`crypto_provider`](Self::crypto_provider).
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn own_provider(&self) -> Option<&Arc<CryptoProvider>> {
        self.crypto_provider.as_ref().map(|Made(provider)| provider)
    }

    /// Returns the rustls configuration that was set by [`client_config`](Self::client_config).
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn own_config(&self) -> Option<&Arc<ClientConfig>> {
        self.client_config.as_ref().map(|Made(config)| config)
    }

    /// Returns whether there is a client's certificate to present.
    pub(super) fn has_client_certificate(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.own_config().is_some_and(|config| config.client_auth_cert_resolver.has_certs()) {
            return true;
        }
        self.certificate_key_file.is_some() || self.certificate_key.is_some()
    }

    /// Refuses combinations in which one option would be ignored.
    pub(super) fn check(&self) -> Result<(), InvalidOption> {
        let refuse = |option, with: &str| Err(InvalidOption::conflict(option, with));
        if self.ca_file.is_some() && self.ca.is_some() {
            return refuse("tlsCAFile", "certificate authorities from memory");
        }
        if self.certificate_key_file.is_some() && self.certificate_key.is_some() {
            return refuse("tlsCertificateKeyFile", "a certificate from memory");
        }
        #[cfg(feature = "tls")]
        if self.client_config.is_some() {
            return self.check_that_nothing_else_is_set();
        }
        Ok(())
    }

    /// Refuses options that a [`client_config`](Self::client_config) would override.
    #[cfg(feature = "tls")]
    fn check_that_nothing_else_is_set(&self) -> Result<(), InvalidOption> {
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
            Some((option, _)) => Err(InvalidOption::conflict(option, "client_config, which decides alone")),
            None => Ok(()),
        }
    }

    /// `tlsInsecure`: sets all four options that relax a check (the two `allow_invalid_…` options and the two
    /// `disable_…` options).
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.allow_invalid_certificates = insecure;
        self.allow_invalid_hostnames = insecure;
        self.disable_ocsp_endpoint_check = insecure;
        self.disable_certificate_revocation_check = insecure;
        self
    }
}
