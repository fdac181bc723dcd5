use bson::doc;
use wharf::client::{Session, SessionOptions, TransactionOptions};
use wharf::{Client, ClientError, WriteConcern};

/// Moves money from one account to another. Either both change, or none.
pub async fn transfer(client: &Client, from: &str, to: &str, amount: i64) -> Result<(), ClientError> {
    if amount <= 0 {
        return Err(ClientError::other("the amount must be positive"));
    }
    let enough = doc! { "_id": from, "balance": { "$gte": amount } };
    let take = doc! { "q": enough, "u": { "$inc": { "balance": -amount } } };
    let give = doc! { "q": { "_id": to }, "u": { "$inc": { "balance": amount } } };
    let move_money = async |mut session: Session| {
        // An update that finds nothing is a success for the server. An error ends the transaction, and undoes the rest.
        if client.update("bank", "accounts", [&take]).session(&mut session).await?.matched == 0 {
            return Err(ClientError::other(format!("account {from} does not exist or has too little")));
        }
        if client.update("bank", "accounts", [&give]).session(&mut session).await?.matched == 0 {
            return Err(ClientError::other(format!("account {to} does not exist")));
        }
        Ok(())
    };
    let options = TransactionOptions::default().write_concern(WriteConcern::majority());
    let mut session = client.start_session(&SessionOptions::default())?;
    session.with_transaction_options(options, move_money).await
}
