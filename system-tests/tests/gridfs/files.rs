//! Files on a real server.

use std::future::poll_fn;
use std::io;
use std::task::ready;

use bson::{Bson, Document, doc};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use wharf::ClientError;
use wharf::gridfs::{FilesCollectionDocument, GridFsBucketOptions, GridFsDownloadStream, GridFsProblem};

use super::{all, assert_problem, bucket, upload};

async fn content(mut download: GridFsDownloadStream) -> Vec<u8> {
    let mut content = Vec::new();
    download.read_to_end(&mut content).await.unwrap();
    content
}

#[tokio::test]
async fn upload_is_cut_into_chunks_and_read_back() {
    let (_server, database, bucket) = bucket("cut").await;
    let stored = database.collection::<Document>("cut.chunks");
    for length in [0, 1, 3, 4, 5, 8, 9, 1_000] {
        let bytes: Vec<u8> = (0..length).map(|n| n as u8).collect();
        let id = upload(&bucket, "file", &bytes).await;
        let chunks = stored.find(doc! { "files_id": &id }).sort(doc! { "n": 1 });
        let chunks: Vec<Document> = chunks.await.unwrap().try_collect().await.unwrap();
        let cut: Vec<&[u8]> = chunks.iter().map(|chunk| &**chunk.get_binary_generic("data").unwrap()).collect();
        assert_eq!(cut, bytes.chunks(4).collect::<Vec<_>>());
        let download = bucket.open_download_stream(id.clone()).await.unwrap();
        assert_eq!((&download.file().id, download.file().length), (&id, length));
        assert_eq!(content(download).await, bytes);
    }
}

#[tokio::test]
async fn document_of_a_file_has_the_fields_of_the_specification() {
    let (_server, database, bucket) = bucket("fields").await;
    let before = bson::DateTime::now();
    let mut first =
        bucket.open_upload_stream("a").id("own").metadata(doc! { "owner": "Ada" }).chunk_size_bytes(7).await.unwrap();
    first.write_all(b"0123456789").await.unwrap();
    assert_eq!(all(&database, "fields.files").await, [], "the document comes last");
    assert_eq!(first.finish().await.unwrap(), Bson::from("own"));
    let mut files = all(&database, "fields.files").await;
    let uploaded = files[0].remove("uploadDate").unwrap().as_datetime().copied().unwrap();
    assert!(uploaded >= before && uploaded <= bson::DateTime::now());
    let expected =
        doc! { "_id": "own", "length": 10_i64, "chunkSize": 7, "filename": "a", "metadata": { "owner": "Ada" } };
    assert_eq!(files, [expected]);

    let found: Vec<FilesCollectionDocument> =
        bucket.find(doc! { "metadata.owner": "Ada" }).await.unwrap().try_collect().await.unwrap();
    assert_eq!((found[0].length, found[0].chunk_size_bytes), (10, 7));
    assert_eq!(found[0].filename.as_deref(), Some("a"));
    assert!(bucket.find_one(doc! { "filename": "b" }).await.unwrap().is_none());
}

#[tokio::test]
async fn first_write_creates_the_indexes_of_an_empty_bucket() {
    let (_server, database, bucket) = bucket("indexes").await;
    let names = async |collection: &str| {
        let listed = database.collection::<Document>(collection).list_index_names().await;
        listed.unwrap_or_default()
    };
    let opened = bucket.open_upload_stream("a").await.unwrap();
    assert_eq!(names("indexes.files").await, [""; 0], "not before the first write");
    opened.finish().await.unwrap();
    assert_eq!(names("indexes.files").await, ["_id_", "filename_1_uploadDate_1"]);
    assert_eq!(names("indexes.chunks").await, ["_id_", "files_id_1_n_1"]);
    let chunks = database.collection::<Document>("indexes.chunks");
    chunks.insert_one(doc! { "files_id": 1, "n": 0 }).await.unwrap();
    assert!(chunks.insert_one(doc! { "files_id": 1, "n": 0 }).await.unwrap_err().is_duplicate_key());

    bucket.drop().await.unwrap();
    upload(&bucket, "a", b"0").await;
    assert_eq!(names("indexes.files").await, ["_id_", "filename_1_uploadDate_1"], "after the bucket was dropped");
    assert_eq!(names("indexes.chunks").await, ["_id_", "files_id_1_n_1"]);
}

#[tokio::test]
async fn names_have_revisions() {
    let (_server, _database, bucket) = bucket("revisions").await;
    for content in [b"a", b"b", b"c"] {
        upload(&bucket, "file", content).await;
        // The dates of two uploads must differ.
        let now = bson::DateTime::now();
        while bson::DateTime::now() == now {
            tokio::task::yield_now().await;
        }
    }
    for (revision, expected) in [(0, b"a"), (1, b"b"), (2, b"c"), (-1, b"c"), (-2, b"b"), (-3, b"a")] {
        let download = bucket.open_download_stream_by_name("file").revision(revision).await.unwrap();
        assert_eq!(content(download).await, expected, "{revision}");
    }
    assert_eq!(content(bucket.open_download_stream_by_name("file").await.unwrap()).await, b"c");
    for revision in [3, -4] {
        let error = bucket.open_download_stream_by_name("file").revision(revision).await.unwrap_err();
        assert!(error.to_string().ends_with(&format!("has no revision {revision}")), "{error}");
    }
    for revision in [0, 3] {
        let error = bucket.open_download_stream_by_name("no").revision(revision).await.unwrap_err();
        assert_problem(&error, GridFsProblem::NotFound);
        assert_eq!(error.to_string(), "the file with filename \"no\" in the bucket revisions does not exist");
    }
}

#[tokio::test]
async fn files_are_renamed_and_deleted() {
    let (_server, database, bucket) = bucket("changes").await;
    let first = upload(&bucket, "a", b"first").await;
    upload(&bucket, "a", b"second").await;
    upload(&bucket, "b", b"third").await;
    let names = async || -> Vec<String> {
        let files = bucket.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
        let files: Vec<FilesCollectionDocument> = files.try_collect().await.unwrap();
        files.into_iter().map(|file| file.filename.unwrap()).collect()
    };
    bucket.rename(first.clone(), "c").await.unwrap();
    assert_eq!(names().await, ["c", "a", "b"]);
    bucket.rename_by_name("a", "b").await.unwrap();
    assert_eq!(names().await, ["c", "b", "b"]);
    bucket.delete_by_name("b").await.unwrap();
    assert_eq!(names().await, ["c"]);
    assert_eq!(all(&database, "changes.chunks").await.len(), 2, "those of the first file");
    bucket.delete(first.clone()).await.unwrap();
    assert_eq!((names().await, all(&database, "changes.chunks").await), (Vec::new(), Vec::new()));

    assert_problem(&bucket.rename(first.clone(), "d").await.unwrap_err(), GridFsProblem::NotFound);
    assert_problem(&bucket.rename_by_name("a", "d").await.unwrap_err(), GridFsProblem::NotFound);
    assert_problem(&bucket.delete_by_name("a").await.unwrap_err(), GridFsProblem::NotFound);
    assert_problem(&bucket.delete(first.clone()).await.unwrap_err(), GridFsProblem::NotFound);
    assert_problem(&bucket.open_download_stream(first).await.unwrap_err(), GridFsProblem::NotFound);
}

#[tokio::test]
async fn chunks_left_behind_are_deleted_by_the_id_of_their_file() {
    let (_server, database, bucket) = bucket("orphans").await;
    database.collection("orphans.chunks").insert_one(doc! { "files_id": 7, "n": 0 }).await.unwrap();
    assert_problem(&bucket.delete(7).await.unwrap_err(), GridFsProblem::NotFound);
    assert_eq!(all(&database, "orphans.chunks").await, []);
}

/// Reads a damaged file up to the error. Returns the content before the error, and the error.
async fn error_of(mut download: GridFsDownloadStream) -> (Vec<u8>, ClientError) {
    let mut content = Vec::new();
    let error = download.read_to_end(&mut content).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    let again = download.read_u8().await.unwrap_err();
    assert_eq!(again.to_string(), error.to_string(), "the error stays");
    let inner = error.get_ref().unwrap().downcast_ref::<ClientError>().unwrap();
    (content, inner.clone())
}

#[tokio::test]
async fn damaged_files_are_reported_with_the_chunk() {
    let (_server, database, bucket) = bucket("damaged").await;
    let chunks = database.collection::<Document>("damaged.chunks");
    let id = upload(&bucket, "file", b"0123456789").await;
    let data = |bytes: &[u8]| {
        let bytes = bytes.to_vec();
        doc! { "$set": { "data": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes } } }
    };
    let open = async || bucket.open_download_stream(id.clone()).await.unwrap();

    chunks.update_one(doc! { "n": 1 }, data(b"456")).await.unwrap();
    let (read, error) = error_of(open().await).await;
    let text = format!("the file with _id {id} in the bucket damaged has 3 bytes in its chunk 1, which must have 4");
    assert_eq!((&*read, error.to_string()), (&b"0123"[..], text));

    chunks.update_one(doc! { "n": 1 }, data(b"4567")).await.unwrap();
    chunks.update_one(doc! { "n": 2 }, data(b"890")).await.unwrap();
    let (read, error) = error_of(open().await).await;
    assert!(read == b"01234567" && error.to_string().ends_with("has 3 bytes in its chunk 2, which must have 2"));

    chunks.delete_one(doc! { "n": 1 }).await.unwrap();
    let (read, error) = error_of(open().await).await;
    assert!(read == b"0123" && error.to_string().ends_with("lacks its chunk 1"), "{error}");

    chunks.delete_one(doc! { "n": 2 }).await.unwrap();
    let (_, error) = error_of(open().await).await;
    assert!(error.to_string().ends_with("lacks its chunk 1"), "{error}");
}

#[tokio::test]
async fn chunks_beyond_the_end_are_not_read() {
    let (_server, database, bucket) = bucket("extra").await;
    let id = upload(&bucket, "file", b"0123").await;
    database.collection("extra.chunks").insert_one(doc! { "files_id": &id, "n": 1 }).await.unwrap();
    assert_eq!(content(bucket.open_download_stream(id).await.unwrap()).await, b"0123");
}

#[tokio::test]
async fn download_lends_its_bytes_out() {
    let (_server, _database, bucket) = bucket("lines").await;
    let id = upload(&bucket, "file", b"first\nsecond\n").await;
    let mut lines = bucket.open_download_stream(id).await.unwrap().lines();
    let mut read = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        read.push(line);
    }
    assert_eq!(read, ["first", "second"]);
}

#[tokio::test]
async fn upload_that_is_aborted_or_dropped_leaves_no_chunks() {
    let (_server, database, bucket) = bucket("given_up").await;
    let chunks = database.collection::<Document>("given_up.chunks");
    for aborts in [true, false] {
        let mut upload = bucket.open_upload_stream("file").await.unwrap();
        upload.write_all(b"0123456789").await.unwrap();
        assert_eq!(all(&database, "given_up.chunks").await.len(), 2);
        match aborts {
            true => upload.abort().await.unwrap(),
            false => drop(upload),
        }
        while chunks.count_documents(doc! {}).await.unwrap() > 0 {
            assert!(!aborts, "the abort waits for the deletion");
        }
        assert_eq!(all(&database, "given_up.files").await, []);
    }
}

#[tokio::test]
async fn upload_that_was_shut_down_is_complete() {
    let (_server, database, bucket) = bucket("shut_down").await;
    let mut upload = bucket.open_upload_stream("file").await.unwrap();
    upload.write_all(b"0123456789").await.unwrap();
    upload.flush().await.unwrap();
    upload.shutdown().await.unwrap();
    upload.shutdown().await.unwrap();
    upload.flush().await.unwrap();
    let error = upload.write_all(b"more").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    assert!(error.to_string().ends_with("is complete: its upload has ended"), "{error}");
    assert_problem(&upload.abort().await.unwrap_err(), GridFsProblem::Stored);
    assert_eq!((all(&database, "shut_down.files").await.len(), all(&database, "shut_down.chunks").await.len()), (1, 3));
}

/// tokio-util's `FramedWrite` closes its writer this way.
#[tokio::test]
async fn upload_may_be_flushed_at_each_poll_of_its_shutdown() {
    let (_server, database, bucket) = bucket("flushed").await;
    let mut upload = Box::pin(bucket.open_upload_stream("file").await.unwrap());
    upload.write_all(b"0123456789").await.unwrap();
    let mut polls = 0;
    poll_fn(|context| {
        polls += 1;
        ready!(upload.as_mut().poll_flush(context))?;
        upload.as_mut().poll_shutdown(context)
    })
    .await
    .unwrap();
    assert!(polls > 2, "the shutdown did not wait");
    assert_eq!((all(&database, "flushed.files").await.len(), all(&database, "flushed.chunks").await.len()), (1, 3));
}

#[tokio::test]
async fn arguments_that_cannot_work_are_refused() {
    let (_server, database, bucket) = bucket("refused").await;
    for size in [0, 16 * 1024 * 1024 + 1] {
        let error = bucket.open_upload_stream("file").chunk_size_bytes(size).await.unwrap_err();
        assert_eq!(error.to_string(), format!("chunkSizeBytes must be from 1 to 16777216, got {size}"));
        let bucket = database.gridfs_bucket(GridFsBucketOptions::default().chunk_size_bytes(size));
        assert!(bucket.open_upload_stream("file").await.is_err());
    }
    let error = bucket.open_upload_stream("file").metadata(5).await.unwrap_err();
    assert!(error.to_string().starts_with("the argument metadata cannot be sent"), "{error}");
}
