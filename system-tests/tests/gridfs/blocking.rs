//! Files through the blocking client.

use std::io::{BufRead, Read, Write};
use std::sync::Arc;

use bson::{Document, doc};
use wharf::gridfs::{GridFsBucketOptions, GridFsProblem};
use wharf::single::{Client, GridFsBucket};
use wharf_testbed::mongod::{self, Mongod};

use super::assert_problem;

/// Returns an empty bucket with four-byte chunks on the shared server.
fn bucket(name: &str) -> (Arc<Mongod>, Client, GridFsBucket) {
    let server = mongod::shared().unwrap();
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let options = GridFsBucketOptions::default().bucket_name(name).chunk_size_bytes(4);
    let bucket = client.database("gridfs").gridfs_bucket(options);
    bucket.drop().run().unwrap();
    (server, client, bucket)
}

fn chunks(client: &Client, collection: &str) -> u64 {
    client.database("gridfs").collection::<Document>(collection).count_documents(doc! {}).run().unwrap()
}

#[test]
fn file_is_written_and_read() {
    let (_server, client, bucket) = bucket("blocking");
    let mut upload = bucket.open_upload_stream("file").metadata(doc! { "owner": "Ada" }).run().unwrap();
    upload.write_all(b"0123456789\nsecond").unwrap();
    upload.flush().unwrap();
    assert_eq!(chunks(&client, "blocking.chunks"), 4);
    let id = upload.finish().unwrap();
    assert_eq!(chunks(&client, "blocking.chunks"), 5);

    let mut text = String::new();
    let mut download = bucket.open_download_stream(id.clone()).run().unwrap();
    assert_eq!(download.file().metadata, Some(doc! { "owner": "Ada" }));
    download.read_to_string(&mut text).unwrap();
    assert_eq!(text, "0123456789\nsecond");
    let lines: Vec<_> =
        bucket.open_download_stream_by_name("file").run().unwrap().lines().map(Result::unwrap).collect();
    assert_eq!(lines, ["0123456789", "second"]);

    bucket.rename(id.clone(), "other").run().unwrap();
    assert_eq!(bucket.find(doc! {}).run().unwrap().next().unwrap().unwrap().filename.as_deref(), Some("other"));
    bucket.delete(id.clone()).run().unwrap();
    assert_problem(&bucket.delete(id).run().unwrap_err(), GridFsProblem::NotFound);
    assert_eq!(chunks(&client, "blocking.chunks"), 0);
}

#[test]
fn upload_that_is_given_up_leaves_no_chunks() {
    let (_server, client, bucket) = bucket("blocking_given_up");
    for aborts in [true, false] {
        let mut upload = bucket.open_upload_stream("file").run().unwrap();
        upload.write_all(b"0123456789").unwrap();
        assert_eq!(chunks(&client, "blocking_given_up.chunks"), 2);
        match aborts {
            true => upload.abort().unwrap(),
            false => drop(upload),
        }
        assert_eq!(chunks(&client, "blocking_given_up.chunks"), 0);
    }
}
