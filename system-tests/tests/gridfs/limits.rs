//! Bucket time limits: the prose tests of Client Side Operations Timeout, on servers that follow scripts.

use std::io;
use std::time::Duration;

use bson::{Document, doc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;
use wharf::gridfs::{GridFsBucket, GridFsBucketOptions};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::{answer, arrived, scripted};

/// Returns a bucket whose server takes 200 ms for commands with this name on this collection.
async fn slow(command: &'static str, collection: &'static str) -> (ScriptedServer, GridFsBucket) {
    let (server, client) = scripted("timeoutMS=150", move |sent: &Document| match sent.get_str(command) {
        Ok(of) if of == collection => Answer::After(Duration::from_millis(200), Box::new(answer(sent))),
        _ => answer(sent),
    })
    .await;
    (server, client.database("db").gridfs_bucket(GridFsBucketOptions::default().chunk_size_bytes(2)))
}

/// 6. GridFS - Upload: "uploads via openUploadStream can be timed out".
#[tokio::test(start_paused = true)]
async fn upload_times_out() {
    let (_server, bucket) = slow("insert", "fs.chunks").await;
    let mut upload = bucket.open_upload_stream("filename").await.unwrap();
    upload.write_all(&[0x12]).await.unwrap();
    let error = upload.shutdown().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    assert!(upload.finish().await.unwrap_err().is_timeout());
}

/// 6. GridFS - Upload: "Aborting an upload stream can be timed out".
#[tokio::test(start_paused = true)]
async fn abort_times_out() {
    let (server, bucket) = slow("delete", "fs.chunks").await;
    let mut upload = bucket.open_upload_stream("filename").await.unwrap();
    upload.write_all(&[1, 2, 3, 4]).await.unwrap();
    assert!(upload.abort().await.unwrap_err().is_timeout());
    assert_eq!(arrived(&server), ["find fs.files", "insert fs.chunks", "delete fs.chunks"]);
}

/// 7. GridFS - Download.
#[tokio::test(start_paused = true)]
async fn download_times_out() {
    let (server, bucket) = slow("find", "fs.chunks").await;
    let mut download = bucket.open_download_stream(5).await.unwrap();
    let error = download.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    assert_eq!(arrived(&server), ["find fs.files", "find fs.chunks"]);
}

#[tokio::test(start_paused = true)]
async fn limit_covers_an_upload_from_its_opening_to_its_end() {
    let (_server, client) = scripted("", |command| match name(command).as_str() {
        "insert" => Answer::After(Duration::from_millis(400), Box::new(answer(command))),
        _ => answer(command),
    })
    .await;
    let bucket = client.database("db").gridfs_bucket(GridFsBucketOptions::default().chunk_size_bytes(2));
    let begun = Instant::now();
    let mut upload = bucket.open_upload_stream("filename").timeout(Duration::from_secs(1)).await.unwrap();
    upload.write_all(&[1, 2, 3, 4]).await.unwrap();
    assert!(upload.finish().await.unwrap_err().is_timeout());
    assert_eq!(begun.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn limit_covers_all_commands_of_a_deletion() {
    let (_server, client) = scripted("", |command| match name(command).as_str() {
        "delete" => Answer::After(Duration::from_millis(600), Box::new(answer(command))),
        _ => answer(command),
    })
    .await;
    let bucket = client.database("db").gridfs_bucket(None);
    let begun = Instant::now();
    assert!(bucket.delete(doc! {}).timeout(Duration::from_secs(1)).await.unwrap_err().is_timeout());
    assert_eq!(begun.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn limit_of_a_download_also_applies_to_the_close_of_its_cursor() {
    let (server, client) = scripted("", |command| match command.get_str("find") {
        Ok("fs.chunks") => {
            let data = bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![1; 4] };
            let chunk = doc! { "_id": 1, "files_id": 5, "n": 0, "data": data };
            Answer::Reply(doc! { "ok": 1, "cursor": { "id": 7_i64, "ns": "db.fs.chunks", "firstBatch": [chunk] } })
        }
        _ => answer(command),
    })
    .await;
    let bucket = client.database("db").gridfs_bucket(None);
    for (limit, is_limited) in [(None, false), (Some(Duration::from_secs(1)), true)] {
        server.forget();
        let open = bucket.open_download_stream(5);
        let mut download = match limit {
            None => open.await.unwrap(),
            Some(limit) => open.timeout(limit).await.unwrap(),
        };
        download.read_u8().await.unwrap();
        drop(download);
        let kill = || server.commands().into_iter().find(|command| name(command) == "killCursors");
        while kill().is_none() {
            server.until(server.commands().len() + 1).await;
        }
        assert_eq!(kill().unwrap().contains_key("maxTimeMS"), is_limited, "{:?}", kill());
    }
}
