//! `insert_one` and `insert_many`.

use crate::client::object_id::object_id;
use crate::client::session::SessionError;
use std::borrow::Borrow;

use bson::oid::ObjectId;
use bson::spec::ElementType;
use bson::{Bson, RawDocument, RawDocumentBuf};
use serde::Serialize;

use super::super::Client;
use super::super::error::ClientError;
use super::super::typed::encode_after;
use super::fields::{Fields, Shape, refused};
use super::request::Request;
use super::results::{Counts, InsertManyResult, InsertOneResult};
use super::{AnyClient, Collection};
use crate::endpoint::wire::reply::has_field;
use crate::endpoint::{Limit, OutgoingSequence};

impl<T: Serialize, C: AnyClient> Collection<T, C> {
    /// Prepares an insert of a document. If the document has no `_id`, the client adds one. The result contains the
    /// `_id`. If an error leaves the outcome unknown, [`ClientError::generated_ids`] returns the added `_id`.
    #[track_caller]
    pub fn insert_one(&self, document: impl Borrow<T>) -> InsertOne<'_, C> {
        let document = NewDocument::of("document", document.borrow(), true).map_err(Box::new);
        InsertOne { request: self.request("insert"), document }
    }

    /// Prepares inserts of documents, in as few commands as the server's limits allow. The client adds an `_id` to
    /// documents without one, as in [`insert_one`](Self::insert_one).
    #[track_caller]
    pub fn insert_many(&self, documents: impl IntoIterator<Item = impl Borrow<T>>) -> InsertMany<'_, C> {
        let mut makes_room = true;
        let documents = documents.into_iter().map(|document| {
            let document = NewDocument::of("documents", document.borrow(), makes_room)?;
            // The documents in a collection tend to be alike: if one has an `_id`, the next probably does too.
            makes_room = document.generated.is_some();
            Ok(document)
        });
        let documents = documents.collect();
        InsertMany { request: self.request_of(Fields::new()), collection: self.name(), documents, ordered: true }
    }
}

/// An insert of one document, prepared by [`Collection::insert_one`].
#[must_use = "it is sent when it is awaited or run"]
pub struct InsertOne<'c, C = Client> {
    request: Request<'c, C>,
    document: Result<NewDocument, Box<ClientError>>,
}

impl<'c, C: AnyClient> InsertOne<'c, C> {
    options!([request.body] bypass_document_validation, comment);

    fn send(self) -> impl Future<Output = Result<InsertOneResult, ClientError>> + Send + 'c {
        let Self { mut request, document } = self;
        request.body.add("ordered", &true);
        let ready = request.ready(true);
        async move {
            let document = document.map_err(|error| *error)?;
            let documents = [document.document()?];
            let sequences = [OutgoingSequence::new("documents", &documents)];
            match ready?.write(true, &sequences).await {
                Ok(reply) => {
                    let acknowledged = Counts::read(&reply).is_acknowledged();
                    Ok(InsertOneResult { acknowledged, inserted_id: document.id() })
                }
                Err(error) => Err(error.with_generated_ids(document.generated.map(|id| (0, id)))),
            }
        }
    }
}

builder!(InsertOne => InsertOneResult, write_concern);

/// Inserts of documents, prepared by [`Collection::insert_many`].
#[must_use = "it is sent when it is awaited or run"]
pub struct InsertMany<'c, C = Client> {
    request: Request<'c, C>,
    collection: &'c str,
    documents: Result<Vec<NewDocument>, ClientError>,
    ordered: bool,
}

impl<C: AnyClient> InsertMany<'_, C> {
    options!([request.body] bypass_document_validation, comment);

    /// Sets whether the first failed insert stops the rest (`ordered`). The default is true. In a transaction, a
    /// failure always stops the rest, because it ends the transaction.
    pub fn ordered(mut self, ordered: bool) -> Self {
        self.ordered = ordered;
        self
    }

    async fn send(self) -> Result<InsertManyResult, ClientError> {
        let Self { request, collection, documents, ordered } = self;
        let documents = documents?;
        if documents.is_empty() {
            return Err(refused("documents", "there are none"));
        }
        let inserted_ids = documents.iter().map(NewDocument::id).enumerate().collect();
        let mut write = request.into_write(collection, ordered)?;
        for document in documents {
            let generated = document.generated;
            write = write.insert_new(document.into_document()?, generated);
        }
        Ok(InsertManyResult { acknowledged: write.await?.acknowledged, inserted_ids })
    }
}

builder!(InsertMany => InsertManyResult, write_concern);

/// Room for an `_id`: its type, its name, and an ObjectId.
const ROOM_FOR_ID: usize = 1 + 4 + 12;

/// A document to insert, which has an `_id`.
#[derive(Debug, Clone)]
pub(super) struct NewDocument {
    bytes: Vec<u8>,
    /// Where the document begins.
    start: usize,
    /// The `_id` that the client added.
    pub generated: Option<ObjectId>,
}

impl NewDocument {
    /// Writes a value as a document. If `makes_room` is true, leaves room in front, so that an `_id` can be added
    /// without moving the document.
    pub fn of(argument: &'static str, value: &impl Serialize, makes_room: bool) -> Result<Self, ClientError> {
        let start = if makes_room { ROOM_FOR_ID } else { 0 };
        let bytes = encode_after(argument, value, "; insert several documents with insert_many", start)?;
        let mut this = Self { bytes, start, generated: None };
        if !has_field(this.document()?, "_id") {
            this.give_id(argument)?;
        }
        Ok(this)
    }

    pub fn document(&self) -> Result<&RawDocument, ClientError> {
        RawDocument::from_bytes(&self.bytes[self.start..]).map_err(|error| refused("document", error.to_string()))
    }

    pub fn into_document(mut self) -> Result<RawDocumentBuf, ClientError> {
        self.bytes.drain(..self.start);
        RawDocumentBuf::from_bytes(self.bytes).map_err(|error| refused("document", error.to_string()))
    }

    /// Returns the `_id` of the document.
    pub fn id(&self) -> Bson {
        match self.generated {
            Some(id) => Bson::ObjectId(id),
            None => {
                let id = self.document().ok().and_then(|document| document.get("_id").ok()?);
                id.and_then(|id| id.try_into().ok()).unwrap_or(Bson::Null)
            }
        }
    }

    /// Adds an `_id` as the first field of the document (CRUD, "Generated identifiers").
    fn give_id(&mut self, argument: &'static str) -> Result<(), ClientError> {
        if self.start == 0 {
            self.bytes.splice(0..0, [0; ROOM_FOR_ID]);
        }
        let id = object_id();
        let length = i32::try_from(self.bytes.len()).map_err(|error| refused(argument, error.to_string()))?;
        // The `_id` ends where the other fields begin, because it overwrites their old length.
        let start = &mut self.bytes[..ROOM_FOR_ID + 4];
        start[..4].copy_from_slice(&length.to_le_bytes());
        start[4] = ElementType::ObjectId as u8;
        start[5..9].copy_from_slice(b"_id\0");
        start[9..].copy_from_slice(&id.bytes());
        (self.start, self.generated) = (0, Some(id));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn document_without_id_gets_one_as_its_first_field() {
        for makes_room in [true, false] {
            let new = NewDocument::of("document", &rawdoc! { "a": 1, "b": "text" }, makes_room).unwrap();
            let id = new.generated.unwrap();
            assert_eq!(new.id(), Bson::ObjectId(id));
            assert_eq!(new.document().unwrap(), &*rawdoc! { "_id": id, "a": 1, "b": "text" });
            assert_eq!(new.into_document().unwrap(), rawdoc! { "_id": id, "a": 1, "b": "text" });
        }
    }

    #[test]
    fn document_with_id_keeps_it_at_its_place() {
        for makes_room in [true, false] {
            let given = rawdoc! { "a": 1, "_id": "own" };
            let new = NewDocument::of("document", &given, makes_room).unwrap();
            assert_eq!((new.generated, new.id()), (None, Bson::String("own".to_owned())));
            assert_eq!(new.document().unwrap(), &*given);
            assert_eq!(new.into_document().unwrap(), given);
        }
    }
}
