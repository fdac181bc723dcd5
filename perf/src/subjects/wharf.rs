//! wharf, with every option except the pool's size at its default.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bson::{Binary, RawDocumentBuf, Uuid, rawdoc};
use wharf::{Client, Endpoint, Options, Pool, PoolOptions};

use super::Subject;
use crate::Failure;

/// A pool and the command that it runs. As in the floor, the command is built only once.
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

    async fn run(&self) -> Result<(), Failure> {
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

/// wharf's pool without a client: check-out, command and check-in in one call.
pub struct PoolCommand(Wharf);

impl Subject for PoolCommand {
    async fn open(server: &str, connections: u32) -> Result<Self, Failure> {
        Wharf::open(server, connections).await.map(Self)
    }

    async fn run(&self) -> Result<(), Failure> {
        self.0.pool.run_command("admin", &self.0.ping).await?;
        Ok(())
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

/// Like [`PoolCommand`], but its commands carry a session ID, as the client's commands do. So the pool sends as many
/// bytes as the client.
pub struct PoolInSession {
    pool: PoolCommand,
    /// One command for each session.
    pings: Vec<RawDocumentBuf>,
    next: AtomicUsize,
}

impl Subject for PoolInSession {
    async fn open(server: &str, connections: u32) -> Result<Self, Failure> {
        let pings =
            (0..connections).map(|_| rawdoc! { "ping": 1, "lsid": { "id": Binary::from(Uuid::new()) } }).collect();
        Ok(Self { pool: PoolCommand::open(server, connections).await?, pings, next: AtomicUsize::new(0) })
    }

    async fn run(&self) -> Result<(), Failure> {
        // Relaxed: any session will do.
        let ping = &self.pings[self.next.fetch_add(1, Ordering::Relaxed) % self.pings.len()];
        self.pool.0.pool.run_command("admin", ping).await?;
        Ok(())
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

/// The client with busy polling.
pub struct BusyPollingCommand(ClientCommand);

impl Subject for BusyPollingCommand {
    async fn open(server: &str, connections: u32) -> Result<Self, Failure> {
        let options: Options = super::uri(server, connections).parse()?;
        ClientCommand::with(options.busy_poll(Duration::from_micros(50))).await.map(Self)
    }

    async fn run(&self) -> Result<(), Failure> {
        self.0.run().await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

/// wharf's client, which monitors its server and selects it for each command.
pub struct ClientCommand {
    client: Client,
    ping: RawDocumentBuf,
}

impl ClientCommand {
    async fn with(options: Options) -> Result<Self, Failure> {
        let client = Client::new(options)?;
        client.connect().await?;
        Ok(Self { client, ping: rawdoc! { "ping": 1 } })
    }
}

impl Subject for ClientCommand {
    async fn open(server: &str, connections: u32) -> Result<Self, Failure> {
        Self::with(super::uri(server, connections).parse()?).await
    }

    async fn run(&self) -> Result<(), Failure> {
        self.client.run_command("admin", &self.ping).await?;
        Ok(())
    }

    async fn close(&self) {
        self.client.shutdown(super::PATIENCE).await;
    }
}
