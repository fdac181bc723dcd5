//! Decides which server certificates are accepted.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, OtherError, RootCertStore, SignatureScheme,
};

use super::error::TlsError;
#[cfg(feature = "ocsp")]
use super::responders::Responders;
use super::revocation::Issuer;
use super::{pem, revocation};
use crate::endpoint::options::{CaCertificates, InvalidOption, TlsOptions};
use crate::endpoint::regular_file;
use crate::endpoint::wire::ocsp::Certificate;
use crate::pool::runtime::blocking;

/// The system's certificate authorities. They are kept once they have been read, so a change takes effect only after a
/// restart. If no authorities are found, nothing is kept.
///
/// The first few connections may all read them at the same time. If they waited for a single read instead, a process
/// forked during that read would wait for a thread that it does not have.
static SYSTEM_AUTHORITIES: ArcSwapOption<RootCertStore> = ArcSwapOption::const_empty();

/// Verifies servers' certificates as strictly as the options require.
///
/// In every mode, the server must prove that it holds the private key of its certificate. The only exception is a
/// certificate that cannot be read at all, if the options accept any certificate.
#[derive(Debug)]
pub(super) struct Verifier {
    check: Check,
    algorithms: WebPkiSupportedAlgorithms,
    /// `None` if responders must not be asked.
    #[cfg(feature = "ocsp")]
    responders: Option<Responders>,
}

#[derive(Debug)]
enum Check {
    /// Checks the chain to an authority. With `name`, also checks that the certificate belongs to the server. With
    /// `revocation`, also checks the stapled OCSP response.
    Chain { authorities: Authorities, name: bool, revocation: bool },
    /// Checks nothing (`tlsAllowInvalidCertificates`).
    Nothing,
}

#[derive(Debug)]
enum Authorities {
    /// The authorities that the options name or hold.
    Given {
        roots: Arc<RootCertStore>,
        /// The same certificates in full, because a self-signed one may be a server's own certificate.
        certificates: Vec<CertificateDer<'static>>,
    },
    System,
}

impl Verifier {
    /// Reads the certificate authorities that the options name or hold, even if all checks are off.
    pub fn new(options: &TlsOptions, provider: &CryptoProvider) -> Result<Self, InvalidOption> {
        let authorities = match (&options.ca_file, &options.ca) {
            (Some(path), _) => read_file(path)?,
            (None, Some(CaCertificates::Pem(text))) => read_pem(text, &|problem| refuse_memory("ca_pem", problem))?,
            (None, Some(CaCertificates::Der(certificates))) => read_der(certificates)?,
            (None, None) => Authorities::System,
        };
        let check = match options.allow_invalid_certificates {
            true => Check::Nothing,
            false => Check::Chain {
                authorities,
                name: !options.allow_invalid_hostnames,
                revocation: !options.disable_certificate_revocation_check,
            },
        };
        Ok(Self {
            #[cfg(feature = "ocsp")]
            responders: (matches!(check, Check::Chain { revocation: true, .. })
                && !options.disable_ocsp_endpoint_check)
                .then(Responders::default),
            check,
            algorithms: provider.signature_verification_algorithms,
        })
    }

    /// Stops asking responders.
    #[cfg(feature = "ocsp")]
    pub fn without_responders(self) -> Self {
        Self { responders: None, ..self }
    }

    /// Refuses a server's certificate if its responders say that it has been revoked. `presented` holds the
    /// certificates that the server sent in a successful handshake: its own, then intermediate ones. `left` is the time
    /// until the connection must be open.
    #[cfg(feature = "ocsp")]
    pub async fn ask_responders(&self, presented: &[CertificateDer<'_>], left: Option<Duration>) -> Result<(), Error> {
        let (Some(responders), [certificate, intermediates @ ..]) = (&self.responders, presented) else {
            return Ok(());
        };
        let parts = Certificate::read(certificate).map_err(|_| CertificateError::BadEncoding)?;
        // The issuer of a self-issued certificate is the server itself.
        if parts.is_self_issued() || parts.responders().is_ok_and(|responders| responders.is_empty()) {
            return Ok(());
        }
        let (authorities, _) = self.authorities();
        let issuer = Issuer::OfChain { intermediates, authorities: &authorities };
        let algorithms = self.algorithms.all;
        let issued = revocation::Issued::new(certificate, issuer, UnixTime::now(), algorithms)?;
        match responders.is_revoked(&issued, algorithms, left).await {
            true => Err(CertificateError::Revoked.into()),
            false => Ok(()),
        }
    }

    /// Returns the authorities to trust, and the certificates that may be a server's own.
    fn authorities(&self) -> (Arc<RootCertStore>, &[CertificateDer<'static>]) {
        match &self.check {
            Check::Chain { authorities: Authorities::Given { roots, certificates }, .. } => {
                (Arc::clone(roots), certificates)
            }
            _ => (SYSTEM_AUTHORITIES.load_full().expect("BUG: a handshake began before load succeeded"), &[]),
        }
    }

    /// Returns whether the name in a certificate is checked.
    pub fn checks_name(&self) -> bool {
        matches!(self.check, Check::Chain { name: true, .. })
    }

    /// Returns whether to accept a certificate that webpki cannot read, such as an X.509 version 1 certificate.
    fn accepts_unread(&self, certificate: &CertificateDer<'_>) -> bool {
        matches!(self.check, Check::Nothing) && webpki::EndEntityCert::try_from(certificate).is_err()
    }

    /// Verifies the handshake signature of a server whose certificate webpki cannot read, with the key in that
    /// certificate.
    fn verify_unread(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Ok(Certificate { public_key, .. }) = Certificate::read(certificate) else {
            return Ok(HandshakeSignatureValid::assertion());
        };
        let of_scheme = self.algorithms.mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme);
        let is_valid = of_scheme.flat_map(|(_, algorithms)| *algorithms).any(|algorithm| {
            algorithm.public_key_alg_id().as_ref() == public_key.algorithm
                && algorithm.verify_signature(public_key.bits, message, signed.signature()).is_ok()
        });
        match is_valid {
            true => Ok(HandshakeSignatureValid::assertion()),
            false => Err(CertificateError::BadSignature.into()),
        }
    }

    /// Reads the system's certificate authorities on a blocking thread, if they are needed and have not been read yet.
    ///
    /// This must have succeeded once before the verifier is used.
    pub async fn load(&self) -> Result<(), TlsError> {
        if let Check::Chain { authorities: Authorities::System, .. } = self.check {
            load(&SYSTEM_AUTHORITIES, read_system_authorities).await?;
        }
        Ok(())
    }
}

/// Fills `authorities` on a blocking thread, unless they are filled already.
async fn load(
    authorities: &ArcSwapOption<RootCertStore>,
    read: impl FnOnce() -> Result<RootCertStore, TlsError> + Send + 'static,
) -> Result<(), TlsError> {
    if authorities.load().is_none() {
        let read = blocking(read).await;
        let read = read.map_err(|error| TlsError::NoTrustedAuthority { reasons: vec![error.to_string()] })?;
        authorities.store(Some(Arc::new(read?)));
    }
    Ok(())
}

fn read_file(path: &Path) -> Result<Authorities, InvalidOption> {
    let refuse = |problem: String| {
        let must = "a readable PEM file with the certificates of the authorities to trust";
        InvalidOption::new("tlsCAFile", must, format!("{path:?} ({problem})"))
    };
    let (text, _) = regular_file::read(path, regular_file::MAX_PEM).map_err(|error| refuse(error.to_string()))?;
    read_pem(&text, &refuse)
}

fn refuse_memory(option: &'static str, problem: String) -> InvalidOption {
    InvalidOption::because(option, format!("must hold the certificates of the authorities to trust: {problem}"))
}

fn read_pem(text: &[u8], refuse: &dyn Fn(String) -> InvalidOption) -> Result<Authorities, InvalidOption> {
    let sections = pem::sections(text).map_err(|error| refuse(error.to_string()))?;
    let certificates = sections.iter().filter(|section| section.label == pem::CERTIFICATE);
    let certificates = certificates.map(|section| (format!("line {}", section.line), section.der.to_vec()));
    collect(certificates, refuse)
}

fn read_der(certificates: &[Vec<u8>]) -> Result<Authorities, InvalidOption> {
    let numbered = certificates.iter().zip(1..).map(|(der, number)| (format!("certificate {number}"), der.clone()));
    collect(numbered, &|problem| refuse_memory("ca_der", problem))
}

/// Collects the certificates. `found` yields each certificate with its location, for error messages.
fn collect(
    found: impl Iterator<Item = (String, Vec<u8>)>,
    refuse: &dyn Fn(String) -> InvalidOption,
) -> Result<Authorities, InvalidOption> {
    let (mut roots, mut certificates) = (RootCertStore::empty(), Vec::new());
    for (place, der) in found {
        let certificate = CertificateDer::from(der);
        roots.add(certificate.clone()).map_err(|error| refuse(format!("{place}: {error}")))?;
        certificates.push(certificate);
    }
    match certificates.is_empty() {
        true => Err(refuse("it holds no certificate".to_owned())),
        false => Ok(Authorities::Given { roots: Arc::new(roots), certificates }),
    }
}

/// Reads the system's authorities. Leaves out certificates that cannot be parsed, because some systems have one or two
/// of them.
fn read_system_authorities() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut authorities = RootCertStore::empty();
    authorities.add_parsable_certificates(found.certs);
    if authorities.is_empty() {
        return Err(TlsError::NoTrustedAuthority { reasons: found.errors.iter().map(ToString::to_string).collect() });
    }
    Ok(authorities)
}

/// Returns whether the only objection so far is that the certificate belongs to an authority.
fn is_of_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(OtherError(source))) = error else { return false };
    matches!(source.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// Accepts an authority's certificate as a server's own, if it is self-signed and one of the trusted certificates.
///
/// For such a certificate, it is enough that the server sent the same bytes. The handshake proves that the server holds
/// its key. Its validity period and its purpose are checked as usual.
fn verify_pinned(certificate: &CertificateDer<'_>, pins: &[CertificateDer<'_>], now: UnixTime) -> Result<(), Error> {
    let bad_encoding = |_| CertificateError::BadEncoding;
    let parts = Certificate::read(certificate).map_err(bad_encoding)?;
    if !pins.iter().any(|pin| **pin == **certificate) || !parts.is_self_issued() {
        return Err(CertificateError::Other(OtherError(Arc::new(TlsError::AuthorityAsServer))).into());
    }
    let (from, to) = parts.valid_between().map_err(bad_encoding)?;
    let [not_before, not_after] = [from, to].map(|seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds)));
    if now < not_before {
        return Err(CertificateError::NotValidYetContext { time: now, not_before }.into());
    }
    if now > not_after {
        return Err(CertificateError::ExpiredContext { time: now, not_after }.into());
    }
    match parts.is_for_servers().map_err(bad_encoding)? {
        true => Ok(()),
        false => Err(CertificateError::InvalidPurpose.into()),
    }
}

/// Returns why [`verify_pinned`] refused a certificate, if that made the handshake fail and rustls's own message would not
/// help.
pub(super) fn refused_in(error: &io::Error) -> Option<TlsError> {
    match error.get_ref()?.downcast_ref()? {
        Error::InvalidCertificate(CertificateError::Other(OtherError(source))) => source.downcast_ref().cloned(),
        _ => None,
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        identity: &ServerName<'_>,
        stapled_ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Check::Chain { name, revocation, .. } = &self.check else {
            return Ok(ServerCertVerified::assertion());
        };
        let (authorities, pins) = self.authorities();
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = self.algorithms.all;
        let mut issuer = Issuer::OfChain { intermediates, authorities: &authorities };
        match verify_server_cert_signed_by_trust_anchor(&parsed, &authorities, intermediates, now, algorithms) {
            Err(error) if is_of_authority(&error) => {
                verify_pinned(certificate, pins, now)?;
                issuer = Issuer::Itself;
            }
            verified => verified?,
        }
        if *name {
            verify_server_name(&parsed, identity)?;
        }
        if *revocation {
            let _conclusion = revocation::check(certificate, issuer, stapled_ocsp_response, now, algorithms)?;
            #[cfg(feature = "ocsp")]
            if let (Some(responders), Some((issued, conclusion))) = (&self.responders, _conclusion) {
                responders.learn(&issued.id(), conclusion);
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if self.accepts_unread(certificate) {
            return self.verify_unread(message, certificate, signed);
        }
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if self.accepts_unread(certificate) {
            return self.verify_unread(message, certificate, signed);
        }
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    use tokio_rustls::rustls::pki_types::pem::PemObject;
    use wharf_testbed::certificates::{Certificates, Pem};

    use super::*;

    /// In a forked child, nothing polls the inherited copy of a load that was in progress.
    #[tokio::test]
    async fn load_does_not_wait_for_another_load() {
        let authorities = ArcSwapOption::empty();
        let (end, ended) = mpsc::channel::<()>();
        let mut abandoned = pin!(load(&authorities, move || {
            let _ = ended.recv();
            Ok(RootCertStore::empty())
        }));
        assert!(abandoned.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let other = load(&authorities, || Ok(RootCertStore::empty()));
        tokio::time::timeout(Duration::from_secs(60), other).await.expect("it waits").unwrap();
        assert!(authorities.load().is_some());
        drop(end);
    }

    /// webpki checks the validity period first, but does not promise to do so.
    #[test]
    fn pinned_certificate_is_valid_from_its_first_second_to_its_last() {
        let certificates = Certificates::create().unwrap();
        let certificate = CertificateDer::from_pem_file(certificates.file(Pem::ExpiredSelfSigned)).unwrap();
        let pins = [certificate.clone()];
        let verify =
            |seconds| verify_pinned(&certificate, &pins, UnixTime::since_unix_epoch(Duration::from_secs(seconds)));
        // 2000-01-01 and 2001-01-01.
        let (from, to) = (946_684_800, 978_307_200);
        assert_eq!((verify(from), verify(to)), (Ok(()), Ok(())));
        let refusal = |seconds| match verify(seconds) {
            Err(Error::InvalidCertificate(refusal)) => refusal,
            other => panic!("{other:?}"),
        };
        assert!(matches!(refusal(from - 1), CertificateError::NotValidYetContext { .. }));
        assert!(matches!(refusal(to + 1), CertificateError::ExpiredContext { .. }));
    }
}
