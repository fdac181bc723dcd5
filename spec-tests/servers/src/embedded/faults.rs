//! The faults that can be turned on in a server.

use std::sync::{Arc, Mutex, PoisonError};

/// A handle to one server's faults. A change takes effect with the next connection or message.
///
/// There are no faults by default. Clones are handles to the same faults.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Mutex<Current>>);

/// The faults at a point in time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Current {
    pub close_after_accept: bool,
    pub hang_at_hello: bool,
    pub cut_replies_after: Option<usize>,
    pub response_to: Option<i32>,
    pub message_length: Option<i32>,
}

impl Faults {
    /// Sets whether the server closes each new connection as soon as it accepts it.
    pub fn close_after_accept(&self, close: bool) {
        self.change(|faults| faults.close_after_accept = close);
    }

    /// Sets whether the server leaves hello and the legacy hello unanswered until the client closes the connection.
    pub fn hang_at_hello(&self, hang: bool) {
        self.change(|faults| faults.hang_at_hello = hang);
    }

    /// Sets how many bytes of a reply the server sends before it closes the connection. It sends shorter replies in full.
    pub fn cut_replies_after(&self, bytes: Option<usize>) {
        self.change(|faults| faults.cut_replies_after = bytes);
    }

    /// Sets the number in the `responseTo` field of replies.
    pub fn response_to(&self, number: Option<i32>) {
        self.change(|faults| faults.response_to = number);
    }

    /// Sets the number in the `messageLength` field of replies.
    pub fn message_length(&self, bytes: Option<i32>) {
        self.change(|faults| faults.message_length = bytes);
    }

    /// Removes all faults.
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
