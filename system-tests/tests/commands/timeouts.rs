//! The time limits of commands, and the errors that are reported when a limit is exceeded.

use std::error::Error as StdError;
use std::io;
use std::time::Instant;

use wharf::endpoint::CommandTimeoutError;
use wharf::{CheckOutError, Command, CommandError, OperationError, PoolOptions};

use super::*;

const SHORT: Duration = Duration::from_millis(40);

async fn block_ping(server: &EmbeddedServer, milliseconds: i64) {
    let data = doc! { "failCommands": ["ping"], "blockConnection": true, "blockTimeMS": milliseconds };
    set_fail_point(server, "alwaysOn", data).await;
}

async fn settled(pool: &Pool<Endpoint>) {
    let settled = async {
        while pool.status().in_use > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(AGES, settled).await.unwrap();
}

#[tokio::test]
async fn command_ends_at_its_timeout_and_its_connection_survives() {
    let server = start().await;
    block_ping(&server, 120).await;
    let ping = rawdoc! { "ping": 1 };
    for by_options in [false, true] {
        let set = options(&server.address());
        let pool = pool_of(if by_options { set.timeout(SHORT) } else { set });
        pool.run(Command::new("admin", &rawdoc! { "buildInfo": 1 }).timeout(AGES)).await.unwrap();
        let opened = server.counters().connections_opened;
        let begun = Instant::now();
        let command = Command::new("admin", &ping);
        let command = if by_options { command } else { command.timeout(SHORT) };
        let error = pool.run(command).await.unwrap_err();
        assert!(begun.elapsed() >= SHORT);
        let OperationError::Command(CommandError::Timeout {
            source: CommandTimeoutError::Receiving, limit: SHORT, ..
        }) = &error
        else {
            panic!("unexpected error: {error}")
        };
        assert!(error.is_timeout() && !error.clears_pool() && !error.marks_server_unknown() && !error.is_retryable());
        let said = error.to_string();
        assert!(said.contains("timeoutMS (40 ms)") && said.contains(&error.source().unwrap().to_string()), "{said}");
        settled(&pool).await;
        assert_eq!(pool.status().available, 1);
        // A command may set a longer timeout than the options.
        pool.run(Command::new("admin", &ping).timeout(AGES)).await.unwrap();
        pool.run(Command::new("admin", &ping).timeout(Duration::ZERO)).await.unwrap();
        assert_eq!(server.counters().connections_opened, opened);
    }
}

#[tokio::test]
async fn command_whose_timeout_has_passed_is_not_sent() {
    let server = start().await;
    let mut connection = Endpoint::new(&server.address()).unwrap().connect().await.unwrap();
    let ping = rawdoc! { "ping": 1 };
    for command in [
        Command::new("admin", &ping).timeout(Duration::from_nanos(1)),
        Command::new("admin", &ping).timeout(SHORT).round_trip_time(SHORT),
    ] {
        let failure = connection.run(command).await.unwrap_err();
        assert!(matches!(failure, CommandError::Timeout { source: CommandTimeoutError::Unsent, .. }), "{failure}");
        assert!(connection.condition().is_reusable());
    }
    connection.run_command("admin", &rawdoc! { "buildInfo": 1 }).await.unwrap();
    assert_eq!(server.counters().commands("ping"), 0);
}

#[tokio::test]
async fn servers_time_limit_is_a_timeout_if_the_client_set_one() {
    let server = start().await;
    let mut connection = Endpoint::new(&server.address()).unwrap().connect().await.unwrap();
    let ping = rawdoc! { "ping": 1 };
    for (timeout, transformed) in [(None, false), (Some(AGES), true), (Some(Duration::ZERO), true)] {
        set_fail_point(&server, doc! { "times": 1 }, doc! { "failCommands": ["ping"], "errorCode": 50 }).await;
        let command = Command::new("admin", &ping);
        let command = timeout.map_or(command, |limit| command.timeout(limit));
        let failure = connection.run(command).await.unwrap_err();
        assert_eq!(
            matches!(failure, CommandError::Timeout { source: CommandTimeoutError::Server(_), .. }),
            transformed
        );
        assert_eq!(failure.is_timeout(), transformed);
        assert_eq!(failure.server_error().unwrap().code, 50);
        assert!(connection.condition().is_reusable());
    }
}

#[tokio::test]
async fn reply_of_a_write_that_timed_out_in_part_is_returned() {
    let (listener, address) = listen().await;
    let endpoint = Endpoint::new(&address).unwrap();
    let (connection, mut peer) = tokio::join!(endpoint.connect(), Peer::accept(&listener));
    let mut connection = connection.unwrap();
    let body = rawdoc! { "insert": "c" };
    for reply in [
        rawdoc! { "ok": 1, "writeErrors": [{ "index": 0, "code": 50, "errmsg": "too slow" }] },
        rawdoc! { "ok": 1, "writeConcernError": { "code": 50, "errmsg": "too slow" } },
    ] {
        for limited in [false, true] {
            let command = Command::new("test", &body);
            let command = if limited { command.timeout(AGES) } else { command };
            let (outcome, ()) = tokio::join!(connection.run(command), async {
                let request = peer.receive().await;
                peer.reply(&request, &reply).await;
            });
            assert_eq!(outcome.unwrap(), reply, "with a time limit: {limited}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn socket_timeout_limits_each_read_unless_timeout_is_set() {
    let (listener, address) = listen().await;
    let endpoint = options(&address).socket_timeout(Duration::from_millis(400)).endpoint().unwrap();
    let (connection, mut peer) = tokio::join!(endpoint.connect(), Peer::accept(&listener));
    let mut connection = connection.unwrap();
    let ping = rawdoc! { "ping": 1 };
    // The six pieces together take longer than the limit, but no single piece does.
    let begun = tokio::time::Instant::now();
    let (outcome, ()) = tokio::join!(connection.run_command("admin", &ping), async {
        let request = peer.receive().await;
        let mut bytes = Vec::new();
        let body = &*rawdoc! { "ok": 1 };
        let response_to = request.header.request_id;
        let message = Outgoing { request_id: 9, response_to, flags: Flags::NONE, body, database: None, sequences: &[] };
        op_msg::encode(&message, 1000, &mut bytes).unwrap();
        for piece in bytes.chunks(bytes.len().div_ceil(6)) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            peer.stream.write_all(piece).await.unwrap();
        }
    });
    outcome.unwrap();
    assert!(begun.elapsed() > Duration::from_millis(400));

    // timeoutMS replaces socketTimeoutMS.
    let longer = Command::new("admin", &ping).timeout(AGES);
    let (outcome, ()) = tokio::join!(connection.run(longer), async {
        let request = peer.receive().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        peer.reply(&request, &rawdoc! { "ok": 1 }).await;
    });
    outcome.unwrap();

    let failure = connection.run_command("admin", &ping).await.unwrap_err();
    let CommandError::Network { source, .. } = &failure else { panic!("unexpected failure: {failure}") };
    assert_eq!(source.kind(), io::ErrorKind::TimedOut);
    assert!(failure.to_string().contains("socketTimeoutMS (400 ms)"), "{failure}");
    assert!(failure.is_timeout() && !failure.is_network_error() && !failure.clears_pool());
}

#[tokio::test]
async fn check_out_counts_towards_the_timeout_and_replaces_wait_queue_timeout() {
    let server = start().await;
    let queue = PoolOptions::default().max_pool_size(1).wait_queue_timeout(Duration::from_millis(1));
    let pool = pool_of(options(&server.address()).pool(queue));
    let held = pool.check_out().await.unwrap();
    let ping = rawdoc! { "ping": 1 };
    let begun = Instant::now();
    let error = pool.run(Command::new("admin", &ping).timeout(SHORT)).await.unwrap_err();
    assert!(begun.elapsed() >= SHORT);
    let OperationError::CheckOutTimeout { limit: SHORT, source: CheckOutError::WaitQueueTimeout(source), .. } = &error
    else {
        panic!("unexpected error: {error}")
    };
    assert!(error.is_timeout() && error.to_string().contains(&source.to_string()), "{error}");

    let error = pool.run(Command::new("admin", &ping)).await.unwrap_err();
    assert!(matches!(error, OperationError::CheckOut(CheckOutError::WaitQueueTimeout(_))), "{error}");
    // With timeoutMS 0, waitQueueTimeoutMS does not apply either.
    let (outcome, ()) = tokio::join!(pool.run(Command::new("admin", &ping).timeout(Duration::ZERO)), async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(held);
    });
    outcome.unwrap();
}
