use wharf::bson::{Document, doc};
use wharf::{Acknowledgement, Client, ClientError, Database, ReadPreference, ReadPreferenceMode, WriteConcern};

/// Returns a database whose reads go only to the secondaries for reports, and whose writes wait for one server.
pub fn archive(client: &Client) -> Database {
    let secondary = ReadPreference::new(ReadPreferenceMode::Secondary).tag_set([("use", "reports")]);
    let one = WriteConcern::default().w(Acknowledgement::Servers(1));
    client.database("archive").read_preference(secondary).write_concern(one)
}

/// Reads an order from the primary, because its customer has just paid, and a secondary may lag.
pub async fn order(client: &Client, id: i32) -> Result<Option<Document>, ClientError> {
    let orders = archive(client).collection::<Document>("orders");
    orders.find_one(doc! { "_id": id }).read_preference(&ReadPreference::default()).await
}
