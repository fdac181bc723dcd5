use std::error::Error;
use std::sync::RwLock;

use wharf::{Endpoint, Options, Pool};

/// Replaces the pool with one that uses new files and a new password.
pub async fn renew(current: &RwLock<Pool<Endpoint>>, uri: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let pool = Options::from_uri(uri).await?.endpoint()?.pool().build()?;
    pool.ready();
    drop(pool.check_out().await?); // unless the server accepts the new pool, keep the old one
    let old = std::mem::replace(&mut *current.write().unwrap(), pool);
    old.close();
    Ok(())
}
