//! Parking with an event-listener `Event` in each cell.
//!
//! The waiter starts to listen before it marks the cell as waiting, and the granter notifies the event after it has
//! left the grant in the cell. The waiter takes the grant only after its listener has been notified. By then, the
//! granter has released the event's lock, and no longer accesses the cell.
//!
//! An event calls its listener's waker under the event's lock. So a waiter's waker must not poll or drop a check-out,
//! which would cause a deadlock. The wakers of the common runtimes only schedule their tasks.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use event_listener::IntoNotification;

use crate::pool::sync::{Contained, Event, EventListener, made_progress};

/// The part of the cell that wakes its waiter.
pub(super) struct Parking {
    event: Event<()>,
}

/// The waiter's side of parking: its listener, until the listener is notified.
pub(super) struct WaiterSide(Option<Listening>);

struct Listening {
    listener: EventListener<()>,
    /// The task's waker, wrapped so that its panics are caught, because event-listener cannot handle them. The event
    /// holds the same wrapper.
    task: Arc<Contained>,
    waker: Waker,
}

/// A listener that its waiter has withdrawn. Dropping it runs foreign code.
#[must_use = "dropped outside of the lock"]
pub(super) struct Withdrawn(#[expect(dead_code, reason = "only dropped")] Option<Listening>);

impl Listening {
    fn is_notified(&mut self) -> bool {
        Pin::new(&mut self.listener).poll(&mut Context::from_waker(&self.waker)).is_ready()
    }
}

impl WaiterSide {
    pub(super) fn new() -> Self {
        Self(None)
    }
}

#[allow(unsafe_code)]
impl Parking {
    pub(super) fn new() -> Self {
        Self { event: Event::with_tag() }
    }

    /// Starts listening.
    ///
    /// # Safety
    ///
    /// The caller is the waiter, and the parking belongs to the waiter (INV-4).
    #[inline]
    pub(super) unsafe fn park(&self, parked: &mut WaiterSide, waker: Waker) {
        let task = Contained::new(waker);
        let mut listening = Listening { listener: self.event.listen(), waker: task.clone().into(), task };
        let is_notified = listening.is_notified();
        debug_assert!(!is_notified, "BUG: a waiter is notified before it waits");
        parked.0 = Some(listening);
    }

    /// Makes sure that this waker wakes the waiter. Returns `false` if a grant is on its way.
    ///
    /// # Safety
    ///
    /// The caller is the waiter, and is parked.
    #[inline]
    pub(super) unsafe fn wakes(&self, parked: &mut WaiterSide, waker: &Waker) -> bool {
        let Some(listening) = &mut parked.0 else { return false };
        if listening.task.wakes_as(waker) {
            return true;
        }
        // Cloned outside the event's lock, because cloning a waker runs foreign code.
        let task = Contained::new(waker.clone());
        listening.waker = task.clone().into();
        listening.task = task;
        let is_notified = listening.is_notified();
        if is_notified {
            parked.0 = None;
        }
        !is_notified
    }

    /// Returns whether the waiter may take its grant.
    #[inline]
    pub(super) fn is_released(&self, parked: &mut WaiterSide) -> bool {
        if parked.0.as_mut().is_none_or(Listening::is_notified) {
            parked.0 = None;
        }
        parked.0.is_none()
    }

    /// Takes the listener, for the caller to drop.
    ///
    /// # Safety
    ///
    /// The caller is the waiter, is parked, and no granter looks at the parking (INV-4).
    pub(super) unsafe fn withdraw(&self, parked: &mut WaiterSide) -> Withdrawn {
        Withdrawn(parked.0.take())
    }

    /// Calls `grant`, and notifies a waiter that is parked.
    ///
    /// # Safety
    ///
    /// The caller is the granter, and `grant` publishes the grant.
    #[inline]
    pub(super) unsafe fn release(&self, grant: impl FnOnce()) -> Option<Waker> {
        grant();
        // The waiter does not take its grant before this. Once the event's lock is released, the cell, and even the
        // list, may be gone.
        self.event.notify(1.additional().relaxed().tag(()));
        made_progress();
        None
    }
}
