//! If code outside the pool panics, the pool's call into that code fails, and the pool loses no capacity.

use std::future::{Future, pending};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};
use std::time::Duration;

use wharf::{
    CheckOutError, Clear, Condition, Connection, ConnectionClosedReason, Establish, EstablishError, Establishing, Pool,
    PoolEvent, PoolOptions, Stage,
};

use super::mock::settle;

/// Panics once at each point that the test chooses.
#[derive(Clone, Default)]
struct Fragile {
    judge: Arc<AtomicBool>,
    close: Arc<AtomicBool>,
    refuse: Arc<AtomicBool>,
}

impl Establish for Fragile {
    type Connection = u64;

    async fn establish(&self, connecting: Establishing) -> Result<u64, EstablishError> {
        if self.refuse.swap(false, Ordering::Relaxed) {
            return Err(EstablishError::permanent(Stage::Hello, std::io::Error::other("refused")));
        }
        Ok(connecting.connection_id())
    }

    fn condition(&self, _connection: &mut u64) -> Condition {
        assert!(!self.judge.swap(false, Ordering::Relaxed), "judging was told to panic");
        Condition::Reusable
    }

    async fn close(&self, _connection: u64) {
        assert!(!self.close.swap(false, Ordering::Relaxed), "closing was told to panic");
    }
}

fn pool(fragile: &Fragile, options: PoolOptions) -> Pool<Fragile> {
    let pool = Pool::builder("here:1", fragile.clone())
        .options(options)
        .on_failure(|_| panic!("the sink always panics"))
        .build()
        .unwrap();
    pool.ready();
    pool
}

async fn ends(pool: Pool<Fragile>) {
    pool.close();
    tokio::time::timeout(Duration::from_secs(60), pool.closed()).await.expect("closed() hangs");
    assert_eq!(pool.status().total, 0);
}

#[tokio::test(start_paused = true)]
async fn connection_whose_condition_panics_is_closed_as_broken() {
    let fragile = Fragile::default();
    let pool = pool(&fragile, PoolOptions::default().max_pool_size(1));
    let (reasons, mut seen) = tokio::sync::mpsc::unbounded_channel();
    pool.subscribe(move |event: &PoolEvent| {
        if let PoolEvent::ConnectionClosed { reason, .. } = event {
            reasons.send(*reason).unwrap();
        }
    });
    let connection = pool.check_out().await.unwrap();
    fragile.judge.store(true, Ordering::Relaxed);
    drop(connection);
    assert_eq!(seen.recv().await, Some(ConnectionClosedReason::Error));
    assert_eq!(pool.check_out().await.unwrap().id(), 2, "the closed connection's capacity is not free");
    ends(pool).await;
}

#[tokio::test(start_paused = true)]
async fn panicking_close_costs_neither_capacity_nor_the_background_task() {
    let fragile = Fragile::default();
    let pool = pool(&fragile, PoolOptions::default().min_pool_size(3));
    let full = async || {
        while pool.status().available < 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), full()).await.unwrap();
    fragile.close.store(true, Ordering::Relaxed);
    pool.clear(Clear::new()).unwrap();
    pool.ready();
    let renewed = async || {
        while pool.status().total != 3 || pool.status().available != 3 || fragile.close.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), renewed()).await.expect("the background task has ended");
    ends(pool).await;
}

#[tokio::test(start_paused = true)]
async fn panicking_failure_sink_hides_no_error() {
    let fragile = Fragile::default();
    let pool = pool(&fragile, PoolOptions::default());
    fragile.refuse.store(true, Ordering::Relaxed);
    let error = pool.check_out().await.unwrap_err();
    assert_eq!(error.to_string(), "connection 1 to here:1 could not be established: MongoDB handshake: refused");
    ends(pool).await;
}

/// A task whose waker panics at the points that the test chooses.
#[derive(Default)]
struct Task {
    wakes: AtomicUsize,
    panics_in_wake: bool,
    panics_in_clone: AtomicBool,
    panics_in_drop: AtomicBool,
}

#[allow(unsafe_code)]
impl Task {
    const VTABLE: RawWakerVTable = RawWakerVTable::new(Self::clone, Self::wake, Self::wake_by_ref, Self::drop);

    fn waker(self: &Arc<Self>) -> Waker {
        // SAFETY: the pointer comes from an `Arc`. Each waker owns one reference, as the table's functions expect.
        unsafe { Waker::from_raw(RawWaker::new(Arc::into_raw(self.clone()).cast(), &Self::VTABLE)) }
    }

    fn wakes(&self) -> usize {
        self.wakes.load(Ordering::SeqCst)
    }

    /// # Safety
    ///
    /// `data` comes from a waker made by [`waker`](Self::waker). The call borrows the waker's reference.
    unsafe fn clone(data: *const ()) -> RawWaker {
        // SAFETY: see `waker`; the reference is only borrowed.
        let task = ManuallyDrop::new(unsafe { Arc::from_raw(data.cast::<Self>()) });
        assert!(!task.panics_in_clone.load(Ordering::SeqCst), "the clone was told to panic");
        RawWaker::new(Arc::into_raw(Arc::clone(&task)).cast(), &Self::VTABLE)
    }

    /// # Safety
    ///
    /// `data` comes from a waker made by [`waker`](Self::waker). The call consumes the waker's reference.
    unsafe fn wake(data: *const ()) {
        // SAFETY: see `waker`; this consumes the waker's reference.
        let task = unsafe { Arc::from_raw(data.cast::<Self>()) };
        task.wakes.fetch_add(1, Ordering::SeqCst);
        assert!(!task.panics_in_wake, "waking was told to panic");
    }

    /// # Safety
    ///
    /// `data` comes from a waker made by [`waker`](Self::waker). The call borrows the waker's reference.
    unsafe fn wake_by_ref(data: *const ()) {
        // SAFETY: see `waker`; the reference is only borrowed.
        let task = ManuallyDrop::new(unsafe { Arc::from_raw(data.cast::<Self>()) });
        task.wakes.fetch_add(1, Ordering::SeqCst);
        assert!(!task.panics_in_wake, "waking was told to panic");
    }

    /// # Safety
    ///
    /// `data` comes from a waker made by [`waker`](Self::waker). The call consumes the waker's reference.
    unsafe fn drop(data: *const ()) {
        // SAFETY: see `waker`; this consumes the waker's reference.
        let task = unsafe { Arc::from_raw(data.cast::<Self>()) };
        assert!(!task.panics_in_drop.load(Ordering::SeqCst), "the drop was told to panic");
    }
}

type CheckOut<'p> = Pin<Box<dyn Future<Output = Result<Connection<Fragile>, CheckOutError>> + 'p>>;

/// Returns more waiters than the pool refuses in one step. Every third waiter's waker panics.
fn waiters(pool: &Pool<Fragile>) -> Vec<(CheckOut<'_>, Arc<Task>)> {
    let waiter = |number: usize| {
        let task = Arc::new(Task { panics_in_wake: number.is_multiple_of(3), ..Task::default() });
        let mut check_out: CheckOut<'_> = Box::pin(pool.check_out());
        assert!(check_out.as_mut().poll(&mut Context::from_waker(&task.waker())).is_pending());
        (check_out, task)
    };
    (0..40).map(waiter).collect()
}

#[tokio::test(start_paused = true)]
async fn panicking_wakers_cost_no_other_waiter_its_wake_up() {
    for closes in [false, true] {
        let pool = pool(&Fragile::default(), PoolOptions::default().max_pool_size(1));
        let held = pool.check_out().await.unwrap();
        let waiters = waiters(&pool);
        match closes {
            false => assert!(pool.clear(Clear::new()).unwrap()),
            true => pool.close(),
        }
        for (number, (mut check_out, task)) in waiters.into_iter().enumerate() {
            assert_eq!(task.wakes(), 1, "waiter {number}");
            let polled = check_out.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(Err(_))), "waiter {number}: {polled:?}");
        }
        drop(held);
        ends(pool).await;
    }
}

#[tokio::test(start_paused = true)]
async fn panicking_waker_does_not_disturb_a_check_in() {
    let pool = pool(&Fragile::default(), PoolOptions::default().max_pool_size(1));
    let mut held = Some(pool.check_out().await.unwrap());
    for (mut check_out, task) in waiters(&pool) {
        drop(held.take());
        assert_eq!(task.wakes(), 1);
        let Poll::Ready(connection) = check_out.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("the first waiter in the queue was not served");
        };
        held = Some(connection.unwrap());
    }
    drop(held);
    assert_eq!((pool.status().available, pool.status().waiting), (1, 0));
    ends(pool).await;
}

async fn use_until_interrupted(connection: &mut Connection<Fragile>) {
    connection.interruptible(async |_| pending::<()>().await).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn panicking_waker_stops_neither_other_interruptions_nor_the_background_task() {
    let pool = pool(&Fragile::default(), PoolOptions::default().max_pool_size(2));
    let (mut first, mut second) = (pool.check_out().await.unwrap(), pool.check_out().await.unwrap());
    for _ in 0..2 {
        let tasks = [true, false].map(|panics_in_wake| Arc::new(Task { panics_in_wake, ..Task::default() }));
        {
            let mut uses = [&mut first, &mut second].map(|connection| Box::pin(use_until_interrupted(connection)));
            for (usage, task) in uses.iter_mut().zip(&tasks) {
                assert!(usage.as_mut().poll(&mut Context::from_waker(&task.waker())).is_pending());
            }
            pool.clear(Clear::new().interrupt_in_use_connections(true)).unwrap();
            settle().await;
            assert_eq!(tasks.each_ref().map(|task| task.wakes()), [1, 1]);
        }
        drop((first, second));
        pool.ready();
        (first, second) = (pool.check_out().await.unwrap(), pool.check_out().await.unwrap());
    }
    drop((first, second));
    ends(pool).await;
}

#[tokio::test(start_paused = true)]
async fn waker_that_panics_when_cloned_leaves_the_queue_unchanged() {
    let pool = pool(&Fragile::default(), PoolOptions::default().max_pool_size(1));
    let held = pool.check_out().await.unwrap();
    let (good, bad) = (Arc::new(Task::default()), Arc::new(Task::default()));
    let (good_waker, bad_waker) = (good.waker(), bad.waker());
    bad.panics_in_clone.store(true, Ordering::SeqCst);
    let panics = |check_out: &mut CheckOut<'_>| {
        let poll = || check_out.as_mut().poll(&mut Context::from_waker(&bad_waker)).is_pending();
        catch_unwind(AssertUnwindSafe(poll)).expect_err("the clone did not panic");
    };
    let mut newcomer: CheckOut<'_> = Box::pin(pool.check_out());
    panics(&mut newcomer);
    drop(newcomer);
    assert_eq!(pool.status().waiting, 0, "the check-out is in the queue");
    let mut waits: CheckOut<'_> = Box::pin(pool.check_out());
    assert!(waits.as_mut().poll(&mut Context::from_waker(&good_waker)).is_pending());
    panics(&mut waits);
    assert_eq!(pool.status().waiting, 1, "the check-out no longer waits with its first waker");
    drop(held);
    assert_eq!((good.wakes(), bad.wakes()), (1, 0));
    drop(waits);
    assert_eq!((pool.status().available, pool.status().total), (1, 1));
    ends(pool).await;
}

#[tokio::test(start_paused = true)]
async fn waker_that_panics_when_dropped_does_not_disturb_a_leaving_waiter() {
    let pool = pool(&Fragile::default(), PoolOptions::default().max_pool_size(1));
    let held = pool.check_out().await.unwrap();
    let task = Arc::new(Task::default());
    let waker = ManuallyDrop::new(task.waker());
    let mut waits: CheckOut<'_> = Box::pin(pool.check_out());
    assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    task.panics_in_drop.store(true, Ordering::SeqCst);
    drop(waits);
    assert_eq!(pool.status().waiting, 0);
    drop(held);
    assert_eq!(pool.status().available, 1);
    ends(pool).await;
}

#[tokio::test(start_paused = true)]
async fn panicking_waker_does_not_hide_the_close_from_other_tasks() {
    let pool = pool(&Fragile::default(), PoolOptions::default());
    let tasks = [true, false].map(|panics_in_wake| Arc::new(Task { panics_in_wake, ..Task::default() }));
    let mut wait = [Box::pin(pool.closed()), Box::pin(pool.closed())];
    for (wait, task) in wait.iter_mut().zip(&tasks) {
        assert!(wait.as_mut().poll(&mut Context::from_waker(&task.waker())).is_pending());
    }
    pool.close();
    assert_eq!(tasks.map(|task| task.wakes()), [1, 1]);
    for wait in wait {
        tokio::time::timeout(Duration::from_secs(60), wait).await.expect("closed() hangs");
    }
}

/// An error whose drop uses the pool and takes the registry's lock.
struct Curious(Pool<Fragile>);

impl std::fmt::Debug for Curious {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Curious")
    }
}

impl std::fmt::Display for Curious {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an error that uses the pool")
    }
}

impl std::error::Error for Curious {}

impl Drop for Curious {
    fn drop(&mut self) {
        assert!(self.0.service(bson::oid::ObjectId::new()).is_none());
    }
}

#[test]
fn cause_of_a_clear_is_dropped_under_no_lock() {
    // The runtime is leaked if the test fails, because dropping it would also wait for the lock.
    let runtime = ManuallyDrop::new(tokio::runtime::Builder::new_current_thread().build().unwrap());
    let pool = {
        let _entered = runtime.enter();
        pool(&Fragile::default(), PoolOptions::default())
    };
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let because = || Clear::new().because(Arc::new(Curious(pool.clone())));
        assert!(pool.clear(because()).unwrap());
        assert!(pool.clear(Clear::new()).unwrap(), "clearing without a cause should replace the cause");
        assert!(pool.clear(because()).unwrap());
        assert!(pool.ready(), "ready() should forget the cause");
        drop(pool);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(60)).expect("the cause was dropped under a lock");
    drop(ManuallyDrop::into_inner(runtime));
}

/// Stores each request to open a connection, and panics.
#[derive(Clone, Default)]
struct Keeping(Arc<Mutex<Vec<Establishing>>>);

impl Establish for Keeping {
    type Connection = ();

    async fn establish(&self, connecting: Establishing) -> Result<(), EstablishError> {
        self.0.lock().unwrap().push(connecting);
        panic!("establishing was told to panic")
    }
}

#[tokio::test(start_paused = true)]
async fn establisher_that_panics_keeps_no_capacity() {
    let keeping = Keeping::default();
    let pool = Pool::builder("here:1", keeping.clone()).build().unwrap();
    pool.ready();
    for failed in 1..=4 {
        assert!(matches!(pool.check_out().await, Err(CheckOutError::Establish(_))));
        settle().await;
        assert_eq!((keeping.0.lock().unwrap().len(), pool.status().total), (failed, 0));
    }
    let error = pool.warm_up(1, |_| ()).await.unwrap_err();
    assert!(error.to_string().contains("the establisher panicked"), "{error}");
    assert_eq!((keeping.0.lock().unwrap().len(), pool.status().total), (5, 0));
}
