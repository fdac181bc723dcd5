//! A burst of tasks that meets a pool without connections.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::load::join;
use crate::observer::Observer;
use crate::subjects::{Kind, Subject};

/// How many connections the plain pool has at most that takes the floor's place here: about as many as one would choose
/// who knows that connections cost more than waiting.
pub const PLAIN_CONNECTIONS: u32 = 10;

/// What a cold start came to, as it travels from a child process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ColdResult {
    /// From the first task's start to the last one's end.
    pub seconds: f64,
    /// The connections that were opened, those that came too late included. The server has counted them.
    pub opened: i64,
}

/// What a subject is called here.
pub fn name(kind: Kind) -> String {
    match kind {
        Kind::Floor => format!("plain, {PLAIN_CONNECTIONS}"),
        Kind::Wharf | Kind::Official => kind.to_string(),
    }
}

/// Starts with a fresh pool.
pub async fn start<S: Subject>(server: String, tasks: u32, connections: u32) -> Result<ColdResult, Failure> {
    let mut observer = Observer::connect(&server).await?;
    let nothing_open = observer.at_rest().await?;
    let subject = Arc::new(S::open(&server, connections).await?);
    // The driver's monitors have their connections by now. They are not the pool's.
    let before = observer.at_rest().await?;

    let began = Instant::now();
    let ping = |subject: Arc<S>| async move { subject.ping().await };
    join((0..tasks).map(|_| tokio::spawn(ping(subject.clone()))).collect()).await?;
    let seconds = began.elapsed().as_secs_f64();

    let opened = observer.at_rest().await?.created - before.created;
    subject.close().await;
    drop(subject);
    // So that the server has nothing of this to do any more when the next one begins.
    observer.until_closed(nothing_open).await?;
    Ok(ColdResult { seconds, opened })
}
