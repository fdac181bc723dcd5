//! Change streams as iterators.

use std::fmt;
use std::future::poll_fn;

use bson::{RawDocument, RawDocumentBuf};
use serde::de::DeserializeOwned;

use super::Client;
use super::cursor::at_once;
use crate::client::{self, Advanced, ClientError, read};

/// The changes to a collection, a database or the whole cluster, in order.
///
/// As an [`Iterator`], it waits for changes, and yields them as values of type `T`: owned raw documents, or, after
/// [`typed`](Self::typed), any type that serde can deserialize from them. Between batches, other threads can use the
/// client. The iterator ends after an event that invalidates the stream, such as the dropping of its collection.
/// [`next_event`](Self::next_event) lends out raw events without copying them. [`next_if_any`](Self::next_if_any) does
/// not wait for an event.
///
/// Dropping a change stream closes its cursor on the server. The drop blocks until the cursor is closed, except with a
/// [`blocking::Client`](crate::blocking::Client), which closes it on its own thread.
///
/// # Failures
///
/// The stream resumes as [`ChangeStream`](crate::client::ChangeStream) does. To resume, it must find a server. With
/// `serverSelectionTryOnce=true`, the default, there is only one scan. If an election takes longer than this scan, the
/// stream ends. With `serverSelectionTryOnce=false`, the stream waits for up to `serverSelectionTimeoutMS`.
///
/// After [`ClientError::OnRuntime`], [`ClientError::EventLoop`] and [`ClientError::InUse`] the stream continues.
#[must_use = "a change stream fetches nothing before it is asked to"]
pub struct ChangeStream<T = RawDocumentBuf> {
    client: Client,
    stream: client::ChangeStream<T>,
}

impl<T> ChangeStream<T> {
    pub(super) fn new(client: Client, stream: client::ChangeStream<T>) -> Self {
        Self { client, stream }
    }

    /// Waits for the next event. Returns `None` at the end of the stream, after an event that invalidates it.
    ///
    /// # Errors
    ///
    /// The same as for [`client::ChangeStream::next`](crate::client::ChangeStream::next), and also
    /// [`ClientError::OnRuntime`], [`ClientError::EventLoop`] and [`ClientError::InUse`].
    pub fn next_event(&mut self) -> Result<Option<&RawDocument>, ClientError> {
        let advanced = self.advance()?;
        self.stream.document(advanced)
    }

    /// Returns the next event, or `None` if the server has none after waiting for a while (a second, or
    /// [`Watch::max_await_time`](crate::client::Watch::max_await_time)). In this case, [`is_over`](Self::is_over) tells
    /// whether more events can follow.
    ///
    /// # Errors
    ///
    /// The same as for [`next_event`](Self::next_event).
    pub fn next_if_any(&mut self) -> Result<Option<T>, ClientError>
    where
        T: DeserializeOwned,
    {
        let Self { client, stream } = self;
        if stream.has_event() {
            return at_once(stream.next_if_any());
        }
        client.drive_within(stream.timeout(), |limit| stream.next_if_any_within(limit))?
    }

    /// Advances to the next event, waiting if necessary.
    fn advance(&mut self) -> Advanced {
        let Self { client, stream } = self;
        if stream.has_event() {
            return at_once(poll_fn(|context| stream.poll_step(context)));
        }
        loop {
            // Each batch is a separate call, because a call keeps other threads from using the client.
            let waiting = &mut *stream;
            let stepped = client.drive_within(waiting.limit(), move |limit| {
                waiting.limit_event(Some(limit));
                poll_fn(move |context| waiting.poll_step(context))
            });
            match stepped {
                Ok(Ok(None)) if !stream.is_over() => {}
                Ok(advanced) => return advanced,
                Err(error) => {
                    stream.limit_event(None);
                    return Err(error);
                }
            }
        }
    }

    /// Returns the token that the stream would resume from: see
    /// [`client::ChangeStream::resume_token`](crate::client::ChangeStream::resume_token).
    #[must_use]
    pub fn resume_token(&self) -> Option<&RawDocument> {
        self.stream.resume_token()
    }

    /// Returns whether the stream has ended: no more events follow.
    #[must_use]
    #[doc(alias = "is_alive")]
    pub fn is_over(&self) -> bool {
        self.stream.is_over()
    }

    /// Returns the same change stream as an iterator of values of another type.
    #[doc(alias = "with_type")]
    pub fn typed<U>(mut self) -> ChangeStream<U> {
        ChangeStream { client: self.client.clone(), stream: self.stream.take_typed() }
    }
}

impl<T: DeserializeOwned> Iterator for ChangeStream<T> {
    type Item = Result<T, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_event().and_then(|event| event.map(read).transpose()).transpose()
    }
}

impl<T> Drop for ChangeStream<T> {
    fn drop(&mut self) {
        // If a call timed out, it may have left its cursor open.
        if self.stream.abandon() || self.client.client().deployment().has_kept() {
            self.client.finish_kept();
        }
    }
}

impl<T> fmt::Debug for ChangeStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}
