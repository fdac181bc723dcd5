//! A pool's part in a [`Budget`]: each connection that the capacity word counts holds a place.

use std::sync::atomic::Ordering as UnmodelledOrdering;
use std::sync::{Arc, Weak};

use super::attention::Reason;
use super::budget::{Budget, Sharer};
use super::capacity::{CapacityLimits, Counts};
use super::core::Core;
use super::environment::Environment;
use super::held::Held;
use super::permit::Permit;
use super::shard::Popped;
use super::tokens::CountsAs;
use crate::pool::event::ConnectionClosedReason;

impl<E: Environment> Core<E> {
    fn budget(&self) -> Option<&Budget> {
        self.environment.budget()
    }

    fn as_sharer(self: &Arc<Self>) -> Weak<dyn Sharer> {
        let this: Weak<Self> = Arc::downgrade(self);
        this
    }

    /// Counts one more pending connection as [`Capacity::try_admit`](super::capacity::Capacity::try_admit) does.
    /// Returns `None` if the budget has no place to spare.
    pub(super) fn try_admit(self: &Arc<Self>, seen: Counts) -> Result<Option<Permit<E>>, ()> {
        if self.budget().is_some_and(|budget| !budget.try_take(self.number, || self.as_sharer())) {
            return Ok(None);
        }
        let admitted = self.capacity.try_admit(seen);
        if admitted.is_err() {
            self.give_back(false, false);
        }
        admitted.map(|()| Some(Permit::new(self.clone())))
    }

    /// Counts one more pending connection as [`Capacity::admit_first`](super::capacity::Capacity::admit_first) does.
    /// Afterwards, the pool is in the budget's queue if and only if the budget was the sole reason for a refusal. The
    /// caller holds the wait list's lock. After a refusal, it releases the lock and lets the budget
    /// [settle](Budget::settle).
    pub(super) fn admit_first(self: &Arc<Self>, limits: CapacityLimits) -> Result<(), Counts> {
        if let Some(budget) = self.budget() {
            let counts = self.capacity.load();
            if !counts.admits(limits) {
                budget.leave(self.number);
                return Err(counts);
            }
            if !budget.take_or_queue(self.number, || self.as_sharer()) {
                return Err(counts);
            }
        }
        let admitted = self.capacity.admit_first(limits);
        if let (Err(_), Some(budget)) = (&admitted, self.budget()) {
            // While the caller holds the lock, no other connection is admitted (INV-5).
            budget.give_back(self.number, false);
        }
        admitted
    }

    /// Returns the limits within which a check-out that is about to queue up is admitted at once. Under a budget, the
    /// check-out always queues up, and [`Core::serve_permits`] then asks for a place.
    pub(super) fn limits_of_the_first(&self) -> CapacityLimits {
        let limits = self.limits();
        if self.is_budgeted() { CapacityLimits { total: 0, ..limits } } else { limits }
    }

    /// Returns whether the pool is under a budget.
    pub fn is_budgeted(&self) -> bool {
        self.budget().is_some()
    }

    /// Returns whether opening a connection would have to wait for the budget.
    pub fn lacks_budget(&self) -> bool {
        self.budget().is_some_and(Budget::is_used_up)
    }

    /// Takes the pool out of the budget's queue, because no waiter is left. Called under the wait list's lock.
    pub(super) fn leave_budget_queue(&self) {
        if let Some(budget) = self.budget() {
            budget.leave(self.number);
        }
    }

    /// Does the work that is due in the budget. The caller must not hold a lock.
    pub(super) fn settle_budget(&self) {
        if let Some(budget) = self.budget() {
            budget.settle();
        }
    }

    /// Makes the budget look again for idle connections, in case a pool in its queue needs one of them.
    pub(super) fn look_for_idle_elsewhere(&self) {
        if let Some(budget) = self.budget() {
            budget.look_again();
        }
    }

    /// Gives back the place of a connection whose capacity is released, and serves the waiters if one of them is
    /// waiting for that capacity. `was_leaving` says whether the connection was closed for another pool.
    pub(super) fn give_back(self: &Arc<Self>, is_awaited: bool, was_leaving: bool) {
        if let Some(budget) = self.budget() {
            budget.give_back(self.number, was_leaving);
        }
        if is_awaited {
            self.serve_permits();
        }
        self.settle_budget();
    }
}

impl<E: Environment> Held<E> {
    /// Returns whether the connection must be closed because another pool under the budget needs its place.
    #[inline]
    pub(super) fn is_asked_for(self) -> bool {
        self.core().attention.includes(Reason::Asked) && self.is_asked_for_still()
    }

    #[cold]
    fn is_asked_for_still(self) -> bool {
        let core = self.core();
        let forget = || {
            core.attention.remove(Reason::Asked);
        };
        core.budget().is_some_and(|budget| budget.gives_one_up(core.number, forget))
    }

    /// Closes a connection whose place another pool under the budget needs. The budget already counts the place as
    /// leaving.
    #[cold]
    pub(super) fn close_for_another_pool(self, reason: ConnectionClosedReason) {
        self.close(reason, None, CountsAs::Leaving);
    }
}

impl<E: Environment> Sharer for Core<E> {
    fn serve(self: Arc<Self>) {
        self.serve_permits();
    }

    fn give_up_idle(self: Arc<Self>) -> bool {
        // Relaxed: a hint. The registry's lock orders the rest.
        if self.stale.load(UnmodelledOrdering::Relaxed) > 0 {
            self.close_stale(usize::MAX);
            return true;
        }
        let Popped::Slot(slot) = self.take_any() else { return false };
        let held = Held::new(&self, slot);
        let gives = self.budget().is_some_and(|budget| budget.gives_idle_up(self.number));
        if gives {
            held.close_for_another_pool(ConnectionClosedReason::Idle);
        } else {
            drop(held.into_idle());
        }
        gives
    }

    fn ask(&self) {
        self.attention.add(Reason::Asked);
    }
}
