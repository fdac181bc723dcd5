//! Counts of events by kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::event::PoolEvent;
use crate::runtime::Subscriber;

/// Counts events by kind. Clones share their counts.
#[derive(Debug, Clone, Default)]
pub struct EventCounts(Arc<Counters>);

impl EventCounts {
    /// Creates counters that are all zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Subscriber for EventCounts {
    fn on_event(&self, event: &PoolEvent) {
        // Relaxed: statistics. A reader that needs to know that an event has been counted learns so by other means.
        self.0.of(event).fetch_add(1, Ordering::Relaxed);
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
            /// Returns the counts so far. Each count is exact, but while events arrive, they may be of different
            /// moments.
            #[must_use]
            pub fn snapshot(&self) -> Counts {
                // Relaxed: statistics.
                Counts { $($field: self.0.$field.load(Ordering::Relaxed),)* }
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

            /// Returns the number of all events.
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
    fn clones_count_together() {
        let counts = EventCounts::new();
        counts.clone().on_event(&PoolEvent::PoolReady { address: "here".into() });
        assert_eq!(counts.snapshot(), Counts { pool_ready: 1, ..Counts::default() });
    }
}
