//! Servers behind a SOCKS5 proxy.

use std::collections::HashMap;

use wharf_testbed::socks::SocksRequest;

use super::*;

const LIMIT: Duration = Duration::from_millis(100);
const NAME: &str = "db.invalid";

fn login() -> Option<(String, String)> {
    Some(("user".to_owned(), "secret".to_owned()))
}

/// Starts a proxy that knows `server` by a name that only the proxy can resolve.
pub(super) async fn proxy(
    server: SocketAddr,
    login: Option<(String, String)>,
    fault: Option<SocksFault>,
) -> SocksProxy {
    let names = HashMap::from([(NAME.to_owned(), server), ("localhost".to_owned(), server)]);
    SocksProxy::start(SocksOptions { login, names, fault, ..SocksOptions::default() }).await.unwrap()
}

pub(super) fn through(proxy: &SocksProxy) -> ProxyOptions {
    ProxyOptions::new("localhost").port(proxy.port())
}

#[tokio::test]
async fn proxy_is_sent_the_servers_name_unchanged() {
    let server = embedded().await;
    let proxy = proxy(socket_address(&server), None, None).await;
    let connection = connect(options(format!("{NAME}:4711")).proxy(through(&proxy))).await.unwrap();
    assert_eq!(connection.peer_address().unwrap().port(), proxy.port());
    assert_eq!(connection.address(), "db.invalid:4711");
    let request = SocksRequest { methods: vec![0], host: NAME.to_owned(), by_name: true, port: 4711 };
    assert_eq!(proxy.requests(), [request]);
}

#[tokio::test]
async fn proxy_is_sent_an_address_as_an_address() {
    let server = embedded().await;
    let proxy = proxy(socket_address(&server), None, None).await;
    connect(options(server.address()).proxy(through(&proxy))).await.unwrap();
    let requests = proxy.requests();
    assert_eq!((&*requests[0].host, requests[0].by_name), ("127.0.0.1", false));
}

#[tokio::test]
async fn login_is_offered_besides_no_authentication() {
    let server = embedded().await;
    let with_login = proxy(socket_address(&server), login(), None).await;
    connect(options(NAME).proxy(through(&with_login).login("user", "secret"))).await.unwrap();
    assert_eq!(with_login.requests()[0].methods, [0, 2]);
    // The client does not send a login to a proxy that does not ask for it.
    let without = proxy(socket_address(&server), None, None).await;
    connect(options(NAME).proxy(through(&without).login("user", "secret"))).await.unwrap();

    for login in [None, Some(("user", "wrong")), Some(("other", "secret"))] {
        let mut proxy = through(&with_login);
        if let Some((username, password)) = login {
            proxy = proxy.login(username, password);
        }
        let error = refused(options(NAME).proxy(proxy)).await;
        assert_refused(&error, Stage::Proxy, Labels::NONE);
        assert_eq!(cause::<ProxyError>(&error).proxy, format!("localhost:{}", with_login.port()));
        assert!(!error.to_string().contains("secret") && error.is_retryable(), "{error}");
    }
}

#[tokio::test]
async fn proxy_errors_say_nothing_about_the_server() {
    let server = embedded().await;
    let messages = [SocksMessage::Method, SocksMessage::Login, SocksMessage::Reply];
    let refusals = (1..=9).map(SocksFault::Refuse);
    let faults = messages.map(SocksFault::Close).into_iter().chain(messages.map(SocksFault::Garbage)).chain(refusals);
    for fault in faults {
        let proxy = proxy(socket_address(&server), login(), Some(fault)).await;
        let error = refused(options(NAME).proxy(through(&proxy).login("user", "secret"))).await;
        assert_refused(&error, Stage::Proxy, Labels::NONE);
        cause::<ProxyError>(&error);
        // The specification treats all these failures as network errors.
        assert!(error.is_retryable(), "{fault:?}: {error}");
    }
    assert_eq!(server.counters().connections_opened, 0);
}

#[tokio::test]
async fn proxys_refusal_is_shown_with_its_code_and_meaning() {
    let server = embedded().await;
    for (code, meaning) in [
        (1, "general SOCKS server failure"),
        (2, "connection not allowed by ruleset"),
        (3, "network unreachable"),
        (4, "host unreachable"),
        (5, "connection refused"),
        (6, "TTL expired"),
        (7, "command not supported"),
        (8, "address type not supported"),
        (9, "not a code of RFC 1928"),
        (255, "not a code of RFC 1928"),
    ] {
        for login in [None, login()] {
            let proxy = proxy(socket_address(&server), login.clone(), Some(SocksFault::Refuse(code))).await;
            let mut settings = through(&proxy);
            if let Some((username, password)) = login {
                settings = settings.login(username, password);
            }
            let error = refused(options(NAME).proxy(settings)).await;
            assert_eq!(cause::<ProxyError>(&error).reply, Some(code));
            assert!(error.to_string().ends_with(&format!("replied with code {code} ({meaning})")), "{error}");
        }
    }
    // A rejected login has no reply code.
    let proxy = proxy(socket_address(&server), login(), None).await;
    let error = refused(options(NAME).proxy(through(&proxy).login("user", "wrong"))).await;
    assert_eq!(cause::<ProxyError>(&error).reply, None);
}

#[tokio::test]
async fn silent_proxy_fails_at_the_connect_timeout() {
    let server = embedded().await;
    for message in [SocksMessage::Method, SocksMessage::Login, SocksMessage::Reply] {
        let proxy = proxy(socket_address(&server), login(), Some(SocksFault::Hang(message))).await;
        let options = options(NAME).proxy(through(&proxy).login("user", "secret")).connect_timeout(LIMIT);
        let error = refused(options).await;
        assert_refused(&error, Stage::Proxy, Labels::NONE);
        let ProxyError { source, .. } = cause(&error);
        assert_eq!(source.downcast_ref(), Some(&ConnectTimeoutError::new("connectTimeoutMS", LIMIT)));
        assert!(error.is_retryable());
    }
}

#[tokio::test]
async fn unreachable_proxy_says_nothing_about_the_server() {
    let server = embedded().await;
    let gone = embedded().await;
    let port = socket_address(&gone).port();
    gone.stop().await;
    let error = refused(options(server.address()).proxy(ProxyOptions::new("127.0.0.1").port(port))).await;
    assert_refused(&error, Stage::Proxy, Labels::NONE);
    assert!(error.is_retryable());
    let ProxyError { source, .. } = cause(&error);
    let ConnectError { attempts, .. } = source.downcast_ref().unwrap();
    assert_eq!(attempts[0].source.kind(), io::ErrorKind::ConnectionRefused);

    let error = refused(options(server.address()).proxy(ProxyOptions::new("nonexistent.invalid"))).await;
    assert_refused(&error, Stage::Proxy, Labels::NONE);
    assert!(error.is_retryable());
}

#[tokio::test]
async fn failures_behind_the_proxy_are_the_servers() {
    let server = embedded().await;
    server.faults().close_after_accept(true);
    let proxy = proxy(socket_address(&server), None, None).await;
    let error = refused(options(NAME).proxy(through(&proxy))).await;
    assert_refused(&error, Stage::Hello, OVERLOADED);
}

#[tokio::test]
async fn tls_goes_through_the_proxy_to_the_server() {
    let certificates = Certificates::create().unwrap();
    let (_server, front) = front(&certificates, Pem::Server).await;
    let proxy = proxy(front.address(), None, None).await;
    connect(localhost(1).tls(trust(&certificates)).proxy(through(&proxy))).await.unwrap();
    assert_eq!(front.handshakes()[0].server_name.as_deref(), Some("localhost"));
    let error = refused(options(NAME).tls(trust(&certificates)).proxy(through(&proxy))).await;
    assert_refused(&error, Stage::Tls, Labels::NONE);
    assert!(!error.is_retryable(), "a certificate for another name counts as retryable");
}
