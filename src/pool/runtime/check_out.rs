//! A check-out from start to finish. Its future is optimized for a check-out that completes at its first poll.

use std::future::Future;
use std::mem::{ManuallyDrop, MaybeUninit};
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
use crate::pool::core::{Acquire, Environment, Grant, Hit, Idle, Phase, Refusal, Started};
use crate::pool::error::CheckOutError;
use crate::pool::runtime::{Boxed, boxed};

/// The source location of the call to the check-out method.
pub(super) type Site = &'static Location<'static>;

type Outcome<E> = Result<Connection<E>, CheckOutError>;

pin_project! {
    /// A check-out's future. It looks for a connection in the calling thread's stack first. If there is none, it waits
    /// on the future that `wait` returns.
    ///
    /// It is not an `async fn`, because an `async fn` sets up, looks up and tears down its state at each check-out,
    /// which would take as many instructions as taking the connection itself. It is not an enum either, because its
    /// variants would be built elsewhere and copied. Such a copy loads wider units than the preceding stores wrote, so
    /// it stalls until these stores have completed. The stall took 5 % of a hand-over's time.
    #[project = CheckOutParts]
    pub(super) struct CheckOut<'p, E: Establish, W> {
        // The caller's handle or, once the check-out is waiting, this process's handle.
        pool: &'p Pool<E>,
        site: Site,
        state: CheckOutState,
        // Present once the check-out is waiting.
        started: MaybeUninit<Started>,
        wait: W,
        // Present while the state is `Waits`. Only `poll_waiting` and `drop_waiting` drop it.
        #[pin]
        waiting: MaybeUninit<Waiting<'p, E>>,
    }

    impl<'p, E: Establish, W> PinnedDrop for CheckOut<'p, E, W> {
        fn drop(this: Pin<&mut Self>) {
            if this.state == CheckOutState::Waits {
                this.drop_waiting();
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckOutState {
    Begins,
    Waits,
    /// The check-out waited and has finished.
    Ended,
}

pin_project! {
    #[project = Way]
    pub(super) enum Waiting<'p, E: Establish> {
        /// Waiting in the queue without a time limit, which is the most common case.
        Queue { #[pin] acquire: Acquire<'p, TokioEnvironment<E>> },
        /// Waiting in any other way.
        Otherwise { future: Boxed<'p, Acquired<E>> },
    }
}

impl<'p, E: Establish, W> CheckOut<'p, E, W> {
    /// Drops a waiting check-out.
    ///
    /// In a forked child, the wait is leaked. Its ticket is in the parent's queue, whose lock may be held by a thread
    /// that does not exist in the child. The future's memory may still be freed, because nothing in the child uses that
    /// queue.
    ///
    /// This is a separate function, so that dropping a check-out that never waited takes one comparison.
    #[inline(never)]
    #[allow(unsafe_code)]
    fn drop_waiting(self: Pin<&mut Self>) {
        let CheckOutParts { pool, site, state, started, waiting, .. } = self.project();
        // SAFETY: the state was `Waits`, so `started` is present.
        let started = StartedCheckOut { pool, started: unsafe { started.assume_init() }, site };
        *state = CheckOutState::Ended;
        if !started.is_inherited() {
            // SAFETY: the state was `Waits`, so `waiting` is present. The state already says that `waiting` is gone,
            // and `waiting` is not moved.
            unsafe { waiting.get_unchecked_mut().assume_init_drop() };
        }
    }
}

impl<'p, E: Establish, W: Fn(&'p Pool<E>) -> Waiting<'p, E>> CheckOut<'p, E, W> {
    #[inline]
    pub(super) fn new(pool: &'p Pool<E>, site: Site, wait: W) -> Self {
        let state = CheckOutState::Begins;
        Self { pool, site, state, started: MaybeUninit::uninit(), wait, waiting: MaybeUninit::uninit() }
    }

    /// Continues a poll that has not found a connection at once.
    #[inline(never)]
    #[allow(unsafe_code)]
    fn poll_otherwise(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<E>> {
        let mut parts = self.project();
        match *parts.state {
            CheckOutState::Begins => {}
            CheckOutState::Waits => return parts.poll_waiting::<true>(context),
            CheckOutState::Ended => panic!("a check-out was polled after its end"),
        }
        let pool = parts.pool.here();
        // The first attempt cannot have succeeded if the thread had no note of the pool, or if this is a forked child
        // and the handle belongs to its parent.
        if (!pool.core.is_noted() || !ptr::eq(pool, *parts.pool))
            && let Some(hit) = pool.core.note_and_try_hit()
        {
            return Poll::Ready(Ok(Connection::new(hit.begin())));
        }
        let started = match StartedCheckOut::begin(pool, parts.site) {
            Ok(connection) => return Poll::Ready(Ok(connection)),
            Err(started) => started,
        };
        // Counts the check-out as cancelled if the following code panics.
        let guard = StartedCheckOut { pool, started, site: parts.site };
        // SAFETY: `waiting` is empty, so nothing is moved out of it.
        let waiting = unsafe { parts.waiting.as_mut().get_unchecked_mut() };
        waiting.write((parts.wait)(pool));
        if traced::is_wanted(pool) {
            // SAFETY: `waiting` has just been written and has not been polled yet, so it may be moved.
            let observed = traced::observed(pool, unsafe { waiting.assume_init_read() });
            waiting.write(observed);
        }
        std::mem::forget(guard);
        *parts.pool = pool;
        parts.started.write(started);
        *parts.state = CheckOutState::Waits;
        parts.poll_waiting::<false>(context)
    }
}

impl<'p, E: Establish, W> CheckOutParts<'_, 'p, E, W> {
    /// Polls the wait. `HAS_WAITED` says whether it has been polled before.
    #[inline]
    #[allow(unsafe_code)]
    fn poll_waiting<const HAS_WAITED: bool>(self, context: &mut Context<'_>) -> Poll<Outcome<E>> {
        let Self { pool, site, state, started, mut waiting, .. } = self;
        // SAFETY: the state is `Waits`, so `started` is present.
        let (pool, site, started) = (*pool, *site, unsafe { started.assume_init() });
        if pool.core.environment().is_inherited() {
            // `waiting` is leaked, as in `drop_waiting`.
            *state = CheckOutState::Ended;
            return Poll::Ready(Err(StartedCheckOut { pool, started, site }.fail_after_fork()));
        }
        // SAFETY: the state is `Waits`, so `waiting` is present. It is pinned, and is never moved.
        let pinned = unsafe { waiting.as_mut().map_unchecked_mut(|waiting| waiting.assume_init_mut()) };
        let outcome =
            ready!(if HAS_WAITED { pinned.poll_again_for(pool, context) } else { pinned.poll_for(pool, context) });
        let started = if HAS_WAITED { started.waited() } else { started };
        let started = StartedCheckOut { pool, started, site };
        *state = CheckOutState::Ended;
        // SAFETY: now that the state is `Ended`, nothing else drops or uses `waiting`, and it is not moved.
        unsafe { waiting.get_unchecked_mut().assume_init_drop() };
        Poll::Ready(match outcome {
            Ok(idle) => Ok(started.succeed(idle)),
            Err(error) => Err(started.fail(error)),
        })
    }
}

impl<'p, E: Establish> Waiting<'p, E> {
    /// Polls the wait, which may begin with this poll.
    #[inline]
    pub(super) fn poll_for(self: Pin<&mut Self>, pool: &'p Pool<E>, context: &mut Context<'_>) -> Poll<Acquired<E>> {
        self.poll_with(pool, context, |acquire, context| acquire.poll(context))
    }

    /// Like [`poll_for`](Self::poll_for), but for a wait that has been polled before.
    #[inline]
    fn poll_again_for(self: Pin<&mut Self>, pool: &'p Pool<E>, context: &mut Context<'_>) -> Poll<Acquired<E>> {
        self.poll_with(pool, context, Acquire::poll_again)
    }

    #[inline(always)]
    fn poll_with(
        mut self: Pin<&mut Self>,
        pool: &'p Pool<E>,
        context: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut Acquire<'p, TokioEnvironment<E>>>, &mut Context<'_>) -> Poll<Grant<TokioEnvironment<E>>>,
    ) -> Poll<Acquired<E>> {
        if let Way::Queue { acquire } = self.as_mut().project() {
            match ready!(poll(acquire, context)) {
                Grant::Connection(idle) if !idle.is_stale() && !idle.needs_check() => return Poll::Ready(Ok(idle)),
                other => self.set(Self::Otherwise { future: boxed(|| pool.obtain_unlimited(other)) }),
            }
        }
        match self.project() {
            Way::Otherwise { future } => future.as_mut().poll(context),
            Way::Queue { .. } => unreachable!("BUG: a check-out is still in the queue after its grant"),
        }
    }
}

impl<'p, E: Establish, W: Fn(&'p Pool<E>) -> Waiting<'p, E>> Future for CheckOut<'p, E, W> {
    type Output = Outcome<E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Every call is a tail call, so that paths without a call do not save registers. In a forked child, an inherited
        // pool never has hits.
        if self.state == CheckOutState::Begins
            && let Some(hit) = self.pool.core.try_hit()
        {
            return if hit.is_timed() { begin_timed(hit) } else { Poll::Ready(Ok(Connection::new(hit.begin()))) };
        }
        self.poll_otherwise(context)
    }
}

#[cold]
#[inline(never)]
fn begin_timed<E: Establish>(hit: Hit<TokioEnvironment<E>>) -> Poll<Outcome<E>> {
    Poll::Ready(Ok(Connection::new(hit.begin())))
}

/// A started check-out, which must end with an event.
struct StartedCheckOut<'p, E: Establish> {
    pool: &'p Pool<E>,
    started: Started,
    site: Site,
}

impl<'p, E: Establish> StartedCheckOut<'p, E> {
    /// Starts a check-out. Returns a connection if the calling thread's stack contains one. Otherwise, the check-out
    /// has to wait, and its [`Started`] is returned.
    #[inline]
    fn begin(pool: &'p Pool<E>, site: Site) -> Result<Connection<E>, Started> {
        let core = &pool.core;
        let started = core.check_out_started();
        if !core.is_suspended()
            && let Some(idle) = core.try_take()
        {
            return Ok(checked_out(idle, started, site));
        }
        // The clock is read before the other shards are searched, so that the time of a waiting check-out includes the
        // search.
        Err(if TokioEnvironment::<E>::METERED { started.read(core) } else { started })
    }

    /// Returns whether this is a forked child and the check-out is waiting in its parent's queue.
    #[inline]
    fn is_inherited(&self) -> bool {
        self.pool.core.environment().is_inherited()
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

    /// Fails a check-out that was waiting at the time of the fork. The child's pool behaves like a pool that has been
    /// cleared, so the check-out fails with the same error as after a clear.
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

/// Checks out a connection that was not a hit, and notes its holder.
#[inline]
pub(super) fn checked_out<E: Establish>(
    idle: Idle<TokioEnvironment<E>>,
    started: Started,
    site: Site,
) -> Connection<E> {
    idle.note_holder(site);
    Connection::new(idle.check_out(started))
}

impl<E: Establish> Drop for StartedCheckOut<'_, E> {
    fn drop(&mut self) {
        // In a forked child, the check-out is still waiting in the parent, which counts it.
        if TokioEnvironment::<E>::METERED && !self.is_inherited() {
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
