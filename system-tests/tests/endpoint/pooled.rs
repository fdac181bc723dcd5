//! Commands on a pool's connections.

use tokio::sync::watch;
use wharf::{Clear, Command, Connection, ConnectionClosedReason, OperationError, Pool, PoolEvent};

use super::*;

/// Returns a ready pool for the server, and the reason for the most recent close of a connection.
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

/// Stops the server from answering pings for longer than any test takes.
async fn block_ping(server: &EmbeddedServer) {
    let data = doc! { "failCommands": ["ping"], "blockConnection": true, "blockTimeMS": 600_000 };
    set_fail_point(server, "alwaysOn", data).await;
}

async fn ping(connection: &mut Connection<Endpoint>) -> Result<RawDocumentBuf, OperationError> {
    connection.run_command("admin", &rawdoc! { "ping": 1 }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn command_runs_in_a_task_of_its_own() {
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
    // A connection may still be pending: the check-out for which it was being opened may have been served with a
    // different connection.
    let status = pool.status();
    assert_eq!((status.total, status.in_use), (status.available + status.pending, 0));
}

#[tokio::test]
async fn holder_of_a_command_is_the_line_that_runs_it() {
    let server = start().await;
    let (pool, _) = pool(&server);
    pool.account_for_holders(true);
    block_ping(&server).await;
    let ping = rawdoc! { "ping": 1 };
    let limited = || Command::new("admin", &ping).timeout(Duration::from_secs(600));
    let here = line!() + 1;
    let mut runs = Box::pin(pool.run(Command::new("admin", &ping)));
    let mut runs_limited = Box::pin(pool.run(limited()));
    let mut runs_simply = Box::pin(pool.run_command("admin", &ping));
    let listed = async {
        while pool.holders().len() < 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = listed => {}
        outcome = &mut runs => panic!("{outcome:?}"),
        outcome = &mut runs_limited => panic!("{outcome:?}"),
        outcome = &mut runs_simply => panic!("{outcome:?}"),
    }
    let mut lines: Vec<_> = pool.holders().iter().map(|holder| holder.call_site.unwrap().line()).collect();
    lines.sort_unstable();
    assert_eq!(lines, [here, here + 1, here + 2]);
}

/// Returns a clear with a cause, which an interrupted command must not report as its own cause.
fn interruption() -> Clear {
    let cause = std::sync::Arc::new(io::Error::other("the monitor timed out"));
    Clear::new().interrupt_in_use_connections(true).because(cause)
}

#[tokio::test]
async fn interrupted_command_that_was_sent_is_not_retryable() {
    let server = start().await;
    for timeout in [None, Some(AGES)] {
        let (pool, reason) = pool(&server);
        block_ping(&server).await;
        let sent = server.counters().commands("ping");
        let mut connection = pool.check_out().await.unwrap();
        let pinging = tokio::spawn(async move {
            let ping = rawdoc! { "ping": 1 };
            let command = Command::new("admin", &ping);
            connection.run(timeout.map_or(command, |timeout| command.timeout(timeout))).await
        });
        server.until(|counters| counters.commands("ping") > sent).await;
        pool.clear(interruption()).unwrap();
        let error = tokio::time::timeout(AGES, pinging).await.unwrap().unwrap().unwrap_err();
        let OperationError::Interrupted(cleared) = &error else { panic!("unexpected error: {error}") };
        assert!(cleared.interrupted && cleared.sent && !error.is_retryable());
        assert!(cleared.cause.is_none() && error.source().is_none(), "{:?}", cleared.cause);
        assert_eq!(error.address(), server.address());
        assert!(error.to_string().ends_with("interrupted due to server monitor timeout"), "{error}");
        why_closed(reason).await;
        assert_eq!(pool.status().total, 0);
    }
}

/// Returns a connection that the pool interrupted while its owner ran no command.
async fn interrupted(pool: &Pool<Endpoint>) -> Connection<Endpoint> {
    let mut connection = pool.check_out().await.unwrap();
    interrupt(pool, &mut connection).await;
    connection
}

/// Makes the pool interrupt a connection whose owner is not running a command.
async fn interrupt(pool: &Pool<Endpoint>, connection: &mut Connection<Endpoint>) {
    pool.clear(interruption()).unwrap();
    let waiting = connection.interruptible(async |_| std::future::pending::<()>().await);
    tokio::time::timeout(AGES, waiting).await.unwrap().unwrap_err();
}

#[tokio::test]
async fn command_started_on_an_interrupted_connection_is_not_sent() {
    let server = start().await;
    let (pool, reason) = pool(&server);
    let mut connection = interrupted(&pool).await;
    let ping = rawdoc! { "ping": 1 };
    let command = Command::new("admin", &ping);
    let outcomes = [
        connection.run_command("admin", &ping).await.map(drop),
        connection.run(command).await.map(drop),
        connection.run(command.timeout(AGES)).await.map(drop),
        connection.send(command).await,
        connection.reply_to("admin", &ping).await.map(drop),
        connection.exhaust(command).unwrap().next().await.map(drop),
    ];
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        let OperationError::Interrupted(cleared) = &error else { panic!("unexpected error: {error}") };
        assert!(cleared.interrupted && !cleared.sent && error.is_retryable(), "{cleared:?}");
        assert!(cleared.cause.is_none(), "{:?}", cleared.cause);
    }
    drop(connection);
    assert_eq!(why_closed(reason).await, ConnectionClosedReason::Stale);
    // If a ping had been sent, the server would have executed it before this command.
    connect(&server).await.run_command("admin", &rawdoc! { "buildInfo": 1 }).await.unwrap();
    assert_eq!(server.counters().commands("ping"), 0);
}

#[tokio::test]
async fn command_after_an_interruption_is_not_sent_though_one_was_sent_before() {
    let server = start().await;
    let (pool, _) = pool(&server);
    block_ping(&server).await;
    let mut connection = pool.check_out().await.unwrap();
    tokio::select! {
        outcome = ping(&mut connection) => panic!("answered: {outcome:?}"),
        _ = server.until(|counters| counters.commands("ping") == 1) => {}
    }
    interrupt(&pool, &mut connection).await;
    let body = rawdoc! { "ping": 1 };
    let command = Command::new("admin", &body);
    for outcome in [connection.run(command.timeout(AGES)).await.map(drop), connection.send(command).await] {
        let error = outcome.unwrap_err();
        let OperationError::Interrupted(cleared) = &error else { panic!("unexpected error: {error}") };
        assert!(!cleared.sent && error.is_retryable(), "{cleared:?}");
    }
    assert_eq!(server.counters().commands("ping"), 1);
}

#[tokio::test]
async fn operation_on_an_interrupted_connection_does_not_start() {
    let server = start().await;
    let (pool, _) = pool(&server);
    let mut connection = interrupted(&pool).await;
    let mut has_begun = false;
    let cleared = connection.interruptible(async |_| has_begun = true).await.unwrap_err();
    assert!(cleared.interrupted && !cleared.sent && !has_begun);
}

#[tokio::test]
async fn interrupted_replies_report_that_their_command_was_sent() {
    let server = start().await;
    let (pool, _) = pool(&server);
    let mut connection = pool.check_out().await.unwrap();
    let hello = rawdoc! { "ping": 1 };
    block_ping(&server).await;
    let mut replies = connection.exhaust(Command::new("admin", &hello)).unwrap();
    tokio::select! {
        outcome = replies.next() => panic!("answered: {outcome:?}"),
        _ = server.until(|counters| counters.commands("ping") == 1) => {}
    }
    pool.clear(interruption()).unwrap();
    let error = tokio::time::timeout(AGES, replies.next()).await.unwrap().unwrap_err();
    let OperationError::Interrupted(cleared) = &error else { panic!("unexpected error: {error}") };
    assert!(cleared.sent && !error.is_retryable());
}

#[tokio::test]
async fn dropped_command_closes_its_connection_if_no_reply_comes() {
    let server = start().await;
    let options = options(&server).drain_timeout(Duration::from_millis(10));
    let (pool, reason) = pool_of(options.endpoint().unwrap());
    block_ping(&server).await;
    let mut connection = pool.check_out().await.unwrap();
    tokio::select! {
        outcome = ping(&mut connection) => panic!("answered: {outcome:?}"),
        _ = server.until(|counters| counters.commands("ping") == 1) => {}
    }
    assert!(!connection.condition().is_reusable());
    let failure = ping(&mut connection).await.unwrap_err();
    assert!(matches!(failure, OperationError::Command(CommandError::NotReusable { .. })), "{failure}");
    assert!(failure.is_retryable());
    drop(connection);
    assert_eq!(why_closed(reason).await, ConnectionClosedReason::Error);
    assert_eq!(pool.status().total, 0);
}

#[tokio::test]
async fn command_that_was_never_polled_leaves_the_connection_reusable() {
    let server = start().await;
    let (pool, _) = pool(&server);
    let mut connection = pool.check_out().await.unwrap();
    drop(ping(&mut connection));
    assert!(connection.condition().is_reusable());
    ping(&mut connection).await.unwrap();
    drop(connection);
    assert_eq!(pool.status().available, 1);
}

#[tokio::test]
async fn refused_command_is_retryable_if_the_server_says_so() {
    let server = start().await;
    let (pool, _) = pool(&server);
    let mut connection = pool.check_out().await.unwrap();
    for (labels, retryable) in [(doc! {}, false), (doc! { "errorLabels": ["RetryableError"] }, true)] {
        let mut data = doc! { "failCommands": ["ping"], "errorCode": 462 };
        data.extend(labels);
        set_fail_point(&server, doc! { "times": 1 }, data).await;
        let error = ping(&mut connection).await.unwrap_err();
        assert!(matches!(&error, OperationError::Command(CommandError::Server { .. })), "{error}");
        assert_eq!(error.is_retryable(), retryable, "{error}");
    }
    ping(&mut connection).await.unwrap();
}

#[tokio::test]
async fn network_failure_is_not_retryable_by_itself() {
    let server = start().await;
    let (pool, reason) = pool(&server);
    let mut connection = pool.check_out().await.unwrap();
    set_fail_point(&server, doc! { "times": 1 }, doc! { "failCommands": ["ping"], "closeConnection": true }).await;
    let error = ping(&mut connection).await.unwrap_err();
    assert!(!error.is_retryable());
    drop(connection);
    assert_eq!(why_closed(reason).await, ConnectionClosedReason::Error);
}
