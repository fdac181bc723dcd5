//! Connections that perish: they have been idle for too long, are too old, or belong to a cleared service.
//!
//! # Make before break
//!
//! A connection that has been idle for too long, or whose lifetime has expired, is *worn*. Closing it would leave the
//! pool below `minPoolSize` until a new connection is open. So a worn connection that the pool cannot spare stays where
//! it is, and maintenance opens its replacement first:
//!
//! 1. [`Core::reap`](Core::maintain) leaves the worn connection in its shard, and raises the target for
//!    [`Core::populate`].
//! 2. The replacement becomes available, which requests maintenance.
//! 3. The next [`Core::reap`](Core::maintain), or the check-in of the worn connection, finds that the pool can now
//!    spare the worn connection, and closes it.
//!
//! [`Core::give_up`] decides under the registry's lock, one connection at a time, so two threads cannot both close the
//! one connection that the pool can spare. If the pool has as many connections as `maxPoolSize` or the budget allows,
//! and none of them is pending or being closed, there is no capacity for a replacement. The worn connection is then
//! closed first.
//!
//! A check-out still closes a connection that has been idle for too long, as the specification requires. But a
//! connection whose lifetime has expired can be checked out until it is replaced.

use std::time::Duration;

use super::core::Core;
use super::environment::{COARSE_TICK, Environment};
use super::held::Held;
use super::slab::{Slot, Stamp};
use super::state::Phase;
use super::tally::scattered;
use super::tokens::Idle;
use crate::pool::event::ConnectionClosedReason;

/// The connection had perished and was closed.
pub(super) struct Perished;

impl<E: Environment> Core<E> {
    /// Returns an available connection for use, or closes it if it has perished.
    pub(super) fn vet(&self, held: Held<E>) -> Result<Idle<E>, Perished> {
        match self.vetting.then(|| self.perished(&held)).flatten() {
            None => Ok(held.into_idle()),
            Some(reason) => {
                held.retire(reason);
                Err(Perished)
            }
        }
    }

    /// Returns why an available connection can no longer be used, or `None` if it can be used.
    pub(super) fn perished(&self, held: &Held<E>) -> Option<ConnectionClosedReason> {
        if held.is_stale_member() {
            return Some(ConnectionClosedReason::Stale);
        }
        self.idle_for_too_long(held.slot()).then_some(ConnectionClosedReason::Idle)
    }

    /// Returns whether check-ins record the time at which they make a connection available.
    #[inline]
    pub(super) fn notes_idle_times(&self) -> bool {
        self.vetting && !self.options.max_idle_time.is_zero()
    }

    fn idle_for_too_long(&self, slot: &Slot<E::Connection>) -> bool {
        let most = self.options.max_idle_time;
        !most.is_zero()
            && Duration::from_nanos(self.nanos_since_epoch().saturating_sub(slot.since()))
                > self.jittered(most, slot.known_as().0)
    }

    /// Returns whether the connection's lifetime has expired. Any thread may call this.
    fn is_expired(&self, slot: &Slot<E::Connection>) -> bool {
        !self.options.max_lifetime.is_zero() && self.ticks_since_epoch() >= u128::from(slot.expires_at())
    }

    /// Returns whether an available connection has been idle for too long, or its lifetime has expired.
    pub(super) fn is_worn(&self, slot: &Slot<E::Connection>) -> bool {
        self.idle_for_too_long(slot) || self.is_expired(slot)
    }

    /// Returns the time at which the lifetime of a connection created now will end, in ticks since the pool's epoch.
    pub(super) fn expiry(&self, id: u64) -> u32 {
        let most = self.options.max_lifetime;
        if most.is_zero() {
            return u32::MAX;
        }
        let ticks = self.jittered(most, id).as_millis().div_ceil(COARSE_TICK.as_millis());
        u32::try_from(self.ticks_since_epoch() + ticks).unwrap_or(u32::MAX)
    }

    fn ticks_since_epoch(&self) -> u128 {
        u128::from(self.nanos_since_epoch()) / COARSE_TICK.as_nanos()
    }

    /// Shortens a connection's time limit by its share of the jitter.
    fn jittered(&self, limit: Duration, id: u64) -> Duration {
        match self.options.jitter_percent {
            0 => limit,
            percent => {
                let share = scattered(id ^ self.number << 32) as f64 / u64::MAX as f64;
                limit.mul_f64(1.0 - share * f64::from(percent) / 100.0)
            }
        }
    }

    /// Returns whether the pool can spare an established connection. It can if it does not need the connection, or if
    /// it has no capacity to open a replacement first and no close in progress will free any. The caller holds the
    /// registry's lock, or only needs a guess.
    pub(super) fn can_spare_one(&self) -> bool {
        let counts = self.capacity.load();
        self.min_pool_size() == 0
            || self.state.load().phase != Phase::Ready
            || self.established() > self.min_pool_size()
            || (counts.pending == 0
                && (counts.total >= self.limits().total || self.lacks_budget())
                && counts.total == self.live())
    }

    /// Counts the established connections that are not about to be closed. Looks at all slots.
    fn established(&self) -> u32 {
        let generation = self.state.load().generation;
        let is_established = |stamp: Stamp| stamp.live && !stamp.pending && stamp.generation == generation;
        self.slab.iter().filter(|slot| is_established(slot.stamp())).count() as u32
    }

    /// Gives up a worn connection, unless the pool cannot spare it yet. If this returns `true`, the caller must close
    /// the connection.
    pub(super) fn give_up(&self, held: Held<E>) -> bool {
        let _registry = self.registry.lock();
        let can_spare = self.can_spare_one();
        if can_spare {
            // From here on, no other thread counts the connection as established.
            held.slot().give_up();
        }
        can_spare
    }

    /// Gives up a connection whose use has ended, if its lifetime has expired and the pool can spare it. If this
    /// returns `true`, the caller must close the connection.
    pub(super) fn gives_up_as_expired(&self, held: Held<E>) -> bool {
        self.is_expired(held.slot()) && self.give_up(held)
    }

    /// Returns how many connections [`Core::populate`] must keep open: `minPoolSize`, plus a replacement for each worn
    /// connection that cannot be spared. `kept` is the number of worn connections in the shards.
    pub(super) fn wanted_size(&self, kept: u32) -> u32 {
        let least = self.min_pool_size();
        if least == 0 {
            return least;
        }
        let lives = |slot: &&Slot<E::Connection>| slot.stamp().live && !slot.stamp().pending;
        let expired = self.slab.iter().filter(lives).filter(|slot| self.is_expired(slot)).count() as u32;
        let spare = self.established().saturating_sub(least);
        least + spare + kept.max(expired).saturating_sub(spare)
    }
}
