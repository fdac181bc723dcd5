//! The pool, and its handles.

use std::fmt;
use std::future::{Future, poll_fn};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::Location;
use std::sync::{Arc, OnceLock};
use std::task::Context;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::builder::PoolBuilder;
use super::check_out::{CheckOut, Waiting};
use super::connection::Connection;
use super::environment::TokioEnvironment;
use super::establish::Establish;
use super::fork::{self, Forked};
use super::holders::HoldReports;
use super::publisher::Subscriber;
use super::stopwatch::Stopwatch;
use super::traced::SlowCheckOuts;
use super::waiting::TimeLimits;
use crate::pool::core::{Budget, Change, Clear, Core, Environment, Phase, PoolState, PoolStatus, ServiceStatus};
use crate::pool::error::{CheckInError, CheckOutError, TimeLimit};
use crate::pool::metrics::PoolMetrics;
use crate::pool::options::{InvalidOption, PoolOptions};
use crate::pool::runtime::boxed;
use crate::pool::service_id::ServiceId;
use crate::pool::sync::Contained;

/// A pool of connections to one address.
///
/// ```
/// use wharf::{Establish, EstablishError, Establishing, Pool};
///
/// /// Opens connections to a server that needs none.
/// struct Nothing;
///
/// impl Establish for Nothing {
///     type Connection = Vec<u8>;
///
///     async fn establish(&self, _: Establishing) -> Result<Vec<u8>, EstablishError> {
///         Ok(Vec::new())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = Pool::builder("nowhere", Nothing).build()?;
/// pool.ready();
/// let mut connection = pool.check_out().await?;
/// connection.push(1);
/// drop(connection); // checks it in
/// assert_eq!(pool.check_out().await?[..], [1]);
/// pool.close();
/// pool.closed().await;
/// # Ok(())
/// # }
/// ```
///
/// | to do this | call |
/// | --- | --- |
/// | create a pool | [`builder`](Self::builder), or [`Endpoint::pool`](crate::Endpoint::pool) for a MongoDB server |
/// | let it serve check-outs | [`ready`](Self::ready): a pool starts paused |
/// | get a connection | [`check_out`](Self::check_out), [`check_out_until`](Self::check_out_until) |
/// | give it back | drop it, or [`check_in`](Self::check_in) |
/// | run one command on a MongoDB server | [`run_command`](Pool::run_command), [`run`](Pool::run) |
/// | discard all connections | [`clear`](Self::clear) |
/// | see what it does | [`status`](Self::status), [`metrics`](Self::metrics), [`subscribe`](Self::subscribe), [`holders`](Self::holders) |
/// | shut it down | [`close`](Self::close), then [`closed`](Self::closed) |
///
/// A pool starts paused. [`Pool::ready`] makes it serve check-outs, and [`Pool::clear`] pauses it again. The monitors
/// of a [`Client`](crate::Client) do both for the client's pools. If you build a pool yourself, your application must
/// call them. A pool that is never cleared stays ready: its check-outs fail while the server cannot be reached, and
/// succeed again when it can.
///
/// [`Endpoint::pool`](crate::Endpoint::pool) makes a pool of connections to a MongoDB server, and [`Pool::builder`]
/// makes a pool of any other kind of connection. Clones are handles to the same pool. Dropping the last handle closes
/// the pool.
///
/// # Cost
///
/// A check-out that finds an available connection in the calling thread's stack takes one compare-and-swap, as does its
/// check-in. Neither takes a lock, allocates or wakes a task. The clock is read for one use in 128 (for every use if
/// `maxIdleTimeMS` is set, or if the pool has a subscriber or accounts for holders). A check-out that finds its
/// connection in another thread's stack reads the clock.
///
/// A check-out takes a lock for a few steps if it is the first to wait, if it gives up, or if its waker changes. So
/// does a check-in that serves the last waiter. About two in 64 waiting check-outs take the lock, if it is free, to
/// manage the queue's memory. Such a check-out may allocate a 4 KiB segment; the memory for a burst of check-outs is
/// freed once the burst is over. While a check-out is opening a connection, or others are waiting behind a check-out
/// that gave up, each check-in that serves a check-out takes the lock. The number of steps under the lock does not
/// depend on the number of waiters. A thread that finds the lock held leaves its section to the holder, which runs up
/// to 32 such sections for other threads in order of arrival. If the thread that holds the lock is preempted, other
/// threads back off: they retry after pauses, then yield, and, after about a millisecond, sleep for 50 µs at a time.
/// Opening and closing connections, `ready`, `clear`, `close` and `status` also take short locks.
///
/// # Panics
///
/// If a waker panics when the pool wakes or drops it, the pool catches the panic. No other waiter loses its wake-up,
/// and the call that used the waker continues. The panic hook is called as usual.
///
/// # Runtimes
///
/// A pool's tasks run on one tokio runtime: the runtime given to [`PoolBuilder::runtime`], or the runtime that the pool
/// was built on. Its connections are registered there. They can be used from any other runtime while the pool's runtime
/// exists or, if it is a current-thread runtime, while it is being driven. The runtime needs timers
/// ([`enable_time`](tokio::runtime::Builder::enable_time)), because the pool backs off when it fails to open a
/// connection.
///
/// When the runtime shuts down, its connections can no longer be used. They become stale, which increments the
/// generation, and are closed. The pool then moves. The next check-out that opens a connection, or the next call to
/// [`Pool::ready`], moves the pool to the caller's runtime, and starts a background task there. So a pool in a `static`
/// serves one runtime after another, for example in tests that each have their own runtime. Check-outs that are waiting
/// on another runtime keep waiting. A command on a connection whose runtime has shut down fails with a network error.
/// To rule that out for a pool in a `static`, give the pool a runtime that lives as long as the process.
///
/// Check-outs may also be polled outside tokio, by another executor. Then the pool's runtime opens the connections and
/// enforces the time limits. Once that runtime has shut down, the pool moves to another runtime on which a check-out
/// has opened a connection. If there is none, such check-outs fail with [`CheckOutError::NoRuntime`] until the pool has
/// moved. [`Pool::check_out_blocking`] is for threads without any executor.
///
/// # Forking
///
/// A pool notices when it is used in a forked child, and clears itself there ("Forking" in the specification). It
/// increments its generation, and starts over as a paused pool on the runtime where the child uses it. It gives up the
/// connections that it inherited, without sending anything on them. Connections that were checked out at the time of
/// the fork still belong to the parent and must not be used in the child. Dropping them there is allowed.
///
/// For a subscriber, the child's pool continues the parent's pool, so counts derived from the events remain correct in
/// the child. If the pool was ready, it emits `PoolCleared`. For every inherited connection it emits `ConnectionClosed`
/// with the reason "stale", preceded by `ConnectionCheckedIn` if the connection was in use. New connections continue
/// the parent pool's numbering. A call that another thread was making to the pool at the time of the fork does not emit
/// any further events in the child. If that call was notifying subscribers of a check-out or a check-in, the child
/// considers the event delivered.
///
/// The parent's work does not continue in the child, even if the child inherits a runtime. The background task does not
/// run there, and connections that were being opened are abandoned. A check-out that was waiting at the time of the
/// fork fails with [`PoolClearedError`](crate::PoolClearedError) when the child polls it. Nothing in the child wakes
/// such a check-out, so do not rely on this error. The resources of such futures are leaked: the socket of a connection
/// that was being established stays open in the child.
///
/// In the child, an [`Endpoint`](crate::Endpoint) derives its keys from the password again, and obtains its own OIDC
/// tokens. The parent's keys and tokens are leaked in the child and are not wiped from its memory.
///
/// A child that starts any thread can hang, because the standard library takes a global lock when a thread starts or
/// exits, and another thread of the parent may hold that lock at the time of the fork. An endpoint derives its keys and
/// looks up host names on the blocking threads of the child's runtime. So fork before the parent has threads, or while
/// no thread is starting or exiting; [`single::Client`](crate::single::Client) does not start any threads. Use `fork`:
/// `_Fork` and a raw `clone` do not run fork handlers, so a pool does not notice their children.
pub struct Pool<E: Establish> {
    /// The core of `shared`. With this copy of the pointer, a check-out loads one pointer instead of two.
    pub(super) core: CoreOfShared<E>,
    /// Always kept together with `core` (INV-14).
    pub(super) shared: Arc<Shared<E>>,
}

/// A handle's copy of the pointer to its pool's core.
///
/// INV-14 (a handle's core is lent): the copy is not counted, so cloning a pool takes one locked instruction. It is
/// never dropped, and stays beside the `shared` that it was copied from. The pointer to the core in `shared` never
/// changes.
pub(super) struct CoreOfShared<E: Establish>(ManuallyDrop<Arc<Core<TokioEnvironment<E>>>>);

impl<E: Establish> Deref for CoreOfShared<E> {
    type Target = Arc<Core<TokioEnvironment<E>>>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The part that all handles to a pool share. Dropping the last handle closes the pool.
pub(super) struct Shared<E: Establish> {
    core: Arc<Core<TokioEnvironment<E>>>,
    /// The pool's successor in a forked child.
    after_fork: OnceLock<Pool<E>>,
}

/// The remaining steps of a change: see [`Pool::conclude`].
pub(crate) type PoolChange = Option<Change>;

impl<E: Establish> Clone for Pool<E> {
    fn clone(&self) -> Self {
        Self::of(self.shared.clone())
    }
}

impl<E: Establish> Pool<E> {
    /// Returns a builder for a pool of connections that `establish` opens to `address`, with the default options.
    pub fn builder(address: &str, establish: E) -> PoolBuilder<E> {
        PoolBuilder::new(address, establish)
    }

    /// Checks out a connection.
    ///
    /// Returns an available connection, or opens one within `maxPoolSize` and `maxConnecting`. Otherwise the check-out
    /// waits its turn, in order of arrival, for a connection to be checked in. If another connection is checked in
    /// while the new connection is being opened, the check-out takes that connection.
    ///
    /// `timeoutMS` ([`PoolBuilder::timeout`]) limits the whole check-out. Without it, `waitQueueTimeoutMS` limits the
    /// time in the queue (by default there is no limit), and only the establisher limits how long opening a connection
    /// may take. [`Pool::check_out_until`] limits both. The [guide](crate::guide::time_limits) has a table of all
    /// limits.
    ///
    /// If the connection cannot be opened, only the check-out that it was opened for fails. The check-outs in the queue
    /// keep waiting.
    ///
    /// A check-out fails immediately while the pool is paused, for example before the first [`Pool::ready`].
    ///
    /// ```no_run
    /// # async fn example(pool: wharf::Pool<wharf::Endpoint>) -> Result<(), Box<dyn std::error::Error>> {
    /// use bson::rawdoc;
    ///
    /// // Two commands on one connection.
    /// let mut connection = pool.check_out().await?;
    /// connection.run_command("admin", &rawdoc! { "ping": 1 }).await?;
    /// connection.run_command("admin", &rawdoc! { "hello": 1 }).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`CheckOutError`] says why the check-out failed, and [whether to retry](CheckOutError::is_retryable).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost. A cancelled check-out leaves the queue. A connection that was granted to it goes to the next
    /// check-out in the queue, and a connection that is being established continues to be opened.
    /// `ConnectionCheckOutFailed` is emitted with the reason "cancelled".
    ///
    /// Keep polling the future, or drop it. A waiting check-out that is set aside, for example while another branch of
    /// a `select!` in a loop runs, may already have been granted a connection or a permit to open one. No other
    /// check-out can use that grant until the future is polled or dropped.
    #[track_caller]
    pub fn check_out(&self) -> impl Future<Output = Result<Connection<E>, CheckOutError>> + Send + '_ {
        self.check_out_without_deadline::<true>(Location::caller())
    }

    /// Like [`Pool::check_out`], but gives up at `deadline`, whether in the queue or while a connection is being
    /// opened.
    ///
    /// The deadline replaces `timeoutMS`. If `timeoutMS` is not set, `waitQueueTimeoutMS` also applies.
    ///
    /// # Errors
    ///
    /// The same as for [`Pool::check_out`]. At the deadline, [`CheckOutError::WaitQueueTimeout`].
    ///
    /// # Cancel safety
    ///
    /// The same as for [`Pool::check_out`]. Reaching the deadline has the same effect as a cancellation.
    #[track_caller]
    pub fn check_out_until(
        &self,
        deadline: Instant,
    ) -> impl Future<Output = Result<Connection<E>, CheckOutError>> + Send + '_ {
        let site = Location::caller();
        CheckOut::new(self, site, move |pool| Waiting::Otherwise { future: boxed(|| pool.obtain_until(deadline)) })
    }

    /// Checks a connection in, as dropping it does, but refuses a connection from another pool.
    ///
    /// # Errors
    ///
    /// [`CheckInError`] if this pool did not create the connection. The error contains the connection.
    pub fn check_in(&self, connection: Connection<E>) -> Result<(), CheckInError<Connection<E>>> {
        let core = &self.here().core;
        if connection.belongs_to(core) {
            drop(connection);
            Ok(())
        } else {
            Err(CheckInError { connection, address: core.address().clone() })
        }
    }

    /// Marks a paused pool as ready. Returns whether it was paused.
    ///
    /// From then on, the pool serves check-outs and opens connections, `minPoolSize` of them in the background.
    ///
    /// This call does not connect to the server, or check that it can be reached.
    pub fn ready(&self) -> bool {
        let this = self.here();
        this.home(|| Handle::try_current().ok());
        this.core.ready()
    }

    /// Pauses the pool and makes all its connections stale. Returns whether it did so: it does nothing if the pool is
    /// closed, or if its generation differs from [`Clear::only_at_generation`].
    ///
    /// Waiting check-outs fail immediately with [`PoolClearedError`](crate::PoolClearedError). Connections in use are
    /// closed when they are checked in. With [`Clear::interrupt_in_use_connections`], their operations are interrupted.
    /// The pool stays paused until [`Pool::ready`] is called.
    ///
    /// Clearing a paused pool increments its generation and replaces the cause, or removes it if none is given. It does
    /// not emit an event.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] in load-balanced mode, in which [one service](Self::clear_service) is cleared at a time.
    pub fn clear(&self, clear: Clear) -> Result<bool, InvalidOption> {
        self.here().core.clear(clear)
    }

    /// Makes all connections to one service stale, in load-balanced mode. The pool stays ready. Returns whether there
    /// were any connections to that service.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] in any other mode.
    pub fn clear_service(&self, service_id: impl Into<ServiceId>, clear: Clear) -> Result<bool, InvalidOption> {
        self.here().core.clear_service(service_id.into(), clear)
    }

    /// Closes the pool permanently.
    ///
    /// Available connections are closed immediately, pending connections when their tasks notice the close, and
    /// connections in use when they are checked in. From then on, all check-outs fail, including those that are
    /// waiting. Dropping the last handle has the same effect. [`closed`](Self::closed) waits until all connections are
    /// closed.
    pub fn close(&self) {
        self.here().shared.close();
    }

    /// Completes once the pool is closed, its last connection is gone, and every event so far has been delivered.
    ///
    /// It does not close the pool, and it waits for as long as any caller holds a connection. For an orderly shutdown,
    /// call [`close`](Self::close), then await this with a time limit.
    ///
    /// It also waits for each [`Establish::close`] to complete. A close that does not complete at once runs on the
    /// pool's runtime. A current-thread runtime runs it only while something blocks on the runtime, so await `closed`
    /// on that runtime.
    ///
    /// A check-out that fails because the pool was closed emits its `ConnectionCheckOutFailed` when its task is next
    /// polled, or when its future is dropped. That may be after `closed` completes. `closed` may also complete while a
    /// subscriber is still being notified that a check-out has started.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn closed(&self) {
        self.closed_but_for(0).await;
    }

    /// Like [`closed`](Self::closed), but completes even if up to `kept` connections remain.
    pub(crate) async fn closed_but_for(&self, kept: u32) {
        // After a fork, this waits for the child's pool.
        while fork::own(self.here().closed_here(kept)).await.is_err() {}
    }

    async fn closed_here(&self, kept: u32) {
        let core = &self.core;
        let delivery = core.environment().publisher.delivery();
        let mut change = delivery.watch();
        // event-listener cannot handle a panicking waker.
        poll_fn(|context| {
            let waker = Contained::new(context.waker().clone()).into();
            delivery.poll_ended(&mut change, &mut Context::from_waker(&waker), || core.status().total <= kept)
        })
        .await;
    }

    /// Returns a snapshot of the pool's numbers. It takes short locks, so call it for monitoring, not for every
    /// operation.
    #[must_use]
    pub fn status(&self) -> PoolStatus {
        self.here().core.status()
    }

    /// Returns a snapshot of the pool's metrics: its connections and check-outs, how long check-outs waited, how long
    /// connections were in use, and how long it took to open them.
    ///
    /// This works without a subscriber. It takes short locks and reads a few KiB, so call it about once a second rather
    /// than for every operation. [`metrics`](crate::metrics) says how precise and how consistent the numbers are.
    ///
    /// ```
    /// # use wharf::{Establish, EstablishError, Establishing, Pool};
    /// # struct Numbers;
    /// # impl Establish for Numbers {
    /// #     type Connection = u64;
    /// #     async fn establish(&self, connecting: Establishing) -> Result<u64, EstablishError> {
    /// #         Ok(connecting.connection_id())
    /// #     }
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = Pool::builder("numbers", Numbers).build()?;
    /// pool.ready();
    /// for _ in 0..3 {
    ///     drop(pool.check_out().await?);
    /// }
    /// let metrics = pool.metrics();
    /// assert_eq!((metrics.check_outs.hits, metrics.check_outs.opened.count()), (2, 1));
    /// assert_eq!((metrics.connections.created, metrics.status.available), (1, 1));
    /// println!("99 % of the check-outs that waited took {:?} or less", metrics.check_outs.wait_time().quantile(0.99));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A pool that moves to another runtime continues to count. In a forked child, all counts and times begin at zero.
    #[must_use]
    pub fn metrics(&self) -> PoolMetrics {
        self.here().core.metrics()
    }

    /// Returns a function that reads the pool's metrics. It returns `None` once all handles to the pool have been
    /// dropped.
    #[cfg(any(feature = "metrics-facade", feature = "opentelemetry"))]
    pub(crate) fn weak_metrics(&self) -> impl Fn() -> Option<PoolMetrics> + Send + Sync + 'static {
        let pool = self.downgrade();
        move || pool.upgrade().map(|pool| pool.metrics())
    }

    /// Returns the generation of a service and the number of connections to it, in load-balanced mode. Returns `None`
    /// if there are no connections to the service.
    #[must_use]
    pub fn service(&self, service_id: impl Into<ServiceId>) -> Option<ServiceStatus> {
        self.here().core.service(service_id.into())
    }

    /// Returns the address that the pool connects to.
    #[must_use]
    pub fn address(&self) -> &str {
        self.core.address()
    }

    /// Returns the pool's options, with its current sizes ([`resize`](Self::resize)).
    pub fn options(&self) -> PoolOptions {
        self.here().core.present_options()
    }

    /// Returns `timeoutMS`, as set by [`PoolBuilder::timeout`].
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.core.environment().timeout
    }

    /// Returns how many check-outs may wait at a time, as set by [`PoolBuilder::max_waiting`].
    #[must_use]
    pub fn max_waiting(&self) -> Option<u32> {
        self.core.environment().max_waiting
    }

    /// Returns how long a check-out may wait before the pool warns about it, as set by [`PoolBuilder::slow_check_out`].
    #[must_use]
    pub fn slow_check_out(&self) -> Option<Duration> {
        self.core.environment().slow_check_outs.as_ref().map(SlowCheckOuts::threshold)
    }

    /// Returns whether durations are measured with tokio's clock, as set by [`PoolBuilder::tokio_clock`].
    #[must_use]
    pub fn tokio_clock(&self) -> bool {
        matches!(self.core.environment().stopwatch, Stopwatch::Tokio { .. })
    }

    /// Returns the runtime of the pool's tasks: the runtime that the pool was built with, or the runtime that it has
    /// since [moved](Self#runtimes) to. `None` if that runtime is known to have shut down, and the pool has not moved
    /// yet.
    #[must_use]
    pub fn runtime(&self) -> Option<Handle> {
        self.here().core.environment().living_runtime()
    }

    /// Returns the establisher that opens the pool's connections, which is the one that the pool was last
    /// [given](Self::replace_establisher).
    #[must_use]
    pub fn establisher(&self) -> &E {
        &self.here().core.environment().establish
    }

    /// Adds a subscriber, which receives all later events for as long as the pool exists.
    ///
    /// Only subscribers that were added with [`PoolBuilder::subscriber`] receive earlier events, such as `PoolCreated`.
    /// A subscriber that holds a handle to the same pool keeps the pool open until [`Pool::close`].
    pub fn subscribe(&self, subscriber: impl Subscriber) {
        let core = &self.here().core;
        // This comes first, so that a thread that finds the subscriber also finds the reason to emit events. In the
        // other order, the subscriber could be notified of the beginning of a use but not of its end.
        core.heed_listeners();
        core.environment().publisher.subscribe(Arc::new(subscriber));
    }

    /// Returns the pool's phase and generation, without a lock.
    pub(crate) fn state(&self) -> PoolState {
        self.here().core.state()
    }

    /// Delivers the events emitted so far.
    pub(crate) fn deliver(&self) {
        self.here().core.environment().deliver();
    }

    /// Does the part of [`ready`](Self::ready) that does not call foreign code.
    #[must_use]
    pub(crate) fn begin_ready(&self) -> PoolChange {
        let this = self.here();
        this.home(|| Handle::try_current().ok());
        this.core.begin_ready()
    }

    /// Begins a [`clear`](Self::clear), or a [`clear_service`](Self::clear_service) if a service is given: does the
    /// part that does not call foreign code. Does nothing if the pool's mode does not allow this clear.
    #[must_use]
    pub(crate) fn begin_clear(&self, service: Option<ServiceId>, clear: Clear) -> PoolChange {
        let core = &self.here().core;
        let begun = match service {
            Some(service_id) if core.options().load_balanced => core.begin_clear_service(service_id, clear),
            _ => core.begin_clear(clear),
        };
        begun.unwrap_or(None)
    }

    /// Does the rest of a change, outside all locks.
    pub(crate) fn conclude(&self, change: PoolChange) {
        let core = &self.here().core;
        core.conclude(change);
        if !core.environment().has_tasks {
            core.maintain();
        }
    }

    /// Counts an operation that takes another connection because its first connection was lost while idle.
    #[cold]
    pub(crate) fn count_retry(&self) {
        self.here().core.count_retry();
    }

    /// Returns the number of the most recently created connection.
    #[cold]
    pub(crate) fn last_created(&self) -> u64 {
        self.here().core.last_id()
    }

    /// Checks out a connection without a deadline. The limits in the options apply only if `LIMITED`.
    ///
    /// Two paths must be cheap: finding a connection at once, and waiting for a connection without a time limit. All
    /// other paths are boxed, which keeps the future small. A small future matters because a hand-over spends most of
    /// its time moving the waiter's cache lines between CPU cores.
    pub(crate) fn check_out_without_deadline<const LIMITED: bool>(
        &self,
        site: &'static Location<'static>,
    ) -> impl Future<Output = Result<Connection<E>, CheckOutError>> + Send + '_ {
        CheckOut::new(self, site, |pool| match LIMITED && pool.limits_check_outs() {
            true => Waiting::Otherwise { future: boxed(|| pool.obtain_in_options_time()) },
            false if pool.core.is_suspended() => {
                Waiting::Otherwise { future: boxed(|| pool.obtain_within(TimeLimits::none())) }
            }
            false => Waiting::Queue { acquire: pool.core.acquire() },
        })
    }

    /// Checks out a connection for an operation, which times out at `end` because of `limit`.
    pub(crate) fn check_out_within_operation(
        &self,
        end: Instant,
        limit: TimeLimit,
        site: &'static Location<'static>,
    ) -> impl Future<Output = Result<Connection<E>, CheckOutError>> + Send + '_ {
        CheckOut::new(self, site, move |pool| Waiting::Otherwise {
            future: boxed(|| pool.obtain_within_operation(end, limit)),
        })
    }

    /// Returns this pool or, in a forked child, its successor.
    #[inline]
    pub(super) fn here(&self) -> &Self {
        if self.core.environment().is_inherited() { self.after_fork() } else { self }
    }

    #[cold]
    fn after_fork(&self) -> &Self {
        let successor = self.shared.after_fork.get_or_init(|| {
            let core = &self.core;
            // Never dropped in the child, because its connections belong to the parent.
            std::mem::forget(Arc::clone(core));
            let before = core.environment();
            core.abandon();
            let is_closed = core.state().phase == Phase::Closed;
            let mut environment = TokioEnvironment::new(
                before.establish.present(),
                before.publisher.successor(),
                before.on_failure.clone(),
                is_closed,
            );
            environment.timeout = before.timeout;
            environment.max_waiting = before.max_waiting;
            environment.budget = before.budget.as_ref().map(Budget::here);
            environment.has_tasks = before.has_tasks;
            environment.stopwatch = before.stopwatch.clone();
            environment.coarse = before.coarse.successor();
            let slow = before.slow_check_outs.as_ref().map(SlowCheckOuts::threshold);
            environment.slow_check_outs = slow.map(SlowCheckOuts::new);
            environment.holds = HoldReports::new(before.holds.sinks());
            let successor = Self::new(core.after_fork(environment, Arc::new(Forked)));
            successor.home(|| Handle::try_current().ok());
            successor
        });
        // This is not inside `get_or_init`, because a subscriber that uses the pool also calls this function.
        successor.core.environment().deliver();
        successor.here()
    }

    pub(super) fn new(core: Arc<Core<TokioEnvironment<E>>>) -> Self {
        Self::of(Arc::new(Shared { core, after_fork: OnceLock::new() }))
    }

    /// Returns a handle to the pool with this shared part.
    #[allow(unsafe_code)]
    pub(super) fn of(shared: Arc<Shared<E>>) -> Self {
        // SAFETY: INV-14: from here on, the copy is in a `ManuallyDrop` and stays beside `shared`.
        let core = CoreOfShared(ManuallyDrop::new(unsafe { std::ptr::read(&raw const shared.core) }));
        Self { core, shared }
    }
}

impl<E: Establish> Drop for Shared<E> {
    fn drop(&mut self) {
        // A forked child does not close its parent's pool, because threads that do not exist in the child may hold the
        // pool's locks. It does not drop the pool either, because its connections belong to the parent.
        if self.core.environment().is_inherited() {
            std::mem::forget(self.core.clone());
        } else {
            self.close();
        }
    }
}

impl<E: Establish> Shared<E> {
    fn close(&self) {
        if self.core.close() {
            self.core.environment().publisher.delivery().end();
        }
        if !self.core.environment().has_tasks {
            self.core.maintain();
        }
    }
}

impl<E: Establish> fmt::Debug for Pool<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("address", &self.address()).field("status", &self.status()).finish_non_exhaustive()
    }
}
