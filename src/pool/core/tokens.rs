//! Tokens that represent the right to open a connection, to hold an available connection, or to use a connection.
//!
//! Each token is `#[must_use]` and undoes itself when it is dropped. No other code adjusts the counts.
//!
//! ```text
//!           create             established                check_out
//! Permit ──────────────► Pending ─────────────► Idle + Opening ──────────► Lease
//!   │ drop                 │ drop                │ drop                     │ drop
//!   ▼                      ▼                     ▼                          ▼
//! capacity − 1         closed (error)        available, or            checked in: available,
//!                                            handed to a waiter       handed over, closed, or
//!                                                                     Draining ──► one of these
//! ```

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::check_out::Started;
use super::close_error::CloseError;
use super::core::Core;
use super::environment::Environment;
use super::held::Held;
use super::lease::Lease;
use super::waitlist::Lane;
use crate::pool::error::EstablishError;
use crate::pool::event::{ConnectionClosedReason, EventError, PoolEvent};
use crate::pool::metrics::StageTimes;
use crate::pool::service_id::ServiceId;
use crate::pool::sync::{Mutex, discard};

/// A connection being established. Dropping it closes the connection as failed.
#[must_use = "dropping it closes the connection"]
pub struct Pending<E: Environment>(Held<E>);

impl<E: Environment> Pending<E> {
    /// Creates the token for a caller that has just created a connection in this slot.
    pub(super) fn of(held: Held<E>) -> Self {
        Self(held)
    }

    /// Returns the connection's number.
    pub fn id(&self) -> u64 {
        self.0.id()
    }

    /// Returns the pool's generation at the time the connection was created.
    pub fn generation(&self) -> u64 {
        self.0.generation()
    }

    /// In load-balanced mode, adds the connection to its service, which gives it the service's generation. Does nothing
    /// in other modes, or when called again.
    pub fn identify(&self, service_id: ServiceId) {
        let core = self.0.core();
        if core.options.load_balanced && self.0.service().is_none() {
            let membership = core.registry.lock().services.join(service_id, self.0.slot().index());
            self.0.record_mut(|record| record.membership = Some(membership));
        }
    }

    /// Returns the service and its generation at the time the connection was identified, or `None` before that.
    pub fn service(&self) -> Option<(ServiceId, u64)> {
        self.0.service()
    }

    /// Completes when the establishment should be abandoned, because the pool was closed, or cleared with interruption.
    pub fn poll_interrupted(&self, context: &mut Context<'_>) -> Poll<()> {
        self.0.slot().poll_interrupted(context)
    }

    /// Completes the establishment and emits `ConnectionReady`.
    ///
    /// The connection counts as pending until the second token is dropped. The caller must pass on the first token
    /// before it drops the second (ordering 2). Dropping the second token also delivers the event, so that a slow
    /// subscriber does not keep the new connection from other callers.
    ///
    /// # Errors
    ///
    /// [`Interrupted`] if the establishment should be abandoned. The connection is then closed.
    pub fn established(self, connection: E::Connection) -> Result<Established<E>, Interrupted> {
        self.established_in(connection, &StageTimes::default())
    }

    /// Like [`Pending::established`], but the event also reports the stage times.
    #[allow(unsafe_code)]
    pub(crate) fn established_in(
        self,
        connection: E::Connection,
        stages: &StageTimes,
    ) -> Result<Established<E>, Interrupted> {
        let held = self.0;
        let core = held.core();
        // SAFETY: INV-1: we own the slot, and there is no connection yet that could be borrowed.
        unsafe { held.slot().replace(Some(connection)) };
        if held.slot().set_established().interrupted {
            // Dropping `self` closes the connection.
            return Err(Interrupted);
        }
        let created = held.record(|record| record.created);
        let took = core.environment.stopwatch().saturating_sub(created);
        if E::METERED {
            core.establishment_took(took);
        }
        core.emit_locked(|| PoolEvent::ConnectionReady {
            address: core.address.clone(),
            connection_id: held.id(),
            duration: Duration::from_nanos(took),
            stages: Arc::new(stages.get().map(|nanos| nanos.map(Duration::from_nanos))),
        });
        held.touch();
        // If the slot kept the waker, the opening task would stay in memory for as long as the connection exists.
        discard(held.slot().take_waker());
        let core = Arc::clone(&held.shared_core());
        std::mem::forget(self);
        Ok((Idle(held), Opening { core, is_awaited: None }))
    }
}

impl<E: Environment> Pending<E> {
    /// Closes the connection because it could not be established. The error becomes part of its `ConnectionClosed`
    /// event. The connection counts as pending until the returned token is dropped.
    pub fn fail(self, error: &EstablishError) -> Closing<E> {
        let this = ManuallyDrop::new(self);
        let (reason, error) = this.reason(CloseError::Failed(error.clone()));
        let core = Arc::clone(&this.0.shared_core());
        let (_none, closing) = this.0.begin_close(reason, error, CountsAs::Pending);
        if core.environment.may_have_events() {
            core.environment.deliver();
        }
        closing
    }

    /// Counts the failure. Returns the reason for the close, and the error for the event. An interruption takes
    /// precedence over an error, because it may have caused the error.
    fn reason(&self, error: CloseError) -> (ConnectionClosedReason, Option<EventError>) {
        self.count(&error);
        match self.0.slot().stamp().interrupted {
            true => (self.0.stale_reason(), None),
            false => (ConnectionClosedReason::Error, self.0.explained(error)),
        }
    }

    fn count(&self, error: &CloseError) {
        let measures = &self.0.core().measures;
        match error {
            CloseError::Failed(error) if !self.0.slot().stamp().interrupted => {
                measures.failed.of(error.stage()).count()
            }
            _ => measures.given_up.count(),
        }
    }
}

impl<E: Environment> Drop for Pending<E> {
    fn drop(&mut self) {
        let (reason, error) = self.reason(CloseError::GivenUp);
        self.0.close(reason, error, CountsAs::Pending);
    }
}

/// An established connection, and its contribution to the pending count.
pub type Established<E> = (Idle<E>, Opening<E>);

/// The establishment was abandoned because the pool was cleared or closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted;

/// A connection's contribution to the pending count. Dropping it allows the next connection to be opened.
#[must_use = "dropping it before the connection has been handed on lets others open connections that are not needed"]
pub struct Opening<E: Environment> {
    core: Arc<Core<E>>,
    /// Whether a waiter was waiting for the permit when the connection stopped counting as pending. `None` before that.
    is_awaited: Option<bool>,
}

impl<E: Environment> Opening<E> {
    /// Makes the connection available, unless a caller already has it (`unclaimed` is `None`). After that, the
    /// connection stops counting as pending (ordering 2).
    ///
    /// Waiters are served first, because a waiter would otherwise open another connection. The connection goes to an
    /// opener only if there is no waiter.
    pub fn hand_on(mut self, unclaimed: Option<Idle<E>>) {
        if let Some(idle) = unclaimed {
            let held = ManuallyDrop::new(idle).0;
            held.offer(held.core().preferred_shard(), Lane::OF_NEW, || self.stop_counting());
        }
        drop(self);
    }

    /// Stops counting the connection as pending. Dropping the token then passes the permit on and delivers the events.
    fn stop_counting(&mut self) {
        let Self { core, is_awaited } = self;
        is_awaited.get_or_insert_with(|| core.capacity.release(0, 1));
    }
}

impl<E: Environment> Drop for Opening<E> {
    fn drop(&mut self) {
        self.stop_counting();
        if self.is_awaited == Some(true) {
            self.core.serve_permits();
        }
        self.core.schedule_population();
        if self.core.environment.may_have_events() {
            self.core.environment.deliver();
        }
    }
}

/// The capacity held by a connection that has left the pool and is being closed. Dropping it releases the capacity.
#[must_use = "dropping it before the connection is closed lets more connections exist than the options allow"]
pub struct Closing<E: Environment> {
    core: Arc<Core<E>>,
    counts_as: CountsAs,
}

/// How a connection is counted while it is being closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CountsAs {
    /// An established connection.
    Established,
    /// A pending connection.
    Pending,
    /// A connection whose drain was displaced, and whose capacity goes to a waiter.
    Displaced,
    /// An established connection whose place goes to another pool under the budget.
    Leaving,
}

impl<E: Environment> Closing<E> {
    /// Creates the token for a caller that has taken the connection out of the pool.
    pub(super) fn of(core: Arc<Core<E>>, counts_as: CountsAs) -> Self {
        Self { core, counts_as }
    }

    fn release(&self) {
        let Self { core, counts_as } = self;
        let is_awaited = match counts_as {
            CountsAs::Established | CountsAs::Leaving => core.capacity.release(1, 0),
            CountsAs::Pending => core.capacity.release(1, 1),
            CountsAs::Displaced => core.capacity.end_displacing(),
        };
        core.give_back(is_awaited, *counts_as == CountsAs::Leaving);
        if *counts_as == CountsAs::Pending {
            // A failed establishment does not immediately trigger another, because the server may be overloaded.
            core.schedule_if_closed();
        } else {
            core.schedule_population();
        }
    }
}

impl<E: Environment> Drop for Closing<E> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<E: Environment> fmt::Debug for Closing<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Closing").field("counts_as", &self.counts_as).finish_non_exhaustive()
    }
}

/// An [`Opening`] shared by the task that opened the connection and the check-out that it was opened for.
///
/// Both of them end the opening. So the connection no longer counts as pending when the check-out returns, and the
/// permit is released even if the check-out is not polled.
pub struct SharedOpening<E: Environment>(Mutex<Option<Opening<E>>>);

impl<E: Environment> SharedOpening<E> {
    /// Creates a value that does not contain an opening yet.
    #[allow(clippy::new_without_default, reason = "a default would say less than the name")]
    pub fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Shares an opening. The task calls this before it sends the connection.
    pub fn share(&self, opening: Opening<E>) {
        *self.0.lock() = Some(opening);
    }

    /// Takes the opening back, unless it has ended.
    pub fn take(&self) -> Option<Opening<E>> {
        self.0.lock().take()
    }

    /// Ends the opening. When this returns, the connection has stopped counting as pending.
    pub fn end(&self) {
        let ended = {
            let mut shared = self.0.lock();
            // This is done under the lock, so that the count is already correct when the second caller gets the lock.
            shared.iter_mut().for_each(Opening::stop_counting);
            shared.take()
        };
        // Dropped outside the lock, because the drop runs foreign code.
        drop(ended);
    }
}

/// An established connection without a user, taken out of the shards. Dropping the token makes the connection
/// available.
#[must_use = "dropping it makes the connection available again"]
pub struct Idle<E: Environment>(Held<E>);

impl<E: Environment> Idle<E> {
    /// Creates the token for a caller that owns an established connection.
    #[inline]
    pub(super) fn of(held: Held<E>) -> Self {
        Self(held)
    }

    #[inline]
    pub(super) fn held(&self) -> Held<E> {
        self.0
    }

    #[allow(unsafe_code)]
    pub(super) fn connection(&mut self) -> &mut E::Connection {
        // SAFETY: INV-1: we own the slot. The borrow lasts as long as the exclusive borrow of the token.
        unsafe { self.0.slot().value_mut() }.expect("BUG: an idle token without its connection")
    }

    /// Returns the connection's number.
    pub fn id(&self) -> u64 {
        self.0.id()
    }

    /// Returns whether the pool, or the connection's service, has been cleared or closed since the connection was
    /// created. A connection may become stale between its grant to a waiter and the waiter's next poll.
    pub fn is_stale(&self) -> bool {
        self.0.is_stale()
    }

    /// Notes that the connection was opened for the check-out that is about to take it.
    pub fn mark_opened(&self) {
        self.0.slot().mark_opened();
    }

    /// Checks the connection out, and emits `ConnectionCheckedOut` with the time since `started`.
    #[inline]
    pub fn check_out(self, started: Started) -> Lease<E> {
        let held = ManuallyDrop::new(self).0;
        held.count_check_out(started);
        if held.core().environment.listens() {
            Self::tell(held, started);
        }
        Lease::of(held)
    }

    #[cold]
    fn tell(held: Held<E>, started: Started) {
        let (core, connection_id) = (held.core(), held.id());
        // This comes first, so that the check-in of this use takes the long path.
        core.heed_log();
        held.slot().set_known_as(connection_id, true);
        let now = core.environment.stopwatch();
        held.slot().set_started(Started::at(now));
        let duration = Duration::from_nanos(started.until(now));
        core.tell(|address| PoolEvent::ConnectionCheckedOut { address, connection_id, duration });
    }
}

impl<E: Environment> Drop for Idle<E> {
    fn drop(&mut self) {
        // While the connection was on its way to its caller, the accounting for holders may have recorded it as in use.
        self.0.end_hold();
        self.0.make_available(self.0.core().preferred_shard());
    }
}

macro_rules! debug_as_id {
    ($($token:ident)*) => {$(
        impl<E: Environment> fmt::Debug for $token<E> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($token)).field("id", &self.id()).finish_non_exhaustive()
            }
        }
    )*};
}

debug_as_id!(Pending Idle);
