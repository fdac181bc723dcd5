//! How a check-out waits that finds no connection at once: in the queue, or for one that it has opened.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::environment::TokioEnvironment;
use super::establish::Establish;
use super::fork;
use super::opening::{self, OpenRequest};
use super::pool::Pool;
use super::timer::{Lapse, within};
use crate::error::{CheckOutError, NoRuntimeError, TimeLimit};
use crate::pool::{Grant, Idle, Permit, Phase};

/// What came of opening a connection.
enum Opened<E: Establish> {
    Ended(opening::Acquired<E>),
    /// The runtime of the task that was opening it has ended, and the right to open one with it.
    RuntimeEnded,
}

/// Until when a check-out waits.
struct TimeLimits {
    begun: Instant,
    /// When it ends, whatever it waits for then, and by which limit.
    whole: Option<(Instant, TimeLimit)>,
    /// When it ends if it waits in the queue then.
    queue: Option<Instant>,
}

impl TimeLimits {
    fn none() -> Self {
        Self { begun: Instant::now(), whole: None, queue: None }
    }

    /// The limits that the pool's options set: `timeoutMS`, or without it `waitQueueTimeoutMS` (CSOT, "Server
    /// Selection"). A limit beyond the clock's reach is none.
    fn of_options<E: Establish>(pool: &Pool<E>) -> Self {
        let none = Self::none();
        let after = |time: Duration| if time.is_zero() { None } else { none.begun.checked_add(time) };
        match pool.core.environment().timeout {
            Some(timeout) => Self { whole: after(timeout).map(|at| (at, TimeLimit::Timeout)), ..none },
            None => Self { queue: after(pool.core.options().wait_queue_timeout), ..none },
        }
    }

    /// The limit that comes first for a check-out that waits in the queue.
    fn in_queue(&self) -> Option<(Instant, TimeLimit)> {
        let queue = self.queue.map(|at| (at, TimeLimit::WaitQueueTimeout));
        [queue, self.whole].into_iter().flatten().min_by_key(|(at, _)| *at)
    }
}

impl<E: Establish> Pool<E> {
    /// Whether the pool's options limit a check-out that has no deadline.
    pub(super) fn limits_check_outs(&self) -> bool {
        match self.core.environment().timeout {
            Some(timeout) => !timeout.is_zero(),
            None => !self.options().wait_queue_timeout.is_zero(),
        }
    }

    /// Waits for a connection within the limits of the pool's options.
    pub(super) async fn obtain_in_options_time(&self) -> opening::Acquired<E> {
        self.obtain(None, TimeLimits::of_options(self)).await
    }

    /// Waits for a connection until a deadline, and within `waitQueueTimeoutMS` where that holds.
    pub(super) async fn obtain_until(&self, deadline: Instant) -> opening::Acquired<E> {
        let limits = TimeLimits { whole: Some((deadline, TimeLimit::Deadline)), ..TimeLimits::of_options(self) };
        self.obtain(None, limits).await
    }

    /// Waits for a connection until the `timeoutMS` of an operation is up.
    pub(super) async fn obtain_within_operation(&self, end: Instant) -> opening::Acquired<E> {
        let limits = TimeLimits { whole: Some((end, TimeLimit::Timeout)), ..TimeLimits::none() };
        self.obtain(None, limits).await
    }

    /// Waits for a connection without a limit. `grant`: what the check-out has already.
    pub(super) async fn obtain_unlimited(&self, grant: Grant<TokioEnvironment<E>>) -> opening::Acquired<E> {
        self.obtain(Some(grant), TimeLimits::none()).await
    }

    /// Waits for a grant, unless there is one already, and makes a connection of it.
    async fn obtain(&self, mut grant: Option<Grant<TokioEnvironment<E>>>, limits: TimeLimits) -> opening::Acquired<E> {
        let core = &self.core;
        loop {
            let granted = match grant.take() {
                Some(granted) => granted,
                None => self.acquire_in_time(&limits).await?,
            };
            match granted {
                Grant::Connection(idle) if idle.is_stale() => {
                    drop(idle);
                    // Cleared or closed between the grant and our coming to look: as if we still had waited. In a pool
                    // that is ready, the connection's runtime has ended, or it was marked ready again: the next, then.
                    if core.state().phase != Phase::Ready {
                        return Err(core.refused(core.refusal()));
                    }
                }
                Grant::Connection(idle) => return Ok(idle),
                Grant::Permit(permit) => match self.open(permit, &limits).await {
                    Opened::Ended(outcome) => return outcome,
                    Opened::RuntimeEnded => {}
                },
                Grant::Refused(refusal) => return Err(core.refused(*refusal)),
            }
        }
    }

    /// Waits for a grant.
    async fn acquire_in_time(&self, limits: &TimeLimits) -> Result<Grant<TokioEnvironment<E>>, CheckOutError> {
        let lapsed = {
            let mut acquire = pin!(self.core.acquire());
            // No timer is made for what comes at once.
            if let Poll::Ready(grant) = poll_fn(|context| Poll::Ready(acquire.as_mut().poll(context))).await {
                return Ok(grant);
            }
            match self.in_time(limits.in_queue(), acquire).await {
                Ok(grant) => return Ok(grant),
                Err(lapsed) => lapsed,
            }
        };
        // By now it has left the queue, and is not counted among those that wait.
        Err(self.error_of(lapsed, limits))
    }

    /// Waits for `future` until the limit.
    async fn in_time<T>(
        &self,
        limit: Option<(Instant, TimeLimit)>,
        future: impl Future<Output = T>,
    ) -> Result<T, (Lapse, TimeLimit)> {
        let Some((at, limit)) = limit else { return Ok(future.await) };
        within(at, || self.core.environment().living_runtime(), future).await.map_err(|lapse| (lapse, limit))
    }

    fn error_of(&self, (lapse, limit): (Lapse, TimeLimit), limits: &TimeLimits) -> CheckOutError {
        match lapse {
            Lapse::TimeUp => self.core.timed_out(limits.begun.elapsed(), limit),
            Lapse::NoRuntime => NoRuntimeError::of(self.core.address()).into(),
        }
    }

    /// Has a connection opened by a task of its own, and waits for it or for one that comes back sooner, at most until
    /// the limit. If another one came sooner, or none in time, its own serves the next, or becomes available, once it
    /// is open; if it was not created when another one came, it never is.
    ///
    /// Where both have come, the other one is taken: a failure of the caller's own is no reason to fail then.
    async fn open(&self, permit: Permit<TokioEnvironment<E>>, limits: &TimeLimits) -> Opened<E> {
        let core = &self.core;
        let mut returned = pin!(self.returned());
        // Something may have come back between the grant of the permit and our coming to look.
        if let Poll::Ready(idle) = poll_fn(|context| Poll::Ready(returned.as_mut().poll(context))).await {
            return Opened::Ended(Ok(idle));
        }
        let request = Arc::new(OpenRequest::new(core.clone(), permit));
        let (requester, opened) = oneshot::channel();
        // The runtime that polls the caller is the pool's from now on, if that has none that lives.
        let Some(home) = self.home(|| Handle::try_current().ok()) else {
            return Opened::Ended(Err(NoRuntimeError::of(core.address()).into()));
        };
        let task = home.handle().spawn(fork::own(opening::open_for(request.clone(), requester)));
        let first = async {
            tokio::select! {
                biased;
                idle = returned => {
                    drop(request.take_permit());
                    Opened::Ended(Ok(idle))
                }
                outcome = opened => match outcome {
                    // As good as lost: nothing will move its bytes any more.
                    Ok(Ok(_idle)) if home.has_ended() => Opened::RuntimeEnded,
                    Ok(outcome) => Opened::Ended(outcome),
                    // Only a runtime that shuts down cancels it.
                    Err(_gone) => match task.await {
                        Err(error) if error.is_cancelled() => {
                            home.end(core);
                            Opened::RuntimeEnded
                        }
                        _ => Opened::Ended(Err(request.task_ended())),
                    },
                },
            }
        };
        match self.in_time(limits.whole, first).await {
            Ok(opened) => opened,
            Err(lapsed) => Opened::Ended(Err(self.error_of(lapsed, limits))),
        }
    }

    /// The first connection that comes back to a caller who has the right to open one.
    async fn returned(&self) -> Idle<TokioEnvironment<E>> {
        loop {
            let idle = self.core.acquire_as_opener().await;
            if !idle.is_stale() {
                return idle;
            }
            // Cleared or closed between the grant and our coming to look: as if it had not come.
        }
    }
}
