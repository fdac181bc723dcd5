use wharf::bson::Document;
use wharf::{ClientError, Collection};

/// Inserts the order, and returns true. Returns false if an order with its key already exists.
pub async fn place(orders: &Collection<Document>, order: &Document) -> Result<bool, ClientError> {
    match orders.insert_one(order).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_duplicate_key() => Ok(false),
        Err(error) => Err(error),
    }
}
