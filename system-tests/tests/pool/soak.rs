//! Many tasks use a pool in random order: check-outs wait or are cancelled, connections break, and the pool is cleared.
//!
//! The test runs for two seconds, or for the number of seconds in `WHARF_SOAK_SECONDS`. CONTRIBUTING.md gives the
//! command for a long run.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;
use wharf::metrics::PoolMetrics;
use wharf::{CheckOutError, Clear, Condition, Establish, EstablishError, Establishing, Pool, PoolOptions, Stage};
use wharf_testbed::dice::Dice;

/// More workers than cores, so that threads are preempted between their steps.
const WORKERS: usize = 6;
const TASKS: u64 = 300;
/// More check-outs than this must succeed, even if the machine stalls for the rest of the run.
const LEAST: u64 = 100;
/// How long the last tasks may take to finish. A task that lost its turn in the queue would wait forever.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection with a flag that shows whether it already has a user.
struct Single {
    is_in_use: AtomicBool,
    is_broken: bool,
    live: Arc<AtomicU64>,
}

impl Drop for Single {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Opens connections immediately, after a while, or not at all.
#[derive(Default)]
struct Moody {
    attempts: AtomicU64,
    live: Arc<AtomicU64>,
}

impl Establish for Moody {
    type Connection = Single;

    async fn establish(&self, _: Establishing) -> Result<Single, EstablishError> {
        let mut dice = Dice(self.attempts.fetch_add(1, Ordering::Relaxed));
        for _ in 0..dice.roll(4) {
            yield_now().await;
        }
        if dice.roll(50) == 0 {
            return Err(EstablishError::permanent(Stage::Hello, io::Error::other("not in the mood")));
        }
        self.live.fetch_add(1, Ordering::Relaxed);
        Ok(Single { is_in_use: AtomicBool::new(false), is_broken: false, live: self.live.clone() })
    }

    fn condition(&self, connection: &mut Single) -> Condition {
        if connection.is_broken { Condition::Broken } else { Condition::Reusable }
    }
}

/// Checks connections out and in until the end. Counts the check-outs that succeed in `served`.
async fn work(pool: Pool<Moody>, number: u64, end: Instant, served: Arc<AtomicU64>) {
    let mut dice = Dice(number << 32);
    while Instant::now() < end || served.load(Ordering::Relaxed) <= LEAST {
        let checked_out = match dice.roll(8) {
            // Cancelled after a while, often while queued or just after a grant.
            0 => timeout(Duration::from_micros(dice.roll(2_000)), pool.check_out()).await.ok(),
            // Cancelled after its first poll.
            1 => {
                tokio::select! { biased; checked_out = pool.check_out() => Some(checked_out), () = yield_now() => None }
            }
            _ => Some(pool.check_out().await),
        };
        match checked_out {
            Some(Ok(mut connection)) => {
                assert!(!connection.is_in_use.swap(true, Ordering::Relaxed), "a connection has two users");
                for _ in 0..dice.roll(3) {
                    yield_now().await;
                }
                connection.is_in_use.store(false, Ordering::Relaxed);
                connection.is_broken = dice.roll(200) == 0;
                served.fetch_add(1, Ordering::Relaxed);
            }
            Some(Err(CheckOutError::PoolCleared(_) | CheckOutError::Establish(_))) | None => yield_now().await,
            Some(Err(other)) => panic!("{other}"),
        }
    }
}

/// Keeps clearing the pool and marking it ready until the end.
async fn disturb(pool: Pool<Moody>, end: Instant) {
    let mut dice = Dice(1);
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(1 + dice.roll(20))).await;
        pool.clear(Clear::new()).unwrap();
        for _ in 0..dice.roll(5) {
            yield_now().await;
        }
        pool.ready();
    }
}

fn soak(connections: u32, seconds: f64) -> (u64, PoolMetrics) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build().unwrap();
    runtime.block_on(async {
        let establish = Moody::default();
        let live = establish.live.clone();
        let options = PoolOptions::default().max_pool_size(connections).max_connecting(2);
        let pool = Pool::builder("soak:27017", establish).options(options).build().unwrap();
        pool.ready();
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let disturber = tokio::spawn(disturb(pool.clone(), end));
        let served = Arc::new(AtomicU64::new(0));
        let mut tasks: JoinSet<()> = (0..TASKS).map(|number| work(pool.clone(), number, end, served.clone())).collect();
        tokio::time::sleep_until(end.into()).await;
        while let Some(ended) = timeout(PATIENCE, tasks.join_next()).await.expect("a check-out waits for ever") {
            ended.unwrap();
        }
        disturber.await.unwrap();

        // The test first holds every connection. Otherwise a connection that was opened for a cancelled check-out might
        // still be on its way to another check-out, and would count as in use.
        let mut held = Vec::new();
        while held.len() < connections as usize {
            match timeout(PATIENCE, pool.check_out()).await.expect("a connection is lost") {
                Ok(connection) => held.push(connection),
                Err(CheckOutError::Establish(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
        let status = pool.status();
        assert_eq!((status.in_use, status.waiting), (connections, 0), "{status:?}");
        drop(held);
        let status = pool.status();
        assert_eq!((status.in_use, status.waiting), (0, 0), "{status:?}");
        pool.close();
        timeout(PATIENCE, pool.closed()).await.expect("a connection is never closed");
        assert_eq!(live.load(Ordering::Relaxed), 0, "connections outlive their pool");
        (served.load(Ordering::Relaxed), pool.metrics())
    })
}

#[test]
fn nothing_is_lost_or_given_twice_while_all_goes_on_at_once() {
    let seconds =
        std::env::var("WHARF_SOAK_SECONDS").map_or(2.0, |seconds| seconds.parse().expect("a number of seconds"));
    for connections in [1, 10, 100] {
        let (served, metrics) = soak(connections, seconds / 3.0);
        let check_outs = &metrics.check_outs;
        let counted = check_outs.hits + check_outs.waited.count() + check_outs.opened.count();
        // A check-out that is cancelled after receiving its connection is also counted.
        assert!(served > LEAST && counted >= served, "{connections}: served {served}, counted {counted}");
        let closed: u64 = metrics.connections.closed.total();
        assert_eq!(closed, metrics.connections.created, "{metrics:?}");
        println!("{connections} connections: {served} check-outs, {} waited", check_outs.waited.count());
    }
}
