use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use bson::{RawBsonRef, RawDocumentBuf};
use wharf::{Command, Endpoint, OperationError, Pool};

const MAX_RETRIES: u32 = 2;

/// Runs a command, and retries it where that is safe.
pub async fn run(pool: &Pool<Endpoint>, command: Command<'_>) -> Result<RawDocumentBuf, OperationError> {
    for retry in 1..=MAX_RETRIES {
        let error = match pool.run(command).await {
            // For commands that may be executed twice, add network errors and interruptions.
            Err(error) if error.is_retryable() => error,
            outcome => return outcome,
        };
        // A paused pool refuses at once: the monitor needs time to find out that the server is back.
        if error.has_label("SystemOverloadedError") || matches!(error, OperationError::CheckOut(_)) {
            let most = (base_backoff(&error) * 2_u32.pow(retry)).min(Duration::from_secs(10));
            tokio::time::sleep(most.mul_f64(jitter())).await;
        }
    }
    pool.run(command).await
}

fn base_backoff(error: &OperationError) -> Duration {
    let told = error.command_error().and_then(|failure| failure.server_error()).map(|error| &error.reply);
    let milliseconds = match told.and_then(|reply| reply.get("baseBackoffMS").ok().flatten()) {
        Some(RawBsonRef::Int32(number)) => number.into(),
        Some(RawBsonRef::Int64(number)) => number,
        Some(RawBsonRef::Double(number)) => number as i64,
        _ => 0,
    };
    // Wait at most ten seconds.
    if milliseconds > 0 { Duration::from_millis(milliseconds.min(10_000) as u64) } else { Duration::from_millis(100) }
}

/// Returns a random number between 0 and 1.
fn jitter() -> f64 {
    RandomState::new().hash_one(()) as f64 / u64::MAX as f64
}
