//! The cost of a check-out and its check-in on the hit path, in counts of instructions, locked instructions, and calls
//! outside the program, such as the allocator, the system and the clock.
//!
//! Timings depend on the machine and its load. These counts do not, so they can be asserted. Each program runs under
//! callgrind with N and with 2N rounds. The difference is the cost of N rounds, because start-up, warm-up and the test
//! harness cancel out.
//!
//! The tests run only on Linux on `x86_64`, because the bounds and the definition of a locked instruction are specific
//! to that architecture. The tests need valgrind and objdump, so they are ignored by default:
//!
//! ```sh
//! cargo test -p wharf-instructions --profile bench -- --ignored
//! ```
#![cfg(all(target_os = "linux", target_arch = "x86_64", not(any(loom, shuttle))))]

use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use wharf::unstable::pool::{Core, Environment, Grant, Hit, Nearby};
use wharf::{CheckBeforeUse, Establish, EstablishError, Establishing, Pool, PoolOptions};

mod callgrind;
mod client;
mod exchange;
mod wire;

use callgrind::{Cost, begin_counting, cost_of_a_round};

/// The number of available connections in the pool. There is more than one, so that a check-in finds another connection
/// below its own.
const IDLE: usize = 8;

/// Check-out and check-in of the core. Measured: 76, and 64 without metrics, with rustc 1.95 and the `bench` profile.
/// The bounds leave a margin of a few percent for other compilers.
const CORE_INSTRUCTIONS: f64 = 80.0;
const CORE_INSTRUCTIONS_WITHOUT_METRICS: f64 = 68.0;

/// Check-out and check-in of the pool on tokio. Measured: 107, and 85 without metrics, with the same compiler.
const POOL_INSTRUCTIONS: f64 = 114.0;
const POOL_INSTRUCTIONS_WITHOUT_METRICS: f64 = 90.0;

/// The same operations, with connections that are checked before use if they have been idle for longer than a second.
/// Measured: 135.
const POOL_INSTRUCTIONS_WITH_CHECKS: f64 = 142.0;

/// The same operations, with connections whose lifetime is limited. Each use reads the clock. Measured: 446.
const POOL_INSTRUCTIONS_WITH_LIFETIMES: f64 = 470.0;

/// The same operations, with connections that are checked before each use, by a check that does nothing. Measured:
/// 2,681.
const POOL_INSTRUCTIONS_IF_ALWAYS_CHECKED: f64 = 2_820.0;

#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn pair_on_the_core() {
    let cost = cost_of_a_round("pair_on_the_core", pairs_on_the_core::<true>);
    assert_hit_path(&cost, CORE_INSTRUCTIONS);
}

/// The cost of the metrics is the difference from the previous test.
#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn pair_on_the_core_without_metrics() {
    let cost = cost_of_a_round("pair_on_the_core_without_metrics", pairs_on_the_core::<false>);
    assert_hit_path(&cost, CORE_INSTRUCTIONS_WITHOUT_METRICS);
}

fn pairs_on_the_core<const METERED: bool>(rounds: u64) {
    let core = Core::new("here:1", PoolOptions::default(), 1, Alone::<METERED>).unwrap();
    core.ready();
    fill(&core);
    // This makes the thread note its shard.
    drop(core.try_take());
    for _ in 0..rounds {
        drop(black_box(core.try_hit().map(Hit::begin).expect("no connection is available")));
    }
    core.close();
}

#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn pair_on_the_pool() {
    let cost =
        cost_of_a_round("pair_on_the_pool", |rounds| pairs_on_the_pool(Numbers::<true, false>, default(), rounds));
    assert_hit_path(&cost, POOL_INSTRUCTIONS);
}

/// The cost of the metrics is the difference from the previous test.
#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn pair_on_the_pool_without_metrics() {
    let cost = cost_of_a_round("pair_on_the_pool_without_metrics", |rounds| {
        pairs_on_the_pool(Numbers::<false, false>, default(), rounds)
    });
    assert_hit_path(&cost, POOL_INSTRUCTIONS_WITHOUT_METRICS);
}

/// The default policy for the check before use reads a coarse clock twice, and each reading is a load.
#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn pair_on_the_pool_with_checks() {
    let cost = cost_of_a_round("pair_on_the_pool_with_checks", |rounds| {
        pairs_on_the_pool(Numbers::<true, true>, default(), rounds);
    });
    assert_hit_path(&cost, POOL_INSTRUCTIONS_WITH_CHECKS);
}

#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn pair_on_the_pool_with_lifetimes() {
    let cost = cost_of_a_round("pair_on_the_pool_with_lifetimes", |rounds| {
        pairs_on_the_pool(Numbers::<true, false>, default().max_lifetime(Duration::from_secs(3_600)), rounds);
    });
    println!("{cost}");
    assert!(cost.instructions <= POOL_INSTRUCTIONS_WITH_LIFETIMES, "{cost}");
}

#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn pair_on_the_pool_that_always_checks() {
    let cost = cost_of_a_round("pair_on_the_pool_that_always_checks", |rounds| {
        pairs_on_the_pool(Numbers::<true, true>, default().check_before_use(CheckBeforeUse::Always), rounds);
    });
    println!("{cost}");
    assert!(cost.instructions <= POOL_INSTRUCTIONS_IF_ALWAYS_CHECKED, "{cost}");
}

fn default() -> PoolOptions {
    PoolOptions::default()
}

fn pairs_on_the_pool<E: Establish>(establish: E, options: PoolOptions, rounds: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let pool = Pool::builder("here:1", establish).options(options).build().unwrap();
        pool.ready();
        let mut held = Vec::new();
        for _ in 0..IDLE {
            held.push(pool.check_out().await.unwrap());
        }
        drop(held);
        begin_counting();
        for _ in 0..rounds {
            drop(black_box(pool.check_out().await.unwrap()));
        }
    });
}

/// Cloning changes one count, and so does dropping the clone.
#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn clone_of_a_pool() {
    let cost = cost_of_a_round("clone_of_a_pool", |rounds| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let pool = Pool::builder("here:1", Numbers::<true, false>).build().unwrap();
            begin_counting();
            for _ in 0..rounds {
                drop(black_box(pool.clone()));
            }
        });
    });
    assert_eq!(cost.locked_executions(), 2, "locked instructions: {cost}");
    assert!(cost.outside.is_empty(), "calls of other code: {cost}");
}

/// The measurement must detect everything that the other tests rule out: both kinds of locked instructions, the
/// allocator, and the clock.
#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn measurement_sees_what_it_rules_out() {
    let cost = cost_of_a_round("measurement_sees_what_it_rules_out", |rounds| {
        let word = AtomicU64::new(0);
        for round in 0..rounds {
            // Relaxed: there is only one thread.
            black_box(&word).fetch_add(1, Ordering::Relaxed);
            black_box(&word).swap(round, Ordering::Relaxed);
            black_box(&word).store(round, Ordering::Relaxed);
            drop(black_box(Box::new(round)));
            black_box(Instant::now());
        }
    });
    assert_eq!(cost.locked_executions(), 2, "{cost}");
    assert!(cost.locked.iter().any(|locked| locked.text.starts_with("lock ")), "{cost}");
    assert!(cost.locked.iter().any(|locked| locked.text.starts_with("xchg")), "{cost}");
    for function in ["malloc", "free", "clock_gettime"] {
        assert!(cost.outside.keys().any(|called| called.contains(function)), "no {function} in {cost}");
    }
}

/// Asserts that there are two locked instructions, one each for the check-out and the check-in, no calls outside the
/// program, and at most `most` instructions.
fn assert_hit_path(cost: &Cost, most: f64) {
    println!("{cost}");
    assert_eq!(cost.locked_executions(), 2, "locked instructions: {cost}");
    assert!(cost.outside.is_empty(), "calls outside the program: {cost}");
    assert!(cost.instructions <= most, "more than {most} instructions: {cost}");
}

/// Opens the connections, which then stay available.
fn fill<const METERED: bool>(core: &Arc<Core<Alone<METERED>>>) {
    let mut context = Context::from_waker(Waker::noop());
    let mut opened = Vec::new();
    for number in 0..IDLE {
        let Poll::Ready(Grant::Permit(permit)) = pin!(core.acquire()).poll(&mut context) else {
            panic!("an empty pool grants no permit");
        };
        let pending = permit.create().expect("the pool is not ready");
        let (idle, opening) = pending.established(number as u64).expect("the connection was interrupted");
        drop(opening);
        opened.push(idle);
    }
}

thread_local! {
    static NEARBY: Nearby = const { Nearby::new() };
}

/// The environment of a core with one thread and no subscribers.
struct Alone<const METERED: bool>;

// SAFETY: each thread has one note, a thread-local.
#[allow(unsafe_code)]
unsafe impl<const METERED: bool> Environment for Alone<METERED> {
    type Connection = u64;

    const METERED: bool = METERED;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn stopwatch(&self) -> u64 {
        0
    }

    fn shard_hint(&self) -> usize {
        0
    }

    #[inline]
    fn with_nearby<R>(f: impl FnOnce(&Nearby) -> R) -> Option<R> {
        Some(NEARBY.with(f))
    }
}

/// Opens connections that are just numbers.
struct Numbers<const METERED: bool, const CHECKS: bool>;

impl<const METERED: bool, const CHECKS: bool> Establish for Numbers<METERED, CHECKS> {
    type Connection = u64;

    const METERED: bool = METERED;
    const HAS_CHECK: bool = CHECKS;

    async fn establish(&self, connecting: Establishing) -> Result<u64, EstablishError> {
        Ok(connecting.connection_id())
    }
}
