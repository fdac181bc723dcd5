//! Cursors: the results of a query, batch by batch.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bson::raw::cstr;
use bson::spec::ElementType;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use futures_core::Stream;
use serde::de::DeserializeOwned;

use super::Client;
use super::error::{ClientError, FailedOperation};
use super::in_session::{InSession, Pinned};
use super::operation::{Kind, Operation};
use super::run::{Answer, elements};
use crate::deployment::{Background, Selected, Server};
use crate::endpoint::{Command, CommandError, Endpoint, Limit, OperationError};
use crate::pool::Purpose;
use crate::runtime::Connection;
use crate::session::{Fault, FaultKind};

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
        OpenCursor { client: self.clone(), operation, batch_size: None, max_await_time: None, site }
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
    site: &'static Location<'static>,
}

impl OpenCursor<'_> {
    /// Sets the number of documents in each further batch. By default it is the `batchSize` of the command's document.
    pub fn batch_size(mut self, documents: i32) -> Self {
        self.batch_size = Some(documents);
        self
    }

    /// Sets how long the server waits for new documents (`maxTimeMS` of each `getMore`). Only for tailable cursors that
    /// await data, and change streams.
    pub fn max_await_time(mut self, limit: Duration) -> Self {
        self.max_await_time = Some(limit);
        self
    }
}

impl<'c> IntoFuture for OpenCursor<'c> {
    type Output = Result<Cursor, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { client, operation, batch_size, max_await_time, site } = self;
            let body = operation.command.body();
            let (batch_size, comment) = (batch_size.or(batch_size_of(body)), comment_of(body));
            let is_tailable = max_await_time.is_some() || matches!(body.get_bool("tailable"), Ok(true));
            let limit = operation.command.limit(client.options());
            let database = operation.command.database().to_owned();
            let operation = Operation { command: operation.command.within(limit), ..operation };
            let Answer { reply, connection, server, session, unmet } = client.answer(operation, site).await?;
            if let Some(labels) = unmet {
                client.give_back_of(session, connection.as_ref());
                return Err(FailedOperation::unmet_concern(reply, labels).into());
            }
            let batch = Batch::read(reply, "firstBatch")?;
            let mut query = Query {
                server: server.server().clone(),
                database,
                collection: batch.collection()?,
                batch_size,
                max_await_time,
                comment,
                is_tailable,
                limit,
                site,
                pinned: None,
                session,
                client,
            };
            if batch.id == 0 {
                query.client.give_back_of(std::mem::replace(&mut query.session, InSession::Never), connection.as_ref());
            } else if let Some(mut connection) = connection
                && connection.service_id().is_some()
            {
                // Behind a load balancer, only this connection leads to the cursor (Load Balancers, "Connection Pinning").
                connection.pin_to(Purpose::Cursor);
                query.pinned = Some(connection);
            }
            let background = query.client.deployment().background();
            Ok(Cursor { id: batch.id, batch, query: Some(query), fetching: None, background, documents: PhantomData })
        })
    }
}

/// The results of a query.
///
/// [`next`](Self::next) lends out the raw documents of the present batch without copying them, and asks the server for
/// the next batch when there are no more. As a [`Stream`] it yields values of type `T`: owned raw documents, or after
/// [`typed`](Self::typed) whatever serde reads from them.
///
/// A cursor stays on its server. Dropping it closes it on the server, in the background. A batch that could not be
/// fetched is not fetched again: the cursor yields the error, and then ends.
#[must_use = "a cursor fetches nothing before it is asked to"]
pub struct Cursor<T = RawDocumentBuf> {
    /// The server's name for the cursor; 0 when it has ended there.
    id: i64,
    batch: Batch,
    /// `None` while a batch is fetched.
    query: Option<Query>,
    fetching: Option<Fetching>,
    /// What closes the cursor.
    background: Option<Background>,
    documents: PhantomData<fn() -> T>,
}

type Fetching = Pin<Box<dyn Future<Output = (Query, Result<Batch, ClientError>)> + Send>>;

/// What a cursor needs for its further commands.
struct Query {
    client: Client,
    server: Arc<Server>,
    database: String,
    collection: String,
    batch_size: Option<i32>,
    max_await_time: Option<Duration>,
    comment: Option<RawDocumentBuf>,
    is_tailable: bool,
    limit: Limit,
    site: &'static Location<'static>,
    /// Behind a load balancer, the connection that leads to the cursor, unless the transaction has it.
    pinned: Option<Connection<Endpoint>>,
    session: InSession,
}

impl<T> Cursor<T> {
    /// Returns the next document, or `None` at the end of the results. A tailable cursor also returns `None` when there
    /// is no document at present; [`is_over`](Self::is_over) tells the difference.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the next batch could not be fetched. The cursor has then ended.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the next call continues to wait for the same batch.
    pub async fn next(&mut self) -> Result<Option<&RawDocument>, ClientError> {
        // In two steps, because the document borrows the cursor.
        match poll_fn(|context| self.poll_advance(context)).await? {
            Some(place) => self.batch.document(place).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the next document as serde reads it; otherwise like [`next`](Self::next).
    ///
    /// # Errors
    ///
    /// Also [`ClientError::Reply`] if serde cannot read the document. The next call then returns the document after it.
    ///
    /// # Cancel safety
    ///
    /// That of [`next`](Self::next).
    pub async fn next_typed(&mut self) -> Result<Option<T>, ClientError>
    where
        T: DeserializeOwned,
    {
        self.next().await?.map(read).transpose()
    }

    /// Returns whether there are no more documents: neither here nor on the server.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.id == 0 && self.fetching.is_none() && self.batch.is_empty()
    }

    /// Returns the same cursor as a stream of values of another type.
    pub fn typed<U: DeserializeOwned>(mut self) -> Cursor<U> {
        self.take_typed()
    }

    /// Moves the cursor into one of another type. This one has ended then.
    pub(crate) fn take_typed<U>(&mut self) -> Cursor<U> {
        Cursor {
            id: std::mem::take(&mut self.id),
            batch: std::mem::take(&mut self.batch),
            query: self.query.take(),
            fetching: self.fetching.take(),
            background: self.background.take(),
            documents: PhantomData,
        }
    }

    /// Advances to the next document, fetching batches as necessary, and returns its place in the batch.
    fn poll_advance(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Place>, ClientError>> {
        loop {
            if let Some(fetching) = &mut self.fetching {
                let (query, fetched) = ready!(fetching.as_mut().poll(context));
                self.fetching = None;
                self.query = Some(query);
                match fetched {
                    Ok(batch) => {
                        self.id = batch.id;
                        self.batch = batch;
                        if self.id == 0 {
                            self.end();
                        }
                    }
                    Err(error) => {
                        self.fail(&error);
                        return Poll::Ready(Err(error));
                    }
                }
                // A tailable cursor: say that there is nothing, instead of asking again and again.
                if self.batch.is_empty() && self.is_tailable() {
                    return Poll::Ready(Ok(None));
                }
            }
            match self.batch.advance() {
                Ok(Some(place)) => return Poll::Ready(Ok(Some(place))),
                Ok(None) if self.id == 0 => return Poll::Ready(Ok(None)),
                Ok(None) => {}
                Err(error) => {
                    self.batch = Batch::default();
                    self.close();
                    return Poll::Ready(Err(error));
                }
            }
            let Some(query) = self.query.take() else { return Poll::Ready(Ok(None)) };
            self.fetching = Some(Box::pin(query.fetch(self.id)));
        }
    }

    fn is_tailable(&self) -> bool {
        self.query.as_ref().is_some_and(|query| query.is_tailable)
    }

    /// Ends the cursor after an error. A cursor that the server has ended, or that its connection took along, is not
    /// closed.
    fn fail(&mut self, error: &ClientError) {
        self.batch = Batch::default();
        let answered = error.server_error().is_some();
        let can_be_closed = match &self.query {
            Some(query) if query.pinned.is_some() => answered,
            _ => true,
        };
        if !can_be_closed || answered {
            self.id = 0;
            self.end();
        } else {
            self.close();
        }
    }

    /// Ends the cursor, and closes it on the server in the background. A cursor that has failed must not go on: the server
    /// may have executed the command, and the documents of its reply would be missing.
    fn close(&mut self) {
        let id = std::mem::take(&mut self.id);
        if id != 0
            && let Some(query) = self.query.take()
            && let Some(background) = &self.background
        {
            background.take(query.close(id));
        }
    }

    /// Gives back what an ended cursor does not need any more.
    fn end(&mut self) {
        if let Some(query) = &mut self.query {
            query.end();
        }
    }
}

impl<T: DeserializeOwned> Stream for Cursor<T> {
    type Item = Result<T, ClientError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        Poll::Ready(match ready!(this.poll_advance(context)) {
            Ok(Some(place)) => Some(this.batch.document(place).and_then(read)),
            // A stream that has yielded `None` is over, so a tailable cursor without documents goes on waiting.
            Ok(None) if this.id != 0 => {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        })
    }
}

impl<T> Cursor<T> {
    /// Gives the cursor up, and closes it on the server in the background. Returns whether there was something to close.
    pub(crate) fn abandon(&mut self) -> bool {
        let id = std::mem::take(&mut self.id);
        if id == 0 {
            return false;
        }
        let closing: Pin<Box<dyn Future<Output = ()> + Send>> = match (self.query.take(), self.fetching.take()) {
            (Some(query), _) => Box::pin(query.close(id)),
            // The server must have answered before the cursor can be closed, and the connection may be the pinned one.
            (None, Some(fetching)) => Box::pin(async move {
                let (query, fetched) = fetching.await;
                match fetched {
                    Ok(batch) if batch.id == 0 => {}
                    _ => query.close(id).await,
                }
            }),
            (None, None) => return false,
        };
        // Errors do not matter: the server closes an idle cursor after ten minutes.
        if let Some(background) = &self.background {
            background.take(closing);
        }
        true
    }
}

impl<T> Drop for Cursor<T> {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl<T> fmt::Debug for Cursor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Query {
    /// Fetches the next batch.
    async fn fetch(mut self, id: i64) -> (Self, Result<Batch, ClientError>) {
        let fetched = self.get_more(id).await;
        (self, fetched)
    }

    async fn get_more(&mut self, id: i64) -> Result<Batch, ClientError> {
        let mut body = RawDocumentBuf::new();
        body.append(cstr!("getMore"), id);
        body.append(cstr!("collection"), self.collection.as_str());
        if let Some(size) = self.batch_size.filter(|&size| size != 0) {
            body.append(cstr!("batchSize"), size);
        }
        let mut appended = Vec::new();
        if let Some(limit) = self.max_await_time {
            let milliseconds = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
            appended.extend_from_slice(elements(&rawdoc! { "maxTimeMS": milliseconds }));
        }
        if let Some(comment) = &self.comment {
            appended.extend_from_slice(elements(comment));
        }
        Batch::read(self.run(&body, appended).await?, "nextBatch")
    }

    /// Closes the cursor on the server (`killCursors`), and gives back what the cursor has.
    async fn close(mut self, id: i64) {
        let body = rawdoc! { "killCursors": self.collection.as_str(), "cursors": [id] };
        // The time limit of the query may be up.
        self.limit = self.client.options().timeout.map_or(Limit::Unset, |limit| Limit::of(limit).start());
        if let Err(error) = self.run(&body, Vec::new()).await {
            tracing::debug!(target: "wharf::command", %error, "A cursor could not be closed");
        }
        self.end();
    }

    /// Gives back the connection and the session.
    fn end(&mut self) {
        let session = std::mem::replace(&mut self.session, InSession::Never);
        self.client.give_back_of(session, self.pinned.as_ref());
        self.pinned = None;
    }

    /// Runs a command of the cursor on its server, in its session.
    async fn run(&mut self, body: &RawDocument, mut appended: Vec<u8>) -> Result<RawDocumentBuf, ClientError> {
        self.append_session(&mut appended);
        let command = Command::new(&self.database, body).within(self.limit).without_max_time().appended(&appended);
        let events = self.client.command_events();
        let id = events.operation();
        // The last connection that had been created when the first one was found lost.
        let mut last_old = None;
        let pool = &self.server.pool;
        loop {
            // The cursor's own connection first: the transaction may be a later one, on another connection.
            let own = self.pinned.take();
            let of_transaction = if own.is_none() { self.pinned_to_transaction() } else { None };
            let is_pinned = own.is_some() || of_transaction.is_some();
            let (mut connection, transaction_server) = match (own, of_transaction) {
                (Some(connection), _) => (connection, None),
                (None, Some((server, connection))) => (connection, Some(server)),
                (None, None) => match pool.check_out_for(self.limit, self.site).await {
                    Ok(connection) => (connection, None),
                    Err(error) => {
                        self.note_failure(&error);
                        return Err(error.into());
                    }
                },
            };
            let outcome = events.run(&mut connection, command, id).await;
            if let Err(OperationError::Command(CommandError::Lost { .. })) = &outcome
                && !is_pinned
                && connection.id() <= *last_old.get_or_insert_with(|| pool.last_created())
            {
                pool.count_retry();
                continue;
            }
            self.client.learn_from(&self.server, &connection, &outcome, Kind::Read);
            if is_pinned {
                self.pin_again(connection, transaction_server);
            }
            return match outcome {
                Ok(reply) => {
                    self.session.replied(&self.client, &reply);
                    Ok(reply)
                }
                Err(error) => {
                    let reply = error.command_error().and_then(CommandError::server_error).map(|error| &error.reply);
                    if let Some(reply) = reply {
                        self.session.replied(&self.client, reply);
                    }
                    self.note_failure(&error);
                    Err(error.into())
                }
            };
        }
    }

    fn append_session(&mut self, appended: &mut Vec<u8>) {
        let time = self.client.cluster_time().load();
        let now = Instant::now();
        match &mut self.session {
            InSession::Implicit(Some(session)) => {
                session.append_to(appended, now);
                if let Some(time) = time.as_deref() {
                    time.append_to(appended);
                }
            }
            InSession::Explicit(explicit) => explicit.lock().append_to_cursor(appended, now, time.as_deref()),
            InSession::Implicit(None) | InSession::Never => {}
        }
    }

    /// Takes the connection that the cursor's transaction is pinned to.
    fn pinned_to_transaction(&self) -> Option<(Selected, Connection<Endpoint>)> {
        let InSession::Explicit(explicit) = &self.session else { return None };
        let mut state = explicit.lock();
        match state.unpin() {
            Some(Pinned::Connection(server, connection)) => Some((server, *connection)),
            Some(pin @ Pinned::Server(_)) => {
                let back = state.pin(pin);
                drop(state);
                drop(back);
                None
            }
            None => None,
        }
    }

    /// Pins the connection to the cursor, or to the transaction that it was taken from, on this server.
    fn pin_again(&mut self, connection: Connection<Endpoint>, transaction_server: Option<Selected>) {
        self.pinned = match (&self.session, transaction_server) {
            (InSession::Explicit(explicit), Some(server)) => explicit.pin_connection(&server, connection),
            _ => Some(connection),
        };
    }

    fn note_failure(&mut self, error: &OperationError) {
        let fault = Fault::of_error(error, true);
        match &mut self.session {
            InSession::Implicit(Some(session)) if matches!(fault.kind, FaultKind::Network | FaultKind::Malformed) => {
                session.mark_dirty()
            }
            InSession::Explicit(explicit) => {
                let consequence = explicit.lock().failed(&fault, None, false);
                drop(consequence.unpinned);
            }
            _ => {}
        }
    }
}

/// A batch of documents in the reply that brought it.
struct Batch {
    reply: RawDocumentBuf,
    id: i64,
    /// Where the next element of the array begins, from the start of the reply.
    next: usize,
}

impl Default for Batch {
    /// A batch without documents.
    fn default() -> Self {
        let reply = RawDocumentBuf::new();
        Self { next: reply.as_bytes().len() - 1, reply, id: 0 }
    }
}

/// Where a document begins in the reply, and its length.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    length: usize,
}

impl Batch {
    /// Finds the batch in a reply to a query or to `getMore`.
    fn read(reply: RawDocumentBuf, field: &'static str) -> Result<Self, ClientError> {
        let found = {
            let cursor = reply.get_document("cursor").map_err(|error| unreadable(error.to_string()))?;
            let id = match cursor.get("id") {
                Ok(Some(RawBsonRef::Int64(id))) => id,
                Ok(Some(RawBsonRef::Int32(id))) => id.into(),
                _ => return Err(unreadable("cursor.id must be a 64-bit integer".to_owned())),
            };
            let array = cursor.get_array(field).map_err(|error| unreadable(error.to_string()))?;
            // The array is a part of the reply.
            let start = array.as_bytes().as_ptr() as usize - reply.as_bytes().as_ptr() as usize;
            (id, start + 4)
        };
        Ok(Self { reply, id: found.0, next: found.1 })
    }

    /// Returns the name of the collection that the cursor belongs to, from its namespace.
    fn collection(&self) -> Result<String, ClientError> {
        let namespace = self.reply.get_document("cursor").and_then(|cursor| cursor.get_str("ns"));
        let namespace = namespace.map_err(|error| unreadable(error.to_string()))?;
        match namespace.split_once('.') {
            Some((_, collection)) => Ok(collection.to_owned()),
            None => Err(unreadable(format!("cursor.ns must be database.collection, got {namespace:?}"))),
        }
    }

    fn is_empty(&self) -> bool {
        self.reply.as_bytes().get(self.next).is_none_or(|&kind| kind == 0)
    }

    /// Returns the place of the next document and steps over it; `None` at the end of the array.
    fn advance(&mut self) -> Result<Option<Place>, ClientError> {
        if self.is_empty() {
            return Ok(None);
        }
        let malformed = || unreadable("a batch must be an array of documents".to_owned());
        let rest = &self.reply.as_bytes()[self.next..];
        let (&kind, named) = rest.split_first().ok_or_else(malformed)?;
        let name = named.iter().position(|&byte| byte == 0).ok_or_else(malformed)?;
        let value = named.get(name + 1..).ok_or_else(malformed)?;
        let length = value.first_chunk().and_then(|bytes| usize::try_from(i32::from_le_bytes(*bytes)).ok());
        match length {
            Some(length) if kind == ElementType::EmbeddedDocument as u8 && length >= 5 && length <= value.len() => {
                let start = self.next + 1 + name + 1;
                self.next = start + length;
                Ok(Some(Place { start, length }))
            }
            _ => Err(malformed()),
        }
    }

    fn document(&self, Place { start, length }: Place) -> Result<&RawDocument, ClientError> {
        let bytes = &self.reply.as_bytes()[start..start + length];
        RawDocument::from_bytes(bytes).map_err(|error| unreadable(error.to_string()))
    }
}

/// Reads a document as a value of the application.
fn read<T: DeserializeOwned>(document: &RawDocument) -> Result<T, ClientError> {
    bson::deserialize_from_slice(document.as_bytes()).map_err(|error| unreadable(error.to_string()))
}

fn unreadable(reason: String) -> ClientError {
    ClientError::Reply { command: "a query", reason: reason.into() }
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

/// Returns the query's `comment`, which each `getMore` repeats.
fn comment_of(body: &RawDocument) -> Option<RawDocumentBuf> {
    let comment = body.get("comment").ok()??;
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("comment"), comment);
    Some(document)
}
