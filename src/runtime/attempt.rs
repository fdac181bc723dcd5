//! A check-out from its start to its end, with what happens when there is no connection at once.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::connection::Connection;
use super::establish::Establish;
use super::host::TokioHost;
use super::opening::{self, Errand};
use super::pool::Pool;
use crate::error::CheckOutError;
use crate::options::PoolOptions;
use crate::pool::{Core, Grant, Host, Idle, Place, Started};

/// A check-out that has started and must end with an event.
pub(super) struct Attempt<'p, E: Establish> {
    pool: &'p Pool<E>,
    started: Started,
}

impl<'p, E: Establish> Attempt<'p, E> {
    /// Starts a check-out. It has succeeded already if there is a connection in the calling thread's stack.
    #[inline]
    pub(super) fn begin(pool: &'p Pool<E>) -> Result<Connection<E>, Self> {
        let pool = pool.here();
        match pool.core.try_check_out() {
            Some(lease) => Ok(Connection::new(lease)),
            None => Self::begin_otherwise(pool),
        }
    }

    #[inline(never)]
    fn begin_otherwise(pool: &'p Pool<E>) -> Result<Connection<E>, Self> {
        let core = &pool.core;
        let started = core.check_out_started();
        if let Some(idle) = core.try_take() {
            return Ok(Connection::new(idle.check_out(started)));
        }
        if core.host().listens() {
            // `ConnectionCheckOutStarted` does not wait with us.
            core.host().deliver();
        }
        Err(Self { pool, started })
    }

    #[inline]
    pub(super) fn core(&self) -> &'p Arc<Core<E::Connection, TokioHost<E>>> {
        &self.pool.core
    }

    #[inline]
    pub(super) fn succeed(self, idle: Idle<E::Connection, TokioHost<E>>) -> Connection<E> {
        let connection = Connection::new(idle.check_out(self.started));
        std::mem::forget(self);
        connection
    }

    /// Waits within limits. `queues`: whether `waitQueueTimeoutMS` is one.
    pub(super) async fn in_time(self, deadline: Option<Instant>, queues: bool) -> Result<Connection<E>, CheckOutError> {
        let grant = self.pool.acquire_in_time(deadline, queues).await;
        self.end(grant, deadline).await
    }

    /// What a grant comes to. `None`: there was none in time.
    pub(super) async fn end(
        self,
        grant: Option<Grant<E::Connection, TokioHost<E>>>,
        deadline: Option<Instant>,
    ) -> Result<Connection<E>, CheckOutError> {
        let core = self.core();
        let outcome = match grant {
            // Cleared or closed between the grant and our coming to look: as if we still had waited.
            Some(Grant::Connection(idle)) if idle.is_stale() => {
                drop(idle);
                Err(core.refused(core.refusal()))
            }
            Some(Grant::Connection(idle)) => Ok(idle),
            Some(Grant::Place(place)) => self.pool.open(place, deadline).await,
            Some(Grant::Refused(refusal)) => Err(core.refused(*refusal)),
            None => Err(core.timed_out()),
        };
        match outcome {
            Ok(idle) => Ok(self.succeed(idle)),
            Err(error) => {
                let started = self.started;
                std::mem::forget(self);
                Err(core.check_out_failed(started, error))
            }
        }
    }
}

impl<E: Establish> Drop for Attempt<'_, E> {
    fn drop(&mut self) {
        // Cancelled. Usually by a timeout of the caller's, and the specification knows no closer reason.
        self.core().check_out_failed(self.started, self.core().timed_out());
    }
}

impl<E: Establish> Pool<E> {
    /// Waits for a grant. `None`: until `waitQueueTimeoutMS` or the deadline.
    async fn acquire_in_time(
        &self,
        deadline: Option<Instant>,
        queues: bool,
    ) -> Option<Grant<E::Connection, TokioHost<E>>> {
        let core = &self.core;
        let mut acquire = pin!(core.acquire());
        // No timer is made for what comes at once.
        if let Poll::Ready(grant) = poll_fn(|context| Poll::Ready(acquire.as_mut().poll(context))).await {
            return Some(grant);
        }
        let queue = if queues { core.options().wait_queue_deadline() } else { None };
        match earlier(queue, deadline) {
            None => Some(acquire.await),
            Some(until) => tokio::time::timeout_at(until, acquire).await.ok(),
        }
    }

    /// Has a connection opened by a task of its own, and waits for it or for one that comes back sooner, at most until the
    /// deadline. If another one came sooner, or none in time, its own serves the next, or becomes available, once it is
    /// open; if it was not created when another one came, it never is.
    ///
    /// Where both have come, the other one is taken: a failure of the caller's own is no reason to fail then.
    async fn open(&self, place: Place<E::Connection, TokioHost<E>>, deadline: Option<Instant>) -> opening::Delivery<E> {
        let core = &self.core;
        let mut returned = pin!(self.returned());
        // Something may have come back between the grant of the place and our coming to look.
        if let Poll::Ready(idle) = poll_fn(|context| Poll::Ready(returned.as_mut().poll(context))).await {
            return Ok(idle);
        }
        let errand = Arc::new(Errand::new(core.clone(), place));
        let (asked_by, delivery) = oneshot::channel();
        // A pool without a runtime is a forked child's; and this is a check-out's future, which runs on one.
        let runtime = self.run_on(Handle::current);
        runtime.spawn(opening::open_for(errand.clone(), asked_by));
        let first = async {
            tokio::select! {
                biased;
                idle = returned => {
                    drop(errand.take_place());
                    Ok(idle)
                }
                delivered = delivery => delivered.unwrap_or_else(|_gone| Err(errand.task_ended())),
            }
        };
        match deadline {
            None => first.await,
            Some(until) => tokio::time::timeout_at(until, first).await.unwrap_or_else(|_elapsed| Err(core.timed_out())),
        }
    }

    /// The first connection that comes back to a caller who has the right to open one.
    async fn returned(&self) -> Idle<E::Connection, TokioHost<E>> {
        loop {
            let idle = self.core.acquire_meanwhile().await;
            if !idle.is_stale() {
                return idle;
            }
            // Cleared or closed between the grant and our coming to look: as if it had not come.
        }
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

impl PoolOptions {
    fn wait_queue_deadline(&self) -> Option<Instant> {
        let timeout = self.wait_queue_timeout;
        // A timeout beyond the clock's reach is none.
        (timeout > Duration::ZERO).then(|| Instant::now().checked_add(timeout)).flatten()
    }
}
