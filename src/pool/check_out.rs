//! How a check-out starts and ends for its caller and for subscribers: its events and its errors.

use std::num::NonZeroU64;
use std::sync::atomic::Ordering as StatisticOrdering;
use std::time::Duration;

use super::core::Core;
use super::environment::Environment;
use super::status::PoolStatus;
use crate::error::{
    Cause, CheckOutError, EstablishError, Holders, PoolClearedError, PoolClosedError, TimeLimit, WaitQueueTimeoutError,
};
use crate::event::{CheckOutFailedReason, EventError, PoolEvent};

/// The start of a check-out, in nanoseconds since the pool's epoch, plus one. The clock is read only if a subscriber
/// listens.
#[derive(Debug, Clone, Copy)]
pub struct Started(Option<NonZeroU64>);

impl Started {
    /// The start of a check-out without a subscriber.
    pub(super) const UNHEARD: Self = Self(None);

    pub(super) fn now<E: Environment>(core: &Core<E>) -> Self {
        let nanos = core.environment.now().duration_since(core.epoch).as_nanos() as u64;
        Self(Some(NonZeroU64::MIN.saturating_add(nanos)))
    }

    pub(super) fn elapsed<E: Environment>(self, core: &Core<E>) -> Duration {
        // Without an instant, no subscriber listened at the start. The duration then counts from now.
        let since_then = |started: NonZeroU64| {
            let started = Duration::from_nanos(started.get() - 1);
            core.environment.now().duration_since(core.epoch).saturating_sub(started)
        };
        self.0.map(since_then).unwrap_or_default()
    }
}

/// Why a check-out gets neither a connection nor a permit.
#[derive(Debug, Clone)]
pub enum Refusal {
    /// The pool is paused, or was cleared while the check-out waited.
    Paused {
        /// The error that made the clear necessary, if the caller of the clear gave one.
        cause: Option<Cause>,
        /// Whether the pool is paused because it was never marked ready, rather than cleared.
        never_ready: bool,
    },
    /// The pool is closed.
    Closed,
    /// The establishment of a connection, behind which the check-out waited, ran out of time.
    Unreachable(EstablishError),
}

impl<E: Environment> Core<E> {
    /// Emits `ConnectionCheckOutStarted`. If the check-out causes another event at once, that delivers this one too.
    /// Otherwise the caller must ask for delivery.
    #[inline]
    pub fn check_out_started(&self) -> Started {
        if !self.environment.listens() {
            return Started::UNHEARD;
        }
        let started = Started::now(self);
        self.environment.emit(PoolEvent::ConnectionCheckOutStarted { address: self.address.clone() });
        started
    }

    /// Emits `ConnectionCheckOutFailed` for an error, and returns the error.
    pub fn check_out_failed(&self, started: Started, error: CheckOutError) -> CheckOutError {
        self.emit(|| PoolEvent::ConnectionCheckOutFailed {
            address: self.address.clone(),
            reason: error.reason(),
            duration: started.elapsed(self),
            error: Some(EventError::new(error.clone())),
        });
        error
    }

    /// Emits `ConnectionCheckOutFailed` for a check-out that its caller dropped.
    pub fn check_out_cancelled(&self, started: Started) {
        self.emit(|| PoolEvent::ConnectionCheckOutFailed {
            address: self.address.clone(),
            reason: CheckOutFailedReason::Cancelled,
            duration: started.elapsed(self),
            error: None,
        });
    }

    /// Returns the error for a refusal.
    pub fn refused(&self, refusal: Refusal) -> CheckOutError {
        let address = self.address.clone();
        match refusal {
            Refusal::Paused { cause, never_ready } => {
                PoolClearedError { address, cause, interrupted: false, sent: false, never_ready }.into()
            }
            Refusal::Closed => PoolClosedError { address }.into(),
            Refusal::Unreachable(error) => error.into(),
        }
    }

    /// Returns the error for a check-out that was ended by `limit` after `waited`.
    pub fn timed_out(&self, waited: Duration, limit: TimeLimit) -> CheckOutError {
        let PoolStatus { total, in_use, pending, waiting, .. } = self.rough_status();
        let holders = self.options.load_balanced.then(|| {
            // Relaxed: statistics.
            let [cursors, transactions] = [0, 1].map(|of| self.pinned[of].load(StatisticOrdering::Relaxed));
            Holders { cursors, transactions, other_operations: in_use.saturating_sub(cursors + transactions) }
        });
        let (address, max_pool_size) = (self.address.clone(), self.options.max_pool_size);
        WaitQueueTimeoutError { address, max_pool_size, total, in_use, pending, waiting, waited, limit, holders }.into()
    }
}
