//! Two counting allocators: one counts per thread, so that neither the test harness nor other tests affect the count,
//! and one counts for the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts each thread's allocations. Declare it as the `#[global_allocator]` of a test.
#[derive(Debug)]
pub struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// The number of bytes that this thread currently has allocated, and the maximum so far. Freeing memory that
    /// another thread allocated also subtracts from the number, so it may be negative.
    static BYTES: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
    /// The total number of bytes that this thread has allocated so far, freed or not.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

/// Counts an allocation of this many bytes, which replaces an allocation of `before` bytes.
fn count(bytes: usize, before: usize) {
    // A thread that is exiting no longer has its thread-locals, and no test measures it.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    let _ = ALLOCATED.try_with(|count| count.set(count.get() + bytes));
    add(bytes as isize - before as isize);
}

fn add(bytes: isize) {
    let _ = BYTES.try_with(|count| {
        let (now, most) = count.get();
        count.set((now + bytes, most.max(now + bytes)));
    });
}

#[allow(unsafe_code)]
// SAFETY: every call goes to the system's allocator. Counting allocates nothing: the thread-locals need no
// initialization.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        // SAFETY: the caller upholds the same contract, and `alloc` got `pointer` from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller upholds the same contract, and `alloc` got `pointer` from the system's allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Calls `run`. Returns the number of allocations that this thread made during the call, and the result of `run`.
pub fn allocations<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = ALLOCATIONS.get();
    let result = run();
    (ALLOCATIONS.get() - before, result)
}

/// Returns the number of allocations that this thread has made so far.
pub fn so_far() -> usize {
    ALLOCATIONS.get()
}

/// Calls `run`. Returns the number of bytes that this thread allocated during the call, freed or not, and the result of
/// `run`.
pub fn allocated<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = ALLOCATED.get();
    let result = run();
    (ALLOCATED.get() - before, result)
}

/// Returns the number of bytes that this thread currently has allocated. The number is negative if the thread has freed
/// more of other threads' memory than it holds.
pub fn held() -> isize {
    BYTES.get().0
}

/// Calls `run`, and returns the peak of this thread's memory during the call, in bytes above its level at the start.
#[allow(dead_code, reason = "not every test measures bytes")]
pub fn peak(run: impl FnOnce()) -> usize {
    let (before, _) = BYTES.get();
    BYTES.set((before, before));
    run();
    usize::try_from(BYTES.get().1 - before).expect("the peak is not below the start")
}

/// Counts the bytes of the whole process. Declare it as the `#[global_allocator]` of a test, or of a benchmark that
/// does not time allocations.
#[derive(Debug)]
pub struct TotalAllocator;

static TOTAL: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of bytes that are currently allocated.
pub fn total() -> usize {
    TOTAL.load(Ordering::Relaxed)
}

/// Calls `run`. Returns the peak of the process's memory during the call, in bytes above its level at the start, and
/// the result of `run`. Only one call may run at a time.
pub fn peak_of_all<T>(run: impl FnOnce() -> T) -> (usize, T) {
    let before = total();
    MOST.store(before, Ordering::Relaxed);
    let result = run();
    (MOST.load(Ordering::Relaxed) - before, result)
}

fn grow(bytes: usize) {
    // Relaxed, like all accesses here: a test that compares the numbers has joined the threads that it measures.
    let now = TOTAL.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(now, Ordering::Relaxed);
}

#[allow(unsafe_code)]
// SAFETY: every call goes to the system's allocator, and counting allocates nothing.
unsafe impl GlobalAlloc for TotalAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        TOTAL.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract, and `alloc` got `pointer` from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        grow(size);
        TOTAL.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the same contract, and `alloc` got `pointer` from the system's allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
