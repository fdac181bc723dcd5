//! Converts the results of methods into the specification's documents.

use std::collections::BTreeMap;

use bson::{Bson, Document, doc};
use wharf::client::{BulkWriteResult, ClientBulkWriteResult, UpdateResult, Written};

use crate::case::Returned;

pub fn names(names: Vec<String>) -> Returned {
    Returned::Value(Bson::Array(names.into_iter().map(Bson::from).collect()))
}

/// Returns a document that maps positions to values.
pub fn by_place<'v, V: Clone + Into<Bson> + 'v>(values: impl IntoIterator<Item = (&'v usize, &'v V)>) -> Document {
    values.into_iter().map(|(place, value)| (place.to_string(), value.clone().into())).collect()
}

pub fn update(written: UpdateResult) -> Bson {
    let mut result = doc! {
        "acknowledged": written.acknowledged,
        "matchedCount": written.matched_count as i64,
        "modifiedCount": written.modified_count as i64,
        "upsertedCount": i64::from(written.upserted_id.is_some()),
    };
    if let Some(id) = written.upserted_id {
        result.insert("upsertedId", id);
    }
    result.into()
}

pub fn bulk(written: &BulkWriteResult) -> Bson {
    let mut result = counts(
        [written.inserted_count, written.matched_count, written.modified_count, written.deleted_count],
        by_place(&written.upserted_ids),
    );
    result.insert("acknowledged", written.acknowledged);
    result.insert("insertedIds", by_place(&written.inserted_ids));
    result.into()
}

/// Returns the partial result that a bulk write's error contains.
pub fn partial_bulk(written: &Written) -> Bson {
    let upserted = written.upserted.iter();
    let upserted = upserted.map(|(place, id)| (place.to_string(), Bson::try_from(id.as_raw_bson_ref()).unwrap()));
    counts([written.inserted, written.matched, written.modified, written.deleted], upserted.collect()).into()
}

fn counts([inserted, matched, modified, deleted]: [u64; 4], upserted_ids: Document) -> Document {
    doc! {
        "insertedCount": inserted as i64,
        "matchedCount": matched as i64,
        "modifiedCount": modified as i64,
        "deletedCount": deleted as i64,
        "upsertedCount": upserted_ids.len() as i64,
        "upsertedIds": upserted_ids,
    }
}

pub fn bulk_of_client(written: &ClientBulkWriteResult) -> Bson {
    let mut result = doc! {
        "acknowledged": written.acknowledged,
        "insertedCount": written.inserted_count as i64,
        "upsertedCount": written.upserted_count as i64,
        "matchedCount": written.matched_count as i64,
        "modifiedCount": written.modified_count as i64,
        "deletedCount": written.deleted_count as i64,
    };
    if let Some(verbose) = &written.verbose_results {
        let inserts = verbose.insert_results.iter();
        let inserts: BTreeMap<_, _> =
            inserts.map(|(&place, one)| (place, doc! { "insertedId": one.inserted_id.clone() })).collect();
        let updates = verbose.update_results.iter().map(|(&place, one)| {
            let mut result =
                doc! { "matchedCount": one.matched_count as i64, "modifiedCount": one.modified_count as i64 };
            result.extend(one.upserted_id.clone().map(|id| ("upsertedId".to_owned(), id)));
            (place, result)
        });
        let updates: BTreeMap<_, _> = updates.collect();
        let deletes = verbose.delete_results.iter();
        let deletes: BTreeMap<_, _> =
            deletes.map(|(&place, one)| (place, doc! { "deletedCount": one.deleted_count as i64 })).collect();
        result.insert("insertResults", by_place(&inserts));
        result.insert("updateResults", by_place(&updates));
        result.insert("deleteResults", by_place(&deletes));
    }
    result.into()
}
