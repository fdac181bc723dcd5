//! Change streams on servers that follow a script.

use std::future::{IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf, Timestamp, doc, rawdoc};
use tokio::time::{Instant, timeout};
use wharf::client::{ChangeStream, TransactionOptions, WatchTarget};
use wharf::{Client, ReadPreference};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

/// Returns the `hello` reply of a mongos with this wire version.
fn mongos(max_wire_version: i32) -> Document {
    doc! {
        "ok": 1, "isWritablePrimary": true, "msg": "isdbgrid", "helloOk": true, "minWireVersion": 0,
        "maxWireVersion": max_wire_version, "logicalSessionTimeoutMinutes": 30,
    }
}

/// Starts a mongos with this wire version, and watches a collection on it. `replies` are the replies to `aggregate` and
/// `getMore`, in order.
async fn watch(max_wire_version: i32, replies: Vec<Document>) -> (ScriptedServer, ChangeStream) {
    let replies = Arc::new(Mutex::new(replies.into_iter()));
    let server = ScriptedServer::start(move || {
        let replies = replies.clone();
        Box::new(move |command: &Document| {
            Answer::Reply(match name(command).as_str() {
                "aggregate" | "getMore" => replies.lock().unwrap().next().expect("a reply in the script"),
                "hello" | "isMaster" | "ismaster" => mongos(max_wire_version),
                _ => doc! { "ok": 1 },
            })
        })
    });
    let server = server.await.unwrap();
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let changes = client.watch(WatchTarget::Collection("test", "c"), ()).await.unwrap();
    (server, changes)
}

/// Polls a future once, and asserts that it is pending.
async fn begin<F: Future + Unpin>(future: &mut F) {
    let is_waiting = poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_pending())).await;
    assert!(is_waiting);
}

#[tokio::test]
async fn stream_takes_its_session_when_it_has_a_connection() {
    let (server, changes) = watch(17, vec![batch("firstBatch", vec![]), batch("firstBatch", vec![])]).await;
    drop(changes);
    let uri = format!("mongodb://{}/?maxPoolSize=1", server.address());
    let (client, ping) = (Client::from_uri(&uri).unwrap(), rawdoc! { "ping": 1 });
    client.run_command("admin", &ping).await.unwrap();
    let primary = ReadPreference::default();
    let held = client.check_out(&primary).await.unwrap();
    // Both are waiting for the connection. The stream waits behind the other command, and leaves the idle session to
    // it.
    let mut second = Box::pin(client.run_command("admin", &ping));
    let mut stream = client.watch(WatchTarget::Collection("test", "later"), ()).into_future();
    begin(&mut second).await;
    begin(&mut stream).await;
    drop(held);
    let (second, stream) = tokio::join!(second, stream);
    second.unwrap();
    drop(stream.unwrap());
    let commands = server.commands();
    let of_client = commands.iter().filter(|command| {
        name(command) == "ping"
            || name(command) == "aggregate" && command.get_str("aggregate").is_ok_and(|of| of == "later")
    });
    let sessions: Vec<_> = of_client.map(|command| command.get_document("lsid").unwrap()).collect();
    assert_eq!(sessions.len(), 3);
    assert!(sessions.iter().all(|session| *session == sessions[0]), "{sessions:?}");
}

fn batch(field: &str, events: Vec<Document>) -> Document {
    let time = Timestamp { time: 7, increment: 1 };
    doc! { "ok": 1, "operationTime": time, "cursor": { "id": 5_i64, "ns": "test.c", field: events } }
}

fn failure(code: i32, labels: &[&str]) -> Document {
    doc! { "ok": 0, "code": code, "errmsg": "it failed", "errorLabels": labels }
}

/// Returns the `$changeStream` stages that the server received.
fn stages(server: &ScriptedServer) -> Vec<Document> {
    let stage = |command: &Document| {
        let first = command.get_array("pipeline").ok()?.first().and_then(Bson::as_document)?;
        first.get_document("$changeStream").ok().cloned()
    };
    server.commands().iter().filter_map(stage).collect()
}

#[tokio::test]
async fn event_without_its_token_is_an_error_and_closes_the_cursor() {
    let event = doc! { "operationType": "insert" };
    let (server, mut changes) = watch(17, vec![batch("firstBatch", vec![event])]).await;
    let error = changes.next().await.unwrap_err().to_string();
    assert!(error.contains("cannot provide resume functionality when the resume token is missing"), "{error}");
    assert!(changes.is_over() && changes.next().await.unwrap().is_none());
    let killed = async || server.commands().iter().any(|command| name(command) == "killCursors");
    super::until("the cursor is closed", killed).await;
}

#[tokio::test]
async fn next_waits_for_an_event_and_returns_none_at_the_end() {
    let event = |token: i32| doc! { "_id": { "token": token }, "operationType": "insert" };
    let empty = || batch("nextBatch", vec![]);
    let mut last = batch("nextBatch", vec![event(2)]);
    last.get_document_mut("cursor").unwrap().insert("id", 0_i64);
    let replies =
        vec![batch("firstBatch", vec![]), empty(), empty(), batch("nextBatch", vec![event(1)]), empty(), last];
    let (_server, mut changes) = watch(17, replies.clone()).await;
    let mut tokens = Vec::new();
    while let Some(event) = changes.next().await.unwrap() {
        tokens.push(event.get_document("_id").unwrap().get_i32("token").unwrap());
    }
    assert_eq!(tokens, [1, 2]);
    assert!(changes.is_over());
    let (_server, mut changes) = watch(17, replies).await;
    let mut found = Vec::new();
    while !changes.is_over() {
        found.push(changes.next_if_any().await.unwrap().is_some());
    }
    assert_eq!(found, [false, false, true, false, true]);
}

#[tokio::test]
async fn errors_are_resumable_by_label_or_on_old_servers_by_code() {
    let label: &[&str] = &["ResumableChangeStreamError"];
    for (max_wire_version, code, labels, resumes) in [
        (8, 6, &[][..], true),
        (8, 234, &[], true),
        (8, 13436, &[], true),
        (8, 43, &[], true),
        (8, 280, label, false),
        (8, 216, &[], false),
        (9, 6, &[], false),
        (9, 280, label, true),
        (17, 43, &[], true),
        (17, 10107, &[], false),
    ] {
        let event = doc! { "_id": { "token": 1 }, "operationType": "insert" };
        let replies = vec![batch("firstBatch", vec![]), failure(code, labels), batch("firstBatch", vec![event])];
        let (server, mut changes) = watch(max_wire_version, replies).await;
        let resumed = changes.next().await.map(|event| event.is_some());
        assert_eq!(resumed.is_ok(), resumes, "wire version {max_wire_version}, code {code}, {labels:?}: {resumed:?}");
        assert_eq!(stages(&server).len(), if resumes { 2 } else { 1 });
        assert_eq!(changes.is_over(), !resumes);
    }
}

/// The server reports that it is overloaded. That error is not resumable, but by then another command has the
/// connection.
#[tokio::test(start_paused = true)]
async fn stream_resumes_if_the_repetition_of_its_get_more_finds_no_connection() {
    let overload = failure(462, &["SystemOverloadedError", "RetryableError"]);
    let event = doc! { "_id": { "token": 1 }, "operationType": "insert" };
    let replies = vec![batch("firstBatch", vec![]), overload, batch("firstBatch", vec![event])];
    let replies = Arc::new(Mutex::new(replies.into_iter()));
    let server = ScriptedServer::start(move || {
        let replies = replies.clone();
        Box::new(move |command: &Document| match name(command).as_str() {
            "ping" => Answer::After(Duration::from_millis(1_500), Box::new(Answer::Reply(doc! { "ok": 1 }))),
            "hello" | "isMaster" | "ismaster" => Answer::Reply(mongos(17)),
            _ => Answer::Reply(replies.lock().unwrap().next().expect("a reply in the script")),
        })
    });
    let server = server.await.unwrap();
    let limits = "serverMonitoringMode=poll&maxPoolSize=1&waitQueueTimeoutMS=1000";
    let client = Client::from_uri(&format!("mongodb://{}/?{limits}", server.address())).unwrap();
    let mut changes = client.watch(WatchTarget::Collection("test", "c"), ()).await.unwrap();
    // The command waits for the only connection while the batch is being fetched, and then keeps it for longer than the
    // stream waits.
    let ping = rawdoc! { "ping": 1 };
    let (event, answered) = tokio::join!(biased; changes.next(), client.run_command("admin", &ping));
    assert!(event.unwrap().is_some());
    answered.unwrap();
    assert_eq!(stages(&server).len(), 2);
}

#[tokio::test]
async fn stream_without_any_token_resumes_at_the_time_of_the_first_reply() {
    let empty = || batch("firstBatch", vec![]);
    let lost = || failure(43, &[]);
    let event = doc! { "_id": { "token": 1 }, "operationType": "insert" };
    let replies = vec![empty(), lost(), empty(), lost(), batch("firstBatch", vec![event])];
    let (server, mut changes) = watch(17, replies).await;
    changes.next().await.unwrap().unwrap();
    let time = doc! { "startAtOperationTime": Timestamp { time: 7, increment: 1 } };
    assert_eq!(stages(&server), [doc! {}, time.clone(), time]);
}

#[tokio::test]
async fn server_gets_each_start_that_the_stage_has() {
    let answer = |command: &Document| {
        Answer::Reply(match name(command).as_str() {
            "aggregate" => failure(40674, &[]),
            "hello" | "isMaster" | "ismaster" => doc! {
                "ok": 1, "isWritablePrimary": true, "maxWireVersion": 21, "logicalSessionTimeoutMinutes": 30,
            },
            _ => doc! { "ok": 1 },
        })
    };
    let server = ScriptedServer::start(move || Box::new(answer)).await.unwrap();
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let (token, time) = (doc! { "token": 1 }, Timestamp { time: 7, increment: 1 });
    let given = [
        doc! { "startAfter": &token, "resumeAfter": &token },
        doc! { "startAfter": &token, "startAtOperationTime": time },
        doc! { "resumeAfter": &token, "startAtOperationTime": time },
    ];
    for stage in &given {
        let refused = client.watch(WatchTarget::Database("test"), ()).stage(stage).await.unwrap_err();
        assert_eq!(refused.server_error().unwrap().code, 40674, "{refused}");
    }
    assert_eq!(stages(&server), given);
}

#[tokio::test(start_paused = true)]
async fn stream_begins_now_if_no_token_is_stored_yet() {
    let (server, _changes) = watch(21, vec![batch("firstBatch", vec![]), batch("firstBatch", vec![])]).await;
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let (database, stored) = (client.database("test"), None::<RawDocumentBuf>);
    let _changes = database.watch(()).resume_after(&stored).start_after(stored).await.unwrap();
    assert_eq!(stages(&server), [doc! {}, doc! {}]);
}

#[tokio::test(start_paused = true)]
async fn stream_waits_before_further_resumptions_without_progress() {
    let (empty, lost) = (|| batch("firstBatch", vec![]), || failure(43, &[]));
    let event = doc! { "_id": { "token": 1 }, "operationType": "insert" };
    for (resumptions, at_least, at_most) in [(1, 0, 20), (2, 25, 70), (6, 25 + 50 + 100 + 200 + 400, 1_600)] {
        let mut replies = vec![empty(), lost()];
        for _ in 1..resumptions {
            replies.extend([empty(), lost()]);
        }
        replies.push(batch("firstBatch", vec![event.clone()]));
        let (_server, mut changes) = watch(17, replies).await;
        let begun = Instant::now();
        changes.next().await.unwrap().unwrap();
        let took = begun.elapsed().as_millis();
        assert!((at_least..=at_most).contains(&took), "{resumptions} resumptions took {took} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn call_after_a_cancelled_one_has_the_whole_time() {
    let server = ScriptedServer::start(|| {
        Box::new(|command: &Document| match name(command).as_str() {
            "aggregate" => Answer::Reply(batch("firstBatch", vec![])),
            "getMore" => Answer::Hang,
            "hello" | "isMaster" | "ismaster" => Answer::Reply(mongos(21)),
            _ => Answer::Reply(doc! { "ok": 1 }),
        })
    });
    let server = server.await.unwrap();
    let client = Client::from_uri(&format!("mongodb://{}/?timeoutMS=1000", server.address())).unwrap();
    let mut changes = client.watch(WatchTarget::Collection("test", "c"), ()).await.unwrap();
    let begun = Instant::now();
    timeout(Duration::from_millis(700), changes.next()).await.unwrap_err();
    let error = changes.next().await.unwrap_err();
    assert!(error.is_timeout() && !changes.is_over(), "{error}");
    let took = begun.elapsed().as_millis();
    assert!((1_690..1_800).contains(&took), "the second call ends after {took} ms");
    assert_eq!(stages(&server).len(), 2, "the stream resumes when the time of the cancelled call is up");
}

fn with_token(mut reply: Document, token: i32) -> Document {
    reply.get_document_mut("cursor").unwrap().insert("postBatchResumeToken", doc! { "token": token });
    reply
}

/// "Updating the Cached Resume Token".
#[tokio::test]
async fn token_of_a_batch_is_kept_after_its_last_event_and_without_events() {
    let event = |token: i32| doc! { "_id": { "token": token }, "operationType": "insert" };
    let replies = vec![
        with_token(batch("firstBatch", vec![]), 1),
        with_token(batch("nextBatch", vec![]), 2),
        with_token(batch("nextBatch", vec![event(3), event(4)]), 5),
        failure(43, &[]),
        with_token(batch("firstBatch", vec![event(6)]), 7),
    ];
    let (server, mut changes) = watch(17, replies).await;
    for (is_event, token) in [(false, 2), (true, 3), (true, 5), (true, 7)] {
        let next = changes.next_if_any().await.unwrap().is_some();
        let kept = changes.resume_token().unwrap().get_i32("token").unwrap();
        assert_eq!((next, kept), (is_event, token));
    }
    assert_eq!(stages(&server)[1], doc! { "resumeAfter": { "token": 5 } });
}

/// A server would abort the transaction if the stream's `aggregate` were part of it.
#[tokio::test(start_paused = true)]
async fn stream_that_resumes_leaves_the_transaction_of_its_session_alone() {
    for (is_begun, is_committed) in [(false, false), (true, false), (true, true)] {
        let replies = [
            batch("firstBatch", vec![]),
            failure(43, &[]),
            batch("firstBatch", vec![]),
            batch("nextBatch", vec![]),
            failure(1, &[]),
        ];
        let replies = Arc::new(Mutex::new(replies.into_iter()));
        let server = ScriptedServer::start(move || {
            let replies = replies.clone();
            Box::new(move |command: &Document| {
                Answer::Reply(match name(command).as_str() {
                    "aggregate" | "getMore" => replies.lock().unwrap().next().expect("a reply in the script"),
                    "hello" | "isMaster" | "ismaster" => mongos(17),
                    _ => doc! { "ok": 1, "n": 1 },
                })
            })
        });
        let server = server.await.unwrap();
        let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
        let mut session = client.start_session().await.unwrap();
        let target = WatchTarget::Collection("test", "c");
        let mut changes = client.watch(target, ()).session(&mut session).await.unwrap();
        session.start_transaction(TransactionOptions::default()).unwrap();
        if is_begun {
            client.insert("test", "c", [doc! {}]).session(&mut session).await.unwrap();
        }
        if is_committed {
            session.commit_transaction().await.unwrap();
        }
        let state = session.transaction_state();
        assert!(changes.next_if_any().await.unwrap().is_none());
        assert_eq!(session.transaction_state(), state);
        changes.next().await.unwrap_err();
        assert_eq!(session.transaction_state(), state, "nor does an error end it");
        client.insert("test", "c", [doc! {}]).session(&mut session).await.unwrap();
        let commands = server.commands();
        let of_stream = |command: &&Document| matches!(name(command).as_str(), "aggregate" | "getMore");
        for command in commands.iter().filter(of_stream) {
            assert!(!command.contains_key("txnNumber") && !command.contains_key("autocommit"), "{command}");
            assert_eq!(command.get("lsid"), commands.last().unwrap().get("lsid"));
        }
        let begins = commands.last().unwrap().contains_key("startTransaction");
        assert_eq!(begins, !is_begun, "{:?}", commands.last());
    }
}

/// A connect timeout counts as a network error if the call has time left.
#[tokio::test(start_paused = true)]
async fn stream_with_a_time_limit_resumes_after_a_connect_timeout() {
    let event = doc! { "_id": { "token": 1 }, "operationType": "insert" };
    let replies = vec![batch("firstBatch", vec![]), batch("firstBatch", vec![event])];
    // How many of the next handshakes receive no reply. The `getMore` is sent at most three times.
    let (replies, hangs) = (Arc::new(Mutex::new(replies.into_iter())), Arc::new(AtomicU32::new(0)));
    let hung = hangs.clone();
    let server = ScriptedServer::start(move || {
        let (replies, hangs) = (replies.clone(), hung.clone());
        Box::new(move |command: &Document| match name(command).as_str() {
            "ping" => Answer::After(Duration::from_secs(10), Box::new(Answer::Reply(doc! { "ok": 1 }))),
            "hello" | "isMaster" | "ismaster"
                if hangs.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() =>
            {
                Answer::Hang
            }
            "hello" | "isMaster" | "ismaster" => Answer::Reply(mongos(17)),
            _ => Answer::Reply(replies.lock().unwrap().next().expect("a reply in the script")),
        })
    });
    let server = server.await.unwrap();
    let limits = "serverMonitoringMode=poll&heartbeatFrequencyMS=600000&connectTimeoutMS=1000&timeoutMS=20000";
    let client = Client::from_uri(&format!("mongodb://{}/?{limits}", server.address())).unwrap();
    let mut changes = client.watch(WatchTarget::Collection("test", "c"), ()).await.unwrap();
    hangs.store(3, Ordering::SeqCst);
    // The command has the only connection, so the stream opens another one.
    let ping = rawdoc! { "ping": 1 };
    let (answered, event) = tokio::join!(biased; client.run_command("admin", &ping), changes.next());
    answered.unwrap();
    assert!(event.unwrap().is_some());
    assert_eq!(hangs.load(Ordering::SeqCst), 0);
    assert_eq!(stages(&server).len(), 2);
}
