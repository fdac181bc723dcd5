//! An allocator that counts, for each thread by itself, so that neither the harness nor other tests disturb.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts this thread's allocations. Declare one as the `#[global_allocator]` of a test.
#[derive(Debug)]
pub struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// How many bytes are allocated, and how many were at most. What other threads have allocated counts when it is freed
    /// here, so this may be negative.
    static BYTES: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    // A thread that is ending has no locals any more, and is not being measured.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    add(bytes);
}

fn add(bytes: isize) {
    let _ = BYTES.try_with(|count| {
        let (now, most) = count.get();
        count.set((now + bytes, most.max(now + bytes)));
    });
}

#[allow(unsafe_code)]
// SAFETY: all is left to the system's allocator. Counting allocates nothing: the local needs no initialization.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        // SAFETY: the caller's promises are the same, and `alloc` took it from there.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promises are the same, and `alloc` took it from there.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// How often this thread has allocated in `run`, and what that returns.
pub fn allocations<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = ALLOCATIONS.get();
    let result = run();
    (ALLOCATIONS.get() - before, result)
}

/// How often this thread has allocated so far.
pub fn so_far() -> usize {
    ALLOCATIONS.get()
}

/// How many bytes more than before this thread has had allocated at one time in `run`.
#[allow(dead_code, reason = "not every test is about bytes")]
pub fn peak(run: impl FnOnce()) -> usize {
    let (before, _) = BYTES.get();
    BYTES.set((before, before));
    run();
    usize::try_from(BYTES.get().1 - before).expect("the peak is at least where it began")
}
