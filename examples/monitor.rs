//! A simple monitor, which wharf has none of: `cargo run --example monitor`.
//!
//! It asks the server by a connection of its own, marks the pool ready when there is an answer, and clears it when there
//! is none. Every `heartbeatFrequencyMS` (10 seconds), and at once when a command has met an error that clears the pool.
//! Meanwhile somebody uses the pool.
//!
//! With `MONGODB_URI` the server is the first of that connection string: stop it, start it again, and press Ctrl-C in the
//! end. Without, it is one in this process, which fails for a while and comes back, and then the example ends.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bson::rawdoc;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use wharf::endpoint::ConnectTimeout;
use wharf::error::Cause;
use wharf::{Clear, Command, Endpoint, EndpointConnection, EstablishError, Options, Pool, PoolEvent};
use wharf_testbed::embedded::{EmbeddedOptions, EmbeddedServer};

/// How long a monitor rests at least (`minHeartbeatFrequencyMS` of Server Discovery and Monitoring).
const SHORTEST_REST: Duration = Duration::from_millis(500);

/// Keeps a pool as its server is.
struct Monitor {
    endpoint: Endpoint,
    pool: Pool<Endpoint>,
    /// Notified by whoever has cleared the pool, or wants to know at once.
    asked: Arc<Notify>,
}

impl Monitor {
    /// `options` are the pool's, for one host.
    fn new(mut options: Options, pool: Pool<Endpoint>, asked: Arc<Notify>) -> Result<Self, Box<dyn Error>> {
        // Monitors do not authenticate: the server answers hello all the same.
        options.credential = None;
        Ok(Self { endpoint: options.endpoint()?, pool, asked })
    }

    /// Runs until the task is aborted. It holds a handle of the pool, which therefore wants to be closed by `close`.
    async fn run(self) {
        if self.endpoint.options().load_balanced == Some(true) {
            // Behind a load balancer there is no one server to ask (Load Balancers, "Server Monitoring").
            self.pool.ready();
            return;
        }
        let mut connection = None;
        loop {
            match self.check(&mut connection).await {
                // Without effect if it is ready.
                Ok(()) => {
                    self.pool.ready();
                }
                Err(failed) => {
                    connection = None;
                    println!("No answer: {}", failed.cause);
                    // Who waits for a server that hangs may wait for ever. One that has closed its connections has told.
                    let clear = Clear::new().because(failed.cause).interrupt_in_use_connections(failed.is_timeout);
                    self.pool.clear(clear).expect("only a load balancer's pool is not cleared as a whole");
                }
            }
            sleep(SHORTEST_REST).await;
            let rest = self.endpoint.options().heartbeat_frequency.saturating_sub(SHORTEST_REST);
            // Either it is asked, or the time is up.
            let _ = timeout(rest, self.asked.notified()).await;
        }
    }

    /// Asks the server once. A new connection has been answered already, in its handshake.
    async fn check(&self, connection: &mut Option<EndpointConnection>) -> Result<(), CheckFailed> {
        let Some(connection) = connection else {
            *connection = Some(self.endpoint.connect().await?);
            return Ok(());
        };
        let hello = if connection.hello().hello_ok {
            rawdoc! { "hello": 1 }
        } else {
            rawdoc! { "isMaster": 1 }
        };
        let limit = self.endpoint.options().connect_timeout;
        let outcome = connection.run(Command::new("admin", &hello).timeout(limit).without_max_time()).await;
        outcome.map(drop).map_err(|failure| CheckFailed { is_timeout: failure.is_timeout(), cause: Arc::new(failure) })
    }
}

struct CheckFailed {
    is_timeout: bool,
    cause: Cause,
}

impl From<EstablishError> for CheckFailed {
    fn from(error: EstablishError) -> Self {
        let of_network =
            error.source.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::TimedOut);
        Self { is_timeout: of_network || error.source.is::<ConnectTimeout>(), cause: Arc::new(error) }
    }
}

/// Uses the pool, as a service would.
async fn work(pool: Pool<Endpoint>, asked: Arc<Notify>) {
    loop {
        if let Err(error) = pool.run_command("admin", &rawdoc! { "ping": 1 }).await
            && pool.clear_after(&error)
        {
            println!("A command failed: {error}");
            asked.notify_one();
        }
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let server = EmbeddedServer::start(EmbeddedOptions::default()).await?;
    let given = std::env::var("MONGODB_URI").ok();
    let mut options = match &given {
        Some(uri) => Options::from_uri(uri).await?,
        None => Options::new([&*server.address()])?.heartbeat_frequency(SHORTEST_REST),
    };
    options.hosts.truncate(1);

    let asked = Arc::new(Notify::new());
    let (turns, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let builder = options.endpoint()?.pool().subscriber(move |event: &PoolEvent| {
        if let PoolEvent::PoolReady { .. } | PoolEvent::PoolCleared { .. } = event {
            println!("{}", event.name());
            // Nobody counts them any more when the example is about to end.
            let _ = turns.send(event.name());
        }
    });
    // Connections that cannot be opened are the monitor's business, too.
    let builder = builder.on_failure({
        let asked = asked.clone();
        move |failure| {
            if failure.clears_pool() && failure.clear_pool() {
                asked.notify_one();
            }
        }
    });
    let pool = builder.build()?;
    let monitor = tokio::spawn(Monitor::new(options, pool.clone(), asked.clone())?.run());
    let worker = tokio::spawn(work(pool.clone(), asked));

    if given.is_some() {
        tokio::signal::ctrl_c().await?;
    } else {
        for (event, fails) in [("PoolReady", true), ("PoolCleared", false), ("PoolReady", false)] {
            assert_eq!(seen.recv().await, Some(event));
            // As a server that was killed does: connections end, and so does each new one.
            server.faults().cut_replies_after(fails.then_some(0));
        }
    }
    worker.abort();
    monitor.abort();
    pool.close();
    pool.closed().await;
    println!("The pool is closed.");
    Ok(())
}
