//! Counters for rare events.

use crate::pool::sync::statistics::{AtomicU64, Ordering};

/// A number that only grows. It counts events that are not on the hot path.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn count(&self) {
        // ORD: Release; pairs with the Acquire in `get`: if a reader sees that an end has been counted, it also sees
        // that the matching beginning has been.
        self.0.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn get(&self) -> u64 {
        // ORD: Acquire; pairs with the Release in `count`.
        self.0.load(Ordering::Acquire)
    }
}
