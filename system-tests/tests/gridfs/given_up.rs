//! Uploads that are aborted or dropped after a failure or a cancellation, on a server that follows a script.

use std::time::Duration;

use bson::{Document, doc};
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};
use wharf::gridfs::{GridFsBucket, GridFsBucketOptions};
use wharf::{Acknowledgement, WriteConcern};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::{answer, arrived, scripted};

const SOON: Duration = Duration::from_millis(100);

/// Returns a bucket with two-byte chunks.
async fn bucket(answer: fn(&Document) -> Answer) -> (ScriptedServer, GridFsBucket) {
    let (server, client) = scripted("", answer).await;
    (server, client.database("db").gridfs_bucket(GridFsBucketOptions::default().chunk_size_bytes(2)))
}

/// Waits until these commands have arrived.
async fn expect(server: &ScriptedServer, expected: &[&str]) {
    let arrives = async {
        while arrived(server).len() < expected.len() {
            server.until(server.commands().len() + 1).await;
        }
    };
    _ = timeout(Duration::from_secs(60), arrives).await;
    assert_eq!(arrived(server), expected);
}

fn later(answer: Answer) -> Answer {
    Answer::After(Duration::from_secs(1), Box::new(answer))
}

fn duplicate() -> Answer {
    let error = doc! { "index": 0, "code": 11000, "errmsg": "E11000 duplicate key error" };
    Answer::Reply(doc! { "ok": 1, "n": 0, "writeErrors": [error] })
}

fn full() -> Answer {
    Answer::Reply(doc! { "ok": 0, "code": 14031, "errmsg": "the disk is full" })
}

#[tokio::test(start_paused = true)]
async fn abort_keeps_the_chunks_of_another_file_with_the_same_id() {
    let (server, bucket) = bucket(|command| match command.get_str("insert") {
        Ok("fs.chunks") => duplicate(),
        _ => answer(command),
    })
    .await;
    for fails_at_its_end in [false, true] {
        let mut upload = bucket.open_upload_stream("file").id(5).await.unwrap();
        match fails_at_its_end {
            false => assert!(upload.write_all(b"0123").await.is_err()),
            true => {
                upload.write_all(b"0").await.unwrap();
                assert!(upload.shutdown().await.is_err());
            }
        }
        upload.abort().await.unwrap();
    }
    assert_eq!(arrived(&server), ["find fs.files", "insert fs.chunks", "insert fs.chunks"]);
}

#[tokio::test(start_paused = true)]
async fn drop_keeps_the_chunks_of_another_file_with_the_same_id() {
    let (server, bucket) = bucket(|command| match command.get_str("insert") {
        Ok("fs.chunks") => later(duplicate()),
        _ => answer(command),
    })
    .await;
    let mut upload = bucket.open_upload_stream("file").id(5).await.unwrap();
    assert!(timeout(SOON, upload.write_all(b"0123")).await.is_err());
    drop(upload);
    // The reply to the insert arrives during this time.
    sleep(Duration::from_secs(10)).await;
    assert_eq!(arrived(&server), ["find fs.files", "insert fs.chunks"]);
}

#[tokio::test(start_paused = true)]
async fn abort_deletes_nothing_if_no_chunk_was_sent() {
    let (server, bucket) = bucket(|command| match name(command).as_str() {
        "find" => full(),
        _ => answer(command),
    })
    .await;
    let mut upload = bucket.open_upload_stream("file").id(5).await.unwrap();
    assert!(upload.write_all(b"0123").await.is_err());
    upload.abort().await.unwrap();
    assert_eq!(arrived(&server), ["find fs.files"]);
}

#[tokio::test(start_paused = true)]
async fn abort_deletes_only_the_first_chunk_if_its_insert_has_failed() {
    let (server, bucket) = bucket(|command| match name(command).as_str() {
        "insert" => full(),
        _ => answer(command),
    })
    .await;
    let mut upload = bucket.open_upload_stream("file").id(5).await.unwrap();
    assert!(upload.write_all(b"0123").await.is_err());
    upload.abort().await.unwrap();
    assert_eq!(arrived(&server), ["find fs.files", "insert fs.chunks", "delete fs.chunks"]);
    let commands = server.commands();
    let of_chunks = |key: &str, list: &str| {
        let command = commands.iter().find(|command| name(command) == key).unwrap();
        command.get_array(list).unwrap()[0].as_document().unwrap().clone()
    };
    // Other chunks may belong to another file.
    let filter = doc! { "_id": of_chunks("insert", "documents").get("_id").unwrap(), "files_id": 5 };
    assert_eq!(of_chunks("delete", "deletes").get_document("q").unwrap(), &filter);
}

#[tokio::test(start_paused = true)]
async fn abort_after_a_failed_shutdown_deletes_the_last_chunk() {
    let (server, bucket) = bucket(|command| match command.get_str("insert") {
        Ok("fs.files") => duplicate(),
        _ => answer(command),
    })
    .await;
    let mut upload = bucket.open_upload_stream("file").id(5).await.unwrap();
    upload.write_all(b"0").await.unwrap();
    assert!(upload.shutdown().await.is_err());
    upload.abort().await.unwrap();
    // The document with this `_id` belongs to another file, so it is not deleted.
    assert_eq!(arrived(&server), ["find fs.files", "insert fs.chunks", "insert fs.files", "delete fs.chunks"]);
}

#[tokio::test(start_paused = true)]
async fn abort_deletes_a_document_that_may_have_been_stored() {
    let (server, bucket) = bucket(|command| match command.get_str("insert") {
        Ok("fs.files") => {
            let unmet = doc! { "code": 64, "errmsg": "waiting for replication timed out" };
            Answer::Reply(doc! { "ok": 1, "n": 1, "writeConcernError": unmet })
        }
        _ => answer(command),
    })
    .await;
    let mut upload = bucket.open_upload_stream("file").id(5).await.unwrap();
    upload.write_all(b"0").await.unwrap();
    assert!(upload.shutdown().await.is_err());
    upload.abort().await.unwrap();
    let expected = ["find fs.files", "insert fs.chunks", "insert fs.files", "delete fs.files", "delete fs.chunks"];
    assert_eq!(arrived(&server), expected);
    let commands = server.commands();
    let of_files =
        |key: &str| commands.iter().find(|command| command.get_str(key).is_ok_and(|of| of == "fs.files")).unwrap();
    let file = of_files("insert").get_array("documents").unwrap()[0].as_document().unwrap();
    let deletion = of_files("delete").get_array("deletes").unwrap()[0].as_document().unwrap();
    // If another file has the same `_id`, its date is different.
    let filter = doc! { "_id": 5, "uploadDate": file.get("uploadDate").unwrap() };
    assert_eq!(deletion.get_document("q").unwrap(), &filter);
}

#[tokio::test(start_paused = true)]
async fn abort_that_was_cancelled_deletes_in_the_background_after_a_failure() {
    let (server, bucket) = bucket(|command| match name(command).as_str() {
        "insert" => full(),
        "delete" => later(answer(command)),
        _ => answer(command),
    })
    .await;
    let mut upload = bucket.open_upload_stream("file").await.unwrap();
    assert!(upload.write_all(b"0123").await.is_err());
    assert!(timeout(SOON, upload.abort()).await.is_err());
    expect(&server, &["find fs.files", "insert fs.chunks", "delete fs.chunks", "delete fs.chunks"]).await;
}

#[tokio::test(start_paused = true)]
async fn abort_that_was_cancelled_deletes_a_file_whose_end_had_begun() {
    let (server, bucket) = bucket(|command| match command.get_str("insert") {
        Ok("fs.chunks") => later(answer(command)),
        _ => answer(command),
    })
    .await;
    let mut upload = bucket.open_upload_stream("file").await.unwrap();
    upload.write_all(b"0").await.unwrap();
    assert!(timeout(SOON, upload.shutdown()).await.is_err());
    assert!(timeout(SOON, upload.abort()).await.is_err());
    let expected = ["find fs.files", "insert fs.chunks", "insert fs.files", "delete fs.files", "delete fs.chunks"];
    expect(&server, &expected).await;
}

#[tokio::test(start_paused = true)]
async fn end_that_was_cancelled_while_a_chunk_was_on_its_way_goes_on_in_the_background() {
    let (server, bucket) = bucket(|command| match command.get_str("insert") {
        Ok("fs.chunks") => later(answer(command)),
        _ => answer(command),
    })
    .await;
    let mut upload = bucket.open_upload_stream("file").await.unwrap();
    upload.write_all(b"01").await.unwrap();
    assert!(timeout(SOON, upload.write_all(b"23")).await.is_err());
    assert!(timeout(SOON, upload.finish()).await.is_err());
    expect(&server, &["find fs.files", "insert fs.chunks", "insert fs.files"]).await;
}

/// The server may have refused the first chunk as a duplicate, without saying so.
#[tokio::test(start_paused = true)]
async fn drop_without_acknowledgement_deletes_the_chunks_of_an_id_only_if_the_client_generated_it() {
    for id in [None, Some(5)] {
        let (server, client) = scripted("", answer).await;
        let unacknowledged = WriteConcern::default().w(Acknowledgement::Servers(0));
        let options = GridFsBucketOptions::default().chunk_size_bytes(2).write_concern(unacknowledged);
        let bucket = client.database("db").gridfs_bucket(options);
        let open = bucket.open_upload_stream("file");
        let mut upload = match id {
            None => open.await.unwrap(),
            Some(id) => open.id(id).await.unwrap(),
        };
        upload.write_all(b"01234").await.unwrap();
        let file = upload.id().clone();
        drop(upload);
        expect(&server, &["find fs.files", "insert fs.chunks", "insert fs.chunks", "delete fs.chunks"]).await;
        let commands = server.commands();
        let chunk = commands.iter().find(|command| name(command) == "insert").unwrap();
        let first = chunk.get_array("documents").unwrap()[0].as_document().unwrap().get("_id").unwrap();
        let filter = match id {
            None => doc! { "files_id": file },
            Some(_) => doc! { "_id": first, "files_id": file },
        };
        let deletion = commands.last().unwrap().get_array("deletes").unwrap()[0].as_document().unwrap();
        assert_eq!(deletion.get_document("q").unwrap(), &filter);
    }
}
