//! An allocator that counts per thread, so that neither the test harness nor other tests affect the count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the allocations of each thread. Declare it as the `#[global_allocator]` of a test.
#[derive(Debug)]
pub struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// The bytes that this thread has allocated now, and the most so far. Freeing another thread's memory is subtracted
    /// here, so the number may be negative.
    static BYTES: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    // A thread that is ending has no locals any more, and no test measures it.
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
// SAFETY: every call goes to the system's allocator. Counting allocates nothing: the local needs no initialization.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        // SAFETY: the caller keeps the same contract, and `alloc` got `pointer` from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller keeps the same contract, and `alloc` got `pointer` from the system's allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs `run`, and returns how often this thread allocated in it, and its result.
pub fn allocations<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = ALLOCATIONS.get();
    let result = run();
    (ALLOCATIONS.get() - before, result)
}

/// Returns how often this thread has allocated so far.
pub fn so_far() -> usize {
    ALLOCATIONS.get()
}

/// Runs `run`, and returns the peak of this thread's memory in it, in bytes above the start.
#[allow(dead_code, reason = "not every test measures bytes")]
pub fn peak(run: impl FnOnce()) -> usize {
    let (before, _) = BYTES.get();
    BYTES.set((before, before));
    run();
    usize::try_from(BYTES.get().1 - before).expect("the peak is not below the start")
}
