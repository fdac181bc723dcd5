//! Tests of the whole core under shuttle, in randomly chosen schedules, with more threads and longer runs than loom can
//! enumerate.
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle cargo test -p wharf-loom-tests --profile models --test shuttle
//! ```
//!
//! Each test runs up to ten threads, or up to 16 with a crowd of users:
//!
//! - six or twelve users, which check connections out and in, give up waiting, open connections, fail to open them,
//!   break them, and leave them undrained;
//! - a monitor, which clears the pool and marks it ready;
//! - the background task;
//! - a watcher, which checks the pool's status;
//! - in half of the schedules, a thread that closes the pool at a random time.
//!
//! Two more tests run 16 threads on one queue, in which check-outs have queued up in a known order. Some check-outs
//! give up while the connection passes along the queue, and the others must be served in that order. Both ways to park
//! are tested.
//!
//! In addition, each drain has its own thread. shuttle explores only sequentially consistent executions; the models in
//! `loom/main.rs` cover reordering.
//!
//! In half of the tests, the environment listens, and the events of each connection and of the pool must be in a valid
//! order. In the other half, the environment does not listen, so users take the hit path.
//!
//! | public path | functions | where |
//! | --- | --- | --- |
//! | `Core::note_and_try_hit` | `Core::try_hit`, `pop_nearby`, `Shard::pop_from`, `try_pop` | `unheard` |
//! | the drop of a `Lease` | `Held::put_back`, `push`, `Shard::try_push`, and `Held::make_available` if they fail | `unheard` |
//! | the same, with events | `check_in_at_length`, `Held::make_available`, `Shard::push`, `Held::hand_over` | `heard` |
//! | `Core::try_take`, `Core::acquire`, `Core::acquire_as_opener`, and their drops | `seek`, `queue_up`, `queue_up_as_opener`, `settle`, the wait list | `heard`, `unheard` |
//! | `Permit::create`, `Pending::established`, `Opening::hand_on`, and their drops | `Capacity`, `Slab::grow`, `Core::serve_permits` | `heard`, `unheard` |
//! | `Draining::revocable`, and its drop | `Held::make_available` or `Held::retire`, the drain queue | `heard`, `unheard` |
//! | `Core::clear`, `Core::ready`, `Core::close`, `Core::maintain`, `Core::populate`, `Core::status` | all | `heard`, `unheard` |
//!
//! `every_mutant_is_caught` runs mutants of the hit path and of the wait lists (see `loom-tests/src/mutants/mod.rs`) in
//! child processes, as the loom test of the same name does.
//!
//! `WHARF_SHUTTLE_SCHEDULES` sets how many schedules each test runs. shuttle prints a failing schedule, which
//! `shuttle::replay` accepts.
#![cfg(shuttle)]

use std::cell::Cell;
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering as StatisticOrdering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::{Config, Runner, future, thread};
use wharf::unstable::pool::{Closing, Core, Draining, Environment, Grant, Idle, Lease, Nearby, Opening, Pending};
use wharf::{BackgroundInterval, Clear, Condition, Phase, PoolEvent, PoolOptions};
use wharf_loom_tests::instrumented;
use wharf_loom_tests::mutants::is_present;

const USERS: usize = 6;
/// The number of users in the tests with a crowd, which run 15 or 16 threads.
const CROWD: usize = 12;
const CHECK_OUTS: usize = 4;

type Pool = Core<World>;

/// A dummy connection. Its marks are std's atomics, because they are not part of the pool and shuttle need not switch
/// threads at them.
#[derive(Default)]
struct Connection {
    held: AtomicBool,
    broken: AtomicBool,
    needs_drain: AtomicBool,
}

#[derive(Default)]
struct World {
    listens: bool,
    events: Mutex<Vec<PoolEvent>>,
    /// Lets shuttle switch threads at each event.
    emitted: AtomicUsize,
    opened: AtomicU32,
    disposed: AtomicU32,
    drains: Mutex<Vec<thread::JoinHandle<()>>>,
}

shuttle::thread_local! {
    static HINT: Cell<usize> = Cell::new(0);
    static NEARBY: Nearby = Nearby::new();
}

// SAFETY: each thread has one note, a thread-local.
#[allow(unsafe_code)]
unsafe impl Environment for World {
    type Connection = Connection;

    fn now(&self) -> Instant {
        static NOW: OnceLock<Instant> = OnceLock::new();
        *NOW.get_or_init(Instant::now)
    }

    fn stopwatch(&self) -> u64 {
        0
    }

    fn shard_hint(&self) -> usize {
        HINT.with(Cell::get)
    }

    fn with_nearby<R>(f: impl FnOnce(&Nearby) -> R) -> Option<R> {
        Some(NEARBY.with(f))
    }

    fn listens(&self) -> bool {
        self.listens
    }

    fn emit(&self, event: PoolEvent) {
        self.emitted.fetch_add(1, Ordering::Relaxed);
        self.events.lock().unwrap().push(event);
    }

    fn condition(&self, connection: &mut Connection) -> Condition {
        match connection.broken.load(StatisticOrdering::Relaxed) {
            true => Condition::Broken,
            false if connection.needs_drain.load(StatisticOrdering::Relaxed) => Condition::NeedsDrain,
            false => Condition::Reusable,
        }
    }

    fn drain(&self, draining: Draining<Self>) {
        // The thread is started before the lock is taken, because shuttle may switch threads here.
        let drain = thread::spawn(move || end_drain(draining));
        self.drains.lock().unwrap().push(drain);
    }

    fn dispose(&self, connection: Connection, _closing: Closing<Self>) {
        assert!(!connection.held.load(StatisticOrdering::Relaxed), "a held connection was closed");
        self.disposed.fetch_add(1, StatisticOrdering::Relaxed);
    }
}

fn chance(of: u32) -> bool {
    thread_rng().gen_range(0..of) == 0
}

/// Drains a connection for a while, or until the pool is cleared or closed. One drain in four fails. One drain in eight
/// closes the connection, whatever its outcome.
fn end_drain(mut draining: Draining<World>) {
    HINT.with(|present| present.set(thread_rng().gen_range(0..10)));
    let (connection, revocation) = draining.revocable();
    assert!(!connection.held.swap(true, StatisticOrdering::Relaxed), "a user holds a connection that is drained");
    for _ in 0..thread_rng().gen_range(0..4) {
        if revocation.is_stale() {
            break;
        }
        thread::yield_now();
    }
    connection.needs_drain.store(chance(4), StatisticOrdering::Relaxed);
    assert!(connection.held.swap(false, StatisticOrdering::Relaxed), "a drained connection was given back twice");
    if chance(8) { draining.close() } else { drop(draining) }
}

/// Uses a connection for a while. One in eight connections breaks, and one in four is left undrained.
fn operate(lease: Lease<World>) {
    assert!(!lease.held.swap(true, StatisticOrdering::Relaxed), "a connection has two holders");
    assert!(!lease.needs_drain.load(StatisticOrdering::Relaxed), "an undrained connection was checked out");
    for _ in 0..thread_rng().gen_range(0..3) {
        thread::yield_now();
    }
    lease.broken.store(chance(8), StatisticOrdering::Relaxed);
    lease.needs_drain.store(chance(4), StatisticOrdering::Relaxed);
    assert!(lease.held.swap(false, StatisticOrdering::Relaxed), "a connection was given back twice");
    drop(lease);
}

type Established = (Idle<World>, Opening<World>);

/// Opens a connection. One in eight attempts fails.
fn establish(pool: &Arc<Pool>, pending: Pending<World>) -> Option<Established> {
    thread::yield_now();
    if chance(8) {
        return None;
    }
    pool.environment().opened.fetch_add(1, StatisticOrdering::Relaxed);
    pending.established(Connection::default()).ok()
}

/// Polls for a returned connection a few times, as an opener.
fn look_for_another(pool: &Arc<Pool>) -> Option<Idle<World>> {
    let mut waits = Box::pin(pool.acquire_as_opener());
    for _ in 0..thread_rng().gen_range(1..4) {
        if let Poll::Ready(idle) = waits.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return Some(idle);
        }
        thread::yield_now();
    }
    None
}

fn make_use(pool: &Arc<Pool>, grant: Grant<World>) {
    match grant {
        Grant::Connection(idle) => operate(idle.check_out(pool.check_out_started())),
        Grant::Permit(_) if chance(8) => {}
        Grant::Permit(permit) => {
            let Ok(pending) = permit.create() else { return };
            let sooner = if chance(2) { look_for_another(pool) } else { None };
            let own = establish(pool, pending);
            if let Some(idle) = sooner {
                if let Some((own, opening)) = own {
                    opening.hand_on(Some(own));
                }
                return operate(idle.check_out(pool.check_out_started()));
            }
            let Some((idle, opening)) = own else { return };
            if chance(2) {
                // This stands for a caller that has gone away.
                opening.hand_on(Some(idle));
            } else {
                let lease = idle.check_out(pool.check_out_started());
                drop(opening);
                operate(lease);
            }
        }
        Grant::Refused(_) => {}
    }
}

fn user(pool: &Arc<Pool>) {
    for _ in 0..CHECK_OUTS {
        if chance(2)
            && let Some(hit) = pool.note_and_try_hit()
        {
            operate(hit.begin());
            continue;
        }
        if chance(2)
            && let Some(idle) = pool.try_take()
        {
            operate(idle.check_out(pool.check_out_started()));
            continue;
        }
        if chance(3) {
            // Gives up after a few polls.
            let mut waits = Box::pin(pool.acquire());
            for _ in 0..thread_rng().gen_range(1..4) {
                if let Poll::Ready(grant) = waits.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    make_use(pool, grant);
                    break;
                }
                thread::yield_now();
            }
        } else {
            // Waits without a limit. A lost wake-up leads to a deadlock, which shuttle reports.
            let grant = future::block_on(pool.acquire());
            make_use(pool, grant);
        }
    }
}

fn server_monitor(pool: &Arc<Pool>) {
    for _ in 0..3 {
        thread::yield_now();
        let cleared = pool.clear(Clear::new().interrupt_in_use_connections(chance(2)));
        cleared.expect("the pool is load-balanced");
        thread::yield_now();
        pool.ready();
    }
}

fn background(pool: &Arc<Pool>) {
    for _ in 0..6 {
        pool.maintain();
        while let Some(pending) = pool.populate() {
            if let Some((idle, opening)) = establish(pool, pending) {
                opening.hand_on(Some(idle));
            }
        }
        thread::yield_now();
    }
}

fn watcher(pool: &Arc<Pool>, max_pool_size: u32, max_connecting: u32) {
    for _ in 0..6 {
        let status = pool.status();
        assert!(status.total <= max_pool_size && status.pending <= max_connecting, "{status:?}");
        assert_eq!(status.total, status.pending + status.available + status.in_use + status.stale, "{status:?}");
        thread::yield_now();
    }
}

type Work = Box<dyn FnOnce(&Arc<Pool>) + Send>;

fn all_at_once(listens: bool, users: usize, (max_pool_size, max_connecting, min_pool_size): (u32, u32, u32)) {
    let options = PoolOptions::default()
        .max_pool_size(max_pool_size)
        .max_connecting(max_connecting)
        .min_pool_size(min_pool_size)
        .background_interval(BackgroundInterval::Never);
    let pool = Core::new("server:27017", options, 4, World { listens, ..World::default() }).unwrap();
    pool.ready();
    let start = |hint: usize, work: Work| {
        let pool = pool.clone();
        thread::spawn(move || {
            HINT.with(|present| present.set(hint));
            work(&pool);
        })
    };
    let mut threads: Vec<_> = (0..users).map(|hint| start(hint, Box::new(user))).collect();
    threads.push(start(users, Box::new(server_monitor)));
    threads.push(start(users + 1, Box::new(background)));
    threads.push(start(users + 2, Box::new(move |pool| watcher(pool, max_pool_size, max_connecting))));
    // In half of the schedules, the pool is closed at a random time. In the other schedules, the monitor leaves the
    // pool ready at the end, so that every check-out is answered.
    if chance(2) {
        let closes = |pool: &Arc<Pool>| {
            for _ in 0..thread_rng().gen_range(0..40) {
                thread::yield_now();
            }
            pool.close();
        };
        threads.push(start(users + 3, Box::new(closes)));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let drains = std::mem::take(&mut *pool.environment().drains.lock().unwrap());
    drains.into_iter().for_each(|drain| drain.join().unwrap());
    pool.close();
    let status = pool.status();
    assert_eq!((status.phase, status.total, status.pending), (Phase::Closed, 0, 0));
    assert_eq!((status.available, status.stale, status.waiting), (0, 0, 0));
    let world = pool.environment();
    assert_eq!(
        world.opened.load(StatisticOrdering::Relaxed),
        world.disposed.load(StatisticOrdering::Relaxed),
        "not every connection was closed once"
    );
    assert_sane(&world.events.lock().unwrap());
    assert_eq!(Arc::strong_count(&pool), 1, "a reference to the pool is left");
}

/// Asserts that a subscriber sees a valid life cycle for each connection and for the pool.
fn assert_sane(events: &[PoolEvent]) {
    let (mut ready, mut closed, mut created) = (false, false, 0);
    let mut lives: HashMap<u64, &str> = HashMap::new();
    for event in events {
        let name = event.name();
        match name {
            "PoolReady" => assert!(!std::mem::replace(&mut ready, true) && !closed, "ready twice, or after the close"),
            "PoolCleared" => assert!(std::mem::replace(&mut ready, false) && !closed, "cleared while paused or closed"),
            "PoolClosed" => assert!(!std::mem::replace(&mut closed, true), "closed twice"),
            _ => {}
        }
        let Some(id) = event.connection_id() else { continue };
        let before = lives.insert(id, name);
        match (before, name) {
            (None, "ConnectionCreated") => {
                assert!(ready && !closed, "connection {id} was created while the pool was not ready");
                created += 1;
                assert_eq!(id, created, "ids are not in the order of the events");
            }
            (Some("ConnectionCreated"), "ConnectionReady" | "ConnectionClosed")
            | (Some("ConnectionReady" | "ConnectionCheckedIn"), "ConnectionCheckedOut" | "ConnectionClosed")
            | (Some("ConnectionCheckedOut"), "ConnectionCheckedIn") => {}
            _ => panic!("connection {id}: unexpected {name} after {before:?}"),
        }
    }
    assert!(lives.values().all(|last| *last == "ConnectionClosed"), "a connection was not closed: {lives:?}");
}

type NewScheduler = fn(usize) -> Box<dyn Scheduler + Send>;

fn heard(schedules: usize, scheduler: NewScheduler, pool: (u32, u32, u32)) {
    run(schedules, scheduler, pool, USERS, true);
}

fn unheard(schedules: usize, scheduler: NewScheduler, pool: (u32, u32, u32)) {
    run(schedules, scheduler, pool, USERS, false);
}

fn run(schedules: usize, scheduler: NewScheduler, pool: (u32, u32, u32), users: usize, listens: bool) {
    println!("a pool {pool:?}, listens: {listens}");
    explore(schedules, scheduler, move || all_at_once(listens, users, pool));
}

fn explore(schedules: usize, scheduler: NewScheduler, execution: impl Fn() + Send + Sync + 'static) {
    println!("{STARTED}");
    let asked = std::env::var("WHARF_SHUTTLE_SCHEDULES").ok();
    let schedules = asked.map_or(schedules, |asked| asked.parse().expect("WHARF_SHUTTLE_SCHEDULES must be a number"));
    let mut config = Config::new();
    config.stack_size = 0x2_0000;
    let started = Instant::now();
    Runner::new(scheduler(schedules), config).run(execution);
    println!("{schedules} schedules in {:.1?}", started.elapsed());
}

fn random(schedules: usize) -> Box<dyn Scheduler + Send> {
    Box::new(RandomScheduler::new(schedules))
}

fn with_few_changes_of_priority(schedules: usize) -> Box<dyn Scheduler + Send> {
    Box::new(PctScheduler::new(5, schedules))
}

#[test]
fn one_connection_in_random_schedules() {
    heard(30_000, random, (1, 1, 0));
}

#[test]
fn two_connections_in_random_schedules() {
    heard(30_000, random, (2, 1, 1));
}

#[test]
fn sharded_connections_in_random_schedules() {
    heard(30_000, random, (8, 2, 3));
}

#[test]
fn two_connections_in_schedules_with_few_preemptions() {
    heard(30_000, with_few_changes_of_priority, (2, 1, 1));
}

#[test]
fn sharded_connections_in_schedules_with_few_preemptions() {
    heard(30_000, with_few_changes_of_priority, (8, 2, 3));
}

#[test]
fn one_unheard_connection_in_random_schedules() {
    unheard(30_000, random, (1, 1, 0));
}

#[test]
fn two_unheard_connections_in_random_schedules() {
    unheard(30_000, random, (2, 2, 1));
}

#[test]
fn unheard_sharded_connections_in_random_schedules() {
    unheard(30_000, random, (8, 2, 3));
}

#[test]
fn two_unheard_connections_in_schedules_with_few_preemptions() {
    unheard(30_000, with_few_changes_of_priority, (2, 2, 1));
}

#[test]
fn unheard_sharded_connections_in_schedules_with_few_preemptions() {
    unheard(30_000, with_few_changes_of_priority, (8, 2, 3));
}

/// There are many more users than connections, so nearly all users wait. One user in three gives up after a few polls.
#[test]
fn crowd_on_one_unheard_connection_in_random_schedules() {
    run(10_000, random, (1, 1, 0), CROWD, false);
}

#[test]
fn crowd_on_two_unheard_connections_in_schedules_with_few_preemptions() {
    run(10_000, with_few_changes_of_priority, (2, 2, 1), CROWD, false);
}

/// How many check-outs queue up in the tests with 16 threads. Another thread holds the connection, and the last thread
/// waits for all the others.
const QUEUE: u32 = 14;

/// Passes one connection through a queue whose order is known. One check-out in three gives up after a few polls, which
/// may be before the hand-over, at any point during it, or after it.
fn queue_is_served_in_order() {
    let options = PoolOptions::default().max_pool_size(1).background_interval(BackgroundInterval::Never);
    let pool = Core::new("server:27017", options, 4, World::default()).unwrap();
    pool.ready();
    let Grant::Permit(permit) = future::block_on(pool.acquire()) else { panic!("no permit") };
    pool.environment().opened.fetch_add(1, StatisticOrdering::Relaxed);
    let opened = permit.create().unwrap().established(Connection::default());
    let Ok((idle, opening)) = opened else { panic!("interrupted") };
    let lease = idle.check_out(pool.check_out_started());
    drop(opening);

    let served = Arc::new(Mutex::new(Vec::new()));
    let queue: Vec<_> = (0..QUEUE).map(|number| queued_up(&pool, number, served.clone())).collect();
    let mut threads: Vec<_> = queue.into_iter().map(|wait| thread::spawn(wait)).collect();
    threads.push(thread::spawn(move || operate(lease)));
    for thread in threads {
        thread.join().unwrap();
    }
    let drains = std::mem::take(&mut *pool.environment().drains.lock().unwrap());
    drains.into_iter().for_each(|drain| drain.join().unwrap());
    let served = served.lock().unwrap();
    assert!(served.is_sorted(), "the order of service: {served:?}");
    pool.close();
    let status = pool.status();
    assert_eq!((status.total, status.pending, status.waiting), (0, 0, 0));
}

/// Queues a check-out. Returns a closure that waits for the grant and uses it, or gives up.
fn queued_up(pool: &Arc<Pool>, number: u32, served: Arc<Mutex<Vec<u32>>>) -> impl FnOnce() + Send + 'static {
    let pool = pool.clone();
    let mut waits = Box::pin({
        let pool = pool.clone();
        async move { pool.acquire().await }
    });
    let polled = waits.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "the check-out did not queue up");
    move || {
        let make_use_of = |grant| {
            // The order is recorded while this check-out still has the connection, or the permit for it.
            served.lock().unwrap().push(number);
            make_use(&pool, grant);
        };
        if !chance(3) {
            return make_use_of(future::block_on(waits));
        }
        for _ in 0..thread_rng().gen_range(0..6) {
            if let Poll::Ready(grant) = waits.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return make_use_of(grant);
            }
            thread::yield_now();
        }
    }
}

fn run_queue(schedules: usize, scheduler: NewScheduler) {
    explore(schedules, scheduler, queue_is_served_in_order);
}

#[test]
fn queue_of_16_threads_is_served_in_order_in_random_schedules() {
    run_queue(10_000, random);
}

#[test]
fn queue_of_16_threads_is_served_in_order_in_schedules_with_few_preemptions() {
    run_queue(10_000, with_few_changes_of_priority);
}

/// The text that a negative control prints first.
const STARTED: &str = "schedules started";

/// Pairs of a mutant (see `loom-tests/src/mutants/mod.rs`) and the test that must catch it.
const MUTANTS: &[(&str, &str)] = &[
    ("hit_without_comparing", "two_unheard_connections_in_random_schedules"),
    ("push_without_comparing", "two_unheard_connections_in_random_schedules"),
    ("push_ignores_the_generation", "two_unheard_connections_in_random_schedules"),
    ("push_ignores_waiters", "one_unheard_connection_in_random_schedules"),
    ("return_that_fails_is_lost", "one_unheard_connection_in_random_schedules"),
    ("detach_leaves_a_shard", "unheard_sharded_connections_in_random_schedules"),
    ("cancelled_check_out_keeps_its_grant", "queue_of_16_threads_is_served_in_order_in_random_schedules"),
    ("second_waiter_is_claimed_first", "queue_of_16_threads_is_served_in_order_in_random_schedules"),
    ("gap_stays_in_the_word", "queue_of_16_threads_is_served_in_order_in_random_schedules"),
    ("waiter_is_not_withheld", "queue_of_16_threads_is_served_in_order_in_random_schedules"),
];

#[test]
fn every_mutant_is_caught() {
    if std::env::var_os("WHARF_MUTANT").is_some() {
        return;
    }
    let binary = instrumented::build("shuttle").unwrap_or_else(|why| panic!("the instrumented build failed: {why}"));
    for (mutant, test) in MUTANTS.iter().filter(|(mutant, _)| is_present(mutant)) {
        let control = std::process::Command::new(&binary)
            .args(["--exact", test, "--nocapture"])
            .env("WHARF_MUTANT", mutant)
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        assert!(String::from_utf8_lossy(&control.stdout).contains(STARTED), "{test} did not start");
        assert!(!control.status.success(), "{mutant} is not caught by {test}");
    }
}
