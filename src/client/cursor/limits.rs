//! Time limits for a cursor's iterations, and for closing it.

use super::Cursor;
use crate::endpoint::Limit;

impl<T> Cursor<T> {
    /// Returns the time limit of the iteration in progress, or of the next iteration.
    pub(crate) fn limit(&self) -> Limit {
        let time = self.server_cursor.as_ref().map(|server_cursor| &server_cursor.time);
        time.map_or(Limit::Unset, |time| time.running.unwrap_or(time.timeout))
    }

    /// Sets the time limit of the iteration in progress.
    pub(crate) fn limit_iteration(&mut self, limit: Limit) {
        if let Some(server_cursor) = &mut self.server_cursor {
            server_cursor.time.running = Some(limit);
        }
    }

    /// Gives the next iteration a new limit, if limits apply to iterations.
    pub(crate) fn end_iteration(&mut self) {
        if let Some(server_cursor) = &mut self.server_cursor {
            server_cursor.time.end_iteration();
        }
    }

    /// Closes the cursor as [`close_within`](Self::close_within) does, with a limit that may already be running.
    pub(crate) async fn close_by(mut self, limit: Limit) {
        let guard = self.queue_up();
        if let Some(closing) = self.closing(Some(limit), guard) {
            closing.await;
        }
    }
}
