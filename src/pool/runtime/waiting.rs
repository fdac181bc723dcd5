//! The wait of a check-out that does not find a connection at once: in the queue, or for a connection that is being
//! opened for it.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::Span;

use super::environment::TokioEnvironment;
use super::establish::Establish;
use super::fork::{self, Forked};
use super::home::Home;
use super::opening::{self, OpenRequest};
use super::pool::Pool;
use super::timer::{Lapse, polled_at, within};
use crate::pool::core::{Grant, Idle, Permit, Phase};
use crate::pool::error::{CheckOutError, NoRuntimeError, TimeLimit};
use crate::pool::sync::{Contained, Watch};

enum Opened<E: Establish> {
    Ended(opening::Acquired<E>),
    /// Another connection was returned first.
    Returned(Idle<TokioEnvironment<E>>),
    /// The runtime of the opening task has shut down, and the permit was dropped with the task.
    RuntimeEnded,
}

#[derive(Clone, Copy)]
pub(super) struct TimeLimits {
    begun: Instant,
    /// When the whole check-out times out, and under which limit.
    whole: Option<(Instant, TimeLimit)>,
    /// When the check-out times out if it is still in the queue or is checking a connection.
    queue: Option<Instant>,
    /// Whether the caller polls the check-out at each of these instants, so that no timer is needed.
    by_caller: bool,
}

impl TimeLimits {
    pub(super) fn none() -> Self {
        Self { begun: Instant::now(), whole: None, queue: None, by_caller: false }
    }

    /// Returns the limits that the pool's options set: `timeoutMS` or, without it, `waitQueueTimeoutMS` (CSOT, "Server
    /// Selection"). A limit that the clock cannot represent is ignored.
    pub(super) fn of_options<E: Establish>(pool: &Pool<E>) -> Self {
        let none = Self::none();
        let after = |time: Duration| if time.is_zero() { None } else { none.begun.checked_add(time) };
        match pool.core.environment().timeout {
            Some(timeout) => Self { whole: after(timeout).map(|at| (at, TimeLimit::Timeout)), ..none },
            None => Self { queue: after(pool.core.options().wait_queue_timeout), ..none },
        }
    }

    /// Returns the limits for a thread that enforces them itself. `limit`, if given, is how long the check-out may take
    /// in total.
    pub(super) fn kept_by_thread(self, limit: Option<Duration>) -> Self {
        let whole = match limit {
            Some(limit) => self.begun.checked_add(limit).map(|at| (at, TimeLimit::Deadline)),
            None => self.whole,
        };
        Self { whole, by_caller: true, ..self }
    }

    /// Postpones the limit for the queue by the duration of an opening, which does not count as time in the queue.
    fn put_off(&mut self, opening_took: Duration) {
        self.queue = self.queue.and_then(|at| at.checked_add(opening_took));
    }

    /// Returns the instants at which the check-out may time out, if it does not open a connection.
    pub(super) fn instants(&self) -> [Option<Instant>; 2] {
        [self.queue, self.whole.map(|(at, _)| at)]
    }

    fn all(&self) -> impl Iterator<Item = (Instant, TimeLimit)> {
        let queue = self.queue.map(|at| (at, TimeLimit::WaitQueueTimeout));
        [queue, self.whole].into_iter().flatten()
    }

    /// Returns the limit that a check-out in the queue reaches first.
    fn in_queue(&self) -> Option<(Instant, TimeLimit)> {
        self.all().min_by_key(|(at, _)| *at)
    }
}

impl<E: Establish> Pool<E> {
    /// Returns whether the pool's options limit a check-out without a deadline.
    pub(super) fn limits_check_outs(&self) -> bool {
        match self.core.environment().timeout {
            Some(timeout) => !timeout.is_zero(),
            None => !self.core.options().wait_queue_timeout.is_zero(),
        }
    }

    /// Waits for a connection within the limits of the pool's options.
    pub(super) async fn obtain_in_options_time(&self) -> opening::Acquired<E> {
        self.obtain(None, TimeLimits::of_options(self)).await
    }

    /// Waits for a connection until a deadline, but for at most `waitQueueTimeoutMS`, if that option applies.
    pub(super) async fn obtain_until(&self, deadline: Instant) -> opening::Acquired<E> {
        let limits = TimeLimits { whole: Some((deadline, TimeLimit::Deadline)), ..TimeLimits::of_options(self) };
        self.obtain(None, limits).await
    }

    /// Waits for a connection until the operation's time is up.
    pub(super) async fn obtain_within_operation(&self, end: Instant, limit: TimeLimit) -> opening::Acquired<E> {
        let limits = TimeLimits { whole: Some((end, limit)), ..TimeLimits::none() };
        self.obtain(None, limits).await
    }

    /// Waits for a connection within these limits.
    pub(super) async fn obtain_within(&self, limits: TimeLimits) -> opening::Acquired<E> {
        self.obtain(None, limits).await
    }

    /// Waits for a connection without a time limit. `grant` is the grant that the check-out already has.
    pub(super) async fn obtain_unlimited(&self, grant: Grant<TokioEnvironment<E>>) -> opening::Acquired<E> {
        self.obtain(Some(grant), TimeLimits::none()).await
    }

    /// Waits for a grant, unless the check-out already has one, and returns the connection that the grant leads to.
    async fn obtain(
        &self,
        mut grant: Option<Grant<TokioEnvironment<E>>>,
        mut limits: TimeLimits,
    ) -> opening::Acquired<E> {
        let core = &self.core;
        if grant.is_none() {
            self.resumed(&limits).await?;
            self.refuse_late(&limits)?;
        }
        loop {
            let granted = match grant.take() {
                Some(granted) => granted,
                None => self.granted_in_time(core.acquire(), &limits).await?,
            };
            match granted {
                // The connection became stale between the grant and this poll. If the pool was cleared or closed, the
                // check-out is refused as if it were still waiting. Otherwise the connection's runtime has shut down,
                // its service has been cleared, or the pool has been marked ready again. In each case, the check-out
                // keeps its turn.
                Grant::Connection(idle) if idle.is_stale() => {
                    grant = Some(self.granted_in_time(core.reacquire(idle), &limits).await?);
                }
                Grant::Connection(idle) if idle.needs_check() => {
                    let checked = self.in_time(limits.in_queue(), limits.by_caller, self.check(idle)).await;
                    grant = Some(match checked.map_err(|lapsed| self.error_of(lapsed, &limits))? {
                        Ok(idle) if idle.is_stale() => self.granted_in_time(core.reacquire(idle), &limits).await?,
                        Ok(idle) => return Ok(idle),
                        Err(useless) => self.granted_in_time(core.reacquire(useless), &limits).await?,
                    });
                }
                Grant::Connection(idle) => return Ok(idle),
                Grant::Permit(permit) => {
                    let begun = Instant::now();
                    match self.open(permit, &limits).await {
                        Opened::Ended(outcome) => return outcome,
                        Opened::Returned(idle) => grant = Some(Grant::Connection(idle)),
                        Opened::RuntimeEnded => {}
                    }
                    limits.put_off(begun.elapsed());
                }
                Grant::Refused(refusal) => return Err(core.refused(*refusal)),
            }
        }
    }

    /// Waits while the pool is suspended, unless it is closed.
    async fn resumed(&self, limits: &TimeLimits) -> Result<(), CheckOutError> {
        let core = &self.core;
        if !core.is_suspended() {
            return Ok(());
        }
        let is_over = || !core.is_suspended() || core.state().phase == Phase::Closed;
        // A forked child leaks this future instead of dropping it, so it does not take the lock on the watch's list.
        let mut change = Watch::new(&core.environment().changed);
        let over = poll_fn(|context| {
            // event-listener cannot handle a panicking waker.
            let waker = Contained::new(context.waker().clone()).into();
            change.poll(&mut Context::from_waker(&waker), is_over)
        });
        let waited = self.in_time(limits.in_queue(), limits.by_caller, over).await;
        waited.map_err(|lapsed| self.error_of(lapsed, limits))
    }

    /// Refuses a check-out that would be served too late, if
    /// [`PoolOptions::refuse_late`](crate::PoolOptions::refuse_late) is set.
    fn refuse_late(&self, limits: &TimeLimits) -> Result<(), CheckOutError> {
        let core = &self.core;
        if !core.options().refuse_late {
            return Ok(());
        }
        let now = Instant::now();
        let mut late = limits.all().filter_map(|(at, limit)| core.too_late(at.saturating_duration_since(now), limit));
        late.next().map_or(Ok(()), |late| Err(core.queue_full(Some(late))))
    }

    async fn granted_in_time(
        &self,
        acquire: impl Future<Output = Grant<TokioEnvironment<E>>>,
        limits: &TimeLimits,
    ) -> Result<Grant<TokioEnvironment<E>>, CheckOutError> {
        let lapsed = {
            let mut acquire = pin!(acquire);
            // An immediate grant does not need a timer.
            if let Poll::Ready(grant) = poll_fn(|context| Poll::Ready(acquire.as_mut().poll(context))).await {
                return Ok(grant);
            }
            match self.in_time(limits.in_queue(), limits.by_caller, acquire).await {
                Ok(grant) => return Ok(grant),
                Err(lapsed) => lapsed,
            }
        };
        // The check-out has left the queue by now, so the error does not count it as a waiter.
        Err(self.error_of(lapsed, limits))
    }

    async fn in_time<T>(
        &self,
        limit: Option<(Instant, TimeLimit)>,
        by_caller: bool,
        future: impl Future<Output = T>,
    ) -> Result<T, (Lapse, TimeLimit)> {
        let Some((at, limit)) = limit else { return Ok(future.await) };
        if by_caller {
            return polled_at(at, future).await.ok_or((Lapse::TimeUp, limit));
        }
        within(at, || self.core.environment().living_runtime(), future).await.map_err(|lapse| (lapse, limit))
    }

    fn error_of(&self, (lapse, limit): (Lapse, TimeLimit), limits: &TimeLimits) -> CheckOutError {
        match lapse {
            Lapse::TimeUp => self.core.timed_out(limits.begun.elapsed(), limit),
            Lapse::NoRuntime => NoRuntimeError::of(self.core.address()).into(),
        }
    }

    /// Spawns a task that opens a connection. Waits, up to the limit, for that connection or for another connection
    /// that is returned sooner. In a pool that does not spawn tasks, the opening is part of this future.
    ///
    /// If another connection is returned first, or the time is up, the new connection goes to the next waiter or
    /// becomes available once it is open. If another connection is returned before the new connection has been created,
    /// the new connection is never created.
    ///
    /// If a returned connection and the outcome of the check-out's own opening are both available when the check-out is
    /// polled, it takes the returned connection. So it succeeds even if its own connection could not be opened.
    async fn open(&self, permit: Permit<TokioEnvironment<E>>, limits: &TimeLimits) -> Opened<E> {
        let core = &self.core;
        let mut returned = pin!(self.returned());
        // A connection may have been returned between the grant of the permit and this poll.
        if let Poll::Ready(idle) = poll_fn(|context| Poll::Ready(returned.as_mut().poll(context))).await {
            return Opened::Returned(idle);
        }
        // If the pool has no live runtime, it moves to the runtime that is polling the caller.
        let Some(home) = self.home(|| Handle::try_current().ok()) else {
            return Opened::Ended(Err(NoRuntimeError::of(core.address()).into()));
        };
        let request = Arc::new(OpenRequest::new(Arc::clone(core), permit));
        let (requester, outcome) = oneshot::channel();
        let opening = opening::open_for(request.clone(), requester, Span::current());
        let (task, opening) = match core.environment().has_tasks {
            true => (Some(fork::spawn(home.handle(), opening)), None),
            false => (None, Some(fork::own(opening))),
        };
        let first = async {
            tokio::select! {
                biased;
                idle = returned => {
                    drop(request.take_permit());
                    Opened::Returned(idle)
                }
                opened = self.opened(&request, outcome, task, &home) => opened,
            }
        };
        let first = beside(opening, first);
        match self.in_time(limits.whole, limits.by_caller, first).await {
            Ok(opened) => opened,
            Err(lapsed) => Opened::Ended(Err(self.error_of(lapsed, limits))),
        }
    }

    /// Waits for the outcome of the check-out's own opening, which may run in a task.
    async fn opened(
        &self,
        request: &OpenRequest<E>,
        outcome: oneshot::Receiver<opening::Acquired<E>>,
        task: Option<JoinHandle<Result<(), Forked>>>,
        home: &Home,
    ) -> Opened<E> {
        match outcome.await {
            // The connection is unusable, because the I/O driver of its runtime has stopped.
            Ok(Ok(_idle)) if home.has_ended() => Opened::RuntimeEnded,
            Ok(Ok(idle)) => {
                request.end_opening();
                idle.mark_opened();
                Opened::Ended(Ok(idle))
            }
            Ok(failed) => Opened::Ended(failed),
            Err(_gone) => {
                // Only a runtime that is shutting down cancels the task.
                let is_cancelled = match task {
                    Some(task) => task.await.is_err_and(|error| error.is_cancelled()),
                    None => false,
                };
                if is_cancelled {
                    home.end(&self.core);
                    return Opened::RuntimeEnded;
                }
                Opened::Ended(Err(request.task_ended()))
            }
        }
    }

    /// Waits, as an opener, for a connection that is returned. Skips stale connections.
    async fn returned(&self) -> Idle<TokioEnvironment<E>> {
        loop {
            let idle = self.core.acquire_as_opener().await;
            if !idle.is_stale() {
                return idle;
            }
            // The pool was cleared or closed between the grant and this poll.
        }
    }
}

/// Waits for `future`. If there is an `opening`, polls it at the same time.
async fn beside<T>(mut opening: Option<impl Future + Unpin>, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    poll_fn(|context| {
        if opening.as_mut().is_some_and(|opening| Pin::new(opening).poll(context).is_ready()) {
            opening = None;
        }
        future.as_mut().poll(context)
    })
    .await
}
