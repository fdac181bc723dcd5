//! The prose tests that need several servers: mongos, or members of a replica set. The servers follow scripts, in
//! virtual time.

use std::collections::BTreeSet;
use std::time::Duration;

use bson::{Document, RawDocument, RawDocumentBuf, doc, rawdoc};
use tokio::time::sleep;
use wharf::client::TransactionOptions;
use wharf::{Client, ClientError, Operation, ReadPreference, ReadPreferenceMode};
use wharf_testbed::scripted::{Answer, name};

use super::cluster::{Cluster, after, batch, failure, ok};

/// How many times to repeat a test whose outcome could be right by chance half the time.
const ROUNDS: usize = 20;

fn find() -> RawDocumentBuf {
    rawdoc! { "find": "c" }
}

fn insert() -> RawDocumentBuf {
    rawdoc! { "insert": "c", "documents": [{ "_id": 1 }] }
}

/// A retryable read, and a retryable write.
const OPERATIONS: [(&str, &[&str]); 2] = [("find", &[]), ("insert", &["RetryableWriteError"])];

async fn run(client: &Client, name: &str) -> Result<RawDocumentBuf, ClientError> {
    match name {
        "find" => client.run(Operation::read("test", &find())).await,
        _ => client.run(Operation::write("test", &insert())).await,
    }
}

/// Answers finds with one document, and everything else with success.
fn answer(command: &Document) -> Answer {
    if name(command) == "find" { batch("firstBatch", 0, 1) } else { ok() }
}

/// Retryable Reads 2.1, Retryable Writes 4.
#[tokio::test(start_paused = true)]
async fn failed_operation_is_retried_on_another_mongos() {
    for (name, labels) in OPERATIONS {
        for _ in 0..ROUNDS {
            let cluster = Cluster::of_mongos(2, move |_, command, number| match number {
                0 => failure(6, labels),
                _ => answer(command),
            })
            .await;
            let (client, told) = cluster.client("").await;
            let error = run(&client, name).await.unwrap_err();
            assert_eq!(error.server_error().unwrap().code, 6, "{error}");
            let failed: BTreeSet<_> = told.failed().into_iter().collect();
            assert_eq!((told.failed().len(), failed.len()), (2, 2), "{name}: {failed:?}");
        }
    }
}

/// Retryable Reads 2.2, Retryable Writes 5.
#[tokio::test(start_paused = true)]
async fn failed_operation_is_retried_on_the_same_mongos_if_there_is_no_other() {
    for (name, labels) in OPERATIONS {
        let cluster = Cluster::of_mongos(1, move |_, command, number| match (number, labels) {
            (0, []) => failure(6, labels),
            // The fail point of the prose test closes the connection.
            (0, _) => Answer::Close,
            _ => answer(command),
        })
        .await;
        let (client, told) = cluster.client("directConnection=false").await;
        run(&client, name).await.unwrap();
        let address = cluster.servers[0].address();
        assert_eq!((told.failed(), told.succeeded()), (vec![address.clone()], vec![address]), "{name}");
    }
}

/// Retryable Reads 3.1, 3.2 and 3.3.
#[tokio::test(start_paused = true)]
async fn overloaded_member_is_avoided_by_retries_only_if_the_options_say_so() {
    let overload: &[&str] = &["RetryableError", "SystemOverloadedError"];
    for (labels, parameters, retried_by) in [
        (overload, "enableOverloadRetargeting=true", [0, 1]),
        (&["RetryableError"], "", [0, 0]),
        (&["RetryableError"], "enableOverloadRetargeting=true", [0, 0]),
        (overload, "", [0, 0]),
        (overload, "enableOverloadRetargeting=false", [0, 0]),
    ] {
        let set = Cluster::replica_set(2, move |server, command, number| match (server, number) {
            (0, 0) => failure(6, labels),
            _ => answer(command),
        })
        .await;
        let (client, told) = set.client(&format!("readPreference=primaryPreferred&{parameters}")).await;
        run(&client, "find").await.unwrap();
        let servers: Vec<_> = set.arrived("find").into_iter().map(|(server, _)| server).collect();
        assert_eq!(servers, retried_by, "{labels:?} {parameters}");
        assert_eq!((told.failed().len(), told.succeeded().len()), (1, 1));
    }
}

/// Transactions, "Mongos Pinning Prose Tests" 1 and 2.
#[tokio::test(start_paused = true)]
async fn session_leaves_its_mongos_with_the_next_transaction_or_another_operation() {
    for in_transactions in [true, false] {
        let cluster = Cluster::of_mongos(2, |_, command, _| answer(command)).await;
        let (client, told) = cluster.client("localThresholdMS=1000").await;
        let mut session = client.start_session().await.unwrap();
        session.start_transaction(TransactionOptions::default()).unwrap();
        client.run(Operation::write("test", &insert()).session(&mut session)).await.unwrap();
        session.commit_transaction().await.unwrap();
        told.forget();
        for _ in 0..50 {
            if in_transactions {
                session.start_transaction(TransactionOptions::default()).unwrap();
            }
            client.run(Operation::read("test", &find()).session(&mut session)).await.unwrap();
            if in_transactions {
                session.commit_transaction().await.unwrap();
            }
        }
        let finds = cluster.arrived("find");
        let servers: BTreeSet<_> = finds.iter().map(|(server, _)| *server).collect();
        assert_eq!((finds.len(), servers.len()), (50, 2), "in transactions: {in_transactions}");
        // Each commit goes to the server from which its transaction read.
        let commits: Vec<_> =
            cluster.arrived("commitTransaction").into_iter().skip(1).map(|(server, _)| server).collect();
        let read: Vec<_> = finds.iter().filter(|_| in_transactions).map(|(server, _)| *server).collect();
        assert_eq!(commits, read);
    }
}

/// Server Selection, "operationCount-based Selection Within Latency Window".
#[tokio::test(start_paused = true)]
async fn mongos_that_is_slow_is_selected_less_often_and_equal_ones_equally() {
    for (slow, each, range) in [(500, 10, 0.0..0.25), (1, 100, 0.4..0.6)] {
        let cluster =
            Cluster::of_mongos(2, move |server, command, _| after(if server == 0 { slow } else { 1 }, answer(command)))
                .await;
        let parameters = "appName=loadBalancingTest&localThresholdMS=30000&minPoolSize=10&maxPoolSize=10";
        let (client, _) = cluster.client(parameters).await;
        let is_full = |client: &Client| {
            client.status().servers.iter().all(|server| server.pool.as_ref().is_some_and(|pool| pool.available == 10))
        };
        while !is_full(&client) {
            sleep(Duration::from_millis(1)).await;
        }
        let tasks: Vec<_> = (0..10)
            .map(|_| {
                let client = client.clone();
                tokio::spawn(async move {
                    for _ in 0..each {
                        run(&client, "find").await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let finds = cluster.arrived("find");
        assert_eq!(finds.len(), 10 * each);
        let share = finds.iter().filter(|(server, _)| *server == 0).count() as f64 / finds.len() as f64;
        assert!(range.contains(&share), "{share} of the finds go to the server that takes {slow} ms");
    }
}

/// Server Selection, "Passing ReadPreference to Mongos", and Max Staleness, "Direct connection to mongos".
#[tokio::test(start_paused = true)]
async fn mongos_gets_the_read_preference() {
    for (parameters, expected) in [
        ("", None),
        ("readPreference=primary", None),
        ("readPreference=primaryPreferred", Some(doc! { "mode": "primaryPreferred" })),
        ("readPreference=secondary", Some(doc! { "mode": "secondary" })),
        ("readPreference=secondaryPreferred", Some(doc! { "mode": "secondaryPreferred" })),
        ("readPreference=nearest", Some(doc! { "mode": "nearest" })),
        (
            "readPreference=secondary&maxStalenessSeconds=120",
            Some(doc! { "mode": "secondary", "maxStalenessSeconds": 120_i64 }),
        ),
        (
            "readPreference=secondaryPreferred&readPreferenceTags=dc:a,rack:1&readPreferenceTags=",
            Some(doc! { "mode": "secondaryPreferred", "tags": [{ "dc": "a", "rack": "1" }, {}] }),
        ),
    ] {
        for direct in ["", "&directConnection=true"] {
            let cluster = Cluster::of_mongos(1, |_, command, _| answer(command)).await;
            let (client, _) = cluster.client(&format!("{parameters}{direct}")).await;
            let mut found = client.find("test", "c", doc! {}).await.unwrap();
            assert!(found.next().await.unwrap().is_some());
            let (_, sent) = cluster.arrived("find").pop().unwrap();
            assert_eq!(sent.get_document("$readPreference").ok(), expected.as_ref(), "{parameters}{direct}");
        }
    }
}

/// Driver Sessions 11.
#[tokio::test(start_paused = true)]
async fn cursor_has_one_session_in_every_topology_with_every_read_preference() {
    let answer = |_: usize, command: &Document, _: usize| match name(command).as_str() {
        "find" => batch("firstBatch", 7, 2),
        "getMore" => batch("nextBatch", 0, 1),
        _ => ok(),
    };
    let clusters = [
        (Cluster::of_mongos(2, answer).await, ""),
        (Cluster::of_mongos(1, answer).await, "directConnection=true"),
        (Cluster::replica_set(2, answer).await, ""),
        (Cluster::replica_set(1, answer).await, "directConnection=true"),
    ];
    for (cluster, parameters) in &clusters {
        let (client, told) = cluster.client(parameters).await;
        for mode in [
            ReadPreferenceMode::Primary,
            ReadPreferenceMode::PrimaryPreferred,
            ReadPreferenceMode::Secondary,
            ReadPreferenceMode::SecondaryPreferred,
            ReadPreferenceMode::Nearest,
        ] {
            let preference = ReadPreference::new(mode);
            if client.status().topology_type == "ReplicaSetWithPrimary" && cluster.servers.len() == 1 {
                continue;
            }
            told.forget();
            let find = rawdoc! { "find": "c", "batchSize": 2 };
            let operation = Operation::read("test", &find).read_preference(&preference);
            let mut found = client.cursor(operation).await.unwrap();
            for _ in 0..3 {
                assert!(found.next().await.unwrap().is_some());
            }
            let sessions = ["find", "getMore"].map(|name| told.started(name)[0].get_document("lsid").unwrap().clone());
            assert_eq!(sessions[0], sessions[1], "{mode:?} {parameters}");
            assert!(sessions[0].get("id").is_some());
        }
    }
}

/// Writes with a client that was given only the secondary's address. Returns the outcome, and the servers that received
/// the write.
async fn write_by_way_of_the_secondary(parameters: &str) -> (Result<RawDocumentBuf, ClientError>, Vec<usize>) {
    let set = Cluster::replica_set(2, |server, _, _| match server {
        0 => ok(),
        _ => failure(10_107, &[]),
    })
    .await;
    let uri = format!("mongodb://{}/?{parameters}", set.servers[1].address());
    let client = Client::from_uri(&uri).unwrap();
    let insert: &RawDocument = &insert();
    let written = client.run(Operation::write("test", insert)).await;
    (written, set.arrived("insert").into_iter().map(|(server, _)| server).collect())
}

/// The test plan of Server Discovery and Monitoring, "Topology discovery and direct connection".
#[tokio::test(start_paused = true)]
async fn write_by_way_of_a_secondary_succeeds_unless_the_connection_is_direct() {
    for parameters in ["directConnection=false", ""] {
        let (written, servers) = write_by_way_of_the_secondary(parameters).await;
        written.unwrap();
        assert_eq!(servers, [0], "{parameters}");
    }
    let (written, servers) = write_by_way_of_the_secondary("directConnection=true&retryWrites=false").await;
    assert_eq!(written.unwrap_err().server_error().unwrap().code, 10_107);
    assert_eq!(servers, [1]);
}
