//! A burst of tasks on a pool without connections.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::load::join;
use crate::observer::Observer;
use crate::subjects::{Kind, Subject};

/// The maximum number of connections in the plain pool that stands in for the floor here. A programmer would choose
/// about this number, knowing that connections cost more than waiting.
pub const PLAIN_CONNECTIONS: u32 = 10;

/// The result of a cold start, as a child process reports it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ColdResult {
    /// The time from when the first task starts until the last task finishes.
    pub seconds: f64,
    /// The number of connections that the server counted, including those opened too late to be used.
    pub opened: i64,
}

/// Returns the subject's name in the cold start.
pub fn name(kind: Kind) -> String {
    match kind {
        Kind::Floor => format!("plain, {PLAIN_CONNECTIONS}"),
        _ => kind.to_string(),
    }
}

/// Measures a cold start with a fresh pool.
pub async fn start<S: Subject>(server: String, tasks: u32, connections: u32) -> Result<ColdResult, Failure> {
    let mut observer = Observer::connect(&server).await?;
    let nothing_open = observer.at_rest().await?;
    let subject = Arc::new(S::open(&server, connections).await?);
    // By now the driver's monitors have opened their connections, which do not belong to the pool.
    let before = observer.at_rest().await?;

    let began = Instant::now();
    let ping = |subject: Arc<S>| async move { subject.run().await };
    join((0..tasks).map(|_| tokio::spawn(ping(subject.clone()))).collect()).await?;
    let seconds = began.elapsed().as_secs_f64();

    let opened = observer.at_rest().await?.created - before.created;
    subject.close().await;
    drop(subject);
    // The server must have closed the connections of this start before the next start begins.
    observer.until_closed(nothing_open).await?;
    Ok(ColdResult { seconds, opened })
}
