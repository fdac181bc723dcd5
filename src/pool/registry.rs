//! The registry: what changes rarely, under one mutex.
//!
//! Creating and freeing a slot, marking the pool ready, clearing and closing it go through here. Connection ids are
//! given out, and `ConnectionCreated` events emitted, under this lock, which makes their orders the same.
//!
//! Lock order: the registry, then the wait list. Nobody takes the registry's lock while holding the other.

use super::drain_queue::DrainQueue;
use super::services::Services;
use super::slab::Slab;
use crate::error::Cause;

#[derive(Default)]
pub(super) struct Registry {
    /// Slots that are nobody's.
    pub(super) free: Vec<u32>,
    /// The tops of detached stacks, all of whose connections are stale and still to be closed.
    pub(super) stale: Vec<u32>,
    /// Why the pool was cleared last.
    pub(super) cause: Option<Cause>,
    /// Connections up to this generation are still to be interrupted.
    pub(super) interrupt: Option<u64>,
    /// The connections that are drained.
    pub(super) drains: DrainQueue,
    /// The services behind a load balancer that there are connections to.
    pub(super) services: Services,
}

impl Registry {
    /// A slot for a new connection.
    pub(super) fn allocate<C>(&mut self, slab: &Slab<C>) -> u32 {
        self.free.pop().unwrap_or_else(|| slab.grow())
    }

    /// Up to `most` of the stale connections, which from now on are the caller's to close.
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
