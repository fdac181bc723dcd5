//! Sessions, transactions and retryable writes on a real replica set.

use std::sync::atomic::{AtomicUsize, Ordering};

use bson::{RawDocumentBuf, rawdoc};
use wharf::client::{SessionError, TransactionOptions, TransactionState};
use wharf::{Client, ClientError, Operation};
use wharf_testbed::replica_set::{self, ReplicaSet};

use std::sync::Arc;

async fn client() -> (Arc<ReplicaSet>, Client) {
    let set = tokio::task::spawn_blocking(|| replica_set::shared().unwrap()).await.unwrap();
    let client = Client::from_uri(&set.uri()).unwrap();
    (set, client)
}

async fn empty(client: &Client, name: &str) {
    let _ = client.run(Operation::write("sessions", &rawdoc! { "drop": name })).await;
    client.run(Operation::write("sessions", &rawdoc! { "create": name })).await.unwrap();
}

async fn count(client: &Client, name: &str) -> i32 {
    // Without a query, the server would also count uncommitted documents.
    let count = rawdoc! { "count": name, "query": { "_id": { "$gte": 0 } } };
    client.run(Operation::read("sessions", &count)).await.unwrap().get_i32("n").unwrap()
}

fn insert(name: &str, id: i32) -> RawDocumentBuf {
    rawdoc! { "insert": name, "documents": [{ "_id": id }] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committed_transaction_is_seen_and_aborted_one_is_not() {
    let (_set, client) = client().await;
    empty(&client, "transactions").await;
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    for id in 0..3 {
        client.run(Operation::write("sessions", &insert("transactions", id)).session(&mut session)).await.unwrap();
    }
    assert_eq!(session.transaction_state(), TransactionState::InProgress);
    assert_eq!(count(&client, "transactions").await, 0, "not committed yet");
    session.commit_transaction().await.unwrap();
    session.commit_transaction().await.expect("a commit can be repeated");
    assert_eq!(count(&client, "transactions").await, 3);

    session.start_transaction(TransactionOptions::default()).unwrap();
    client.run(Operation::write("sessions", &insert("transactions", 7)).session(&mut session)).await.unwrap();
    session.abort_transaction().await.unwrap();
    assert_eq!(count(&client, "transactions").await, 3);
    let refused = session.abort_transaction().await.unwrap_err();
    assert!(matches!(refused, ClientError::Session(SessionError::AbortedTwice)), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_transaction_repeats_after_a_conflict() {
    let (_set, client) = client().await;
    empty(&client, "conflicts").await;
    let both = [rawdoc! { "_id": 1, "n": 0 }];
    client.insert("sessions", "conflicts", &both).await.unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (client, runs) = (client.clone(), runs.clone());
        let mut session = client.start_session().await.unwrap();
        tasks.push(tokio::spawn(async move {
            session
                .with_transaction(async move |mut session| {
                    runs.fetch_add(1, Ordering::Relaxed);
                    let statement = rawdoc! { "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } };
                    let update = rawdoc! { "update": "conflicts", "updates": [statement] };
                    let reply = client.run(Operation::write("sessions", &update).session(&mut session)).await?;
                    reply.get_i32("n").map_err(ClientError::other)
                })
                .await
                .unwrap()
        }));
    }
    for task in tasks {
        assert_eq!(task.await.unwrap(), 1);
    }
    let find = rawdoc! { "find": "conflicts" };
    let mut found = client.cursor(Operation::read("sessions", &find)).await.unwrap();
    assert_eq!(found.next().await.unwrap().unwrap().get_i32("n").unwrap(), 8);
    assert!(runs.load(Ordering::Relaxed) >= 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_of_the_body_aborts_the_transaction() {
    let (_set, client) = client().await;
    empty(&client, "bodies").await;
    let mut session = client.start_session().await.unwrap();
    let failed = session
        .with_transaction(async |mut session| {
            client.run(Operation::write("sessions", &insert("bodies", 1)).session(&mut session)).await?;
            Err::<(), _>(ClientError::other("enough"))
        })
        .await
        .unwrap_err();
    assert_eq!(failed.to_string(), "enough");
    assert_eq!(session.transaction_state(), TransactionState::Aborted);
    assert_eq!(count(&client, "bodies").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_that_loses_its_connection_is_executed_once() {
    let (set, client) = client().await;
    empty(&client, "retried").await;
    // The primary closes the connection once, without executing the command.
    let fail = rawdoc! {
        "configureFailPoint": "failCommand",
        "mode": { "times": 1 },
        "data": { "failCommands": ["insert"], "closeConnection": true, "appName": "retries" },
    };
    let mut options = wharf::Options::parse(&set.uri()).unwrap();
    options.app_name = Some("retries".to_owned());
    let retrying = Client::new(options).unwrap();
    for retry in [true, false] {
        client.run_command("admin", &fail).await.unwrap();
        let id = i32::from(retry);
        let document = insert("retried", id);
        match retry {
            true => drop(retrying.run(Operation::write("sessions", &document)).await.unwrap()),
            false => {
                let careful = wharf::Options::clone(retrying.options()).retry_writes(false);
                let careful = Client::new(careful).unwrap();
                let error = careful.run(Operation::write("sessions", &document)).await.unwrap_err();
                assert!(!error.has_label("RetryableWriteError"), "retryWrites is off: {error}");
            }
        }
        assert_eq!(count(&client, "retried").await, 1);
    }
    client.run_command("admin", &rawdoc! { "configureFailPoint": "failCommand", "mode": "off" }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn causally_consistent_session_reads_its_own_write_from_a_secondary() {
    let (_set, client) = client().await;
    empty(&client, "causal").await;
    let secondary = wharf::ReadPreference::new(wharf::ReadPreferenceMode::Secondary);
    for id in 0..20 {
        let mut session = client.start_session().await.unwrap();
        client.run(Operation::write("sessions", &insert("causal", id)).session(&mut session)).await.unwrap();
        let find = rawdoc! { "find": "causal", "filter": { "_id": id } };
        let read = Operation::read("sessions", &find).read_preference(&secondary).session(&mut session);
        let mut found = client.cursor(read).await.unwrap();
        assert!(found.next().await.unwrap().is_some(), "the secondary waits for the write");
        drop(found);
        assert!(session.operation_time().is_some() && session.cluster_time().is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn implicit_sessions_are_reused() {
    let (_set, client) = client().await;
    empty(&client, "implicit").await;
    let ids: std::collections::HashSet<Vec<u8>> = {
        let mut ids = std::collections::HashSet::new();
        for _ in 0..20 {
            let session = client.start_session().await.unwrap();
            ids.insert(session.id().into_bytes());
            drop(session);
            count(&client, "implicit").await;
        }
        ids
    };
    assert!(ids.len() <= 4, "sessions are reused: {} of 40", ids.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_write_belongs_to_the_transaction_of_its_session() {
    let (_set, client) = client().await;
    empty(&client, "bulk").await;
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    let documents = [rawdoc! { "_id": 1 }, rawdoc! { "_id": 2 }];
    let written = client.insert("sessions", "bulk", &documents).session(&mut session).await.unwrap();
    assert_eq!(written.inserted, 2);
    assert_eq!(count(&client, "bulk").await, 0, "not committed yet");
    session.abort_transaction().await.unwrap();
    assert_eq!(count(&client, "bulk").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_of_another_client_is_refused() {
    let (set, client) = client().await;
    let other = Client::from_uri(&set.uri()).unwrap();
    let mut session = other.start_session().await.unwrap();
    let ping = rawdoc! { "ping": 1 };
    let refused = client.run(Operation::new("admin", &ping).session(&mut session)).await.unwrap_err();
    assert!(matches!(refused, ClientError::Session(SessionError::OtherClient)), "{refused}");
}
