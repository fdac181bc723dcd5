//! Changes of the pool's phase and generation: ready, clear, renew, close.

use std::sync::Arc;

use super::acquire::Grant;
use super::check_out::Refusal;
use super::core::Core;
use super::environment::{Environment, WentStale};
use super::held::Held;
use super::registry::Registry;
use super::state::{Phase, PoolState};
use super::waitlist::{TurnedAway, WaitList};
use crate::pool::error::Cause;
use crate::pool::event::{ConnectionClosedReason, EventError, PoolEvent};
use crate::pool::options::InvalidOption;
use crate::pool::service_id::ServiceId;
use crate::pool::sync::atomic::Ordering;
use crate::pool::sync::{unless_mutant, wake};

/// How to clear a pool.
///
/// ```no_run
/// use std::io;
/// use std::sync::Arc;
/// use wharf::{Clear, Endpoint, InvalidOption, Pool};
///
/// /// Clears a pool whose server a monitor has not heard from in time.
/// fn server_is_silent(pool: &Pool<Endpoint>) -> Result<bool, InvalidOption> {
///     let cause = Arc::new(io::Error::from(io::ErrorKind::TimedOut));
///     pool.clear(Clear::new().because(cause).interrupt_in_use_connections(true))
/// }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Clear {
    pub(super) cause: Option<Cause>,
    pub(super) interrupt_in_use_connections: bool,
    pub(super) generation: Option<u64>,
}

impl Clear {
    /// Clears without a cause, and lets connections in use finish their work.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the error that led to the clear. Check-out errors include it until the pool becomes ready or is cleared
    /// again. Errors from interrupted connections do not include it.
    pub fn because(mut self, cause: Cause) -> Self {
        self.cause = Some(cause);
        self
    }

    /// Sets whether to interrupt connections that are in use or being established (`interruptInUseConnections`).
    pub fn interrupt_in_use_connections(mut self, interrupt: bool) -> Self {
        self.interrupt_in_use_connections = interrupt;
        self
    }

    /// Clears only if the pool (or the service) is still at this generation. Pass the generation of the connection that
    /// failed: an error from an older generation says nothing about the current connections.
    pub fn only_at_generation(mut self, generation: u64) -> Self {
        self.generation = Some(generation);
        self
    }
}

/// The steps that remain after a change of phase or generation. [`Core::conclude`] takes them, outside all locks.
#[must_use]
pub struct Change {
    away: Option<TurnedAway>,
    cause: Option<Cause>,
    /// The cause of the previous clear, kept until the locks are released, because dropping an error runs foreign code.
    _before: Option<Cause>,
    went_stale: Option<WentStale>,
}

impl<E: Environment> Core<E> {
    /// Marks a paused pool as ready and emits `PoolReady`. Returns whether the pool was paused.
    ///
    /// The event is emitted before the pool word changes, and no caller opens a connection before it has seen the new
    /// word. So no subscriber learns of a connection before it learns that the pool is ready (ordering 1).
    pub fn ready(&self) -> bool {
        let change = self.begin_ready();
        let was_paused = change.is_some();
        self.conclude(change);
        was_paused
    }

    /// Does the part of [`ready`](Self::ready) that does not call foreign code. Returns `None` if the pool was not
    /// paused.
    pub fn begin_ready(&self) -> Option<Change> {
        // A monitor calls this after each successful check of its server.
        self.heed_log();
        let mut registry = self.registry.lock();
        let state = self.state.load();
        if state.phase != Phase::Paused {
            return None;
        }
        let cause = registry.set_cause(None);
        self.emit_locked(|| PoolEvent::PoolReady { address: self.address.clone() });
        self.state.store(PoolState { phase: Phase::Ready, ..state });
        Some(Change { away: None, cause: None, _before: cause, went_stale: None })
    }

    /// Does the part of a change that may call foreign code: wakes the waiters that the change turned away, and
    /// delivers its event. The caller must not hold a lock.
    pub fn conclude(&self, change: Option<Change>) {
        let Some(Change { away, cause, _before, went_stale }) = change else { return };
        self.refuse(away, || Refusal::Paused { cause: cause.clone(), never_ready: false });
        self.environment.deliver();
        if let Some(which) = went_stale {
            self.environment.connections_went_stale(which);
        }
        self.environment.schedule_maintenance();
    }

    /// Pauses the pool and makes all its connections stale. Returns `false` if it did nothing, because the pool is
    /// closed or is not at the requested generation.
    ///
    /// Available connections leave the shards at once, and the next check-outs and maintenance close them. Waiters fail
    /// with [`Refusal::Paused`]; openers continue.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] in load-balanced mode.
    pub fn clear(&self, clear: Clear) -> Result<bool, InvalidOption> {
        let change = self.begin_clear(clear)?;
        let was_cleared = change.is_some();
        self.conclude(change);
        Ok(was_cleared)
    }

    /// Does the part of [`clear`](Self::clear) that does not call foreign code. Returns `None` if nothing was done. The
    /// waiters that it turns away keep waiting until [`conclude`](Self::conclude) is called.
    ///
    /// # Errors
    ///
    /// The same as for [`clear`](Self::clear).
    pub fn begin_clear(&self, clear: Clear) -> Result<Option<Change>, InvalidOption> {
        if self.options.load_balanced {
            return Err(InvalidOption::missing("serviceId", "to clear a pool in load-balanced mode"));
        }
        let mut registry = self.registry.lock();
        let state = self.state.load();
        if state.phase == Phase::Closed || clear.generation.is_some_and(|asked| asked != state.generation) {
            return Ok(None);
        }
        self.begin_generation(&mut registry, PoolState { phase: Phase::Paused, generation: state.generation + 1 });
        if clear.interrupt_in_use_connections {
            registry.interrupt = Some(state.generation);
        }
        let before = registry.set_cause(clear.cause.clone());
        if state.phase == Phase::Ready {
            registry.counts.clears += 1;
            self.emit_locked(|| PoolEvent::PoolCleared {
                address: self.address.clone(),
                service_id: None,
                interrupt_in_use_connections: clear.interrupt_in_use_connections,
                error: clear.cause.clone().map(EventError::from),
            });
        }
        Ok(Some(Change {
            away: self.turn_away(),
            cause: clear.cause,
            _before: before,
            went_stale: Some(WentStale::All),
        }))
    }

    /// Makes all connections to one service stale, in load-balanced mode.
    ///
    /// Returns `false` if it did nothing, because the pool is closed, or because the service has no connections or is
    /// not at the requested generation.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] in any other mode.
    pub fn clear_service(&self, service_id: ServiceId, clear: Clear) -> Result<bool, InvalidOption> {
        let change = self.begin_clear_service(service_id, clear)?;
        let was_cleared = change.is_some();
        self.conclude(change);
        Ok(was_cleared)
    }

    /// Does the part of [`clear_service`](Self::clear_service) that does not call foreign code. Returns `None` if
    /// nothing was done.
    ///
    /// # Errors
    ///
    /// The same as for [`clear_service`](Self::clear_service).
    pub fn begin_clear_service(&self, service_id: ServiceId, clear: Clear) -> Result<Option<Change>, InvalidOption> {
        if !self.options.load_balanced {
            return Err(InvalidOption::because("serviceId", "needs a pool in load-balanced mode"));
        }
        let mut registry = self.registry.lock();
        let generation = registry.services.status(service_id).map(|status| status.generation);
        if self.state.load().phase == Phase::Closed
            || generation.is_none()
            || clear.generation.is_some_and(|asked| Some(asked) != generation)
        {
            return Ok(None);
        }
        let before = registry.services.clear(service_id).expect("BUG: a service disappeared under the registry's lock");
        // ORD: Release; pairs with the Acquire in `reap`, which then sees the new generation. A swap rather than a
        // store, because loom can order a store before a swap that has not read it.
        self.service_cleared.swap(1, unless_mutant("service_cleared_publishes_nothing", Ordering::Release));
        if clear.interrupt_in_use_connections {
            registry.services.interrupt.push((service_id, before));
        }
        registry.counts.service_clears += 1;
        self.emit_locked(|| PoolEvent::PoolCleared {
            address: self.address.clone(),
            service_id: Some(service_id),
            interrupt_in_use_connections: clear.interrupt_in_use_connections,
            error: clear.cause.clone().map(EventError::from),
        });
        Ok(Some(Change { away: None, cause: None, _before: None, went_stale: Some(WentStale::OfService) }))
    }

    /// Permanently closes the pool and all available connections, then emits `PoolClosed`. Returns whether the pool was
    /// open.
    ///
    /// Closing the pool again does nothing, and may return before the first close has finished.
    pub fn close(self: &Arc<Self>) -> bool {
        {
            let _registry = self.registry.lock();
            let state = self.state.load();
            if state.phase == Phase::Closed {
                return false;
            }
            self.state.store(PoolState { phase: Phase::Closed, generation: state.generation + 1 });
        }
        // A thread that gives back capacity after this sees that the pool is closed, and this thread sees all capacity
        // that was given back earlier.
        self.capacity.order_releases();
        let available = self.detach_all();
        self.refuse(self.turn_away(), || Refusal::Closed);
        self.close_stale(usize::MAX);
        for (top, _) in available {
            for slot in self.slab.chain(Some(top)) {
                Held::new(self, slot).retire(ConnectionClosedReason::PoolClosed);
            }
        }
        self.interrupt_pending();
        self.emit(|| PoolEvent::PoolClosed { address: self.address.clone() });
        if self.environment.may_have_events() {
            // If the log has just stopped listening, `emit` has neither emitted nor delivered anything.
            self.environment.deliver();
        }
        self.environment.connections_went_stale(WentStale::All);
        self.environment.schedule_maintenance();
        true
    }

    /// Returns the cause of the last clear, if the clear had a cause and the pool has not been marked as ready since.
    pub fn cause(&self) -> Option<Cause> {
        self.registry.lock().cause.clone()
    }

    /// Returns why a check-out fails in a pool that is not ready, or that was cleared during the check-out.
    pub fn refusal(&self) -> Refusal {
        let registry = self.registry.lock();
        match self.state.load().phase {
            Phase::Closed => Refusal::Closed,
            phase @ (Phase::Paused | Phase::Ready) => Refusal::Paused {
                cause: registry.cause.clone(),
                never_ready: phase == Phase::Paused && registry.is_new(),
            },
        }
    }

    /// Makes all connections stale, but leaves the phase and the queue as they are.
    ///
    /// This is for a pool whose connections no longer work or must be replaced, for a reason that has nothing to do
    /// with the server. It neither emits an event nor closes anything: [`Core::maintain`] closes the connections that
    /// were available. Connections to services also become stale. Does nothing to a closed pool.
    pub fn renew(&self) {
        let mut registry = self.registry.lock();
        let state = self.state.load();
        if state.phase != Phase::Closed {
            registry.services.clear_all();
            self.begin_generation(&mut registry, PoolState { generation: state.generation + 1, ..state });
        }
    }

    /// Stores the new generation in the pool word, then empties the shards. Any later check-in sees the new generation.
    /// The caller holds the registry's lock.
    fn begin_generation(&self, registry: &mut Registry, state: PoolState) {
        self.state.store(state);
        let stale = self.detach_all();
        // Relaxed: a thread that reads a count above zero takes the registry's lock next.
        self.stale.fetch_add(stale.iter().map(|(_, len)| len).sum(), Ordering::Relaxed);
        registry.stale.extend(stale.into_iter().map(|(top, _)| top));
    }

    /// Empties all shards. Returns the top and the length of each stack.
    pub(super) fn detach_all(&self) -> Vec<(u32, u32)> {
        let tops = self.shards.iter().filter_map(|shard| shard.detach());
        tops.map(|top| (top, self.slab.slot(top).link().depth)).collect()
    }

    /// Takes all waiters out of the queue. The caller then [refuses](Self::refuse) them outside all locks. Openers stay
    /// in the queue: they learn the outcome from their own connections.
    fn turn_away(&self) -> Option<TurnedAway> {
        let mut queue = self.wait_list.lock_to_turn_away();
        let away = queue.turn_away();
        if away.is_some() {
            self.settle(&queue);
        }
        away
    }

    /// Refuses, in batches, waiters that were turned away. All waiters in a batch receive their refusals before any of
    /// them is woken.
    fn refuse(&self, away: Option<TurnedAway>, refusal: impl Fn() -> Refusal) {
        let Some(away) = away else { return };
        let most = WaitList::<Grant<E>>::BATCH;
        let (mut claimed, mut wakers) = (Vec::with_capacity(most), Vec::with_capacity(most));
        let mut refusals: Vec<Box<Refusal>> = Vec::with_capacity(most);
        let mut are_more = true;
        while are_more {
            // This is done before the claims, because nothing may fail between a claim and its grant.
            refusals.resize_with(most, || Box::new(refusal()));
            self.wait_list.claim_turned_away(&away, &mut claimed);
            are_more = claimed.len() == most;
            let granted = claimed.drain(..).zip(refusals.drain(..));
            wakers.extend(granted.map(|(claimed, refusal)| claimed.grant(Grant::Refused(refusal))));
            wakers.drain(..).for_each(wake);
        }
    }
}
