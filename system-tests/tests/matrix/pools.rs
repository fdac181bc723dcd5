//! Components that work in a pool, and credentials and certificates that a client or a server refuses.

use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error};
use wharf_testbed::embedded::{EmbeddedOptions, EmbeddedServer};
use wharf_testbed::scripted::{Answer, Script, ScriptedServer, name};
use wharf_testbed::tls_front::TlsFront;

use super::*;

#[tokio::test]
async fn each_mechanism_authenticates_users_over_tls() {
    let secured = Secured::shared().await;
    assert_eq!(use_pool(secured.options()).await, None);
    for mechanism in [None, Some(Mechanism::ScramSha1), Some(Mechanism::ScramSha256)] {
        let credential = mechanism.map_or(user(), |mechanism| user().mechanism(mechanism));
        assert_eq!(use_pool(secured.options().credential(credential)).await.as_deref(), Some("app"));
    }
}

#[tokio::test]
async fn each_compressor_is_used_over_tls_after_authentication() {
    let secured = Secured::shared().await;
    let root = secured.root().await;
    for (compressor, name) in
        [(Compressor::Snappy, "snappy"), (Compressor::Zlib { level: -1 }, "zlib"), (Compressor::Zstd, "zstd")]
    {
        let received = async || {
            let status = run(&root, "admin", doc! { "serverStatus": 1 }).await.unwrap();
            let compression = status.get_document("network").unwrap().get_document("compression").unwrap();
            let bytes = compression.get_document(name).unwrap().get_document("decompressor").unwrap();
            let bytes = bytes.get("bytesOut").unwrap().unwrap();
            bytes.as_i64().or_else(|| bytes.as_i32().map(i64::from)).unwrap()
        };
        let before = received().await;
        assert_eq!(use_pool(secured.as_user().compressors([compressor])).await.as_deref(), Some("app"));
        assert!(received().await - before > 9 * 1_000, "{name}: the nine pings did not arrive compressed");
    }
}

#[tokio::test]
async fn required_client_certificate_also_authenticates() {
    let secured = Secured::start(true).await;
    let with = |pem| secured.trust().certificate_key_file(secured.certificates.file(pem));
    assert_eq!(
        use_pool(secured.options().tls(with(Pem::Client)).credential(certified())).await.as_deref(),
        Some(CLIENT)
    );
    let both = secured.as_user().tls(with(Pem::Client)).compressors([Compressor::Zstd]);
    assert_eq!(use_pool(both).await.as_deref(), Some("app"));

    // The server closes without an alert, as an overloaded server does.
    for tls in [with(Pem::OtherAuthoritysClient), with(Pem::ExpiredClient)] {
        assert_refused(secured.options().tls(tls).credential(certified()), Stage::Hello, OVERLOADED).await;
    }
    assert_refused(secured.as_user().tls(secured.trust()), Stage::Hello, OVERLOADED).await;
    // A server's certificate is accepted as a client's, but its subject is not a user.
    let unknown = secured.options().tls(with(Pem::Server)).credential(certified());
    let error = assert_refused(unknown, Stage::Authenticate, Labels::NONE).await;
    let failed: &AuthenticationError = cause(&error);
    assert!(failed.server_error().is_some(), "{error}");
    assert_eq!(failed.mechanism, Mechanism::MongoDbX509);
}

#[tokio::test]
async fn pool_works_over_a_unix_socket() {
    let secured = Secured::shared().await;
    let socket = secured.mongod.socket(secured.folder.path()).display().to_string();
    let options = |tls: TlsOptions| {
        let tls = tls.allow_invalid_hostnames(true);
        Options::new([&*socket]).unwrap().tls(tls).compressors([Compressor::Zstd])
    };
    assert_eq!(use_pool(options(secured.trust()).credential(user())).await.as_deref(), Some("app"));
    let wrong = options(secured.trust()).credential(Credential::new("app", "wrong"));
    assert_refused(wrong, Stage::Authenticate, Labels::NONE).await;
    let other = TlsOptions::default().ca_file(secured.certificates.file(Pem::OtherAuthority));
    assert_refused(options(other).credential(user()), Stage::Tls, Labels::NONE).await;
}

#[tokio::test]
async fn wrong_user_or_wrong_authority_is_not_overload() {
    let secured = Secured::shared().await;
    // The subject of a server's certificate is not a user.
    let unknown = secured.trust().certificate_key_file(secured.certificates.file(Pem::Server));
    for credential in [
        Credential::new("app", "wrong"),
        Credential::new("nobody", "secret"),
        Credential::new("app", "secret").source("test"),
        certified(),
    ] {
        let options = secured.options().tls(unknown.clone()).credential(credential);
        let error = assert_refused(options, Stage::Authenticate, Labels::NONE).await;
        assert!(cause::<AuthenticationError>(&error).server_error().is_some(), "{error}");
    }
    let other = TlsOptions::default().ca_file(secured.certificates.file(Pem::OtherAuthority));
    assert_refused(secured.as_user().tls(other), Stage::Tls, Labels::NONE).await;
}

/// Returns the TLS error behind a failure.
fn objection(error: &EstablishError) -> &Error {
    let source = match error.cause().downcast_ref::<wharf::unstable::endpoint::TlsError>() {
        Some(hinted) => std::error::Error::source(hinted).and_then(|source| source.downcast_ref()),
        None => cause::<std::io::Error>(error).get_ref().and_then(|source| source.downcast_ref()),
    };
    source.unwrap_or_else(|| panic!("not a TLS error: {error:?}"))
}

#[tokio::test]
async fn invalid_server_certificate_is_not_overload() {
    let certificates = Certificates::create().unwrap();
    let server = EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap();
    let address = server.address().parse().unwrap();
    let trust = TlsOptions::default().ca_file(certificates.file(Pem::Authority));
    for version in [&TLS12, &TLS13] {
        for pem in [Pem::ExpiredServer, Pem::OtherNameServer, Pem::OtherAuthoritysServer] {
            let front = TlsFront::start(address, &certificates.file(pem), version, None).await.unwrap();
            let options = localhost(front.address().port()).tls(trust.clone());
            let error = assert_refused(options, Stage::Tls, Labels::NONE).await;
            let Error::InvalidCertificate(why) = objection(&error) else { panic!("{error}") };
            let expected = match pem {
                Pem::ExpiredServer => matches!(why, CertificateError::ExpiredContext { .. }),
                Pem::OtherNameServer => matches!(why, CertificateError::NotValidForNameContext { .. }),
                _ => *why == CertificateError::UnknownIssuer,
            };
            assert!(expected, "{pem:?}: {error}");
        }
    }
}

#[tokio::test]
async fn rejected_client_certificate_is_not_overload() {
    let certificates = Certificates::create().unwrap();
    let server = EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap();
    let authority = certificates.file(Pem::Authority);
    for (version, stage) in [(&TLS12, Stage::Tls), (&TLS13, Stage::Hello)] {
        let file = certificates.file(Pem::Server);
        let address = server.address().parse().unwrap();
        let front = TlsFront::start(address, &file, version, Some(&authority)).await.unwrap();
        for (pem, reason) in [
            (Pem::OtherAuthoritysClient, AlertDescription::UnknownCA),
            (Pem::ExpiredClient, AlertDescription::CertificateExpired),
        ] {
            let tls = TlsOptions::default().ca_file(&authority).certificate_key_file(certificates.file(pem));
            let options = localhost(front.address().port()).tls(tls);
            // In TLS 1.3, the client learns of the rejection only after the handshake.
            let error = assert_refused(options, stage, Labels::NONE).await;
            assert_eq!(*objection(&error), Error::AlertReceived(reason), "{pem:?} {version:?}");
        }
    }
}

#[tokio::test]
async fn connections_with_a_client_certificate_resume_sessions() {
    let certificates = Certificates::create().unwrap();
    let script = || -> Script {
        Box::new(|command| match &*name(command) {
            "isMaster" => Answer::Reply(doc! {
                "ok": 1, "maxWireVersion": 21, "minWireVersion": 0,
                "speculativeAuthenticate": { "dbname": "$external", "user": CLIENT },
            }),
            _ => Answer::Reply(doc! { "ok": 1 }),
        })
    };
    let authority = certificates.file(Pem::Authority);
    for version in [&TLS12, &TLS13] {
        let server = ScriptedServer::start(script).await.unwrap();
        let address = server.address().parse().unwrap();
        let file = certificates.file(Pem::Server);
        let front = TlsFront::start(address, &file, version, Some(&authority)).await.unwrap();
        let tls = TlsOptions::default().ca_file(&authority).certificate_key_file(certificates.file(Pem::Client));
        let pool = pool_of(localhost(front.address().port()).tls(tls).credential(certified()));
        let mut held = Vec::new();
        for _ in 0..4 {
            let mut connection = pool.check_out().await.unwrap();
            connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
            held.push(connection);
        }
        let resumed: Vec<_> = front.handshakes().iter().map(|handshake| handshake.resumed).collect();
        assert_eq!(resumed, [false, true, true, true], "{version:?}");
        let names = server.command_names();
        assert_eq!(names.iter().filter(|name| *name == "isMaster").count(), 4);
        assert_eq!(names.iter().filter(|name| *name == "ping").count(), 4);
        assert_eq!(names.len(), 8, "authentication was not part of hello: {names:?}");
    }
}
