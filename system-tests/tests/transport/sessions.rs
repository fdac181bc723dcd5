//! The messages that a client sends in the TLS handshake.

use tokio_rustls::rustls::version::{TLS12, TLS13};
use wharf_testbed::tls_front::ServedHandshake;

use super::*;

#[tokio::test]
async fn later_connections_of_an_endpoint_resume_its_sessions() {
    let certificates = Certificates::create().unwrap();
    for version in [&TLS13, &TLS12] {
        let server = embedded().await;
        let file = certificates.file(Pem::Server);
        let front = TlsFront::start(socket_address(&server), &file, version, None).await.unwrap();
        let relay = Relay::start(front.address()).await.unwrap();
        // One server behind two ports: the endpoints of one deployment share their sessions.
        let hosts = [front.address(), relay.address()].map(|address| format!("localhost:{}", address.port()));
        let options = Options::new(hosts.iter().map(String::as_str)).unwrap().tls(trust(&certificates));
        let endpoints = options.endpoints().unwrap();
        for endpoint in [&endpoints[0], &endpoints[0].clone(), &endpoints[1]] {
            let mut connection = endpoint.connect().await.unwrap();
            // In TLS 1.3 the server sends its tickets after the handshake. The client reads them with the first reply.
            connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
        }
        connect(localhost(front.address().port()).tls(trust(&certificates))).await.unwrap();
        let resumed: Vec<_> = front.handshakes().iter().map(|handshake| handshake.resumed).collect();
        assert_eq!(resumed, [false, true, true, false], "{version:?}");
    }
}

#[tokio::test]
async fn pool_resumes_sessions_too() {
    let certificates = Certificates::create().unwrap();
    let (_server, front) = front(&certificates, Pem::Server).await;
    let endpoint = localhost(front.address().port()).tls(trust(&certificates)).endpoint().unwrap();
    let pool = endpoint.pool().build().unwrap();
    pool.ready();
    let first = pool.check_out().await.unwrap();
    let _second = pool.check_out().await.unwrap();
    drop(first);
    let resumed: Vec<_> = front.handshakes().iter().map(|handshake| handshake.resumed).collect();
    assert_eq!(resumed, [false, true]);
    pool.close();
}

#[tokio::test]
async fn server_is_sent_its_name_but_not_its_address() {
    let certificates = Certificates::create().unwrap();
    let (_server, front) = front(&certificates, Pem::Server).await;
    connect(localhost(front.address().port()).tls(trust(&certificates))).await.unwrap();
    connect(options(front.address()).tls(trust(&certificates))).await.unwrap();
    let named = ServedHandshake { resumed: false, server_name: Some("localhost".to_owned()) };
    assert_eq!(front.handshakes(), [named, ServedHandshake { resumed: false, server_name: None }]);
}
