//! Drains do not starve check-outs: a pool that drains connections always serves at least as many commands as a pool
//! that closes them immediately, and serves the commands just as soon. Some tests use virtual time, so that the counts
//! are exact, and some use real sockets.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{doc, rawdoc};
use tokio::time::Instant;
use wharf::{
    Command, Condition, Endpoint, Establish, EstablishError, Establishing, Options, Pool, PoolEvent, PoolOptions,
};
use wharf_testbed::scripted::{Answer, Script, ScriptedServer, name};

use super::AGES;

/// What happens to a connection after its command has timed out.
#[derive(Debug, Clone, Copy, PartialEq)]
enum After {
    /// The connection is closed.
    Close,
    /// The connection is drained for at most `most`, and closed if the reply has not arrived by then.
    Drain { most: Duration, reply: Option<Duration> },
}

/// A drain with the default `drain_timeout`, on a server that never answers.
const IN_VAIN: After = After::Drain { most: Duration::from_secs(3), reply: None };

/// Connections to a server that falls silent when the test says so.
struct Simulated {
    after: After,
    opened: Arc<AtomicU32>,
}

impl Establish for Simulated {
    type Connection = Condition;

    async fn establish(&self, _: Establishing) -> Result<Condition, EstablishError> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        Ok(Condition::Reusable)
    }

    fn condition(&self, connection: &mut Condition) -> Condition {
        match self.after {
            After::Close if *connection == Condition::NeedsDrain => Condition::Broken,
            _ => *connection,
        }
    }

    async fn drain(&self, connection: &mut Condition) {
        let After::Drain { most, reply } = self.after else {
            unreachable!("a connection is drained that should be closed")
        };
        match reply {
            Some(reply) if reply <= most => {
                tokio::time::sleep(reply).await;
                *connection = Condition::Reusable;
            }
            _ => tokio::time::sleep(most).await,
        }
    }
}

/// Counts derived from events, as a monitoring system would derive them.
#[derive(Default)]
struct Counted {
    total: u32,
    checked_out: u32,
    /// The maximum of each count.
    peak: (u32, u32),
}

struct Scene {
    pool: Pool<Simulated>,
    opened: Arc<AtomicU32>,
    counted: Arc<Mutex<Counted>>,
}

impl Scene {
    fn new(after: After, max_pool_size: u32) -> Self {
        let (opened, counted) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Counted::default())));
        let noted = counted.clone();
        let pool = Pool::builder("simulated:27017", Simulated { after, opened: opened.clone() })
            .options(PoolOptions::default().max_pool_size(max_pool_size))
            .subscriber(move |event: &PoolEvent| {
                let mut counted = noted.lock().unwrap();
                match event {
                    PoolEvent::ConnectionCreated { .. } => counted.total += 1,
                    PoolEvent::ConnectionClosed { .. } => counted.total -= 1,
                    PoolEvent::ConnectionCheckedOut { .. } => counted.checked_out += 1,
                    PoolEvent::ConnectionCheckedIn { .. } => counted.checked_out -= 1,
                    _ => {}
                }
                assert!(counted.checked_out <= counted.total, "after {event:?}");
                counted.peak = (counted.peak.0.max(counted.total), counted.peak.1.max(counted.checked_out));
            })
            .build()
            .unwrap();
        pool.ready();
        Self { pool, opened, counted }
    }

    /// Runs one command, which the server answers immediately or never, within `limit`. Returns whether it succeeded.
    async fn ping(&self, limit: Duration, answered: bool) -> bool {
        let deadline = Instant::now() + limit;
        let Ok(mut connection) = self.pool.check_out_until(deadline).await else { return false };
        if !answered {
            *connection = Condition::NeedsDrain;
            tokio::time::sleep_until(deadline).await;
        }
        answered
    }

    /// Asserts that the counts from events are correct, and that they have never exceeded the limit.
    fn assert_counted(&self, max_pool_size: u32) {
        let (status, counted) = (self.pool.status(), self.counted.lock().unwrap());
        assert_eq!((counted.total, counted.checked_out), (status.total, status.in_use), "{status:?}");
        assert!(counted.peak.0 <= max_pool_size && counted.peak.1 <= max_pool_size, "{:?}", counted.peak);
    }
}

#[tokio::test(start_paused = true)]
async fn server_silent_on_every_fifth_command_fails_only_those() {
    for after in [After::Close, IN_VAIN] {
        let scene = Scene::new(after, 4);
        let mut good = 0;
        for number in 1..=200 {
            good += u32::from(scene.ping(Duration::from_millis(60), number % 5 != 0).await);
            scene.assert_counted(4);
        }
        assert_eq!(good, 160, "{after:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn blocked_command_on_the_only_connection_fails_no_other() {
    for after in [After::Close, IN_VAIN] {
        let scene = Scene::new(after, 1);
        assert!(!scene.ping(Duration::from_millis(50), false).await);
        for number in 1..=9 {
            assert!(scene.ping(Duration::from_millis(50), true).await, "ping {number} {after:?}");
        }
        scene.assert_counted(1);
    }
}

#[tokio::test(start_paused = true)]
async fn first_success_after_a_half_open_network_waits_for_no_drain() {
    for after in [After::Close, IN_VAIN] {
        let scene = Scene::new(after, 4);
        for _ in 0..8 {
            assert!(!scene.ping(Duration::from_millis(60), false).await);
        }
        let healed = Instant::now();
        assert!(scene.ping(AGES, true).await);
        assert_eq!(healed.elapsed(), Duration::ZERO, "{after:?}");
        scene.assert_counted(4);
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_check_outs_get_the_capacity_of_undrained_connections() {
    for after in [After::Close, IN_VAIN] {
        let scene = Arc::new(Scene::new(after, 2));
        let mut pings = tokio::task::JoinSet::new();
        for number in 0..20 {
            let scene = scene.clone();
            // All commands start at the same time. Each command has enough time to wait for all unanswered commands
            // before it.
            pings.spawn(async move { scene.ping(Duration::from_millis(10 * (number / 2 + 1)), number >= 2).await });
        }
        let good = pings.join_all().await.into_iter().filter(|good| *good).count();
        assert_eq!(good, 18, "{after:?}");
        scene.assert_counted(2);
    }
}

#[tokio::test(start_paused = true)]
async fn drain_with_spare_capacity_saves_the_connection() {
    let reply = Some(Duration::from_millis(20));
    let scene = Scene::new(After::Drain { most: Duration::from_secs(3), reply }, 2);
    for _ in 0..50 {
        assert!(!scene.ping(Duration::from_millis(60), false).await);
        // The other connection serves commands while the first is being drained.
        assert!(scene.ping(Duration::from_millis(60), true).await);
        tokio::time::sleep(Duration::from_millis(30)).await;
        scene.assert_counted(2);
    }
    assert_eq!(scene.opened.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn oldest_drain_is_closed_first() {
    let closed = Arc::new(Mutex::new(Vec::new()));
    let noted = closed.clone();
    let scene = Scene::new(IN_VAIN, 3);
    scene.pool.subscribe(move |event: &PoolEvent| {
        if let PoolEvent::ConnectionClosed { connection_id, .. } = event {
            noted.lock().unwrap().push(*connection_id);
        }
    });
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut connection = scene.pool.check_out().await.unwrap();
        *connection = Condition::NeedsDrain;
        held.push(connection);
    }
    held.swap(0, 1);
    held.clear();
    for expected in [vec![2], vec![2, 1], vec![2, 1, 3]] {
        held.push(scene.pool.check_out().await.unwrap());
        assert_eq!(*closed.lock().unwrap(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn connection_counts_as_checked_out_until_it_is_available_or_closed() {
    let reply = Some(Duration::from_millis(20));
    for (after, ends) in [
        (After::Drain { most: AGES, reply }, &["ConnectionCheckedIn"][..]),
        (After::Drain { most: Duration::from_millis(20), reply: None }, &["ConnectionCheckedIn", "ConnectionClosed"]),
    ] {
        let scene = Scene::new(after, 1);
        let names = Arc::new(Mutex::new(Vec::new()));
        let noted = names.clone();
        scene.pool.subscribe(move |event: &PoolEvent| noted.lock().unwrap().push(event.name()));
        assert!(!scene.ping(Duration::from_millis(5), false).await);
        assert!(!names.lock().unwrap().contains(&"ConnectionCheckedIn"));
        tokio::time::sleep(Duration::from_millis(19)).await;
        assert!(!names.lock().unwrap().contains(&"ConnectionCheckedIn"));
        names.lock().unwrap().clear();
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert_eq!(*names.lock().unwrap(), ends);
    }
}

/// Returns a pool for a server, with a drain timeout that is longer than any test.
fn pool_of(address: &str, max_pool_size: u32) -> Pool<Endpoint> {
    let options = Options::new([address]).unwrap().drain_timeout(Duration::from_secs(600));
    let pool = options.pool(PoolOptions::default().max_pool_size(max_pool_size));
    let pool = pool.endpoint().unwrap().pool().build().unwrap();
    pool.ready();
    pool
}

async fn ping(pool: &Pool<Endpoint>, limit: Duration) -> bool {
    let ping = rawdoc! { "ping": 1 };
    match tokio::time::timeout(AGES, pool.run(Command::new("admin", &ping).timeout(limit))).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => {
            assert!(error.is_timeout(), "{error}");
            false
        }
        Err(_) => panic!("a ping waited for a drain"),
    }
}

#[tokio::test]
async fn commands_to_an_occasionally_silent_server_wait_for_no_drain() {
    let pings = Arc::new(AtomicU32::new(0));
    let script = move || -> Script {
        let pings = pings.clone();
        Box::new(move |command| match &*name(command) {
            "ping" if pings.fetch_add(1, Ordering::Relaxed) % 5 == 4 => Answer::Hang,
            _ => Answer::Reply(doc! { "ok": 1, "maxWireVersion": 21, "minWireVersion": 0 }),
        })
    };
    let server = ScriptedServer::start(script).await.unwrap();
    let pool = pool_of(&server.address(), 4);
    for number in 1..=40_u32 {
        let silent = number % 5 == 0;
        // The limit of an answered command is long enough even for a busy machine.
        let limit = if silent { Duration::from_millis(5) } else { Duration::from_secs(30) };
        assert_eq!(ping(&pool, limit).await, !silent, "ping {number}");
    }
}

#[tokio::test]
async fn command_after_a_half_open_network_waits_for_no_drain() {
    let is_down = Arc::new(AtomicBool::new(true));
    let down = is_down.clone();
    let script = move || -> Script {
        let down = down.clone();
        // A connection stays dead once a ping on it has gone unanswered, as if a firewall had forgotten the connection.
        let mut is_dead = false;
        Box::new(move |command| {
            is_dead |= name(command) == "ping" && down.load(Ordering::Relaxed);
            match is_dead {
                true => Answer::Hang,
                false => Answer::Reply(doc! { "ok": 1, "maxWireVersion": 21, "minWireVersion": 0 }),
            }
        })
    };
    let server = ScriptedServer::start(script).await.unwrap();
    let pool = pool_of(&server.address(), 2);
    for _ in 0..2 {
        let mut connection = pool.check_out().await.unwrap();
        let ping = rawdoc! { "ping": 1 };
        let command = Command::new("admin", &ping).timeout(Duration::from_millis(5));
        assert!(connection.run(command).await.unwrap_err().is_timeout());
    }
    is_down.store(false, Ordering::Relaxed);
    assert!(ping(&pool, Duration::from_secs(30)).await);
}
