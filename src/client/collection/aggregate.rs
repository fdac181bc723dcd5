//! Aggregations and counts.

use crate::client::session::SessionError;
use std::marker::PhantomData;

use bson::{Bson, Document, RawArrayBuf, RawDocumentBuf, rawdoc};
use serde::Serialize;

use super::super::Client;
use super::super::cursor::{Cursor, TimeoutMode};
use super::super::error::ClientError;
use super::super::query::Verb;
use super::fields::{Fields, Shape};
use super::request::{CursorOptions, Request, first_of_batch};
use super::{AnyClient, Collection, Database};
use crate::endpoint::Limit;
use crate::endpoint::wire::reply::whole_number;

impl<T, C: AnyClient> Collection<T, C> {
    /// Prepares an aggregation, whose pipeline is an array of stages. Await it to get a [`Cursor`] of documents or,
    /// after [`typed`](Aggregate::typed), of any type.
    ///
    /// An aggregation whose pipeline ends in `$out` or `$merge` is a write: it uses the write concern, is not repeated
    /// after a network error, and returns no documents.
    #[track_caller]
    pub fn aggregate(&self, pipeline: impl Serialize) -> Aggregate<'_, Document, C> {
        Aggregate::new(self.request("aggregate"), &pipeline)
    }

    /// Prepares a count of the documents that match `filter`. The count runs as an aggregation, whose `$match` stage
    /// does not support [some operators][restrictions]: use `$expr` for `$where`, and `$geoWithin` with `$center` or
    /// `$centerSphere` for `$near` and `$nearSphere`.
    ///
    /// With an empty filter, the count reads all documents.
    /// [`estimated_document_count`](Self::estimated_document_count) does not.
    ///
    /// [restrictions]: https://www.mongodb.com/docs/manual/reference/operator/aggregation/match/#restrictions
    #[track_caller]
    pub fn count_documents(&self, filter: impl Serialize) -> CountDocuments<'_, C> {
        let mut stage = Fields::new();
        stage.put("filter", "$match", Shape::Document, &filter);
        CountDocuments { request: self.request("aggregate"), stage, skip: None, limit: None }
    }

    /// Prepares a quick count of all documents, from the server's metadata about the collection. The count may be wrong
    /// after an unclean shutdown, or in a sharded cluster.
    ///
    /// This runs the `count` command: see its [behaviour][count] in the server's manual. With version 1 of the Stable
    /// API and `apiStrict`, the command needs MongoDB 5.0.9, because earlier releases omitted it from the API by
    /// mistake.
    ///
    /// [count]: https://www.mongodb.com/docs/manual/reference/command/count/#behavior
    #[track_caller]
    pub fn estimated_document_count(&self) -> EstimatedDocumentCount<'_, C> {
        EstimatedDocumentCount { request: self.request("count") }
    }

    /// Prepares a query for the distinct values of a field, among the documents that match `filter`.
    #[track_caller]
    pub fn distinct(&self, field: impl AsRef<str>, filter: impl Serialize) -> Distinct<'_, C> {
        let mut request = self.request("distinct");
        request.body.add("key", field.as_ref());
        request.body.put("filter", "query", Shape::Document, &filter);
        Distinct { request }
    }
}

impl<C: AnyClient> Database<C> {
    /// Prepares an aggregation whose input is not a collection: its first stage is `$currentOp` or `$documents`, for
    /// example. In all other respects, this is like [`Collection::aggregate`].
    #[track_caller]
    pub fn aggregate(&self, pipeline: impl Serialize) -> Aggregate<'_, Document, C> {
        Aggregate::new(self.request(Fields::command("aggregate", &1)), &pipeline)
    }
}

/// An aggregation, prepared by [`Collection::aggregate`] or [`Database::aggregate`].
#[must_use = "it is sent when it is awaited or run"]
pub struct Aggregate<'c, T = Document, C = Client> {
    request: Request<'c, C>,
    cursor: CursorOptions,
    documents: PhantomData<fn() -> &'c T>,
}

impl<'c, C: AnyClient> Aggregate<'c, Document, C> {
    fn new(mut request: Request<'c, C>, pipeline: &impl Serialize) -> Self {
        request.body.put("pipeline", "pipeline", Shape::Array, pipeline);
        Self { request, cursor: CursorOptions::default(), documents: PhantomData }
    }
}

impl<'c, T, C: AnyClient> Aggregate<'c, T, C> {
    options!([request.body]
        allow_disk_use, bypass_document_validation, collation, comment, hint, let_vars, max_time,
    );
    cursor_options!();

    /// Returns the same aggregation for values of another type.
    #[doc(alias = "with_type")]
    pub fn typed<U>(self) -> Aggregate<'c, U, C> {
        Aggregate { request: self.request, cursor: self.cursor, documents: PhantomData }
    }

    fn send(self) -> impl Future<Output = Result<Cursor<T>, ClientError>> + Send {
        self.request.query(Verb::Aggregate, self.cursor)
    }
}

builder!(Aggregate<T> => Cursor<T>, read_preference, read_concern, write_concern);

/// A count of documents, prepared by [`Collection::count_documents`].
#[must_use = "it is sent when it is awaited or run"]
pub struct CountDocuments<'c, C = Client> {
    request: Request<'c, C>,
    /// The `$match` stage.
    stage: Fields,
    skip: Option<u64>,
    limit: Option<u64>,
}

impl<C: AnyClient> CountDocuments<'_, C> {
    options!([request.body] collation, comment, hint, max_time);

    /// Sets how many documents to skip before counting.
    pub fn skip(mut self, documents: u64) -> Self {
        self.skip = Some(documents);
        self
    }

    /// Sets the maximum number of documents to count. Zero means all.
    pub fn limit(mut self, documents: u64) -> Self {
        self.limit = Some(documents);
        self
    }

    /// Counts with `$group` (CRUD, "countDocuments").
    async fn send(self) -> Result<u64, ClientError> {
        let Self { mut request, stage, skip, limit } = self;
        let mut pipeline = RawArrayBuf::new();
        pipeline.push(stage.finish()?);
        for (stage, documents) in [("$skip", skip), ("$limit", limit)] {
            if let Some(documents) = documents.filter(|documents| *documents > 0) {
                pipeline.push(Fields::command(stage, &documents).finish()?);
            }
        }
        pipeline.push(rawdoc! { "$group": { "_id": 1, "n": { "$sum": 1 } } });
        request.body.add("pipeline", &pipeline);
        request.body.add("cursor", &RawDocumentBuf::new());
        let reply = request.read().await?;
        first_of_batch("aggregate", &reply)?.map_or(Ok(0), |counted| number("aggregate", counted))
    }
}

builder!(CountDocuments => u64, read_preference, read_concern);

/// A quick count of all documents, prepared by [`Collection::estimated_document_count`].
#[must_use = "it is sent when it is awaited or run"]
pub struct EstimatedDocumentCount<'c, C = Client> {
    request: Request<'c, C>,
}

impl<C: AnyClient> EstimatedDocumentCount<'_, C> {
    options!([request.body] comment, max_time);

    async fn send(self) -> Result<u64, ClientError> {
        number("count", &self.request.read().await?)
    }
}

builder!(EstimatedDocumentCount => u64, read_preference, read_concern);

/// A query for distinct values, prepared by [`Collection::distinct`].
#[must_use = "it is sent when it is awaited or run"]
pub struct Distinct<'c, C = Client> {
    request: Request<'c, C>,
}

impl<C: AnyClient> Distinct<'_, C> {
    options!([request.body] collation, comment, hint, max_time);

    async fn send(self) -> Result<Vec<Bson>, ClientError> {
        let reply = self.request.read().await?;
        let unreadable = |error: bson::error::Error| ClientError::unreadable("distinct", error.to_string());
        let values = reply.get_array("values").map_err(unreadable)?.into_iter();
        values.map(|value| Bson::try_from(value?)).collect::<Result<_, _>>().map_err(unreadable)
    }
}

builder!(Distinct => Vec<Bson>, read_preference, read_concern);

/// Returns the count in a document.
fn number(command: &'static str, counted: &bson::RawDocument) -> Result<u64, ClientError> {
    let unreadable = |reason: String| ClientError::unreadable(command, reason);
    let number = whole_number(counted, "n").map_err(|error| unreadable(error.to_string()))?;
    number.and_then(|number| u64::try_from(number).ok()).ok_or_else(|| unreadable("it has no number n".to_owned()))
}
