//! Time limits, and how cursors end, on servers that follow scripts.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bson::{Document, doc, rawdoc};
use tokio::time::{Instant, sleep};
use wharf::client::{CursorType, TimeoutMode, TransactionOptions};
use wharf::{Client, ClientError, Operation, ReadPreference};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::cluster::{self, Cluster, after, ok};
use super::repetitions::{client, count, primary, standalone, start};

/// Returns a reply with a batch of one document.
fn batch(field: &str, id: i64) -> Answer {
    Answer::Reply(doc! { "ok": 1, "cursor": { "id": id, "ns": "test.c", field: [{ "_id": 1 }] } })
}

/// Waits until the server has received this command. Returns the command, and how long the wait took.
async fn arrival(server: &ScriptedServer, wanted: &str) -> (Document, Duration) {
    let begun = Instant::now();
    loop {
        if let Some(command) = server.commands().into_iter().find(|command| name(command) == wanted) {
            return (command, begun.elapsed());
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no {wanted}: {:?}", server.command_names());
        sleep(Duration::from_millis(1)).await;
    }
}

/// Starts a server on which each query opens a cursor. `more` answers each `getMore`.
async fn with_cursor(hello: Document, more: impl Fn() -> Answer + Clone + Send + 'static) -> ScriptedServer {
    let answer = move |command: &Document, _| match name(command).as_str() {
        "find" => batch("firstBatch", 7),
        "getMore" => more(),
        _ => Answer::Reply(doc! { "ok": 1 }),
    };
    start(hello, answer).await.0
}

fn find() -> bson::RawDocumentBuf {
    rawdoc! { "find": "c", "batchSize": 1 }
}

fn tailing() -> bson::RawDocumentBuf {
    rawdoc! { "find": "c", "tailable": true, "awaitData": true }
}

/// Polls a future once, and asserts that it is not ready.
async fn poll_once(future: impl Future) {
    let mut future = pin!(future);
    poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn cursor_that_waits_for_documents_is_closed_at_once_when_it_is_dropped() {
    let server =
        with_cursor(standalone(), || Answer::After(Duration::from_secs(30), Box::new(batch("nextBatch", 7)))).await;
    let client = client(&server, "");
    let tailing = tailing();
    let mut cursor = client.cursor(Operation::read("test", &tailing)).await.unwrap();
    cursor.next().await.unwrap().unwrap();
    poll_once(cursor.next()).await;
    let (more, _) = arrival(&server, "getMore").await;
    drop(cursor);
    let (kill, took) = arrival(&server, "killCursors").await;
    assert!(took < Duration::from_secs(1), "closed after {took:?}");
    assert_eq!(kill.get("lsid"), more.get("lsid"));
}

#[tokio::test(start_paused = true)]
async fn unreadable_first_batch_closes_the_cursor_and_gives_its_session_back() {
    let (server, _) = start(standalone(), |command, _| match name(command).as_str() {
        "find" => Answer::Reply(doc! { "ok": 1, "cursor": { "id": 7_i64, "ns": "test.c", "firstBatch": "none" } }),
        _ => Answer::Reply(doc! { "ok": 1 }),
    })
    .await;
    let client = client(&server, "");
    let find = find();
    let error = client.cursor(Operation::read("test", &find)).await.unwrap_err();
    assert!(matches!(error, ClientError::Reply { .. }), "{error}");
    let (kill, _) = arrival(&server, "killCursors").await;
    assert_eq!(kill.get_array("cursors").unwrap(), &[7_i64.into()]);
    sleep(Duration::from_secs(1)).await;
    client.run(Operation::read("test", &rawdoc! { "count": "c" })).await.unwrap();
    let (count, _) = arrival(&server, "count").await;
    assert_eq!(count.get("lsid"), kill.get("lsid"));
}

#[tokio::test(start_paused = true)]
async fn cursor_is_closed_when_the_server_is_known_again_after_a_network_error() {
    let server = with_cursor(standalone(), || Answer::Close).await;
    let client = client(&server, "");
    let find = find();
    let mut cursor = client.cursor(Operation::read("test", &find)).await.unwrap();
    cursor.next().await.unwrap().unwrap();
    cursor.next().await.unwrap_err();
    let (kill, took) = arrival(&server, "killCursors").await;
    assert_eq!(kill.get_array("cursors").unwrap(), &[7_i64.into()]);
    assert!(took < Duration::from_secs(2), "closed after {took:?}");
}

#[tokio::test(start_paused = true)]
async fn cursor_that_ends_after_it_was_dropped_gives_its_session_back() {
    let server =
        with_cursor(standalone(), || Answer::After(Duration::from_millis(100), Box::new(batch("nextBatch", 0)))).await;
    let client = client(&server, "");
    let find = find();
    let mut cursor = client.cursor(Operation::read("test", &find)).await.unwrap();
    cursor.next().await.unwrap().unwrap();
    poll_once(cursor.next()).await;
    let (more, _) = arrival(&server, "getMore").await;
    drop(cursor);
    sleep(Duration::from_secs(1)).await;
    client.run(Operation::read("test", &rawdoc! { "count": "c" })).await.unwrap();
    let (count, _) = arrival(&server, "count").await;
    assert_eq!(count.get("lsid"), more.get("lsid"));
    assert!(!server.command_names().contains(&"killCursors".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn failed_get_more_of_a_transaction_is_transient() {
    let server = with_cursor(primary(), || Answer::Close).await;
    let client = client(&server, "directConnection=true");
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    let find = find();
    let mut cursor = client.cursor(Operation::read("test", &find).session(&mut session)).await.unwrap();
    cursor.next().await.unwrap().unwrap();
    let error = cursor.next().await.unwrap_err();
    assert!(error.has_label("TransientTransactionError"), "{error}");
}

/// Returns why a cursor is refused before anything is sent.
async fn refusal(client: &Client, find: &bson::RawDocument, mode: TimeoutMode, cursor_type: CursorType) -> String {
    let opening = client.cursor(Operation::read("test", find)).timeout_mode(mode).cursor_type(cursor_type);
    let error = opening.await.unwrap_err();
    assert!(matches!(error, ClientError::InvalidOption(_)), "{error}");
    error.to_string()
}

#[tokio::test(start_paused = true)]
async fn options_of_a_cursor_that_exclude_each_other_are_named() {
    let (server, arrived) = start(standalone(), |_, _| batch("firstBatch", 0)).await;
    let [without, with] = ["", "timeoutMS=100"].map(|parameters| client(&server, parameters));
    let (find, out) = (find(), rawdoc! { "aggregate": "c", "pipeline": [{ "$out": "d" }], "cursor": {} });
    let refused = refusal(&without, &find, TimeoutMode::Iteration, CursorType::NonTailable).await;
    assert_eq!(refused, "timeoutMS is required by timeoutMode");
    let refused = refusal(&with, &find, TimeoutMode::CursorLifetime, CursorType::Tailable).await;
    assert_eq!(refused, "timeoutMode must be iteration for a tailable cursor, got cursorLifetime");
    let refused = refusal(&with, &out, TimeoutMode::Iteration, CursorType::NonTailable).await;
    assert!(refused.contains("$out"), "{refused}");
    let tailing = tailing();
    let opening = with.cursor(Operation::read("test", &tailing)).max_await_time(Duration::from_millis(100));
    let refused = opening.await.unwrap_err().to_string();
    assert_eq!(refused, "maxAwaitTimeMS must be less than timeoutMS, which is 100 ms, got 100 ms");
    assert_eq!(count(&arrived, "find") + count(&arrived, "aggregate"), 0);
}

#[tokio::test(start_paused = true)]
async fn operations_of_a_callback_share_the_limit_of_the_transaction() {
    let (server, _) = start(primary(), |command, _| match name(command).as_str() {
        "insert" => Answer::After(Duration::from_millis(70), Box::new(Answer::Reply(doc! { "ok": 1, "n": 1 }))),
        _ => Answer::Reply(doc! { "ok": 1 }),
    })
    .await;
    let client = client(&server, "directConnection=true");
    let mut session = client.start_session().default_timeout(Duration::from_millis(100)).await.unwrap();
    let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }] };
    let outcome = session
        .with_transaction(async |mut session| {
            let client = session.client().clone();
            let own = Operation::write("test", &insert).session(&mut session).timeout(Duration::from_secs(1));
            let refused = client.run(own).await.unwrap_err();
            assert!(matches!(refused, ClientError::Session(_)), "{refused}");
            client.run(Operation::write("test", &insert).session(&mut session)).await?;
            client.run(Operation::write("test", &insert).session(&mut session)).await
        })
        .await;
    let error = outcome.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    let (abort, _) = arrival(&server, "abortTransaction").await;
    assert!(abort.get_i64("maxTimeMS").unwrap() > 90, "the abort has the whole time: {abort}");
    // The limit applies only until the call returns.
    let own = Operation::write("test", &insert).session(&mut session).timeout(Duration::from_secs(1));
    client.run(own).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn retries_that_the_time_limit_ends_are_a_timeout() {
    let (server, _) =
        start(standalone(), |_, _| Answer::After(Duration::from_millis(40), Box::new(Answer::Close))).await;
    let client = client(&server, "timeoutMS=100");
    let error = client.run(Operation::read("test", &rawdoc! { "count": "c" })).await.unwrap_err();
    assert!(error.command_error().is_some() && error.is_timeout(), "{error}");
    assert!(error.to_string().contains("timeoutMS"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn nested_transaction_leaves_the_limit_of_the_outer_one() {
    let (server, _) = start(primary(), |command, _| match name(command).as_str() {
        "insert" => Answer::After(Duration::from_millis(70), Box::new(Answer::Reply(doc! { "ok": 1, "n": 1 }))),
        _ => Answer::Reply(doc! { "ok": 1 }),
    })
    .await;
    let client = client(&server, "directConnection=true");
    let mut session = client.start_session().default_timeout(Duration::from_millis(100)).await.unwrap();
    let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }] };
    let outcome = session
        .with_transaction(async |mut session| {
            let client = session.client().clone();
            client.run(Operation::write("test", &insert).session(&mut session)).await?;
            let refused = session.with_transaction(async |_| Ok(())).await.unwrap_err();
            assert!(matches!(refused, ClientError::Session(_)), "{refused}");
            client.run(Operation::write("test", &insert).session(&mut session)).await
        })
        .await;
    let error = outcome.unwrap_err();
    assert!(error.is_timeout(), "{error}");
}

#[test]
fn cursor_is_closed_on_the_runtime_that_its_client_has_moved_to() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let of_server = runtime();
    let (server, arrived) = of_server.block_on(start(standalone(), |command, _| match name(command).as_str() {
        "find" => batch("firstBatch", 7),
        _ => Answer::Reply(doc! { "ok": 1 }),
    }));
    let client = client(&server, "");
    let find = find();
    let before = runtime();
    let cursor = before.block_on(async { client.cursor(Operation::read("test", &find)).await }).unwrap();
    drop(before);
    runtime().block_on(async {
        client.run(Operation::read("test", &rawdoc! { "count": "c" })).await.unwrap();
        drop(cursor);
        arrival(&server, "killCursors").await;
    });
    assert_eq!(count(&arrived, "killCursors"), 1);
}

#[tokio::test(start_paused = true)]
async fn check_out_has_one_time_limit_for_all_its_parts() {
    let client = Client::from_uri("mongodb://127.0.0.1:1/?timeoutMS=300").unwrap();
    let begun = Instant::now();
    let error = client.check_out(&ReadPreference::default()).await.unwrap_err();
    assert!(error.is_timeout() && error.to_string().contains("within timeoutMS (300 ms)"), "{error}");
    assert!(begun.elapsed() < Duration::from_millis(350), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn client_tells_which_line_holds_a_connection() {
    let (server, _) = start(standalone(), |_, _| Answer::Reply(doc! { "ok": 1 })).await;
    let client = client(&server, "timeoutMS=300&maxPoolSize=1");
    let holders = || client.status().servers[0].holders.clone();
    let (preference, ping) = (ReadPreference::default(), rawdoc! { "ping": 1 });
    // Accounting is switched on before any pool exists.
    client.account_for_holders(true);
    let line = line!() + 1;
    let held = client.check_out(&preference).await.unwrap();
    let site = holders()[0].call_site.unwrap();
    assert!(site.file().ends_with("limits.rs") && site.line() == line, "{site}");
    let error = client.run_command("admin", &ping).await.unwrap_err().to_string();
    assert!(error.contains(&format!("limits.rs:{line}")), "{error}");
    // Accounting is switched off and on again while a pool exists.
    client.account_for_holders(false);
    assert_eq!(holders(), []);
    let error = client.run_command("admin", &ping).await.unwrap_err().to_string();
    assert!(error.contains("call account_for_holders(true)"), "{error}");
    client.account_for_holders(true);
    assert_eq!(holders().len(), 1);
    drop(held);
    assert_eq!(holders(), []);
}

/// CRUD, "Setting limit and batchSize options for find commands": a full batch would leave the cursor open on the
/// server.
#[tokio::test(start_paused = true)]
async fn batch_of_the_size_of_the_limit_has_room_for_one_more() {
    let answer =
        |_: &Document, _| Answer::Reply(doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "test.c", "firstBatch": [] } });
    let (server, sent) = start(standalone(), answer).await;
    let client = client(&server, "");
    for (limit, size, expected) in [(5, 5, 6), (5, 4, 4), (4, 5, 5), (i32::MAX, i32::MAX, i32::MAX)] {
        let options = doc! { "limit": i64::from(limit) };
        _ = client.find("test", "c", doc! {}).options(options).batch_size(size).await.unwrap();
        let sent = sent.lock().unwrap().pop().unwrap();
        assert_eq!((sent.get_i64("limit").unwrap(), sent.get_i32("batchSize").unwrap()), (limit.into(), expected));
    }
    for (last, expected) in [(doc! { "$out": "d" }, doc! {}), (doc! { "$limit": 1 }, doc! { "batchSize": 0 })] {
        _ = client.aggregate("test", "c", [last]).batch_size(0).await.unwrap();
        assert_eq!(sent.lock().unwrap().pop().unwrap().get_document("cursor").unwrap(), &expected);
    }
}

/// Find, getMore and killCursors commands, "getMore".
#[tokio::test(start_paused = true)]
async fn cursor_takes_its_collection_from_the_newest_batch() {
    let batch = |field: &str, collection: &str| {
        Answer::Reply(doc! { "ok": 1, "cursor": { "id": 7_i64, "ns": format!("test.{collection}"), field: [{}] } })
    };
    let (server, sent) = start(standalone(), move |command, _| match name(command).as_str() {
        "find" => batch("firstBatch", "first.c"),
        "getMore" => batch("nextBatch", "second.c"),
        _ => Answer::Reply(doc! { "ok": 1 }),
    })
    .await;
    let mut cursor = client(&server, "").find("test", "c", doc! {}).await.unwrap();
    for _ in 0..3 {
        cursor.next().await.unwrap().unwrap();
    }
    cursor.close().await;
    let sent = sent.lock().unwrap();
    let collections = sent.iter().filter_map(|command| {
        command.get_str("collection").or_else(|_| command.get_str("killCursors")).ok().map(str::to_owned)
    });
    assert_eq!(collections.collect::<Vec<_>>(), ["first.c", "second.c", "second.c"]);
}

/// CSOT, "Server Selection": if `timeoutMS` is set, even to 0, `serverSelectionTimeoutMS` limits the selection and the
/// check-out.
#[tokio::test(start_paused = true)]
async fn check_out_ends_with_the_server_selection_timeout_if_timeout_is_set() {
    for parameters in ["timeoutMS=0", "timeoutMS=60000"] {
        let set = Cluster::replica_set(1, |_, command, _| match name(command).as_str() {
            "find" => batch("firstBatch", 7),
            _ => ok(),
        })
        .await;
        let limits = "maxPoolSize=1&serverSelectionTimeoutMS=50&waitQueueTimeoutMS=1";
        let (client, _) = set.client(&format!("{limits}&{parameters}")).await;
        let mut cursor = client.find("test", "c", doc! {}).await.unwrap();
        assert!(cursor.next().await.unwrap().is_some());
        let mut session = client.start_session().await.unwrap();
        session.start_transaction(TransactionOptions::default()).unwrap();
        client.insert("test", "c", [doc! {}]).session(&mut session).await.unwrap();
        let preference = ReadPreference::default();
        let held = client.check_out(&preference).await.unwrap();

        for operation in ["check-out", "command", "write", "getMore", "commit"] {
            let begun = Instant::now();
            let error = match operation {
                "check-out" => client.check_out(&preference).await.unwrap_err(),
                "command" => client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err(),
                "write" => client.insert("test", "c", [doc! {}]).await.unwrap_err(),
                "getMore" => cursor.next().await.unwrap_err(),
                _ => session.commit_transaction().await.unwrap_err(),
            };
            let took = begun.elapsed().as_millis();
            assert!((50..=55).contains(&took), "{operation} with {parameters} took {took} ms: {error}");
            let by_selection = "no connection within serverSelectionTimeoutMS (50 ms)";
            assert!(error.is_timeout() && error.to_string().contains(by_selection), "{error}");
        }
        drop(held);
        client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    }
}

/// CSOT, "Command Execution": `maxTimeMS` is the time left minus the shortest round trip. A command that has less time
/// left than the shortest round trip is not sent.
#[tokio::test(start_paused = true)]
async fn shortest_round_trip_is_left_out_of_the_time_of_the_server() {
    const ROUND_TRIP: i64 = 100;
    let server = ScriptedServer::start(|| {
        Box::new(|command: &Document| match name(command).as_str() {
            "hello" | "isMaster" | "ismaster" => after(ROUND_TRIP as u64, Answer::Reply(primary())),
            _ => ok(),
        })
    });
    let server = server.await.unwrap();
    let parameters = "directConnection=true&serverMonitoringMode=poll&heartbeatFrequencyMS=500";
    let (client, told, events) = cluster::client(&format!("mongodb://{}/?{parameters}", server.address()));
    // This command opens the connection for all commands.
    client.run_command("admin", &rawdoc! { "buildInfo": 1 }).await.unwrap();
    // The second sample exists by the time the third check begins.
    while events.count("ServerHeartbeatStarted") < 3 {
        events.after(events.mark(), |event| event.name() == "ServerHeartbeatStarted").await;
    }
    let (enough, too_little) = (Duration::from_millis(1_000), Duration::from_millis(ROUND_TRIP as u64 - 10));
    for (limit, is_sent) in [(enough, true), (too_little, false)] {
        told.forget();
        let ping = rawdoc! { "ping": 1 };
        let pinged = client.run(Operation::new("admin", &ping).timeout(limit)).await;
        let mut session = client.start_session().default_timeout(limit).await.unwrap();
        session.start_transaction(TransactionOptions::default()).unwrap();
        client.insert("test", "c", [doc! {}]).session(&mut session).await.unwrap();
        let committed = session.commit_transaction().await;
        for (command, error) in [("ping", pinged.err()), ("commitTransaction", committed.err())] {
            let arrived = server.command_names().iter().filter(|name| *name == command).count();
            assert_eq!(arrived, 1, "{command} was sent with the longer limit only");
            match error {
                None => {
                    let left = told.started(command)[0].get_i64("maxTimeMS").unwrap();
                    assert!(is_sent && (850..=1_000 - ROUND_TRIP).contains(&left), "{command}: {left} ms");
                }
                Some(error) => assert!(!is_sent && error.is_timeout(), "{command}: {error}"),
            }
        }
    }
}

/// CRUD, "Insert, Update, Replace, Delete, and Bulk Writes".
#[tokio::test]
async fn writes_without_statements_are_an_error() {
    let client = Client::from_uri("mongodb://127.0.0.1:1").unwrap();
    let error = client.insert("test", "c", Vec::<Document>::new()).await.unwrap_err();
    assert!(matches!(&error, ClientError::Argument { name: "statements", .. }), "{error}");
}

/// Transactions, "TransientTransactionError", which also applies to writes that are split into several commands.
#[tokio::test(start_paused = true)]
async fn selection_that_fails_in_a_transaction_lets_it_be_repeated() {
    let client = Client::from_uri("mongodb://127.0.0.1:1/?replicaSet=rs&serverSelectionTimeoutMS=50").unwrap();
    let mut session = client.start_session().await.unwrap();
    for is_in_transaction in [false, true] {
        if is_in_transaction {
            session.start_transaction(TransactionOptions::default()).unwrap();
        }
        let write = rawdoc! { "insert": "c", "documents": [{}] };
        let raw = client.run(Operation::write("test", &write).session(&mut session)).await.unwrap_err();
        let typed = client.insert("test", "c", [doc! {}]).session(&mut session).await.unwrap_err();
        for error in [raw, typed] {
            assert!(error.is_timeout(), "{error}");
            assert_eq!(error.has_label("TransientTransactionError"), is_in_transaction, "{error}");
        }
    }
}
