//! Cursors as iterators.

use std::sync::Arc;

use bson::{RawDocumentBuf, doc, rawdoc};
use serde::Deserialize;
use tokio::runtime::Builder;
use wharf::Operation;
use wharf::client::TransactionOptions;
use wharf::single::Client;
use wharf_testbed::mongod::{self, Mongod};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::Sent;

#[derive(Deserialize)]
struct Thing {
    #[serde(rename = "_id")]
    id: i32,
}

/// Returns the shared server and a client that records its commands, and creates a collection with ten documents.
fn collection(name: &str) -> (Arc<Mongod>, Client, Sent) {
    let server = mongod::shared().unwrap();
    let (client, sent) = Sent::client(&format!("mongodb://{}", server.address()));
    let _ = client.run(Operation::write("single", &rawdoc! { "drop": name }));
    let documents: Vec<_> = (0..10).map(|number| rawdoc! { "_id": number }).collect();
    client.insert("single", name, &documents).run().unwrap();
    sent.take();
    (server, client, sent)
}

fn find(name: &str) -> RawDocumentBuf {
    rawdoc! { "find": name, "sort": { "_id": 1 }, "batchSize": 4 }
}

#[test]
fn iterator_yields_all_documents_of_several_batches() {
    let (_server, client, sent) = collection("batches");
    let things = client.cursor(Operation::read("single", &find("batches"))).run().unwrap().typed::<Thing>();
    let ids: Vec<i32> = things.map(|thing| thing.unwrap().id).collect();
    assert_eq!(ids, Vec::from_iter(0..10));
    assert_eq!(sent.take(), ["find", "getMore", "getMore"]);

    let mut cursor = client.cursor(Operation::read("single", &find("batches"))).run().unwrap();
    let mut lent = Vec::new();
    while let Some(document) = cursor.next_document().unwrap() {
        lent.push(document.get_i32("_id").unwrap());
    }
    assert_eq!(lent, ids);
    assert!(cursor.is_over());

    let mut cursor = client.cursor(Operation::read("single", &find("batches"))).run().unwrap();
    let mut advanced = Vec::new();
    while cursor.advance().unwrap() {
        advanced.push(cursor.current::<Thing>().unwrap().id);
    }
    assert_eq!(advanced, ids);
    assert!(cursor.current::<Thing>().is_err());
}

#[test]
fn cursor_that_is_dropped_early_is_closed_before_the_drop_returns() {
    let (_server, client, sent) = collection("dropped");
    let mut cursor = client.cursor(Operation::read("single", &find("dropped"))).run().unwrap();
    assert!(cursor.next().unwrap().is_ok() && !cursor.is_over());
    drop(cursor);
    assert_eq!(sent.take(), ["find", "killCursors"]);
    // Nothing is sent to close an exhausted cursor, or a cursor that `typed` has consumed.
    let all = client.cursor(Operation::read("single", &find("dropped"))).run().unwrap();
    assert_eq!(all.typed::<Thing>().count(), 10);
    assert_eq!(sent.take(), ["find", "getMore", "getMore"]);
}

#[test]
fn several_cursors_share_the_connection() {
    let (_server, client, sent) = collection("several");
    let open = || client.cursor(Operation::read("single", &find("several"))).run().unwrap().typed::<Thing>();
    let pairs: Vec<_> = open().zip(open()).map(|(one, other)| (one.unwrap().id, other.unwrap().id)).collect();
    assert_eq!(pairs, Vec::from_iter((0..10).map(|id| (id, id))));
    assert_eq!(sent.take().len(), 6);
}

#[test]
fn failed_batch_ends_the_cursor() {
    let (_server, client, _sent) = collection("failed");
    let mut cursor = client.cursor(Operation::read("single", &find("failed"))).run().unwrap();
    for _ in 0..4 {
        cursor.next().unwrap().unwrap();
    }
    client.run(Operation::write("single", &rawdoc! { "drop": "failed" })).unwrap();
    let error = cursor.next().unwrap().unwrap_err();
    assert!(error.server_error().is_some(), "{error}");
    assert!(cursor.next().is_none());
}

#[test]
fn dropped_cursor_of_a_transaction_behind_a_load_balancer_is_closed_and_holds_nothing_up() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(ScriptedServer::start(|| {
        Box::new(|command| {
            Answer::Reply(match name(command).as_str() {
                "hello" => doc! {
                    "ok": 1, "isWritablePrimary": true, "helloOk": true, "minWireVersion": 0, "maxWireVersion": 21,
                    "logicalSessionTimeoutMinutes": 30, "msg": "isdbgrid",
                    "serviceId": bson::oid::ObjectId::from_bytes([7; 12]),
                },
                "find" => doc! { "ok": 1, "cursor": { "id": 7_i64, "ns": "test.c", "firstBatch": [{ "_id": 1 }] } },
                _ => doc! { "ok": 1, "n": 1 },
            })
        })
    }));
    let server = server.unwrap();
    let (client, sent) = Sent::client(&format!("mongodb://{}/?loadBalanced=true", server.address()));
    let mut session = client.start_session().run().unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    drop(session.find("test", "c", doc! {}).run().unwrap());
    session.insert("test", "c", [doc! {}]).run().unwrap();
    assert_eq!(sent.take(), ["find", "killCursors", "insert"]);
    // A drop inside a runtime cannot send anything, so the next call closes the cursors before it returns.
    let cursors: Vec<_> = (0..2).map(|_| session.find("test", "c", doc! {}).run().unwrap()).collect();
    runtime.block_on(async { drop(cursors) });
    session.insert("test", "c", [doc! {}]).run().unwrap();
    session.commit_transaction().unwrap();
    assert_eq!(sent.take(), ["find", "find", "insert", "killCursors", "killCursors", "commitTransaction"]);
}
