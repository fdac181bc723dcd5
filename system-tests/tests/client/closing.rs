//! Cursors of transactions behind a load balancer, dropped right before another step of the transaction. The cursors
//! can only be reached through the transaction's connection.

use std::future::IntoFuture;
use std::time::Duration;

use bson::doc;
use tokio::runtime::Builder;
use tokio::time::{Instant, timeout};
use wharf::client::{Cursor, Session, TransactionOptions};
use wharf::{Client, ClientError};
use wharf_testbed::scripted::{Answer, name};

use super::cancelled::{cancel_after, until};
use super::cut_off::{Balancer, connections, insert, is_cut_off, session_of, usual};
use super::repetitions::balanced;

/// Longer than any operation here takes on the paused clock, unless it hangs.
const LONG: Duration = Duration::from_secs(60);

async fn find(client: &Client, session: &mut Session) -> Cursor {
    let mut cursor = client.find("test", "c", doc! {}).session(session).await.unwrap();
    assert!(cursor.next().await.unwrap().is_some());
    cursor
}

/// Returns the names of the commands. All commands must have arrived on the first connection.
fn on_one_connection(balancer: &Balancer) -> Vec<String> {
    let arrived = balancer.arrived();
    assert!(arrived.iter().all(|(_, number)| *number == 0), "{arrived:?}");
    arrived.into_iter().map(|(name, _)| name).collect()
}

/// Starts a load balancer whose servers give this answer to the command `wanted`, and the usual answers to all other
/// commands.
async fn answering(wanted: &'static str, answer: impl Fn() -> Answer + Clone + Send + 'static) -> Balancer {
    Balancer::start(move |command| if name(command) == wanted { answer() } else { usual(command) }).await
}

#[tokio::test(start_paused = true)]
async fn dropped_cursors_close_before_the_next_command_of_the_transaction() {
    let slow = || Answer::After(Duration::from_secs(1), Box::new(Answer::Reply(doc! { "ok": 1 })));
    for next in ["insert", "find", "getMore", "commitTransaction"] {
        for dropped in [1, 3] {
            let balancer = answering("killCursors", slow).await;
            let client = balanced(&balancer.server);
            let mut session = session_of(&client).await;
            let mut kept = find(&client, &mut session).await;
            let mut cursors = Vec::new();
            for _ in 0..dropped {
                cursors.push(find(&client, &mut session).await);
            }
            drop(cursors);
            match next {
                "insert" => insert(&client, &mut session).await.unwrap(),
                "find" => drop(find(&client, &mut session).await),
                "getMore" => assert!(kept.next().await.unwrap().is_some()),
                _ => session.commit_transaction().await.unwrap(),
            }
            let mut expected = vec!["find"; 1 + dropped];
            expected.extend(vec!["killCursors"; dropped]);
            expected.push(next);
            assert_eq!(on_one_connection(&balancer), expected);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_cursors_close_in_time_on_several_threads() {
    let balancer = Balancer::start(usual).await;
    let client = balanced(&balancer.server);
    let mut session = session_of(&client).await;
    for _ in 0..50 {
        drop(find(&client, &mut session).await);
        insert(&client, &mut session).await.unwrap();
    }
    drop(find(&client, &mut session).await);
    session.commit_transaction().await.unwrap();
    let commands = on_one_connection(&balancer);
    for turn in commands.chunks(3) {
        assert_eq!(turn[..2], ["find", "killCursors"], "{commands:?}");
    }
    assert_eq!(commands.last().unwrap(), "commitTransaction");
}

#[tokio::test(start_paused = true)]
async fn cursor_dropped_while_it_fetches_closes_before_the_next_operation() {
    let slow = || {
        let batch = doc! { "ok": 1, "cursor": { "id": 7_i64, "ns": "test.c", "nextBatch": [] } };
        Answer::After(Duration::from_secs(1), Box::new(Answer::Reply(batch)))
    };
    let balancer = answering("getMore", slow).await;
    let client = balanced(&balancer.server);
    let mut session = session_of(&client).await;
    let mut cursor = find(&client, &mut session).await;
    assert!(cancel_after(1, cursor.next()).await.is_none());
    drop(cursor);
    insert(&client, &mut session).await.unwrap();
    assert_eq!(on_one_connection(&balancer), ["find", "getMore", "killCursors", "insert"]);
}

#[tokio::test(start_paused = true)]
async fn fetch_that_would_be_repeated_ends_when_its_cursor_is_dropped() {
    let overloaded = || {
        let labels = ["SystemOverloadedError", "RetryableError"];
        Answer::Reply(doc! { "ok": 0, "code": 462, "errmsg": "overloaded", "errorLabels": labels.to_vec() })
    };
    let balancer = answering("getMore", overloaded).await;
    let client = balanced(&balancer.server);
    let mut session = session_of(&client).await;
    let mut cursor = find(&client, &mut session).await;
    // The operation is cancelled in the pause before the next attempt.
    let paused = async {
        until("the first attempt has failed", || balancer.count("getMore") == 1).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    tokio::select! {
        biased;
        () = paused => {}
        fetched = cursor.next() => panic!("the client repeats it: {fetched:?}"),
    }
    drop(cursor);
    timeout(LONG, insert(&client, &mut session)).await.expect("it does not wait for itself").unwrap();
    assert_eq!(on_one_connection(&balancer), ["find", "getMore", "killCursors", "insert"]);
}

#[tokio::test(start_paused = true)]
async fn cancelled_calls_that_wait_for_a_closing_cursor_hold_nothing_up() {
    let slow = || Answer::After(Duration::from_secs(1), Box::new(Answer::Reply(doc! { "ok": 1 })));
    let balancer = answering("killCursors", slow).await;
    let client = balanced(&balancer.server);
    let mut session = session_of(&client).await;
    let mut kept = find(&client, &mut session).await;
    drop(find(&client, &mut session).await);
    assert!(cancel_after(1, insert(&client, &mut session)).await.is_none());
    assert!(cancel_after(1, kept.next()).await.is_none());
    timeout(LONG, insert(&client, &mut session)).await.expect("nothing holds it up").unwrap();
    assert!(kept.next().await.unwrap().is_some());
    session.commit_transaction().await.unwrap();
    let expected = ["find", "find", "killCursors", "insert", "getMore", "commitTransaction"];
    assert_eq!(on_one_connection(&balancer), expected);
}

#[tokio::test(start_paused = true)]
async fn operation_waits_for_a_closing_cursor_within_its_time_limit() {
    const LIMIT: Duration = Duration::from_millis(100);
    let balancer = answering("killCursors", || Answer::Hang).await;
    let client = balanced(&balancer.server);
    let mut session = session_of(&client).await;
    let mut second = find(&client, &mut session).await;
    let mut third = client.find("test", "c", doc! {}).session(&mut session).timeout(LIMIT).await.unwrap();
    assert!(third.next().await.unwrap().is_some());
    drop(find(&client, &mut session).await);
    let insert = client.insert("test", "c", [doc! {}]).session(&mut session).timeout(LIMIT);
    let error = timeout(LONG, insert.into_future()).await.expect("it has a limit").unwrap_err();
    assert!(error.is_timeout(), "{error}");
    let error = timeout(LONG, third.next()).await.expect("it has a limit").unwrap_err();
    assert!(error.is_timeout(), "{error}");
    timeout(LONG, third.close_within(LIMIT)).await.expect("it has a limit");
    assert!(cancel_after(1, second.next()).await.is_none());
    timeout(LONG, second.close_within(LIMIT)).await.expect("its fetch ends");
    assert_eq!(balancer.count("killCursors"), 1);
}

#[tokio::test(start_paused = true)]
async fn abort_waits_for_a_closing_cursor_only_for_a_time() {
    for selection in [500, 5_000] {
        let balancer = answering("killCursors", || Answer::Hang).await;
        let limit = Duration::from_millis(selection);
        let uri =
            format!("mongodb://{}/?loadBalanced=true&serverSelectionTimeoutMS={selection}", balancer.server.address());
        let client = Client::from_uri(&uri).unwrap();
        let mut session = session_of(&client).await;
        drop(find(&client, &mut session).await);
        until("the cursor is closing", || balancer.count("killCursors") == 1).await;
        let begun = Instant::now();
        session.abort_transaction().await.unwrap();
        let waited = begun.elapsed();
        assert!(waited >= limit && waited < limit + Duration::from_secs(1), "{waited:?}");
        assert_eq!(balancer.arrived().last(), Some(&("abortTransaction".to_owned(), 1)));
        // The cursor is still closing, but does not hold up the next transaction.
        session.start_transaction(TransactionOptions::default()).unwrap();
        for _ in 0..2 {
            timeout(LONG, insert(&client, &mut session)).await.expect("it has its own connection").unwrap();
        }
        timeout(LONG, session.commit_transaction()).await.expect("it has its own connection").unwrap();
        assert_eq!(balancer.count("killCursors"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn cursor_dropped_right_before_the_abort_ends_with_it() {
    let balancer = Balancer::start(usual).await;
    let client = balanced(&balancer.server);
    let mut session = session_of(&client).await;
    let cursors = (find(&client, &mut session).await, find(&client, &mut session).await);
    drop(cursors);
    session.abort_transaction().await.unwrap();
    assert_eq!(on_one_connection(&balancer), ["find", "find", "abortTransaction"]);
    until("nothing is in use", || client.status().servers[0].pool.as_ref().unwrap().in_use == 0).await;
    assert_eq!(connections(&client), 1);
}

#[tokio::test(start_paused = true)]
async fn cursor_whose_connection_has_failed_is_not_closed_on_another_one() {
    let balancer = answering("insert", || Answer::Close).await;
    let client = balanced(&balancer.server);
    let mut session = session_of(&client).await;
    let cursors = (find(&client, &mut session).await, find(&client, &mut session).await);
    let error = insert(&client, &mut session).await.unwrap_err();
    assert!(error.has_label("TransientTransactionError"), "{error}");
    drop(cursors);
    session.abort_transaction().await.unwrap();
    let names: Vec<_> = balancer.arrived().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["find", "find", "insert", "abortTransaction"]);
}

#[tokio::test(start_paused = true)]
async fn cursors_after_one_that_loses_the_connection_are_not_closed_on_another_one() {
    for next in ["insert", "commitTransaction"] {
        let balancer = answering("killCursors", || Answer::Close).await;
        let client = balanced(&balancer.server);
        let mut session = session_of(&client).await;
        let cursors = (find(&client, &mut session).await, find(&client, &mut session).await);
        drop(cursors);
        // The application does not learn of the loss before it next uses the transaction.
        let mut expected = vec![("killCursors".to_owned(), 0)];
        match next {
            "insert" => {
                let error = insert(&client, &mut session).await.unwrap_err();
                assert!(error.has_label("TransientTransactionError"), "{error}");
            }
            _ => {
                session.commit_transaction().await.unwrap();
                expected.push((next.to_owned(), 1));
            }
        }
        let arrived: Vec<_> = balancer.arrived().into_iter().skip(2).collect();
        assert_eq!(arrived, expected);
    }
}

#[test]
fn cursor_whose_runtime_ends_holds_nothing_up() {
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let servers = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let balancer = servers.block_on(Balancer::start(usual));
    let client = balanced(&balancer.server);
    let first = runtime();
    let mut session = first.block_on(async {
        let mut session = session_of(&client).await;
        drop(find(&client, &mut session).await);
        session
    });
    drop(first);
    let next = async { timeout(LONG, insert(&client, &mut session)).await.expect("nothing holds it up") };
    let error: ClientError = runtime().block_on(next).unwrap_err();
    assert!(error.has_label("TransientTransactionError"), "its connection has ended with its runtime: {error}");
    assert_eq!(balancer.count("killCursors"), 0);
}

#[tokio::test(start_paused = true)]
async fn fetch_that_was_cancelled_still_cuts_the_transaction_off() {
    let balancer = Balancer::start(usual).await;
    let client = balanced(&balancer.server);
    let mut session = session_of(&client).await;
    let mut cursor = find(&client, &mut session).await;
    let other = find(&client, &mut session).await;
    assert!(cancel_after(1, cursor.next()).await.is_none());
    // The cursor cannot close, because the fetch holds the connection.
    drop(other);
    is_cut_off(timeout(LONG, insert(&client, &mut session)).await.expect("nothing holds it up"));
    session.abort_transaction().await.unwrap();
}
