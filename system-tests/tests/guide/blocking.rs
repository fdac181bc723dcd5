use wharf::ClientError;
use wharf::blocking::Client;
use wharf::bson::{Document, doc};

/// Prints all unpaid orders, and pays one.
pub fn pay(client: &Client, id: i32) -> Result<(), ClientError> {
    let orders = client.database("shop").collection::<Document>("orders");
    for order in orders.find(doc! { "paid": false }).batch_size(100).run()? {
        println!("{}", order?);
    }
    let pay = doc! { "$set": { "paid": true } };
    let mut session = client.start_session().run()?;
    session.with_transaction(|session| orders.update_one(doc! { "_id": id }, &pay).session(session).run())?;
    Ok(())
}
