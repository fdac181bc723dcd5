//! The start and the end of a check-out as its caller and the subscribers see them: events and errors.

use std::sync::atomic::Ordering as StatisticOrdering;
use std::time::Duration;

use super::budget::Budget;
use super::core::Core;
use super::environment::Environment;
use super::status::PoolStatus;
use crate::pool::error::{
    Cause, CheckOutError, Holders, PoolClearedError, PoolClosedError, TimeLimit, TooLate, WaitQueueFull,
    WaitQueueTimeoutError,
};
use crate::pool::event::{CheckOutFailedReason, EventError, PoolEvent};
use crate::pool::sync::contain;

/// The start of a check-out or of a connection's use, and whether the check-out has waited.
///
/// Packed into one word to keep a check-out's future small. The lowest bit says whether the check-out has waited. The
/// other bits contain the stopwatch's reading plus one. They are zero if the stopwatch was not read, because no
/// subscriber was listening and the check-out found a connection at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started(u64);

impl Started {
    const WAITED: u64 = 1;

    /// The start of a check-out while no subscriber is listening.
    pub(super) const UNHEARD: Self = Self(0);

    pub(super) fn now<E: Environment>(core: &Core<E>) -> Self {
        Self::at(core.environment.stopwatch())
    }

    /// Returns the start that corresponds to a reading of the stopwatch.
    pub(super) fn at(reading: u64) -> Self {
        // The remaining 63 bits are enough for 292 years.
        Self((reading + 1) << 1)
    }

    pub(super) fn word(self) -> u64 {
        self.0
    }

    pub(super) fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Returns the start, including a reading of the stopwatch. If the stopwatch has not been read yet, reads it now.
    #[inline]
    pub fn read<E: Environment>(self, core: &Core<E>) -> Self {
        if self == Self::UNHEARD { Self::now(core) } else { self }
    }

    /// Returns this start, marked as the start of a check-out that has waited.
    #[inline]
    pub fn waited(self) -> Self {
        Self(self.0 | Self::WAITED)
    }

    pub(super) fn has_waited(self) -> bool {
        self.0 & Self::WAITED != 0
    }

    /// Returns the number of nanoseconds from the start to a reading of the stopwatch, or 0 if the stopwatch was not
    /// read at the start.
    pub(super) fn until(self, now: u64) -> u64 {
        (self.0 >> 1).checked_sub(1).map_or(0, |started| now.saturating_sub(started))
    }

    /// Returns the time since the start, or zero if the stopwatch was not read at the start.
    pub(super) fn elapsed<E: Environment>(self, core: &Core<E>) -> Duration {
        Duration::from_nanos(self.until(core.environment.stopwatch()))
    }
}

/// The maximum number of connections that an error lists: those that have been in use the longest.
const LONGEST_HELD: usize = 5;

/// The reason why a check-out is granted neither a connection nor a permit.
#[derive(Debug, Clone)]
pub enum Refusal {
    /// The pool is paused, or was cleared while the check-out was waiting.
    Paused {
        /// The error that caused the clear, if one was passed.
        cause: Option<Cause>,
        /// Whether the pool is paused because it has never been marked ready, rather than because it has been cleared.
        never_ready: bool,
    },
    /// The pool is closed.
    Closed,
    /// The queue is full: the maximum number of check-outs is waiting.
    Full,
}

impl<E: Environment> Core<E> {
    /// Delivers `ConnectionCheckOutStarted`, if a subscriber is listening.
    #[inline]
    pub fn check_out_started(&self) -> Started {
        if !self.environment.listens() {
            return Started::UNHEARD;
        }
        let started = Started::now(self);
        self.tell(|address| PoolEvent::ConnectionCheckOutStarted { address });
        started
    }

    /// Emits `ConnectionCheckOutFailed` for an error, and returns the error.
    pub fn check_out_failed(&self, started: Started, error: CheckOutError) -> CheckOutError {
        if E::METERED {
            self.count_failure(&error);
        }
        self.tell_failure(started, error.reason(), || Some(EventError::new(error.clone())));
        error
    }

    /// Emits `ConnectionCheckOutFailed` for a check-out that its caller dropped.
    pub fn check_out_cancelled(&self, started: Started) {
        self.tell_failure(started, CheckOutFailedReason::Cancelled, || None);
    }

    /// Delivers `ConnectionCheckOutFailed`, if a subscriber is listening. It is delivered inline, like a check-out's
    /// other events. If it were queued, a check-out that has timed out would have to wait until the failures of all
    /// other check-outs had been delivered.
    fn tell_failure(&self, started: Started, reason: CheckOutFailedReason, error: impl FnOnce() -> Option<EventError>) {
        if !self.environment.listens() {
            return;
        }
        let event = PoolEvent::ConnectionCheckOutFailed {
            address: self.address.clone(),
            reason,
            duration: started.elapsed(self),
            error: error(),
        };
        self.environment.publish_inline(&event);
        // The error may own foreign values, whose drop may panic.
        contain(|| drop(event));
    }

    /// Returns the error for a refusal.
    pub fn refused(&self, refusal: Refusal) -> CheckOutError {
        let address = self.address.clone();
        match refusal {
            Refusal::Paused { cause, never_ready } => {
                PoolClearedError { address, cause, interrupted: false, sent: false, never_ready }.into()
            }
            Refusal::Closed => PoolClosedError { address }.into(),
            Refusal::Full => self.queue_full(None),
        }
    }

    /// Returns the error for a check-out that may not join the queue. `too_late` says why it would be served too late,
    /// or is `None` if the queue is full.
    pub fn queue_full(&self, too_late: Option<TooLate>) -> CheckOutError {
        let PoolStatus { max_pool_size, total, in_use, available, pending, waiting, .. } = self.rough_status();
        let (address, max_waiting) = (self.address.clone(), self.environment.max_waiting().unwrap_or(u32::MAX));
        WaitQueueFull { address, max_waiting, max_pool_size, total, in_use, available, pending, waiting, too_late }
            .into()
    }

    /// Returns the error for a check-out that reached `limit` after waiting for `waited`.
    pub fn timed_out(&self, waited: Duration, limit: TimeLimit) -> CheckOutError {
        let PoolStatus { total, in_use, draining, available, pending, waiting, .. } = self.rough_status();
        let holders = self.options.load_balanced.then(|| {
            // Relaxed: statistics.
            let [cursors, transactions] = [0, 1].map(|of| self.pinned[of].load(StatisticOrdering::Relaxed));
            Holders { cursors, transactions, other_operations: in_use.saturating_sub(cursors + transactions) }
        });
        let (address, max_pool_size) = (self.address.clone(), self.max_pool_size());
        let longest_held = self.accounts_for_holders().then(|| {
            let mut longest = self.holders();
            longest.truncate(LONGEST_HELD);
            longest
        });
        WaitQueueTimeoutError {
            address,
            max_pool_size,
            total,
            in_use,
            draining,
            available,
            pending,
            waiting,
            suspended: self.is_suspended(),
            waited,
            limit,
            holders,
            longest_held,
            budget: self.environment.budget().map(Budget::status),
        }
        .into()
    }
}
