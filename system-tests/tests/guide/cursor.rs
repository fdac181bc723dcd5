use std::error::Error;

use wharf::Client;
use wharf::bson::{RawDocument, RawDocumentBuf, doc};

type Failure = Box<dyn Error + Send + Sync>;

/// Calls `each` for every order, until `each` fails.
pub async fn orders(client: &Client, mut each: impl FnMut(&RawDocument) -> Result<(), Failure>) -> Result<(), Failure> {
    let orders = client.database("shop").collection::<RawDocumentBuf>("orders");
    let mut orders = orders.find(doc! {}).batch_size(100).await?;
    while let Some(order) = orders.next_document().await? {
        each(order)?;
    }
    Ok(())
}
