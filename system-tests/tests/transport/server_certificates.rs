//! Which servers a client accepts, depending on their certificates.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::rustls::{CertificateError, Error};
use wharf::unstable::endpoint::TlsError;

use super::*;

/// Asserts that a certificate with one flaw is refused because of this flaw, and accepted only with the options that
/// ignore it.
async fn assert_modes(certificates: &Certificates, port: u16, refusal: &dyn Fn(&CertificateError) -> bool, name: bool) {
    let trust = trust(certificates);
    for (tls, accepted) in [
        (trust.clone(), false),
        (trust.clone().allow_invalid_hostnames(true), name),
        (trust.clone().allow_invalid_certificates(true), true),
        (TlsOptions::default().allow_invalid_certificates(true), true),
    ] {
        let options = localhost(port).tls(tls.clone());
        if accepted {
            connect(options).await.unwrap();
            continue;
        }
        let error = refused(options).await;
        assert_refused(&error, Stage::Tls, Labels::NONE);
        assert!(matches!(tls_error(&error), Error::InvalidCertificate(why) if refusal(why)), "{tls:?}: {error}");
    }
}

#[tokio::test]
async fn mongod_is_accepted_by_its_name_and_its_addresses() {
    let secured = Secured::shared();
    let port = secured.mongod.port();
    for host in ["localhost", "127.0.0.1"] {
        let connection = connect(options(format!("{host}:{port}")).tls(secured.trust())).await.unwrap();
        assert_eq!(connection.peer_address(), Some(secured.mongod.address()));
    }
    // One matching authority suffices. Without a name check, any name is accepted.
    let several = TlsOptions::default().ca_file(secured.certificates.file(Pem::BothAuthorities));
    connect(localhost(port).tls(several)).await.unwrap();
    connect(localhost(port).tls(secured.trust().allow_invalid_hostnames(true))).await.unwrap();
}

#[tokio::test]
async fn mongod_of_another_authority_is_refused() {
    let secured = Secured::shared();
    let other = TlsOptions::default().ca_file(secured.certificates.file(Pem::OtherAuthority));
    for tls in [other.clone(), other.clone().allow_invalid_hostnames(true)] {
        let error = refused(localhost(secured.mongod.port()).tls(tls)).await;
        assert_refused(&error, Stage::Tls, Labels::NONE);
        let unknown = CertificateError::UnknownIssuer;
        assert!(matches!(tls_error(&error), Error::InvalidCertificate(why) if *why == unknown), "{error}");
    }
    connect(localhost(secured.mongod.port()).tls(other.allow_invalid_certificates(true))).await.unwrap();
}

#[tokio::test]
async fn server_of_another_authority_is_refused() {
    let certificates = Certificates::create().unwrap();
    let (_server, front) = front(&certificates, Pem::OtherAuthoritysServer).await;
    let unknown = |why: &CertificateError| *why == CertificateError::UnknownIssuer;
    assert_modes(&certificates, front.address().port(), &unknown, false).await;
}

#[tokio::test]
async fn expired_certificate_is_refused() {
    let certificates = Certificates::create().unwrap();
    let (_server, front) = front(&certificates, Pem::ExpiredServer).await;
    let expired = |why: &CertificateError| matches!(why, CertificateError::ExpiredContext { .. });
    assert_modes(&certificates, front.address().port(), &expired, false).await;
}

#[tokio::test]
async fn certificate_for_another_name_is_refused() {
    let certificates = Certificates::create().unwrap();
    let (_server, front) = front(&certificates, Pem::OtherNameServer).await;
    let other_name = |why: &CertificateError| matches!(why, CertificateError::NotValidForNameContext { .. });
    assert_modes(&certificates, front.address().port(), &other_name, true).await;
    let error = refused(options(front.address()).tls(trust(&certificates))).await;
    assert!(matches!(tls_error(&error), Error::InvalidCertificate(why) if other_name(why)), "{error}");
}

/// Tests every combination of the options that relax a check with every certificate flaw. A certificate is accepted
/// only if the options say so, and nothing is sent to a server that is refused.
#[tokio::test]
async fn only_what_the_options_relax_is_accepted() {
    use tokio_rustls::rustls::version::{TLS12, TLS13};
    let certificates = Certificates::create().unwrap();
    let flaws = [
        // The certificate, whether its chain and times are valid, and whether its name is valid.
        (Pem::Server, true, true),
        (Pem::OtherNameServer, true, false),
        (Pem::ExpiredServer, false, true),
        (Pem::OtherAuthoritysServer, false, true),
    ];
    for (version, (pem, chain, name)) in [&TLS12, &TLS13].into_iter().flat_map(|one| flaws.map(|flaw| (one, flaw))) {
        let server = embedded().await;
        let file = certificates.file(pem);
        let front = TlsFront::start(socket_address(&server), &file, version, None).await.unwrap();
        let mut expected = 0;
        for flags in 0..16 {
            let is_set = |flag: u32| flags & (1 << flag) != 0;
            let tls = trust(&certificates)
                .allow_invalid_certificates(is_set(0))
                .allow_invalid_hostnames(is_set(1))
                .disable_ocsp_endpoint_check(is_set(2))
                .disable_certificate_revocation_check(is_set(3));
            let accepted = is_set(0) || chain && (name || is_set(1));
            for host in ["localhost", "127.0.0.1"] {
                let credential = Credential::new("user", "pencil").mechanism(Mechanism::Plain);
                let options = options(format!("{host}:{}", front.address().port())).tls(tls.clone());
                let options = if accepted { options } else { options.credential(credential) };
                match connect(options).await {
                    Ok(_) => assert!(accepted, "{version:?} {pem:?} {tls:?}"),
                    Err(error) => {
                        assert!(!accepted, "{version:?} {pem:?} {tls:?}: {error}");
                        assert_refused(&error, Stage::Tls, Labels::NONE);
                        assert!(matches!(tls_error(&error), Error::InvalidCertificate(_)), "{error}");
                    }
                }
                expected += u64::from(accepted);
            }
        }
        // Anything sent after the handshake would have opened a connection to the server.
        assert_eq!(server.counters().connections_opened, expected, "{version:?} {pem:?}");
        let names = front.handshakes().into_iter().map(|handshake| handshake.server_name);
        let names: std::collections::HashSet<_> = names.collect();
        // An address is not sent as a server name (RFC 6066, section 3).
        assert!(names.iter().flatten().all(|name| name == "localhost"), "{names:?}");
        assert!(expected == 0 || names.len() == 2, "{names:?}");
    }
}

/// A server without TLS receives only the start of a handshake: there is no second attempt without TLS.
#[tokio::test]
async fn server_that_refuses_tls_gets_no_attempt_without_tls() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (received, mut all) = tokio::sync::mpsc::unbounded_channel();
    let serving = tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            client.read_buf(&mut bytes).await.unwrap();
            received.send(bytes).unwrap();
        }
    });
    let credential = Credential::new("user", "pencil").mechanism(Mechanism::Plain);
    let tls = TlsOptions::default().insecure(true);
    let error = refused(localhost(port).tls(tls).credential(credential)).await;
    // A close in the middle of a handshake may be due to overload.
    assert_refused(&error, Stage::Tls, OVERLOADED);
    serving.abort();
    assert!(serving.await.unwrap_err().is_cancelled());
    let first = all.recv().await.unwrap();
    // A TLS handshake record (RFC 8446, section 5.1).
    assert_eq!(first[..2], [22, 3]);
    assert!(all.recv().await.is_none(), "the client opened a second connection");
}

#[tokio::test]
async fn intermediate_authorities_come_from_the_server() {
    let certificates = Certificates::create().unwrap();
    let (_server, front) = front(&certificates, Pem::ServerWithChain).await;
    connect(localhost(front.address().port()).tls(trust(&certificates))).await.unwrap();
}

#[tokio::test]
async fn answer_that_is_not_tls_is_refused_without_labels() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let answering = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        client.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        // The server closes the connection only after the client has read everything.
        while client.read(&mut [0; 1024]).await.is_ok_and(|length| length > 0) {}
    });
    let error = refused(options(address).tls(TlsOptions::default().allow_invalid_certificates(true))).await;
    assert_refused(&error, Stage::Tls, Labels::NONE);
    let TlsError::NotSpoken { source, .. } = cause(&error) else { panic!("{error}") };
    let source = source.get_ref().and_then(|source| source.downcast_ref());
    assert!(matches!(source, Some(Error::InvalidMessage(_))), "{error}");
    answering.await.unwrap();
}

#[tokio::test]
async fn server_that_requires_tls_closes_plain_connections() {
    let secured = Secured::shared();
    let error = refused(localhost(secured.mongod.port())).await;
    assert_refused(&error, Stage::Hello, OVERLOADED);
    assert!(error.to_string().ends_with("the server may require TLS: set tls=true"), "{error}");
}

/// Tells the child process of the test below which port to connect to.
const CHILD: &str = "WHARF_TRANSPORT_TEST_CHILD";

/// A process reads the system's authorities only once, so this test runs in a child process with other authorities.
#[tokio::test]
async fn systems_authorities_are_trusted_by_default() {
    if let Ok(port) = std::env::var(CHILD) {
        let port = port.parse().unwrap();
        // Two concurrent attempts: one reads the authorities, and the other waits until they are read.
        let (first, second) = tokio::join!(
            connect(localhost(port).tls(TlsOptions::default())),
            connect(localhost(port).tls(TlsOptions::default()))
        );
        first.and(second).unwrap_or_else(|error| panic!("{}", error.cause()));
        return;
    }
    let certificates = Certificates::create().unwrap();
    let (_server, front) = front(&certificates, Pem::Server).await;
    let run = async |authority: std::path::PathBuf| {
        tokio::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "server_certificates::systems_authorities_are_trusted_by_default", "--nocapture"])
            .env(CHILD, front.address().port().to_string())
            .env("SSL_CERT_FILE", authority)
            .env_remove("SSL_CERT_DIR")
            .output()
            .await
            .unwrap()
    };
    let trusting = run(certificates.file(Pem::BothAuthorities)).await;
    assert!(trusting.status.success(), "{}", String::from_utf8_lossy(&trusting.stderr));
    let other = run(certificates.file(Pem::OtherAuthority)).await;
    assert!(String::from_utf8_lossy(&other.stderr).contains("UnknownIssuer"), "{other:?}");
    let none = run(certificates.folder().join("none.pem")).await;
    let message = "the system has no certificate authorities";
    assert!(String::from_utf8_lossy(&none.stderr).contains(message), "{none:?}");
}
