//! The half of the soak whose connections cost nothing: threads and the tasks of two runtimes use three pools, and
//! another thread disturbs the pools.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, Runtime};
use tokio::task::yield_now;
use tokio::time::timeout;
use wharf::{
    BackgroundInterval, CheckBeforeUse, CheckOutError, CheckResult, Clear, Condition, Connection, Establish,
    EstablishError, Establishing, Pool, PoolOptions, Stage,
};
use wharf_testbed::dice::Dice;

use super::{Half, PATIENCE, Span, descriptors, memory_after_warm_up};
use crate::Failure;
use crate::client::resident;
use crate::load;

const THREADS: u64 = 16;
/// The number of tasks on each runtime.
const TASKS: u64 = 32;
const WORKERS: usize = 2;
/// The largest `maxPoolSize`. `ENOUGH` is the smallest `maxPoolSize` with which every thread and task can have a
/// connection.
const MOST: u32 = 96;
const ENOUGH: u32 = THREADS as u32 + 2 * TASKS as u32;
/// How many check-outs a thread or a task makes between two random choices.
const BURST: u64 = 256;
const POOLS: usize = 3;

/// All counts are Relaxed: they publish nothing, and the threads are joined before the counts are read.
#[derive(Default)]
struct Counts {
    attempts: AtomicU64,
    live: AtomicU64,
    served: AtomicU64,
    errors: AtomicU64,
    unexpected_errors: AtomicU64,
    cancelled: AtomicU64,
    given_twice: AtomicU64,
}

/// A connection that notices if it has a second user.
struct Dummy {
    is_in_use: AtomicBool,
    condition: Condition,
    counts: Arc<Counts>,
}

impl Drop for Dummy {
    fn drop(&mut self) {
        self.counts.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Opens connections immediately, after a while, or not at all, and rejects some of the connections that it checks.
struct Moody(Arc<Counts>);

impl Moody {
    async fn take_a_while(&self, sides: u64) -> Dice {
        let mut dice = Dice(self.0.attempts.fetch_add(1, Ordering::Relaxed));
        for _ in 0..dice.roll(sides) {
            yield_now().await;
        }
        dice
    }
}

impl Establish for Moody {
    type Connection = Dummy;
    const HAS_CHECK: bool = true;

    async fn establish(&self, _: Establishing) -> Result<Dummy, EstablishError> {
        if self.take_a_while(4).await.roll(50) == 0 {
            return Err(EstablishError::permanent(Stage::Hello, io::Error::other("not in the mood")));
        }
        self.0.live.fetch_add(1, Ordering::Relaxed);
        Ok(Dummy { is_in_use: AtomicBool::new(false), condition: Condition::Reusable, counts: self.0.clone() })
    }

    async fn check(&self, _: &mut Dummy) -> CheckResult {
        if self.take_a_while(2).await.roll(50) == 0 { Err("not in the mood".into()) } else { Ok(()) }
    }

    fn condition(&self, connection: &mut Dummy) -> Condition {
        connection.condition
    }

    async fn drain(&self, connection: &mut Dummy) {
        self.take_a_while(4).await;
        connection.condition = Condition::Reusable;
    }
}

/// The pools, and how long they are used.
struct Soaked {
    pools: [Pool<Moody>; POOLS],
    counts: Arc<Counts>,
    end: Instant,
    most: u64,
}

/// Runs the soak for this long, or until this many check-outs have succeeded.
pub fn soak(length: Duration, most: u64) -> Result<Half, Failure> {
    let runtimes = [load::runtime(WORKERS)?, load::runtime(WORKERS)?];
    let (before, began) = (descriptors(usize::MAX)?, Instant::now());
    let counts = Arc::new(Counts::default());
    let soaked =
        Arc::new(Soaked { pools: pools(&runtimes, &counts)?, counts: counts.clone(), end: began + length, most });
    let tasks: Vec<_> = (0..TASKS)
        .flat_map(|number| runtimes.iter().zip([number, TASKS + number]))
        .map(|(runtime, number)| runtime.spawn(in_task(soaked.clone(), number)))
        .collect();
    let (disturbances, warm) = thread::scope(|scope| {
        let soaked = &*soaked;
        let disturber = scope.spawn(|| disturb(soaked, runtimes[1].handle()));
        (0..THREADS).for_each(|number| drop(scope.spawn(move || on_thread(soaked, 2 * TASKS + number))));
        let warm = memory_after_warm_up(length, || !soaked.goes_on());
        (disturber.join().expect("the disturber does not panic"), warm)
    });
    runtimes[0].block_on(async {
        for task in tasks {
            task.await.expect("a task panicked");
        }
    });
    let lost = soaked.pools.iter().map(lost).sum();
    let metrics = soaked.pools.iter().map(Pool::metrics).collect();
    let memory = Span { before: warm?, after: resident()? };
    for pool in &soaked.pools {
        pool.close();
        runtimes[0].block_on(async { timeout(PATIENCE, pool.closed()).await }).map_err(|_| "a pool does not close")?;
    }
    drop(soaked);
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    Ok(Half {
        name: "dummies",
        took: began.elapsed(),
        served: count(&counts.served),
        disturbances,
        errors: count(&counts.errors),
        unexpected_errors: count(&counts.unexpected_errors),
        cancelled: count(&counts.cancelled),
        given_twice: count(&counts.given_twice),
        lost,
        metrics,
        left: count(&counts.live),
        memory,
        // Both counts include the runtimes' descriptors, so a difference comes from the pools.
        descriptors: Span { before, after: descriptors(before)? },
    })
}

/// Returns three pools: one whose calls take the shortest paths, one with connections that wear out, and one that
/// checks its connections before each use.
fn pools(runtimes: &[Runtime; 2], counts: &Arc<Counts>) -> Result<[Pool<Moody>; POOLS], Failure> {
    let options = PoolOptions::default().max_pool_size(MOST).max_connecting(4);
    let milliseconds = Duration::from_millis;
    let wearing = options.clone().max_lifetime(milliseconds(400)).max_idle_time(milliseconds(200)).jitter_percent(50);
    let wearing = wearing.background_interval(BackgroundInterval::Every(milliseconds(50)));
    let checking = options.clone().check_before_use(CheckBeforeUse::Always);
    let pool = |options, runtime: &Runtime| {
        let pool = Pool::builder("dummies", Moody(counts.clone())).options(options);
        let pool = pool.runtime(runtime.handle().clone()).build()?;
        pool.ready();
        Ok::<_, Failure>(pool)
    };
    let [first, second] = runtimes;
    Ok([pool(options, first)?, pool(wearing, first)?, pool(checking, second)?])
}

impl Soaked {
    fn goes_on(&self) -> bool {
        Instant::now() < self.end && self.counts.served.load(Ordering::Relaxed) < self.most
    }

    /// Returns a random pool, usually the one whose calls take the shortest paths.
    fn pool(&self, dice: &mut Dice) -> &Pool<Moody> {
        &self.pools[(dice.roll(16) as usize).saturating_sub(16 - POOLS)]
    }

    /// Uses a connection. Occasionally breaks it, leaves it undrained, discards it, or takes it out of its pool.
    fn end_burst(&self, mut connection: Connection<Moody>, dice: &mut Dice) {
        self.begin_use(&connection);
        thread::yield_now();
        self.end_use(&connection);
        match dice.roll(32) {
            0 => connection.condition = Condition::Broken,
            1 | 2 => connection.condition = Condition::NeedsDrain,
            3 => connection.discard(),
            4 => drop(connection.detach()),
            _ => {}
        }
    }

    fn begin_use(&self, connection: &Dummy) {
        if connection.is_in_use.swap(true, Ordering::Relaxed) {
            self.counts.given_twice.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn end_use(&self, connection: &Dummy) {
        connection.is_in_use.store(false, Ordering::Relaxed);
    }

    fn count_error(&self, error: &CheckOutError) {
        use CheckOutError::{Establish, PoolCleared, WaitQueueTimeout};
        self.counts.errors.fetch_add(1, Ordering::Relaxed);
        if !matches!(error, PoolCleared(_) | Establish(_) | WaitQueueTimeout(_)) {
            eprintln!("soak: {error}");
            self.counts.unexpected_errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Checks out connections on a thread without an executor until the end.
fn on_thread(soaked: &Soaked, number: u64) {
    let mut dice = Dice(number << 32);
    while soaked.goes_on() {
        let pool = soaked.pool(&mut dice);
        let limit = (dice.roll(4) == 0).then(|| Duration::from_micros(dice.roll(2_000)));
        let mut served = 0;
        while served < BURST {
            match pool.check_out_blocking(limit) {
                Ok(connection) => {
                    soaked.begin_use(&connection);
                    soaked.end_use(&connection);
                }
                Err(error) => {
                    soaked.count_error(&error);
                    thread::yield_now();
                    break;
                }
            }
            served += 1;
        }
        if let Some(connection) = pool.try_check_out() {
            soaked.end_burst(connection, &mut dice);
            served += 1;
        }
        soaked.counts.served.fetch_add(served, Ordering::Relaxed);
    }
}

/// Checks out connections in a task until the end.
async fn in_task(soaked: Arc<Soaked>, number: u64) {
    let mut dice = Dice(number << 32);
    while soaked.goes_on() {
        let pool = soaked.pool(&mut dice);
        let mut served = 0;
        while served < BURST {
            match pool.check_out().await {
                Ok(connection) => {
                    soaked.begin_use(&connection);
                    soaked.end_use(&connection);
                }
                Err(error) => {
                    soaked.count_error(&error);
                    break;
                }
            }
            served += 1;
        }
        let last = match dice.roll(2) {
            // Cancelled after a while, often while it is queued or has just been granted a connection.
            0 => timeout(Duration::from_micros(dice.roll(2_000)), pool.check_out()).await.ok(),
            // Cancelled after its first poll.
            _ => {
                tokio::select! { biased; checked_out = pool.check_out() => Some(checked_out), () = yield_now() => None }
            }
        };
        match last {
            Some(Ok(connection)) => {
                soaked.end_burst(connection, &mut dice);
                served += 1;
            }
            Some(Err(error)) => soaked.count_error(&error),
            None => _ = soaked.counts.cancelled.fetch_add(1, Ordering::Relaxed),
        }
        soaked.counts.served.fetch_add(served, Ordering::Relaxed);
        yield_now().await;
    }
}

/// Clears, renews, resizes, suspends, culls and warms up the pools until the end. Returns the number of disturbances.
fn disturb(soaked: &Soaked, runtime: &Handle) -> u64 {
    let (mut dice, mut disturbances) = (Dice(1), 0);
    while soaked.goes_on() {
        thread::sleep(Duration::from_millis(1 + dice.roll(20)));
        let pool = &soaked.pools[dice.roll(POOLS as u64) as usize];
        match dice.roll(7) {
            0 => {
                let clear = Clear::new().interrupt_in_use_connections(dice.roll(2) == 0);
                pool.clear(clear).expect("the pool is not load-balanced");
                (0..dice.roll(5)).for_each(|_| thread::yield_now());
                pool.ready();
            }
            1 => pool.renew(),
            2 => {
                // Most of the sizes are sufficient, because a check-out that waits takes as long as a hundred that do
                // not.
                let (least, most) = if dice.roll(4) == 0 { (1, ENOUGH / 4) } else { (ENOUGH, MOST) };
                let most = least + dice.roll(u64::from(most - least)) as u32;
                resize(pool, most, dice.roll(u64::from(most) + 1) as u32);
            }
            3 => {
                pool.suspend();
                thread::sleep(Duration::from_millis(dice.roll(3)));
                pool.resume();
            }
            4 => _ = pool.retain(|_, usage| usage.connection_id % 2 == 0),
            5 => {
                let warm_up = pool.warm_up(dice.roll(16) as u32, |_| {});
                match runtime.block_on(async { timeout(PATIENCE, warm_up).await }) {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => soaked.count_error(&error),
                    Err(_) => {
                        eprintln!("soak: a warm-up takes {PATIENCE:?}: {:?}", pool.status());
                        soaked.counts.unexpected_errors.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            _ => drop((pool.status(), pool.metrics(), pool.holders())),
        }
        disturbances += 1;
    }
    soaked.pools.iter().for_each(|pool| resize(pool, MOST, 0));
    disturbances
}

fn resize(pool: &Pool<Moody>, most: u32, least: u32) {
    pool.resize(|options| options.max_pool_size(most).min_pool_size(least))
        .expect("the sizes do not contradict each other");
}

/// Checks out all connections that the pool allows, and checks them in. Returns how many are missing.
fn lost(pool: &Pool<Moody>) -> u64 {
    let mut held = Vec::new();
    while held.len() < MOST as usize {
        match pool.check_out_blocking(Some(PATIENCE)) {
            Ok(connection) => held.push(connection),
            Err(CheckOutError::Establish(_)) => {}
            Err(error) => {
                eprintln!("soak: {error}");
                break;
            }
        }
    }
    u64::from(MOST) - held.len() as u64
}
