//! What is left to do when a call has returned: closing a cursor, aborting a transaction.
//!
//! A client with monitors has a runtime, on which it spawns such work. A client on a single thread runs nothing between
//! its calls, so it keeps the work, and does it at the end of a call.

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;

use super::state::Deployment;
use crate::runtime::forks;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where work goes that no call waits for.
#[derive(Clone)]
pub(crate) enum Background {
    /// It is spawned on the runtime of the monitors.
    Spawned(Handle),
    /// It is kept until a call does it.
    Kept(Arc<Kept>),
}

impl Background {
    /// Takes the work over.
    pub(crate) fn take(&self, work: impl Future<Output = ()> + Send + 'static) {
        match self {
            Self::Spawned(runtime) => drop(runtime.spawn(work)),
            Self::Kept(kept) => kept.keep(Box::pin(work)),
        }
    }
}

/// Work that is kept.
pub(crate) struct Kept {
    /// The number of forks before this value was made.
    forks: u32,
    work: Mutex<Vec<Work>>,
}

impl Default for Kept {
    fn default() -> Self {
        Self { forks: forks(), work: Mutex::default() }
    }
}

impl Kept {
    fn keep(&self, work: Work) {
        if self.forks != forks() {
            // It belongs to the parent of this process: its connection, and the lock.
            return mem::forget(work);
        }
        self.work.lock().unwrap_or_else(PoisonError::into_inner).push(work);
    }

    /// Takes what is kept. A forked child gets nothing of its parent's.
    pub(crate) fn take(&self) -> Vec<Work> {
        match self.forks == forks() {
            true => mem::take(&mut *self.work.lock().unwrap_or_else(PoisonError::into_inner)),
            false => Vec::new(),
        }
    }
}

impl Deployment {
    /// Returns where work goes that no call waits for. `None` before the first operation.
    pub(crate) fn background(&self) -> Option<Background> {
        match self.scanning() {
            Some(scanning) => Some(Background::Kept(scanning.kept.clone())),
            None => self.residence().map(Background::Spawned),
        }
    }

    /// Takes the work that is kept. Nothing is, unless the client is on a single thread.
    pub(crate) fn kept(&self) -> Vec<Work> {
        self.scanning().map_or_else(Vec::new, |scanning| scanning.kept.take())
    }
}
