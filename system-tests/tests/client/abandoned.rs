//! Dropped calls to `with_transaction`, and what happens to the server sessions of cancelled operations.

use std::collections::BTreeSet;
use std::future::pending;
use std::time::Duration;

use bson::{Document, doc, rawdoc};
use tokio::time::{sleep, timeout};
use wharf::client::{SessionError, TransactionOptions, TransactionState};
use wharf::{Client, ClientError, ReadPreference};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::cancelled::until;
use super::cluster::{after, failure, ok};
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
    let mut session = client.start_session().await.unwrap();
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
    let mut session = client.start_session().await.unwrap();
    let call = session.with_transaction(async |_| pending::<Result<(), ClientError>>().await);
    timeout(Duration::from_millis(50), call).await.unwrap_err();
    insert(&client, &mut session).await.unwrap();
    assert!(!arrived.lock().unwrap()[0].contains_key("autocommit"));
}

/// Starts a primary, and a client that may open only one connection.
async fn only_connection(answer: fn(&Document, usize) -> Answer, more: &str) -> (ScriptedServer, Client) {
    let (server, _) = start(primary(), answer).await;
    let client = client(&server, &format!("directConnection=true&maxPoolSize=1{more}"));
    client.connect().await.unwrap();
    (server, client)
}

fn sessions(server: &ScriptedServer) -> BTreeSet<String> {
    server.commands().iter().filter_map(|command| Some(command.get_document("lsid").ok()?.to_string())).collect()
}

fn slow(command: &Document, _: usize) -> Answer {
    if name(command) == "find" { after(20, super::cluster::batch("firstBatch", 0, 1)) } else { ok() }
}

fn is_free(client: &Client) -> bool {
    let pool = client.status().servers[0].pool.unwrap();
    pool.in_use + pool.draining + pool.pending == 0
}

#[tokio::test(start_paused = true)]
async fn sessions_of_cancelled_operations_come_back_when_their_connections_are_drained() {
    let (server, client) = only_connection(slow, "").await;
    for _ in 0..20 {
        timeout(Duration::from_millis(5), async { client.find("test", "c", doc! {}).await }).await.unwrap_err();
        until("the connection is drained", || is_free(&client)).await;
    }
    assert_eq!(sessions(&server).len(), 1, "{:?}", server.commands());
    // The server sessions of explicit sessions are also returned.
    for _ in 0..20 {
        let mut session = client.start_session().await.unwrap();
        let find = async { client.find("test", "c", doc! {}).session(&mut session).await };
        timeout(Duration::from_millis(5), find).await.unwrap_err();
        drop(session);
        until("the connection is drained", || is_free(&client)).await;
    }
    assert_eq!(sessions(&server).len(), 1);
    assert!(!server.command_names().contains(&"endSessions".to_owned()));
}

/// An operation that is cancelled between its attempts has nothing in flight.
#[tokio::test(start_paused = true)]
async fn session_of_an_operation_that_is_cancelled_in_its_pause_comes_back_at_once() {
    let overloaded = |command: &Document, _| match name(command).as_str() {
        "ping" => ok(),
        _ => failure(462, &["SystemOverloadedError", "RetryableError"]),
    };
    let (server, client) = only_connection(overloaded, "").await;
    let primary = ReadPreference::default();
    for _ in 0..10 {
        let arrived = server.commands().len();
        tokio::select! {
            biased;
            _ = async { client.find("test", "c", doc! {}).await } => unreachable!("it waits for the connection"),
            () = async {
                server.until(arrived + 1).await;
                // The operation has received its error, and must wait for the connection before it can retry.
                drop(client.check_out(&primary).await.unwrap());
            } => {}
        }
    }
    assert_eq!(sessions(&server).len(), 1, "{:?}", server.commands());
}

#[tokio::test(start_paused = true)]
async fn session_of_a_cancelled_operation_whose_connection_is_closed_is_ended() {
    for is_explicit in [false, true] {
        let (server, client) = only_connection(slow, "").await;
        let mut options = wharf::Options::clone(client.options());
        options.drain_timeout = Duration::ZERO;
        let client = Client::new(options).unwrap();
        client.connect().await.unwrap();
        match is_explicit {
            true => {
                let mut session = client.start_session().await.unwrap();
                let find = async { client.find("test", "c", doc! {}).session(&mut session).await };
                timeout(Duration::from_millis(5), find).await.unwrap_err();
                assert!(!server.command_names().contains(&"endSessions".to_owned()), "it is in use");
            }
            false => {
                let find = async { client.find("test", "c", doc! {}).await };
                timeout(Duration::from_millis(5), find).await.unwrap_err();
            }
        }
        until("the session is ended", || server.command_names().contains(&"endSessions".to_owned())).await;
        let commands = server.commands();
        let of = |wanted: &str| commands.iter().find(|command| name(command) == wanted).unwrap().clone();
        assert_eq!(
            of("endSessions").get_array("endSessions").unwrap()[0].as_document(),
            of("find").get_document("lsid").ok()
        );
        client.run_command("test", &rawdoc! { "ping": 1 }).await.unwrap();
        let ping = server.commands().pop().unwrap();
        assert_ne!(ping.get("lsid"), of("find").get("lsid"));
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_does_not_answer_endsessions_keeps_no_connection() {
    let answer = |command: &Document, number| match name(command).as_str() {
        "endSessions" => Answer::Hang,
        _ => slow(command, number),
    };
    let (server, client) = only_connection(answer, "").await;
    let mut options = wharf::Options::clone(client.options());
    options.drain_timeout = Duration::ZERO;
    let client = Client::new(options).unwrap();
    client.connect().await.unwrap();
    let find = async { client.find("test", "c", doc! {}).await };
    timeout(Duration::from_millis(5), find).await.unwrap_err();
    until("the session is ended", || server.command_names().contains(&"endSessions".to_owned())).await;
    assert!(!is_free(&client), "it waits for the answer");
    until("the connection is free", || is_free(&client)).await;
    client.run_command("test", &rawdoc! { "ping": 1 }).await.unwrap();
}
