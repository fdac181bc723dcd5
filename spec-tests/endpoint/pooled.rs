//! Commands on connections of a pool.

use tokio::sync::watch;
use wharf::{Clear, Connection, ConnectionClosedReason, OperationError, Pool, PoolEvent};

use super::*;

/// A ready pool of the server, and the reason for which a connection was closed last.
fn pool(server: &EmbeddedServer) -> (Pool<Endpoint>, watch::Receiver<Option<ConnectionClosedReason>>) {
    pool_of(endpoint(server))
}

fn pool_of(endpoint: Endpoint) -> (Pool<Endpoint>, watch::Receiver<Option<ConnectionClosedReason>>) {
    let (closed, reason) = watch::channel(None);
    let pool = endpoint
        .pool()
        .subscriber(move |event: &PoolEvent| {
            if let PoolEvent::ConnectionClosed { reason, .. } = event {
                closed.send_replace(Some(*reason));
            }
        })
        .build()
        .unwrap();
    pool.ready();
    (pool, reason)
}

async fn why_closed(mut reason: watch::Receiver<Option<ConnectionClosedReason>>) -> ConnectionClosedReason {
    tokio::time::timeout(AGES, reason.wait_for(Option::is_some)).await.unwrap().unwrap().unwrap()
}

/// Keeps the server from answering pings for longer than any test takes.
async fn block_ping(server: &EmbeddedServer) {
    let data = doc! { "failCommands": ["ping"], "blockConnection": true, "blockTimeMS": 600_000 };
    set_fail_point(server, "alwaysOn", data).await;
}

async fn ping(connection: &mut Connection<Endpoint>) -> Result<RawDocumentBuf, OperationError> {
    connection.run_command("admin", &rawdoc! { "ping": 1 }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_in_a_task_of_its_own() {
    let server = start().await;
    let (pool, _) = pool(&server);
    let tasks: Vec<_> = (0..20)
        .map(|id| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut connection = pool.check_out().await.unwrap();
                let find = rawdoc! { "find": COLLECTION, "filter": { "_id": id } };
                let reply = connection.run_command(DATABASE, &find).await.unwrap();
                reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().into_iter().count()
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), 1);
    }
    // A connection may still be on the way: whoever had it opened was served by another one sooner.
    let status = pool.status();
    assert_eq!((status.total, status.in_use), (status.available + status.pending, 0));
}

#[tokio::test]
async fn a_clear_with_interruption_ends_a_command_with_a_retryable_error() {
    let server = start().await;
    let (pool, reason) = pool(&server);
    block_ping(&server).await;
    let mut connection = pool.check_out().await.unwrap();
    let pinging = tokio::spawn(async move { ping(&mut connection).await });
    server.until(|counters| counters.commands("ping") == 1).await;
    pool.clear(Clear::new().interrupt_in_use_connections(true)).unwrap();
    let error = tokio::time::timeout(AGES, pinging).await.unwrap().unwrap().unwrap_err();
    let OperationError::Interrupted(cleared) = &error else { panic!("another error: {error}") };
    assert!(cleared.interrupted && error.is_retryable());
    assert_eq!(error.address(), server.address());
    why_closed(reason).await;
    assert_eq!(pool.status().total, 0);
}

#[tokio::test]
async fn a_dropped_command_closes_its_connection_if_its_reply_does_not_come() {
    let server = start().await;
    let options = options(&server).drain_timeout(Duration::from_millis(10));
    let (pool, reason) = pool_of(options.endpoint().unwrap());
    block_ping(&server).await;
    let mut connection = pool.check_out().await.unwrap();
    tokio::select! {
        outcome = ping(&mut connection) => panic!("answered: {outcome:?}"),
        _ = server.until(|counters| counters.commands("ping") == 1) => {}
    }
    assert!(connection.is_errored());
    let failure = ping(&mut connection).await.unwrap_err();
    assert!(matches!(failure, OperationError::Failed(CommandFailure::Closed { .. })), "{failure}");
    assert!(failure.is_retryable());
    drop(connection);
    assert_eq!(why_closed(reason).await, ConnectionClosedReason::Error);
    assert_eq!(pool.status().total, 0);
}

#[tokio::test]
async fn a_command_that_was_never_polled_leaves_the_connection_as_good_as_before() {
    let server = start().await;
    let (pool, _) = pool(&server);
    let mut connection = pool.check_out().await.unwrap();
    drop(ping(&mut connection));
    assert!(!connection.is_errored());
    ping(&mut connection).await.unwrap();
    drop(connection);
    assert_eq!(pool.status().available, 1);
}

#[tokio::test]
async fn a_refused_command_is_retryable_if_the_server_says_so() {
    let server = start().await;
    let (pool, _) = pool(&server);
    let mut connection = pool.check_out().await.unwrap();
    for (labels, retryable) in [(doc! {}, false), (doc! { "errorLabels": ["RetryableError"] }, true)] {
        let mut data = doc! { "failCommands": ["ping"], "errorCode": 462 };
        data.extend(labels);
        set_fail_point(&server, doc! { "times": 1 }, data).await;
        let error = ping(&mut connection).await.unwrap_err();
        assert!(matches!(&error, OperationError::Failed(CommandFailure::Command { .. })), "{error}");
        assert_eq!(error.is_retryable(), retryable, "{error}");
    }
    ping(&mut connection).await.unwrap();
}

#[tokio::test]
async fn a_network_failure_is_not_retryable_by_itself() {
    let server = start().await;
    let (pool, reason) = pool(&server);
    let mut connection = pool.check_out().await.unwrap();
    set_fail_point(&server, doc! { "times": 1 }, doc! { "failCommands": ["ping"], "closeConnection": true }).await;
    let error = ping(&mut connection).await.unwrap_err();
    assert!(!error.is_retryable());
    drop(connection);
    assert_eq!(why_closed(reason).await, ConnectionClosedReason::Error);
}
