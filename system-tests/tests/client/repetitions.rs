//! Which commands are sent again after a failure, and which are not, on servers that follow scripts.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bson::{Document, doc, rawdoc};
use tokio::time::{Instant, timeout};
use wharf::client::{SessionError, TransactionOptions};
use wharf::{Client, ClientError, CommandError, Operation, ReadPreference};
use wharf_testbed::scripted::{Answer, Script, ScriptedServer, name};

pub(super) fn standalone() -> Document {
    doc! {
        "ok": 1, "isWritablePrimary": true, "helloOk": true, "minWireVersion": 0, "maxWireVersion": 21,
        "logicalSessionTimeoutMinutes": 30,
    }
}

pub(super) fn primary() -> Document {
    let mut hello = standalone();
    hello.extend(doc! { "setName": "rs", "setVersion": 1 });
    hello
}

pub(super) fn service() -> Document {
    let mut hello = standalone();
    hello.extend(doc! { "msg": "isdbgrid", "serviceId": bson::oid::ObjectId::from_bytes([7; 12]) });
    hello
}

/// Starts a server that answers hello with `hello` and other commands with `answer`. Also returns the other commands
/// that it receives.
pub(super) async fn start(
    hello: Document,
    answer: impl Fn(&Document, usize) -> Answer + Clone + Send + 'static,
) -> (ScriptedServer, Arc<Mutex<Vec<Document>>>) {
    let arrived = Arc::<Mutex<Vec<Document>>>::default();
    let noted = arrived.clone();
    let server = ScriptedServer::start(move || {
        let (noted, answer, hello) = (noted.clone(), answer.clone(), hello.clone());
        Box::new(move |command: &Document| {
            if matches!(name(command).as_str(), "hello" | "isMaster" | "ismaster") {
                return Answer::Reply(hello.clone());
            }
            let mut noted = noted.lock().unwrap();
            let number = noted.iter().filter(|other| name(other) == name(command)).count();
            noted.push(command.clone());
            answer(command, number)
        })
    });
    (server.await.unwrap(), arrived)
}

pub(super) fn client(server: &ScriptedServer, parameters: &str) -> Client {
    let parameters = format!("serverMonitoringMode=poll&heartbeatFrequencyMS=500&{parameters}");
    Client::from_uri(&format!("mongodb://{}/?{parameters}", server.address())).unwrap()
}

pub(super) fn balanced(server: &ScriptedServer) -> Client {
    Client::from_uri(&format!("mongodb://{}/?loadBalanced=true", server.address())).unwrap()
}

pub(super) fn count(arrived: &Mutex<Vec<Document>>, wanted: &str) -> usize {
    arrived.lock().unwrap().iter().filter(|command| name(command) == wanted).count()
}

#[tokio::test(start_paused = true)]
async fn write_without_a_number_is_not_sent_twice() {
    let (server, arrived) = start(standalone(), |_, number| match number {
        0 => Answer::Close,
        _ => Answer::Reply(doc! { "ok": 1, "n": 1 }),
    })
    .await;
    let client = client(&server, "");
    let update = rawdoc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } }] };
    let outcome = client.run(Operation::write("test", &update)).await;
    assert_eq!(count(&arrived, "update"), 1, "a standalone server cannot recognise a repetition");
    let error = outcome.unwrap_err();
    assert!(!error.has_label("RetryableWriteError"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn batch_whose_fetch_failed_is_not_fetched_again() {
    let (server, arrived) = start(primary(), |command, number| match (name(command).as_str(), number) {
        ("find", _) => Answer::Reply(doc! {
            "ok": 1, "cursor": { "id": 7_i64, "ns": "test.c", "firstBatch": [{ "_id": 1 }] },
        }),
        // The server has executed the command, and the documents are lost.
        ("getMore", 0) => Answer::Close,
        ("getMore", _) => Answer::Reply(doc! {
            "ok": 1, "cursor": { "id": 0_i64, "ns": "test.c", "nextBatch": [{ "_id": 3 }] },
        }),
        _ => Answer::Reply(doc! { "ok": 1 }),
    })
    .await;
    let client = client(&server, "directConnection=true");
    let mut cursor = client.cursor(Operation::read("test", &rawdoc! { "find": "c" })).await.unwrap();
    assert!(cursor.next().await.unwrap().is_some());
    cursor.next().await.unwrap_err();
    assert_eq!(cursor.next().await.unwrap(), None);
    assert!(cursor.is_over());
    assert_eq!(count(&arrived, "getMore"), 1);
}

#[tokio::test(start_paused = true)]
async fn first_selection_of_writes_counts_for_their_time_limit() {
    let (server, _) = start(doc! { "ok": 1, "maxWireVersion": 21, "setName": "rs", "secondary": true }, |_, _| {
        Answer::Reply(doc! { "ok": 1 })
    })
    .await;
    let client = client(&server, "replicaSet=rs&serverSelectionTimeoutMS=30000");
    let (begin, documents) = (Instant::now(), [rawdoc! { "_id": 1 }]);
    let error = client.insert("test", "c", &documents).timeout(Duration::from_millis(200)).await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(2), "{error} after {:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn read_concern_goes_with_the_commands_that_take_one() {
    let (server, arrived) = start(primary(), |_, _| Answer::Reply(doc! { "ok": 1 })).await;
    let client = client(&server, "directConnection=true&readConcernLevel=majority");
    client.run(Operation::read("test", &rawdoc! { "listCollections": 1 })).await.unwrap();
    client.run(Operation::read("test", &rawdoc! { "count": "c" })).await.unwrap();
    let arrived = arrived.lock().unwrap();
    let carries = |wanted: &str| {
        let command = arrived.iter().find(|command| name(command) == wanted).unwrap();
        command.contains_key("readConcern")
    };
    assert_eq!((carries("listCollections"), carries("count")), (false, true));
}

#[tokio::test(start_paused = true)]
async fn read_preference_is_not_sent_to_a_standalone_server() {
    let (server, arrived) = start(standalone(), |_, _| Answer::Reply(doc! { "ok": 1 })).await;
    let client = client(&server, "");
    client.run(Operation::read("test", &rawdoc! { "count": "c" })).await.unwrap();
    let preference = ReadPreference::default();
    client.run(Operation::read("test", &rawdoc! { "count": "c" }).read_preference(&preference)).await.unwrap();
    let arrived = arrived.lock().unwrap();
    assert!(arrived.iter().all(|command| !command.contains_key("$readPreference")), "{arrived:?}");
}

#[tokio::test(start_paused = true)]
async fn aggregation_that_writes_is_not_repeated() {
    let (server, arrived) = start(primary(), |_, number| match number {
        0 => Answer::Close,
        _ => Answer::Reply(doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "test.c", "firstBatch": [] } }),
    })
    .await;
    let client = client(&server, "directConnection=true");
    let merge = rawdoc! { "aggregate": "c", "pipeline": [{ "$merge": "d" }], "cursor": {} };
    client.run(Operation::read("test", &merge)).await.unwrap_err();
    assert_eq!(count(&arrived, "aggregate"), 1);
}

#[tokio::test(start_paused = true)]
async fn transient_error_unpins_the_connection_of_a_transaction() {
    let (server, _) = start(service(), |command, _| match name(command).as_str() {
        "insert" => Answer::Reply(doc! { "ok": 0, "code": 251, "errorLabels": ["TransientTransactionError"] }),
        _ => Answer::Reply(doc! { "ok": 1 }),
    })
    .await;
    let client = balanced(&server);
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    let find = rawdoc! { "count": "c" };
    client.run(Operation::read("test", &find).session(&mut session)).await.unwrap();
    let in_use = || client.status().servers[0].pool.as_ref().unwrap().in_use;
    assert_eq!(in_use(), 1);
    let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }] };
    let error = client.run(Operation::write("test", &insert).session(&mut session)).await.unwrap_err();
    assert!(error.has_label("TransientTransactionError"), "{error}");
    assert_eq!(in_use(), 0, "the connection is back in the pool");
}

#[tokio::test(start_paused = true)]
async fn identifier_of_a_cancelled_operations_session_is_not_used_again() {
    let (server, arrived) = start(primary(), |command, _| match name(command).as_str() {
        "insert" => Answer::After(Duration::from_secs(3_600), Box::new(Answer::Reply(doc! { "ok": 1, "n": 1 }))),
        _ => Answer::Reply(doc! { "ok": 1 }),
    })
    .await;
    let client = client(&server, "directConnection=true");
    let mut session = client.start_session().await.unwrap();
    let id = session.id();
    let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }] };
    let cancelled =
        timeout(Duration::from_secs(1), client.run(Operation::write("test", &insert).session(&mut session)));
    assert!(cancelled.await.is_err());
    assert_eq!(count(&arrived, "insert"), 1);
    drop(session);
    let next = client.start_session().await.unwrap();
    assert_ne!(next.id(), id, "the server may still execute the write");
}

#[tokio::test(start_paused = true)]
async fn own_read_concern_of_an_operation_gets_the_time_of_its_session() {
    let time = bson::Timestamp { time: 7, increment: 2 };
    let (server, arrived) =
        start(primary(), move |_, _| Answer::Reply(doc! { "ok": 1, "n": 1, "operationTime": time })).await;
    let client = client(&server, "directConnection=true");
    let mut session = client.start_session().await.unwrap();
    let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }] };
    client.run(Operation::write("test", &insert).session(&mut session)).await.unwrap();
    let count = rawdoc! { "count": "c", "readConcern": { "level": "majority" }, "limit": 3 };
    client.run(Operation::read("test", &count).session(&mut session)).await.unwrap();
    let distinct = rawdoc! { "distinct": "c", "key": "a", "readConcern": { "afterClusterTime": bson::Timestamp { time: 1, increment: 1 } } };
    client.run(Operation::read("test", &distinct).session(&mut session)).await.unwrap();
    let arrived = arrived.lock().unwrap();
    let of = |wanted: &str| arrived.iter().find(|command| name(command) == wanted).unwrap();
    assert_eq!(of("count").get("readConcern"), Some(&doc! { "level": "majority", "afterClusterTime": time }.into()));
    assert_eq!(of("count").get_i32("limit").unwrap(), 3);
    let own = doc! { "afterClusterTime": bson::Timestamp { time: 1, increment: 1 } };
    assert_eq!(of("distinct").get("readConcern"), Some(&own.into()));
}

#[tokio::test(start_paused = true)]
async fn unreadable_reply_keeps_the_results_of_the_commands_before_it() {
    let mut hello = standalone();
    hello.insert("maxWriteBatchSize", 1);
    let (server, arrived) = start(hello, |_, number| match number {
        0 => Answer::Reply(doc! { "ok": 1, "n": 1 }),
        _ => Answer::Reply(doc! { "ok": 1, "n": "many" }),
    })
    .await;
    let client = client(&server, "");
    let documents = [rawdoc! { "_id": 1 }, rawdoc! { "_id": 2 }, rawdoc! { "_id": 3 }];
    let write = documents.iter().fold(client.write("test", "c"), |write, document| write.insert(&**document));
    let error = write.await.unwrap_err();
    let ClientError::Write(failure) = &error else { panic!("{error}") };
    assert_eq!(failure.written.inserted, 1);
    assert!(matches!(failure.cause.as_deref(), Some(ClientError::Reply { .. })), "{error}");
    assert_eq!(count(&arrived, "insert"), 2);
}

#[tokio::test(start_paused = true)]
async fn long_options_leave_less_room_for_the_statements() {
    let mut hello = standalone();
    hello.insert("maxMessageSizeBytes", 64 * 1024);
    let (server, arrived) = start(hello, |_, _| Answer::Reply(doc! { "ok": 1, "n": 1 })).await;
    let client = client(&server, "");
    let documents = [1, 2].map(|id| rawdoc! { "_id": id, "text": "x".repeat(20 * 1024) });
    let options = rawdoc! { "comment": "y".repeat(30 * 1024) };
    let write = documents.iter().fold(client.write("test", "c"), |write, document| write.insert(&**document));
    assert_eq!(write.options(&*options).await.unwrap().inserted, 2);
    assert_eq!(count(&arrived, "insert"), 2, "each document in a message of its own");
}

#[tokio::test(start_paused = true)]
async fn repeated_commits_go_to_the_mongos_of_the_transaction() {
    let mut mongos = standalone();
    mongos.insert("msg", "isdbgrid");
    let answer = |_: &Document, _| Answer::Reply(doc! { "ok": 1, "n": 1 });
    let (first, of_first) = start(mongos.clone(), answer).await;
    let (second, of_second) = start(mongos, answer).await;
    let uri = format!("mongodb://{},{}/", first.address(), second.address());
    let client = Client::from_uri(&uri).unwrap();
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }] };
    client.run(Operation::write("test", &insert).session(&mut session)).await.unwrap();
    for _ in 0..10 {
        session.commit_transaction().await.unwrap();
    }
    let commits = [of_first, of_second].map(|arrived| {
        let commits = count(&arrived, "commitTransaction");
        assert_eq!(commits > 0, count(&arrived, "insert") > 0);
        commits
    });
    assert_eq!(commits.iter().sum::<usize>(), 10);
}

/// SDAM, "Error handling pseudocode": a state change in the `writeConcernError` of a reply, including the reply to an
/// aggregation that writes its result.
#[tokio::test(start_paused = true)]
async fn unmet_write_concern_of_a_server_that_shuts_down_clears_its_pool() {
    let reply = doc! {
        "ok": 1, "n": 1, "cursor": { "id": 0_i64, "ns": "test.c", "firstBatch": [] },
        "writeConcernError": { "code": 91, "codeName": "ShutdownInProgress", "errmsg": "it ends" },
    };
    let insert = rawdoc! { "insert": "c", "documents": [{}] };
    let read = rawdoc! { "aggregate": "c", "pipeline": [], "cursor": {} };
    let output = rawdoc! { "aggregate": "c", "pipeline": [{ "$out": "d" }], "cursor": {} };
    for (operation, clears) in [
        (Operation::write("test", &insert), true),
        (Operation::read("test", &output), true),
        (Operation::read("test", &read), false),
    ] {
        let reply = reply.clone();
        let (server, _) = start(primary(), move |_, _| Answer::Reply(reply.clone())).await;
        let client = client(&server, "directConnection=true&retryWrites=false");
        let outcome = client.run(operation).await;
        assert_eq!(outcome.is_err(), clears, "{outcome:?}");
        assert_eq!(client.status().servers[0].pool.as_ref().unwrap().generation, u64::from(clears));
    }
}

/// Starts a primary that closes the connection of a commit, and hangs from then on. Also returns whether the primary
/// received the commit.
pub(super) async fn lost_with_a_commit() -> (ScriptedServer, Arc<AtomicBool>) {
    let has_committed = Arc::new(AtomicBool::new(false));
    let noted = has_committed.clone();
    let server = ScriptedServer::start(move || {
        let has_committed = noted.clone();
        Box::new(move |command: &Document| match name(command).as_str() {
            "commitTransaction" => {
                has_committed.store(true, Ordering::SeqCst);
                Answer::Close
            }
            _ if has_committed.load(Ordering::SeqCst) => Answer::Hang,
            _ => Answer::Reply(primary()),
        })
    });
    (server.await.unwrap(), has_committed)
}

/// Retryable Writes, "Executing Retryable Write Commands": the client reports the error from the attempt that the
/// server may have executed.
#[tokio::test(start_paused = true)]
async fn commit_whose_retry_finds_no_server_reports_the_attempt_before() {
    for (parameters, is_timeout) in [("serverSelectionTimeoutMS=1000", false), ("timeoutMS=1000", true)] {
        let (server, _) = lost_with_a_commit().await;
        let client = client(&server, &format!("directConnection=true&{parameters}"));
        let mut session = client.start_session().await.unwrap();
        session.start_transaction(TransactionOptions::default()).unwrap();
        let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }] };
        client.run(Operation::write("test", &insert).session(&mut session)).await.unwrap();
        let error = session.commit_transaction().await.unwrap_err();
        assert!(matches!(error.command_error(), Some(CommandError::Network { .. })), "{error}");
        assert!(error.has_label("UnknownTransactionCommitResult"), "{error}");
        assert_eq!(error.is_timeout(), is_timeout, "{error}");
    }
}

/// Retryable Reads, "If a retry attempt fails".
#[tokio::test(start_paused = true)]
async fn batch_whose_fetch_finds_no_connection_again_reports_the_attempt_before() {
    for (parameters, is_timeout) in [("waitQueueTimeoutMS=1000", false), ("timeoutMS=1000", true)] {
        let (server, arrived) = start(primary(), |command, _| match name(command).as_str() {
            "find" => Answer::Reply(doc! { "ok": 1, "cursor": { "id": 7_i64, "ns": "test.c", "firstBatch": [] } }),
            "getMore" => Answer::Reply(doc! {
                "ok": 0, "code": 462, "errmsg": "too much", "errorLabels": ["SystemOverloadedError", "RetryableError"],
            }),
            _ => Answer::Hang,
        })
        .await;
        let client = client(&server, &format!("directConnection=true&maxPoolSize=1&{parameters}"));
        let mut cursor = client.cursor(Operation::read("test", &rawdoc! { "find": "c" })).await.unwrap();
        // The command waits for the only connection while the batch is being fetched, and keeps it afterwards.
        let ping = rawdoc! { "ping": 1 };
        let hanging = client.run(Operation::new("test", &ping).timeout(Duration::from_secs(3_600)));
        let error = tokio::select! {
            biased;
            fetched = cursor.next() => fetched.unwrap_err(),
            ended = hanging => panic!("{ended:?}"),
        };
        assert_eq!((count(&arrived, "getMore"), count(&arrived, "ping")), (1, 1));
        assert_eq!(error.server_error().map(|error| error.code), Some(462), "{error}");
        assert_eq!(error.is_timeout(), is_timeout, "{error}");
    }
}

/// Client Backpressure, "Overload retry policy": for error propagation, a generic command is treated as a write.
#[tokio::test(start_paused = true)]
async fn attempt_that_wrote_nothing_hides_no_earlier_one_of_an_operation_that_may_write() {
    let overload = ["SystemOverloadedError", "RetryableError"];
    let insert = rawdoc! { "insert": "c", "documents": [{}] };
    let read = rawdoc! { "aggregate": "c", "pipeline": [], "cursor": {} };
    let output = rawdoc! { "aggregate": "c", "pipeline": [{ "$out": "d" }], "cursor": {} };
    for (operation, expected) in [
        (Operation::new("test", &insert), 462),
        (Operation::read("test", &output), 462),
        (Operation::read("test", &read), 2),
    ] {
        let (server, arrived) = start(primary(), move |_, number| match number {
            0 => Answer::Reply(doc! { "ok": 0, "code": 462, "errmsg": "too much", "errorLabels": overload }),
            _ => Answer::Reply(doc! {
                "ok": 0, "code": 2, "errmsg": "it failed", "errorLabels": ["NoWritesPerformed"],
            }),
        })
        .await;
        let client = client(&server, "directConnection=true");
        let error = client.run(operation).await.unwrap_err();
        assert_eq!(arrived.lock().unwrap().len(), 2);
        assert_eq!(error.server_error().map(|error| error.code), Some(expected), "{error}");
    }
}

/// Retryable Writes, "Supported Write Operations". The server treats any number other than 0 as true.
#[tokio::test(start_paused = true)]
async fn statements_that_touch_many_documents_get_no_number() {
    let (server, arrived) = start(primary(), |_, _| Answer::Reply(doc! { "ok": 1, "n": 1 })).await;
    let client = client(&server, "directConnection=true");
    for (multi, has_number) in [
        (bson::Bson::from(true), false),
        (1.into(), false),
        (1_i64.into(), false),
        (0.5.into(), false),
        (0.into(), true),
        (false.into(), true),
    ] {
        arrived.lock().unwrap().clear();
        let statement = doc! { "q": {}, "u": { "$set": { "a": 1 } }, "multi": multi.clone() };
        client.update("test", "c", [statement]).await.unwrap();
        client.delete("test", "c", [doc! { "q": {}, "limit": if has_number { 1 } else { 0 } }]).await.unwrap();
        let arrived = arrived.lock().unwrap();
        assert_eq!(arrived.len(), 2);
        assert!(arrived.iter().all(|sent| sent.contains_key("txnNumber") == has_number), "{multi}: {arrived:?}");
    }
}

/// Driver Sessions, "Sending the highest seen cluster time".
#[tokio::test(start_paused = true)]
async fn unacknowledged_write_carries_the_cluster_time() {
    let time = doc! { "clusterTime": bson::Timestamp { time: 7, increment: 2 } };
    let of_server = time.clone();
    let (server, arrived) = start(primary(), move |command, _| match name(command).as_str() {
        "insert" => Answer::Hang,
        _ => Answer::Reply(doc! { "ok": 1, "$clusterTime": of_server.clone() }),
    })
    .await;
    let client = client(&server, "directConnection=true&maxPoolSize=1&w=0");
    let (ping, insert) = (rawdoc! { "ping": 1 }, rawdoc! { "insert": "c", "documents": [{}] });
    client.run_command("test", &ping).await.unwrap();
    client.run(Operation::write("test", &insert)).await.unwrap();
    while count(&arrived, "insert") == 0 {
        tokio::task::yield_now().await;
    }
    let arrived = arrived.lock().unwrap();
    let insert = arrived.iter().find(|command| name(command) == "insert").unwrap();
    assert_eq!(insert.get_document("$clusterTime").ok(), Some(&time), "{insert}");
    assert!(!insert.contains_key("lsid"), "{insert}");
}

/// Retryable Writes, "RetryableWriteError Labels": servers before 4.4 do not attach any labels.
#[tokio::test(start_paused = true)]
async fn label_that_the_client_gives_an_unmet_write_concern_is_that_of_the_writes() {
    for (version, is_labelled) in [(8, true), (9, false)] {
        let mut hello = primary();
        hello.insert("maxWireVersion", version);
        let (server, arrived) = start(hello, |_, _| {
            Answer::Reply(doc! { "ok": 1, "n": 1, "writeConcernError": { "code": 91, "errmsg": "it ends" } })
        })
        .await;
        let client = client(&server, "directConnection=true");
        let error = client.insert("test", "c", [doc! { "_id": 1 }]).await.unwrap_err();
        let ClientError::Write(failure) = &error else { panic!("{error}") };
        assert_eq!(failure.write_concern_errors.len(), 1);
        assert_eq!(error.has_label("RetryableWriteError"), is_labelled, "wire version {version}: {error}");
        assert_eq!(count(&arrived, "insert"), if is_labelled { 2 } else { 1 });
    }
}

/// Snapshot Reads, "Sending readConcern to the server on all commands".
#[tokio::test(start_paused = true)]
async fn own_read_concern_in_a_snapshot_session_is_refused() {
    let (server, arrived) = start(primary(), |_, _| Answer::Reply(doc! { "ok": 1 })).await;
    let client = client(&server, "directConnection=true&readConcernLevel=majority");
    let mut session = client.start_session().snapshot(true).await.unwrap();
    let own = rawdoc! { "count": "c", "readConcern": { "level": "local" } };
    for operation in [Operation::read("test", &own), Operation::new("test", &own)] {
        let error = client.run(operation.session(&mut session)).await.unwrap_err();
        assert!(matches!(error, ClientError::Session(SessionError::ReadConcernInSnapshot)), "{error}");
    }
    client.run(Operation::read("test", &rawdoc! { "count": "c" }).session(&mut session)).await.unwrap();
    let arrived = arrived.lock().unwrap();
    assert_eq!(arrived.len(), 1);
    assert_eq!(arrived[0].get_document("readConcern").unwrap(), &doc! { "level": "snapshot" });
}

/// Retryable Writes 1, for any storage engine without retryable writes.
#[tokio::test(start_paused = true)]
async fn write_on_a_deployment_without_retryable_writes_says_what_to_do() {
    let (server, _) = start(primary(), |_, _| {
        Answer::Reply(doc! {
            "ok": 0, "code": 20, "codeName": "IllegalOperation",
            "errmsg": "Transaction numbers are only allowed on a replica set member or mongos",
        })
    })
    .await;
    let advice = "This MongoDB deployment does not support retryable writes. Please add retryWrites=false to your \
                  connection string.";
    let insert = rawdoc! { "insert": "c", "documents": [{}] };
    for (parameters, is_advised) in [("retryWrites=true", true), ("retryWrites=false", false)] {
        let client = client(&server, &format!("directConnection=true&{parameters}"));
        let of_command = client.run(Operation::write("test", &insert)).await.unwrap_err();
        let of_writes = client.insert("test", "c", [doc! {}]).await.unwrap_err();
        for error in [of_command, of_writes] {
            assert_eq!(error.to_string() == advice, is_advised, "{error}");
            assert_eq!(error.server_error().map(|error| error.code), Some(20), "{error}");
            let mut errors = std::iter::successors(Some(&error as &dyn Error), |&error| error.source());
            assert!(
                errors.any(|error| error.to_string().contains("Transaction numbers")),
                "the server's error is lost"
            );
        }
    }
}

/// Nothing was sent, and another server can run the transaction.
#[tokio::test(start_paused = true)]
async fn transaction_whose_server_leaves_while_it_waits_for_a_connection_is_repeated_on_another() {
    let addresses = Arc::new(OnceLock::<[String; 2]>::new());
    let has_left = Arc::new(AtomicBool::new(false));
    let script = || {
        let (addresses, has_left) = (addresses.clone(), has_left.clone());
        move || -> Script {
            let (addresses, has_left) = (addresses.clone(), has_left.clone());
            Box::new(move |command: &Document| match name(command).as_str() {
                "hello" | "isMaster" | "ismaster" => {
                    let present = usize::from(has_left.load(Ordering::SeqCst));
                    let mut hello = primary();
                    hello.insert("hosts", [&addresses.get().expect("both servers are there")[present]]);
                    Answer::Reply(hello)
                }
                _ => Answer::Reply(doc! { "ok": 1, "n": 1 }),
            })
        }
    };
    let servers = [ScriptedServer::start(script()).await.unwrap(), ScriptedServer::start(script()).await.unwrap()];
    addresses.set(servers.each_ref().map(ScriptedServer::address)).unwrap();
    let client = client(&servers[0], "replicaSet=rs&maxPoolSize=1");
    let held = client.check_out(&ReadPreference::default()).await.unwrap();
    let mut session = client.start_session().await.unwrap();
    let transaction = session.with_transaction(async |mut session| {
        let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }] };
        client.run(Operation::write("test", &insert).session(&mut session)).await
    });
    let leaves = async {
        while client.status().servers[0].pool.as_ref().unwrap().waiting == 0 {
            tokio::task::yield_now().await;
        }
        has_left.store(true, Ordering::SeqCst);
    };
    let (outcome, ()) = tokio::join!(transaction, leaves);
    outcome.unwrap();
    let inserts = servers.map(|server| server.command_names().iter().filter(|name| *name == "insert").count());
    assert_eq!(inserts, [0, 1]);
    drop(held);
}
