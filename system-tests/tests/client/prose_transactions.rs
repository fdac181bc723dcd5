//! Prose tests that do not need a mongos. They come from Transactions and from the Convenient API for Transactions. The
//! servers follow scripts, in virtual time.

use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc, rawdoc};
use tokio::time::{Instant, sleep};
use wharf::client::TransactionOptions;

use wharf::{Acknowledgement, CheckOutError, Client, ClientError, Operation, OperationError, WriteConcern};
use wharf_testbed::scripted::{Answer, name};

use super::cluster::{Cluster, after, failure, ok};

fn insert() -> RawDocumentBuf {
    rawdoc! { "insert": "c", "documents": [{ "n": 1 }] }
}

/// "PoolClearedError Prose Test".
#[tokio::test(start_paused = true)]
async fn cleared_pool_is_a_transient_error_of_a_transaction() {
    let set = Cluster::replica_set(1, |_, command, _| match name(command).as_str() {
        "ping" => after(1_000, Answer::Close),
        _ => ok(),
    })
    .await;
    let (client, _) = set.client("maxPoolSize=1").await;
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    let (ping, insert) = (rawdoc! { "ping": 1 }, insert());
    let (lost, cleared) = tokio::join!(
        client.run_command("admin", &ping),
        client.run(Operation::write("test", &insert).session(&mut session)),
    );
    lost.unwrap_err();
    let error = cleared.unwrap_err();
    let cause = error.operation_error().unwrap();
    assert!(matches!(cause, OperationError::CheckOut(CheckOutError::PoolCleared(_))), "{cause:?}");
    assert!(error.has_label("TransientTransactionError"), "{error:?}");
}

/// "Options Inside Transaction Prose Tests" 1.0, and the same test with the client's write concern.
#[tokio::test(start_paused = true)]
async fn write_concern_from_outside_does_not_reach_into_a_transaction() {
    let set = Cluster::replica_set(1, |_, _, _| ok()).await;
    let (client, told) = set.client("w=0").await;
    let mut session = client.start_session().await.unwrap();
    let majority = WriteConcern::default().w(Acknowledgement::Mode("majority".to_owned()));
    let options = TransactionOptions::default().write_concern(majority);
    session.start_transaction(options).unwrap();
    let reply = client.run(Operation::write("test", &insert()).session(&mut session)).await.unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1, "the reply is awaited");
    client.insert("test", "c", [doc! { "n": 1 }]).session(&mut session).await.unwrap();
    let unacknowledged = WriteConcern::default().w(Acknowledgement::Servers(0));
    let collection = client.database("test").collection::<Document>("c").write_concern(unacknowledged);
    assert!(collection.insert_one(doc! { "n": 1 }).session(&mut session).await.unwrap().acknowledged);
    session.commit_transaction().await.unwrap();
    let inserts = told.started("insert");
    assert!(inserts.len() == 3 && inserts.iter().all(|insert| !insert.contains_key("writeConcern")), "{inserts:?}");
    let commit = &told.started("commitTransaction")[0];
    assert_eq!(commit.get_document("writeConcern").unwrap(), &doc! { "w": "majority" });
}

/// Runs a transaction that pauses, and then inserts a document.
async fn transaction(client: &Client, pause: Duration) -> Result<&'static str, ClientError> {
    let mut session = client.start_session().await.unwrap();
    session
        .with_transaction(async |mut session| {
            sleep(pause).await;
            let client = session.client().clone();
            client.run(Operation::write("test", &insert()).session(&mut session)).await?;
            Ok("the value")
        })
        .await
}

/// "Callback Raises a Custom Error" and "Callback Returns a Value".
#[tokio::test(start_paused = true)]
async fn callback_returns_its_value_or_its_own_error_at_once() {
    let set = Cluster::replica_set(1, |_, _, _| ok()).await;
    let (client, told) = set.client("").await;
    assert_eq!(transaction(&client, Duration::ZERO).await.unwrap(), "the value");
    let mut session = client.start_session().await.unwrap();
    let mut runs = 0;
    let ended = session.with_transaction(async |_| {
        runs += 1;
        Err::<(), _>(ClientError::other("custom"))
    });
    let error = ended.await.unwrap_err();
    assert!(matches!(error, ClientError::Other(_)) && error.to_string() == "custom", "{error:?}");
    assert_eq!((runs, told.started("commitTransaction").len()), (1, 1));
}

/// "Retry Timeout is Enforced".
#[tokio::test(start_paused = true)]
async fn transaction_is_not_repeated_after_two_minutes() {
    for (command, label, attempts) in [
        ("insert", "TransientTransactionError", 1),
        // The commit itself is retried once.
        ("commitTransaction", "UnknownTransactionCommitResult", 1),
        ("commitTransaction", "TransientTransactionError", 1),
    ] {
        for (pause, is_repeated) in [(119, true), (121, false)] {
            let set =
                Cluster::replica_set(1, move |_, sent: &Document, number| match name(sent) == command && number == 0 {
                    true => failure(251, &[label]),
                    false => ok(),
                })
                .await;
            let (client, told) = set.client("").await;
            let outcome = transaction(&client, Duration::from_secs(pause)).await;
            let sent = told.started(command).len();
            if is_repeated {
                assert_eq!((outcome.unwrap(), sent), ("the value", attempts + 1), "{command} {label}");
                continue;
            }
            let error = outcome.unwrap_err();
            assert_eq!(sent, attempts, "{command} {label}");
            let ClientError::TransactionTimeout { last, .. } = &error else { panic!("{error:?}") };
            assert_eq!(last.server_error().unwrap().code, 251);
            assert!(error.has_label(label) && last.has_label(label), "{error:?}");
            assert!(error.is_timeout());
        }
    }
}

/// "Retry Backoff is Enforced", with real random numbers. The unit tests of `src/client/session/repetition.rs` use the
/// smallest and the largest random number.
#[tokio::test(start_paused = true)]
async fn repetitions_of_a_transaction_pause() {
    const ROUNDS: u32 = 100;
    let set = Cluster::replica_set(1, |_, command, number| match name(command).as_str() {
        "commitTransaction" if number % 14 < 13 => failure(251, &["TransientTransactionError"]),
        _ => ok(),
    })
    .await;
    let (client, told) = set.client("").await;
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        transaction(&client, Duration::ZERO).await.unwrap();
        assert!(begun.elapsed() < Duration::from_millis(2_300), "{:?}", begun.elapsed());
    }
    assert_eq!(told.started("commitTransaction").len(), 14 * ROUNDS as usize);
    // The expected mean is half of 2.28 s. The mean of this many pauses is off by more than 0.15 s only once in ten
    // million runs.
    let mean = (begun.elapsed() / ROUNDS).as_millis();
    assert!((990..1_300).contains(&mean), "{mean} ms");
}
