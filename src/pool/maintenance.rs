//! Maintenance: what a run of the background task does, in the parts that need no I/O.

use std::sync::Arc;
use std::task::Waker;

use super::capacity::CapacityLimits;
use super::core::Core;
use super::environment::Environment;
use super::held::Held;
use super::permit::Permit;
use super::slab::Stamp;
use super::state::Phase;
use super::tokens::Pending;
use super::waitlist::Lane;
use crate::event::ConnectionClosedReason;
use crate::sync::atomic::Ordering;
use crate::sync::{unless_mutant, wake};

impl<E: Environment> Core<E> {
    /// One background run, without its last part (see [`Core::populate`]): interrupts what is to be interrupted,
    /// closes what is stale, and removes available connections that have perished. Does what is there to do, and ends.
    pub fn maintain(self: &Arc<Self>) {
        self.interrupt_cleared();
        self.close_stale(usize::MAX);
        if self.vetting {
            self.reap();
        }
    }

    /// Creates a connection towards `minPoolSize`. `None`: there are enough connections, the pool is not ready, a check-out
    /// waits, which opens one itself, or it would take the last capacity under `maxConnecting`.
    ///
    /// A run calls it until it returns `None`, because a run "MUST do as much work as readily available" ("Background
    /// Thread"). One permit is left to check-outs: the official case `pool-checkout-minPoolSize-connection-maxConnecting`
    /// wants a check-out to open its connection beside the background's, and no third one to be created. With all permits
    /// taken there would be one: the first connection that is ready serves the first check-out, and gives back a permit, in
    /// which the second check-out must create one ("Checking Out a Connection") before the other is ready.
    pub fn populate(self: &Arc<Self>) -> Option<Pending<E>> {
        let limits = CapacityLimits { pending: (self.limits.pending - 1).max(1), ..self.limits };
        loop {
            if self.state.load().phase != Phase::Ready {
                return None;
            }
            let counts = self.capacity.load();
            if counts.waiting || counts.total >= self.options.min_pool_size || !counts.admits(limits) {
                return None;
            }
            if self.capacity.try_admit(counts).is_ok() {
                return Permit::new(self.clone()).create().ok();
            }
        }
    }

    /// Closes up to `most` connections that a clear has detached.
    #[inline]
    pub(super) fn close_stale(&self, most: usize) {
        // Relaxed: a hint; the registry's lock orders the rest. Whoever misses it leaves the work to the next.
        if self.stale.load(Ordering::Relaxed) > 0 {
            self.close_those_stale(most);
        }
    }

    #[cold]
    fn close_those_stale(&self, most: usize) {
        let stale = {
            let mut registry = self.registry.lock();
            let stale = registry.take_stale(&self.slab, most);
            // Relaxed: under the lock. Before the closing: whoever has nothing to close here queues up instead of
            // spinning until we are done, and gets the permit when we give it back.
            self.stale.fetch_sub(stale.len() as u32, Ordering::Relaxed);
            stale
        };
        for index in stale {
            Held::new(self, self.slab.slot(index)).retire(ConnectionClosedReason::Stale, false);
        }
    }

    /// Interrupts the connections that the last clears have marked, in use or pending.
    fn interrupt_cleared(&self) {
        let (generation, wakers) = {
            let mut registry = self.registry.lock();
            let services = std::mem::take(&mut registry.services.interrupt);
            // Under the registry's lock no slot changes hands between services, and no service begins anew.
            let members =
                services.iter().flat_map(|(service_id, cleared)| registry.services.members(*service_id, *cleared));
            let wakers: Vec<Waker> = members.filter_map(|index| self.slab.slot(index).interrupt(|_| true)).collect();
            (registry.interrupt.take(), wakers)
        };
        wakers.into_iter().for_each(wake);
        if let Some(cleared) = generation {
            self.interrupt_where(|stamp| stamp.generation <= cleared);
        }
    }

    /// Interrupts all establishments.
    pub(super) fn interrupt_pending(&self) {
        self.interrupt_where(|stamp| stamp.pending);
    }

    fn interrupt_where(&self, applies: impl Fn(Stamp) -> bool) {
        self.slab.iter().filter_map(|slot| slot.interrupt(&applies)).for_each(wake);
    }

    /// Removes perished connections from the shards.
    ///
    /// A shard is left alone unless a glance finds something; it is then detached, and what is still good is put back on
    /// it, oldest first.
    ///
    /// # Race window
    ///
    /// While a shard is detached, a check-out does not find its connections, and may open one or queue up; if it
    /// queues up it is handed the first one that is put back.
    fn reap(&self) {
        // ORD: Acquire; pairs with the Release in `clear_service`: the service's generation is the new one.
        let order = unless_mutant("service_cleared_acquires_nothing", Ordering::Acquire);
        let service_cleared = self.service_cleared.swap(0, order) == 1;
        for shard in self.shards.iter() {
            let mut glance = shard.glance(&self.slab, self.limits.total);
            if !service_cleared && !glance.any(|slot| self.idle_for_too_long(slot.since())) {
                continue;
            }
            let detached: Vec<_> = self.slab.chain(shard.detach()).map(|slot| Held::new(self, slot)).collect();
            for held in detached.into_iter().rev() {
                match self.perished(&held) {
                    Some(reason) => held.retire(reason, false),
                    None => held.put_on(shard, Lane::OF_RETURNED),
                }
            }
        }
    }

    /// A connection is gone, or an establishment has succeeded: there may be another to open towards `minPoolSize`.
    pub(super) fn schedule_population(&self) {
        if self.options.min_pool_size > 0 {
            self.environment.schedule_maintenance();
        } else {
            self.schedule_if_closed();
        }
    }

    /// A connection is gone: in a closed pool, there may be none left at all. To be called after its capacity was given
    /// back: `Capacity::order_releases` tells why the phase that is read here is not too old.
    pub(super) fn schedule_if_closed(&self) {
        if self.state.load().phase == Phase::Closed {
            self.environment.schedule_maintenance();
        }
    }
}
