//! Cursors as iterators.

use std::fmt;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf};
use serde::de::{Deserialize, DeserializeOwned};

use super::Client;
use crate::client::{self, Advanced, ClientError, PAUSE, read};
use crate::endpoint::Limit;

/// The results of a query.
///
/// As an [`Iterator`], it yields values of type `T`: owned raw documents, or, after [`typed`](Self::typed), any type
/// that serde can deserialize from them. [`next_document`](Self::next_document) lends out raw documents without copying
/// them. Both fetch the next batch from the server when the current batch is exhausted. At the end of a tailable
/// cursor, they wait for a document. Between batches, other threads can use the client.
/// [`next_if_any`](Self::next_if_any) does not wait for a document.
///
/// All batches come from the server that opened the cursor. Dropping the cursor before it has ended closes it on the
/// server. The drop blocks until the cursor is closed, except with a [`blocking::Client`](crate::blocking::Client),
/// which closes it on its own thread. The cursor does not retry a failed fetch of a batch: it yields the error, and
/// then ends.
#[must_use = "a cursor fetches nothing before it is asked to"]
pub struct Cursor<T = RawDocumentBuf> {
    client: Client,
    cursor: client::Cursor<T>,
}

impl<T> Cursor<T> {
    pub(super) fn new(client: Client, cursor: client::Cursor<T>) -> Self {
        Self { client, cursor }
    }

    /// Returns the next document, or `None` at the end of the results.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the next batch could not be fetched. The cursor has then ended. After
    /// [`ClientError::OnRuntime`] and [`ClientError::InUse`], the cursor continues.
    pub fn next_document(&mut self) -> Result<Option<&RawDocument>, ClientError> {
        match self.step()? {
            Some(range) => self.cursor.document(range).map(Some),
            None => Ok(None),
        }
    }

    /// Advances to the next document, which [`current`](Self::current) then reads. Returns false at the end of the
    /// results.
    ///
    /// # Errors
    ///
    /// The same as for [`next_document`](Self::next_document).
    pub fn advance(&mut self) -> Result<bool, ClientError> {
        Ok(self.step()?.is_some())
    }

    /// Reads the document that the cursor last returned. Its strings can be borrowed from the batch.
    ///
    /// # Errors
    ///
    /// [`ClientError::Reply`] if serde cannot read the document, or if there is none: the cursor has not advanced, or
    /// has ended.
    #[doc(alias = "deserialize_current")]
    pub fn current<'b, U: Deserialize<'b>>(&'b self) -> Result<U, ClientError> {
        self.cursor.current()
    }

    /// Returns the next document, or `None` if there is none at the moment. In this case, a tailable cursor has fetched
    /// one batch, and [`is_over`](Self::is_over) says whether there can be more.
    ///
    /// # Errors
    ///
    /// The same as for [`next_document`](Self::next_document).
    pub fn next_if_any(&mut self) -> Result<Option<T>, ClientError>
    where
        T: DeserializeOwned,
    {
        let Self { client, cursor } = self;
        if cursor.has_document() {
            return at_once(cursor.next_if_any());
        }
        client.drive_within(cursor.limit(), move |limit| {
            cursor.limit_iteration(limit);
            cursor.next_if_any()
        })?
    }

    /// Advances to the next document, waiting for it at the end of a tailable cursor.
    fn step(&mut self) -> Advanced {
        let Self { client, cursor } = self;
        if cursor.has_document() {
            return at_once(cursor.step());
        }
        loop {
            // Each batch is a separate call, because a call keeps other threads from using the client.
            let waiting = &mut *cursor;
            let stepped = client.drive_within(waiting.limit(), move |limit| {
                waiting.limit_iteration(limit);
                waiting.step()
            });
            match stepped {
                Ok(Ok(None)) if !cursor.is_over() => {}
                Ok(advanced) => return advanced,
                Err(error) => {
                    cursor.end_iteration();
                    return Err(error);
                }
            }
            // A server that awaits data has already waited.
            if !cursor.awaits_data() {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Returns whether there are no more documents, either here or on the server.
    #[must_use]
    #[doc(alias = "is_alive")]
    pub fn is_over(&self) -> bool {
        self.cursor.is_over()
    }

    /// Closes the cursor on the server, as dropping it does, but with a different `timeoutMS`. Zero means no limit, not
    /// even the limit that applies to a drop. Errors are ignored: the server closes an idle cursor after ten minutes.
    pub fn close_within(mut self, timeout: Duration) {
        let cursor = self.cursor.take_typed::<T>();
        // If this call cannot close the cursor, the next call closes it.
        let _ = self.client.drive_within(Limit::of(timeout), |limit| cursor.close_by(limit));
    }

    /// Returns the same cursor as an iterator of values of another type.
    #[doc(alias = "with_type")]
    pub fn typed<U>(mut self) -> Cursor<U> {
        Cursor { client: self.client.clone(), cursor: self.cursor.take_typed() }
    }
}

impl<T: DeserializeOwned> Iterator for Cursor<T> {
    type Item = Result<T, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_document().and_then(|document| document.map(read).transpose()).transpose()
    }
}

/// Polls a future that never waits, and returns its output. Such a future needs neither the lock nor the runtime.
pub(super) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("BUG: a cursor waits for a document that it has"),
    }
}

impl<T> Drop for Cursor<T> {
    fn drop(&mut self) {
        // If a call timed out, it may have left its cursor open.
        if self.cursor.abandon() || self.client.client().deployment().has_kept() {
            self.client.finish_kept();
        }
    }
}

impl<T> fmt::Debug for Cursor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cursor.fmt(f)
    }
}
