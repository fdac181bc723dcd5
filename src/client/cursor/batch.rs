//! Batches of documents.

use bson::spec::ElementType;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::super::error::ClientError;
use crate::endpoint::wire::reply::whole_number;

/// A batch of documents, within the reply that contains it.
pub(super) struct Batch {
    pub(super) reply: RawDocumentBuf,
    /// The cursor's id on the server; 0 once the server has closed it.
    pub(super) id: i64,
    /// Where the next element of the array begins, from the start of the reply.
    next: usize,
    /// The start of the document that was returned last; 0 if there is none.
    current: usize,
}

impl Default for Batch {
    /// Returns a batch without documents.
    fn default() -> Self {
        let reply = RawDocumentBuf::new();
        Self { next: reply.as_bytes().len() - 1, current: 0, reply, id: 0 }
    }
}

/// The range of the document that the cursor advanced to, if there was one.
pub(crate) type Advanced = Result<Option<DocumentRange>, ClientError>;

/// The start of a document in the reply, and its length.
#[derive(Clone, Copy)]
pub(crate) struct DocumentRange {
    start: usize,
    length: usize,
}

impl Batch {
    /// Finds the batch in a reply to a query or to `getMore`.
    pub(super) fn read(reply: RawDocumentBuf, field: &'static str) -> Result<Self, ClientError> {
        let found = {
            let cursor = reply.get_document("cursor").map_err(|error| unreadable(error.to_string()))?;
            let id = id_of(cursor).ok_or_else(|| unreadable("cursor.id must be a 64-bit integer".to_owned()))?;
            let array = cursor.get_array(field).map_err(|error| unreadable(error.to_string()))?;
            // The array lies within the reply, so its offset is the difference between the two addresses.
            let start = array.as_bytes().as_ptr() as usize - reply.as_bytes().as_ptr() as usize;
            (id, start + 4)
        };
        Ok(Self { reply, id: found.0, next: found.1, current: 0 })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reply.as_bytes().get(self.next).is_none_or(|&kind| kind == 0)
    }

    /// Returns the range of the next document and steps over it, or `None` at the end of the array.
    pub(super) fn advance(&mut self) -> Advanced {
        self.current = 0;
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
                (self.next, self.current) = (start + length, start);
                Ok(Some(DocumentRange { start, length }))
            }
            _ => Err(malformed()),
        }
    }

    /// Returns the document that was returned last, if it is in this batch.
    pub(super) fn current(&self) -> Option<&RawDocument> {
        if self.current == 0 {
            return None;
        }
        RawDocument::from_bytes(&self.reply.as_bytes()[self.current..self.next]).ok()
    }

    pub(super) fn document(&self, DocumentRange { start, length }: DocumentRange) -> Result<&RawDocument, ClientError> {
        let bytes = &self.reply.as_bytes()[start..start + length];
        RawDocument::from_bytes(bytes).map_err(|error| unreadable(error.to_string()))
    }
}

pub(super) fn unreadable(reason: String) -> ClientError {
    ClientError::unreadable("a query", reason)
}

/// A cursor on the server, as described by the reply to a query.
pub(super) struct CursorReply {
    pub(super) id: i64,
    pub(super) collection: String,
}

impl CursorReply {
    /// Reads the cursor in a reply to a query. If the namespace cannot be read, the error is returned alongside the
    /// cursor, so the cursor can still be closed. In this case, the collection is taken from `query`.
    pub(super) fn read(reply: &RawDocument, query: &RawDocument) -> (Self, Result<(), ClientError>) {
        let cursor = reply.get_document("cursor");
        let id = cursor.as_ref().ok().and_then(|cursor| id_of(cursor)).unwrap_or(0);
        let needs_no_name = cursor.as_ref().is_ok_and(|cursor| {
            let has_ended = matches!(whole_number(cursor, "id"), Ok(Some(0)));
            has_ended && matches!(cursor.get("ns"), Ok(None | Some(RawBsonRef::Null)))
        });
        let namespace = cursor.and_then(|cursor| cursor.get_str("ns")).map_err(|error| unreadable(error.to_string()));
        let collection = namespace.and_then(|namespace| match namespace.split_once('.') {
            Some((_, collection)) => Ok(collection.to_owned()),
            None => Err(unreadable(format!("cursor.ns must be database.collection, got {namespace:?}"))),
        });
        match collection {
            Ok(collection) => (Self { id, collection }, Ok(())),
            Err(error) => {
                let named = query.iter().next().and_then(Result::ok).and_then(|(_, value)| value.as_str());
                (
                    Self { id, collection: named.unwrap_or_default().to_owned() },
                    if needs_no_name { Ok(()) } else { Err(error) },
                )
            }
        }
    }
}

/// Returns the collection that this reply names for the next `getMore`.
pub(super) fn collection_of(reply: &RawDocument) -> Option<&str> {
    let namespace = reply.get_document("cursor").ok()?.get_str("ns").ok()?;
    namespace.split_once('.').map(|(_, collection)| collection)
}

fn id_of(cursor: &RawDocument) -> Option<i64> {
    match cursor.get("id") {
        Ok(Some(RawBsonRef::Int64(id))) => Some(id),
        Ok(Some(RawBsonRef::Int32(id))) => Some(id.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bson::{RawBson, rawdoc};

    use super::*;

    #[test]
    fn only_a_cursor_that_has_ended_needs_no_name() {
        let query = rawdoc! { "find": "c" };
        for (cursor, is_read) in [
            (rawdoc! { "id": 0_i64 }, true),
            (rawdoc! { "id": 0.0, "ns": RawBson::Null }, true),
            (rawdoc! { "id": 7_i64 }, false),
            (rawdoc! {}, false),
            (rawdoc! { "id": 0_i64, "ns": "t" }, false),
        ] {
            let (found, outcome) = CursorReply::read(&rawdoc! { "cursor": cursor.clone() }, &query);
            assert_eq!(outcome.is_ok(), is_read, "{cursor:?}");
            assert_eq!(found.collection, "c");
        }
    }
}
