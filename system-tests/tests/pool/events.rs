//! The cost that a subscriber adds to calls to the pool, and the bounds on this cost. The tests count events instead of
//! measuring time.

use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use wharf::{Clear, Connection, Pool, PoolEvent, PoolOptions};

use super::mock::*;

/// The documentation of `Subscriber` promises that a caller delivers at most this many events at a time, plus the
/// events of the callers that are inside the pool.
const TURN: u64 = 32;
/// The documentation of `Subscriber` promises that at most this many events are left behind.
const ROOM: u64 = 32;

const THREADS: u64 = 4;
/// The events of one check-out and its check-in.
const EVENTS: u64 = 3;

/// Checks out an available connection outside a runtime.
fn check_out(pool: &Pool<Mock>) -> Connection<Mock> {
    match pin!(pool.check_out()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome.unwrap(),
        Poll::Pending => panic!("no connection is available"),
    }
}

/// Returns a ready pool that is full of available connections.
async fn filled(connections: u32) -> Pool<Mock> {
    let options = PoolOptions::default().max_pool_size(connections).max_connecting(connections);
    let pool = builder(&Mock::new([])).options(options).build().unwrap();
    fill(&pool, connections).await;
    pool
}

/// Marks a pool as ready, and opens its connections.
async fn fill(pool: &Pool<Mock>, connections: u32) {
    pool.ready();
    let mut all = Vec::new();
    for _ in 0..connections {
        all.push(pool.check_out().await.unwrap());
    }
}

thread_local! {
    static DELIVERED_HERE: Cell<u64> = const { Cell::new(0) };
}

fn delivered_here_during<R>(operation: impl FnOnce() -> R) -> (R, u64) {
    let before = DELIVERED_HERE.get();
    let result = operation();
    (result, DELIVERED_HERE.get() - before)
}

#[tokio::test]
async fn slow_subscriber_holds_each_caller_for_a_bounded_number_of_events() {
    const EACH: u64 = 2_000;
    let pool = filled(THREADS as u32).await;
    // The number of events that the threads have emitted. An event is counted only after the call that emitted it has
    // returned.
    let left_behind = Arc::new(AtomicU64::new(0));
    let (delivered, most_queued) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    pool.subscribe({
        let (left_behind, delivered, most_queued) = (left_behind.clone(), delivered.clone(), most_queued.clone());
        move |_: &PoolEvent| {
            let until = Instant::now() + Duration::from_micros(20);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            DELIVERED_HERE.set(DELIVERED_HERE.get() + 1);
            let queued = left_behind.load(Ordering::SeqCst).saturating_sub(delivered.fetch_add(1, Ordering::SeqCst));
            most_queued.fetch_max(queued, Ordering::SeqCst);
        }
    });
    let most_delivered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let (connection, delivered) = delivered_here_during(|| check_out(&pool));
                    most_delivered.fetch_max(delivered, Ordering::SeqCst);
                    left_behind.fetch_add(EVENTS - 1, Ordering::SeqCst);
                    let ((), delivered) = delivered_here_during(|| drop(connection));
                    most_delivered.fetch_max(delivered, Ordering::SeqCst);
                    left_behind.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(delivered.load(Ordering::SeqCst), THREADS * EACH * EVENTS, "some events were not delivered");
    // When a deliverer's turn is over, the next caller takes over. If no caller comes, the deliverer delivers the
    // remaining events.
    let bound = TURN + ROOM + THREADS * EVENTS;
    let most_delivered = most_delivered.into_inner();
    assert!(most_delivered <= bound, "one call delivered {most_delivered} events, more than {bound}");
    let (bound, most_queued) = (ROOM + THREADS * EVENTS, most_queued.load(Ordering::SeqCst));
    assert!(most_queued <= bound, "{most_queued} events were left behind, more than {bound}");
}

/// A subscriber that blocks at the first event of a given name until it is released.
struct Stopped {
    reached: mpsc::Receiver<()>,
    go_on: mpsc::Sender<()>,
}

fn stop_in(pool: &Pool<Mock>, name: &'static str) -> Stopped {
    let (reaches, reached) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    let goes_on = Mutex::new(goes_on);
    let first = AtomicBool::new(true);
    pool.subscribe(move |event: &PoolEvent| {
        if event.name() == name && first.swap(false, Ordering::SeqCst) {
            reaches.send(()).unwrap();
            goes_on.lock().unwrap().recv().unwrap();
        }
    });
    Stopped { reached, go_on }
}

#[tokio::test]
async fn subscriber_holds_only_the_connection_that_it_is_told_about() {
    let pool = filled(2).await;
    let stopped = stop_in(&pool, "ConnectionCheckedIn");
    let log = Log::default();
    pool.subscribe(log.subscriber());
    let connection = check_out(&pool);
    let held = connection.id();
    let other = 3 - held;
    log.take();
    std::thread::scope(|scope| {
        let giver = scope.spawn(move || drop(connection));
        stopped.reached.recv().unwrap();
        // The subscriber blocks the thread that returns a connection. Meanwhile, the other connection is checked out
        // and checked in, with all its events.
        let taken = check_out(&pool);
        let status = pool.status();
        let id = taken.id();
        drop(taken);
        let meanwhile = log.take();
        stopped.go_on.send(()).unwrap();
        giver.join().unwrap();
        assert_eq!(
            (status.available, status.in_use, id),
            (0, 2, other),
            "the connection is available before its event"
        );
        let of_other = [
            "ConnectionCheckOutStarted".to_owned(),
            format!("ConnectionCheckedOut {other}"),
            format!("ConnectionCheckedIn {other}"),
        ];
        assert_eq!(meanwhile, of_other, "the blocked caller holds up the events of others");
        assert_eq!(log.take(), [format!("ConnectionCheckedIn {held}")], "an event is lost");
    });
    assert_eq!((pool.status().available, pool.status().in_use), (2, 0));
}

#[tokio::test]
async fn callers_wait_for_an_event_of_the_pool_and_then_deliver_only_their_own() {
    const EACH: u64 = 200;
    let pool = filled(THREADS as u32).await;
    let stopped = stop_in(&pool, "PoolCleared");
    let log = Log::default();
    pool.subscribe(log.subscriber());
    let held: Vec<_> = (0..THREADS).map(|_| check_out(&pool)).collect();
    log.take();
    std::thread::scope(|scope| {
        let clears = scope.spawn(|| pool.clear(Clear::new()).unwrap());
        stopped.reached.recv().unwrap();
        // The clear began before these calls, so its event comes before theirs.
        let givers: Vec<_> = held.into_iter().map(|connection| scope.spawn(move || drop(connection))).collect();
        stopped.go_on.send(()).unwrap();
        clears.join().unwrap();
        givers.into_iter().for_each(|giver| giver.join().unwrap());
    });
    let lines = log.take();
    assert_eq!((lines[0].as_str(), lines.len() as u64), ("PoolCleared", 1 + 2 * THREADS), "{lines:?}");
    fill(&pool, THREADS as u32).await;
    pool.subscribe(|_: &PoolEvent| DELIVERED_HERE.set(DELIVERED_HERE.get() + 1));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let ((), delivered) = delivered_here_during(|| (0..EACH).for_each(|_| drop(check_out(&pool))));
                assert_eq!(delivered, EACH * EVENTS, "a thread has not delivered exactly its own events");
            });
        }
    });
}

#[tokio::test]
async fn check_in_event_says_how_long_the_connection_was_used() {
    let pool = filled(1).await;
    let connection = check_out(&pool);
    let durations = Arc::new(Mutex::new(Vec::new()));
    pool.subscribe({
        let durations = durations.clone();
        move |event: &PoolEvent| {
            if let PoolEvent::ConnectionCheckedIn { duration, .. } = event {
                durations.lock().unwrap().push(*duration);
            }
        }
    });
    drop(connection);
    let began = Instant::now();
    let connection = check_out(&pool);
    let checked_out = Instant::now();
    while checked_out.elapsed() < Duration::from_millis(3) {
        std::hint::spin_loop();
    }
    let least = checked_out.elapsed();
    drop(connection);
    let most = began.elapsed();
    let durations = durations.lock().unwrap();
    assert_eq!(durations[0], Duration::ZERO, "no subscriber listened at the check-out");
    // The two clocks may differ slightly.
    let apart = Duration::from_micros(100);
    assert!(least <= durations[1] + apart && durations[1] <= most + apart, "{least:?} {:?} {most:?}", durations[1]);
}

#[tokio::test]
async fn cleared_event_has_the_cause_of_the_clear() {
    let pool = filled(1).await;
    let errors = Arc::new(Mutex::new(Vec::new()));
    pool.subscribe({
        let errors = errors.clone();
        move |event: &PoolEvent| {
            if let PoolEvent::PoolCleared { error, .. } = event {
                errors.lock().unwrap().push(error.as_ref().map(ToString::to_string));
            }
        }
    });
    pool.clear(Clear::new().because(Arc::new(std::io::Error::other("the monitor hears nothing")))).unwrap();
    pool.ready();
    pool.clear(Clear::new()).unwrap();
    assert_eq!(*errors.lock().unwrap(), [Some("the monitor hears nothing".to_owned()), None]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_connection_is_available_while_a_subscriber_holds_up_its_opener() {
    let options = PoolOptions::default().min_pool_size(1);
    let pool = builder(&Mock::new([])).options(options).build().unwrap();
    let stopped = stop_in(&pool, "ConnectionReady");
    pool.ready();
    tokio::task::block_in_place(|| stopped.reached.recv().unwrap());
    let status = pool.status();
    stopped.go_on.send(()).unwrap();
    assert_eq!((status.available, status.pending), (1, 0), "the blocked opener holds its connection back: {status:?}");
}

#[tokio::test]
async fn capacity_of_a_closed_connection_is_free_while_a_subscriber_holds_up_its_closer() {
    let pool = filled(1).await;
    let stopped = stop_in(&pool, "ConnectionClosed");
    let mut connection = check_out(&pool);
    connection.broken = true;
    std::thread::scope(|scope| {
        let closer = scope.spawn(move || drop(connection));
        stopped.reached.recv().unwrap();
        let status = pool.status();
        stopped.go_on.send(()).unwrap();
        closer.join().unwrap();
        assert_eq!(status.total, 0, "the blocked caller holds the closed connection's capacity: {status:?}");
    });
}

#[tokio::test]
async fn subscribers_that_use_each_others_pools_do_not_deadlock() {
    const EACH: u64 = 500;
    let pools = [filled(4).await, filled(4).await];
    let seen = Arc::new(AtomicU64::new(0));
    for (index, pool) in pools.iter().enumerate() {
        let (other, seen) = (pools[1 - index].clone(), seen.clone());
        pool.subscribe(move |event: &PoolEvent| {
            seen.fetch_add(1, Ordering::SeqCst);
            if event.name() == "ConnectionCheckOutStarted" && NESTED.get() == 0 {
                NESTED.set(1);
                let mut check_out = pin!(other.check_out());
                let polled = check_out.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                NESTED.set(0);
                drop(polled);
            }
        });
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let pool = &pools[thread % 2];
            scope.spawn(move || {
                for _ in 0..EACH {
                    let mut check_out = pin!(pool.check_out());
                    drop(check_out.as_mut().poll(&mut Context::from_waker(Waker::noop())));
                }
            });
        }
    });
    assert!(seen.load(Ordering::SeqCst) >= 4 * EACH * 2, "a check-out has fewer than two events");
}

thread_local! {
    /// Whether this thread is inside a check-out that a subscriber started.
    static NESTED: Cell<u64> = const { Cell::new(0) };
}
