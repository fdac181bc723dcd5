use std::error::Error;
use std::sync::RwLock;
use std::time::Duration;

use bson::rawdoc;
use wharf::Client;

/// Replaces the client with one that uses new files and a new password.
pub async fn renew(current: &RwLock<Client>, uri: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let client = Client::from_uri(uri)?;
    client.run_command("admin", &rawdoc! { "ping": 1 }).await?; // unless the servers accept it, keep the old one
    let old = std::mem::replace(&mut *current.write().unwrap(), client);
    old.shutdown(Duration::from_secs(30)).await;
    Ok(())
}
