//! Certificates and keys from memory.

use std::fs;

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::*;

/// Returns the client's certificate chain and key in DER.
fn client(certificates: &Certificates, pem: Pem) -> (Vec<Vec<u8>>, Vec<u8>) {
    let file = certificates.file(pem);
    let chain = CertificateDer::pem_file_iter(&file).unwrap().map(|der| der.unwrap().to_vec()).collect();
    (chain, PrivateKeyDer::from_pem_file(&file).unwrap().secret_der().to_vec())
}

fn refusal(tls: TlsOptions) -> InvalidOption {
    localhost(1).tls(tls).endpoint().unwrap_err()
}

#[tokio::test]
async fn certificates_in_memory_work_like_files() {
    let secured = Secured::start(true);
    let port = secured.mongod.port();
    let ca = fs::read(secured.certificates.file(Pem::Authority)).unwrap();
    let ca_der = CertificateDer::from_pem_slice(&ca).unwrap().to_vec();
    let (chain, key) = client(&secured.certificates, Pem::ClientWithChain);
    let read = |pem| fs::read_to_string(secured.certificates.file(pem)).unwrap();
    for tls in [
        TlsOptions::default().ca_pem(ca.clone()).certificate_key_pem(read(Pem::Client)),
        TlsOptions::default().ca_der([ca_der.clone()]).certificate_key_der(chain, key),
        TlsOptions::default()
            .ca_der([ca_der])
            .certificate_key_pem(read(Pem::ClientRsaEncrypted))
            .certificate_key_file_password(KEY_PASSWORD),
    ] {
        let options = localhost(port).tls(tls).credential(Credential::of(Mechanism::MongoDbX509));
        // This mongod does not have that user, so remove the credential and test only TLS.
        assert!(options.clone().endpoint().is_ok());
        let mut options = options;
        options.credential = None;
        connect(options).await.unwrap();
    }
    // This mongod refuses clients without a certificate, and clients that do not trust its authority refuse this
    // mongod.
    refused(localhost(port).tls(TlsOptions::default().ca_pem(ca))).await;
    let other = fs::read(secured.certificates.file(Pem::OtherAuthority)).unwrap();
    let error = refused(localhost(port).tls(TlsOptions::default().ca_pem(other))).await;
    assert_refused(&error, Stage::Tls, Labels::NONE);
}

#[test]
fn every_form_of_key_is_read_from_memory() {
    let certificates = Certificates::create().unwrap();
    for pem in [Pem::Client, Pem::ClientSec1, Pem::ClientRsaPkcs1] {
        let (chain, key) = client(&certificates, pem);
        assert!(localhost(1).tls(TlsOptions::default().certificate_key_der(chain, key)).endpoint().is_ok(), "{pem:?}");
    }
}

#[test]
fn invalid_certificates_in_memory_are_refused_by_method_name() {
    let certificates = Certificates::create().unwrap();
    let read = |pem| fs::read_to_string(certificates.file(pem)).unwrap();
    let (chain, key) = client(&certificates, Pem::Client);
    let (_, other_key) = client(&certificates, Pem::ClientWithOtherKey);
    let tls = TlsOptions::default;
    let cases = [
        (tls().ca_pem(""), "ca_pem", "it holds no certificate"),
        (tls().ca_pem("-----BEGIN CERTIFICATE-----"), "ca_pem", "line 1: this section has no end"),
        (tls().ca_der([b"no certificate"]), "ca_der", "certificate 1: invalid peer certificate: BadEncoding"),
        (tls().ca_der::<Vec<u8>>([]), "ca_der", "it holds no certificate"),
        (tls().certificate_key_pem(read(Pem::Authority)), "certificate_key_pem", "it holds no private key"),
        (tls().certificate_key_der::<Vec<u8>>([], key.clone()), "certificate_key_der", "there is no certificate"),
        (tls().certificate_key_der(chain.clone(), "secret"), "certificate_key_der", "unknown or invalid key format"),
        (tls().certificate_key_der(chain.clone(), other_key), "certificate_key_der", "KeyMismatch"),
    ];
    for (tls, option, problem) in cases {
        let error = refusal(tls);
        assert_eq!(error.option, option, "{error}");
        assert!(error.problem.contains(problem), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let encrypted = tls().certificate_key_pem(read(Pem::ClientRsaEncrypted));
    let message = "tlsCertificateKeyFilePassword is required for the private key in memory";
    assert_eq!(refusal(encrypted).to_string(), message);
}

#[test]
fn last_of_file_and_memory_counts_and_both_are_refused() {
    let certificates = Certificates::create().unwrap();
    let read = |pem| fs::read_to_string(certificates.file(pem)).unwrap();
    let memory = TlsOptions::default().ca_file("missing").ca_pem(read(Pem::Authority));
    let memory = memory.certificate_key_file("missing").certificate_key_pem(read(Pem::Client));
    assert!(localhost(1).tls(memory.clone()).endpoint().is_ok());
    let file = memory.clone().ca_file(certificates.file(Pem::Authority)).certificate_key_file("missing");
    assert_eq!(refusal(file).option, "tlsCertificateKeyFile");
    let mut both = memory.clone();
    both.ca_file = Some("ca.pem".into());
    let message = "tlsCAFile cannot be combined with certificate authorities from memory";
    assert_eq!(refusal(both).to_string(), message);
    let mut both = memory;
    both.certificate_key_file = Some("client.pem".into());
    let message = "tlsCertificateKeyFile cannot be combined with a certificate from memory";
    assert_eq!(refusal(both).to_string(), message);
}

#[test]
fn key_in_memory_is_not_printed() {
    let tls = TlsOptions::default().certificate_key_der([b"certificate"], "hunter2").ca_pem("an authority");
    for printed in [format!("{tls:?}"), format!("{tls:#?}")] {
        assert!(!printed.contains("hunter2") && !printed.contains("104, 117, 110"), "{printed}");
        assert!(printed.contains("12 bytes of PEM"), "{printed}");
    }
    assert_ne!(tls, TlsOptions::default().certificate_key_der([b"certificate"], "swordfish").ca_pem("an authority"));
}
