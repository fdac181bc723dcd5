//! The purposes of connections in use, in load-balanced mode.

use std::sync::atomic::Ordering as StatisticOrdering;

use super::core::Core;
use super::environment::Environment;
use super::held::Held;
pub use crate::pool::holder::Purpose;

impl<E: Environment> Held<E> {
    /// Resets the connection's purpose to a single operation, in load-balanced mode.
    pub(super) fn unpin(self) {
        if self.core().options.load_balanced {
            self.pin_to(Purpose::Operation);
        }
    }

    pub(super) fn pin_to(self, purpose: Purpose) {
        let core = self.core();
        let before = self.record_mut(|record| std::mem::replace(&mut record.purpose, purpose));
        core.count_pinned(purpose, 1);
        core.count_pinned(before, -1);
    }
}

impl<E: Environment> Core<E> {
    fn count_pinned(&self, purpose: Purpose, change: i32) {
        let count = match purpose {
            Purpose::Operation => return,
            Purpose::Cursor => &self.pinned[0],
            Purpose::Transaction => &self.pinned[1],
        };
        // Relaxed: a statistic.
        count.fetch_add(change as u32, StatisticOrdering::Relaxed);
    }
}
