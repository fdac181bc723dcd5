//! The renewal of a pool's connections, and of the establisher that opens them.

use std::sync::Arc;

use super::establish::Establish;
use super::pool::Pool;
use crate::pool::core::{Environment, WentStale};

impl<E: Establish> Pool<E> {
    /// Replaces all connections, for instance because the password or the certificate for new connections has changed.
    ///
    /// A check-out that begins after this call has returned never gets an old connection. Old connections are closed
    /// with the reason "stale": available connections at once, connections in use when they are checked in, and pending
    /// connections once they are open. The pool stays ready, and no check-out fails: check-outs that are waiting get
    /// new connections. Only a check-out that had already begun to open a connection may still get that connection,
    /// which is then closed at check-in. The background task opens up to `minPoolSize` connections. The generation is
    /// incremented, but no `PoolCleared` event is emitted. Does nothing to a closed pool.
    ///
    /// [`Pool::clear`] is for a *server* that has failed: it pauses the pool and fails the waiting check-outs.
    #[doc(alias("rotate", "evict", "recycle", "soft_evict_connections"))]
    pub fn renew(&self) {
        let core = &self.here().core;
        core.renew();
        core.environment().connections_went_stale(WentStale::All);
        match core.environment().has_tasks {
            true => core.environment().schedule_maintenance(),
            false => core.maintain(),
        }
    }

    /// Opens all future connections with another establisher, and [renews](Self::renew) the pool.
    ///
    /// From then on, the new establisher also checks, drains and closes the connections that earlier establishers have
    /// opened. The pool's first establisher continues to judge their [condition](Establish::condition), and all earlier
    /// establishers are dropped with the pool.
    pub fn replace_establisher(&self, establish: E) {
        self.set_establisher(establish);
        self.renew();
    }

    /// Replaces the establisher without a renewal. Runs no foreign code.
    pub(crate) fn set_establisher(&self, establish: E) {
        self.here().core.environment().establish.replace(Arc::new(establish));
    }
}
