//! The prose tests of Driver Sessions, on servers that follow scripts, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bson::{Bson, Document, Timestamp, doc, rawdoc};
use wharf::client::{Session, SessionError, TopologyEvent, WatchTarget};
use wharf::{Client, ClientError, Operation};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::cluster::{self, Cluster, batch, ok};
use super::repetitions::{primary, standalone, start};

fn cluster_time(time: u32) -> Document {
    let hash = bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![0; 20] };
    doc! { "clusterTime": Timestamp { time, increment: 1 }, "signature": { "hash": hash, "keyId": 0_i64 } }
}

/// Adds a new cluster time to a reply.
fn gossiping(times: &AtomicU32, answer: Answer) -> Answer {
    let Answer::Reply(mut reply) = answer else { return answer };
    reply.insert("$clusterTime", cluster_time(times.fetch_add(1, Ordering::SeqCst)));
    Answer::Reply(reply)
}

fn answer(command: &Document) -> Answer {
    match name(command).as_str() {
        "find" | "aggregate" => batch("firstBatch", 0, 1),
        _ => ok(),
    }
}

/// Test 2.
#[tokio::test(start_paused = true)]
async fn server_session_that_was_returned_last_is_taken_first() {
    let set = Cluster::replica_set(1, |_, command, _| answer(command)).await;
    let (client, _) = set.client("").await;
    let start = async || client.start_session().await.unwrap();
    let (a, b) = (start().await, start().await);
    let ids = [a.id(), b.id()];
    drop(a);
    drop(b);
    let (first, second) = (start().await, start().await);
    assert_eq!([second.id(), first.id()], ids);
}

/// Test 3, and Causal Consistency 12.
#[tokio::test(start_paused = true)]
async fn each_command_carries_the_cluster_time_of_the_last_reply() {
    let times = Arc::new(AtomicU32::new(10));
    let set = Cluster::replica_set(1, move |_, command, _| gossiping(&times, answer(command))).await;
    let (client, told) = set.client("").await;
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    for wanted in ["ping", "aggregate", "find", "insert"] {
        for _ in 0..2 {
            let before = told.last_reply();
            match wanted {
                "ping" => drop(client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap()),
                "aggregate" => drop(client.aggregate("test", "c", [doc! { "$match": {} }]).await.unwrap()),
                "find" => drop(client.find("test", "c", doc! {}).await.unwrap()),
                _ => drop(client.insert("test", "c", [doc! { "_id": 1 }]).await.unwrap()),
            }
            let sent = told.started(wanted).pop().unwrap();
            let received = Document::try_from(before.get_document("$clusterTime").unwrap()).unwrap();
            assert_eq!(sent.get_document("$clusterTime").unwrap(), &received, "{wanted}");
        }
    }
}

/// Calls every method that takes a session, each exactly once, and returns the outcomes.
async fn call_all(client: &Client, mut session: Option<&mut Session>) -> Vec<Result<(), ClientError>> {
    let mut outcomes = Vec::new();
    macro_rules! call {
        ($call:expr) => {{
            let call = $call;
            let call = match session.as_deref_mut() {
                Some(session) => call.session(session),
                None => call,
            };
            outcomes.push(call.await.map(drop));
        }};
    }
    call!(client.insert("test", "c", [doc! { "_id": 1 }]));
    call!(client.update("test", "c", [doc! { "q": {}, "u": { "$set": { "a": 1 } } }]));
    call!(client.delete("test", "c", [doc! { "q": {}, "limit": 1 }]));
    call!(client.write("test", "c").insert(rawdoc! { "_id": 2 }));
    call!(client.find("test", "c", doc! {}));
    call!(client.aggregate("test", "c", [doc! { "$match": {} }]));
    call!(client.watch(WatchTarget::Collection("test", "c"), ()));
    let (ping, count, update) = (rawdoc! { "ping": 1 }, rawdoc! { "count": "c" }, rawdoc! { "findAndModify": "c" });
    let find = rawdoc! { "find": "c" };
    for kind in 0..4 {
        let operation = match kind {
            0 => Operation::new("test", &ping),
            1 => Operation::read("test", &count),
            2 => Operation::write("test", &update),
            _ => Operation::read("test", &find),
        };
        let operation = match session.as_deref_mut() {
            Some(session) => operation.session(session),
            None => operation,
        };
        outcomes.push(match kind {
            3 => client.cursor(operation).await.map(drop),
            _ => client.run(operation).await.map(drop),
        });
    }
    outcomes
}

/// Test 4.
#[tokio::test(start_paused = true)]
async fn every_method_sends_the_session_that_it_is_given_or_one_of_its_own() {
    let set = Cluster::replica_set(1, |_, command, _| answer(command)).await;
    let (client, told) = set.client("").await;
    let mut session = client.start_session().await.unwrap();
    let id = Document::try_from(session.id()).unwrap();
    for is_explicit in [true, false] {
        told.forget();
        let outcomes = call_all(&client, is_explicit.then_some(&mut session)).await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        let names = ["insert", "update", "delete", "find", "aggregate", "ping", "count", "findAndModify"];
        let started: Vec<_> = names.iter().flat_map(|name| told.started(name)).collect();
        assert_eq!(started.len(), outcomes.len());
        for command in started {
            let sent = command.get_document("lsid").unwrap();
            assert_eq!(*sent == id, is_explicit, "{command}");
        }
    }
}

/// Test 5.
#[tokio::test(start_paused = true)]
async fn every_method_refuses_the_session_of_another_client() {
    let set = Cluster::replica_set(1, |_, command, _| answer(command)).await;
    let (client, told) = set.client("").await;
    let (other, _) = set.client("").await;
    let mut session = other.start_session().await.unwrap();
    for outcome in call_all(&client, Some(&mut session)).await {
        let error = outcome.unwrap_err();
        assert!(matches!(error, ClientError::Session(SessionError::OtherClient)), "{error:?}");
    }
    assert!(told.0.lock().unwrap().is_empty(), "nothing is sent");
}

/// Tests 8 and 9, with the requirements of test 10.
#[tokio::test(start_paused = true)]
async fn cursor_returns_its_implicit_session_with_the_last_batch() {
    for (first, more) in [(2, 0), (3, 2)] {
        let set = Cluster::replica_set(1, move |_, command, _| match name(command).as_str() {
            "find" => batch("firstBatch", if more == 0 { 0 } else { 7 }, first),
            "getMore" => batch("nextBatch", 0, more),
            _ => ok(),
        })
        .await;
        let (client, told) = set.client("").await;
        let mut found = client.find("test", "c", doc! {}).batch_size(3).await.unwrap();
        for _ in 0..first + more - 1 {
            assert!(found.next().await.unwrap().is_some());
        }
        assert_eq!(told.started("getMore").len(), usize::from(more > 0));
        client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
        let session = |name| told.started(name)[0].get("lsid").cloned();
        assert_eq!(session("ping"), session("find"), "the session is free before the last document is read");
        assert!(found.next().await.unwrap().is_some() && found.next().await.unwrap().is_none());
    }
}

/// Starts a server that does not support sessions, and returns a client for it, with its events.
async fn without_sessions() -> (ScriptedServer, Client, cluster::Told) {
    let mut hello = standalone();
    hello.remove("logicalSessionTimeoutMinutes");
    let (server, _) = start(hello, |command, _| answer(command)).await;
    let (client, told, _) = cluster::client(&format!("mongodb://{}", server.address()));
    (server, client, told)
}

/// Test 18.
#[tokio::test(start_paused = true)]
async fn implicit_session_is_left_out_for_a_server_without_sessions() {
    let (_server, client, told) = without_sessions().await;
    let outcomes = call_all(&client, None).await;
    let refused: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(refused.is_empty(), "{refused:?}");
    for name in ["find", "insert", "count", "update", "ping", "aggregate"] {
        let commands = told.started(name);
        assert!(!commands.is_empty() && commands.iter().all(|command| !command.contains_key("lsid")), "{commands:?}");
    }
}

/// Test 19.
#[tokio::test(start_paused = true)]
async fn explicit_session_is_an_error_on_a_server_without_sessions() {
    let (_server, client, told) = without_sessions().await;
    let mut session = client.start_session().await.unwrap();
    for outcome in call_all(&client, Some(&mut session)).await {
        let error = outcome.unwrap_err();
        let cause = match &error {
            ClientError::Write(failure) => failure.cause.as_deref().unwrap(),
            error => error,
        };
        assert!(matches!(cause, ClientError::Session(SessionError::Unsupported)), "{error:?}");
    }
    assert!(told.0.lock().unwrap().is_empty(), "nothing is sent");
}

/// Test 20.
#[tokio::test(start_paused = true)]
async fn cluster_time_of_a_check_is_neither_sent_nor_kept() {
    let times = Arc::new(AtomicU32::new(10));
    let server = ScriptedServer::start(move || {
        let times = times.clone();
        Box::new(move |command: &Document| match name(command).as_str() {
            "hello" | "isMaster" | "ismaster" => gossiping(&times, Answer::Reply(primary())),
            _ => gossiping(&times, answer(command)),
        })
    });
    let server = server.await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true&heartbeatFrequencyMS=500", server.address());
    let (client, told, events) = cluster::client(&uri);
    let ping = rawdoc! { "ping": 1 };
    let reply = client.run_command("admin", &ping).await.unwrap();
    let known = Document::try_from(reply.get_document("$clusterTime").unwrap()).unwrap();
    for _ in 0..2 {
        let mark = events.mark();
        events.after(mark, |event| matches!(event, TopologyEvent::ServerHeartbeatSucceeded { .. })).await;
    }
    client.run_command("admin", &ping).await.unwrap();
    assert_eq!(told.started("ping")[1].get_document("$clusterTime").unwrap(), &known);
    let checks: Vec<_> = server.commands().into_iter().filter(|command| name(command) != "ping").collect();
    assert!(checks.len() >= 3 && checks.iter().all(|check| !check.contains_key("$clusterTime")), "{checks:?}");
}

/// Starts a deployment in which each reply carries the number of its command as the operation time.
async fn with_operation_times() -> (Cluster, Client, cluster::Told) {
    let times = Arc::new(AtomicU32::new(100));
    let set = Cluster::replica_set(1, move |_, command, _| {
        let time = times.fetch_add(1, Ordering::SeqCst);
        let Answer::Reply(mut reply) = (match name(command).as_str() {
            "distinct" => Answer::Reply(doc! { "ok": 0, "code": 2, "errmsg": "no" }),
            _ => answer(command),
        }) else {
            unreachable!()
        };
        reply.insert("operationTime", Timestamp { time, increment: 0 });
        reply.insert("$clusterTime", cluster_time(time));
        Answer::Reply(reply)
    })
    .await;
    let (client, told) = set.client("").await;
    (set, client, told)
}

fn concern(command: &Document) -> Option<&Document> {
    command.get_document("readConcern").ok()
}

/// Causal Consistency 1 to 3.
#[tokio::test(start_paused = true)]
async fn operation_time_is_that_of_the_last_reply_even_of_an_error() {
    let (_set, client, told) = with_operation_times().await;
    for is_consistent in [true, false] {
        let mut session = client.start_session().causal_consistency(is_consistent).await.unwrap();
        assert_eq!(session.operation_time(), None);
        told.forget();
        client.run(Operation::read("test", &rawdoc! { "count": "c" }).session(&mut session)).await.unwrap();
        assert_eq!(concern(&told.started("count")[0]), None, "nothing to read after");
        let seen = told.last_reply().get_timestamp("operationTime").unwrap();
        assert_eq!(session.operation_time(), Some(seen));
        let distinct = rawdoc! { "distinct": "c", "key": "a" };
        let error = client.run(Operation::read("test", &distinct).session(&mut session)).await.unwrap_err();
        let reply = &error.server_error().unwrap().reply;
        assert_eq!(session.operation_time(), Some(reply.get_timestamp("operationTime").unwrap()));
    }
}

/// Causal Consistency 4, 5, 6, 8 and 9.
#[tokio::test(start_paused = true)]
async fn read_comes_after_the_operation_before_it_if_the_session_is_consistent() {
    let (_set, client, told) = with_operation_times().await;
    let reads =
        [rawdoc! { "count": "c" }, rawdoc! { "find": "c" }, rawdoc! { "aggregate": "c", "pipeline": [], "cursor": {} }];
    let writes = [
        rawdoc! { "insert": "c", "documents": [{ "_id": 1 }] },
        rawdoc! { "update": "c", "updates": [{ "q": {}, "u": { "a": 1 } }] },
        rawdoc! { "delete": "c", "deletes": [{ "q": {}, "limit": 1 }] },
        rawdoc! { "findAndModify": "c", "remove": true },
        // This command fails.
        rawdoc! { "distinct": "c", "key": "a" },
    ];
    for (is_consistent, level) in [(true, None), (true, Some("majority")), (false, None), (false, Some("majority"))] {
        for before in reads.iter().chain(&writes) {
            for read in &reads {
                let mut session = client.start_session().causal_consistency(is_consistent).await.unwrap();
                let _ = match writes.contains(before) {
                    true => client.run(Operation::write("test", before).session(&mut session)).await,
                    false => client.run(Operation::read("test", before).session(&mut session)).await,
                };
                let seen = session.operation_time().unwrap();
                told.forget();
                let mut body = read.clone();
                if let Some(level) = level {
                    body.append(bson::raw::cstr!("readConcern"), rawdoc! { "level": level });
                }
                client.run(Operation::read("test", &body).session(&mut session)).await.unwrap();
                let mut expected = Document::new();
                if let Some(level) = level {
                    expected.insert("level", level);
                }
                if is_consistent {
                    expected.insert("afterClusterTime", Bson::Timestamp(seen));
                }
                let sent = told.started(&name(&Document::try_from(read.clone()).unwrap())).pop().unwrap();
                let expected = Some(&expected).filter(|expected| !expected.is_empty());
                assert_eq!(concern(&sent), expected, "{before:?}, {read:?}");
            }
        }
    }
}

/// Causal Consistency 7 and 11.
#[tokio::test(start_paused = true)]
async fn standalone_server_gets_no_times() {
    let (server, _) = start(standalone(), |command, _| answer(command)).await;
    let (client, told, _) = cluster::client(&format!("mongodb://{}", server.address()));
    let mut session = client.start_session().await.unwrap();
    for _ in 0..2 {
        client.run(Operation::read("test", &rawdoc! { "count": "c" }).session(&mut session)).await.unwrap();
        drop(client.find("test", "c", doc! {}).await.unwrap());
    }
    for command in [told.started("count"), told.started("find")].concat() {
        assert!(concern(&command).is_none() && !command.contains_key("$clusterTime"), "{command}");
    }
}
