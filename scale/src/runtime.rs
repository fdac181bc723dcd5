//! A runtime of tasks on the simulated cores, which places them as tokio's multi-threaded one does.
//!
//! Each core has a worker with a queue, and a place for the task that it woke last, which runs next (the LIFO slot, for
//! at most three tasks in a row). A task that is woken runs on the core that woke it. A task that yields runs again once
//! the queue is empty. A worker without tasks steals half of another one's queue, beginning with a random one, unless
//! half of the workers search already; then it sleeps. A worker whose queue has a task too many wakes a sleeping one,
//! unless some worker searches.
//!
//! The words that tokio's workers share are words of the simulated machine: the ends of each queue, the counts of
//! workers that are awake and that search, the list of sleepers, the lock of the driver, and each task's state. A wake-up
//! takes place at the end of the poll in which it occurs, so that no waker runs other cores while its caller holds a lock
//! that the machine does not know.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use crate::machine::{self, Access, Outcome, Plan};
use crate::shared::{Lock, Word, touch};

/// What a task does.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Gives a task's memory the alignment that tokio's has.
#[repr(align(128))]
struct Alignment;

impl Alignment {
    /// Ends the life of the alignment, so that it is a part of the task until then.
    fn end(self) {}
}

/// How many tasks in a row run from the LIFO slot.
const LIFO_POLLS: usize = 3;
/// How many tasks run from one look at the driver to the next.
const EVENT_INTERVAL: u32 = 61;

/// The tasks of a simulation, and the workers that run them.
pub struct Runtime {
    workers: Vec<Worker>,
    tasks: Vec<Arc<Task>>,
    /// How many workers are awake, in the high half, and how many of them search, in the low half.
    idle: Word,
    sleepers: Lock<Vec<usize>>,
    driver: Word,
    /// Otherwise each worker is a runtime of its own, which has its own driver.
    steals: bool,
}

#[derive(Default)]
struct Worker {
    /// Stands for both ends of the queue, which tokio keeps in one cache line.
    ends: Word,
    queue: Mutex<VecDeque<Arc<Task>>>,
    lifo: Mutex<Option<Arc<Task>>>,
    yielded: Mutex<Vec<Arc<Task>>>,
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

thread_local! {
    /// The tasks that the present polls have woken, by core.
    static WOKEN: RefCell<Vec<Vec<Arc<Task>>>> = const { RefCell::new(Vec::new()) };
    static YIELDS: Cell<bool> = const { Cell::new(false) };
}

/// Locks a mutex that only guards the simulator's own bookkeeping.
fn own<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a task of a future, in one piece of memory.
pub fn task(future: impl Future<Output = ()> + Send + 'static) -> Work {
    Box::pin(async move {
        let alignment = Alignment;
        future.await;
        alignment.end();
    })
}

/// Lets the other tasks of the worker run first.
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
        // Outside of a simulation nothing runs any more.
        if let Some(core) = machine::core() {
            WOKEN.with_borrow_mut(|woken| woken[core].push(self));
        }
    }
}

/// Runs tasks on the machine: `tasks` has the work of each, and the core on which it starts.
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
        steals: plan.steals,
        tasks,
    });
    WOKEN.set((0..plan.cores).map(|_| Vec::new()).collect());
    for task in &runtime.tasks {
        task.runtime.set(Arc::downgrade(&runtime)).expect("BUG: a task has two runtimes");
        own(&runtime.workers[task.home].queue).push_back(Arc::clone(task));
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
                self.look_at_driver();
            }
            if let Some(task) = self.next(core).or_else(|| self.steal(core, &mut searches)) {
                self.stop_searching(&mut searches);
                self.run(core, task);
                for _ in 0..LIFO_POLLS {
                    let Some(task) = own(&self.workers[core].lifo).take() else { break };
                    self.run(core, task);
                }
                let left = own(&self.workers[core].lifo).take();
                if let Some(task) = left {
                    self.push(core, task);
                    self.wake_a_sleeper();
                }
            } else if !own(&self.workers[core].yielded).is_empty() {
                self.stop_searching(&mut searches);
                self.look_at_driver();
                self.schedule_yielded(core);
            } else {
                self.sleep(core, &mut searches);
            }
        }
    }

    /// Asks the driver for events, if no other worker does.
    fn look_at_driver(&self) {
        if !self.steals {
            machine::compute(|costs| costs.call);
        } else if self.driver.swap(1) == 0 {
            machine::compute(|costs| costs.call);
            self.driver.store(0);
        }
    }

    /// Takes the next task of the worker's own.
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
        own(&worker.queue).pop_front()
    }

    fn push(&self, core: usize, task: Arc<Task>) {
        own(&self.workers[core].queue).push_back(task);
        self.workers[core].ends.store(0);
    }

    /// Runs a task until it yields, waits or ends.
    fn run(&self, core: usize, task: Arc<Task>) {
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
            if yields {
                // The reference that the list of tasks that yield keeps.
                task.state.add(0);
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
            for task in woken {
                if !task.becomes_scheduled() {
                    continue;
                }
                let before = own(&self.workers[core].lifo).replace(task);
                if let Some(before) = before {
                    self.push(core, before);
                    self.wake_a_sleeper();
                }
            }
        }
    }

    /// Schedules the tasks that have yielded.
    fn schedule_yielded(&self, core: usize) {
        let yielded = std::mem::take(&mut *own(&self.workers[core].yielded));
        let are_many = yielded.len() > 1;
        for task in yielded {
            if task.becomes_scheduled() {
                self.push(core, task);
            }
        }
        if are_many {
            self.wake_a_sleeper();
        }
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
            // One update claims the tasks, one tells that they are copied.
            victim.ends.add(0);
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

    /// Stops searching, because there is something to do. The last one to stop has another worker search.
    fn stop_searching(&self, searches: &mut bool) {
        if std::mem::take(searches) && self.idle.add(-1) & u64::from(u32::MAX) == 1 {
            self.wake_a_sleeper();
        }
    }

    /// Wakes a worker that sleeps, unless some worker searches.
    fn wake_a_sleeper(&self) {
        let needs_one = |idle: u64| idle & u64::from(u32::MAX) == 0 && (idle >> 32) < self.workers.len() as u64;
        if !needs_one(self.idle.load()) {
            return;
        }
        let woken = {
            let mut sleepers = self.sleepers.lock();
            let sleeper = needs_one(self.idle.load()).then(|| sleepers.pop()).flatten();
            sleeper.inspect(|_| {
                self.idle.add((1 << 32) + 1);
            })
        };
        if let Some(sleeper) = woken {
            machine::wake(sleeper);
        }
    }

    /// Sleeps until there is something to search for.
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

impl Task {
    /// Returns whether a task that is woken is to be put into a queue.
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
