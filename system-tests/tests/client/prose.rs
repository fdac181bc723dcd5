//! The prose tests of Server Discovery and Monitoring, and its log messages.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{RawDocumentBuf, rawdoc};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata};
use wharf::client::TopologyEvent;
use wharf::{Client, Options, PoolEvent};
use wharf_testbed::mongod::{self, Mongod, MongodOptions};

use super::events::Events;

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

/// Sets the fail point on a connection of its own.
async fn fail_point(address: &str, command: &RawDocumentBuf) {
    let mut connection = wharf::Endpoint::new(address).unwrap().connect().await.unwrap();
    connection.run_command("admin", command).await.unwrap();
}

/// "RTT Tests": the round-trip time follows the server's while the monitor streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_trip_time_is_continuously_updated() {
    // A fail point is the whole server's.
    let server = Mongod::start(MongodOptions::default()).unwrap();
    let address = server.address().to_string();
    let uri = format!("mongodb://{address}/?heartbeatFrequencyMS=500&appName=streamingRttTest");
    let events = Events::default();
    let client = Client::builder(Options::parse(&uri).unwrap()).topology_subscriber(events.clone()).build().unwrap();
    client.run_command("test", &rawdoc! { "find": "things" }).await.unwrap();
    let changed = events.after(0, |event| event.name() == "ServerDescriptionChanged").await;
    let TopologyEvent::ServerDescriptionChanged { new, .. } = changed else { panic!() };
    assert!(new.average_round_trip_time().unwrap() > Duration::ZERO);
    let slow = rawdoc! {
        "configureFailPoint": "failCommand", "mode": { "times": 1000 },
        "data": {
            "failCommands": ["hello", "isMaster"], "blockConnection": true, "blockTimeMS": 500,
            "appName": "streamingRttTest",
        },
    };
    fail_point(&address, &slow).await;
    while client.status().servers[0].average_round_trip_time.is_none_or(|time| time <= Duration::from_millis(250)) {
        events.after(events.mark(), |event| event.name() == "ServerHeartbeatSucceeded").await;
    }
    fail_point(&address, &rawdoc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
    client.shutdown(Duration::from_secs(5)).await;
}

/// "Connection Pool Management": a check that fails clears the pool, one that succeeds makes it ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_is_cleared_after_a_failed_check_and_ready_after_the_next() {
    // A fail point is the whole server's.
    let server = Mongod::start(MongodOptions::default()).unwrap();
    let address = server.address().to_string();
    let uri = format!("mongodb://{address}/?heartbeatFrequencyMS=500&appName=SDAMPoolManagementTest");
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
    assert!(happened.borrow().contains(&"ServerHeartbeatSucceeded"));
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

/// Keeps the messages of monitoring: each with its fields.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<BTreeMap<&'static str, String>>>>);

impl tracing::Subscriber for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "wharf::topology"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        assert_eq!(*event.metadata().level(), Level::DEBUG);
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.lock().unwrap().push(fields.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

/// The unified tests `logging-standalone`, on the messages of a whole life.
#[test]
fn log_has_the_messages_and_keys_of_the_specification() {
    let server = mongod::shared().unwrap();
    let uri = format!("mongodb://{}/", server.address());
    let (kept, events) = (Kept::default(), Events::default());
    let builder = || Client::builder(Options::parse(&uri).unwrap()).topology_subscriber(events.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tracing::subscriber::with_default(kept.clone(), || {
        runtime.block_on(async {
            let client = builder().build().unwrap();
            client.connect().await.unwrap();
            events.after(0, |event| matches!(event, TopologyEvent::ServerHeartbeatStarted { awaited: true, .. })).await;
            client.shutdown(Duration::from_secs(5)).await;
        });
    });
    let messages = std::mem::take(&mut *kept.0.lock().unwrap());
    let server = ["serverHost", "serverPort"];
    let heartbeat = ["serverHost", "serverPort", "driverConnectionId", "awaited"];
    let answered = ["serverHost", "serverPort", "driverConnectionId", "awaited", "durationMS"];
    let descriptions = ["previousDescription", "newDescription"];
    let expected: [(&str, &[&str], &[&str]); 11] = [
        ("Starting topology monitoring", &[], &[]),
        ("Topology description changed", &descriptions, &[]),
        ("Starting server monitoring", &server, &[]),
        ("Server heartbeat started", &heartbeat, &[]),
        ("Server heartbeat succeeded", &answered, &["reply", "serverConnectionId"]),
        ("Topology description changed", &descriptions, &[]),
        ("Server heartbeat started", &heartbeat, &["serverConnectionId"]),
        ("Server heartbeat failed", &answered, &["failure", "serverConnectionId"]),
        ("Stopped server monitoring", &server, &[]),
        ("Topology description changed", &descriptions, &[]),
        ("Stopped topology monitoring", &[], &[]),
    ];
    assert_eq!(messages.len(), expected.len(), "{messages:#?}");
    for (message, (text, keys, more)) in messages.iter().zip(expected) {
        assert_eq!(message["message"], text);
        let mut all: Vec<_> = ["message", "topologyId"].iter().chain(keys).chain(more).copied().collect();
        all.sort_unstable();
        assert_eq!(message.keys().copied().collect::<Vec<_>>(), all, "{text}");
    }
    assert!(messages[4]["reply"].replace('\\', "").contains(r#""ok":1.0"#), "{:?}", messages[4]);
    assert!(messages[5]["newDescription"].starts_with("Single with 127.0.0.1:"), "{:?}", messages[5]);
}
