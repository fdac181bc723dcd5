// A monitor for one server, to copy into an application. It marks the pool ready when the server answers, and clears
// the pool when the server does not.
//
// It sends `hello` on a separate connection every `heartbeatFrequencyMS`, half a second after anything clears the pool,
// and every 500 ms while the pool is paused. If the server's host refuses connections while the server is down, the
// pool becomes ready within half a second of the server's return, and otherwise within `connectTimeoutMS`.

use std::sync::Arc;
use std::time::Duration;

use bson::rawdoc;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use wharf::endpoint::ConnectTimeoutError;
use wharf::{
    Cause, Clear, Command, DirectConnection, Endpoint, EstablishError, InvalidOption, Options, Phase, Pool, PoolEvent,
};

/// The shortest pause between two checks (`minHeartbeatFrequencyMS` in Server Discovery and Monitoring).
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);

/// Keeps a pool in step with the state of its server.
pub struct Monitor {
    endpoint: Endpoint,
    pool: Pool<Endpoint>,
    /// Notified when the pool is cleared or closed.
    asked: Arc<Notify>,
}

impl Monitor {
    /// Creates a monitor for a pool. `options` must be the pool's options.
    ///
    /// The monitor subscribes to the pool's events. So it notices every clear: after a failed connection, after a
    /// failed command, or from any other part of the service.
    pub fn new(mut options: Options, pool: Pool<Endpoint>) -> Result<Self, InvalidOption> {
        // Monitors do not authenticate: a server answers hello without authentication.
        options.credential = None;
        let endpoint = options.endpoint()?;
        let asked = Arc::new(Notify::new());
        let asks = asked.clone();
        pool.subscribe(move |event: &PoolEvent| {
            if let PoolEvent::PoolCleared { .. } | PoolEvent::PoolClosed { .. } = event {
                asks.notify_one();
            }
        });
        Ok(Self { endpoint, pool, asked })
    }

    /// Runs until the pool is closed. The monitor holds a handle to the pool, so dropping all other handles does not
    /// close the pool: call [`Pool::close`].
    pub async fn run(self) {
        if self.endpoint.options().load_balanced == Some(true) {
            // Behind a load balancer there is no single server to check (Load Balancers, "Server Monitoring").
            self.pool.ready();
            return;
        }
        let heartbeat = self.endpoint.options().heartbeat_frequency.unwrap_or(Duration::from_secs(10));
        let mut connection = None;
        while self.pool.status().phase != Phase::Closed {
            match self.check(&mut connection).await {
                // Has no effect if the pool is ready.
                Ok(()) => {
                    self.pool.ready();
                }
                Err(failed) => {
                    connection = None;
                    println!("No answer: {}", failed.cause);
                    // Commands may wait forever for a server that hangs, so a timeout interrupts them. If the server
                    // closes its connections, commands fail on their own.
                    let clear = Clear::new().because(failed.cause).interrupt_in_use_connections(failed.is_timeout);
                    self.pool.clear(clear).expect("only a pool in load-balanced mode cannot be cleared as a whole");
                    if failed.is_first {
                        // The server answered earlier, so perhaps it has restarted and only the connection is lost.
                        // Check again immediately.
                        continue;
                    }
                }
            }
            sleep(SHORTEST_PAUSE).await;
            // A paused pool refuses all check-outs, so the next check does not wait for the heartbeat.
            if self.pool.status().phase == Phase::Ready {
                let _ = timeout(heartbeat.saturating_sub(SHORTEST_PAUSE), self.asked.notified()).await;
            }
        }
    }

    /// Checks the server once. If there is no connection yet, the handshake of a new one is the check.
    async fn check(&self, connection: &mut Option<DirectConnection>) -> Result<(), CheckFailed> {
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
        match connection.run(Command::new("admin", &hello).timeout(limit).without_max_time()).await {
            Ok(_reply) => Ok(()),
            Err(failure) => Err(CheckFailed {
                is_timeout: failure.is_timeout(),
                is_first: failure.is_timeout() || failure.is_network_error(),
                cause: Arc::new(failure),
            }),
        }
    }
}

struct CheckFailed {
    is_timeout: bool,
    /// Whether the network failed after the server had already answered the monitor.
    is_first: bool,
    cause: Cause,
}

impl From<EstablishError> for CheckFailed {
    fn from(error: EstablishError) -> Self {
        let source = error.cause().downcast_ref::<std::io::Error>();
        let of_network = source.is_some_and(|source| source.kind() == std::io::ErrorKind::TimedOut);
        let is_timeout = of_network || error.cause().is::<ConnectTimeoutError>();
        Self { is_timeout, is_first: false, cause: Arc::new(error) }
    }
}
