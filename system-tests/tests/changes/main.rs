//! Change streams: the specification's prose tests, on a real replica set with three members.
#![cfg(not(any(loom, shuttle)))]

mod resuming;
mod scripted;
mod watched;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc};
use futures_core::Stream;
use serde::Deserialize;
use wharf::client::{ChangeStream, WatchTarget};

use watched::{Watched, id, until};

/// Waits for the next event.
async fn event(changes: &mut ChangeStream) -> RawDocumentBuf {
    changes.next().await.unwrap().unwrap()
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resume_token_follows_the_events_and_the_batches() {
    let watched = Watched::new("tokens").await;
    let mut changes = watched.client.watch(watched.target(), ()).await.unwrap();
    // An empty batch also has a token.
    assert_eq!(changes.resume_token(), watched.last_batch_token().as_deref());
    watched.insert(0..1).await;
    let first = event(&mut changes).await;
    let token = Document::try_from(first.get_document("_id").unwrap()).unwrap();
    assert_eq!(changes.resume_token(), watched.last_batch_token().as_deref(), "the batch has one event");
    watched.insert(1..4).await;
    for field in ["startAfter", "resumeAfter"] {
        let mut later = watched.client.watch(watched.target(), ()).stage(doc! { field: &token }).await.unwrap();
        let kept = Document::try_from(later.resume_token().unwrap()).unwrap();
        assert_eq!(kept, token, "{field}: nothing was returned yet");
        for number in 1..4 {
            let event = event(&mut later).await;
            assert_eq!(id(&event), number);
            if number < 3 {
                let own = event.get_document("_id").unwrap();
                assert_eq!(later.resume_token(), Some(own), "{field}: there are more events in the batch");
            }
        }
        assert_eq!(later.resume_token(), watched.last_batch_token().as_deref(), "{field}: the batch is read");
    }
    // The first batch has events, and there is no token to start after, so the stream has no token at first.
    let time = first.get_timestamp("clusterTime").unwrap();
    let stage = doc! { "startAtOperationTime": time };
    let mut later = watched.client.watch(watched.target(), ()).stage(stage).await.unwrap();
    assert_eq!(later.resume_token(), None);
    assert_eq!(id(&event(&mut later).await), 0);
    // Tokens advance even without events.
    let before = changes.resume_token().unwrap().to_owned();
    while id(&event(&mut changes).await) < 3 {}
    while changes.resume_token() == Some(&*before) || changes.next_if_any().await.unwrap().is_some() {}
    assert_eq!(changes.resume_token(), watched.last_batch_token().as_deref());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_without_its_token_ends_the_stream() {
    let watched = Watched::new("tokenless").await;
    let pipeline = [doc! { "$project": { "_id": 0 } }];
    let mut changes = watched.client.watch(watched.target(), pipeline).await.unwrap();
    watched.insert(0..1).await;
    let error = changes.next().await.unwrap_err();
    assert!(error.server_error().is_some(), "{error}");
    assert!(changes.is_over());
    assert!(changes.next().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_and_cluster_are_watched_as_a_whole() {
    let watched = Watched::new("targets").await;
    let watch = async |target| watched.client.watch(target, ()).await.unwrap();
    let mut of_database = watch(WatchTarget::Database("changes")).await;
    let mut of_cluster = watch(WatchTarget::Cluster).await;
    watched.insert(0..1).await;
    for changes in [&mut of_database, &mut of_cluster] {
        assert_eq!(id(&event(changes).await), 0);
    }
    assert_eq!(format!("{of_database:?}"), "ChangeStream { target: Database(\"changes\"), state: \"open\", .. }");
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Change {
    operation_type: String,
    full_document: Option<Thing>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Thing {
    #[serde(rename = "_id")]
    id: i32,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_waits_for_typed_events_and_ends_when_the_collection_is_dropped() {
    let watched = Watched::new("typed").await;
    let changes = watched.client.watch(watched.target(), ()).batch_size(1).await.unwrap();
    let mut changes = changes.typed::<Change>();
    let inserting = async {
        watched.insert(0..2).await;
        watched.drop_collection().await;
    };
    let reading = async {
        for id in 0..2 {
            let expected = Change { operation_type: "insert".to_owned(), full_document: Some(Thing { id }) };
            assert_eq!(next(&mut changes).await.unwrap().unwrap(), expected);
        }
        for kind in ["drop", "invalidate"] {
            assert_eq!(next(&mut changes).await.unwrap().unwrap().operation_type, kind);
        }
        assert!(next(&mut changes).await.is_none());
        assert!(changes.is_over() && next(&mut changes).await.is_none());
    };
    tokio::join!(inserting, reading);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_next_loses_no_event() {
    let watched = Watched::new("cancelled").await;
    let mut changes = watched.client.watch(watched.target(), ()).batch_size(3).await.unwrap();
    watched.insert(0..30).await;
    // Some of the cancelled calls are waiting for a new cursor.
    watched.fail(["getMore"], 2, doc! { "closeConnection": true }).await;
    let (mut expected, mut cancelled) = (0, 0);
    while expected < 30 {
        // The future is dropped after one poll, unless it is ready.
        let mut once = pin!(changes.next());
        let polled =
            poll_fn(|context| Poll::Ready(once.as_mut().poll(context).map(|next| next.unwrap().as_deref().map(id))));
        match polled.await {
            Poll::Ready(Some(id)) => {
                assert_eq!(id, expected);
                expected += 1;
            }
            Poll::Ready(None) => {}
            Poll::Pending => {
                cancelled += 1;
                tokio::task::yield_now().await;
            }
        }
    }
    assert!(cancelled >= 10, "each batch was waited for");
    assert_eq!(watched.stages().len(), 3, "it has resumed twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_stream_closes_its_cursor() {
    let watched = Watched::new("dropped").await;
    let mut changes = watched.client.watch(watched.target(), ()).await.unwrap();
    // An empty first batch does not end the cursor.
    assert_eq!(watched.open_cursors().await, 1);
    watched.insert(0..1).await;
    event(&mut changes).await;
    drop(changes);
    until("the cursor is closed", async || watched.open_cursors().await == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_dropped_while_it_resumes_closes_the_cursor_that_it_opens() {
    let watched = Watched::new("resuming").await;
    let mut changes = watched.client.watch(watched.target(), ()).await.unwrap();
    watched.insert(0..1).await;
    let how = doc! { "errorCode": 6, "errorLabels": ["ResumableChangeStreamError"] };
    watched.fail(["getMore"], 1, how).await;
    // The aggregate is still running when the stream is dropped.
    watched.keep_answers("aggregate").await;
    poll_until_pending(&mut changes, || watched.stages().len() == 2).await;
    drop(changes);
    watched.answer().await;
    until("the aggregate is answered", async || watched.answered("aggregate") == 2).await;
    until("both cursors are closed", async || watched.answered("killCursors") == 2).await;
    until("no cursor is open", async || watched.open_cursors().await == 0).await;
}

/// Polls the stream until the condition holds.
async fn poll_until_pending(changes: &mut ChangeStream, holds: impl Fn() -> bool) {
    let mut next = pin!(changes.next());
    poll_fn(|context| {
        assert!(next.as_mut().poll(context).is_pending());
        if holds() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_event_is_split() {
    let watched = Watched::new("large").await;
    watched.run(doc! { "collMod": "large", "changeStreamPreAndPostImages": { "enabled": true } }).await;
    let text = |letter: &str| letter.repeat(10 * 1024 * 1024);
    watched.run(doc! { "insert": "large", "documents": [{ "_id": 1, "value": text("q") }] }).await;
    let pipeline = [doc! { "$changeStreamSplitLargeEvent": {} }];
    let stage = doc! { "fullDocumentBeforeChange": "required" };
    let mut changes = watched.client.watch(watched.target(), pipeline).stage(stage).await.unwrap();
    let statement = doc! { "q": {}, "u": { "$set": { "value": text("z") } } };
    watched.run(doc! { "update": "large", "updates": [statement] }).await;
    for fragment in 1..=2 {
        let event = event(&mut changes).await;
        let split = Document::try_from(event.get_document("splitEvent").unwrap()).unwrap();
        assert_eq!(split, doc! { "fragment": fragment, "of": 2 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_limit_holds_for_each_call_and_the_stream_goes_on_afterwards() {
    let watched = Watched::new("limited").await;
    let limit = Duration::from_millis(400);
    let wait = Duration::from_millis(20);
    let mut changes = watched.client.watch(watched.target(), ()).timeout(limit).max_await_time(wait).await.unwrap();
    for _ in 0..40 {
        // Together, the calls take longer than the limit.
        assert!(changes.next_if_any().await.unwrap().is_none());
    }
    watched.fail(["getMore"], 1, doc! { "blockConnection": true, "blockTimeMS": 800 }).await;
    let error = changes.next().await.unwrap_err();
    assert!(error.is_timeout() && !changes.is_over(), "{error}");
    watched.insert(0..1).await;
    assert_eq!(id(&event(&mut changes).await), 0);
    assert_eq!(watched.stages().len(), 2);
    let longer = watched.client.watch(watched.target(), ()).timeout(wait).max_await_time(limit);
    let error = longer.await.unwrap_err().to_string();
    assert!(error.contains("maxAwaitTimeMS"), "{error}");
}
