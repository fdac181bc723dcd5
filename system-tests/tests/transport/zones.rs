//! IPv6 addresses with a zone. The zone names the local interface that leads to the address.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

use super::*;

#[tokio::test]
async fn zone_selects_the_interface_and_is_not_part_of_the_certificates_name() {
    let certificates = Certificates::create().unwrap();
    let (_server, front) = front(&certificates, Pem::Server).await;
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = front.address();
    let passing_on = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut server = TcpStream::connect(target).await.unwrap();
        let _ = copy_bidirectional(&mut client, &mut server).await;
    });
    // The loopback address exists on every machine. Its zone must be a number. On Linux, the number is 1.
    let connection = connect(options(format!("[::1%1]:{port}")).tls(trust(&certificates))).await.unwrap();
    assert_eq!(connection.peer_address().unwrap().port(), port);
    passing_on.abort();
}

#[test]
fn zone_does_not_go_through_a_proxy() {
    let error = options("[fe80::1%eth0]").proxy(ProxyOptions::new("proxy")).endpoint().unwrap_err();
    assert_eq!((error.option, error.value.as_deref()), ("hosts", Some(r#""fe80::1%eth0""#)));
    assert!(error.problem.starts_with("must be addresses without a zone with proxyHost"), "{error}");
    assert!(options("[fe80::1]").proxy(ProxyOptions::new("proxy")).endpoint().is_ok());
}
