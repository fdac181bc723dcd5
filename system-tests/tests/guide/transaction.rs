use wharf::bson::doc;
use wharf::client::{Session, TransactionOptions};
use wharf::{Client, ClientError, Collection, WriteConcern};

/// Moves money from one account to another. Either both change, or neither.
pub async fn transfer(client: &Client, from: &str, to: &str, amount: i64) -> Result<(), ClientError> {
    if amount <= 0 {
        return Err(ClientError::other("the amount must be positive"));
    }
    let accounts: Collection = client.database("bank").collection("accounts");
    let enough = doc! { "_id": from, "balance": { "$gte": amount } };
    let (take, give) = (doc! { "$inc": { "balance": -amount } }, doc! { "$inc": { "balance": amount } });
    let move_money = async |mut session: Session| {
        // An update that finds nothing is a success for the server. An error ends the transaction, and undoes the rest.
        if accounts.update_one(&enough, &take).session(&mut session).await?.matched_count == 0 {
            return Err(ClientError::other(format!("account {from} does not exist or has too little")));
        }
        if accounts.update_one(doc! { "_id": to }, &give).session(&mut session).await?.matched_count == 0 {
            return Err(ClientError::other(format!("account {to} does not exist")));
        }
        Ok(())
    };
    let options = TransactionOptions::default().write_concern(WriteConcern::majority());
    let mut session = client.start_session().await?;
    session.with_transaction_options(options, move_money).await
}
