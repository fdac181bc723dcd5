//! A check-out from its start to its end. Its future is optimized for the check-out that completes at its first poll.

use std::future::Future;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::pin::Pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::connection::Connection;
use super::environment::TokioEnvironment;
use super::establish::Establish;
use super::fork::Forked;
use super::opening::Acquired;
use super::pool::Pool;
use super::traced;
use crate::boxed::boxed;
use crate::error::CheckOutError;
use crate::pool::{Acquire, Environment, Grant, Hit, Idle, Phase, Refusal, Started};

/// The line that called for the check-out.
type Site = &'static Location<'static>;

type Outcome<E> = Result<Connection<E>, CheckOutError>;

pin_project! {
    /// The future of a check-out. It looks for a connection in the calling thread's stack first. If there is none, it
    /// becomes the [`Waiting`] that `wait` makes.
    ///
    /// It is not an `async fn`, which would set up, look up and tear down its state at each check-out. That would take
    /// as many instructions as taking the connection.
    #[project = Stage]
    pub(super) enum CheckOut<'p, E: Establish, W> {
        Begins { pool: &'p Pool<E>, site: Site, wait: W },
        Waits {
            // Taken when `waiting` is dropped. Only `poll` and `drop_waiting` drop either of them.
            started: ManuallyDrop<Option<StartedCheckOut<'p, E>>>,
            #[pin]
            waiting: ManuallyDrop<Waiting<'p, E>>,
        },
    }

    impl<'p, E: Establish, W> PinnedDrop for CheckOut<'p, E, W> {
        fn drop(this: Pin<&mut Self>) {
            if let Stage::Waits { started, waiting } = this.project()
                && started.is_some()
            {
                drop_waiting(started, waiting);
            }
        }
    }
}

/// Drops a wait and what is known of its check-out. `started` is `Some`.
///
/// In a forked child, the wait is leaked. Its node is in the parent's queue, and the queue's lock may be held by a thread
/// that the child does not have. The memory of the future may still be freed, because nothing in the child uses that queue.
///
/// A function of its own, so that a check-out that never waited is dropped by one comparison.
#[inline(never)]
#[allow(unsafe_code)]
fn drop_waiting<'p, E: Establish>(
    started: &mut Option<StartedCheckOut<'p, E>>,
    waiting: Pin<&mut ManuallyDrop<Waiting<'p, E>>>,
) {
    let started = started.take();
    if started.as_ref().is_some_and(|started| !started.is_the_parents()) {
        // SAFETY: `waiting` is dropped nowhere else while `started` is `Some`, which it no longer is. Nothing uses
        // `waiting` afterwards, and it is not moved.
        unsafe { ManuallyDrop::drop(waiting.get_unchecked_mut()) };
    }
}

pin_project! {
    /// How a check-out waits.
    #[project = Way]
    pub(super) enum Waiting<'p, E: Establish> {
        /// In the queue, without a time limit. Only a check-out that does not wait at all is as frequent.
        Queue { #[pin] acquire: Acquire<'p, TokioEnvironment<E>> },
        /// In any other way.
        Otherwise { future: Pin<Box<dyn Future<Output = Acquired<E>> + Send + 'p>> },
    }
}

impl<'p, E: Establish, W: Fn(&'p Pool<E>) -> Waiting<'p, E> + Copy> CheckOut<'p, E, W> {
    pub(super) fn new(pool: &'p Pool<E>, site: Site, wait: W) -> Self {
        Self::Begins { pool, site, wait }
    }

    /// Does what a poll does that finds no connection at once.
    #[inline(never)]
    #[allow(unsafe_code)]
    fn poll_otherwise(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<E>> {
        let Stage::Begins { pool, site, wait } = self.as_mut().project() else {
            return self.poll_waiting::<true>(context);
        };
        let (pool, site) = (pool.here(), *site);
        match StartedCheckOut::begin(pool, site) {
            Ok(connection) => return Poll::Ready(Ok(connection)),
            Err(started) => {
                // Counts the check-out as cancelled if what follows panics.
                let started = StartedCheckOut { pool, started, site };
                let waiting = ManuallyDrop::new(traced::observed(pool, wait(pool)));
                // Each field goes to its place from a register. To copy the whole after its parts were written, as
                // `Pin::set` would, is to wait until they are written: that took a twentieth of a hand-over.
                let StartedCheckOut { pool, started, site } = *ManuallyDrop::new(started);
                let started = ManuallyDrop::new(Some(StartedCheckOut { pool, started, site }));
                let waits = Self::Waits { started, waiting };
                // SAFETY: the fields of `Begins` are neither pinned nor in need of being dropped (`W: Copy`).
                unsafe { ptr::write(self.as_mut().get_unchecked_mut(), waits) };
            }
        }
        self.poll_waiting::<false>(context)
    }

    /// Polls the wait. `HAS_WAITED`: whether it was polled before.
    #[inline]
    #[allow(unsafe_code)]
    fn poll_waiting<const HAS_WAITED: bool>(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<E>> {
        let Stage::Waits { started, mut waiting } = self.project() else {
            unreachable!("BUG: a check-out waits before it has started")
        };
        let Some(present) = &**started else { panic!("a check-out was polled after its end") };
        if present.is_the_parents() {
            let started = started.take();
            return Poll::Ready(Err(started
                .map(StartedCheckOut::fail_after_fork)
                .expect("BUG: a started check-out is gone")));
        }
        // SAFETY: the value inside a pinned `ManuallyDrop` is pinned too, and it is never moved.
        let pinned = unsafe { waiting.as_mut().map_unchecked_mut(|waiting| &mut **waiting) };
        let outcome = ready!(pinned.poll_for(present.pool, context));
        let mut started = started.take().expect("BUG: a started check-out is gone");
        if HAS_WAITED {
            started.started = started.started.waited();
        }
        // SAFETY: now that `started` is `None`, nothing else drops or uses `waiting`, and it is not moved.
        unsafe { ManuallyDrop::drop(waiting.get_unchecked_mut()) };
        Poll::Ready(match outcome {
            Ok(idle) => Ok(started.succeed(idle)),
            Err(error) => Err(started.fail(error)),
        })
    }
}

impl<'p, E: Establish> Waiting<'p, E> {
    #[inline]
    pub(super) fn poll_for(
        mut self: Pin<&mut Self>,
        pool: &'p Pool<E>,
        context: &mut Context<'_>,
    ) -> Poll<Acquired<E>> {
        if let Way::Queue { acquire } = self.as_mut().project() {
            match ready!(acquire.poll(context)) {
                Grant::Connection(idle) if !idle.is_stale() => return Poll::Ready(Ok(idle)),
                other => self.set(Self::Otherwise { future: boxed(|| pool.obtain_unlimited(other)) }),
            }
        }
        match self.project() {
            Way::Otherwise { future } => future.as_mut().poll(context),
            Way::Queue { .. } => unreachable!("BUG: a check-out is still in the queue after its grant"),
        }
    }
}

impl<'p, E: Establish, W: Fn(&'p Pool<E>) -> Waiting<'p, E> + Copy> Future for CheckOut<'p, E, W> {
    type Output = Outcome<E>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // The calls are the last steps, so that no register is saved for those that need none of them. A pool that a forked
        // child inherits has no hit there.
        if let Stage::Begins { pool, .. } = self.as_mut().project()
            && let Some(hit) = pool.core.try_hit()
        {
            return if hit.is_timed() { begin_timed(hit) } else { Poll::Ready(Ok(Connection::new(hit.begin()))) };
        }
        self.poll_otherwise(context)
    }
}

/// Begins a use whose time is measured.
#[cold]
#[inline(never)]
fn begin_timed<E: Establish>(hit: Hit<TokioEnvironment<E>>) -> Poll<Outcome<E>> {
    Poll::Ready(Ok(Connection::new(hit.begin())))
}

/// A check-out that has started and must end with an event.
struct StartedCheckOut<'p, E: Establish> {
    pool: &'p Pool<E>,
    started: Started,
    site: Site,
}

impl<'p, E: Establish> StartedCheckOut<'p, E> {
    /// Starts a check-out. Returns its connection if there is one in the calling thread's stack. Otherwise the check-out
    /// has to wait.
    #[inline]
    fn begin(pool: &'p Pool<E>, site: Site) -> Result<Connection<E>, Started> {
        let core = &pool.core;
        let started = core.check_out_started();
        if let Some(idle) = core.try_take() {
            return Ok(checked_out(idle, started, site));
        }
        // Before the search on other shards, so that the time of a check-out that then waits is all of its time.
        Err(if E::METERED { started.read(core) } else { started })
    }

    /// Returns whether this is a forked child, and the check-out waits in its parent's queue.
    #[inline]
    fn is_the_parents(&self) -> bool {
        self.pool.core.environment().is_the_parents()
    }

    #[inline]
    fn succeed(self, idle: Idle<TokioEnvironment<E>>) -> Connection<E> {
        let connection = checked_out(idle, self.started, self.site);
        std::mem::forget(self);
        connection
    }

    fn fail(self, error: CheckOutError) -> CheckOutError {
        let Self { pool, started, .. } = *ManuallyDrop::new(self);
        pool.core.check_out_failed(started, error)
    }

    /// Fails a check-out that waited at the fork. The child's pool behaves as the parent's after a clear, so the error
    /// is that of a cleared pool.
    #[cold]
    fn fail_after_fork(self) -> CheckOutError {
        let Self { pool, started, .. } = *ManuallyDrop::new(self);
        let core = &pool.here().core;
        let refusal = match core.state().phase {
            Phase::Closed => Refusal::Closed,
            Phase::Paused | Phase::Ready => Refusal::Paused { cause: Some(Arc::new(Forked)), never_ready: false },
        };
        core.check_out_failed(started, core.refused(refusal))
    }
}

/// Checks out a connection that did not come by the shortest path, and notes its holder.
#[inline]
fn checked_out<E: Establish>(idle: Idle<TokioEnvironment<E>>, started: Started, site: Site) -> Connection<E> {
    idle.note_holder(site);
    Connection::new(idle.check_out(started))
}

impl<E: Establish> Drop for StartedCheckOut<'_, E> {
    fn drop(&mut self) {
        // In a forked child, the check-out still waits in the parent, which counts it.
        if E::METERED && !self.is_the_parents() {
            self.pool.core.count_cancelled();
        }
        if self.pool.core.environment().listens() {
            // In a forked child, the child's pool emits the event.
            self.pool.here().core.check_out_cancelled(self.started);
        }
    }
}

#[cfg(all(test, not(feature = "event-listener-queue")))]
mod tests;
