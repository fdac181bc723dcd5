//! Types for the events of a change stream.

use bson::{DateTime, Document, RawDocumentBuf, Timestamp};

/// A change that a change stream of a [`Collection`](crate::Collection) or a [`Database`](crate::Database) returns. `T`
/// is the type of the collection's documents.
///
/// The stream's pipeline may remove any field except `_id` and `operationType`. For events of another shape, use
/// [`Watch::typed`](super::Watch::typed).
///
/// ```no_run
/// # async fn example(orders: wharf::Collection<bson::Document>) -> Result<(), wharf::ClientError> {
/// use wharf::client::OperationType;
///
/// let mut changes = orders.watch(()).full_document("updateLookup").await?;
/// while let Some(change) = changes.next().await? {
///     match change.operation_type {
///         OperationType::Insert | OperationType::Update => println!("{:?}", change.full_document),
///         other => println!("{other:?} {:?}", change.document_key),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ChangeStreamEvent<T> {
    /// The resume token of this event (`_id`). A stream that is opened with this token as `resume_after` continues
    /// after the event.
    #[serde(rename = "_id")]
    pub id: RawDocumentBuf,
    /// What happened.
    pub operation_type: OperationType,
    /// The collection or the database that changed. `None` if the stream was invalidated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns: Option<ChangeNamespace>,
    /// The type of a new collection: `collection`, `timeseries` or `view`. Present only with `show_expanded_events`, in
    /// MongoDB 8.1 and later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_type: Option<String>,
    /// The new namespace of a renamed collection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<ChangeNamespace>,
    /// Describes a change to a collection, to its indexes or to its shard key. Present only with
    /// `show_expanded_events`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation_description: Option<Document>,
    /// The `_id` of the document that was inserted, updated, replaced or deleted, preceded by the fields of its shard
    /// key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document_key: Option<Document>,
    /// The changes of an update.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_description: Option<UpdateDescription>,
    /// The document, after an insert or a replacement. After an update, it is present only with the option
    /// `full_document`, and only if the document has not been deleted since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_document: Option<T>,
    /// The document before the change. Present only with the `full_document_before_change` option.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_document_before_change: Option<T>,
    /// The cluster time of the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_time: Option<Timestamp>,
    /// The time of the change according to the server's clock. Present in MongoDB 6.0 and later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_time: Option<DateTime>,
    /// The session of the transaction that the change belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lsid: Option<Document>,
    /// The number of the transaction that the change belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub txn_number: Option<i64>,
}

/// The kind of a change: `operationType`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum OperationType {
    /// `insert`.
    Insert,
    /// `update`.
    Update,
    /// `replace`.
    Replace,
    /// `delete`.
    Delete,
    /// `drop`: a collection was dropped.
    Drop,
    /// `rename`: a collection was renamed.
    Rename,
    /// `dropDatabase`.
    DropDatabase,
    /// `invalidate`: the stream ends, because the collection or the database that it watches is gone.
    Invalidate,
    /// Another kind, by its name: `create`, `createIndexes`, or a kind that a later server adds.
    #[serde(untagged)]
    Other(String),
}

/// The namespace of a change: `ns` or `to`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize)]
#[non_exhaustive]
pub struct ChangeNamespace {
    /// The database.
    pub db: String,
    /// The collection. `None` if the change concerns the whole database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coll: Option<String>,
}

/// The changes of an update: `updateDescription`.
#[derive(Debug, Clone, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct UpdateDescription {
    /// The new values of the fields that were set, keyed by path.
    pub updated_fields: Document,
    /// The paths of the fields that were removed.
    pub removed_fields: Vec<String>,
    /// The arrays that were truncated. Reported by MongoDB 4.7 and later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub truncated_arrays: Vec<TruncatedArray>,
    /// The components of each ambiguous path, such as `a.0`, where `0` may be a field or an array index. Present only
    /// with `show_expanded_events`, in MongoDB 6.1 and later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disambiguated_paths: Option<Document>,
}

/// An array that an update truncated.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TruncatedArray {
    /// The path of the array.
    pub field: String,
    /// The number of elements that remain.
    pub new_size: i32,
}

#[cfg(test)]
mod tests {
    use bson::{doc, rawdoc};

    use super::*;
    use crate::client::cursor::read;

    #[test]
    fn update_is_read_with_fields_that_later_servers_add_and_written_without_them() {
        let event = rawdoc! {
            "_id": { "_data": "82" }, "operationType": "update", "clusterTime": Timestamp { time: 7, increment: 1 },
            "ns": { "db": "shop", "coll": "orders", "viewOn": "x" }, "documentKey": { "_id": 1 }, "later": true,
            "updateDescription": {
                "updatedFields": { "a.b": 2 }, "removedFields": ["c"], "truncatedArrays": [{ "field": "d", "newSize": 3 }],
            },
            "fullDocument": null,
        };
        let event: ChangeStreamEvent<Document> = read(&event).unwrap();
        let written = doc! {
            "_id": { "_data": "82" }, "operationType": "update", "ns": { "db": "shop", "coll": "orders" },
            "documentKey": { "_id": 1 },
            "updateDescription": {
                "updatedFields": { "a.b": 2 }, "removedFields": ["c"],
                "truncatedArrays": [{ "field": "d", "newSize": 3 }],
            },
            "clusterTime": Timestamp { time: 7, increment: 1 },
        };
        assert_eq!(bson::serialize_to_document(&event).unwrap(), written);
        assert_eq!((event.id, event.operation_type), (rawdoc! { "_data": "82" }, OperationType::Update));
        assert_eq!(event.ns, Some(ChangeNamespace { db: "shop".to_owned(), coll: Some("orders".to_owned()) }));
        assert_eq!(event.cluster_time, Some(Timestamp { time: 7, increment: 1 }));
        assert_eq!((event.document_key, event.full_document), (Some(doc! { "_id": 1 }), None));
        let description = UpdateDescription {
            updated_fields: doc! { "a.b": 2 },
            removed_fields: vec!["c".to_owned()],
            truncated_arrays: vec![TruncatedArray { field: "d".to_owned(), new_size: 3 }],
            disambiguated_paths: None,
        };
        assert_eq!(event.update_description, Some(description));
    }

    #[test]
    fn each_kind_of_change_is_read_and_written_and_an_unknown_one_keeps_its_name() {
        let kind = |name: &str| {
            let event = read::<ChangeStreamEvent<Document>>(&rawdoc! { "_id": {}, "operationType": name });
            event.unwrap().operation_type
        };
        for (name, expected) in [
            ("insert", OperationType::Insert),
            ("update", OperationType::Update),
            ("replace", OperationType::Replace),
            ("delete", OperationType::Delete),
            ("drop", OperationType::Drop),
            ("rename", OperationType::Rename),
            ("dropDatabase", OperationType::DropDatabase),
            ("invalidate", OperationType::Invalidate),
            ("createIndexes", OperationType::Other("createIndexes".to_owned())),
        ] {
            assert_eq!(bson::serialize_to_bson(&expected).unwrap(), bson::Bson::from(name));
            assert_eq!(kind(name), expected);
        }
    }
}
