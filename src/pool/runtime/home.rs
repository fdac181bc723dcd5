//! The home of a pool: the runtime of its tasks. A pool moves to another home when its runtime shuts down.
//!
//! A pool has one home at a time. The background task and the tasks that open connections run there, and the sockets of
//! all its connections are registered there. When the runtime shuts down, the connections can no longer be used, and
//! become stale. The next check-out that needs a new connection moves the pool to the runtime that polls the check-out.
//!
//! | event that reveals the end | noticed by |
//! | --- | --- |
//! | the background task is dropped, although the pool is open | [`HomeGuard`] |
//! | a task that opens a connection is cancelled | the check-out that waits for it |
//! | a task that drains a connection is dropped | the connection that it drains |
//!
//! Each of these calls [`Home::end`], and the first such call makes the connections stale. tokio drops a runtime's
//! tasks before it shuts down its drivers. So the connections are stale before their sockets fail, and the errors of
//! these sockets do not clear the pool ([`Clear::only_at_generation`](crate::Clear::only_at_generation)).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};

use tokio::runtime::Handle;

use super::background;
use super::environment::TokioEnvironment;
use super::establish::Establish;
use super::fork;
use super::pool::Pool;
use crate::pool::core::{Core, Environment, Phase, WentStale};

type SharedCore<E> = Arc<Core<TokioEnvironment<E>>>;

/// A runtime that a pool's tasks run on.
pub(super) struct Home {
    handle: Handle,
    ended: AtomicBool,
    /// Ensures that the end of this runtime makes the pool's connections stale only once.
    renewal: Once,
}

impl Home {
    fn new(handle: Handle) -> Self {
        Self { handle, ended: AtomicBool::new(false), renewal: Once::new() }
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns whether the runtime is known to have shut down.
    pub(super) fn has_ended(&self) -> bool {
        // ORD: Acquire; pairs with the Release in `end`.
        self.ended.load(Ordering::Acquire)
    }

    /// Notes that the runtime has shut down, and makes the connections that are registered there stale.
    ///
    /// Several callers may notice the shutdown and call this. Once any of the calls has returned, no new check-out
    /// finds one of these connections.
    pub(super) fn end<E: Establish>(&self, core: &SharedCore<E>) {
        // ORD: Release; pairs with the Acquire in `has_ended`.
        self.ended.store(true, Ordering::Release);
        self.renewal.call_once(|| core.renew());
        core.environment().connections_went_stale(WentStale::All);
        core.maintain();
    }
}

/// Holds a pool's home. In a forked child, it is empty until the pool is first used on a runtime.
#[derive(Default)]
pub(super) struct Residence(Mutex<Places>);

#[derive(Default)]
struct Places {
    home: Option<Arc<Home>>,
    /// The runtime, other than the home, on which a check-out last opened a connection. If the home shuts down, a
    /// check-out without a runtime moves the pool to this runtime.
    other: Option<Handle>,
}

impl Residence {
    /// Returns the home, unless it is known to have shut down.
    pub(super) fn home(&self) -> Option<Arc<Home>> {
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places.home.as_ref().filter(|home| !home.has_ended()).cloned()
    }

    /// Returns the home. If there is no home, or the home is known to have shut down, creates a new home on `offered`
    /// and returns it together with the old home. Without `offered`, the new home is on the other runtime that the pool
    /// knows of.
    fn home_or(&self, offered: Option<Handle>) -> Option<Settled> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(home) = places.home.clone().filter(|home| !home.has_ended()) {
            let other = offered.filter(|offered| offered.id() != home.handle().id());
            let before = other.and_then(|other| places.other.replace(other));
            // Dropped after the lock is released, because dropping the last handle frees the runtime's memory.
            drop(places);
            drop(before);
            return Some(Settled::Already(home));
        }
        let home = Arc::new(Home::new(offered.or_else(|| places.other.take())?));
        let before = places.home.replace(home.clone());
        Some(Settled::Anew { home, before })
    }
}

enum Settled {
    Already(Arc<Home>),
    Anew { home: Arc<Home>, before: Option<Arc<Home>> },
}

/// Held by a task that runs in a pool's home. If the guard is dropped before it is [released](Self::release) and before
/// the pool is closed, the runtime has shut down.
pub(super) struct HomeGuard<E: Establish> {
    home: Arc<Home>,
    pub(super) core: SharedCore<E>,
    is_released: bool,
}

impl<E: Establish> HomeGuard<E> {
    pub(super) fn new(home: Arc<Home>, core: SharedCore<E>) -> Self {
        Self { home, core, is_released: false }
    }

    /// Releases the guard of a task that finishes normally.
    pub(super) fn release(mut self) {
        self.is_released = true;
    }

    pub(super) fn handle(&self) -> &Handle {
        self.home.handle()
    }
}

impl<E: Establish> Drop for HomeGuard<E> {
    fn drop(&mut self) {
        // A forked child may drop an inherited task, but the pool still belongs to its parent.
        let is_inherited = self.core.environment().is_inherited();
        if !self.is_released && !is_inherited && self.core.state().phase != Phase::Closed {
            self.home.end(&self.core);
        }
    }
}

impl<E: Establish> Pool<E> {
    /// Returns the pool's home. If it has none, or its runtime has shut down, the pool moves to the offered runtime,
    /// and the background task starts there.
    pub(super) fn home(&self, offered: impl FnOnce() -> Option<Handle>) -> Option<Arc<Home>> {
        let core = &self.core;
        match core.environment().residence.home_or(offered())? {
            Settled::Already(home) => Some(home),
            Settled::Anew { home, before } => {
                if let Some(before) = before {
                    // The old home is ended before the new home opens a connection, because ending a home makes all
                    // connections stale.
                    before.end(core);
                }
                if !core.environment().has_tasks {
                    return Some(home);
                }
                let guard = HomeGuard::new(home.clone(), Arc::clone(core));
                // If the new runtime has also shut down, it drops the task at once.
                fork::spawn(&home.handle, background::keep(guard));
                (!home.has_ended()).then_some(home)
            }
        }
    }
}
