//! The extension point: how a pool's connections are opened, judged and closed.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bson::oid::ObjectId;

use crate::condition::Condition;
use crate::error::{Cause, EstablishError};

/// Opens and closes the connections of a pool. Implement it to pool a connection type of your own;
/// [`Endpoint`](crate::Endpoint) is the implementation for MongoDB servers.
///
/// # Panics
///
/// Panics are caught. A connection that [`condition`](Self::condition) or [`drain`](Self::drain) panics over is closed; one
/// that [`close`](Self::close) panics over has left the pool already. A panic in [`establish`](Self::establish) ends
/// that attempt only; the check-out fails, and the failure sink is not told.
///
/// # Example
///
/// ```
/// use wharf::{Establish, EstablishError, Establishing};
///
/// /// Connections that are numbers.
/// struct Numbers;
///
/// impl Establish for Numbers {
///     type Connection = u64;
///
///     async fn establish(&self, connecting: Establishing) -> Result<u64, EstablishError> {
///         Ok(connecting.connection_id())
///     }
/// }
/// ```
pub trait Establish: Send + Sync + 'static {
    /// An established connection. The pool gives `&mut` access to one holder at a time.
    type Connection: Send + 'static;

    /// Opens one connection, completely: transport, handshake and authentication.
    ///
    /// The pool bounds how many of these run at a time (`maxConnecting`), but not how long one takes: an
    /// implementation needs a timeout of its own.
    ///
    /// # Errors
    ///
    /// An [`EstablishError`] tells the stage and the labels. The pool passes it to the check-out that asked for the
    /// connection, and to the failure sink. If it [is a timeout](EstablishError::is_timeout) and no connection has come back
    /// meanwhile, the check-outs in the queue fail with it as well.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when the pool is closed or cleared with interruption, or the runtime shuts down. Whatever
    /// has been opened by then must be closed by the drop.
    fn establish(
        &self,
        connecting: Establishing,
    ) -> impl Future<Output = Result<Self::Connection, EstablishError>> + Send;

    /// Returns the condition of a connection that comes back: whether it can be checked out again. Asked at check-in, and
    /// again after [`drain`](Self::drain). It must be quick, and must not block.
    ///
    /// By default every connection is [reusable](Condition::Reusable). An implementation returns
    /// [`Condition::Broken`] for a connection that met an error. Where a user may leave a connection in the middle of
    /// something that can be brought to an end, the implementation returns [`Condition::NeedsDrain`] for it, and
    /// implements [`drain`](Self::drain).
    ///
    /// A reusable connection may be idle for long, so this is also where it gives back memory that only its last user
    /// needed.
    fn condition(&self, connection: &mut Self::Connection) -> Condition {
        let _ = connection;
        Condition::Reusable
    }

    /// What is wrong with a connection that is not [reusable](Condition::Reusable), for its `ConnectionClosed` event and for
    /// the log. Asked only if the pool has a subscriber. By default nothing is known.
    fn fault(&self, connection: &Self::Connection) -> Option<Cause> {
        let _ = connection;
        None
    }

    /// Brings to an end what the last user of a connection that [needs it](Condition::NeedsDrain) has left undone, such as
    /// reading a reply that nobody waits for any more.
    ///
    /// Runs in a task of its own on the pool's runtime. The connection counts as in use meanwhile, and
    /// `ConnectionCheckedIn` is emitted at the end: [`condition`](Self::condition) is asked again, and then a reusable connection becomes
    /// available, and any other is closed with the reason "error". The pool sets no limit to the time that this takes, so
    /// an implementation must. By default nothing is done.
    ///
    /// This costs no check-out anything. One that would have to wait for the connection's capacity has it at once: the
    /// connection is closed, also if this has not ended, the oldest first.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped, and the connection closed, when a check-out needs its capacity, the pool is cleared or closed, or
    /// its runtime shuts down.
    fn drain(&self, connection: &mut Self::Connection) -> impl Future<Output = ()> + Send {
        let _ = connection;
        std::future::ready(())
    }

    /// Closes a connection that left the pool. Must not block and needs no runtime; by default it is dropped.
    fn close(&self, connection: Self::Connection) {
        drop(connection);
    }

    /// Gives up a connection in a forked child, where the parent still uses it: nothing may be sent on it or changed
    /// about it. It must not use the pool, whose successor in the child is being made meanwhile. By default the
    /// connection's memory is leaked.
    fn abandon_after_fork(&self, connection: Self::Connection) {
        std::mem::forget(connection);
    }
}

/// What the pool tells [`Establish::establish`] about the connection to open.
pub struct Establishing {
    address: Arc<str>,
    connection_id: u64,
    generation: u64,
    load_balanced: bool,
    in_background: bool,
    identify: Box<dyn Fn(ObjectId) + Send + Sync>,
}

impl Establishing {
    pub(crate) fn new(
        address: Arc<str>,
        connection_id: u64,
        generation: u64,
        load_balanced: bool,
        in_background: bool,
        identify: Box<dyn Fn(ObjectId) + Send + Sync>,
    ) -> Self {
        Self { address, connection_id, generation, load_balanced, in_background, identify }
    }

    /// The pool's address.
    #[must_use]
    pub fn address(&self) -> &Arc<str> {
        &self.address
    }

    /// The connection's number: 1, 2, 3 and so on within its pool.
    #[must_use]
    pub fn connection_id(&self) -> u64 {
        self.connection_id
    }

    /// The pool's generation when the connection was created.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether the pool is in load-balanced mode, so that [`Establishing::identify`] must be called.
    #[must_use]
    pub fn load_balanced(&self) -> bool {
        self.load_balanced
    }

    /// Whether the connection is opened in the background towards `minPoolSize`, rather than for a check-out.
    #[must_use]
    pub fn in_background(&self) -> bool {
        self.in_background
    }

    /// Says which service the connection belongs to, in load-balanced mode, as soon as the handshake has told.
    ///
    /// From here on the connection has the generation of that service. Without effect in other modes, and the second
    /// time.
    pub fn identify(&self, service_id: ObjectId) {
        (self.identify)(service_id);
    }
}

impl fmt::Debug for Establishing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Establishing")
            .field("address", &self.address)
            .field("connection_id", &self.connection_id)
            .field("generation", &self.generation)
            .field("load_balanced", &self.load_balanced)
            .field("in_background", &self.in_background)
            .finish_non_exhaustive()
    }
}
