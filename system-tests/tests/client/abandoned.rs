//! Calls of `with_transaction` that are dropped.

use std::future::pending;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use wharf::client::{SessionError, SessionOptions, TransactionOptions, TransactionState};
use wharf::ClientError;
use wharf_testbed::scripted::name;

use super::cluster::{after, ok};
use super::cut_off::insert;
use super::repetitions::{client, count, primary, start};

fn is_refused<T>(outcome: Result<T, ClientError>) {
    let Err(error) = outcome else { panic!("it was not refused") };
    let cause = match &error {
        ClientError::Write(failure) => failure.cause.as_deref(),
        error => Some(error),
    };
    assert!(matches!(cause, Some(ClientError::Session(SessionError::AbortInProgress))), "{error}");
}

#[tokio::test(start_paused = true)]
async fn dropped_call_aborts_its_transaction_and_the_session_refuses_all_until_then() {
    let (server, arrived) = start(primary(), |command, _| match name(command).as_str() {
        "abortTransaction" => after(300, ok()),
        _ => ok(),
    })
    .await;
    let client = client(&server, "directConnection=true");
    let mut session = client.start_session(&SessionOptions::default()).unwrap();
    let call = session.with_transaction(async |mut session| {
        insert(&client, &mut session).await?;
        pending::<Result<(), ClientError>>().await
    });
    timeout(Duration::from_millis(50), call).await.unwrap_err();
    assert_eq!(session.transaction_state(), TransactionState::Aborted);
    is_refused(insert(&client, &mut session).await);
    is_refused(session.start_transaction(TransactionOptions::default()));
    is_refused(session.with_transaction(async |_| Ok(())).await);
    is_refused(session.commit_transaction().await);
    is_refused(session.abort_transaction().await);
    sleep(Duration::from_millis(500)).await;
    assert_eq!((count(&arrived, "insert"), count(&arrived, "abortTransaction")), (1, 1), "nothing else was sent");
    insert(&client, &mut session).await.unwrap();
    let sent = arrived.lock().unwrap().last().unwrap().clone();
    assert!(name(&sent) == "insert" && !sent.contains_key("autocommit"), "outside of a transaction: {sent}");
    session.with_transaction(async |mut session| insert(&client, &mut session).await).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn dropped_call_that_has_sent_nothing_leaves_no_transaction() {
    let (server, arrived) = start(primary(), |_, _| ok()).await;
    let client = client(&server, "directConnection=true");
    let mut session = client.start_session(&SessionOptions::default()).unwrap();
    let call = session.with_transaction(async |_| pending::<Result<(), ClientError>>().await);
    timeout(Duration::from_millis(50), call).await.unwrap_err();
    insert(&client, &mut session).await.unwrap();
    assert!(!arrived.lock().unwrap()[0].contains_key("autocommit"));
}
