//! What happens under the short locks, counted: in the library's own tests only.
//!
//! Times depend on the machine and its neighbours; steps and allocations do not. A step is a line of memory that is
//! fetched, or one turn of a loop.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CENSUS: Cell<Census> = const { Cell::new(Census::NONE) };
    static HELD: Cell<bool> = const { Cell::new(false) };
    static STEPS: Cell<u32> = const { Cell::new(0) };
}

/// What the calling thread has done under short locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Census {
    /// How often it took one.
    pub(crate) sections: u32,
    /// The steps of the longest section.
    pub(crate) longest: u32,
    /// Memory that was allocated, moved or freed inside.
    pub(crate) allocations: u32,
}

impl Census {
    const NONE: Self = Self { sections: 0, longest: 0, allocations: 0 };
}

/// What `run` does under short locks.
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

// SAFETY: the system's allocator, besides the counting, which allocates nothing: the counters need no set-up and no
// tearing down.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promises.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises.
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
