//! How a real server handles the less common kinds of commands.

use std::sync::Arc;

use wharf::unstable::wire::op_msg::OutgoingSequence;
use wharf::{Command, Compressor};
use wharf_testbed::mongod::{self, Mongod};

use super::*;

async fn server() -> (Arc<Mongod>, String) {
    let mongod = tokio::task::spawn_blocking(|| mongod::shared().unwrap()).await.unwrap();
    let address = mongod.address().to_string();
    (mongod, address)
}

async fn count(pool: &Pool<Endpoint>, collection: &str) -> i32 {
    let reply = pool.run_command("commands", &rawdoc! { "count": collection }).await.unwrap();
    reply.get_i32("n").unwrap()
}

fn number(document: &RawDocument, path: &[&str]) -> i64 {
    let (last, parents) = path.split_last().unwrap();
    let parent = parents.iter().fold(document, |document, name| document.get_document(name).unwrap());
    let value = parent.get(last).unwrap().unwrap();
    value.as_i64().or_else(|| value.as_i32().map(i64::from)).unwrap()
}

#[tokio::test]
async fn document_sequences_and_unacknowledged_writes_arrive() {
    let (_mongod, address) = server().await;
    let pool = pool_of(options(&address));
    let documents: Vec<_> = (0..1000).map(|number| rawdoc! { "_id": number }).collect();
    let documents: Vec<&RawDocument> = documents.iter().map(|document| &**document).collect();
    let insert = rawdoc! { "insert": "sequences" };
    let sequences = [OutgoingSequence::new("documents", &documents)];
    let reply = pool.run(Command::new("commands", &insert).sequences(&sequences).checksum()).await.unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1000);

    let insert = rawdoc! { "insert": "unacknowledged", "writeConcern": { "w": 0 } };
    let mut connection = pool.check_out().await.unwrap();
    connection.send(Command::new("commands", &insert).sequences(&sequences)).await.unwrap();
    // The server executes a connection's commands in order.
    let reply = connection.run_command("commands", &rawdoc! { "count": "unacknowledged" }).await.unwrap();
    assert_eq!(reply.get_i32("n").unwrap(), 1000);
    drop(connection);
    assert_eq!(count(&pool, "sequences").await, 1000);
    assert_eq!(pool.status().total, 1);
}

#[tokio::test]
async fn cursor_is_exhausted_by_one_command() {
    let (_mongod, address) = server().await;
    let pool = pool_of(options(&address));
    let documents: Vec<_> = (0..250).map(|number| rawdoc! { "_id": number }).collect();
    let documents: Vec<&RawDocument> = documents.iter().map(|document| &**document).collect();
    let sequences = [OutgoingSequence::new("documents", &documents)];
    pool.run(Command::new("commands", &rawdoc! { "insert": "exhaust" }).sequences(&sequences)).await.unwrap();

    let mut connection = pool.check_out().await.unwrap();
    let find = rawdoc! { "find": "exhaust", "batchSize": 50 };
    let first = connection.run_command("commands", &find).await.unwrap();
    let cursor = number(&first, &["cursor", "id"]);
    let get_more = rawdoc! { "getMore": cursor, "collection": "exhaust", "batchSize": 50 };
    let mut replies = connection.exhaust(Command::new("commands", &get_more)).unwrap();
    let mut batches = Vec::new();
    while let Some(reply) = replies.next().await.unwrap() {
        let batch = reply.get_document("cursor").unwrap().get_array("nextBatch").unwrap();
        batches.push(batch.into_iter().count());
    }
    assert_eq!(batches.iter().sum::<usize>(), 200);
    assert!(batches.len() > 2, "too few replies to one command: {batches:?}");
    // The connection can still be used.
    connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
}

#[tokio::test]
async fn every_compressor_is_used_in_both_directions() {
    let (_mongod, address) = server().await;
    let plain = pool_of(options(&address));
    let status = rawdoc! { "serverStatus": 1 };
    for (compressor, name) in
        [(Compressor::Snappy, "snappy"), (Compressor::Zlib { level: 6 }, "zlib"), (Compressor::Zstd, "zstd")]
    {
        if !compressor.is_supported() {
            continue;
        }
        let before = plain.run_command("admin", &status).await.unwrap();
        let pool = pool_of(options(&address).compressors([compressor]));
        let echo = rawdoc! { "hostInfo": 1, "comment": "a".repeat(10_000) };
        pool.run_command("admin", &echo).await.unwrap();
        // This command is cancelled after it has been sent, and its connection is drained. The reply that the drain
        // reads is also compressed.
        let mut connection = pool.check_out().await.unwrap();
        let cancelled = tokio::time::timeout(Duration::from_micros(1), connection.run_command("admin", &status)).await;
        drop((connection, cancelled));
        pool.run_command("admin", &echo).await.unwrap();
        let after = plain.run_command("admin", &status).await.unwrap();
        for direction in ["decompressor", "compressor"] {
            let path = ["network", "compression", name, direction, "bytesIn"];
            let bytes = number(&after, &path) - number(&before, &path);
            let least = if direction == "decompressor" { 100 } else { 500 };
            assert!(bytes > least, "{name}: {bytes} bytes into the server's {direction}");
        }
    }
}
