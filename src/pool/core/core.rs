//! The core itself: its parts, how it is built, and how it emits events.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as StatisticU32, AtomicU64 as UnmodelledU64, Ordering as UnmodelledOrdering};
use std::time::Instant;

use crossbeam_utils::CachePadded;

use super::acquire::Grant;
use super::attention::{Attention, Reason};
use super::capacity::Capacity;
use super::environment::Environment;
use super::held::Held;
use super::holding::Holding;
use super::measures::Measures;
use super::nearby::Nearby;
use super::registry::Registry;
use super::shard::Shards;
use super::sizes::SizesWord;
use super::slab::Slab;
use super::state::{Phase, PoolState, PoolWord};
use super::status::ServiceStatus;
use super::waitlist::{Lane, LockedWaitList, WaitList};
use crate::pool::error::Cause;
use crate::pool::event::{ConnectionClosedReason, PoolEvent};
use crate::pool::options::{InvalidOption, PoolOptions};
use crate::pool::service_id::ServiceId;
use crate::pool::sync::Mutex;
use crate::pool::sync::atomic::AtomicU32;

/// A pool of connections in an [`Environment`]. It lives in an `Arc` that its connections keep alive.
///
/// Close a core that is no longer needed, because each available connection keeps it alive.
pub struct Core<E: Environment> {
    /// Differs from the number of every other core, past and present (INV-16).
    pub(super) number: u64,
    pub(super) address: Arc<str>,
    pub(super) options: PoolOptions,
    pub(super) environment: E,
    pub(super) sizes: SizesWord,
    /// Whether connections can perish. If so, every connection is vetted before and after use.
    pub(super) vetting: bool,
    /// The number of connections that [`Core::populate`] must keep open, if it is greater than `minPoolSize`.
    pub(super) wanted: StatisticU32,
    /// The number of coarse-clock ticks after which an available connection is due for a check.
    pub(super) check_after: u32,
    pub(super) attention: Attention,
    /// The instant that `Slot::since` counts from.
    pub(super) epoch: Instant,
    pub(super) state: CachePadded<PoolWord>,
    pub(super) capacity: CachePadded<Capacity>,
    pub(super) shards: Shards,
    pub(super) slab: Slab<E::Connection>,
    pub(super) wait_list: CachePadded<WaitList<Grant<E>>>,
    pub(super) registry: Mutex<Registry>,
    /// The number of the most recently created connection. Changes under the registry's lock; a forked child reads it
    /// without the lock.
    last_id: UnmodelledU64,
    /// The number of detached connections that are not closed yet.
    pub(super) stale: AtomicU32,
    /// Whether a service has been cleared since the shards were last searched for connections to it.
    pub(super) service_cleared: AtomicU32,
    /// How many connections in use are pinned to a cursor, and how many to a transaction. Statistics for an error
    /// message.
    pub(super) pinned: [StatisticU32; 2],
    /// The number of warm-ups in progress.
    pub(super) warm_ups: StatisticU32,
    pub(super) measures: Measures,
    pub(super) holding: Holding,
}

impl<E: Environment> Core<E> {
    /// Builds a paused pool and emits `PoolCreated`. `threads` is the number of threads that use the pool at the same
    /// time.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the options are invalid.
    pub fn new(
        address: &str,
        options: PoolOptions,
        threads: usize,
        environment: E,
    ) -> Result<Arc<Self>, InvalidOption> {
        let core = Self::begin(address, options, threads, environment)?;
        core.environment.deliver();
        Ok(core)
    }

    /// Like [`new`](Self::new), but leaves the delivery of `PoolCreated` to the caller.
    ///
    /// # Errors
    ///
    /// The same as for [`new`](Self::new).
    pub fn begin(
        address: &str,
        options: PoolOptions,
        threads: usize,
        environment: E,
    ) -> Result<Arc<Self>, InvalidOption> {
        let epoch = environment.now();
        let core = Self::paused(address, options, threads, environment, 0, epoch)?;
        core.emit_locked(|| PoolEvent::PoolCreated { address: core.address.clone(), options: core.options.clone() });
        Ok(core)
    }

    /// Builds the successor to a pool that a forked child has inherited.
    ///
    /// The successor is the same pool after a clear: one generation later and paused, unless the old pool was closed.
    /// This method does not take any of the old pool's locks, because the thread that holds a lock may not exist in the
    /// child. Apart from calling this method, the child may touch the old pool only through [`Core::abandon`].
    ///
    /// This emits the events that `Pool` documents. The caller delivers them once the successor is installed. `cause`
    /// is the error in `PoolCleared`. The stopwatch of `environment` must continue the old pool's stopwatch.
    pub fn after_fork(&self, environment: E, cause: Cause) -> Arc<Self> {
        let before = self.state.load();
        let (shards, generation) = (self.shards.len(), before.generation + 1);
        let core = Self::paused(&self.address, self.present_options(), shards, environment, generation, self.epoch)
            .expect("BUG: options that were valid before the fork");
        core.last_id.store(self.last_id(), UnmodelledOrdering::Relaxed);
        core.measures.begin_after(self.last_id());
        core.inherit_holding(&self.holding);
        if self.is_suspended() {
            core.suspend();
        }
        let mut reason = ConnectionClosedReason::Stale;
        match before.phase {
            Phase::Ready => core.emit_locked(|| PoolEvent::PoolCleared {
                address: core.address.clone(),
                service_id: None,
                interrupt_in_use_connections: false,
                error: Some(cause.into()),
            }),
            Phase::Paused => {}
            Phase::Closed => {
                core.state.store(before);
                reason = ConnectionClosedReason::PoolClosed;
            }
        }
        let mut inherited: Vec<_> = self.slab.iter().filter(|slot| slot.stamp().live).collect();
        inherited.sort_unstable_by_key(|slot| slot.known_as());
        let address = || core.address.clone();
        for slot in inherited {
            let (connection_id, in_use) = slot.known_as();
            if in_use {
                let duration = slot.take_started().elapsed(&core);
                core.emit_locked(|| PoolEvent::ConnectionCheckedIn { address: address(), connection_id, duration });
            }
            core.emit_locked(|| PoolEvent::ConnectionClosed { address: address(), connection_id, reason, error: None });
        }
        core
    }

    /// Gives up all available connections, in a forked child. Does not take a lock, because its holder may not exist in
    /// the child.
    pub fn abandon(&self) {
        for (top, _) in self.detach_all() {
            self.slab.chain(Some(top)).for_each(|slot| Held::new(self, slot).abandon());
        }
    }

    fn paused(
        address: &str,
        options: PoolOptions,
        threads: usize,
        environment: E,
        generation: u64,
        epoch: Instant,
    ) -> Result<Arc<Self>, InvalidOption> {
        options.validate()?;
        let capacity = options.capacity();
        let (vetting, attention) = (options.load_balanced || options.has_expiry(), Attention::default());
        if vetting {
            attention.add(Reason::Vetting);
        }
        if environment.has_subscribers() {
            attention.add(Reason::Events);
        }
        let shards = Shards::new(threads, capacity);
        static NUMBER: UnmodelledU64 = UnmodelledU64::new(Nearby::FIRST_CORE);
        Ok(Arc::new(Self {
            // Relaxed: the numbers only have to differ.
            number: NUMBER.fetch_add(1, UnmodelledOrdering::Relaxed),
            address: address.into(),
            sizes: SizesWord::new(&options),
            vetting,
            wanted: StatisticU32::new(0),
            check_after: Self::ticks_before_check(options.check_before_use),
            attention,
            epoch,
            state: CachePadded::new(PoolWord::new(PoolState { phase: Phase::Paused, generation })),
            capacity: CachePadded::new(Capacity::new()),
            measures: Measures::new(shards.len(), options.refuse_late),
            shards,
            slab: Slab::new(capacity),
            wait_list: CachePadded::new(WaitList::new(environment.max_waiting().unwrap_or(u32::MAX))),
            registry: Mutex::new(Registry { has_begun: generation > 0, ..Registry::default() }),
            last_id: UnmodelledU64::new(0),
            stale: AtomicU32::new(0),
            service_cleared: AtomicU32::new(0),
            pinned: Default::default(),
            warm_ups: StatisticU32::new(0),
            holding: Holding::default(),
            options,
            environment,
        }))
    }

    /// Returns the pool's address.
    pub fn address(&self) -> &Arc<str> {
        &self.address
    }

    /// Returns the options that the pool was built with. The sizes may have changed since; see
    /// [`present_options`](Self::present_options).
    pub fn options(&self) -> &PoolOptions {
        &self.options
    }

    /// Returns the pool's environment.
    pub fn environment(&self) -> &E {
        &self.environment
    }

    /// Makes check-outs and check-ins emit events, for an environment that is about to [listen](Environment::listens).
    pub fn heed_listeners(&self) {
        self.attention.add(Reason::Events);
    }

    /// Checks whether a log is listening, and makes check-outs and check-ins start or stop emitting events accordingly.
    ///
    /// The hot path does not check for a log, so this is called on paths that are longer anyway: at the end of a timed
    /// use (see `Tally`), when the pool is marked as ready or found to be ready, during maintenance, and before an
    /// event reports the beginning or end of a use.
    #[inline]
    pub fn heed_log(&self) {
        let listens = self.environment.log_listens();
        if listens != self.attention.includes(Reason::Log) {
            self.heed_change_of_log(listens);
        }
    }

    #[cold]
    #[inline(never)]
    fn heed_change_of_log(&self, listens: bool) {
        if listens {
            self.attention.add(Reason::Log);
            // A use whose beginning was logged may have ended unreported while no log was listening.
            self.slab.iter().for_each(|slot| slot.forget_use());
        } else {
            self.attention.remove(Reason::Log);
        }
    }

    /// Returns the pool's phase and generation.
    pub fn state(&self) -> PoolState {
        self.state.load()
    }

    /// Returns a service's generation and the number of connections to it, in load-balanced mode.
    pub fn service(&self, service_id: ServiceId) -> Option<ServiceStatus> {
        self.registry.lock().services.status(service_id)
    }

    /// Returns the number of the most recently created connection, or 0 if no connection has been created.
    pub fn last_id(&self) -> u64 {
        // Relaxed: a caller that knows of a connection has already acquired its number.
        self.last_id.load(UnmodelledOrdering::Relaxed)
    }

    /// Returns the number of the next connection. The caller holds the registry's lock.
    pub(super) fn next_id(&self) -> u64 {
        // Relaxed: the lock orders it.
        let id = self.last_id.load(UnmodelledOrdering::Relaxed) + 1;
        self.last_id.store(id, UnmodelledOrdering::Relaxed);
        id
    }

    /// Holds the pool's locks until the result is dropped.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn hold_locks(&self) -> impl Sized + '_ {
        (self.registry.lock(), self.wait_list.lock())
    }

    /// Emits and delivers an event, which is built only if a subscriber is listening. The caller must not hold a lock.
    #[inline(always)]
    pub(super) fn emit(&self, event: impl FnOnce() -> PoolEvent) {
        // This is inlined, because it would otherwise be the only function that a check-out calls.
        if self.environment.listens() {
            self.emit_to_listeners(event);
        }
    }

    #[cold]
    fn emit_to_listeners(&self, event: impl FnOnce() -> PoolEvent) {
        self.environment.publish(event());
    }

    /// Delivers an event about a use: a check-out has started, a connection was checked out, or it is being checked in.
    /// `event` builds the event from the pool's address, and must not panic. The caller must not hold a lock.
    ///
    /// Does not increment the address's reference count: if two processor cores contended for it, that would cost more
    /// than the rest of the event.
    #[allow(unsafe_code)]
    pub(super) fn tell(&self, event: impl FnOnce(Arc<str>) -> PoolEvent) {
        // SAFETY: INV-9: the copy is never dropped, because it is in a `ManuallyDrop` from here on, and it is lent out
        // only for this call, which the original outlives.
        let event = ManuallyDrop::new(event(unsafe { std::ptr::read(&raw const self.address) }));
        self.environment.publish_inline(&event);
    }

    /// Emits an event that must not be delivered yet, because the caller holds the registry's lock or something else
    /// that other threads wait for. The caller requests the delivery later.
    pub(super) fn emit_locked(&self, event: impl FnOnce() -> PoolEvent) {
        if self.environment.listens() {
            self.environment.emit(event());
        }
    }

    /// Lowers the flags that are no longer needed. Called under the wait list's lock, after the queue has become
    /// shorter.
    pub(super) fn settle(&self, queue: &LockedWaitList<Grant<E>>) {
        if queue.first_waiting_lane().is_some() {
            return;
        }
        self.leave_budget_queue();
        self.lower_flags(queue);
    }

    /// Lowers the flags, because no check-outs other than openers are waiting. Called under the wait list's lock.
    pub(super) fn lower_flags(&self, queue: &LockedWaitList<Grant<E>>) {
        self.capacity.lower_waiting_flag();
        self.queue_ends();
        if queue.is_empty(Lane::Openers) {
            self.shards.iter().for_each(|shard| shard.lower_flag());
        }
    }
}
