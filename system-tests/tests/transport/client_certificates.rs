//! Which clients a mongod accepts, depending on their certificates.

use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{AlertDescription, Error};

use super::*;

#[tokio::test]
async fn mongod_accepts_every_form_of_key() {
    let secured = Secured::start(true);
    let forms = [
        (Pem::Client, None),
        (Pem::ClientWithChain, None),
        (Pem::ClientSec1, None),
        (Pem::ClientRsaPkcs1, None),
        (Pem::ClientRsaEncrypted, Some(KEY_PASSWORD)),
        (Pem::ClientRsaEncryptedScrypt, Some(KEY_PASSWORD)),
        // An unencrypted key with an unneeded password.
        (Pem::Client, Some("needless")),
    ];
    for (pem, password) in forms {
        let mut tls = secured.trust().certificate_key_file(secured.certificates.file(pem));
        if let Some(password) = password {
            tls = tls.certificate_key_file_password(password);
        }
        let connected = connect(localhost(secured.mongod.port()).tls(tls)).await;
        connected.unwrap_or_else(|error| panic!("{pem:?}: {error}"));
    }
}

#[tokio::test]
async fn refusal_by_an_alert_has_no_labels() {
    let certificates = Certificates::create().unwrap();
    let server = embedded().await;
    let other = trust(&certificates).certificate_key_file(certificates.file(Pem::OtherAuthoritysClient));
    for (version, stage) in [(&TLS13, Stage::Hello), (&TLS12, Stage::Tls)] {
        let authority = certificates.file(Pem::Authority);
        let file = certificates.file(Pem::Server);
        let front = TlsFront::start(socket_address(&server), &file, version, Some(&authority)).await.unwrap();
        for (tls, reason) in [
            (trust(&certificates), AlertDescription::CertificateRequired),
            (other.clone(), AlertDescription::UnknownCA),
        ] {
            // In TLS 1.3 the client sends its hello before it learns of the rejection, so either step may fail first.
            for _ in 0..20 {
                let error = refused(localhost(front.address().port()).tls(tls.clone())).await;
                assert_refused(&error, stage, Labels::NONE);
                let Error::AlertReceived(alert) = tls_error(&error) else { panic!("{error}") };
                assert!(*alert == reason || stage == Stage::Tls, "{alert:?}");
            }
        }
        let own = trust(&certificates).certificate_key_file(certificates.file(Pem::ClientWithChain));
        connect(localhost(front.address().port()).tls(own)).await.unwrap();
    }
}

/// Even in TLS 1.2, a mongod completes the handshake before it checks the certificate, and then closes the connection
/// without an alert. The stream ends during hello. The error has the overload labels, because an overloaded server may
/// do the same.
#[tokio::test]
async fn refusal_by_mongod_is_the_end_of_the_stream() {
    let secured = Secured::start(true);
    let port = secured.mongod.port();
    let other = secured.certificates.file(Pem::OtherAuthoritysClient);
    for tls in [secured.trust(), secured.trust().certificate_key_file(&other)] {
        let error = refused(localhost(port).tls(tls)).await;
        assert_refused(&error, Stage::Hello, OVERLOADED);
    }
}

#[tokio::test]
async fn optional_client_certificate_must_be_valid() {
    let secured = Secured::shared();
    let port = secured.mongod.port();
    connect(localhost(port).tls(secured.trust())).await.unwrap();
    let own = secured.trust().certificate_key_file(secured.certificates.file(Pem::Client));
    connect(localhost(port).tls(own)).await.unwrap();
    let other = secured.trust().certificate_key_file(secured.certificates.file(Pem::OtherAuthoritysClient));
    assert_refused(&refused(localhost(port).tls(other)).await, Stage::Hello, OVERLOADED);
}
