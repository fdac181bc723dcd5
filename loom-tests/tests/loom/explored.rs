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

enum Atomic {
    Explored(Explored),
    Plain(AtomicU32),
    /// loom may switch threads before each access, and all switches depend on each other.
    Reference(AtomicU8, AtomicU32),
}

impl Atomic {
    fn explored() -> Self {
        Self::Explored(Explored::new(0))
    }

    fn plain() -> Self {
        Self::Plain(AtomicU32::new(0))
    }

    fn reference() -> Self {
        Self::Reference(AtomicU8::new(0), AtomicU32::new(0))
    }

    /// Makes the access, and returns the value that the thread has seen last. A failed exchange is an error.
    fn make(&self, access: Access, order: usize, new: u32, last: u32) -> Result<u32, u32> {
        let load = [Ordering::Relaxed, Ordering::Acquire, Ordering::Acquire][order];
        let store = [Ordering::Relaxed, Ordering::Release, Ordering::Release][order];
        let both = [Ordering::Relaxed, Ordering::AcqRel, Ordering::SeqCst][order];
        macro_rules! make {
            ($value:ident) => {
                match access {
                    Access::Load => Ok($value.load(load)),
                    Access::Store => {
                        $value.store(new, store);
                        Ok(last)
                    }
                    Access::Add => Ok($value.fetch_add(10_000, both)),
                    Access::CompareExchange => $value.compare_exchange(last, new, both, Ordering::Relaxed),
                }
            };
        }
        match self {
            Self::Explored(value) => make!(value),
            Self::Plain(value) => make!(value),
            Self::Reference(turnstile, value) => {
                turnstile.fetch_add(0, Ordering::Relaxed);
                make!(value)
            }
        }
    }
}

/// What the threads of a program saw in one execution.
type Outcome = Vec<Result<u32, u32>>;

/// Returns the outcomes of all executions with at most two preemptions.
fn outcomes(program: &Program, new: fn() -> Atomic) -> BTreeSet<Outcome> {
    let outcomes = Arc::new(Mutex::new(BTreeSet::new()));
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    let (program, found) = (program.clone(), outcomes.clone());
    builder.check(move || {
        let atomics = Arc::new([new(), new()]);
        let start = |(number, accesses): (usize, &Vec<_>)| {
            let (atomics, accesses) = (atomics.clone(), accesses.clone());
            thread::spawn(move || run(&atomics, number, &accesses))
        };
        let threads: Vec<_> = program.iter().enumerate().map(start).collect();
        let outcome = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        found.lock().unwrap().insert(outcome);
    });
    let mut found = outcomes.lock().unwrap();
    std::mem::take(&mut *found)
}

/// Makes the accesses of one thread.
fn run(atomics: &[Atomic; 2], thread: usize, accesses: &[(usize, Access, usize)]) -> Outcome {
    let mut last = [0; 2];
    let make = |(number, &(atomic, access, order)): (usize, &(usize, Access, usize))| {
        let new = (100 * (thread + 1) + number) as u32;
        let seen = atomics[atomic].make(access, order, new, last[atomic]);
        let (Ok(value) | Err(value)) = seen;
        last[atomic] = value;
        seen
    };
    accesses.iter().enumerate().map(make).collect()
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
        let expected = outcomes(&program, Atomic::reference);
        assert_eq!(outcomes(&program, Atomic::explored), expected, "{program:?}");
        missed += usize::from(outcomes(&program, Atomic::plain) != expected);
    }
    println!("loom's own atomics miss outcomes of {missed} programs");
    // Otherwise loom itself explores all orders, and the wrappers are no longer needed.
    assert!(missed > 0, "loom's own atomics revealed all outcomes");
}
