//! The client's own certificate and its private key: `tlsCertificateKeyFile`.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use pkcs8::{EncryptedPrivateKeyInfoRef, PrivateKeyInfoRef};
use tokio_rustls::rustls::Error;
use tokio_rustls::rustls::crypto::ring::sign::any_supported_type;
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer,
};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use zeroize::Zeroizing;

use super::pem::{self, Section};
use crate::options::{InvalidOption, Secret, TlsOptions};

/// What the file holds.
#[derive(Debug)]
pub(super) struct CertificateKey<'a> {
    path: &'a Path,
    /// The client's certificate first, then those of the authorities between it and the one that the server trusts.
    chain: Vec<CertificateDer<'static>>,
    key: Zeroizing<PrivateKeyDer<'static>>,
}

/// Reads the file that the options name, if they do.
pub(super) fn read(options: &TlsOptions) -> Result<Option<CertificateKey<'_>>, InvalidOption> {
    let Some(path) = &options.certificate_key_file else { return Ok(None) };
    let text = Zeroizing::new(fs::read(path).map_err(|error| refuse(path, &error.to_string()))?);
    let mut sections = pem::sections(&text).map_err(|error| refuse(path, &error.to_string()))?;
    let certificates = sections.extract_if(.., |section| section.label == pem::CERTIFICATE);
    let chain: Vec<_> = certificates.map(|section| CertificateDer::from(section.der.to_vec())).collect();
    if chain.is_empty() {
        return Err(refuse(path, "it holds no certificate"));
    }
    let mut keys = sections.into_iter().filter(|section| section.label.ends_with("PRIVATE KEY"));
    let key = match (keys.next(), keys.next()) {
        (Some(key), None) => read_key(path, key, options.certificate_key_file_password.as_ref())?,
        (None, _) => return Err(refuse(path, "it holds no private key")),
        (Some(_), Some(second)) => {
            return Err(refuse(path, &format!("line {}: a second private key", second.line)));
        }
    };
    Ok(Some(CertificateKey { path, chain, key }))
}

impl CertificateKey<'_> {
    /// The certificate and key in the form that handshakes use.
    ///
    /// What it was made from is wiped then; *ring* does not wipe its own form of the key when that is dropped.
    pub fn into_resolver(self) -> Result<SingleCertAndKey, InvalidOption> {
        let refuse = |error: Error| refuse(self.path, &error.to_string());
        let key = any_supported_type(&self.key).map_err(refuse)?;
        let certified = CertifiedKey::new(self.chain, key);
        certified.keys_match().map_err(refuse)?;
        Ok(SingleCertAndKey::from(certified))
    }
}

fn refuse(path: &Path, problem: &str) -> InvalidOption {
    InvalidOption {
        option: "tlsCertificateKeyFile",
        value: format!("{path:?} ({problem})"),
        allowed: "a readable PEM file with the client's certificate and its private key".to_owned(),
    }
}

fn refuse_password(value: String, path: &Path) -> InvalidOption {
    let allowed = format!("the password of the private key in {path:?}");
    InvalidOption { option: "tlsCertificateKeyFilePassword", value, allowed }
}

/// The key in a section, decrypted with the password if it is encrypted. Any other key does not need the password.
fn read_key(
    path: &Path,
    section: Section,
    password: Option<&Secret>,
) -> Result<Zeroizing<PrivateKeyDer<'static>>, InvalidOption> {
    if section.legacy_encrypted {
        let problem = format!(
            "line {}: the key is encrypted in the legacy PEM format, which is weak and not supported; convert it to \
             PKCS#8, for example with `openssl pkcs8 -topk8 -v2 aes-256-cbc`",
            section.line
        );
        return Err(refuse(path, &problem));
    }
    let der = &section.der;
    Ok(Zeroizing::new(match &*section.label {
        "PRIVATE KEY" => PrivatePkcs8KeyDer::from(der.to_vec()).into(),
        "RSA PRIVATE KEY" => PrivatePkcs1KeyDer::from(der.to_vec()).into(),
        "EC PRIVATE KEY" => PrivateSec1KeyDer::from(der.to_vec()).into(),
        "ENCRYPTED PRIVATE KEY" => PrivatePkcs8KeyDer::from(decrypt(path, &section, password)?.to_vec()).into(),
        label => {
            return Err(refuse(path, &format!("line {}: a key of the kind {label} is not supported", section.line)));
        }
    }))
}

fn decrypt(path: &Path, section: &Section, password: Option<&Secret>) -> Result<Zeroizing<Vec<u8>>, InvalidOption> {
    let unreadable = |problem: &dyn Display| {
        let supported = "only AES under PBKDF2 or scrypt (PBES2) is supported";
        refuse(path, &format!("line {}: {supported}: {problem}", section.line))
    };
    let encrypted = EncryptedPrivateKeyInfoRef::try_from(&**section.der).map_err(|error| unreadable(&error))?;
    let password = password.ok_or_else(|| refuse_password("not set".to_owned(), path))?;
    let wrong = || refuse_password("not the right one".to_owned(), path);
    let key = encrypted.encryption_algorithm.decrypt(password.reveal(), encrypted.encrypted_data.as_bytes());
    let key = Zeroizing::new(key.map_err(|error| match error {
        pkcs8::pkcs5::Error::DecryptFailed => wrong(),
        unsupported => unreadable(&unsupported),
    })?);
    // One wrong password in 256 decrypts to something, though not to a key.
    PrivateKeyInfoRef::try_from(&**key).map_err(|_| wrong())?;
    Ok(key)
}
