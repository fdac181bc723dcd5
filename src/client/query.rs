//! Queries on a collection: `find` and `aggregate`.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::panic::Location;
use std::pin::Pin;
use std::time::Duration;

use bson::RawDocumentBuf;
use bson::raw::cstr;
use bson::rawdoc;
use serde::Serialize;

use super::Client;
use super::appending::without;
use super::cursor::{Cursor, TimeoutMode};
use super::error::ClientError;
use super::operation::Operation;
use super::session_handle::Session;
use super::timed::Limited;
use super::typed::{Prepared, Start, encode, extend, refuse_second, with};
use crate::client::session::{SessionError, writes_its_result};
use crate::endpoint::Limit;
use crate::endpoint::options::ReadPreference;
use crate::endpoint::wire::reply::{has_field, whole_number};

impl Client {
    /// Prepares a query for the documents in a collection that match `filter`. Await it to get a [`Cursor`].
    ///
    /// The filter can be anything that serde serializes as a document: `doc!`, `rawdoc!`, or a struct.
    ///
    /// ```no_run
    /// # async fn example(client: wharf::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use bson::doc;
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct Order {
    ///     #[serde(rename = "_id")]
    ///     id: i32,
    ///     paid: bool,
    /// }
    ///
    /// client.insert("shop", "orders", [Order { id: 1, paid: false }]).await?;
    /// let newest = doc! { "sort": { "_id": -1 }, "limit": 100 };
    /// let mut orders = client.find("shop", "orders", doc! { "paid": false }).options(newest).await?.typed::<Order>();
    /// while let Some(order) = orders.next().await? {
    ///     println!("{} is not paid", order.id);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn find<'c>(&self, database: &'c str, collection: &str, filter: impl Serialize) -> Query<'c> {
        let start = Start { command: "find", target: collection, argument: "filter", value: &filter };
        let body = encode("filter", &start).and_then(|body| match body.get_document("filter") {
            Ok(_) => Ok(body),
            Err(_) => Err(ClientError::Argument { name: "filter", reason: "it must be a document".into() }),
        });
        Query::of(Verb::Find, Prepared::new(self, database, body), Location::caller())
    }

    /// Prepares an aggregation of a collection's documents. Await it to get a [`Cursor`].
    ///
    /// The pipeline can be anything that serde serializes as an array of documents. An aggregation whose pipeline ends
    /// in `$out` or `$merge` is a write: the write concern in the options applies, and the aggregation is not repeated
    /// after a network error. For an aggregation without a collection, such as `$currentOp`, use
    /// [`cursor`](Self::cursor) with a command that contains `aggregate: 1`.
    ///
    /// ```no_run
    /// # async fn example(client: wharf::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use bson::doc;
    ///
    /// let totals = [doc! { "$group": { "_id": "$customer", "total": { "$sum": "$price" } } }];
    /// let mut totals = client.aggregate("shop", "orders", totals).await?;
    /// while let Some(total) = totals.next().await? {
    ///     println!("{total:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn aggregate<'c>(&self, database: &'c str, collection: &str, pipeline: impl Serialize) -> Query<'c> {
        let start = Start { command: "aggregate", target: collection, argument: "pipeline", value: &pipeline };
        let body = encode("pipeline", &start).and_then(|body| match body.get_array("pipeline") {
            Ok(_) => Ok(body),
            Err(_) => Err(ClientError::Argument { name: "pipeline", reason: "it must be an array".into() }),
        });
        Query::of(Verb::Aggregate, Prepared::new(self, database, body), Location::caller())
    }
}

/// A `find` or an `aggregate` that opens a [`Cursor`] when it is awaited.
#[must_use = "the query is sent when the value is awaited"]
pub struct Query<'c> {
    prepared: Prepared<'c>,
    verb: Verb,
    batch_size: Option<i32>,
    max_await_time: Option<Duration>,
    timeout_mode: Option<TimeoutMode>,
    /// The time limit of the query itself, if the limit has already started.
    started: Option<Limit>,
    site: &'static Location<'static>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Find,
    Aggregate,
}

impl Verb {
    /// Returns the field of the command that holds the batch size.
    fn field_of_batch_size(self) -> &'static str {
        match self {
            Self::Find => "batchSize",
            Self::Aggregate => "cursor",
        }
    }
}

impl<'c> Query<'c> {
    pub(super) fn of(verb: Verb, prepared: Prepared<'c>, site: &'static Location<'static>) -> Self {
        let (batch_size, max_await_time, timeout_mode, started) = (None, None, None, None);
        Self { prepared, verb, batch_size, max_await_time, timeout_mode, started, site }
    }

    /// Adds fields to the command, such as `sort`, `limit`, `projection`, `hint`, `let`, `comment` or `readConcern`:
    /// any field that the server documents for `find` or `aggregate`. The value can be anything that serde serializes
    /// as a document.
    ///
    /// A field that the command already has is refused: for instance `batchSize` (or the `cursor` of an aggregation)
    /// together with [`batch_size`](Self::batch_size). `maxTimeMS` is left out if there is a `timeoutMS`.
    pub fn options(mut self, fields: impl Serialize) -> Self {
        self.prepared.body = self.prepared.body.and_then(|mut body| {
            extend("options", &mut body, &encode("options", &fields)?)?;
            Ok(body)
        });
        self
    }

    /// Sets the number of documents in each batch (`batchSize`). By default the server decides. In a `find`, zero also
    /// leaves the choice to the server, and a negative number requests that many documents in a single batch.
    pub fn batch_size(mut self, documents: i32) -> Self {
        self.batch_size = Some(documents);
        self
    }

    /// Sets how long the server waits for new documents (the `maxTimeMS` of each `getMore`). This applies only to
    /// tailable cursors that await data.
    pub fn max_await_time(mut self, limit: Duration) -> Self {
        self.max_await_time = Some(limit);
        self
    }

    /// Sets the servers that the query may be sent to. The default is the read preference in the options.
    pub fn read_preference(mut self, preference: &'c ReadPreference) -> Self {
        self.prepared.read_preference = Some(preference);
        self
    }

    /// Sets the session that the query and its cursor belong to. If the session is in a transaction, they are part of
    /// it.
    pub fn session(mut self, session: &'c mut Session) -> Self {
        self.prepared.session = Some(session);
        self
    }

    /// Sets `timeoutMS`: how long the query and all batches may take together. For a tailable cursor, it limits the
    /// query, and then each call. The default is [`Options::timeout`](crate::Options::timeout). Zero means no limit.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.prepared.timeout = Limit::of(limit);
        self
    }

    /// Sets what `timeoutMS` limits. This requires a `timeoutMS`, in the query or in the options.
    pub fn timeout_mode(mut self, mode: TimeoutMode) -> Self {
        self.timeout_mode = Some(mode);
        self
    }

    /// Returns the complete document of the command.
    fn body(&mut self) -> Result<RawDocumentBuf, ClientError> {
        let body = std::mem::replace(&mut self.prepared.body, Ok(RawDocumentBuf::new()));
        let mut body = body?;
        if self.batch_size.is_some() {
            refuse_second("batch_size", &body, self.verb.field_of_batch_size())?;
        }
        match (self.verb, self.batch_size) {
            (Verb::Find, size) => put_batch_size(&mut body, size)?,
            // The server requires the field.
            (Verb::Aggregate, None) if matches!(body.get("cursor"), Ok(None)) => {
                body.append(cstr!("cursor"), rawdoc! {});
            }
            (Verb::Aggregate, None) => {}
            // If an aggregation writes its result, the server refuses a batch size of zero (CRUD, "AggregateOptions").
            (Verb::Aggregate, Some(0)) if writes_its_result(&body) => body.append(cstr!("cursor"), rawdoc! {}),
            (Verb::Aggregate, Some(size)) => body.append(cstr!("cursor"), rawdoc! { "batchSize": size }),
        }
        Ok(body)
    }
}

/// Adds the batch size to a `find` ("Mapping OP_QUERY behavior to the find command limit and batchSize fields" in Find,
/// getMore and killCursors Commands). A single batch holds all documents up to the limit.
fn put_batch_size(find: &mut RawDocumentBuf, size: Option<i32>) -> Result<(), ClientError> {
    let limit = whole_number(find, "limit").ok().flatten();
    if limit == Some(0)
        && let Some(rest) = without(find, "limit")
    {
        *find = rest;
    }
    let limit = limit.filter(|limit| *limit > 0);
    let (single, size) = (find.get_bool("singleBatch").unwrap_or(false), size.filter(|size| *size != 0));
    let is_single = single || size.is_some_and(i32::is_negative);
    if is_single && !single {
        refuse_second("batch_size", find, "singleBatch")?;
        find.append(cstr!("singleBatch"), true);
    }
    let size = match (limit, size.map(i32::saturating_abs)) {
        (Some(limit), _) if is_single && !has_field(find, "batchSize") => limit.try_into().unwrap_or(i32::MAX),
        // A full batch leaves the cursor open on the server (CRUD, "Setting limit and batchSize options for find
        // commands").
        (Some(limit), Some(size)) if limit == i64::from(size) => size.saturating_add(1),
        (_, Some(size)) => size,
        (_, None) => return Ok(()),
    };
    find.append(cstr!("batchSize"), size);
    Ok(())
}

impl<'c> IntoFuture for Query<'c> {
    type Output = Result<Cursor, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    /// Sends the query, and opens its cursor.
    ///
    /// # Errors
    ///
    /// [`ClientError::Argument`] if serde could not serialize the filter, the pipeline or the options.
    /// [`ClientError::InvalidOption`] if time limits conflict. Otherwise the errors from [`Client::run`].
    ///
    /// # Cancel safety
    ///
    /// The same as for [`Client::run`]. A cursor that the server has already opened is closed when the connection is
    /// [drained](crate::Options::drain_timeout). If the connection is closed instead, the server closes the cursor
    /// after ten minutes.
    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            let body = self.body()?;
            let Self { prepared, max_await_time, timeout_mode, started, site, .. } = self;
            let Prepared { client, database, session, read_preference, timeout, .. } = prepared;
            let operation = with(Operation::read(database, &body), session, read_preference, timeout);
            let mut opening = client.cursor_at(operation, site).started(started);
            if let Some(limit) = max_await_time {
                opening = opening.max_await_time(limit);
            }
            if let Some(mode) = timeout_mode {
                opening = opening.timeout_mode(mode);
            }
            opening.await
        })
    }
}

impl Limited for Query<'_> {
    fn limit(&self) -> Result<Limit, SessionError> {
        self.prepared.limit()
    }

    fn set_limit(&mut self, limit: Limit) {
        self.started = Some(limit);
    }
}

impl fmt::Debug for Query<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query")
            .field("verb", &self.verb)
            .field("database", &self.prepared.database)
            .finish_non_exhaustive()
    }
}
