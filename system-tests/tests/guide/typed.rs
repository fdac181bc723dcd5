use serde::{Deserialize, Serialize};
use wharf::bson::doc;
use wharf::client::{IndexModel, ReturnDocument};
use wharf::{Client, ClientError, Collection};

#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    #[serde(rename = "_id")]
    pub id: i32,
    pub customer: String,
    pub price: i64,
}

/// The amount that a customer has to pay.
#[derive(Debug, PartialEq, Deserialize)]
pub struct Total {
    #[serde(rename = "_id")]
    pub customer: String,
    pub total: i64,
}

/// Inserts orders, makes one cheaper, and returns the two highest totals among the customers.
pub async fn highest(client: &Client, new: &[Order], cheaper: i32) -> Result<Vec<Total>, ClientError> {
    let orders: Collection<Order> = client.database("shop").collection("orders");
    orders.create_index(IndexModel::new(doc! { "customer": 1, "price": -1 })).await?;
    orders.insert_many(new).await?;

    let reduce = doc! { "$inc": { "price": -1_i64 } };
    let reduced = orders.find_one_and_update(doc! { "_id": cheaper }, reduce).return_document(ReturnDocument::After);
    match reduced.await? {
        Some(order) => println!("{} costs {} now", order.id, order.price),
        None => println!("there is no order {cheaper}"),
    }

    let expensive = doc! { "price": { "$gte": 100 } };
    println!("{} orders are expensive", orders.count_documents(&expensive).await?);
    let mut found = orders.find(&expensive).sort(doc! { "price": -1 }).limit(10).await?;
    while let Some(order) = found.next().await? {
        println!("{order:?}");
    }

    let pipeline = [
        doc! { "$group": { "_id": "$customer", "total": { "$sum": "$price" } } },
        doc! { "$sort": { "total": -1 } },
        doc! { "$limit": 2 },
    ];
    orders.aggregate(pipeline).typed().await?.try_collect().await
}
