//! The client on a standalone server.

use std::time::{Duration, Instant};

use bson::rawdoc;
use wharf::client::ServerSelectionError;
use wharf::{Client, ClientError, Operation, Options};
use wharf_testbed::executor::drive;
use wharf_testbed::mongod::{self, Mongod, MongodOptions};

fn uri(server: &Mongod) -> String {
    format!("mongodb://{}", server.address())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_finds_the_server_and_runs_commands() {
    let server = mongod::shared().unwrap();
    let client = Client::from_uri(&uri(&server)).unwrap();
    assert_eq!(client.status().topology_type, "Unknown");
    let reply = client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0);
    let status = client.status();
    assert_eq!((status.topology_type, status.servers[0].server_type), ("Single", "Standalone"));
    assert!(status.servers[0].average_round_trip_time.is_some());
    assert_eq!(status.servers[0].pool.as_ref().unwrap().total, 1);
    assert_eq!(status.servers[0].operations, 0);
    assert!(client.shutdown(Duration::from_secs(5)).await);
    let refused = client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
    assert!(matches!(refused, ClientError::Selection(ServerSelectionError::Closed)), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warm_up_opens_the_connections_and_shutdown_ends_the_sessions() {
    let server = Mongod::start(MongodOptions::default()).unwrap();
    let client = Client::from_uri(&uri(&server)).unwrap();
    let mut seen = Vec::new();
    client.warm_up_with(7, |opened, wanted| seen.push((opened, wanted))).await.unwrap();
    assert_eq!(seen, (0..=7).map(|opened| (opened, 7)).collect::<Vec<_>>());
    let pool = client.status().servers[0].pool.unwrap();
    assert_eq!((pool.total, pool.available), (7, 7));

    let observer = Client::from_uri(&uri(&server)).unwrap();
    let ended = async || {
        let status = observer.run_command("admin", &rawdoc! { "serverStatus": 1 }).await.unwrap();
        let commands = status.get_document("metrics").unwrap().get_document("commands").unwrap();
        commands.get_document("endSessions").unwrap().get_i64("total").unwrap()
    };
    let before = ended().await;
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    assert!(client.shutdown(Duration::from_secs(5)).await);
    assert_eq!(ended().await, before + 1);
}

#[tokio::test]
async fn selection_fails_in_time_and_names_each_server_with_its_error() {
    let options = Options::new(["127.0.0.1:1"]).unwrap().server_selection_timeout(Duration::from_millis(300));
    let client = Client::new(options).unwrap();
    let start = Instant::now();
    let refused = client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
    assert!(refused.is_timeout(), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("serverSelectionTimeoutMS (300 ms)") && text.contains("127.0.0.1:1 (Unknown"), "{text}");
    assert!(text.contains("refused"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn client_serves_one_runtime_after_the_other() {
    let server = mongod::shared().unwrap();
    let client = Client::from_uri(&uri(&server)).unwrap();
    let outside = drive(client.run_command("admin", &rawdoc! { "ping": 1 })).unwrap_err();
    assert!(matches!(outside, ClientError::Selection(ServerSelectionError::NoRuntime)), "{outside}");
    for _ in 0..3 {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async { client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap() });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_is_gone_becomes_unknown() {
    let server = Mongod::start(MongodOptions::default()).unwrap();
    let client = Client::from_uri(&uri(&server)).unwrap();
    let count = rawdoc! { "count": "things" };
    client.run(Operation::read("test", &count)).await.unwrap();
    drop(server);
    let limit = Duration::from_millis(700);
    // A refused connection may mean that the server is overloaded, so only a check makes the server unknown.
    let deadline = Instant::now() + Duration::from_secs(10);
    while !matches!(
        client.run(Operation::read("test", &count).timeout(limit)).await.unwrap_err(),
        ClientError::Selection(_)
    ) {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(client.status().servers[0].server_type, "Unknown");
}
