//! Pools in operation: how a server restart, a renewal, and a maximum connection lifetime affect users.
//!
//! `cargo bench --bench operation` takes about a minute, and prints a table. A pool that does not support an operation
//! has no figure in that operation's rows.
//!
//! | row | meaning |
//! | --- | --- |
//! | dead after a restart | the server restarts while 20 connections are idle: how many of the next 40 uses get a dead connection, with and without each pool's check before a use |
//! | checks of 40 uses | how often the pool asked the server during these uses, after 1.2 seconds without a use |
//! | checks of 1,000 uses | the same for uses that follow each other at once |
//! | renewals: … | 50 tasks share 10 connections, each opened in 20 ms; all are replaced 20 times |
//! | below the minimum | the part of the time in which fewer than 20 connections are available, although the pool should keep 20, without load; each connection lives for a second and takes 30 ms to open |
//!
//! `cargo test --benches` runs everything briefly.

mod server;
mod subjects;

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::time::sleep;

use server::Server;
use subjects::{Bb8, Deadpool, Settings, Sqlx, Subject, Wharf};

const MILLISECOND: Duration = Duration::from_millis(1);
const IDLE: usize = 20;
const USES: u32 = 40;
const RENEWALS: u32 = 20;

/// A subject's figures, in the order of [`ROWS`]. `None` if the subject does not support the operation.
type Column = Vec<Option<f64>>;

const ROWS: [&str; 8] = [
    "dead after a restart, of 40 uses",
    "the same without a check",
    "checks of 40 uses after a pause",
    "checks of 1,000 uses",
    "renewals: check-outs",
    "renewals: check-outs refused",
    "renewals: served by an old one",
    "below the minimum, % of the time",
];

fn main() {
    // The pauses depend on the resolution of the pools' clocks, so they stay long even in a short run.
    let part = if env::args().any(|argument| argument == "--bench") { 1.0 } else { 0.05 };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let columns = runtime.block_on(async {
        [
            column::<Wharf>(part).await,
            column::<Deadpool>(part).await,
            column::<Bb8>(part).await,
            column::<Sqlx>(part).await,
        ]
    });
    let names = [Wharf::NAME, Deadpool::NAME, Bb8::NAME, Sqlx::NAME];
    println!("\n{:<36}{}", "", names.map(|name| format!("{name:>12}")).concat());
    for (row, name) in ROWS.iter().enumerate() {
        let cells = columns.iter().map(|column| match column[row] {
            Some(figure) => format!("{figure:>12}"),
            None => format!("{:>12}", "-"),
        });
        println!("{name:<36}{}", cells.collect::<String>());
    }
}

async fn column<S: Subject>(part: f64) -> Column {
    let restarted = restart::<S>(true).await;
    let unchecked = restart::<S>(false).await;
    let renewed = renew::<S>((250 * MILLISECOND).mul_f64(part)).await;
    vec![
        Some(restarted.dead.into()),
        Some(unchecked.dead.into()),
        Some(restarted.checks as f64),
        Some(restarted.checks_of_hot_uses as f64),
        renewed.as_ref().map(|renewed| f64::from(renewed.served)),
        renewed.as_ref().map(|renewed| f64::from(renewed.refused)),
        renewed.as_ref().map(|renewed| f64::from(renewed.old)),
        below_minimum::<S>((8_000 * MILLISECOND).mul_f64(part)).await,
    ]
}

struct Restarted {
    dead: u32,
    checks: u64,
    checks_of_hot_uses: u64,
}

/// Restarts the server while connections are idle, and then checks out connections one after another.
async fn restart<S: Subject>(checks: bool) -> Restarted {
    let server = Arc::new(Server::new(Duration::ZERO));
    let pool = S::open(&server, Settings { checks, ..Settings::of_size(30) }).await;
    let mut held = Vec::new();
    for _ in 0..IDLE {
        held.push(pool.check_out().await.expect("the server is there"));
    }
    drop(held);
    sleep(1_200 * MILLISECOND).await;
    server.restart();
    let mut dead = 0;
    for _ in 0..USES {
        let used = pool.check_out().await.expect("the server is there");
        if !server.knows(S::dummy(&used)) {
            dead += 1;
            S::discard(used).await;
        }
    }
    let checks = server.checks();
    for _ in 0..1_000 {
        drop(pool.check_out().await.expect("the server is there"));
    }
    Restarted { dead, checks, checks_of_hot_uses: server.checks() }
}

/// The tasks' counts. All accesses are Relaxed, because the tasks are joined before the counts are read.
struct Renewed {
    served: u32,
    refused: u32,
    /// Uses of outdated connections, which a renewal had replaced before the check-out began.
    old: u32,
}

/// Repeatedly replaces all connections under load.
async fn renew<S: Subject>(pause: Duration) -> Option<Renewed> {
    let server = Arc::new(Server::new(20 * MILLISECOND));
    let pool = Arc::new(S::open(&server, Settings::of_size(10)).await);
    if !pool.renew() {
        return None;
    }
    let counts: Arc<[AtomicU32; 3]> = Arc::default();
    // ORD: SeqCst, so that a task that begins a check-out after a renewal sees the new credential.
    let renewed = Arc::new(AtomicU64::new(0));
    let end = Instant::now() + (RENEWALS + 4) * pause;
    let tasks = (0..50).map(|_| {
        let (pool, counts, renewed) = (pool.clone(), counts.clone(), renewed.clone());
        tokio::spawn(async move {
            while Instant::now() < end {
                let least = renewed.load(Ordering::SeqCst);
                match pool.check_out().await {
                    None => _ = counts[1].fetch_add(1, Ordering::Relaxed),
                    Some(used) => {
                        counts[0].fetch_add(1, Ordering::Relaxed);
                        counts[2].fetch_add(u32::from(S::dummy(&used).credential < least), Ordering::Relaxed);
                        sleep(2 * MILLISECOND).await;
                    }
                }
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for _ in 0..RENEWALS {
        sleep(pause).await;
        let credential = server.change_credential();
        pool.renew();
        renewed.store(credential, Ordering::SeqCst);
    }
    for task in tasks {
        task.await.expect("a task panicked");
    }
    let [served, refused, old] = [0, 1, 2].map(|count: usize| counts[count].load(Ordering::Relaxed));
    Some(Renewed { served, refused, old })
}

/// Returns the percentage of the time during which the pool has fewer connections available than it should keep.
async fn below_minimum<S: Subject>(length: Duration) -> Option<f64> {
    let server = Arc::new(Server::new(30 * MILLISECOND));
    let lifetime = Some((IDLE, Duration::from_secs(1)));
    let pool = S::open(&server, Settings { lifetime, ..Settings::of_size(40) }).await;
    if !S::KEEPS_A_MINIMUM {
        return None;
    }
    // Each connection takes 30 ms to open, and a pool may open them one after another. A pool that never reaches the
    // minimum is measured anyway.
    let started = Instant::now();
    while pool.available() < IDLE && started.elapsed() < Duration::from_secs(1) {
        sleep(MILLISECOND).await;
    }
    let (end, mut looks, mut below) = (Instant::now() + length, 0, 0);
    while Instant::now() < end {
        looks += 1;
        below += u32::from(pool.available() < IDLE);
        sleep(5 * MILLISECOND).await;
    }
    Some((1_000.0 * f64::from(below) / f64::from(looks)).round() / 10.0)
}
