//! Files in buckets.
#![cfg(not(any(loom, shuttle)))]

mod blocking;
mod files;
mod given_up;
mod limits;
mod wire;

use std::sync::Arc;

use bson::{Document, doc};
use tokio::io::AsyncWriteExt;
use wharf::gridfs::{GridFsBucket, GridFsBucketOptions, GridFsProblem};
use wharf::{Client, ClientError, Database};
use wharf_testbed::mongod::{self, Mongod};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

/// Returns an empty bucket with four-byte chunks on the shared server, and its database.
async fn bucket(name: &str) -> (Arc<Mongod>, Database, GridFsBucket) {
    let server = mongod::shared().unwrap();
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let database = client.database("gridfs");
    let bucket = database.gridfs_bucket(GridFsBucketOptions::default().bucket_name(name).chunk_size_bytes(4));
    bucket.drop().await.unwrap();
    (server, database, bucket)
}

/// Returns all documents of a collection, in the order in which they were inserted.
async fn all(database: &Database, collection: &str) -> Vec<Document> {
    database
        .collection::<Document>(collection)
        .find(doc! {})
        .sort(doc! { "_id": 1 })
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap()
}

/// Uploads a file, and returns its `_id`.
async fn upload(bucket: &GridFsBucket, filename: &str, content: &[u8]) -> bson::Bson {
    let mut upload = bucket.open_upload_stream(filename).await.unwrap();
    upload.write_all(content).await.unwrap();
    upload.finish().await.unwrap()
}

/// Asserts that the error reports this problem with a file.
#[track_caller]
fn assert_problem(error: &ClientError, expected: GridFsProblem) {
    match error {
        ClientError::GridFs { problem, .. } => assert_eq!(*problem, expected, "{error}"),
        other => panic!("{other}"),
    }
}

/// Starts a primary that answers commands other than `hello` with `answer`, and a client for it.
async fn scripted(
    parameters: &str,
    answer: impl Fn(&Document) -> Answer + Clone + Send + 'static,
) -> (ScriptedServer, Client) {
    let server = ScriptedServer::start(move || {
        let answer = answer.clone();
        Box::new(move |command: &Document| match name(command).as_str() {
            "hello" | "isMaster" | "ismaster" => Answer::Reply(doc! {
                "ok": 1, "isWritablePrimary": true, "helloOk": true, "minWireVersion": 0, "maxWireVersion": 21,
                "logicalSessionTimeoutMinutes": 30, "setName": "rs", "setVersion": 1,
            }),
            _ => answer(command),
        })
    });
    let server = server.await.unwrap();
    let parameters = format!("directConnection=true&serverMonitoringMode=poll&{parameters}");
    let client = Client::from_uri(&format!("mongodb://{}/?{parameters}", server.address())).unwrap();
    (server, client)
}

/// Answers like a server whose bucket has one file. Each write affects one document.
fn answer(command: &Document) -> Answer {
    Answer::Reply(match name(command).as_str() {
        "find" => {
            let file = doc! { "_id": 5, "length": 10, "chunkSize": 4, "uploadDate": bson::DateTime::MIN };
            doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "db.fs.files", "firstBatch": [file] } }
        }
        _ => doc! { "ok": 1, "n": 1, "nModified": 1 },
    })
}

/// Returns the commands that have arrived, each with its collection.
fn arrived(server: &ScriptedServer) -> Vec<String> {
    let mut commands = server.commands();
    commands.retain(|command| !matches!(name(command).as_str(), "hello" | "isMaster" | "ismaster" | "endSessions"));
    let named =
        |command: &Document| format!("{} {}", name(command), command.get_str(name(command)).unwrap_or_default());
    commands.iter().map(named).collect()
}
