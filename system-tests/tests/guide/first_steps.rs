use std::error::Error;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wharf::bson::doc;
use wharf::{Client, ClientError, Collection, Options};

#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    pub customer: String,
    pub price: i64,
}

/// Creates the client of a service. Fails unless the servers answer and accept the credential.
pub async fn start(uri: &str) -> Result<Client, Box<dyn Error + Send + Sync>> {
    let options = Options::parse_strict(uri)?.timeout(Duration::from_secs(15));
    let client = Client::new(options)?;
    client.warm_up(1).await?;
    Ok(client)
}

/// Inserts an order, and returns all orders that cost 10 or more.
pub async fn order(client: &Client, order: &Order) -> Result<Vec<Order>, ClientError> {
    let orders: Collection<Order> = client.database("shop").collection("orders");
    orders.insert_one(order).await?;
    orders.find(doc! { "price": { "$gte": 10 } }).await?.try_collect().await
}

/// Ends the service: waits until running operations have ended and all connections are closed, but for at most 10 s.
pub async fn stop(client: Client) {
    if !client.shutdown(Duration::from_secs(10)).await {
        eprintln!("some operations were still running");
    }
}
