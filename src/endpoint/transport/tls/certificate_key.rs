//! The client's certificate and private key: `tlsCertificateKeyFile`, or its counterparts in memory.

use std::path::Path;

use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::crypto::ring::sign::any_supported_type;
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer,
};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{Error, InconsistentKeys};
use zeroize::Zeroizing;

use super::pem::{self, Section};
use crate::endpoint::options::{ClientCertificate, InvalidOption, Secret, TlsOptions};
use crate::endpoint::regular_file;
use crate::endpoint::wire::ocsp::{Certificate, PublicKey};

/// The client's certificate and private key, from a file or from the application.
#[derive(Debug)]
pub(super) struct CertificateKey<'a> {
    origin: Origin<'a>,
    /// The client's certificate first, then the certificates of the authorities between it and the authority that the
    /// server trusts.
    chain: Vec<CertificateDer<'static>>,
    key: Zeroizing<PrivateKeyDer<'static>>,
}

/// The source of the certificate and key, for errors.
#[derive(Debug, Clone, Copy)]
enum Origin<'a> {
    File(&'a Path),
    MemoryPem,
    MemoryDer,
}

/// Reads the certificate and key that the options name or hold, if any.
pub(super) fn read(options: &TlsOptions) -> Result<Option<CertificateKey<'_>>, InvalidOption> {
    let password = options.certificate_key_file_password.as_ref();
    match (&options.certificate_key_file, &options.certificate_key) {
        (None, None) => Ok(None),
        (Some(path), _) => {
            let origin = Origin::File(path);
            let read = regular_file::read(path, regular_file::MAX_PEM);
            let (text, metadata) = read.map_err(|error| origin.refuse(&error.to_string()))?;
            if regular_file::is_writable_by_others(&metadata) {
                tracing::warn!(
                    target: "wharf::options",
                    "tlsCertificateKeyFile {path:?} can be written by users other than its owner: remove that permission"
                );
            }
            read_pem(origin, &text, password).map(Some)
        }
        (None, Some(ClientCertificate::Pem(text))) => read_pem(Origin::MemoryPem, text, password).map(Some),
        (None, Some(ClientCertificate::Der { chain, key })) => {
            let origin = Origin::MemoryDer;
            if chain.is_empty() {
                return Err(origin.refuse("there is no certificate"));
            }
            let chain = chain.iter().map(|der| CertificateDer::from(der.clone())).collect();
            let key = PrivateKeyDer::try_from(key.to_vec()).map_err(|problem| origin.refuse(problem))?;
            Ok(Some(CertificateKey { origin, chain, key: Zeroizing::new(key) }))
        }
    }
}

fn read_pem<'a>(
    origin: Origin<'a>,
    text: &[u8],
    password: Option<&Secret>,
) -> Result<CertificateKey<'a>, InvalidOption> {
    let mut sections = pem::sections(text).map_err(|error| origin.refuse(&error.to_string()))?;
    let certificates = sections.extract_if(.., |section| section.label == pem::CERTIFICATE);
    let chain: Vec<_> = certificates.map(|section| CertificateDer::from(section.der.to_vec())).collect();
    if chain.is_empty() {
        return Err(origin.refuse("it holds no certificate"));
    }
    let mut keys = sections.into_iter().filter(|section| section.label.ends_with("PRIVATE KEY"));
    let key = match (keys.next(), keys.next()) {
        (Some(key), None) => read_key(origin, key, password)?,
        (None, _) => return Err(origin.refuse("it holds no private key")),
        (Some(_), Some(second)) => {
            return Err(origin.refuse(&format!("line {}: a second private key", second.line)));
        }
    };
    Ok(CertificateKey { origin, chain, key })
}

impl CertificateKey<'_> {
    /// Returns the certificate and key in the form that handshakes use, made by `provider` if the application supplied
    /// one.
    ///
    /// The input is wiped afterwards. *ring* does not wipe its own form of the key when it is dropped. A provider that
    /// the application supplied receives a copy of the key, and is responsible for wiping it.
    pub fn into_resolver(self, provider: Option<&CryptoProvider>) -> Result<SingleCertAndKey, InvalidOption> {
        let refuse = |error: Error| self.origin.refuse(&error.to_string());
        let key = match provider {
            None => any_supported_type(&self.key),
            Some(provider) => provider.key_provider.load_private_key(self.key.clone_key()),
        };
        let certified = CertifiedKey::new(self.chain, key.map_err(refuse)?);
        match certified.keys_match() {
            // Not every provider can check whether the key belongs to the certificate.
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(SingleCertAndKey::from(certified)),
            Err(error @ Error::InvalidCertificate(_)) => match has_key(&certified) {
                Some(true) => Ok(SingleCertAndKey::from(certified)),
                Some(false) => Err(refuse(InconsistentKeys::KeyMismatch.into())),
                None => Err(refuse(error)),
            },
            Err(error) => Err(refuse(error)),
        }
    }
}

/// Returns whether the key belongs to the certificate, or `None` if this cannot be determined.
fn has_key(certified: &CertifiedKey) -> Option<bool> {
    let certificate = Certificate::read(certified.cert.first()?).ok()?;
    let key = certified.key.public_key()?;
    Some(PublicKey::of_info(&key).ok()? == certificate.public_key)
}

impl Origin<'_> {
    fn refuse(self, problem: &str) -> InvalidOption {
        const CONTENT: &str = "with the client's certificate and its private key";
        match self {
            Self::File(path) => {
                let must = format!("a readable PEM file {CONTENT}");
                InvalidOption::new("tlsCertificateKeyFile", must, format!("{path:?} ({problem})"))
            }
            Self::MemoryPem => {
                InvalidOption::because("certificate_key_pem", format!("must be PEM {CONTENT}: {problem}"))
            }
            Self::MemoryDer => {
                InvalidOption::because("certificate_key_der", format!("must be DER {CONTENT}: {problem}"))
            }
        }
    }

    #[cfg(feature = "cert-key-password")]
    fn refuse_password(self, problem: &str) -> InvalidOption {
        let place = match self {
            Self::File(path) => format!("{path:?}"),
            Self::MemoryPem | Self::MemoryDer => "memory".to_owned(),
        };
        InvalidOption::because("tlsCertificateKeyFilePassword", format!("{problem} the private key in {place}"))
    }
}

/// Reads the key in a section, and decrypts it with the password if it is encrypted. For other keys, the password is
/// not used.
fn read_key(
    origin: Origin<'_>,
    section: Section,
    password: Option<&Secret>,
) -> Result<Zeroizing<PrivateKeyDer<'static>>, InvalidOption> {
    if section.legacy_encrypted {
        let problem = format!(
            "line {}: the key is encrypted in the legacy PEM format, which is weak and not supported; convert it to \
             PKCS#8, for example with `openssl pkcs8 -topk8 -v2 aes-256-cbc`",
            section.line
        );
        return Err(origin.refuse(&problem));
    }
    let der = &section.der;
    Ok(Zeroizing::new(match &*section.label {
        "PRIVATE KEY" => PrivatePkcs8KeyDer::from(der.to_vec()).into(),
        "RSA PRIVATE KEY" => PrivatePkcs1KeyDer::from(der.to_vec()).into(),
        "EC PRIVATE KEY" => PrivateSec1KeyDer::from(der.to_vec()).into(),
        "ENCRYPTED PRIVATE KEY" => PrivatePkcs8KeyDer::from(decrypt(origin, &section, password)?.to_vec()).into(),
        label => {
            return Err(origin.refuse(&format!("line {}: a key of the kind {label} is not supported", section.line)));
        }
    }))
}

#[cfg(feature = "cert-key-password")]
fn decrypt(
    origin: Origin<'_>,
    section: &Section,
    password: Option<&Secret>,
) -> Result<Zeroizing<Vec<u8>>, InvalidOption> {
    use pkcs8::{EncryptedPrivateKeyInfoRef, PrivateKeyInfoRef, pkcs5};

    let unreadable = |problem: &dyn std::fmt::Display| {
        let supported = "only AES under PBKDF2 or scrypt (PBES2) is supported";
        origin.refuse(&format!("line {}: {supported}: {problem}", section.line))
    };
    let encrypted = EncryptedPrivateKeyInfoRef::try_from(&**section.der).map_err(|error| unreadable(&error))?;
    let password = password.ok_or_else(|| origin.refuse_password("is required for"))?;
    let wrong = || origin.refuse_password("is not the password of");
    let key = encrypted.encryption_algorithm.decrypt(password.reveal(), encrypted.encrypted_data.as_bytes());
    let key = Zeroizing::new(key.map_err(|error| match error {
        pkcs5::Error::DecryptFailed => wrong(),
        unsupported => unreadable(&unsupported),
    })?);
    // With about one wrong password in 256, decryption succeeds, but the result is not a key.
    PrivateKeyInfoRef::try_from(&**key).map_err(|_| wrong())?;
    Ok(key)
}

#[cfg(not(feature = "cert-key-password"))]
fn decrypt(
    origin: Origin<'_>,
    section: &Section,
    _password: Option<&Secret>,
) -> Result<Zeroizing<Vec<u8>>, InvalidOption> {
    let problem = "the key is encrypted, but wharf was built without its feature `cert-key-password`";
    Err(origin.refuse(&format!("line {}: {problem}", section.line)))
}

#[cfg(all(test, not(feature = "cert-key-password")))]
mod tests {
    use super::*;

    #[test]
    fn encrypted_key_is_refused_with_the_name_of_the_feature() {
        let section = |label: &str| format!("-----BEGIN {label}-----\nAQID\n-----END {label}-----\n");
        let pem = section("CERTIFICATE") + &section("ENCRYPTED PRIVATE KEY");
        let options = TlsOptions::default().certificate_key_pem(pem).certificate_key_file_password("secret");
        let expected = "certificate_key_pem must be PEM with the client's certificate and its private key: line 4: the \
                        key is encrypted, but wharf was built without its feature `cert-key-password`";
        assert_eq!(read(&options).unwrap_err().to_string(), expected);
    }
}
