//! The results of writes.

use std::collections::BTreeMap;

use bson::{Bson, RawBsonRef, RawDocument};
use serde::ser::Serializer;

/// The result of `insert_one`.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct InsertOneResult {
    /// Whether the server acknowledged the write. With the write concern `w: 0` it does not.
    pub acknowledged: bool,
    /// The `_id` of the document, which the client may have added.
    pub inserted_id: Bson,
}

/// The result of `insert_many`.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct InsertManyResult {
    /// Whether the server acknowledged the writes. With the write concern `w: 0` it does not.
    pub acknowledged: bool,
    /// The `_id`s of the documents, keyed by the documents' positions. The client may have added some of them.
    #[serde(serialize_with = "by_place")]
    pub inserted_ids: BTreeMap<usize, Bson>,
}

/// The result of `update_one`, `update_many` or `replace_one`.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UpdateResult {
    /// Whether the server acknowledged the write. With the write concern `w: 0` it does not, and the numbers are 0.
    pub acknowledged: bool,
    /// The number of documents that the filter matched.
    pub matched_count: u64,
    /// The number of documents that were changed. This number is less than
    /// [`matched_count`](Self#structfield.matched_count) if some documents already had the new values.
    pub modified_count: u64,
    /// The `_id` of the document that `upsert` inserted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upserted_id: Option<Bson>,
}

/// The result of `delete_one` or `delete_many`.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeleteResult {
    /// Whether the server acknowledged the write. With the write concern `w: 0` it does not, and the number is 0.
    pub acknowledged: bool,
    /// The number of documents that were deleted.
    pub deleted_count: u64,
}

/// The result of `bulk_write`.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct BulkWriteResult {
    /// Whether the server acknowledged the writes. With the write concern `w: 0` it does not, and the numbers are 0.
    pub acknowledged: bool,
    /// The number of documents that were inserted, not counting upserts.
    pub inserted_count: u64,
    /// The number of documents that updates and replacements matched.
    pub matched_count: u64,
    /// The number of documents that updates and replacements changed.
    pub modified_count: u64,
    /// The number of documents that were deleted.
    pub deleted_count: u64,
    /// The `_id`s of the inserted documents, keyed by the positions of the writes.
    #[serde(serialize_with = "by_place")]
    pub inserted_ids: BTreeMap<usize, Bson>,
    /// The `_id`s of the documents that `upsert` inserted, keyed by the positions of the writes.
    #[serde(serialize_with = "by_place")]
    pub upserted_ids: BTreeMap<usize, Bson>,
}

/// Serializes the positions as strings, because the keys of a document are strings.
fn by_place<S: Serializer>(ids: &BTreeMap<usize, Bson>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(ids.iter().map(|(place, id)| (place.to_string(), id)))
}

/// The counts in the reply to a write with one statement. With `w: 0`, the server sends no reply, and the client
/// substitutes a reply without these fields.
#[derive(Default)]
pub(super) struct Counts {
    n: Option<u64>,
    modified: u64,
    upserted: Option<Bson>,
}

impl Counts {
    /// Reads a successful reply, in one pass.
    pub fn read(reply: &RawDocument) -> Self {
        let mut counts = Self::default();
        for (field, value) in reply.iter().flatten() {
            match field.as_str() {
                "n" => counts.n = count(value),
                "nModified" => counts.modified = count(value).unwrap_or(0),
                "upserted" => counts.upserted = first_id(value),
                _ => {}
            }
        }
        counts
    }

    pub fn is_acknowledged(&self) -> bool {
        self.n.is_some()
    }

    pub fn of_delete(self) -> DeleteResult {
        DeleteResult { acknowledged: self.is_acknowledged(), deleted_count: self.n.unwrap_or(0) }
    }

    pub fn of_update(self) -> UpdateResult {
        let inserted = u64::from(self.upserted.is_some());
        UpdateResult {
            acknowledged: self.is_acknowledged(),
            matched_count: self.n.unwrap_or(0).saturating_sub(inserted),
            modified_count: self.modified,
            upserted_id: self.upserted,
        }
    }
}

/// Reads a document count, which may have any numeric BSON type.
fn count(value: RawBsonRef<'_>) -> Option<u64> {
    match value {
        RawBsonRef::Int32(number) => u64::try_from(number).ok(),
        RawBsonRef::Int64(number) => u64::try_from(number).ok(),
        RawBsonRef::Double(number) => Some(number as u64),
        _ => None,
    }
}

/// Returns the `_id` in the first document of an array.
fn first_id(upserted: RawBsonRef<'_>) -> Option<Bson> {
    let first = upserted.as_array()?.into_iter().next()?.ok()?;
    first.as_document()?.get("_id").ok()??.try_into().ok()
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn results_are_written_with_the_names_of_the_specification() {
        let updated = UpdateResult { acknowledged: true, matched_count: 2, modified_count: 1, upserted_id: None };
        let expected = doc! { "acknowledged": true, "matchedCount": 2_i64, "modifiedCount": 1_i64 };
        assert_eq!(bson::serialize_to_document(&updated).unwrap(), expected);
        let inserted = InsertManyResult { acknowledged: true, inserted_ids: [(0, Bson::Int32(7))].into() };
        let expected = doc! { "acknowledged": true, "insertedIds": { "0": 7 } };
        assert_eq!(bson::serialize_to_document(&inserted).unwrap(), expected);
        assert_eq!(InsertOneResult::default().inserted_id, Bson::Null);
    }
}
