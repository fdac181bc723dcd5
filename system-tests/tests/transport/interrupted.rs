//! Servers that close the connection or go silent at any point during its establishment.

use super::*;

/// A time limit that keeps the tests short but is long enough for a handshake.
const LIMIT: Duration = Duration::from_millis(300);

/// Cuts the connection after 0, 1, 2, … bytes, until the establishment succeeds.
async fn cut_everywhere(relay: &Relay, direction: Direction, options: &Options) {
    let endpoint = options.endpoint().unwrap();
    let mut stages = Vec::new();
    for bytes in 0.. {
        relay.cut_after(direction, bytes);
        match tokio::time::timeout(AGES, endpoint.connect()).await.expect("the attempt hangs after a cut") {
            Ok(_) => break,
            Err(error) => {
                assert_eq!(error.labels(), OVERLOADED, "{direction:?}, {bytes} bytes: {error}");
                cause::<io::Error>(&error);
                stages.push(error.stage());
            }
        }
    }
    assert!(stages[0] == Stage::Tls && *stages.last().unwrap() == Stage::Hello, "{stages:?}");
    // TLS comes first. The length of the handshake varies: the DER form of the server's ECDSA signature may be up to
    // three bytes shorter.
    let first_hello = stages.iter().position(|stage| *stage == Stage::Hello).unwrap();
    let rest = &stages[first_hello..];
    assert!(rest[rest.len().min(4)..].iter().all(|stage| *stage == Stage::Hello), "{stages:?}");
    relay.until(|relayed| relayed.open == 0).await;
}

#[tokio::test]
async fn mongod_that_closes_at_any_byte_may_be_overloaded() {
    let secured = Secured::shared();
    let relay = Relay::start(secured.mongod.address()).await.unwrap();
    let options = localhost(relay.address().port()).tls(secured.trust());
    cut_everywhere(&relay, Direction::ToClient, &options).await;
}

#[tokio::test]
async fn client_cut_off_at_any_byte_may_face_overload() {
    let secured = Secured::shared();
    let relay = Relay::start(secured.mongod.address()).await.unwrap();
    let options = localhost(relay.address().port()).tls(secured.trust());
    cut_everywhere(&relay, Direction::ToServer, &options).await;
}

#[tokio::test]
async fn silent_mongod_fails_at_the_connect_timeout() {
    let secured = Secured::shared();
    let relay = Relay::start(secured.mongod.address()).await.unwrap();
    let options = localhost(relay.address().port()).tls(secured.trust());
    connect(options.clone()).await.unwrap();
    let all = relay.until(|relayed| relayed.open == 0).await.to_client;
    for (direction, bytes, stage) in [
        (Direction::ToClient, 0, Stage::Tls),
        (Direction::ToClient, 3, Stage::Tls),
        (Direction::ToClient, 200, Stage::Tls),
        (Direction::ToServer, 0, Stage::Tls),
        (Direction::ToServer, 100, Stage::Tls),
        (Direction::ToClient, all - 400, Stage::Hello),
    ] {
        relay.hang_after(direction, bytes);
        let error = refused(options.clone().connect_timeout(LIMIT)).await;
        assert_refused(&error, stage, OVERLOADED);
        assert_eq!(cause::<ConnectTimeoutError>(&error), &ConnectTimeoutError::new("connectTimeoutMS", LIMIT));
        // The attempt leaves no connection behind.
        relay.until(|relayed| relayed.open == 0).await;
    }
}

#[tokio::test]
async fn dropped_attempt_closes_its_connection() {
    let secured = Secured::shared();
    let relay = Relay::start(secured.mongod.address()).await.unwrap();
    let endpoint = localhost(relay.address().port()).tls(secured.trust()).endpoint().unwrap();
    relay.hang_after(Direction::ToClient, 200);
    let attempt = tokio::spawn(async move { endpoint.connect().await.map(drop) });
    relay.until(|relayed| relayed.to_client == 200).await;
    attempt.abort();
    relay.until(|relayed| relayed.open == 0).await;
}

#[tokio::test]
async fn silent_plain_server_fails_at_the_connect_timeout() {
    let server = embedded().await;
    let relay = Relay::start(socket_address(&server)).await.unwrap();
    relay.hang_after(Direction::ToClient, 10);
    let error = refused(options(relay.address()).connect_timeout(LIMIT)).await;
    assert_refused(&error, Stage::Hello, OVERLOADED);
    relay.pass();
    connect(options(relay.address())).await.unwrap();
}
