//! Change streams: the changes to a collection, a database or the whole cluster. Change streams survive server
//! failures.
//!
//! A [`ChangeStream`] reads from a cursor. When the cursor fails with an error that the specification calls resumable,
//! the stream opens a new cursor at its current position (Change Streams, "Resume Process").

mod event;
mod opening;

use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf};
use futures_core::Stream;
use serde::de::DeserializeOwned;

pub use self::event::{ChangeNamespace, ChangeStreamEvent, OperationType, TruncatedArray, UpdateDescription};
pub use self::opening::{Watch, WatchTarget};

use self::opening::{Opening, Plan, Start};
use super::cursor::{Advanced, Cursor, DocumentRange, read};
use super::error::ClientError;
use crate::endpoint::{CommandError, Limit, OperationError};
use crate::pool::error::CheckOutError;
use crate::pool::runtime::random_fraction;

/// CursorNotFound. The server does not know that the cursor belonged to a change stream.
const CURSOR_NOT_FOUND: i32 = 43;

/// The wire version of MongoDB 4.4, the first in which servers mark resumable errors with a label.
const HAS_LABEL: i32 = 9;

/// The codes of resumable errors on servers before 4.4 ("Resumable Error").
const RESUMABLE: [i32; 17] =
    [6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436, 63, 150, 13388, 234, 133];

/// The longest pause before the second of two resumptions without a batch between them. It doubles with each subsequent
/// resumption.
const BASE_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause before any resumption.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The changes to a collection, a database or the whole cluster, in order.
///
/// [`next`](Self::next) waits for an event, and returns it as a value of type `T`: an owned raw document, or, after
/// [`typed`](Self::typed), any type that serde can read from it. As a [`Stream`], the value yields the same events. The
/// stream ends after an event that invalidates it, such as the drop of its collection.
///
/// Dropping a change stream closes its cursor on the server, in the background.
///
/// # Failures
///
/// After a network error, an election, or another error that the specification calls resumable, the stream selects a
/// server again, and continues after the last event that it returned. The stream tries this once for each failure: if
/// no cursor can be opened, `next` returns the error and the stream ends. To continue anyway, watch again with
/// `resumeAfter` and [`resume_token`](Self::resume_token).
///
/// If two resumptions follow each other without an event or an empty batch between them, the stream waits before the
/// second resumption. The first wait is at most 50 milliseconds. Each subsequent wait may be twice as long, but never
/// longer than a second.
///
/// `timeoutMS` limits the duration of each call to [`next`](Self::next). For the [`Stream`], the limit applies to each
/// event, from its first poll. A timeout does not end the stream: the next call resumes it. If calls time out before
/// any event arrives, the server may be unable to read the oplog in that time: watch again with a longer limit.
///
/// # Storing the resume token
///
/// A service that stores [`resume_token`](Self::resume_token) after each call to [`next_if_any`](Self::next_if_any),
/// even after a call that returns `None`, always holds the newest token. A token becomes too old to resume from when
/// the oplog no longer reaches back to it. Tokens advance even without events.
#[must_use = "a change stream fetches nothing before it is asked to"]
pub struct ChangeStream<T = RawDocumentBuf> {
    plan: Arc<Plan>,
    state: State,
    /// The position to resume from.
    start: Start,
    /// The time limit of the call in progress.
    running: Option<Limit>,
    /// Whether the command in flight belongs to a cancelled call, and runs under that call's time limit.
    is_left_over: bool,
    /// The number of resumptions since the last batch was fetched.
    resumptions: u32,
    events: PhantomData<fn() -> T>,
}

enum State {
    Open(Box<Cursor>),
    /// A cursor is being opened.
    Resuming(Opening),
    /// The last call timed out. The next call resumes the stream.
    Interrupted,
    Over,
}

impl<T> ChangeStream<T> {
    fn new(plan: Arc<Plan>, start: Start, cursor: Cursor) -> Self {
        let mut this = Self {
            plan,
            state: State::Over,
            start,
            running: None,
            is_left_over: false,
            resumptions: 0,
            events: PhantomData,
        };
        this.opened(cursor);
        this
    }

    /// Waits for the next event, and reads it with serde. Returns `None` at the end of the stream, after an event that
    /// invalidates it.
    ///
    /// # Errors
    ///
    /// [`ClientError::Reply`] if serde cannot read the event. The next call then returns the event after it.
    /// [`ClientError`] after a failure from which the stream cannot resume, or if resuming fails: the stream then ends.
    /// If [`ClientError::is_timeout`] is true and the stream is not over, `next` can be called again.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the next call continues to wait for the same batch, or for the same cursor, with the full
    /// `timeoutMS`. If the time limit of the cancelled call expires before then, the stream resumes.
    pub async fn next(&mut self) -> Result<Option<T>, ClientError>
    where
        T: DeserializeOwned,
    {
        let limit = self.plan.timeout().start();
        let advanced = self.call(limit, Self::poll_event).await?;
        self.document(advanced)?.map(read).transpose()
    }

    /// Returns the next event, or `None` if the server has none after waiting for a while (a second, or
    /// [`Watch::max_await_time`]). [`is_over`](Self::is_over) says whether more events can follow. In all other
    /// respects, this method behaves like [`next`](Self::next).
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
        let limit = self.plan.timeout().start();
        self.next_if_any_within(limit).await
    }

    /// Like [`next_if_any`](Self::next_if_any), with a limit that has already started.
    pub(crate) async fn next_if_any_within(&mut self, limit: Limit) -> Result<Option<T>, ClientError>
    where
        T: DeserializeOwned,
    {
        let advanced = self.call(limit, Self::poll_advance).await?;
        self.document(advanced)?.map(read).transpose()
    }

    /// Runs `poll` as a call with its own time limit.
    async fn call(&mut self, limit: Limit, poll: fn(&mut Self, &mut Context<'_>) -> Poll<Advanced>) -> Advanced {
        let call = Call::begin(self);
        call.0.running = Some(limit);
        let advanced = poll_fn(|context| poll(call.0, context)).await;
        call.0.running = None;
        advanced
    }

    /// Returns the event at this range of the current batch.
    pub(crate) fn document(&self, advanced: Option<DocumentRange>) -> Result<Option<&RawDocument>, ClientError> {
        match (advanced, &self.state) {
            (Some(range), State::Open(cursor)) => cursor.document(range).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the token that the stream would resume from: a later change stream with this token as `resumeAfter`
    /// continues after the last event that this stream returned. `None` until the server has sent a token.
    #[must_use]
    pub fn resume_token(&self) -> Option<&RawDocument> {
        self.start.token.as_deref()
    }

    /// Returns whether the stream has ended and no more events can follow.
    #[must_use]
    #[doc(alias = "is_alive")]
    pub fn is_over(&self) -> bool {
        match &self.state {
            State::Open(cursor) => cursor.is_over(),
            State::Resuming(_) | State::Interrupted => false,
            State::Over => true,
        }
    }

    /// Returns the same change stream as a stream of values of another type.
    #[doc(alias = "with_type")]
    pub fn typed<U>(mut self) -> ChangeStream<U> {
        self.take_typed()
    }

    /// Converts the stream into a stream of another type, and ends the original.
    pub(crate) fn take_typed<U>(&mut self) -> ChangeStream<U> {
        ChangeStream {
            plan: self.plan.clone(),
            state: std::mem::replace(&mut self.state, State::Over),
            start: std::mem::take(&mut self.start),
            running: self.running,
            is_left_over: self.is_left_over,
            resumptions: self.resumptions,
            events: PhantomData,
        }
    }

    /// Returns the `timeoutMS` of each call.
    pub(crate) fn timeout(&self) -> Limit {
        self.plan.timeout()
    }

    /// Returns the time limit of the event that the stream is waiting for, or of the next event.
    pub(crate) fn limit(&self) -> Limit {
        self.running.unwrap_or(self.plan.timeout())
    }

    /// Sets the time limit of the event that the stream is waiting for. With `None`, the next event starts a new limit.
    pub(crate) fn limit_event(&mut self, limit: Option<Limit>) {
        self.running = limit;
    }

    /// Returns whether the next event is available without waiting.
    pub(crate) fn has_event(&self) -> bool {
        matches!(&self.state, State::Open(cursor) if cursor.has_document())
    }

    /// Ends the stream. Returns whether anything is left to do on the server.
    pub(crate) fn abandon(&mut self) -> bool {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Open(mut cursor) => cursor.abandon(),
            State::Resuming(opening) if self.plan.is_inherited() => {
                // The cursor's connection belongs to the parent process.
                std::mem::forget(opening);
                false
            }
            State::Resuming(opening) => {
                // A cursor that is being opened is closed as soon as its id is known.
                self.plan.close_later(opening);
                true
            }
            State::Interrupted | State::Over => false,
        }
    }

    /// Fetches at most one batch, and advances to the next event, if the server has one. The time limit applies to the
    /// next event, and keeps running across batches without events.
    pub(crate) fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Advanced> {
        let advanced = ready!(self.poll_advance(context));
        if !matches!(advanced, Ok(None)) || self.is_over() {
            self.running = None;
        }
        Poll::Ready(advanced)
    }

    /// Advances to the next event, waiting if necessary.
    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Advanced> {
        loop {
            match ready!(self.poll_step(context)) {
                // The server waits before it replies, so this is not a busy loop.
                Ok(None) if !self.is_over() => {}
                advanced => return Poll::Ready(advanced),
            }
        }
    }

    /// Advances to the next event, and returns its range in the batch.
    fn poll_advance(&mut self, context: &mut Context<'_>) -> Poll<Advanced> {
        let limit = *self.running.get_or_insert_with(|| self.plan.timeout().start());
        loop {
            match &mut self.state {
                State::Over => return Poll::Ready(Ok(None)),
                State::Interrupted => self.resume(limit, Duration::ZERO),
                State::Resuming(opening) => match ready!(opening.as_mut().poll(context)) {
                    Ok(cursor) => self.opened(cursor),
                    Err(error) if self.is_left_over && is_up(limit, &error) => self.resume(limit, Duration::ZERO),
                    Err(error) => {
                        self.state = if is_up(limit, &error) { State::Interrupted } else { State::Over };
                        return Poll::Ready(Err(error));
                    }
                },
                State::Open(cursor) => {
                    cursor.limit_iteration(limit);
                    let advanced = ready!(cursor.poll_advance(context));
                    let is_left_over = std::mem::take(&mut self.is_left_over);
                    match advanced {
                        Ok(Some(range)) => {
                            self.resumptions = 0;
                            return Poll::Ready(self.returns(range).map(|()| Some(range)));
                        }
                        Ok(None) => {
                            self.resumptions = 0;
                            self.start.reached(token_of(cursor));
                            if cursor.is_over() {
                                self.state = State::Over;
                            }
                            return Poll::Ready(Ok(None));
                        }
                        // The time limit of the cancelled call expired.
                        Err(error) if is_left_over && is_up(limit, &error) => self.resume(limit, Duration::ZERO),
                        Err(error) if is_up(limit, &error) => {
                            self.state = State::Interrupted;
                            return Poll::Ready(Err(error));
                        }
                        Err(error) if cursor.has_lost_server() || is_resumable(&error, cursor.max_wire_version()) => {
                            let pause = pause_before(self.resumptions, random_fraction());
                            self.resumptions = self.resumptions.saturating_add(1);
                            self.resume(limit, pause);
                        }
                        Err(error) => {
                            self.state = State::Over;
                            return Poll::Ready(Err(error));
                        }
                    }
                }
            }
        }
    }

    /// Takes over a cursor that has just been opened.
    fn opened(&mut self, cursor: Cursor) {
        if cursor.has_no_document() {
            self.start.reached(token_of(&cursor));
        }
        self.is_left_over = false;
        self.state = State::Open(Box::new(cursor));
    }

    /// Opens a new cursor, after a pause. The failed cursor closes itself on its server.
    fn resume(&mut self, limit: Limit, pause: Duration) {
        self.is_left_over = false;
        self.state = State::Resuming(self.plan.open(&self.start, limit, pause));
    }

    /// Records the token of the event at `range`, which is about to be returned ("Updating the Cached Resume Token").
    fn returns(&mut self, range: DocumentRange) -> Result<(), ClientError> {
        let State::Open(cursor) = &self.state else { return Ok(()) };
        let id = cursor.document(range)?.get_document("_id");
        let Ok(id) = id else {
            // After an event without a token, the stream would be unable to resume.
            self.state = State::Over;
            let reason = "cannot provide resume functionality when the resume token is missing";
            return Err(ClientError::unreadable("a change stream", reason));
        };
        self.start.returned(match token_of(cursor) {
            Some(newer) if cursor.has_no_document() => newer,
            _ => id,
        });
        Ok(())
    }
}

impl<T: DeserializeOwned> Stream for ChangeStream<T> {
    type Item = Result<T, ClientError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let advanced = ready!(this.poll_event(context));
        let event = advanced.and_then(|range| this.document(range));
        Poll::Ready(event.and_then(|event| event.map(read).transpose()).transpose())
    }
}

impl<T> Drop for ChangeStream<T> {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// A call to [`ChangeStream::next`], which may be cancelled.
struct Call<'s, T>(&'s mut ChangeStream<T>);

impl<'s, T> Call<'s, T> {
    /// Begins a call with its own time limit.
    fn begin(stream: &'s mut ChangeStream<T>) -> Self {
        let mut this = Self(stream);
        this.end_early();
        this
    }

    /// Ends a call that has not returned. The call's command stays in flight.
    fn end_early(&mut self) {
        self.0.is_left_over |= self.0.running.take().is_some();
    }
}

impl<T> Drop for Call<'_, T> {
    fn drop(&mut self) {
        self.end_early();
    }
}

impl<T> fmt::Debug for ChangeStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Open(_) => "open",
            State::Resuming(_) => "resuming",
            State::Interrupted => "interrupted",
            State::Over => "over",
        };
        f.debug_struct("ChangeStream")
            .field("target", &self.plan.target())
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

/// Returns the token to continue with after the current batch of a cursor.
fn token_of(cursor: &Cursor) -> Option<&RawDocument> {
    cursor.reply().get_document("cursor").ok()?.get_document("postBatchResumeToken").ok()
}

/// Returns the pause before the next resumption. `resumptions` is the number of resumptions since the last batch.
/// `random` is at least 0 and less than 1.
fn pause_before(resumptions: u32, random: f64) -> Duration {
    match resumptions {
        0 => Duration::ZERO,
        more => {
            let longest = BASE_PAUSE.saturating_mul(2_u32.saturating_pow(more - 1)).min(MAX_PAUSE);
            longest.mul_f64(0.5 + random / 2.0)
        }
    }
}

/// Returns whether a call's time limit was exceeded (Client Side Operations Timeout, "Change Streams").
fn is_up(limit: Limit, error: &ClientError) -> bool {
    let Some(left) = limit.left() else { return false };
    error.is_timeout()
        && match error.operation_error() {
            // If the call has time left, the limit that expired was `connectTimeoutMS` or one of the operating system's
            // limits. This counts as a network error, unless the operation's own limit left no time for another
            // attempt.
            Some(
                OperationError::CheckOut(CheckOutError::Establish(_))
                | OperationError::Command(CommandError::Network { .. }),
            ) => left.is_zero() || error.is_late(),
            _ => true,
        }
}

/// Returns whether a new cursor may succeed, after a `getMore` failed on a server with this wire version ("Resumable
/// Error").
fn is_resumable(error: &ClientError, max_wire_version: i32) -> bool {
    match error.command_error().and_then(CommandError::server_error) {
        Some(server) if server.code == CURSOR_NOT_FOUND => true,
        Some(_) if max_wire_version >= HAS_LABEL => error.has_label("ResumableChangeStreamError"),
        Some(server) => RESUMABLE.contains(&server.code),
        None => matches!(error, ClientError::Operation(_) | ClientError::Selection(_)),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use super::*;
    use crate::endpoint::Origin;

    #[test]
    fn network_error_ends_the_time_of_a_call_only_if_no_time_is_left_for_another_attempt() {
        let timed_out = |kind: io::ErrorKind| {
            let origin = Box::new(Origin {
                address: "h:27017".into(),
                connection_id: None,
                server_connection_id: None,
                generation: None,
                service_id: None,
            });
            let source = Arc::new(io::Error::from(kind));
            ClientError::from(OperationError::from(CommandError::Network { origin, source }))
        };
        let (lasts, is_over) = (Limit::For(Duration::from_secs(60)).start(), Limit::For(Duration::ZERO).start());
        let (of_system, reset) = (timed_out(io::ErrorKind::TimedOut), timed_out(io::ErrorKind::ConnectionReset));
        assert!(of_system.is_timeout() && !reset.is_timeout());
        assert!(!is_up(lasts, &of_system) && is_up(is_over, &of_system));
        assert!(!is_up(lasts, &reset) && !is_up(is_over, &reset));
        assert!(is_up(lasts, &reset.late()));
        assert!(!is_up(Limit::Unset, &of_system));
    }
}
