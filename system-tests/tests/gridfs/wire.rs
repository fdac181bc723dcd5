//! A bucket's commands, and uploads that fail or are cancelled, on a server that follows a script.

use std::time::Duration;

use bson::{Document, doc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use wharf::gridfs::GridFsBucketOptions;
use wharf::{ReadPreference, ReadPreferenceMode, WriteConcern};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::{answer, arrived, scripted};

fn small() -> GridFsBucketOptions {
    GridFsBucketOptions::default().chunk_size_bytes(2)
}

#[tokio::test(start_paused = true)]
async fn options_of_a_bucket_are_on_its_commands() {
    let (server, client) = scripted("", answer).await;
    let options = small().bucket_name("photos").read_concern("majority");
    let options = options.write_concern(WriteConcern::majority());
    let preference = ReadPreference::new(ReadPreferenceMode::SecondaryPreferred);
    let bucket = client.database("shop").gridfs_bucket(options.read_preference(preference));
    assert_eq!(bucket.name(), "photos");
    let _ = bucket.open_download_stream(5).await.unwrap();
    bucket.rename(5, "new").await.unwrap();
    bucket.delete(5).await.unwrap();
    assert_eq!(
        arrived(&server),
        ["find photos.files", "update photos.files", "delete photos.files", "delete photos.chunks"]
    );
    for command in server.commands().iter().filter(|command| command.contains_key("lsid")) {
        match name(command).as_str() {
            "find" => {
                assert_eq!(command.get_document("readConcern").unwrap(), &doc! { "level": "majority" });
                let preference = command.get_document("$readPreference").unwrap();
                assert_eq!(preference, &doc! { "mode": "secondaryPreferred" });
            }
            _ => assert_eq!(command.get_document("writeConcern").unwrap(), &doc! { "w": "majority" }),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_first_upload_looks_for_a_file_on_the_primary() {
    let (server, client) = scripted("readPreference=secondaryPreferred", answer).await;
    let bucket = client.database("db").gridfs_bucket(None);
    for _ in 0..2 {
        bucket.clone().open_upload_stream("file").await.unwrap().finish().await.unwrap();
    }
    assert_eq!(arrived(&server), ["find fs.files", "insert fs.files", "insert fs.files"]);
    assert_finds_ids_on_the_primary(&server);
}

#[tokio::test(start_paused = true)]
async fn deletion_by_name_chooses_its_files_on_the_primary() {
    let (server, client) = scripted("readPreference=secondaryPreferred", answer).await;
    client.database("db").gridfs_bucket(None).delete_by_name("file").await.unwrap();
    assert_eq!(arrived(&server), ["find fs.files", "delete fs.files", "delete fs.chunks"]);
    assert_finds_ids_on_the_primary(&server);
}

/// Once the files' documents are deleted, no later call would find the chunks.
#[tokio::test(start_paused = true)]
async fn deletion_by_name_deletes_the_chunks_of_all_files_or_of_none() {
    let unmet = doc! { "code": 64, "errmsg": "waiting for replication timed out" };
    let mut refused = doc! { "ok": 1, "n": 1, "writeConcernError": unmet };
    let executed = refused.clone();
    // Of two shards, one refused the deletion.
    refused.insert("writeErrors", [doc! { "index": 0, "code": 14031, "errmsg": "the disk is full" }]);
    for (reply, deletes_chunks) in [(executed, true), (refused, false)] {
        let (server, client) = scripted("", move |command| match command.get_str("delete") {
            Ok("fs.files") => Answer::Reply(reply.clone()),
            _ => answer(command),
        })
        .await;
        let error = client.database("db").gridfs_bucket(None).delete_by_name("file").await.unwrap_err();
        assert_eq!(error.write_concern_error().unwrap().code, 64, "{error}");
        let commands = ["find fs.files", "delete fs.files", "delete fs.chunks"];
        assert_eq!(arrived(&server), commands[..2 + usize::from(deletes_chunks)]);
    }
}

#[track_caller]
fn assert_finds_ids_on_the_primary(server: &ScriptedServer) {
    let find = server.commands().into_iter().find(|command| name(command) == "find").unwrap();
    assert_eq!(find.get_document("projection").unwrap(), &doc! { "_id": 1 });
    let mode = find.get_document("$readPreference").ok().and_then(|preference| preference.get_str("mode").ok());
    assert!(!mode.is_some_and(|mode| mode.starts_with("secondary")), "{find}");
}

#[tokio::test(start_paused = true)]
async fn empty_file_is_read_without_a_query_for_chunks() {
    let empty = |_: &Document| {
        let file = doc! { "_id": 5, "length": 0, "chunkSize": 4, "uploadDate": bson::DateTime::MIN };
        Answer::Reply(doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "db.fs.files", "firstBatch": [file] } })
    };
    let (server, client) = scripted("", empty).await;
    let mut download = client.database("db").gridfs_bucket(None).open_download_stream(5).await.unwrap();
    assert_eq!(download.read_to_end(&mut Vec::new()).await.unwrap(), 0);
    assert_eq!(arrived(&server), ["find fs.files"]);
}

/// Refuses chunk inserts.
fn full(command: &Document) -> Answer {
    match command.get_str("insert") {
        Ok("fs.chunks") => Answer::Reply(doc! { "ok": 0, "code": 14031, "errmsg": "the disk is full" }),
        _ => answer(command),
    }
}

#[tokio::test(start_paused = true)]
async fn upload_that_has_failed_keeps_its_error_and_cleans_nothing_up() {
    let (server, client) = scripted("", full).await;
    let mut upload = client.database("db").gridfs_bucket(small()).open_upload_stream("file").await.unwrap();
    for _ in 0..2 {
        let error = upload.write_all(b"0123").await.unwrap_err();
        assert!(error.to_string().contains("the disk is full"), "{error}");
    }
    let error = upload.finish().await.unwrap_err();
    assert_eq!(error.code(), Some(14031));
    // This ping arrives after any command that the drop might have sent.
    client.run_command("db", &bson::rawdoc! { "ping": 1 }).await.unwrap();
    assert_eq!(arrived(&server), ["find fs.files", "insert fs.chunks", "ping "]);
}

/// Delays chunk inserts by a second.
fn slow(command: &Document) -> Answer {
    match command.get_str("insert") {
        Ok("fs.chunks") => Answer::After(Duration::from_secs(1), Box::new(answer(command))),
        _ => answer(command),
    }
}

#[tokio::test(start_paused = true)]
async fn write_that_was_cancelled_goes_on_with_the_next_one() {
    let (server, client) = scripted("", slow).await;
    let mut upload = client.database("db").gridfs_bucket(small()).open_upload_stream("file").await.unwrap();
    upload.write_all(b"01").await.unwrap();
    let cancelled = timeout(Duration::from_millis(100), upload.write_all(b"23")).await;
    assert!(cancelled.is_err(), "the buffer has no room");
    upload.write_all(b"4").await.unwrap();
    upload.finish().await.unwrap();
    let commands = server.commands();
    let inserts = commands.iter().filter(|command| name(command) == "insert");
    let documents: Vec<Document> =
        inserts.map(|insert| insert.get_array("documents").unwrap()[0].as_document().unwrap().clone()).collect();
    let data: Vec<_> = documents[..2].iter().map(|chunk| chunk.get_binary_generic("data").unwrap().clone()).collect();
    assert_eq!(data, [b"01".to_vec(), b"4".to_vec()]);
    assert_eq!(documents[2].get_i64("length").unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn chunk_on_its_way_is_deleted_after_it_has_arrived() {
    let (server, client) = scripted("", slow).await;
    let bucket = client.database("db").gridfs_bucket(small());
    let mut upload = bucket.open_upload_stream("file").await.unwrap();
    upload.write_all(b"01").await.unwrap();
    assert!(timeout(Duration::from_millis(100), upload.write_all(b"23")).await.is_err());
    drop(upload);
    let expected = ["find fs.files", "insert fs.chunks", "delete fs.chunks"];
    while arrived(&server).len() < expected.len() {
        server.until(server.commands().len() + 1).await;
    }
    assert_eq!(arrived(&server), expected);
}

#[tokio::test(start_paused = true)]
async fn finish_that_was_cancelled_ends_in_the_background() {
    let (server, client) = scripted("", slow).await;
    let mut upload = client.database("db").gridfs_bucket(small()).open_upload_stream("file").await.unwrap();
    upload.write_all(b"0").await.unwrap();
    assert!(timeout(Duration::from_millis(100), upload.finish()).await.is_err());
    let expected = ["find fs.files", "insert fs.chunks", "insert fs.files"];
    while arrived(&server).len() < expected.len() {
        server.until(server.commands().len() + 1).await;
    }
    assert_eq!(arrived(&server), expected);
}
