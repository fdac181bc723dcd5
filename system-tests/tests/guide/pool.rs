use std::time::Duration;

use wharf::bson::{RawDocumentBuf, rawdoc};
use wharf::{Command, Endpoint, OperationError, Options, Pool};

pub async fn open(uri: &str) -> Result<Pool<Endpoint>, Box<dyn std::error::Error>> {
    let options = Options::from_uri(uri).await?;
    let pool = options.endpoint()?.pool().build()?;
    pool.ready();
    pool.run_command("admin", &rawdoc! { "ping": 1 }).await?;
    Ok(pool) // dropping the last handle closes it
}

pub async fn orders(pool: &Pool<Endpoint>) -> Result<RawDocumentBuf, OperationError> {
    let mut connection = pool.check_out().await?; // dropping it checks it in
    let find = rawdoc! { "find": "orders", "batchSize": 100 };
    connection.run(Command::new("shop", &find).timeout(Duration::from_secs(1))).await
}
