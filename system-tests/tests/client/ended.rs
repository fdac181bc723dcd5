//! Transactions of a client that is shut down, or that has no runtime.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bson::{Document, doc, rawdoc};
use wharf::client::{ServerSelectionError, Session, SessionError};
use wharf::{Client, ClientError, CommandError, Operation};
use wharf_testbed::executor::drive;
use wharf_testbed::scripted::Answer;

use super::cancelled::until;
use super::repetitions::{client, count, lost_with_a_commit, primary, start};

/// Starts a session whose transactions are repeated only for a short time, so that a client that wrongly repeats them
/// fails quickly.
fn session(client: &Client) -> Session {
    let started = client.start_session().default_timeout(Duration::from_secs(1)).into_future();
    started.into_inner().unwrap()
}

async fn insert(client: &Client, session: &mut Session) -> Result<(), ClientError> {
    let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }] };
    client.run(Operation::write("test", &insert).session(session)).await.map(drop)
}

fn answer(_: &Document, _: usize) -> Answer {
    Answer::Reply(doc! { "ok": 1, "n": 1 })
}

#[tokio::test]
async fn transaction_of_a_client_that_is_shut_down_is_not_committed_again() {
    let (server, arrived) = start(primary(), answer).await;
    let client = client(&server, "directConnection=true");
    let error = session(&client)
        .with_transaction(async |mut session| {
            insert(&client, &mut session).await?;
            assert!(client.shutdown(Duration::from_secs(5)).await);
            Ok(())
        })
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::Selection(ServerSelectionError::Closed)), "{error}");
    assert_eq!((count(&arrived, "insert"), count(&arrived, "commitTransaction")), (1, 0));
}

/// The connection was lost after the commit was sent, and the client is shut down while the commit waits for a server.
#[tokio::test(start_paused = true)]
async fn commit_that_was_sent_before_the_shutdown_is_reported() {
    let (server, has_committed) = lost_with_a_commit().await;
    let client = client(&server, "directConnection=true");
    let mut session = client.start_session().await.unwrap();
    let transaction = session.with_transaction(async |mut session| insert(&client, &mut session).await);
    let shutdown = async {
        until("the commit is sent", || has_committed.load(Ordering::SeqCst)).await;
        client.shutdown(Duration::from_secs(5)).await
    };
    let (outcome, _) = tokio::join!(transaction, shutdown);
    let error = outcome.unwrap_err();
    assert!(matches!(error.command_error(), Some(CommandError::Network { .. })), "{error}");
    assert!(error.has_label("UnknownTransactionCommitResult"), "{error}");
}

#[tokio::test]
async fn transaction_of_a_client_that_is_shut_down_is_not_run_again() {
    let (server, _) = start(primary(), answer).await;
    let client = client(&server, "directConnection=true");
    client.connect().await.unwrap();
    client.shutdown(Duration::from_secs(5)).await;
    let runs = AtomicUsize::new(0);
    for writes_many in [false, true] {
        let mut session = session(&client);
        let outcome = session.with_transaction(async |mut session| {
            runs.fetch_add(1, Ordering::Relaxed);
            match writes_many {
                true => client.insert("test", "c", [doc! { "_id": 1 }]).session(&mut session).await.map(drop),
                false => insert(&client, &mut session).await,
            }
        });
        let error = outcome.await.unwrap_err();
        assert!(matches!(error, ClientError::Selection(ServerSelectionError::Closed)), "{error}");
    }
    assert_eq!(runs.into_inner(), 2);
}

#[test]
fn transaction_without_a_runtime_fails_at_once() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (server, _) = runtime.block_on(start(primary(), answer));
    let unused = client(&server, "directConnection=true");
    let used = client(&server, "directConnection=true");
    let ended = tokio::runtime::Runtime::new().unwrap();
    ended.block_on(used.connect()).unwrap();
    drop(ended);
    for client in [unused, used] {
        let runs = AtomicUsize::new(0);
        let mut session = session(&client);
        let outcome = drive(session.with_transaction(async |mut session| {
            runs.fetch_add(1, Ordering::Relaxed);
            insert(&client, &mut session).await
        }));
        let error = outcome.unwrap_err();
        assert!(matches!(error, ClientError::Selection(ServerSelectionError::NoRuntime)), "{error}");
        assert_eq!(runs.into_inner(), 1);
    }
}

/// The body reports a failure that allows the transaction to be repeated, but without a runtime there is no timer for
/// the pause before it is repeated.
#[test]
fn repetition_without_a_runtime_does_not_pause() {
    let client = Client::from_uri("mongodb://localhost").unwrap();
    let mut session = session(&client);
    let runs = AtomicUsize::new(0);
    let outcome = drive(session.with_transaction(async |_| match runs.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => Err(SessionError::TransactionCutOff.into()),
        last => Ok(last),
    }));
    assert_eq!(outcome.unwrap(), 2);
}
