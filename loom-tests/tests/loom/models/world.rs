//! The world of the models: dummy connections that notice races and double holders, and an environment that records.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering as StatisticOrdering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use event_listener::Event;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use wharf::unstable::pool::{Core, Draining, Environment, Grant, Idle, Lease, Opening, Pending, Permit};
use wharf::{BackgroundInterval, Condition, PoolEvent, PoolOptions};

pub type Pool = Core<World>;
pub type Granted = Grant<World>;
pub type Leased = Lease<World>;
pub type Drain = Draining<World>;
pub type Opened = (Idle<World>, Opening<World>);

/// A connection. Its marks are std's: loom neither sees nor reorders them, so they add no synchronisation that could
/// hide a bug, and change where loom has switched threads.
pub struct Connection {
    /// What users do to it. loom reports every access that is not ordered with the one before.
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
        // SAFETY: one holder at a time, which is what the models check: loom panics before a race.
        self.contents.with_mut(|contents| unsafe { *contents += 1 });
    }
}

pub struct World {
    listens: bool,
    /// In the order of the calls. A std mutex, for the reason that is given at `Connection`.
    events: Mutex<Vec<PoolEvent>>,
    /// How many events were emitted. Makes loom consider a change of threads at each event, and is released, never
    /// acquired, by those who emit: it orders nothing between them.
    emitted: AtomicUsize,
    /// Notified when connections have become stale, where a model watches for that.
    changed: Option<Event>,
    opened: AtomicU32,
    disposed: AtomicU32,
    /// Who came back undrained, and is not being drained yet.
    drains: Mutex<Vec<Drain>>,
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
        }
    }

    /// What tells that connections have become stale, in a pool that is [`watched`].
    pub fn changed(&self) -> &Event {
        self.changed.as_ref().expect("a watched pool")
    }

    /// The events so far, as a subscriber in another thread would see them.
    pub fn seen(&self) -> Vec<PoolEvent> {
        let seen = self.emitted.load(Ordering::Acquire);
        self.events.lock().unwrap()[..seen].to_vec()
    }

    /// How many events the calling thread knows of by what it has acquired otherwise.
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

    /// The connection that came back undrained last, if it was not closed at once.
    pub fn last_draining(&self) -> Option<Drain> {
        self.drains.lock().unwrap().pop()
    }

    /// How often the calling thread has asked for maintenance.
    pub fn maintenance_asked_for_here(&self) -> usize {
        RUNS.with(Cell::get)
    }

    /// A connection for a pool to have.
    pub fn connect(&self) -> Connection {
        self.opened.fetch_add(1, StatisticOrdering::Relaxed);
        Connection::new()
    }
}

loom::thread_local! {
    static HINT: Cell<usize> = Cell::new(0);
    static RUNS: Cell<usize> = Cell::new(0);
}

/// Makes the calling thread prefer a shard.
pub fn prefer_shard(hint: usize) {
    HINT.with(|present| present.set(hint));
}

impl Environment for World {
    type Connection = Connection;

    fn now(&self) -> Instant {
        static NOW: OnceLock<Instant> = OnceLock::new();
        *NOW.get_or_init(Instant::now)
    }

    fn shard_hint(&self) -> usize {
        HINT.with(Cell::get)
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

    fn dispose(&self, connection: Connection) {
        assert!(!connection.held.load(StatisticOrdering::Relaxed), "closed while it is held");
        connection.operate();
        self.disposed.fetch_add(1, StatisticOrdering::Relaxed);
    }

    fn connections_went_stale(&self) {
        if let Some(changed) = &self.changed {
            changed.notify(usize::MAX);
        }
    }

    fn schedule_maintenance(&self) {
        RUNS.with(|runs| runs.set(runs.get() + 1));
    }
}

/// Options without a background task.
pub fn options(max_pool_size: u32, max_connecting: u32) -> PoolOptions {
    PoolOptions::default()
        .max_pool_size(max_pool_size)
        .max_connecting(max_connecting)
        .background_interval(BackgroundInterval::Never)
}

/// A paused pool whose environment records events.
pub fn paused_and_recorded(options: PoolOptions) -> Arc<Pool> {
    Core::new("server:27017", options, 2, World::new(true)).unwrap()
}

/// A ready pool whose environment records events.
pub fn recorded(options: PoolOptions) -> Arc<Pool> {
    let pool = paused_and_recorded(options);
    assert!(pool.ready());
    pool
}

/// A ready pool that nobody listens to.
pub fn unheard(options: PoolOptions) -> Arc<Pool> {
    let pool = Core::new("server:27017", options, 2, World::new(false)).unwrap();
    assert!(pool.ready());
    pool
}

/// A ready pool that announces when connections have become stale.
pub fn watched(options: PoolOptions) -> Arc<Pool> {
    let world = World { changed: Some(Event::new()), ..World::new(false) };
    let pool = Core::new("server:27017", options, 2, world).unwrap();
    assert!(pool.ready());
    pool
}

pub type Waiter = Pin<Box<dyn Future<Output = Granted> + Send>>;

/// A check-out that can be sent to another thread.
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

/// A check-out that has queued up.
pub fn queued(pool: &Arc<Pool>) -> Waiter {
    let mut waiter = waiter(pool);
    assert!(poll(&mut waiter).is_none(), "nothing to be had, so it waits");
    waiter
}

/// A check-out that has a connection of its own on the way, and waits for one that comes back sooner.
pub fn opener(pool: &Arc<Pool>) -> Pin<Box<dyn Future<Output = Idle<World>> + Send>> {
    let pool = pool.clone();
    let mut opener = Box::pin(async move { pool.acquire_as_opener().await });
    let polled = opener.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "nothing to be had, so it waits");
    opener
}

/// Waits for a check-out.
pub fn acquire(pool: &Arc<Pool>) -> Granted {
    loom::future::block_on(pool.acquire())
}

pub fn permit(grant: Granted) -> Permit<World> {
    match grant {
        Grant::Permit(permit) => permit,
        other => panic!("not the right to open a connection, but {other:?}"),
    }
}

pub fn connection(grant: Granted) -> Idle<World> {
    match grant {
        Grant::Connection(idle) => idle,
        other => panic!("not a connection, but {other:?}"),
    }
}

/// The right to open a connection, made use of, in a pool that is ready and idle.
pub fn pending(pool: &Arc<Pool>) -> Pending<World> {
    permit(poll(&mut waiter(pool)).expect("there is a permit")).create().expect("the pool is ready")
}

/// An open connection that still counts as pending.
pub fn opened(pool: &Arc<Pool>) -> Opened {
    pending(pool).established(pool.environment().connect()).expect("nobody interrupts")
}

/// A connection, opened and checked out.
pub fn leased(pool: &Arc<Pool>) -> Leased {
    let (idle, opening) = opened(pool);
    drop(opening);
    check_out(pool, idle)
}

pub fn check_out(pool: &Arc<Pool>, idle: Idle<World>) -> Leased {
    used(idle.check_out(pool.check_out_started()))
}

/// The hit path's check-out. Its check-in is the drop of any lease, in a pool that nobody listens to.
pub fn hit(pool: &Arc<Pool>) -> Option<Leased> {
    pool.try_check_out().map(used)
}

fn used(lease: Leased) -> Leased {
    assert!(!lease.held.swap(true, StatisticOrdering::Relaxed), "held twice");
    assert!(!lease.needs_drain.load(StatisticOrdering::Relaxed), "left undrained by an earlier user");
    lease.operate();
    lease
}

pub fn check_in(lease: Leased) {
    lease.operate();
    assert!(lease.held.swap(false, StatisticOrdering::Relaxed), "checked in twice");
    drop(lease);
}

pub fn check_in_undrained(lease: Leased) {
    lease.needs_drain.store(true, StatisticOrdering::Relaxed);
    check_in(lease);
}

/// A connection that was checked in undrained, and is being drained.
pub fn begin_drain(pool: &Arc<Pool>) -> Drain {
    check_in_undrained(leased(pool));
    pool.environment().last_draining().expect("it came back undrained")
}

/// Ends a drain, with success or without.
pub fn end_drain(mut draining: Drain, succeeds: bool) {
    let (connection, _) = draining.revocable();
    connection.operate();
    connection.needs_drain.store(!succeeds, StatisticOrdering::Relaxed);
    drop(draining);
}

/// Makes use of a grant: checks a connection out and in, or opens one and makes it available.
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

/// Closes the pool after all else has ended. Nothing may be left: no count, no connection, no reference to the pool.
pub fn wind_up(pool: Arc<Pool>) {
    pool.close();
    assert_empty(&pool);
    assert_eq!(Arc::strong_count(&pool), 1, "a connection still keeps the pool");
}

pub fn assert_empty(pool: &Arc<Pool>) {
    let status = pool.status();
    assert_eq!((status.total, status.pending), (0, 0), "both counts return to zero");
    assert_eq!((status.available, status.stale, status.waiting), (0, 0, 0));
    assert_eq!(pool.environment().disposed(), pool.environment().opened(), "each connection is closed exactly once");
    let events = pool.environment().events();
    let ids = |name| events.iter().filter(move |event| event.name() == name).filter_map(PoolEvent::connection_id);
    for id in ids("ConnectionCreated") {
        assert_eq!(ids("ConnectionClosed").filter(|closed| *closed == id).count(), 1, "one end for connection {id}");
    }
}
