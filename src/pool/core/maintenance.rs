//! Maintenance: the parts of a background run that do not need I/O.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering as UnmodelledOrdering;
use std::task::Waker;

use super::attention::Reason;
use super::capacity::CapacityLimits;
use super::core::Core;
use super::environment::Environment;
use super::held::Held;
use super::slab::Stamp;
use super::state::Phase;
use super::tokens::Pending;
use crate::pool::event::ConnectionClosedReason;
use crate::pool::metrics::Counter;
use crate::pool::sync::atomic::Ordering;
use crate::pool::sync::{unless_mutant, wake};

/// A warm-up in progress. While one exists, every change in the number of connections requests maintenance.
#[must_use]
pub struct WarmUp<'c, E: Environment>(&'c Core<E>);

impl<E: Environment> Drop for WarmUp<'_, E> {
    fn drop(&mut self) {
        // Relaxed: see `begin_warm_up`.
        self.0.warm_ups.fetch_sub(1, UnmodelledOrdering::Relaxed);
    }
}

impl<E: Environment> Core<E> {
    /// Begins a warm-up. The caller must listen for maintenance before it reads the state of the pool.
    pub fn begin_warm_up(&self) -> WarmUp<'_, E> {
        // Relaxed: the write to the capacity word publishes the warm-up. A thread that changes the counts later finds
        // the warm-up, and the caller's read finds the earlier changes (`Capacity::order_releases`).
        self.warm_ups.fetch_add(1, UnmodelledOrdering::Relaxed);
        self.capacity.order_releases();
        WarmUp(self)
    }

    /// Performs one background run, except for its last part, [`Core::populate`].
    ///
    /// Checks whether a log is listening, interrupts the connections that a clear marked, closes stale and surplus
    /// connections, and removes available connections that have perished. Looks for idle connections in other pools, if
    /// a pool under the budget needs a connection. Does not wait for more work.
    pub fn maintain(self: &Arc<Self>) {
        self.heed_log();
        self.interrupt_cleared();
        self.close_stale(usize::MAX);
        self.trim();
        self.wait_list.maintain();
        if self.vetting {
            self.reap();
        }
        self.look_for_idle_elsewhere();
    }

    /// Creates a connection if `minPoolSize` requires one more, or if a worn connection needs a replacement
    /// (`perished.rs`).
    ///
    /// Returns `None` if there are enough connections, the pool is not ready, there is a waiter (which opens a
    /// connection itself), the last missing connection would take the last permit, or the budget is used up.
    ///
    /// A background run calls this until it returns `None`, because a run "MUST do as much work as readily available"
    /// ("Background Thread"). If a check-out then finds no permit, it waits for one of these connections. The run began
    /// to open them before the check-out could have opened a connection itself, so the check-out waits no longer than
    /// it would for its own connection.
    ///
    /// If only one connection is missing, the last permit is left for check-outs. The specification's test
    /// `pool-checkout-minPoolSize-connection-maxConnecting` requires a check-out to open a connection while the
    /// background run opens another, and allows no third connection. If the background run took all permits, a third
    /// connection would be created: the first connection to be ready would serve the first check-out and give back a
    /// permit. With that permit, the second check-out would have to create a connection ("Checking Out a Connection")
    /// before the other connection is ready. If more than one connection is missing, the third is needed anyway.
    pub fn populate(self: &Arc<Self>) -> Option<Pending<E>> {
        // Relaxed: a hint. The same task sets it and populates the pool.
        let wanted = self.wanted.load(UnmodelledOrdering::Relaxed).max(self.min_pool_size());
        self.create_towards(wanted, |total| total + 1 == wanted)
    }

    /// Creates a connection if there are fewer than this number, for a caller that warms the pool up.
    ///
    /// Returns `None` if there are enough connections, if the pool is not ready, if there is a waiter, if no permit is
    /// free, or if the budget is used up. While a [`WarmUp`] exists, the environment is asked for maintenance whenever
    /// one of these conditions may have changed.
    pub fn create_to_warm_up(self: &Arc<Self>, wanted: u32) -> Option<Pending<E>> {
        self.create_towards(wanted, |_| false)
    }

    /// Returns the number of open connections, whether available or in use. Closes stale available connections, and
    /// does not count connections that are being closed.
    pub fn count_open(&self) -> u32 {
        self.close_stale(usize::MAX);
        // If another thread is closing stale connections, it gave them up under this lock.
        let _registry = self.registry.lock();
        let is_open = |stamp: Stamp| stamp.live && !stamp.pending;
        self.slab.iter().filter(|slot| is_open(slot.stamp())).count() as u32
    }

    /// Creates a connection if there are fewer than this number. Leaves the last permit to check-outs if
    /// `spares_a_permit` returns `true` for the number of connections.
    fn create_towards(self: &Arc<Self>, wanted: u32, spares_a_permit: impl Fn(u32) -> bool) -> Option<Pending<E>> {
        loop {
            if self.state.load().phase != Phase::Ready {
                return None;
            }
            let counts = self.capacity.load();
            let limits = self.limits();
            let pending = limits.pending - u32::from(spares_a_permit(counts.total) && limits.pending > 1);
            let limits = CapacityLimits { pending, ..limits };
            if counts.waiting || counts.total >= wanted || !counts.admits(limits) {
                return None;
            }
            if let Ok(permit) = self.try_admit(counts) {
                return permit?.create().ok();
            }
        }
    }

    /// Closes up to `most` connections that were detached as stale.
    #[inline]
    pub(super) fn close_stale(&self, most: usize) {
        // Relaxed: a hint. The registry's lock orders the rest. A caller that misses the change leaves the work to the
        // next caller.
        if self.stale.load(Ordering::Relaxed) > 0 {
            self.close_those_stale(most);
        }
    }

    #[cold]
    fn close_those_stale(&self, most: usize) {
        let stale = {
            let mut registry = self.registry.lock();
            let stale = registry.take_stale(&self.slab, most);
            stale.iter().for_each(|index| self.slab.slot(*index).give_up());
            // Relaxed: changed under the lock; readers without it take the count as a hint. The count is lowered before
            // the connections are closed. So a check-out that then finds nothing to close queues up instead of spinning
            // until this call returns, and it is granted the permit that this call gives back.
            self.stale.fetch_sub(stale.len() as u32, Ordering::Relaxed);
            stale
        };
        for index in stale {
            Held::new(self, self.slab.slot(index)).retire(ConnectionClosedReason::Stale);
        }
    }

    /// Interrupts the connections that recent clears marked, whether they are in use or pending.
    fn interrupt_cleared(&self) {
        let (generation, idle, wakers) = {
            let mut registry = self.registry.lock();
            let services = std::mem::take(&mut registry.services.interrupt);
            let generation = registry.interrupt.take();
            if services.is_empty() && generation.is_none() {
                return;
            }
            let mut idle = self.slots_in_shards();
            idle.extend(registry.stale_slots(&self.slab));
            // While this thread holds the registry's lock, no slot moves between services and no service gets a new
            // entry.
            let members =
                services.iter().flat_map(|(service_id, cleared)| registry.services.members(*service_id, *cleared));
            let wakers: Vec<Waker> = members
                .filter_map(|index| self.slab.slot(index).interrupt(self.counter_of(index, &idle), |_| true))
                .collect();
            (generation, idle, wakers)
        };
        wakers.into_iter().for_each(wake);
        if let Some(cleared) = generation {
            self.interrupt_where(&idle, |stamp| stamp.generation <= cleared);
        }
    }

    pub(super) fn interrupt_pending(&self) {
        self.interrupt_where(&HashSet::new(), |stamp| stamp.pending);
    }

    fn interrupt_where(&self, idle: &HashSet<u32>, applies: impl Fn(Stamp) -> bool) {
        let interrupted =
            self.slab.iter().filter_map(|slot| slot.interrupt(self.counter_of(slot.index(), idle), &applies));
        interrupted.for_each(wake);
    }

    /// Returns the counter for the interruption of a connection. Returns `None` if the connection is idle, because then
    /// there is nothing to interrupt.
    fn counter_of(&self, index: u32, idle: &HashSet<u32>) -> Option<&Counter> {
        (!idle.contains(&index)).then_some(&self.measures.interruptions)
    }

    /// Returns the slots of the connections in the shards. May miss some slots of a shard that changes constantly.
    pub(super) fn slots_in_shards(&self) -> HashSet<u32> {
        let mut found = HashSet::new();
        for shard in self.shards.iter() {
            shard.for_each_slot(&self.slab, |index| {
                found.insert(index);
            });
        }
        found
    }

    /// Removes perished connections from the shards, and worn connections that the pool can spare (`perished.rs`).
    ///
    /// A shard is left alone unless a scan finds a perished or worn connection in it. If such a connection is found,
    /// the stack is detached, and the good connections are pushed back, oldest first.
    ///
    /// # Race window
    ///
    /// While a shard's connections are detached, a check-out does not find them, and may open a connection or queue up.
    /// If it queues up, it gets the first connection that this function would otherwise push back.
    fn reap(&self) {
        // ORD: Acquire; pairs with the Release in `clear_service`, so the service's new generation is visible.
        let order = unless_mutant("service_cleared_acquires_nothing", Ordering::Acquire);
        let service_cleared = self.service_cleared.swap(0, order) == 1;
        let mut kept = 0;
        for shard in self.shards.iter() {
            let slots = shard.guessed_slots(&self.slab);
            let worn = slots.filter(|slot| self.is_worn(slot)).count() as u32;
            if !service_cleared && (worn == 0 || !self.can_spare_one()) {
                kept += worn;
                continue;
            }
            let detached: Vec<_> = self.slab.chain(shard.detach()).map(|slot| Held::new(self, slot)).collect();
            for held in detached.into_iter().rev() {
                let is_worn = self.is_worn(held.slot());
                if held.is_stale_member() {
                    held.retire(ConnectionClosedReason::Stale);
                } else if is_worn && self.give_up(held) {
                    held.retire(ConnectionClosedReason::Idle);
                } else {
                    kept += u32::from(is_worn);
                    held.make_available(shard);
                }
            }
        }
        // Relaxed: see `populate`.
        self.wanted.store(self.wanted_size(kept), UnmodelledOrdering::Relaxed);
    }

    /// Schedules maintenance after a close or the end of an establishment, because `minPoolSize` may require another
    /// connection, or the pool may have too many.
    pub(super) fn schedule_population(&self) {
        if self.min_pool_size() > 0 || self.attention.includes(Reason::Surplus) {
            self.environment.schedule_maintenance();
        } else {
            self.schedule_if_closed();
        }
    }

    /// Schedules maintenance if a warm-up is in progress or the pool is closed. In a closed pool, the connection that
    /// was just closed may have been the last. Called after the connection's capacity was given back.
    /// `Capacity::order_releases` explains why this never reads an old phase.
    pub(super) fn schedule_if_closed(&self) {
        // Relaxed: see `begin_warm_up`.
        let warms_up = self.warm_ups.load(UnmodelledOrdering::Relaxed) > 0;
        if warms_up || self.state.load().phase == Phase::Closed {
            self.environment.schedule_maintenance();
        }
    }
}
