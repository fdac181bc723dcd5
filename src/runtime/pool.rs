//! The pool that services embed.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use bson::oid::ObjectId;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::background;
use super::check_out::CheckOut;
use super::connection::Connection;
use super::establish::Establish;
use super::fork;
use super::host::{Failure, FailureSink, TokioHost};
use super::opening::{self, Errand};
use super::publisher::Subscriber;
use super::recovery;
use crate::boxed::boxed;
use crate::error::{CheckOutError, ClearError, ForeignConnection};
use crate::options::{BackgroundInterval, InvalidOption, PoolOptions};
use crate::pool::{Clear, Core, Grant, Host, Idle, Phase, Place, PoolStatus, Started};

/// A pool of connections to one address.
///
/// A pool starts paused: [`Pool::ready`] lets it serve, [`Pool::clear`] pauses it again. The specification has a
/// monitor of the server do both; wharf has none, so whoever embeds the pool does. One that is never cleared serves on:
/// its check-outs fail while the server cannot be reached, and succeed again when it can.
///
/// A pool of connections to a MongoDB server is made by [`Endpoint::pool`](crate::Endpoint::pool), and one of other
/// connections by [`Pool::builder`]. Clones are handles of the same pool; dropping the last one closes it.
///
/// # Cost
///
/// A check-out that finds an available connection in the calling thread's stack is one compare-and-swap, and so is its
/// check-in; neither takes a lock, allocates, reads the clock (unless `maxIdleTimeMS` is set or somebody subscribes to
/// events) or wakes a task. Check-outs that must wait, and check-ins while somebody waits, take a lock for some tens of
/// nanoseconds. Opening and closing connections, `ready`, `clear`, `close` and `status` take short locks too.
///
/// # Forking
///
/// A pool that is used in a forked child notices: it gives up the connections that it has from the parent without
/// sending anything on them, counts one generation more, and starts again, paused, on the runtime that the child uses
/// it on. Connections that were checked out at the time of the fork stay the parent's, and must not be used in the
/// child.
pub struct Pool<E: Establish> {
    /// What `shared` has, too: a check-out comes to it without a second pointer to load.
    core: Arc<Core<E::Connection, TokioHost<E>>>,
    shared: Arc<Shared<E>>,
}

/// What all handles of a pool share. The last one to go closes the pool.
struct Shared<E: Establish> {
    core: Arc<Core<E::Connection, TokioHost<E>>>,
    /// What this pool is after a fork.
    after_fork: OnceLock<Pool<E>>,
}

impl<E: Establish> Clone for Pool<E> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), shared: self.shared.clone() }
    }
}

impl<E: Establish> Pool<E> {
    /// Prepares a pool of connections that `establish` opens to `address`, with the default options.
    pub fn builder(address: &str, establish: E) -> PoolBuilder<E> {
        PoolBuilder {
            address: address.to_owned(),
            establish,
            options: PoolOptions::default(),
            subscribers: Vec::new(),
            on_failure: None,
            runtime: None,
        }
    }

    /// Checks out a connection: an available one, or a new one within `maxPoolSize` and `maxConnecting`, or the first
    /// that comes free, in the order of arrival. While a new one is being opened, whichever comes first: that or one that
    /// comes back.
    ///
    /// Waiting in the queue is bounded by `waitQueueTimeoutMS`, which by default is no bound. Opening a connection is
    /// bounded by the establisher only; [`Pool::check_out_until`] bounds both.
    ///
    /// Fails at once while the pool is paused, as it is until [`Pool::ready`].
    ///
    /// # Errors
    ///
    /// [`CheckOutError`] tells why there is none, and [whether to try again](CheckOutError::is_retryable).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: a place in the queue is given up, a connection that was about to be handed over goes to the
    /// next in the queue, and one that is being opened goes on being opened. `ConnectionCheckOutFailed` is emitted with
    /// the reason "timeout".
    ///
    /// Poll it or drop it: a check-out that waits and is put aside, as in a `select!` in a loop while another branch does
    /// its work, may have been granted a connection, or the right to open one, which nobody else has then.
    pub fn check_out(&self) -> impl Future<Output = Result<Connection<E>, CheckOutError>> + Send + '_ {
        self.check_out_without_deadline::<true>()
    }

    /// As [`Pool::check_out`], but also gives up at `deadline`, whatever it is waiting for then.
    ///
    /// # Errors
    ///
    /// As [`Pool::check_out`]; at the deadline, [`CheckOutError::WaitQueueTimeout`].
    ///
    /// # Cancel safety
    ///
    /// As [`Pool::check_out`]; reaching the deadline is no different.
    pub fn check_out_until(
        &self,
        deadline: Instant,
    ) -> impl Future<Output = Result<Connection<E>, CheckOutError>> + Send + '_ {
        self.check_out_by(deadline, true)
    }

    /// Checks a connection in, as dropping it does, but refuses one of another pool.
    ///
    /// # Errors
    ///
    /// [`ForeignConnection`] gives back a connection that this pool did not create.
    pub fn check_in(&self, connection: Connection<E>) -> Result<(), ForeignConnection<Connection<E>>> {
        let core = &self.here().core;
        if connection.belongs_to(core) {
            drop(connection);
            Ok(())
        } else {
            Err(ForeignConnection { connection, address: core.address().clone() })
        }
    }

    /// Marks a paused pool as ready: check-outs are served and connections opened from now on, in the background
    /// `minPoolSize` of them. Returns whether it was paused.
    ///
    /// This says that the server is reachable; it does not find out. It connects to nothing itself.
    pub fn ready(&self) -> bool {
        let this = self.here();
        if let Ok(runtime) = Handle::try_current() {
            this.run_on(|| runtime);
        }
        this.core.ready()
    }

    /// Pauses the pool and makes all its connections stale. Returns whether anything was done: not if the pool is
    /// closed, or of another generation than asked for.
    ///
    /// Whoever waits fails at once with [`PoolCleared`](crate::PoolCleared). Connections in use are closed when they
    /// come back, or with [`Clear::interrupt_in_use_connections`] are told to stop. The pool stays paused until
    /// somebody calls [`Pool::ready`].
    ///
    /// To clear a pool that is paused counts one generation more and replaces the cause, also by none, but emits no
    /// event.
    ///
    /// # Errors
    ///
    /// [`ClearError::ServiceIdRequired`] in load-balanced mode.
    pub fn clear(&self, clear: Clear) -> Result<bool, ClearError> {
        self.here().core.clear(clear)
    }

    /// Makes all connections to one service stale, in load-balanced mode; the pool stays ready. Returns whether there
    /// were any.
    ///
    /// # Errors
    ///
    /// [`ClearError::NotLoadBalanced`] in any other mode.
    pub fn clear_service(&self, service_id: ObjectId, clear: Clear) -> Result<bool, ClearError> {
        self.here().core.clear_service(service_id, clear)
    }

    /// Closes the pool for good: available connections now, those being opened as soon as they notice, those in use
    /// when they come back. Check-outs fail from now on, those that wait included. Dropping the last handle does the
    /// same; [`closed`](Self::closed) waits for the end.
    pub fn close(&self) {
        self.here().shared.close();
    }

    /// Completes when the pool is closed, its last connection is gone, and the last event was delivered. Closes nothing
    /// itself, and waits for as long as somebody holds a connection: for an orderly end, call [`close`](Self::close)
    /// and then this, under a time limit.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn closed(&self) {
        let core = &self.here().core;
        loop {
            let emptier = recovery::listen(&core.host().emptier);
            if core.status().total == 0 && core.host().has_closed() {
                return;
            }
            emptier.await;
        }
    }

    /// What goes on in the pool. Takes short locks: for monitoring, not for every operation.
    #[must_use]
    pub fn status(&self) -> PoolStatus {
        self.here().core.status()
    }

    /// The generation of a service and the number of connections to it, in load-balanced mode.
    #[must_use]
    pub fn service(&self, service_id: ObjectId) -> Option<(u64, u32)> {
        self.here().core.service(service_id)
    }

    /// The address that the pool connects to.
    #[must_use]
    pub fn address(&self) -> &str {
        self.core.address()
    }

    /// The pool's options.
    pub fn options(&self) -> &PoolOptions {
        self.core.options()
    }

    /// What opens the pool's connections.
    #[must_use]
    pub fn establisher(&self) -> &E {
        &self.core.host().establish
    }

    /// Lets a subscriber have all events from now on, for as long as the pool exists. Events before (`PoolCreated`!) go
    /// to those of [`PoolBuilder::subscriber`] only. A subscriber that holds a handle of its own pool keeps the pool
    /// open until [`Pool::close`].
    pub fn subscribe(&self, subscriber: impl Subscriber) {
        self.here().core.host().publisher.subscribe(Arc::new(subscriber));
    }

    /// The number of the connection that was created last.
    #[cold]
    pub(crate) fn last_created(&self) -> u64 {
        self.here().core.last_id()
    }

    /// A check-out that is bounded at most by `waitQueueTimeoutMS`, and by that only where it `QUEUES`.
    ///
    /// Two ways must cost little: finding a connection at once, and waiting for one without a time limit. Whatever else may
    /// happen is boxed, which keeps the future small. When a connection goes from hand to hand, what takes longest is
    /// moving the waiter's cache lines from core to core.
    pub(crate) fn check_out_without_deadline<const QUEUES: bool>(
        &self,
    ) -> impl Future<Output = Result<Connection<E>, CheckOutError>> + Send + '_ {
        CheckOut::new(self, |attempt| async move {
            if QUEUES && !attempt.core().options().wait_queue_timeout.is_zero() {
                return boxed(|| attempt.in_time(None, QUEUES)).await;
            }
            match attempt.core().acquire().await {
                Grant::Connection(idle) if !idle.is_stale() => Ok(attempt.succeed(idle)),
                other => boxed(|| attempt.end(Some(other), None)).await,
            }
        })
    }

    /// A check-out with a deadline. `queues`: whether `waitQueueTimeoutMS` counts, too.
    pub(crate) fn check_out_by(
        &self,
        deadline: Instant,
        queues: bool,
    ) -> impl Future<Output = Result<Connection<E>, CheckOutError>> + Send + '_ {
        CheckOut::new(self, move |attempt| boxed(|| attempt.in_time(Some(deadline), queues)))
    }

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

    /// This pool, or what it is after a fork.
    #[inline]
    fn here(&self) -> &Self {
        if self.core.host().is_the_parents() { self.after_fork() } else { self }
    }

    #[cold]
    fn after_fork(&self) -> &Self {
        let successor = self.shared.after_fork.get_or_init(|| {
            let core = &self.core;
            let before = core.host();
            for connection in core.abandon() {
                before.establish.abandon_after_fork(connection);
            }
            let is_closed = core.state().phase == Phase::Closed;
            let host = TokioHost::new(
                before.establish.clone(),
                before.publisher.subscribers(),
                before.on_failure.clone(),
                is_closed,
            );
            let successor = Self::new(core.after_fork(host));
            if let Ok(runtime) = Handle::try_current() {
                successor.run_on(|| runtime);
            }
            successor
        });
        // Not before: a subscriber that uses the pool comes here, too.
        successor.core.host().deliver();
        successor.here()
    }

    fn new(core: Arc<Core<E::Connection, TokioHost<E>>>) -> Self {
        Self { core: core.clone(), shared: Arc::new(Shared { core, after_fork: OnceLock::new() }) }
    }

    /// The runtime of the pool's tasks. Where it has none yet, it is this one from now on, with the background task.
    fn run_on(&self, runtime: impl FnOnce() -> Handle) -> &Handle {
        let core = &self.core;
        core.host().runtime.get_or_init(|| {
            let runtime = runtime();
            if core.options().interval() != BackgroundInterval::Never {
                runtime.spawn(background::keep::<E>(core.clone(), runtime.clone()));
            }
            runtime
        })
    }
}

impl<E: Establish> Drop for Shared<E> {
    fn drop(&mut self) {
        // What a forked child has of its parent's pool is not touched: its locks may be held by threads that the child
        // does not have.
        if !self.core.host().is_the_parents() {
            self.close();
        }
    }
}

impl<E: Establish> Shared<E> {
    fn close(&self) {
        if self.core.close() {
            self.core.host().closing_is_over();
        }
    }
}

impl<E: Establish> fmt::Debug for Pool<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("address", &self.address()).field("status", &self.status()).finish_non_exhaustive()
    }
}

fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

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
    fn core(&self) -> &'p Arc<Core<E::Connection, TokioHost<E>>> {
        &self.pool.core
    }

    #[inline]
    fn succeed(self, idle: Idle<E::Connection, TokioHost<E>>) -> Connection<E> {
        let connection = Connection::new(idle.check_out(self.started));
        std::mem::forget(self);
        connection
    }

    /// Waits within limits. `queues`: whether `waitQueueTimeoutMS` is one.
    async fn in_time(self, deadline: Option<Instant>, queues: bool) -> Result<Connection<E>, CheckOutError> {
        let grant = self.pool.acquire_in_time(deadline, queues).await;
        self.end(grant, deadline).await
    }

    /// What a grant comes to. `None`: there was none in time.
    async fn end(
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

/// Builds a [`Pool`].
#[must_use]
pub struct PoolBuilder<E: Establish> {
    address: String,
    establish: E,
    options: PoolOptions,
    subscribers: Vec<Arc<dyn Subscriber>>,
    on_failure: Option<Arc<FailureSink>>,
    runtime: Option<Handle>,
}

impl<E: Establish> PoolBuilder<E> {
    /// The pool's options, instead of the default ones.
    pub fn options(mut self, options: PoolOptions) -> Self {
        self.options = options;
        self
    }

    /// Adds a subscriber, who gets all events from `PoolCreated` on.
    pub fn subscriber(mut self, subscriber: impl Subscriber) -> Self {
        self.subscribers.push(Arc::new(subscriber));
        self
    }

    /// Whom to tell when a connection could not be established; usually the monitor of the server. Called outside of
    /// all locks, by the task that tried. Without one, failures only reach the check-outs that asked for the
    /// connections. A panic is caught.
    ///
    /// A pool that the sink clears stays paused until somebody calls [`Pool::ready`]. Network errors of commands on
    /// established connections do not come here.
    pub fn on_failure(mut self, sink: impl Fn(&Failure<'_>) + Send + Sync + 'static) -> Self {
        self.on_failure = Some(Arc::new(sink));
        self
    }

    /// The runtime for the pool's tasks, instead of the one that [`PoolBuilder::build`] is called on.
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Builds the pool, paused.
    ///
    /// # Errors
    ///
    /// [`BuildError`] when an option cannot work, or when there is no runtime.
    pub fn build(self) -> Result<Pool<E>, BuildError> {
        let runtime = match self.runtime {
            Some(runtime) => runtime,
            None => Handle::try_current().map_err(|_| BuildError::NoRuntime)?,
        };
        fork::watch();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let host = TokioHost::new(Arc::new(self.establish), self.subscribers, self.on_failure, false);
        let pool = Pool::new(Core::new(&self.address, self.options, threads, host)?);
        pool.run_on(|| runtime);
        Ok(pool)
    }
}

/// A pool could not be built.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An option cannot work.
    #[error(transparent)]
    InvalidOption(#[from] InvalidOption),
    /// There is no tokio runtime for the pool's tasks.
    #[error("a pool needs a tokio runtime: build it on one, or name one with PoolBuilder::runtime")]
    NoRuntime,
}

impl PoolOptions {
    fn wait_queue_deadline(&self) -> Option<Instant> {
        let timeout = self.wait_queue_timeout;
        // A timeout beyond the clock's reach is none.
        (timeout > Duration::ZERO).then(|| Instant::now().checked_add(timeout)).flatten()
    }
}
