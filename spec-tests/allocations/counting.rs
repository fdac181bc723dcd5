//! An allocator that counts, for each thread by itself, so that neither the harness nor other tests disturb.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no locals any more, and is not being measured.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

#[allow(unsafe_code)]
// SAFETY: all is left to the system's allocator. Counting allocates nothing: the local needs no initialization.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the same, and `alloc` took it from there.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the same, and `alloc` took it from there.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often this thread has allocated in `run`, and what that returns.
pub fn allocations<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = ALLOCATIONS.get();
    let result = run();
    (ALLOCATIONS.get() - before, result)
}

/// How often this thread has allocated so far.
#[allow(dead_code, reason = "not every test counts across an await")]
pub fn so_far() -> usize {
    ALLOCATIONS.get()
}
