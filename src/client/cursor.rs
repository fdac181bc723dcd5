//! Cursors: the results of a query, batch by batch.

mod batch;
mod closing;
mod command;
mod kinds;
mod limits;
pub(super) mod open;
mod reading;
mod server_cursor;
mod time;

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf};
use futures_core::Stream;
use serde::de::DeserializeOwned;

pub(crate) use self::batch::{Advanced, DocumentRange};
use self::batch::{Batch, unreadable};
pub use self::kinds::{CursorType, TimeoutMode};
use self::server_cursor::ServerCursor;
use super::Client;
use super::closing_queue::QueueNumber;
use super::engine::GivenUp;
use super::error::ClientError;
use crate::pool::runtime::{Boxed, Process};

/// How long a cursor pauses after an empty batch, if the server does not wait for documents.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

/// The results of a query.
///
/// [`next`](Self::next) returns values of type `T`: owned raw documents, or, after [`typed`](Self::typed), any type
/// that serde can read from them. The cursor asks the server for the next batch when the current batch is used up.
/// [`next_document`](Self::next_document) returns references to raw documents, without copying them. As a [`Stream`],
/// the cursor yields the same values as `next`.
///
/// A cursor belongs to one server. Dropping the cursor closes it there in the background, except in a forked child. In
/// a transaction behind a load balancer, later operations and the commit wait until the cursor is closed, because they
/// share its connection. The cursor does not retry a failed fetch of a batch: it yields the error, and then finishes.
#[must_use = "a cursor fetches nothing before it is asked to"]
pub struct Cursor<T = RawDocumentBuf> {
    /// The cursor's id on the server; 0 once the server has closed it.
    id: i64,
    batch: Batch,
    /// `None` while a batch is being fetched.
    server_cursor: Option<ServerCursor>,
    fetching: Option<Fetching>,
    /// Closes the cursor while the server waits for documents.
    closer: Option<ServerCursor>,
    /// The id, on the server, of a failed cursor that must still be closed when this value is dropped; 0 if there is
    /// none. Behind a load balancer, the cursor keeps its connection until then (Load Balancers, "Behaviour With
    /// Cursors").
    unclosed: i64,
    /// The pause before the next batch is fetched.
    pause: Duration,
    /// Set for a cursor in a transaction behind a load balancer.
    queue_number: Option<QueueNumber>,
    client: Client,
    /// The process that opened the cursor.
    process: Process,
    max_wire_version: i32,
    /// Whether the cursor failed because there was no longer a connection to its server.
    has_lost_server: bool,
    documents: PhantomData<fn() -> T>,
}

type Fetching = Boxed<'static, (ServerCursor, Result<Batch, GivenUp>)>;

impl Cursor {
    /// Returns a cursor that has no documents yet.
    fn new(id: i64, server_cursor: ServerCursor, max_wire_version: i32) -> Self {
        Self {
            id,
            batch: Batch::default(),
            queue_number: server_cursor.queue_number.clone(),
            client: server_cursor.client.clone(),
            server_cursor: Some(server_cursor),
            fetching: None,
            closer: None,
            unclosed: 0,
            pause: Duration::ZERO,
            process: Process::this(),
            max_wire_version,
            has_lost_server: false,
            documents: PhantomData,
        }
    }
}

impl<T> Cursor<T> {
    /// Reads the next document with serde, or returns `None` at the end of the results. A tailable cursor waits for a
    /// document instead; [`next_if_any`](Self::next_if_any) does not.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the next batch could not be fetched, after which the cursor is finished.
    /// [`ClientError::Reply`] if serde cannot read the document, in which case the next call returns the following
    /// document.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the next call continues to wait for the same batch, under the time limit of the call that
    /// requested it.
    pub async fn next(&mut self) -> Result<Option<T>, ClientError>
    where
        T: DeserializeOwned,
    {
        self.next_document().await?.map(read).transpose()
    }

    /// Like [`next`](Self::next), but returns a reference to the raw document in the batch, without copying it.
    ///
    /// # Errors
    ///
    /// The same as for [`next`](Self::next).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`next`](Self::next).
    pub async fn next_document(&mut self) -> Result<Option<&RawDocument>, ClientError> {
        let advanced = poll_fn(|context| self.poll_document(context)).await;
        self.lend(advanced)
    }

    /// Like [`next`](Self::next), but returns `None` if there is no document at the moment. A tailable cursor fetches
    /// at most one empty batch before it returns `None`, and [`is_over`](Self::is_over) then says whether more
    /// documents can follow.
    ///
    /// # Errors
    ///
    /// The same as for [`next`](Self::next).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`next`](Self::next).
    pub async fn next_if_any(&mut self) -> Result<Option<T>, ClientError>
    where
        T: DeserializeOwned,
    {
        let advanced = poll_fn(|context| self.poll_advance(context)).await;
        self.lend(advanced)?.map(read).transpose()
    }

    /// Ends the iteration, and lends out the document that the cursor has advanced to.
    fn lend(&mut self, advanced: Advanced) -> Result<Option<&RawDocument>, ClientError> {
        self.end_iteration();
        match advanced? {
            Some(range) => self.batch.document(range).map(Some),
            None => Ok(None),
        }
    }

    /// Advances to the next document, and returns its range. Returns `None` if there is no document at the moment, or
    /// if there are no more results. Fetches at most one empty batch. The time limit of the iteration keeps running
    /// after `None`.
    pub(crate) async fn step(&mut self) -> Advanced {
        let advanced = poll_fn(|context| self.poll_advance(context)).await;
        if !matches!(advanced, Ok(None)) {
            self.end_iteration();
        }
        advanced
    }

    /// Returns whether there are no more documents, either here or on the server.
    #[must_use]
    #[doc(alias = "is_alive")]
    pub fn is_over(&self) -> bool {
        self.id == 0 && self.fetching.is_none() && self.batch.is_empty()
    }

    /// Returns whether the next document is available without waiting.
    pub(crate) fn has_document(&self) -> bool {
        self.fetching.is_none() && !self.batch.is_empty()
    }

    /// Returns the same cursor, which then yields values of another type.
    #[doc(alias = "with_type")]
    pub fn typed<U>(mut self) -> Cursor<U> {
        self.take_typed()
    }

    /// Converts the cursor into a cursor of another type, and ends the original.
    pub(crate) fn take_typed<U>(&mut self) -> Cursor<U> {
        Cursor {
            id: std::mem::take(&mut self.id),
            batch: std::mem::take(&mut self.batch),
            server_cursor: self.server_cursor.take(),
            fetching: self.fetching.take(),
            closer: self.closer.take(),
            unclosed: std::mem::take(&mut self.unclosed),
            pause: self.pause,
            queue_number: self.queue_number.take(),
            client: self.client.clone(),
            process: self.process,
            max_wire_version: self.max_wire_version,
            has_lost_server: self.has_lost_server,
            documents: PhantomData,
        }
    }

    /// Returns the document at this range of the current batch.
    pub(crate) fn document(&self, range: DocumentRange) -> Result<&RawDocument, ClientError> {
        self.batch.document(range)
    }

    /// Returns whether the current batch is used up.
    pub(super) fn has_no_document(&self) -> bool {
        self.batch.is_empty()
    }

    /// Returns the reply that contains the current batch.
    pub(super) fn reply(&self) -> &RawDocument {
        &self.batch.reply
    }

    /// Returns whether the cursor failed because there was no longer a connection to its server. The error that the
    /// cursor returned may come from an earlier attempt.
    pub(super) fn has_lost_server(&self) -> bool {
        self.has_lost_server
    }

    /// Returns the wire version that the server had when the cursor was opened.
    pub(super) fn max_wire_version(&self) -> i32 {
        self.max_wire_version
    }

    /// Advances to the next document, fetching batches as necessary, and returns its range in the batch.
    pub(super) fn poll_advance(&mut self, context: &mut Context<'_>) -> Poll<Advanced> {
        loop {
            if let Some(fetching) = &mut self.fetching {
                let (server_cursor, fetched) = ready!(fetching.as_mut().poll(context));
                self.fetching = None;
                self.closer = None;
                self.server_cursor = Some(server_cursor);
                match fetched {
                    Ok(batch) => {
                        self.id = batch.id;
                        self.batch = batch;
                        if self.id == 0 {
                            self.end();
                        }
                    }
                    Err(GivenUp { error, kind, .. }) => {
                        self.has_lost_server = kind.found_no_connection();
                        self.fail(&error);
                        return Poll::Ready(Err(error));
                    }
                }
                // A tailable cursor reports that there is no document, instead of asking the server repeatedly.
                if self.batch.is_empty() && self.is_tailable() {
                    return Poll::Ready(Ok(None));
                }
            }
            match self.batch.advance() {
                Ok(Some(range)) => return Poll::Ready(Ok(Some(range))),
                Ok(None) if self.id == 0 => return Poll::Ready(Ok(None)),
                Ok(None) => {}
                Err(error) => {
                    self.batch = Batch::default();
                    self.abandon();
                    return Poll::Ready(Err(error));
                }
            }
            let Some(server_cursor) = self.server_cursor.take() else { return Poll::Ready(Ok(None)) };
            self.closer = server_cursor.closer();
            self.fetching = Some(server_cursor.fetch(self.id, std::mem::take(&mut self.pause)));
        }
    }

    /// Advances to the next document, waiting for it at the end of a tailable cursor.
    fn poll_document(&mut self, context: &mut Context<'_>) -> Poll<Advanced> {
        match ready!(self.poll_advance(context)) {
            Ok(None) if self.id != 0 => {
                self.pause = if self.awaits_data() { Duration::ZERO } else { PAUSE };
                context.waker().wake_by_ref();
                Poll::Pending
            }
            advanced => Poll::Ready(advanced),
        }
    }

    /// Returns whether the server waits a while for new documents before it replies that there are none.
    pub(crate) fn awaits_data(&self) -> bool {
        self.server_cursor.as_ref().is_some_and(|server_cursor| server_cursor.awaits_data)
    }

    fn is_tailable(&self) -> bool {
        self.server_cursor.as_ref().is_some_and(|server_cursor| server_cursor.is_tailable)
    }

    /// Ends the cursor after an error. A cursor that the server closed, or that was lost with its connection, does not
    /// need to be closed. A cursor that is pinned to a connection keeps the connection, and is closed when this value
    /// is dropped.
    fn fail(&mut self, error: &ClientError) {
        self.batch = Batch::default();
        let Some(server_cursor) = &self.server_cursor else { return };
        let may_be_open = server_cursor.may_be_open_after(error);
        if server_cursor.pinned.is_some() {
            let id = std::mem::take(&mut self.id);
            self.unclosed = if may_be_open { id } else { 0 };
        } else if may_be_open {
            self.abandon();
        } else {
            self.id = 0;
            self.end();
        }
    }

    /// Gives back the connection and the session, which a finished cursor no longer needs.
    fn end(&mut self) {
        if let Some(server_cursor) = &mut self.server_cursor {
            server_cursor.end();
        }
    }
}

impl<T: DeserializeOwned> Stream for Cursor<T> {
    type Item = Result<T, ClientError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let advanced = ready!(this.poll_document(context));
        Poll::Ready(this.lend(advanced).and_then(|document| document.map(read).transpose()).transpose())
    }
}

impl<T> fmt::Debug for Cursor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Reads a document as a value of the application's type.
pub(crate) fn read<T: DeserializeOwned>(document: &RawDocument) -> Result<T, ClientError> {
    super::typed::decode(document).map_err(unreadable)
}

/// Reads a document as one of the library's own types, without serde.
#[cfg(feature = "gridfs")]
pub(crate) fn convert<T, E: fmt::Display>(
    document: &RawDocument,
    of: impl FnOnce(bson::Document) -> Result<T, E>,
) -> Result<T, ClientError> {
    super::typed::convert(document, of).map_err(unreadable)
}
