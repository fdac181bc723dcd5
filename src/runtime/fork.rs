//! Noticing a fork.
//!
//! A connection is not fork-safe: parent and child would both write to one socket. The child counts its forks in a
//! word that nobody else writes, so that looking at it costs a check-out one load of a shared, unchanging cache line.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between this process and the one that first used the crate.
static FORKS: AtomicU32 = AtomicU32::new(0);

#[inline]
pub(super) fn forks() -> u32 {
    // Relaxed: written only in a child while it has a single thread.
    FORKS.load(Ordering::Relaxed)
}

/// Starts to count. Every pool calls this when it is built.
#[cfg(unix)]
#[allow(unsafe_code)]
pub(super) fn watch() {
    extern "C" fn count_in_child() {
        // Relaxed: the child has a single thread here.
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static ONCE: Once = Once::new();
    // SAFETY: the handler only changes an atomic, which is allowed in a forked child. It is a function of this crate,
    // so it exists as long as the crate's code does.
    ONCE.call_once(|| unsafe {
        // A failure (out of memory) leaves forks unnoticed, as on systems without them.
        libc::pthread_atfork(None, None, Some(count_in_child));
    });
}

/// There are no forks here.
#[cfg(not(unix))]
pub(super) fn watch() {}
