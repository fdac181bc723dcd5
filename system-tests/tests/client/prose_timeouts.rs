//! The prose tests of Client Side Operations Timeout, on servers that follow scripts, in virtual time.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document, doc, rawdoc};
use futures_core::Stream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use wharf::client::{CommandEvent, CursorType, WatchTarget};
use wharf::{Client, ClientError, Operation, Options, PoolEvent};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::cluster::{self, Cluster, after, batch, ok};
use super::repetitions::{standalone, start};

/// 1. Multi-batch inserts.
#[tokio::test(start_paused = true)]
async fn batches_of_an_insert_share_the_time_limit() {
    let mut hello = standalone();
    hello.insert("maxMessageSizeBytes", 64 * 1024);
    let (server, _) = start(hello, |command, _| match name(command).as_str() {
        "insert" => after(1_010, ok()),
        _ => ok(),
    })
    .await;
    let (client, told, _) = cluster::client(&format!("mongodb://{}/?timeoutMS=2000", server.address()));
    let documents = (0..50).map(|id| doc! { "_id": id, "text": "x".repeat(1_800) });
    let error = client.insert("db", "coll", documents).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert_eq!(told.started("insert").len(), 2);
}

/// Starts a server that authenticates a user, and takes this long to answer these commands.
async fn authenticating(pause: u64, slow: &'static [&'static str]) -> ScriptedServer {
    let server = ScriptedServer::start(move || {
        Box::new(move |command: &Document| {
            let name = name(command);
            let is_slow = slow.contains(&name.as_str());
            let answer = Answer::Reply(match name.as_str() {
                "hello" | "isMaster" | "ismaster" => standalone(),
                "saslStart" => {
                    let payload = bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: Vec::new() };
                    doc! { "ok": 1, "conversationId": 1, "done": true, "payload": payload }
                }
                _ => doc! { "ok": 1, "n": 1 },
            });
            if is_slow { after(pause, answer) } else { answer }
        })
    });
    server.await.unwrap()
}

fn uri(server: &ScriptedServer, parameters: &str) -> String {
    format!("mongodb://user:pencil@{}/?authMechanism=PLAIN&{parameters}", server.address())
}

/// 4. Background Connection Pooling, both tests.
#[tokio::test(start_paused = true)]
async fn handshake_towards_min_pool_size_has_the_time_limit_for_each_command() {
    for (pause, slow, limit, expected) in [
        (15, &["saslStart"][..], 10, ["ConnectionCreated", "ConnectionClosed"]),
        (15, &["hello", "isMaster", "saslStart"], 20, ["ConnectionCreated", "ConnectionReady"]),
    ] {
        let server = authenticating(pause, slow).await;
        let names = Arc::new(watch::Sender::new(Vec::new()));
        let noted = names.clone();
        let options = Options::parse(&uri(&server, &format!("minPoolSize=1&timeoutMS={limit}"))).unwrap();
        let client = Client::builder(options)
            .subscriber(move |event: &PoolEvent| noted.send_modify(|names| names.push(event.name())))
            .build()
            .unwrap();
        client.connect().await.unwrap();
        let mut names = names.subscribe();
        let first_two = names.wait_for(|names| {
            let of_connections: Vec<_> = names.iter().filter(|name| name.starts_with("Connection")).collect();
            of_connections.len() >= 2 && of_connections[..2] == [&expected[0], &expected[1]]
        });
        let outcome = timeout(Duration::from_secs(10), first_two).await;
        drop(outcome.unwrap_or_else(|_| panic!("{expected:?} do not come")).unwrap());
    }
}

/// 8. Server Selection, both tests of connection handshake commands.
#[tokio::test(start_paused = true)]
async fn operation_does_not_wait_for_a_handshake_beyond_the_shorter_of_its_two_limits() {
    for (parameters, limited_by) in [
        ("timeoutMS=10&serverSelectionTimeoutMS=20", "timeoutMS (10 ms)"),
        ("timeoutMS=20&serverSelectionTimeoutMS=10", "serverSelectionTimeoutMS (10 ms)"),
    ] {
        let server = authenticating(15, &["saslStart"]).await;
        let (client, _, _) = cluster::client(&uri(&server, parameters));
        client.connect().await.unwrap();
        let begun = Instant::now();
        let error = client.insert("db", "coll", [doc! { "x": 1 }]).await.unwrap_err();
        assert!(error.is_timeout(), "{error:?}");
        assert!(error.to_string().contains(&format!("no connection within {limited_by}")), "{error}");
        assert!((10..=15).contains(&begun.elapsed().as_millis()), "{parameters}: {:?}", begun.elapsed());
    }
}

/// 8. Server Selection, the four tests without authentication.
#[tokio::test(start_paused = true)]
async fn selection_ends_at_the_shorter_of_its_two_limits() {
    // The server never answers, so the client never finds a suitable server.
    let server = ScriptedServer::start(|| Box::new(|_| Answer::Hang)).await.unwrap();
    for parameters in [
        "serverSelectionTimeoutMS=10",
        "timeoutMS=10&serverSelectionTimeoutMS=20",
        "timeoutMS=20&serverSelectionTimeoutMS=10",
        "timeoutMS=0&serverSelectionTimeoutMS=10",
    ] {
        let client = Client::from_uri(&format!("mongodb://{}/?{parameters}", server.address())).unwrap();
        let begun = Instant::now();
        let error = client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
        let took = begun.elapsed().as_millis();
        let is_of_selection = matches!(&error, ClientError::Selection(_))
            || matches!(&error, ClientError::Operation(failed) if failed.operation_error().is_none());
        assert!(is_of_selection, "{error:?}");
        assert!((10..=15).contains(&took), "{parameters}: {took} ms");
    }
}

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

/// 5. Blocking Iteration Methods. Cursors and change streams block in the same way when they are used as a `Stream`.
#[tokio::test(start_paused = true)]
async fn stream_asks_again_until_the_time_limit_of_its_call() {
    let set = Cluster::replica_set(1, |_, command, _| match name(command).as_str() {
        "find" => batch("firstBatch", 7, 1),
        "aggregate" => batch("firstBatch", 7, 0),
        "getMore" => after(15, batch("nextBatch", 7, 0)),
        _ => ok(),
    })
    .await;
    let (client, told) = set.client("timeoutMS=20").await;
    let find = rawdoc! { "find": "coll", "tailable": true };
    let opening = client.cursor(Operation::read("db", &find)).cursor_type(CursorType::Tailable);
    let mut tailing = opening.await.unwrap();
    assert!(!tailing.is_over());
    assert!(next(&mut tailing).await.unwrap().is_ok());
    assert_eq!(told.started("getMore").len(), 0);
    let error = next(&mut tailing).await.unwrap().unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert_eq!((told.started("find").len(), told.started("getMore").len()), (1, 2));

    told.forget();
    let mut changes = client.watch(WatchTarget::Collection("db", "coll"), ()).await.unwrap();
    let error = next(&mut changes).await.unwrap().unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert_eq!((told.started("aggregate").len(), told.started("getMore").len()), (1, 2));
}

/// 10. Convenient Transactions, "timeoutMS is refreshed for abortTransaction if the callback fails".
#[tokio::test(start_paused = true)]
async fn abort_after_a_callback_has_the_whole_time_limit_again() {
    let set = Cluster::replica_set(1, |_, command, _| match name(command).as_str() {
        "insert" | "abortTransaction" => after(200, ok()),
        _ => ok(),
    })
    .await;
    let (client, told) = set.client("timeoutMS=150").await;
    let mut session = client.start_session().await.unwrap();
    let begun = Instant::now();
    let insert = rawdoc! { "insert": "coll", "documents": [{ "_id": 1 }] };
    let outcome = session
        .with_transaction(async |mut session| client.run(Operation::write("db", &insert).session(&mut session)).await);
    let error = outcome.await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert!((300..=310).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    let events = told.0.lock().unwrap();
    let of_commands: Vec<_> = events
        .iter()
        .map(|event| {
            let kind = match event {
                CommandEvent::Started(_) => "started",
                CommandEvent::Failed(_) => "failed",
                _ => "succeeded",
            };
            (kind, event.source().command_name.as_str())
        })
        .collect();
    let expected =
        [("started", "insert"), ("failed", "insert"), ("started", "abortTransaction"), ("failed", "abortTransaction")];
    assert_eq!(of_commands, expected);
}

/// 9. endSession. A session ends when it is dropped, and the drop cannot report an error. The abort still obeys the
///    time limit.
#[tokio::test(start_paused = true)]
async fn abort_of_a_dropped_session_has_the_time_limit() {
    for (parameters, session_has_limit) in [("timeoutMS=150", false), ("", true)] {
        let set = Cluster::replica_set(1, |_, command, _| match name(command).as_str() {
            "abortTransaction" => after(200, ok()),
            _ => ok(),
        })
        .await;
        let (client, told) = set.client(parameters).await;
        let start = client.start_session();
        let mut session = match session_has_limit {
            true => start.default_timeout(Duration::from_millis(150)).await.unwrap(),
            false => start.await.unwrap(),
        };
        session.start_transaction(wharf::client::TransactionOptions::default()).unwrap();
        client.insert("db", "coll", [doc! { "x": 1 }]).session(&mut session).await.unwrap();
        let begun = Instant::now();
        drop(session);
        while told.failed().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            assert!(begun.elapsed() < Duration::from_secs(1), "the abort is not bounded");
        }
        let took = begun.elapsed().as_millis();
        assert!((149..=155).contains(&took), "{parameters}: {took} ms");
        let abort = &told.started("abortTransaction")[0];
        assert!(matches!(abort.get("maxTimeMS"), Some(Bson::Int64(1..=150))), "{abort}");
    }
}
