//! Available connections that perish in their shard: idle for too long, or of a cleared service.

use std::time::Duration;

use super::core::Core;
use super::environment::Environment;
use super::held::Held;
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

    /// Returns why an available connection can no longer be used, if there is a reason.
    pub(super) fn perished(&self, held: &Held<E>) -> Option<ConnectionClosedReason> {
        if held.is_stale_member() {
            return Some(ConnectionClosedReason::Stale);
        }
        self.idle_for_too_long(held.slot().since()).then_some(ConnectionClosedReason::Idle)
    }

    /// Returns whether check-ins note when they make a connection available.
    #[inline]
    pub(super) fn notes_idle_times(&self) -> bool {
        self.vetting && !self.options.max_idle_time.is_zero()
    }

    pub(super) fn idle_for_too_long(&self, since: u64) -> bool {
        let most = self.options.max_idle_time;
        !most.is_zero() && Duration::from_nanos(self.nanos_since_epoch().saturating_sub(since)) > most
    }
}
