//! The runtime of a pool's tasks, and the next one when it has ended.
//!
//! A pool has one runtime at a time, its home: the background task and the tasks that open connections run there, and
//! the sockets of all its connections are registered there. When it ends, the connections are of no use any more. They
//! become stale, and the first check-out after that which needs a new connection makes the runtime that polls it the
//! pool's next home.
//!
//! | how the end is noticed | by |
//! | --- | --- |
//! | the background task, which is there for as long as the pool is open, is dropped | [`Resident`] |
//! | a task that opens a connection is cancelled | the check-out that waits for it |
//! | a task that drains a connection is dropped | the connection that it drains |
//!
//! Whichever comes first calls [`Home::end`]. tokio drops a runtime's tasks before it shuts down its drivers, so the
//! connections are stale before their sockets fail, and the errors of those say nothing about the server
//! ([`Clear::only_at_generation`](crate::Clear::only_at_generation)).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use tokio::runtime::Handle;

use super::background;
use super::environment::TokioEnvironment;
use super::establish::Establish;
use super::fork;
use super::pool::Pool;
use crate::pool::{Core, Environment, Phase};

type SharedCore<E> = Arc<Core<TokioEnvironment<E>>>;

/// A runtime that a pool's tasks run on.
pub(super) struct Home {
    handle: Handle,
    ended: AtomicBool,
    /// The pool's connections were made stale.
    renewal: Once,
}

impl Home {
    fn new(handle: Handle) -> Self {
        Self { handle, ended: AtomicBool::new(false), renewal: Once::new() }
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Whether the runtime is known to have ended.
    pub(super) fn has_ended(&self) -> bool {
        // ORD: Acquire; pairs with the Release in `end`.
        self.ended.load(Ordering::Acquire)
    }

    /// Notes that the runtime has ended, and makes the connections that are registered there stale. When this returns,
    /// no check-out that begins finds one of them, whichever caller has made them stale.
    pub(super) fn end<E: Establish>(&self, core: &SharedCore<E>) {
        // ORD: Release; pairs with the Acquire in `has_ended`.
        self.ended.store(true, Ordering::Release);
        self.renewal.call_once(|| core.renew());
        core.environment().connections_went_stale();
        core.maintain();
    }
}

/// Where a pool lives. In a forked child it is empty until the pool is first used on a runtime.
#[derive(Default)]
pub(super) struct Residence(Mutex<Option<Arc<Home>>>);

impl Residence {
    /// The home that is not known to have ended.
    pub(super) fn home(&self) -> Option<Arc<Home>> {
        let home = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        home.as_ref().filter(|home| !home.has_ended()).cloned()
    }

    /// The home that is not known to have ended, or else a new one at `offered`, and with it the one before.
    fn home_or(&self, offered: impl FnOnce() -> Option<Handle>) -> Option<Settled> {
        let mut present = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(home) = present.as_ref().filter(|home| !home.has_ended()) {
            return Some(Settled::Already(home.clone()));
        }
        let home = Arc::new(Home::new(offered()?));
        let before = present.replace(home.clone());
        Some(Settled::Anew { home, before })
    }
}

enum Settled {
    Already(Arc<Home>),
    Anew { home: Arc<Home>, before: Option<Arc<Home>> },
}

/// What the background task holds. When it is dropped before the pool is closed, the runtime has ended.
pub(super) struct Resident<E: Establish> {
    home: Arc<Home>,
    pub(super) core: SharedCore<E>,
}

impl<E: Establish> Resident<E> {
    pub(super) fn handle(&self) -> &Handle {
        self.home.handle()
    }
}

impl<E: Establish> Drop for Resident<E> {
    fn drop(&mut self) {
        // A forked child may drop what it has inherited. The pool is still its parent's.
        if !self.core.environment().is_the_parents() && self.core.state().phase != Phase::Closed {
            self.home.end(&self.core);
        }
    }
}

impl<E: Establish> Pool<E> {
    /// The runtime of the pool's tasks. If it has none, or that has ended, it is the offered one from now on, and the
    /// background task begins there.
    pub(super) fn home(&self, offered: impl FnOnce() -> Option<Handle>) -> Option<Arc<Home>> {
        let core = &self.core;
        match core.environment().residence.home_or(offered)? {
            Settled::Already(home) => Some(home),
            Settled::Anew { home, before } => {
                if let Some(before) = before {
                    // Before anything is opened at the new one, which it must not make stale.
                    before.end(core);
                }
                let resident = Resident { home: home.clone(), core: core.clone() };
                // One that has ended as well drops the task at once.
                home.handle.spawn(fork::own(background::keep(resident)));
                (!home.has_ended()).then_some(home)
            }
        }
    }
}
