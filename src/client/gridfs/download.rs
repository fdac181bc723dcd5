//! Downloads.

use std::fmt;
use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bson::{Bson, Document, RawDocument, doc};
use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};

use super::super::collection::Call;
use super::super::cursor::{Cursor, DocumentRange, convert};
use super::super::error::ClientError;
use super::super::session::SessionError;
use super::super::{AnyClient, Client};
use super::{FilesCollectionDocument, GridFsBucket, GridFsProblem, call, io_error, with_id, with_name};
use crate::endpoint::Limit;
use crate::endpoint::wire::reply::whole_number;
use crate::pool::runtime::{Boxed, Process};

impl<C: AnyClient> GridFsBucket<C> {
    /// Prepares the download of a file. Await it to get a [`GridFsDownloadStream`], or [`ClientError::GridFs`] if there
    /// is no file with this `_id`.
    pub fn open_download_stream(&self, id: impl Into<Bson>) -> OpenDownloadStream<'_, C> {
        OpenDownloadStream { bucket: self, id: id.into(), timeout: Limit::Unset }
    }

    /// Prepares the download of the latest file with this name, or of another
    /// [`revision`](OpenDownloadStreamByName::revision). If the name or the revision does not exist, the error is
    /// [`ClientError::GridFs`].
    pub fn open_download_stream_by_name(&self, filename: impl Into<String>) -> OpenDownloadStreamByName<'_, C> {
        OpenDownloadStreamByName { bucket: self, filename: filename.into(), revision: -1, timeout: Limit::Unset }
    }
}

/// A download that begins when it is awaited: [`GridFsBucket::open_download_stream`].
#[must_use = "it is sent when it is awaited or run"]
pub struct OpenDownloadStream<'b, C = Client> {
    bucket: &'b GridFsBucket<C>,
    id: Bson,
    timeout: Limit,
}

impl<C: AnyClient> OpenDownloadStream<'_, C> {
    async fn send(self, limit: Limit) -> Result<GridFsDownloadStream<C>, ClientError> {
        let Self { bucket, id, .. } = self;
        match bucket.files().find_one(doc! { "_id": &id }).document(limit).await? {
            Some(file) => GridFsDownloadStream::new(bucket.clone(), &file, limit),
            None => Err(bucket.error(with_id(&id), GridFsProblem::NotFound)),
        }
    }
}

call!(OpenDownloadStream => GridFsDownloadStream<C>, GridFsDownloadStream:
    "Sets `timeoutMS`: how long the whole download may take, from the opening to the last byte. The default is"
    "[`Options::timeout`](crate::Options::timeout). Zero means no limit."
);

/// A download that begins when it is awaited: [`GridFsBucket::open_download_stream_by_name`].
#[must_use = "it is sent when it is awaited or run"]
pub struct OpenDownloadStreamByName<'b, C = Client> {
    bucket: &'b GridFsBucket<C>,
    filename: String,
    revision: i32,
    timeout: Limit,
}

impl<C: AnyClient> OpenDownloadStreamByName<'_, C> {
    /// Sets which of the files with this name to read, in the order of their uploads: 0 is the first file, 1 the
    /// second, -1 the latest (the default), -2 the second latest.
    pub fn revision(mut self, revision: i32) -> Self {
        self.revision = revision;
        self
    }

    async fn send(self, limit: Limit) -> Result<GridFsDownloadStream<C>, ClientError> {
        let Self { bucket, filename, revision, .. } = self;
        let (order, skip) = if revision < 0 { (-1, !revision) } else { (1, revision) };
        let named = || bucket.files().find_one(doc! { "filename": &filename });
        let found = named().sort(doc! { "uploadDate": order }).skip(skip.unsigned_abs().into());
        if let Some(file) = found.document(limit).await? {
            return GridFsDownloadStream::new(bucket.clone(), &file, limit);
        }
        let has_others = skip > 0 && named().document(limit).await?.is_some();
        let problem = if has_others { GridFsProblem::NoRevision { revision } } else { GridFsProblem::NotFound };
        Err(bucket.error(with_name(&filename), problem))
    }
}

call!(OpenDownloadStreamByName => GridFsDownloadStream<C>, GridFsDownloadStream:
    "Sets `timeoutMS`: how long the whole download may take, from the opening to the last byte. The default is"
    "[`Options::timeout`](crate::Options::timeout). Zero means no limit."
);

/// A download, which is an [`AsyncRead`] and an [`AsyncBufRead`]: [`GridFsBucket::open_download_stream`]. With
/// [`single::Client`](crate::single::Client) it is a [`Read`](io::Read) and a [`BufRead`](io::BufRead).
///
/// The first read queries the chunks. The download holds one batch of chunks, and reads take their bytes from this
/// batch. Each chunk must have the number and the length that follow from the file's document. Chunks beyond the file's
/// end are not read.
///
/// # Errors
///
/// A read fails with an [`io::Error`] whose inner error is the [`ClientError`]: [`ClientError::GridFs`] with the kind
/// [`InvalidData`](io::ErrorKind::InvalidData) if a chunk is missing or has the wrong length. After an error, all reads
/// fail.
///
/// # Cancel safety
///
/// Nothing is lost: the next read continues to wait for the same chunk.
pub struct GridFsDownloadStream<C: AnyClient = Client> {
    bucket: GridFsBucket<C>,
    file: FilesCollectionDocument,
    limit: Limit,
    source: Source,
    /// The number of the current chunk, or of the next chunk if there is no current chunk.
    n: u64,
    /// The current chunk, and how many of its bytes have been read.
    chunk: Option<(DocumentRange, usize)>,
    /// The process that opened the download.
    process: Process,
}

enum Source {
    /// No chunk has been requested yet.
    Unopened,
    Opening(Boxed<'static, Result<Cursor<Document>, ClientError>>),
    Open(Box<Cursor<Document>>),
    Failed(ClientError),
}

impl<C: AnyClient> GridFsDownloadStream<C> {
    fn new(bucket: GridFsBucket<C>, file: &RawDocument, limit: Limit) -> Result<Self, ClientError> {
        let file = convert(file, FilesCollectionDocument::of)?;
        if file.length > 0 && file.chunk_size_bytes == 0 {
            return Err(ClientError::unreadable("find", "the chunkSize of a file that is not empty is 0"));
        }
        Ok(Self { bucket, file, limit, source: Source::Unopened, n: 0, chunk: None, process: Process::this() })
    }

    /// Returns the file's document.
    #[must_use]
    pub fn file(&self) -> &FilesCollectionDocument {
        &self.file
    }

    /// Returns the time limit, which has already started.
    pub(crate) fn limit(&self) -> Limit {
        self.limit
    }

    pub(crate) fn client(&self) -> &C {
        self.bucket.client()
    }

    /// Returns whether a read can complete without waiting, because bytes are available or the file has ended.
    pub(crate) fn is_ready(&self) -> bool {
        self.chunk.is_some() || self.n == self.file.chunk_count()
    }

    /// Waits until [`is_ready`](Self::is_ready).
    pub(crate) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        let ready = ready!(self.poll_chunk(context));
        if let Err(error) = &ready {
            // Drops the cursor, if one is open, which closes it on its server.
            self.source = Source::Failed(error.clone());
        }
        Poll::Ready(ready)
    }

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        while !self.is_ready() {
            match &mut self.source {
                Source::Unopened => {
                    let (bucket, id, limit) = (self.bucket.clone(), self.file.id.clone(), self.limit);
                    // With this number as the query's limit, the server closes the cursor when it returns the last
                    // chunk.
                    let count = i64::try_from(self.file.chunk_count()).unwrap_or(i64::MAX);
                    self.source = Source::Opening(Box::pin(async move {
                        let chunks = bucket.chunks().find(doc! { "files_id": id }).sort(doc! { "n": 1 }).limit(count);
                        chunks.begin(limit).await
                    }));
                }
                Source::Opening(opening) => {
                    let cursor = ready!(opening.as_mut().poll(context))?;
                    self.source = Source::Open(Box::new(cursor));
                }
                Source::Open(cursor) => {
                    let range = ready!(cursor.poll_advance(context))?;
                    let range = range.ok_or_else(|| self.damaged(GridFsProblem::MissingChunk { n: self.n }))?;
                    self.check(range)?;
                    self.chunk = Some((range, 0));
                }
                Source::Failed(error) => return Poll::Ready(Err(error.clone())),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Checks the number and the length of the next chunk (GridFS, "File Download").
    fn check(&self, range: DocumentRange) -> Result<(), ClientError> {
        let Source::Open(cursor) = &self.source else { return Ok(()) };
        let number = whole_number(cursor.document(range)?, "n").ok().flatten();
        if number.and_then(|number| u64::try_from(number).ok()) != Some(self.n) {
            return Err(self.damaged(GridFsProblem::MissingChunk { n: self.n }));
        }
        let (expected, actual) = (self.file.chunk_length(self.n), self.data(range)?.len() as u64);
        match actual == expected {
            true => Ok(()),
            false => Err(self.damaged(GridFsProblem::ChunkLength { n: self.n, expected, actual })),
        }
    }

    /// Returns the bytes of a chunk.
    fn data(&self, range: DocumentRange) -> Result<&[u8], ClientError> {
        let Source::Open(cursor) = &self.source else { return Ok(&[]) };
        let data = cursor.document(range)?.get_binary("data");
        Ok(data.map_err(|error| ClientError::unreadable("find", error.to_string()))?.bytes)
    }

    /// Returns the unread bytes of the current chunk, or no bytes at the end of the file.
    pub(crate) fn unread(&self) -> Result<&[u8], ClientError> {
        match self.chunk {
            Some((range, read)) => Ok(&self.data(range)?[read..]),
            None => Ok(&[]),
        }
    }

    /// Marks bytes of the current chunk as read.
    pub(crate) fn consume_bytes(&mut self, count: usize) {
        let Some((range, read)) = self.chunk else { return };
        let read = read + count;
        self.chunk = Some((range, read));
        if read as u64 >= self.file.chunk_length(self.n) {
            (self.chunk, self.n) = (None, self.n + 1);
        }
    }

    fn damaged(&self, problem: GridFsProblem) -> ClientError {
        self.bucket.error(with_id(&self.file.id), problem)
    }
}

impl AsyncBufRead for GridFsDownloadStream {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        ready!(this.poll_ready(context)).map_err(io_error)?;
        Poll::Ready(this.unread().map_err(io_error))
    }

    fn consume(self: Pin<&mut Self>, count: usize) {
        self.get_mut().consume_bytes(count);
    }
}

impl AsyncRead for GridFsDownloadStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_ready(context)).map_err(io_error)?;
        let unread = this.unread().map_err(io_error)?;
        let count = unread.len().min(into.remaining());
        into.put_slice(&unread[..count]);
        this.consume_bytes(count);
        Poll::Ready(Ok(()))
    }
}

impl<C: AnyClient> Drop for GridFsDownloadStream<C> {
    fn drop(&mut self) {
        // Dropping a cursor closes it.
        let source = mem::replace(&mut self.source, Source::Unopened);
        if matches!(source, Source::Opening(_)) && self.process.is_ancestor() {
            // The query and its connection belong to the parent.
            return mem::forget(source);
        }
        drop(source);
        self.bucket.client().finish_dropped();
    }
}

impl<C: AnyClient> fmt::Debug for GridFsDownloadStream<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GridFsDownloadStream").field("file", &self.file).finish_non_exhaustive()
    }
}
