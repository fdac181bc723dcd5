//! The batches that cursors fetch after the first batch, on servers that follow scripts.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bson::{Document, Timestamp, doc};
use futures_core::Stream;
use tokio::time::timeout;
use wharf::client::{TimeoutMode, TransactionOptions};
use wharf::{Client, ClientError};
use wharf_testbed::scripted::{Answer, name};

use super::cancelled::{cancel_after, until};
use super::cluster::{Cluster, after, batch, failure, ok};
use super::cut_off::{Balancer, connections, usual};
use super::events::Events;
use super::repetitions::{balanced, client, count, primary, start};

fn answer(command: &Document) -> Answer {
    match name(command).as_str() {
        "find" => batch("firstBatch", 7, 1),
        "getMore" => batch("nextBatch", 7, 1),
        _ => ok(),
    }
}

/// Returns the last command with this name.
fn last(arrived: &std::sync::Mutex<Vec<Document>>, wanted: &str) -> Document {
    arrived.lock().unwrap().iter().rev().find(|command| name(command) == wanted).unwrap().clone()
}

fn in_use(client: &Client) -> u32 {
    client.status().servers[0].pool.as_ref().unwrap().in_use
}

fn time(time: u32) -> Timestamp {
    Timestamp { time, increment: 1 }
}

#[tokio::test(start_paused = true)]
async fn stream_of_a_tailable_cursor_pauses_between_empty_batches() {
    let (server, arrived) = start(primary(), |command, number| match name(command).as_str() {
        "getMore" if number < 100 => batch("nextBatch", 7, 0),
        _ => answer(command),
    })
    .await;
    let client = client(&server, "directConnection=true");
    let mut cursor = client.find("test", "c", doc! {}).options(doc! { "tailable": true }).await.unwrap();
    let mut next = async || poll_fn(|context| Pin::new(&mut cursor).poll_next(context)).await;
    next().await.unwrap().unwrap();
    timeout(Duration::from_millis(500), next()).await.unwrap_err();
    let fetched = count(&arrived, "getMore");
    assert!((5..=60).contains(&fetched), "{fetched} batches in half a second");
    next().await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn next_waits_for_a_document_at_the_end_of_a_tailable_cursor() {
    let (server, arrived) = start(primary(), |command, number| match name(command).as_str() {
        "getMore" if number < 3 => batch("nextBatch", 7, 0),
        _ => answer(command),
    })
    .await;
    let client = client(&server, "directConnection=true");
    let open = || client.find("test", "c", doc! {}).options(doc! { "tailable": true });
    let mut cursor = open().await.unwrap();
    assert!(cursor.next().await.unwrap().is_some());
    assert!(cursor.next_if_any().await.unwrap().is_none() && !cursor.is_over());
    assert!(cursor.next().await.unwrap().is_some());
    assert_eq!(count(&arrived, "getMore"), 4);
    assert!(open().await.unwrap().advance().await.unwrap());
}

/// Load Balancers, "Behaviour With Cursors".
#[tokio::test(start_paused = true)]
async fn balanced_cursor_whose_fetch_failed_keeps_its_connection_until_it_is_dropped() {
    for (is_lost, closes) in [(true, false), (true, true), (false, false), (false, true)] {
        let balancer = Balancer::start(move |command| match (name(command).as_str(), is_lost) {
            ("getMore", true) => Answer::Close,
            ("getMore", false) => failure(100, &[]),
            _ => usual(command),
        })
        .await;
        let client = balanced(&balancer.server);
        let mut cursor = client.find("test", "c", doc! {}).await.unwrap();
        assert!(cursor.next().await.unwrap().is_some());
        cursor.next().await.unwrap_err();
        assert!(cursor.next().await.unwrap().is_none() && cursor.is_over());
        // A command from another task. If the cursor were closed in the background, that would happen before this
        // command.
        client.run_command("test", &bson::rawdoc! { "ping": 1 }).await.unwrap();
        assert_eq!((in_use(&client), balancer.count("killCursors")), (1, 0));
        if closes {
            cursor.close().await
        } else {
            drop(cursor)
        }
        until("the connection comes back", || in_use(&client) == 0).await;
        assert_eq!(balancer.count("killCursors"), usize::from(!is_lost));
    }
}

/// A server behind a load balancer closes a connection's cursors together with the connection.
#[tokio::test(start_paused = true)]
async fn balanced_cursor_whose_fetch_timed_out_is_closed_with_its_connection() {
    let limit = Duration::from_millis(100);
    for drops_while_fetching in [false, true] {
        let balancer = Balancer::start(|command| match name(command).as_str() {
            "getMore" => after(200, usual(command)),
            _ => usual(command),
        })
        .await;
        let client = balanced(&balancer.server);
        let find = client.find("test", "c", doc! {}).timeout(limit).timeout_mode(TimeoutMode::Iteration);
        let mut cursor = find.await.unwrap();
        assert!(cursor.next().await.unwrap().is_some());
        match drops_while_fetching {
            true => assert!(cancel_after(1, cursor.next()).await.is_none()),
            false => assert!(cursor.next().await.unwrap_err().is_timeout()),
        }
        drop(cursor);
        until("the connection is closed", || connections(&client) == 0).await;
        assert_eq!(balancer.count("killCursors"), 0);
    }
}

/// Load Balancers, "Connection Pinning".
#[tokio::test(start_paused = true)]
async fn balanced_cursor_gives_its_connection_back_with_the_last_batch() {
    let balancer = Balancer::start(|command| match name(command).as_str() {
        "getMore" => batch("nextBatch", 0, 1),
        _ => usual(command),
    })
    .await;
    let client = balanced(&balancer.server);
    let mut cursor = client.find("test", "c", doc! {}).await.unwrap();
    assert!(cursor.next().await.unwrap().is_some());
    assert_eq!(in_use(&client), 1);
    assert!(cursor.next().await.unwrap().is_some());
    assert_eq!(in_use(&client), 0, "the cursor has ended on the server");
    assert!(cursor.next().await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn lost_connection_of_a_get_more_marks_the_server_and_clears_its_pool() {
    let (server, _) = start(primary(), |command, _| match name(command).as_str() {
        "getMore" => Answer::Close,
        _ => answer(command),
    })
    .await;
    let options = format!("mongodb://{}/?directConnection=true&serverMonitoringMode=poll", server.address());
    let events = Events::default();
    let client = Client::builder(wharf::Options::parse(&options).unwrap()).topology_subscriber(events.clone());
    let client = client.build().unwrap();
    let mut cursor = client.find("test", "c", doc! {}).await.unwrap();
    cursor.next().await.unwrap();
    let generation = || client.status().servers[0].pool.as_ref().unwrap().generation;
    assert_eq!(generation(), 0);
    cursor.next().await.unwrap_err();
    assert_eq!((client.status().servers[0].server_type, generation()), ("Unknown", 1));
}

#[tokio::test(start_paused = true)]
async fn times_of_a_fetched_batch_are_those_of_the_client_and_of_the_session() {
    let (server, arrived) = start(primary(), |command, _| {
        let Answer::Reply(mut reply) = answer(command) else { unreachable!("all are replies") };
        let number = if name(command) == "getMore" { 9 } else { 5 };
        reply.insert("$clusterTime", doc! { "clusterTime": time(number) });
        reply.insert("operationTime", time(number));
        Answer::Reply(reply)
    })
    .await;
    let client = client(&server, "directConnection=true");
    let mut session = client.start_session().await.unwrap();
    let mut cursor = client.find("test", "c", doc! {}).session(&mut session).await.unwrap();
    cursor.next().await.unwrap();
    assert_eq!(session.operation_time(), Some(time(5)));
    cursor.next().await.unwrap();
    assert_eq!(session.operation_time(), Some(time(9)));
    client.run_command("test", &bson::rawdoc! { "ping": 1 }).await.unwrap();
    let sent = last(&arrived, "ping");
    assert_eq!(sent.get_document("$clusterTime").unwrap(), &doc! { "clusterTime": time(9) });
}

#[tokio::test(start_paused = true)]
async fn session_whose_get_more_lost_its_connection_is_not_used_again() {
    let (server, arrived) = start(primary(), |command, _| match name(command).as_str() {
        "getMore" => Answer::Close,
        _ => answer(command),
    })
    .await;
    let client = client(&server, "directConnection=true");
    let mut cursor = client.find("test", "c", doc! {}).await.unwrap();
    cursor.next().await.unwrap();
    cursor.next().await.unwrap_err();
    drop(cursor);
    // The session is in use until the cursor is closed.
    until("the cursor is closed", || count(&arrived, "killCursors") == 1 && in_use(&client) == 0).await;
    let ping = bson::rawdoc! { "ping": 1 };
    client.run_command("test", &ping).await.unwrap();
    assert_ne!(last(&arrived, "ping").get("lsid"), last(&arrived, "getMore").get("lsid"));
}

#[tokio::test(start_paused = true)]
async fn retried_write_has_its_number_and_its_session_and_the_session_is_not_used_again() {
    let (server, arrived) = start(primary(), |command, number| match (name(command).as_str(), number) {
        ("insert", 1) => Answer::Close,
        _ => answer(command),
    })
    .await;
    let client = client(&server, "directConnection=true");
    for _ in 0..3 {
        client.insert("test", "c", [doc! {}]).await.unwrap();
    }
    let sent: Vec<_> = arrived.lock().unwrap().clone();
    let numbers: Vec<_> = sent.iter().map(|insert| insert.get_i64("txnNumber").unwrap()).collect();
    assert_eq!(numbers, [1, 2, 2, 1], "the number of a session is raised for each write");
    let is_same = |one: usize, other: usize| sent[one].get("lsid") == sent[other].get("lsid");
    assert!(is_same(0, 1) && is_same(1, 2) && !is_same(2, 3), "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn get_more_of_a_transaction_is_a_part_of_it() {
    let (server, arrived) = start(primary(), |command, _| answer(command)).await;
    let client = client(&server, "directConnection=true");
    let mut session = client.start_session().await.unwrap();
    for number in [1_i64, 2] {
        session.start_transaction(TransactionOptions::default()).unwrap();
        let mut cursor = client.find("test", "c", doc! {}).session(&mut session).await.unwrap();
        for _ in 0..2 {
            assert!(cursor.next().await.unwrap().is_some());
        }
        let sent = last(&arrived, "getMore");
        assert_eq!((sent.get_i64("txnNumber").unwrap(), sent.get_bool("autocommit").unwrap()), (number, false));
        assert!(!sent.contains_key("startTransaction") && sent.get("lsid") == last(&arrived, "find").get("lsid"));
        session.commit_transaction().await.unwrap();
        // The cursor outlived its transaction.
        assert!(cursor.next().await.unwrap().is_some());
        assert!(!last(&arrived, "getMore").contains_key("txnNumber"));
    }
}

/// Transactions, "recoveryToken field".
#[tokio::test(start_paused = true)]
async fn recovery_tokens_of_batches_and_commits_are_kept() {
    let cluster = Cluster::of_mongos(1, |_, command, number| {
        let Answer::Reply(mut reply) = answer(command) else { unreachable!("all are replies") };
        reply.insert("recoveryToken", doc! { "of": name(command), "number": number as i64 });
        Answer::Reply(reply)
    })
    .await;
    let (client, told) = cluster.client("").await;
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    let mut cursor = client.find("test", "c", doc! {}).session(&mut session).await.unwrap();
    for _ in 0..2 {
        cursor.next().await.unwrap();
    }
    for _ in 0..2 {
        session.commit_transaction().await.unwrap();
    }
    let commits = told.started("commitTransaction");
    let tokens: Vec<_> = commits.iter().map(|commit| commit.get_document("recoveryToken").unwrap()).collect();
    let expected = [("getMore", 0), ("commitTransaction", 0)];
    assert_eq!(tokens, expected.map(|(of, number)| doc! { "of": of, "number": number as i64 }).each_ref());
    // The token of a batch that arrives after the transaction does not belong to the next transaction.
    cursor.next().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    cursor.next().await.unwrap();
    client.insert("test", "c", [doc! {}]).session(&mut session).await.unwrap();
    session.abort_transaction().await.unwrap();
    let abort = told.started("abortTransaction").pop().unwrap();
    assert_eq!(abort.get_document("recoveryToken").unwrap().get_str("of").unwrap(), "insert");
}

/// Retryable Writes, "Executing Retryable Write Commands": the retry of a commit avoids the mongos that failed.
#[tokio::test(start_paused = true)]
async fn repeated_commit_avoids_the_mongos_that_has_failed() {
    // A choice between two servers is right by chance half the time.
    for _ in 0..20 {
        let cluster = Cluster::of_mongos(2, |_, command, number| match (name(command).as_str(), number) {
            ("commitTransaction", 0) => failure(6, &["RetryableWriteError"]),
            _ => answer(command),
        })
        .await;
        let (client, _) = cluster.client("localThresholdMS=1000").await;
        let mut session = client.start_session().await.unwrap();
        session.start_transaction(TransactionOptions::default()).unwrap();
        client.insert("test", "c", [doc! {}]).session(&mut session).await.unwrap();
        let (first, _) = cluster.arrived("insert").pop().unwrap();
        session.commit_transaction().await.unwrap_err();
        let commits: Vec<_> = cluster.arrived("commitTransaction").into_iter().map(|(server, _)| server).collect();
        assert_eq!(commits, [first, 1 - first]);
    }
}

/// Load Balancers, "Behaviour With Transactions", and Transactions, "When to unpin".
#[tokio::test(start_paused = true)]
async fn commit_keeps_its_connection_until_it_fails_or_the_session_goes_on() {
    for fails in [false, true] {
        let balancer = Balancer::start(move |command| match name(command).as_str() {
            "commitTransaction" if fails => failure(64, &["UnknownTransactionCommitResult"]),
            _ => usual(command),
        })
        .await;
        let client = balanced(&balancer.server);
        let mut session = client.start_session().await.unwrap();
        session.start_transaction(TransactionOptions::default()).unwrap();
        client.insert("test", "c", [doc! {}]).session(&mut session).await.unwrap();
        assert_eq!(in_use(&client), 1);
        let committed: Result<(), ClientError> = session.commit_transaction().await;
        assert_eq!((committed.is_err(), in_use(&client)), (fails, u32::from(!fails)));
        client.insert("test", "c", [doc! {}]).session(&mut session).await.unwrap();
        assert_eq!(in_use(&client), 0);
    }
}
