//! The wrappers around loom's atomics (`src/pool/sync/explored.rs`) reveal all outcomes of small random programs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use loom::model::Builder;
use loom::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use loom::thread;
use wharf::unstable::primitives::AtomicU32 as Explored;

/// What one thread does to one of two atomics.
#[derive(Clone, Copy, Debug)]
enum Access {
    Load,
    Store,
    Add,
    /// Expects the value that the thread saw last in this atomic.
    CompareExchange,
}

/// Each thread's accesses: the atomic, what is done to it, and how strong the ordering is.
type Program = Vec<Vec<(usize, Access, usize)>>;

trait Atomic: Send + Sync + Sized + 'static {
    fn new() -> Self;
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn add(&self, value: u32, order: Ordering) -> u32;
    fn compare_exchange(&self, seen: u32, new: u32, order: Ordering) -> Result<u32, u32>;
}

macro_rules! atomic {
    ($name:ty: $new:expr, $of:ident => $value:expr) => {
        impl Atomic for $name {
            fn new() -> Self {
                $new
            }
            fn load(&self, order: Ordering) -> u32 {
                let $of = self;
                $value.load(order)
            }
            fn store(&self, value: u32, order: Ordering) {
                let $of = self;
                $value.store(value, order);
            }
            fn add(&self, value: u32, order: Ordering) -> u32 {
                let $of = self;
                $value.fetch_add(value, order)
            }
            fn compare_exchange(&self, seen: u32, new: u32, order: Ordering) -> Result<u32, u32> {
                let $of = self;
                $value.compare_exchange(seen, new, order, Ordering::Relaxed)
            }
        }
    };
}

/// The reference: loom may switch threads before each access, and all switches depend on each other.
struct Ordered(AtomicU8, AtomicU32);

impl Ordered {
    fn next(&self) -> &AtomicU32 {
        self.0.fetch_add(0, Ordering::Relaxed);
        &self.1
    }
}

atomic!(Ordered: Self(AtomicU8::new(0), AtomicU32::new(0)), of => of.next());
atomic!(AtomicU32: Self::new(0), of => of);
atomic!(Explored: Self::new(0), of => of);

/// Returns what the threads of `program` saw in each execution with at most two preemptions.
fn outcomes<A: Atomic>(program: &Program) -> BTreeSet<Vec<u32>> {
    let outcomes = Arc::new(Mutex::new(BTreeSet::new()));
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    let (program, found) = (program.clone(), outcomes.clone());
    builder.check(move || {
        let atomics = Arc::new([A::new(), A::new()]);
        let threads: Vec<_> = (0..program.len())
            .map(|number| {
                let (atomics, accesses) = (atomics.clone(), program[number].clone());
                thread::spawn(move || seen(&*atomics, number, &accesses))
            })
            .collect();
        let seen = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        found.lock().unwrap().insert(seen);
    });
    let mut found = outcomes.lock().unwrap();
    std::mem::take(&mut *found)
}

fn seen<A: Atomic>(atomics: &[A; 2], thread: usize, accesses: &[(usize, Access, usize)]) -> Vec<u32> {
    let mut last = [0; 2];
    let access = |(number, &(atomic, access, order)): (usize, &(usize, Access, usize))| {
        let load = [Ordering::Relaxed, Ordering::Acquire, Ordering::Acquire][order];
        let store = [Ordering::Relaxed, Ordering::Release, Ordering::Release][order];
        let both = [Ordering::Relaxed, Ordering::AcqRel, Ordering::SeqCst][order];
        let value = (100 * (thread + 1) + number) as u32;
        let (seen, outcome) = match access {
            Access::Load => (atomics[atomic].load(load), 0),
            Access::Store => {
                atomics[atomic].store(value, store);
                return 0;
            }
            Access::Add => (atomics[atomic].add(10_000, both), 0),
            Access::CompareExchange => match atomics[atomic].compare_exchange(last[atomic], value, both) {
                Ok(seen) => (seen, 1_000_000),
                Err(seen) => (seen, 0),
            },
        };
        last[atomic] = seen;
        seen + outcome
    };
    accesses.iter().enumerate().map(access).collect()
}

fn random_program(random: &mut Rng) -> Program {
    let (threads, length) = if random.bool() { (2, 3) } else { (3, 2) };
    let mut thread = || {
        let accesses = 1 + random.usize(..length);
        let access = |_| {
            let access = [Access::Load, Access::Load, Access::Store, Access::Add, Access::CompareExchange];
            (random.usize(..3) / 2, *random.choice(&access).expect("not empty"), random.usize(..3))
        };
        (0..accesses).map(access).collect()
    };
    (0..threads).map(|_| thread()).collect()
}

#[test]
fn explored_atomics_reveal_all_outcomes() {
    let mut random = Rng::with_seed(32);
    let mut missed = 0;
    for _ in 0..500 {
        let program = random_program(&mut random);
        let expected = outcomes::<Ordered>(&program);
        assert_eq!(outcomes::<Explored>(&program), expected, "{program:?}");
        missed += usize::from(outcomes::<AtomicU32>(&program) != expected);
    }
    println!("loom's own atomics miss outcomes of {missed} programs");
    // Otherwise loom itself explores all orders, and the wrappers are no longer needed.
    assert!(missed > 0, "loom's own atomics revealed all outcomes");
}
