//! The registry: the state that changes rarely, under one mutex.
//!
//! Slots are allocated and released here, and the pool is marked ready, cleared and closed here. Connection ids are
//! assigned and `ConnectionCreated` events are emitted under the registry's lock, so that both are in the same order.
//!
//! Lock order: the registry, then the wait list. No thread takes the registry's lock while it holds the wait list's
//! lock.

use super::drain_queue::DrainQueue;
use super::measures::RegistryCounts;
use super::services::Services;
use super::slab::{Slab, Slot};
use crate::pool::error::Cause;

#[derive(Default)]
pub(super) struct Registry {
    /// Slots without an owner.
    pub(super) free: Vec<u32>,
    /// The tops of detached stacks. All connections in these stacks are stale and have not been closed yet.
    pub(super) stale: Vec<u32>,
    pub(super) cause: Option<Cause>,
    /// Whether the pool was ever marked as ready or cleared. A forked child counts as cleared.
    pub(super) has_begun: bool,
    /// The generation up to which connections must still be interrupted.
    pub(super) interrupt: Option<u64>,
    pub(super) drains: DrainQueue,
    pub(super) services: Services,
    pub(super) counts: RegistryCounts,
}

impl Registry {
    /// Replaces the cause of the last clear, when the pool is cleared or marked as ready. Returns the previous cause.
    pub(super) fn set_cause(&mut self, cause: Option<Cause>) -> Option<Cause> {
        self.has_begun = true;
        std::mem::replace(&mut self.cause, cause)
    }

    /// Returns whether the pool was never marked as ready or cleared.
    pub(super) fn is_new(&self) -> bool {
        !self.has_begun
    }

    pub(super) fn allocate<C>(&mut self, slab: &Slab<C>) -> u32 {
        self.free.pop().unwrap_or_else(|| slab.grow())
    }

    /// Returns the slots of the stale connections that `take_stale` has not taken yet.
    pub(super) fn stale_slots<'s, C>(&'s self, slab: &'s Slab<C>) -> impl Iterator<Item = u32> + 's {
        self.stale.iter().flat_map(|top| slab.chain(Some(*top)).map(Slot::index))
    }

    /// Takes up to `most` of the stale connections, for the caller to close.
    pub(super) fn take_stale<C>(&mut self, slab: &Slab<C>, most: usize) -> Vec<u32> {
        let mut taken = Vec::new();
        while taken.len() < most {
            let Some(top) = self.stale.pop() else { break };
            taken.push(top);
            self.stale.extend(slab.slot(top).link().next);
        }
        taken
    }
}
