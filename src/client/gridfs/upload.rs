//! Uploads.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bson::oid::ObjectId;
use bson::{Bson, DateTime, RawDocumentBuf, doc};
use serde::ser::{Serialize, Serializer};
use tokio::io::AsyncWrite;

use super::super::collection::Call;
use super::super::error::ClientError;
use super::super::object_id::object_id;
use super::super::session::SessionError;
use super::super::typed::encode;
use super::super::{AnyClient, Client};
use super::{GridFsBucket, GridFsProblem, call, check_chunk_size, io_error, with_id};
use crate::client::deployment::Work;
use crate::endpoint::Limit;
use crate::pool::runtime::{Boxed, Process};

impl<C: AnyClient> GridFsBucket<C> {
    /// Prepares the upload of a file with this name. Await it to get a [`GridFsUploadStream`]. This sends nothing yet.
    /// Files with the same name are revisions of one another.
    pub fn open_upload_stream(&self, filename: impl Into<String>) -> OpenUploadStream<'_, C> {
        let chunk_size = self.shared.chunk_size;
        let (id, metadata) = (None, Ok(None));
        OpenUploadStream { bucket: self, filename: filename.into(), id, metadata, chunk_size, timeout: Limit::Unset }
    }
}

/// An upload that begins when it is awaited: [`GridFsBucket::open_upload_stream`].
#[must_use = "it begins when it is awaited or run"]
pub struct OpenUploadStream<'b, C = Client> {
    bucket: &'b GridFsBucket<C>,
    filename: String,
    id: Option<Bson>,
    metadata: Result<Option<RawDocumentBuf>, ClientError>,
    chunk_size: u32,
    timeout: Limit,
}

impl<C: AnyClient> OpenUploadStream<'_, C> {
    /// Sets the file's `_id`, which can be of any type. By default the client generates an [`ObjectId`].
    pub fn id(mut self, id: impl Into<Bson>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Stores the application's own data with the file (`metadata`): anything that serde serializes as a document.
    pub fn metadata(mut self, metadata: impl Serialize) -> Self {
        self.metadata = encode("metadata", &metadata).map(Some);
        self
    }

    /// Sets the length of each chunk of this file in bytes (`chunkSizeBytes`). The default comes from the bucket.
    pub fn chunk_size_bytes(mut self, size: u32) -> Self {
        self.chunk_size = size;
        self
    }

    async fn send(self, limit: Limit) -> Result<GridFsUploadStream<C>, ClientError> {
        check_chunk_size(self.chunk_size)?;
        let is_own_id = self.id.is_none();
        Ok(GridFsUploadStream {
            bucket: self.bucket.clone(),
            id: self.id.unwrap_or_else(|| Bson::ObjectId(object_id())),
            filename: self.filename,
            metadata: self.metadata?,
            chunk_size: self.chunk_size,
            limit,
            buffer: Vec::new(),
            n: 0,
            length: 0,
            state: State::Open,
            sending: None,
            stored: Stored { is_own_id, ..Stored::default() },
            aborts: false,
            process: Process::this(),
        })
    }
}

call!(OpenUploadStream => GridFsUploadStream<C>, GridFsUploadStream:
    "Sets `timeoutMS`: how long the whole upload may take, from its opening to its end. The default is"
    "[`Options::timeout`](crate::Options::timeout). Zero means no limit."
);

/// An upload, which is an [`AsyncWrite`]: [`GridFsBucket::open_upload_stream`]. With
/// [`single::Client`](crate::single::Client) it is a [`Write`](io::Write).
///
/// An upload buffers one chunk, and sends it when a write finds the buffer full. The file exists once
/// [`finish`](Self::finish) or a shutdown has sent the last chunk and then stored the file's document. A flush cannot
/// send a partial chunk.
///
/// # Errors
///
/// A write fails with an [`io::Error`] whose inner error is the [`ClientError`]. After an error, all later calls fail
/// with the same error, and the chunks that were sent stay on the server, as the specification requires.
/// [`GridFsBucket::delete`] removes them.
///
/// # Drop
///
/// If an upload is dropped before [`finish`](Self::finish) or a shutdown has begun, a background task deletes its
/// chunks. With [`single::Client`](crate::single::Client), they are deleted before the drop returns. If the runtime
/// shuts down first, or the client is [shut down](Client::shutdown), the chunks stay on the server. To wait for the
/// deletion, use [`abort`](Self::abort). In a forked child, the drop deletes nothing.
///
/// If the application chose the `_id` and the writes are unacknowledged (`w: 0`), the drop and [`abort`](Self::abort)
/// delete only the first chunk, because it is unknown whether the other chunks belong to another file with the same
/// `_id`.
///
/// # Cancel safety
///
/// Nothing is lost if a write, a flush or a shutdown is cancelled: the next call continues to wait for the same chunk.
/// Once a shutdown or [`finish`](Self::finish) has begun, a dropped upload is completed in the background.
pub struct GridFsUploadStream<C: AnyClient = Client> {
    bucket: GridFsBucket<C>,
    id: Bson,
    filename: String,
    metadata: Option<RawDocumentBuf>,
    chunk_size: u32,
    limit: Limit,
    /// The bytes of the next chunk.
    buffer: Vec<u8>,
    /// The number of chunks before the chunk in the buffer.
    n: u64,
    length: u64,
    state: State,
    sending: Option<Sending>,
    /// The upload's documents on the server, not counting the documents in `sending`.
    stored: Stored,
    /// Whether [`abort_within`](Self::abort_within) has begun.
    aborts: bool,
    /// The process that opened the upload.
    process: Process,
}

/// A future that sends a chunk or the last commands of the upload. It returns the buffer, and the upload's documents on
/// the server.
type Sending = Boxed<'static, (Vec<u8>, Stored, Result<(), ClientError>)>;

/// The documents that this upload has, or may have, on the server. An insert that was refused as a duplicate is not
/// counted, because another file has the same `_id`.
#[derive(Clone, Copy, Default)]
struct Stored {
    /// Whether the client generated the file's `_id`. If so, no other file has it.
    is_own_id: bool,
    chunks: Chunks,
    /// The `uploadDate` of the file's document.
    document: Option<DateTime>,
}

#[derive(Clone, Copy, Default)]
enum Chunks {
    #[default]
    None,
    /// It is unknown whether the first chunk, which has this `_id`, is stored. Other chunks with the file's `_id` may
    /// belong to another file.
    First(ObjectId),
    /// The first chunk is stored, so all chunks with the file's `_id` belong to this upload.
    All,
}

enum State {
    Open,
    /// The last chunk and the file's document are being sent.
    Finishing,
    Stored,
    Aborted,
    Failed(ClientError),
}

impl<C: AnyClient> GridFsUploadStream<C> {
    /// Returns the `_id` of the file.
    #[must_use]
    pub fn id(&self) -> &Bson {
        &self.id
    }

    /// Returns the time limit, which has already started.
    pub(crate) fn limit(&self) -> Limit {
        self.limit
    }

    pub(crate) fn client(&self) -> &C {
        self.bucket.client()
    }

    /// Waits until the buffer has room, and adds bytes to it.
    pub(crate) fn poll_add(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, ClientError>> {
        ready!(self.poll_room(context))?;
        let count = bytes.len().min(self.chunk_size as usize - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        self.length += count as u64;
        Poll::Ready(Ok(count))
    }

    /// Returns whether the buffer accepts bytes without waiting.
    pub(crate) fn has_room(&self) -> bool {
        matches!(self.state, State::Open) && self.sending.is_none() && self.buffer.len() < self.chunk_size as usize
    }

    /// Waits until the buffer has room. A full buffer is sent first.
    pub(crate) fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        loop {
            match &self.state {
                State::Open => {}
                State::Failed(error) => return Poll::Ready(Err(error.clone())),
                State::Finishing | State::Stored | State::Aborted => return Poll::Ready(Err(self.ended())),
            }
            ready!(self.poll_sending(context))?;
            if self.has_room() {
                return Poll::Ready(Ok(()));
            }
            let (bucket, id, limit) = (self.bucket.clone(), self.id.clone(), self.limit);
            let (n, data, mut stored) = (self.n, mem::take(&mut self.buffer), self.stored);
            self.n += 1;
            self.sending = Some(Box::pin(async move {
                let sent = bucket.insert_chunk(&id, n, &data, &mut stored, limit).await;
                (data, stored, sent)
            }));
        }
    }

    /// Sends the remaining bytes, and then the file's document.
    pub(crate) fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        match &self.state {
            State::Open => self.begin_end(),
            State::Finishing => {}
            State::Stored => return Poll::Ready(Ok(())),
            State::Aborted => return Poll::Ready(Err(self.ended())),
            State::Failed(error) => return Poll::Ready(Err(error.clone())),
        }
        self.poll_sending(context)
    }

    /// Begins to send the remaining bytes and the file's document. If the upload is then dropped, the sending continues
    /// in the background.
    fn begin_end(&mut self) {
        // While a chunk is being sent, the buffer is empty.
        let earlier = self.sending.take();
        let (bucket, limit, data, n) = (self.bucket.clone(), self.limit, mem::take(&mut self.buffer), self.n);
        let (id, filename) = (self.id.clone(), mem::take(&mut self.filename));
        let (metadata, length, chunk_size) = (self.metadata.take(), self.length, self.chunk_size);
        let mut stored = self.stored;
        self.state = State::Finishing;
        self.sending = Some(Box::pin(async move {
            let sent = async {
                if let Some(earlier) = earlier {
                    let sent;
                    (_, stored, sent) = earlier.await;
                    sent?;
                }
                if !data.is_empty() {
                    bucket.insert_chunk(&id, n, &data, &mut stored, limit).await?;
                }
                let length = i64::try_from(length).unwrap_or(i64::MAX);
                let chunk_size = i32::try_from(chunk_size).unwrap_or(i32::MAX);
                let upload_date = DateTime::now();
                let file = NewFile { id, length, chunk_size, upload_date, filename, metadata };
                bucket.insert_file(file, &mut stored, limit).await
            }
            .await;
            (Vec::new(), stored, sent)
        }));
    }

    /// Waits until the commands in `sending` have completed.
    fn poll_sending(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ClientError>> {
        let Some(sending) = &mut self.sending else { return Poll::Ready(Ok(())) };
        let (mut buffer, stored, sent) = ready!(sending.as_mut().poll(context));
        buffer.clear();
        (self.buffer, self.stored, self.sending) = (buffer, stored, None);
        match &sent {
            Ok(()) if matches!(self.state, State::Finishing) => self.state = State::Stored,
            Ok(()) => {}
            Err(error) => self.state = State::Failed(error.clone()),
        }
        Poll::Ready(sent)
    }

    /// Deletes everything that was sent.
    pub(crate) async fn abort_within(mut self, limit: Limit) -> Result<(), ClientError> {
        // If this future is dropped after this point, the deletion continues in the background.
        self.aborts = true;
        // The file's document may be in flight, and may still arrive.
        _ = poll_fn(|context| self.poll_sending(context)).await;
        if matches!(self.state, State::Stored) {
            return Err(self.ended());
        }
        let deleted = self.bucket.delete_stored(&self.id, self.stored, limit).await;
        self.state = State::Aborted;
        deleted
    }

    /// Returns the error for a stream that accepts no more bytes.
    fn ended(&self) -> ClientError {
        self.bucket.error(with_id(&self.id), GridFsProblem::Stored)
    }

    /// Returns the work that remains for a dropped upload: deleting its chunks, or completing the upload if `finish` or
    /// a shutdown has begun.
    fn give_up(&mut self) -> Option<Work> {
        let sending = self.sending.take();
        let deletes = match self.state {
            State::Open => true,
            State::Finishing | State::Failed(_) => self.aborts,
            State::Stored | State::Aborted => false,
        };
        let mut stored = self.stored;
        let is_stored = !matches!(stored.chunks, Chunks::None) || stored.document.is_some();
        if sending.is_none() && !(deletes && is_stored) {
            return None;
        }
        // The limit applied to the upload's calls. It starts afresh for this work.
        let (bucket, id, limit) = (self.bucket.clone(), self.id.clone(), self.limit.refreshed());
        Some(Box::pin(async move {
            if let Some(sending) = sending {
                (_, stored, _) = sending.await;
            }
            if deletes && let Err(error) = bucket.delete_stored(&id, stored, limit).await {
                tracing::debug!(target: "wharf::command", %error, "The chunks of an upload could not be deleted");
            }
        }))
    }
}

impl<C: AnyClient> GridFsBucket<C> {
    async fn insert_chunk(
        &self,
        files_id: &Bson,
        n: u64,
        data: &[u8],
        stored: &mut Stored,
        limit: Limit,
    ) -> Result<(), ClientError> {
        let Ok(n) = i32::try_from(n) else {
            return Err(self.error(with_id(files_id), GridFsProblem::TooManyChunks));
        };
        self.ensure_indexes(limit).await?;
        let id = object_id();
        let chunk = Chunk { id, files_id, n, data: Bytes(data) };
        let chunks = self.chunks().clone_with_type::<Chunk<'_>>();
        let inserted = chunks.insert_one(chunk).begin(limit).await;
        match stored.chunks {
            // An unacknowledged insert may have been refused.
            _ if inserted.as_ref().is_ok_and(|inserted| inserted.acknowledged || stored.is_own_id) => {
                stored.chunks = Chunks::All;
            }
            Chunks::None if may_be_stored(&inserted) => stored.chunks = Chunks::First(id),
            _ => {}
        }
        inserted.map(drop)
    }

    async fn insert_file(&self, file: NewFile, stored: &mut Stored, limit: Limit) -> Result<(), ClientError> {
        self.ensure_indexes(limit).await?;
        let (upload_date, files) = (file.upload_date, self.files().clone_with_type::<NewFile>());
        let inserted = files.insert_one(file).begin(limit).await;
        stored.document = may_be_stored(&inserted).then_some(upload_date);
        inserted.map(drop)
    }

    /// Deletes everything that an upload has stored. The file's document is deleted first, so that no file exists
    /// without its chunks.
    async fn delete_stored(&self, id: &Bson, stored: Stored, limit: Limit) -> Result<(), ClientError> {
        if let Some(upload_date) = stored.document {
            // If it is unknown whether the insert has arrived, another file may have the same `_id`. The date keeps
            // that file from being deleted.
            self.files().delete_one(doc! { "_id": id, "uploadDate": upload_date }).begin(limit).await?;
        }
        let chunks = match stored.chunks {
            Chunks::None => return Ok(()),
            Chunks::First(chunk) => doc! { "_id": chunk, "files_id": id },
            Chunks::All => doc! { "files_id": id },
        };
        self.chunks().delete_many(chunks).begin(limit).await.map(drop)
    }
}

/// Returns whether the document may be on the server after this insert.
fn may_be_stored<T>(inserted: &Result<T, ClientError>) -> bool {
    !inserted.as_ref().is_err_and(ClientError::is_duplicate_key)
}

/// A chunk to insert.
#[derive(serde::Serialize)]
struct Chunk<'d> {
    #[serde(rename = "_id")]
    id: ObjectId,
    files_id: &'d Bson,
    n: i32,
    data: Bytes<'d>,
}

struct Bytes<'d>(&'d [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// A file's document to insert.
#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct NewFile {
    #[serde(rename = "_id")]
    id: Bson,
    length: i64,
    chunk_size: i32,
    upload_date: DateTime,
    filename: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<RawDocumentBuf>,
}

impl GridFsUploadStream {
    /// Sends the last chunk, stores the file's document, and returns the file's `_id`. After a shutdown, it only
    /// returns the `_id`.
    ///
    /// # Errors
    ///
    /// The [`ClientError`] from the first command that failed.
    ///
    /// # Cancel safety
    ///
    /// The upload is completed in the background.
    pub async fn finish(mut self) -> Result<Bson, ClientError> {
        poll_fn(|context| self.poll_finish(context)).await?;
        Ok(self.id.clone())
    }

    /// Ends the upload without storing the file, and deletes the chunks that were sent.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the chunks could not be deleted. [`ClientError::GridFs`] if the file is already stored.
    ///
    /// # Cancel safety
    ///
    /// The chunks are deleted in the background.
    pub async fn abort(self) -> Result<(), ClientError> {
        let limit = self.limit;
        self.abort_within(limit).await
    }
}

impl AsyncWrite for GridFsUploadStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_add(context, bytes).map_err(io_error)
    }

    /// Sends a full chunk. Once a shutdown has begun, waits for the shutdown to complete instead, because adapters
    /// flush on every poll of a shutdown.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = match this.state {
            State::Finishing | State::Stored => this.poll_finish(context),
            State::Open | State::Failed(_) | State::Aborted => this.poll_room(context),
        };
        flushed.map_err(io_error)
    }

    /// Finishes the upload: see [`finish`](GridFsUploadStream::finish).
    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_finish(context).map_err(io_error)
    }
}

impl<C: AnyClient> Drop for GridFsUploadStream<C> {
    fn drop(&mut self) {
        if self.process.is_ancestor() {
            // The upload belongs to the parent.
            return mem::forget(self.sending.take());
        }
        if let Some(rest) = self.give_up()
            && let Some(background) = self.bucket.client().running().deployment().background()
        {
            background.take(rest);
            self.bucket.client().finish_dropped();
        }
    }
}

impl<C: AnyClient> fmt::Debug for GridFsUploadStream<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bucket, id, length, .. } = self;
        f.debug_struct("GridFsUploadStream")
            .field("bucket", bucket)
            .field("id", id)
            .field("length", length)
            .finish_non_exhaustive()
    }
}
