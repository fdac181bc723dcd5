//! The models' environment, which records events. Its dummy connections detect races and connections with two holders.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering as StatisticOrdering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use event_listener::Event;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use wharf::unstable::pool::{
    Budget, Closing, Core, Draining, Environment, Grant, Idle, Lease, Nearby, Opening, Pending, Permit, WentStale,
};
use wharf::{BackgroundInterval, Condition, PoolEvent, PoolOptions};

pub type Pool = Core<World>;
pub type Granted = Grant<World>;
pub type Leased = Lease<World>;
pub type Drain = Draining<World>;
pub type Opened = (Idle<World>, Opening<World>);

/// A dummy connection.
///
/// Its marks are std's atomics, which loom neither sees nor reorders. So they do not add synchronisation that could
/// hide a bug, and they change only between loom's thread switches.
pub struct Connection {
    /// Written by each user. loom reports every access that is not ordered after the previous access.
    contents: UnsafeCell<u32>,
    held: AtomicBool,
    needs_drain: AtomicBool,
}

impl Connection {
    fn new() -> Self {
        Self { contents: UnsafeCell::new(0), held: AtomicBool::new(false), needs_drain: AtomicBool::new(false) }
    }

    #[allow(unsafe_code)]
    pub fn operate(&self) {
        // SAFETY: there is one holder at a time. The models check this: loom panics before it lets a race happen.
        self.contents.with_mut(|contents| unsafe { *contents += 1 });
    }
}

pub struct World {
    listens: bool,
    /// The events, in the order of the calls. This is a std mutex for the reason given at `Connection`.
    events: Mutex<Vec<PoolEvent>>,
    /// The number of emitted events. It lets loom switch threads at each event. Emitting threads release the number and
    /// never acquire it, so it does not order them.
    emitted: AtomicUsize,
    /// Notified when connections have become stale. `None` if the model does not watch for this.
    changed: Option<Event>,
    opened: AtomicU32,
    disposed: AtomicU32,
    /// The drains that a model has yet to begin.
    drains: Mutex<Vec<Drain>>,
    /// How far the pool's clock has advanced, in nanoseconds.
    passed: AtomicU64,
    budget: Option<Budget>,
    /// Whether check-outs are refused if they would have to wait.
    is_impatient: bool,
}

impl World {
    fn new(listens: bool) -> Self {
        Self {
            listens,
            events: Mutex::default(),
            emitted: AtomicUsize::new(0),
            changed: None,
            opened: AtomicU32::new(0),
            disposed: AtomicU32::new(0),
            drains: Mutex::default(),
            passed: AtomicU64::new(0),
            budget: None,
            is_impatient: false,
        }
    }

    /// Returns the event that is notified when connections have become stale. The pool must have been created by
    /// [`watched`].
    pub fn changed(&self) -> &Event {
        self.changed.as_ref().expect("the pool is not watched")
    }

    /// Returns the events so far, as a subscriber on another thread would see them.
    pub fn seen(&self) -> Vec<PoolEvent> {
        let seen = self.emitted.load(Ordering::Acquire);
        self.events.lock().unwrap()[..seen].to_vec()
    }

    /// Returns how many events the calling thread sees without acquiring the counter.
    pub fn known(&self) -> usize {
        self.emitted.load(Ordering::Relaxed)
    }

    pub fn names(&self) -> Vec<&'static str> {
        self.events.lock().unwrap().iter().map(PoolEvent::name).collect()
    }

    pub fn events(&self) -> Vec<PoolEvent> {
        self.events.lock().unwrap().clone()
    }

    pub fn opened(&self) -> u32 {
        self.opened.load(StatisticOrdering::Relaxed)
    }

    pub fn disposed(&self) -> u32 {
        self.disposed.load(StatisticOrdering::Relaxed)
    }

    /// Takes the drain of the last connection that was checked in undrained.
    pub fn last_draining(&self) -> Option<Drain> {
        self.drains.lock().unwrap().pop()
    }

    /// Returns how many times maintenance was requested on the calling thread.
    pub fn maintenance_asked_for_here(&self) -> usize {
        RUNS.with(Cell::get)
    }

    /// Advances the pool's clock.
    pub fn pass(&self, time: Duration) {
        self.passed.fetch_add(time.as_nanos() as u64, StatisticOrdering::Relaxed);
    }

    /// Returns a new connection.
    pub fn connect(&self) -> Connection {
        self.opened.fetch_add(1, StatisticOrdering::Relaxed);
        Connection::new()
    }
}

loom::thread_local! {
    static HINT: Cell<usize> = Cell::new(0);
    static NEARBY: Nearby = Nearby::new();
    static RUNS: Cell<usize> = Cell::new(0);
    static TASK: Cell<u64> = Cell::new(0);
}

/// Makes the calling thread appear to run the task with this number.
pub fn run_as_task(number: u64) {
    TASK.with(|present| present.set(number));
}

/// Makes the calling thread prefer a shard.
pub fn prefer_shard(hint: usize) {
    HINT.with(|present| present.set(hint));
    // Without this, a thread would stay with the shard that it has noted.
    NEARBY.with(Nearby::forget);
}

// SAFETY: each thread has one note, a thread-local.
#[allow(unsafe_code)]
unsafe impl Environment for World {
    type Connection = Connection;

    // Off, because the tally's accesses would multiply the number of executions. One model has a separate environment
    // with tallies.
    const METERED: bool = false;

    const CHECKS: bool = true;

    fn now(&self) -> Instant {
        static NOW: OnceLock<Instant> = OnceLock::new();
        let passed = Duration::from_nanos(self.passed.load(StatisticOrdering::Relaxed));
        *NOW.get_or_init(Instant::now) + passed
    }

    fn stopwatch(&self) -> u64 {
        0
    }

    fn budget(&self) -> Option<&Budget> {
        self.budget.as_ref()
    }

    fn max_waiting(&self) -> Option<u32> {
        self.is_impatient.then_some(0)
    }

    fn task_id(&self) -> Option<u64> {
        Some(TASK.with(Cell::get)).filter(|number| *number != 0)
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
        self.emitted.fetch_add(1, Ordering::Release);
        self.events.lock().unwrap().push(event);
    }

    fn condition(&self, connection: &mut Connection) -> Condition {
        if connection.needs_drain.load(StatisticOrdering::Relaxed) {
            Condition::NeedsDrain
        } else {
            Condition::Reusable
        }
    }

    fn drain(&self, draining: Drain) {
        self.drains.lock().unwrap().push(draining);
    }

    fn dispose(&self, connection: Connection, _closing: Closing<Self>) {
        assert!(!connection.held.load(StatisticOrdering::Relaxed), "a held connection was closed");
        connection.operate();
        self.disposed.fetch_add(1, StatisticOrdering::Relaxed);
    }

    fn connections_went_stale(&self, _which: WentStale) {
        if let Some(changed) = &self.changed {
            changed.notify(usize::MAX);
        }
    }

    fn schedule_maintenance(&self) {
        RUNS.with(|runs| runs.set(runs.get() + 1));
    }
}

/// Returns options without maintenance in the background.
pub fn options(max_pool_size: u32, max_connecting: u32) -> PoolOptions {
    PoolOptions::default()
        .max_pool_size(max_pool_size)
        .max_connecting(max_connecting)
        .background_interval(BackgroundInterval::Never)
}

/// Returns a paused pool whose environment records events.
pub fn paused_and_recorded(options: PoolOptions) -> Arc<Pool> {
    Core::new("server:27017", options, 2, World::new(true)).unwrap()
}

/// Returns a ready pool whose environment records events.
pub fn recorded(options: PoolOptions) -> Arc<Pool> {
    let pool = paused_and_recorded(options);
    assert!(pool.ready());
    pool
}

fn ready(options: PoolOptions, world: World) -> Arc<Pool> {
    let pool = Core::new("server:27017", options, 2, world).unwrap();
    assert!(pool.ready());
    pool
}

/// Returns a ready pool whose environment does not listen to events.
pub fn unheard(options: PoolOptions) -> Arc<Pool> {
    ready(options, World::new(false))
}

/// Returns a ready pool under a budget, whose environment does not listen to events.
pub fn sharing(budget: &Budget, options: PoolOptions) -> Arc<Pool> {
    ready(options, World { budget: Some(budget.clone()), ..World::new(false) })
}

/// Returns a ready pool that is under a budget and refuses check-outs that would have to wait.
pub fn impatient(budget: &Budget, options: PoolOptions) -> Arc<Pool> {
    ready(options, World { budget: Some(budget.clone()), is_impatient: true, ..World::new(false) })
}

/// Returns a ready pool whose environment notifies an event when connections have become stale.
pub fn watched(options: PoolOptions) -> Arc<Pool> {
    ready(options, World { changed: Some(Event::new()), ..World::new(false) })
}

pub type Waiter = Pin<Box<dyn Future<Output = Granted> + Send>>;

/// Returns a check-out that can be sent to another thread.
pub fn waiter(pool: &Arc<Pool>) -> Waiter {
    let pool = pool.clone();
    Box::pin(async move { pool.acquire().await })
}

/// Polls a check-out once.
pub fn poll(waiter: &mut Waiter) -> Option<Granted> {
    match waiter.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(grant) => Some(grant),
        Poll::Pending => None,
    }
}

/// Returns a check-out that has queued up.
pub fn queued(pool: &Arc<Pool>) -> Waiter {
    let mut waiter = waiter(pool);
    assert!(poll(&mut waiter).is_none(), "the check-out did not queue up");
    waiter
}

/// Returns an opener that is waiting for a connection to be returned.
pub fn opener(pool: &Arc<Pool>) -> Pin<Box<dyn Future<Output = Idle<World>> + Send>> {
    let pool = pool.clone();
    let mut opener = Box::pin(async move { pool.acquire_as_opener().await });
    let polled = opener.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "the opener did not queue up");
    opener
}

/// Waits until a check-out is granted something.
pub fn acquire(pool: &Arc<Pool>) -> Granted {
    loom::future::block_on(pool.acquire())
}

pub fn permit(grant: Granted) -> Permit<World> {
    match grant {
        Grant::Permit(permit) => permit,
        other => panic!("expected a permit, got {other:?}"),
    }
}

pub fn connection(grant: Granted) -> Idle<World> {
    match grant {
        Grant::Connection(idle) => idle,
        other => panic!("expected a connection, got {other:?}"),
    }
}

/// Creates a connection in a ready pool with free capacity.
pub fn pending(pool: &Arc<Pool>) -> Pending<World> {
    permit(poll(&mut waiter(pool)).expect("no permit")).create().expect("the pool is not ready")
}

/// Opens a connection, which still counts as pending.
pub fn opened(pool: &Arc<Pool>) -> Opened {
    pending(pool).established(pool.environment().connect()).expect("interrupted without a clear")
}

/// Opens a connection and checks it out.
pub fn leased(pool: &Arc<Pool>) -> Leased {
    let (idle, opening) = opened(pool);
    drop(opening);
    check_out(pool, idle)
}

pub fn check_out(pool: &Arc<Pool>, idle: Idle<World>) -> Leased {
    used(idle.check_out(pool.check_out_started()))
}

/// Checks out on the hit path, as a `CheckOut` does. If the environment does not listen to events, dropping any lease
/// checks its connection in on the hit path.
pub fn hit(pool: &Arc<Pool>) -> Option<Leased> {
    pool.note_and_try_hit().map(|hit| used(hit.begin()))
}

fn used(lease: Leased) -> Leased {
    assert!(!lease.held.swap(true, StatisticOrdering::Relaxed), "a connection has two holders");
    assert!(!lease.needs_drain.load(StatisticOrdering::Relaxed), "an undrained connection was checked out");
    lease.operate();
    lease
}

pub fn check_in(lease: Leased) {
    lease.operate();
    assert!(lease.held.swap(false, StatisticOrdering::Relaxed), "a connection was checked in twice");
    drop(lease);
}

pub fn check_in_undrained(lease: Leased) {
    lease.needs_drain.store(true, StatisticOrdering::Relaxed);
    check_in(lease);
}

/// Checks in a connection that needs a drain, and returns the drain.
pub fn begin_drain(pool: &Arc<Pool>) -> Drain {
    check_in_undrained(leased(pool));
    pool.environment().last_draining().expect("the check-in began no drain")
}

/// Finishes a drain, successfully or not.
pub fn end_drain(mut draining: Drain, succeeds: bool) {
    let (connection, _) = draining.revocable();
    connection.operate();
    connection.needs_drain.store(!succeeds, StatisticOrdering::Relaxed);
    drop(draining);
}

/// Drains until the drain is displaced for a check-out. `None` means that it was displaced before it began.
pub fn drain_until_displaced(draining: Option<Drain>) {
    let Some(mut draining) = draining else { return };
    let (_, revocation) = draining.revocable();
    loom::future::block_on(poll_fn(|context| revocation.poll(context)));
    drop(draining);
}

/// Uses a grant: checks its connection out and in, or opens a connection and makes it available.
pub fn make_use(pool: &Arc<Pool>, grant: Granted) {
    match grant {
        Grant::Connection(idle) => check_in(check_out(pool, idle)),
        Grant::Permit(permit) => {
            let Ok(pending) = permit.create() else { return };
            if let Ok((idle, opening)) = pending.established(pool.environment().connect()) {
                opening.hand_on(Some(idle));
            }
        }
        Grant::Refused(_) => {}
    }
}

/// Closes the pool at the end of a model. Asserts that all counts are zero and that no connections or references to the
/// pool are left.
pub fn wind_up(pool: Arc<Pool>) {
    pool.close();
    assert_empty(&pool);
    assert_eq!(Arc::strong_count(&pool), 1, "a reference to the pool is left");
}

pub fn assert_empty(pool: &Arc<Pool>) {
    let status = pool.status();
    assert_eq!((status.total, status.pending), (0, 0), "the counts did not return to zero");
    assert_eq!((status.available, status.stale, status.waiting), (0, 0, 0));
    assert_eq!(pool.environment().disposed(), pool.environment().opened(), "not every connection was closed once");
    let events = pool.environment().events();
    let ids = |name| events.iter().filter(move |event| event.name() == name).filter_map(PoolEvent::connection_id);
    for id in ids("ConnectionCreated") {
        assert_eq!(
            ids("ConnectionClosed").filter(|closed| *closed == id).count(),
            1,
            "ConnectionClosed of connection {id}"
        );
    }
}
