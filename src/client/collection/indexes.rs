//! Indexes of a collection.

use crate::client::session::SessionError;
use std::fmt::Write as _;
use std::marker::PhantomData;

use bson::{Bson, Document, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Error as _, Serialize, SerializeMap, Serializer};

use super::super::Client;
use super::super::cursor::{Cursor, TimeoutMode};
use super::super::error::ClientError;
use super::administration::{found_or_not, names};
use super::fields::{Fields, Shape, refused};
use super::request::{CursorOptions, Request};
use super::{AnyClient, Collection};
use crate::endpoint::Limit;

impl<T, C: AnyClient> Collection<T, C> {
    /// Prepares the creation of an index. This has no effect if the index already exists. Await it to get the index's
    /// name.
    #[track_caller]
    pub fn create_index(&self, model: IndexModel) -> CreateIndex<'_, C> {
        CreateIndex { request: self.request("createIndexes"), model }
    }

    /// Prepares the creation of several indexes with one command. Await it to get their names.
    #[track_caller]
    pub fn create_indexes(&self, models: impl IntoIterator<Item = IndexModel>) -> CreateIndexes<'_, C> {
        CreateIndexes { request: self.request("createIndexes"), models: models.into_iter().collect() }
    }

    /// Prepares a query for the indexes. Await it to get a [`Cursor`] of [`IndexSpecification`] or, after
    /// [`typed`](ListIndexes::typed), of any type.
    #[track_caller]
    pub fn list_indexes(&self) -> ListIndexes<'_, IndexSpecification, C> {
        let request = self.request("listIndexes");
        ListIndexes { request, cursor: CursorOptions::default(), indexes: PhantomData }
    }

    /// Prepares a query for the names of the indexes.
    #[track_caller]
    pub fn list_index_names(&self) -> ListIndexNames<'_, C> {
        ListIndexNames { request: self.request("listIndexes") }
    }

    /// Prepares dropping an index. `index` is its name, such as `"price_1"`, or its keys, such as
    /// `doc! { "price": 1 }`. A text index can be dropped only by its name. The call succeeds even if the collection
    /// does not exist.
    #[track_caller]
    pub fn drop_index(&self, index: impl Serialize) -> DropIndexes<'_, C> {
        let mut request = self.request("dropIndexes");
        request.body.put("index", "index", Shape::Hint, &index);
        if request.body.document().is_ok_and(|body| body.get_str("index").is_ok_and(|name| name == "*")) {
            request.body.refuse(refused("index", "* stands for all indexes, which drop_indexes removes"));
        }
        DropIndexes { request }
    }

    /// Prepares dropping all indexes except the index on `_id`. The call succeeds even if the collection does not
    /// exist.
    #[track_caller]
    pub fn drop_indexes(&self) -> DropIndexes<'_, C> {
        let mut request = self.request("dropIndexes");
        request.body.add("index", "*");
        DropIndexes { request }
    }
}

/// An index: its keys and options.
///
/// ```
/// use std::time::Duration;
///
/// use bson::doc;
/// use wharf::client::IndexModel;
///
/// let by_customer = IndexModel::new(doc! { "customer": 1, "price": -1 }).unique(true);
/// let short_lived = IndexModel::new(doc! { "created": 1 }).expire_after(Duration::from_secs(3600)).name("short_lived");
/// ```
#[derive(Debug, Clone)]
#[must_use = "an index is created by create_index"]
pub struct IndexModel {
    fields: Fields,
}

impl IndexModel {
    /// Creates an index on these keys, each with its order or type: `{ customer: 1, price: -1 }`, `{ text: "text" }`.
    pub fn new(keys: impl Serialize) -> Self {
        let mut fields = Fields::new();
        fields.put("keys", "key", Shape::Document, &keys);
        Self { fields }
    }

    options!([fields]
        bits, collation, default_language, expire_after, hidden, language_override, max_coordinate, min_coordinate, name,
        partial_filter_expression, sparse, sphere_2d_index_version, storage_engine, text_index_version, unique, version,
        weights, wildcard_projection,
    );

    /// Adds fields that have no method here, such as `prepareUnique`, under their names in the server's manual. The
    /// value can be anything that serde serializes as a document.
    pub fn options(mut self, fields: impl Serialize) -> Self {
        self.fields.extend("options", &fields);
        self
    }

    /// Returns the document that describes the index, and its name.
    fn finish(mut self) -> Result<(RawDocumentBuf, String), ClientError> {
        let given = self.fields.document()?.get_str("name").ok().map(str::to_owned);
        let name = match given {
            Some(name) => name,
            None => {
                let name = self.fields.document_at("key").map(name_of).unwrap_or_default();
                self.fields.add("name", &name);
                name
            }
        };
        Ok((self.fields.finish()?, name))
    }
}

/// Serializes to the form that the server accepts. The name is missing unless [`name`](Self::name) was called.
impl Serialize for IndexModel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.fields.document().map_err(S::Error::custom)?.serialize(serializer)
    }
}

/// Returns the default name of an index on these keys (Index Management, "Index Name Generation").
fn name_of(keys: &RawDocument) -> String {
    let mut name = String::new();
    for (key, order) in keys.iter().flatten() {
        let separator = if name.is_empty() { "" } else { "_" };
        // Writing to a string cannot fail.
        let _ = match order {
            RawBsonRef::String(text) => write!(name, "{separator}{key}_{text}"),
            RawBsonRef::Int32(order) => write!(name, "{separator}{key}_{order}"),
            RawBsonRef::Int64(order) => write!(name, "{separator}{key}_{order}"),
            RawBsonRef::Double(order) => write!(name, "{separator}{key}_{order}"),
            _ => write!(name, "{separator}{key}_"),
        };
    }
    // The server gives this index a fixed name.
    if name == "_id_1" { "_id_".to_owned() } else { name }
}

/// Sends the command, and returns the names of the indexes.
async fn create<C: AnyClient>(
    mut request: Request<'_, C>,
    models: Vec<IndexModel>,
) -> Result<Vec<String>, ClientError> {
    if models.is_empty() {
        return Err(refused("models", "there are none"));
    }
    let (mut indexes, mut names) = (RawArrayBuf::new(), Vec::new());
    for model in models {
        let (index, name) = model.finish()?;
        indexes.push(index);
        names.push(name);
    }
    request.body.add("indexes", &indexes);
    request.write().await?;
    Ok(names)
}

/// The creation of an index, prepared by [`Collection::create_index`].
#[must_use = "it is sent when it is awaited or run"]
pub struct CreateIndex<'c, C = Client> {
    request: Request<'c, C>,
    model: IndexModel,
}

impl<C: AnyClient> CreateIndex<'_, C> {
    options!([request.body] comment, commit_quorum, max_time);

    async fn send(self) -> Result<String, ClientError> {
        let mut names = create(self.request, vec![self.model]).await?;
        Ok(names.swap_remove(0))
    }
}

builder!(CreateIndex => String, write_concern);

/// The creation of indexes, prepared by [`Collection::create_indexes`].
#[must_use = "it is sent when it is awaited or run"]
pub struct CreateIndexes<'c, C = Client> {
    request: Request<'c, C>,
    models: Vec<IndexModel>,
}

impl<C: AnyClient> CreateIndexes<'_, C> {
    options!([request.body] comment, commit_quorum, max_time);

    async fn send(self) -> Result<Vec<String>, ClientError> {
        create(self.request, self.models).await
    }
}

builder!(CreateIndexes => Vec<String>, write_concern);

/// A query for indexes, prepared by [`Collection::list_indexes`].
#[must_use = "it is sent when it is awaited or run"]
pub struct ListIndexes<'c, T = IndexSpecification, C = Client> {
    request: Request<'c, C>,
    cursor: CursorOptions,
    indexes: PhantomData<fn() -> &'c T>,
}

impl<'c, T, C: AnyClient> ListIndexes<'c, T, C> {
    options!([request.body] comment, max_time);
    cursor_options!();

    /// Returns the same query for descriptions of another type, such as [`Document`].
    #[doc(alias = "with_type")]
    pub fn typed<U>(self) -> ListIndexes<'c, U, C> {
        ListIndexes { request: self.request, cursor: self.cursor, indexes: PhantomData }
    }

    fn send(self) -> impl Future<Output = Result<Cursor<T>, ClientError>> + Send {
        self.request.list(self.cursor)
    }
}

builder!(ListIndexes<T> => Cursor<T>);

/// An index, as [`Collection::list_indexes`] describes it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct IndexSpecification {
    /// The name.
    pub name: String,
    /// The keys, each with its order or type.
    pub keys: Document,
    /// Everything else: the index's version `v`, and options such as `unique` and `expireAfterSeconds`. Before MongoDB
    /// 4.4, this includes `ns`.
    pub options: Document,
}

impl<'de> Deserialize<'de> for IndexSpecification {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(Document::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Serializes to the form that the server sends.
impl Serialize for IndexSpecification {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("key", &self.keys)?;
        map.serialize_entry("name", &self.name)?;
        for (option, value) in &self.options {
            map.serialize_entry(option, value)?;
        }
        map.end()
    }
}

impl IndexSpecification {
    pub(in crate::client) fn of(mut index: Document) -> Result<Self, &'static str> {
        let Some(Bson::String(name)) = index.remove("name") else { return Err("an index has no text in name") };
        let Some(Bson::Document(keys)) = index.remove("key") else { return Err("an index has no document in key") };
        Ok(Self { name, keys, options: index })
    }
}

/// A query for the names of indexes, prepared by [`Collection::list_index_names`].
#[must_use = "it is sent when it is awaited or run"]
pub struct ListIndexNames<'c, C = Client> {
    request: Request<'c, C>,
}

impl<C: AnyClient> ListIndexNames<'_, C> {
    options!([request.body] comment, max_time);

    async fn send(self) -> Result<Vec<String>, ClientError> {
        names("listIndexes", self.request.list(CursorOptions::default()).await?).await
    }
}

builder!(ListIndexNames => Vec<String>);

/// The removal of indexes, prepared by [`Collection::drop_index`] or [`Collection::drop_indexes`].
#[must_use = "it is sent when it is awaited or run"]
pub struct DropIndexes<'c, C = Client> {
    request: Request<'c, C>,
}

impl<C: AnyClient> DropIndexes<'_, C> {
    options!([request.body] comment, max_time);

    async fn send(self) -> Result<(), ClientError> {
        found_or_not(self.request.write().await)
    }
}

builder!(DropIndexes => (), write_concern);

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn index_is_written_as_the_server_takes_it() {
        let index = IndexModel::new(rawdoc! { "price": -1 }).unique(true);
        let written = bson::serialize_to_raw_document_buf(&index).unwrap();
        assert_eq!(written, rawdoc! { "key": { "price": -1 }, "unique": true });
        bson::serialize_to_document(&IndexModel::new("price")).unwrap_err();
    }

    #[test]
    fn name_of_an_index_is_made_of_its_keys() {
        for (keys, name) in [
            (rawdoc! { "name": 1, "dob": -1 }, "name_1_dob_-1"),
            (rawdoc! { "a": 1_i64, "b": -1.0, "c": "2dsphere", "$**": "text" }, "a_1_b_-1_c_2dsphere_$**_text"),
            (rawdoc! { "_id": 1 }, "_id_"),
            (rawdoc! { "_id": 1, "a": 1 }, "_id_1_a_1"),
        ] {
            assert_eq!(name_of(&keys), name);
        }
    }
}
