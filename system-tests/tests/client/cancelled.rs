//! Operations that are cancelled, at each of their await points.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bson::{Document, doc};
use tokio::time::{Instant, sleep, timeout};
use wharf::client::{Session, SessionOptions, TransactionState};
use wharf::{Client, ClientError, ReadPreference};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::repetitions::{primary, service, start};

/// Polls a future this many times, and drops it then. `None`: it was not ready by then.
pub(super) async fn cancel_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|context| {
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Waits until the condition holds.
pub(super) async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{what}");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until no operation has a connection, waits for one, or is drained.
async fn free(client: &Client, what: &str) {
    until(what, || {
        client.status().servers.iter().all(|server| {
            let pool = server.pool.as_ref().unwrap();
            assert!(pool.total <= 1, "{what}: {pool:?}");
            pool.in_use + pool.draining + pool.pending + pool.waiting == 0 && server.operations == 0
        })
    })
    .await;
}

/// A server with one connection for each client. `hello` tells of what kind it is.
async fn server(hello: Document) -> (ScriptedServer, Client) {
    let kind = if hello.contains_key("serviceId") { "loadBalanced=true" } else { "directConnection=true" };
    let (server, _) = start(hello, |command, _| {
        let batch =
            |field: &str, id: i64| doc! { "ok": 1, "cursor": { "id": id, "ns": "test.c", field: [{ "_id": 1 }] } };
        Answer::Reply(match name(command).as_str() {
            "find" => batch("firstBatch", 7),
            "getMore" => batch("nextBatch", 0),
            _ => doc! { "ok": 1, "n": 1 },
        })
    })
    .await;
    let client = Client::from_uri(&format!("mongodb://{}/?{kind}&maxPoolSize=1", server.address())).unwrap();
    (server, client)
}

async fn read_all(client: &Client, session: Option<&mut Session>) -> Result<usize, ClientError> {
    let find = client.find("test", "c", doc! {});
    let mut cursor = match session {
        Some(session) => find.session(session).await?,
        None => find.await?,
    };
    let mut count = 0;
    while cursor.next().await?.is_some() {
        count += 1;
    }
    Ok(count)
}

async fn transact(client: &Client, session: &mut Session) -> Result<usize, ClientError> {
    let body = async |mut session: Session| {
        client.insert("test", "c", [doc! {}]).session(&mut session).await?;
        read_all(client, Some(&mut session)).await
    };
    session.with_transaction(body).await
}

#[tokio::test(start_paused = true)]
async fn cancelled_operations_leave_their_only_connection_free() {
    for hello in [primary(), service()] {
        let (_server, client) = server(hello).await;
        for polls in 1.. {
            let read = cancel_after(polls, read_all(&client, None)).await;
            free(&client, &format!("a query, after {polls} polls")).await;
            if read.is_some() {
                assert!(matches!(read, Some(Ok(2))) && polls > 2, "{read:?} after {polls} polls");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_cancelled_transaction_is_ended_and_leaves_its_only_connection_free() {
    for hello in [primary(), service()] {
        let (server, client) = server(hello).await;
        for polls in 1.. {
            server.forget();
            let mut session = client.start_session(&SessionOptions::default()).unwrap();
            let done = cancel_after(polls, transact(&client, &mut session)).await;
            let is_open = session.transaction_state() == TransactionState::InProgress;
            drop(session);
            let what = format!("a transaction, after {polls} polls");
            free(&client, &what).await;
            let begun_and_ended = || {
                let sent = server.commands();
                let ends = ["commitTransaction", "abortTransaction"];
                let ended = sent.iter().filter(|command| ends.contains(&name(command).as_str())).count();
                (sent.iter().filter(|command| command.contains_key("startTransaction")).count(), ended)
            };
            // The abort begins in the background.
            until(&what, || {
                let (begun, ended) = begun_and_ended();
                begun == ended && (ended == 1 || !is_open)
            })
            .await;
            free(&client, &what).await;
            let (begun, ended) = begun_and_ended();
            assert_eq!(begun, ended, "{what}: {:?}", server.commands());
            if done.is_some() {
                assert!(matches!(done, Some(Ok(2))) && polls > 2, "{done:?} after {polls} polls");
                break;
            }
        }
    }
}

/// A transaction that stays open would block others, until the server ends it after a minute.
#[tokio::test(start_paused = true)]
async fn transaction_whose_commit_was_never_sent_is_aborted_with_its_session() {
    let (server, client) = server(primary()).await;
    let (preference, holder) = (ReadPreference::default(), std::sync::Mutex::new(None));
    let mut session = client.start_session(&SessionOptions::default()).unwrap();
    let committing = session.with_transaction(async |mut session| {
        client.insert("test", "c", [doc! {}]).session(&mut session).await?;
        // The commit waits for the only connection.
        let held = client.check_out(&preference).await?;
        holder.lock().unwrap().replace(held);
        Ok(())
    });
    timeout(Duration::from_secs(1), committing).await.unwrap_err();
    drop(session);
    drop(holder);
    let ended = |name: &str| server.command_names().iter().any(|other| other == name);
    until("the transaction is aborted", || ended("abortTransaction")).await;
    assert!(!ended("commitTransaction"));
}
