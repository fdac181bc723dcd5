//! The occurrences in the stress test, and their counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Defines the occurrences and a list of them all.
macro_rules! occurrences {
    ($($(#[$documentation:meta])* $name:ident,)*) => {
        /// An occurrence in the life of a check-out or a pool.
        #[derive(Debug, Clone, Copy)]
        pub enum Occurrence {
            $($(#[$documentation])* $name,)*
        }

        const ALL: &[Occurrence] = &[$(Occurrence::$name),*];
    };
}

occurrences! {
    /// A check-out got a connection.
    Served,
    /// A check-out was refused: its pool was cleared or closed.
    Refused,
    /// A check-out failed because its connection could not be established.
    Failed,
    /// A check-out was dropped while it waited.
    Cancelled,
    /// A check-out was leaked while it waited.
    Leaked,
    /// A waker panicked.
    Exploded,
    /// A ready pool was cleared.
    Cleared,
    /// A connection was kept for a while and then returned on another thread.
    Forwarded,
    /// A pool was replaced by another pool.
    Replaced,
    /// A pool was closed.
    Closed,
    /// Thousands of check-outs waited at once.
    Burst,
    /// A check-out in a burst got a connection after waiting.
    ServedInBurst,
    /// A check-out in a burst was dropped while others before and behind it kept waiting.
    CancelledInside,
    /// A check-out in a burst was leaked while others before and behind it kept waiting.
    LeakedInside,
    /// A check-out in a burst was polled with a new waker, and kept waiting.
    WakerChanged,
    /// A ready pool was cleared while a burst was waiting.
    ClearedInBurst,
    /// The last handle to a pool was dropped right after its burst.
    EndedAfterBurst,
    /// The last handle to a pool was dropped with the last check-out of its burst.
    EndedByBurst,
    /// The check-outs in a burst were dropped by another thread.
    DroppedElsewhere,
}

static COUNTS: [AtomicU64; ALL.len()] = [const { AtomicU64::new(0) }; ALL.len()];

impl Occurrence {
    pub fn note(self) {
        // Relaxed: the count publishes nothing.
        COUNTS[self as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn count(self) -> u64 {
        COUNTS[self as usize].load(Ordering::Relaxed)
    }

    /// Returns the occurrences that have not happened.
    pub fn missing() -> Vec<Self> {
        ALL.iter().copied().filter(|occurrence| occurrence.count() == 0).collect()
    }

    /// Prints how many times each occurrence has happened.
    pub fn print_all() {
        ALL.iter().for_each(|occurrence| println!("{:>12} {occurrence:?}", occurrence.count()));
    }
}
