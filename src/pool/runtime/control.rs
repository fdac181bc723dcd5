//! Operations that manage a pool while it is in use.

use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::check_out::checked_out;
use super::connection::Connection;
use super::establish::Establish;
use super::fork::{self, Forked};
use super::home::Home;
use super::opening::{TaskEnded, open};
use super::pool::{Pool, Shared};
use crate::pool::core::{Budget, Phase, Usage};
use crate::pool::error::{CheckOutError, NoRuntimeError};
use crate::pool::options::{InvalidOption, PoolOptions};
use crate::pool::sync::Contained;

impl<E: Establish> Pool<E> {
    /// Checks out an available connection, if there is one and no check-out is waiting. Never waits or opens a
    /// connection.
    ///
    /// Returns `None` otherwise, and also if the connection is due for a [check](crate::PoolOptions::check_before_use),
    /// or if the pool is paused, suspended or closed. When `None` is returned, no event is emitted, and the metrics do
    /// not count a check-out.
    ///
    /// ```no_run
    /// # async fn example(pool: wharf::Pool<wharf::Endpoint>) -> Result<(), Box<dyn std::error::Error>> {
    /// match pool.try_check_out() {
    ///     Some(mut connection) => println!("{:?}", connection.run_command("admin", &bson::rawdoc! { "ping": 1 }).await?),
    ///     None => println!("busy"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    #[doc(alias = "try_get")]
    #[doc(alias = "try_acquire")]
    pub fn try_check_out(&self) -> Option<Connection<E>> {
        let core = &self.here().core;
        if core.is_suspended() {
            return None;
        }
        if let Some(hit) = core.note_and_try_hit() {
            return Some(Connection::new(hit.begin()));
        }
        let idle = core.try_take_any()?;
        let started = core.check_out_started();
        Some(checked_out(idle, started, Location::caller()))
    }

    /// Makes check-outs wait until [`resume`](Self::resume) is called, even while the pool is paused, when they would
    /// otherwise fail. Returns `false` if the pool was already suspended.
    ///
    /// Connections in use stay in use, and available ones stay open. Check-outs that are already waiting or opening a
    /// connection continue as before. A check-out that is waiting for the pool to be resumed fails at its time limit,
    /// or when the pool is closed. It is not in the queue, so [`PoolStatus::waiting`](crate::PoolStatus::waiting) does
    /// not count it.
    ///
    /// Use it where a pause is better than an error, for example around a planned switch to another server:
    ///
    /// ```no_run
    /// # fn example(pool: wharf::Pool<wharf::Endpoint>) -> Result<(), wharf::InvalidOption> {
    /// pool.suspend();
    /// pool.clear(wharf::Clear::new())?; // connections in use are closed when they come back
    /// // Switch.
    /// pool.ready();
    /// pool.resume();
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "suspend_pool")]
    pub fn suspend(&self) -> bool {
        self.here().core.suspend()
    }

    /// Ends a [suspension](Self::suspend). Returns whether the pool was suspended.
    ///
    /// The check-outs that were waiting for the pool to be resumed continue in the order in which their tasks are
    /// polled.
    #[doc(alias = "resume_pool")]
    pub fn resume(&self) -> bool {
        let core = &self.here().core;
        let was_suspended = core.resume();
        core.environment().changed.notify(usize::MAX);
        was_suspended
    }

    /// Returns whether the pool is [suspended](Self::suspend).
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.here().core.is_suspended()
    }

    /// Changes `maxPoolSize`, `minPoolSize` and `maxConnecting` while the pool is in use. `change` receives the current
    /// [`options`](Self::options), and is called again if another thread resizes the pool at the same time.
    ///
    /// If the pool grows, waiting check-outs open connections immediately, and so does the background task, up to
    /// `minPoolSize`. If it shrinks, no more connections are opened beyond the new maximum. Surplus connections are
    /// closed with the reason "stale", even if check-outs are waiting: available connections immediately, and
    /// connections in use when they are checked in. While there are surplus connections, check-outs and check-ins take
    /// a slower path.
    ///
    /// The number of the pool's shards does not change, because [`PoolBuilder::build`](crate::PoolBuilder::build) chose
    /// it for the original `maxPoolSize`.
    ///
    /// ```no_run
    /// # fn example(pool: wharf::Pool<wharf::Endpoint>) -> Result<(), wharf::InvalidOption> {
    /// pool.resize(|options| options.max_pool_size(20).min_pool_size(5))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the sizes conflict, or if another option was changed. The pool's options then stay as they
    /// were.
    #[doc(alias = "set_max_size")]
    #[doc(alias = "set_maximum_pool_size")]
    pub fn resize(&self, change: impl Fn(PoolOptions) -> PoolOptions) -> Result<(), InvalidOption> {
        let core = &self.here().core;
        loop {
            let present = core.present_options();
            let wanted = change(present.clone());
            wanted.validate()?;
            wanted.check_resize_from(&present)?;
            if core.try_resize(&present, &wanted) {
                return Ok(());
            }
        }
    }

    /// Closes the available connections for which `keep` returns `false`. Returns how many connections it closed.
    ///
    /// Connections in use are left alone. `ConnectionClosed` is emitted with the reason "stale".
    ///
    /// `keep` is called for one connection at a time, outside all locks. During the call, no check-out can get that
    /// connection, or any connection in the same shard that `keep` has not judged yet. So `keep` must be quick. If
    /// `keep` panics, the remaining connections are kept.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// # fn example(pool: wharf::Pool<wharf::Endpoint>) {
    /// let closed = pool.retain(|_connection, usage| usage.age < Duration::from_secs(3_600));
    /// println!("closed {closed} connections of more than an hour");
    /// # }
    /// ```
    pub fn retain(&self, keep: impl FnMut(&mut E::Connection, &Usage) -> bool) -> usize {
        self.here().core.retain(keep)
    }

    /// Opens connections until this many, or `maxPoolSize`, are open. Calls `progress` with the number of open
    /// connections at the start and whenever it changes. Closes stale available connections first, for instance after
    /// [`renew`](Self::renew).
    ///
    /// At most `maxConnecting` connections are opened at a time. Connections in use count, and so do connections that
    /// check-outs open during the call. Check-outs take precedence. This call returns early if the pool's [`Budget`] is
    /// used up. It does not keep the connections open afterwards. To keep connections open, set `minPoolSize`.
    ///
    /// ```no_run
    /// # async fn example(pool: wharf::Pool<wharf::Endpoint>) -> Result<(), wharf::CheckOutError> {
    /// pool.warm_up(20, |open| println!("{open} of 20 connections are open")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as for [`Pool::check_out`], if the pool is not ready or is cleared, or if one of these connections
    /// cannot be opened. Connections that are already open stay open.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost. Connections that are being opened become available once they are open.
    #[doc(alias = "prefill")]
    #[doc(alias = "min_idle")]
    pub async fn warm_up(&self, connections: u32, progress: impl FnMut(u32)) -> Result<(), CheckOutError> {
        let pool = self.here();
        match fork::own(pool.warm_up_here(connections, progress)).await {
            Ok(outcome) => outcome,
            Err(Forked) => Err(self.here().core.refused(self.here().core.refusal())),
        }
    }

    async fn warm_up_here(&self, connections: u32, mut progress: impl FnMut(u32)) -> Result<(), CheckOutError> {
        let core = &self.core;
        let _warm_up = core.begin_warm_up();
        let (mut openings, mut told) = (Vec::<WarmUpOpening>::new(), None);
        // The number of connections that were open at first, and the number that this call has opened. The call returns
        // once their sum is large enough, even if idle connections have since been closed. A renewal replaces all
        // connections, so the call then starts over.
        let (mut generation, mut open_at_first, mut opened) = (None, 0, 0);
        loop {
            // Listens before it reads the status, so that it does not miss a later change.
            let mut change = core.environment().population.listen();
            let present = core.state().generation;
            if generation.replace(present) != Some(present) {
                (open_at_first, opened) = (core.count_open(), 0);
                openings.iter_mut().for_each(|opening| opening.counts = false);
            }
            let wanted = connections.min(self.options().capacity());
            let lacked_budget = core.lacks_budget();
            let has_opened_all = open_at_first + opened >= wanted;
            while !has_opened_all && let Some(pending) = core.create_to_warm_up(wanted) {
                let home = self.home(|| Handle::try_current().ok());
                let home = home.ok_or_else(|| NoRuntimeError::of(core.address()))?;
                let (id, generation) = (pending.id(), pending.generation());
                let task = fork::spawn(home.handle(), open(Arc::clone(core), pending, None, false));
                // The runtime may have shut down.
                let is_finished = task.is_finished();
                openings.push(WarmUpOpening { id, generation, counts: true, home, task });
                if is_finished {
                    break;
                }
            }
            let (status, open) = (core.status(), core.count_open());
            if told.replace(open) != Some(open) {
                progress(open);
            }
            // Checks the earlier reading as well, because the budget may have become free after the attempt to create a
            // connection failed.
            let is_refused = status.pending == 0 && (lacked_budget || core.lacks_budget());
            if open >= wanted || has_opened_all || is_refused {
                return Ok(());
            }
            if status.phase != Phase::Ready {
                return Err(core.refused(core.refusal()));
            }
            poll_fn(|context| {
                // event-listener cannot handle a panicking waker.
                let waker = Contained::new(context.waker().clone()).into();
                let (mut failed, before) = (None, opened);
                openings.retain_mut(|opening| {
                    let Poll::Ready(ended) = Pin::new(&mut opening.task).poll(context) else { return true };
                    match ended {
                        Ok(Ok(Ok(()))) => opened += u32::from(opening.counts),
                        Ok(Ok(Err(error))) => failed = Some(error),
                        Ok(Err(Forked)) => {}
                        Err(error) if error.is_panic() => {
                            let WarmUpOpening { id, generation, .. } = *opening;
                            let error = TaskEnded::failure().in_pool(core.address().clone(), id, generation);
                            failed = Some(error.into());
                        }
                        // Only a runtime that is shutting down cancels the task.
                        Err(_) => opening.home.end(core),
                    }
                    false
                });
                match failed {
                    Some(error) => Poll::Ready(Err(error)),
                    None if opened > before => Poll::Ready(Ok(())),
                    None => Pin::new(&mut change).poll(&mut Context::from_waker(&waker)).map(Ok),
                }
            })
            .await?;
        }
    }

    /// Returns the pool's budget, as set by [`PoolBuilder::budget`](crate::PoolBuilder::budget).
    #[must_use]
    pub fn budget(&self) -> Option<&Budget> {
        self.here().core.environment().budget.as_ref()
    }

    /// Returns a handle that does not keep the pool open.
    #[must_use]
    #[doc(alias = "weak")]
    pub fn downgrade(&self) -> WeakPool<E> {
        WeakPool(Arc::downgrade(&self.shared))
    }
}

/// A connection that [`Pool::warm_up`] is opening.
struct WarmUpOpening {
    id: u64,
    generation: u64,
    /// Whether the connection counts once it is open. After a renewal, it counts as one of the connections that were
    /// open at first.
    counts: bool,
    home: Arc<Home>,
    task: JoinHandle<Result<Result<(), CheckOutError>, Forked>>,
}

/// A handle to a [`Pool`] that does not keep it open: the pool is closed when its last [`Pool`] handle is dropped.
///
/// ```
/// use wharf::{Establish, Pool, WeakPool};
///
/// async fn report<E: Establish>(pool: WeakPool<E>) {
///     while let Some(pool) = pool.upgrade() {
///         println!("{:?}", pool.status());
///         drop(pool);
///         tokio::time::sleep(std::time::Duration::from_secs(10)).await;
///     }
/// }
/// ```
pub struct WeakPool<E: Establish>(Weak<Shared<E>>);

impl<E: Establish> WeakPool<E> {
    /// Returns a handle that keeps the pool open. Returns `None` if no [`Pool`] handle is left.
    #[must_use]
    pub fn upgrade(&self) -> Option<Pool<E>> {
        self.0.upgrade().map(Pool::of)
    }
}

impl<E: Establish> Clone for WeakPool<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E: Establish> fmt::Debug for WeakPool<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakPool")
    }
}
