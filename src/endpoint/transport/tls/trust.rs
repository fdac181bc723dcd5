//! Which certificates of servers are accepted.

use std::fs;
use std::path::Path;

use thiserror::Error;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::{pem, revocation};
use crate::options::{InvalidOption, TlsOptions};

/// The system's certificate authorities. They are read once in the life of the process: a change to them is seen after a
/// restart. A read that found none is not kept.
static SYSTEM_AUTHORITIES: OnceCell<RootCertStore> = OnceCell::const_new();

/// Checks servers' certificates, as strictly as the options want.
///
/// In every mode the server proves that it has the private key of the certificate it shows.
#[derive(Debug)]
pub(super) struct Verifier {
    check: Check,
    algorithms: WebPkiSupportedAlgorithms,
}

#[derive(Debug)]
enum Check {
    /// The chain to an authority, with `name` that the certificate is the server's, and with `revocation` what the server
    /// has stapled about its revocation.
    Chain { authorities: Authorities, name: bool, revocation: bool },
    /// Nothing: `tlsAllowInvalidCertificates`.
    Nothing,
}

#[derive(Debug)]
enum Authorities {
    File(RootCertStore),
    System,
}

impl Verifier {
    /// Reads the file of certificate authorities, if the options name one, also if nothing is to be checked.
    pub fn new(options: &TlsOptions, provider: &CryptoProvider) -> Result<Self, InvalidOption> {
        let authorities = match &options.ca_file {
            Some(path) => Authorities::File(read_authorities(path)?),
            None => Authorities::System,
        };
        let check = match options.allow_invalid_certificates {
            true => Check::Nothing,
            false => Check::Chain {
                authorities,
                name: !options.allow_invalid_hostnames,
                revocation: !options.disable_certificate_revocation_check,
            },
        };
        Ok(Self { check, algorithms: provider.signature_verification_algorithms })
    }

    /// Whether the name in a certificate matters.
    pub fn checks_name(&self) -> bool {
        matches!(self.check, Check::Chain { name: true, .. })
    }

    /// Reads the system's certificate authorities, if they are wanted and not there yet, on a thread that may block.
    ///
    /// It must have succeeded once before the verifier is used.
    pub async fn load(&self) -> Result<(), NoTrustedAuthority> {
        if let Check::Chain { authorities: Authorities::System, .. } = self.check {
            let read = async || match spawn_blocking(read_system_authorities).await {
                Ok(read) => read,
                Err(error) => Err(NoTrustedAuthority { reasons: vec![error.to_string()] }),
            };
            SYSTEM_AUTHORITIES.get_or_try_init(read).await?;
        }
        Ok(())
    }
}

fn read_authorities(path: &Path) -> Result<RootCertStore, InvalidOption> {
    let refuse = |problem: String| InvalidOption {
        option: "tlsCAFile",
        value: format!("{path:?} ({problem})"),
        allowed: "a readable PEM file with the certificates of the authorities to trust".to_owned(),
    };
    let text = fs::read(path).map_err(|error| refuse(error.to_string()))?;
    let mut authorities = RootCertStore::empty();
    for section in pem::sections(&text).map_err(|error| refuse(error.to_string()))? {
        if section.label == pem::CERTIFICATE {
            let certificate = CertificateDer::from(section.der.to_vec());
            authorities.add(certificate).map_err(|error| refuse(format!("line {}: {error}", section.line)))?;
        }
    }
    if authorities.is_empty() {
        return Err(refuse("it holds no certificate".to_owned()));
    }
    Ok(authorities)
}

/// A certificate that cannot be read is left out: systems are known to have one or two.
fn read_system_authorities() -> Result<RootCertStore, NoTrustedAuthority> {
    let found = rustls_native_certs::load_native_certs();
    let mut authorities = RootCertStore::empty();
    authorities.add_parsable_certificates(found.certs);
    if authorities.is_empty() {
        return Err(NoTrustedAuthority { reasons: found.errors.iter().map(ToString::to_string).collect() });
    }
    Ok(authorities)
}

/// The system has no certificate authority to trust, so that no server's certificate can be verified. Install the
/// system's certificates, let `SSL_CERT_FILE` or `SSL_CERT_DIR` name others, or set `tlsCAFile`.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("the system has no certificate authorities ({}); set tlsCAFile", reasons.join("; "))]
pub struct NoTrustedAuthority {
    /// What went wrong when they were looked for. May be empty.
    pub reasons: Vec<String>,
}

crate::error::debug_as_sentence!(NoTrustedAuthority);

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        identity: &ServerName<'_>,
        stapled_ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Check::Chain { authorities, name, revocation } = &self.check else {
            return Ok(ServerCertVerified::assertion());
        };
        let authorities = match authorities {
            Authorities::File(authorities) => authorities,
            Authorities::System => SYSTEM_AUTHORITIES.get().expect("BUG: a handshake began before load succeeded"),
        };
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, authorities, intermediates, now, algorithms)?;
        if *name {
            verify_server_name(&parsed, identity)?;
        }
        if *revocation {
            revocation::check(certificate, intermediates, authorities, stapled_ocsp_response, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
