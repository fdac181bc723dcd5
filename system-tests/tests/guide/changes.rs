use serde::Deserialize;
use wharf::bson::{RawDocumentBuf, doc};
use wharf::{Client, ClientError, Collection};

#[derive(Debug, PartialEq, Deserialize)]
pub struct Order {
    #[serde(rename = "_id")]
    pub id: i32,
}

/// Calls `each` for every new order, until the collection is dropped or `each` returns false. `token` says where to begin,
/// and is updated to say where to continue. Store it together with the results of `each`.
pub async fn new_orders(
    client: &Client,
    token: &mut Option<RawDocumentBuf>,
    mut each: impl FnMut(Order) -> bool,
) -> Result<(), ClientError> {
    let inserts = [doc! { "$match": { "operationType": "insert" } }];
    let orders: Collection<Order> = client.database("shop").collection("orders");
    let mut watch = orders.watch(inserts);
    if let Some(token) = token {
        watch = watch.resume_after(&*token);
    }
    let mut changes = watch.await?;
    while let Some(inserted) = changes.next().await? {
        let keeps_going = inserted.full_document.is_none_or(&mut each);
        *token = changes.resume_token().map(ToOwned::to_owned);
        if !keeps_going {
            break;
        }
    }
    Ok(())
}
