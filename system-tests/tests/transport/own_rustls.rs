//! A rustls configuration, a cryptography provider and a TLS version that the application chooses.

use std::fs;

use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{CipherSuite, SupportedProtocolVersion};
use wharf::TlsVersion;
use wharf::rustls::crypto::{CryptoProvider, ring};
use wharf::rustls::{ClientConfig, Error, RootCertStore};

use super::*;

async fn served(certificates: &Certificates, version: &'static SupportedProtocolVersion) -> (EmbeddedServer, TlsFront) {
    let server = embedded().await;
    let file = certificates.file(Pem::Server);
    let front = TlsFront::start(socket_address(&server), &file, version, None).await.unwrap();
    (server, front)
}

/// Returns *ring* with the cipher suites that pass the filter.
fn provider(passes: fn(CipherSuite) -> bool) -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.cipher_suites.retain(|suite| passes(suite.suite()));
    Arc::new(provider)
}

fn config(certificates: &Certificates) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificates.file(Pem::Authority)).unwrap()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

#[tokio::test]
async fn version_older_than_the_oldest_is_refused() {
    let certificates = Certificates::create().unwrap();
    let (_old_server, old) = served(&certificates, &TLS12).await;
    let (_new_server, new) = served(&certificates, &TLS13).await;
    let options =
        |front: &TlsFront, oldest| localhost(front.address().port()).tls(trust(&certificates).min_version(oldest));
    for front in [&old, &new] {
        connect(options(front, TlsVersion::Tls12)).await.unwrap();
    }
    connect(options(&new, TlsVersion::Tls13)).await.unwrap();
    let error = refused(options(&old, TlsVersion::Tls13)).await;
    assert_refused(&error, Stage::Tls, Labels::NONE);
    assert!(matches!(tls_error(&error), Error::AlertReceived(_) | Error::PeerIncompatible(_)), "{error}");
    assert!(TlsVersion::Tls12 < TlsVersion::Tls13 && TlsVersion::default() == TlsVersion::Tls12);
}

#[tokio::test]
async fn applications_provider_does_the_cryptography() {
    let certificates = Certificates::create().unwrap();
    let (_server, front) = served(&certificates, &TLS13).await;
    let options = |provider| {
        let tls = trust(&certificates).certificate_key_file(certificates.file(Pem::Client)).crypto_provider(provider);
        localhost(front.address().port()).tls(tls)
    };
    connect(options(provider(|suite| suite == CipherSuite::TLS13_CHACHA20_POLY1305_SHA256))).await.unwrap();
    // A provider limited to TLS 1.2 cannot connect to a server limited to TLS 1.3.
    let old = provider(|suite| suite == CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256);
    let error = refused(options(old.clone())).await;
    assert_refused(&error, Stage::Tls, Labels::NONE);

    // The provider also verifies certificates.
    let mut blind = ring::default_provider();
    blind.signature_verification_algorithms.all = &[];
    blind.signature_verification_algorithms.mapping = &[];
    refused(options(Arc::new(blind))).await;

    let tls = trust(&certificates).crypto_provider(old).min_version(TlsVersion::Tls13);
    let error = localhost(1).tls(tls).endpoint().unwrap_err();
    assert_eq!(error.option, "crypto_provider");
    let start = "must have cipher suites and key exchanges for TLS 1.3, the min_version: ";
    assert!(error.problem.starts_with(start), "{error}");
    let error = localhost(1).tls(TlsOptions::default().crypto_provider(provider(|_| false))).endpoint().unwrap_err();
    assert_eq!(error.option, "crypto_provider");
}

#[tokio::test]
async fn applications_configuration_decides_alone() {
    let certificates = Certificates::create().unwrap();
    let (_server, front) = served(&certificates, &TLS13).await;
    let connect_with =
        |config| connect(localhost(front.address().port()).tls(TlsOptions::default().client_config(config)));
    connect_with(Arc::new(config(&certificates))).await.unwrap();
    assert_eq!(front.handshakes().last().unwrap().server_name.as_deref(), Some("localhost"));

    let mut silent = config(&certificates);
    silent.enable_sni = false;
    connect_with(Arc::new(silent)).await.unwrap();
    assert_eq!(front.handshakes().last().unwrap().server_name, None);

    let nobody = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let error = connect_with(Arc::new(nobody)).await.unwrap_err();
    assert_refused(&error, Stage::Tls, Labels::NONE);
}

#[test]
fn no_option_is_ignored_beside_a_configuration() {
    let certificates = Certificates::create().unwrap();
    let own = || TlsOptions::default().client_config(Arc::new(config(&certificates)));
    let ca = fs::read(certificates.file(Pem::Authority)).unwrap();
    let cases = [
        (own().ca_file("ca.pem"), "tlsCAFile"),
        (own().ca_pem(ca), "certificate authorities from memory"),
        (own().certificate_key_file("client.pem"), "tlsCertificateKeyFile"),
        (own().certificate_key_pem("x"), "a client's certificate from memory"),
        (own().certificate_key_file_password("x"), "tlsCertificateKeyFilePassword"),
        (own().allow_invalid_certificates(true), "tlsAllowInvalidCertificates"),
        (own().allow_invalid_hostnames(true), "tlsAllowInvalidHostnames"),
        (own().disable_ocsp_endpoint_check(true), "tlsDisableOCSPEndpointCheck"),
        (own().disable_certificate_revocation_check(true), "tlsDisableCertificateRevocationCheck"),
        (own().min_version(TlsVersion::Tls13), "min_version"),
        (own().crypto_provider(Arc::new(ring::default_provider())), "crypto_provider"),
    ];
    for (tls, option) in cases {
        let error = localhost(1).tls(tls).endpoint().unwrap_err();
        let message = format!("{option} cannot be combined with client_config, which decides alone");
        assert_eq!(error.to_string(), message);
    }
    let error = options("/tmp/mongodb.sock").tls(own()).endpoint().unwrap_err();
    assert_eq!(error.option, "tls");
    // X.509 authentication takes its certificate from the configuration. If the configuration has none, an error is
    // reported before any connection is opened.
    let x509 = localhost(1).tls(own()).credential(Credential::of(Mechanism::MongoDbX509));
    assert_eq!(x509.endpoint().unwrap_err().option, "tlsCertificateKeyFile");
}
