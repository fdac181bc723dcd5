//! Whom a mongod takes for its client.

use super::*;

#[tokio::test]
async fn a_mongod_accepts_every_form_of_key() {
    let secured = Secured::start(true);
    let forms = [
        (Pem::Client, None),
        (Pem::ClientWithChain, None),
        (Pem::ClientSec1, None),
        (Pem::ClientRsaPkcs1, None),
        (Pem::ClientRsaEncrypted, Some(KEY_PASSWORD)),
        (Pem::ClientRsaEncryptedScrypt, Some(KEY_PASSWORD)),
        // A key that needs none does not mind a password.
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
async fn a_client_without_the_right_certificate_is_refused_without_labels() {
    let secured = Secured::start(true);
    let port = secured.mongod.port();
    let other = secured.certificates.file(Pem::OtherAuthoritysClient);
    for tls in [secured.trust(), secured.trust().certificate_key_file(&other)] {
        // In TLS 1.3 the client has sent its hello before it hears of it, in time for either of its next steps.
        for _ in 0..20 {
            let error = refused(localhost(port).tls(tls.clone())).await;
            assert!(matches!(error.stage, Stage::Tls | Stage::Hello), "{error}");
            assert_eq!(error.labels, Labels::NONE, "{error}");
            assert!(matches!(tls_error(&error), tokio_rustls::rustls::Error::AlertReceived(_)), "{error}");
        }
    }
}

#[tokio::test]
async fn a_certificate_that_need_not_be_there_must_be_right() {
    let secured = Secured::shared();
    let port = secured.mongod.port();
    connect(localhost(port).tls(secured.trust())).await.unwrap();
    let own = secured.trust().certificate_key_file(secured.certificates.file(Pem::Client));
    connect(localhost(port).tls(own)).await.unwrap();
    let other = secured.trust().certificate_key_file(secured.certificates.file(Pem::OtherAuthoritysClient));
    let error = refused(localhost(port).tls(other)).await;
    assert_eq!(error.labels, Labels::NONE, "{error}");
}
