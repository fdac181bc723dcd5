//! Operations on buckets.

use std::io::{self, Read, Write};

use bson::{Bson, Document};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::ClientError;

use crate::arguments::{Arguments, options};
use crate::case::Returned;
use crate::clients::{Bucket, Of, apart};
use crate::format::Object;
use crate::stop::Stop;

/// Runs the builder that a method returns, for a bucket from either client.
macro_rules! call {
    ($bucket:expr, $arguments:ident, |$of:ident| $builder:expr) => {
        match $bucket {
            Of::Pooled($of) => limited!($arguments, $builder).await.map_err(Stop::from),
            Of::Single($of) => {
                let builder = limited!($arguments, $builder);
                apart(|| builder.run()).map_err(Stop::from)
            }
        }
    };
}

/// Sets the time limit. Fails if an argument is left unread.
macro_rules! limited {
    ($arguments:ident, $builder:expr) => {{
        let builder = options!($arguments, $builder; timeout);
        $arguments.end()?;
        builder
    }};
}

/// Reads the whole stream that a builder opens.
macro_rules! download {
    ($bucket:expr, $arguments:ident, |$of:ident| $builder:expr) => {{
        let mut bytes = Vec::new();
        let read = match $bucket {
            Of::Pooled($of) => limited!($arguments, $builder).await?.read_to_end(&mut bytes).await,
            Of::Single($of) => {
                let open = limited!($arguments, $builder);
                apart(|| Ok::<_, ClientError>(open.run()?.read_to_end(&mut bytes)))?
            }
        };
        read.map_err(client_error)?;
        Returned::Value(Bson::Binary(bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes }))
    }};
}

/// Runs an operation on a bucket.
pub async fn on_bucket(bucket: &Bucket, name: &str, mut arguments: Arguments) -> Result<Returned, Stop> {
    let done = match name {
        "upload" => return upload(bucket, arguments).await,
        "download" => {
            let id = arguments.need::<Bson>("id")?;
            return Ok(download!(bucket, arguments, |of| of.open_download_stream(id)));
        }
        "downloadByName" => {
            let name = arguments.need::<String>("filename")?;
            return Ok(download!(bucket, arguments, |of| options!(
                arguments, of.open_download_stream_by_name(&name); revision,
            )));
        }
        "find" => {
            let filter = arguments.need::<Bson>("filter")?;
            let found: Vec<Document> = match bucket {
                Of::Pooled(of) => limited!(arguments, of.find(filter).typed()).await?.try_collect().await?,
                Of::Single(of) => {
                    let find = limited!(arguments, of.find(filter).typed());
                    apart(|| find.run()?.collect::<Result<_, _>>())?
                }
            };
            return Ok(Returned::Documents(found));
        }
        "delete" => call!(bucket, arguments, |of| of.delete(arguments.need::<Bson>("id")?)),
        "deleteByName" => call!(bucket, arguments, |of| of.delete_by_name(arguments.need::<String>("filename")?)),
        "rename" => call!(bucket, arguments, |of| of
            .rename(arguments.need::<Bson>("id")?, arguments.need::<String>("newFilename")?)),
        "renameByName" => call!(bucket, arguments, |of| of
            .rename_by_name(arguments.need::<String>("filename")?, arguments.need::<String>("newFilename")?)),
        "drop" => call!(bucket, arguments, |of| of.drop()),
        other => Err(Stop::Broken(format!("{other} is not an operation of a bucket"))),
    };
    done.map(|()| Returned::Nothing)
}

async fn upload(bucket: &Bucket, mut arguments: Arguments) -> Result<Returned, Stop> {
    // wharf never computes an MD5 checksum.
    arguments.take::<bool>("disableMD5")?;
    let name = arguments.need::<String>("filename")?;
    let source = source(&arguments.need::<Object>("source")?)?;
    macro_rules! open {
        ($of:ident) => {
            limited!(arguments, options!(arguments, $of.open_upload_stream(&name); chunk_size_bytes, id, metadata))
        };
    }
    let stored = match bucket {
        Of::Pooled(of) => {
            let mut stream = open!(of).await?;
            stream.write_all(&source).await.map_err(client_error)?;
            stream.finish().await?
        }
        Of::Single(of) => {
            let open = open!(of);
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
fn source(source: &Object) -> Result<Vec<u8>, Stop> {
    let hex = Arguments::new("source", source).need::<String>("$$hexBytes")?;
    let byte = |place: usize| hex.get(place..place + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let bytes: Option<_> = (0..hex.len()).step_by(2).map(byte).collect();
    bytes.ok_or_else(|| Stop::Broken(format!("{hex} is not hexadecimal")))
}

/// Extracts the client's error from a stream's I/O error.
fn client_error(error: io::Error) -> Stop {
    let text = error.to_string();
    match error.into_inner().map(|inner| inner.downcast::<ClientError>()) {
        Some(Ok(error)) => Stop::Raised(error),
        _ => Stop::Broken(format!("not an error of the client: {text}")),
    }
}
