//! Stores files of any length as documents (GridFS).
//!
//! A bucket consists of two collections. Each file has a document in `fs.files`, and its content is cut into chunks in
//! `fs.chunks`. [`Database::gridfs_bucket`] returns a bucket, an upload is an [`AsyncWrite`](tokio::io::AsyncWrite),
//! and a download is an [`AsyncRead`](tokio::io::AsyncRead). With [`single::Client`](crate::single::Client) they are a
//! [`Write`](std::io::Write) and a [`Read`](std::io::Read).
//!
//! ```no_run
//! use bson::doc;
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # async fn example(client: wharf::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let photos = client.database("shop").gridfs_bucket(None);
//! let mut upload = photos.open_upload_stream("cat.jpg").metadata(doc! { "owner": "Ada" }).await?;
//! upload.write_all(b"all the bytes").await?;
//! let id = upload.finish().await?;
//!
//! let mut content = Vec::new();
//! photos.open_download_stream(id).await?.read_to_end(&mut content).await?;
//! # Ok(())
//! # }
//! ```
//!
//! None of these methods takes a session, so an upload is never part of a transaction.

mod change;
mod download;
mod file;
mod indexes;
mod upload;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bson::{Bson, Document};
use serde::Serialize;

pub use self::change::ChangeFiles;
pub use self::download::{GridFsDownloadStream, OpenDownloadStream, OpenDownloadStreamByName};
pub use self::file::FilesCollectionDocument;
pub use self::upload::{GridFsUploadStream, OpenUploadStream};
pub use super::error::GridFsProblem;

use super::collection::{Find, FindOne};
use super::error::ClientError;
use super::{AnyClient, Client, Collection, Database};
use crate::endpoint::options::{InvalidOption, ReadPreference, WriteConcern};

/// The default value of `chunkSizeBytes`. With this value, a chunk's document fits into 256 KiB.
const CHUNK_SIZE: u32 = 255 * 1024;

/// The size of the largest document that a server stores. A chunk must fit into it.
const LARGEST_CHUNK: u32 = 16 * 1024 * 1024;

/// The options of a bucket: [`Database::gridfs_bucket`].
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct GridFsBucketOptions {
    bucket_name: Option<String>,
    chunk_size_bytes: Option<u32>,
    read_preference: Option<ReadPreference>,
    read_concern: Option<String>,
    write_concern: Option<WriteConcern>,
}

impl GridFsBucketOptions {
    /// Sets the bucket's name, the prefix of its collections' names (`bucketName`). The default is `fs`.
    pub fn bucket_name(mut self, name: impl Into<String>) -> Self {
        self.bucket_name = Some(name.into());
        self
    }

    /// Sets the length of each chunk of new files in bytes (`chunkSizeBytes`). The default is 255 KiB.
    pub fn chunk_size_bytes(mut self, size: u32) -> Self {
        self.chunk_size_bytes = Some(size);
        self
    }

    /// Sets the read preference. The default comes from the database.
    pub fn read_preference(mut self, preference: ReadPreference) -> Self {
        self.read_preference = Some(preference);
        self
    }

    /// Sets the level of the read concern, such as `majority`. The default comes from the database.
    pub fn read_concern(mut self, level: impl Into<String>) -> Self {
        self.read_concern = Some(level.into());
        self
    }

    /// Sets the write concern. The default comes from the database.
    pub fn write_concern(mut self, concern: WriteConcern) -> Self {
        self.write_concern = Some(concern);
        self
    }

    /// Returns a collection handle with these options.
    fn collection<T, C: AnyClient>(&self, database: &Database<C>, name: String) -> Collection<T, C> {
        let mut collection = database.collection(name);
        if let Some(preference) = &self.read_preference {
            collection = collection.read_preference(preference.clone());
        }
        if let Some(level) = &self.read_concern {
            collection = collection.read_concern(level);
        }
        if let Some(concern) = &self.write_concern {
            collection = collection.write_concern(concern.clone());
        }
        collection
    }
}

impl<C: AnyClient> Database<C> {
    /// Returns a bucket for files, with [`GridFsBucketOptions`] or `None`. Sends nothing.
    ///
    /// ```no_run
    /// # fn example(client: wharf::Client) {
    /// use wharf::gridfs::GridFsBucketOptions;
    ///
    /// let options = GridFsBucketOptions::default().bucket_name("photos").chunk_size_bytes(1_000_000);
    /// let photos = client.database("shop").gridfs_bucket(options);
    /// # }
    /// ```
    #[must_use]
    pub fn gridfs_bucket(&self, options: impl Into<Option<GridFsBucketOptions>>) -> GridFsBucket<C> {
        let options = options.into().unwrap_or_default();
        let name = options.bucket_name.as_deref().unwrap_or("fs");
        let shared = Shared {
            files: options.collection(self, format!("{name}.files")),
            chunks: options.collection(self, format!("{name}.chunks")),
            chunk_size: options.chunk_size_bytes.unwrap_or(CHUNK_SIZE),
            name: name.into(),
            has_indexes: AtomicBool::new(false),
        };
        GridFsBucket { shared: Arc::new(shared) }
    }
}

/// A bucket for files: [`Database::gridfs_bucket`].
///
/// A bucket is cheap to clone. The first upload through a bucket or any of its clones checks whether the bucket
/// contains a file. The first upload after [`drop`](Self::drop) checks this again. If the bucket is empty, the upload
/// creates the indexes that GridFS needs, unless they already exist.
pub struct GridFsBucket<C = Client> {
    shared: Arc<Shared<C>>,
}

/// The state that the clones of a bucket share.
struct Shared<C> {
    name: Arc<str>,
    chunk_size: u32,
    files: Collection<FilesCollectionDocument, C>,
    chunks: Collection<Document, C>,
    /// Whether the indexes have been checked since the bucket was last dropped.
    has_indexes: AtomicBool,
}

impl<C: AnyClient> GridFsBucket<C> {
    /// Returns the bucket's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the client.
    #[must_use]
    pub fn client(&self) -> &C {
        self.files().client()
    }

    /// Prepares a query for the documents of the files that match `filter`. Await it to get a
    /// [`Cursor`](super::Cursor).
    ///
    /// The filter uses the server's field names: `filename`, `uploadDate`, `length`, and `metadata` for the
    /// application's data.
    ///
    /// ```no_run
    /// # async fn example(photos: wharf::gridfs::GridFsBucket) -> Result<(), wharf::ClientError> {
    /// use bson::doc;
    ///
    /// let mut files = photos.find(doc! { "metadata.owner": "Ada" }).sort(doc! { "uploadDate": -1 }).await?;
    /// while let Some(file) = files.next().await? {
    ///     println!("{:?}: {} bytes", file.filename, file.length);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn find(&self, filter: impl Serialize) -> Find<'_, FilesCollectionDocument, C> {
        self.files().find(filter)
    }

    /// Prepares a query for the document of the first file that matches `filter`.
    #[track_caller]
    pub fn find_one(&self, filter: impl Serialize) -> FindOne<'_, FilesCollectionDocument, C> {
        self.files().find_one(filter)
    }

    fn files(&self) -> &Collection<FilesCollectionDocument, C> {
        &self.shared.files
    }

    fn chunks(&self) -> &Collection<Document, C> {
        &self.shared.chunks
    }

    fn error(&self, file: impl fmt::Display, problem: GridFsProblem) -> ClientError {
        ClientError::GridFs { file: format!("{file} in the bucket {}", self.name()).into(), problem }
    }
}

impl<C> Clone for GridFsBucket<C> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<C> fmt::Debug for GridFsBucket<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GridFsBucket").field(&self.shared.name).finish()
    }
}

/// Returns the text that identifies a file in an error by its `_id`.
fn with_id(id: &Bson) -> String {
    format!("_id {id}")
}

/// Returns the text that identifies a file in an error by its filename.
fn with_name(filename: &str) -> String {
    format!("filename {filename:?}")
}

fn check_chunk_size(size: u32) -> Result<(), InvalidOption> {
    match size {
        1..=LARGEST_CHUNK => Ok(()),
        _ => Err(InvalidOption::new("chunkSizeBytes", format_args!("from 1 to {LARGEST_CHUNK}"), size.to_string())),
    }
}

/// Wraps a client's error in an I/O error, as its inner error.
pub(crate) fn io_error(error: ClientError) -> io::Error {
    let kind = match &error {
        ClientError::GridFs { problem: GridFsProblem::Stored, .. } => io::ErrorKind::BrokenPipe,
        ClientError::GridFs { .. } => io::ErrorKind::InvalidData,
        _ if error.is_timeout() => io::ErrorKind::TimedOut,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// Implements the `timeout` option, `Call`, `IntoFuture` and `Debug` for a builder. The first type is the output with
/// any client. The second type is the output of the future with the asynchronous client. The builder must have a `send`
/// method.
macro_rules! call {
    ($name:ident => $output:ty, $awaited:ty: $($timeout:literal)*) => {
        impl<C: AnyClient> $name<'_, C> {
            $(#[doc = $timeout])*
            pub fn timeout(mut self, limit: std::time::Duration) -> Self {
                self.timeout = Limit::of(limit);
                self
            }
        }

        impl<C: AnyClient> Call for $name<'_, C> {
            type Client = C;
            type Output = $output;

            fn client(&self) -> C {
                self.bucket.client().clone()
            }

            fn limit(&self) -> Result<Limit, SessionError> {
                self.bucket.client().running().limit_in(None, self.timeout.or_limit(self.bucket.files().timeout_of_all()))
            }

            fn begin(self, limit: Limit) -> impl Future<Output = Result<$output, ClientError>> + Send {
                self.send(limit)
            }
        }

        impl<'b> IntoFuture for $name<'b> {
            type Output = Result<$awaited, ClientError>;
            type IntoFuture = std::pin::Pin<Box<dyn Future<Output = Self::Output> + Send + 'b>>;

            fn into_future(self) -> Self::IntoFuture {
                Box::pin(async move {
                    let limit = self.limit()?.start();
                    self.send(limit).await
                })
            }
        }

        impl<C> std::fmt::Debug for $name<'_, C> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).field("bucket", self.bucket).finish_non_exhaustive()
            }
        }
    };
}

use call;
