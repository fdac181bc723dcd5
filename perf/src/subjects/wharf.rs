//! wharf, with every option except the pool's size at its default.

use bson::{RawDocumentBuf, rawdoc};
use wharf::{Endpoint, Pool, PoolOptions};

use super::Subject;
use crate::Failure;

/// A pool, and the command, which is built once, like the floor's.
pub struct Wharf {
    pool: Pool<Endpoint>,
    ping: RawDocumentBuf,
}

impl Subject for Wharf {
    async fn open(server: &str, connections: u32) -> Result<Self, Failure> {
        let options = PoolOptions::default().max_pool_size(connections);
        let pool = Endpoint::new(server)?.pool().options(options).build()?;
        pool.ready();
        Ok(Self { pool, ping: rawdoc! { "ping": 1 } })
    }

    async fn ping(&self) -> Result<(), Failure> {
        let mut connection = self.pool.check_out().await?;
        // Fails unless the reply reports success.
        connection.run_command("admin", &self.ping).await?;
        Ok(())
    }

    async fn close(&self) {
        self.pool.close();
        self.pool.closed().await;
    }
}
