//! Changes that a pool's owner makes while the pool is in use: resize, suspend and resume.

use std::sync::Arc;

use super::attention::Reason;
use super::capacity::CapacityLimits;
use super::core::Core;
use super::environment::Environment;
use super::held::Held;
use super::shard::Popped;
use super::sizes::Sizes;
use crate::pool::options::PoolOptions;

impl<E: Environment> Core<E> {
    pub(super) fn limits(&self) -> CapacityLimits {
        self.sizes.load().limits()
    }

    pub(super) fn max_pool_size(&self) -> u32 {
        self.sizes.load().max
    }

    pub(super) fn min_pool_size(&self) -> u32 {
        self.sizes.load().min
    }

    /// Returns whether the passage of time alone can create work for maintenance.
    pub fn needs_intervals(&self) -> bool {
        self.options.needs_intervals()
            || self.min_pool_size() > 0
            || self.is_budgeted()
            || self.attention.includes(Reason::Surplus)
    }

    /// Returns the pool's options, with its current sizes.
    pub fn present_options(&self) -> PoolOptions {
        let Sizes { max, min, connecting } = self.sizes.load();
        let mut options = self.options.clone();
        (options.max_pool_size, options.min_pool_size, options.max_connecting) = (max, min, connecting);
        options
    }

    /// Sets the pool's sizes to the sizes in `wanted`, provided that they still equal the sizes in `seen`. Returns
    /// whether the sizes were set.
    ///
    /// If the pool grows, waiters are granted permits. If it shrinks, surplus connections are closed: available
    /// connections at once, and connections in use when they are returned.
    pub fn try_resize(self: &Arc<Self>, seen: &PoolOptions, wanted: &PoolOptions) -> bool {
        {
            let _registry = self.registry.lock();
            let _queue = self.wait_list.lock();
            if self.sizes.load() != Sizes::of(seen) {
                return false;
            }
            self.sizes.store(Sizes::of(wanted));
            self.capacity.outdate_readings();
            if self.capacity.load().total > self.limits().total {
                self.attention.add(Reason::Surplus);
            }
        }
        self.serve_permits();
        // Stale connections are closed first, because `trim` would otherwise close fresh ones in their place.
        self.close_stale(usize::MAX);
        self.trim();
        self.environment.schedule_maintenance();
        true
    }

    /// Returns whether there are more connections, open or being opened, than `maxPoolSize` allows. A resize can cause
    /// this.
    fn has_surplus(&self) -> bool {
        self.attention.includes(Reason::Surplus) && self.has_surplus_still(None)
    }

    /// Gives up the connection if it is surplus. If this returns `true`, the caller must close the connection.
    pub(super) fn gives_up_as_surplus(&self, held: Held<E>) -> bool {
        self.attention.includes(Reason::Surplus) && self.has_surplus_still(Some(held))
    }

    #[cold]
    fn has_surplus_still(&self, to_be_given_up: Option<Held<E>>) -> bool {
        // The sizes change only under this lock. Until they change, a total within the limit stays within it.
        let _registry = self.registry.lock();
        let most = self.limits().total;
        if self.capacity.load().total <= most {
            self.attention.remove(Reason::Surplus);
            return false;
        }
        // The total also counts the connections that are being closed.
        let has_surplus = self.live() > most;
        if let (true, Some(held)) = (has_surplus, to_be_given_up) {
            // From here on, no other thread counts the connection, so each thread closes a different surplus
            // connection.
            held.slot().give_up();
        }
        has_surplus
    }

    /// Counts the connections that exist and are not about to be closed. Looks at all slots.
    pub(super) fn live(&self) -> u32 {
        self.slab.iter().filter(|slot| slot.stamp().live).count() as u32
    }

    /// Closes available connections while there are more connections than `maxPoolSize` allows.
    ///
    /// A check-in that has not noticed the resize yet may still make a surplus connection available. The next
    /// maintenance run closes that connection.
    pub(super) fn trim(&self) {
        while self.has_surplus() {
            let Popped::Slot(slot) = self.take_any() else { return };
            Held::new(self, slot).make_available(self.preferred_shard());
        }
    }

    /// Makes check-outs take the long path, where they find that the pool is suspended. Returns `false` if the pool was
    /// already suspended. The core's caller is responsible for making the check-outs wait.
    pub fn suspend(&self) -> bool {
        self.attention.add(Reason::Suspended)
    }

    /// Ends a suspension. Returns whether the pool was suspended.
    pub fn resume(&self) -> bool {
        self.attention.remove(Reason::Suspended)
    }

    /// Returns whether the pool is suspended.
    #[inline]
    pub fn is_suspended(&self) -> bool {
        self.attention.includes(Reason::Suspended)
    }
}
