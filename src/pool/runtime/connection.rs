//! The connection that a check-out returns.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::task::{Context, Poll};

use super::environment::TokioEnvironment;
use super::establish::Establish;
use crate::pool::core::{Core, Lease, Purpose, Usage};
use crate::pool::error::PoolClearedError;
use crate::pool::service_id::ServiceId;

/// A connection that is checked out of a [`Pool`](crate::Pool). Dropping the connection checks it in.
///
/// It may be sent to any thread and dropped there, inside or outside a runtime. Checking in is a function call. It does
/// not take a lock unless a check-out is waiting, or the connection has to be closed or drained. These locks are held
/// for only a few steps. Checking in takes longer only if a subscriber is slow, because subscribers are called first. A
/// connection keeps its pool in memory, but does not keep it open.
///
/// It dereferences to the established connection. In this example, the established connection is a number:
///
/// ```
/// use wharf::{Establish, EstablishError, Establishing, Pool};
///
/// struct Numbers;
///
/// impl Establish for Numbers {
///     type Connection = u64;
///
///     async fn establish(&self, connecting: Establishing) -> Result<u64, EstablishError> {
///         Ok(10 * connecting.connection_id())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = Pool::builder("numbers", Numbers).build()?;
/// pool.ready();
/// let mut connection = pool.check_out().await?;
/// *connection += 1;
/// assert_eq!((connection.id(), *connection), (1, 11));
/// drop(connection);
/// assert_eq!(*pool.check_out().await?, 11, "the same connection");
/// # Ok(())
/// # }
/// ```
pub struct Connection<E: Establish> {
    lease: Lease<TokioEnvironment<E>>,
}

impl<E: Establish> Connection<E> {
    #[inline]
    pub(super) fn new(lease: Lease<TokioEnvironment<E>>) -> Self {
        Self { lease }
    }

    /// Returns the connection's number: 1, 2, 3 and so on within its pool.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.lease.id()
    }

    /// Returns the address of the pool.
    #[must_use]
    pub fn address(&self) -> &str {
        self.lease.address()
    }

    /// Returns the generation in which the connection was created: the generation of its service in load-balanced mode,
    /// otherwise of the pool.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.lease.service().map_or_else(|| self.lease.generation(), |(_, generation)| generation)
    }

    /// Returns the service that the connection belongs to, in load-balanced mode.
    #[must_use]
    pub fn service_id(&self) -> Option<ServiceId> {
        self.lease.service().map(|(service_id, _)| service_id)
    }

    /// Returns whether the pool or the connection's service has been cleared, or the pool closed, since the connection
    /// was created. A stale connection is closed at check-in.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.lease.is_stale()
    }

    /// Records what the connection is used for. In load-balanced mode, timeout errors report how many connections are
    /// held by cursors, by transactions and by other operations.
    pub fn pin_to(&mut self, purpose: Purpose) {
        self.lease.pin_to(purpose);
    }

    /// Returns how long the connection has existed, and how many times it has been checked out.
    #[must_use]
    #[doc(alias = "metrics")]
    pub fn usage(&self) -> Usage {
        self.lease.usage()
    }

    /// Closes the connection instead of checking it in. Call this if the connection is no longer usable.
    ///
    /// `ConnectionCheckedIn` is emitted, then `ConnectionClosed` with the reason "error". The connection is passed to
    /// [`Establish::close`].
    #[doc(alias = "evict")]
    #[doc(alias = "close")]
    pub fn discard(self) {
        self.lease.discard();
    }

    /// Removes the connection from the pool for good, and returns it. The pool may open another connection in its
    /// place.
    ///
    /// `ConnectionCheckedIn` is emitted, then `ConnectionClosed` with the reason "stale", so that counts derived from
    /// the events remain correct. [`Establish::close`] is not called.
    ///
    /// In a forked child, a connection that was checked out before the fork still belongs to the parent.
    #[must_use = "to close the connection, call `discard`"]
    #[doc(alias = "take")]
    #[doc(alias = "leak")]
    #[doc(alias = "hijack")]
    #[doc(alias = "into_inner")]
    pub fn detach(self) -> E::Connection {
        self.lease.detach()
    }

    /// Runs an operation on the connection until it completes or the pool is cleared with
    /// `interruptInUseConnections`.
    ///
    /// The connection is checked for an interruption before each poll of the operation, including the first. So no
    /// operation starts or continues on an interrupted connection.
    ///
    /// # Errors
    ///
    /// [`PoolClearedError`] if the connection was interrupted. Its [`sent`](PoolClearedError::sent) says whether the
    /// operation had begun. The operation's future has been dropped, and the connection is closed at check-in.
    ///
    /// # Cancel safety
    ///
    /// This is as cancel-safe as the operation itself.
    pub async fn interruptible<T>(
        &mut self,
        operation: impl AsyncFnOnce(&mut E::Connection) -> T,
    ) -> Result<T, PoolClearedError> {
        let mut has_begun = false;
        let done = {
            let (connection, mut interruption) = self.lease.interruptible();
            let mut operation = pin!(operation(connection));
            poll_fn(|context| {
                if interruption.is_due() {
                    return Poll::Ready(None);
                }
                has_begun = true;
                match operation.as_mut().poll(context) {
                    Poll::Ready(done) => Poll::Ready(Some(done)),
                    Poll::Pending => interruption.poll(context).map(|()| None),
                }
            })
            .await
        };
        done.ok_or_else(|| self.interrupted(has_begun))
    }

    /// Like [`interruptible`](Self::interruptible), but for an operation that keeps its state in the connection.
    /// Returns `None` if the connection was [`interrupted`](Self::interrupted).
    ///
    /// `sends` says whether the operation's next poll may send data. If it only receives, a reply that has already
    /// arrived takes precedence over the interruption.
    #[inline]
    pub(crate) fn until_interrupted<T>(
        &mut self,
        sends: impl Fn(&E::Connection) -> bool,
        mut operation: impl FnMut(&mut E::Connection, &mut Context<'_>) -> Poll<T>,
    ) -> impl Future<Output = Option<T>> {
        let (connection, mut interruption) = self.lease.interruptible();
        poll_fn(move |context| {
            if sends(connection) && interruption.is_due() {
                return Poll::Ready(None);
            }
            match operation(connection, context) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                // Only an operation that has to wait registers a waker. This is early enough, because the interruption
                // mark is read again after the waker is registered.
                Poll::Pending => interruption.poll(context).map(|()| None),
            }
        })
    }

    /// Returns the error for an interrupted operation. `sent` says whether any part of it may have left this process.
    #[cold]
    pub(crate) fn interrupted(&self, sent: bool) -> PoolClearedError {
        self.lease.interrupted(sent)
    }

    pub(super) fn belongs_to(&self, core: &std::sync::Arc<Core<TokioEnvironment<E>>>) -> bool {
        self.lease.belongs_to(core)
    }
}

impl<E: Establish> Deref for Connection<E> {
    type Target = E::Connection;

    #[inline]
    fn deref(&self) -> &E::Connection {
        &self.lease
    }
}

impl<E: Establish> DerefMut for Connection<E> {
    #[inline]
    fn deref_mut(&mut self) -> &mut E::Connection {
        &mut self.lease
    }
}

impl<E: Establish> fmt::Debug for Connection<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("id", &self.id()).field("address", &self.address()).finish_non_exhaustive()
    }
}
