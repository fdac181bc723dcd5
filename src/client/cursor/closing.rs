//! Closing a cursor on its server: by a call, or in the background.

use std::mem;
use std::pin::Pin;

use super::super::line::{Place, Ticket};
use super::Cursor;
use crate::client::deployment::Background;
use crate::endpoint::Limit;
use crate::pool::runtime::forks;

type Closing = Pin<Box<dyn Future<Output = ()> + Send>>;

impl<T> Cursor<T> {
    /// Ends the cursor, and closes it on the server in the background. A failed cursor must not go on: if the server
    /// executed the command, the documents of its reply would be missing.
    ///
    /// Returns whether there was anything to close.
    pub(crate) fn abandon(&mut self) -> bool {
        if self.id == 0 && self.query.is_none() {
            return false;
        }
        if self.forks != forks() {
            // The cursor, its connection and its session belong to the parent process.
            (self.id, self.unclosed) = (0, 0);
            mem::forget((self.query.take(), self.fetching.take(), self.closer.take()));
            return false;
        }
        // The client may have moved to another runtime since the cursor was opened.
        let background = self.client.deployment().background();
        let place = match &background {
            Some(Background::Spawned(_)) => self.line_up(),
            // Kept work is done at the end of a call, which would first wait for the cursor.
            Some(Background::Kept(_)) | None => None,
        };
        let Some(closing) = self.closing(None, place) else { return false };
        if let Some(background) = background {
            background.take(closing);
        }
        true
    }

    /// Takes a place in the line of the transaction's closing cursors.
    pub(super) fn line_up(&self) -> Option<Place> {
        self.ticket.as_ref().filter(|_| self.id != 0).map(Ticket::line_up)
    }

    /// Takes the cursor apart, and returns the work that closes it on the server, or `None` if it has ended there.
    pub(super) fn closing(&mut self, timeout: Option<Limit>, place: Option<Place>) -> Option<Closing> {
        let id = match (mem::take(&mut self.id), mem::take(&mut self.unclosed)) {
            (0, 0) => return None,
            (0, unclosed) => unclosed,
            (id, _) => id,
        };
        match (self.query.take(), self.fetching.take()) {
            (Some(query), _) => Some(Box::pin(query.close(id, timeout, place))),
            (None, Some(fetching)) => {
                let closer = self.closer.take();
                let at_once = async move {
                    if let Some(closer) = closer {
                        closer.close(id, timeout, None).await;
                    }
                };
                // In other cases the server must answer first, and the connection may be the pinned one.
                let after_batch = async move {
                    let (query, fetched) = fetching.await;
                    query.close_after(id, fetched.map_err(|given_up| given_up.error), timeout, place).await;
                };
                Some(Box::pin(async { _ = tokio::join!(at_once, after_batch) }))
            }
            (None, None) => None,
        }
    }
}

impl<T> Drop for Cursor<T> {
    fn drop(&mut self) {
        self.abandon();
    }
}
