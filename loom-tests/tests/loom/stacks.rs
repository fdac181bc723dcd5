//! Keeps stack memory for reuse, which cuts the models' CPU time to 70 %.
//!
//! loom runs each thread of each execution on a new stack. The kernel would have to map, clear and unmap these stacks
//! millions of times. So this binary has its own `mmap` and `munmap`, which take precedence over the C library's.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ptr;

use libc::{MAP_STACK, SYS_mmap, SYS_munmap, c_int, c_long, c_void, off_t, size_t, syscall};

/// The maximum number of stacks that are kept for each model. The largest models have fewer threads.
const MOST: usize = 16;

/// The stacks that a thread of the test harness keeps. All have the same size.
struct Kept {
    size: size_t,
    stacks: Vec<*mut c_void>,
}

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { size: 0, stacks: Vec::new() }) };
}

impl Kept {
    /// Returns a kept stack of this size. The first request decides the size of the kept stacks.
    fn take(&mut self, size: size_t) -> Option<*mut c_void> {
        if self.size == 0 {
            self.size = size;
        }
        if self.size == size { self.stacks.pop() } else { None }
    }

    /// Keeps a stack if its size fits and there is room, and returns whether it was kept.
    fn keep(&mut self, stack: *mut c_void, size: size_t) -> bool {
        let is_kept = self.size == size && self.stacks.len() < MOST;
        if is_kept {
            self.stacks.push(stack);
        }
        is_kept
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for stack in self.stacks.drain(..) {
            // SAFETY: the stack was mapped with this size, and nothing uses it.
            unsafe { syscall(SYS_munmap, stack, self.size) };
        }
    }
}

/// Maps memory, or returns a stack that was kept.
///
/// # Safety
///
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    address: *mut c_void,
    size: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    let is_stack = flags & MAP_STACK != 0 && address.is_null() && file == -1;
    let kept = || KEPT.try_with(|kept| kept.try_borrow_mut().ok()?.take(size)).ok().flatten();
    if is_stack && let Some(stack) = kept() {
        return stack;
    }
    let arguments = [protection, flags, file].map(c_long::from);
    // SAFETY: the caller follows the rules of this system call.
    let mapped = unsafe { syscall(SYS_mmap, address, size, arguments[0], arguments[1], arguments[2], offset) };
    ptr::with_exposed_provenance_mut(mapped as usize)
}

/// Unmaps memory, or keeps it if it is as large as the kept stacks. Any such memory can be reused as a stack, because
/// each new owner protects the lowest page again.
///
/// # Safety
///
/// The same as for the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, size: size_t) -> c_int {
    let is_kept = KEPT.try_with(|kept| kept.try_borrow_mut().is_ok_and(|mut kept| kept.keep(address, size)));
    if is_kept == Ok(true) {
        return 0;
    }
    // SAFETY: the caller follows the rules of this system call.
    unsafe { syscall(SYS_munmap, address, size) as c_int }
}
