use std::error::Error;

use bson::{RawDocument, doc};
use wharf::Client;

type Failure = Box<dyn Error + Send + Sync>;

/// Calls `each` for every order, until `each` fails.
pub async fn orders(client: &Client, mut each: impl FnMut(&RawDocument) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut orders = client.find("shop", "orders", doc! {}).batch_size(100).await?;
    while let Some(order) = orders.next_document().await? {
        each(order)?;
    }
    Ok(())
}
