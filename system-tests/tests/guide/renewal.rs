use std::error::Error;

use wharf::bson::rawdoc;
use wharf::{Client, Options};

/// Gives the client new files and a new password, which the connection string names.
pub async fn renew(client: &Client, uri: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let options = Options::parse(uri)?;
    let trial = Client::new(options.clone())?;
    trial.run_command("admin", &rawdoc! { "ping": 1 }).await?; // unless the servers accept them, keep the old ones
    client.replace_options(options)?;
    Ok(())
}
