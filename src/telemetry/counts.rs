//! Counts of events by kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::pool::event::PoolEvent;
use crate::pool::runtime::{Subscriber, thread_number};

/// The number of sets of counters, a power of two. Threads share a set only if there are more threads than sets.
const CELLS: usize = 16;

/// Counts events by kind. Clones share their counts.
///
/// Two threads that receive events at the same time do not slow each other down: they count in separate cache lines,
/// and a snapshot adds up the counts.
#[derive(Debug, Clone, Default)]
pub struct EventCounts(Arc<[CachePadded<Counters>; CELLS]>);

impl EventCounts {
    /// Creates counters that are all zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Subscriber for EventCounts {
    fn on_event(&self, event: &PoolEvent) {
        // Relaxed, because the counts are only statistics. A reader that must know whether an event was counted
        // synchronizes by other means.
        self.0[thread_number() % CELLS].of(event).fetch_add(1, Ordering::Relaxed);
    }
}

/// Defines the counters and their snapshot from one list.
macro_rules! kinds {
    ($($field:ident: $event:ident),* $(,)?) => {
        #[derive(Debug, Default)]
        struct Counters {
            $($field: AtomicU64,)*
        }

        impl Counters {
            fn of(&self, event: &PoolEvent) -> &AtomicU64 {
                match event {
                    $(PoolEvent::$event { .. } => &self.$field,)*
                }
            }
        }

        impl EventCounts {
            /// Returns the counts so far. Each count is exact, but while events are arriving, the counts may be from
            /// different moments.
            #[must_use]
            pub fn snapshot(&self) -> Counts {
                // Relaxed, as above.
                Counts { $($field: self.0.iter().map(|cell| cell.$field.load(Ordering::Relaxed)).sum(),)* }
            }
        }

        /// The number of events of each kind, as [`EventCounts::snapshot`] returns it.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counts {
            $(
                #[doc = concat!("The number of `", stringify!($event), "` events.")]
                pub $field: u64,
            )*
        }

        impl Counts {
            /// Iterates over the events' names ([`PoolEvent::name`]) and counts, in the order of [`PoolEvent`].
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($event), self.$field),)*].into_iter()
            }

            /// Returns the total number of events.
            #[must_use]
            pub fn total(&self) -> u64 {
                self.iter().map(|(_, count)| count).sum()
            }
        }
    };
}

kinds! {
    pool_created: PoolCreated,
    pool_ready: PoolReady,
    pool_cleared: PoolCleared,
    pool_closed: PoolClosed,
    connection_created: ConnectionCreated,
    connection_ready: ConnectionReady,
    connection_closed: ConnectionClosed,
    connection_check_out_started: ConnectionCheckOutStarted,
    connection_check_out_failed: ConnectionCheckOutFailed,
    connection_checked_out: ConnectionCheckedOut,
    connection_checked_in: ConnectionCheckedIn,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::json_lines::tests::one_of_each;

    #[test]
    fn every_kind_has_its_own_count() {
        let counts = EventCounts::new();
        let events = one_of_each();
        for (index, event) in events.iter().enumerate() {
            for _ in 0..=index {
                counts.on_event(event);
            }
        }
        let expected: Vec<_> = events.iter().zip(1..).map(|(event, count)| (event.name(), count)).collect();
        assert_eq!(counts.snapshot().iter().collect::<Vec<_>>(), expected);
        assert_eq!(counts.snapshot().total(), 66);
    }

    #[test]
    fn threads_count_in_cells_of_their_own_and_lose_nothing() {
        const THREADS: u64 = 2 * CELLS as u64;
        const EACH: u64 = 500;
        let counts = EventCounts::new();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    (0..EACH).for_each(|_| counts.on_event(&PoolEvent::PoolReady { address: "here".into() }));
                });
            }
        });
        assert_eq!(counts.snapshot(), Counts { pool_ready: THREADS * EACH, ..Counts::default() });
        let used = counts.0.iter().filter(|cell| cell.pool_ready.load(Ordering::Relaxed) > 0).count();
        assert!(used > 1, "all threads have counted in one cell");
        assert!(size_of::<CachePadded<Counters>>() >= 128, "two cells share a cache line");
    }

    #[test]
    fn clones_count_together() {
        let counts = EventCounts::new();
        counts.clone().on_event(&PoolEvent::PoolReady { address: "here".into() });
        assert_eq!(counts.snapshot(), Counts { pool_ready: 1, ..Counts::default() });
    }
}
