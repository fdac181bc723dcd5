//! Closing a cursor on its server: by a call, or in the background.

use std::mem;
use std::time::Duration;

use super::super::closing_queue::{QueueGuard, QueueNumber};
use super::server_cursor::ServerCursor;
use super::{Cursor, Fetching};
use crate::client::deployment::{Background, Work};
use crate::endpoint::Limit;

impl<T> Cursor<T> {
    /// Closes the cursor on the server, and waits until it is closed. Errors are ignored, because the server closes an
    /// idle cursor after ten minutes. The `timeoutMS` of the query applies to this call separately.
    ///
    /// # Cancel safety
    ///
    /// The cursor may stay open on the server, which closes it after ten minutes.
    pub async fn close(mut self) {
        let guard = self.queue_up();
        if let Some(closing) = self.closing(None, guard) {
            closing.await;
        }
    }

    /// Like [`close`](Self::close), with a different `timeoutMS`. Zero means no limit.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`close`](Self::close).
    pub async fn close_within(self, timeout: Duration) {
        self.close_by(Limit::of(timeout)).await;
    }

    /// Ends the cursor, and closes it on the server in the background. A failed cursor must not continue: if the server
    /// executed the command, the documents of the lost reply would be missing.
    ///
    /// Returns whether there was anything to close.
    pub(crate) fn abandon(&mut self) -> bool {
        if self.id == 0 && self.server_cursor.is_none() {
            return false;
        }
        if self.process.is_ancestor() {
            // The cursor, its connection and its session belong to the parent process.
            (self.id, self.unclosed) = (0, 0);
            mem::forget((self.server_cursor.take(), self.fetching.take(), self.closer.take()));
            return false;
        }
        // The client may have moved to another runtime since the cursor was opened.
        let background = self.client.deployment().background();
        let guard = match &background {
            Some(Background::Spawned(..)) => self.queue_up(),
            // Kept work is done at the end of a call. If the cursor were in the queue, the call itself would first have
            // to wait for the cursor to close.
            Some(Background::Kept(_)) | None => None,
        };
        let Some(closing) = self.closing(None, guard) else { return false };
        if let Some(background) = background {
            background.take(closing);
        }
        true
    }

    /// Queues up behind the transaction's cursors that are already closing.
    pub(super) fn queue_up(&self) -> Option<QueueGuard> {
        self.queue_number.as_ref().filter(|_| self.id != 0).map(QueueNumber::queue_up)
    }

    /// Takes the cursor apart, and returns the work that closes it on the server, or `None` if the server has already
    /// closed it.
    pub(super) fn closing(&mut self, timeout: Option<Limit>, guard: Option<QueueGuard>) -> Option<Work> {
        let id = match (mem::take(&mut self.id), mem::take(&mut self.unclosed)) {
            (0, 0) => return None,
            (0, unclosed) => unclosed,
            (id, _) => id,
        };
        match (self.server_cursor.take(), self.fetching.take()) {
            (Some(server_cursor), _) => Some(close(server_cursor, id, timeout, guard)),
            (None, Some(fetching)) => Some(close_while_fetching(fetching, self.closer.take(), id, timeout, guard)),
            (None, None) => None,
        }
    }
}

fn close(server_cursor: ServerCursor, id: i64, timeout: Option<Limit>, guard: Option<QueueGuard>) -> Work {
    Box::pin(server_cursor.close(id, timeout, guard))
}

/// Closes a cursor whose next batch has been requested.
fn close_while_fetching(
    fetching: Fetching,
    closer: Option<ServerCursor>,
    id: i64,
    timeout: Option<Limit>,
    guard: Option<QueueGuard>,
) -> Work {
    let at_once = async move {
        if let Some(closer) = closer {
            closer.close(id, timeout, None).await;
        }
    };
    // Without a closer, the server must reply to the fetch first, because the cursor may be reachable only through the
    // connection that the fetch uses.
    let after_batch = async move {
        let (server_cursor, fetched) = fetching.await;
        server_cursor.close_after(id, fetched.map_err(|given_up| given_up.error), timeout, guard).await;
    };
    Box::pin(async { _ = tokio::join!(at_once, after_batch) })
}

impl<T> Drop for Cursor<T> {
    fn drop(&mut self) {
        self.abandon();
    }
}
