//! Cursors: the results of a query, batch by batch.

mod batch;
mod closing;
mod command;
mod kinds;
mod reading;
mod server_cursor;
mod timed;

use crate::pool::core::Purpose;
use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bson::raw::cstr;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use futures_core::Stream;
use serde::de::DeserializeOwned;

pub(crate) use self::batch::{Advanced, DocumentRange};
use self::batch::{Batch, CursorReply, unreadable};
pub use self::kinds::{CursorType, TimeoutMode};
use self::server_cursor::{CursorTime, ServerCursor};
use super::Client;
use super::closing_queue::QueueNumber;
use super::engine::{GivenUp, Reached, UnmetConcern};
use super::error::{ClientError, FailedOperation};
use super::in_session::{InSession, has_sessions};
use super::operation::{Kind, Operation};
use super::run::Answer;
use crate::client::session::{name, writes_its_result};
use crate::endpoint::Limit;
use crate::endpoint::options::{InvalidOption, ServerAddress};
use crate::pool::runtime::Process;

/// How long a stream pauses between two batches without documents, if the server does not wait for documents.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);

/// The wire version of MongoDB 4.4, from which a `getMore` takes a comment (CRUD, "find").
const TAKES_COMMENT: i32 = 9;

impl Client {
    /// Prepares a query whose results are read through a cursor: `find`, `aggregate`, `listCollections`, `listIndexes`
    /// and others.
    ///
    /// Await the value to run the command.
    ///
    /// ```no_run
    /// # async fn example(client: wharf::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use bson::rawdoc;
    /// use wharf::Operation;
    ///
    /// let find = rawdoc! { "find": "orders", "filter": { "paid": false }, "batchSize": 100 };
    /// let mut orders = client.cursor(Operation::read("shop", &find)).await?;
    /// while let Some(order) = orders.next().await? {
    ///     println!("{}", order.get_i32("_id")?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn cursor<'c>(&self, operation: impl Into<Operation<'c>>) -> OpenCursor<'c> {
        self.cursor_at(operation.into(), Location::caller())
    }

    /// Prepares a query for the caller at `site`.
    pub(super) fn cursor_at<'c>(&self, operation: Operation<'c>, site: &'static Location<'static>) -> OpenCursor<'c> {
        OpenCursor {
            client: self.clone(),
            operation,
            batch_size: None,
            max_await_time: None,
            cursor_type: None,
            timeout_mode: None,
            comment: None,
            started: None,
            site,
        }
    }
}

/// A query that opens a [`Cursor`] when it is awaited.
#[derive(Debug)]
#[must_use = "the query is sent when it is awaited"]
pub struct OpenCursor<'c> {
    client: Client,
    operation: Operation<'c>,
    batch_size: Option<i32>,
    max_await_time: Option<Duration>,
    cursor_type: Option<CursorType>,
    timeout_mode: Option<TimeoutMode>,
    /// A document with the field `comment` of each `getMore`, which replaces the command's comment.
    comment: Option<RawDocumentBuf>,
    /// The time limit of the query, if it is already running.
    started: Option<Limit>,
    site: &'static Location<'static>,
}

impl OpenCursor<'_> {
    /// Sets the number of documents in each further batch. By default it is the `batchSize` of the command's document.
    pub fn batch_size(mut self, documents: i32) -> Self {
        self.batch_size = Some(documents);
        self
    }

    /// Sets how long the server waits for new documents (`maxTimeMS` of each `getMore`). Must be less than `timeoutMS`.
    /// Applies only to tailable cursors that await data, and to change streams. Any other `find` ignores it.
    pub fn max_await_time(mut self, limit: Duration) -> Self {
        self.max_await_time = Some(limit);
        self
    }

    /// Sets the type of the cursor that the command opens. By default the command's fields `tailable` and `awaitData`
    /// decide, or the pipeline of a change stream.
    pub fn cursor_type(mut self, cursor_type: CursorType) -> Self {
        self.cursor_type = Some(cursor_type);
        self
    }

    /// Sets what `timeoutMS` limits. It requires a `timeoutMS`, in the operation or in the options.
    pub fn timeout_mode(mut self, mode: TimeoutMode) -> Self {
        self.timeout_mode = Some(mode);
        self
    }

    /// Sets the comment of each `getMore`: a document with the field `comment`, or an empty document for no comment.
    /// The default is the command's comment.
    pub(super) fn comment(mut self, comment: RawDocumentBuf) -> Self {
        self.comment = Some(comment);
        self
    }

    /// Returns the type of the cursor, how long the server waits for documents, and the time limits.
    fn check(&self) -> Result<(CursorType, Option<Duration>, CursorTime), ClientError> {
        let body = self.operation.command.body();
        // The client does not inspect a generic command.
        let is_find = self.operation.kind != Kind::Command && name(body) == Some("find");
        let cursor_type = match (self.cursor_type, CursorType::of(body)) {
            (Some(cursor_type), _) => cursor_type,
            // The option implies this type, except for a `find`, whose type is known.
            (None, CursorType::NonTailable) if self.max_await_time.is_some() && !is_find => CursorType::TailableAwait,
            (None, cursor_type) => cursor_type,
        };
        let timeout = self.client.timeout_of(self.operation.limiting_session(), &self.operation.command)?;
        if self.timeout_mode.is_some() && !timeout.is_set() {
            return Err(InvalidOption::missing("timeoutMS", "by timeoutMode").into());
        }
        let mode = match (self.timeout_mode, cursor_type) {
            (Some(TimeoutMode::CursorLifetime), CursorType::Tailable | CursorType::TailableAwait) => {
                return Err(
                    InvalidOption::new("timeoutMode", "iteration for a tailable cursor", "cursorLifetime").into()
                );
            }
            (Some(TimeoutMode::Iteration), _) if writes_its_result(body) => {
                let problem = "must not be iteration for an aggregate that writes its results ($out, $merge)";
                return Err(InvalidOption::because("timeoutMode", problem).into());
            }
            (Some(mode), _) => mode,
            (None, CursorType::NonTailable) => TimeoutMode::CursorLifetime,
            (None, CursorType::Tailable | CursorType::TailableAwait) => TimeoutMode::Iteration,
        };
        if let (Some(longest), Limit::For(limit) | Limit::Until { limit, .. }) = (self.max_await_time, timeout)
            && longest >= limit
        {
            let must = format!("less than timeoutMS, which is {} ms", limit.as_millis());
            return Err(InvalidOption::new("maxAwaitTimeMS", must, format!("{} ms", longest.as_millis())).into());
        }
        // For a generic command, the application knows which options its `getMore` takes (Run Command,
        // "runCursorCommand").
        let takes_time = cursor_type == CursorType::TailableAwait || self.operation.kind == Kind::Command;
        let max_await_time = self.max_await_time.filter(|_| takes_time);
        Ok((cursor_type, max_await_time, CursorTime { timeout, mode, running: None }))
    }

    async fn open(self) -> Result<Cursor, ClientError> {
        match self.opened().await? {
            Some(Opened { cursor, unmet: None, .. }) => Ok(cursor),
            Some(Opened { cursor, server, unmet: Some(unmet) }) => {
                Err(FailedOperation::unmet_concern(&server, cursor.reply().to_owned(), unmet).into())
            }
            None => Err(unreadable("a write without acknowledgement has no cursor".to_owned())),
        }
    }

    /// Sends the command. Returns `None` for a write that the server does not acknowledge.
    pub(super) async fn opened(self) -> Result<Option<Opened>, ClientError> {
        let (cursor_type, max_await_time, mut time) = self.check()?;
        let Self { client, operation, batch_size, comment, started, site, .. } = self;
        let body = operation.command.body();
        let (batch_size, comment) = (batch_size.or(batch_size_of(body)), comment.or_else(|| comment_of(body)));
        let database = operation.command.database().to_owned();
        let limit = started.unwrap_or_else(|| time.timeout.start());
        let is_beside_transaction = operation.is_beside_transaction;
        // The server would apply the time limit of the query to further batches as well.
        let is_told = time.mode == TimeoutMode::CursorLifetime || cursor_type == CursorType::TailableAwait;
        let command = operation.command.within(limit);
        let command = if is_told { command } else { command.without_max_time() };
        let answer = client.answer(Operation { command, ..operation }, site).await?;
        let Answer { reached, session, unmet, is_acknowledged } = answer;
        let Reached { reply, connection, server } = reached;
        if !is_acknowledged {
            client.give_back(session, connection.as_ref());
            return Ok(None);
        }
        // A cursor in a transaction does not belong to a change stream.
        let max_wire_version = connection.as_ref().map_or(0, |connection| connection.hello().max_wire_version);
        // If there is no connection here, it is pinned to the transaction. The deployment is then load-balanced, and
        // its servers are recent enough.
        let takes_comment = connection.is_none() || max_wire_version >= TAKES_COMMENT;
        let has_sessions = connection.as_ref().is_none_or(has_sessions);
        if time.mode == TimeoutMode::CursorLifetime {
            time.running = Some(limit);
        }
        let (CursorReply { id, collection }, named) = CursorReply::read(&reply, body);
        let batch = named.and_then(|()| Batch::read(reply, "firstBatch"));
        let session = match session {
            // The change stream's own comment, which was not sent with the command.
            InSession::Explicit(explicit) if explicit.is_implicit() && !has_sessions => InSession::Never,
            session => session,
        };
        let (opened_in, queue_number) =
            if is_beside_transaction { (None, None) } else { transaction_of(&client, &session) };
        let mut server_cursor = ServerCursor {
            server: server.server().clone(),
            database,
            collection,
            batch_size,
            max_await_time,
            comment: comment.filter(|_| takes_comment),
            is_tailable: cursor_type != CursorType::NonTailable,
            awaits_data: cursor_type == CursorType::TailableAwait,
            time,
            site,
            pinned: None,
            session,
            opened_in,
            queue_number: queue_number.clone(),
            client,
        };
        if id == 0 {
            server_cursor.end_on(connection.as_ref());
        } else if let Some(mut connection) = connection
            && connection.service_id().is_some()
        {
            // Behind a load balancer, the cursor can be reached only through this connection (Load Balancers,
            // "Connection Pinning").
            connection.pin_to(Purpose::Cursor);
            server_cursor.pinned = Some(connection);
        }
        let client = server_cursor.client.clone();
        let mut cursor = Cursor {
            id,
            batch: Batch::default(),
            server_cursor: Some(server_cursor),
            fetching: None,
            closer: None,
            unclosed: 0,
            pause: Duration::ZERO,
            queue_number,
            client,
            process: Process::this(),
            max_wire_version,
            has_lost_server: false,
            documents: PhantomData,
        };
        // If the batch cannot be read, dropping the cursor closes it.
        cursor.batch = batch?;
        Ok(Some(Opened { cursor, server: server.address.clone(), unmet }))
    }
}

/// A cursor, and further results of the command that opened it.
pub(super) struct Opened {
    pub(super) cursor: Cursor,
    pub(super) server: ServerAddress,
    /// Set if the command is a write whose write concern was not met.
    pub(super) unmet: Option<UnmetConcern>,
}

impl<'c> IntoFuture for OpenCursor<'c> {
    type Output = Result<Cursor, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    /// Sends the query.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidOption`] for options that exclude each other, otherwise those of [`Client::run`].
    ///
    /// # Cancel safety
    ///
    /// As for [`Client::run`]. A cursor that the server opened in the meantime is closed when the connection is
    /// [drained](crate::Options::drain_timeout). If the connection is closed instead, the server closes the cursor
    /// after ten minutes.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

/// The results of a query.
///
/// [`next`](Self::next) returns values of type `T`: owned raw documents, or, after [`typed`](Self::typed), any type
/// that serde can read from them. It asks the server for the next batch when the current one is used up.
/// [`next_document`](Self::next_document) lends raw documents out without copying them. As a [`Stream`], the cursor
/// yields the same values as `next`.
///
/// A cursor stays on its server. Dropping the cursor closes it there in the background, except in a forked child. In a
/// transaction behind a load balancer, further operations and the commit wait until the cursor is closed, because they
/// share its connection. The cursor does not retry a failed fetch of a batch: it yields the error, and then ends.
#[must_use = "a cursor fetches nothing before it is asked to"]
pub struct Cursor<T = RawDocumentBuf> {
    /// The server's id of the cursor; 0 once it has ended there.
    id: i64,
    batch: Batch,
    /// `None` while a batch is being fetched.
    server_cursor: Option<ServerCursor>,
    fetching: Option<Fetching>,
    /// Closes the cursor while the server waits for documents.
    closer: Option<ServerCursor>,
    /// The server's id of a cursor that failed and that is closed when this value drops; 0 if there is none. Behind a
    /// load balancer, the cursor keeps its connection until then (Load Balancers, "Behaviour With Cursors").
    unclosed: i64,
    /// The pause before the next batch is fetched.
    pause: Duration,
    /// Set for a cursor of a transaction behind a load balancer.
    queue_number: Option<QueueNumber>,
    client: Client,
    /// The process that opened the cursor.
    process: Process,
    max_wire_version: i32,
    /// Whether the cursor failed because there was no longer a connection to its server.
    has_lost_server: bool,
    documents: PhantomData<fn() -> T>,
}

type Fetching = Pin<Box<dyn Future<Output = (ServerCursor, Result<Batch, GivenUp>)> + Send>>;

impl<T> Cursor<T> {
    /// Returns the next document as serde reads it, or `None` at the end of the results. A tailable cursor waits for a
    /// document instead; [`next_if_any`](Self::next_if_any) does not.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the next batch could not be fetched. The cursor has then ended. [`ClientError::Reply`] if serde cannot
    /// read the document. The next call then returns the document after it.
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

    /// Lends out the next document of the batch, without copying it. Otherwise like [`next`](Self::next).
    ///
    /// # Errors
    ///
    /// As for [`next`](Self::next).
    ///
    /// # Cancel safety
    ///
    /// As for [`next`](Self::next).
    pub async fn next_document(&mut self) -> Result<Option<&RawDocument>, ClientError> {
        let advanced = poll_fn(|context| self.poll_document(context)).await;
        self.lend(advanced)
    }

    /// Returns the next document, or `None` if there is none at the moment. In this case, a tailable cursor has fetched
    /// one batch, and [`is_over`](Self::is_over) says whether there can be more. Otherwise like [`next`](Self::next).
    ///
    /// # Errors
    ///
    /// As for [`next`](Self::next).
    ///
    /// # Cancel safety
    ///
    /// As for [`next`](Self::next).
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

    /// Advances to the next document, and returns its range, or `None` if there is no document at the moment, or no
    /// more at all. Fetches at most one empty batch. The time limit of the iteration keeps running after `None`.
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

    /// Returns the same cursor as a stream of values of another type.
    #[doc(alias = "with_type")]
    pub fn typed<U: DeserializeOwned>(mut self) -> Cursor<U> {
        self.take_typed()
    }

    /// Moves the cursor into one of another type, and ends the original.
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

    /// Returns the document at a range of the current batch.
    pub(crate) fn document(&self, range: DocumentRange) -> Result<&RawDocument, ClientError> {
        self.batch.document(range)
    }

    /// Returns whether the current batch is used up.
    pub(super) fn has_no_document(&self) -> bool {
        self.batch.is_empty()
    }

    /// Returns the reply with the current batch.
    pub(super) fn reply(&self) -> &RawDocument {
        &self.batch.reply
    }

    /// Returns whether the cursor failed because there was no longer a connection to its server. Its error may come
    /// from an earlier attempt.
    pub(super) fn has_lost_server(&self) -> bool {
        self.has_lost_server
    }

    /// Returns the wire version of the server when the cursor was opened.
    pub(super) fn max_wire_version(&self) -> i32 {
        self.max_wire_version
    }

    /// Sets the time limit of the iteration in progress.
    pub(crate) fn limit_iteration(&mut self, limit: Limit) {
        if let Some(server_cursor) = &mut self.server_cursor {
            server_cursor.time.running = Some(limit);
        }
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
                // A tailable cursor reports that there is no document, instead of asking the server again and again.
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
            self.fetching = Some(Box::pin(server_cursor.fetch(self.id, std::mem::take(&mut self.pause))));
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

    /// Ends the cursor after an error. A cursor that the server ended, or that was lost with its connection, needs no
    /// closing. A cursor with its own connection keeps it, and is closed when the value drops.
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

    /// Gives the next iteration a new limit, if limits apply to iterations.
    pub(crate) fn end_iteration(&mut self) {
        if let Some(server_cursor) = &mut self.server_cursor {
            server_cursor.time.end_iteration();
        }
    }

    /// Gives back the resources of a cursor that has ended.
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

/// Returns the number of the session's transaction, and, behind a load balancer, a number for its queue.
fn transaction_of(client: &Client, session: &InSession) -> (Option<i64>, Option<QueueNumber>) {
    let InSession::Explicit(explicit) = session else { return (None, None) };
    let opened_in = explicit.lock().open_transaction();
    let has_queue = opened_in.is_some() && client.options().is_load_balanced();
    (opened_in, has_queue.then(|| explicit.closing().number()))
}

/// Reads a document as a value of the application's type.
pub(crate) fn read<T: DeserializeOwned>(document: &RawDocument) -> Result<T, ClientError> {
    super::typed::decode(document).map_err(unreadable)
}

/// Returns the batch size that a query asks for, in `batchSize` or in `cursor.batchSize`.
fn batch_size_of(body: &RawDocument) -> Option<i32> {
    let of = |document: &RawDocument| match document.get("batchSize") {
        Ok(Some(RawBsonRef::Int32(size))) => Some(size),
        Ok(Some(RawBsonRef::Int64(size))) => i32::try_from(size).ok(),
        Ok(Some(RawBsonRef::Double(size))) => Some(size as i32),
        _ => None,
    };
    of(body).or_else(|| of(body.get_document("cursor").ok()?))
}

/// Returns the query's `comment`, which each `getMore` repeats. There is none for `listCollections`, because the server
/// itself passes its comment on (Enumerating Collections, "listCollections Database Command").
fn comment_of(body: &RawDocument) -> Option<RawDocumentBuf> {
    if name(body) == Some("listCollections") {
        return None;
    }
    let comment = body.get("comment").ok()??;
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("comment"), comment);
    Some(document)
}
