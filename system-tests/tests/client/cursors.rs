//! Cursors on a real server.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bson::{RawDocumentBuf, rawdoc};
use futures_core::Stream;
use serde::Deserialize;
use wharf::endpoint::OutgoingSequence;
use wharf::{Client, Operation};
use wharf_testbed::mongod::{self, Mongod};

use super::cancelled::cancel_after;

/// Returns the shared server and a client for it. Creates a collection with `documents` documents for this test.
async fn collection(name: &str, documents: i32) -> (Arc<Mongod>, Client) {
    let server = mongod::shared().unwrap();
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let _ = client.run(Operation::write("cursors", &rawdoc! { "drop": name })).await;
    let documents: Vec<_> = (0..documents).map(|number| rawdoc! { "_id": number, "text": "some text" }).collect();
    let sequences = [OutgoingSequence::new("documents", &documents)];
    let insert = rawdoc! { "insert": name };
    client.run(Operation::write("cursors", &insert).sequences(&sequences)).await.unwrap();
    (server, client)
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

/// Returns the number of cursors that are open on the namespace.
async fn open_cursors(client: &Client, name: &str) -> usize {
    let pipeline = rawdoc! {
        "aggregate": 1,
        "pipeline": [
            { "$currentOp": { "idleCursors": true } },
            { "$match": { "type": "idleCursor", "ns": format!("cursors.{name}") } },
        ],
        "cursor": {},
    };
    let mut cursor = client.cursor(Operation::read("admin", &pipeline)).await.unwrap();
    let mut count = 0;
    while cursor.next().await.unwrap().is_some() {
        count += 1;
    }
    count
}

/// Waits until the condition holds, and fails after ten seconds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursor_lends_all_documents_of_several_batches() {
    let (_server, client) = collection("several", 1_000).await;
    let find = rawdoc! { "find": "several", "sort": { "_id": 1 }, "batchSize": 99 };
    let mut cursor = client.cursor(Operation::read("cursors", &find)).await.unwrap();
    for expected in 0..1_000 {
        let document = cursor.next().await.unwrap().unwrap();
        assert_eq!(document.get_i32("_id").unwrap(), expected);
    }
    assert!(cursor.next().await.unwrap().is_none());
    assert!(cursor.is_over());
    drop(cursor);
    assert_eq!(open_cursors(&client, "several").await, 0);
    assert_eq!(client.status().servers[0].pool.as_ref().unwrap().in_use, 0);
}

#[derive(Debug, PartialEq, Deserialize)]
struct Thing {
    #[serde(rename = "_id")]
    id: i32,
    text: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursor_is_a_stream_of_typed_documents() {
    let (_server, client) = collection("typed", 5).await;
    let find = rawdoc! { "find": "typed", "sort": { "_id": 1 }, "batchSize": 2 };
    let mut things = client.cursor(Operation::read("cursors", &find)).await.unwrap().typed::<Thing>();
    for id in 0..5 {
        assert_eq!(next(&mut things).await.unwrap().unwrap(), Thing { id, text: "some text".to_owned() });
    }
    assert!(next(&mut things).await.is_none());
    let mut raw = client.cursor(Operation::read("cursors", &find)).await.unwrap();
    let first: RawDocumentBuf = next(&mut raw).await.unwrap().unwrap();
    assert_eq!(first, rawdoc! { "_id": 0, "text": "some text" });
    let mut wrong = raw.typed::<Vec<i32>>();
    let error = next(&mut wrong).await.unwrap().unwrap_err().to_string();
    assert!(error.contains("cannot be read"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_cursor_is_closed_on_the_server() {
    let (_server, client) = collection("dropped", 100).await;
    let find = rawdoc! { "find": "dropped", "batchSize": 10 };
    let mut cursor = client.cursor(Operation::read("cursors", &find)).await.unwrap();
    cursor.next().await.unwrap().unwrap();
    assert_eq!(open_cursors(&client, "dropped").await, 1);
    drop(cursor);
    until("the cursor is closed", async || open_cursors(&client, "dropped").await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_that_is_cancelled_at_any_point_leaves_no_cursor_open() {
    let (server, plain) = collection("unopened", 300).await;
    // The reply arrives after the first poll, even if the machine is busy.
    let block = rawdoc! {
        "configureFailPoint": "failCommand", "mode": "alwaysOn",
        "data": { "failCommands": ["find"], "blockConnection": true, "blockTimeMS": 250, "appName": "unopened" },
    };
    plain.run(Operation::new("admin", &block)).await.unwrap();
    let client = Client::from_uri(&format!("mongodb://{}/?appName=unopened", server.address())).unwrap();
    for comment in ["short", &"a long comment, so that the command takes several writes".repeat(20_000)] {
        for polls in 1.. {
            let find = client.find("cursors", "unopened", rawdoc! {}).options(rawdoc! { "comment": comment });
            let opened = cancel_after(polls, find.into_future()).await;
            // If a check-out were waiting for the connection, it would not be drained.
            let is_draining =
                || client.status().servers.iter().any(|server| server.pool.as_ref().unwrap().draining > 0);
            until("the connection is drained", async || !is_draining()).await;
            assert_eq!(open_cursors(&plain, "unopened").await, usize::from(opened.is_some()), "after {polls} polls");
            if let Some(opened) = opened {
                assert!(polls > 1);
                opened.unwrap().close().await;
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_next_loses_no_document() {
    let (_server, client) = collection("cancelled", 60).await;
    let find = rawdoc! { "find": "cancelled", "sort": { "_id": 1 }, "batchSize": 5 };
    let mut cursor = client.cursor(Operation::read("cursors", &find)).await.unwrap();
    let mut cancelled = 0;
    for expected in 0..60 {
        loop {
            // The future is dropped after one poll, unless it is ready.
            let mut once = pin!(cursor.next());
            let polled = poll_fn(|context| {
                Poll::Ready(once.as_mut().poll(context).map(|next| next.unwrap().unwrap().get_i32("_id").unwrap()))
            });
            match polled.await {
                Poll::Ready(id) => {
                    assert_eq!(id, expected);
                    break;
                }
                Poll::Pending => {
                    cancelled += 1;
                    tokio::task::yield_now().await;
                }
            }
        }
    }
    assert!(cancelled >= 11, "each of the further batches was waited for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursor_dropped_while_it_fetches_is_closed() {
    let (_server, client) = collection("fetching", 100).await;
    let find = rawdoc! { "find": "fetching", "batchSize": 2 };
    let mut cursor = client.cursor(Operation::read("cursors", &find)).await.unwrap();
    for _ in 0..2 {
        cursor.next().await.unwrap().unwrap();
    }
    // The server withholds its answer until the cursor is dropped.
    let keep = rawdoc! {
        "configureFailPoint": "waitAfterCommandFinishesExecution", "mode": "alwaysOn",
        "data": { "ns": "cursors.fetching", "commands": ["getMore"] },
    };
    client.run(Operation::new("admin", &keep)).await.unwrap();
    {
        let mut third = pin!(cursor.next());
        poll_fn(|context| {
            assert!(third.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    }
    drop(cursor);
    let answer = rawdoc! { "configureFailPoint": "waitAfterCommandFinishesExecution", "mode": "off" };
    client.run(Operation::new("admin", &answer)).await.unwrap();
    until("the cursor is closed", async || open_cursors(&client, "fetching").await == 0).await;
    until("the connection is back", async || client.status().servers[0].pool.as_ref().unwrap().in_use == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursor_that_the_server_has_closed_yields_its_error_and_ends() {
    let (_server, client) = collection("killed", 50).await;
    let find = rawdoc! { "find": "killed", "batchSize": 2 };
    let mut cursor = client.cursor(Operation::read("cursors", &find)).await.unwrap();
    for _ in 0..2 {
        cursor.next().await.unwrap().unwrap();
    }
    client.run(Operation::write("cursors", &rawdoc! { "drop": "killed" })).await.unwrap();
    let error = cursor.next().await.unwrap_err();
    assert!(error.server_error().is_some(), "{error}");
    assert!(cursor.next().await.unwrap().is_none());
    assert!(cursor.is_over());
}
