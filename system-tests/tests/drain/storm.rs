//! Thousands of commands that are cancelled or time out, on a real server.

use std::time::Duration;

use bson::{RawDocumentBuf, doc, rawdoc};
use wharf::telemetry::EventCounts;
use wharf::{Command, Endpoint, Options, Pool, PoolOptions};
use wharf_testbed::mongod::{Mongod, MongodOptions};

use super::AGES;

const CONNECTIONS: u32 = 8;
const EACH: u64 = 100;

/// A small pseudo-random number generator (xorshift), so that every run is the same.
struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

async fn connections_created(pool: &Pool<Endpoint>) -> i64 {
    let status = pool.run_command("admin", &rawdoc! { "serverStatus": 1 }).await.unwrap();
    let created = status.get_document("connections").unwrap().get("totalCreated").unwrap().unwrap();
    created.as_i64().or_else(|| created.as_i32().map(i64::from)).unwrap()
}

/// With four times as many tasks as connections, check-outs wait constantly. A connection that is checked in with an
/// unfinished command is closed to make room for the next check-out.
#[tokio::test(flavor = "multi_thread")]
async fn storm_of_cancellations_in_a_full_pool_opens_no_more_than_closing_would() {
    let stormed = storm(32, false).await;
    assert_eq!(stormed.opened, stormed.closed);
    assert!(stormed.opened <= stormed.cut_short, "{stormed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn storm_of_cancellations_with_spare_capacity_opens_no_connection() {
    let stormed = storm(4, true).await;
    assert_eq!((stormed.opened, stormed.closed), (0, 0), "{stormed:?}");
}

#[derive(Debug)]
struct Stormed {
    cut_short: u64,
    /// The number of connections that the server accepted.
    opened: u64,
    closed: u64,
}

/// Runs tasks whose commands are cut short. With `spares`, a task starts a command only if no check-out has to wait.
async fn storm(tasks: u64, spares: bool) -> Stormed {
    let mongod = tokio::task::spawn_blocking(|| Mongod::start(MongodOptions::default()).unwrap()).await.unwrap();
    let counts = EventCounts::new();
    let options = Options::new([mongod.address().to_string().as_str()])
        .unwrap()
        .app_name("storm")
        .drain_timeout(AGES)
        .pool(PoolOptions::default().max_pool_size(CONNECTIONS).min_pool_size(CONNECTIONS));
    let pool = options.endpoint().unwrap().pool().subscriber(counts.clone()).build().unwrap();
    pool.ready();
    let full = async {
        while pool.status().available < CONNECTIONS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(AGES, full).await.unwrap();
    // Some commands take longer than most of their callers are willing to wait.
    let data = doc! {
        "failCommands": ["find"], "appName": "storm", "blockConnection": true, "blockTimeMS": 5,
    };
    let fail = doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data };
    pool.run_command("admin", &RawDocumentBuf::try_from(fail).unwrap()).await.unwrap();
    let before = connections_created(&pool).await;

    let running: Vec<_> = (0..tasks)
        .map(|seed| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut random = Random(seed * 7919 + 1);
                let (ping, find) = (rawdoc! { "ping": 1 }, rawdoc! { "find": "nothing" });
                let large = rawdoc! { "ping": "x".repeat(300_000) };
                let mut cut_short = 0_u64;
                for _ in 0..EACH {
                    // Every other task may be about to take a connection at the same moment.
                    while spares && u64::from(pool.status().available) < tasks {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    let body = match random.below(8) {
                        0 => &large,
                        1..4 => &find,
                        _ => &ping,
                    };
                    let patience = Duration::from_micros(random.below(8_000));
                    let command = Command::new("test", body);
                    if random.below(2) == 0 {
                        // The connection is checked in with its command unfinished.
                        cut_short += u64::from(tokio::time::timeout(patience, pool.run(command)).await.is_err());
                    } else {
                        let outcome = pool.run(command.timeout(patience.max(Duration::from_micros(1)))).await;
                        if let Err(error) = outcome {
                            assert!(error.is_timeout() && !error.clears_pool(), "{error}");
                            cut_short += 1;
                        }
                    }
                }
                cut_short
            })
        })
        .collect();
    let mut cut_short = 0;
    for task in running {
        cut_short += task.await.unwrap();
    }
    assert!(cut_short > tasks * EACH / 10, "only {cut_short} commands were cut short");

    let settled = async {
        while pool.status().available < CONNECTIONS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(AGES, settled).await.unwrap();
    let status = pool.status();
    assert_eq!((status.total, status.pending, status.in_use, status.stale), (CONNECTIONS, 0, 0, 0));
    let opened = u64::try_from(connections_created(&pool).await - before).unwrap();
    let counts = counts.snapshot();
    let count = |event| counts.iter().find(|(name, _)| *name == event).unwrap().1;
    assert_eq!(count("ConnectionCheckedOut"), count("ConnectionCheckedIn"));
    let closed = count("ConnectionClosed");
    assert_eq!(count("ConnectionCreated"), u64::from(CONNECTIONS) + closed);
    tokio::task::spawn_blocking(move || mongod.stop().unwrap()).await.unwrap();
    Stormed { cut_short, opened, closed }
}
