//! Work that remains after a call has returned: closing a cursor, aborting a transaction.
//!
//! A client with monitors has a runtime, on which it spawns such work. A client on a single thread runs nothing between its
//! calls, so it keeps the work and does it at the end of a call.

use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::state::Deployment;
use crate::endpoint::Limit;
use crate::pool::runtime::{Boxed, PerProcess, spawn};

/// The maximum time that a call spends on kept work before it returns.
const LONGEST_FINISH: Duration = Duration::from_secs(10);

/// Work that no call waits for.
pub(crate) type Work = Boxed<'static, ()>;

/// The destination of work that no call waits for.
#[derive(Clone)]
pub(crate) enum Background {
    /// Spawned on the monitors' runtime. Each piece of work holds a receiver until it is done.
    Spawned(Handle, watch::Receiver<()>),
    /// Kept until a call does the work.
    Kept(Arc<Kept>),
}

impl Background {
    /// Accepts work. A forked child neither does its parent's work nor drops it.
    pub(crate) fn take(&self, work: Work) {
        match self {
            Self::Spawned(runtime, running) => {
                let running = running.clone();
                drop(spawn(runtime, async move {
                    work.await;
                    drop(running);
                }));
            }
            Self::Kept(kept) => kept.with(|kept| kept.push(work)),
        }
    }
}

/// Work that is kept. A forked child gets none of its parent's work.
#[derive(Default)]
pub(crate) struct Kept(PerProcess<Mutex<Vec<Work>>>);

impl Kept {
    fn with<T>(&self, f: impl FnOnce(&mut Vec<Work>) -> T) -> T {
        f(&mut self.0.get().lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Deployment {
    /// Returns the destination of work that no call waits for, or `None` before the first operation.
    pub(crate) fn background(&self) -> Option<Background> {
        match self.scanning() {
            Some(scanning) => Some(Background::Kept(scanning.kept.clone())),
            None => {
                let state = self.lock();
                state.home.clone().map(|home| Background::Spawned(home, state.spawned.subscribe()))
            }
        }
    }

    /// Does the kept work, or waits until the work that has been spawned so far is done.
    pub(crate) async fn finish_background(&self) {
        if self.scanning().is_some() {
            return self.finish_kept(Limit::Unset).await;
        }
        // Waits only for the work spawned so far, because operations may keep spawning more work.
        let spawned = mem::take(&mut self.lock().spawned);
        spawned.closed().await;
    }

    /// Returns whether work is kept.
    pub(crate) fn has_kept(&self) -> bool {
        self.scanning().is_some_and(|scanning| scanning.kept.with(|kept| !kept.is_empty()))
    }

    /// Takes the kept work. Only a client on a single thread keeps work.
    pub(crate) fn kept(&self) -> Vec<Work> {
        self.scanning().map_or_else(Vec::new, |scanning| scanning.kept.with(mem::take))
    }

    /// Does the work that is kept for the end of a call, on a client that does not spawn it. In total, this work may
    /// take up to `connectTimeoutMS`, but no more than 10 s, and no longer than the time that the call has left. Work
    /// that is unfinished by then is abandoned. If the call runs out of time before the work begins, the next call does
    /// the work.
    pub(crate) async fn finish_kept(&self, call: Limit) {
        let mut at = None;
        loop {
            // Work that has begun is not left to a later call, because it would hold the only connection to its server
            // until then.
            if call.left().is_some_and(|left| left.is_zero()) {
                return;
            }
            let mut kept = self.kept();
            if kept.is_empty() {
                return;
            }
            let limit = match self.options().connect_timeout {
                Duration::ZERO => LONGEST_FINISH,
                limit => limit.min(LONGEST_FINISH),
            };
            let at = *at.get_or_insert_with(|| {
                let own = Instant::now() + limit;
                call.deadline().map_or(own, |(end, _)| end.min(own))
            });
            // The kept work runs concurrently, so that an unresponsive server does not delay the work for other
            // servers.
            let all = poll_fn(|context| {
                kept.retain_mut(|work| work.as_mut().poll(context).is_pending());
                if kept.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            });
            if timeout_at(at, all).await.is_err() {
                // The servers themselves close unused cursors and abort unused transactions after a while.
                return;
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::runtime::Builder;
    use tokio::task::yield_now;

    use super::*;
    use crate::pool::runtime::{in_child, watch_forks};

    #[test]
    fn child_does_no_work_that_its_parent_has_spawned() {
        // In a client, each pool does this when it is created.
        watch_forks();
        let runtime = Builder::new_current_thread().build().unwrap();
        let is_done = Arc::new(AtomicBool::new(false));
        let done = is_done.clone();
        let work = async move { done.store(true, Ordering::Relaxed) };
        Background::Spawned(runtime.handle().clone(), watch::Sender::new(()).subscribe()).take(Box::pin(work));
        let code = in_child(|| {
            runtime.block_on(yield_now());
            if is_done.load(Ordering::Relaxed) || Arc::strong_count(&is_done) != 2 { Err(1) } else { Ok(()) }
        });
        assert_eq!(code, 0, "the child did its parent's work");
        runtime.block_on(yield_now());
        assert!(is_done.load(Ordering::Relaxed));
    }

    #[test]
    fn child_gets_no_work_that_its_parent_has_kept() {
        let kept = Arc::new(Kept::default());
        Background::Kept(kept.clone()).take(Box::pin(async {}));
        let code = in_child(|| if kept.with(|work| work.is_empty()) { Ok(()) } else { Err(1) });
        assert_eq!(code, 0, "the child got its parent's work");
        assert_eq!(kept.with(|work| work.len()), 1);
    }
}
