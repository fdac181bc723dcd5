//! Databases and collections as a whole: creating, listing, renaming and dropping them.

use crate::client::session::SessionError;
use std::marker::PhantomData;

use bson::{Bson, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::super::Client;
use super::super::cursor::{Cursor, TimeoutMode};
use super::super::error::ClientError;
use super::fields::{Fields, Shape};
use super::indexes::IndexSpecification;
use super::request::{CursorOptions, Request};
use super::{AnyClient, Collection, Database, Settings};
use crate::endpoint::Limit;
use crate::endpoint::options::PRIMARY;
use crate::endpoint::wire::reply::whole_number;

/// The server's error code for `NamespaceNotFound`.
const NAMESPACE_NOT_FOUND: i32 = 26;

impl Client {
    /// Prepares a listing of the databases, with their sizes.
    #[track_caller]
    pub fn list_databases(&self) -> ListDatabases<'_> {
        ListDatabases::of(self)
    }

    /// Prepares a query for the names of the databases.
    #[track_caller]
    pub fn list_database_names(&self) -> ListDatabaseNames<'_> {
        ListDatabaseNames::of(self)
    }
}

/// Returns a request for the databases.
#[track_caller]
fn list<C>(client: &C) -> Request<'_, C> {
    let mut request = Request::new(client, "admin", Settings::NONE, Fields::command("listDatabases", &1));
    request.read_preference = Some(&PRIMARY);
    request
}

impl<C: AnyClient> Database<C> {
    /// Prepares the creation of a collection with options, such as a capped collection, a time series, a view, or a
    /// collection with a validator. A collection without options does not need to be created: the server creates it
    /// when its first document is inserted.
    #[track_caller]
    pub fn create_collection(&self, name: impl AsRef<str>) -> CreateCollection<'_, C> {
        CreateCollection { request: self.request(Fields::command("create", name.as_ref())) }
    }

    /// Prepares a query for the collections and views. Await it to get a [`Cursor`] of [`CollectionSpecification`] or,
    /// after [`typed`](ListCollections::typed), of any type.
    #[track_caller]
    pub fn list_collections(&self) -> ListCollections<'_, CollectionSpecification, C> {
        let request = self.request(Fields::command("listCollections", &1));
        ListCollections { request, cursor: CursorOptions::default(), collections: PhantomData }
    }

    /// Prepares a query for the names of the collections and views.
    #[track_caller]
    pub fn list_collection_names(&self) -> ListCollectionNames<'_, C> {
        ListCollectionNames { request: self.request(Fields::command("listCollections", &1)) }
    }

    /// Prepares dropping the database with all its collections.
    #[track_caller]
    pub fn drop(&self) -> DropNamespace<'_, C> {
        DropNamespace { request: self.request(Fields::command("dropDatabase", &1)) }
    }
}

impl<T, C: AnyClient> Collection<T, C> {
    /// Prepares dropping the collection with its documents and indexes. The call succeeds even if the collection does
    /// not exist.
    #[track_caller]
    pub fn drop(&self) -> DropNamespace<'_, C> {
        DropNamespace { request: self.request("drop") }
    }

    /// Prepares a rename of the collection within its database. This handle keeps the old name.
    #[track_caller]
    pub fn rename(&self, name: impl AsRef<str>) -> Rename<'_, C> {
        let of = |name: &str| format!("{}.{name}", self.database());
        let mut body = Fields::command("renameCollection", &of(self.name()));
        body.add("to", &of(name.as_ref()));
        let mut request = self.request_of(body);
        request.database = "admin";
        Rename { request }
    }
}

/// Declares the type of a builder for a command without statements.
macro_rules! command {
    ($(#[$doc:meta])* $name:ident => $output:ty: $($option:ident),* $(; $inherited:ident)?) => {
        $(#[$doc])*
        #[must_use = "it is sent when it is awaited or run"]
        pub struct $name<'c, C = Client> {
            request: Request<'c, C>,
        }

        impl<C: AnyClient> $name<'_, C> {
            options!([request.body] $($option),*);
        }

        builder!($name => $output $(, $inherited)?);
    };
}

command! {
    /// The creation of a collection, prepared by [`Database::create_collection`].
    CreateCollection => ():
        capped, change_stream_pre_and_post_images, clustered_index, collation, comment, expire_after,
        index_option_defaults, max_documents, max_time, pipeline, size, storage_engine, time_series, validation_action,
        validation_level, validator, view_on;
    write_concern
}

impl<C: AnyClient> CreateCollection<'_, C> {
    async fn send(self) -> Result<(), ClientError> {
        self.request.write().await.map(drop)
    }
}

command! {
    /// The removal of a collection or a database, prepared by [`Collection::drop`] or [`Database::drop`].
    DropNamespace => (): comment, max_time; write_concern
}

impl<C: AnyClient> DropNamespace<'_, C> {
    async fn send(self) -> Result<(), ClientError> {
        found_or_not(self.request.write().await)
    }
}

command! {
    /// The renaming of a collection, prepared by [`Collection::rename`].
    Rename => (): comment, drop_target, max_time; write_concern
}

impl<C: AnyClient> Rename<'_, C> {
    async fn send(self) -> Result<(), ClientError> {
        self.request.write().await.map(drop)
    }
}

/// A query for collections, prepared by [`Database::list_collections`].
#[must_use = "it is sent when it is awaited or run"]
pub struct ListCollections<'c, T = CollectionSpecification, C = Client> {
    request: Request<'c, C>,
    cursor: CursorOptions,
    collections: PhantomData<fn() -> &'c T>,
}

impl<'c, T, C: AnyClient> ListCollections<'c, T, C> {
    options!([request.body] authorized_collections, comment, filter, max_time);
    cursor_options!();

    /// Returns the same query for descriptions of another type, such as [`Document`].
    #[doc(alias = "with_type")]
    pub fn typed<U>(self) -> ListCollections<'c, U, C> {
        ListCollections { request: self.request, cursor: self.cursor, collections: PhantomData }
    }

    fn send(self) -> impl Future<Output = Result<Cursor<T>, ClientError>> + Send {
        self.request.list(self.cursor)
    }
}

builder!(ListCollections<T> => Cursor<T>);

/// A collection or a view, as [`Database::list_collections`] describes it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CollectionSpecification {
    /// The name.
    pub name: String,
    /// The type: `collection`, `view` or `timeseries`. On the wire, this field is named `type`.
    pub collection_type: String,
    /// The options that the collection was created with.
    pub options: Document,
    /// Whether the collection is read-only, as a view is.
    pub read_only: bool,
    /// The identifier. A view has none.
    pub uuid: Option<bson::Uuid>,
    /// The index on `_id`, if there is one.
    pub id_index: Option<IndexSpecification>,
}

impl<'de> Deserialize<'de> for CollectionSpecification {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut collection = Document::deserialize(deserializer)?;
        let mut document = |field: &str| match collection.remove(field) {
            Some(Bson::Document(document)) => Some(document),
            _ => None,
        };
        let (options, info, id_index) = (document("options"), document("info"), document("idIndex"));
        let text = |field: &str| collection.get_str(field).map(str::to_owned).map_err(D::Error::custom);
        let uuid = info.as_ref().and_then(|info| match info.get("uuid") {
            Some(Bson::Binary(uuid)) => uuid.to_uuid().ok(),
            _ => None,
        });
        Ok(Self {
            name: text("name")?,
            collection_type: text("type")?,
            options: options.unwrap_or_default(),
            read_only: info.is_some_and(|info| info.get_bool("readOnly").unwrap_or(false)),
            uuid,
            id_index: id_index.map(IndexSpecification::of).transpose().map_err(D::Error::custom)?,
        })
    }
}

/// Serializes to the form that the server sends.
impl Serialize for CollectionSpecification {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut info = doc! { "readOnly": self.read_only };
        info.extend(self.uuid.map(|uuid| ("uuid".to_owned(), uuid.into())));
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("type", &self.collection_type)?;
        map.serialize_entry("options", &self.options)?;
        map.serialize_entry("info", &info)?;
        if let Some(index) = &self.id_index {
            map.serialize_entry("idIndex", index)?;
        }
        map.end()
    }
}

command! {
    /// A query for the names of collections, prepared by [`Database::list_collection_names`].
    ListCollectionNames => Vec<String>: authorized_collections, comment, filter, max_time
}

impl<C: AnyClient> ListCollectionNames<'_, C> {
    async fn send(mut self) -> Result<Vec<String>, ClientError> {
        // With `nameOnly`, the server would apply the filter only to the names (Enumerating Collections, "Getting
        // Collection Names").
        let needs_more = |filter: &RawDocument| filter.iter().flatten().any(|(field, _)| field.as_str() != "name");
        if !self.request.body.document_at("filter").is_some_and(needs_more) {
            self.request.body.add("nameOnly", &true);
        }
        names("listCollections", self.request.list(CursorOptions::default()).await?).await
    }
}

command! {
    /// A query for databases, prepared by [`Client::list_databases`].
    ListDatabases => Vec<DatabaseSpecification>: authorized_databases, comment, filter, max_time
}

impl<'c, C: AnyClient> ListDatabases<'c, C> {
    #[track_caller]
    pub(crate) fn of(client: &'c C) -> Self {
        Self { request: list(client) }
    }

    async fn send(self) -> Result<Vec<DatabaseSpecification>, ClientError> {
        databases(&self.request.read().await?)?.into_iter().map(DatabaseSpecification::read).collect()
    }
}

command! {
    /// A query for the names of databases, prepared by [`Client::list_database_names`].
    ListDatabaseNames => Vec<String>: authorized_databases, comment, filter, max_time
}

impl<'c, C: AnyClient> ListDatabaseNames<'c, C> {
    #[track_caller]
    pub(crate) fn of(client: &'c C) -> Self {
        let mut request = list(client);
        request.body.add("nameOnly", &true);
        Self { request }
    }

    async fn send(self) -> Result<Vec<String>, ClientError> {
        databases(&self.request.read().await?)?.into_iter().map(|database| name("listDatabases", database)).collect()
    }
}

/// A database, as the server describes it.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DatabaseSpecification {
    /// The name.
    pub name: String,
    /// The size on disk, in bytes.
    pub size_on_disk: u64,
    /// Whether the database contains no collections.
    pub empty: bool,
    /// The size on each shard, in bytes. Only sharded clusters report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shards: Option<Document>,
}

impl DatabaseSpecification {
    fn read(document: &RawDocument) -> Result<Self, ClientError> {
        let size = whole_number(document, "sizeOnDisk").ok().flatten();
        Ok(Self {
            name: name("listDatabases", document)?,
            size_on_disk: size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
            empty: document.get_bool("empty").unwrap_or(false),
            shards: document.get_document("shards").ok().and_then(|shards| shards.try_into().ok()),
        })
    }
}

/// Returns the descriptions in the reply to `listDatabases`.
fn databases(reply: &RawDocument) -> Result<Vec<&RawDocument>, ClientError> {
    let unreadable = |reason: String| ClientError::unreadable("listDatabases", reason);
    let databases = reply.get_array("databases").map_err(|error| unreadable(error.to_string()))?;
    let documents = databases.into_iter().map(|value| match value {
        Ok(RawBsonRef::Document(document)) => Ok(document),
        _ => Err(unreadable("a database is no document".to_owned())),
    });
    documents.collect()
}

/// Returns the `name` field of a description.
fn name(command: &'static str, document: &RawDocument) -> Result<String, ClientError> {
    let name = document.get_str("name").map(str::to_owned);
    name.map_err(|error| ClientError::unreadable(command, error.to_string()))
}

/// Returns the names in all descriptions that a cursor returns.
pub(super) async fn names(command: &'static str, mut cursor: Cursor<Document>) -> Result<Vec<String>, ClientError> {
    let mut names = Vec::new();
    while let Some(document) = cursor.next_document().await? {
        names.push(name(command, document)?);
    }
    Ok(names)
}

/// Treats the server's error for an object that does not exist as success: either way, the object does not exist.
pub(super) fn found_or_not(outcome: Result<RawDocumentBuf, ClientError>) -> Result<(), ClientError> {
    match outcome {
        Err(error) if error.server_error().is_some_and(|error| error.code == NAMESPACE_NOT_FOUND) => Ok(()),
        outcome => outcome.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collection_is_written_as_the_server_sends_it() {
        let index = doc! { "key": { "_id": 1 }, "name": "_id_", "v": 2 };
        let uuid = Bson::from(bson::Uuid::from_bytes([7; 16]));
        let collection = doc! {
            "name": "orders", "type": "collection", "options": { "capped": true },
            "info": { "readOnly": false, "uuid": uuid }, "idIndex": index,
        };
        let view = doc! { "name": "cheap", "type": "view", "options": {}, "info": { "readOnly": true } };
        for document in [collection, view] {
            let read: CollectionSpecification = bson::deserialize_from_document(document.clone()).unwrap();
            assert_eq!(bson::serialize_to_document(&read).unwrap(), document);
        }
    }
}
