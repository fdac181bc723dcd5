use bson::doc;
use serde::{Deserialize, Serialize};
use wharf::{Client, ClientError};

#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    #[serde(rename = "_id")]
    pub id: i32,
    pub customer: String,
    pub price: i64,
}

/// What a customer has to pay.
#[derive(Debug, PartialEq, Deserialize)]
pub struct Total {
    #[serde(rename = "_id")]
    pub customer: String,
    pub total: i64,
}

#[derive(Deserialize)]
struct Counted {
    n: i32,
}

/// Inserts orders, and returns the two highest totals among the customers.
pub async fn highest(client: &Client, orders: &[Order]) -> Result<Vec<Total>, ClientError> {
    client.insert("shop", "orders", orders).await?;

    let dear = doc! { "price": { "$gte": 100 } };
    let mut found =
        client.find("shop", "orders", &dear).options(doc! { "sort": { "price": -1 } }).await?.typed::<Order>();
    while let Some(order) = found.next_typed().await? {
        println!("{order:?}");
    }
    let counted: Counted = client.run_typed("shop", doc! { "count": "orders", "query": dear }).await?;
    println!("{} orders", counted.n);

    let pipeline = [
        doc! { "$group": { "_id": "$customer", "total": { "$sum": "$price" } } },
        doc! { "$sort": { "total": -1 } },
        doc! { "$limit": 2 },
    ];
    let mut found = client.aggregate("shop", "orders", pipeline).await?.typed::<Total>();
    let mut totals = Vec::new();
    while let Some(total) = found.next_typed().await? {
        totals.push(total);
    }
    Ok(totals)
}
