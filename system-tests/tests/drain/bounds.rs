//! How drains end if the reply never arrives, never completes, or is invalid.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bson::{RawDocumentBuf, doc, rawdoc};
use tokio::sync::mpsc;
use wharf::{Clear, ConnectionClosedReason, Endpoint, Options, Pool, PoolEvent};
use wharf_testbed::embedded::{COLLECTION, DATABASE, EmbeddedOptions, EmbeddedServer};

use super::AGES;

/// Returns a ready pool with these options, and the reasons why its connections are closed.
fn pool(server: &EmbeddedServer, set: impl FnOnce(Options) -> Options) -> (Pool<Endpoint>, Ends) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let sender = Arc::new(Mutex::new(sender));
    let options = set(Options::new([server.address().as_str()]).unwrap());
    let builder = options.endpoint().unwrap().pool().subscriber(move |event: &PoolEvent| {
        if let PoolEvent::ConnectionClosed { reason, .. } = event {
            let _ = sender.lock().unwrap().send(*reason);
        }
    });
    let pool = builder.build().unwrap();
    pool.ready();
    (pool, receiver)
}

type Ends = mpsc::UnboundedReceiver<ConnectionClosedReason>;

async fn next(ends: &mut Ends) -> ConnectionClosedReason {
    tokio::time::timeout(AGES, ends.recv()).await.unwrap().unwrap()
}

async fn start(documents: u32) -> EmbeddedServer {
    EmbeddedServer::start(EmbeddedOptions { documents, ..EmbeddedOptions::default() }).await.unwrap()
}

/// Makes the server delay commands with this name.
async fn block(server: &EmbeddedServer, command: &str, time: Duration) {
    let data = doc! {
        "failCommands": [command], "blockConnection": true, "blockTimeMS": i64::try_from(time.as_millis()).unwrap(),
    };
    let command = doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data };
    let mut connection = Endpoint::new(&server.address()).unwrap().connect().await.unwrap();
    connection.run_command("admin", &RawDocumentBuf::try_from(command).unwrap()).await.unwrap();
}

/// Cancels a command once the server has received it.
async fn cancel(pool: &Pool<Endpoint>, server: &EmbeddedServer, command: RawDocumentBuf, name: &str) {
    let received = server.counters().commands(name);
    let mut connection = pool.check_out().await.unwrap();
    tokio::select! {
        outcome = connection.run_command(DATABASE, &command) => panic!("answered: {outcome:?}"),
        _ = server.until(|counters| counters.commands(name) > received) => {}
    }
}

/// Waits until no connection is in use.
async fn settled(pool: &Pool<Endpoint>) {
    let settled = async {
        while pool.status().in_use > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(AGES, settled).await.unwrap();
}

#[tokio::test]
async fn cancelled_command_costs_no_connection() {
    let server = start(100).await;
    let (pool, mut ends) = pool(&server, |options| options);
    block(&server, "ping", Duration::from_millis(20)).await;
    for _ in 0..5 {
        cancel(&pool, &server, rawdoc! { "ping": 1 }, "ping").await;
        assert_eq!(pool.status().in_use, 1, "the connection does not count as in use while it is drained");
        settled(&pool).await;
        assert_eq!((pool.status().total, pool.status().available), (1, 1));
    }
    // One connection from the pool, and one for the fail point.
    assert_eq!(server.counters().connections_opened, 2);
    pool.run_command("admin", &rawdoc! { "buildInfo": 1 }).await.unwrap();
    assert!(ends.try_recv().is_err());
}

#[tokio::test]
async fn drain_of_a_reply_that_never_comes_ends_at_its_timeout() {
    let server = start(100).await;
    let (pool, mut ends) = pool(&server, |options| options.drain_timeout(Duration::from_millis(50)));
    block(&server, "ping", Duration::from_secs(600)).await;
    let begun = Instant::now();
    cancel(&pool, &server, rawdoc! { "ping": 1 }, "ping").await;
    assert_eq!(next(&mut ends).await, ConnectionClosedReason::Error);
    assert!(begun.elapsed() >= Duration::from_millis(50));
    assert_eq!(pool.status().total, 0);
}

#[tokio::test]
async fn drain_timeout_of_zero_drains_nothing() {
    let server = start(100).await;
    let (pool, mut ends) = pool(&server, |options| options.drain_timeout(Duration::ZERO));
    block(&server, "ping", Duration::from_millis(20)).await;
    cancel(&pool, &server, rawdoc! { "ping": 1 }, "ping").await;
    assert_eq!(pool.status().total, 0, "the check-in did not close the connection itself");
    assert_eq!(next(&mut ends).await, ConnectionClosedReason::Error);
}

#[tokio::test]
async fn reply_larger_than_the_limit_is_not_read() {
    let find = rawdoc! { "find": COLLECTION, "batchSize": 20_000 };
    let server = start(20_000).await;
    for (limit, total) in [(100_000, 0), (10_000_000, 1)] {
        let (pool, _ends) = pool(&server, |options| options.drain_limit(limit));
        block(&server, "find", Duration::from_millis(20)).await;
        cancel(&pool, &server, find.clone(), "find").await;
        settled(&pool).await;
        assert_eq!(pool.status().total, total, "{limit}");
    }
}

#[tokio::test]
async fn invalid_reply_closes_the_connection() {
    let server = start(100).await;
    let (pool, mut ends) = pool(&server, |options| options);
    block(&server, "ping", Duration::from_millis(20)).await;
    // The fault must not apply to the handshake.
    let mut connection = pool.check_out().await.unwrap();
    server.faults().response_to(Some(-7));
    let ping = rawdoc! { "ping": 1 };
    tokio::select! {
        outcome = connection.run_command("admin", &ping) => panic!("answered: {outcome:?}"),
        _ = server.until(|counters| counters.commands("ping") == 1) => {}
    }
    drop(connection);
    assert_eq!(next(&mut ends).await, ConnectionClosedReason::Error);
}

#[tokio::test]
async fn clear_ends_the_drain() {
    let server = start(100).await;
    let (pool, mut ends) = pool(&server, |options| options.drain_timeout(Duration::from_secs(600)));
    block(&server, "ping", Duration::from_secs(600)).await;
    cancel(&pool, &server, rawdoc! { "ping": 1 }, "ping").await;
    pool.clear(Clear::new()).unwrap();
    assert_eq!(next(&mut ends).await, ConnectionClosedReason::Stale);
}

#[tokio::test]
async fn held_connection_is_drained_on_request() {
    let server = start(100).await;
    let mut connection = Endpoint::new(&server.address()).unwrap().connect().await.unwrap();
    block(&server, "ping", Duration::from_millis(20)).await;
    let ping = rawdoc! { "ping": 1 };
    tokio::select! {
        outcome = connection.run_command("admin", &ping) => panic!("answered: {outcome:?}"),
        _ = server.until(|counters| counters.commands("ping") == 1) => {}
    }
    assert!(!connection.condition().is_reusable());
    assert!(connection.drain().await);
    connection.run_command("admin", &rawdoc! { "buildInfo": 1 }).await.unwrap();
}
