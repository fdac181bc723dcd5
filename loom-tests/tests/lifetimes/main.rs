//! A stress test of lifetimes under AddressSanitizer, because models and ordinary tests do not notice accesses to freed
//! memory.
//!
//! ```text
//! RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=target/sanitized WHARF_SOAK_SECONDS=60 \
//!     cargo +nightly test -p wharf-loom-tests --target x86_64-unknown-linux-gnu --test lifetimes
//! ```
//!
//! Threads check out connections from pools that other threads are replacing, closing and clearing. They cancel
//! check-outs, leak waiting check-outs, and leave behind wakers that panic. They return connections on other threads,
//! broken or undrained, and after their pool is gone, so a thread's note often names a pool that no longer exists. Two
//! more threads make thousands of check-outs wait at once; see `bursts`.
//!
//! The test runs for two seconds, or for `WHARF_SOAK_SECONDS`, and then continues until each occurrence that it counts
//! has happened at least once.
#![cfg(not(any(loom, shuttle)))]

mod bursts;
mod occurrences;

use std::future::Future;
use std::io;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::timeout;
use wharf::{CheckOutError, Clear, Condition, Connection, Establish, EstablishError, Establishing, Pool};
use wharf::{PoolEvent, PoolOptions, Stage};

use occurrences::Occurrence;

/// More threads than cores, so that threads are preempted between their steps.
const THREADS: u64 = 6;
/// The number of additional threads, which run bursts.
const BURSTING: u64 = 2;
const POOLS: u64 = 3;
/// The maximum number of leaked check-outs. Each leaked check-out keeps its pool in memory.
const MOST_LEAKED: usize = 500;
/// How long the last connections may take to close, or a rare occurrence to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// The number of connections that exist in memory.
static LIVE: AtomicU64 = AtomicU64::new(0);
/// Waiting check-outs that are never dropped. They are kept in a static, so that the sanitizer does not report them as
/// a leak in the pool.
static LEAKED: Mutex<Vec<CheckOut>> = Mutex::new(Vec::new());

type Outcome = Result<Connection<Parcels>, CheckOutError>;
/// A check-out with its own handle to the pool.
type CheckOut = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A connection whose contents are on the heap. Every user writes to them.
struct Parcel {
    contents: Box<[u64; 16]>,
    condition: Condition,
}

impl Parcel {
    fn write(&mut self, new: u64) {
        let before = self.contents[0];
        for place in &mut *self.contents {
            assert_eq!(std::mem::replace(place, new), before, "a connection has two users");
        }
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Parcels(AtomicU64);

impl Establish for Parcels {
    type Connection = Parcel;

    async fn establish(&self, _: Establishing) -> Result<Parcel, EstablishError> {
        let mut dice = Dice(self.0.fetch_add(1, Ordering::Relaxed));
        for _ in 0..dice.roll(3) {
            yield_now().await;
        }
        if dice.roll(20) == 0 {
            return Err(EstablishError::permanent(Stage::Hello, io::Error::other("out of parcels")));
        }
        LIVE.fetch_add(1, Ordering::Relaxed);
        Ok(Parcel { contents: Box::new([0; 16]), condition: Condition::Reusable })
    }

    fn condition(&self, parcel: &mut Parcel) -> Condition {
        parcel.condition
    }

    async fn drain(&self, parcel: &mut Parcel) {
        yield_now().await;
        parcel.write(1);
        parcel.condition = Condition::Reusable;
    }
}

/// A generator of pseudo-random numbers.
struct Dice(u64);

impl Dice {
    /// Returns a number below `sides`.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB) % sides
    }
}

/// A waker that panics without printing a message. Its payload takes no memory, because the pool leaks panic payloads:
/// dropping them would also run foreign code.
struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        Occurrence::Exploded.note();
        resume_unwind(Box::new(()));
    }
}

/// The threads' shared state.
struct World {
    runtime: Handle,
    pools: [Mutex<Pool<Parcels>>; POOLS as usize],
    /// Connections that are returned on a different thread from the one that checked them out.
    forwarded: Mutex<Vec<Connection<Parcels>>>,
    end: Instant,
}

fn new_pool(dice: &mut Dice) -> Pool<Parcels> {
    let mut options = PoolOptions::default().max_pool_size(1 + dice.roll(4) as u32);
    if dice.roll(4) == 0 {
        options = options.max_idle_time(Duration::from_millis(1)).min_pool_size(1);
    }
    let builder = Pool::builder("stress:27017", Parcels(AtomicU64::new(dice.roll(1 << 32)))).options(options);
    let builder = if dice.roll(4) == 0 { builder.subscriber(|event: &PoolEvent| drop(event.clone())) } else { builder };
    let pool = builder.account_for_holders(dice.roll(4) == 0).build().unwrap();
    pool.ready();
    pool
}

/// Clears a pool and makes it ready again. Returns `false` if another thread has closed the pool.
fn clear(pool: &Pool<Parcels>, dice: &mut Dice) -> bool {
    let interrupt = dice.roll(2) == 0;
    let has_cleared = pool.clear(Clear::new().interrupt_in_use_connections(interrupt)).unwrap();
    pool.ready();
    if has_cleared {
        Occurrence::Cleared.note();
    }
    has_cleared
}

/// Returns a check-out that keeps its pool alive.
fn owned(pool: &Pool<Parcels>) -> CheckOut {
    let pool = pool.clone();
    Box::pin(async move { pool.check_out().await })
}

/// Leaks a waiting check-out, unless `most` check-outs have already been leaked. Returns whether it leaked the
/// check-out.
fn hoard(waits: CheckOut, most: usize) -> bool {
    let mut leaked = LEAKED.lock().unwrap();
    if leaked.len() >= most {
        // The lock is released first, because dropping `waits` runs a waker's code, which must not run under the lock.
        drop(leaked);
        Occurrence::Cancelled.note();
        return false;
    }
    leaked.push(waits);
    Occurrence::Leaked.note();
    true
}

impl World {
    /// Returns whether the test should continue, because there is time left or something that must occur has not
    /// occurred yet.
    fn goes_on(&self) -> bool {
        let now = Instant::now();
        now < self.end || now < self.end + PATIENCE && !Occurrence::missing().is_empty()
    }

    /// Uses, clears and replaces pools, and leaks check-outs, until the test ends.
    fn stress(&self, number: u64) {
        let _inside = self.runtime.enter();
        let mut dice = Dice(number << 32);
        while self.goes_on() {
            let of = dice.roll(POOLS) as usize;
            let pool = self.pools[of].lock().unwrap().clone();
            let outcome = match dice.roll(64) {
                0 => {
                    self.replace(of, &mut dice);
                    None
                }
                1 => {
                    clear(&pool, &mut dice);
                    None
                }
                2 => {
                    self.leak(&pool);
                    self.replace(of, &mut dice);
                    None
                }
                3..8 => cancelled_unless_ready(poll(pin!(pool.check_out()), Waker::noop())),
                8..16 => {
                    let mut waits = Box::pin(pool.check_out());
                    let polled = poll(waits.as_mut(), &Waker::from(Arc::new(Bomb)));
                    thread::yield_now();
                    match dice.roll(2) {
                        0 if polled.is_none() => self.wait(waits, &mut dice),
                        _ => cancelled_unless_ready(polled),
                    }
                }
                _ => self.wait(pool.check_out(), &mut dice),
            };
            // This is often the last handle, in which case the connection outlives its pool.
            drop(pool);
            if let Some(Ok(connection)) = outcome {
                self.make_use(connection, &mut dice);
            }
        }
    }

    /// Waits for a check-out with a time limit, because a leaked check-out may hold the connection.
    fn wait(&self, check_out: impl Future<Output = Outcome>, dice: &mut Dice) -> Option<Outcome> {
        let limit = Duration::from_micros(dice.roll(5_000));
        let outcome = self.runtime.block_on(async { timeout(limit, check_out).await.ok() });
        cancelled_unless_ready(outcome.inspect(note))
    }

    fn make_use(&self, mut connection: Connection<Parcels>, dice: &mut Dice) {
        connection.write(dice.roll(1 << 32));
        match dice.roll(32) {
            0 => connection.condition = Condition::Broken,
            1 => connection.condition = Condition::NeedsDrain,
            2 => {
                let used = connection.interruptible(async |parcel| {
                    parcel.write(2);
                    yield_now().await;
                    parcel.write(3);
                });
                // The use of the connection may be interrupted.
                let _ = self.runtime.block_on(used);
            }
            3..6 => {
                let mut forwarded = self.forwarded.lock().unwrap();
                forwarded.push(connection);
                let earlier = if forwarded.len() > 2 { Some(forwarded.swap_remove(0)) } else { None };
                drop(forwarded);
                if earlier.is_some() {
                    Occurrence::Forwarded.note();
                }
                return drop(earlier);
            }
            _ => {}
        }
        drop(connection);
    }

    /// Replaces a pool with a new one, and closes or drops the old pool.
    fn replace(&self, of: usize, dice: &mut Dice) {
        let new = new_pool(dice);
        let old = std::mem::replace(&mut *self.pools[of].lock().unwrap(), new);
        Occurrence::Replaced.note();
        if dice.roll(2) == 0 {
            close(&old);
            // Waits only briefly, because other threads may hold its connections.
            let _ =
                self.runtime.block_on(async { timeout(Duration::from_micros(dice.roll(1_000)), old.closed()).await });
        }
    }

    /// Leaks a waiting check-out, unless the maximum has been reached.
    fn leak(&self, pool: &Pool<Parcels>) {
        let mut waits = owned(pool);
        if poll(waits.as_mut(), Waker::noop()).is_none() {
            hoard(waits, MOST_LEAKED);
        }
        // The leaked check-out's handle would keep the pool open.
        close(pool);
    }
}

fn close(pool: &Pool<Parcels>) {
    pool.close();
    Occurrence::Closed.note();
}

fn note(outcome: &Outcome) {
    match outcome {
        Ok(_) => Occurrence::Served.note(),
        Err(CheckOutError::PoolClosed(_) | CheckOutError::PoolCleared(_)) => Occurrence::Refused.note(),
        Err(_) => Occurrence::Failed.note(),
    }
}

/// Counts a check-out as cancelled if it is still waiting.
fn cancelled_unless_ready(outcome: Option<Outcome>) -> Option<Outcome> {
    if outcome.is_none() {
        Occurrence::Cancelled.note();
    }
    outcome
}

fn poll<F: Future<Output = Outcome> + ?Sized>(future: Pin<&mut F>, waker: &Waker) -> Option<Outcome> {
    match future.poll(&mut Context::from_waker(waker)) {
        Poll::Ready(outcome) => {
            note(&outcome);
            Some(outcome)
        }
        Poll::Pending => None,
    }
}

#[test]
fn nothing_is_used_after_it_was_freed() {
    let seconds =
        std::env::var("WHARF_SOAK_SECONDS").map_or(2.0, |seconds| seconds.parse().expect("a number of seconds"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
    let inside = runtime.enter();
    let world = World {
        runtime: runtime.handle().clone(),
        pools: [(); POOLS as usize].map(|()| Mutex::new(new_pool(&mut Dice(7)))),
        forwarded: Mutex::default(),
        end: Instant::now() + Duration::from_secs_f64(seconds),
    };
    thread::scope(|scope| {
        let world = &world;
        (1..=THREADS).for_each(|number| drop(scope.spawn(move || world.stress(number))));
        (1..=BURSTING).for_each(|number| drop(scope.spawn(move || world.bursts(THREADS + number))));
    });
    let World { pools, forwarded, .. } = world;
    drop((pools, forwarded));
    drop(inside);
    Occurrence::print_all();
    let missing = Occurrence::missing();
    assert!(missing.is_empty(), "has not happened: {missing:?}");
    let leaked = LEAKED.lock().unwrap().len() as u64;
    // A leaked check-out may have been given a connection.
    let closed = async {
        while LIVE.load(Ordering::Relaxed) > leaked {
            yield_now().await;
        }
    };
    runtime.block_on(async { timeout(PATIENCE, closed).await }).expect("connections outlive their pools");
}
