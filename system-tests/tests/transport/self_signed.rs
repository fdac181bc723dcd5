//! Servers with a self-signed certificate that claims to be an authority.

use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{CertificateError, Error, SupportedProtocolVersion};
use wharf::unstable::wire::ocsp::OcspError;

use super::*;

fn trusting(certificates: &Certificates, file: Pem) -> TlsOptions {
    TlsOptions::default().ca_file(certificates.file(file))
}

/// Connects with `tls` to a server that presents one certificate.
async fn attempt(
    certificates: &Certificates,
    presented: Pem,
    version: &'static SupportedProtocolVersion,
    tls: TlsOptions,
) -> Result<(), EstablishError> {
    let server = embedded().await;
    let file = certificates.file(presented);
    let front = TlsFront::start(socket_address(&server), &file, version, None).await.unwrap();
    connect(localhost(front.address().port()).tls(tls)).await.map(drop)
}

#[tokio::test]
async fn self_signed_certificate_is_accepted_if_it_is_itself_trusted() {
    let certificates = Certificates::create().unwrap();
    let pem = std::fs::read(certificates.file(Pem::SelfSigned)).unwrap();
    for version in [&TLS12, &TLS13] {
        attempt(&certificates, Pem::SelfSigned, version, trusting(&certificates, Pem::SelfSigned)).await.unwrap();
        let memory = TlsOptions::default().ca_pem(pem.clone());
        attempt(&certificates, Pem::SelfSigned, version, memory).await.unwrap();
        // A certificate with a valid chain is still accepted.
        attempt(&certificates, Pem::Server, version, trust(&certificates)).await.unwrap();
    }
}

#[tokio::test]
async fn authority_certificate_is_not_a_servers_own() {
    let certificates = Certificates::create().unwrap();
    let chain =
        [Pem::SignedAuthorityAsServer, Pem::Authority].map(|pem| std::fs::read(certificates.file(pem)).unwrap());
    let cases = [
        // The client trusts an unrelated certificate, a certificate with the same subject, or the presented
        // certificate, without or with the authority that signed it.
        (Pem::SelfSigned, trust(&certificates)),
        (Pem::OtherSelfSigned, trusting(&certificates, Pem::SelfSigned)),
        (Pem::SignedAuthorityAsServer, trusting(&certificates, Pem::SignedAuthorityAsServer)),
        (Pem::SignedAuthorityAsServer, TlsOptions::default().ca_pem(chain.concat())),
    ];
    for (presented, tls) in cases {
        for tls in [tls.clone(), tls.allow_invalid_hostnames(true).disable_certificate_revocation_check(true)] {
            let error = attempt(&certificates, presented, &TLS13, tls).await.unwrap_err();
            assert_refused(&error, Stage::Tls, Labels::NONE);
            assert!(matches!(cause(&error), TlsError::AuthorityAsServer), "{presented:?}: {error}");
            assert!(error.to_string().contains("add it to tlsCAFile"), "{error}");
        }
    }
}

#[tokio::test]
async fn self_signed_certificate_is_checked_like_any_other() {
    let certificates = Certificates::create().unwrap();
    type Refusal = fn(&CertificateError) -> bool;
    let purpose: Refusal = |why| *why == CertificateError::InvalidPurpose;
    let cases: [(Pem, Refusal); 4] = [
        (Pem::ExpiredSelfSigned, |why| matches!(why, CertificateError::ExpiredContext { .. })),
        (Pem::OtherNameSelfSigned, |why| matches!(why, CertificateError::NotValidForNameContext { .. })),
        (Pem::SelfSignedForClients, purpose),
        (Pem::SelfSignedForSigning, purpose),
    ];
    for (pem, refusal) in cases {
        let error = attempt(&certificates, pem, &TLS13, trusting(&certificates, pem)).await.unwrap_err();
        assert_refused(&error, Stage::Tls, Labels::NONE);
        assert!(matches!(tls_error(&error), Error::InvalidCertificate(why) if refusal(why)), "{pem:?}: {error}");
        let lax = trusting(&certificates, pem).allow_invalid_hostnames(true);
        let accepted = attempt(&certificates, pem, &TLS13, lax).await.is_ok();
        assert_eq!(accepted, pem == Pem::OtherNameSelfSigned, "{pem:?}");
    }
}

#[tokio::test]
async fn response_stapled_by_a_self_signed_server_is_verified() {
    let certificates = Certificates::create().unwrap();
    let server = embedded().await;
    let file = certificates.file(Pem::SelfSigned);
    let front =
        TlsFront::start_stapling(socket_address(&server), &file, &TLS13, None, b"no response".to_vec()).await.unwrap();
    let options = |tls| localhost(front.address().port()).tls(tls);
    let error = refused(options(trusting(&certificates, Pem::SelfSigned))).await;
    assert!(matches!(cause::<OcspError>(&error), OcspError::Malformed { .. }), "{error}");
    connect(options(trusting(&certificates, Pem::SelfSigned).disable_certificate_revocation_check(true)))
        .await
        .unwrap();
}
