//! Uploads and downloads as `Write` and `Read`.

use std::future::poll_fn;
use std::io::{self, BufRead, Read, Write};
use std::task::{Context, Poll, Waker};

use bson::Bson;

use super::Client;
use crate::client::ClientError;
use crate::client::gridfs::{self, io_error};

/// A bucket of a [`single::Client`](Client): see [`gridfs::GridFsBucket`]. The methods return builders with a `run`
/// method.
pub type GridFsBucket = gridfs::GridFsBucket<Client>;

/// An upload of a [`single::Client`](Client): see [`gridfs::GridFsUploadStream`].
pub type GridFsUploadStream = gridfs::GridFsUploadStream<Client>;

/// A download of a [`single::Client`](Client): see [`gridfs::GridFsDownloadStream`].
pub type GridFsDownloadStream = gridfs::GridFsDownloadStream<Client>;

impl GridFsUploadStream {
    /// Blocks until a step of the upload completes.
    fn drive<T>(
        &mut self,
        mut poll: impl FnMut(&mut Self, &mut Context<'_>) -> Poll<Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let client = self.client().clone();
        client.drive_within(self.limit(), |_| poll_fn(|context| poll(self, context)))?
    }

    /// Sends the last chunk, stores the file's document, and returns the file's `_id`. If the upload is dropped without
    /// this call, its chunks are deleted.
    ///
    /// # Errors
    ///
    /// The [`ClientError`] from the first command that failed, [`ClientError::OnRuntime`], [`ClientError::EventLoop`]
    /// and [`ClientError::InUse`].
    pub fn finish(mut self) -> Result<Bson, ClientError> {
        self.drive(Self::poll_finish)?;
        Ok(self.id().clone())
    }

    /// Ends the upload without storing the file, and deletes the chunks that were sent.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the chunks could not be deleted, otherwise the errors from [`finish`](Self::finish).
    pub fn abort(self) -> Result<(), ClientError> {
        let client = self.client().clone();
        client.drive_within(self.limit(), |limit| self.abort_within(limit))?
    }
}

impl Write for GridFsUploadStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.has_room() {
            self.drive(Self::poll_room).map_err(io_error)?;
        }
        match self.poll_add(&mut Context::from_waker(Waker::noop()), bytes) {
            Poll::Ready(added) => added.map_err(io_error),
            Poll::Pending => unreachable!("BUG: an upload waits although its buffer has room"),
        }
    }

    /// Sends the buffered chunk if it is full. A partial chunk can be sent only at the end.
    fn flush(&mut self) -> io::Result<()> {
        if self.has_room() { Ok(()) } else { self.drive(Self::poll_room).map_err(io_error) }
    }
}

impl BufRead for GridFsDownloadStream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if !self.is_ready() {
            let client = self.client().clone();
            let ready = client.drive_within(self.limit(), |_| poll_fn(|context| self.poll_ready(context)));
            ready.and_then(|ready| ready).map_err(io_error)?;
        }
        self.unread().map_err(io_error)
    }

    fn consume(&mut self, count: usize) {
        self.consume_bytes(count);
    }
}

impl Read for GridFsDownloadStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(into)?;
        self.consume_bytes(count);
        Ok(count)
    }
}
