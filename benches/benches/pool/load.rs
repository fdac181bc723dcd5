//! The saturated cases: many more tasks than connections, so that nearly every check-out waits.
//!
//! Every task loops: check out, yield once while holding the connection, check in. There is no other work, so the
//! numbers describe the queue: how quickly and how fairly connections pass from task to task.
//!
//! There are two kinds of rounds, because recording an operation slows it down. [`throughput`] only counts. [`waits`]
//! takes tickets and reads the clock, and its speed is not evaluated.
//!
//! # What an overtake is
//!
//! An overtake is a check-out that is served although an older check-out is still waiting. A check-out's age is its
//! ticket, taken from a global counter right before the first poll. Its order of service is its place, taken from
//! another counter right after the check-out has returned and before the connection is checked in. The pool makes its
//! decision at a slightly different moment, so some inversions mean nothing. When a check-out takes its place, two
//! kinds of older check-outs may still lack a place, even in a pool that serves first come, first served:
//!
//! - Check-outs that were granted a connection, but whose tasks have not run since. Each of them holds a connection, as
//!   does the check-out in question. So there are at most `size - 1` of them.
//! - Check-outs that had a ticket but had not queued up when the check-out in question queued up (or was served at
//!   once). The pool is right to serve these later. No task is suspended between taking its ticket and queueing up, so
//!   each of these tasks occupied a worker thread at that time, as did the task of the check-out in question. So there
//!   are at most `workers - 1` of them.
//!
//! All other older check-outs had queued up before the check-out in question, and were still waiting when it got its
//! connection: they were passed over. So a check-out counts as an overtake if more than `size - 1 + workers - 1` older
//! check-outs still lack a place. A pool that serves first come, first served has no overtakes, however its tasks are
//! scheduled. Any other pool may have more overtakes than are counted.
//!
//! # Lost waiters
//!
//! If a pool loses a wake-up, some tasks wait forever. They are given some time after the end, and are then abandoned
//! and counted. The time that they have waited by then is recorded as their wait, because leaving it out would reward
//! the pool for losing the wake-up.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::runtime::Runtime;
use tokio::sync::Barrier;
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;

use crate::micro::workers;
use crate::subjects::floor::{TASKS_IN_A_CIRCLE, Turns};
use crate::subjects::{Queue, Source};

/// A number of tasks, and the size of the pool that they use.
#[derive(Clone, Copy)]
pub struct Load {
    pub name: &'static str,
    pub tasks: usize,
    pub size: usize,
    pub workers: usize,
}

/// The saturated cases.
pub const LOADS: [Load; 2] = [
    Load { name: "saturated/1000-on-10", tasks: 1_000, size: 10, workers: 2 },
    Load { name: "saturated/10000-on-100", tasks: 10_000, size: 100, workers: 2 },
];

/// The same cases on twice as many workers. On two cores, a worker is often interrupted in the middle of a hand-over.
pub const LOADS_ON_FOUR_WORKERS: [Load; 2] = [
    Load { name: "saturated/1000-on-10/4-workers", workers: 4, ..LOADS[0] },
    Load { name: "saturated/10000-on-100/4-workers", workers: 4, ..LOADS[1] },
];

/// How long a saturated case runs, and how long it is given to wind down.
#[derive(Clone, Copy)]
pub struct Length {
    pub warm_up: Duration,
    pub measured: Duration,
    pub wind_down: Duration,
}

/// The results of the rounds that only count operations.
pub struct Throughput {
    /// Wall-clock nanoseconds per check-out and check-in.
    pub nanos_per_op: f64,
    /// Jain's index for the tasks' operations: 1 if all tasks performed the same number, 1/n if one of n tasks
    /// performed them all.
    pub jain: f64,
    /// Tasks that were still waiting when they were abandoned.
    pub lost: usize,
}

/// The results of the rounds that record every operation.
pub struct Waits {
    /// Microseconds from the first poll of a check-out to its return.
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    /// Overtakes per thousand check-outs, as defined above.
    pub overtakes_per_thousand: f64,
}

/// Measures how many operations the tasks complete, and how evenly they share them.
pub fn throughput<S: Queue>(load: Load, length: Length) -> Throughput {
    throughput_on::<S>(workers(load.workers), load, length)
}

/// Measures the same as [`throughput`], on the given runtime.
pub fn throughput_on<S: Source>(runtime: Runtime, load: Load, length: Length) -> Throughput {
    let outcome = drive::<S, Count>(runtime, load, length, Count::default);
    let counts = outcome.records.iter().map(|count| count.served as f64);
    let (sum, squares) = counts.fold((0.0, 0.0), |(sum, squares), count| (sum + count, squares + count * count));
    Throughput {
        nanos_per_op: outcome.measured.as_nanos() as f64 / sum,
        jain: sum * sum / (load.tasks as f64 * squares),
        lost: outcome.lost,
    }
}

/// Measures the case without a pool, on the given runtime; see [`Turns`].
pub fn floor_on(runtime: Runtime, load: Load, length: Length) -> Throughput {
    assert_eq!(load.tasks, TASKS_IN_A_CIRCLE * load.size, "BUG: the circles do not have room for this load");
    throughput_on::<Turns>(runtime, load, length)
}

/// Measures the case without a pool, on the usual runtime.
pub fn floor(load: Load, length: Length) -> Throughput {
    floor_on(workers(load.workers), load, length)
}

/// Measures how long check-outs wait, and how many of them overtake.
pub fn waits<S: Queue>(load: Load, length: Length) -> Waits {
    let counters = Arc::new(Counters::default());
    let room = Notes::room(load, length);
    let outcome = drive::<S, Notes>(workers(load.workers), load, length, || Notes::new(&counters, room));

    let mut histogram = Histogram::<u64>::new(3).expect("three significant digits are allowed");
    let mut served = Vec::new();
    for notes in &outcome.records {
        for note in notes.notes.iter().filter(|note| note.counted) {
            histogram.record(note.waited.into()).expect("a histogram that resizes takes every value");
        }
        // The task was still waiting when it was abandoned, so it has a ticket but no place.
        if let Some((_, since)) = notes.waiting {
            let waited = outcome.end.saturating_duration_since(since).as_nanos();
            histogram.record(waited as u64).expect("a histogram that resizes takes every value");
        }
        served.extend_from_slice(&notes.notes);
    }
    // ORD: Relaxed; all tasks have finished, and a mutex has handed over their records.
    let tickets = counters.tickets.load(Ordering::Relaxed);
    let allowance = (load.size - 1) + (outcome.workers - 1);
    let micros = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Waits {
        p50: micros(0.5),
        p99: micros(0.99),
        p999: micros(0.999),
        overtakes_per_thousand: overtakes_per_thousand(served, tickets as usize, allowance as u64),
    }
}

/// Returns the overtakes per thousand check-outs. For each check-out, in the order of service, counts the older
/// check-outs that still lack a place.
fn overtakes_per_thousand(mut served: Vec<Note>, tickets: usize, allowance: u64) -> f64 {
    served.sort_unstable_by_key(|note| note.place);
    let mut before = Prefixes::new(tickets);
    let (mut counted, mut overtakes) = (0_u64, 0_u64);
    for note in served {
        let passed_over = u64::from(note.ticket) - before.count(note.ticket as usize);
        before.add(note.ticket as usize);
        counted += u64::from(note.counted);
        overtakes += u64::from(note.counted && passed_over > allowance);
    }
    overtakes as f64 * 1e3 / counted.max(1) as f64
}

/// A Fenwick tree that counts the added tickets below a given ticket.
struct Prefixes(Vec<u32>);

impl Prefixes {
    fn new(tickets: usize) -> Self {
        Self(vec![0; tickets + 1])
    }

    fn add(&mut self, ticket: usize) {
        let mut node = ticket + 1;
        while let Some(count) = self.0.get_mut(node) {
            *count += 1;
            node += node & node.wrapping_neg();
        }
    }

    fn count(&self, below: usize) -> u64 {
        let (mut node, mut count) = (below, 0);
        while node > 0 {
            count += u64::from(self.0[node]);
            node &= node - 1;
        }
        count
    }
}

/// Records a task's check-outs; the task calls it before and after each one.
trait Record: Send + 'static {
    /// Called right before the first poll.
    fn arrive(&mut self);
    /// Called right after the check-out has returned. `phase` is the current phase.
    fn serve(&mut self, phase: u8);
}

/// Counts the check-outs in the measured phase.
#[derive(Default)]
struct Count {
    served: u64,
}

impl Record for Count {
    #[inline]
    fn arrive(&mut self) {}

    #[inline]
    fn serve(&mut self, phase: u8) {
        self.served += u64::from(phase == MEASURE);
    }
}

/// The global order of arrival, and the global order of service.
#[derive(Default)]
struct Counters {
    tickets: AtomicU64,
    places: AtomicU64,
}

/// Records every check-out.
struct Notes {
    counters: Arc<Counters>,
    /// The ticket of the check-out in progress, and the time of its first poll.
    waiting: Option<(u64, Instant)>,
    notes: Vec<Note>,
}

/// A check-out that was served. `u32` suffices: the longest rounds have about ten million check-outs.
#[derive(Clone, Copy)]
struct Note {
    ticket: u32,
    place: u32,
    /// In nanoseconds, up to four seconds.
    waited: u32,
    /// Whether it was served after the warm-up. Check-outs that are served while the tasks wind down also count,
    /// because leaving out the longest waits would flatter a pool that makes some tasks wait for a long time.
    counted: bool,
}

impl Notes {
    /// A lower bound on the cost of a check-out in a saturated case, in any pool.
    const LEAST_COST: Duration = Duration::from_nanos(100);

    /// Returns the number of notes that each task makes if all tasks make the same number.
    fn room(load: Load, length: Length) -> usize {
        let check_outs = (length.warm_up + length.measured).as_nanos() / Self::LEAST_COST.as_nanos();
        check_outs as usize / load.tasks + 1
    }

    /// Creates an empty record with room for `room` notes, in memory that has already been written to. Without this
    /// room, all tasks of a first come, first served pool would have to reallocate at the same time. A thousand
    /// reallocations and page faults would take several times as long as the measured wait, and would affect more than
    /// one wait in a hundred.
    fn new(counters: &Arc<Counters>, room: usize) -> Self {
        let mut notes = vec![Note { ticket: u32::MAX, place: u32::MAX, waited: u32::MAX, counted: false }; room];
        notes.clear();
        Self { counters: Arc::clone(counters), waiting: None, notes }
    }
}

impl Record for Notes {
    #[inline]
    fn arrive(&mut self) {
        // ORD: AcqRel; pairs with itself in other tasks, and keeps the ticket before the poll that follows.
        let ticket = self.counters.tickets.fetch_add(1, Ordering::AcqRel);
        self.waiting = Some((ticket, Instant::now()));
    }

    #[inline]
    fn serve(&mut self, phase: u8) {
        let (ticket, since) = self.waiting.take().expect("a check-out arrives before it is served");
        // ORD: AcqRel; pairs with itself in other tasks, and keeps the place after the grant and before the check-in.
        let place = self.counters.places.fetch_add(1, Ordering::AcqRel);
        let waited = u32::try_from(since.elapsed().as_nanos()).unwrap_or(u32::MAX);
        let small = |number: u64| u32::try_from(number).expect("a number of check-outs");
        self.notes.push(Note { ticket: small(ticket), place: small(place), waited, counted: phase != WARM_UP });
    }
}

/// The phases of a turn.
pub const WARM_UP: u8 = 0;
pub const MEASURE: u8 = 1;
pub const STOP: u8 = 2;

struct Outcome<R> {
    /// One for each task.
    records: Vec<R>,
    measured: Duration,
    end: Instant,
    lost: usize,
    workers: usize,
}

/// Switches the phases, from a thread that is not a worker. Returns the length of the measured phase.
pub fn measure(phase: &AtomicU8, length: Length) -> Duration {
    thread::sleep(length.warm_up);
    // ORD: Relaxed here and below; a phase publishes nothing, and a few more or fewer operations do not matter.
    phase.store(MEASURE, Ordering::Relaxed);
    let start = Instant::now();
    thread::sleep(length.measured);
    phase.store(STOP, Ordering::Relaxed);
    start.elapsed()
}

/// Runs the tasks.
fn drive<S: Source, R: Record>(
    runtime: Runtime,
    load: Load,
    length: Length,
    mut record: impl FnMut() -> R,
) -> Outcome<R> {
    let subject = Arc::new(runtime.block_on(S::open(load.size)));
    runtime.block_on(subject.warm(load.size));

    let phase = Arc::new(AtomicU8::new(WARM_UP));
    let gate = Arc::new(Barrier::new(load.tasks + 1));
    let records = Arc::new(Mutex::new(Vec::with_capacity(load.tasks)));
    let mut tasks = JoinSet::new();
    for task in 0..load.tasks {
        let (subject, phase, gate) = (Arc::clone(&subject), Arc::clone(&phase), Arc::clone(&gate));
        let mut kept = Kept { record: Some(record()), records: Arc::clone(&records) };
        let operations = async move {
            gate.wait().await;
            // ORD: Relaxed here and below, as in `measure`.
            while phase.load(Ordering::Relaxed) != STOP {
                kept.record().arrive();
                let connection = subject.check_out_for(task).await;
                kept.record().serve(phase.load(Ordering::Relaxed));
                yield_now().await;
                drop(connection);
            }
        };
        tasks.spawn_on(operations, runtime.handle());
    }

    runtime.block_on(gate.wait());
    let measured = measure(&phase, length);

    let lost = runtime.block_on(async {
        let finish = async {
            while let Some(ended) = tasks.join_next().await {
                ended.expect("the task does not panic");
            }
        };
        let late = timeout(length.wind_down, finish).await.is_err();
        let lost = if late { tasks.len() } else { 0 };
        tasks.shutdown().await;
        lost
    });
    let records = std::mem::take(&mut *records.lock().expect("no task panics with the lock"));
    Outcome { records, measured, end: Instant::now(), lost, workers: runtime.metrics().num_workers() }
}

/// A task's record, which outlives the task even if the task is abandoned.
struct Kept<R> {
    record: Option<R>,
    records: Arc<Mutex<Vec<R>>>,
}

impl<R> Kept<R> {
    #[inline]
    fn record(&mut self) -> &mut R {
        self.record.as_mut().expect("the record is taken only by the drop")
    }
}

impl<R> Drop for Kept<R> {
    fn drop(&mut self) {
        if let (Some(record), Ok(mut records)) = (self.record.take(), self.records.lock()) {
            records.push(record);
        }
    }
}
