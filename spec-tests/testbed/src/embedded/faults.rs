//! What a server does wrong on request.

use std::sync::{Arc, Mutex, PoisonError};

/// A handle to the faults of one server. A change takes effect with the next connection or the next message.
///
/// By default there is no fault. Clones are handles to the same faults.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<Current>>);

/// The faults at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Current {
    pub close_after_accept: bool,
    pub hang_at_hello: bool,
    pub cut_replies_after: Option<usize>,
    pub response_to: Option<i32>,
    pub message_length: Option<i32>,
}

impl Faults {
    /// Whether to close every new connection as soon as it has been accepted.
    pub fn close_after_accept(&self, close: bool) {
        self.change(|faults| faults.close_after_accept = close);
    }

    /// Whether to leave hello and the legacy hello unanswered, until the client closes the connection.
    pub fn hang_at_hello(&self, hang: bool) {
        self.change(|faults| faults.hang_at_hello = hang);
    }

    /// Sends no more than this many bytes of a reply, and closes the connection then. A reply that is not longer is
    /// sent as it is.
    pub fn cut_replies_after(&self, bytes: Option<usize>) {
        self.change(|faults| faults.cut_replies_after = bytes);
    }

    /// Puts this number into the `responseTo` field of replies.
    pub fn response_to(&self, number: Option<i32>) {
        self.change(|faults| faults.response_to = number);
    }

    /// Puts this number into the `messageLength` field of replies.
    pub fn message_length(&self, bytes: Option<i32>) {
        self.change(|faults| faults.message_length = bytes);
    }

    /// Behaves well from now on.
    pub fn clear(&self) {
        self.change(|faults| *faults = Current::default());
    }

    pub(super) fn current(&self) -> Current {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Current)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
