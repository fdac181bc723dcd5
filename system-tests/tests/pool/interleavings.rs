//! Interleavings of the core and its callers, step by step. The environment and the wakers run code at the points where
//! another thread could run.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use wharf::unstable::pool::{Core, Environment, Grant, Lease, Pending, Permit};
use wharf::{
    BackgroundInterval, CheckOutError, Clear, Condition, Establish, EstablishError, Establishing, Phase, Pool,
    PoolEvent, PoolOptions,
};

use super::mock::{Mock, counts, poll_once, pool, service, settle};

type Hook = Box<dyn FnOnce() + Send>;

/// An environment that runs a hook when the core next asks for a shard, or before it emits `PoolCleared`.
#[derive(Default)]
struct World {
    at_next_hint: Mutex<Option<Hook>>,
    before_pool_cleared: Mutex<Option<Hook>>,
    events: Mutex<Vec<&'static str>>,
}

// SAFETY: threads keep no notes here.
#[allow(unsafe_code)]
unsafe impl Environment for World {
    type Connection = u32;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn stopwatch(&self) -> u64 {
        0
    }

    fn shard_hint(&self) -> usize {
        let hook = self.at_next_hint.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        0
    }

    fn listens(&self) -> bool {
        true
    }

    fn emit(&self, event: PoolEvent) {
        if let PoolEvent::PoolCleared { .. } = event
            && let Some(hook) = self.before_pool_cleared.lock().unwrap().take()
        {
            hook();
        }
        self.events.lock().unwrap().push(event.name());
    }
}

fn core(options: PoolOptions) -> Arc<Core<World>> {
    let core = Core::new("mock:27017", options, 1, World::default()).unwrap();
    core.ready();
    core
}

fn permit(core: &Arc<Core<World>>) -> Permit<World> {
    match pin!(core.acquire()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Grant::Permit(permit)) => permit,
        other => panic!("{other:?}"),
    }
}

fn open(core: &Arc<Core<World>>) -> Pending<World> {
    permit(core).create().unwrap()
}

fn lease(core: &Arc<Core<World>>) -> Lease<World> {
    let pending = open(core);
    pending.identify(service());
    let (idle, opening) = pending.established(7).unwrap();
    opening.hand_on(None);
    idle.check_out(core.check_out_started())
}

/// On several threads, the task may have opened the connection before the first poll of the check-out returns.
#[test]
fn connection_opened_within_the_first_poll_counts_as_opened() {
    let core = core(PoolOptions::default());
    let (idle, opening) = open(&core).established(7).unwrap();
    opening.hand_on(None);
    idle.mark_opened();
    drop(idle.check_out(core.check_out_started()));
    let Some(idle) = core.try_take() else { panic!("the connection is not available") };
    drop(idle.check_out(core.check_out_started().waited()));
    let check_outs = core.metrics().check_outs;
    assert_eq!((check_outs.hits, check_outs.opened.count(), check_outs.waited.count()), (0, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn closed_completes_when_the_last_permit_is_unused() {
    let (pool, _log) = pool(PoolOptions::default().max_pool_size(1), &Mock::new([]));
    let mut held = pool.check_out().await.unwrap();
    let mut waiter = pin!(pool.check_out());
    assert!(poll_once(waiter.as_mut()).await.is_none());
    held.broken = true;
    drop(held);
    assert_eq!(counts(&pool), (1, 1, 0, 0, 0), "the waiter does not hold an unnoticed permit");
    pool.close();
    let mut closed = pin!(pool.closed());
    assert!(poll_once(closed.as_mut()).await.is_none());
    settle().await;
    assert!(matches!(waiter.await, Err(CheckOutError::PoolClosed(_))));
    assert_eq!(counts(&pool), (0, 0, 0, 0, 0));
    tokio::time::timeout(Duration::from_secs(3600), closed).await.expect("closed() hangs though nothing is left");
}

#[tokio::test(start_paused = true)]
async fn unused_permit_serves_the_minimum_size() {
    let options = PoolOptions::default().max_connecting(1).min_pool_size(2);
    let mock = Mock::new([super::mock::Attempt::Held, super::mock::Attempt::Held]);
    let (pool, _log) = pool(options, &mock);
    let mut first = Box::pin(pool.check_out());
    assert!(poll_once(first.as_mut()).await.is_none());
    let mut second = Box::pin(pool.check_out());
    assert!(poll_once(second.as_mut()).await.is_none());
    assert_eq!(counts(&pool), (1, 1, 0, 0, 1));
    mock.let_one_in();
    let _first = first.await.unwrap();
    settle().await;
    assert_eq!(counts(&pool), (2, 1, 0, 1, 0), "the second does not hold an unnoticed permit");
    drop(second);
    mock.forget_instructions();
    settle().await;
    assert_eq!(counts(&pool), (2, 0, 1, 1, 0), "the pool is populated only after the background interval");
}

#[tokio::test(start_paused = true)]
async fn connection_granted_before_a_clear_is_not_checked_out_after_it() {
    let (pool, log) = pool(PoolOptions::default().max_pool_size(1), &Mock::new([]));
    let held = pool.check_out().await.unwrap();
    let mut waiter = pin!(pool.check_out());
    assert!(poll_once(waiter.as_mut()).await.is_none());
    drop(held);
    pool.clear(Clear::new()).unwrap();
    let outcome = waiter.await;
    assert!(matches!(outcome, Err(CheckOutError::PoolCleared(_))), "{outcome:?}\n{:#?}", log.lines());
}

struct Counted(Arc<AtomicUsize>, Option<Arc<Core<World>>>);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        if let Some(core) = self.1.take() {
            // Takes the registry's lock.
            let _ = core.service(service());
        }
    }
}

#[test]
fn available_connection_keeps_no_waker() {
    let core = core(PoolOptions::default());
    let pending = open(&core);
    let dropped = Arc::new(AtomicUsize::new(0));
    let waker = Waker::from(Arc::new(Counted(dropped.clone(), None)));
    assert!(pending.poll_interrupted(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
    let (idle, opening) = pending.established(7).unwrap();
    opening.hand_on(Some(idle));
    assert_eq!(dropped.load(Ordering::SeqCst), 1, "the waker of the opening task was not dropped");
    core.close();
}

#[test]
fn no_waker_is_dropped_under_a_lock() {
    let core = core(PoolOptions::default());
    let pending = open(&core);
    let dropped = Arc::new(AtomicUsize::new(0));
    let waker = Waker::from(Arc::new(Counted(dropped.clone(), Some(core.clone()))));
    assert!(pending.poll_interrupted(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(pending);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(5)).expect("deadlock: the waker's drop needs the registry's lock");
    core.close();
}

#[test]
fn interruption_of_a_service_does_not_reach_its_successor() {
    let core = core(PoolOptions::default().load_balanced(true));
    let old = lease(&core);
    assert!(core.clear_service(service(), Clear::new().interrupt_in_use_connections(true)).unwrap());
    drop(old);
    assert_eq!(core.service(service()), None, "the service's entry outlives its last connection");
    let new = lease(&core);
    core.maintain();
    assert!(!new.is_interrupted() && !new.is_stale());
    drop(new);
    core.close();
}

#[tokio::test(start_paused = true)]
async fn waiter_whose_connection_goes_stale_before_its_poll_keeps_its_turn() {
    let mock = Mock::new([]);
    let (pool, _) = pool(PoolOptions::default().load_balanced(true).max_pool_size(1), &mock);
    let held = pool.check_out().await.unwrap();
    let mut waits = [(); 3].map(|()| Box::pin(pool.check_out()));
    for waits in &mut waits {
        assert!(poll_once(waits.as_mut()).await.is_none());
    }
    let [first, second, third] = &mut waits;
    drop(held);
    assert!(pool.clear_service(service(), Clear::new()).unwrap());
    assert!(poll_once(first.as_mut()).await.is_none(), "a stale connection was checked out");
    settle().await;
    for later in [&mut *second, third] {
        assert!(poll_once(later.as_mut()).await.is_none(), "a later check-out was served first");
    }
    let connection = poll_once(first.as_mut()).await.expect("no connection").unwrap();
    assert!(!connection.is_stale());
    drop(connection);
    assert!(poll_once(second.as_mut()).await.is_some_and(|outcome| outcome.is_ok()));
}

#[test]
fn check_in_that_races_a_clear_of_its_service_leaves_nothing_stale() {
    let core = core(PoolOptions::default().load_balanced(true));
    let held = lease(&core);
    *core.environment().at_next_hint.lock().unwrap() = Some(Box::new({
        let core = core.clone();
        move || {
            assert!(core.clear_service(service(), Clear::new()).unwrap());
            core.maintain();
        }
    }));
    drop(held);
    core.maintain();
    assert_eq!(core.status().total, 0, "{:?}", core.status());
    core.close();
}

#[cfg(target_os = "linux")]
#[test]
fn no_connection_is_closed_as_stale_before_the_pool_is_cleared() {
    let core = core(PoolOptions::default());
    let held = lease(&core);
    let (closing, closed) = std::sync::mpsc::channel();
    *core.environment().before_pool_cleared.lock().unwrap() = Some(Box::new(move || {
        let (telling, told) = std::sync::mpsc::channel();
        let check_in = std::thread::spawn(move || {
            telling.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
            drop(held);
        });
        // The check-in waits for the registry's lock, which this thread holds.
        let status = std::path::Path::new("/proc").join(told.recv().unwrap()).join("status");
        let is_asleep = || std::fs::read_to_string(&status).is_ok_and(|status| status.contains("State:\tS"));
        while !is_asleep() && !check_in.is_finished() {
            std::thread::yield_now();
        }
        closing.send(check_in).unwrap();
    }));
    core.clear(Clear::new()).unwrap();
    closed.recv().unwrap().join().unwrap();
    let events = core.environment().events.lock().unwrap();
    let permit = |name| events.iter().position(|event| *event == name).unwrap();
    assert!(permit("PoolCleared") < permit("ConnectionClosed"), "{events:?}");
}

/// Panics at the points that a connection's [`Fuse`] names.
struct Panicking;

#[derive(Default, Debug)]
struct Fuse {
    at_check_in: bool,
    at_close: bool,
}

impl Establish for Panicking {
    type Connection = Fuse;

    async fn establish(&self, _: Establishing) -> Result<Fuse, EstablishError> {
        Ok(Fuse::default())
    }

    fn condition(&self, connection: &mut Fuse) -> Condition {
        assert!(!connection.at_check_in, "told to panic at check-in");
        Condition::Reusable
    }

    async fn close(&self, connection: Fuse) {
        assert!(!connection.at_close, "told to panic at close");
    }
}

#[tokio::test(start_paused = true)]
async fn panic_at_check_in_costs_no_capacity() {
    let options = PoolOptions::default().max_pool_size(1).background_interval(BackgroundInterval::Never);
    let pool = Pool::builder("mock:27017", Panicking).options(options).build().unwrap();
    pool.ready();
    let mut held = pool.check_out().await.unwrap();
    held.at_check_in = true;
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(held)));
    assert_eq!(pool.status().total, 0);
}

#[tokio::test(start_paused = true)]
async fn panic_at_close_stops_neither_the_close_nor_the_background_task() {
    let pool = Pool::builder("mock:27017", Panicking).build().unwrap();
    pool.ready();
    let mut held = vec![];
    for _ in 0..3 {
        held.push(pool.check_out().await.unwrap());
    }
    held.iter_mut().for_each(|connection| connection.at_close = true);
    drop(held);
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.close()));
    let status = pool.status();
    assert_eq!((status.phase, status.total), (Phase::Closed, 0));
}

#[test]
fn opener_takes_one_available_connection_and_leaves_the_rest() {
    let core = core(PoolOptions::default());
    let available = [lease(&core), lease(&core)];
    let own = open(&core);
    drop(available);
    let mut opens = pin!(core.acquire_as_opener());
    let Poll::Ready(_taken) = opens.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("neither of the two available connections was taken")
    };
    assert!(core.try_take().is_some(), "the other available connection is held back though no check-out waits");
    drop(own);
    core.close();
}

#[test]
fn opener_takes_no_connection_of_a_cleared_service() {
    let core = core(PoolOptions::default().load_balanced(true));
    let cleared = [lease(&core), lease(&core)];
    let own = open(&core);
    drop(cleared);
    assert!(core.clear_service(service(), Clear::new()).unwrap());
    let mut opens = pin!(core.acquire_as_opener());
    assert!(opens.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(
        (core.status().total, core.status().pending),
        (1, 1),
        "the stale connections were not closed in passing"
    );
    drop(own);
    core.close();
}

#[test]
fn waiter_refused_by_a_clear_does_not_block_populating() {
    let core = core(PoolOptions::default().max_pool_size(1).min_pool_size(1));
    let held = lease(&core);
    let mut waits = pin!(core.acquire());
    assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    core.clear(Clear::new()).unwrap();
    drop(held);
    core.ready();
    let (idle, opening) = core.populate().expect("populating yields to a waiter that has left").established(7).unwrap();
    opening.hand_on(Some(idle));
    assert!(core.try_take().is_some());
    core.close();
}
