//! The example monitor: how the state of the pool changes when its server fails and recovers.
//!
//! In most tests the heartbeat interval is an hour. A pool that waited for the next heartbeat would exceed the time
//! limit of its test.

use bson::rawdoc;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use wharf::{BackgroundInterval, Clear, Endpoint, Pool, PoolEvent, PoolOptions};

use super::*;

#[path = "../../../examples/monitor/monitor.rs"]
mod example;

use example::Monitor;

const HOUR: Duration = Duration::from_secs(3600);

/// The longest time that a pool may stay paused after its server is back.
const HALF_A_SECOND: Duration = Duration::from_millis(500);

/// A monitored pool in virtual time. Only the monitor has a timer, so time advances only while it sleeps.
struct Monitored {
    server: EmbeddedServer,
    pool: Pool<Endpoint>,
    turns: mpsc::UnboundedReceiver<(&'static str, Instant)>,
    monitor: JoinHandle<()>,
}

impl Monitored {
    async fn start() -> Self {
        let server = EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap();
        let mut options = Options::new([&*server.address()]).unwrap().connect_timeout(Duration::ZERO);
        options = options.heartbeat_frequency(HOUR);
        let (seen, turns) = mpsc::unbounded_channel();
        let pool = options.endpoint().unwrap().pool();
        let pool = pool.options(PoolOptions::default().background_interval(BackgroundInterval::Never));
        let pool = pool.subscriber(move |event: &PoolEvent| {
            if let PoolEvent::PoolReady { .. } | PoolEvent::PoolCleared { .. } = event {
                let _ = seen.send((event.name(), Instant::now()));
            }
        });
        let pool = pool.build().unwrap();
        let monitor = tokio::spawn(Monitor::new(options, pool.clone()).unwrap().run());
        let mut monitored = Self { server, pool, turns, monitor };
        monitored.until("PoolReady").await;
        monitored
    }

    /// Waits for the next `PoolReady` or `PoolCleared`, asserts that it is the expected event, and returns its time.
    async fn until(&mut self, event: &str) -> Instant {
        let (name, at) = self.turns.recv().await.expect("the pool is gone");
        assert_eq!(name, event);
        at
    }

    /// Makes the server close the connection of the next `hello`.
    async fn close_next_hello(&self) {
        let mut admin = self.pool.establisher().connect().await.unwrap();
        let fail_point = rawdoc! {
            "configureFailPoint": "failCommand", "mode": { "times": 1 },
            "data": { "failCommands": ["hello", "isMaster"], "closeConnection": true },
        };
        admin.run_command("admin", &fail_point).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn cleared_pool_is_checked_at_once() {
    let mut monitored = Monitored::start().await;
    // Wait out the pause after the last check.
    tokio::time::sleep(2 * HALF_A_SECOND).await;
    assert!(monitored.pool.clear(Clear::new()).unwrap());
    let cleared = monitored.until("PoolCleared").await;
    assert!(monitored.until("PoolReady").await - cleared < HALF_A_SECOND);
}

#[tokio::test(start_paused = true)]
async fn pool_is_ready_half_a_second_after_a_long_outage() {
    let mut monitored = Monitored::start().await;
    monitored.server.faults().cut_replies_after(Some(0));
    monitored.pool.clear(Clear::new()).unwrap();
    monitored.until("PoolCleared").await;
    tokio::time::sleep(40 * HALF_A_SECOND).await;
    assert!(monitored.turns.is_empty(), "the pool is ready though its server does not answer");
    monitored.server.faults().clear();
    let back = Instant::now();
    assert!(monitored.until("PoolReady").await - back <= HALF_A_SECOND);
}

#[tokio::test(start_paused = true)]
async fn server_that_closed_the_monitors_connection_is_retried_without_a_pause() {
    let mut monitored = Monitored::start().await;
    monitored.close_next_hello().await;
    let cleared = monitored.until("PoolCleared").await;
    assert_eq!(monitored.until("PoolReady").await, cleared);
}

#[tokio::test(start_paused = true)]
async fn monitor_ends_with_its_pool() {
    let monitored = Monitored::start().await;
    let closed = Instant::now();
    monitored.pool.close();
    monitored.monitor.await.unwrap();
    assert!(Instant::now() - closed <= HALF_A_SECOND);
}

struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(uri: &str) -> Self {
        let mut command = tokio::process::Command::from(example("monitor"));
        command.env("MONGODB_URI", uri).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Returns the lines up to the first line that starts with `start`.
    async fn until(&mut self, start: &str) -> Vec<String> {
        let mut seen = Vec::new();
        tokio::time::timeout(AGES, async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                seen.push(line);
                if seen.last().unwrap().starts_with(start) {
                    return;
                }
            }
            panic!("no {start:?} in {seen:?}");
        })
        .await
        .unwrap_or_else(|_| panic!("no {start:?} in time"));
        seen
    }
}

#[cfg(unix)]
#[tokio::test]
async fn pool_is_cleared_when_its_server_fails_and_ready_when_it_is_back() {
    let server = EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap();
    let uri = format!("mongodb://{}/?heartbeatFrequencyMS=3600000&connectTimeoutMS=1000", server.address());
    let mut running = Running::start(&uri);
    assert_eq!(running.until("PoolReady").await, ["PoolReady"]);

    // A failure before the end of hello counts as overload and does not clear the pool, so wait for a later command
    // first.
    server.until(|counters| counters.commands("ping") > 0).await;
    server.faults().cut_replies_after(Some(0));
    running.until("PoolCleared").await;
    // The monitor keeps trying, and a paused pool is not announced as cleared again.
    let refused = server.counters().connections_opened + 2;
    let opens = async {
        while server.counters().connections_opened < refused {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(AGES, opens).await.expect("the monitor has given up");
    server.faults().clear();
    let since = running.until("PoolReady").await;
    assert!(!since.iter().any(|line| line == "PoolCleared"), "{since:?}");

    let id = running.child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    assert_eq!(running.until("The pool is closed.").await.last().unwrap(), "The pool is closed.");
    let mut stderr = String::new();
    running.child.stderr.take().unwrap().read_to_string(&mut stderr).await.unwrap();
    assert!(running.child.wait().await.unwrap().success(), "{stderr}");
}

#[tokio::test]
async fn monitor_does_not_authenticate() {
    let server = EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap();
    // This server refuses all users, so a monitor that authenticated would never get an answer.
    let mut running = Running::start(&format!("mongodb://app:hidden@{}/", server.address()));
    assert_eq!(running.until("PoolReady").await, ["PoolReady"]);
    let refused = running.until("PoolCleared").await;
    assert!(!refused.iter().any(|line| line.contains("hidden")), "{refused:?}");
}
