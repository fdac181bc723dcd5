//! The simulated work of each core's tasks.
//!
//! The first cases are also part of the `cores` benchmark series (`benches/`), so that simulated and measured figures
//! can be compared.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::costs::Picos;
use crate::designs::Design;
use crate::machine::{self, Access, Outcome, Plan, scattered};
use crate::runtime::{Work, run, task as spawned, yield_now};
use crate::shared::{Word, touch};

/// How many connections pass from task to task at a time.
const HANDFUL: usize = 16;

const MICROSECOND: Picos = 1_000_000;

macro_rules! cases {
    ($($(#[doc = $what:literal])* $case:ident: $name:literal, $warm_up:literal, $measured:literal;)*) => {
        /// A simulated workload.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Case {
            $($(#[doc = $what])* $case,)*
        }

        impl Case {
            /// All cases, in the order used in the reports.
            pub const ALL: &[Self] = &[$(Self::$case),*];

            /// The case's name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$case => $name,)* }
            }

            /// A description of the case.
            pub fn what(self) -> &'static str {
                match self { $(Self::$case => concat!($($what,)*).trim_ascii(),)* }
            }

            /// Returns how long the cores warm up and how long they are measured, in microseconds.
            fn microseconds(self) -> (u64, u64) {
                match self { $(Self::$case => ($warm_up, $measured),)* }
            }
        }
    };
}

cases! {
    /// A task on each core checks out and in; four connections per core.
    Hit: "hit", 20, 40;
    /// 64 tasks per core hold their connections across a yield; 100 connections per core.
    Yield: "yield", 60, 120;
    /// Like `yield`, but each core has a separate runtime: the pool's share.
    YieldInPlace: "yield-in-place", 60, 120;
    /// 1,000 tasks on 10 connections, held across a yield.
    Saturated10: "saturated/1000-on-10", 1000, 1000;
    /// 10,000 tasks on 100 connections, held across a yield.
    Saturated100: "saturated/10000-on-100", 6000, 3000;
    /// 64 tasks per core on 8 connections per core, held across a yield.
    SaturatedPerCore: "saturated/64-on-8-a-core", 500, 500;
    /// 8 tasks and 7.5 connections per core, held across a yield: the queue is often empty.
    Edge: "edge", 100, 300;
    /// Each core's connections are returned by the next core; 100 connections per core.
    Elsewhere: "elsewhere", 20, 60;
    /// Half of the cores take connections, and the other half return them; 100 connections per core.
    Apart: "apart", 20, 60;
    /// One connection exists. A random core takes it, and another core returns it.
    Cold: "cold", 20, 200;
    /// Like `hit`, but core 0 clears the pool after every 200 of its operations.
    Clear: "clear", 20, 100;
    /// A task on each core opens a connection and closes it.
    Create: "create-and-close", 20, 100;
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Case {
    /// Returns the plan with the times for this case. The measured time is multiplied by `length`.
    pub fn timed(self, plan: &Plan, length: f64) -> Plan {
        let (warm_up, measured) = self.microseconds();
        let measured = (measured as f64 * length).max(1.0) as u64;
        Plan { warm_up: warm_up * MICROSECOND, measured: measured * MICROSECOND, ..plan.clone() }
    }

    /// Simulates the case on a design. Returns `None` if the case does not include the design.
    pub fn simulate<D: Design>(self, plan: &Plan) -> Option<Outcome> {
        let cores = plan.cores;
        let queues = D::NAME != "single stack";
        Some(match self {
            Self::Hit => hit::<D>(plan),
            Self::Yield => held::<D>(plan, 64 * cores, 100 * cores),
            Self::YieldInPlace => held::<D>(&Plan { steals: false, ..plan.clone() }, 64 * cores, 100 * cores),
            Self::Saturated10 if queues => held::<D>(plan, 1_000, 10),
            Self::Saturated100 if queues => held::<D>(plan, 10_000, 100),
            Self::SaturatedPerCore if queues => held::<D>(plan, 64 * cores, 8 * cores),
            Self::Edge if queues => held::<D>(plan, 8 * cores, 8 * cores - cores.div_ceil(2)),
            Self::Elsewhere => passed_on::<D>(plan, Direction::Around),
            Self::Apart => passed_on::<D>(plan, Direction::Across),
            #[cfg(simulated)]
            Self::Cold if D::NAME == "wharf" => of_wharf::cold(plan),
            #[cfg(simulated)]
            Self::Clear if D::NAME == "wharf" => of_wharf::clear(plan),
            #[cfg(simulated)]
            Self::Create if D::NAME == "wharf" => of_wharf::create(plan),
            _ => return None,
        })
    }
}

/// Runs the tasks of a case together with the pool's own tasks.
fn run_on<D: Design>(plan: &Plan, pool: &Arc<D>, work: Vec<Work>) -> Outcome {
    let of_pool = pool.tasks().into_iter().enumerate();
    let tasks = of_pool.chain(work.into_iter().enumerate()).map(|(number, work)| (number % plan.cores, work));
    run(plan, tasks.collect())
}

fn hit<D: Design>(plan: &Plan) -> Outcome {
    let pool = D::open(plan.cores, (4 * plan.cores).max(100), plan.cores);
    let task = |_| -> Work {
        let pool = Arc::clone(&pool);
        spawned(async move {
            while !machine::is_over() {
                drop(pool.check_out().await);
                machine::count();
            }
        })
    };
    run_on(plan, &pool, (0..plan.cores).map(task).collect())
}

fn held<D: Design>(plan: &Plan, tasks: usize, size: usize) -> Outcome {
    let pool = D::open(plan.cores, size, plan.cores);
    let task = |_| -> Work {
        let pool = Arc::clone(&pool);
        spawned(async move {
            while !machine::is_over() {
                let connection = pool.check_out().await;
                yield_now().await;
                drop(connection);
                machine::count();
            }
        })
    };
    run_on(plan, &pool, (0..tasks).map(task).collect())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// Each core takes connections, and returns the connections that the previous core took.
    Around,
    /// The first half of the cores take connections, and the second half return them.
    Across,
}

/// The handfuls of connections that are on their way to a core.
struct Handfuls<G> {
    /// The number of handfuls.
    count: Word,
    handfuls: Mutex<VecDeque<Vec<G>>>,
}

impl<G> Default for Handfuls<G> {
    fn default() -> Self {
        Self { count: Word::default(), handfuls: Mutex::default() }
    }
}

impl<G> Handfuls<G> {
    fn push(&self, handful: Vec<G>) {
        self.handfuls.lock().unwrap_or_else(PoisonError::into_inner).push_back(handful);
        self.count.add(1);
    }

    fn pop(&self) -> Option<Vec<G>> {
        if self.count.load() == 0 {
            return None;
        }
        self.count.add(-1);
        self.handfuls.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Waits for a handful until the simulation ends. Most handfuls arrive soon, so this spins first. After that, the
    /// worker's other tasks run between two attempts.
    async fn received(&self) -> Option<Vec<G>> {
        const SPINS: usize = 100;
        loop {
            for _ in 0..SPINS {
                if let Some(handful) = self.pop() {
                    return Some(handful);
                }
                machine::spin();
            }
            if machine::is_over() {
                return None;
            }
            yield_now().await;
        }
    }
}

fn passed_on<D: Design>(plan: &Plan, direction: Direction) -> Outcome {
    let cores = plan.cores;
    let pool = D::open(cores, 100 * cores, cores);
    let mailboxes: Arc<Vec<Handfuls<D::Guard>>> = Arc::new((0..cores).map(|_| Handfuls::default()).collect());
    let half = cores.div_ceil(2);
    let task = |number: usize| -> Work {
        let (pool, mailboxes) = (Arc::clone(&pool), Arc::clone(&mailboxes));
        let takes = direction == Direction::Around || number < half;
        let returns = direction == Direction::Around || number >= half || cores == 1;
        let to = if direction == Direction::Around { number + 1 } else { number + half };
        spawned(async move {
            let (own, next) = (&mailboxes[number], &mailboxes[to % cores]);
            while !machine::is_over() {
                if takes {
                    // Waits so that this core takes no more connections than the other side returns.
                    while direction == Direction::Across && next.count.load() > 1 && !machine::is_over() {
                        machine::spin();
                    }
                    let mut handful = Vec::with_capacity(HANDFUL);
                    for _ in 0..HANDFUL {
                        handful.push(pool.check_out().await);
                        handful.last().inspect(|connection| touch(*connection, Access::Store));
                    }
                    next.push(handful);
                }
                if returns {
                    let Some(others) = own.received().await else { return };
                    let mut others = others.into_iter();
                    while let Some(connection) = others.as_slice().first() {
                        touch(connection, Access::Load);
                        machine::follow();
                        drop(others.next());
                        machine::count();
                    }
                }
            }
        })
    };
    let outcome = run_on(plan, &pool, (0..cores).map(task).collect());
    for mailbox in mailboxes.iter() {
        mailbox.handfuls.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
    outcome
}

/// Returns a pseudo-random core for `number`.
#[cfg_attr(not(simulated), allow(dead_code, reason = "only wharf's own cases draw cores"))]
fn drawn(number: u64, cores: usize) -> usize {
    (scattered(number) % cores as u64) as usize
}

#[cfg(simulated)]
mod of_wharf {
    use super::*;
    use crate::designs::wharf::Wharf;
    use wharf::Clear;

    /// The cores take turns. A turn has two steps: one core takes the connection, and then another core returns it.
    pub fn cold(plan: &Plan) -> Outcome {
        let cores = plan.cores;
        let pool = Wharf::empty(cores, (4 * cores).max(100));
        pool.fill(1, 1);
        let steps = Arc::new(Word::default());
        let taken = Arc::new(Mutex::new(None));
        let task = |number: usize| -> Work {
            let (pool, steps, taken) = (Arc::clone(&pool), Arc::clone(&steps), Arc::clone(&taken));
            spawned(async move {
                let taken = || taken.lock().unwrap_or_else(PoisonError::into_inner);
                while !machine::is_over() {
                    let step = steps.load();
                    if drawn(step, cores) != number {
                        // Checks only rarely, because simulating a check costs as much as simulating an access by the
                        // pool.
                        machine::pass(MICROSECOND / 2);
                        continue;
                    }
                    if step.is_multiple_of(2) {
                        let connection = pool.check_out().await;
                        *taken() = Some(connection);
                        machine::count();
                    } else {
                        let connection = taken().take();
                        drop(connection);
                    }
                    steps.store(step + 1);
                }
            })
        };
        let outcome = run_on(plan, &pool, (0..cores).map(task).collect());
        taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        outcome
    }

    pub fn clear(plan: &Plan) -> Outcome {
        let pool = Wharf::open(plan.cores, (4 * plan.cores).max(100), plan.cores);
        let task = |number: usize| -> Work {
            let pool = Arc::clone(&pool);
            spawned(async move {
                let mut operations = 0_u64;
                while !machine::is_over() {
                    drop(pool.check_out().await);
                    machine::count();
                    operations += 1;
                    if number == 0 && operations.is_multiple_of(200) {
                        pool.core.clear(Clear::new()).expect("the pool is not load-balanced");
                        pool.core.ready();
                        pool.core.maintain();
                    }
                }
            })
        };
        run_on(plan, &pool, (0..plan.cores).map(task).collect())
    }

    pub fn create(plan: &Plan) -> Outcome {
        let pool = Wharf::empty(plan.cores, (4 * plan.cores).max(100));
        let task = |_| -> Work {
            let pool = Arc::clone(&pool);
            spawned(async move {
                while !machine::is_over() {
                    let mut connection = pool.check_out().await;
                    connection.break_off();
                    drop(connection);
                    machine::count();
                }
            })
        };
        run_on(plan, &pool, (0..plan.cores).map(task).collect())
    }
}
