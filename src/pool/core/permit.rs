//! The permit to open a connection.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::acquire::Grant;
use super::check_out::Refusal;
use super::core::Core;
use super::environment::Environment;
use super::held::Held;
use super::slab::{Record, Stamp};
use super::state::Phase;
use super::tally::FirstUse;
use super::tokens::Pending;
use crate::pool::event::PoolEvent;
use crate::pool::sync::{Mutex, wake};

/// The right to open one connection. A permit already counts as a pending connection.
#[must_use = "dropping it gives the permit to the next in the queue"]
pub struct Permit<E: Environment> {
    core: Arc<Core<E>>,
}

impl<E: Environment> Permit<E> {
    /// Creates the token for a caller that has counted it in the capacity word.
    pub(super) fn new(core: Arc<Core<E>>) -> Self {
        Self { core }
    }

    /// Creates the connection, in the state "pending", and emits `ConnectionCreated`.
    ///
    /// This happens under the registry's lock, as do marking the pool as ready, clearing it and closing it. So the
    /// event falls between a `PoolReady` and the next `PoolCleared`, and the ids are in the order of the events
    /// (orderings 1 and 7).
    ///
    /// # Errors
    ///
    /// [`Refusal`] if the pool was cleared or closed after the permit was granted.
    #[allow(unsafe_code)]
    pub fn create(self) -> Result<Pending<E>, Refusal> {
        let core = &self.core;
        let mut registry = core.registry.lock();
        let state = core.state.load();
        if state.phase != Phase::Ready {
            drop(registry);
            return Err(self.core.refusal());
        }
        let created = core.environment.stopwatch();
        let slot = core.slab.slot(registry.allocate(&core.slab));
        let connection_id = core.next_id();
        let reference: Arc<Core<E>> = core.clone();
        slot.set_known_as(connection_id, false);
        slot.set_expires_at(core.expiry(connection_id));
        let record = Record {
            created,
            first_use: FirstUse::after(slot.tally().hits()),
            core: Some(reference),
            ..Record::default()
        };
        // SAFETY: INV-1: the slot did not have an owner, so it is ours.
        unsafe {
            slot.with_record_mut(|present| *present = record);
            slot.set_core(Arc::as_ptr(core).cast());
        }
        slot.set_stamp(Stamp { generation: state.generation, live: true, pending: true, ..Stamp::default() });
        core.emit_locked(|| PoolEvent::ConnectionCreated { address: core.address.clone(), connection_id });
        drop(registry);
        core.environment.deliver();
        let held = Held::new(core, slot);
        held.end_hold();
        // The pending connection takes over the permit's count, but not its reference to the core, because the record
        // has its own reference.
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again, and its `Drop` does not run.
        drop(unsafe { std::ptr::read(&raw const this.core) });
        Ok(Pending::of(held))
    }
}

impl<E: Environment> Drop for Permit<E> {
    fn drop(&mut self) {
        let is_awaited = self.core.capacity.release(1, 1);
        self.core.give_back(is_awaited, false);
        // The permit counted towards `minPoolSize`, and may have been all that was left of a closed pool.
        self.core.schedule_population();
    }
}

/// A [`Permit`] that a check-out shares with the task that will open the connection. The first of the two to take it
/// owns it.
///
/// The task takes the permit to open a connection. The check-out takes and drops the permit when it has received a
/// different connection, so that the next check-out in the queue gets the permit. If neither takes it, the permit is
/// dropped with the last reference.
pub struct SharedPermit<E: Environment>(Mutex<Option<Permit<E>>>);

impl<E: Environment> SharedPermit<E> {
    /// Creates a shared permit.
    pub fn new(permit: Permit<E>) -> Self {
        Self(Mutex::new(Some(permit)))
    }

    /// Takes the permit, unless it was already taken.
    pub fn take(&self) -> Option<Permit<E>> {
        self.0.lock().take()
    }
}

impl<E: Environment> Core<E> {
    /// Grants free permits to the waiters, in order. Displaces a drain if the next waiter lacks only capacity that this
    /// would free. Asks the budget, if there is one, for a place for each waiter.
    pub(super) fn serve_permits(self: &Arc<Self>) {
        loop {
            let claimed = {
                let mut queue = self.wait_list.lock();
                let limits = self.limits();
                let Some(lane) = queue.first_waiting_lane() else { return self.leave_budget_queue() };
                if let Err(counts) = self.admit_first(limits) {
                    drop(queue);
                    self.settle_budget();
                    if counts.wants_a_drain_displaced(limits) {
                        self.displace_oldest_drain();
                    }
                    return;
                }
                let claimed = queue.claim_first(lane).expect("BUG: a lane that is not empty has no first waiter");
                self.waiter_is_served();
                self.settle(&queue);
                claimed
            };
            wake(claimed.grant(Grant::Permit(Permit::new(self.clone()))));
        }
    }
}
