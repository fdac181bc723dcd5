//! Opening connections: the handshake, and every way in which it can fail.

use super::*;

#[tokio::test]
async fn handshake_contains_what_the_specification_requires() {
    let server = start().await;
    let connection = options(&server).app_name("shop").endpoint().unwrap().connect().await.unwrap();

    let mut handshake = server.counters().last_handshake.unwrap();
    let client = handshake.remove("client").unwrap();
    let expected = doc! { "isMaster": 1, "helloOk": true, "backpressure": "2", "compression": [], "$db": "admin" };
    assert_eq!(handshake, expected);
    let client = client.as_document().unwrap();
    assert_eq!(client.get_document("application").unwrap(), &doc! { "name": "shop" });
    assert_eq!(client.get_document("driver").unwrap().get_str("name").unwrap(), "wharf");
    assert!(client.get_document("os").unwrap().contains_key("type"));

    let hello = connection.hello();
    assert_eq!((hello.min_wire_version, hello.max_wire_version), (0, 21));
    assert_eq!((hello.max_message_size, hello.max_document_size), (48_000_000, 16_777_216));
    assert_eq!((hello.hello_ok, hello.server_connection_id, hello.service_id), (true, Some(1), None));
    assert_eq!(*connection.address(), *server.address());
    assert_eq!(connection.peer_address().unwrap().to_string(), server.address());
    assert_ne!(connection.local_address(), connection.peer_address());
}

#[tokio::test]
async fn app_name_is_unset_by_default_and_limited_in_length() {
    let server = start().await;
    connect(&server).await;
    let handshake = server.counters().last_handshake.unwrap();
    assert!(!handshake.get_document("client").unwrap().contains_key("application"));

    assert!(options(&server).app_name("é".repeat(64)).endpoint().is_ok());
    let error = options(&server).app_name("é".repeat(65)).endpoint().unwrap_err();
    assert_eq!(error.to_string(), "appName must be at most 128 bytes, got 130 bytes");
}

#[test]
fn invalid_address_is_refused() {
    let error = Endpoint::new("host:99999").unwrap_err();
    let text = "the server's address must be host or host:port, where port is 1 to 65535, got \"host:99999\"";
    assert_eq!(error.to_string(), text);
}

#[tokio::test]
async fn unanswered_hello_ends_with_the_connect_timeout() {
    let server = start().await;
    server.faults().hang_at_hello(true);
    let limit = Duration::from_millis(50);
    let connecting = options(&server).connect_timeout(limit).endpoint().unwrap();
    let error = tokio::time::timeout(AGES, connecting.connect()).await.unwrap().unwrap_err();
    assert_refused(&error, Stage::Hello, OVERLOADED);
    assert_eq!(cause::<ConnectTimeoutError>(&error), &ConnectTimeoutError::new("connectTimeoutMS", limit));
    assert!(error.is_timeout());
    // The attempt leaves no connection behind.
    server.until(|counters| counters.connections_opened == 1 && counters.connections_open == 0).await;
}

#[tokio::test]
async fn hello_without_a_limit_may_take_any_time() {
    let server = start().await;
    let data = doc! { "failCommands": ["isMaster"], "blockConnection": true, "blockTimeMS": 20 };
    set_fail_point(&server, "alwaysOn", data).await;
    assert!(options(&server).connect_timeout(Duration::ZERO).endpoint().unwrap().connect().await.is_ok());
    let error =
        options(&server).connect_timeout(Duration::from_millis(1)).endpoint().unwrap().connect().await.unwrap_err();
    assert_refused(&error, error.stage(), OVERLOADED);
}

#[tokio::test]
async fn closed_port_counts_as_overload() {
    let server = start().await;
    let endpoint = endpoint(&server);
    server.stop().await;
    let error = endpoint.connect().await.unwrap_err();
    assert_refused(&error, Stage::Connect, OVERLOADED);
    let ConnectError { attempts, timeout, .. } = cause(&error);
    let attempts: Vec<_> = attempts.iter().map(|attempt| (&*attempt.peer, attempt.source.kind())).collect();
    assert_eq!(attempts, [(endpoint.address(), io::ErrorKind::ConnectionRefused)]);
    assert_eq!(*timeout, None);
}

#[tokio::test]
async fn unresolved_name_says_nothing_about_the_server() {
    let endpoint = Endpoint::new("nonexistent.invalid").unwrap();
    let error = tokio::time::timeout(AGES, endpoint.connect()).await.unwrap().unwrap_err();
    assert_refused(&error, Stage::Resolve, Labels::NONE);
}

#[tokio::test]
async fn server_that_closes_at_once_counts_as_overloaded() {
    let server = start().await;
    server.faults().close_after_accept(true);
    let error = endpoint(&server).connect().await.unwrap_err();
    assert!(matches!(error.stage(), Stage::Connect | Stage::Hello));
    assert_refused(&error, error.stage(), OVERLOADED);
}

#[tokio::test]
async fn hello_cut_at_any_byte_is_a_network_error() {
    let server = start().await;
    for bytes in 0.. {
        server.faults().cut_replies_after(Some(bytes));
        match tokio::time::timeout(AGES, endpoint(&server).connect()).await.unwrap() {
            Err(error) => {
                assert_refused(&error, Stage::Hello, OVERLOADED);
                cause::<io::Error>(&error);
            }
            Ok(connection) => {
                let reply = connection.hello().document.as_bytes().len();
                assert_eq!(bytes, 16 + 4 + 1 + reply, "the connection was established before the whole reply was read");
                break;
            }
        }
    }
    server.until(|counters| counters.connections_open == 0).await;
}

#[tokio::test]
async fn refused_hello_has_the_labels_from_the_server() {
    let server = start().await;
    let data = doc! { "failCommands": ["isMaster"], "errorCode": 91 };
    set_fail_point(&server, doc! { "times": 1 }, data).await;
    let error = endpoint(&server).connect().await.unwrap_err();
    assert_refused(&error, Stage::Hello, Labels::NONE);
    let ServerError { code, code_name, .. } = cause(&error);
    assert_eq!((*code, &**code_name), (91, "ShutdownInProgress"));

    let data = doc! { "failCommands": ["isMaster"], "errorCode": 462, "errorLabels": ["SystemOverloadedError"] };
    set_fail_point(&server, doc! { "times": 1 }, data).await;
    let error = endpoint(&server).connect().await.unwrap_err();
    assert_refused(&error, Stage::Hello, Labels::SYSTEM_OVERLOADED);
}

#[tokio::test]
async fn fail_point_can_be_limited_to_one_application() {
    let server = start().await;
    let data = doc! { "failCommands": ["isMaster"], "closeConnection": true, "appName": "shop" };
    set_fail_point(&server, "alwaysOn", data).await;
    assert!(options(&server).app_name("other").endpoint().unwrap().connect().await.is_ok());
    let error = options(&server).app_name("shop").endpoint().unwrap().connect().await.unwrap_err();
    assert_refused(&error, Stage::Hello, OVERLOADED);
    set_fail_point(&server, "off", doc! {}).await;
    assert!(options(&server).app_name("shop").endpoint().unwrap().connect().await.is_ok());
}

#[tokio::test]
async fn server_without_a_common_wire_version_is_refused() {
    for (min_wire_version, max_wire_version) in [(0, 7), (26, 30)] {
        let options = EmbeddedOptions { min_wire_version, max_wire_version, ..EmbeddedOptions::default() };
        let server = EmbeddedServer::start(options).await.unwrap();
        let error = endpoint(&server).connect().await.unwrap_err();
        assert_refused(&error, Stage::Hello, Labels::NONE);
        assert!(cause::<IncompatibleServerError>(&error).to_string().contains(&server.address()));
    }
}
