use bson::doc;
use wharf::ClientError;
use wharf::client::SessionOptions;
use wharf::single::Client;

/// Prints all unpaid orders, and pays one.
pub fn pay(client: &Client, id: i32) -> Result<(), ClientError> {
    let unpaid = client.find("shop", "orders", doc! { "paid": false });
    for order in unpaid.with(|find| find.batch_size(100)).run()? {
        println!("{:?}", order?);
    }
    let mut session = client.start_session(&SessionOptions::default())?;
    session.with_transaction(|session| {
        let pay = doc! { "q": { "_id": id }, "u": { "$set": { "paid": true } } };
        session.update("shop", "orders", [pay]).run()
    })?;
    Ok(())
}
