//! The pool that services embed.

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::{Arc, OnceLock};
use std::task::Context;

use bson::oid::ObjectId;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::builder::PoolBuilder;
use super::check_out::{CheckOut, Waiting};
use super::connection::Connection;
use super::environment::TokioEnvironment;
use super::establish::Establish;
use super::fork;
use super::publisher::Subscriber;
use crate::boxed::boxed;
use crate::error::{CheckInError, CheckOutError, ClearError};
use crate::options::PoolOptions;
use crate::pool::{Clear, Core, Environment, Phase, PoolStatus};
use crate::sync::contained;

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
/// events) or wakes a task. Check-outs that must wait, and check-ins while there are such, take a lock for a few steps,
/// which do not depend on how many wait. The thread that holds it may be preempted; others then look again after
/// pauses, and at last sleep for 50 µs at a time. Opening and closing connections, `ready`, `clear`, `close` and
/// `status` take short locks too.
///
/// # Panics
///
/// A waker that panics when the pool wakes or drops it does not panic here: the pool catches it. No other waiter loses
/// its wake-up, and the caller that was about to wake it is not disturbed. The panic hook is called as usual.
///
/// # Runtimes
///
/// A pool's tasks run on one tokio runtime: that of [`PoolBuilder::runtime`], or the one that built the pool. Its
/// connections are registered there, and they can be used from any other runtime while it lives (a current-thread one:
/// while it runs). When it ends, they are of no use any more: they become stale, which counts one generation, and are
/// closed. The pool then moves: the next check-out that opens a connection, or the next call of [`Pool::ready`], makes
/// the runtime that it runs on the pool's, with a background task there. So a pool in a `static` serves one runtime
/// after the other, as in tests that each have their own. Check-outs that wait on another runtime go on waiting. A
/// command that was using a connection of the runtime that has ended fails as after a network failure. If that must not
/// happen to a pool in a `static`, give it a runtime that lives as long as the process.
///
/// Check-outs may also be polled outside of tokio, by another executor. The pool's runtime opens the connections and
/// keeps the time limits then. After its end they fail with [`CheckOutError::NoRuntime`], until the pool has moved.
///
/// # Forking
///
/// A pool that is used in a forked child notices, and clears itself ("Forking" in the specification): it counts one
/// generation more, and starts again, paused, on the runtime that the child uses it on. It gives up the connections
/// that it has from the parent without sending anything on them. Connections that were checked out at the time of the
/// fork stay the parent's, and must not be used in the child; dropping them there is allowed.
///
/// To a subscriber it is one pool that goes on, so counts made from the events add up in the child, too. If the pool
/// was ready, there is a `PoolCleared`. For every connection from the parent there is a `ConnectionClosed` with the
/// reason "stale", and before it a `ConnectionCheckedIn` if the connection was in use. Numbers of connections go on
/// from the parent's. What other threads were doing with the pool at the very time of the fork ends without an event in
/// the child.
///
/// Nothing that the parent has begun goes on in the child, even if the child inherits a runtime: not the background
/// task, and not the opening of a connection. A check-out that waited at the time of the fork fails with
/// [`PoolClearedError`](crate::PoolClearedError) when the child polls it. Nothing in the child wakes it, so do not rely
/// on that. What such futures hold is leaked: the socket of a connection in establishment stays open in the child.
///
/// The child of an [`Endpoint`](crate::Endpoint) derives its keys from the password anew, and obtains its own OIDC
/// tokens. What the parent had of these is leaked in the child too, and not wiped from its memory.
pub struct Pool<E: Establish> {
    /// What `shared` has, too: a check-out comes to it without a second pointer to load.
    pub(super) core: Arc<Core<TokioEnvironment<E>>>,
    shared: Arc<Shared<E>>,
}

/// What all handles of a pool share. The last one to go closes the pool.
struct Shared<E: Establish> {
    core: Arc<Core<TokioEnvironment<E>>>,
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
        PoolBuilder::new(address, establish)
    }

    /// Checks out a connection: an available one, or a new one within `maxPoolSize` and `maxConnecting`, or the first
    /// that comes free, in the order of arrival. While a new one is being opened, whichever comes first: that or one
    /// that comes back.
    ///
    /// With `timeoutMS` ([`PoolBuilder::timeout`]) all of it ends when that time is up. Without, waiting in the queue
    /// is bounded by `waitQueueTimeoutMS`, which by default is no bound, and opening a connection by the establisher
    /// only; [`Pool::check_out_until`] bounds both. The [guide](crate::guide#time-limits) has a table of all limits.
    ///
    /// If opening a connection runs out of time and none has come back meanwhile, the check-outs in the queue fail with
    /// the same error, instead of trying one after the other.
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
    /// the reason "cancelled".
    ///
    /// Poll it or drop it: a check-out that waits and is put aside, as in a `select!` in a loop while another branch
    /// does its work, may have been granted a connection, or the right to open one, which nobody else has then.
    pub fn check_out(&self) -> impl Future<Output = Result<Connection<E>, CheckOutError>> + Send + '_ {
        self.check_out_without_deadline::<true>()
    }

    /// As [`Pool::check_out`], but gives up at `deadline`, whatever it is waiting for then. It replaces `timeoutMS`.
    /// `waitQueueTimeoutMS` counts besides where `timeoutMS` is not set.
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
        CheckOut::new(self, move |pool| Waiting::Otherwise { future: boxed(|| pool.obtain_until(deadline)) })
    }

    /// Checks a connection in, as dropping it does, but refuses one of another pool.
    ///
    /// # Errors
    ///
    /// [`CheckInError`] gives back a connection that this pool did not create.
    pub fn check_in(&self, connection: Connection<E>) -> Result<(), CheckInError<Connection<E>>> {
        let core = &self.here().core;
        if connection.belongs_to(core) {
            drop(connection);
            Ok(())
        } else {
            Err(CheckInError { connection, address: core.address().clone() })
        }
    }

    /// Marks a paused pool as ready: check-outs are served and connections opened from now on, in the background
    /// `minPoolSize` of them. Returns whether it was paused.
    ///
    /// This says that the server is reachable; it does not find out. It connects to nothing itself.
    pub fn ready(&self) -> bool {
        let this = self.here();
        this.home(|| Handle::try_current().ok());
        this.core.ready()
    }

    /// Pauses the pool and makes all its connections stale. Returns whether anything was done: not if the pool is
    /// closed, or of another generation than asked for.
    ///
    /// Whoever waits fails at once with [`PoolClearedError`](crate::PoolClearedError). Connections in use are closed
    /// when they come back, or with [`Clear::interrupt_in_use_connections`] are told to stop. The pool stays paused
    /// until somebody calls [`Pool::ready`].
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

    /// Completes when the pool is closed, its last connection is gone, and every event so far was delivered. Closes
    /// nothing itself, and waits for as long as a caller holds a connection: for an orderly end, call
    /// [`close`](Self::close) and then this, under a time limit.
    ///
    /// A check-out that the closing refused emits its `ConnectionCheckOutFailed` when its task is polled next, or when
    /// its future is dropped. That may be later.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn closed(&self) {
        // After a fork, it is the child's pool that is waited for.
        while fork::own(self.here().closed_here()).await.is_err() {}
    }

    async fn closed_here(&self) {
        let core = &self.core;
        let delivery = core.environment().publisher.delivery();
        let mut change = delivery.watch();
        // The event's own list does not bear a waker that panics.
        poll_fn(|context| {
            let waker = contained(context.waker().clone());
            delivery.poll_ended(&mut change, &mut Context::from_waker(&waker), || core.status().total == 0)
        })
        .await;
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
        &self.core.environment().establish
    }

    /// Lets a subscriber have all events from now on, for as long as the pool exists. Events before (`PoolCreated`!) go
    /// to those of [`PoolBuilder::subscriber`] only. A subscriber that holds a handle of its own pool keeps the pool
    /// open until [`Pool::close`].
    pub fn subscribe(&self, subscriber: impl Subscriber) {
        self.here().core.environment().publisher.subscribe(Arc::new(subscriber));
    }

    /// The number of the connection that was created last.
    #[cold]
    pub(crate) fn last_created(&self) -> u64 {
        self.here().core.last_id()
    }

    /// A check-out without a deadline of its own. The options' limits count only where it is `LIMITED`.
    ///
    /// Two ways must cost little: finding a connection at once, and waiting for one without a time limit. Whatever else
    /// may happen is boxed, which keeps the future small. When a connection goes from hand to hand, what takes longest
    /// is moving the waiter's cache lines from core to core.
    pub(crate) fn check_out_without_deadline<const LIMITED: bool>(
        &self,
    ) -> impl Future<Output = Result<Connection<E>, CheckOutError>> + Send + '_ {
        CheckOut::new(self, |pool| match LIMITED && pool.limits_check_outs() {
            true => Waiting::Otherwise { future: boxed(|| pool.obtain_in_options_time()) },
            false => Waiting::Queue { acquire: pool.core.acquire() },
        })
    }

    /// A check-out for an operation whose `timeoutMS` ends at `end`.
    pub(crate) fn check_out_within_operation(
        &self,
        end: Instant,
    ) -> impl Future<Output = Result<Connection<E>, CheckOutError>> + Send + '_ {
        CheckOut::new(self, move |pool| Waiting::Otherwise { future: boxed(|| pool.obtain_within_operation(end)) })
    }

    /// This pool, or what it is after a fork.
    #[inline]
    pub(super) fn here(&self) -> &Self {
        if self.core.environment().is_the_parents() { self.after_fork() } else { self }
    }

    #[cold]
    fn after_fork(&self) -> &Self {
        let successor = self.shared.after_fork.get_or_init(|| {
            let core = &self.core;
            // Never dropped here, as its connections are the parent's.
            std::mem::forget(core.clone());
            let before = core.environment();
            for connection in core.abandon() {
                before.establish.abandon_after_fork(connection);
            }
            let is_closed = core.state().phase == Phase::Closed;
            let mut environment = TokioEnvironment::new(
                before.establish.clone(),
                before.publisher.subscribers(),
                before.on_failure.clone(),
                is_closed,
            );
            environment.timeout = before.timeout;
            let successor = Self::new(core.after_fork(environment));
            successor.home(|| Handle::try_current().ok());
            successor
        });
        // Not before: a subscriber that uses the pool comes here, too.
        successor.core.environment().deliver();
        successor.here()
    }

    pub(super) fn new(core: Arc<Core<TokioEnvironment<E>>>) -> Self {
        Self { core: core.clone(), shared: Arc::new(Shared { core, after_fork: OnceLock::new() }) }
    }
}

impl<E: Establish> Drop for Shared<E> {
    fn drop(&mut self) {
        // What a forked child has of its parent's pool is neither touched, as its locks may be held by threads that the
        // child does not have, nor dropped, as its connections are the parent's.
        if self.core.environment().is_the_parents() {
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
    }
}

impl<E: Establish> fmt::Debug for Pool<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("address", &self.address()).field("status", &self.status()).finish_non_exhaustive()
    }
}
