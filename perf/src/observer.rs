//! Reads the server's own report about its connections.

use std::time::{Duration, Instant};

use bson::{RawDocument, rawdoc};
use wharf::{DirectConnection, Endpoint};

use crate::Failure;
use crate::frugal;

/// The pause between two reads of a number that should settle.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the number may take to settle.
const PATIENCE: Duration = Duration::from_secs(20);

/// A separate connection, opened before the connections that it observes.
pub struct Observer {
    connection: DirectConnection,
}

/// The server's count of its connections, including the observer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// Connections open now.
    pub current: i64,
    /// Connections opened since the server started.
    pub created: i64,
}

/// The server's running counts.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    pub connections: Connections,
    /// The server's CPU time in nanoseconds, and the number of commands it has run. A mongod does not report these.
    work: Option<(i64, i64)>,
}

impl Counts {
    /// Returns the server's CPU time per command in seconds since the earlier counts.
    pub fn cpu_since(self, before: Self) -> Option<f64> {
        let ((nanos, commands), (nanos_before, commands_before)) = (self.work?, before.work?);
        Some((nanos - nanos_before) as f64 / 1e9 / (commands - commands_before).max(1) as f64)
    }
}

impl Observer {
    pub async fn connect(server: &str) -> Result<Self, Failure> {
        Ok(Self { connection: Endpoint::new(server)?.connect().await? })
    }

    pub async fn connections(&mut self) -> Result<Connections, Failure> {
        Ok(self.counts().await?.connections)
    }

    pub async fn counts(&mut self) -> Result<Counts, Failure> {
        let command = rawdoc! {
            "serverStatus": 1, "repl": 0, "metrics": 0, "locks": 0, "wiredTiger": 0, "tcmalloc": 0, "opLatencies": 0,
        };
        let status = self.connection.run_command("admin", &command).await?;
        let connections = status.get_document("connections")?;
        let connections =
            Connections { current: whole(connections, "current")?, created: whole(connections, "totalCreated")? };
        let work = status.get_i64(frugal::CPU_NANOS).ok().zip(status.get_i64(frugal::COMMANDS).ok());
        Ok(Counts { connections, work })
    }

    /// Waits until the counts have settled, and returns them. They then include all connections that were still being
    /// opened or closed.
    pub async fn at_rest(&mut self) -> Result<Connections, Failure> {
        let began = Instant::now();
        let mut last = self.connections().await?;
        while began.elapsed() < PATIENCE {
            tokio::time::sleep(PAUSE).await;
            let now = self.connections().await?;
            if now == last {
                return Ok(now);
            }
            last = now;
        }
        Err(format!("the number of the server's connections did not settle within {PATIENCE:?}").into())
    }

    /// Waits until at most `before.current` connections are open.
    pub async fn until_closed(&mut self, before: Connections) -> Result<(), Failure> {
        let began = Instant::now();
        while self.connections().await?.current > before.current {
            if began.elapsed() > PATIENCE {
                return Err(
                    format!("the pool's connections are still open at the server {PATIENCE:?} after its end").into()
                );
            }
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}

fn whole(document: &RawDocument, field: &str) -> Result<i64, Failure> {
    let value = document.get(field)?.ok_or_else(|| format!("serverStatus has no connections.{field}"))?;
    let number = value.as_i64().or_else(|| value.as_i32().map(i64::from));
    number.ok_or_else(|| format!("serverStatus has no whole number in connections.{field}").into())
}
