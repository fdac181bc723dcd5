//! A client's log messages about monitoring and its pools, and the prose tests of Command Logging and Monitoring.

use std::time::Duration;

use bson::{doc, rawdoc};
use tracing::Level;
use wharf::client::TopologyEvent;
use wharf::{Client, Operation, Options};
use wharf_testbed::log::{Fields, kept};
use wharf_testbed::mongod;
use wharf_testbed::scripted::Answer;

use super::cluster::{self, Cluster, ok};
use super::events::Events;

/// The unified tests `logging-standalone`, applied to all messages in a client's lifetime.
#[test]
fn log_has_the_messages_and_keys_of_the_specification() {
    let server = mongod::shared().unwrap();
    let uri = format!("mongodb://{}/", server.address());
    let events = Events::default();
    let builder = || Client::builder(Options::parse(&uri).unwrap()).topology_subscriber(events.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let messages = kept("wharf::topology", Level::DEBUG, || {
        runtime.block_on(async {
            let client = builder().build().unwrap();
            client.connect().await.unwrap();
            events.after(0, |event| matches!(event, TopologyEvent::ServerHeartbeatStarted { awaited: true, .. })).await;
            client.shutdown(Duration::from_secs(5)).await;
        });
    });
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

/// "Connection Pool Logging", applied to all messages in a pool's lifetime.
#[test]
fn pools_of_a_client_log_by_themselves() {
    let server = mongod::shared().unwrap();
    let uri = format!("mongodb://{}/", server.address());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let messages = texts(|| {
        runtime.block_on(async {
            let client = Client::from_uri(&uri).unwrap();
            client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
            client.shutdown(Duration::from_secs(5)).await;
        });
    });
    assert_eq!(messages[..2], ["Connection pool created", "Connection pool ready"]);
    assert_eq!(messages[2..7], OF_FIRST_USE);
    assert_eq!(messages.last().unwrap(), "Connection pool closed");
}

#[test]
fn connections_of_a_single_client_log_by_themselves() {
    let server = mongod::shared().unwrap();
    let messages = texts(|| {
        let client = wharf::single::Client::from_uri(&format!("mongodb://{}/", server.address())).unwrap();
        client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap();
        drop(client);
    });
    assert_eq!(messages[..2], ["Connection pool created", "Connection pool ready"]);
    assert_eq!(messages[2..7], OF_FIRST_USE);
    assert_eq!(messages.last().unwrap(), "Connection pool closed");
}

/// The messages about the first use of a pool.
const OF_FIRST_USE: [&str; 5] = [
    "Connection checkout started",
    "Connection created",
    "Connection ready",
    "Connection checked out",
    "Connection checked in",
];

/// Returns the texts of the messages about pools and connections.
fn texts(work: impl FnOnce()) -> Vec<String> {
    let messages = kept("wharf::connection", Level::DEBUG, work).into_iter();
    messages.map(|mut message| message.remove("message").unwrap()).collect()
}

/// Server Selection, "Waiting for suitable server to become available" message.
#[test]
fn operation_that_waits_again_for_its_retry_says_so_once() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let messages = kept("wharf::serverSelection", Level::INFO, || {
        runtime.block_on(async {
            let set = Cluster::replica_set(1, |_, _, number| match number {
                // The second attempt also waits, because the server is unknown at that point.
                0 => Answer::Close,
                _ => ok(),
            })
            .await;
            let (client, _, _) = cluster::client(&format!("mongodb://{}/?replicaSet=rs", set.servers[0].address()));
            client.run(Operation::read("test", &rawdoc! { "find": "c" })).await.unwrap();
            assert_eq!(set.arrived("find").len(), 2);
        });
    });
    assert_eq!(messages.len(), 1);
}

/// Discovery and Monitoring, "Other TopologyTypes".
#[test]
fn last_server_that_leaves_the_topology_is_warned_of_once() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let messages = kept("wharf::topology", Level::WARN, || {
        runtime.block_on(async {
            let set = Cluster::replica_set(1, |_, _, _| ok()).await;
            let uri = format!("mongodb://{}/?replicaSet=other", set.servers[0].address());
            cluster::client(&uri).0.connect().await.unwrap_err();
        });
    });
    assert_eq!(messages.len(), 1, "{messages:#?}");
    assert_eq!(messages[0]["message"], "The last server has left the topology");
    assert!(messages[0]["reason"].ends_with(r#"it belongs to the replica set "rs", but replicaSet is "other""#));
}

/// Runs `work` with a client for the shared server, and returns the messages about its commands.
fn logged<F: Future<Output = ()>>(most: Option<usize>, work: impl FnOnce(Client) -> F) -> Vec<Fields> {
    let server = mongod::shared().unwrap();
    let builder = Client::builder(Options::parse(&format!("mongodb://{}/", server.address())).unwrap());
    let builder = match most {
        Some(most) => builder.max_logged_document_length(most),
        None => builder,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    kept("wharf::command", Level::DEBUG, || runtime.block_on(work(builder.build().unwrap())))
}

/// Returns the lengths of a field in the messages with this text, in characters.
fn lengths(messages: &[Fields], text: &str, field: &str) -> Vec<usize> {
    let with_text = messages.iter().filter(|message| message["message"] == text);
    with_text.map(|message| message[field].chars().count()).collect()
}

/// The ellipsis at the end of truncated text.
const ELLIPSIS: usize = "...".len();

/// "Test 1: Default truncation limit".
#[test]
fn commands_and_replies_are_cut_after_1000_characters() {
    let messages = logged(None, |client| async move {
        client.insert("logs", "cut", vec![doc! { "x": "y" }; 100]).await.unwrap();
        let mut found = client.find("logs", "cut", doc! {}).await.unwrap();
        assert!(found.next().await.unwrap().is_some());
    });
    let started = lengths(&messages, "Command started", "command");
    let replies = lengths(&messages, "Command succeeded", "reply");
    assert_eq!(started[0], 1_000 + ELLIPSIS);
    assert!(replies[0] <= 1_000 + ELLIPSIS && replies[1] == 1_000 + ELLIPSIS, "{replies:?}");
}

/// "Test 2: Explicitly configured truncation limit".
#[test]
fn commands_and_replies_are_cut_as_the_builder_says() {
    let messages = logged(Some(5), |client| async move {
        client.run_command("admin", &rawdoc! { "hello": true }).await.unwrap();
    });
    assert_eq!(lengths(&messages, "Command started", "command"), [5 + ELLIPSIS]);
    assert_eq!(lengths(&messages, "Command succeeded", "reply"), [5 + ELLIPSIS]);
}
