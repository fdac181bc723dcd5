//! Search indexes of a collection, a feature of MongoDB Atlas.
//!
//! The commands for search indexes take neither a read concern nor a write concern (Index Management, "Search
//! Indexes").

use std::marker::PhantomData;

use bson::{Document, RawArrayBuf, RawBsonRef, RawDocument, rawdoc};
use serde::Serialize;

use super::super::Client;
use super::super::cursor::{Cursor, TimeoutMode};
use super::super::error::ClientError;
use super::administration::found_or_not;
use super::fields::{Fields, Shape};
use super::request::Request;
use super::{AnyClient, Collection};
use crate::client::session::SessionError;
use crate::endpoint::Limit;

const CREATE: &str = "createSearchIndexes";

impl<T, C: AnyClient> Collection<T, C> {
    /// Prepares the creation of a search index. Await it to get the index's name. The server replies before the index
    /// is built. [`list_search_indexes`](Self::list_search_indexes) shows when the index is ready.
    #[track_caller]
    pub fn create_search_index(&self, model: SearchIndexModel) -> CreateSearchIndex<'_, C> {
        CreateSearchIndex { request: self.search_request(CREATE), model }
    }

    /// Prepares the creation of several search indexes with one command. Await it to get the names of the indexes. In
    /// all other respects, this is like [`create_search_index`](Self::create_search_index).
    #[track_caller]
    pub fn create_search_indexes(
        &self,
        models: impl IntoIterator<Item = SearchIndexModel>,
    ) -> CreateSearchIndexes<'_, C> {
        CreateSearchIndexes { request: self.search_request(CREATE), models: models.into_iter().collect() }
    }

    /// Prepares a query for the search indexes. Await it to get a [`Cursor`] of documents or, after
    /// [`typed`](ListSearchIndexes::typed), of any type. The query is an aggregation, and the client does not retry it
    /// after a network error.
    #[track_caller]
    pub fn list_search_indexes(&self) -> ListSearchIndexes<'_, Document, C> {
        let (request, stage) = (self.search_request("aggregate"), Fields::new());
        ListSearchIndexes { request, stage, batch_size: None, timeout_mode: None, indexes: PhantomData }
    }

    /// Prepares an update of the search index with this name to a new definition.
    #[track_caller]
    pub fn update_search_index(&self, name: impl AsRef<str>, definition: impl Serialize) -> ChangeSearchIndex<'_, C> {
        let mut request = self.search_request("updateSearchIndex");
        request.body.add("name", name.as_ref());
        request.body.put("definition", "definition", Shape::Document, &definition);
        ChangeSearchIndex { request, is_removal: false }
    }

    /// Prepares the removal of the search index with this name. The call succeeds even if the collection does not
    /// exist.
    #[track_caller]
    pub fn drop_search_index(&self, name: impl AsRef<str>) -> ChangeSearchIndex<'_, C> {
        let mut request = self.search_request("dropSearchIndex");
        request.body.add("name", name.as_ref());
        ChangeSearchIndex { request, is_removal: true }
    }

    #[track_caller]
    fn search_request(&self, command: &'static str) -> Request<'_, C> {
        self.namespace.request_without_settings(Fields::command(command, self.name()))
    }
}

/// A search index: its definition, its name and its type.
///
/// ```
/// use bson::doc;
/// use wharf::client::SearchIndexModel;
///
/// let words = SearchIndexModel::new(doc! { "mappings": { "dynamic": true } }).name("words");
/// let plots = doc! { "type": "vector", "path": "plot", "numDimensions": 1536, "similarity": "euclidean" };
/// let plots = SearchIndexModel::new(doc! { "fields": [plots] }).index_type("vectorSearch");
/// ```
#[derive(Debug, Clone)]
#[must_use = "an index is created by create_search_index"]
pub struct SearchIndexModel {
    fields: Fields,
}

impl SearchIndexModel {
    /// Creates a search index with this definition.
    pub fn new(definition: impl Serialize) -> Self {
        let mut fields = Fields::new();
        fields.put("definition", "definition", Shape::Document, &definition);
        Self { fields }
    }

    /// Sets the name (`name`). By default the name is `default`.
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.fields.set("name", "name", Shape::Any, name.as_ref());
        self
    }

    /// Sets the type (`type`): `search`, which is the default, or `vectorSearch`.
    pub fn index_type(mut self, index_type: impl AsRef<str>) -> Self {
        self.fields.set("index_type", "type", Shape::Any, index_type.as_ref());
        self
    }
}

/// Sends the command, and returns the names of the indexes.
async fn create<C: AnyClient>(
    mut request: Request<'_, C>,
    models: Vec<SearchIndexModel>,
) -> Result<Vec<String>, ClientError> {
    let mut indexes = RawArrayBuf::new();
    for model in models {
        indexes.push(model.fields.finish()?);
    }
    request.body.add("indexes", &indexes);
    let mut ready = request.ready(false)?;
    names(&ready.command(true).await?)
}

fn names(reply: &RawDocument) -> Result<Vec<String>, ClientError> {
    let unreadable = |reason: String| ClientError::unreadable(CREATE, reason);
    let created = reply.get_array("indexesCreated").map_err(|error| unreadable(error.to_string()))?;
    let names = created.into_iter().map(|index| match index {
        Ok(RawBsonRef::Document(index)) => match index.get_str("name") {
            Ok(name) => Ok(name.to_owned()),
            Err(error) => Err(unreadable(error.to_string())),
        },
        _ => Err(unreadable("an index is no document".to_owned())),
    });
    names.collect()
}

/// The creation of a search index: [`Collection::create_search_index`].
#[must_use = "it is sent when it is awaited or run"]
pub struct CreateSearchIndex<'c, C = Client> {
    request: Request<'c, C>,
    model: SearchIndexModel,
}

impl<C: AnyClient> CreateSearchIndex<'_, C> {
    async fn send(self) -> Result<String, ClientError> {
        let names = create(self.request, vec![self.model]).await?;
        names.into_iter().next().ok_or_else(|| ClientError::unreadable(CREATE, "it names no index"))
    }
}

builder!(CreateSearchIndex => String);

/// The creation of search indexes: [`Collection::create_search_indexes`].
#[must_use = "it is sent when it is awaited or run"]
pub struct CreateSearchIndexes<'c, C = Client> {
    request: Request<'c, C>,
    models: Vec<SearchIndexModel>,
}

impl<C: AnyClient> CreateSearchIndexes<'_, C> {
    async fn send(self) -> Result<Vec<String>, ClientError> {
        create(self.request, self.models).await
    }
}

builder!(CreateSearchIndexes => Vec<String>);

/// A query for search indexes: [`Collection::list_search_indexes`].
#[must_use = "it is sent when it is awaited or run"]
pub struct ListSearchIndexes<'c, T = Document, C = Client> {
    request: Request<'c, C>,
    /// The `$listSearchIndexes` stage.
    stage: Fields,
    batch_size: Option<i32>,
    timeout_mode: Option<TimeoutMode>,
    indexes: PhantomData<fn() -> &'c T>,
}

impl<'c, T, C: AnyClient> ListSearchIndexes<'c, T, C> {
    options!([request.body]
        allow_disk_use, bypass_document_validation, collation, comment, hint, let_vars, max_time,
    );

    /// Lists only the index with this name.
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.stage.set("name", "name", Shape::Any, name.as_ref());
        self
    }

    /// Sets the number of documents in each batch (`batchSize`). By default the server decides.
    pub fn batch_size(mut self, documents: i32) -> Self {
        self.batch_size = Some(documents);
        self
    }

    /// Sets what `timeoutMS` limits. This requires a `timeoutMS`, in the call or in the options.
    pub fn timeout_mode(mut self, mode: TimeoutMode) -> Self {
        self.timeout_mode = Some(mode);
        self
    }

    /// Returns the same query, but with index descriptions of another type.
    #[doc(alias = "with_type")]
    pub fn typed<U>(self) -> ListSearchIndexes<'c, U, C> {
        let Self { request, stage, batch_size, timeout_mode, .. } = self;
        ListSearchIndexes { request, stage, batch_size, timeout_mode, indexes: PhantomData }
    }

    fn send(self) -> impl Future<Output = Result<Cursor<T>, ClientError>> + Send {
        let Self { mut request, stage, batch_size, timeout_mode, .. } = self;
        let cursor = stage.finish().map(|stage| {
            request.body.add("pipeline", &[rawdoc! { "$listSearchIndexes": stage }]);
            let cursor = batch_size.map_or(rawdoc! {}, |size| rawdoc! { "batchSize": size });
            request.body.add("cursor", &cursor);
            request.cursor(true, move |opening| match timeout_mode {
                Some(mode) => opening.timeout_mode(mode),
                None => opening,
            })
        });
        async move { Ok(cursor?.await?.typed()) }
    }
}

builder!(ListSearchIndexes<T> => Cursor<T>, read_preference);

/// An update or removal of a search index: [`Collection::update_search_index`] and [`Collection::drop_search_index`].
#[must_use = "it is sent when it is awaited or run"]
pub struct ChangeSearchIndex<'c, C = Client> {
    request: Request<'c, C>,
    is_removal: bool,
}

impl<C: AnyClient> ChangeSearchIndex<'_, C> {
    async fn send(self) -> Result<(), ClientError> {
        let mut ready = self.request.ready(false)?;
        let outcome = ready.command(true).await;
        if self.is_removal { found_or_not(outcome) } else { outcome.map(drop) }
    }
}

builder!(ChangeSearchIndex => ());
