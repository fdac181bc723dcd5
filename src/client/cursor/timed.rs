//! Time limits of cursors for blocking calls.

use super::super::timed::Limited;
use super::{Cursor, OpenCursor};
use crate::client::session::SessionError;
use crate::endpoint::Limit;

impl OpenCursor<'_> {
    /// Sets the limit of the query, if it is already running. Later batches use the limit of the operation.
    pub(in crate::client) fn started(mut self, limit: Option<Limit>) -> Self {
        self.started = limit;
        self
    }
}

impl Limited for OpenCursor<'_> {
    fn limit(&self) -> Result<Limit, SessionError> {
        self.client.limit_of(&self.operation)
    }

    fn set_limit(&mut self, limit: Limit) {
        self.started = Some(limit);
    }
}

impl<T> Cursor<T> {
    /// Returns the time limit of the iteration in progress, or of the next one.
    pub(crate) fn limit(&self) -> Limit {
        let time = self.server_cursor.as_ref().map(|server_cursor| &server_cursor.time);
        time.map_or(Limit::Unset, |time| time.running.unwrap_or(time.timeout))
    }

    /// Closes the cursor as [`close_within`](Self::close_within) does, with a limit that may already be running.
    pub(crate) async fn close_by(mut self, limit: Limit) {
        let guard = self.queue_up();
        if let Some(closing) = self.closing(Some(limit), guard) {
            closing.await;
        }
    }
}
