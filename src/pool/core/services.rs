//! The services behind a load balancer, in load-balanced mode.

use std::collections::HashMap;
use std::sync::Arc;

use super::status::ServiceStatus;
use crate::pool::service_id::ServiceId;
use crate::pool::sync::atomic::{AtomicU64, Ordering};

/// The services that have connections. This is part of the registry, and protected by its lock.
#[derive(Default)]
pub(super) struct Services {
    present: HashMap<ServiceId, Service>,
    /// The services whose connections must still be interrupted, each with the last generation that is affected.
    pub(super) interrupt: Vec<(ServiceId, u64)>,
    /// The generation at which the next new entry starts. It is greater than the generations of all removed entries, so
    /// that an error from a removed entry is never mistaken for an error from a current entry.
    first_generation: u64,
}

/// A service behind a load balancer that has connections.
struct Service {
    generation: Arc<AtomicU64>,
    /// The slots of its connections, each with the service's generation when the connection was identified.
    members: HashMap<u32, u64>,
}

#[derive(Clone)]
pub(super) struct Membership {
    pub(super) service_id: ServiceId,
    /// The service's generation when the connection was identified.
    pub(super) generation: u64,
    /// The service's current generation.
    current: Arc<AtomicU64>,
}

impl Membership {
    pub(super) fn is_stale(&self) -> bool {
        // Relaxed: a stale connection is closed under the registry's lock. So the section that changed this word under
        // that lock has already emitted its `PoolCleared`. `Core::reap` acquires `Core::service_cleared`, and a push
        // after its detach acquires the head.
        self.current.load(Ordering::Relaxed) != self.generation
    }
}

impl Services {
    pub(super) fn join(&mut self, service_id: ServiceId, index: u32) -> Membership {
        let first = self.first_generation;
        let service = self
            .present
            .entry(service_id)
            .or_insert_with(|| Service { generation: Arc::new(AtomicU64::new(first)), members: HashMap::new() });
        // Relaxed: changes are made under the registry's lock.
        let generation = service.generation.load(Ordering::Relaxed);
        service.members.insert(index, generation);
        Membership { service_id, generation, current: service.generation.clone() }
    }

    /// Removes a connection from its service. Removing the last connection also removes the service's entry and its
    /// outstanding interruptions, which do not apply to the service's next entry.
    pub(super) fn quit(&mut self, membership: &Membership, index: u32) {
        let service = self.present.get_mut(&membership.service_id).expect("BUG: a member has no service");
        service.members.remove(&index);
        if service.members.is_empty() {
            // Relaxed: changes are made under the registry's lock.
            let last = service.generation.load(Ordering::Relaxed);
            self.first_generation = self.first_generation.max(last + 1);
            self.present.remove(&membership.service_id);
            self.interrupt.retain(|(service_id, _)| *service_id != membership.service_id);
        }
    }

    /// Makes all connections to a service stale. Returns the previous generation, or `None` if there are no connections
    /// to the service.
    pub(super) fn clear(&mut self, service_id: ServiceId) -> Option<u64> {
        let service = self.present.get(&service_id)?;
        // Relaxed: see `Membership::is_stale`.
        Some(service.generation.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn clear_all(&mut self) {
        for service in self.present.values() {
            // Relaxed: the pool's generation changes too, and makes the same connections stale. Changes are made under
            // the registry's lock.
            service.generation.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the slots of a service's connections up to a generation.
    pub(super) fn members(&self, service_id: ServiceId, generation: u64) -> impl Iterator<Item = u32> {
        let service = self.present.get(&service_id);
        service
            .into_iter()
            .flat_map(|service| &service.members)
            .filter(move |(_, joined)| **joined <= generation)
            .map(|(index, _)| *index)
    }

    /// Returns a service's generation and the number of its connections.
    pub(super) fn status(&self, service_id: ServiceId) -> Option<ServiceStatus> {
        let service = self.present.get(&service_id)?;
        // Relaxed: changes are made under the registry's lock.
        let generation = service.generation.load(Ordering::Relaxed);
        Some(ServiceStatus { generation, connections: service.members.len() as u32 })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn service_is_counted_while_it_has_connections_and_never_repeats_a_generation() {
        let (mut services, service) = (Services::default(), ServiceId::from_bytes([1; 12]));
        let old = services.join(service, 0);
        assert_eq!(services.status(service), Some(ServiceStatus { generation: 0, connections: 1 }));
        assert_eq!(services.clear(service), Some(0));
        assert!(old.is_stale());
        let new = services.join(service, 1);
        assert!(!new.is_stale());
        assert_eq!(services.status(service), Some(ServiceStatus { generation: 1, connections: 2 }));
        assert_eq!(services.members(service, 0).collect::<Vec<_>>(), [0]);
        services.quit(&old, 0);
        services.quit(&new, 1);
        assert_eq!(services.status(service), None);
        let next = services.join(service, 0);
        assert!(!next.is_stale());
        assert_eq!(
            services.status(service),
            Some(ServiceStatus { generation: 2, connections: 1 }),
            "an error at generation 0 or 1 is not of this entry"
        );
    }
}
