//! The machine: cores as coroutines, their clocks, and the cache lines between them.
//!
//! All cores run on one thread. A core runs until it is about to access shared memory. If another core's clock is
//! earlier, the core then waits for its turn. So all accesses take place one after another in the order of virtual
//! time, and two simulations with the same seed agree to the picosecond.
//!
//! # The time of an access
//!
//! - If the core has the line in a state that allows the access, the access costs a hit, or more if the core has not
//!   used the line for a while.
//! - Otherwise the access needs a transfer, which fetches the line and, for a write, makes the other copies invalid. A
//!   line serves one transfer at a time, first come, first served. Only readers of a shared line are served in
//!   parallel.
//! - A core that has fetched a line keeps it for at least half of the next transfer, while the request for that
//!   transfer is on its way. So it can use the line more than once, however many cores request it.
//! - A core's accesses take effect in program order, at its clock `now`. The core does not wait for a store's line. An
//!   update and a fence wait for the core's earlier stores, as on x86.
//! - The lines of one access are fetched in parallel.
//! - If a core walks through memory, lines arrive before the core needs them (`Streams`), unless other cores hold them.
//! - Before each access, the core computes for a `step`, give or take a quarter. Without this noise, the cores would
//!   march in lockstep, unlike real cores.
//!
//! # How far a core looks ahead
//!
//! A core executes out of order: it requests the lines for later accesses while it waits for earlier accesses, even
//! across updates. So a core has a second clock, `ahead`, which shows when the core reaches an access and requests its
//! line. Computation and accesses without a transfer advance only that clock. The line arrives a transfer later, and
//! the access takes effect once the line is there and all earlier accesses have taken effect. Then an update occupies
//! the core for a while.
//!
//! - The core reaches an access no earlier than a `window` before the earlier accesses have taken effect.
//! - It follows a pointer only once the pointer has arrived ([`follow`]), and it does not look past a spin loop until
//!   the loop has finished. An updated line is available to later accesses only once the update has taken effect.
//! - A core that loads a line and writes it before the line arrives fetches it only once.
//! - If another core writes the line after this core's request, the line is fetched after that write.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::Location;

use generator::{Generator, Gn};

use crate::costs::{Costs, Picos};
use crate::line::{Line, MOST_CORES, Source, State};

/// A location in the source that accesses shared memory.
pub type Site = &'static Location<'static>;

/// How an access uses a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads the line.
    Load,
    /// Writes the line.
    Store,
    /// Reads and writes the line in one step.
    Update,
}

/// The machine and the duration of a simulation.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The number of cores.
    pub cores: usize,
    /// The number of sockets, among which the cores are divided evenly.
    pub sockets: usize,
    /// The cost of each step.
    pub costs: Costs,
    /// Determines the noise; 0 means no noise.
    pub seed: u64,
    /// Whether the workers belong to one runtime and steal tasks from each other.
    pub steals: bool,
    /// How long the cores run before they are measured.
    pub warm_up: Picos,
    /// How long the cores are measured after that.
    pub measured: Picos,
}

/// The totals for the measured accesses from one place in the source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Accesses to lines that the core had.
    pub hits: u64,
    /// Lines that came from the same socket.
    pub near: u64,
    /// Lines that came from another socket.
    pub far: u64,
    /// Lines that came from memory.
    pub memory: u64,
    /// The time that cores spent, in picoseconds, including time waiting for other transfers of the line.
    pub time: Picos,
}

impl Tally {
    /// Adds another tally.
    pub fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.near += other.near;
        self.far += other.far;
        self.memory += other.memory;
        self.time += other.time;
    }
}

/// The result of a simulation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The operations that [`count`] counted during the measurement.
    pub operations: u64,
    /// The totals for the accesses, by source file and line.
    pub sites: BTreeMap<(&'static str, u32), Tally>,
    /// The total number of accesses, including the warm-up, which determines the cost of the simulation itself.
    pub accesses: u64,
}

/// If a core has used a line within this many of its accesses, the line is in the core's first-level cache, which has
/// room for 512 to 768 lines. About three accesses in four are to recently used lines.
const FIRST_LEVEL: u64 = 3_000;
/// The same for the second-level cache, which has room for 16,384 lines or more. In the long run, one access in eight
/// is to a new line.
const SECOND_LEVEL: u64 = 130_000;
/// The size of a cache line in bytes.
const LINE: usize = 64;

/// Hashes addresses. std's hasher has a random key and is slower.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 32;
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

type ByAddress<V> = HashMap<usize, V, BuildHasherDefault<Mix>>;

/// A line, and the transfers that it is serving.
#[derive(Default)]
struct Busy {
    present: Line,
    /// The line after all requested transfers.
    promised: Line,
    /// When the line will have served all requested transfers.
    until: Picos,
    /// When each transfer takes the line from its core: half a transfer before it arrives.
    leaves: VecDeque<Picos>,
    /// How many accesses the line's last user had made when it used the line.
    used: u64,
    /// When the line was last written.
    written: Picos,
    /// Its last fetch.
    fetched: Fetch,
    /// The core that last updated the line, the address of that update, and when the update took effect.
    updated: (usize, usize, Picos),
}

/// A fetch of a line.
#[derive(Clone, Copy, Default)]
struct Fetch {
    core: usize,
    begins: Picos,
    arrives: Picos,
}

impl Busy {
    /// Returns whether a core has the line in a state that allows the access, and will still have it at that time.
    fn is_hit(&self, core: usize, access: Access, at: Picos) -> bool {
        let allows = match self.present.state(core) {
            State::Modified | State::Exclusive => true,
            State::Shared => access == Access::Load,
            State::Invalid => false,
        };
        allows && self.leaves.front().is_none_or(|&leaves| at < leaves)
    }
}

#[derive(Default)]
struct Mutex {
    is_locked: bool,
    /// The cores that are sleeping until the mutex is unlocked.
    sleepers: VecDeque<usize>,
}

struct Core {
    /// When the core's last access took effect.
    now: Picos,
    /// When the core reaches its next access.
    ahead: Picos,
    /// When the value of the core's last access arrives.
    read: Picos,
    /// Whether the core is spinning, in which case it does not speculate past the loop.
    spins: bool,
    /// When the core's last store will have its line.
    stored: Picos,
    noise: u64,
    sleeps: bool,
    /// Whether the core was woken while it was not asleep, in which case its next sleep returns at once.
    is_woken: bool,
    /// The lines that the current access is waiting for, and whether they arrive one after another.
    fetches: Vec<(usize, bool)>,
    accesses: u64,
    streams: Streams,
}

impl Core {
    /// Returns `time` with noise: up to a quarter more or less.
    fn noisy(&mut self, time: Picos) -> Picos {
        if self.noise == 0 {
            return time;
        }
        self.noise = self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        time * 3 / 4 + (time / 2) * (self.noise >> 54) / 1024
    }
}

impl Costs {
    /// Returns the additional cost of a line that the core has, but not in its first-level cache, because the core has
    /// not used the line for this many accesses.
    fn level(&self, unused: u64) -> Picos {
        if unused <= SECOND_LEVEL { self.second } else { self.third }
    }
}

struct Machine {
    plan: Plan,
    cores: Vec<Core>,
    /// The cores that are waiting for their turn, earliest first.
    turns: BinaryHeap<Reverse<(Picos, usize)>>,
    running: Option<usize>,
    lines: ByAddress<Busy>,
    /// The stores that are waiting for their lines: the time at which the line arrives, the core, and the line.
    stores: BinaryHeap<Reverse<(Picos, usize, usize)>>,
    mutexes: ByAddress<Mutex>,
    sites: HashMap<(usize, u32), (Site, Tally), BuildHasherDefault<Mix>>,
    operations: u64,
    accesses: u64,
}

thread_local! {
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// Calls `f` with the machine and the running core. Returns `None` outside a simulation.
fn on_machine<R>(f: impl FnOnce(&mut Machine, usize) -> R) -> Option<R> {
    MACHINE.with_borrow_mut(|machine| {
        let machine = machine.as_mut()?;
        let core = machine.running?;
        Some(f(machine, core))
    })
}

/// Runs `work` on each core of the machine, until it returns on all of them. `work` receives its core's number, and
/// must return soon after [`is_over`] returns `true`.
///
/// # Panics
///
/// Panics if the plan has no cores or too many, or if a simulation is already running on this thread.
pub fn simulate(plan: Plan, work: impl Fn(usize) + Clone + Send) -> Outcome {
    assert!((1..=MOST_CORES).contains(&plan.cores), "the machine must have 1 to {MOST_CORES} cores");
    assert!((1..=plan.cores).contains(&plan.sockets), "the machine must have 1 socket or more, and a core on each");
    let machine = Machine {
        cores: (0..plan.cores)
            .map(|core| Core {
                now: 0,
                ahead: 0,
                read: 0,
                spins: false,
                stored: 0,
                noise: if plan.seed == 0 { 0 } else { scattered(plan.seed ^ (core as u64) << 32) },
                sleeps: false,
                is_woken: false,
                fetches: Vec::new(),
                accesses: 0,
                streams: Streams::default(),
            })
            .collect(),
        turns: (0..plan.cores).map(|core| Reverse((0, core))).collect(),
        running: None,
        lines: ByAddress::default(),
        stores: BinaryHeap::new(),
        mutexes: ByAddress::default(),
        sites: HashMap::default(),
        operations: 0,
        accesses: 0,
        plan,
    };
    let count = machine.plan.cores;
    MACHINE.with_borrow_mut(|present| assert!(present.replace(machine).is_none(), "a simulation is running already"));
    // The size of a core's stack, in words. The operating system allocates only the part that is used.
    const STACK: usize = 0x8000;
    let mut coroutines: Vec<Generator<'_, (), ()>> = (0..count)
        .map(|core| {
            let work = work.clone();
            Gn::new_opt(STACK, move || work(core))
        })
        .collect();
    let mut left = count;
    while left > 0 {
        let core = MACHINE.with_borrow_mut(|machine| machine.as_mut().map(Machine::next_turn)).flatten();
        let core = core.expect("BUG: cores are left, and none has a turn");
        coroutines[core].resume();
        left -= usize::from(coroutines[core].is_done());
    }
    let machine = MACHINE.take().expect("BUG: the machine is gone");
    let mut outcome = Outcome { operations: machine.operations, accesses: machine.accesses, ..Outcome::default() };
    for (site, tally) in machine.sites.values() {
        outcome.sites.entry((site.file(), site.line())).or_default().add(tally);
    }
    outcome
}

impl Machine {
    /// Returns the core whose turn it is. Wakes all sleeping cores when the simulation ends.
    fn next_turn(&mut self) -> Option<usize> {
        let end = self.plan.warm_up + self.plan.measured;
        let is_over = self.turns.peek().is_none_or(|Reverse((now, _))| *now >= end);
        if is_over {
            for (number, core) in self.cores.iter_mut().enumerate().filter(|(_, core)| core.sleeps) {
                (core.sleeps, core.now) = (false, core.now.max(end));
                core.ahead = core.now;
                self.turns.push(Reverse((core.now, number)));
            }
            self.mutexes.values_mut().for_each(|mutex| mutex.sleepers.clear());
        }
        let Reverse((_, core)) = self.turns.pop()?;
        self.running = Some(core);
        Some(core)
    }

    fn socket(&self) -> impl Fn(usize) -> usize + use<> {
        let (cores, sockets) = (self.plan.cores, self.plan.sockets);
        move |core| core * sockets / cores
    }

    /// Spends this much time on computation, give or take a quarter.
    fn compute(&mut self, core: usize, time: Picos) {
        let (window, core) = (self.plan.costs.window, &mut self.cores[core]);
        core.ahead = core.ahead.max(core.now.saturating_sub(window)) + core.noisy(time);
        core.now = core.now.max(core.ahead);
    }

    fn is_measured(&self, now: Picos) -> bool {
        now >= self.plan.warm_up && now < self.plan.warm_up + self.plan.measured
    }

    /// Begins an access to the lines at `address`, and requests the lines that the core does not have. Called when it
    /// is the core's turn. If lines are on their way, the core takes them with [`arrive`](Self::arrive) at its next
    /// turn.
    fn ask(&mut self, core: usize, address: usize, bytes: usize, access: Access, site: Site) {
        let (costs, socket, asked) = (self.plan.costs, self.socket(), self.cores[core].now);
        self.finish_stores(asked);
        let state = &mut self.cores[core];
        state.accesses += 1;
        let (count, ahead, stored) = (state.accesses, state.ahead, state.stored);
        // In addition to its lines, the access waits for the earlier accesses; an update also waits for the earlier
        // stores.
        let updates = if access == Access::Update { state.noisy(costs.update) } else { 0 };
        let ready = if access == Access::Update { asked.max(stored) } else { asked };
        let (mut done, mut read) = (ready, ahead);
        let mut tally = Tally::default();
        for number in lines(address, bytes) {
            let line = self.lines.entry(number).or_default();
            let hits = line.is_hit(core, access, asked);
            let source = if hits { Source::Own } else { line.promised.change(core, access == Access::Load, &socket) };
            let (counter, took) = match source {
                Source::Own => {
                    // If the line has not arrived yet, the core's own store is waiting for it and provides the value.
                    tally.hits += 1;
                    let unused = count.saturating_sub(std::mem::replace(&mut line.used, count));
                    let is_near = unused <= FIRST_LEVEL || self.cores[core].streams.meets(number);
                    let mut there = ahead + if is_near { 0 } else { costs.level(unused) };
                    if line.fetched.core == core {
                        there = there.max(line.fetched.arrives);
                    }
                    if (line.updated.0, line.updated.1) == (core, address) {
                        there = there.max(line.updated.2);
                    }
                    read = read.max(there);
                    done = done.max(there);
                    if access == Access::Store {
                        // Stores become visible in order.
                        line.until = line.until.max(stored);
                    }
                    if access != Access::Load {
                        line.written = done + updates;
                    }
                    if access == Access::Update {
                        line.updated = (core, address, done + updates);
                    }
                    continue;
                }
                Source::Memory if self.cores[core].streams.meets(number) => (&mut tally.memory, 0),
                Source::Memory => (&mut tally.memory, costs.memory),
                Source::Near { .. } => (&mut tally.near, costs.transfer),
                Source::Far { .. } => (&mut tally.far, costs.across),
            };
            line.used = count;
            let serialised = !matches!(source, Source::Near { shared: true } | Source::Far { shared: true });
            let is_merged = access != Access::Load && line.fetched.core == core && ahead < line.fetched.arrives;
            let begins = if is_merged { line.fetched.begins } else { line.until.max(line.written).max(ahead) };
            *counter += u64::from(!is_merged);
            let there = begins + took;
            let in_order = if access == Access::Store { ready.max(stored) } else { ready };
            let arrives = there.max(in_order) + updates;
            line.fetched = Fetch { core, begins, arrives: there };
            read = read.max(there);
            if serialised {
                line.leaves.push_back(begins + took / 2);
                line.until = arrives;
            }
            if access != Access::Load {
                line.written = arrives;
            }
            if access == Access::Update {
                line.updated = (core, address, arrives);
            }
            if access == Access::Store {
                self.stores.push(Reverse((arrives, core, number)));
            } else {
                self.cores[core].fetches.push((number, serialised));
            }
            done = done.max(there);
        }
        let state = &mut self.cores[core];
        if access == Access::Store {
            state.stored = state.stored.max(done);
            state.ahead += costs.store;
        } else {
            state.now = done + updates;
            state.ahead += costs.load;
            state.read = read;
        }
        if std::mem::take(&mut state.spins) {
            state.ahead = state.ahead.max(state.read);
        }
        state.now = state.now.max(state.ahead);
        state.ahead = state.ahead.max(state.now.saturating_sub(costs.window));
        tally.time = state.now - asked;
        self.accesses += 1;
        if self.is_measured(asked) {
            let key = (site.file().as_ptr().addr(), site.line());
            self.sites.entry(key).or_insert((site, Tally::default())).1.add(&tally);
        }
    }

    /// Takes the requested lines.
    fn arrive(&mut self, core: usize, access: Access) {
        let socket = self.socket();
        self.finish_stores(self.cores[core].now);
        for (number, serialised) in std::mem::take(&mut self.cores[core].fetches) {
            let line = self.lines.entry(number).or_default();
            line.present.change(core, access == Access::Load, &socket);
            if serialised {
                line.leaves.pop_front();
            }
        }
    }

    /// Gives the lines that have arrived to the cores whose stores were waiting for them.
    fn finish_stores(&mut self, now: Picos) {
        let socket = self.socket();
        while let Some(&Reverse((arrives, core, number))) = self.stores.peek()
            && arrives <= now
        {
            self.stores.pop();
            let line = self.lines.entry(number).or_default();
            line.present.change(core, false, &socket);
            line.leaves.pop_front();
        }
    }
}

/// Returns the numbers of the lines that hold `bytes` bytes at `address`.
fn lines(address: usize, bytes: usize) -> impl Iterator<Item = usize> {
    address / LINE..=(address + bytes.max(1) - 1) / LINE
}

/// Returns a hash of `number` that looks random (the finalizer of SplitMix64).
pub(crate) fn scattered(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// Suspends this core and returns to [`simulate`], which resumes the core at its next turn.
fn leave() {
    #[allow(deprecated, reason = "the new form works only in the coroutine's first function; loom uses this one, too")]
    generator::yield_with(());
}

/// Waits until it is the running core's turn.
fn turn() {
    let waits = on_machine(|machine, core| {
        let own = (machine.cores[core].now, core);
        let waits = machine.turns.peek().is_some_and(|Reverse(next)| *next < own);
        if waits {
            machine.turns.push(Reverse(own));
        }
        waits
    });
    if waits == Some(true) {
        leave();
    }
}

/// Returns the running core, or `None` outside a simulation.
pub fn core() -> Option<usize> {
    on_machine(|_, core| core)
}

/// Returns the running core's time, or 0 outside a simulation.
pub fn now() -> Picos {
    on_machine(|machine, core| machine.cores[core].now).unwrap_or(0)
}

/// Returns whether this core has reached the end of the simulation.
pub fn is_over() -> bool {
    on_machine(|machine, core| machine.cores[core].now >= machine.plan.warm_up + machine.plan.measured).unwrap_or(true)
}

/// Counts an operation that has just completed.
pub fn count() {
    on_machine(|machine, core| {
        machine.operations += u64::from(machine.is_measured(machine.cores[core].now));
    });
}

/// Returns a pseudo-random number.
pub fn random() -> u64 {
    on_machine(|machine, core| {
        machine.compute(core, 0);
        scattered(machine.cores[core].noise)
    })
    .unwrap_or(0)
}

/// Spends the time `cost` on computation.
pub fn compute(cost: impl Fn(&Costs) -> Picos) {
    on_machine(|machine, core| machine.compute(core, cost(&machine.plan.costs)));
}

/// Waits until all earlier accesses have taken effect, as for a system call, and then spends the time `cost` on
/// computation.
pub fn compute_alone(cost: impl Fn(&Costs) -> Picos) {
    on_machine(|machine, core| {
        let state = &mut machine.cores[core];
        state.ahead = state.ahead.max(state.now).max(state.stored);
        machine.compute(core, cost(&machine.plan.costs));
    });
}

/// Pauses in a spin loop.
pub fn spin() {
    on_machine(|machine, core| {
        machine.compute(core, machine.plan.costs.spin);
        machine.cores[core].spins = true;
    });
}

/// Returns the time at which the value of the last access arrives.
pub fn read() -> Picos {
    on_machine(|machine, core| machine.cores[core].read).unwrap_or(0)
}

/// Makes the core reach its next access no earlier than `read`, the time at which the address of that access is known.
pub fn follow_from(read: Picos) {
    on_machine(|machine, core| {
        let core = &mut machine.cores[core];
        core.ahead = core.ahead.max(read);
        core.now = core.now.max(core.ahead);
    });
}

/// Follows a pointer that the last access has read.
pub fn follow() {
    follow_from(read());
}

/// Simulates an access to `bytes` bytes at `address`. The caller performs the actual access right after this call.
pub fn access(address: usize, bytes: usize, access: Access, site: Site) {
    let is_simulated = on_machine(|machine, core| {
        machine.compute(core, machine.plan.costs.step);
        if access == Access::Update {
            let core = &mut machine.cores[core];
            core.now = core.now.max(core.stored);
        }
    });
    if is_simulated.is_some() {
        turn();
        let waits = on_machine(|machine, core| {
            machine.ask(core, address, bytes, access, site);
            !machine.cores[core].fetches.is_empty()
        });
        if waits == Some(true) {
            turn();
            on_machine(|machine, core| machine.arrive(core, access));
        }
    }
}

/// Waits for the core's earlier stores.
pub fn fence() {
    on_machine(|machine, core| {
        let core = &mut machine.cores[core];
        core.now = core.now.max(core.stored) + core.noisy(machine.plan.costs.update);
    });
}

mod locks;
mod streams;
pub use locks::{lock, pass, sleep, unlock, wake};
use streams::Streams;

#[cfg(test)]
mod tests;
