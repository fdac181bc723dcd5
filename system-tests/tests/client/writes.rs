//! Writes of many documents on a real server.

use std::sync::Arc;

use bson::{RawBson, RawDocumentBuf, rawdoc};
use wharf::client::{WriteFailure, Written};
use wharf::{Acknowledgement, Client, ClientError, Operation, Options, WriteConcern};
use wharf_testbed::mongod::{self, Mongod};

const DUPLICATE_KEY: i32 = 11_000;

async fn collection(name: &str) -> (Arc<Mongod>, Client) {
    let server = mongod::shared().unwrap();
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let _ = client.run(Operation::write("writes", &rawdoc! { "drop": name })).await;
    (server, client)
}

async fn count(client: &Client, name: &str) -> i32 {
    let reply = client.run(Operation::read("writes", &rawdoc! { "count": name })).await.unwrap();
    reply.get_i32("n").unwrap()
}

fn numbered(numbers: std::ops::Range<i32>) -> Vec<RawDocumentBuf> {
    numbers.map(|number| rawdoc! { "_id": number }).collect()
}

fn failure(error: ClientError) -> WriteFailure {
    match error {
        ClientError::Write(failure) => *failure,
        other => panic!("another error: {other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inserts_beyond_the_limit_of_a_command_go_in_several() {
    let (_server, client) = collection("many").await;
    let documents = numbered(0..100_003);
    let written = client.insert("writes", "many", &documents).await.unwrap();
    assert_eq!(written.inserted, 100_003);
    assert_eq!(count(&client, "many").await, 100_003);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inserts_beyond_the_length_of_a_message_go_in_several() {
    let (_server, client) = collection("long").await;
    let text = "x".repeat(9_000_000);
    let documents: Vec<_> = (0..11).map(|number| rawdoc! { "_id": number, "text": text.as_str() }).collect();
    assert_eq!(client.insert("writes", "long", &documents).await.unwrap().inserted, 11);
    assert_eq!(count(&client, "long").await, 11);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn document_without_id_gets_one() {
    let (_server, client) = collection("ids").await;
    let documents = [rawdoc! { "a": 1 }, rawdoc! { "_id": 7 }, rawdoc! {}];
    let written = client.insert("writes", "ids", &documents).await.unwrap();
    let places: Vec<_> = written.generated_ids.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, [0, 2]);
    let find = rawdoc! { "find": "ids", "filter": { "_id": written.generated_ids[0].1 } };
    let mut found = client.cursor(Operation::read("writes", &find)).await.unwrap();
    let document = found.next().await.unwrap().unwrap().to_owned();
    assert_eq!(document, rawdoc! { "_id": written.generated_ids[0].1, "a": 1 });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ordered_writes_end_at_the_first_failure() {
    let (_server, client) = collection("ordered").await;
    let documents = [rawdoc! { "_id": 1 }, rawdoc! { "_id": 1 }, rawdoc! { "_id": 2 }];
    let failed = failure(client.insert("writes", "ordered", &documents).await.unwrap_err());
    assert_eq!(failed.written.inserted, 1);
    assert_eq!(failed.errors.len(), 1);
    assert_eq!((failed.errors[0].index, failed.errors[0].error.code), (1, DUPLICATE_KEY));
    assert!(failed.to_string().contains("(error 11000, statement number 1)"), "{failed}");
    assert_eq!(count(&client, "ordered").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unordered_writes_go_on_and_keep_their_places() {
    let (_server, client) = collection("unordered").await;
    let failed = client
        .write("writes", "unordered")
        .insert(rawdoc! { "_id": 1 })
        .delete(rawdoc! { "q": { "_id": 9 }, "limit": 1 })
        .insert(rawdoc! { "_id": 1 })
        .insert(rawdoc! { "_id": 9 })
        .unordered()
        .await;
    let failed = failure(failed.unwrap_err());
    assert_eq!((failed.written.inserted, failed.written.deleted), (2, 1), "inserts go before deletes");
    assert_eq!(failed.errors.iter().map(|error| error.index).collect::<Vec<_>>(), [2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_writes_in_order_count_each_kind() {
    let (_server, client) = collection("mixed").await;
    let options = rawdoc! { "comment": "mixed writes" };
    let written = client
        .write("writes", "mixed")
        .insert(rawdoc! { "_id": 1, "n": 0 })
        .insert(rawdoc! { "_id": 2, "n": 0 })
        .update(rawdoc! { "q": { "n": 0 }, "u": { "$inc": { "n": 1 } }, "multi": true })
        .update(rawdoc! { "q": { "_id": 5 }, "u": { "$set": { "n": 5 } }, "upsert": true })
        .update(rawdoc! { "q": { "_id": 1 }, "u": { "$set": { "n": 1 } } })
        .delete(rawdoc! { "q": { "_id": 2 }, "limit": 1 })
        .insert(rawdoc! { "_id": 2 })
        .options(&options)
        .await
        .unwrap();
    let mut expected = Written::default();
    (expected.inserted, expected.matched, expected.modified, expected.deleted) = (3, 3, 2, 1);
    expected.upserted = vec![(3, RawBson::Int32(5))];
    assert_eq!(written, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_concern_of_the_options_is_applied_and_that_of_the_command_wins() {
    let (server, client) = collection("concern").await;
    let unmet = WriteConcern::default().w(Acknowledgement::Servers(3));
    let options = Options::parse(&format!("mongodb://{}", server.address())).unwrap().write_concern(unmet);
    let strict = Client::new(options).unwrap();
    let document = [rawdoc! { "_id": 1 }];
    // A standalone server refuses a write concern that requires three servers.
    assert!(strict.insert("writes", "concern", &document).await.is_err());
    let own = rawdoc! { "writeConcern": { "w": 1 } };
    assert_eq!(strict.insert("writes", "concern", &document).options(&own).await.unwrap().inserted, 1);
    let insert = rawdoc! { "insert": "concern", "documents": [{ "_id": 2 }], "writeConcern": { "w": 1 } };
    strict.run(Operation::write("writes", &insert)).await.unwrap();
    assert_eq!(count(&client, "concern").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacknowledged_write_arrives() {
    let (server, client) = collection("unacknowledged").await;
    let none = WriteConcern::default().w(Acknowledgement::Servers(0));
    let options =
        Options::parse(&format!("mongodb://{}/?maxPoolSize=1", server.address())).unwrap().write_concern(none);
    let careless = Client::new(options).unwrap();
    let insert = rawdoc! { "insert": "unacknowledged", "documents": [{ "_id": 1 }] };
    careless.run(Operation::write("writes", &insert)).await.unwrap();
    // The command is sent on the same connection, so the server has already executed the insert.
    assert_eq!(count(&careless, "unacknowledged").await, 1);
    drop(client);
}
