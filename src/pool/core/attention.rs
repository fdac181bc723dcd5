//! The reasons why check-outs and check-ins must do more than pop and push.

use std::sync::atomic::{AtomicU8, Ordering};

/// The reasons why check-outs and check-ins leave the shortest path. The hot path checks only [`Attention::is_needed`].
/// If it returns true, the long path checks each reason.
///
/// Check-outs and check-ins in progress may miss a reason that is added or removed concurrently. Where they must not
/// miss the effect of a reason, the reason is added before the effect is published, and removed only after the effect
/// has ended.
#[derive(Debug, Default)]
pub(super) struct Attention(AtomicU8);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// Available connections can perish, so each is vetted before use.
    Vetting = 1,
    /// A subscriber other than the log is listening.
    Events = 1 << 1,
    /// The pool accounts for the holders of its connections.
    Holders = 1 << 2,
    /// The pool has noticed that a log is listening; see `Core::heed_log`.
    Log = 1 << 3,
    /// A resize has left more connections than `maxPoolSize` allows. Added and removed under the registry's lock.
    Surplus = 1 << 4,
    /// The pool is suspended: check-outs wait until it is resumed.
    Suspended = 1 << 5,
    /// Another pool under the same budget starves, and this pool holds more than its fair share. Added and removed
    /// under the lock on the budget's books.
    Asked = 1 << 6,
}

impl Attention {
    #[inline]
    pub(super) fn is_needed(&self) -> bool {
        // Relaxed: nothing is published with a reason; see the race in the type's documentation.
        self.0.load(Ordering::Relaxed) != 0
    }

    #[inline]
    pub(super) fn includes(&self, reason: Reason) -> bool {
        // Relaxed: see `is_needed`.
        self.0.load(Ordering::Relaxed) & reason as u8 != 0
    }

    /// Adds a reason. Returns whether the reason was absent before.
    pub(super) fn add(&self, reason: Reason) -> bool {
        // Relaxed: see `is_needed`.
        self.0.fetch_or(reason as u8, Ordering::Relaxed) & reason as u8 == 0
    }

    /// Removes a reason. Returns whether the reason was present before.
    pub(super) fn remove(&self, reason: Reason) -> bool {
        // Relaxed: see `is_needed`.
        self.0.fetch_and(!(reason as u8), Ordering::Relaxed) & reason as u8 != 0
    }
}
