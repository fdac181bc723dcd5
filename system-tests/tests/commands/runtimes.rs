//! Commands and the runtimes that they need.

use tokio::runtime::Runtime;
use tokio::time::Instant;
use wharf::endpoint::CommandTimeoutError;
use wharf::{CheckOutError, Command, CommandError, OperationError, PoolOptions};
use wharf_testbed::executor::drive;

use super::*;

const SHORT: Duration = Duration::from_millis(30);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Starts a server on a separate runtime, which the test keeps.
fn serving() -> (Runtime, EmbeddedServer) {
    let runtime = runtime();
    let server = runtime.block_on(start());
    (runtime, server)
}

/// Returns a ready pool on this runtime.
fn pool_on(runtime: &Runtime, options: Options) -> Pool<Endpoint> {
    let pool = options.endpoint().unwrap().pool().runtime(runtime.handle().clone()).build().unwrap();
    pool.ready();
    pool
}

#[test]
fn pool_serves_one_runtime_after_another() {
    let (_serving, server) = serving();
    let ping = rawdoc! { "ping": 1 };
    let first = runtime();
    let pool = pool_on(&first, options(&server.address()));
    drop(first.block_on(pool.run_command("admin", &ping)).unwrap());
    let mut held = first.block_on(pool.check_out()).unwrap();
    drop(first);
    let second = runtime();
    second.block_on(async {
        let failure = held.run_command("admin", &ping).await.unwrap_err();
        assert!(matches!(failure, OperationError::Command(CommandError::Network { .. })), "{failure}");
        assert!(!pool.clear_after(&failure), "the end of a runtime cleared the pool");
        drop(held);
        for _ in 0..3 {
            pool.run_command("admin", &ping).await.unwrap();
        }
    });
    assert_eq!(server.counters().connections_opened, 2);
}

#[test]
fn time_limits_of_commands_hold_on_another_executor() {
    let (serving, server) = serving();
    let ping = rawdoc! { "ping": 1 };
    let pool = pool_on(&serving, options(&server.address()));
    let limited = Command::new("admin", &ping).timeout(AGES);
    drop(drive(pool.run(limited)).unwrap());
    let by_socket = pool_on(&serving, options(&server.address()).socket_timeout(SHORT));
    drop(drive(by_socket.run_command("admin", &ping)).unwrap());

    let data = doc! { "failCommands": ["ping"], "blockConnection": true, "blockTimeMS": 60_000 };
    serving.block_on(set_fail_point(&server, "alwaysOn", data));
    let error = drive(pool.run(limited.timeout(SHORT))).unwrap_err();
    let OperationError::Command(CommandError::Timeout { source: CommandTimeoutError::Receiving, .. }) = &error else {
        panic!("unexpected error: {error}")
    };
    let error = drive(by_socket.run_command("admin", &ping)).unwrap_err();
    assert!(error.is_timeout(), "{error}");
}

#[test]
fn command_with_a_time_limit_is_not_sent_without_a_runtime() {
    let (serving, server) = serving();
    let ping = rawdoc! { "ping": 1 };
    let of_pool = runtime();
    let pool = pool_on(&of_pool, options(&server.address()));
    let mut held = of_pool.block_on(pool.check_out()).unwrap();
    let sent = server.counters().commands("ping");
    drop(of_pool);
    let limited = Command::new("admin", &ping).timeout(AGES);
    let error = drive(held.run(limited)).unwrap_err();
    assert!(matches!(error, OperationError::Command(CommandError::Lost { .. })), "{error}");
    assert!(error.is_retryable() && error.to_string().contains("the tokio runtime"), "{error}");
    drop(held);
    let error = drive(pool.run(limited)).unwrap_err();
    assert!(matches!(error, OperationError::CheckOut(CheckOutError::NoRuntime(_))), "{error}");
    drop(serving);
    assert_eq!(server.counters().commands("ping"), sent);
}

#[test]
fn connecting_and_resolving_outside_tokio_fails() {
    let error = drive(Endpoint::new("localhost").unwrap().connect()).unwrap_err();
    assert!(error.to_string().contains("only be opened on a tokio runtime"), "{error}");
    #[cfg(feature = "srv")]
    {
        let error = drive(Options::from_uri("mongodb+srv://db.example.com")).unwrap_err();
        assert!(matches!(error, wharf::ResolveError::NoRuntime { .. }), "{error}");
    }
}

#[tokio::test]
async fn timeout_bounds_a_check_out_of_an_endpoint() {
    let server = start().await;
    let pool = PoolOptions::default().max_pool_size(1).wait_queue_timeout(Duration::from_millis(1));
    let pool = pool_of(options(&server.address()).timeout(SHORT).pool(pool));
    let _held = pool.check_out().await.unwrap();
    let CheckOutError::WaitQueueTimeout(error) = pool.check_out().await.unwrap_err() else {
        panic!("unexpected error")
    };
    assert_eq!(error.limit, wharf::TimeLimit::Timeout);
    assert!(error.waited >= SHORT);
}

async fn block_hello(server: &EmbeddedServer, milliseconds: i64) {
    let data = doc! { "failCommands": ["hello", "isMaster"], "blockConnection": true, "blockTimeMS": milliseconds };
    set_fail_point(server, "alwaysOn", data).await;
}

/// CSOT, "Background Connection Pooling".
#[tokio::test]
async fn background_handshake_applies_the_timeout_to_each_command() {
    let server = start().await;
    block_hello(&server, 60_000).await;
    for (set, option) in [
        (options(&server.address()).timeout(SHORT), "timeoutMS"),
        (options(&server.address()).socket_timeout(SHORT), "socketTimeoutMS"),
    ] {
        let (report, mut reports) = tokio::sync::mpsc::unbounded_channel();
        let endpoint = set.connect_timeout(AGES).pool(PoolOptions::default().min_pool_size(1)).endpoint().unwrap();
        let pool =
            endpoint.pool().on_failure(move |failure| drop(report.send(failure.error().clone()))).build().unwrap();
        pool.ready();
        let error = tokio::time::timeout(AGES, reports.recv()).await.expect("the handshake never ends").unwrap();
        assert!(error.is_timeout() && error.to_string().contains(&format!("{option} (30 ms)")), "{error}");
    }
}

/// A departure from CSOT, "Server Selection": see `Options::connect_timeout`.
#[tokio::test]
async fn establishment_for_a_check_out_outlives_the_limits_of_operations() {
    let server = start().await;
    block_hello(&server, 100).await;
    let pool = pool_of(options(&server.address()).timeout(Duration::from_millis(10)));
    let error = pool.check_out().await.unwrap_err();
    assert!(matches!(error, CheckOutError::WaitQueueTimeout(_)), "{error}");
    let available = async {
        while pool.status().available == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(AGES, available).await.expect("the establishment was given up");
    let pool = pool_of(options(&server.address()).socket_timeout(Duration::from_millis(10)));
    pool.check_out().await.expect("socketTimeoutMS does not limit the handshake for a check-out");
    let pool = pool_of(options(&server.address()).timeout(Duration::from_millis(10)));
    pool.warm_up(1, |_| ()).await.expect("timeoutMS does not limit the handshake for a warm-up");
}

#[tokio::test]
async fn handshake_without_another_limit_has_that_of_the_socket() {
    let server = start().await;
    block_hello(&server, 60_000).await;
    let pool = pool_of(options(&server.address()).connect_timeout(Duration::ZERO).socket_timeout(SHORT));
    let error = pool.check_out().await.unwrap_err();
    assert!(error.to_string().contains("socketTimeoutMS (30 ms)"), "{error}");
}

#[tokio::test]
async fn waiters_behind_a_black_hole_end_by_their_own_limit() {
    let (listener, address) = listen().await;
    let accepted = tokio::spawn(async move {
        let mut silent = Vec::new();
        loop {
            silent.push(listener.accept().await.unwrap());
        }
    });
    let pool = pool_of(options(&address).connect_timeout(Duration::from_millis(50)));
    let begun = Instant::now();
    let check_outs: Vec<_> = (0..20)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { pool.check_out_until(begun + Duration::from_millis(400)).await.map(drop) })
        })
        .collect();
    let (mut openers, mut waiters) = (0, 0);
    for check_out in check_outs {
        match check_out.await.unwrap().unwrap_err() {
            CheckOutError::Establish(error) => {
                openers += 1;
                assert!(error.is_timeout(), "{error}");
                assert!(OperationError::from(CheckOutError::from(error)).is_timeout());
            }
            CheckOutError::WaitQueueTimeout(_) => waiters += 1,
            other => panic!("unexpected error: {other}"),
        }
    }
    assert!(openers >= 2 && waiters >= 2, "{openers} {waiters}");
    assert!(begun.elapsed() >= Duration::from_millis(400) && !accepted.is_finished());
}

#[tokio::test]
async fn main_prints_the_servers_error_without_its_reply() {
    async fn main(pool: &Pool<Endpoint>) -> Result<(), Box<dyn std::error::Error>> {
        pool.run_command("admin", &rawdoc! { "noSuchCommand": 1 }).await?;
        Ok(())
    }
    let server = start().await;
    let pool = pool_of(options(&server.address()));
    let error = main(&pool).await.unwrap_err();
    let (printed, said) = (format!("{error:?}"), error.to_string());
    assert!(printed.starts_with(&said), "{printed}");
    assert!(printed.contains("CommandNotFound") && !printed.contains("reply") && printed.len() < 300, "{printed}");
    let OperationError::Command(CommandError::Server { source, .. }) = error.downcast_ref().unwrap() else {
        panic!("unexpected error: {error}")
    };
    assert_eq!(format!("{source:?}"), source.to_string());
}
