//! Checks whether a server's certificate has been revoked, with an OCSP response that the server stapled to its
//! handshake, or with a responder's answer.
//!
//! Implements RFC 6960, section 3.2, with rustls's cryptography. The issuer's key comes from the verified chain.
//! Signatures are checked with the same algorithms as the signatures on certificates. A delegated responder's
//! certificate is verified by the same library as the server's certificate.

use std::io;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use tokio_rustls::rustls::{CertificateError, Error, OtherError, RootCertStore};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

#[cfg(feature = "ocsp")]
use crate::endpoint::wire::ocsp::CertificateId;
use crate::endpoint::wire::ocsp::{Certificate, OcspError, OcspResponse, PublicKey, Status};

/// id-kp-OCSPSigning (RFC 6960, section 4.2.2.2): the right to sign on behalf of an issuer.
const OCSP_SIGNING: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x09];

/// The maximum number of certificates to verify in a response, so that a response cannot slow the handshake down.
const MAX_RESPONDERS: usize = 4;

pub(super) type Algorithms = [&'static dyn SignatureVerificationAlgorithm];

/// The issuer of a server's certificate.
pub(super) enum Issuer<'a> {
    /// The first issuer in the chain that leads to one of the authorities. The chain has already been verified.
    OfChain { intermediates: &'a [CertificateDer<'a>], authorities: &'a RootCertStore },
    /// The server itself: its certificate is trusted directly.
    Itself,
}

/// A server's certificate, and its issuer.
pub(super) struct Issued<'a> {
    parts: Certificate<'a>,
    issuer: TrustAnchor<'static>,
}

/// What a valid response says about a certificate that the responder knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conclusion {
    pub is_revoked: bool,
    /// The end of the response's validity, exclusive, in seconds since 1970.
    pub until: u64,
}

/// Refuses a certificate that has been revoked, whose stapled response is invalid, or that requires a response and has
/// none. A responder that does not know the certificate is not a reason to refuse it. Returns the conclusion of the
/// response, if there is one.
///
/// The certificate and its chain must already have been verified with the same arguments.
pub(super) fn check<'c>(
    certificate: &'c CertificateDer<'_>,
    issuer: Issuer<'_>,
    response: &[u8],
    now: UnixTime,
    algorithms: &Algorithms,
) -> Result<Option<(Issued<'c>, Conclusion)>, Error> {
    let parts = Certificate::read(certificate).map_err(|_| CertificateError::BadEncoding)?;
    if response.is_empty() {
        return match parts.must_staple {
            true => Err(refusal(OcspError::Missing)),
            false => Ok(None),
        };
    }
    let issued = Issued::new(certificate, issuer, now, algorithms)?;
    match issued.conclude(response, now, algorithms).map_err(refusal)? {
        Some(Conclusion { is_revoked: true, .. }) => Err(CertificateError::Revoked.into()),
        conclusion => Ok(conclusion.map(|conclusion| (issued, conclusion))),
    }
}

impl<'a> Issued<'a> {
    /// Finds the issuer. The chain must already have been verified with the same arguments.
    pub fn new(
        certificate: &'a CertificateDer<'_>,
        issuer: Issuer<'_>,
        now: UnixTime,
        algorithms: &Algorithms,
    ) -> Result<Self, Error> {
        let bad_encoding = |_| CertificateError::BadEncoding;
        let issuer = match issuer {
            Issuer::Itself => anchor_from_trusted_cert(certificate).map_err(bad_encoding)?.to_owned(),
            Issuer::OfChain { intermediates, authorities } => {
                // The chain is verified again, because only the verification yields the issuer. The issuer must not be
                // looked up merely by name and signature. For a given signature, an attacker can construct a key that
                // verifies it, and present a certificate that contains this key.
                let end_entity = EndEntityCert::try_from(certificate).map_err(bad_encoding)?;
                let usage = KeyUsage::server_auth();
                let chain = end_entity
                    .verify_for_usage(algorithms, &authorities.roots, intermediates, now, usage, None, None)
                    .map_err(|error| match error {
                        // A resumed session can have a certificate that has expired since the first handshake.
                        webpki::Error::CertExpired { .. } => CertificateError::Expired,
                        _ => CertificateError::UnknownIssuer,
                    })?;
                let issuer = chain.intermediate_certificates().next().map(|issuer| issuer.der());
                match &issuer {
                    Some(certificate) => anchor_from_trusted_cert(certificate).map_err(bad_encoding)?.to_owned(),
                    None => chain.anchor().to_owned(),
                }
            }
        };
        let malformed = |_| CertificateError::BadEncoding;
        PublicKey::read(&issuer.subject_public_key_info).map_err(malformed)?;
        Ok(Self { parts: Certificate::read(certificate).map_err(malformed)?, issuer })
    }

    fn issuer_key(&self) -> PublicKey<'_> {
        PublicKey::read(&self.issuer.subject_public_key_info).expect("BUG: the key was read when the issuer was found")
    }

    /// Returns the conclusion of a response, or `None` if the responder does not know the certificate.
    pub fn conclude(
        &self,
        response: &[u8],
        now: UnixTime,
        algorithms: &Algorithms,
    ) -> Result<Option<Conclusion>, OcspError> {
        let (response, key) = (OcspResponse::read(response)?, self.issuer_key());
        verify_signature(&response, &self.parts, &self.issuer, key, now, algorithms)?;
        let until = response.valid_until(&self.parts, key);
        Ok(match response.status_of(&self.parts, key, now.as_secs())? {
            Status::Good => Some(Conclusion { is_revoked: false, until }),
            Status::Revoked => Some(Conclusion { is_revoked: true, until }),
            Status::Unknown => None,
        })
    }

    /// Returns the certificate's identifier for requests and caches.
    #[cfg(feature = "ocsp")]
    pub fn id(&self) -> CertificateId {
        CertificateId::of(&self.parts, self.issuer_key())
    }

    /// Returns the URLs of the certificate's responders.
    #[cfg(feature = "ocsp")]
    pub fn responders(&self) -> Vec<&'a str> {
        self.parts.responders().unwrap_or_default()
    }
}

/// Checks that the response is signed by the certificate's issuer, or by a responder that the issuer certified for this
/// purpose.
fn verify_signature(
    response: &OcspResponse<'_>,
    certificate: &Certificate<'_>,
    issuer: &TrustAnchor<'_>,
    issuer_key: PublicKey<'_>,
    now: UnixTime,
    algorithms: &Algorithms,
) -> Result<(), OcspError> {
    let mut known = false;
    if response.responder.is(certificate.issuer, issuer_key) {
        if is_signed_by(response, issuer_key, algorithms) {
            return Ok(());
        }
        known = true;
    }
    let candidates = response.certificates.iter().filter_map(|der| Some((*der, Certificate::read(der).ok()?)));
    let candidates = candidates.filter(|(_, parts)| response.responder.is(parts.subject, parts.public_key));
    for (der, parts) in candidates.take(MAX_RESPONDERS) {
        if is_delegated(der, issuer, now, algorithms) {
            if is_signed_by(response, parts.public_key, algorithms) {
                return Ok(());
            }
            known = true;
        }
    }
    Err(if known { OcspError::Signature } else { OcspError::Unauthorized })
}

fn is_signed_by(response: &OcspResponse<'_>, key: PublicKey<'_>, algorithms: &Algorithms) -> bool {
    algorithms.iter().any(|algorithm| {
        algorithm.signature_alg_id().as_ref() == response.algorithm
            && algorithm.public_key_alg_id().as_ref() == key.algorithm
            && algorithm.verify_signature(key.bits, response.signed, response.signature).is_ok()
    })
}

/// Returns whether the issuer itself issued this certificate for signing OCSP responses, and whether the certificate is
/// valid now.
///
/// This does not check whether the certificate has itself been revoked. Responders' certificates are short-lived, or
/// state that no check is needed (RFC 6960, section 4.2.2.2.1).
fn is_delegated(certificate: &[u8], issuer: &TrustAnchor<'_>, now: UnixTime, algorithms: &Algorithms) -> bool {
    let certificate = CertificateDer::from(certificate);
    let Ok(certificate) = EndEntityCert::try_from(&certificate) else { return false };
    let issuers = [issuer.clone()];
    let usage = KeyUsage::required(OCSP_SIGNING);
    certificate.verify_for_usage(algorithms, &issuers, &[], now, usage, None, None).is_ok()
}

/// Wraps the error in a rustls error, which does not display it readably. [`refused_in`] recovers the original.
fn refusal(error: OcspError) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}

/// Returns why [`check`] refused a certificate, if that made the handshake fail. For a revoked certificate, rustls has
/// its own error.
pub(super) fn refused_in(error: &io::Error) -> Option<&OcspError> {
    match error.get_ref()?.downcast_ref()? {
        Error::InvalidCertificate(CertificateError::Other(OtherError(source))) => source.downcast_ref(),
        _ => None,
    }
}
