//! Opening the cursor of a change stream, at the start and when resuming.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bson::raw::cstr;
use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, Timestamp, rawdoc};
use serde::Serialize;

use super::super::Client;
use super::super::appending::own_read_concern;
use super::super::collection::{AnyClient, Call, Fields, Shape, refused, sealed};
use super::super::cursor::Cursor;
use super::super::error::ClientError;
use super::super::in_session::Explicit;
use super::super::operation::Operation;
use super::super::session_handle::Session;
use super::super::timed::Limited;
use super::super::typed::extend;
use super::{ChangeStream, token_of};
use crate::client::session::{SessionError, SessionOptions};
use crate::endpoint::Limit;
use crate::endpoint::options::ReadPreference;
use crate::pool::runtime::{Boxed, Process};

/// The fields of the `$changeStream` stage that say where the stream starts.
const STARTS: [&str; 3] = ["resumeAfter", "startAfter", "startAtOperationTime"];

impl Client {
    /// Prepares a change stream. Await the value to open it.
    ///
    /// `pipeline` holds the stages that filter or change the events: anything that serde serializes as an array of
    /// documents, or `()` for none. The stages must keep each event's `_id`: without it, the stream cannot be resumed.
    ///
    /// A raw `aggregate` with a `$changeStream` stage does not resume, so prefer this method. The read concern must be
    /// `majority`, or not set.
    ///
    /// ```no_run
    /// # async fn example(client: wharf::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use bson::doc;
    /// use wharf::client::WatchTarget;
    ///
    /// let inserts = [doc! { "$match": { "operationType": "insert" } }];
    /// let mut changes = client.watch(WatchTarget::Collection("shop", "orders"), inserts).await?;
    /// while let Some(change) = changes.next().await? {
    ///     println!("{:?}", change.get_document("fullDocument")?);
    ///     // Store `changes.resume_token()` here.
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn watch<'c>(&self, target: WatchTarget<'c>, pipeline: impl Serialize) -> Watch<'c> {
        Watch::of(self.clone(), target, &pipeline)
    }
}

/// The target of a change stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchTarget<'c> {
    /// All collections of all databases, except `admin`, `config` and `local`.
    Cluster,
    /// All collections of a database.
    Database(&'c str),
    /// A collection, by its database and its name.
    Collection(&'c str, &'c str),
}

/// A change stream that is opened when the value is awaited.
#[must_use = "the change stream is opened when the value is awaited or run"]
pub struct Watch<'c, T = RawDocumentBuf, C = Client> {
    client: C,
    target: WatchTarget<'c>,
    pipeline: Result<RawArrayBuf, ClientError>,
    /// The fields of `$changeStream`.
    pub(in crate::client) stage: Fields,
    /// Further fields of the command.
    pub(in crate::client) options: Fields,
    pub(in crate::client) read_preference: Option<&'c ReadPreference>,
    pub(in crate::client) read_concern: Option<&'c str>,
    session: Option<Arc<Explicit>>,
    pub(in crate::client) timeout: Limit,
    /// The time limit for opening the stream, if it has already started.
    started: Option<Limit>,
    batch_size: Option<i32>,
    max_await_time: Option<Duration>,
    events: PhantomData<fn() -> &'c T>,
    /// A session runs one operation at a time.
    exclusive: PhantomData<&'c mut Session>,
    site: &'static Location<'static>,
}

impl<'c, T, C: AnyClient> Watch<'c, T, C> {
    #[track_caller]
    pub(in crate::client) fn of(client: C, target: WatchTarget<'c>, pipeline: &impl Serialize) -> Self {
        Self {
            client,
            target,
            pipeline: stages(pipeline),
            stage: Fields::new(),
            options: Fields::new(),
            read_preference: None,
            read_concern: None,
            session: None,
            timeout: Limit::Unset,
            started: None,
            batch_size: None,
            max_await_time: None,
            events: PhantomData,
            exclusive: PhantomData,
            site: Location::caller(),
        }
    }

    /// Returns the same change stream, but with events that serde reads as another type. For raw documents, use
    /// `RawDocumentBuf`.
    #[doc(alias = "with_type")]
    pub fn typed<U>(self) -> Watch<'c, U, C> {
        Watch {
            client: self.client,
            target: self.target,
            pipeline: self.pipeline,
            stage: self.stage,
            options: self.options,
            read_preference: self.read_preference,
            read_concern: self.read_concern,
            session: self.session,
            timeout: self.timeout,
            started: self.started,
            batch_size: self.batch_size,
            max_await_time: self.max_await_time,
            events: PhantomData,
            exclusive: PhantomData,
            site: self.site,
        }
    }

    /// Adds fields to the `$changeStream` stage, for options that have no method here. The value can be anything that
    /// serde serializes as a document.
    pub fn stage(mut self, fields: impl Serialize) -> Self {
        self.stage.extend("stage", &fields);
        self
    }

    /// Adds fields to the `aggregate` command, for options that have no method here. The value can be anything that
    /// serde serializes as a document. A field that the command already has, such as `cursor`, is refused.
    pub fn options(mut self, fields: impl Serialize) -> Self {
        self.options.extend("options", &fields);
        self
    }

    /// Sets the number of events in each batch. By default the server decides.
    pub fn batch_size(mut self, events: i32) -> Self {
        self.batch_size = Some(events);
        self
    }

    /// Sets how long the server waits for events before it replies that there are none (`maxAwaitTimeMS`). This time
    /// must be less than `timeoutMS`. By default a server waits for one second.
    pub fn max_await_time(mut self, limit: Duration) -> Self {
        self.max_await_time = Some(limit);
        self
    }

    /// Sets the servers that the stream may read from, at its start and whenever it resumes. The default is the read
    /// preference in the options.
    pub fn read_preference(mut self, preference: &'c ReadPreference) -> Self {
        self.read_preference = Some(preference);
        self
    }

    /// Sets the session that the stream belongs to. By default, the stream uses its own session.
    pub fn session(mut self, session: &'c mut C::Session) -> Self {
        self.session = Some(sealed::Session::running(session).explicit().clone());
        self
    }

    /// Sets `timeoutMS`: how long opening the stream may take, and how long each call may take, including resuming. The
    /// default is the limit of the collection or database or, if there is none,
    /// [`Options::timeout`](crate::Options::timeout). Zero means no limit.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Limit::of(limit);
        self
    }

    /// Calls `set` with this builder and the value, if there is a value. Use this for options that do not accept
    /// `None`.
    pub fn optional<V>(self, value: Option<V>, set: impl FnOnce(Self, V) -> Self) -> Self {
        match value {
            Some(value) => set(self, value),
            None => self,
        }
    }

    async fn open(self) -> Result<ChangeStream<T>, ClientError> {
        let Self { client, target, pipeline, stage, mut options, read_preference, session, .. } = self;
        let client = client.running().clone();
        if let Some(level) = self.read_concern
            && !options.has("readConcern")
            && let Some(read_concern) = own_read_concern(&client, level)
        {
            options.add("readConcern", &read_concern);
        }
        let documents = Documents { stage: stage.finish()?, pipeline: pipeline?, options: options.finish()? };
        // The stream resumes in the session that it began in ("Resume Process").
        let session = match session {
            Some(session) => session,
            None => {
                let options = SessionOptions::default().causal_consistency(false);
                client.start_session_as(&options, true)?
            }
        };
        let mut start = documents.start();
        let timeout = self.timeout.or(client.options().timeout);
        let started = self.started.unwrap_or_else(|| timeout.start());
        let (database, collection) = match target {
            WatchTarget::Cluster => ("admin", None),
            WatchTarget::Database(database) => (database, None),
            WatchTarget::Collection(database, collection) => (database, Some(collection.to_owned())),
        };
        let plan = Arc::new(Plan {
            client,
            database: database.to_owned(),
            collection,
            is_of_cluster: target == WatchTarget::Cluster,
            documents,
            read_preference: read_preference.cloned(),
            session,
            timeout,
            batch_size: self.batch_size,
            max_await_time: self.max_await_time,
            site: self.site,
            process: Process::this(),
        });
        let cursor = plan.open(&start, started, Duration::ZERO).await?;
        start.began(&cursor);
        Ok(ChangeStream::new(plan, start, cursor))
    }
}

impl<'c, T> IntoFuture for Watch<'c, T> {
    type Output = Result<ChangeStream<T>, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    /// Opens the change stream.
    ///
    /// # Errors
    ///
    /// [`ClientError::Argument`] if serde could not serialize the pipeline, the stage or the options.
    /// [`ClientError::InvalidOption`] if `maxAwaitTimeMS` is not less than `timeoutMS`. Otherwise the errors of
    /// [`Client::run`]. A standalone server does not support change streams, and returns an error.
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

impl Limited for Watch<'_> {
    fn limit(&self) -> Result<Limit, SessionError> {
        Call::limit(self)
    }

    fn set_limit(&mut self, limit: Limit) {
        self.started = Some(limit);
    }
}

impl<T, C: AnyClient> Call for Watch<'_, T, C> {
    type Client = C;
    type Output = ChangeStream<T>;

    fn client(&self) -> C {
        self.client.clone()
    }

    fn limit(&self) -> Result<Limit, SessionError> {
        Ok(self.timeout.or(self.client.running().options().timeout))
    }

    fn begin(mut self, limit: Limit) -> impl Future<Output = Result<ChangeStream<T>, ClientError>> + Send {
        self.started = Some(limit);
        self.open()
    }
}

impl<T, C> fmt::Debug for Watch<'_, T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("target", &self.target).finish_non_exhaustive()
    }
}

/// The application's arguments.
struct Documents {
    /// The fields of `$changeStream`.
    stage: RawDocumentBuf,
    /// The stages after `$changeStream`.
    pipeline: RawArrayBuf,
    /// Further fields of the command.
    options: RawDocumentBuf,
}

impl Documents {
    /// Returns where the stream starts.
    fn start(&self) -> Start {
        let token = |name| self.stage.get_document(name).ok().map(RawDocument::to_owned);
        let start_after = token("startAfter");
        Start {
            is_start_after: start_after.is_some(),
            token: start_after.or_else(|| token("resumeAfter")),
            has_begun: false,
            is_given: STARTS.iter().any(|name| matches!(self.stage.get(name), Ok(Some(_)))),
            operation_time: None,
        }
    }
}

/// Returns the stages of an application's pipeline. `()` means none.
fn stages(pipeline: &impl Serialize) -> Result<RawArrayBuf, ClientError> {
    let mut fields = Fields::new();
    fields.put("pipeline", "pipeline", Shape::Any, pipeline);
    match fields.document()?.get("pipeline") {
        Ok(Some(RawBsonRef::Array(stages))) => Ok(stages.to_owned()),
        Ok(Some(RawBsonRef::Null)) => Ok(RawArrayBuf::new()),
        _ => Err(refused("pipeline", "it must be an array")),
    }
}

/// Where a change stream starts when the next cursor is opened.
#[derive(Default)]
pub(super) struct Start {
    /// The resume token.
    pub(super) token: Option<RawDocumentBuf>,
    /// Whether the token comes from `startAfter` and no event has been returned since.
    is_start_after: bool,
    /// Whether a cursor has ever been opened.
    has_begun: bool,
    /// Whether the application said where to start.
    is_given: bool,
    /// The time in the first reply, used if there is nothing else to start from.
    operation_time: Option<Timestamp>,
}

impl Start {
    /// Records the position in the first reply.
    fn began(&mut self, cursor: &Cursor) {
        self.has_begun = true;
        if !self.is_given && cursor.has_no_document() && token_of(cursor).is_none() {
            self.operation_time = cursor.reply().get_timestamp("operationTime").ok();
        }
    }

    /// Records the token of a batch without events.
    pub(super) fn reached(&mut self, token: Option<&RawDocument>) {
        if let Some(token) = token {
            self.token = Some(token.to_owned());
        }
    }

    /// Records the token after an event.
    pub(super) fn returned(&mut self, token: &RawDocument) {
        self.token = Some(token.to_owned());
        self.is_start_after = false;
    }

    /// Returns the fields of the `$changeStream` stage for this starting position.
    fn stage(&self, given: &RawDocument) -> RawDocumentBuf {
        if !self.has_begun {
            // All starting points are passed on: if there is more than one, the server refuses the command
            // ("startAtOperationTime").
            return given.to_owned();
        }
        let mut stage = RawDocumentBuf::new();
        let keeps = |name: &str| self.token.is_none() || !STARTS.contains(&name);
        for (name, value) in given.into_iter().flatten().filter(|(name, _)| keeps(name.as_str())) {
            stage.append(name, value);
        }
        match (&self.token, self.operation_time) {
            (Some(token), _) if self.is_start_after => stage.append(cstr!("startAfter"), token),
            (Some(token), _) => stage.append(cstr!("resumeAfter"), token),
            (None, Some(time)) => stage.append(cstr!("startAtOperationTime"), time),
            (None, None) => {}
        }
        stage
    }
}

/// A cursor that is being opened.
pub(super) type Opening = Boxed<'static, Result<Cursor, ClientError>>;

/// Everything that a change stream needs to open its cursors.
pub(super) struct Plan {
    client: Client,
    database: String,
    collection: Option<String>,
    is_of_cluster: bool,
    documents: Documents,
    read_preference: Option<ReadPreference>,
    session: Arc<Explicit>,
    timeout: Limit,
    batch_size: Option<i32>,
    max_await_time: Option<Duration>,
    site: &'static Location<'static>,
    /// The process that opened the stream.
    process: Process,
}

impl Plan {
    /// Returns whether the stream belongs to the parent of this process.
    pub(super) fn is_inherited(&self) -> bool {
        self.process.is_ancestor()
    }

    /// Returns the `timeoutMS` of each call.
    pub(super) fn timeout(&self) -> Limit {
        self.timeout
    }

    pub(super) fn target(&self) -> WatchTarget<'_> {
        match &self.collection {
            _ if self.is_of_cluster => WatchTarget::Cluster,
            None => WatchTarget::Database(&self.database),
            Some(collection) => WatchTarget::Collection(&self.database, collection),
        }
    }

    /// Waits in the background for a cursor that is being opened, and closes it.
    pub(super) fn close_later(&self, opening: Opening) {
        if let Some(background) = self.client.deployment().background() {
            background.take(Box::pin(async move { drop(opening.await) }));
        }
    }

    /// Opens a cursor, after a pause.
    pub(super) fn open(self: &Arc<Self>, start: &Start, limit: Limit, pause: Duration) -> Opening {
        let (plan, body, resumes) = (self.clone(), self.body(start), start.has_begun);
        Box::pin(async move {
            let body = body?;
            if !pause.is_zero() {
                plan.client.pause(limit.left().map_or(pause, |left| pause.min(left))).await;
            }
            let mut operation = Operation::read(&plan.database, &body);
            operation.command = operation.command.within(limit);
            operation.session = Some(plan.session.clone());
            // By now, the session may be in a transaction. The server would abort that transaction if the command were
            // part of it.
            operation.is_beside_transaction = resumes;
            if let Some(preference) = &plan.read_preference {
                operation = operation.read_preference(preference);
            }
            let mut opening = plan.client.cursor_at(operation, plan.site);
            if let Some(size) = plan.batch_size {
                opening = opening.batch_size(size);
            }
            if let Some(limit) = plan.max_await_time {
                opening = opening.max_await_time(limit);
            }
            opening.await
        })
    }

    /// Returns the command.
    fn body(&self, start: &Start) -> Result<RawDocumentBuf, ClientError> {
        let mut stage = start.stage(&self.documents.stage);
        if self.is_of_cluster {
            stage.append(cstr!("allChangesForCluster"), true);
        }
        let mut pipeline = RawArrayBuf::new();
        pipeline.push(rawdoc! { "$changeStream": stage });
        for stage in self.documents.pipeline.into_iter() {
            let stage =
                stage.map_err(|error| ClientError::Argument { name: "pipeline", reason: error.to_string().into() })?;
            pipeline.push(RawBson::from(stage));
        }
        let target = match &self.collection {
            Some(collection) => RawBson::String(collection.clone()),
            None => RawBson::Int32(1),
        };
        let cursor = self.batch_size.map_or(rawdoc! {}, |size| rawdoc! { "batchSize": size });
        let mut body = rawdoc! { "aggregate": target, "pipeline": pipeline, "cursor": cursor };
        extend("options", &mut body, &self.documents.options)?;
        Ok(body)
    }
}
