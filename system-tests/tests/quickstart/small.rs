//! The one-page examples.

use super::*;

#[tokio::test]
async fn ping_prints_a_readable_reply() {
    let server = EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap();
    let mut command = example("ping");
    command.env("MONGODB_URI", format!("mongodb://{}", server.address()));
    let output = run(command).await;
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("ok: 1\n", ""));
    assert!(output.status.success());
}

#[tokio::test]
async fn own_connections_survive_a_restart_of_their_server_and_are_closed() {
    let output = run(example("own_connections")).await;
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{stdout}\n{}", text(&output.stderr));
    let count = |event: &str| stdout.lines().filter(|line| line.split_whitespace().next() == Some(event)).count();
    assert_eq!(count("ConnectionCheckedOut"), 8, "{stdout}");
    assert_eq!((count("ConnectionCreated"), count("PoolClosed")), (count("ConnectionClosed"), 1), "{stdout}");
    // While a check-out is waiting, the pool may abort the reset of a connection and close the connection.
    assert!((2..=10).contains(&count("ConnectionCreated")), "{stdout}");
}
