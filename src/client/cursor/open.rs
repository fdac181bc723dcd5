//! Opening a cursor: the query, its options, and the reply with the first batch.

use std::future::{Future, IntoFuture};
use std::panic::Location;
use std::pin::Pin;
use std::time::Duration;

use bson::raw::cstr;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::super::Client;
use super::super::closing_queue::QueueNumber;
use super::super::engine::{Reached, UnmetConcern};
use super::super::error::{ClientError, FailedOperation};
use super::super::in_session::{InSession, has_sessions};
use super::super::operation::{Kind, Operation};
use super::super::run::Answer;
use super::super::timed::Limited;
use super::batch::{Batch, CursorReply, unreadable};
use super::server_cursor::ServerCursor;
use super::time::CursorTime;
use super::{Cursor, CursorType, TimeoutMode};
use crate::client::session::{SessionError, name, writes_its_result};
use crate::endpoint::Limit;
use crate::endpoint::options::ServerAddress;

/// The wire version of MongoDB 4.4, the first version in which a `getMore` takes a comment (CRUD, "find").
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
    pub(in crate::client) fn cursor_at<'c>(
        &self,
        operation: Operation<'c>,
        site: &'static Location<'static>,
    ) -> OpenCursor<'c> {
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
    /// The `comment` field of each `getMore`, as a document, in place of the command's comment.
    comment: Option<RawDocumentBuf>,
    /// The time limit of the query, if it has already started.
    started: Option<Limit>,
    site: &'static Location<'static>,
}

impl OpenCursor<'_> {
    /// Sets the number of documents in each later batch. The default is the `batchSize` in the command's document.
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

    /// Sets the type of the cursor that the command opens. By default, the type is inferred from the command's
    /// `tailable` and `awaitData` fields, or from a pipeline that opens a change stream.
    pub fn cursor_type(mut self, cursor_type: CursorType) -> Self {
        self.cursor_type = Some(cursor_type);
        self
    }

    /// Sets what `timeoutMS` limits. This requires a `timeoutMS`, in the operation or in the options.
    pub fn timeout_mode(mut self, mode: TimeoutMode) -> Self {
        self.timeout_mode = Some(mode);
        self
    }

    /// Sets the comment of each `getMore`, as a document with the `comment` field. An empty document means no comment.
    /// The default is the command's comment.
    pub(in crate::client) fn comment(mut self, comment: RawDocumentBuf) -> Self {
        self.comment = Some(comment);
        self
    }

    /// Sets the query's limit, if it has already started. Later batches use the operation's limit.
    pub(in crate::client) fn started(mut self, limit: Option<Limit>) -> Self {
        self.started = limit;
        self
    }

    /// Returns the type of the cursor that the command opens.
    fn kind(&self) -> CursorType {
        match (self.cursor_type, CursorType::of(self.operation.command.body())) {
            (Some(cursor_type), _) => cursor_type,
            // `max_await_time` implies this type, except for a `find`, whose own fields determine its type.
            (None, CursorType::NonTailable) if self.max_await_time.is_some() && !self.is_find() => {
                CursorType::TailableAwait
            }
            (None, cursor_type) => cursor_type,
        }
    }

    /// Returns whether the command is a `find`. Returns false for a generic command, which the client does not inspect.
    fn is_find(&self) -> bool {
        self.operation.kind != Kind::Command && name(self.operation.command.body()) == Some("find")
    }

    /// Returns the time limits of the cursor.
    fn time(&self, cursor_type: CursorType) -> Result<CursorTime, ClientError> {
        let timeout = self.client.timeout_of(self.operation.limiting_session(), &self.operation.command)?;
        let writes_its_result = writes_its_result(self.operation.command.body());
        Ok(CursorTime::new(timeout, self.timeout_mode, cursor_type, self.max_await_time, writes_its_result)?)
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
    pub(in crate::client) async fn opened(self) -> Result<Option<Opened>, ClientError> {
        let cursor_type = self.kind();
        let mut time = self.time(cursor_type)?;
        let Self { client, operation, batch_size, max_await_time, comment, started, site, .. } = self;
        let body = operation.command.body();
        let database = operation.command.database().to_owned();
        let limit = started.unwrap_or_else(|| time.timeout.start());
        let is_beside_transaction = operation.is_beside_transaction;
        let awaits_data = cursor_type == CursorType::TailableAwait;
        // For a generic command, the application knows which options its `getMore` takes (Run Command,
        // "runCursorCommand").
        let takes_time = awaits_data || operation.kind == Kind::Command;
        // The command is sent with its time limit only in these cases. Otherwise, the server would also apply the
        // query's limit to later batches.
        let is_told = time.mode == TimeoutMode::CursorLifetime || awaits_data;
        let command = operation.command.within(limit);
        let command = if is_told { command } else { command.without_max_time() };
        let answer = client.answer(Operation { command, ..operation }, site).await?;
        let Answer { reached, session, unmet, is_acknowledged } = answer;
        let Reached { reply, connection, server } = reached;
        if !is_acknowledged {
            client.give_back(session, connection.as_ref());
            return Ok(None);
        }
        // Only a change stream reads this version. A cursor without a connection here is in a transaction, and thus
        // does not belong to a change stream.
        let max_wire_version = connection.as_ref().map_or(0, |connection| connection.hello().max_wire_version);
        // If there is no connection here, the connection is pinned to the transaction. The deployment is then
        // load-balanced, and its servers are recent enough.
        let takes_comment = connection.is_none() || max_wire_version >= TAKES_COMMENT;
        let session = match session {
            // This is a change stream's own session, on a server without sessions.
            InSession::Explicit(explicit)
                if explicit.is_implicit()
                    && connection.as_ref().is_some_and(|connection| !has_sessions(connection)) =>
            {
                InSession::Never
            }
            session => session,
        };
        let (opened_in, queue_number) =
            if is_beside_transaction { (None, None) } else { transaction_of(&client, &session) };
        time.begin(limit);
        let (CursorReply { id, collection }, named) = CursorReply::read(&reply, body);
        let batch = named.and_then(|()| Batch::read(reply, "firstBatch"));
        let server_cursor = ServerCursor {
            server: server.server().clone(),
            database,
            collection,
            batch_size: batch_size.or(batch_size_of(body)),
            max_await_time: max_await_time.filter(|_| takes_time),
            comment: comment.or_else(|| comment_of(body)).filter(|_| takes_comment),
            is_tailable: cursor_type != CursorType::NonTailable,
            awaits_data,
            time,
            site,
            pinned: None,
            session,
            opened_in,
            queue_number,
            client,
        };
        let mut cursor = Cursor::new(id, server_cursor.opened_on(connection, id), max_wire_version);
        // If the batch cannot be read, dropping the cursor closes it.
        cursor.batch = batch?;
        Ok(Some(Opened { cursor, server: server.address.clone(), unmet }))
    }
}

impl Limited for OpenCursor<'_> {
    fn limit(&self) -> Result<Limit, SessionError> {
        self.client.limit_of(&self.operation)
    }

    fn set_limit(&mut self, limit: Limit) {
        self.started = Some(limit);
    }
}

/// A cursor, and other results of the command that opened it.
pub(in crate::client) struct Opened {
    pub(in crate::client) cursor: Cursor,
    pub(in crate::client) server: ServerAddress,
    /// Set if the command is a write whose write concern was not met.
    pub(in crate::client) unmet: Option<UnmetConcern>,
}

impl<'c> IntoFuture for OpenCursor<'c> {
    type Output = Result<Cursor, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    /// Sends the query.
    ///
    /// # Errors
    ///
    /// [`ClientError::InvalidOption`] if options conflict, and the errors from [`Client::run`].
    ///
    /// # Cancel safety
    ///
    /// The same as for [`Client::run`]. If the server has opened a cursor, the cursor is closed when the connection is
    /// [drained](crate::Options::drain_timeout). If the connection is closed instead, the server closes the cursor
    /// after ten minutes.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

/// Returns the number of the session's transaction. Behind a load balancer, also returns the cursor's number for the
/// transaction's queue of closing cursors.
fn transaction_of(client: &Client, session: &InSession) -> (Option<i64>, Option<QueueNumber>) {
    let InSession::Explicit(explicit) = session else { return (None, None) };
    let opened_in = explicit.lock().open_transaction();
    let has_queue = opened_in.is_some() && client.options().is_load_balanced();
    (opened_in, has_queue.then(|| explicit.closing().number()))
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

/// Returns the query's `comment`, which each `getMore` repeats. Returns `None` for `listCollections`, because the
/// server itself applies its comment to each `getMore` (Enumerating Collections, "listCollections Database Command").
fn comment_of(body: &RawDocument) -> Option<RawDocumentBuf> {
    if name(body) == Some("listCollections") {
        return None;
    }
    let comment = body.get("comment").ok()??;
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("comment"), comment);
    Some(document)
}
