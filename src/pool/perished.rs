//! Available connections that perish where they lie: idle for too long, or of a service that was cleared.

use std::time::Duration;

use super::core::Core;
use super::environment::Environment;
use super::held::Held;
use super::tokens::Idle;
use crate::event::ConnectionClosedReason;

/// The connection had perished, and is closed.
pub(super) struct Perished;

impl<E: Environment> Core<E> {
    /// Closes an available connection that has perished.
    pub(super) fn vet(&self, held: Held<E>) -> Result<Idle<E>, Perished> {
        match self.vetting.then(|| self.perished(&held)).flatten() {
            None => Ok(held.into_idle()),
            Some(reason) => {
                held.retire(reason, false);
                Err(Perished)
            }
        }
    }

    /// Why an available connection cannot be used any more, if so.
    pub(super) fn perished(&self, held: &Held<E>) -> Option<ConnectionClosedReason> {
        if held.is_stale_member() {
            return Some(ConnectionClosedReason::Stale);
        }
        self.idle_for_too_long(held.slot().since()).then_some(ConnectionClosedReason::Idle)
    }

    pub(super) fn idle_for_too_long(&self, since: Duration) -> bool {
        let most = self.options.max_idle_time;
        !most.is_zero() && self.environment.now().duration_since(self.epoch).saturating_sub(since) > most
    }
}
