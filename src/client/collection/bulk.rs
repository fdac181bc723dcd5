//! `bulk_write`: writes of any kind to one collection.

use crate::client::session::{SessionError, name};
use std::collections::BTreeMap;

use bson::{Bson, RawDocument};
use serde::Serialize;

use super::super::Client;
use super::super::error::ClientError;
use super::fields::{Fields, Shape, refused};
use super::insert::NewDocument;
use super::request::Request;
use super::results::BulkWriteResult;
use super::update::{delete_statement, replace_statement, update_statement};
use super::{AnyClient, Collection};
use crate::endpoint::Limit;

impl<T, C: AnyClient> Collection<T, C> {
    /// Prepares writes of any kind, in as few commands as the server's limits allow.
    ///
    /// ```no_run
    /// # async fn example(client: wharf::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use bson::{Document, doc};
    /// use wharf::client::WriteModel;
    ///
    /// let orders = client.database("shop").collection::<Document>("orders");
    /// let written = orders
    ///     .bulk_write([
    ///         WriteModel::insert_one(doc! { "_id": 1, "paid": false }),
    ///         WriteModel::update_one(doc! { "_id": 2 }, doc! { "$set": { "paid": true } }).upsert(true),
    ///         WriteModel::delete_many(doc! { "paid": true }),
    ///     ])
    ///     .await?;
    /// println!("{} inserted, {} deleted", written.inserted_count, written.deleted_count);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn bulk_write(&self, models: impl IntoIterator<Item = WriteModel>) -> BulkWrite<'_, C> {
        let (request, models) = (self.request_of(Fields::new()), models.into_iter().collect());
        BulkWrite { request, collection: self.name(), models, ordered: true }
    }
}

/// One of the writes in [`Collection::bulk_write`].
#[derive(Debug, Clone)]
#[must_use = "a write is sent by bulk_write"]
pub struct WriteModel {
    pub(super) change: Change,
    /// The statement of an update or a delete. For an insert, this contains only the options.
    pub(super) statement: Fields,
}

#[derive(Debug, Clone)]
pub(super) enum Change {
    Insert(Result<NewDocument, ClientError>),
    Update,
    Delete,
}

impl WriteModel {
    /// Creates an insert of a document of any type. If the document has no `_id`, the client adds one.
    pub fn insert_one(document: impl Serialize) -> Self {
        let document = NewDocument::of("document", &document, true);
        Self { change: Change::Insert(document), statement: Fields::new() }
    }

    /// Creates an update of one document: see [`Collection::update_one`].
    pub fn update_one(filter: impl Serialize, update: impl Serialize) -> Self {
        Self { change: Change::Update, statement: update_statement(&filter, &update) }
    }

    /// Creates an update of all documents that match `filter`: see [`Collection::update_many`].
    pub fn update_many(filter: impl Serialize, update: impl Serialize) -> Self {
        let mut statement = update_statement(&filter, &update);
        statement.add("multi", &true);
        Self { change: Change::Update, statement }
    }

    /// Creates a replacement of one document with a value of any type: see [`Collection::replace_one`].
    pub fn replace_one(filter: impl Serialize, replacement: impl Serialize) -> Self {
        Self { change: Change::Update, statement: replace_statement(&filter, &replacement) }
    }

    /// Creates a deletion of one document: see [`Collection::delete_one`].
    pub fn delete_one(filter: impl Serialize) -> Self {
        Self { change: Change::Delete, statement: delete_statement(&filter, 1) }
    }

    /// Creates a deletion of all documents that match `filter`: see [`Collection::delete_many`].
    pub fn delete_many(filter: impl Serialize) -> Self {
        Self { change: Change::Delete, statement: delete_statement(&filter, 0) }
    }

    options!([statement] array_filters, collation, hint, sort, upsert);
}

/// Writes of any kind, prepared by [`Collection::bulk_write`].
#[must_use = "it is sent when it is awaited or run"]
pub struct BulkWrite<'c, C = Client> {
    request: Request<'c, C>,
    collection: &'c str,
    models: Vec<WriteModel>,
    ordered: bool,
}

impl<C: AnyClient> BulkWrite<'_, C> {
    options!([request.body] bypass_document_validation, comment, let_vars);

    /// Sets whether the first failed write stops the rest (`ordered`). The default is true. If false, the writes are
    /// executed in any order. In a transaction, a failure always stops the rest, because it ends the transaction.
    pub fn ordered(mut self, ordered: bool) -> Self {
        self.ordered = ordered;
        self
    }

    async fn send(self) -> Result<BulkWriteResult, ClientError> {
        let Self { request, collection, models, ordered } = self;
        if models.is_empty() {
            return Err(refused("models", "there are none"));
        }
        let mut write = request.into_write(collection, ordered)?;
        let mut inserted_ids = BTreeMap::new();
        for (place, WriteModel { change, statement }) in models.into_iter().enumerate() {
            let statement = statement.finish()?;
            write = match change {
                Change::Insert(document) => {
                    has_no_option(&statement, place)?;
                    let document = document?;
                    inserted_ids.insert(place, document.id());
                    let generated = document.generated;
                    write.insert_new(document.into_document()?, generated)
                }
                Change::Update => write.update(statement),
                Change::Delete => write.delete(statement),
            };
        }
        let written = write.await?;
        let upserted = written.upserted.into_iter();
        let upserted_ids = upserted.map(|(place, id)| (place, Bson::try_from(id).unwrap_or(Bson::Null))).collect();
        Ok(BulkWriteResult {
            acknowledged: written.acknowledged,
            inserted_count: written.inserted,
            matched_count: written.matched,
            modified_count: written.modified,
            deleted_count: written.deleted,
            inserted_ids,
            upserted_ids,
        })
    }
}

/// Refuses the options of an insert.
pub(super) fn has_no_option(statement: &RawDocument, place: usize) -> Result<(), ClientError> {
    match name(statement) {
        Some(option) => Err(refused("models", format!("an insert has no option {option} (number {place})"))),
        None => Ok(()),
    }
}

builder!(BulkWrite => BulkWriteResult, write_concern);
