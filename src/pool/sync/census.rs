//! Counts the work done under short locks, only in the library's unit tests.
//!
//! Times depend on the machine and its load; steps and allocations do not. A step is a fetched cache line, or one
//! iteration of a loop.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CENSUS: Cell<Census> = const { Cell::new(Census::NONE) };
    static HELD: Cell<bool> = const { Cell::new(false) };
    static STEPS: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread's work under short locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) sections: u32,
    /// The number of steps in the longest section.
    pub(crate) longest: u32,
    /// How many times the thread allocated, moved or freed memory under a lock.
    pub(crate) allocations: u32,
}

impl Census {
    const NONE: Self = Self { sections: 0, longest: 0, allocations: 0 };
}

/// Returns the work that `run` does under short locks, and its result.
pub(crate) fn of<R>(run: impl FnOnce() -> R) -> (Census, R) {
    CENSUS.set(Census::NONE);
    let result = run();
    (CENSUS.get(), result)
}

pub(crate) fn enter() {
    HELD.set(true);
    STEPS.set(0);
}

pub(crate) fn leave() {
    let census = CENSUS.get();
    HELD.set(false);
    CENSUS.set(Census { sections: census.sections + 1, longest: census.longest.max(STEPS.get()), ..census });
}

pub(crate) fn step() {
    STEPS.set(STEPS.get() + 1);
}

struct Counting;

// SAFETY: every call goes to the system's allocator. Counting does not allocate, because the counters need neither
// initialization nor a destructor.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the same contract.
        unsafe { System.realloc(memory, layout, size) }
    }
}

fn count() {
    if HELD.get() {
        let census = CENSUS.get();
        CENSUS.set(Census { allocations: census.allocations + 1, ..census });
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;
