//! The prose tests of Server Discovery and Monitoring.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{RawDocumentBuf, doc, rawdoc};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use wharf::client::{ServerType, TopologyEvent};
use wharf::{Client, Operation, Options, PoolEvent, ServerApi, ServerApiVersion};
use wharf_testbed::mongod::{self, Mongod, MongodOptions};
use wharf_testbed::replica_set;
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::cluster::{self, Cluster, failure, ok};
use super::events::Events;
use super::repetitions::standalone;

/// "Test that `ServerHeartbeatStartedEvent` is emitted before the monitoring socket was created".
#[tokio::test]
async fn heartbeat_starts_before_its_socket_is_created() {
    let happened = Arc::<Mutex<Vec<&'static str>>>::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let noted = happened.clone();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            noted.lock().unwrap().push("client connected");
            stream.read_u8().await.unwrap();
            noted.lock().unwrap().push("client hello received");
        }
    });
    let noted = happened.clone();
    let options = Options::parse(&format!("mongodb://{address}/?serverSelectionTimeoutMS=500")).unwrap();
    let client = Client::builder(options).topology_subscriber(move |event: &TopologyEvent| {
        if event.name().starts_with("ServerHeartbeat") {
            noted.lock().unwrap().push(event.name());
        }
    });
    client.build().unwrap().connect().await.unwrap_err();
    let first = happened.lock().unwrap()[..4].to_vec();
    assert_eq!(first, ["ServerHeartbeatStarted", "client connected", "client hello received", "ServerHeartbeatFailed"]);
    server.abort();
}

/// Sets the fail point on a separate connection.
async fn fail_point(address: &str, command: &RawDocumentBuf) {
    let mut connection = wharf::Endpoint::new(address).unwrap().connect().await.unwrap();
    connection.run_command("admin", command).await.unwrap();
}

/// "RTT Tests": the measured round-trip time follows the server's actual delay while the monitor streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_trip_time_is_continuously_updated() {
    // The test has its own server, because a fail point applies to the whole server.
    let server = Mongod::start(MongodOptions::default()).unwrap();
    let address = server.address().to_string();
    let uri = format!("mongodb://{address}/?heartbeatFrequencyMS=500&appName=streamingRttTest");
    let events = Events::default();
    let client = Client::builder(Options::parse(&uri).unwrap()).topology_subscriber(events.clone()).build().unwrap();
    client.run_command("test", &rawdoc! { "find": "things" }).await.unwrap();
    // "Sleep for 2 seconds. This must be long enough for multiple heartbeats to succeed." So the test waits for these
    // heartbeats.
    for _ in 0..3 {
        events.after(events.mark(), |event| event.name() == "ServerHeartbeatSucceeded").await;
    }
    let changes = events.all().into_iter().filter_map(|event| match event {
        TopologyEvent::ServerDescriptionChanged { new, .. } => Some(new),
        _ => None,
    });
    let round_trips: Vec<_> = changes.map(|server| server.average_round_trip_time()).collect();
    assert!(!round_trips.is_empty());
    assert!(round_trips.iter().all(|time| time.is_some_and(|time| time > Duration::ZERO)), "{round_trips:?}");
    let slow = rawdoc! {
        "configureFailPoint": "failCommand", "mode": { "times": 1000 },
        "data": {
            "failCommands": ["hello", "isMaster"], "blockConnection": true, "blockTimeMS": 500,
            "appName": "streamingRttTest",
        },
    };
    fail_point(&address, &slow).await;
    let average = || client.status().servers[0].average_round_trip_time;
    let slower = async {
        while average().is_none_or(|time| time <= Duration::from_millis(250)) {
            events.after(events.mark(), |event| event.name() == "ServerHeartbeatSucceeded").await;
        }
    };
    let is_slower = tokio::time::timeout(Duration::from_secs(10), slower).await;
    assert!(is_slower.is_ok(), "{:?} after ten seconds", average());
    fail_point(&address, &rawdoc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    client.shutdown(Duration::from_secs(5)).await;
}

/// "Connection Pool Management": a failed check clears the pool, and a successful one makes it ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_is_cleared_after_a_failed_check_and_ready_after_the_next() {
    // The test has its own server, because a fail point applies to the whole server.
    let server = Mongod::start(MongodOptions::default()).unwrap();
    let address = server.address().to_string();
    let parameters = "directConnection=true&heartbeatFrequencyMS=500&appName=SDAMPoolManagementTest";
    let uri = format!("mongodb://{address}/?{parameters}");
    let happened = Arc::new(tokio::sync::watch::Sender::new(Vec::new()));
    let (of_pool, of_topology) = (happened.clone(), happened.clone());
    let client = Client::builder(Options::parse(&uri).unwrap())
        .subscriber(move |event: &PoolEvent| of_pool.send_modify(|names| names.push(event.name())))
        .topology_subscriber(move |event: &TopologyEvent| of_topology.send_modify(|names| names.push(event.name())))
        .build()
        .unwrap();
    let until = |mark: usize, name: &'static str| {
        let mut names = happened.subscribe();
        async move {
            let come = names.wait_for(|names| names[mark..].contains(&name));
            tokio::time::timeout(Duration::from_secs(60), come).await.expect(name).unwrap();
        }
    };
    client.connect().await.unwrap();
    until(0, "PoolReady").await;
    let position = |name| happened.borrow().iter().position(|other| *other == name);
    let (succeeded, ready) = (position("ServerHeartbeatSucceeded"), position("PoolReady"));
    assert!(succeeded.is_some() && succeeded < ready, "{:?}", happened.borrow());
    let mark = happened.borrow().len();
    let refused = rawdoc! {
        "configureFailPoint": "failCommand", "mode": { "times": 2 },
        "data": { "failCommands": ["hello", "isMaster"], "errorCode": 1234, "appName": "SDAMPoolManagementTest" },
    };
    fail_point(&address, &refused).await;
    for name in ["ServerHeartbeatFailed", "PoolCleared", "ServerHeartbeatSucceeded", "PoolReady"] {
        until(mark, name).await;
    }
    fail_point(&address, &rawdoc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    client.shutdown(Duration::from_secs(5)).await;
}

/// "Streaming protocol Tests": each server answers as often as `heartbeatFrequencyMS` specifies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_of_a_stream_are_as_frequent_as_the_options_say() {
    let (server, set) = (mongod::shared().unwrap(), replica_set::shared().unwrap());
    let of_set: Vec<_> = set.addresses().iter().map(ToString::to_string).collect();
    let alone = vec![server.address().to_string()];
    // The lower bounds are loose. The first of the five heartbeats may already be under way, and the members of the set
    // immediately report a step-down caused by a concurrent test.
    let (mut clients, mut counting) = (Vec::new(), JoinSet::new());
    for (uri, servers, least) in [
        (format!("mongodb://{}/?", server.address()), alone, Duration::from_secs(2)),
        (set.uri(), of_set, Duration::ZERO),
    ] {
        let (client, _, events) = cluster::client(&format!("{uri}&heartbeatFrequencyMS=500").replace("?&", "?"));
        client.connect().await.unwrap();
        clients.push(client);
        for server in servers {
            let events = events.clone();
            counting.spawn(async move {
                let is_awaited = |event: &TopologyEvent| match event {
                    TopologyEvent::ServerHeartbeatSucceeded { awaited, connection, .. } => {
                        *awaited && *connection.address == server
                    }
                    _ => false,
                };
                events.after(0, is_awaited).await;
                let begun = std::time::Instant::now();
                for _ in 0..5 {
                    events.after(events.mark(), is_awaited).await;
                }
                let took = begun.elapsed();
                // The default would be 50 seconds.
                assert!((least..Duration::from_secs(20)).contains(&took), "{server}: five heartbeats in {took:?}");
            });
        }
    }
    while let Some(counted) = counting.join_next().await {
        counted.unwrap();
    }
    for client in clients {
        client.shutdown(Duration::from_secs(5)).await;
    }
}

/// Max Staleness, "heartbeatFrequencyMS is configurable".
#[tokio::test(start_paused = true)]
async fn server_is_polled_twice_a_second_if_the_options_say_so() {
    let server = ScriptedServer::start(|| Box::new(|_| Answer::Reply(standalone()))).await.unwrap();
    let client = Client::from_uri(&format!("mongodb://{}/?heartbeatFrequencyMS=500", server.address())).unwrap();
    client.connect().await.unwrap();
    let before = server.commands().len();
    sleep(Duration::from_secs(10)).await;
    let checks = server.commands().len() - before;
    assert!((18..=21).contains(&checks), "{checks} checks in ten seconds");
}

/// The test plan, "Monitors sleep at least minHeartbeatFrequencyMS between checks".
#[tokio::test(start_paused = true)]
async fn failed_checks_are_half_a_second_apart() {
    let failed = Arc::new(Mutex::new(0));
    let server = ScriptedServer::start(move || {
        let failed = failed.clone();
        Box::new(move |command: &bson::Document| match name(command).as_str() {
            "hello" | "isMaster" | "ismaster" => {
                let mut failed = failed.lock().unwrap();
                *failed += 1;
                if *failed <= 5 { failure(1234, &[]) } else { Answer::Reply(standalone()) }
            }
            _ => ok(),
        })
    });
    let server = server.await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true&serverSelectionTimeoutMS=5000", server.address());
    let client = Client::from_uri(&uri).unwrap();
    let begun = Instant::now();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    let took = begun.elapsed().as_millis();
    assert!((2_000..3_500).contains(&took), "{took} ms");
}

/// The test plan, "Node is recovering" error from a write concern error, and "Network error writing to primary". The
/// test also covers errors from the command itself.
#[tokio::test(start_paused = true)]
async fn primary_that_fails_a_write_is_unknown_until_it_is_checked() {
    let shutting_down =
        doc! { "ok": 1, "n": 1, "writeConcernError": { "code": 91, "errmsg": "Replication is being shut down\n" } };
    for (answer, code, generation) in [
        (Answer::Reply(shutting_down), Some(91), 1),
        // Not writable primary: the server has become a secondary.
        (failure(10107, &[]), Some(10107), 0),
        // The server is changing state.
        (failure(11602, &[]), Some(11602), 0),
        (Answer::Close, None, 1),
    ] {
        let set = Cluster::replica_set(1, move |_, _, _| answer.clone()).await;
        let uri = format!(
            "mongodb://{}/?replicaSet=rs&retryWrites=false&heartbeatFrequencyMS=60000&serverMonitoringMode=poll",
            set.servers[0].address()
        );
        let (client, _, events) = cluster::client(&uri);
        client.connect().await.unwrap();
        sleep(Duration::from_secs(1)).await;
        let (mark, begun) = (events.mark(), Instant::now());
        let insert = rawdoc! { "insert": "c", "documents": [{ "a": 1 }] };
        let error = client.run(Operation::write("test", &insert)).await.unwrap_err();
        let of_command = error.server_error().map(|error| error.code);
        let found = error.write_concern_error().map(|error| error.code).or(of_command);
        assert_eq!(found, code, "{error:?}");
        let TopologyEvent::ServerDescriptionChanged { new, .. } = events.all()[mark].clone() else {
            panic!("{:?}", events.all());
        };
        assert_eq!(new.server_type(), ServerType::Unknown);
        let cause = new.error().unwrap().to_string();
        let says_the_servers_text = cause.ends_with("error 91: Replication is being shut down\\n");
        assert_eq!(says_the_servers_text, code == Some(91), "{cause}");
        let TopologyEvent::TopologyDescriptionChanged { new, .. } = events.all()[mark + 1].clone() else {
            panic!("{:?}", events.all());
        };
        assert_eq!(new.topology_type().name(), "ReplicaSetNoPrimary");
        let cleared = client.status().servers[0].pool.as_ref().unwrap().generation;
        assert_eq!(cleared, generation, "{code:?}");
        events.after(mark, |event| event.name() == "ServerHeartbeatStarted").await;
        // Only a server that answered is checked immediately.
        assert_eq!(begun.elapsed() < Duration::from_millis(10), code.is_some(), "{code:?}: {:?}", begun.elapsed());
    }
}

/// Versioned API, "Testing with required API version", for the commands that the client sends on its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_requires_an_api_version_accepts_a_client_that_declares_it() {
    // The test has its own server, because the parameter applies to the whole server.
    let server = Mongod::start(MongodOptions::default()).unwrap();
    let uri = format!("mongodb://{}", server.address());
    let require = rawdoc! { "setParameter": 1, "requireApiVersion": true };
    Client::from_uri(&uri).unwrap().run_command("admin", &require).await.unwrap();
    let declaring =
        || Client::new(Options::parse(&uri).unwrap().server_api(ServerApi::new(ServerApiVersion::V1))).unwrap();
    let client = declaring();
    client.insert("test", "api", (0..5).map(|id| doc! { "_id": id })).await.unwrap();
    client.update("test", "api", [doc! { "q": { "_id": 1 }, "u": { "$set": { "a": 1 } } }]).await.unwrap();
    client.delete("test", "api", [doc! { "q": { "_id": 1 }, "limit": 1 }]).await.unwrap();
    let mut found = client.find("test", "api", doc! {}).batch_size(3).await.unwrap();
    for _ in 0..4 {
        assert!(found.next().await.unwrap().is_some());
    }
    let mut left_open = client.find("test", "api", doc! {}).batch_size(2).await.unwrap();
    assert!(left_open.next().await.unwrap().is_some());
    left_open.close().await;
    drop(client.aggregate("test", "api", [doc! { "$match": {} }]).await.unwrap());
    // The client also ends its sessions.
    assert!(client.shutdown(Duration::from_secs(5)).await);
    // Without a version, not even a handshake is accepted.
    let undeclared = Client::from_uri(&format!("{uri}/?serverSelectionTimeoutMS=200")).unwrap();
    let error = undeclared.connect().await.unwrap_err().to_string();
    assert!(error.contains("The apiVersion parameter is required"), "{error}");
}
