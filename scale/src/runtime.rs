//! A task runtime on the simulated cores, which places tasks as tokio's multi-threaded runtime does.
//!
//! Each core has a worker with a queue, and a slot for the task that it woke last (the LIFO slot). The task in this
//! slot runs next, but at most three tasks in a row come from the slot. A task that is woken runs on the core that woke
//! it. A task that yields waits in its worker's list of yielded tasks. A worker without tasks steals half of another
//! worker's queue, beginning with a random worker, unless half of the workers are already searching. If it does not
//! find any tasks, it polls the driver and then schedules the tasks that have yielded, last in, first out. It also does
//! this after every 61 ticks. If no tasks have yielded, it sleeps. A worker with more than one task in its queue wakes
//! a sleeping worker, unless a worker is already searching.
//!
//! The words that tokio's workers share are words of the simulated machine: the ends and the entries of each queue, the
//! counts of workers that are awake and of workers that are searching, the list of sleepers, the driver's lock, and
//! each task's state with its reference count. Each poll changes the state twice. Each wake-up changes it three times:
//! when the waker is cloned, when the task is scheduled, and when the waker is dropped. A wake-up takes effect at the
//! end of the current poll, so that a waker never lets other cores run while its caller holds a lock that the machine
//! does not know about.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use crate::costs::Picos;
use crate::machine::{self, Access, Outcome, Plan};
use crate::shared::{Lock, Word, touch};

/// A task's work.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Gives a task's memory the same alignment as in tokio.
#[repr(align(128))]
struct Alignment;

impl Alignment {
    /// Uses the alignment, so that it stays part of the task.
    fn end(self) {}
}

/// How many tasks in a row may come from the LIFO slot.
const LIFO_POLLS: u32 = 3;
/// How many tasks run between two polls of the driver.
const EVENT_INTERVAL: u32 = 61;

/// How many cache lines a poll of the driver moves if another worker polled it last. In the runtime, these lines hold
/// the clock, the timers and their lock, and the events. In the kernel, they hold the file, the ready list and its
/// locks. The number is fitted to the `yield` case on two cores of `epyc-2`.
const DRIVER_LINES: usize = 16;

/// A simulation's tasks, and the workers that run them.
pub struct Runtime {
    workers: Vec<Worker>,
    tasks: Vec<Arc<Task>>,
    /// The number of workers that are awake, in the high half, and the number of awake workers that are searching, in
    /// the low half.
    idle: Word,
    sleepers: Lock<Vec<usize>>,
    driver: Word,
    /// The memory that a poll of the driver reads and writes, in the runtime and in the kernel.
    driver_state: [Word; DRIVER_LINES],
    /// Whether workers steal tasks from each other. If not, each worker is a separate runtime with its own driver.
    steals: bool,
}

#[derive(Default)]
struct Worker {
    /// Stands for both ends of the queue, which tokio keeps in one cache line.
    ends: Word,
    queue: Mutex<VecDeque<Arc<Task>>>,
    /// Stands for the queue's memory, a ring of pointers.
    entries: Entries,
    /// The number of tasks that have ever been pushed. The latest of them are still in the queue.
    pushed: AtomicUsize,
    lifo: Mutex<Option<Arc<Task>>>,
    /// Whether the LIFO slot is currently off, because too many tasks in a row have come from it.
    is_lifo_off: AtomicBool,
    yielded: Mutex<Vec<Arc<Task>>>,
}

/// The entries of a queue, eight in a cache line.
#[repr(align(128))]
struct Entries([u64; Self::COUNT]);

impl Entries {
    const COUNT: usize = 256;
}

impl Default for Entries {
    fn default() -> Self {
        Self([0; Self::COUNT])
    }
}

struct Task {
    /// One of the states below.
    state: Word,
    home: usize,
    work: Mutex<Work>,
    runtime: OnceLock<Weak<Runtime>>,
}

const RESTS: u64 = 0;
const SCHEDULED: u64 = 1;
const RUNS: u64 = 2;
const RUNS_AGAIN: u64 = 3;

/// A woken task, and when its waker was read.
type Woken = (Arc<Task>, Picos);

thread_local! {
    /// The tasks that the current polls have woken, by core.
    static WOKEN: RefCell<Vec<Vec<Woken>>> = const { RefCell::new(Vec::new()) };
    static YIELDS: Cell<bool> = const { Cell::new(false) };
}

/// Locks a mutex that only guards the simulator's own bookkeeping.
fn own<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a task from a future, in one allocation.
pub fn task(future: impl Future<Output = ()> + Send + 'static) -> Work {
    Box::pin(async move {
        let alignment = Alignment;
        future.await;
        alignment.end();
    })
}

/// Lets the worker's other tasks run first.
pub async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|_| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        YIELDS.set(true);
        Poll::Pending
    })
    .await;
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        // Outside a simulation, tasks no longer run.
        if let Some(core) = machine::core() {
            WOKEN.with_borrow_mut(|woken| woken[core].push((self, machine::read())));
        }
    }
}

/// Runs tasks on the machine. `tasks` holds each task's work and its first core.
pub fn run(plan: &Plan, tasks: Vec<(usize, Work)>) -> Outcome {
    let tasks: Vec<Arc<Task>> = tasks
        .into_iter()
        .map(|(home, work)| {
            let work = Mutex::new(work);
            Arc::new(Task { state: Word::new(SCHEDULED), home, work, runtime: OnceLock::new() })
        })
        .collect();
    let runtime = Arc::new(Runtime {
        workers: (0..plan.cores).map(|_| Worker::default()).collect(),
        idle: Word::new((plan.cores as u64) << 32),
        sleepers: Lock::default(),
        driver: Word::default(),
        driver_state: Default::default(),
        steals: plan.steals,
        tasks,
    });
    WOKEN.set((0..plan.cores).map(|_| Vec::new()).collect());
    for task in &runtime.tasks {
        task.runtime.set(Arc::downgrade(&runtime)).expect("BUG: a task has two runtimes");
        let worker = &runtime.workers[task.home];
        own(&worker.queue).push_back(Arc::clone(task));
        // The count must be at least the length of the queue, so that the first task's entry does not come before the
        // ring's first entry. It may be greater: a thief counts one entry too many.
        worker.pushed.fetch_add(1, Ordering::Relaxed);
    }
    let outcome = machine::simulate(plan.clone(), |core| runtime.work(core));
    WOKEN.take();
    outcome
}

impl Runtime {
    fn work(&self, core: usize) {
        let (mut ticks, mut searches) = (0_u32, false);
        while !machine::is_over() {
            ticks += 1;
            if ticks.is_multiple_of(EVENT_INTERVAL) {
                self.look_around(core, searches);
            }
            if let Some(task) = self.next(core).or_else(|| self.steal(core, &mut searches)) {
                self.stop_searching(&mut searches);
                self.run(core, task);
                let is_off = &self.workers[core].is_lifo_off;
                for polls in 1.. {
                    let Some(task) = own(&self.workers[core].lifo).take() else { break };
                    // Relaxed: only the worker uses this flag. The state that workers share is in the machine's words.
                    is_off.store(polls >= LIFO_POLLS, Ordering::Relaxed);
                    self.run(core, task);
                }
                is_off.store(false, Ordering::Relaxed);
            } else if !own(&self.workers[core].yielded).is_empty() {
                self.look_around(core, searches);
            } else {
                self.sleep(core, &mut searches);
            }
        }
    }

    /// Polls the driver for events, unless another worker is doing so. Then schedules the tasks that have yielded.
    fn look_around(&self, core: usize, searches: bool) {
        machine::compute(|costs| costs.batch);
        if !self.steals {
            machine::compute_alone(|costs| costs.driver);
        } else if self.driver.swap(1) == 0 {
            machine::compute_alone(|costs| costs.driver);
            for word in &self.driver_state {
                // Each word contains the address of the next word.
                machine::follow();
                word.store(word.load());
            }
            self.driver.store(0);
        }
        let worker = &self.workers[core];
        let yielded = std::mem::take(&mut *own(&worker.yielded));
        for task in yielded.into_iter().rev() {
            self.schedule(core, task, false);
        }
        let has_too_many = own(&worker.queue).len() + usize::from(own(&worker.lifo).is_some()) > 1;
        if has_too_many && !searches {
            self.wake_a_sleeper();
        }
    }

    /// Takes the worker's next task.
    fn next(&self, core: usize) -> Option<Arc<Task>> {
        let worker = &self.workers[core];
        let first = own(&worker.lifo).take();
        if first.is_some() {
            return first;
        }
        if worker.ends.load() == 0 && own(&worker.queue).is_empty() {
            return None;
        }
        worker.ends.add(0);
        // Another worker may have stolen the task first.
        worker.touch_first(1, Access::Load);
        own(&worker.queue).pop_front()
    }

    fn push(&self, core: usize, task: Arc<Task>) {
        let worker = &self.workers[core];
        worker.fill(1);
        own(&worker.queue).push_back(task);
        worker.ends.store(0);
    }

    /// Runs a task until it yields, waits or completes.
    fn run(&self, core: usize, task: Arc<Task>) {
        machine::follow();
        task.state.load();
        task.state.swap(RUNS);
        let waker = Waker::from(Arc::clone(&task));
        let polled = {
            let mut work = own(&task.work);
            touch(&**work, Access::Load);
            touch(&**work, Access::Store);
            machine::compute(|costs| costs.poll);
            YIELDS.set(false);
            work.as_mut().poll(&mut Context::from_waker(&waker))
        };
        let yields = YIELDS.take();
        if polled.is_pending() {
            // Counts the cloned waker's reference, which a queue or the list of yielded tasks keeps.
            task.state.add(0);
            if yields {
                own(&self.workers[core].yielded).push(Arc::clone(&task));
            }
            if task.state.replace(RUNS, RESTS).is_err() {
                task.state.store(SCHEDULED);
                self.push(core, task);
            }
        }
        self.schedule_woken(core);
    }

    /// Schedules the tasks that this core has woken.
    fn schedule_woken(&self, core: usize) {
        loop {
            let woken = WOKEN.with_borrow_mut(|woken| std::mem::take(&mut woken[core]));
            if woken.is_empty() {
                return;
            }
            for (task, read) in woken {
                machine::follow_from(read);
                self.schedule(core, task, true);
            }
        }
    }

    /// Schedules a task whose waker was called, and drops the waker.
    fn schedule(&self, core: usize, task: Arc<Task>, tells: bool) {
        if task.becomes_scheduled() {
            let worker = &self.workers[core];
            let displaced = if worker.is_lifo_off.load(Ordering::Relaxed) {
                Some(Arc::clone(&task))
            } else {
                own(&worker.lifo).replace(Arc::clone(&task))
            };
            if let Some(displaced) = displaced {
                self.push(core, displaced);
                if tells {
                    self.wake_a_sleeper();
                }
            }
        }
        task.state.add(0);
    }

    /// Takes half of another worker's tasks, and returns one of them.
    fn steal(&self, core: usize, searches: &mut bool) -> Option<Arc<Task>> {
        let workers = self.workers.len();
        if workers == 1 || !self.steals {
            return None;
        }
        if !*searches {
            let searching = self.idle.load() & u64::from(u32::MAX);
            if 2 * searching >= workers as u64 {
                return None;
            }
            self.idle.add(1);
            *searches = true;
        }
        let first = machine::random() as usize % workers;
        for victim in (first..first + workers).map(|number| number % workers).filter(|&victim| victim != core) {
            let victim = &self.workers[victim];
            victim.ends.load();
            if own(&victim.queue).is_empty() {
                continue;
            }
            // One update claims the tasks, and another announces that they have been copied.
            victim.ends.add(0);
            let half = own(&victim.queue).len().div_ceil(2);
            victim.touch_first(half, Access::Load);
            self.workers[core].fill(half);
            victim.ends.add(0);
            let mut stolen = {
                let mut queue = own(&victim.queue);
                let half = queue.len().div_ceil(2);
                queue.drain(..half).collect::<VecDeque<_>>()
            };
            let Some(task) = stolen.pop_back() else { continue };
            if !stolen.is_empty() {
                own(&self.workers[core].queue).append(&mut stolen);
                self.workers[core].ends.store(0);
            }
            return Some(task);
        }
        None
    }

    /// Stops searching, because the worker has found a task. If no other worker is searching, wakes a worker to
    /// continue the search.
    fn stop_searching(&self, searches: &mut bool) {
        if std::mem::take(searches) && self.idle.add(-1) & u64::from(u32::MAX) == 1 {
            self.wake_a_sleeper();
        }
    }

    /// Wakes a sleeping worker, unless a worker is already searching.
    fn wake_a_sleeper(&self) {
        let needs_one = |idle: u64| idle & u64::from(u32::MAX) == 0 && (idle >> 32) < self.workers.len() as u64;
        // Reads `idle` with an update, which orders the read after the push of the task. A runtime's only worker is
        // awake anyway.
        if !self.steals || !needs_one(self.idle.add(0)) {
            return;
        }
        let woken = {
            let mut sleepers = self.sleepers.lock();
            let sleeper = needs_one(self.idle.add(0)).then(|| sleepers.pop()).flatten();
            sleeper.inspect(|_| {
                self.idle.add((1 << 32) + 1);
            })
        };
        if let Some(sleeper) = woken {
            machine::wake(sleeper);
        }
    }

    /// Sleeps until the worker is woken to search for tasks.
    fn sleep(&self, core: usize, searches: &mut bool) {
        let was_last = {
            let mut sleepers = self.sleepers.lock();
            let before = self.idle.add(-(1 << 32) - i64::from(*searches));
            sleepers.push(core);
            *searches && before & u64::from(u32::MAX) == 1
        };
        if was_last
            && self.workers.iter().any(|worker| {
                worker.ends.load();
                !own(&worker.queue).is_empty()
            })
        {
            self.wake_a_sleeper();
        }
        machine::sleep();
        *searches = true;
    }
}

impl Worker {
    /// Accesses the entries of the first tasks in the queue.
    fn touch_first(&self, count: usize, access: Access) {
        let first = self.pushed.load(Ordering::Relaxed).saturating_sub(own(&self.queue).len());
        self.touch_entries(first, count, access);
    }

    /// Writes the entries of tasks that are pushed.
    fn fill(&self, count: usize) {
        let first = self.pushed.fetch_add(count, Ordering::Relaxed);
        self.touch_entries(first, count, Access::Store);
    }

    /// Accesses entries, a line at a time.
    fn touch_entries(&self, first: usize, count: usize, access: Access) {
        const IN_A_LINE: usize = 8;
        let end = first + count.min(Entries::COUNT);
        let mut entry = first;
        while entry < end {
            touch(&self.entries.0[entry % Entries::COUNT], access);
            entry += IN_A_LINE - entry % IN_A_LINE;
        }
    }
}

impl Task {
    /// Returns whether a woken task must be put into a queue.
    fn becomes_scheduled(&self) -> bool {
        let mut state = self.state.load();
        loop {
            let next = match state {
                RESTS => SCHEDULED,
                RUNS => RUNS_AGAIN,
                _ => return false,
            };
            match self.state.replace(state, next) {
                Ok(()) => return next == SCHEDULED,
                Err(now) => state = now,
            }
        }
    }
}
