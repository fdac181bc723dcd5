//! The indexes of a bucket.

use std::sync::atomic::Ordering;

use bson::{Bson, Document, doc};

use super::super::collection::{Call, IndexModel, IndexSpecification};
use super::super::cursor::convert;
use super::super::error::ClientError;
use super::super::{AnyClient, Collection};
use super::GridFsBucket;
use crate::endpoint::Limit;
use crate::endpoint::options::PRIMARY;

/// The server's error code for `NamespaceNotFound`.
const NAMESPACE_NOT_FOUND: i32 = 26;

impl<C: AnyClient> GridFsBucket<C> {
    /// Creates the indexes of the bucket before the first write, unless the bucket already has files (GridFS, "Before
    /// write operations").
    pub(super) async fn ensure_indexes(&self, limit: Limit) -> Result<(), ClientError> {
        // ORD: Relaxed; nothing is published, and looking for the indexes twice does no harm.
        if self.shared.has_indexes.load(Ordering::Relaxed) {
            return Ok(());
        }
        let any = self.files().find_one(doc! {}).projection(doc! { "_id": 1 }).read_preference(&PRIMARY);
        if any.document(limit).await?.is_none() {
            let by_name = doc! { "filename": 1, "uploadDate": 1 };
            ensure(self.files(), by_name.clone(), IndexModel::new(&by_name), limit).await?;
            let by_number = doc! { "files_id": 1, "n": 1 };
            ensure(self.chunks(), by_number.clone(), IndexModel::new(&by_number).unique(true), limit).await?;
        }
        // ORD: Relaxed; as above.
        self.shared.has_indexes.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Creates an index, unless an index with these keys exists.
async fn ensure<T, C: AnyClient>(
    collection: &Collection<T, C>,
    keys: Document,
    model: IndexModel,
    limit: Limit,
) -> Result<(), ClientError> {
    let exists = match collection.list_indexes().begin(limit).await {
        Ok(mut indexes) => {
            let mut exists = false;
            while let Some(index) = indexes.next_document().await? {
                exists |= is_same(&convert(index, IndexSpecification::of)?.keys, &keys);
            }
            exists
        }
        Err(error) if error.code() == Some(NAMESPACE_NOT_FOUND) => false,
        Err(error) => return Err(error),
    };
    if !exists {
        collection.create_index(model).begin(limit).await?;
    }
    Ok(())
}

/// Compares index keys. Numbers of different types are equal if their values are equal.
fn is_same(keys: &Document, wanted: &Document) -> bool {
    let value = |order: &Bson| match order {
        Bson::Int32(order) => Some(f64::from(*order)),
        Bson::Int64(order) => Some(*order as f64),
        Bson::Double(order) => Some(*order),
        _ => None,
    };
    keys.len() == wanted.len()
        && keys.iter().zip(wanted).all(|((key, order), (wanted, one))| key == wanted && value(order) == value(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_compared_in_order_and_by_value() {
        let wanted = doc! { "files_id": 1, "n": 1 };
        for same in [doc! { "files_id": 1.0, "n": 1 }, doc! { "files_id": 1_i64, "n": 1.0 }] {
            assert!(is_same(&same, &wanted), "{same}");
        }
        for other in [
            doc! { "n": 1, "files_id": 1 },
            doc! { "files_id": 1 },
            doc! { "files_id": 1, "n": -1 },
            doc! { "files_id": 1, "n": "text" },
            doc! { "files_id": 1, "n": 1, "data": 1 },
        ] {
            assert!(!is_same(&other, &wanted), "{other}");
        }
    }
}
