//! Operations on buckets.

use std::io::{self, Read, Write};
use std::time::Duration;

use bson::{Bson, Document};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::gridfs::GridFsBucket;
use wharf::{ClientError, single};

use crate::case::{Database, Returned, text};
use crate::clients::{Client, apart};
use crate::commands::{allow, timeout};
use crate::format::{CommonOptions, Operation};
use crate::matching::document;
use crate::operations::argument;
use crate::stop::Stop;

/// A bucket of either client, with the options that its operations inherit.
#[derive(Clone)]
pub struct Bucket {
    of: Of,
    options: CommonOptions,
}

#[derive(Clone)]
enum Of {
    Pooled(GridFsBucket),
    Single(single::GridFsBucket),
}

impl Bucket {
    pub fn of(database: &Database) -> Self {
        let of = match database.client() {
            Client::Pooled(client) => Of::Pooled(client.database(&database.name).gridfs_bucket(None)),
            Client::Single(client) => Of::Single(client.database(&database.name).gridfs_bucket(None)),
        };
        Self { of, options: database.options.clone() }
    }
}

/// Runs a builder of either client, with its time limit.
macro_rules! call {
    ($bucket:expr, $limit:expr, |$of:ident| $builder:expr) => {
        match &$bucket.of {
            Of::Pooled($of) => limited!($builder, $limit).await,
            Of::Single($of) => apart(|| limited!($builder, $limit).run()),
        }
    };
}

macro_rules! limited {
    ($builder:expr, $limit:expr) => {{
        let builder = $builder;
        match $limit {
            Some(limit) => builder.timeout(limit),
            None => builder,
        }
    }};
}

/// Runs an operation on a bucket.
pub async fn on_bucket(bucket: &Bucket, operation: &Operation) -> Result<Returned, Stop> {
    let limit = timeout(operation, &bucket.options);
    let id = || argument(operation, "id").ok_or_else(|| Stop::Broken(format!("{} needs an id", operation.name)));
    match operation.name.as_str() {
        "upload" | "uploadWithId" => upload(bucket, operation, limit).await,
        "download" => {
            allow(operation, &["id", "timeoutMS"])?;
            let id = id()?;
            let read = match &bucket.of {
                Of::Pooled(bucket) => {
                    let mut content = Vec::new();
                    let mut stream = limited!(bucket.open_download_stream(id), limit).await?;
                    stream.read_to_end(&mut content).await.map(|_| content)
                }
                Of::Single(bucket) => apart(|| {
                    let mut content = Vec::new();
                    let mut stream = limited!(bucket.open_download_stream(id), limit).run()?;
                    Ok::<_, ClientError>(stream.read_to_end(&mut content).map(|_| content))
                })?,
            };
            returned(read)
        }
        "downloadByName" => {
            allow(operation, &["filename", "revision", "timeoutMS"])?;
            let name = text(operation, "filename")?;
            let revision = operation.arguments.get("revision").and_then(Value::as_i64).unwrap_or(-1);
            let revision = i32::try_from(revision).map_err(|error| error.to_string())?;
            let read = match &bucket.of {
                Of::Pooled(bucket) => {
                    let open = bucket.open_download_stream_by_name(name).revision(revision);
                    let (mut content, mut stream) = (Vec::new(), limited!(open, limit).await?);
                    stream.read_to_end(&mut content).await.map(|_| content)
                }
                Of::Single(bucket) => apart(|| {
                    let open = bucket.open_download_stream_by_name(name).revision(revision);
                    let (mut content, mut stream) = (Vec::new(), limited!(open, limit).run()?);
                    Ok::<_, ClientError>(stream.read_to_end(&mut content).map(|_| content))
                })?,
            };
            returned(read)
        }
        "find" => {
            allow(operation, &["filter", "timeoutMS"])?;
            let filter = argument(operation, "filter");
            let found: Vec<Document> = match &bucket.of {
                Of::Pooled(bucket) => {
                    limited!(bucket.find(filter).typed::<Document>(), limit).await?.try_collect().await?
                }
                Of::Single(bucket) => {
                    apart(|| limited!(bucket.find(filter).typed::<Document>(), limit).run()?.collect::<Result<_, _>>())?
                }
            };
            Ok(Returned::Documents(found))
        }
        "delete" => {
            allow(operation, &["id", "timeoutMS"])?;
            let id = id()?;
            Ok(call!(bucket, limit, |of| of.delete(id)).map(|()| Returned::Nothing)?)
        }
        "deleteByName" => {
            allow(operation, &["filename", "timeoutMS"])?;
            let name = text(operation, "filename")?;
            Ok(call!(bucket, limit, |of| of.delete_by_name(name)).map(|()| Returned::Nothing)?)
        }
        "rename" => {
            allow(operation, &["id", "newFilename", "timeoutMS"])?;
            let (id, name) = (id()?, text(operation, "newFilename")?);
            Ok(call!(bucket, limit, |of| of.rename(id, name)).map(|()| Returned::Nothing)?)
        }
        "renameByName" => {
            allow(operation, &["filename", "newFilename", "timeoutMS"])?;
            let (old, name) = (text(operation, "filename")?, text(operation, "newFilename")?);
            Ok(call!(bucket, limit, |of| of.rename_by_name(old, name)).map(|()| Returned::Nothing)?)
        }
        "drop" => {
            allow(operation, &["timeoutMS"])?;
            Ok(call!(bucket, limit, |of| of.drop()).map(|()| Returned::Nothing)?)
        }
        other => Err(Stop::Broken(format!("{other} is not an operation of a bucket"))),
    }
}

async fn upload(bucket: &Bucket, operation: &Operation, limit: Option<Duration>) -> Result<Returned, Stop> {
    // wharf computes no MD5.
    allow(operation, &["id", "filename", "source", "chunkSizeBytes", "metadata", "disableMD5", "timeoutMS"])?;
    let name = text(operation, "filename")?;
    let source = source(operation)?;
    macro_rules! prepared {
        ($bucket:expr) => {{
            let mut open = limited!($bucket.open_upload_stream(name), limit);
            if let Some(id) = argument(operation, "id") {
                open = open.id(id);
            }
            if let Some(Value::Object(metadata)) = operation.arguments.get("metadata") {
                open = open.metadata(document(metadata));
            }
            if let Some(size) = operation.arguments.get("chunkSizeBytes").and_then(Value::as_u64) {
                open = open.chunk_size_bytes(u32::try_from(size).map_err(|error| error.to_string())?);
            }
            open
        }};
    }
    let stored = match &bucket.of {
        Of::Pooled(bucket) => {
            let mut stream = prepared!(bucket).await?;
            stream.write_all(&source).await.map_err(client_error)?;
            stream.finish().await?
        }
        Of::Single(bucket) => {
            let open = prepared!(bucket);
            apart(|| {
                let mut stream = open.run()?;
                stream.write_all(&source).map_err(client_error)?;
                stream.finish().map_err(Stop::from)
            })?
        }
    };
    Ok(Returned::Value(stored))
}

/// Returns the bytes of an upload: `{ $$hexBytes: … }`.
fn source(operation: &Operation) -> Result<Vec<u8>, Stop> {
    let hex = operation.arguments.get("source").and_then(|source| source.get("$$hexBytes")).and_then(Value::as_str);
    let hex = hex.ok_or_else(|| Stop::Broken("upload needs a source with $$hexBytes".to_owned()))?;
    let byte = |place: usize| hex.get(place..place + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let bytes: Option<_> = (0..hex.len()).step_by(2).map(byte).collect();
    bytes.ok_or_else(|| Stop::Broken(format!("{hex} is not hexadecimal")))
}

fn returned(read: io::Result<Vec<u8>>) -> Result<Returned, Stop> {
    let bytes = read.map_err(client_error)?;
    Ok(Returned::Value(Bson::Binary(bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes })))
}

/// Returns the client's error in the error of a stream.
fn client_error(error: io::Error) -> Stop {
    let text = error.to_string();
    match error.into_inner().map(|inner| inner.downcast::<ClientError>()) {
        Some(Ok(error)) => Stop::Raised(error),
        _ => Stop::Broken(format!("not an error of the client: {text}")),
    }
}
