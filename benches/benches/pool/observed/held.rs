//! How long a call to the pool is held up by delivering events from other calls.
//!
//! 64 tasks on two workers check out, yield, and check in. No check-out waits in this pool. The subscriber keeps its
//! thread busy for 20 µs. Each call to the pool is timed on its thread: each poll of a check-out, and each check-in.
//! The subscriber counts how many events each thread delivers. A check-out and check-in emit three events, so any other
//! events delivered during these calls belong to other calls.
//!
//! A call may take longer than the subscriber if the operating system stops the thread, or if the call waits for
//! another thread. The maximum includes these delays. The 99.9th percentile shows how long a slow call usually takes.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::hint::spin_loop;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::{JoinSet, yield_now};

use crate::micro::two_workers;
use crate::subjects::Handled;

const TASKS: usize = 64;
const SIZE: usize = 100;
/// How long the subscriber takes for an event.
const SUBSCRIBER: Duration = Duration::from_micros(20);
/// The number of events from a check-out that finds an idle connection, and from its check-in.
const OWN: u64 = 3;

thread_local! {
    /// How many events this thread has delivered, and how long that took.
    static DELIVERED: Cell<(u64, Duration)> = const { Cell::new((0, Duration::ZERO)) };
}

/// The tasks' measurements.
pub struct Held {
    measured: Duration,
    check_outs: u64,
    /// The durations of calls, in nanoseconds.
    calls: Histogram<u64>,
    /// The maximum number of events from other calls that were delivered during one check-out and check-in.
    most_events: u64,
    /// The longest time that one task spent delivering events from other calls, over the whole run.
    most_time: Duration,
}

/// One task's measurements.
struct Task {
    check_outs: u64,
    calls: Histogram<u64>,
    most_events: u64,
    for_others: Duration,
}

/// Prints the columns' titles.
pub fn print_heading(length: Duration) {
    println!(
        "\nObserved: {TASKS} tasks on 2 workers, a subscriber that takes {SUBSCRIBER:?}, {length:?}\n\
         {:<12}{:>12}{:>16}{:>14}{:>20}{:>22}",
        "subject", "check-outs", "call p99.9, µs", "longest, µs", "most for others", "one task for others",
    );
}

impl Held {
    /// Prints the subject's line.
    pub fn print(&self, subject: &str) {
        println!(
            "{subject:<12}{:>12}{:>16.0}{:>14.0}{:>13} events{:>14.3} of {:.2} s",
            self.check_outs,
            self.calls.value_at_quantile(0.999) as f64 / 1e3,
            self.calls.max() as f64 / 1e3,
            self.most_events,
            self.most_time.as_secs_f64(),
            self.measured.as_secs_f64(),
        );
    }
}

/// Runs the scenario.
pub fn run<S: Handled>(length: Duration) -> Held {
    let runtime = two_workers();
    let subject = Arc::new(runtime.block_on(S::open_handled(SIZE, Arc::new(deliver))));
    runtime.block_on(subject.warm(SIZE));
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for _ in 0..TASKS {
        tasks.spawn_on(work(Arc::clone(&subject), Arc::clone(&stop)), runtime.handle());
    }
    thread::sleep(length);
    // ORD: Relaxed; the flag publishes nothing.
    stop.store(true, Ordering::Relaxed);
    let tasks = runtime.block_on(tasks.join_all());
    let mut held = Held {
        measured: start.elapsed(),
        check_outs: 0,
        calls: histogram(),
        most_events: 0,
        most_time: Duration::ZERO,
    };
    for task in tasks {
        held.check_outs += task.check_outs;
        held.calls.add(task.calls).expect("a histogram that resizes takes every value");
        held.most_events = held.most_events.max(task.most_events);
        held.most_time = held.most_time.max(task.for_others);
    }
    held
}

async fn work<S: Handled>(subject: Arc<S>, stop: Arc<AtomicBool>) -> Task {
    let mut task = Task { check_outs: 0, calls: histogram(), most_events: 0, for_others: Duration::ZERO };
    // ORD: Relaxed; the flag publishes nothing.
    while !stop.load(Ordering::Relaxed) {
        let mut calls = Calls { histogram: &mut task.calls, events: 0, busy: Duration::ZERO };
        let connection = {
            let mut check_out = pin!(subject.check_out());
            poll_fn(|context| calls.time(|| check_out.as_mut().poll(context))).await
        };
        yield_now().await;
        calls.time(|| drop(connection));
        let (events, busy) = (calls.events, calls.busy);
        if let Some(others) = events.checked_sub(OWN).filter(|&others| others > 0) {
            task.most_events = task.most_events.max(others);
            task.for_others += busy.mul_f64(others as f64 / events as f64);
        }
        task.check_outs += 1;
    }
    task
}

/// The calls in one check-out and check-in.
struct Calls<'a> {
    histogram: &'a mut Histogram<u64>,
    /// How many events the calls delivered, and how long that took.
    events: u64,
    busy: Duration,
}

impl Calls<'_> {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let (events_before, busy_before) = DELIVERED.get();
        let start = Instant::now();
        let result = call();
        self.histogram.record(start.elapsed().as_nanos() as u64).expect("a histogram that resizes takes every value");
        let (events, busy) = DELIVERED.get();
        self.events += events - events_before;
        self.busy += busy - busy_before;
        result
    }
}

/// Acts as the subscriber: keeps the thread busy, and counts the event.
fn deliver() {
    let start = Instant::now();
    while start.elapsed() < SUBSCRIBER {
        spin_loop();
    }
    let (events, busy) = DELIVERED.get();
    DELIVERED.set((events + 1, busy + start.elapsed()));
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three significant digits are allowed")
}
