//! A pool with a monitor: `MONGODB_URI=mongodb://... cargo run --example monitor`. The default is a server at
//! localhost:27017.
//!
//! While the example runs, stop the server and start it again. Ctrl-C stops the example. The example uses only the
//! first server in the connection string. The monitor itself is in `monitor.rs` and does not depend on this example.

use std::error::Error;
use std::time::Duration;

use bson::rawdoc;
use wharf::{Endpoint, FailedConnection, Options, Pool, PoolEvent};

mod monitor;

use monitor::Monitor;

/// Uses the pool as a service does.
async fn work(pool: Pool<Endpoint>) {
    loop {
        if let Err(error) = pool.run_command("admin", &rawdoc! { "ping": 1 }).await
            && pool.clear_after(&error)
        {
            println!("A command failed: {error}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn print(event: &PoolEvent) {
    if let PoolEvent::PoolReady { .. } | PoolEvent::PoolCleared { .. } = event {
        println!("{}", event.name());
    }
}

/// Clears the pool if the failure says anything about the server.
fn heed(failure: &FailedConnection) {
    if failure.clears_pool() {
        failure.clear_pool();
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let uri = std::env::var("MONGODB_URI").unwrap_or_else(|_| "mongodb://localhost".to_owned());
    let mut options = Options::from_uri(&uri).await?;
    options.hosts.truncate(1);

    let pool = options.endpoint()?.pool().subscriber(print).on_failure(heed).build()?;
    let monitor = tokio::spawn(Monitor::new(options, pool.clone())?.run());
    let worker = tokio::spawn(work(pool.clone()));

    tokio::signal::ctrl_c().await?;
    worker.abort();
    monitor.abort();
    pool.close();
    pool.closed().await;
    println!("The pool is closed.");
    Ok(())
}
