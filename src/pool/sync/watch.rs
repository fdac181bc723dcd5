//! Waiting for a condition that other threads make true and announce.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use event_listener::{Event, EventListener};

/// Waits until a condition holds. A thread that makes the condition true first changes the words that the condition
/// reads, then notifies the event.
///
/// | watch | other thread |
/// | --- | --- |
/// | 1. enters the event's list | a. changes the words |
/// | 2. reads the words | b. notifies all in the list |
///
/// Both step 1 and step b take the list's lock. If step 1 comes first, step b finds the watch in the list and wakes it.
/// If step b comes first, the lock makes step a visible to step 2.
#[derive(Debug)]
pub struct Watch<'e> {
    event: &'e Event,
    listener: Option<EventListener>,
}

impl<'e> Watch<'e> {
    /// Creates a watch that has not entered the list yet.
    pub fn new(event: &'e Event) -> Self {
        Self { event, listener: None }
    }

    /// Completes when `holds` returns true.
    pub fn poll(&mut self, context: &mut Context<'_>, holds: impl Fn() -> bool) -> Poll<()> {
        loop {
            let listener = self.listener.get_or_insert_with(|| self.event.listen());
            if holds() {
                return Poll::Ready(());
            }
            if Pin::new(listener).poll(context).is_pending() {
                return Poll::Pending;
            }
            self.listener = None;
        }
    }
}
